"""The topologies of recurrent networks: shapes, likelihoods that add up, padding, directions, and a small task for each."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sonde.core.batch import Batch, call_model
from sonde.core.errors import BadInput
from sonde.models.topologies import TOPOLOGIES, Seq2Seq, Seq2Vec, Tagger, Vec2Seq, Vec2Vec, topology
from sonde.objectives.categorical import Categorical
from sonde.objectives.gaussian import Gaussian

MIXERS = ("rnn", "lstm", "gru", "gla heads=2")
B, T, F_IN, OUT = 5, 7, 3, 4


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("mixer", MIXERS)
def test_every_topology_has_its_shape(mixer: str) -> None:
    x, tokens, vector = torch.randn(B, T, F_IN), torch.randint(6, (B, T)), torch.randn(B, F_IN)
    assert Vec2Vec(F_IN, OUT, 8, mixer=mixer)(vector).shape == (B, OUT)
    assert Vec2Seq(F_IN, 6, width=8, mixer=mixer)(vector, tokens).shape == (B, T, 6)
    assert Vec2Seq(F_IN, 2, "numbers", 8, mixer=mixer)(vector, torch.randn(B, T, 2)).shape == (B, T, 4)
    assert Seq2Vec(F_IN, OUT, "numbers", 8, mixer=mixer)(x).shape == (B, OUT)
    assert Tagger(6, OUT, width=8, mixer=mixer)(tokens).shape == (B, T, OUT)
    assert Seq2Seq(6, 8, mixer=mixer)(torch.randint(6, (B, 9)), tokens).shape == (B, T, 6)


def test_topologies_by_name() -> None:
    assert list(TOPOLOGIES) == ["one-one", "one-many", "many-one", "many-many aligned", "many-many"]
    model = topology("many-one", inputs=6, outputs=2, width=8, mixer="gla heads=2")
    assert isinstance(model, Seq2Vec)
    with pytest.raises(BadInput, match="no topology 'many-won'; did you mean 'many-one'"):
        topology("many-won")


def test_a_model_is_asked_for_the_fields_it_reads() -> None:
    model = Tagger(6, OUT, width=8, mixer="gla heads=2", bidirectional=True)
    batch = Batch(x=torch.randint(6, (B, T)), lengths=torch.tensor([7, 1, 3, 5, 2]))
    assert torch.equal(call_model(model, batch), model(batch.x, batch.lengths))


# One to many


def binary(model: Vec2Seq, source: Tensor, n: int = 3) -> tuple[Tensor, Tensor, Tensor]:
    """All binary sequences of a length, their inputs (0 comes before the first), and log p of each by the objective."""
    y = torch.tensor(list(product((0, 1), repeat=n)))
    x = F.pad(y[:, :-1], (1, 0))
    batch = Batch(source=source.expand(len(y), -1), x=x, y=y)
    return y, x, torch.stack([-Categorical()(model, batch[i : i + 1])["nll"].sum for i in range(len(y))])


@pytest.mark.parametrize("mixer", MIXERS)
def test_probabilities_of_all_sequences_sum_to_one(mixer: str) -> None:
    model = Vec2Seq(F_IN, 2, width=8, mixer=mixer).double()
    _, _, log_p = binary(model, torch.randn(1, F_IN).double())
    assert float(log_p.detach().exp().sum()) == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("mixer", MIXERS)
def test_log_likelihood_is_the_sum_of_step_terms(mixer: str) -> None:
    model = Vec2Seq(F_IN, 2, width=8, depth=2, mixer=mixer).double()
    source = torch.randn(1, F_IN).double()
    y, x, log_p = binary(model, source)
    for i in (0, 3, 6):
        state, total = model.begin(source), torch.zeros(())
        for t in range(3):
            raw, state = model.advance(x[i : i + 1, t : t + 1], state)
            total = total + torch.log(raw[0, 0].exp()[y[i, t]] / raw[0, 0].exp().sum())
        torch.testing.assert_close(total, log_p[i], rtol=1e-12, atol=1e-12)


def test_sampling_then_scoring_is_consistent() -> None:
    model = Vec2Seq(F_IN, 2, width=8, mixer="gla heads=2").double()
    source = torch.randn(1, F_IN).double()
    _, _, log_p = binary(model, source)
    n, rng = 20_000, torch.Generator().manual_seed(0)

    def draw(raw: Tensor) -> Tensor:
        return torch.multinomial(raw[:, -1].softmax(-1), 1, generator=rng)

    with torch.no_grad():
        drawn = model.sample(source.expand(n, -1), torch.zeros(n, 1, dtype=torch.long), 3, draw)
    counts = torch.bincount((drawn * torch.tensor([4, 2, 1])).sum(1), minlength=8)
    p = log_p.detach().exp()
    assert bool(((counts / n - p).abs() < 5 * (p * (1 - p) / n).sqrt()).all())  # five standard errors


def test_gaussian_sequences_are_scored_like_torchs_normal() -> None:
    model = Vec2Seq(F_IN, 2, "numbers", 8, mixer="gla heads=2").double()
    source, y = torch.randn(B, F_IN).double(), torch.randn(B, T, 2).double()
    x = F.pad(y[:, :-1], (0, 0, 1, 0))
    raw = model(source, x)
    expected = -torch.distributions.Normal(raw[..., :2], (0.5 * raw[..., 2:]).exp()).log_prob(y).sum()
    likelihood = Gaussian("learned")
    nll = likelihood(model, Batch(source=source, x=x, y=y))["nll"].sum + likelihood.constant(y).sum()
    torch.testing.assert_close(nll, expected, rtol=1e-12, atol=1e-12)


def test_a_sequence_needs_its_vector() -> None:
    with pytest.raises(BadInput, match="needs the vector"):
        Vec2Seq(F_IN, 2, width=8, mixer="gla heads=2").advance(torch.zeros(1, 1, dtype=torch.long), None)


# Many to one


@pytest.mark.parametrize("mixer", MIXERS)
@pytest.mark.parametrize("pool", ["last", "mean"])
def test_with_shared_weights_reversing_the_input_swaps_the_halves(mixer: str, pool: str) -> None:
    model = Seq2Vec(6, OUT, width=8, mixer=mixer, bidirectional=True, pool=pool).double()
    (both,) = model.trunk.layers
    both.backward_mixer.load_state_dict(both.forward_mixer.state_dict())
    x = torch.randint(6, (B, T))
    one, other = model.features(x), model.features(x.flip(1))
    assert one.shape == (B, 16)
    torch.testing.assert_close(one, torch.cat([other[:, 8:], other[:, :8]], 1))


@pytest.mark.parametrize("mixer", MIXERS)
@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("pool", ["last", "mean"])
def test_padding_changes_nothing(mixer: str, depth: int, pool: str) -> None:
    model = Seq2Vec(6, OUT, width=8, depth=depth, mixer=mixer, bidirectional=True, pool=pool).double()
    tagger = Tagger(6, OUT, width=8, depth=depth, mixer=mixer, bidirectional=True).double()
    x, lengths = torch.randint(6, (B, T)), torch.tensor([7, 1, 4, 6, 3])
    whole, tags = model(x, lengths), tagger(x, lengths)
    for i, n in enumerate(lengths.tolist()):
        torch.testing.assert_close(whole[i : i + 1], model(x[i : i + 1, :n]), rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(tags[i : i + 1, :n], tagger(x[i : i + 1, :n]), rtol=1e-9, atol=1e-12)


def test_a_bidirectional_lstm_is_torchs() -> None:
    model = Seq2Vec(F_IN, OUT, "numbers", 8, mixer="lstm", bidirectional=True)
    (both,) = model.trunk.layers
    torchs = nn.LSTM(8, 8, batch_first=True, bidirectional=True)
    for way, suffix in ((both.forward_mixer, "l0"), (both.backward_mixer, "l0_reverse")):
        with torch.no_grad():
            getattr(torchs, f"weight_ih_{suffix}").copy_(way.x.weight)
            getattr(torchs, f"weight_hh_{suffix}").copy_(way.h.weight)
            getattr(torchs, f"bias_ih_{suffix}").copy_(way.x.bias)
            getattr(torchs, f"bias_hh_{suffix}").zero_()
    x = torch.randn(B, T, F_IN)
    _, (h, _) = torchs(model.entry(x))
    torch.testing.assert_close(model.features(x), torch.cat([h[0], h[1]], 1), rtol=1e-5, atol=1e-6)


# Many to many, aligned


@pytest.mark.parametrize("mixer", MIXERS)
def test_which_places_a_tag_depends_on(mixer: str) -> None:
    """Of two directions every output has a gradient to all inputs, of one only to those up to its own position."""
    for both in (False, True):
        model = Tagger(F_IN, OUT, "numbers", 8, mixer=mixer, bidirectional=both).double()
        x = torch.randn(1, T, F_IN).double().requires_grad_()
        out = model(x)
        for t in range(T):
            (slope,) = torch.autograd.grad(out[0, t].sum(), x, retain_graph=True)
            seen = slope[0].abs().sum(-1) > 0
            assert seen.tolist() == [both or i <= t for i in range(T)]


# A small task for each


def trained(model: nn.Module, batch: Batch, steps: int) -> float:
    """Fraction of right answers after some steps of Adam."""
    optimizer = torch.optim.Adam(model.parameters(), 2e-2)
    for _ in range(steps):
        optimizer.zero_grad()
        Categorical()(model, batch).loss().backward()
        optimizer.step()
    return Categorical().measures(call_model(model, batch), batch).means()["accuracy"]


def test_one_to_one_learns_a_sign() -> None:
    x = torch.randn(64, F_IN)
    assert trained(Vec2Vec(F_IN, 2, 8, mixer="gru"), Batch(x=x, y=(x.sum(1) > 0).long()), 60) > 0.95


def test_one_to_many_learns_to_count_down() -> None:
    """The vector says where to begin; each token is one less than the one before, down to 0."""
    first = torch.arange(8).repeat(4)
    y = (first.unsqueeze(1) - torch.arange(6)).clamp_min(0)
    batch = Batch(source=F.one_hot(first, 8).float(), x=F.pad(y[:, :-1], (1, 0)), y=y)
    assert trained(Vec2Seq(8, 8, width=16, mixer="gru"), batch, 100) > 0.95


@pytest.mark.parametrize("pool", ["last", "mean"])
def test_many_to_one_learns_which_token_is_more_frequent(pool: str) -> None:
    x = torch.randint(2, (64, 9))
    assert trained(Seq2Vec(2, 2, width=12, mixer="gru", pool=pool), Batch(x=x, y=(x.sum(1) > 4).long()), 100) > 0.95


def test_a_tag_that_needs_the_next_token_is_learned_from_both_directions_only() -> None:
    x = torch.randint(4, (64, 8))
    y = F.pad(x[:, 1:], (0, 1))
    batch = Batch(x=x, y=y, mask=(torch.arange(8) < 7).expand(64, -1))
    assert trained(Tagger(4, 4, width=12, mixer="gru", bidirectional=True), batch, 80) > 0.95
    fresh = torch.randint(4, (256, 8))
    causal = Tagger(4, 4, width=12, mixer="gru")
    trained(causal, batch, 80)
    again = Batch(x=fresh, y=F.pad(fresh[:, 1:], (0, 1)), mask=(torch.arange(8) < 7).expand(256, -1))
    assert Categorical().measures(causal(fresh), again).means()["accuracy"] < 0.4  # 1/4 is chance


@pytest.mark.parametrize("mixer", ["attention heads=2 causal=false", "linformer heads=2"])
def test_only_what_writes_may_not_look_ahead(mixer: str) -> None:
    with pytest.raises(BadInput, match=rf"mixer '{mixer}' looks at later tokens.*\(Vec2Seq\); choose one that does not"):
        Vec2Seq(F_IN, 6, width=8, mixer=mixer)
    assert Tagger(6, OUT, width=8, mixer=mixer)(torch.randint(6, (B, T))).shape == (B, T, OUT)
    assert Seq2Vec(6, OUT, width=8, mixer=mixer)(torch.randint(6, (B, T))).shape == (B, OUT)
