"""The contract of a model: finite outputs and gradients, the same in bfloat16 up to rounding and the same bits after saving and
loading, and independent examples."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from ..core import registry
from ..core.batch import Batch, call_model
from ..core.tensors import decode, encode
from ._contract import Plugin, agree, agrees_in_bf16, load, plugin_name, require, required_function, run

MakeModel = Callable[..., tuple[nn.Module, Batch]]
"""makes the tiny model in evaluation mode and its batch; the seed determines the weights"""


def check_model(plugin: Plugin) -> None:
    """Check a model, given by name, by the path of its file or as a module.

    `tiny()` in it returns a small model and a batch of two examples or more.  A model whose outputs for an example depend on
    the others in the batch declares `batch_independent = False`.
    """
    module = load("models", plugin)
    run(plugin_name(module), [declares_what_it_is], module)
    run(plugin_name(module), CHECKS, fresh(module))


def fresh(module: ModuleType) -> MakeModel:
    """A function that makes the tiny model in float64, with noise on all parameters, and its batch."""

    def make(seed: int = 0) -> tuple[nn.Module, Batch]:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model, batch = required_function(module, "tiny")()
            model = model.double().eval()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.add_(0.1 * torch.randn_like(parameter))
        return model, Batch(**{name: x.double() if x.is_floating_point() else x for name, x in batch.fields.items()})

    return make


def outputs(output: Any) -> dict[str, Tensor]:
    """All tensors of an output, by name."""
    if isinstance(output, Mapping):
        return dict(output)
    return {str(i): one for i, one in enumerate(output)} if isinstance(output, (tuple, list)) else {"output": output}


def declares_what_it_is(module: ModuleType) -> None:
    """Its file holds a final model, the one named like the file or its only one, with docstrings."""
    model, batch = required_function(module, "tiny")()
    require(isinstance(model, nn.Module), f"tiny() returns {type(model).__name__}, not a model and a batch")
    require(isinstance(batch, Batch) and len(batch) > 1, "tiny() does not return a batch of two examples or more")
    kinds = registry.classes_in(module, nn.Module)
    named = [kind for kind in kinds if kind.__name__.lower() == plugin_name(module).replace("_", "").lower()]
    require(len(named or kinds) == 1, f"none of {', '.join(kind.__name__ for kind in kinds) or 'its classes'} is named like the file")
    kind = (named or kinds)[0]
    require(type(model) is kind, f"tiny() returns a {type(model).__name__}, not a {kind.__name__}")
    require(getattr(kind, "__final__", False), f"{kind.__name__} is not marked @final")
    require(bool(kind.__doc__) and bool(module.__doc__), "the file or the class has no docstring")


def outputs_are_finite_and_the_same_twice(make: MakeModel) -> None:
    """In evaluation mode its outputs are finite and deterministic."""
    model, batch = make()
    with torch.no_grad():
        first, second = outputs(call_model(model, batch)), outputs(call_model(model, batch))
    for name, out in first.items():
        require(bool(out.isfinite().all()), f"'{name}' is not finite")
        require(torch.equal(out, second[name]), f"'{name}' differs from call to call")


def gradients_reach_its_weights(make: MakeModel) -> None:
    """In training mode gradients are finite, and reach its weights where it has some."""
    model, batch = make()
    model.train()
    outs = [out for out in outputs(call_model(model, batch)).values() if out.requires_grad]
    trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    require(bool(outs) or not trained, "no output depends on a weight")
    if not trained:
        return
    sum((out.square().sum() for out in outs), torch.zeros(())).backward()
    bad = [name for name, p in trained if p.grad is not None and not p.grad.isfinite().all()]
    require(not bad, f"the gradient of {', '.join(bad[:3])} is not finite")
    require(any(p.grad is not None and bool(p.grad.any()) for _, p in trained), "every gradient is 0")


def autocast_changes_little(make: MakeModel) -> None:
    """Under autocast outputs and gradients stay close."""
    model, batch = make()
    fields = {name: x.float() if x.is_floating_point() else x for name, x in batch.fields.items()}
    agrees_in_bf16(model.float(), fields, lambda model, fields: outputs(call_model(model, Batch(**fields))))


def saving_and_loading_keeps_the_bits(make: MakeModel) -> None:
    """Saved weights loaded into another instance give the same bits."""
    (first, batch), (again, _) = make(), make(seed=1)
    again.load_state_dict(decode(b"".join(encode(first.state_dict()))))
    with torch.no_grad():
        expected, actual = outputs(call_model(first, batch)), outputs(call_model(again, batch))
    for name, out in expected.items():
        require(torch.equal(actual[name], out), f"'{name}' differs")


def examples_are_independent(make: MakeModel) -> None:
    """In evaluation mode its output for an example is the same alone and in a batch."""
    model, batch = make()
    if not getattr(model, "batch_independent", True):
        return
    with torch.no_grad():
        whole = {name: out for name, out in outputs(call_model(model, batch)).items() if out.ndim and len(out) == len(batch)}
        require(bool(whole), "no output has a row for each example")
        for row in range(len(batch)):
            alone = outputs(call_model(model, batch[row : row + 1]))
            agree(
                {name: alone[name] for name in whole},
                {name: out[row : row + 1] for name, out in whole.items()},
                1e-9,
                f"example {row} alone",
            )


def changes_nothing(make: MakeModel) -> None:
    """In evaluation mode it changes neither the batch, nor its buffers, nor a random state."""
    model, batch = make()
    fields = {name: x.clone() for name, x in batch.fields.items()}
    buffers = {name: x.clone() for name, x in model.state_dict().items()}
    state = torch.get_rng_state()
    with torch.no_grad():
        call_model(model, batch)
    require(torch.equal(state, torch.get_rng_state()), "it draws from torch's global generator")
    require(all(torch.equal(x, batch.fields[name]) for name, x in fields.items()), "it changes the batch")
    require(all(torch.equal(x, model.state_dict()[name]) for name, x in buffers.items()), "it changes its own weights or buffers")


CHECKS: tuple[Callable[[MakeModel], None], ...] = (
    outputs_are_finite_and_the_same_twice,
    gradients_reach_its_weights,
    autocast_changes_little,
    saving_and_loading_keeps_the_bits,
    examples_are_independent,
    changes_nothing,
)
