"""Recipes over tokens: every mixer in the registry trains, and the tasks show what a memory can and cannot do."""

from __future__ import annotations

import math

import pytest
import torch

import sonde
from sonde.core import registry
from sonde.data.sequences import MaskedSource
from sonde.data.tensors import WindowSource
from sonde.recipes import char_lm, recall
from sonde.recipes.tools.sequence import sees_order

MIXERS = registry.names("nn.mixers")
LINES = "".join(f"{i} and {i + 1} are {2 * i + 1}. " for i in range(400))


@pytest.fixture
def text(tmp_path):
    (tmp_path / "sums.txt").write_text(LINES, encoding="utf-8")
    return tmp_path / "sums.txt"


def small(mixer: str, text) -> dict:
    return {"mixer": mixer, "depth": 1, "width": 16, "context": 24, "batch_size": 8, "data": text}


@pytest.mark.parametrize("mixer", MIXERS)
def test_char_lm_trains_with_every_mixer(mixer, text, tmp_path):
    run = sonde.train("char_lm", run=tmp_path / "run", steps=12, lr=1e-2, threads=1, quiet=True, **small(mixer, text))
    figures = run.result["metrics"]
    assert math.isfinite(figures["valid/loss"]) and figures["valid/loss"] < math.log(len(run.data.classes))


def test_char_lm_beats_the_frequencies_of_characters(text, tmp_path):
    run = sonde.train("char_lm", run=tmp_path / "run", steps=150, lr=1e-2, threads=1, quiet=True, **small("gla", text))
    valid = run.data.valid.tokens.long()
    share = torch.bincount(run.data.train.tokens.long(), minlength=len(run.data.classes)).double() + 1
    entropy = -(share / share.sum()).log()[valid].mean().item()  # nats per character without any context
    assert run.result["metrics"]["valid/loss"] < 0.6 * entropy


def test_windows_to_train_on_overlap_and_those_to_judge_by_do_not(text):
    data = char_lm.recipe(**small("gla", text)).build_data()
    assert isinstance(data.train, WindowSource) and data.train.stride == 3
    assert data.valid.stride == data.test.stride == 24
    assert torch.equal(data.train[:2].y[0, :-1], data.train[:2].x[0, 1:])


def test_a_mixer_that_looks_ahead_predicts_hidden_characters_and_says_so(text, tmp_path, capsys):
    options = small("attention causal=false", text)
    run = sonde.train("char_lm", run=tmp_path / "run", steps=2, threads=1, **options)
    assert "the loss is that of hidden characters" in capsys.readouterr().err
    events = (tmp_path / "run" / "events.jsonl").read_text()
    assert "hidden characters" in events and "some hidden" in run.info["about_data"]["name"]
    assert isinstance(run.data.train, MaskedSource) and run.data.classes[-1] == "hidden" and run.data.reader is None


def test_only_mixers_that_see_no_order_are_told_places():
    assert not sees_order("linear", 16) and not sees_order("attention positions=none", 16)
    assert all(sees_order(name, 16) for name in ("attention", "gla", "retnet", "mamba", "deltanet"))
    before = torch.random.get_rng_state()
    model = recall.recipe(mixer="linear", pairs=4).build_model()
    assert model.positions.max_positions == 12 and recall.recipe(mixer="gla", pairs=4).build_model().positions is None
    torch.random.set_rng_state(before)
    sees_order("gla", 16)
    assert torch.equal(before, torch.random.get_rng_state())


@pytest.mark.slow
def test_a_reflection_tracks_parity_and_a_gate_does_not(tmp_path):
    def accuracy(mixer: str) -> float:
        run = sonde.train("parity", run=tmp_path / mixer.split()[-1], mixer=mixer, steps=300, batch_size=32, threads=1, quiet=True)
        return run.result["metrics"]["test/accuracy"]

    assert accuracy("deltanet negative=true") > 0.9 and accuracy("gla") < 0.7


@pytest.mark.slow
def test_a_gate_forgets_at_a_reset_and_a_sum_does_not(tmp_path):
    def accuracy(mixer: str) -> float:
        run = sonde.train("reset", run=tmp_path / mixer, mixer=mixer, steps=300, batch_size=32, threads=1, quiet=True)
        return run.result["metrics"]["test/accuracy"]

    assert accuracy("gla") > accuracy("linear") + 0.1
