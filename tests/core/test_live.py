"""Bytes of tensors alive, against sizes counted by hand."""

from __future__ import annotations

import torch

from sonde.core.live import Live

MEGA = 4 * 1000 * 1000  # bytes of a (1000, 1000) float32 tensor


def test_counts_what_is_alive_at_once() -> None:
    with Live() as live:
        a = torch.empty(1000, 1000)
        b = torch.empty(1000, 1000)
        del a
        c = torch.empty(500, 1000)
    assert live.peak == 2 * MEGA and live.largest == MEGA and live.now == MEGA + MEGA // 2
    del b, c
    assert live.now == 0


def test_views_and_changes_in_place_take_nothing() -> None:
    a = torch.empty(1000, 1000)
    with Live() as live:
        a.view(-1)[:10].add_(1)
        a.T.mul_(2)
        torch.exp(a, out=a)
    assert live.peak == 0


def test_sees_what_a_backward_pass_keeps() -> None:
    a = torch.randn(1000, 1000, requires_grad=True)
    with Live() as live:
        loss = a.exp().sin().sum()  # exp keeps its result, sin its input, which is the same tensor
        kept = live.now
        loss.backward()
    assert MEGA <= kept < 1.01 * MEGA
    assert 2 * MEGA < live.peak < 4.1 * MEGA
