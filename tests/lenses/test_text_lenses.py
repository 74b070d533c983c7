"""Lenses over text against the formulas written out, NumPy and scikit-learn."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from sonde.core.batch import Batch, Data
from sonde.core.errors import BadInput
from sonde.core.reading import Subject
from sonde.lenses import attention, coverage, lag, logit_lens, neighbors, projection, rollout, states, surprisal
from sonde.lenses.tools.tiny import _Rows, letters
from sonde.lenses.tools.tokens import ends, layer_label, original, select_row, spell_tokens
from sonde.models.bert import Bert
from sonde.models.encoder_decoder import EncoderDecoder
from sonde.models.language_model import LanguageModel
from sonde.objectives.categorical import Categorical
from sonde.report.draw import svg


def pairs() -> Subject:
    """Three pairs of sequences of different lengths, padded, and an encoder-decoder."""
    torch.manual_seed(3)
    model = EncoderDecoder(11, width=8, depth=2, heads=2, ffn=1.0, encoder="attention causal=false heads=2", decoder="attention heads=2")
    source, x = torch.randint(1, 11, (3, 7)), torch.randint(1, 11, (3, 5))
    lengths, counts = torch.tensor([7, 4, 5]), torch.tensor([3, 5, 4])
    mask = torch.arange(5) < counts.unsqueeze(1)
    y = torch.cat([x[:, 1:], torch.zeros(3, 1, dtype=torch.long)], 1)
    y[range(3), counts - 1] = 0  # the end, which the input lacks
    batch = Batch(source=source, lengths=lengths, x=x, y=y, mask=mask, ids=torch.arange(3))
    return Subject(model.eval(), batch, Categorical(11), Data(train=_Rows(batch), task="other"), (), "pairs")


def hidden() -> Subject:
    """Windows with hidden tokens, and a model that sees both sides."""
    torch.manual_seed(4)
    text, mask = torch.randint(0, 6, (4, 9)), torch.rand(4, 9) < 0.4
    mask[0, 2] = True
    batch = Batch(x=torch.where(mask, 6, text), y=text, mask=mask, lengths=torch.tensor([9, 6, 8, 9]))
    batch = batch.replace(mask=mask & (torch.arange(9) < batch.lengths.unsqueeze(1)))
    model = Bert(7, width=8, depth=2, mixer="attention heads=2", ffn=1.0, max_positions=9)
    return Subject(model.eval(), batch, None, Data(train=_Rows(batch), task="other"), (), "hidden")


# One example, and tokens by name


def test_one_example_has_no_padding() -> None:
    batch = pairs().batch
    assert ends(batch).tolist() == [3, 5, 4]
    row = select_row(batch, 1)
    assert row.source.shape == (1, 4) and row.x.shape == row.y.shape == row.mask.shape == (1, 5) and row.lengths.tolist() == [4]
    row = select_row(batch, 0, max_length=2)
    assert row.source.shape == (1, 2) and row.x.tolist() == batch.x[:1, :2].tolist() and row.lengths.tolist() == [2]


def test_hidden_tokens_come_back() -> None:
    batch = hidden().batch
    assert torch.equal(original(batch), torch.where(batch.mask, batch.y, batch.x))
    for batch in (letters().batch, pairs().batch):
        assert torch.equal(original(batch), batch.x)


def test_blanks_can_be_seen() -> None:
    assert spell_tokens(letters())[:3] == ["↵", "␣", "a"]
    assert layer_label("stack.blocks.0.mixer") == "block 1" and layer_label("decoder.blocks.2.cross") == "decoder block 3 cross"


# Attention


def test_maps_are_the_softmax_of_the_scores() -> None:
    torch.manual_seed(1)
    subject = letters()
    model = LanguageModel(15, width=8, depth=2, mixer="attention heads=2 positions=none", ffn=1.0)
    subject = replace(subject, model=model)
    readings = attention.read(subject, example=2, tokens=7)
    x = model.embed(subject.batch.x[2:3, :7])
    for block, reading in zip(model.stack.blocks, readings, strict=True):
        q, k, _ = block.mixer.qkv(block.norm(x))[0].detach().numpy().reshape(7, 3, 2, 4).transpose(1, 2, 0, 3).astype(float)
        for h in range(2):
            scores = np.where(np.tri(7, dtype=bool), q[h] @ k[h].T / 2, -np.inf)
            weights = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
            np.testing.assert_allclose(reading.values[f"head {h + 1}"], weights, atol=6e-4)  # shown to three digits
        x = block(x)[0]
    assert readings[0].rows == readings[0].columns == [spell_tokens(subject)[t] for t in subject.batch.x[2, :7]]


def test_maps_of_a_pair_name_both_sides() -> None:
    subject = pairs()
    maps = attention.attention_maps(subject, example=1, tokens=50)
    kinds = {each.name: (each.cross, tuple(each.weights.shape)) for each in maps}
    assert kinds["encoder.blocks.0.mixer"] == (False, (2, 4, 4)) and kinds["decoder.blocks.1.mixer"] == (False, (2, 5, 5))
    assert kinds["decoder.blocks.1.cross"] == (True, (2, 5, 4))
    assert maps[0].query_tokens.tolist() == subject.batch.source[1, :4].tolist()
    assert (
        maps[-1].query_tokens.tolist() == subject.batch.x[1].tolist()
        and maps[-1].key_tokens.tolist() == subject.batch.source[1, :4].tolist()
    )
    for each in maps:
        torch.testing.assert_close(each.weights.sum(-1), torch.ones(each.weights.shape[:2]).double())
    assert len(attention.read(subject, layers=3)) == 3


def test_rollout_is_the_product_of_the_layers() -> None:
    subject = letters()
    first, second = (each.weights.numpy().mean(0) for each in attention.attention_maps(subject, 1, 9))
    wanted = (0.5 * second + 0.5 * np.eye(9)) @ (0.5 * first + 0.5 * np.eye(9))
    (reading,) = rollout.read(subject, example=1, tokens=9)
    np.testing.assert_allclose(reading.values["weight"], wanted, atol=6e-4)
    np.testing.assert_allclose(rollout.roll_out([each.weights for each in attention.attention_maps(subject, 1, 9)]), wanted, atol=1e-12)
    np.testing.assert_allclose(wanted.sum(1), 1)
    assert [each.title for each in rollout.read(pairs())] == ["Attention rollout of the encoder", "Attention rollout of the decoder"]


# What the model says


def test_surprisal_adds_up_to_the_loss() -> None:
    for subject in (letters(), pairs()):
        with torch.no_grad():
            terms = Categorical()(subject.model, subject.batch)
        (name,) = terms
        total, count = float(terms[name].sum), terms.counts()[name]
        cost = surprisal.bits(subject.model, subject.batch)
        known = cost[~cost.isnan()]
        assert len(known) == count
        assert float(known.sum()) * math.log(2) == pytest.approx(total, rel=1e-5)
        shown = [each.values["bits"] for each in surprisal.read(subject, n=64)]
        assert sum(bits for row in shown for bits in row if not math.isnan(bits)) == pytest.approx(float(known.sum()), rel=1e-5)


def test_surprisal_of_hidden_tokens() -> None:
    subject = hidden()
    (first, second, *_) = surprisal.read(subject)
    batch = subject.batch
    with torch.no_grad():
        chances = subject.model(batch.x[1:2, :6])["tokens"].softmax(-1)[0]
    wanted = [-math.log2(float(chances[t, batch.y[1, t]])) if batch.mask[1, t] else math.nan for t in range(6)]
    np.testing.assert_allclose(second.values["bits"], wanted, rtol=1e-4)
    assert second.values["token"] == [str(int(token)) for token in original(batch)[1, :6]]
    assert first.top == second.top >= np.nanmax(wanted) - 1e-6


def test_surprisal_needs_hidden_tokens_where_both_sides_are_seen() -> None:
    subject = replace(letters(), model=LanguageModel(15, 8, 1, "attention heads=2 causal=false", noncausal=True))
    with pytest.raises(BadInput, match="masks no tokens"):
        surprisal.read(subject)


def test_the_last_block_says_what_the_model_says() -> None:
    for subject in (letters("gla heads=2"), pairs(), hidden()):
        batch = select_row(subject.batch, 1)
        names, logits = logit_lens.by_block(subject.model, batch)
        out = subject.model(*(batch.get(name) for name in getattr(subject.model, "reads", ("x",))))
        out = out["tokens"] if isinstance(out, dict) else out
        torch.testing.assert_close(logits[-1], out.double().detach(), rtol=1e-5, atol=1e-6)
        assert names == ["embedding", "block 1", "block 2"] and len(logits) == 3


def test_logit_lens_after_the_first_block() -> None:
    subject = letters()
    table, bits = logit_lens.read(subject, tokens=5)
    model, x = subject.model, subject.batch.x
    with torch.no_grad():
        first = model.stack.blocks[0](model.embed(x))[0]
        chances = model.head(model.stack.norm(first)).softmax(-1)
    best, token = chances[0, :5].max(-1)
    np.testing.assert_allclose(table.values["probability"][1], best.tolist(), rtol=1e-5)
    assert table.words[1] == [spell_tokens(subject)[t] for t in token]
    right = chances.gather(-1, subject.batch.y.unsqueeze(-1)).log2().mean()
    assert bits.values["bits"][1] == pytest.approx(-float(right), rel=1e-5)


# Along the sequence


class Linear(nn.Module):
    """h_t = W h_{t-1} + x_t, and h at every place."""

    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h, outputs = torch.zeros_like(x[:, 0]), []
        for now in x.unbind(1):
            h = h @ self.weight.T + now
            outputs.append(h)
        return torch.stack(outputs, 1)


@pytest.mark.parametrize("radius", [0.8, 1.1])
def test_influence_of_a_linear_net_follows_its_spectral_radius(radius: float) -> None:
    torch.manual_seed(5)
    turn = torch.linalg.qr(torch.randn(6, 6, dtype=torch.float64)).Q
    x = torch.randn(3, 20, 6, dtype=torch.float64)
    reading = lag.read(Subject(Linear(radius * turn), Batch(x=x)))
    assert reading.results["slope"] == pytest.approx(math.log(radius), abs=1e-9)
    np.testing.assert_allclose(reading.values["norm of the gradient"], math.sqrt(6) * radius ** np.arange(20), rtol=1e-9)


def test_influence_of_a_general_linear_net() -> None:
    torch.manual_seed(6)
    weight = torch.randn(5, 5, dtype=torch.float64)
    weight /= float(torch.linalg.eigvals(weight).abs().max()) / 0.9
    influences = lag.influence(Linear(weight), Batch(x=torch.randn(2, 12, 5, dtype=torch.float64)), probes=400)
    wanted = [float(torch.linalg.matrix_power(weight, t).norm()) for t in range(12)]
    np.testing.assert_allclose(influences, wanted, rtol=0.15)


def test_influence_counts_from_the_last_real_token() -> None:
    subject = pairs()
    influences = lag.influence(subject.model, subject.batch[:1], probes=3)
    assert len(influences) == 3
    alone = lag.influence(subject.model, select_row(subject.batch, 0), probes=3)
    np.testing.assert_allclose(influences, alone, rtol=1e-4)


def test_states_are_those_after_each_beginning_of_the_text() -> None:
    subject = letters("lstm")
    readings = {reading.title: reading for reading in states.read(subject, examples=4)}
    block = subject.model.stack.blocks[0]
    mixer, x = block.mixer, block.norm(subject.model.embed(subject.batch.x[:4])).detach()
    for t in range(x.shape[1]):
        _, state = mixer(x[:, : t + 1])  # from the beginning every time
        for name in ("h", "c"):
            wanted = float(state[name].detach().norm(dim=1).mean())
            assert readings[f"Norm of the state '{name}'"].values["block 1"][t] == pytest.approx(wanted, rel=1e-5)
    assert len(readings) == 2
    with pytest.raises(BadInput, match="has a state of fixed size"):
        states.read(letters())


@pytest.mark.parametrize("mixer", ["rnn", "gru", "gla heads=2", "mamba2 heads=2", "s4", "rwkv6 heads=2"])
def test_any_recurrent_mixer_has_states_and_influence(mixer: str) -> None:
    subject = letters(mixer)
    for reading in states.read(subject):
        assert all(len(line) == 12 and all(map(math.isfinite, line)) for line in reading.values.values())
    assert all(norm > 0 for norm in lag.read(subject).values["norm of the gradient"])


# Vectors of tokens


def test_projection_is_that_of_scikit_learn() -> None:
    from sklearn.decomposition import PCA

    subject = letters()
    table = subject.model.embedding.weight.detach().double().numpy()
    reading = projection.read(subject, tokens=6)
    counts = np.bincount(subject.batch.x.flatten().numpy(), minlength=15)
    shown = [spell_tokens(subject).index(name) for name in reading.labels]
    assert len(shown) == 6 and counts[shown].tolist() == sorted(counts, reverse=True)[:6]
    wanted = PCA(2).fit(table)
    coordinates = np.array(list(reading.values.values())).T
    np.testing.assert_allclose(np.abs(coordinates), np.abs(wanted.transform(table[shown])), rtol=1e-6)
    assert reading.axes[0] == f"component 1: {wanted.explained_variance_ratio_[0]:.0%} of the variance"


def test_neighbors_have_the_largest_cosine() -> None:
    subject = letters()
    table = subject.model.embedding.weight.detach().double().numpy()
    unit = table / np.linalg.norm(table, axis=1, keepdims=True)
    reading = neighbors.read(subject, near=4, of="a t")
    for row, token in enumerate(spell_tokens(subject).index(letter) for letter in "at"):
        order = [other for other in np.argsort(-(unit @ unit[token])) if other != token][:4]
        assert reading.results["tokens"][row] == order
        np.testing.assert_allclose(reading.results["cosines"][row], unit[order] @ unit[token], atol=1e-6)
    assert reading.values["token"] == ["a", "t"] and reading.values["nearest 1"][0].startswith(
        spell_tokens(subject)[reading.results["tokens"][0][0]]
    )
    with pytest.raises(BadInput, match="no token 'Q'"):
        neighbors.read(subject, of="Q")


def test_coverage_against_sets() -> None:
    for subject in (letters(), pairs(), hidden()):
        train = coverage.rows(subject.data.train[torch.arange(2)])
        texts = coverage.rows(subject.batch)
        reading = coverage.read(replace(subject, data=replace(subject.data, train=_Rows(subject.batch[:2]))), order=4)
        for n in range(1, 5):
            seen = {tuple(row[i : i + n].tolist()) for row in train for i in range(len(row) - n + 1)}
            grams = [tuple(row[i : i + n].tolist()) for row in texts for i in range(len(row) - n + 1)]
            assert reading.results["shares"][n - 1] == pytest.approx(sum(gram in seen for gram in grams) / len(grams))
            assert reading.results["grams"][n - 1] == len(grams)


def test_coverage_reads_the_whole_training_text() -> None:
    from sonde.data.sequences import MaskedSource
    from sonde.data.tensors import WindowSource

    tokens = torch.arange(40) % 7
    windows = WindowSource(tokens, 8, 3)
    for source in (windows, MaskedSource(windows, token=9)):
        (row,) = coverage.training_text(source, max_tokens=30)
        assert row.tolist() == tokens[:30].tolist()


def test_text_and_words_are_drawn() -> None:
    for reading in (surprisal.read(letters())[0], logit_lens.read(letters())[0], projection.read(letters())):
        light, dark = svg(reading)
        assert light.startswith(b"<?xml") and light != dark
    heads = attention.read(letters())[0]
    alone = replace(heads, values={"head 1": heads.values["head 1"]})
    assert len(svg(heads)[0]) > 1.5 * len(svg(alone)[0])  # a panel for each head
