"""Lag: how strongly the last output depends on the input t steps back, as the norm of its Jacobian.

The Jacobian of the last output with respect to the input t steps back is a product of t Jacobians of the recurrence, so it shrinks or
grows exponentially in a plain recurrent net, per step by the largest absolute eigenvalue (Pascanu et al., On the
Difficulty of Training Recurrent Neural Networks, 2013); attention and gates can keep it from doing so.
"""

from __future__ import annotations

import math
from typing import Annotated, Any

import numpy as np
import torch

from ..core.batch import call_model
from ..core.errors import BadInput
from ..core.options import Range
from ..core.reading import Lines, Reading, Subject
from .tools.readonly import guard, hook_outputs, no_model, preserve_state
from .tools.tiny import letters
from .tools.tokens import ends


def why_not(subject: Subject) -> str:
    """Why the lens does not apply to a subject, or ''; `guard` turns it into an error."""
    if missing := no_model(subject):
        return missing
    x = subject.batch.x
    if x.dim() != (3 if x.is_floating_point() else 2) or x.shape[1] < 2:
        return "the inputs are not sequences"
    try:
        influence(subject.model, subject.batch[:1], probes=1)
    except Exception as error:  # whatever fails here would fail in the lens too
        return f"the output cannot be differentiated with respect to the inputs: {' '.join(str(error).split())[:120]}"
    return ""


@guard
def read(subject: Subject, examples: Annotated[int, Range(1, 4096)] = 16, probes: Annotated[int, Range(1, 256)] = 8) -> Reading:
    """Root mean square over sequences of the Jacobian's norm, against the distance to the last position.

    Args:
        examples: how many sequences, the first of the batch
        probes: number of random directions of the output from which the norm is estimated
    """
    norms = influence(subject.model, subject.batch[:examples], probes)
    slope = fit_slope(norms)
    trend = "" if slope is None else f" A line fitted to its logarithm changes by a factor of {math.exp(slope):.3g} per step"
    if slope is not None and slope < 0:
        trend += f", to a tenth in {math.log(10) / -slope:,.0f} steps"
    return Lines(
        "Influence of the past on the last output",
        {"norm of the gradient": norms},
        axes=["steps back", "norm of the gradient"],
        note=f"Norm of the Jacobian of the last output with respect to one input vector, {min(examples, len(subject.batch))} sequences, "
        f"{probes} random directions.{trend}{'.' if trend else ''}",
        log=["y"],
        results={"slope": slope},
    )


def influence(model: Any, batch: Any, probes: int) -> list[float]:
    """The Frobenius norm of d(last output) / d(input t steps back) for t = 0, 1, ..., root mean square over the sequences.

    For random signs s, E |s J|^2 is the squared norm of J, so a few backward passes are enough.
    """
    leaves: list[Any] = []
    x = batch.x

    def leaf(name: str, module: Any, inputs: tuple[Any, ...], output: Any) -> Any:
        if inputs[0].shape != x.shape or not torch.equal(inputs[0], x):
            return None  # an embedding of other tokens, such as those of a source
        leaves.append(output.detach().requires_grad_())
        return leaves[-1]

    tables = {name: part for name, part in model.named_modules() if isinstance(part, torch.nn.Embedding)}
    with preserve_state(model), torch.inference_mode(False), torch.enable_grad(), hook_outputs(tables, leaf):
        if x.is_floating_point():
            leaves = [x.detach().clone().requires_grad_()]
            out = call_model(model, batch.replace(x=leaves[0]))
        else:
            out = call_model(model, batch)
        out = out["tokens"] if isinstance(out, dict) and "tokens" in out else out
        if not leaves:
            raise BadInput("no embedding layer reads the tokens", where="the model")
        end, rows = ends(batch), torch.arange(len(x))
        last = out[rows, end - 1] if out.dim() > 2 else out
        rng, total = torch.Generator().manual_seed(0), torch.zeros(x.shape[:2], dtype=torch.float64)
        for probe in range(probes):
            signs = torch.randint(0, 2, last.shape, generator=rng).to(last) * 2 - 1
            (slope,) = torch.autograd.grad((last * signs).sum(), leaves[0], retain_graph=probe + 1 < probes)
            total += slope.double().square().sum(-1) / probes
    lags = end.unsqueeze(1) - 1 - torch.arange(x.shape[1])
    valid = lags >= 0
    longest = int(end.max())
    sums = torch.zeros(longest, dtype=torch.float64).index_add(0, lags[valid], total[valid])
    return (sums / torch.bincount(lags[valid], minlength=longest)).sqrt().tolist()


def fit_slope(norms: list[float]) -> float | None:
    """Slope of a straight line through the logarithms, by least squares; None with fewer than two of them."""
    lags = [lag for lag, norm in enumerate(norms) if norm > 0 and math.isfinite(norm)]
    return float(np.polyfit(lags, [math.log(norms[lag]) for lag in lags], 1)[0]) if len(lags) > 1 else None


def tiny() -> Subject:
    """A small subject for the contract tests."""
    return letters("rnn")
