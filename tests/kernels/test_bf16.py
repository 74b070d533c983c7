"""Kernels on bfloat16: in and out, forward and backward, against float64; weights and sums are float32; the same at every level."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from sonde import kernels
from sonde.kernels import activate, attend, convolve, library, normalize

pytestmark = pytest.mark.skipif(not kernels.available(), reason="no compiled kernels here")
ROUND = 2.0**-8
"""relative error of rounding one number to bfloat16, at most; over many numbers its norm is at most that"""
POINTS = 4 * 2.0**-8
"""of a convolution whose values at Winograd's points are pairs of bfloat16: three times 2^-8 on noise, the worst case"""


@pytest.fixture(autouse=True)
def small_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (activate, attend, normalize):
        monkeypatch.setattr(module, "LEAST", 0)
    monkeypatch.setattr(convolve, "FEWEST", 0)


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def images(*shape: int, seed: int = 0) -> Tensor:
    return noise(*shape, seed=seed).to(torch.bfloat16, memory_format=torch.channels_last)


def compare(ours: Callable[..., Tensor], theirs: Callable[..., Tensor], inputs: list[Tensor], bound: float) -> list[Tensor]:
    """Outputs and gradients of ours against those of theirs in float64; returns ours.  What is float32 has float32's error."""
    results = []
    for function, wide in ((ours, False), (theirs, True)):
        leaves = [(x.double() if wide else x).detach().requires_grad_() for x in inputs]
        y = function(*leaves)
        dy = noise(*y.shape, seed=9).bfloat16().to(y.dtype)
        results.append([y.detach(), *torch.autograd.grad(y, leaves, dy)])
    for one, right, like in zip(*results, [inputs[0], *inputs]):
        assert one.dtype == like.dtype
        assert float((one.double() - right).norm() / right.norm()) < (bound if one.dtype is torch.bfloat16 or bound > ROUND else 1e-5)
    return results[0]


@pytest.mark.parametrize("kind", ["silu", "gelu_tanh"])
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("n", [1, 15, 16, 1003])
def test_activations(kind, gated, n):
    inputs = [noise(n, seed=seed).bfloat16() for seed in range(1 + gated)]
    assert activate._can_run(inputs[0], inputs[1] if gated else None)
    compare(lambda x, *up: activate.activate(x, kind, *up), lambda x, *up: activate._reference(x, kind, *(up or (None,))), inputs, ROUND)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("sizes", [(2, 4, 2, 33, 33, 20, 20), (1, 2, 2, 7, 70, 16, 5), (2, 1, 1, 64, 64, 64, 64)])
def test_attention(causal, sizes):
    B, H, G, T, N, K, V = sizes
    inputs = [noise(B, H, T, K).bfloat16(), noise(B, G, N, K, seed=1).bfloat16(), noise(B, G, N, V, seed=2).bfloat16()]
    assert attend._can_run(*inputs)
    scale = K**-0.5
    compare(lambda *qkv: attend.attend(*qkv, scale, causal), lambda *qkv: attend._reference(*qkv, scale, causal), inputs, ROUND)


def test_attention_takes_what_autocast_gives():
    q, k, v = (noise(1, 2, 16, 8, seed=seed) for seed in range(3))
    with torch.autocast("cpu", torch.bfloat16):
        out = attend.attend(q, k, v, 0.3, True)
    assert torch.equal(out, attend.attend(q.bfloat16(), k.bfloat16(), v.bfloat16(), 0.3, True)) and out.dtype is torch.bfloat16


@pytest.mark.parametrize("case", ["plain", "relu", "sum"])
@pytest.mark.parametrize("shape", [(2, 16, 3, 4), (5, 37, 6, 7)])
def test_batch_norm(case, shape):
    C = shape[1]
    inputs = [images(*shape), noise(C, seed=1).abs() + 0.5, noise(C, seed=2), *([images(*shape, seed=3)] if case == "sum" else [])]
    averages = {
        dtype: normalize.Running(torch.zeros(C, dtype=dtype), torch.ones(C, dtype=dtype), 0.1, 1e-5)
        for dtype in (torch.float32, torch.float64)
    }
    assert normalize._can_run(*inputs[:3], averages[torch.float32], inputs[3] if case == "sum" else None)

    def ours(x: Tensor, weight: Tensor, bias: Tensor, *other: Tensor) -> Tensor:
        return normalize.normalize(x, weight, bias, averages[torch.float32], case != "plain", *other)

    def theirs(x: Tensor, weight: Tensor, bias: Tensor, *other: Tensor) -> Tensor:
        running = averages[torch.float64]
        y = F.batch_norm(x, running.mean, running.variance, weight, bias, True, 0.1, 1e-5)
        return y if case == "plain" else F.relu(y + other[0] if other else y)

    compare(ours, theirs, inputs, ROUND)
    for name in ("mean", "variance"):  # of the rounded inputs, in float32
        torch.testing.assert_close(
            getattr(averages[torch.float32], name).double(), getattr(averages[torch.float64], name), rtol=1e-5, atol=1e-6
        )


@pytest.mark.parametrize("pairs", [False, True])
@pytest.mark.parametrize("sizes", [(3, 16, 16, 8, 8), (2, 37, 21, 11, 9), (1, 17, 33, 5, 7), (7, 32, 48, 7, 7)])
def test_convolution(sizes, pairs, monkeypatch):
    """By pairs of bfloat16 where the processor has them, and by float32 as everywhere else."""
    if pairs and not torch.cpu.get_capabilities().get("avx512_bf16"):
        pytest.skip("this processor has no pairs")
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": pairs})
    monkeypatch.setattr(convolve, "function", library.function.__wrapped__)  # the choice is cached
    B, C, K, H, W = sizes
    inputs = [images(B, C, H, W), noise(K, C, 3, 3, seed=1) / math.sqrt(9 * C), noise(K, seed=2)]
    assert convolve.can_run(*inputs)
    paired = pairs and hasattr(library._load()[0], "convolve_forward_bf16_pairs")
    compare(convolve.convolve, lambda *t: F.conv2d(*t, padding=1), inputs, POINTS if paired else ROUND)


def test_a_convolution_under_autocast_takes_float32_images_and_weights(monkeypatch):
    seen = []
    monkeypatch.setattr(
        convolve._Convolve, "apply", lambda x, weight, bias: seen.append((x.dtype, weight.dtype)) or F.conv2d(x, weight, bias, padding=1)
    )
    x = noise(2, 16, 8, 8).contiguous(memory_format=torch.channels_last)
    with torch.autocast("cpu", torch.bfloat16):
        y = convolve.convolve(x, noise(16, 16, 3, 3), None)
    assert seen == [(torch.bfloat16, torch.float32)] and y.dtype is torch.bfloat16


@pytest.mark.parametrize("threads", [2, 3])
def test_threads_change_no_bit(threads):
    inputs = [images(9, 33, 10, 11), noise(20, 33, 3, 3, seed=1) / 17, noise(20, seed=2)]
    results = []
    before = torch.get_num_threads()
    try:
        for n in (1, threads):
            torch.set_num_threads(n)
            leaves = [x.detach().requires_grad_() for x in inputs]
            y = convolve.convolve(*leaves)
            results.append([y, *torch.autograd.grad(y.float().square().sum(), leaves)])
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(one, other) for one, other in zip(*results))


def test_special_numbers():
    """Not-a-number, infinities and the rounding of ties to even go in and out."""
    x = torch.tensor([math.nan, math.inf, 1.0, 2.0] * 8).bfloat16()
    y = activate.activate(x, "silu", torch.ones_like(x))
    assert y[0::4].isnan().all() and y[1::4].isposinf().all()
    up = torch.tensor([1 + 2**-7, 1.0, 1 + 3 * 2**-7, 1.0] * 8).bfloat16()
    big = torch.full_like(up, 128 * (1 + 2**-7))  # silu(x) is x here, and the products lie halfway between two bfloat16
    assert torch.equal(activate.activate(big, "silu", up), (big.double() * up.double()).bfloat16())


@pytest.mark.parametrize("level", [level for level in library.NEEDS if level != kernels.level()])
def test_other_levels(level):
    if level not in kernels.runnable() or os.environ.get("SONDE_TEST_LEVEL"):
        pytest.skip("this processor, or this process, has one level")
    environment = {**os.environ, "SONDE_KERNELS": level, "SONDE_TEST_LEVEL": level}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(Path(__file__))]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout[-3000:]
