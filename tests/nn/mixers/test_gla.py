"""Gated linear attention against the table's recurrence and the paper's layer, one step at a time."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from sonde.nn.mixers.gla import GLA, rule
from sonde.nn.recurrence import run
from tests.nn.mixers.compare import LENGTHS, normal, rms, same_layer, same_rule

B, H, K, V = 2, 3, 5, 7


def naive(q: Tensor, k: Tensor, v: Tensor, log_a: Tensor) -> Tensor:
    """S = S Diag(a) + v k^T, o = S q, S (V, K) as in the notes."""
    S, outs = torch.zeros(v.shape[1], k.shape[1], dtype=v.dtype), []
    for t in range(len(v)):
        S = S @ torch.diag(log_a[t].exp()) + torch.outer(v[t], k[t])
        outs.append(S @ q[t])
    return torch.stack(outs)


def inputs(L: int) -> tuple[Tensor, ...]:
    return normal(1, B, H, L, K), normal(2, B, H, L, K), normal(3, B, H, L, V), F.logsigmoid(normal(4, B, H, L, K))


@pytest.mark.parametrize("L", LENGTHS)
def test_rule(L: int) -> None:
    same_rule(rule, naive, *inputs(L))


@pytest.mark.parametrize("T", LENGTHS)
def test_layer(T: int) -> None:
    heads, width, key = 3, 12, 2

    def reference_layer(x: Tensor, w: dict[str, Tensor]) -> Tensor:
        log_a = torch.log(torch.sigmoid(x @ w["forget.0.weight"].T @ w["forget.1.weight"].T + w["forget.1.bias"])) / 16
        q, k, v = (x @ w[f"{name}.weight"].T for name in "qkv")
        outs = []
        for h in range(heads):
            ks, vs = slice(h * key, (h + 1) * key), slice(h * 4, (h + 1) * 4)
            outs.append(rms(naive(q[:, ks] / key**0.5, k[:, ks], v[:, vs], log_a[:, ks]), w["norm.weight"]))
        gate = x @ w["gate.weight"].T
        return (torch.cat(outs, 1) * gate * torch.sigmoid(gate)) @ w["out.weight"].T

    torch.manual_seed(0)
    same_layer(GLA(width, heads, rank=2).double(), reference_layer, normal(5, 2, T, width))


def test_all_pairs_with_cumulative_products() -> None:
    """LIN-17: ((Q * B)(K / B)^T * M) V with B = cumprod a."""
    q, k, v, log_a = inputs(17)
    P = log_a.exp().cumprod(2)
    expected = ((q * P) @ (k / P).mT).tril() @ v
    assert torch.allclose(run(rule(q, k, v, log_a), form="parallel")[0], expected, atol=1e-9)
