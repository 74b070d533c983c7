"""Gated slot attention against its two memories written out."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from sonde.nn.mixers import abc
from sonde.nn.mixers.gsa import GSA, rule
from sonde.nn.recurrence import run
from tests.nn.mixers.compare import LENGTHS, normal, rms, same_layer, same_rule

B, H, K, V, M = 2, 3, 5, 7, 4


def naive(q: Tensor, k: Tensor, v: Tensor, phi: Tensor, log_a: Tensor) -> Tensor:
    """Sk = Sk Diag(a) + k phi^T, Sv = Sv Diag(a) + v phi^T, o = Sv softmax(Sk^T q)."""
    Sk, Sv = (torch.zeros(one.shape[1], phi.shape[1], dtype=v.dtype) for one in (k, v))
    outs = []
    for t in range(len(v)):
        Sk = Sk @ torch.diag(log_a[t].exp()) + torch.outer(k[t], phi[t])
        Sv = Sv @ torch.diag(log_a[t].exp()) + torch.outer(v[t], phi[t])
        e = (Sk.T @ q[t]).exp()
        outs.append(Sv @ (e / e.sum()))
    return torch.stack(outs)


def inputs(L: int) -> tuple[Tensor, ...]:
    return *(normal(i, B, H, L, width) for i, width in enumerate((K, K, V, M))), F.logsigmoid(normal(9, B, H, L, M))


@pytest.mark.parametrize("L", LENGTHS)
def test_rule(L: int) -> None:
    same_rule(rule, naive, *inputs(L))


@pytest.mark.parametrize("T", LENGTHS)
def test_layer(T: int) -> None:
    def silu(x: Tensor) -> Tensor:
        return x * torch.sigmoid(x)

    def reference_layer(x: Tensor, w: dict[str, Tensor]) -> Tensor:
        q, k, v = (silu(x @ w[f"{name}.weight"].T).split(5, 1) for name in "qkv")
        a = (torch.sigmoid(x @ w["forget.weight"].T) ** (1 / 8)).split(3, 1)
        o = torch.cat([naive(q[h], k[h], v[h], 1 - a[h], a[h].log()) for h in range(2)], 1)
        return rms(silu(o), w["norm.weight"]) @ w["out.weight"].T

    torch.manual_seed(0)
    same_layer(GSA(10, 2, slots=3).double(), reference_layer, normal(5, 2, T, 10))


def test_without_forgetting_it_is_abc() -> None:
    """LIN-22: a = 1."""
    q, k, v, phi, log_a = inputs(65)
    for form in ("step", "parallel", "chunk", "scan"):
        gated = run(rule(q, k, v, phi, torch.zeros_like(log_a)), form=form)[0]
        assert torch.allclose(gated, run(abc.rule(q, k, v, phi), form=form)[0], atol=1e-10)
