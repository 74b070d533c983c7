"""Reformer against loops written from the definition, in its plain and its sorted version."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from sonde.core.errors import BadInput
from sonde.nn.mixers.reformer import Reformer, hash_buckets, tiny

from .checks import agree, check_all, check_padded, gradients, tokens


def naive(m: Reformer, x: Tensor) -> Tensor:
    """One query at a time, over the set of keys it may see."""
    rows = []
    for sequence in x:
        q, v = sequence @ m.qk.weight.T, sequence @ m.v.weight.T
        heads = []
        for h, part in enumerate(torch.arange(m.width).chunk(m.heads)):
            rounds = [[_bucket(one, turn) for one in q[:, part]] for turn in m.rotations[h]]
            outs = []
            for i in range(len(q)):
                seen = sorted(set().union(*(_reach(i, buckets, m.capacity) for buckets in rounds))) or [i]
                scores = torch.stack([q[i, part] @ F.normalize(q[j, part], dim=0) / math.sqrt(len(part)) for j in seen])
                outs.append(scores.softmax(0) @ v[seen][:, part])
            heads.append(torch.stack(outs))
        rows.append(torch.cat(heads, -1) @ m.out.weight.T)
    return torch.stack(rows)


def _bucket(x: Tensor, turn: Tensor) -> int:
    turned = (x @ turn).tolist()
    return max(range(2 * len(turned)), key=lambda n: (turned + [-one for one in turned])[n])


def _reach(i: int, buckets: list[int], capacity: int | None) -> set[int]:
    """Earlier tokens of the same bucket; with a capacity only those in the same chunk of the sorted row or the one before."""
    order = sorted(range(len(buckets)), key=lambda t: (buckets[t], t))
    chunk = {t: n // capacity if capacity else 0 for n, t in enumerate(order)}
    return {j for j in range(i) if buckets[j] == buckets[i] and chunk[i] - chunk[j] in (0, 1)}


@pytest.mark.parametrize("rounds, capacity", [(1, None), (3, None), (1, 4), (3, 4), (2, 100), (2, 1)])
def test_as_a_loop_over_pairs(rounds: int, capacity: int | None) -> None:
    torch.manual_seed(0)
    m = Reformer(6, 2, buckets=4, rounds=rounds, capacity=capacity, rotary=False).double()
    for T in (1, 2, 21):
        expected = gradients(m, tokens(m, 2, T), lambda x: naive(m, x))
        for form in m.forms():
            agree(gradients(m.use(form), tokens(m, 2, T), lambda x: m(x)[0]), expected, (form, T))


def test_forms_pieces_padding_and_causality() -> None:
    torch.manual_seed(1)
    check_all(tiny().double())


def test_enough_capacity_is_no_limit() -> None:
    torch.manual_seed(2)
    plain, limited = tiny().double(), Reformer(12, 3, buckets=4, capacity=40).double()
    limited.load_state_dict(plain.state_dict())
    agree([limited(tokens(plain, 2, 40))[0]], [plain(tokens(plain, 2, 40))[0]])
    check_padded(limited)


def test_the_hash_finds_the_largest_scores() -> None:
    """LIN-01: of the keys that point most nearly as a query does, far more share a bucket with it than of all keys."""
    torch.manual_seed(3)
    x = F.normalize(torch.randn(1, 1, 400, 8), dim=-1)
    buckets = hash_buckets(x, torch.randn(1, 4, 8, 8))[0, 0]
    met = (buckets.unsqueeze(0) == buckets.unsqueeze(1)).any(-1)
    scores = (x[0, 0] @ x[0, 0].T).fill_diagonal_(-2)
    nearest = scores.topk(4).indices
    assert met.gather(1, nearest).float().mean() > 0.85
    assert met.float().mean() < 0.35
    assert torch.equal(hash_buckets(7 * x, torch.ones(1, 1, 8, 2)), hash_buckets(x, torch.ones(1, 1, 8, 2)))


def test_two_passes_see_the_same_pairs() -> None:
    m, other = tiny(), tiny()
    other.load_state_dict(m.state_dict())
    x = torch.randn(2, 30, 12)
    assert torch.equal(m(x)[0], m(x)[0]) and torch.equal(m(x)[0], other(x)[0])


def test_what_it_cannot_do_it_says() -> None:
    m = Reformer(12, 3, capacity=8)
    with pytest.raises(BadInput, match="decoding cannot reproduce it .*capacity=None"):
        m(torch.zeros(1, 3, 12), {})
    with pytest.raises(BadInput, match="has no form 'step'; it has parallel"):
        m.use("step")
    with pytest.raises(BadInput, match="5 buckets"):
        Reformer(12, 3, buckets=5)
    assert not m.causal and tiny().causal
