"""A layer of ours beside the layer of another package with the same weights, in float32."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from sonde.nn.mixers import Mixer

CLOSE = 1e-4


def perturb(layer: nn.Module, by: float = 0.3) -> nn.Module:
    """A layer with noise on every weight, so that none is left at a special value such as zero or one."""
    draw = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for p in layer.parameters():
            p += by * torch.randn(p.shape, generator=draw)
    return layer.eval()


def tokens(width: int, length: int, rows: int = 2) -> Tensor:
    return torch.randn(rows, length, width, generator=torch.Generator().manual_seed(length))


def same_outputs_and_gradients(ours: Mixer, theirs: Callable[[Tensor], Tensor], length: int) -> None:
    """The output, and the gradient of the input by a fixed mix of it."""
    x = tokens(ours.width, length)
    actual, expected = _both(lambda x: ours(x)[0], x), _both(theirs, x)
    for one, other in zip(actual, expected, strict=True):
        assert _error(one, other) < CLOSE


def same_decoding(ours: Mixer, theirs: Callable[[Tensor], Tensor], prompt: int, more: int) -> None:
    """A prompt at once, then one token after the other; `theirs` keeps its own cache."""
    x = tokens(ours.width, prompt + more)
    state = None
    with torch.no_grad():
        for piece in x.split([prompt, *[1] * more], 1):
            y, state = ours(piece, state)
            assert _error(y, theirs(piece)) < CLOSE


def _both(f: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
    x = x.clone().requires_grad_()
    y = f(x)
    mix = torch.randn(y.shape, generator=torch.Generator().manual_seed(6))
    return y.detach(), torch.autograd.grad((y * mix).sum(), x)[0]


def _error(actual: Tensor, expected: Tensor) -> float:
    assert actual.shape == expected.shape and actual.dtype == expected.dtype == torch.float32
    return float((actual - expected).abs().max() / expected.abs().max())
