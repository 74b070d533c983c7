"""Performer: its features against exp(q . k), its layer against a loop, its running maximum against the future."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sonde.core.errors import BadInput
from sonde.nn.mixers.performer import Performer, directions, log_features, rule, tiny
from sonde.nn.recurrence import record_recurrences, run

from .checks import agree, check_all, check_forms, check_padded, gradients, runnable, tokens


def naive(m: Performer, x: Tensor) -> Tensor:
    """The weights phi(q) . phi(k) of every pair, as they are, without logs or maxima."""
    rows = []
    for sequence in x:
        q, k, v = (sequence @ one.weight.T for one in (m.q, m.k, m.v))
        heads = []
        for part in torch.arange(m.width).chunk(m.heads):
            phi = [
                torch.exp(one @ m.W.T - one.square().sum(-1, keepdim=True) / 2)
                for one in (q[:, part] / len(part) ** 0.25, k[:, part] / len(part) ** 0.25)
            ]
            weights = phi[0] @ phi[1].T
            weights = weights.tril() if m.causal else weights
            heads.append(weights @ v[:, part] / weights.sum(-1, keepdim=True))
        rows.append(torch.cat(heads, -1) @ m.out.weight.T)
    return torch.stack(rows)


@pytest.mark.parametrize("causal", [True, False])
def test_as_the_formula(causal: bool) -> None:
    torch.manual_seed(0)
    m = Performer(12, 3, features=7, causal=causal, rotary=False).double()
    for form in runnable(m):
        agree(gradients(m.use(form), tokens(m, 2, 19), lambda x: m(x)[0]), gradients(m, tokens(m, 2, 19), lambda x: naive(m, x)), form)


def test_forms_pieces_padding_and_causality() -> None:
    torch.manual_seed(1)
    check_all(tiny().double())


def test_bidirectional() -> None:
    torch.manual_seed(2)
    m = Performer(12, 3, features=7, causal=False).double()
    check_forms(m)
    check_padded(m)
    with pytest.raises(BadInput, match="sees the whole sequence at once"):
        m(tokens(m, 1, 2), {})


def test_the_estimate_is_unbiased_and_its_error_falls_with_the_root() -> None:
    torch.manual_seed(3)
    q, k = torch.randn(6, dtype=torch.float64) * 0.5, torch.randn(6, dtype=torch.float64) * 0.5
    exact = torch.exp(q @ k)

    def estimates(M: int) -> Tensor:
        W = (directions(M, 6).double() for _ in range(600))
        return torch.stack([torch.exp(log_features(q, w) + log_features(k, w)).sum() for w in W])

    few, many = estimates(6), estimates(96)
    for drawn in (few, many):
        assert abs(drawn.mean() - exact) < 4 * drawn.std() / len(drawn) ** 0.5
        assert (drawn > 0).all()
    # sixteen times the features, a quarter of the error
    assert 3.2 < few.std() / many.std() < 5


def test_directions_are_at_right_angles_and_as_long_as_gaussian_ones() -> None:
    torch.manual_seed(4)
    W = torch.stack([directions(7, 4) for _ in range(1000)])
    gram = W[:, :4] @ W[:, :4].mT
    assert (gram - torch.diag_embed(gram.diagonal(dim1=1, dim2=2))).abs().max() < 1e-4
    assert abs(W.square().sum(-1).mean() - 4) < 0.1
    assert W.mean(0).abs().max() < 0.1 and abs(W.square().mean() - 1) < 0.03


@pytest.mark.parametrize("size", [1.0, 30.0])
def test_the_denominator_never_falls_below_one(size: float) -> None:
    """Queries and keys of any size in float32: no guard is needed, and all forms agree with float64."""
    torch.manual_seed(5)
    q, k, v = (torch.randn(1, 2, 90, 4) for _ in range(3))
    W = directions(9, 4)
    log_q, log_k = log_features(q * size, W), log_features(k * size, W)
    expected, _ = run(rule(log_q.double(), log_k.double(), v.double()), form="step")
    for form in ("step", "parallel", "chunk", "scan"):
        with record_recurrences() as watch:
            output, _ = run(rule(log_q, log_k, v), form=form)
        assert watch.denominators and not watch.guarded
        assert torch.allclose(output.double(), expected, atol=1e-4 * size), form


def test_the_buffers_are_part_of_the_model() -> None:
    m, other = tiny(), tiny()
    other.load_state_dict(m.state_dict())
    x = torch.randn(1, 9, 12)
    assert torch.equal(m(x)[0], other(x)[0])
