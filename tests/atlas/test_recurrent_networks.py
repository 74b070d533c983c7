"""Mistakes about recurrent nets, made on purpose, that turn chapter 15 red."""

from __future__ import annotations

import pytest
import torch

from sonde.atlas import recurrent_networks as chapter
from sonde.estimators import reservoir
from sonde.models import topologies
from sonde.nn import directions
from sonde.nn.mixers.gru import GRU
from sonde.nn.mixers.lstm import LSTM
from sonde.nn.mixers.rnn import RNN
from sonde.objectives.truncated import Truncated
from tests.atlas.mistakes import any_of, two_seeds, wrong


def test_rnn_01_notices_a_bend_that_is_not_tanh(monkeypatch):
    monkeypatch.setattr(RNN, "step_cell", lambda self, p, state: {"h": torch.tanh(p) + state["h"] @ self.h.weight.mT})
    monkeypatch.setattr(RNN, "auto", lambda self, length: ("step", "a mistake"))
    assert any_of(wrong("RNN-01"), "against torch's RNN")


def test_rnn_02_notices_a_pool_that_looks_at_the_first_place_alone(monkeypatch):
    monkeypatch.setattr(topologies, "pool", lambda y, lengths, pool, both: y[:, 0])
    tasks = chapter._tasks()
    monkeypatch.setattr(chapter, "_tasks", lambda: {name: tasks[name] for name in ("one-many", "many-one, pooled")})
    assert wrong("RNN-02") == ["many-one, pooled: right answers after 60 steps"]


def test_rnn_03_notices_samples_that_are_always_the_likeliest(monkeypatch):
    right = topologies.Vec2Seq.sample
    likeliest = lambda self, source, first, steps, draw: right(self, source, first, steps, lambda raw: raw.argmax(-1))  # noqa: E731
    monkeypatch.setattr(topologies.Vec2Seq, "sample", likeliest)
    assert wrong("RNN-03") == ["sampled shares against scores, in standard errors"]


def test_rnn_03_notices_a_state_that_does_not_go_on(monkeypatch):
    right = topologies.Vec2Seq.advance
    monkeypatch.setattr(
        topologies.Vec2Seq, "advance", lambda self, x, state, spans=None: right(self, x, {"condition": state["condition"]}, spans=spans)
    )
    assert any_of(wrong("RNN-03"), "against the sum of steps")


def test_rnn_04_notices_a_second_direction_that_is_not_turned_back(monkeypatch):
    right, calls = directions.reverse, []

    def once(x, spans=None):
        calls.append(x)
        return right(x, spans) if len(calls) % 2 else x

    monkeypatch.setattr(directions, "reverse", once)
    assert any_of(wrong("RNN-04"), "halves exchanged")


def test_rnn_05_notices_two_directions_that_are_one(monkeypatch):
    monkeypatch.setattr(directions, "reverse", lambda x, spans=None: x)
    two_seeds(monkeypatch)
    assert wrong("RNN-05") == ["right labels, both directions"]


def test_rnn_06_notices_a_path_that_is_left_out(monkeypatch):
    right = chapter._explicit
    monkeypatch.setattr(chapter, "_explicit", lambda model, x, slopes, since: right(model, x, slopes, lambda t: max(since(t), t - 5)))
    assert any_of(wrong("RNN-06"), "dL/dW_hh")


def test_rnn_07_notices_a_state_that_is_not_detached_and_one_that_is_not_carried(monkeypatch):
    whole = lambda self, model, batch: self.objective(model, batch)  # noqa: E731
    monkeypatch.setattr(Truncated, "__call__", whole)
    assert any_of(wrong("RNN-07"), "in pieces of 4")
    monkeypatch.undo()
    right = Truncated.__init__
    monkeypatch.setattr(Truncated, "__init__", lambda self, objective, steps, ordered=True: right(self, objective, steps, False))
    assert any_of(wrong("RNN-07"), "the state was carried")


def test_rnn_08_notices_clipping_that_does_nothing(monkeypatch):
    monkeypatch.setattr(chapter, "clip", lambda flat, norm, largest: None)
    assert wrong("RNN-08") == ["norm after clipping at 1"]


def test_rnn_09_notices_a_readout_without_its_penalty(monkeypatch):
    right = reservoir.solve
    monkeypatch.setattr(reservoir, "solve", lambda table, alpha: right(table, 0.0))
    assert any_of(wrong("RNN-09"), "readout against")


def without(monkeypatch, layer: type, name: str) -> None:
    """Every form of a layer computes as if it had no parameter of that name."""
    right = layer.mix

    def mix(self, x, state, lengths):
        kept = getattr(self, name)
        setattr(self, name, None)
        try:
            return right(self, x, state, lengths)
        finally:
            setattr(self, name, kept)

    monkeypatch.setattr(layer, "mix", mix)


def test_rnn_10_notices_a_reset_in_the_wrong_place_and_a_gate_that_is_not_negated(monkeypatch):
    without(monkeypatch, GRU, "reset_bias")
    assert any_of(wrong("RNN-10"), "reset after the product against torch's GRU")
    monkeypatch.undo()
    right = GRU.mix

    def kept(self, x, state, lengths):
        self.update = "keep_old"
        return right(self, x, state, lengths)

    monkeypatch.setattr(GRU, "mix", kept)
    assert any_of(wrong("RNN-10"), "Z -> 1 - Z")


def test_rnn_11_notices_a_peephole_that_is_shut(monkeypatch):
    without(monkeypatch, LSTM, "peephole")
    assert any_of(wrong("RNN-11"), "the peephole makes")


@pytest.mark.slow
def test_rnn_12_notices_a_cell_that_forgets(monkeypatch):
    def forgetful(right):
        def call(self, p, *state):
            shut = torch.tensor([0.0, 100.0, 0.0, 0.0]).repeat_interleave(self.hidden)
            return right(self, p - shut, *state)

        return call

    for name in ("through", "turn"):  # with the kernels and without them
        monkeypatch.setattr(LSTM, name, forgetful(getattr(LSTM, name)))
    assert wrong("RNN-12") == ["right answers, lstm over 50 steps"]
