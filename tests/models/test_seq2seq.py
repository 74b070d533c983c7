"""The recurrent encoder-decoder: against loops written from the formulas, with padding, in pieces, and in generation."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sonde.core.errors import BadInput
from sonde.generate import Stop, beam, generate, score
from sonde.models.seq2seq import Seq2Seq, SourceAttention

V, W, D, S, T, B = 11, 13, 8, 7, 5, 4
LENGTHS = torch.tensor([7, 3, 1, 5])
KINDS = [("none", False), ("dot", False), ("general", False), ("additive", False), ("dot", True), ("additive", True)]
MIXERS = ("rnn", "lstm", "gru", "gla heads=2")


def make(attention: str, feeding: bool, mixer: str = "gla heads=2", **options: object) -> Seq2Seq:
    torch.manual_seed(0)
    return Seq2Seq(W, D, mixer=mixer, attention=attention, feeding=feeding, sources=V, **options).double()


def pair() -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(1)
    return torch.randint(V, (B, S), generator=rng), torch.randint(W, (B, T), generator=rng)


def naive(model: Seq2Seq, source: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Logits (T, W) and weights (T, S) of one pair, a scalar score at a time; only the mixers themselves are asked."""
    vectors = model.source_embedding.weight[source].unsqueeze(0)
    forward = model.encoder.layers[0].forward_mixer(vectors)[0][0]
    backward = model.encoder.layers[0].backward_mixer(vectors.flip(1))[0][0].flip(0)
    bridge = model.bridge
    states = [bridge.weight @ torch.cat([f, b]) + bridge.bias for f, b in zip(forward, backward)]
    summary = bridge.weight @ torch.cat([forward[-1], backward[0]]) + bridge.bias
    conditioning = model.condition.weight @ summary + model.condition.bias
    lookup = model.attention

    def look(h: Tensor) -> tuple[Tensor, Tensor]:
        if lookup.scoring == "dot":
            scores = [h @ s for s in states]
        elif lookup.scoring == "general":
            scores = [h @ (lookup.key.weight @ s) for s in states]
        else:
            ours = lookup.query.weight @ h + lookup.query.bias
            scores = [lookup.score.weight[0] @ torch.tanh(ours + lookup.key.weight @ s) for s in states]
        chances = torch.stack(scores).exp()
        chances = chances / chances.sum()
        return sum(a * s for a, s in zip(chances, states)), chances

    logits, weights, state, h = [], [], None, summary
    for token in x:
        step = model.embedding.weight[token] + conditioning
        if model.feed is not None:
            context, chances = look(h)
            step = step + model.feed.weight @ context
        y, state = model.decoder.layers[0](step.view(1, 1, -1), state)
        h = y[0, 0]
        out = h
        if lookup is not None:
            if model.feed is None:
                context, chances = look(h)
            out = torch.tanh(model.join.weight @ torch.cat([context, h]) + model.join.bias)
            weights.append(chances)
        logits.append(model.head.weight @ out + model.head.bias)
    return torch.stack(logits), torch.stack(weights) if weights else torch.zeros(0)


@pytest.mark.parametrize("attention, feeding", KINDS)
def test_outputs_weights_and_gradients_are_those_of_the_formulas(attention: str, feeding: bool) -> None:
    model, (source, x) = make(attention, feeding), pair()
    expected = [naive(model, source[i, :n], x[i]) for i, n in enumerate(LENGTHS.tolist())]
    torch.testing.assert_close(model(source, x, LENGTHS), torch.stack([logits for logits, _ in expected]), rtol=1e-9, atol=1e-12)
    if attention != "none":
        weights = model.align(source, x, LENGTHS)
        for i, n in enumerate(LENGTHS.tolist()):
            torch.testing.assert_close(weights[i, :, :n], expected[i][1], rtol=1e-9, atol=1e-12)
            assert float(weights[i, :, n:].detach().abs().sum()) == 0
    own, loop = (torch.autograd.grad(out.square().sum(), list(model.parameters()), allow_unused=True) for out in (
        model(source, x, LENGTHS), torch.stack([logits for logits, _ in expected])
    ))  # fmt: skip
    for mine, theirs in zip(own, loop):
        assert mine is not None and theirs is not None
        torch.testing.assert_close(mine, theirs, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("attention, feeding", KINDS)
@pytest.mark.parametrize("mixer", MIXERS)
def test_one_pass_equals_steps_from_a_state(attention: str, feeding: bool, mixer: str) -> None:
    model, (source, x) = make(attention, feeding, mixer, depth=2), pair()
    whole = model(source, x, LENGTHS)
    state, pieces = model.begin(source, LENGTHS), []
    for piece in x.split([1, 3, 1], 1):
        logits, state = model.advance(piece, state)
        pieces.append(logits)
        assert all(len(part) == B for part in state.values())
    torch.testing.assert_close(torch.cat(pieces, 1), whole, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("attention, feeding", KINDS)
def test_what_stands_in_padding_changes_nothing(attention: str, feeding: bool) -> None:
    model, (source, x) = make(attention, feeding), pair()
    other = torch.where(torch.arange(S) < LENGTHS.unsqueeze(1), source, (source + 1) % V)
    assert torch.equal(model(source, x, LENGTHS), model(other, x, LENGTHS))


@pytest.mark.parametrize("attention, feeding", KINDS)
def test_the_future_of_the_target_is_not_seen(attention: str, feeding: bool) -> None:
    model, (source, x) = make(attention, feeding), pair()
    other = x.clone()
    other[:, 3:] = (other[:, 3:] + 1) % W
    one, two = model(source, x, LENGTHS), model(source, other, LENGTHS)
    torch.testing.assert_close(one[:, :3], two[:, :3], rtol=1e-12, atol=1e-12)
    assert not torch.allclose(one[:, 3:], two[:, 3:])


@pytest.mark.parametrize("attention, feeding", KINDS)
def test_it_generates(attention: str, feeding: bool) -> None:
    model, (source, _) = make(attention, feeding), pair()
    starts = torch.zeros(B, 1, dtype=torch.long)
    greedy = generate(model, starts, 6, state=model.begin(source, LENGTHS), temperature=0)
    x, expected = starts, []
    for _ in range(6):
        expected.append(model(source, x, LENGTHS)[:, -1].argmax(-1, keepdim=True))
        x = torch.cat([x, expected[-1]], 1)
    assert torch.equal(greedy, torch.cat(expected, 1))
    best = beam(model, starts, 6, beams=3, power=0.0, stop=Stop(end=5), state=model.begin(source, LENGTHS))
    row = [best.tokens[1, 0, : best.lengths[1, 0]]]
    alone = model.begin(source[1:2], LENGTHS[1:2])
    assert float(score(model, starts[:1], row, state=alone)) == pytest.approx(float(best.scores[1, 0]), abs=1e-5)


def test_additive_scores_are_of_the_query_and_the_key() -> None:
    """Two positions, one number: v tanh(w h + u s + c) by hand, (2, 1) -> softmax."""
    lookup = SourceAttention(1, "additive")
    with torch.no_grad():
        lookup.key.weight.fill_(0.5)
        lookup.query.weight.fill_(2.0)
        lookup.query.bias.fill_(-1.0)
        lookup.score.weight.fill_(3.0)
    memory = torch.tensor([[[1.0], [-2.0]]])
    context, weights = lookup(torch.tensor([[[0.25]]]), lookup.keys(memory), memory, torch.tensor([2]))
    a, b = 3 * torch.tanh(torch.tensor(0.0)), 3 * torch.tanh(torch.tensor(-1.5))  # 2 * 0.25 - 1 + 0.5 s
    share = float(torch.sigmoid(a - b))
    assert weights.flatten().tolist() == pytest.approx([share, 1 - share], abs=1e-6)
    assert context.item() == pytest.approx(share - 2 * (1 - share), abs=1e-6)


def test_one_vocabulary_has_one_embedding() -> None:
    model = Seq2Seq(W, D, mixer="gla heads=2")
    assert model.source_embedding is None
    source = torch.randint(W, (2, 3))
    assert model(source, source).shape == (2, 3, W)


def test_what_cannot_be_is_said() -> None:
    model, (source, x) = make("additive", True), pair()
    with pytest.raises(BadInput, match="a source is empty"):
        model(source, x, torch.tensor([7, 0, 1, 5]))
    with pytest.raises(BadInput, match="needs a source"):
        model.advance(x, None)
    with pytest.raises(BadInput, match="nothing to feed"):
        Seq2Seq(W, D, mixer="gla heads=2", attention="none", feeding=True)
    with pytest.raises(BadInput, match="no alignment"):
        make("none", False).align(source, x)
    with pytest.raises(BadInput, match="token out of range: 99"):
        model(torch.full((1, 2), 99), x[:1])


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("mixer", ["attention heads=2 causal=false", "linformer heads=2"])
def test_a_decoder_that_looks_ahead_is_refused(mixer: str, bidirectional: bool) -> None:
    """It would see the token it has to predict."""
    with pytest.raises(BadInput, match=rf"mixer '{mixer}' looks at later tokens.*\(Seq2Seq\); choose one that does not"):
        Seq2Seq(W, D, mixer=mixer, bidirectional=bidirectional)
