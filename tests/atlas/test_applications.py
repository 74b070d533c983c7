"""Applications made wrong on purpose: signs, directions, files; each exhibit must notice."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from sonde.atlas import applications
from sonde.atlas.exhibit import run
from sonde.data import melody
from tests.atlas.mistakes import any_of, wrong

pytestmark = pytest.mark.slow  # each of them trains


def test_app_04_notices_labels_the_wrong_way_round(monkeypatch) -> None:
    right = applications.sentiment.grammar_sentences

    def turned(seed: int):
        data = right(seed)
        return dataclasses.replace(data, classes=data.classes[::-1])

    monkeypatch.setattr(applications.sentiment, "grammar_sentences", turned)
    assert any_of(wrong("APP-04"), "labels")


def test_app_04_notices_a_model_that_reads_its_padding(monkeypatch) -> None:
    right = applications.sentiment.Seq2Vec.forward
    monkeypatch.setattr(applications.sentiment.Seq2Vec, "forward", lambda self, x, lengths=None: right(self, x, None))
    assert any_of(wrong("APP-04"), "padded")


def test_app_04_notices_a_model_that_trains_for_one_pass(monkeypatch) -> None:
    right = applications.sentiment.recipe
    monkeypatch.setattr(applications.sentiment, "recipe", lambda **how: right(**{**how, "epochs": how["epochs"] // 20}))
    assert any_of(wrong("APP-04"), "least certainty of the two")


def test_app_05_notices_a_decoder_that_ignores_its_source(monkeypatch) -> None:
    right = applications.Seq2Seq.begin
    monkeypatch.setattr(applications.Seq2Seq, "begin", lambda self, source, lengths=None: right(self, torch.zeros_like(source), lengths))
    assert wrong("APP-05") == ["translation: held-out sentences without a mistake"]


def test_app_05_notices_captions_without_pictures(monkeypatch) -> None:
    right = applications.Vec2Seq.begin
    monkeypatch.setattr(applications.Vec2Seq, "begin", lambda self, source: right(self, torch.zeros_like(source)))
    assert wrong("APP-05") == ["captions: held-out pictures without a mistake"]


def test_app_05_notices_a_tagger_of_one_direction_and_one_that_always_sees_ahead(monkeypatch) -> None:
    right = applications.tagging.recipe
    monkeypatch.setattr(
        applications.tagging, "recipe", lambda **options: right(**{**options, "bidirectional": not options["bidirectional"]})
    )
    names = wrong("APP-05")
    assert any_of(names, "with both directions") and any_of(names, "is not seen")


def test_app_06_notices_a_midi_file_of_other_notes(monkeypatch) -> None:
    right = melody.midi
    higher = lambda tune: right([melody.Note(None if n.pitch is None else n.pitch + 1, n.length) for n in tune])  # noqa: E731
    monkeypatch.setattr(applications.music, "midi", higher)
    assert wrong("APP-06") == ["pitches of the MIDI files, against the ABC texts"]


def test_app_06_notices_a_model_that_learned_nothing(monkeypatch) -> None:
    right = applications.music.recipe
    monkeypatch.setattr(applications.music, "recipe", lambda **options: right(**{**options, "lr": 1e-6}))
    assert not run("APP-06").passed
