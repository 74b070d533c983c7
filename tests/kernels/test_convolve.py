"""The kernel of convolutions against torch's own in float64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from sonde.kernels import available, why_not
from sonde.kernels import convolve as kernel
from sonde.kernels.convolve import PreparedConvolution, _Convolve, convolve

pytestmark = pytest.mark.skipif(not available(), reason=why_not() or "kernels serve")

SIZES = [
    (2, 16, 18, 8, 12),
    (3, 5, 7, 9, 6),
    (1, 64, 33, 13, 4),
    (4, 24, 40, 3, 17),
    (5, 17, 8, 1, 1),
    (7, 1, 2, 2, 30),
    (23, 40, 3, 11, 10),
]
"""images, channels in, channels out, height, width"""


@pytest.fixture(autouse=True)
def every_size(monkeypatch):
    """The kernel serves also where torch's is faster."""
    monkeypatch.setattr(kernel, "FEWEST", 0)
    monkeypatch.setattr(kernel, "NARROWEST", 1)
    monkeypatch.setattr(kernel, "TILE", 1)


def last(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x


def inputs(size: tuple[int, int, int, int, int]) -> dict[str, Tensor]:
    images, into, out, height, width = size
    rng = torch.Generator().manual_seed(sum(size))

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=rng, dtype=torch.float64)

    shapes = {"x": (images, into, height, width), "weight": (out, into, 3, 3), "bias": (out,), "dy": (images, out, height, width)}
    return {name: normal(*shape) for name, shape in shapes.items()}


def torchs(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return F.conv2d(x, weight, bias, padding=1)


def run(call, tensors: dict[str, Tensor], dtype: torch.dtype = torch.float64, layout=last) -> dict[str, Tensor]:
    """The output and the gradients."""
    held = {name: last(value.to(dtype)) for name, value in tensors.items()}
    held["weight"] = layout(held["weight"])
    leaves = {name: value.requires_grad_() for name, value in held.items() if name != "dy"}
    y = call(**leaves)
    gradients = torch.autograd.grad(y, list(leaves.values()), held["dy"])
    return {"y": y} | {f"d{name}": one for name, one in zip(leaves, gradients)}


def close(got: dict[str, Tensor], want: dict[str, Tensor], tolerance: float) -> None:
    assert got.keys() == want.keys()
    for name, a in got.items():
        b = want[name]
        assert a.shape == b.shape and torch.isfinite(a).all(), name
        assert (a - b).abs().max() <= tolerance * (b.abs().max() + 1e-6), name


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("bias", [True, False])
def test_sizes(size, bias):
    tensors = inputs(size)
    if not bias:
        del tensors["bias"]
    want = run(torchs, tensors)
    close(run(convolve, tensors), want, 1e-13)
    close(run(convolve, tensors, torch.float32), want, 1e-5)


@given(st.tuples(st.integers(1, 3), st.integers(1, 35), st.integers(1, 35), st.integers(1, 14), st.integers(1, 14)))
@settings(max_examples=40, deadline=None)
def test_any_size(size):
    tensors = inputs(size)
    close(run(convolve, tensors), run(torchs, tensors), 1e-12)


@pytest.mark.parametrize("size", SIZES)
def test_the_kernel_serves(size, monkeypatch):
    monkeypatch.setattr(_Convolve, "apply", lambda *tensors: "kernel")
    tensors = inputs(size)
    assert convolve(last(tensors["x"]), tensors["weight"], tensors["bias"]) == "kernel"


def test_weights_of_any_layout():
    """A weight may be contiguous, channels last, or a piece of another tensor; so may the gradient that arrives."""
    tensors = inputs((3, 6, 10, 7, 9))
    want = run(torchs, tensors)

    def piece(weight: Tensor) -> Tensor:
        wide = torch.zeros(10, 9, 4, 5, dtype=weight.dtype)
        wide[:, 2:8, 1:, ::2] = weight.detach()
        return wide[:, 2:8, 1:, ::2]

    for layout in (last, lambda weight: weight.contiguous(), piece):
        close(run(convolve, tensors, layout=layout), want, 1e-13)
    x, weight = last(tensors["x"]).requires_grad_(), tensors["weight"].requires_grad_()
    gradients = torch.autograd.grad(convolve(x, weight), (x, weight), tensors["dy"].contiguous().mT.contiguous().mT)
    for name, one in zip(("dx", "dweight"), gradients):
        torch.testing.assert_close(one, want[name])


def test_rounding_is_that_of_the_sums():
    """Behind a ReLU and with He's weights, as in a network: on average about one rounding of the sum of absolute products, at any width.

    Not held against torch's error: that is a third of it with one processor's code and a sixth with another's.
    """
    for channels in (16, 64, 200):
        tensors = inputs((4, channels, 24, 16, 12))
        tensors["x"] = tensors["x"].clamp_min(0)
        tensors["weight"] *= (2 / 9 / channels) ** 0.5
        tensors = {name: value.float().double() for name, value in tensors.items()}
        want, ours = run(torchs, tensors), run(convolve, tensors, torch.float32)
        sums = run(torchs, {name: value.abs() for name, value in tensors.items()})
        for name in ("y", "dx", "dweight"):
            error, size = ((one.double()).square().mean().sqrt() for one in (ours[name] - want[name], sums[name]))
            assert error <= 1.5 * torch.finfo(torch.float32).eps * size, (channels, name)


def test_the_number_of_threads_changes_no_bit():
    tensors, before, results = inputs((9, 20, 19, 22, 15)), torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results.append(run(convolve, tensors, torch.float32))
    finally:
        torch.set_num_threads(before)
    for other in results[1:]:
        for name in ("y", "dx", "dweight"):
            assert torch.equal(results[0][name], other[name]), name


def test_an_image_does_not_depend_on_its_batch():
    tensors = inputs((31, 18, 20, 9, 7))
    x, weight = last(tensors["x"].float()), tensors["weight"].float()
    whole = convolve(x, weight)
    for i in (0, 13, 30):
        assert torch.equal(convolve(last(x[i : i + 1]), weight), whole[i : i + 1])


def test_derivatives():
    tensors = inputs((2, 3, 4, 5, 6))
    leaves = [last(tensors[name]).requires_grad_() for name in ("x", "weight", "bias")]
    assert torch.autograd.gradcheck(convolve, leaves)
    assert torch.autograd.gradgradcheck(convolve, leaves)


@pytest.mark.parametrize("frozen", [("x",), ("weight",), ("bias", "weight"), ("x", "bias")])
def test_only_gradients_that_are_asked_for(frozen):
    tensors = inputs((2, 9, 5, 6, 7))
    want = run(torchs, tensors)
    held = {name: last(tensors[name]).requires_grad_(name not in frozen) for name in ("x", "weight", "bias")}
    convolve(**held).backward(tensors["dy"])
    for name, one in held.items():
        assert (one.grad is None) == (name in frozen)
        if name not in frozen:
            torch.testing.assert_close(one.grad, want[f"d{name}"])


@pytest.mark.parametrize(("pack", "tolerance"), [(lambda saved: saved.contiguous(), 1e-12), (lambda saved: saved.float(), 1e-5)])
def test_what_was_saved_may_come_back_in_another_layout_or_dtype(pack, tolerance):
    def hooked(**kwargs: Tensor) -> Tensor:
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved):
            return convolve(**kwargs)

    tensors = inputs((3, 6, 10, 7, 9))
    close(run(hooked, tensors), run(torchs, tensors), tolerance)


def test_batches_of_gradients():
    tensors = inputs((2, 3, 4, 5, 6))
    x, weight = last(tensors["x"]).requires_grad_(), tensors["weight"].requires_grad_()
    many = torch.stack([tensors["dy"], 2 * tensors["dy"].flip(0), tensors["dy"].cos()])
    gradients, want = (torch.autograd.grad(call(x, weight), (x, weight), many, is_grads_batched=True) for call in (convolve, torchs))
    for a, b in zip(gradients, want, strict=True):
        torch.testing.assert_close(a, b)


def test_a_default_device_changes_nothing():
    tensors = inputs((2, 9, 5, 6, 7))
    x = last(tensors["x"])
    with torch.device("meta"):
        y = convolve(x, tensors["weight"])
    torch.testing.assert_close(y, torchs(x, tensors["weight"]))


def test_numbers_in_memory_that_mean_others():
    """A negative that was not written yet, and a bias that is every second number of another."""
    tensors = inputs((2, 9, 6, 7, 8))
    x, weight, bias = last(tensors["x"]), tensors["weight"], tensors["bias"]
    unwritten = torch.complex(torch.zeros_like(weight), weight).conj().imag
    assert unwritten.is_neg()
    torch.testing.assert_close(convolve(x, unwritten), torchs(x, -weight))
    strided = torch.stack([bias, torch.full_like(bias, 100)], 1)[:, 0]
    torch.testing.assert_close(convolve(x, weight, strided), torchs(x, weight, bias))


def test_not_a_number_stays_in_the_tiles_of_its_windows():
    tensors = inputs((1, 4, 4, 12, 12))
    tensors["x"][0, 0, 5, 5] = torch.nan
    y = convolve(last(tensors["x"]), tensors["weight"])
    assert y[0, :, 4:8, 4:8].isnan().all()
    y[0, :, 4:8, 4:8] = 0
    assert y.isfinite().all()


def test_torch_serves_where_the_kernel_cannot(monkeypatch):
    monkeypatch.setattr(_Convolve, "apply", lambda *tensors: pytest.fail("the kernel was called"))
    tensors = inputs((2, 20, 16, 5, 6))
    x, weight, bias = last(tensors["x"]), tensors["weight"], tensors["bias"]
    want = torchs(x, weight, bias)
    torch.testing.assert_close(convolve(tensors["x"].contiguous(), weight, bias), want)
    torch.testing.assert_close(convolve(x[0], weight, bias), want[0])
    torch.testing.assert_close(torch.vmap(lambda one: convolve(one, weight, bias))(x[None])[0], want)
    with FlopCounterMode(display=False) as counter:
        convolve(x, weight, bias)
    assert counter.get_total_flops() == 2 * 9 * 20 * 16 * 2 * 30
    with torch.autocast("cpu", torch.float16):
        assert convolve(x.float(), weight.float(), bias.float()).dtype == torch.float16
    for name, value in (("FEWEST", 1 << 40), ("NARROWEST", 17), ("WIDEST", 16), ("TILE", 4)):
        with monkeypatch.context() as patch:
            patch.setattr(kernel, name, value)
            small = last(x[:, :, :1, :1]) if name == "TILE" else x
            torch.testing.assert_close(convolve(small, weight, bias), torchs(small, weight, bias))


@pytest.mark.parametrize("wrong", [{"weight": (16, 19, 3, 3)}, {"weight": (16, 20, 3)}, {"bias": (15,)}, {"x": (2, 20)}])
def test_what_does_not_fit_is_refused(wrong):
    shapes = {"x": (2, 20, 5, 6), "weight": (16, 20, 3, 3), "bias": (16,)} | wrong
    with pytest.raises(RuntimeError):
        convolve(**{name: last(torch.zeros(shape)) for name, shape in shapes.items()})


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_prepared_with_what_follows(size, dtype):
    tensors = {name: value.to(dtype) for name, value in inputs(size).items()}
    x, weight, bias, other = last(tensors["x"]), tensors["weight"], tensors["bias"], tensors["dy"]
    want = F.conv2d(x.double(), weight.double(), bias.double(), padding=1)
    # Of direct sums the error is some roundings of the sum of absolute products; going to the points and back multiplies it by up to ten.
    size_of_sums = F.conv2d(x.double().abs(), weight.double().abs(), padding=1).max() + bias.abs().max() + other.abs().max()
    tolerance = {"rtol": 0, "atol": 30 * torch.finfo(dtype).eps * float(size_of_sums)}
    for relu in (False, True):
        cut = torch.relu if relu else lambda y: y
        torch.testing.assert_close(PreparedConvolution(weight, bias, relu)(x).double(), cut(want), **tolerance)
        torch.testing.assert_close(
            PreparedConvolution(weight, None, relu)(x).double(), cut(want - bias.double()[:, None, None]), **tolerance
        )
        torch.testing.assert_close(
            PreparedConvolution(last(weight), bias, relu)(x, other).double(), cut(want + other.double()), **tolerance
        )
