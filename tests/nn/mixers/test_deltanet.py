"""DeltaNet against a loop written here from the formula."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from sonde.nn.mixers.deltanet import DeltaNet, rule
from sonde.nn.recurrence import run
from tests.nn.mixers.compare import LENGTHS, normal, rms, same_layer, same_rule
from tests.nn.mixers.peers import perturb

B, H, K, V = 2, 3, 4, 7


def loop(q: Tensor, k: Tensor, v: Tensor, beta: Tensor) -> Tensor:
    """One sequence of one head, with the notes' S (values first)."""
    S, rows = torch.zeros(v.shape[1], k.shape[1], dtype=v.dtype), []
    eye = torch.eye(k.shape[1], dtype=v.dtype)
    for t in range(len(v)):
        S = S @ (eye - beta[t] * torch.outer(k[t], k[t])) + beta[t] * torch.outer(v[t], k[t])
        rows.append(S @ q[t])
    return torch.stack(rows)


def inputs(L: int, unit: bool = True) -> list[Tensor]:
    k = normal(1, B, H, L, K)
    k = k / k.norm(dim=-1, keepdim=True) if unit else 0.3 * k
    return [normal(0, B, H, L, K), k, normal(2, B, H, L, V), torch.sigmoid(normal(3, B, H, L))]


@pytest.mark.parametrize("unit", [True, False])
@pytest.mark.parametrize("L", LENGTHS)
def test_rule_is_the_formula(L: int, unit: bool) -> None:
    same_rule(rule, loop, *inputs(L, unit))


def test_a_step_is_gradient_descent() -> None:
    """S moves by beta against the gradient of |S k - v|^2 / 2."""
    q, k, v, beta = inputs(6)
    _, state = run(rule(q[:, :, :5], k[:, :, :5], v[:, :, :5], beta[:, :, :5]))
    _, after = run(rule(q, k, v, beta))
    S = state["S0"].clone().requires_grad_()
    loss = ((torch.einsum("bhkv,bhk->bhv", S, k[:, :, 5]) - v[:, :, 5]) ** 2).sum(-1) / 2
    (slope,) = torch.autograd.grad(loss.sum(), S)
    assert torch.allclose(after["S0"], S - beta[:, :, 5, None, None] * slope, atol=1e-12)


def test_a_full_step_overwrites() -> None:
    """The same unit key again and again with beta = 1: what is read under it is the latest value, not the sum."""
    q, k, v, beta = inputs(9)
    k = k[:, :, :1].expand_as(k)
    out, _ = run(rule(k, k, v, torch.ones_like(beta)))
    assert torch.allclose(out, v, atol=1e-12)


def test_orthonormal_keys_recall_all() -> None:
    v, keys = normal(2, 1, 1, K, V), torch.eye(K, dtype=torch.float64).view(1, 1, K, K)
    _, state = run(rule(keys, keys, v, torch.ones(1, 1, K, dtype=torch.float64)))
    assert torch.allclose(state["S0"], v, atol=1e-12)


@pytest.mark.parametrize("form", ["step", "parallel", "chunk", "scan"])
@pytest.mark.parametrize("strength", [0.0, 1.0, 2.0])
def test_equal_keys_stay_stable(form: str, strength: float) -> None:
    """The worst case for the triangular system: all keys the same, in float32 over 200 steps."""
    q, k, v, beta = (x.float() for x in inputs(200))
    k, beta = k[:, :, :1].expand_as(k), torch.full_like(beta, strength)
    expected, _ = run(rule(q.double(), k.double(), v.double(), beta.double()), form="step")
    output, _ = run(rule(q, k, v, beta), form=form)
    scale = max(float(expected.abs().max()), 1.0)
    assert float((output - expected).abs().max()) / scale < 1e-4


def reference(gate: bool, most: float):
    def layer(x: Tensor, w: dict[str, Tensor]) -> Tensor:
        """One sequence (T, 12) in 3 heads of 4."""
        padded = torch.cat([x.new_zeros(3, 36), x @ w["qkv.weight"].T])
        qkv = F.silu(torch.stack([(padded[t : t + 4] * w["conv.weight"]).sum(0) for t in range(len(x))]))
        beta, heads = most * torch.sigmoid(x @ w["beta.weight"].T), []
        for h in range(3):
            q, k, v = (qkv[:, n + 4 * h : n + 4 * h + 4] for n in (0, 12, 24))
            q, k = (part / (part.square().sum(-1, keepdim=True) + 1e-6).sqrt() for part in (q, k))
            heads.append(rms(loop(q / 2, k, v, beta[:, h]), w["norm.weight"]))
        o = torch.cat(heads, -1)
        return (o * F.silu(x @ w["gate.weight"].T) if gate else o) @ w["out.weight"].T

    return layer


@pytest.mark.parametrize("gate, negative", [(False, False), (True, True)])
@pytest.mark.parametrize("L", LENGTHS)
def test_layer_is_what_is_written_out(L: int, gate: bool, negative: bool) -> None:
    layer = perturb(DeltaNet(width=12, heads=3, gate=gate, negative=negative)).double()
    same_layer(layer, reference(gate, 2.0 if negative else 1.0), normal(8, 2, L, 12))
