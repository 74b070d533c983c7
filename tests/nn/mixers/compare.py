"""Two ways to the same numbers: outputs and the gradients of everything, in float64."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from sonde.nn.mixers import Mixer
from sonde.nn.recurrence import Rule, run

LENGTHS = [1, 17, 65]


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def same_rule(rule: Callable[..., Rule], naive: Callable[..., Tensor], *inputs: Tensor) -> None:
    """A rule in two forms against a loop over one sequence: naive(*inputs without batch and head) -> (L, V)."""

    def run_loop(*xs: Tensor) -> Tensor:
        B, H = xs[0].shape[:2]
        return torch.stack([torch.stack([naive(*(x[b, h] for x in xs)) for h in range(H)]) for b in range(B)])

    expected = _results(run_loop, inputs)
    for form in ("step", "chunk"):
        _equal(_results(lambda *xs, form=form: run(rule(*xs), form=form)[0], inputs), expected)


def same_layer(layer: Mixer, naive: Callable[[Tensor, dict[str, Tensor]], Tensor], x: Tensor) -> None:
    """A layer against the whole of it written out for one sequence: naive(x (T, D), weights) -> (T, D)."""
    names = [name for name, _ in layer.named_parameters()]
    weights = [p.detach() for p in layer.parameters()]

    def ours(x: Tensor, *weights: Tensor) -> Tensor:
        return torch.func.functional_call(layer, dict(zip(names, weights)), (x,))[0]

    def theirs(x: Tensor, *weights: Tensor) -> Tensor:
        return torch.stack([naive(row, dict(zip(names, weights))) for row in x])

    _equal(_results(ours, (x, *weights)), _results(theirs, (x, *weights)))


def rms(x: Tensor, weight: Tensor | float = 1.0) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight


def _results(f: Callable[..., Tensor], inputs: tuple[Tensor, ...]) -> list[Tensor]:
    leaves = [x.clone().requires_grad_() for x in inputs]
    out = f(*leaves)
    # A few gradients are truly zero (at a length of 1 a gate has nothing to keep): then a leaf may be left out of the graph.
    grads = torch.autograd.grad((out * normal(99, *out.shape)).sum(), leaves, allow_unused=True)
    return [out.detach(), *(torch.zeros_like(x) if g is None else g for x, g in zip(leaves, grads, strict=True))]


def _equal(actual: list[Tensor], expected: list[Tensor]) -> None:
    for i, (one, other) in enumerate(zip(actual, expected, strict=True)):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9, msg=lambda text, i=i: f"{'output' if not i else f'input {i}'}: {text}")
