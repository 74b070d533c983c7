"""The fused form: no large temporary, nothing kept without gradients, the same bits for any number of threads, clear refusals."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from sonde import kernels
from sonde.core.errors import BadInput
from sonde.core.live import Live
from sonde.nn.recurrence import Steps, choose, compute
from sonde.nn.recurrence.choose import fastest

pytestmark = pytest.mark.skipif(not kernels.available(), reason="the compiled kernels are not here")

MIB = 2**20


def steps(kind: str, L: int) -> Steps:
    """A layer of usual size: 2 x 4 heads of 64, or 256 channels of 16 states."""
    draw = torch.Generator().manual_seed(L)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=draw)

    B, H, D = 2, 4, 64
    if kind == "hadamard":
        rate = torch.rand(1, 16, 256, generator=draw) + 0.5
        return Steps(normal(B, 1, L, 16), normal(B, 1, L, 16), normal(B, 1, L, 256), log_value=-normal(B, 1, L, 256).exp() / 10, rate=rate)
    base = Steps(normal(B, H, L, D), F.normalize(normal(B, H, L, D), dim=-1), normal(B, H, L, D))
    gate = F.logsigmoid(normal(B, H, L) + 2)
    if kind == "delta":
        return replace(base, log_head=gate, beta=torch.sigmoid(normal(B, H, L)))
    return replace(base, log_head=gate, log_key=F.logsigmoid(normal(B, H, L, D) + 2), log_value=F.logsigmoid(normal(B, H, L, D) + 2))


KINDS = ["separable", "delta", "hadamard"]


@pytest.mark.parametrize("kind", KINDS)
def test_no_temporary_above_32_mib(kind: str) -> None:
    """Above it the system's allocator gives memory back at every free, and page faults cost more than the arithmetic."""
    s = steps(kind, 4096)
    leaves = {name: getattr(s, name).requires_grad_() for name in ("q", "k", "v")}
    with Live() as live:
        out, state = compute(replace(s, **leaves), None, "fused")
        torch.autograd.grad(out.sum() + state.sum(), list(leaves.values()))
    assert live.largest < 32 * MIB


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_kept_where_no_gradient_is_wanted(kind: str) -> None:
    s = steps(kind, 2048)
    with torch.no_grad(), Live() as live:
        out, state = compute(s, None, "fused")
    nbytes = sum(t.numel() * t.element_size() for t in (out, state))
    assert live.now == nbytes and live.peak <= nbytes + state.numel() * state.element_size() + MIB


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_bits_for_any_number_of_threads(kind: str) -> None:
    s = steps(kind, 300)
    names = [name for name in ("q", "k", "v", "log_head", "log_key", "log_value", "beta", "rate") if getattr(s, name) is not None]
    results, threads = [], torch.get_num_threads()
    try:
        for n in (1, 2, 3):
            torch.set_num_threads(n)
            leaves = {name: getattr(s, name).clone().requires_grad_() for name in names}
            out, state = compute(replace(s, **leaves), None, "fused")
            results.append([out, state, *torch.autograd.grad(out.square().sum() + state.sum(), list(leaves.values()))])
    finally:
        torch.set_num_threads(threads)
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


def test_auto_takes_it_and_says_how_much_faster() -> None:
    choice = choose(steps("delta", 512))
    assert choice.form == "fused" and "faster than the next best form" in choice.why


@pytest.mark.parametrize("L", [1, 7, 64, 1000, 65536])
@pytest.mark.parametrize("kind", KINDS)
def test_the_short_way_to_the_choice_is_the_choice(kind: str, L: int) -> None:
    s = steps(kind, 1)
    names = ("q", "k", "v", "log_head", "log_key", "log_value", "beta")
    s = replace(s, **{name: x.expand(-1, -1, L, *x.shape[3:]) for name in names if (x := getattr(s, name)) is not None})
    assert fastest(s) == choose(s).form


def test_without_kernels_the_torch_forms_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    s = steps("separable", 64)
    expected, _ = compute(s, None, "fused")
    monkeypatch.setattr(kernels, "available", lambda: False)
    monkeypatch.setattr(kernels, "why_not", lambda: "there are none")
    choice = choose(s)
    assert choice.form != "fused" and "without fused kernels" in choice.why
    assert torch.allclose(compute(s)[0], expected, rtol=1e-4, atol=1e-4)
    with pytest.raises(BadInput, match="the form 'fused' cannot run"):
        compute(s, None, "fused")


@pytest.mark.parametrize("kind", KINDS)
def test_vmap_gives_the_gradients_of_a_batch(kind: str) -> None:
    s = steps(kind, 9)
    names = [name for name in ("q", "k", "v", "log_head", "log_key", "log_value", "beta") if getattr(s, name) is not None]
    leaves = [getattr(s, name).clone().requires_grad_() for name in names]

    def run(*tensors: torch.Tensor) -> torch.Tensor:
        return compute(replace(s, **dict(zip(names, tensors, strict=True))), None, "fused")[0]

    expected = torch.autograd.grad(run(*leaves).square().sum(), leaves)
    each = torch.vmap(lambda *rows: run(*(row.unsqueeze(0) for row in rows))[0])(*leaves)
    for grad, right in zip(torch.autograd.grad(each.square().sum(), leaves), expected, strict=True):
        assert torch.allclose(grad, right, rtol=1e-4, atol=1e-5)
