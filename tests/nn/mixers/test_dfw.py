"""Decaying fast weights against the recurrence with its matrix of gates."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from sonde.nn.mixers import linear
from sonde.nn.mixers.dfw import DFW, rule
from sonde.nn.recurrence import run
from tests.nn.mixers.compare import LENGTHS, normal, same_layer, same_rule

B, H, K, V = 2, 3, 5, 7


def naive(q: Tensor, k: Tensor, v: Tensor, log_a: Tensor, log_b: Tensor) -> Tensor:
    """S = S * (b a^T) + v k^T, o = S q."""
    S, outs = torch.zeros(v.shape[1], k.shape[1], dtype=v.dtype), []
    for t in range(len(v)):
        S = S * torch.outer(log_b[t].exp(), log_a[t].exp()) + torch.outer(v[t], k[t])
        outs.append(S @ q[t])
    return torch.stack(outs)


def inputs(L: int) -> tuple[Tensor, ...]:
    gates = F.logsigmoid(normal(4, B, H, L, K) + 1), F.logsigmoid(normal(5, B, H, L, V) + 1)
    return normal(1, B, H, L, K), normal(2, B, H, L, K), normal(3, B, H, L, V), *gates


@pytest.mark.parametrize("L", LENGTHS)
def test_rule(L: int) -> None:
    same_rule(rule, naive, *inputs(L))


@pytest.mark.parametrize("T", LENGTHS)
def test_layer(T: int) -> None:
    def reference_layer(x: Tensor, w: dict[str, Tensor]) -> Tensor:
        q, k, v, a, b = (x @ w[f"{name}.weight"].T + w[f"{name}.bias"] for name in ("q", "k", "v", "forget_key", "forget_value"))
        q, k, a = (one.split(3, 1) for one in (q / 3**0.5, k, torch.sigmoid(a).log()))
        v, b = (one.split(5, 1) for one in (v, torch.sigmoid(b).log()))
        return torch.cat([naive(q[h], k[h], v[h], a[h], b[h]) for h in range(2)], 1) @ w["out.weight"].T + w["out.bias"]

    torch.manual_seed(0)
    same_layer(DFW(10, 2, keys=3).double(), reference_layer, normal(6, 2, T, 10))


def test_all_pairs_with_cumulative_products() -> None:
    """LIN-14: ((Q * A)(K / A)^T * M)(V / B) * B with A and B the cumulative products of both gates."""
    q, k, v, log_a, log_b = inputs(17)
    P, R = log_a.exp().cumprod(2), log_b.exp().cumprod(2)
    expected = ((q * P) @ (k / P).mT).tril() @ (v / R) * R
    assert torch.allclose(run(rule(q, k, v, log_a, log_b), form="parallel")[0], expected, atol=1e-8)


def test_open_gates_give_linear_attention() -> None:
    q, k, v, log_a, log_b = inputs(65)
    out = run(rule(q, k, v, torch.zeros_like(log_a), torch.zeros_like(log_b)), form="step")[0]
    assert torch.allclose(out, run(linear.rule(q, k, v), form="step")[0], atol=1e-12)


def test_gates_begin_uniform() -> None:
    """Their quantiles are those of a uniform number, within what 2000 draws can say, and none is shut for good."""
    torch.manual_seed(0)
    gates = torch.sigmoid(DFW(2000, 1).forget_value.bias.detach()).sort().values
    assert (gates - torch.linspace(0, 1, 2000)).abs().max() < 0.04  # Kolmogorov's bound at the level 0.002
    assert gates[0] > 0 and gates[-1] < 1
