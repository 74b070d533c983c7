"""The exposure lens against counts made by hand with a loop over places."""

from __future__ import annotations

import pytest
import torch

from sonde.core.batch import Batch
from sonde.core.reading import Subject
from sonde.lenses import exposure


def test_accuracies_are_those_of_a_loop() -> None:
    subject = exposure.tiny()
    model, batch = subject.model.eval(), subject.batch
    reading = exposure.read(subject)
    forced, free = torch.zeros(7), torch.zeros(7)
    with torch.no_grad():
        for i in range(len(batch)):
            n = int(batch.lengths[i])
            source, x = batch.source[i : i + 1, :n], batch.x[i : i + 1, :1]
            for t in range(n + 1):
                forced[t] += model(source, batch.x[i : i + 1, : t + 1])[0, -1].argmax() == batch.y[i, t]
                guess = model(source, x)[0, -1].argmax()
                free[t] += guess == batch.y[i, t]
                x = torch.cat([x, guess.view(1, 1)], 1)
    there = torch.tensor([5.0, 5, 5, 4, 3, 2, 1])
    assert reading.values["forced"] == pytest.approx((forced / there).tolist())
    assert reading.values["free running"] == pytest.approx((free / there).tolist())
    assert reading.x == [1, 2, 3, 4, 5, 6, 7]
    assert reading.results["whole"]["forced"] == pytest.approx(float(forced.sum() / 25))


def test_where_it_has_nothing_to_say() -> None:
    subject = exposure.tiny()
    other = Subject(subject.model, subject.batch.replace(x=subject.batch.x + 1))
    assert exposure.why_not(other) == "the inputs are not the targets shifted by one position"
    assert (
        exposure.why_not(Subject(torch.nn.Linear(2, 2), Batch(x=torch.zeros(1, 2))))
        == "the model does not generate tokens from its own output"
    )
