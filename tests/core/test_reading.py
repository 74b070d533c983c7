"""Reading: plain data that goes to JSON and back unchanged."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sonde.core.errors import BadInput, DataUnusable
from sonde.core.reading import Reading, plain

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


def test_tensors_and_arrays_become_lists() -> None:
    reading = Reading("norms", "lines", {"a": torch.tensor([[1.0, 2.0]], requires_grad=True), "b": np.arange(3)}, axes=("layer", "step"))
    assert reading.values == {"a": [[1.0, 2.0]], "b": [0, 1, 2]} and reading.axes == ["layer", "step"]
    assert plain((np.float32(0.5), {3: torch.tensor(True)})) == [0.5, {"3": True}]


@given(st.sampled_from(Reading.KINDS), st.dictionaries(st.text(), JSON, max_size=3), st.lists(st.text(), max_size=3), st.text())
def test_json_round_trip(kind: str, values: dict, axes: list[str], note: str) -> None:
    reading = Reading("title", kind, values, axes, note, {"log": True, 1: (2, 3)})
    again = Reading.from_json(reading.to_json())
    assert again == reading and again.to_json() == reading.to_json()


def test_numbers_json_has_no_word_for_become_null() -> None:
    text = Reading("t", "bars", {"a": [float("nan"), float("inf"), -float("inf"), 1.0]}).to_json()
    assert json.loads(text)["values"] == {"a": [None, None, None, 1.0]}


def test_save_writes_the_same_text(tmp_path: Path) -> None:
    reading = Reading("Größe", "table", {"rows": [[1, "a"]]})
    reading.save(tmp_path / "r.json")
    assert (tmp_path / "r.json").read_text(encoding="utf-8") == reading.to_json()


def test_an_unknown_kind_is_refused_with_the_nearest() -> None:
    with pytest.raises(BadInput, match="no kind 'line'; did you mean 'lines'"):
        Reading("t", "line", {})


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "3",
        '{"title": 1}',
        '{"title": "t", "kind": "bars", "values": {}, "more": 1}',
        '{"title": "t", "kind": "pie", "values": {}}',
        "[" * 10_000,
    ],
)
def test_a_text_that_is_no_reading_is_refused(text: str) -> None:
    with pytest.raises(DataUnusable):
        Reading.from_json(text)
