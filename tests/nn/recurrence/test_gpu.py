"""Steps handed to flash-linear-attention: its ops are stood in for by loops with its own signatures, layout and limits."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import ModuleType

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from sonde.core.errors import BadInput
from sonde.nn.recurrence import Steps, compute, gpu

B, H, K, V = 2, 3, 5, 7


def loop(q, k, v, decay, scale, initial_state, output_final_state, *, beta=None, u=None):
    """What every op computes, from its documentation: (B, T, H, D) tensors, log decay (B, T, H, K), state (B, H, K, V)."""
    assert q.shape == k.shape and q.shape[:3] == v.shape[:3] and q.is_contiguous() and k.is_contiguous() and v.is_contiguous()
    assert q.dtype == k.dtype == v.dtype and initial_state.dtype == torch.float32
    S, outs = initial_state, []
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    for t in range(q.shape[1]):
        qt, kt, vt = (x[:, t].float() for x in (q, k, v))
        old, S = S, S * decay[:, t].exp().unsqueeze(-1)
        if beta is not None:
            vt = beta[:, t].unsqueeze(-1) * (vt - torch.einsum("bhkv,bhk->bhv", S, kt))
        write = kt.unsqueeze(-1) * vt.unsqueeze(-2)
        S = S + write
        seen = S if u is None else old + u.unsqueeze(-1) * write
        outs.append(torch.einsum("bhkv,bhk->bhv", seen, qt * scale))
    return torch.stack(outs, 1).to(v.dtype), S if output_final_state else None


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A stand-in for the package; the names of the ops called."""
    names: list[str] = []
    ops = ModuleType("fla.ops")

    def of(name: str, function) -> None:
        def op(**kwargs):
            names.append(name)
            return function(name, **kwargs)

        setattr(ops, name, op)

    def none(name, q, k, v, scale=None, initial_state=None, output_final_state=False, normalize=True):
        assert not normalize
        return loop(q, k, v, torch.zeros_like(k), scale, initial_state, output_final_state)

    def simple(name, q, k, v, g=None, scale=None, initial_state=None, output_final_state=False):
        return loop(q, k, v, g.unsqueeze(-1), scale, initial_state, output_final_state)

    def key(name, q, k, v, g=None, gk=None, scale=None, initial_state=None, output_final_state=False):
        gate = g if name.startswith("chunk") else gk
        assert gate.shape == k.shape
        return loop(q, k, v, gate, scale, initial_state, output_final_state)

    def before(name, r, k, v, w, u, scale=None, initial_state=None, output_final_state=False):
        assert w.shape == k.shape and u.shape == k.shape[2:]
        return loop(r, k, v, w, scale, initial_state, output_final_state, u=u)

    def delta(name, q, k, v, beta, g=None, scale=None, initial_state=None, output_final_state=False):
        assert name.startswith("fused_recurrent") or q.dtype != torch.float32
        gate = torch.zeros_like(beta) if g is None else g
        return loop(q, k, v, gate.unsqueeze(-1), scale, initial_state, output_final_state, beta=beta)

    for kind in ("chunk", "fused_recurrent"):
        for name, function in (("linear_attn", none), ("simple_gla", simple), ("gla", key), ("rwkv6", before)):
            of(f"{kind}_{name}", function)
        for name in ("delta_rule", "gated_delta_rule"):
            of(f"{kind}_{name}", delta)
    package = ModuleType("fla")
    monkeypatch.setitem(sys.modules, "fla", package)
    monkeypatch.setitem(sys.modules, "fla.ops", ops)
    return names


def make(kind: str, L: int, G: int = H) -> Steps:
    draw = torch.Generator().manual_seed(L)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw)

    base = Steps(normal(B, G, L, K), normal(B, G, L, K), normal(B, H, L, V))
    head, key = F.logsigmoid(normal(B, H, L)), F.logsigmoid(normal(B, H, L, K))
    unit = replace(base, k=F.normalize(base.k, dim=-1), beta=torch.sigmoid(normal(B, H, L)))
    return {
        "none": base,
        "head": replace(base, log_head=head),
        "constant": replace(base, log_head=F.logsigmoid(normal(H))),
        "key": replace(base, log_key=key),
        "head + key": replace(base, log_head=head, log_key=key),
        "before": replace(base, log_key=key, read="before", bonus_key=normal(H, K)),
        "before, head": replace(base, log_head=head, read="before"),
        "before, none": replace(base, read="before", bonus_value=normal(H, V)),
        "delta": unit,
        "delta, head": replace(unit, log_head=head),
        "delta, key": replace(unit, log_key=key),
        "value": replace(base, log_value=F.logsigmoid(normal(B, H, L, V))),
        "hadamard": replace(base, log_value=F.logsigmoid(normal(B, H, L, V)), rate=normal(H, K, V).exp()),
    }[kind]


OPS = {
    "none": "linear_attn",
    "head": "simple_gla",
    "constant": "simple_gla",
    "key": "gla",
    "head + key": "gla",
    "before": "rwkv6",
    "before, head": "rwkv6",
    "before, none": "rwkv6",
    "delta": "delta_rule",
    "delta, head": "gated_delta_rule",
}


@pytest.mark.parametrize("G", [1, H])
@pytest.mark.parametrize("L", [6, 70])
@pytest.mark.parametrize("kind", OPS)
def test_each_kind_has_its_op(called: list[str], kind: str, L: int, G: int) -> None:
    s = make(kind, L, G)
    if "delta" in kind and L > gpu.SHORT:
        s = replace(s, q=s.q.bfloat16(), k=s.k.bfloat16(), v=s.v.bfloat16())
    state = torch.randn(B, H, K, V)
    assert gpu.why_not(s) == ""
    out, last = gpu.run(s, state)
    assert called == [f"{'chunk' if L > gpu.SHORT else 'fused_recurrent'}_{OPS[kind]}"]
    plain = replace(s, bonus_key=None, bonus_value=None)
    expected, end = compute(plain, state, "step")
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(last, end)


@pytest.mark.parametrize("kind", ["none", "head", "head + key", "before"])
def test_gradients_pass_through(called: list[str], kind: str) -> None:
    """Where gradients are wanted the chunk op runs, which has them for every argument."""
    s, first = make(kind, 6), torch.randn(B, H, K, V)
    names = [name for name in ("q", "k", "v", "log_head", "log_key") if getattr(s, name) is not None]

    def grads(run) -> tuple[Tensor, ...]:
        leaves = {name: getattr(s, name).clone().requires_grad_() for name in names}
        state = first.clone().requires_grad_()
        out, last = run(replace(s, bonus_key=None, **leaves), state)
        return torch.autograd.grad((out * out).sum() + last.sum(), [*leaves.values(), state])

    for one, other in zip(grads(gpu.run), grads(lambda s, state: compute(s, state, "step"))):
        torch.testing.assert_close(one, other)
    assert called == [f"chunk_{OPS[kind]}"]


def test_forgetting_all_is_no_minus_infinity(called: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    s = make("head", 6)
    s = replace(s, log_head=s.log_head.index_fill(2, torch.tensor([2]), float("-inf")))
    assert gpu._arguments(s)["g"].isfinite().all()
    out, last = gpu.run(s, torch.ones(B, H, K, V))
    expected, end = compute(s, torch.ones(B, H, K, V), "step")
    torch.testing.assert_close((out, last), (expected, end))


def test_what_it_cannot_run_is_said(called: list[str]) -> None:
    assert gpu.why_not(make("value", 4)) == "flash-linear-attention has no op for 'separable: value decay'"
    assert "no op for 'hadamard: by step'" in gpu.why_not(make("hadamard", 4))
    assert "delta: key decay" in gpu.why_not(make("delta, key", 4))
    assert "float64" in gpu.why_not(replace(make("head", 4), v=torch.zeros(B, H, 4, V, dtype=torch.float64)))
    assert "half precision only" in gpu.why_not(make("delta", 70)) and not gpu.why_not(make("delta", 6))
    with pytest.raises(BadInput, match="no op for.*use form='chunk'"):
        gpu.run(make("value", 4), torch.zeros(B, H, K, V))


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fla", None)
    assert "flash-linear-attention cannot be used: " in gpu.why_not(make("head", 4))


def test_a_version_that_lacks_an_op(called: list[str]) -> None:
    del sys.modules["fla.ops"].fused_recurrent_gla
    assert "cannot be used: module 'fla.ops' has no attribute 'fused_recurrent_gla'" in gpu.why_not(make("key", 4))
