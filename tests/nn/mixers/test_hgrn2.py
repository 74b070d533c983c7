"""HGRN-2 against its recurrence, and against gated linear attention with k = 1 - a."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from sonde.nn.mixers import gla
from sonde.nn.mixers.hgrn2 import HGRN2, rule
from sonde.nn.recurrence import record_recurrences, run
from tests.nn.mixers.compare import LENGTHS, normal, rms, same_layer, same_rule

B, H, K, V = 2, 3, 5, 7


def naive(q: Tensor, v: Tensor, log_a: Tensor) -> Tensor:
    """S = S Diag(a) + v (1 - a)^T, o = S q."""
    S, outs = torch.zeros(v.shape[1], q.shape[1], dtype=v.dtype), []
    for t in range(len(v)):
        a = log_a[t].exp()
        S = S @ torch.diag(a) + torch.outer(v[t], 1 - a)
        outs.append(S @ q[t])
    return torch.stack(outs)


def inputs(L: int) -> tuple[Tensor, ...]:
    return normal(1, B, H, L, K), normal(3, B, H, L, V), F.logsigmoid(normal(4, B, H, L, K))


@pytest.mark.parametrize("L", LENGTHS)
def test_rule(L: int) -> None:
    same_rule(rule, naive, *inputs(L))


@pytest.mark.parametrize("bound", [0.0, 0.3, 0.99])
@pytest.mark.parametrize("T", LENGTHS)
def test_layer(T: int, bound: float) -> None:
    def reference_layer(x: Tensor, w: dict[str, Tensor]) -> Tensor:
        q, v = x @ w["q.weight"].T, x @ w["v.weight"].T
        a = bound + (1 - bound) * torch.sigmoid(x @ w["forget.weight"].T)
        q, v, a = (one.split(5, 1) for one in (q * torch.sigmoid(q) / 5**0.5, v, a))
        return rms(torch.cat([naive(q[h], v[h], a[h].log()) for h in range(2)], 1), w["norm.weight"]) @ w["out.weight"].T

    torch.manual_seed(0)
    same_layer(HGRN2(10, 2, bound).double(), reference_layer, normal(5, 2, T, 10))


def test_it_is_gla_with_the_complement_as_key() -> None:
    """LIN-19."""
    q, v, log_a = inputs(65)
    expected = run(gla.rule(q, 1 - log_a.exp(), v, log_a), form="step")[0]
    assert torch.allclose(run(rule(q, v, log_a), form="step")[0], expected, atol=1e-12)


def test_no_gate_falls_below_the_bound() -> None:
    torch.manual_seed(0)
    with record_recurrences() as watch:
        HGRN2(10, 2, bound=0.7)(100 * normal(5, 2, 9, 10).float())
    gates = watch.seen[0][0].log_key.exp()
    assert 0.7 - 1e-6 <= gates.min() < 0.71 and gates.max() > 0.99
