"""Attention with bounded memory against its sums, its means, and softmax attention."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from sonde.nn.mixers.abc import ABC, average_rule, rule
from sonde.nn.recurrence import run
from sonde.nn.spans import Spans
from tests.nn.mixers.compare import LENGTHS, normal, rms, same_layer, same_rule

B, H, K, V, M = 2, 3, 5, 7, 4
FORMS = ("step", "parallel", "chunk", "scan")


def read(q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    e = (keys @ q).exp()
    return (e / e.sum()) @ values


def sums(q: Tensor, k: Tensor, v: Tensor, phi: Tensor) -> Tensor:
    """Sk = Sk + k phi^T, Sv = Sv + v phi^T, o = Sv softmax(Sk^T q)."""
    outs = []
    for t in range(len(v)):
        Sk = phi[: t + 1].T @ k[: t + 1]
        Sv = phi[: t + 1].T @ v[: t + 1]
        outs.append(read(q[t], Sk, Sv))
    return torch.stack(outs)


def means(q: Tensor, k: Tensor, v: Tensor, s: Tensor) -> Tensor:
    """Slot m holds the mean of the tokens so far, weighted by exp(s_m)."""
    outs = []
    for t in range(len(v)):
        w = s[: t + 1].exp()
        w = (w / w.sum(0)).T  # (M, t + 1)
        outs.append(read(q[t], w @ k[: t + 1], w @ v[: t + 1]))
    return torch.stack(outs)


def inputs(L: int) -> tuple[Tensor, ...]:
    return tuple(normal(i, B, H, L, width) for i, width in enumerate((K, K, V, M)))


@pytest.mark.parametrize("L", LENGTHS)
def test_rule(L: int) -> None:
    same_rule(rule, sums, *inputs(L))


@pytest.mark.parametrize("L", LENGTHS)
def test_averaged(L: int) -> None:
    q, k, v, s = inputs(L)
    same_rule(average_rule, means, q, k, v, 3 * s)


def rotate_by_hand(x: Tensor) -> Tensor:
    """(T, 2): one pair, turned by one radian for each step."""
    angle = torch.arange(len(x), dtype=torch.float64)
    (a, b), cos, sin = x.unbind(1), angle.cos(), angle.sin()
    return torch.stack([a * cos - b * sin, a * sin + b * cos], 1)


@pytest.mark.parametrize("average", [True, False])
@pytest.mark.parametrize("T", LENGTHS)
def test_layer(T: int, average: bool) -> None:
    def reference_layer(x: Tensor, w: dict[str, Tensor]) -> Tensor:
        q, k, v, s = (x @ w[f"{name}.weight"].T for name in ("q", "k", "v", "slot"))
        outs = []
        for h in range(2):
            ks, vs, ms = slice(2 * h, 2 * h + 2), slice(6 * h, 6 * h + 6), slice(3 * h, 3 * h + 3)
            qkv = rotate_by_hand(q[:, ks] / 2**0.5), rotate_by_hand(k[:, ks]), v[:, vs]
            o = means(*qkv, s[:, ms]) if average else sums(*qkv, s[:, ms].exp())
            outs.append(rms(o, w["norm.weight"]))
        gate = x @ w["gate.weight"].T
        return (torch.cat(outs, 1) * gate * torch.sigmoid(gate)) @ w["out.weight"].T

    torch.manual_seed(0)
    same_layer(ABC(12, 2, slots=3, average=average).double(), reference_layer, normal(5, 2, T, 12))


def test_a_slot_for_each_token_is_softmax_attention() -> None:
    """LIN-13: one-hot slots, at t = L; earlier outputs still see the empty slots."""
    L = 17
    q, k, v, _ = inputs(L)
    phi = torch.eye(L, dtype=torch.float64).expand(B, H, L, L)
    expected = F.scaled_dot_product_attention(q, k, v, scale=1.0)[:, :, -1]
    for form in FORMS:
        assert torch.allclose(run(rule(q, k, v, phi), form=form)[0][:, :, -1], expected, atol=1e-12)


def test_large_weights_stay_finite_in_float32() -> None:
    """exp(s) from e^-90 to e^90 overflows float32; the means do not, and neither do gradients."""
    q, k, v, s = (x.float() for x in inputs(65))
    s = (40 * s).clamp(-90, 90).requires_grad_()
    expected = torch.stack([torch.stack([means(*(x.detach()[b, h].double() for x in (q, k, v, s))) for h in range(H)]) for b in range(B)])
    for form in FORMS:
        out = run(average_rule(q, k, v, s), form=form)[0]
        assert torch.allclose(out.double(), expected, atol=2e-5), form
        assert torch.autograd.grad(out.square().sum(), s)[0].isfinite().all()


@pytest.mark.parametrize("average", [True, False])
def test_position_and_sums_go_on_with_each_sequence(average: bool) -> None:
    """Also where a sequence has not begun yet."""
    torch.manual_seed(0)
    layer, x = ABC(12, 2, slots=3, average=average).double(), normal(5, 2, 21, 12)
    whole, _ = layer(x)
    _, state = layer(x, spans=Spans.of_lengths(torch.tensor([0, 9])))
    assert state["position"].tolist() == [0, 9]
    rest, state = layer(torch.stack([x[0, :12], x[1, 9:]]), state)
    assert torch.allclose(rest[0], whole[0, :12], atol=1e-12) and torch.allclose(rest[1], whole[1, 9:], atol=1e-12)
    grads = torch.autograd.grad(rest.square().sum(), list(layer.parameters()))
    assert all(g.isfinite().all() for g in grads)
