"""Gated random feature attention against running means written out."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from sonde.nn.mixers.gated_rfa import GatedRFA, rule
from sonde.nn.recurrence import record_recurrences, run
from tests.nn.mixers.compare import LENGTHS, normal, same_layer, same_rule

B, H, K, V = 2, 3, 5, 7


def naive(q: Tensor, k: Tensor, v: Tensor, log_g: Tensor, floor: float = 1e-6) -> Tensor:
    """S = g S + (1 - g) v k^T, z = g z + (1 - g) k, o = S q / (z . q)."""
    S, z, outs = torch.zeros(v.shape[1], k.shape[1], dtype=v.dtype), torch.zeros(k.shape[1], dtype=v.dtype), []
    for t in range(len(v)):
        g = log_g[t].exp()
        S = g * S + (1 - g) * torch.outer(v[t], k[t])
        z = g * z + (1 - g) * k[t]
        bottom = z @ q[t]
        if abs(bottom) < floor:
            bottom = torch.tensor(-floor if bottom < 0 else floor, dtype=v.dtype)
        outs.append(S @ q[t] / bottom)
    return torch.stack(outs)


def inputs(L: int) -> tuple[Tensor, ...]:
    q, k = normal(1, B, H, L, K).abs(), normal(2, B, H, L, K).abs()
    return q, k, normal(3, B, H, L, V), F.logsigmoid(normal(4, B, H, L))


@pytest.mark.parametrize("L", LENGTHS)
def test_rule(L: int) -> None:
    same_rule(rule, naive, *inputs(L))


@pytest.mark.parametrize("T", LENGTHS)
def test_layer(T: int) -> None:
    torch.manual_seed(0)
    layer = GatedRFA(10, 2, features=7).double()
    directions = layer.phi.directions

    def phi(x: Tensor, W: Tensor) -> Tensor:
        rows = []
        for one in x:
            y = W @ (one / (one.square().sum().sqrt() + 1e-3))
            rows.append(torch.cat([y.sin(), y.cos()]) / 7**0.5)
        return torch.stack(rows)

    def reference_layer(x: Tensor, w: dict[str, Tensor]) -> Tensor:
        q, k, v = ((x @ w[f"{name}.weight"].T + w[f"{name}.bias"]).split(5, 1) for name in "qkv")
        g = torch.sigmoid(x @ w["forget.weight"].T + w["forget.bias"])
        W = w["phi.sigma"] * directions
        heads = [naive(phi(q[h], W[h]), phi(k[h], W[h]), v[h], g[:, h].log(), floor=1e-3) for h in range(2)]
        return torch.cat(heads, 1) @ w["out.weight"].T + w["out.bias"]

    same_layer(layer, reference_layer, normal(5, 2, T, 10))


def test_a_constant_gate_weighs_by_age() -> None:
    """LIN-11: weights g^(t - j) (k_j . q_t), normalized."""
    q, k, v, _ = inputs(17)
    age = torch.arange(17.0, dtype=torch.float64)
    w = (q @ k.mT) * (0.8 ** (age[:, None] - age)).tril()
    out = run(rule(q, k, v, torch.full((B, H, 17), 0.8, dtype=torch.float64).log()))[0]
    assert torch.allclose(out, w / w.sum(-1, keepdim=True) @ v, atol=1e-10)


def test_a_closed_gate_returns_the_present_value() -> None:
    """LIN-11: g = 0, that is log g = -inf, gives v_t in every form, and finite gradients."""
    q, k, v, _ = inputs(17)
    for form in ("step", "parallel", "chunk", "scan"):
        log_g = torch.full((B, H, 17), float("-inf"), dtype=torch.float64, requires_grad=True)
        out = run(rule(q, k, v, log_g), form=form)[0]
        assert torch.allclose(out, v, atol=1e-12)
        assert torch.autograd.grad(out.square().sum(), log_g)[0].isfinite().all()


def test_a_gate_that_writes_nothing_is_counted() -> None:
    """g = 1 leaves 0 / 0: held at the floor, so 0."""
    q, k, v, _ = inputs(4)
    with record_recurrences() as watch:
        out = run(rule(q, k, v, torch.zeros(B, H, 4, dtype=torch.float64)))[0]
    assert watch.guarded == B * H * 4 and torch.equal(out, torch.zeros_like(out))
