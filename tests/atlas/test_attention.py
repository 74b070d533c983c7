"""Mistakes about attention, made on purpose, that turn chapter 17 red."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from sonde.atlas import attention as att
from sonde.atlas.exhibit import Exhibit
from sonde.nn import block, positions
from sonde.nn.mixers import attention
from tests.atlas.mistakes import any_of, wrong


def test_att_02_notices_weights_over_the_wrong_axis(monkeypatch):
    right = attention.scores
    monkeypatch.setattr(attention, "scores", lambda q, k, last, **how: right(q, k, last, **how).mT)
    assert any_of(wrong("ATT-02"), "weights against the sum")


def test_att_03_notices_a_missing_root(monkeypatch):
    right = attention.attend
    monkeypatch.setattr(
        att, "attend", lambda q, k, v, *a, scale=None, **how: right(q, k, v, *a, scale=1.0 if scale is None else scale, **how)
    )
    assert any_of(wrong("ATT-03"), "against the matrix form")


def test_att_04_notices_a_score_that_does_not_look_at_the_query(monkeypatch):
    right = att.Lookup.forward
    monkeypatch.setattr(att.Lookup, "forward", lambda self, query, *others: right(self, torch.zeros_like(query), *others))
    assert any_of(wrong("ATT-04"), "score against its formula")


def test_att_05_notices_a_mask_of_zeros(monkeypatch):
    right = attention.scores

    def soft(q, k, last, **how):
        scores = right(q, k, last, **how)
        return scores.masked_fill(scores.isinf(), 0.0)

    monkeypatch.setattr(attention, "scores", soft)
    assert any_of(wrong("ATT-05"), "weights of padded keys")


def test_att_05_notices_a_token_that_sees_the_next_one(monkeypatch):
    right = attention.attend
    monkeypatch.setattr(attention, "attend", lambda q, k, v, *a, causal=False, **how: right(q, k, v, *a, causal=False, **how))
    assert any_of(wrong("ATT-05"), "same bits")


def test_att_06_notices_positions_that_do_nothing(monkeypatch):
    monkeypatch.setattr(attention, "rotate", lambda x, *how: x)
    assert any_of(wrong("ATT-06"), "rotary")


def test_att_07_notices_heads_in_the_wrong_order(monkeypatch):
    right = attention.merge
    monkeypatch.setattr(attention, "merge", lambda x: right(x.flip(1)))
    assert any_of(wrong("ATT-07"), "one after the other")


def test_att_08_notices_a_source_that_is_not_seen(monkeypatch):
    right = attention.CrossAttention.forward
    blind = lambda self, x, context: right(self, x, {**context, "length": context["length"] * 0 + 1})  # noqa: E731
    monkeypatch.setattr(attention.CrossAttention, "forward", blind)
    assert any_of(wrong("ATT-08"), "last source token")


@pytest.mark.parametrize("row, name", [("ATT-10", "d = 4, i = 1"), ("ATT-11", "R(f) P_t")])
def test_waves_with_the_raw_channel_in_the_exponent(monkeypatch, row, name):
    def printed(places, width, base=10000.0):
        channel = torch.arange(width)
        angle = places.double().unsqueeze(-1) * base ** (-2 * channel.double() / width)
        return torch.where(channel % 2 == 0, angle.sin(), angle.cos())

    monkeypatch.setattr(att, "sinusoidal", printed)
    assert any_of(wrong(row), name)


def test_att_12_notices_a_table_without_end(monkeypatch):
    monkeypatch.setattr(positions.Positions, "forward", lambda self, x, *rest: (x + self.code(torch.arange(x.shape[1]).clamp_max(7)), {}))
    assert any_of(wrong("ATT-12"), "refuses 9")


@pytest.mark.parametrize("row", ["ATT-13", "ATT-14"])
def test_a_norm_in_the_wrong_place(monkeypatch, row):
    monkeypatch.setattr(block.Block, "_sum", lambda self, x, y, norm: x + norm(y) if self.post else x + y)
    assert any_of(wrong(row), "norms after")


def test_att_15_notices_a_cache_that_forgets(monkeypatch):
    monkeypatch.setattr(att, "STEPS", 2)
    monkeypatch.setattr(Exhibit, "seeds", lambda self, n=3: range(2))
    right = att.EncoderDecoder.advance
    monkeypatch.setattr(att.EncoderDecoder, "advance", lambda self, x, state, **how: (right(self, x, state, **how)[0], state))
    assert any_of(wrong("ATT-15"), "step by step")


def test_att_16_notices_tokens_that_do_not_depend_on_each_other(monkeypatch):
    monkeypatch.setattr(att, "RNN", lambda width: att._layer(Exhibit(Path()), width))
    assert any_of(wrong("ATT-16"), "chain of an RNN")


def test_att_16_notices_weights_of_a_few_keys_only(monkeypatch):
    right = attention.scores
    near = lambda q, k, last, **how: right(q, k[:, :, :32], last, **how)  # noqa: E731
    monkeypatch.setattr(attention, "scores", near)
    assert any_of(wrong("ATT-16"), "bytes alive")
