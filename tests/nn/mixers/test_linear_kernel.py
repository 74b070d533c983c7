"""Linear attention of features against sums written out."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from sonde.nn.features import feature
from sonde.nn.mixers import linear
from sonde.nn.mixers.linear_kernel import LinearKernel, rule
from sonde.nn.recurrence import run
from tests.nn.mixers.compare import LENGTHS, normal, rms, same_layer, same_rule

B, H, K, V = 2, 3, 5, 7


def elu_plus_one(x: Tensor) -> Tensor:
    return torch.where(x > 0, x + 1, x.clamp_max(0).exp())


def naive(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """o_t = sum over i <= t of phi(k_i) . phi(q_t) v_i with phi = elu + 1."""
    q, k = elu_plus_one(q), elu_plus_one(k)
    return torch.stack([(k[: t + 1] @ q[t]) @ v[: t + 1] for t in range(len(v))])


@pytest.mark.parametrize("L", LENGTHS)
def test_rule(L: int) -> None:
    qkv = normal(1, B, H, L, K), normal(2, B, H, L, K), normal(3, B, H, L, V)
    same_rule(lambda q, k, v: rule(q, k, v, feature("elu", K)), naive, *qkv)


@pytest.mark.parametrize("T", LENGTHS)
def test_layer(T: int) -> None:
    def reference_layer(x: Tensor, w: dict[str, Tensor]) -> Tensor:
        q, k, v = ((x @ w[f"{name}.weight"].T).split(5, 1) for name in "qkv")
        heads = [rms(naive(q[h], k[h], v[h]), w["norm.weight"]) for h in range(2)]
        return torch.cat(heads, 1) @ w["out.weight"].T

    torch.manual_seed(0)
    same_layer(LinearKernel(10, 2).double(), reference_layer, normal(5, 2, T, 10))


def test_identity_is_linear_attention_and_a_polynomial_squares_the_scores() -> None:
    """LIN-08, LIN-02: the polynomial has 15 features of 5 numbers, more than the width."""
    q, k, v = normal(1, B, H, 17, K), normal(2, B, H, 17, K), normal(3, B, H, 17, V)
    assert torch.equal(run(rule(q, k, v, feature("identity", K)))[0], run(linear.rule(q, k, v))[0])
    out = run(rule(q, k, v, feature("polynomial", K)), form="scan")[0]
    assert torch.allclose(out, (q @ k.mT).square().tril() @ v, atol=1e-10)


@pytest.mark.parametrize("name", ["identity", "elu", "relu", "polynomial", "dpfp", "hedgehog"])
def test_every_feature_map_makes_a_layer(name: str) -> None:
    torch.manual_seed(0)
    layer = LinearKernel(12, 3, name)  # type: ignore[arg-type]
    y, state = layer(normal(5, 2, 9, 12).float())
    features = layer.phi(torch.zeros(1, 4)).shape[-1]
    assert y.isfinite().all() and state["S0"].shape == (2, 3, features, 4)
    F.mse_loss(y, torch.ones_like(y)).backward()
    assert all(p.grad.isfinite().all() for p in layer.parameters())
