"""The contract of an objective: sums with counts that add up, correct gradients, and no side effects."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..core import registry
from ..core.batch import Batch
from ..core.errors import nearest
from ..core.terms import Terms
from ..models.heads import LINKS, TASKS
from ._contract import Plugin, load, plugin_name, require, required_function, run


class Small(NamedTuple):
    """What `tiny()` of an objective returns."""

    objective: Any
    model: nn.Module
    batch: Batch


MakeObjective = Callable[[], Small]


def check_objective(plugin: Plugin) -> None:
    """Check an objective, given by name, by the path of its file or as a module.

    `tiny()` in it returns the objective, a small model and a batch of six examples or more.
    """
    module = load("objectives", plugin)
    run(plugin_name(module), [declares_what_it_is], module)
    run(plugin_name(module), CHECKS, fresh(module))


def fresh(module: ModuleType) -> MakeObjective:
    """A function that makes objective, model and batch, the same every time."""

    def make() -> Small:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return Small(*required_function(module, "tiny")())

    return make


def declares_what_it_is(module: ModuleType) -> None:
    """Its file holds one final class named like the file, with docstrings, and what it declares is known."""
    objective, name = fresh(module)().objective, plugin_name(module)
    kinds = registry.classes_in(module, Callable)  # type: ignore[arg-type]
    require(len(kinds) == 1, f"its file defines {', '.join(kind.__name__ for kind in kinds) or 'no class'}, not one")
    kind = kinds[0]
    require(type(objective) is kind, f"tiny() returns a {type(objective).__name__}, not a {kind.__name__}")
    require(kind.__name__.lower() == name.replace("_", "").lower(), f"{kind.__name__} is not named like its file")
    require(getattr(kind, "__final__", False), f"{kind.__name__} is not marked @final")
    require(bool(kind.__doc__) and bool(module.__doc__), "the file or the class has no docstring")
    for task in getattr(kind, "tasks", ()):
        require(task in TASKS, f"tasks names '{task}', which is not a task; {nearest(task, TASKS)}")
    link = getattr(kind, "link", "identity")
    require(callable(link) or link in LINKS, f"link '{link}' is not known; {nearest(str(link), LINKS)}")
    require(isinstance(getattr(kind, "repeatable", False), bool), "repeatable must be True or False")


def sums_are_finite_and_counts_constant(make: MakeObjective) -> None:
    """Its sums are finite, and its counts do not depend on the model."""
    objective, model, batch = make()
    if hasattr(objective, "check"):
        objective.check(batch)
    terms = objective(model, batch)
    require(isinstance(terms, Terms) and len(terms) > 0, f"it returns {type(terms).__name__}, not non-empty Terms")
    for name, term in terms.items():
        require(term.sum.ndim == 0 and bool(term.sum.isfinite()), f"the sum '{name}' is not one finite number")
        require(float(term.count) > 0, f"the count of '{name}' is {float(term.count):g}")
    if hasattr(objective, "counts"):
        require(terms.counts() == objective.counts(batch), f"counts(batch) is {objective.counts(batch)}, the terms have {terms.counts()}")


def parts_add_up(make: MakeObjective) -> None:
    """The sums and counts of the parts of a batch add up to those of the batch."""
    objective, model, batch = _wide(make())
    require(len(batch) > 5, f"tiny() has a batch of {len(batch)} examples; give it six or more")
    whole = objective(model, batch)
    parts = objective(model, batch[:1]) + objective(model, batch[1:5]) + objective(model, batch[5:])
    require(parts.keys() == whole.keys(), f"parts have {', '.join(parts)}, the batch {', '.join(whole)}")
    for name in whole:
        for what in ("count", "sum"):
            part, total = (float(torch.as_tensor(getattr(terms[name], what)).detach()) for terms in (parts, whole))
            close = math.isclose(part, total, rel_tol=1e-12, abs_tol=1e-12)
            require(close, f"the {what} of '{name}' is {total:.12g} for the batch and {part:.12g} summed over its parts")


def gradients_are_right(make: MakeObjective) -> None:
    """The gradient of its loss equals finite differences in float64."""
    objective, model, batch = _wide(make())
    state = {name: p.detach().clone().requires_grad_() for name, p in model.named_parameters()}
    whole = _LossOf(objective, model, batch)

    def loss(*values: Tensor) -> Tensor:
        return torch.func.functional_call(whole, {f"model.{name}": value for name, value in zip(state, values, strict=True)}, ())

    right = torch.autograd.gradcheck(loss, tuple(state.values()), atol=1e-7, raise_exception=False)
    require(right, "the gradient of the parameters is wrong")


class _LossOf(nn.Module):
    """The loss as a module; the objective gets the model itself, because a penalty may read its weights."""

    def __init__(self, objective: Any, model: nn.Module, batch: Batch) -> None:
        super().__init__()
        self.objective, self.model, self.batch = objective, model, batch

    def forward(self) -> Tensor:
        return self.objective(self.model, self.batch).loss()


def a_gradient_step_lowers_the_loss(make: MakeObjective) -> None:
    """One small step against the gradient lowers the loss."""
    objective, model, batch = make()
    better = copy.deepcopy(model)
    loss = objective(better, batch).loss()
    loss.backward()
    with torch.no_grad():
        for p in better.parameters():
            if p.grad is not None:
                p.sub_(1e-3 * p.grad)
    after = float(objective(better, batch).loss().detach())
    require(after < float(loss.detach()), f"the loss goes from {float(loss.detach()):.7g} to {after:.7g}")


def measures_and_predictions_keep_the_examples(make: MakeObjective) -> None:
    """Predictions have one row per example; measures are finite, counted, and have no gradient."""
    objective, model, batch = make()
    output = model(batch.x)
    if hasattr(objective, "predict"):
        rows = len(objective.predict(output))
        require(rows == len(batch), f"predict returns {rows} rows for {len(batch)} examples")
    if hasattr(objective, "measures"):
        measures = objective.measures(output, batch)
        require(len(measures) > 0, "measures returns nothing")
        for name, term in measures.items():
            fine = bool(term.sum.isfinite()) and not term.sum.requires_grad and float(term.count) > 0
            require(fine, f"'{name}' of measures is not finite, has a gradient, or counts nothing")


def changes_nothing(make: MakeObjective) -> None:
    """It changes neither the batch nor a random state."""
    objective, model, batch = make()
    before = {name: tensor.clone() for name, tensor in batch.fields.items()}
    state = torch.get_rng_state()
    objective(model, batch)
    if hasattr(objective, "measures"):
        objective.measures(model(batch.x), batch)
    require(torch.equal(torch.get_rng_state(), state), "it draws from torch's global generator")
    changed = [name for name in before if not torch.equal(batch.fields[name], before[name])]
    require(not changed, f"it changes {', '.join(changed)} of the batch")


def _wide(small: Small) -> Small:
    """The same in float64."""
    objective, model, batch = small
    return Small(objective, model.double(), batch.replace(x=batch.x.double()))


CHECKS: tuple[Callable[[MakeObjective], None], ...] = (
    sums_are_finite_and_counts_constant,
    parts_add_up,
    gradients_are_right,
    a_gradient_step_lowers_the_loss,
    measures_and_predictions_keep_the_examples,
    changes_nothing,
)
