"""Chapter 16 made wrong on purpose: each exhibit must notice."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from sonde.atlas import sequence_to_sequence
from sonde.atlas.exhibit import Exhibit
from sonde.data import order
from sonde.models import seq2seq
from tests.atlas.mistakes import any_of, wrong


@pytest.fixture(autouse=True)
def few_steps(monkeypatch) -> None:
    """Mistakes are looked for in networks that are hardly trained and never kept."""
    right = sequence_to_sequence.backwards

    def short(exhibit, attention, longest=sequence_to_sequence.LONG, width=16, steps=4):
        return right(exhibit, attention, longest, width=48 if longest == sequence_to_sequence.SHORT else 16, steps=4)

    monkeypatch.setattr(Exhibit, "seeds", lambda self, n=3: range(2))
    monkeypatch.setattr(sequence_to_sequence, "_TRAINED", {})
    monkeypatch.setattr(sequence_to_sequence, "backwards", short)


def test_s2s_01_notices_a_network_that_learned_nothing() -> None:
    names = wrong("S2S-01")
    assert len(names) == 2 and any_of(names, "written backwards without a mistake") and any_of(names, "one token written for each")


def test_s2s_01_notices_another_activation(monkeypatch) -> None:
    right = sequence_to_sequence.Tagger
    monkeypatch.setattr(sequence_to_sequence, "Tagger", lambda *args, mixer, **options: right(*args, mixer="rnn", **options))
    assert "states on paper" in wrong("S2S-01")


def test_s2s_02_notices_a_lookup_that_sees_the_first_place_alone(monkeypatch) -> None:
    right = seq2seq.Lookup.forward
    monkeypatch.setattr(seq2seq.Lookup, "forward", lambda self, q, k, m, n: right(self, q, k, m, torch.ones_like(n)))
    assert "attention, words of 8 letters" in wrong("S2S-02")


def test_s2s_03_notices_padding_that_is_looked_at(monkeypatch) -> None:
    right = seq2seq.Lookup.forward
    monkeypatch.setattr(seq2seq.Lookup, "forward", lambda self, q, k, m, n: right(self, q, k, m, torch.full_like(n, k.shape[1])))
    names = wrong("S2S-03")
    assert "dot: weight of padding" in names and "additive: weights of a softmax of the scores" in names


def test_s2s_03_notices_scores_that_are_scaled(monkeypatch) -> None:
    right = seq2seq.Lookup.forward
    monkeypatch.setattr(seq2seq.Lookup, "forward", lambda self, q, k, m, n: right(self, q, k * 0.5, m, n))
    names = wrong("S2S-03")
    assert "dot: weights of a softmax of the scores" in names and not any_of(names, "padding")


def test_s2s_04_notices_a_beam_that_keeps_one(monkeypatch) -> None:
    right = sequence_to_sequence.beam
    monkeypatch.setattr(sequence_to_sequence, "beam", lambda *args, beams, **more: right(*args, beams=1, **more))
    assert wrong("S2S-04") == ["two beams find it", "its probability, 0.4 * 0.9 * 0.9"]


def test_s2s_04_notices_a_text_without_end(monkeypatch) -> None:
    right = sequence_to_sequence.generate
    monkeypatch.setattr(sequence_to_sequence, "generate", lambda *args, stop=None, **more: right(*args, **more))
    assert any_of(wrong("S2S-04"), "it stops at the end token")


def test_s2s_05_notices_a_decoder_that_sees_its_own_target(monkeypatch) -> None:
    right = seq2seq.Seq2Seq.forward
    monkeypatch.setattr(seq2seq.Seq2Seq, "forward", lambda self, source, x, lengths=None: right(self, source, x.roll(-1, 1), lengths))
    assert len(wrong("S2S-05")) == len(sequence_to_sequence.KINDS)


def test_s2s_06_notices_a_free_run_on_true_prefixes(monkeypatch) -> None:
    from sonde.objectives import scheduled

    monkeypatch.setattr(scheduled, "mix_inputs", lambda model, batch, share, likeliest=False: batch.x)
    assert any_of(wrong("S2S-06"), "gap in places 6 to 8")


def test_s2s_07_notices_a_share_of_wrong_tokens(monkeypatch) -> None:
    right = sequence_to_sequence.mix_inputs
    monkeypatch.setattr(
        sequence_to_sequence, "mix_inputs", lambda model, batch, share, likeliest=False: right(model, batch, share**2, likeliest)
    )
    names = wrong("S2S-07")
    assert any_of(names, "step 400: measured") and not any_of(names, "fraction 1")


def test_s2s_07_notices_a_fraction_that_falls(monkeypatch) -> None:
    monkeypatch.setattr(sequence_to_sequence, "exponential", lambda base: lambda step: base**step)
    names = wrong("S2S-07")
    assert any_of(names, "exponential: at the first step") and any_of(names, "exponential: smallest rise")


def test_s2s_08_notices_batches_that_are_not_sorted(monkeypatch) -> None:
    monkeypatch.setattr(order.Order, "_group_by_size", lambda self, indices, sizes, epoch: torch.arange(len(indices)))
    assert wrong("S2S-08") == ["sorted by length"]


def test_s2s_08_notices_padding_that_is_read(monkeypatch) -> None:
    monkeypatch.setattr(seq2seq, "spans_of", lambda lengths, places: None)
    names = wrong("S2S-08")
    assert any_of(names, "one by one") and any_of(names, "encoder states")


def test_s2s_09_notices_a_network_that_learned_nothing(monkeypatch) -> None:
    right = sequence_to_sequence.translate.recipe

    def short(**options):
        recipe = right(**{**options, "steps": 3})
        return recipe.replace(data=replace(recipe.data, test=recipe.data.test.subset(torch.arange(40))))

    monkeypatch.setattr(sequence_to_sequence.translate, "recipe", short)
    assert wrong("S2S-09") == ["sentences translated without a mistake", "BLEU"]


def test_s2s_09_notices_a_test_that_was_trained_on(monkeypatch) -> None:
    right = sequence_to_sequence.translate.recipe

    def leaky(**options):
        recipe = right(**{**options, "steps": 3})
        return recipe.replace(data=replace(recipe.data, test=recipe.data.train.subset(torch.arange(30))))

    monkeypatch.setattr(sequence_to_sequence.translate, "recipe", leaky)
    assert "sentences of the test that were trained on" in wrong("S2S-09")
