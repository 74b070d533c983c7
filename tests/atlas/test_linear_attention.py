"""Mistakes about recurrences, made on purpose, that turn chapter 18 red."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from sonde.atlas import linear_attention
from sonde.nn.mixers import abc, attention, deltanet, gated_rfa, gla, hgrn2, linear, mamba2, mlstm, performer, reformer, rwkv6, s4, window
from sonde.nn.recurrence import Steps, forms, run, scan
from tests.atlas.mistakes import any_of, wrong


@pytest.fixture
def quick(monkeypatch):
    """Training takes most of the time and is not what these mistakes are about."""
    monkeypatch.setattr(
        linear_attention, "_accuracies", lambda exhibit, recipe, mixers, options: {mixers[0]: [0.99, 0.98], mixers[1]: [0.3, 0.31]}
    )


def test_lin_01_notices_a_window_that_is_one_too_long(monkeypatch):
    right = window.Window._visible_keys
    monkeypatch.setattr(
        window.Window, "_visible_keys", lambda self, query, key, past, position: right(self, query + 1, key, past, position)
    )
    assert any_of(wrong("LIN-01"), "against a mask written out")


def test_lin_01_notices_a_hash_that_does_not_look(monkeypatch):
    monkeypatch.setattr(reformer, "hash_buckets", lambda x, r: torch.arange(x.shape[2]).view(1, 1, -1, 1).expand(1, 1, -1, 4) % 7)
    assert any_of(wrong("LIN-01"), "largest-score pairs")


def test_lin_03_notices_values_that_are_not_mixed(monkeypatch):
    right = linear_attention.linformer.attend
    monkeypatch.setattr(linear_attention.linformer, "attend", lambda q, k, v: right(q, k, v.flip(2)))
    assert any_of(wrong("LIN-03"), "identity projection")


def test_lin_04_notices_features_without_their_norm(monkeypatch):
    monkeypatch.setattr(performer, "log_features", lambda x, W: x @ W.mT - torch.log(torch.tensor(len(W))) / 2)
    assert any_of(wrong("LIN-04"), "largest bias")


def test_lin_04_notices_a_key_that_comes_too_early(monkeypatch):
    right = performer.rule
    monkeypatch.setattr(performer, "rule", lambda log_q, log_k, v, state=None: right(log_q, log_k.roll(-1, 2), v.roll(-1, 2), state))
    assert any_of(wrong("LIN-04"), "only the last token grows")


def test_lin_05_notices_a_denominator_that_is_not_guarded(monkeypatch):
    monkeypatch.setattr(linear_attention.linear_norm, "normalize", lambda out, floor: out[..., :-1] / out[..., -1:])
    assert any_of(wrong("LIN-05"), "vanishing denominators counted")


def test_lin_06_notices_a_transposed_state(monkeypatch):
    right = forms.step

    def swapped(s, state):
        out, end = right(s, state)
        return out.flip(-1), end

    monkeypatch.setitem(run.__globals__["FORMS"], "step", swapped)
    monkeypatch.setattr(linear_attention, "output", lambda rule: run(rule, form="step")[0][0, 0].numpy())
    assert len(wrong("LIN-06")) == 17


def test_lin_07_notices_the_printed_mask(monkeypatch):
    def printed(q, k, v):
        out = yield Steps(q.flip(2), k.flip(2), v.flip(2))
        return out.flip(2)

    monkeypatch.setattr(linear, "rule", printed)
    names = wrong("LIN-07")
    assert any_of(names, "step form") and any_of(names, "parallel form")


@pytest.mark.parametrize(
    "row, module, change, noticed",
    [
        ("LIN-10", deltanet, lambda right: lambda q, k, v, b: right(q, k, v, b / 2), "latest value"),
        ("LIN-11", gated_rfa, lambda right: lambda q, k, v, g: right(q, k * 0.5 + 0.1, v, g), "constant gate"),
        ("LIN-13", abc, lambda right: lambda q, k, v, phi: right(2 * q, k, v, phi), "softmax attention"),
        ("LIN-17", gla, lambda right: lambda q, k, v, a: right(q, k, v, a.flip(-1)), "against the loop"),
        ("LIN-19", hgrn2, lambda right: lambda q, v, a: right(q, v, 0.5 * a), "against the loop"),
        ("LIN-21", mamba2, lambda right: lambda q, k, v, g: right(q, k, v, F.pad(g[..., 1:], (0, 1))), "against the loop"),
    ],
)
def test_a_changed_rule_is_noticed(monkeypatch, row, module, change, noticed):
    monkeypatch.setattr(module, "rule", change(module.rule))
    assert any_of(wrong(row), noticed)


def test_lin_12_notices_a_kernel_that_is_late(monkeypatch):
    right = s4.rule
    monkeypatch.setattr(s4, "rule", lambda v, *fixed: right(F.pad(v[:, :, :-1], (0, 0, 1, 0)), *fixed))
    assert any_of(wrong("LIN-12"), "convolution form against the loop")


def test_lin_18_notices_a_bonus_on_the_wrong_side(monkeypatch):
    def no_bonus(q, k, v, log_a, d, bonus="value"):
        return (yield Steps(q, k, v, log_key=log_a, read="before"))

    monkeypatch.setattr(rwkv6, "rule", no_bonus)
    names = wrong("LIN-18")
    assert any_of(names, "first output") or any_of(names, "d = 1, a = 1")


def test_lin_20_notices_a_denominator_without_its_floor(monkeypatch):
    right = mlstm.divide
    monkeypatch.setattr(mlstm, "divide", lambda top, bottom, floor: right(top, bottom, 1e-12))
    assert any_of(wrong("LIN-20"), "linear attention")


def test_lin_24_notices_stretches_joined_in_the_wrong_order(monkeypatch):
    right = forms.combine_rule
    monkeypatch.setattr(
        forms, "combine_rule", lambda apply: lambda first, second: right(apply)((second[0], first[1]), (first[0], second[1]))
    )
    assert any_of(wrong("LIN-24"), "deltanet")


def test_lin_24_notices_a_scan_that_goes_step_by_step(monkeypatch):
    def slow(combine, x, method="tree"):
        parts = [tuple(one[:1] for one in x)]
        for t in range(1, len(x[0])):
            parts.append(combine(parts[-1], tuple(one[t : t + 1] for one in x)))
        return tuple(torch.cat(column) for column in zip(*parts))

    monkeypatch.setattr(linear_attention, "scan", slow)
    names = wrong("LIN-24")
    assert any_of(names, "rounds of the shallow scan") and any_of(names, "rounds of the tree")


def test_lin_25_notices_a_state_that_grows(monkeypatch, quick):
    right = linear_attention.mixer
    monkeypatch.setattr(linear_attention, "mixer", lambda name, width: right("attention", width))
    assert any_of(wrong("LIN-25"), "growth of the state of GLA")


def test_lin_25_notices_models_that_do_not_differ(monkeypatch):
    monkeypatch.setattr(linear_attention, "_accuracies", lambda exhibit, recipe, mixers, options: dict.fromkeys(mixers, [0.5, 0.6]))
    names = wrong("LIN-25")
    assert any_of(names, "recall: DeltaNet less") and any_of(names, "reset: a gated model less")


def test_lin_16_notices_time_that_passes_anyway(monkeypatch, quick):
    right = linear_attention.mamba.rule
    monkeypatch.setattr(linear_attention.mamba, "rule", lambda q, k, v, a, rate, d=None: right(q, k, v, a + 0.01, rate, d))
    assert any_of(wrong("LIN-16"), "keeps S")


def test_lin_16_notices_models_that_do_not_differ(monkeypatch):
    monkeypatch.setattr(linear_attention, "_accuracies", lambda exhibit, recipe, mixers, options: dict.fromkeys(mixers, [0.92, 0.93]))
    assert len(wrong("LIN-16")) == 2


def test_the_imports_of_this_file_are_those_of_the_chapter():
    assert linear_attention.attention is attention and linear_attention.scan is scan
