"""Norm of each layer's state, step by step along a sequence.

Every mixer with a state of fixed size reads one token at a time; the lens `memory` shows more of mixers with a linear state.
"""

from __future__ import annotations

from typing import Annotated, Any

import torch

from ..core.batch import call_model
from ..core.options import Range
from ..core.reading import Lines, Reading, Subject
from ..nn.mixers import Mixer
from .tools.readonly import guard, hook_outputs, no_model, preserve_state, spread_evenly
from .tools.tiny import letters
from .tools.tokens import layer_label

LINES = 7
"""maximum number of layers in a picture"""


def why_not(subject: Subject) -> str:
    """Why the lens does not apply to a subject, or ''; `guard` turns it into an error."""
    if missing := no_model(subject):
        return missing
    if not _mixers(subject.model):
        return "no layer of the model has a state of fixed size"
    return "" if subject.batch.x.dim() > 1 and subject.batch.x.shape[1] > 1 else "the inputs are not sequences"


@guard
def read(subject: Subject, examples: Annotated[int, Range(1, 4096)] = 8, steps: Annotated[int, Range(1, 65536)] = 256) -> list[Reading]:
    """Norm of each tensor of the state after each step, mean over sequences; a picture for each kind of tensor.

    Args:
        examples: how many sequences, the first of the batch
        steps: how many of their first steps
    """
    sizes = norms(subject.model, subject.batch[:examples], steps)
    kinds = list(dict.fromkeys(name for each in sizes.values() for name in each))
    return [
        Lines(
            f"Norm of the state '{kind}'",
            {layer_label(name): each[kind] for name, each in shown.items()},
            axes=["step", "norm"],
            note=f"Norm over all entries, mean over {min(examples, len(subject.batch))} sequences"
            + (f"; {LINES} of {len(have)} layers." if len(have) > LINES else "."),
            x={layer_label(name): list(range(1, len(each[kind]) + 1)) for name, each in shown.items()},
        )
        for kind in kinds
        for have in [[name for name, each in sizes.items() if kind in each]]
        for shown in [{name: sizes[name] for name in spread_evenly(have, LINES)}]
    ]


def norms(model: Any, batch: Any, steps: int) -> dict[str, dict[str, list[float]]]:
    """For each layer and tensor of its state the norm after each step, mean over the sequences."""
    seen: dict[str, Any] = {}
    mixers = _mixers(model)

    def note(name: str, module: Any, inputs: tuple[Any, ...], output: Any) -> None:
        seen[name] = inputs[0][:, :steps]

    with preserve_state(model), torch.no_grad():
        with hook_outputs(mixers, note):
            call_model(model, batch)
        return {name: _norms_over_time(mixers[name], x) for name, x in seen.items()}


def _norms_over_time(mixer: Any, x: Any) -> dict[str, list[float]]:
    state: Any = None
    sizes: dict[str, list[float]] = {}
    for now in x.split(1, 1):
        _, state = mixer(now, state)
        for name, tensor in state.items():
            if (tensor.is_floating_point() or tensor.is_complex()) and name not in mixer.grows:
                sizes.setdefault(name, []).append(float(tensor.flatten(1).norm(dim=1).mean()))
    return sizes


def _mixers(model: Any) -> dict[str, Any]:
    return {name: part for name, part in model.named_modules() if isinstance(part, Mixer) and part.causal and not part.grows}


def tiny() -> Subject:
    """A small subject for the contract tests."""
    return letters("lstm")
