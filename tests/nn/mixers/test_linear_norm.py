"""Normalized linear attention against explicit weights, and its denominator where it comes near zero."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sonde.nn.features import feature
from sonde.nn.mixers.linear_norm import LinearNorm, rule
from sonde.nn.recurrence import record_recurrences, run
from tests.nn.mixers.compare import LENGTHS, normal, same_layer, same_rule

B, H, K, V = 2, 3, 5, 7
FORMS = ("step", "parallel", "chunk", "scan")


def elu_plus_one(x: Tensor) -> Tensor:
    return torch.where(x > 0, x + 1, x.clamp_max(0).exp())


def naive(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """o_t = sum of w_i v_i over i <= t with w_i = phi(k_i) . phi(q_t) / their sum."""
    outs = []
    for t in range(len(v)):
        w = elu_plus_one(k[: t + 1]) @ elu_plus_one(q[t])
        outs.append((w / w.sum()) @ v[: t + 1])
    return torch.stack(outs)


def inputs(L: int) -> tuple[Tensor, Tensor, Tensor]:
    return normal(1, B, H, L, K), normal(2, B, H, L, K), normal(3, B, H, L, V)


@pytest.mark.parametrize("L", LENGTHS)
def test_rule(L: int) -> None:
    same_rule(lambda q, k, v: rule(q, k, v, feature("elu", K)), naive, *inputs(L))


@pytest.mark.parametrize("T", LENGTHS)
def test_layer(T: int) -> None:
    def reference_layer(x: Tensor, w: dict[str, Tensor]) -> Tensor:
        q, k, v = ((x @ w[f"{name}.weight"].T + w[f"{name}.bias"]).split(5, 1) for name in "qkv")
        return torch.cat([naive(q[h], k[h], v[h]) for h in range(2)], 1) @ w["out.weight"].T + w["out.bias"]

    torch.manual_seed(0)
    same_layer(LinearNorm(10, 2).double(), reference_layer, normal(5, 2, T, 10))


def test_constant_values_come_back() -> None:
    """LIN-09."""
    q, k, _ = inputs(65)
    v = normal(4, V).expand(B, H, 65, V)
    for form in FORMS:
        assert torch.allclose(run(rule(q, k, v, feature("elu", K)), form=form)[0], v, atol=1e-12)


def test_a_denominator_near_zero_is_held_and_counted() -> None:
    """LIN-05, C-20: with the identity the second key takes back the first, up to 2e-7; nothing becomes infinite."""
    q = torch.ones(1, 1, 3, 1, dtype=torch.float64)
    k = torch.tensor([1.0, -1.0 + 2e-7, 3.0], dtype=torch.float64).view(1, 1, 3, 1)
    v = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64).view(1, 1, 3, 1)
    for form in FORMS:
        with record_recurrences() as watch:
            out = run(rule(q, k, v, feature("identity", 1)), form=form)[0].flatten()
        assert (watch.denominators, watch.guarded) == (3, 1)
        top = 1 + 2 * (-1 + 2e-7)
        expected = torch.tensor([1.0, top / 1e-6, (top + 9) / (3 + 2e-7)], dtype=torch.float64)
        assert torch.allclose(out, expected, rtol=1e-8)


def test_a_positive_map_is_never_held() -> None:
    with record_recurrences() as watch:
        run(rule(*inputs(65), feature("elu", K)))
    assert watch.denominators == B * H * 65 and watch.guarded == 0
