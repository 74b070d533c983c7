"""Linear attention against sums written out, and against the mask of all pairs."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sonde.nn.mixers.linear import Linear, rule
from sonde.nn.recurrence import run
from tests.nn.mixers.compare import LENGTHS, normal, rms, same_layer, same_rule

B, H, K, V = 2, 3, 5, 7


def naive(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """o_t = sum over i <= t of (k_i . q_t) v_i."""
    return torch.stack([(k[: t + 1] @ q[t]) @ v[: t + 1] for t in range(len(v))])


@pytest.mark.parametrize("L", LENGTHS)
def test_rule(L: int) -> None:
    same_rule(rule, naive, normal(1, B, H, L, K), normal(2, B, H, L, K), normal(3, B, H, L, V))


@pytest.mark.parametrize("T", LENGTHS)
def test_layer(T: int) -> None:
    def reference_layer(x: Tensor, w: dict[str, Tensor]) -> Tensor:
        q, k, v = ((x @ w[f"{name}.weight"].T).split(5, 1) for name in "qkv")
        heads = [rms(naive(q[h] / 5**0.5, k[h], v[h]), w["norm.weight"]) for h in range(2)]
        return torch.cat(heads, 1) @ w["out.weight"].T

    torch.manual_seed(0)
    same_layer(Linear(10, 2).double(), reference_layer, normal(5, 2, T, 10))


def test_the_mask_is_lower_triangular() -> None:
    """LIN-07: (Q K^T * M) V with M_tj = 1 for j <= t; the mask as printed (E-06) looks ahead and gives something else."""
    q, k, v = normal(1, B, H, 17, K), normal(2, B, H, 17, K), normal(3, B, H, 17, V)
    scores = q @ k.mT
    for form in ("step", "parallel", "chunk", "scan"):
        out = run(rule(q, k, v), form=form)[0]
        assert torch.allclose(out, scores.tril() @ v, atol=1e-10)
        assert not torch.allclose(out, scores.triu() @ v, atol=1)
