"""The kernel of batch norms against torch's own in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from sonde.kernels import available, why_not
from sonde.kernels.normalize import Running, _Normalize, normalize

pytestmark = pytest.mark.skipif(not available(), reason=why_not() or "kernels serve")

PLAIN, RELU, SUM = "plain", "relu", "sum"
SIZES = [(2, 16, 3, 5), (3, 17, 7, 2), (1, 32, 4, 9), (5, 66, 11, 6), (37, 31, 1, 1), (2, 130, 23, 29)]
FEW_CHANNELS = [(4, 3, 6, 5), (7, 1, 2, 3)]


@pytest.fixture(autouse=True)
def every_size(monkeypatch):
    """The kernel serves also where torch's is faster."""
    monkeypatch.setattr("sonde.kernels.normalize.LEAST", 0)


def last(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x.clone()


def inputs(size: tuple[int, int, int, int], far: float = 3.0) -> dict[str, Tensor]:
    """Images whose channels have means of the order `far` and deviations of the order 1."""
    rng, C = torch.Generator().manual_seed(sum(size)), size[1]

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=rng, dtype=torch.float64)

    x = (0.5 + normal(1, C, 1, 1).abs()) * normal(*size) + far * normal(1, C, 1, 1)
    other, dy = normal(*size), normal(*size)
    return {"x": x, "weight": normal(C), "bias": normal(C), "other": other, "dy": dy, "mean": normal(C), "variance": normal(C).exp()}


def torchs(x: Tensor, weight: Tensor, bias: Tensor, running: Running, relu: bool = False, other: Tensor | None = None) -> Tensor:
    y = F.batch_norm(x, running.mean, running.variance, weight, bias, True, running.momentum, running.eps)
    y = y if other is None else y + other
    return y.relu() if relu else y


def run(call, tensors: dict[str, Tensor], kind: str, dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    """The output, the gradients and the running averages."""
    held = {name: last(value.to(dtype)) for name, value in tensors.items()}
    leaves = {name: held[name].requires_grad_() for name in ("x", "weight", "bias", "other") if name != "other" or kind == SUM}
    running = Running(held["mean"], held["variance"], 0.3, 1e-5)
    y = call(leaves["x"], leaves["weight"], leaves["bias"], running, kind != PLAIN, leaves.get("other"))
    grads = torch.autograd.grad(y, list(leaves.values()), held["dy"])
    return {"y": y, "mean": running.mean, "variance": running.variance} | {f"d{name}": one for name, one in zip(leaves, grads)}


def close(got: dict[str, Tensor], want: dict[str, Tensor], tolerance: float) -> None:
    assert got.keys() == want.keys()
    for name, a in got.items():
        b = want[name]
        assert a.shape == b.shape and torch.isfinite(a).all(), name
        assert (a - b).abs().max() <= tolerance * (b.abs().max() + 1e-6), name


@pytest.mark.parametrize("kind", [PLAIN, RELU, SUM])
@pytest.mark.parametrize("size", SIZES + FEW_CHANNELS)
def test_sizes(size, kind):
    tensors = inputs(size)
    want = run(torchs, tensors, kind)
    close(run(normalize, tensors, kind), want, 1e-12)
    close(run(normalize, tensors, kind, torch.float32), want, 1e-5)


@pytest.mark.parametrize("size", SIZES)
def test_the_kernel_serves(size, monkeypatch):
    monkeypatch.setattr(_Normalize, "apply", lambda *tensors: "kernel")
    tensors = {name: last(value) for name, value in inputs(size).items()}
    assert normalize(tensors["x"], tensors["weight"], tensors["bias"], Running(tensors["mean"], tensors["variance"], 0.1, 1e-5)) == "kernel"


@pytest.mark.parametrize("kind", [RELU, SUM])
def test_as_exact_as_torch_far_from_zero(kind):
    """A mean a thousand deviations away: no output or gradient is further from the truth than twice what torch's is."""
    tensors = {name: value.float().double() for name, value in inputs((6, 19, 13, 17), far=1000.0).items()}
    want, ours, theirs = run(torchs, tensors, kind), run(normalize, tensors, kind, torch.float32), run(torchs, tensors, kind, torch.float32)
    for name, truth in want.items():
        error, bound = ((one[name] - truth).abs().mean() for one in (ours, theirs))
        assert error <= 2 * bound + 1e-6 * truth.abs().mean(), name


def test_outliers_at_the_beginning_cost_no_digits():
    """The first pixel of every image, as at a padded border, a million deviations from all others of a channel of mean 5000."""
    tensors = inputs((4, 16, 9, 12), far=0.0)
    x = tensors["x"].float() + 5000
    x[:, :8, 0, 0] = 1e6
    one = torch.ones(16)
    for pixels in (last(x), last(x[:, :, 1:])):
        running = Running(torch.zeros(16), torch.zeros(16), 1.0, 1e-5)
        normalize(pixels, one, one, running)
        exact = pixels.double()
        torch.testing.assert_close(running.mean.double(), exact.mean((0, 2, 3)), rtol=1e-6, atol=0)
        torch.testing.assert_close(running.variance.double(), exact.var((0, 2, 3)), rtol=1e-5, atol=0)


@pytest.mark.parametrize("kind", [PLAIN, RELU, SUM])
def test_derivatives(kind):
    tensors = {name: last(value) for name, value in inputs((2, 16, 2, 3)).items()}
    leaves = [tensors[name].requires_grad_() for name in ("x", "weight", "bias", *(["other"] if kind == SUM else []))]

    def call(x: Tensor, weight: Tensor, bias: Tensor, other: Tensor | None = None) -> Tensor:
        running = Running(tensors["mean"].clone(), tensors["variance"].clone(), 0.1, 1e-3)
        return normalize(x, weight, bias, running, kind != PLAIN, other)

    assert torch.autograd.gradcheck(call, leaves, fast_mode=True)
    assert torch.autograd.gradgradcheck(call, leaves, fast_mode=True)


@pytest.mark.parametrize("frozen", [("x",), ("weight", "bias"), ("x", "weight", "bias")])
def test_second_gradient_with_frozen_parts(frozen):
    tensors = {name: last(value) for name, value in inputs((3, 18, 4, 2)).items()}
    free = [tensors[name].requires_grad_() for name in ("x", "weight", "bias", "other") if name not in frozen]

    def twice(call) -> tuple[Tensor, ...]:
        running = Running(tensors["mean"].clone(), tensors["variance"].clone(), 0.1, 1e-5)
        y = call(tensors["x"], tensors["weight"], tensors["bias"], running, True, tensors["other"])
        first = torch.autograd.grad((y * tensors["dy"]).square().sum(), free, create_graph=True)
        return torch.autograd.grad(sum(one.square().sum() for one in first), free, allow_unused=True)

    for ours, theirs in zip(twice(normalize), twice(torchs), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_threads_and_runs_change_no_bit():
    tensors, before = inputs((3, 48, 15, 14)), torch.get_num_threads()
    results = []
    try:
        for threads in (1, 2, 3, 3):
            torch.set_num_threads(threads)
            results.append(run(normalize, tensors, SUM, torch.float32))
    finally:
        torch.set_num_threads(before)
    for other in results[1:]:
        assert all(torch.equal(one, other[name]) for name, one in results[0].items())


def test_gradients_of_another_layout():
    """What comes back from a mean is expanded, from another layer perhaps in torch's default layout."""
    tensors = {name: last(value) for name, value in inputs((2, 20, 5, 3)).items()}
    for dy in (tensors["dy"].contiguous(), tensors["dy"].mean((2, 3), keepdim=True).expand_as(tensors["x"])):
        grads = []
        for call in (normalize, torchs):
            x = tensors["x"].clone(memory_format=torch.preserve_format).requires_grad_()
            running = Running(tensors["mean"].clone(), tensors["variance"].clone(), 0.1, 1e-5)
            grads += torch.autograd.grad(call(x, tensors["weight"], tensors["bias"], running, True), x, dy)
        torch.testing.assert_close(*grads)


def test_not_a_number_is_seen():
    x = last(torch.randn(2, 16, 3, 3))
    x[1, 5, 2, 1] = float("nan")
    x.requires_grad_()
    y = normalize(x, torch.ones(16), torch.zeros(16), Running(torch.zeros(16), torch.ones(16), 0.1, 1e-5), True)
    (dx,) = torch.autograd.grad(y.sum(), x)
    for one in (y, dx):
        assert one[:, 5].isnan().all() and one[:, :5].isfinite().all() and one[:, 6:].isfinite().all()


@pytest.mark.parametrize("case", ["layout", "half precision", "small", "watched", "sum alone"])
def test_torch_serves_elsewhere(case, monkeypatch):
    monkeypatch.setattr(_Normalize, "apply", lambda *tensors: pytest.fail("the kernel was called"))
    tensors = {name: last(value) for name, value in inputs((2, 16, 3, 4)).items()}
    x, other, relu = tensors["x"], None, True
    if case == "layout":
        x = x.contiguous()
    elif case == "half precision":
        tensors = {name: value.bfloat16() for name, value in tensors.items()}
        x = tensors["x"]
    elif case == "small":
        monkeypatch.setattr("sonde.kernels.normalize.LEAST", x.numel() + 1)
    elif case == "sum alone":
        other, relu = tensors["other"], False
    running = Running(tensors["mean"], tensors["variance"], 0.1, 1e-5)
    if case == "watched":
        with FlopCounterMode(display=False):
            y = normalize(x, tensors["weight"], tensors["bias"], running, relu, other)
    else:
        y = normalize(x, tensors["weight"], tensors["bias"], running, relu, other)
    fresh = Running(torch.zeros_like(running.mean), torch.ones_like(running.mean), 0.1, 1e-5)
    torch.testing.assert_close(y, torchs(x, tensors["weight"], tensors["bias"], fresh, relu, other))


def test_one_value_for_each_channel_is_told_by_torch():
    one = torch.ones(16)
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        normalize(torch.ones(1, 16, 1, 1), one, one, Running(one.clone(), one.clone(), 0.1, 1e-5))


@pytest.mark.parametrize("kind", [PLAIN, RELU, SUM])
@pytest.mark.parametrize(("pack", "tolerance"), [(lambda saved: saved.contiguous(), 1e-12), (lambda saved: saved.float(), 1e-4)])
def test_what_was_saved_may_come_back_in_another_layout_or_dtype(kind, pack, tolerance):
    def hooked(*args):
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved):
            return normalize(*args)

    tensors = inputs((3, 17, 7, 2))
    close(run(hooked, tensors, kind), run(torchs, tensors, kind), tolerance)


@pytest.mark.parametrize("kind", [PLAIN, RELU, SUM])
def test_batches_of_gradients(kind):
    tensors = {name: last(value) for name, value in inputs((2, 16, 5, 3)).items()}
    leaves = [tensors[name].requires_grad_() for name in ("x", "weight", "bias", *(["other"] if kind == SUM else []))]
    many = torch.stack([tensors["dy"], tensors["dy"].flip(0).cos()])

    def gradients_of(call) -> tuple[Tensor, ...]:
        running = Running(tensors["mean"].clone(), tensors["variance"].clone(), 0.1, 1e-3)
        y = call(*leaves[:3], running, kind != PLAIN, *leaves[3:])
        return torch.autograd.grad(y, leaves, many, is_grads_batched=True)

    for a, b in zip(gradients_of(normalize), gradients_of(torchs), strict=True):
        torch.testing.assert_close(a, b)
