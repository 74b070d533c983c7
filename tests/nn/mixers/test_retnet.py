"""Retention against its recurrence, its decay matrix, and the paper's layer written out."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sonde.core.errors import BadInput
from sonde.nn.mixers.retnet import RetNet, log_gammas, rule
from sonde.nn.recurrence import run
from sonde.nn.spans import Spans
from tests.nn.mixers.compare import LENGTHS, normal, rms, same_layer, same_rule

B, H, K, V = 2, 3, 5, 7


def naive(q: Tensor, k: Tensor, v: Tensor, log_gamma: Tensor) -> Tensor:
    """S = gamma S + v k^T, o = S q."""
    S, outs = torch.zeros(v.shape[1], k.shape[1], dtype=v.dtype), []
    for t in range(len(v)):
        S = log_gamma.exp() * S + torch.outer(v[t], k[t])
        outs.append(S @ q[t])
    return torch.stack(outs)


@pytest.mark.parametrize("L", LENGTHS)
def test_rule(L: int) -> None:
    rates = torch.tensor([[-0.03, -0.5, 0.0]], dtype=torch.float64)  # one for each head; a batch of 1, so that the loop agrees
    same_rule(lambda q, k, v, g: rule(q, k, v, g[0]), naive, normal(1, 1, H, L, K), normal(2, 1, H, L, K), normal(3, 1, H, L, V), rates)


def rotate_by_hand(x: Tensor) -> Tensor:
    """(T, d): each neighboring pair, as a complex number, times exp(i t theta)."""
    T, d = x.shape
    theta = 10000 ** (-torch.arange(0, d, 2, dtype=torch.float64) / d)
    angle = torch.arange(T, dtype=torch.float64)[:, None] * theta
    z = torch.view_as_complex(x.reshape(T, d // 2, 2).contiguous()) * torch.polar(torch.ones_like(angle), angle)
    return torch.view_as_real(z).reshape(T, d)


@pytest.mark.parametrize("T", LENGTHS)
def test_layer(T: int) -> None:
    def reference_layer(x: Tensor, w: dict[str, Tensor]) -> Tensor:
        q, k, v = (x @ w[f"{name}.weight"].T for name in "qkv")
        outs = []
        for h in range(3):
            ks, vs = slice(4 * h, 4 * h + 4), slice(8 * h, 8 * h + 8)
            gamma = torch.tensor(1 - 2.0 ** (-5 - h), dtype=torch.float64)
            outs.append(rms(naive(rotate_by_hand(q[:, ks]), rotate_by_hand(k[:, ks] / 2), v[:, vs], gamma.log())))
        gate = x @ w["gate.weight"].T
        return (torch.cat(outs, 1) * gate * torch.sigmoid(gate)) @ w["out.weight"].T

    torch.manual_seed(0)
    same_layer(RetNet(12, 3).double(), reference_layer, normal(5, 2, T, 12))


def test_all_pairs_with_the_decay_matrix() -> None:
    """LIN-15: (Q K^T * D) V with D_tj = gamma^(t - j)."""
    q, k, v = normal(1, B, H, 65, K), normal(2, B, H, 65, K), normal(3, B, H, 65, V)
    gamma = torch.tensor([31 / 32, 63 / 64, 127 / 128], dtype=torch.float64)
    assert torch.allclose(log_gammas(H).exp(), gamma, atol=1e-15)
    age = torch.arange(65.0, dtype=torch.float64)
    D = (gamma[:, None, None] ** (age[:, None] - age)).tril()
    for form in ("step", "parallel", "chunk", "scan"):
        assert torch.allclose(run(rule(q, k, v, log_gammas(H)), form=form)[0], (q @ k.mT * D) @ v, atol=1e-9)


def test_the_position_goes_on_with_each_sequence() -> None:
    torch.manual_seed(0)
    layer, x = RetNet(12, 3).double(), normal(5, 2, 21, 12)
    whole, _ = layer(x)
    first, state = layer(x, spans=Spans.of_lengths(torch.tensor([4, 9])))
    assert state["position"].tolist() == [4, 9]
    rest, state = layer(torch.stack([x[0, 4:16], x[1, 9:]]), state)
    assert state["position"].tolist() == [16, 21]
    assert torch.allclose(rest[0], whole[0, 4:16], atol=1e-12) and torch.allclose(rest[1], whole[1, 9:], atol=1e-12)


def test_widths_that_do_not_fit_are_named() -> None:
    with pytest.raises(BadInput, match="2 heads of width 5 cannot be rotated in pairs"):
        RetNet(10, 2)
