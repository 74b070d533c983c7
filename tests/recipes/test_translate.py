"""The translation recipe: both kinds of model learn the toy grammar, baselines are worked out by hand."""

from __future__ import annotations

import json

import pytest
import torch

import sonde
from sonde.core.batch import Data
from sonde.data.catalog import load
from sonde.data.text.corpora import LinesReader
from sonde.data.text.pairs import pairs
from sonde.data.text.tokenizer import train
from sonde.models.encoder_decoder import EncoderDecoder
from sonde.models.seq2seq import Seq2Seq
from sonde.objectives.scheduled import Scheduled
from sonde.recipes import translate

SMALL = {"pairs": "toy", "width": 32, "dropout": 0.0, "lr": 6e-3, "steps": 120}


@pytest.mark.parametrize("model", ["rnn", "transformer"])
def test_it_learns_the_toy_grammar_and_says_so(model: str, tmp_path) -> None:
    recipe = translate.recipe(model=model, **{**SMALL, "steps": 120 if model == "rnn" else 200, "lr": 6e-3 if model == "rnn" else 3e-3})
    assert isinstance(recipe.build_model(), Seq2Seq if model == "rnn" else EncoderDecoder)
    run = sonde.train(recipe, run=tmp_path / "run", threads=1, quiet=True)
    events = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    (message,) = [event["text"] for event in events if event["event"] == "BLEU"]
    score = float(message.split("translated ")[1].split(",")[0])
    translations, wanted, sources = translate.translate_test(run.model(), recipe.data)
    assert score == pytest.approx(translate.bleu([t.split() for t in translations], [t.split() for t in wanted]), abs=0.05)
    assert score > 60 and translations != sources
    assert len((tmp_path / "run" / "translations.txt").read_text().splitlines()) == 3 * 720


def test_every_sentence_of_the_test_is_translated_with_beams_too() -> None:
    data = load("bilingual", n=100)
    torch.manual_seed(0)
    model = Seq2Seq(len(data.classes), 16, mixer="gru")
    translations = {beams: translate.translate_test(model, data, beams) for beams in (1, 3)}
    assert len(translations[1][0]) == len(translations[3][0]) == 10 and translations[1][1:] == translations[3][1:]


def test_word_for_word_by_hand() -> None:
    """'der' meets 'the' in all of its sentences; 'hund' meets 'dog' more often for its number than 'the'."""
    sources, targets = ["der hund", "der mann", "ein hund"], ["the dog", "the man", "a dog"]
    tokenizer = train("words", [*sources, *targets])
    data = Data(pairs(sources, targets, tokenizer, tokenizer), reader=LinesReader(tokenizer, 9, "source"))
    assert translate.word_for_word(data, ["ein mann", "der hund !"]) == ["a man", "the dog !"]


def test_scheduled_sampling_is_a_option() -> None:
    recipe = translate.recipe(**{**SMALL, "sampling": 0.5})
    assert isinstance(recipe.objective, Scheduled)
    assert recipe.objective.fraction(120) == 0.5 and recipe.objective.fraction(0) == 0
