"""Schedules against hand-worked numbers and torch's schedulers."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.optim import lr_scheduler

from sonde.core.errors import BadInput
from sonde.optim import schedules
from sonde.optim.schedules import schedule


def factors(f, steps):
    return [f(step, steps) for step in range(steps)]


def torch_factors(make, steps):
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    scheduler = make(optimizer)
    seen = []
    for _ in range(steps):
        seen.append(scheduler.get_last_lr()[0])
        optimizer.step()
        scheduler.step()
    return seen


def test_by_hand():
    assert factors(schedules.constant(), 3) == [1.0, 1.0, 1.0]
    assert factors(schedules.inverse_time(half=1), 4) == pytest.approx([1, 1 / 2, 1 / 3, 1 / 4])
    assert schedules.inverse_time(half=10)(10, 100) == 0.5
    assert factors(schedules.step_decay(every=2, factor=0.5), 5) == [1, 1, 0.5, 0.5, 0.25]
    assert factors(schedules.cosine(), 4) == pytest.approx([1, (1 + math.sqrt(0.5)) / 2, 0.5, (1 - math.sqrt(0.5)) / 2])
    assert factors(schedules.warmup_cosine(warmup=0.5, floor=0.2), 4) == pytest.approx([0.5, 1.0, 1.0, 0.6])
    assert factors(schedules.warmup_stable_decay(warmup=0.2, decay=0.4), 10) == pytest.approx([0.5, 1, 1, 1, 1, 1, 1, 0.75, 0.5, 0.25])
    assert schedules.warmup_stable_decay(warmup=0, decay=0.5, floor=0.1)(3, 4) == pytest.approx(0.55)


def test_equal_to_torch():
    n = 37
    assert factors(schedules.step_decay(every=5, factor=0.3), n) == pytest.approx(
        torch_factors(lambda o: lr_scheduler.StepLR(o, 5, 0.3), n)
    )
    assert factors(schedules.cosine(floor=0.05), n) == pytest.approx(
        torch_factors(lambda o: lr_scheduler.CosineAnnealingLR(o, n, eta_min=0.05), n), rel=1e-9
    )

    def warm(o):
        rise = lr_scheduler.LinearLR(o, start_factor=1 / 7, end_factor=1.0, total_iters=6)
        fall = lr_scheduler.CosineAnnealingLR(o, n - 7, eta_min=0.1)
        return lr_scheduler.SequentialLR(o, [rise, fall], milestones=[7])

    assert round(0.2 * n) == 7
    assert factors(schedules.warmup_cosine(warmup=0.2, floor=0.1), n) == pytest.approx(torch_factors(warm, n), rel=1e-9)


SETTINGS = {"step_decay": {"every": 7}}


@given(name=st.sampled_from(schedules.names()), step=st.integers(0, 10**7), steps=st.integers(1, 10**6))
def test_pure_and_between_0_and_1(name, step, steps):
    f = schedule(name, **SETTINGS.get(name, {}))
    assert f(step, steps) == f(step, steps) == schedule(name, **SETTINGS.get(name, {}))(step, steps)
    assert 0.0 <= f(step, steps) <= 1.0


@given(steps=st.integers(1, 400), warmup=st.floats(0, 1), share=st.floats(0, 1), floor=st.floats(0, 1))
def test_rise_then_fall(steps, warmup, share, floor):
    for f in (
        schedules.warmup_cosine(warmup=warmup, floor=floor),
        schedules.warmup_stable_decay(warmup=warmup, decay=(1 - warmup) * share, floor=floor),
    ):
        seen, rising = factors(f, steps), round(warmup * steps)
        assert all(a < b for a, b in zip(seen[:rising], seen[1:rising], strict=False))
        assert all(a >= b - 1e-12 for a, b in zip(seen[rising:], seen[rising + 1 :], strict=False))
        assert all(value >= floor - 1e-12 for value in seen[rising:])


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda: schedule("cosin"), "did you mean 'cosine'?"),
        (lambda: schedule("cosine", flor=0.1), "did you mean 'floor'?"),
        (lambda: schedules.cosine(floor=2.0), "must be >= 0 and <= 1"),
        (lambda: schedules.warmup_cosine(warmup="long"), "must be a number"),
        (lambda: schedules.step_decay(every=0), "must be >= 1"),
        (lambda: schedules.step_decay(), "needs the option 'every'"),
        (lambda: schedules.inverse_time(half=0), "must be > 0"),
        (lambda: schedules.warmup_stable_decay(warmup=0.7, decay=0.7), "more than all steps"),
    ],
)
def test_bad_settings(call, words):
    with pytest.raises(BadInput) as caught:
        call()
    assert words in str(caught.value)
