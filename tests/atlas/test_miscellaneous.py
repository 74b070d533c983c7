"""Mistakes in a step of training, made on purpose, that turn the miscellaneous chapter red."""

from __future__ import annotations

from sonde.engine.weights import Weights
from sonde.gradients import mean
from tests.atlas.mistakes import Mistakes

mistakes = Mistakes()

mistakes.add("MISC-01", "a step that is too long", red="6 update").replace(
    Weights, "update", lambda right, self, factor, phase=0: right(self, 1.01 * factor, phase)
)


@mistakes.add("MISC-01", "a gradient that is a sum", red="5 backward").replace(mean, "full_batch")
def summed(right, model, objective, flat, batch):
    terms = right(model, objective, flat, batch)
    flat.grad.mul_(len(batch))
    return terms


@mistakes.each
def test_notices(mistake, monkeypatch):
    mistake.assert_noticed(monkeypatch)
