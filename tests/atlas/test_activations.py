"""Mistakes about activations, made on purpose, that turn chapter 3 red."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from sonde.atlas import activations as act
from sonde.models import heads
from sonde.nn import activations
from sonde.nn.activations import Interval, describe
from tests.atlas.mistakes import Mistakes


class Plain(nn.Module):
    """A function as a module."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, a):
        return self.function(a)


def instead(monkeypatch, activation, **changes):
    """Give an activation another body; its settings are ignored."""
    changed = replace(describe(activation), **changes)

    def make(**settings):
        return changed

    make.__name__ = activation
    monkeypatch.setitem(activations._KNOWN, activation, make)
    monkeypatch.setattr(activations, "resolve", lambda function, inputs, owner: inputs)


def no_training(monkeypatch):
    """The runs take most of the time and are not what these mistakes are about."""
    monkeypatch.setattr(act, "_negative_targets", lambda exhibit: (1.0, {"relu": [1.1, 1.2], "identity": [0.01, 0.02]}))


mistakes = Mistakes()

mistakes.add("ACT-01", "a step that lets gradients through", red=("gradient through the step", "hidden layer before a step")).call(
    instead, "step", module=Plain(lambda a: (a >= 0).to(a) + a - a.detach())
)
mistakes.add("ACT-02", "a tanh without its factor", red=("tanh as 2 s(2a) - 1", "largest slope of tanh")).call(
    instead, "tanh", module=Plain(lambda a: 2 * torch.sigmoid(a) - 1)
)
mistakes.add("ACT-02", "an overflow", red="sigmoid at -1000 and 1000", green="SciPy").call(
    instead, "sigmoid", module=Plain(lambda a: a.exp() / (1 + a.exp()))
)
mistakes.add("ACT-03", "a slope of 1 at zero", red="its derivative at exactly 0").call(
    instead, "relu", module=Plain(lambda a: a * (a >= 0))
)
mistakes.add("ACT-04", "the printed range of ELU", red=("its range with alpha 1.0", "and measured")).call(instead, "elu", range=Interval())
mistakes.add("ACT-04", "an overflowing softplus", red="softplus at 1000").call(
    instead, "softplus", module=Plain(lambda a: torch.log(1 + a.exp()))
)
mistakes.add("ACT-05", "the approximation in place of GELU", red=("GELU as a Phi(a)", "minimum of gelu", "another function")).call(
    instead, "gelu", module=nn.GELU("tanh")
)
mistakes.add("ACT-06", "the printed diagonal", red="Jacobian s_i (delta_ij - s_j)").call(
    instead, "softmax", derivative=lambda z: torch.diag_embed(z.softmax(-1) * (1 - z.softmax(-1)))
)
mistakes.add("ACT-06", "a softmax that overflows", only="at scores of 1e4").call(
    instead, "softmax", module=Plain(lambda z: z.exp() / z.exp().sum(-1, keepdim=True))
)
mistakes.add("ACT-07", "weights that are too small", red="first / last gradient of ReLU, as a power of 10").replace(
    act, "initialize", lambda right, name: right("normal", std=0.02)
)
# Xavier's weights for ReLU, which halves what passes: 20 layers of them.
mistakes.add("ACT-07", "weights for another activation", red="first / last gradient of ReLU, as a power of 10").replace(
    act, "initialize", lambda right, name: right("xavier_normal")
)
mistakes.add(
    "ACT-08",
    "heads that are mixed up",
    red=("binary: predictions", "warnings for the usual heads"),
    setup=no_training,
    marks=[pytest.mark.filterwarnings("ignore::sonde.models.heads.OddPair")],
).replace(heads.TASKS, "binary", replace(heads.TASKS["binary"], activation="sigmoid"))
mistakes.add("ACT-08", "a helper that never warns", why="binary with sigmoid: warnings", setup=no_training).replace(
    heads, "mismatch", lambda *pair: ""
)
mistakes.add("ACT-08", "a net that trains a tenth as long", only="no activation: error against that floor").replace(
    act, "Recipe", lambda right, **parts: right(**{**parts, "steps": parts["steps"] // 10})
).replace(act, "_heads", lambda exhibit: None)
mistakes.add("ACT-08", "an output that fits anything", red="ReLU output: nets below the floor").replace(
    act, "head", lambda right, task, outputs=1, end=None, objective=None: right(task, outputs, end and "identity", objective)
).replace(act, "_heads", lambda exhibit: None)


@mistakes.add("ACT-08", "wrong claims", red=("ranges that do not hold", "largest gap"), setup=no_training)
def claim_wrongly(monkeypatch):
    instead(monkeypatch, "silu", range=Interval())
    instead(monkeypatch, "sigmoid", derivative=lambda a: a.sigmoid())


@mistakes.each
def test_notices(mistake, monkeypatch):
    mistake.assert_noticed(monkeypatch)
