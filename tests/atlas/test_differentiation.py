"""Mistakes made on purpose that must turn chapter 6 red."""

from __future__ import annotations

import torch

from sonde.atlas import differentiation
from sonde.gradients import graph, modes
from sonde.gradients.vjp import RULES
from sonde.lenses import backprop
from tests.atlas.mistakes import Mistakes

mistakes = Mistakes()

# A transposed Jacobian: columns taken for rows.
mistakes.add("DIFF-02", "factors in the wrong order", red="product of Jacobians").replace(
    differentiation.modes, "jacobian", lambda right, f, x, mode=None: torch.flip(right(f, x, mode), [0])
)
mistakes.add("DIFF-03", "one column too few", only="forward passes for n = 7 inputs").replace(
    differentiation, "_columns", lambda right, layers, x: (right(layers, x)[0], len(x) - 1)
)
mistakes.add("DIFF-04", "a plan that always says reverse", red="modes chosen").replace(
    differentiation.modes, "plan", lambda right, f, x: modes.DifferentiationPlan(**{**vars(right(f, x)), "mode": "reverse"})
)
mistakes.add("DIFF-05", "a wrong sign in the rule of sin", red="50 random graphs").replace(RULES, "sin", lambda g, y, x: (-g * x.cos(),))
mistakes.add("DIFF-05", "a wrong sign in the rule of sub", red="50 random graphs").replace(RULES, "sub", lambda g, y, a, b: (g, g))
mistakes.add("DIFF-06", "a capture that follows values", red="branch on a value, ahead of time").replace(
    differentiation, "capture", graph.trace
)
mistakes.add("DIFF-07", "a wrong sign in the rule of sin", red="symbol to number").replace(RULES, "sin", lambda g, y, x: (-g * x.cos(),))
mistakes.add("DIFF-10", "a pass that reuses nothing", only="products of a pass that reuses its brackets: L").replace(
    differentiation, "_deltas", lambda right, layers, values, reuse: right(layers, values, False)
)


# Adjoints must add up over paths.
@mistakes.add("DIFF-01", "a second path that overwrites the first", red="dr/dt at t = 2").replace(graph.Graph, "adjoints")
@mistakes.add("DIFF-05", "a second path that overwrites the first", red="50 random graphs").replace(graph.Graph, "adjoints")
def last_path_only(right, self, values, seed=None, output=None):
    gradients = right(self, values, seed, output)
    shared = [node.name for node in self if node.op == "input" and sum(node.name in other.inputs for other in self) > 1]
    return {name: value / 2 if name in shared else value for name, value in gradients.items()}


# The notes put the mask on the wrong side of the weights: delta passes on unmasked.
@mistakes.add("DIFF-08", "the printed form of E-23", red="lens 'backprop', layers.dense1.weight", green="dense4").replace(
    backprop, "backward"
)
def unmasked(right, stored, delta):
    return right([layer for layer in stored if not isinstance(layer.module, torch.nn.ReLU)], delta)


@mistakes.add("DIFF-09", "a transposed weight gradient", red="the form of DIFF-08").replace(backprop, "backward")
def turned(right, stored, delta):
    return [s._replace(gradients={k: v.flip(-1) if k == "weight" else v for k, v in s.gradients.items()}) for s in right(stored, delta)]


@mistakes.each
def test_notices(mistake, monkeypatch):
    mistake.assert_noticed(monkeypatch)
