"""Mistakes made on purpose that must turn chapter 6 red."""

from __future__ import annotations

import pytest
import torch

from sonde.atlas import differentiation
from sonde.gradients import graph, modes
from sonde.gradients.vjp import RULES
from sonde.lenses import backprop
from tests.atlas.mistakes import any_of, wrong


def test_a_second_path_that_overwrites_the_first_is_noticed(monkeypatch) -> None:
    """Adjoints must add up over paths."""

    right = graph.Graph.adjoints

    def last_path_only(self, values, seed=None, output=None):
        gradients = right(self, values, seed, output)
        shared = [node.name for node in self if node.op == "input" and sum(node.name in other.inputs for other in self) > 1]
        return {name: value / 2 if name in shared else value for name, value in gradients.items()}

    monkeypatch.setattr(graph.Graph, "adjoints", last_path_only)
    assert any_of(wrong("DIFF-01"), "dr/dt at t = 2")
    assert any_of(wrong("DIFF-05"), "50 random graphs")


@pytest.mark.parametrize("name, rule", [("sin", lambda g, y, x: (-g * x.cos(),)), ("sub", lambda g, y, a, b: (g, g))])
def test_a_wrong_sign_in_a_rule_is_noticed(monkeypatch, name: str, rule) -> None:
    monkeypatch.setitem(RULES, name, rule)
    assert any_of(wrong("DIFF-05"), "50 random graphs")
    if name == "sin":
        assert any_of(wrong("DIFF-07"), "symbol to number")


def test_factors_in_the_wrong_order_are_noticed(monkeypatch) -> None:
    """A transposed Jacobian: columns taken for rows."""
    right = modes.jacobian
    monkeypatch.setattr(differentiation.modes, "jacobian", lambda f, x, mode=None: torch.flip(right(f, x, mode), [0]))
    assert any_of(wrong("DIFF-02"), "product of Jacobians")


def test_a_plan_that_always_says_reverse_is_noticed(monkeypatch) -> None:
    right = modes.plan
    monkeypatch.setattr(differentiation.modes, "plan", lambda f, x: modes.DifferentiationPlan(**{**vars(right(f, x)), "mode": "reverse"}))
    assert any_of(wrong("DIFF-04"), "modes chosen")


def test_the_printed_form_of_e_23_is_noticed(monkeypatch) -> None:
    """The notes put the mask on the wrong side of the weights: delta passes on unmasked."""
    right = backprop.backward

    def unmasked(stored, delta):
        return right([layer for layer in stored if not isinstance(layer.module, torch.nn.ReLU)], delta)

    monkeypatch.setattr(backprop, "backward", unmasked)
    names = wrong("DIFF-08")
    assert any_of(names, "lens 'backprop', layers.dense1.weight") and not any_of(names, "dense4")


def test_a_transposed_weight_gradient_is_noticed(monkeypatch) -> None:
    right = backprop.backward

    def turned(stored, delta):
        return [s._replace(gradients={k: v.flip(-1) if k == "weight" else v for k, v in s.gradients.items()}) for s in right(stored, delta)]

    monkeypatch.setattr(backprop, "backward", turned)
    assert any_of(wrong("DIFF-09"), "the form of DIFF-08")


def test_capture_that_follows_values_is_noticed(monkeypatch) -> None:
    monkeypatch.setattr(differentiation, "capture", graph.trace)
    assert any_of(wrong("DIFF-06"), "branch on a value, ahead of time")


def test_a_pass_that_reuses_nothing_is_noticed(monkeypatch) -> None:
    right = differentiation._deltas
    monkeypatch.setattr(differentiation, "_deltas", lambda layers, values, reuse: right(layers, values, False))
    assert wrong("DIFF-10") == ["products of a pass that reuses its brackets: L"]


def test_one_column_too_few_is_noticed(monkeypatch) -> None:
    right = differentiation._columns
    monkeypatch.setattr(differentiation, "_columns", lambda layers, x: (right(layers, x)[0], len(x) - 1))
    assert wrong("DIFF-03") == ["forward passes for n = 7 inputs"]
