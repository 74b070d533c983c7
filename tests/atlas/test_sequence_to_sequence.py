"""Chapter 16 made wrong on purpose: each exhibit must notice."""

from __future__ import annotations

from dataclasses import replace

import torch

from sonde.atlas import sequence_to_sequence
from sonde.atlas.exhibit import Exhibit
from sonde.data import order
from sonde.models import seq2seq
from sonde.objectives import scheduled
from tests.atlas.mistakes import Mistakes


def few_steps(monkeypatch) -> None:
    """Mistakes are looked for in networks that are hardly trained and never kept."""
    right = sequence_to_sequence.backwards

    def short(exhibit, attention, longest=sequence_to_sequence.LONG, width=16, steps=4):
        return right(exhibit, attention, longest, width=48 if longest == sequence_to_sequence.SHORT else 16, steps=4)

    monkeypatch.setattr(Exhibit, "seeds", lambda self, n=3: range(2))
    monkeypatch.setattr(sequence_to_sequence, "_TRAINED", {})
    monkeypatch.setattr(sequence_to_sequence, "backwards", short)


mistakes = Mistakes(setup=few_steps)

mistakes.add("S2S-01", "a network that learned nothing", red=("written backwards without a mistake", "one token written for each"), count=2)
mistakes.add("S2S-01", "another activation", red="states on paper").replace(
    sequence_to_sequence, "Tagger", lambda right, *args, mixer, **options: right(*args, mixer="rnn", **options)
)
mistakes.add("S2S-02", "a lookup that sees the first place alone", red="attention, words of 8 letters").replace(
    seq2seq.SourceAttention, "forward", lambda right, self, q, k, m, n: right(self, q, k, m, torch.ones_like(n))
)
mistakes.add("S2S-03", "padding that is looked at", red=("dot: weight of padding", "additive: weights of a softmax of the scores")).replace(
    seq2seq.SourceAttention, "forward", lambda right, self, q, k, m, n: right(self, q, k, m, torch.full_like(n, k.shape[1]))
)
mistakes.add("S2S-03", "scores that are scaled", red="dot: weights of a softmax of the scores", green="padding").replace(
    seq2seq.SourceAttention, "forward", lambda right, self, q, k, m, n: right(self, q, k * 0.5, m, n)
)
mistakes.add("S2S-04", "a beam that keeps one", only=("two beams find it", "its probability, 0.4 * 0.9 * 0.9")).replace(
    sequence_to_sequence, "beam", lambda right, *args, beams, **more: right(*args, beams=1, **more)
)
mistakes.add("S2S-04", "a text without end", red="it stops at the end token").replace(
    sequence_to_sequence, "generate", lambda right, *args, stop=None, **more: right(*args, **more)
)
mistakes.add("S2S-05", "a decoder that sees its own target", count=len(sequence_to_sequence.KINDS)).replace(
    seq2seq.Seq2Seq, "forward", lambda right, self, source, x, lengths=None: right(self, source, x.roll(-1, 1), lengths)
)
mistakes.add("S2S-06", "a free run on true prefixes", red="gap in places 6 to 8").replace(
    scheduled, "mix_inputs", lambda model, batch, share, likeliest=False: batch.x
)
mistakes.add("S2S-07", "a share of wrong tokens", red="step 400: measured", green="fraction 1").replace(
    sequence_to_sequence, "mix_inputs", lambda right, model, batch, share, likeliest=False: right(model, batch, share**2, likeliest)
)
mistakes.add("S2S-07", "a fraction that falls", red=("exponential: at the first step", "exponential: smallest rise")).replace(
    sequence_to_sequence, "exponential", lambda base: lambda step: base**step
)
mistakes.add("S2S-08", "batches that are not sorted", only="sorted by length").replace(
    order.Order, "_group_by_size", lambda self, indices, sizes, epoch: torch.arange(len(indices))
)
mistakes.add("S2S-08", "padding that is read", red=("one by one", "encoder states")).replace(
    seq2seq, "spans_of", lambda lengths, positions: None
)


@mistakes.add("S2S-09", "a network that learned nothing", only=("sentences translated without a mistake", "BLEU")).replace(
    sequence_to_sequence.translate, "recipe"
)
def short(right, **options):
    recipe = right(**{**options, "steps": 3})
    return recipe.replace(data=replace(recipe.data, test=recipe.data.test.subset(torch.arange(40))))


@mistakes.add("S2S-09", "a test that was trained on", red="sentences of the test that were trained on").replace(
    sequence_to_sequence.translate, "recipe"
)
def leaky(right, **options):
    recipe = right(**{**options, "steps": 3})
    return recipe.replace(data=replace(recipe.data, test=recipe.data.train.subset(torch.arange(30))))


@mistakes.each
def test_notices(mistake, monkeypatch):
    mistake.assert_noticed(monkeypatch)
