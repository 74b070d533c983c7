"""S4 against a loop and a convolution written here from the formula, with real and with complex states."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from sonde.core.errors import BadInput
from sonde.nn.mixers.s4 import S4, rule
from sonde.nn.recurrence import run
from tests.nn.mixers.compare import LENGTHS, normal, same_layer, same_rule
from tests.nn.mixers.peers import perturb

K, V = 4, 5


def loop(v: Tensor, a: Tensor, rate: Tensor, B: Tensor, C: Tensor, d: Tensor) -> Tensor:
    """One sequence of one head, as the notes write it: the write weight on the way in, the read weight on the way out."""
    S, rows = torch.zeros(rate.shape, dtype=rate.dtype), []
    for t in range(len(v)):
        S = torch.exp(-a * rate) * S + B * v[t]
        o = (C * S).sum(0)
        rows.append((2 * o.real if o.is_complex() else o) + d * v[t])
    return torch.stack(rows)


def inputs(L: int, H: int = 2, complex: bool = False) -> list[Tensor]:
    """v, a, rate, B, C, d with a batch of one."""
    rate, B, C = normal(2, 1, H, K, V).exp(), normal(3, 1, H, K, V), normal(4, 1, H, K, V)
    if complex:
        rate, B, C = (torch.complex(x, normal(9 + i, 1, H, K, V)) for i, x in enumerate((rate, B, C)))
    return [normal(0, 1, H, L, V), normal(1, 1, H, V).exp(), rate, B, C, normal(5, 1, H, V)]


@pytest.mark.parametrize("complex", [False, True])
@pytest.mark.parametrize("L", LENGTHS)
def test_rule_is_the_formula(L: int, complex: bool) -> None:
    same_rule(lambda v, *rest: rule(v, *(x[0] for x in rest)), loop, *inputs(L, complex=complex))


@pytest.mark.parametrize("form", ["step", "chunk", "scan", "convolution"])
@pytest.mark.parametrize("complex", [False, True])
def test_is_a_convolution(complex: bool, form: str) -> None:
    """The same at every step: o is v convolved with sum_n C exp(-a rate)^tau B."""
    v, a, rate, B, C, d = inputs(33, complex=complex)
    times = torch.arange(33).view(33, 1, 1, 1)
    kernel = (C[0] * torch.exp(-a[0].unsqueeze(1) * rate[0]) ** times * B[0]).sum(-2)  # (L, H, V)
    kernel = 2 * kernel.real if kernel.is_complex() else kernel
    kernel[0] += d[0]
    expected = torch.stack([sum(kernel[s] * v[0, :, t - s] for s in range(t + 1)) for t in range(33)], 1)
    output, _ = run(rule(v, *(x[0] for x in (a, rate, B, C, d))), form=form)
    assert torch.allclose(output[0], expected, atol=1e-10)


def test_a_complex_state_stands_for_a_conjugate_pair() -> None:
    """Both members of each pair written out: their sum is real, and is what is read."""
    v, a, rate, B, C, d = (x[0] for x in inputs(12, H=1, complex=True))
    pair = [torch.cat([x[0], x[0].conj()]) for x in (rate, B, C)]
    S, rows = torch.zeros(2 * K, V, dtype=torch.complex128), []
    for t in range(12):
        S = torch.exp(-a[0] * pair[0]) * S + pair[1] * v[0, t]
        rows.append((pair[2] * S).sum(0))
    out = torch.stack(rows)
    assert float(out.imag.abs().max()) < 1e-12
    actual, _ = run(rule(v.unsqueeze(0), a, rate, B, C))
    assert torch.allclose(actual[0, 0], out.real, atol=1e-12)


def reference(x: Tensor, w: dict[str, Tensor]) -> Tensor:
    """The layer for one sequence (T, D), with the state matrix A itself: Re A < 0, B held between two steps."""
    dt, C = w["log_step"][0].exp(), w["C"][0]
    A = -w["log_rate"][0].exp()
    if "A_imag" in w:
        A, C = torch.complex(A, w["A_imag"][0]), torch.complex(C[..., 0], C[..., 1])
    B = (torch.exp(dt * A) - 1) / A
    o = loop(x, dt, -A, B, C, w["D"][0])
    o = o * (1 + torch.erf(o / math.sqrt(2))) / 2
    left, right = (o @ w["out.weight"].T + w["out.bias"]).chunk(2, -1)
    return left * torch.sigmoid(right)


@pytest.mark.parametrize("kind", ["complex", "real"])
@pytest.mark.parametrize("L", LENGTHS)
def test_layer_is_what_is_written_out(L: int, kind: str) -> None:
    layer = perturb(S4(width=5, states=6, kind=kind)).double()
    same_layer(layer, reference, normal(8, 2, L, 5))


def test_starts_as_published() -> None:
    layer = S4(width=16, states=8)
    assert torch.allclose(layer.log_rate.exp(), torch.tensor(0.5))
    assert torch.allclose(layer.A_imag[0, :, 7], math.pi * torch.arange(4.0))
    dt = layer.log_step.exp().detach()
    assert float(dt.min()) >= 1e-3 - 1e-6 and float(dt.max()) <= 0.1 + 1e-6
    assert torch.allclose(S4(width=3, states=4, kind="real").log_rate.exp()[0, :, 1], torch.arange(1.0, 5.0))


def test_zero_order_hold_integrates_a_held_input() -> None:
    """dS/dt = -r S + v with v = 1 held for a time of 3 / r: S = (1 - e^-3) / r, however finely it is cut."""
    layer = S4(width=1, states=1, kind="real").double()
    for steps in (1, 6):
        with torch.no_grad():
            layer.log_rate.fill_(math.log(2.0))
            layer.log_step.fill_(math.log(1.5 / steps))
            layer.C.fill_(1.0)
            layer.D.zero_()
            layer.out.weight.copy_(torch.tensor([[1.0], [0.0]]))
            layer.out.bias.zero_()
        with torch.no_grad():
            y, _ = layer(torch.ones(1, steps, 1, dtype=torch.float64))
        held = torch.tensor((1 - math.exp(-3)) / 2, dtype=torch.float64)
        assert float(y[0, -1]) == pytest.approx(float(F.gelu(held)) / 2, abs=1e-12)


def test_wrong_options_are_named() -> None:
    with pytest.raises(BadInput, match="7 complex states do not form conjugate pairs"):
        S4(width=4, states=7)
