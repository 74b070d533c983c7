"""The feed-forward language model: its size, its window, its numbers, and that it learns."""

from __future__ import annotations

import pytest
import torch

import sonde
from sonde.core.batch import Data
from sonde.core.errors import BadInput
from sonde.core.recipe import Recipe
from sonde.data.tensors import TensorSource, WindowSource
from sonde.generate import generate
from sonde.models.language_model import LanguageModel
from sonde.models.ngram import Ngram
from sonde.models.nnlm import FeedForwardLM
from sonde.nn.spans import Spans
from sonde.objectives.categorical import Categorical
from sonde.optim.build import optimizer


def model(**options) -> FeedForwardLM:
    return FeedForwardLM(**{"vocabulary": 11, "order": 4, "width": 5, "hidden": 6, **options}).double()


@pytest.mark.parametrize(("n", "d", "h", "vocabulary"), [(2, 3, 4, 5), (4, 5, 6, 11), (5, 60, 100, 17_964)])
def test_the_number_of_weights(n, d, h, vocabulary):
    with torch.device("meta"):
        one = FeedForwardLM(vocabulary, n, d, h)
    assert sum(p.numel() for p in one.parameters()) == vocabulary * d + ((n - 1) * d + 1) * h + (h + 1) * vocabulary


@pytest.mark.parametrize("order", [2, 3, 6])
def test_logits_are_those_of_the_formula(order):
    one, tokens = model(order=order), torch.randint(11, (3, 7))
    for row in range(3):
        for i in range(7):
            window = [one.embedding.weight[tokens[row, j]] if j >= 0 else torch.zeros(5) for j in range(i - order + 2, i + 1)]
            a = torch.tanh(one.hidden.weight @ torch.cat(window) + one.hidden.bias)
            torch.testing.assert_close(one(tokens)[row, i], one.head.weight @ a + one.head.bias)
    # and so does the gradient, of an embedding that stands in several windows
    one(tokens)[0, 3, 2].backward()
    assert set(one.embedding.weight.grad.abs().sum(1).nonzero()[:, 0].tolist()) == set(tokens[0, max(3 - order + 2, 0) : 4].tolist())


@torch.no_grad()
def test_it_sees_its_window_and_goes_on_in_pieces():
    one, x = model(), torch.randint(11, (3, 9))
    other = x.clone()
    other[:, 2] = (other[:, 2] + 1) % 11
    differs = (one(x) != one(other)).any(-1).all(0)
    assert differs.tolist() == [False, False, True, True, True, False, False, False, False]
    state, pieces = None, []
    for part in x.split([1, 2, 1, 5], 1):
        logits, state = one.advance(part, state)
        pieces.append(logits)
    torch.testing.assert_close(torch.cat(pieces, 1), one(x))
    lengths = torch.tensor([2, 9, 1])
    logits, state = one.advance(x, spans=Spans.of_lengths(lengths))
    after, _ = one.advance(x[:, :2], state)
    for row, n in enumerate(lengths):
        alone, its = one.advance(x[row : row + 1, :n])
        torch.testing.assert_close(logits[row, :n], alone[0])
        torch.testing.assert_close(after[row], one.advance(x[row : row + 1, :2], its)[0][0])


def test_bad_tokens_are_refused():
    for tokens, message in (
        (torch.tensor([[11]]), "token out of range: 11"),
        (torch.zeros(1, 2), "whole numbers"),
        (torch.tensor([1]), "batch, time"),
    ):
        with pytest.raises(BadInput, match=message):
            model()(tokens)


def test_it_learns_what_a_bigram_cannot(tmp_path):
    """After two tokens a, b comes a + b modulo 7; the bigram sees b only."""
    tokens = [1, 2]
    rng = torch.Generator().manual_seed(0)
    while len(tokens) < 3000:
        noise = int(torch.randint(7, (1,), generator=rng)) if torch.rand(1, generator=rng) < 0.1 else 0
        tokens.append((tokens[-1] + tokens[-2] + noise) % 7)
    row = torch.tensor(tokens)
    recipe = Recipe(
        model=lambda: FeedForwardLM(7, order=3, width=8, hidden=48),
        data=Data(WindowSource(row[:2500], 20, 3), WindowSource(row[2500:], 20), classes=tuple("0123456")),
        objective=Categorical(classes=7),
        optimizer=optimizer("adam", lr=2e-2),
        batch_size=64,
        steps=150,
    )
    run = sonde.train(recipe, run=tmp_path / "run", quiet=True, threads=1)
    bigram = Ngram(row[:2500], 7, 2).perplexity(row[2500:])
    assert bigram > 6.5 and run.result["metrics"]["valid/loss"] < 0.8
    generated = generate(run.model(), torch.tensor([[1, 2], [3, 5]]), 4, temperature=0)
    assert generated.tolist() == [[3, 5, 1, 6], [1, 6, 0, 6]]


def test_a_recurrent_model_remembers_what_left_the_window(tmp_path):
    """The last token repeats the first; between them lie more tokens than the window holds."""
    rng = torch.Generator().manual_seed(0)
    rows = torch.randint(2, (256, 7), generator=rng) + 2
    rows[:, 0] = torch.randint(2, (256,), generator=rng)
    rows = torch.cat([rows, rows[:, :1]], 1)
    mask = (torch.arange(7) == 6).expand(256, 7)
    source = TensorSource(rows[:, :-1], rows[:, 1:], mask=mask)

    def accuracy(name: str, build) -> float:
        recipe = Recipe(
            model=build,
            data=Data(source.subset(torch.arange(192)), source.subset(torch.arange(192, 256))),
            objective=Categorical(classes=4),
            optimizer=optimizer("adam", lr=2e-2),
            batch_size=64,
            steps=60,
        )
        return sonde.train(recipe, run=tmp_path / name, quiet=True, threads=1).result["metrics"]["valid/accuracy"]

    assert accuracy("rnn", lambda: LanguageModel(4, 16, 1, "lstm")) == 1
    assert accuracy("window", lambda: FeedForwardLM(4, order=4, width=8, hidden=32)) < 0.75
