"""Applications made wrong on purpose: signs, directions, files; each exhibit must notice."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from sonde.atlas import applications
from sonde.data import melody, toys
from tests.atlas.mistakes import Mistakes

pytestmark = pytest.mark.slow  # each of them trains

mistakes = Mistakes()

mistakes.add("APP-04", "a model that reads its padding", red="padded").replace(
    applications.sentiment.Seq2Vec, "forward", lambda right, self, x, lengths=None: right(self, x, None)
)
mistakes.add("APP-04", "a model that trains for one pass", red="least certainty of the two").replace(
    applications.sentiment, "recipe", lambda right, **how: right(**{**how, "epochs": how["epochs"] // 20})
)
mistakes.add("APP-05", "a decoder that ignores its source", only="translation: held-out sentences without a mistake").replace(
    applications.Seq2Seq, "begin", lambda right, self, source, lengths=None: right(self, torch.zeros_like(source), lengths)
)
mistakes.add("APP-05", "captions without pictures", only="captions: held-out pictures without a mistake").replace(
    applications.Vec2Seq, "begin", lambda right, self, source: right(self, torch.zeros_like(source))
)
mistakes.add("APP-05", "a tagger of one direction and one that always sees ahead", red=("with both directions", "is not seen")).replace(
    applications.tagging, "recipe", lambda right, **options: right(**{**options, "bidirectional": not options["bidirectional"]})
)
mistakes.add("APP-06", "a MIDI file of other notes", only="pitches of the MIDI files, against the ABC texts").replace(
    applications.music, "midi", lambda right, tune: right([melody.Note(None if n.pitch is None else n.pitch + 1, n.length) for n in tune])
)
mistakes.add("APP-06", "a model that learned nothing", why="").replace(
    applications.music, "recipe", lambda right, **options: right(**{**options, "lr": 1e-6})
)


@mistakes.add("APP-04", "labels the wrong way round", red="labels").replace(toys, "toy_sentiment")
def turned(right, seed: int):
    data = right(seed)
    return dataclasses.replace(data, classes=data.classes[::-1])


@mistakes.each
def test_notices(mistake, monkeypatch):
    mistake.assert_noticed(monkeypatch)
