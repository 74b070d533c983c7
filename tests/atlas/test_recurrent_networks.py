"""Mistakes about recurrent nets, made on purpose, that turn chapter 15 red."""

from __future__ import annotations

import torch

from sonde.atlas import recurrent_networks as chapter
from sonde.estimators import reservoir
from sonde.models import topologies
from sonde.nn import directions
from sonde.nn.mixers.gru import GRU
from sonde.nn.mixers.lstm import LSTM
from sonde.nn.mixers.rnn import RNN
from sonde.objectives.truncated import Truncated
from tests.atlas.mistakes import Mistakes, two_seeds


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


mistakes = Mistakes()

mistakes.add("RNN-01", "a bend that is not tanh", red="against torch's RNN").replace(
    RNN, "step_cell", lambda self, p, state: {"h": torch.tanh(p) + state["h"] @ self.h.weight.mT}
).replace(RNN, "auto", lambda self, length: ("step", "a mistake"))
mistakes.add("RNN-03", "samples that are always the likeliest", only="sampled shares against scores, in standard errors").replace(
    topologies.Vec2Seq,
    "sample",
    lambda right, self, source, first, steps, draw: right(self, source, first, steps, lambda raw: raw.argmax(-1)),
)
mistakes.add("RNN-03", "a state that does not go on", red="against the sum of steps").replace(
    topologies.Vec2Seq, "advance", lambda right, self, x, state, spans=None: right(self, x, {"condition": state["condition"]}, spans=spans)
)
mistakes.add("RNN-05", "two directions that are one", only="right labels, both directions", setup=two_seeds).replace(
    directions, "reverse", lambda x, spans=None: x
)
mistakes.add("RNN-06", "a path that is left out", red="dL/dW_hh").replace(
    chapter, "_explicit", lambda right, model, x, slopes, since: right(model, x, slopes, lambda t: max(since(t), t - 5))
)
mistakes.add("RNN-07", "a state that is not detached", red="in pieces of 4").replace(
    Truncated, "__call__", lambda self, model, batch: self.objective(model, batch)
)
mistakes.add("RNN-07", "a state that is not carried", red="the state was carried").replace(
    Truncated, "__init__", lambda right, self, objective, steps, ordered=True: right(self, objective, steps, False)
)
mistakes.add("RNN-08", "clipping that does nothing", only="norm after clipping at 1").replace(
    chapter, "clip", lambda flat, norm, largest: None
)
mistakes.add("RNN-09", "a readout without its penalty", red="readout against").replace(
    reservoir, "solve", lambda right, table, alpha: right(table, 0.0)
)
mistakes.add("RNN-10", "a reset in the wrong place", red="reset after the product against torch's GRU").call(without, GRU, "reset_bias")
mistakes.add("RNN-11", "a peephole that is shut", red="the peephole makes").call(without, LSTM, "peephole")


@mistakes.add("RNN-02", "a pool that looks at the first place alone", only="many-one, pooled: right answers after 60 steps")
def pool_the_first_place(monkeypatch):
    monkeypatch.setattr(topologies, "pool", lambda y, lengths, pool, both: y[:, 0])
    tasks = chapter._tasks()
    monkeypatch.setattr(chapter, "_tasks", lambda: {name: tasks[name] for name in ("one-many", "many-one, pooled")})


@mistakes.add("RNN-04", "a second direction that is not turned back", red="halves exchanged")
def turn_once(monkeypatch):
    right, calls = directions.reverse, []

    def once(x, spans=None):
        calls.append(x)
        return right(x, spans) if len(calls) % 2 else x

    monkeypatch.setattr(directions, "reverse", once)


@mistakes.add("RNN-10", "a gate that is not negated", red="Z -> 1 - Z").replace(GRU, "mix")
def keep_old(right, self, x, state, lengths):
    self.update = "keep_old"
    return right(self, x, state, lengths)


@mistakes.add("RNN-12", "a cell that forgets", only="right answers, lstm over 50 steps", slow=True)
def forget(monkeypatch):
    def forgetful(right):
        def call(self, p, *state):
            shut = torch.tensor([0.0, 100.0, 0.0, 0.0]).repeat_interleave(self.hidden)
            return right(self, p - shut, *state)

        return call

    for name in ("run_kernel", "step_cell"):  # with the kernels and without them
        monkeypatch.setattr(LSTM, name, forgetful(getattr(LSTM, name)))


@mistakes.each
def test_notices(mistake, monkeypatch):
    mistake.assert_noticed(monkeypatch)
