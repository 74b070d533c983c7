"""Recipe: wrong fields are refused where they are written, not an hour later."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sonde.core.batch import Batch, Data
from sonde.core.errors import BadInput
from sonde.core.recipe import Callback, Recipe
from sonde.core.terms import Terms


class Rows:
    def __len__(self) -> int:
        return 3

    def __getitem__(self, indices: Any) -> Batch:
        return Batch(x=torch.zeros(3, 2), y=torch.zeros(3))[indices]

    def fingerprint(self) -> str:
        return "0" * 64


def recipe(**changes: Any) -> Recipe:
    parts: dict[str, Any] = {
        "model": lambda: torch.nn.Linear(2, 1),
        "data": Data(train=Rows()),
        "objective": lambda model, batch: Terms(nll=(model(batch.x).sum(), len(batch))),
        "optimizer": torch.optim.SGD,
        "steps": 10,
    }
    return Recipe(**{**parts, **changes})


def test_parts_may_be_made_or_functions_that_make_them() -> None:
    model = torch.nn.Linear(2, 1)
    assert recipe(model=model).build_model() is model
    assert isinstance(recipe().build_model(), torch.nn.Linear)
    data = Data(train=Rows())
    assert recipe(data=data).build_data() is data and recipe(data=lambda: data).build_data() is data


@pytest.mark.parametrize(
    "field, value",
    [
        ("steps", 0),
        ("steps", 1.5),
        ("steps", True),
        ("steps", "10"),
        ("steps", None),
        ("epochs", 3),
        ("batch_size", 0),
        ("accumulate", -1),
        ("log_every", 0),
        ("patience", -1),
        ("keep", 0),
        ("mode", "largest"),
        ("clip_norm", -0.1),
        ("clip_norm", float("nan")),
        ("clip_norm", "1"),
        ("precision", "fp16"),
        ("on_bad", "ignore"),
    ],
)
def test_a_wrong_field_is_refused(field: str, value: Any) -> None:
    with pytest.raises(BadInput) as caught:
        recipe(**{field: value})
    assert "Recipe" in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf"), "3", True])
def test_a_wrong_number_of_epochs_is_refused(value: Any) -> None:
    with pytest.raises(BadInput, match="epochs"):
        recipe(steps=None, epochs=value)


anything = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
NUMBERS = (
    "steps",
    "epochs",
    "batch_size",
    "accumulate",
    "clip_norm",
    "log_every",
    "evaluate_every",
    "evaluate_batch_size",
    "patience",
    "keep",
    "precision",
    "on_bad",
)


@given(st.sampled_from(NUMBERS), anything)
def test_any_value_is_taken_or_bad_input(field: str, value: Any) -> None:
    try:
        variant = recipe(**{field: value})
    except BadInput:
        return
    assert getattr(variant, field) == value


def test_replace_is_a_small_edit() -> None:
    first = recipe()
    second = first.replace(steps=None, epochs=0.5, clip_norm=1)
    assert (second.steps, second.epochs, second.clip_norm, second.model) == (None, 0.5, 1, first.model) and first.steps == 10
    with pytest.raises(BadInput, match="no field 'stepz'; did you mean 'steps'"):
        first.replace(stepz=3)
    with pytest.raises(BadInput):
        first.replace(steps=-3)


def test_a_callback_does_nothing_by_itself() -> None:
    plain = Callback()
    assert plain.state() == {}
    for call in (plain.start(None), plain.step(None, 1, {}), plain.evaluated(None, 1, {}), plain.finish(None, 1, None), plain.load({})):
        assert call is None
