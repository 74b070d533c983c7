"""The attention kernel against softmax written out in float64, one query at a time."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from sonde.kernels import available, why_not
from sonde.kernels.attend import _Attend, attend

pytestmark = pytest.mark.skipif(not available(), reason=why_not() or "kernels serve")


@pytest.fixture(autouse=True)
def every_size(monkeypatch):
    """The kernel serves also where torch's is faster."""
    monkeypatch.setattr("sonde.kernels.attend.LEAST", 0)


def loop(q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool) -> Tensor:
    """out_i = sum_j exp(s_ij) v_j / sum_j exp(s_ij),  s_ij = scale q_i . k_j."""
    share, outs = q.shape[1] // k.shape[1], []
    for h in range(q.shape[1]):
        keys, values = k[:, h // share], v[:, h // share]
        for i in range(q.shape[2]):
            n = min(i + 1, k.shape[2]) if causal else k.shape[2]
            s = scale * (keys[:, :n] * q[:, h, i, None]).sum(-1)
            w = (s - s.max(-1, keepdim=True).values).exp()
            outs.append((w[..., None] * values[:, :n]).sum(1) / w.sum(-1, keepdim=True))
    return torch.stack(outs, 1).unflatten(1, q.shape[1:3])


def inputs(B: int, H: int, G: int, T: int, N: int, K: int, V: int, size: float = 1.0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(B + T + K)
    shapes = (B, H, T, K), (B, G, N, K), (B, G, N, V)
    return [size * torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in shapes]


def run(call, tensors: list[Tensor], causal: bool, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """The output and the gradients of q, k and v, for fixed weights on the output."""
    leaves = [x.to(dtype).requires_grad_() for x in tensors]
    out = call(*leaves, 0.37, causal)
    weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    return [out, *torch.autograd.grad(out, leaves, weights.to(dtype))]


def close(got: list[Tensor], want: list[Tensor], tolerance: float) -> None:
    for a, b in zip(got, want, strict=True):
        assert a.shape == b.shape and torch.isfinite(a).all()
        assert (a - b).abs().max() <= tolerance * (b.abs().max() + 1e-6)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    "sizes",
    [
        (2, 3, 3, 1, 1, 4, 4),  # one key: its weight is 1
        (1, 2, 2, 1, 33, 8, 5),
        (2, 1, 1, 7, 7, 5, 9),
        (3, 2, 2, 16, 16, 16, 16),
        (1, 4, 2, 50, 20, 17, 3),  # groups; more queries than keys, and the other way round
        (2, 6, 2, 13, 29, 3, 33),
        (1, 2, 1, 131, 131, 40, 24),
        (1, 1, 1, 20, 1100, 2, 1),  # two blocks of queries in the backward pass
    ],
)
def test_sizes(sizes, causal):
    tensors = inputs(*sizes)
    want = run(loop, tensors, causal)
    close(run(attend, tensors, causal), want, 1e-13)
    close(run(attend, tensors, causal, torch.float32), want, 1e-5)


def test_large_scores():
    tensors = inputs(1, 2, 2, 19, 19, 6, 5, size=30.0)
    want = run(loop, tensors, True)
    close(run(attend, tensors, True), want, 1e-11)
    close(run(attend, tensors, True, torch.float32), want, 1e-3)


def test_a_score_of_minus_infinity_has_no_weight_and_a_nan_stays():
    q, k, v = (x.abs() for x in inputs(1, 1, 1, 9, 9, 4, 4))
    k[0, 0, 3, 1] = float("-inf")
    out = attend(q, k, v, 0.5)
    others = [0, 1, 2, 4, 5, 6, 7, 8]
    assert torch.allclose(out, loop(q, k[:, :, others], v[:, :, others], 0.5, False))
    q[0, 0, 5, 2] = float("nan")
    assert attend(q, k, v, 0.5).isnan().any(-1).flatten().tolist() == [i == 5 for i in range(9)]


def test_any_order_of_axes_in_memory():
    tensors = inputs(2, 3, 3, 11, 11, 6, 10)
    want = run(loop, tensors, True)
    moved = [x.permute(3, 0, 2, 1).contiguous().permute(1, 3, 2, 0) for x in tensors]
    close(run(attend, moved, True), want, 1e-13)
    close(run(attend, [x.transpose(1, 2).contiguous().transpose(1, 2) for x in tensors], True), want, 1e-13)


@pytest.mark.parametrize("causal", [False, True])
def test_second_derivatives(causal):
    q, k, v = (x.requires_grad_() for x in inputs(1, 2, 1, 4, 4, 3, 2))
    assert torch.autograd.gradgradcheck(lambda *x: attend(*x, 0.7, causal), (q, k, v))
    assert torch.autograd.gradgradcheck(lambda k: attend(q.detach(), k, v.detach(), 0.7, causal), (k,))


def test_threads_change_nothing():
    tensors, threads = inputs(3, 4, 2, 37, 37, 12, 12), torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        want = run(attend, tensors, True)
        torch.set_num_threads(3)
        assert all(torch.equal(a, b) for a, b in zip(run(attend, tensors, True), want))
    finally:
        torch.set_num_threads(threads)


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # of torch, under vmap
def test_who_watches_sees_torchs_own():
    q, k, v = (x.float() for x in inputs(2, 4, 2, 8, 8, 16, 16))
    want = attend(q, k, v, 0.5, True)
    assert torch.allclose(torch.vmap(lambda q: attend(q[None], k[:1], v[:1], 0.5, True)[0])(q)[0], want[0], atol=1e-6)
    assert torch.allclose(torch.compile(attend, backend="eager", fullgraph=True)(q, k, v, 0.5, True), want, atol=1e-6)
    assert attend(q.to("meta"), k.to("meta"), v.to("meta"), 0.5, True).shape == want.shape
    with FlopCounterMode(display=False) as counter:
        attend(q, k, v, 0.5, True)
    with FlopCounterMode(display=False) as expected:
        F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.5, enable_gqa=True)
    assert counter.get_flop_counts() == expected.get_flop_counts()


def test_the_kernel_itself_was_tested():
    q, k, v = (x.requires_grad_() for x in inputs(1, 1, 1, 3, 3, 2, 2))
    assert type(attend(q, k, v, 1.0).grad_fn).__name__ == f"{_Attend.__name__}Backward"
