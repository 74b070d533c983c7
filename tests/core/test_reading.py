"""Reading: plain data that goes to JSON and back unchanged."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

import jsonschema
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sonde.core._shapes import describe
from sonde.core.errors import BadInput, DataUnusable
from sonde.core.reading import Bars, Diagram, Heat, Images, Lines, Plane, Reading, Scatter, Table, Text, plain

NUMBERS = st.lists(st.none() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False), min_size=2, max_size=2)
NAMES = st.text(max_size=5)
READINGS = st.one_of(
    st.builds(
        Lines, NAMES, st.dictionaries(NAMES, NUMBERS), st.just([]), NAMES, x=NUMBERS, log=st.just(["y"]), top=st.none() | st.floats(1, 2)
    ),
    st.builds(Bars, NAMES, st.dictionaries(NAMES, NUMBERS, min_size=1), labels=st.lists(NAMES, min_size=2, max_size=2)),
    st.builds(Heat, NAMES, st.dictionaries(NAMES, st.tuples(NUMBERS, NUMBERS)), share=st.sampled_from(["", "row"]), diagonal=st.booleans()),
    st.builds(Table, NAMES, st.dictionaries(NAMES, NUMBERS), results=st.dictionaries(NAMES, NUMBERS), formats=st.just({"a": "si"})),
    st.builds(Images, NAMES, st.fixed_dictionaries({"i": st.lists(st.tuples(NUMBERS, NUMBERS) | st.none())}), across=st.integers(0, 9)),
    st.builds(Scatter, NAMES, st.fixed_dictionaries({"x": NUMBERS, "y": NUMBERS}), axes=st.just(("x", "y")), view=st.just((1, 2.5))),
    st.builds(
        Plane, NAMES, st.dictionaries(NAMES, st.tuples(NUMBERS, NUMBERS)), levels=st.integers(1, 9) | NUMBERS, points=st.just({"a": []})
    ),
    st.builds(Diagram, NAMES, st.just({"x": [1], "y": [2.5], "words": [["a", "b"]], "kind": ["input"]}), edges=st.just([[[0, 1], [2, 3]]])),
    st.builds(Text, NAMES, st.fixed_dictionaries({"token": st.just(["a", "b"]), "nats": NUMBERS}), axes=st.just(["token", "nats"])),
)


def test_tensors_and_arrays_become_lists() -> None:
    reading = Heat("norms", {"a": torch.tensor([[1.0, 2.0]], requires_grad=True), "b": np.arange(2)[None]}, axes=("layer", "step"))
    assert reading.values == {"a": [[1.0, 2.0]], "b": [[0, 1]]} and reading.axes == ["layer", "step"]
    assert Lines("t", {"a": [1, 2]}, x=range(2)).x == [0, 1]
    assert plain((np.float32(0.5), {3: torch.tensor(True)})) == [0.5, {"3": True}]


@given(READINGS)
def test_json_round_trip(reading: Reading) -> None:
    again = Reading.from_json(reading.to_json())
    assert again == reading and again.to_json() == reading.to_json()
    jsonschema.validate(json.loads(reading.to_json()), Reading.schema(reading.kind))


@pytest.mark.parametrize("kind", Reading.KINDS)
def test_a_schema_describes_every_field_and_refuses_others(kind: str) -> None:
    schema = Reading.schema(kind)
    jsonschema.Draft202012Validator.check_schema(schema)
    assert list(schema["properties"]) == ["kind", *(one.name for one in fields(Reading.KINDS[kind]))]
    assert schema["description"] and all(each.get("description") for name, each in schema["properties"].items() if name != "kind")
    with pytest.raises(jsonschema.ValidationError, match="more"):
        jsonschema.validate({**json.loads(Reading.KINDS[kind]("t", {}).to_json()), "more": 1}, schema)


def test_the_page_about_readings_is_that_of_the_code() -> None:
    page = (Path(__file__).parents[2] / "docs" / "readings.md").read_text(encoding="utf-8")
    common = {one.name for one in fields(Reading)} - {"values", "axes"}
    for kind, cls in Reading.KINDS.items():
        schema = Reading.schema(kind)
        rows = [
            f"| `{n}` | {describe(each)} | {each['description']} |"
            for n, each in schema["properties"].items()
            if n not in common | {"kind"}
        ]
        section = "\n".join(
            [f"## {cls.__name__}: `{kind}`", "", schema["description"], "", "| field | JSON | meaning |", "|---|---|---|", *rows]
        )
        assert section + "\n" in page, f"put this into docs/readings.md:\n\n{section}\n"
    for name in common:
        assert f"| `{name}` | {describe(schema['properties'][name])} | {schema['properties'][name]['description']} |\n" in page


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: Bars("t", {"a": [1, "x"]}), "a reading of kind 'bars' is wrong: values['a'][1] must be number or null, not 'x' (t)"),
        (lambda: Bars("t", {"a": [1, 2], "b": [1]}), "values['b'] has 1 items for 2"),
        (lambda: Bars("t", {"a": [1, 2]}, labels=["one"]), "labels has 1 items for 2"),
        (lambda: Bars("t", {"a": [1, 2]}, edges=[0, 1]), "edges has 2 items for 3"),
        (lambda: Lines("t", {"a": [1, 2]}, x=[1]), "x of 'a' has 1 items for 2"),
        (lambda: Lines("t", {"a": [1, 2]}, x={"b": [1, 2]}), "x has no entry 'a'"),
        (lambda: Lines("t", {"a": [1, 2]}, x={"a": [1, "k"]}), "x['a'][1] must be number or null, not 'k'"),
        (lambda: Lines("t", {"a": [1]}, log=["z"]), "log[0] must be 'x' or 'y', not 'z'"),
        (lambda: Lines("t", {"a": [1]}, log="y"), "log must be ['x' or 'y'], not 'y'"),
        (lambda: Heat("t", {"a": [[1, 2], [1]]}), "'a' does not have the shape (2, 2) of the first matrix"),
        (lambda: Heat("t", {"a": [[1, 2]]}, columns=["one"]), "columns has 1 items for 2"),
        (lambda: Table("t", {"a": [1], "b": []}), "column 'b' has 0 items for 1"),
        (lambda: Table("t", {"a": [1]}, formats={"a": "kilo"}), "formats['a'] must be 'si' or 'bytes' or 'percent', not 'kilo'"),
        (lambda: Images("t", {"i": [[[1.0]]]}, labels=["a", "b"]), "labels has 2 items for 1 pictures"),
        (lambda: Images("t", {"i": [], "j": []}), "values has 2 lists of pictures"),
        (lambda: Scatter("t", {"x": [1], "y": [1]}, groups=["a", "b"]), "groups has 2 items for 1"),
        (lambda: Scatter("t", {}, view=[1]), "view must have 2 items, not 1"),
        (lambda: Plane("t", {"f": [[1, 2], [2, 1]]}, levels=2.5), "levels must be integer or [number or null], not 2.5"),
        (lambda: Diagram("t", {"x": [1]}), "values must have 'x', 'y', 'words' and 'kind'; look at 'kind'"),
        (lambda: Text("t", {"token": ["a"], "nats": []}), "values['nats'] has 0 items for 1"),
        (lambda: Reading("t", "lines", {}, axes=[]), "a Reading is always of one kind; make one of Lines, Bars"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(make, message: str) -> None:
    with pytest.raises(BadInput) as caught:
        make()
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_a_reading_saved_by_version_0_1_0_opens() -> None:
    old = {"title": "t", "kind": "bars", "values": {"a": [1]}, "axes": ["layer"], "note": "n", "extra": {"labels": ["x"], "loss": 3.5}}
    assert Reading.from_json(json.dumps(old)) == Bars("t", {"a": [1]}, ["layer"], "n", labels=["x"], results={"loss": 3.5})
    line = {"title": "t", "kind": "lines", "values": {"a": [1]}, "axes": [], "note": "", "extra": {"log": "y"}}
    assert Reading.from_json(json.dumps(line)) == Lines("t", {"a": [1]}, log=["y"])


def test_numbers_json_has_no_word_for_become_null() -> None:
    text = Bars("t", {"a": [float("nan"), float("inf"), -float("inf"), 1.0]}).to_json()
    assert json.loads(text)["values"] == {"a": [None, None, None, 1.0]}


def test_save_writes_the_same_text(tmp_path: Path) -> None:
    reading = Table("Größe", {"rows": [1, "a"]})
    reading.save(tmp_path / "r.json")
    assert (tmp_path / "r.json").read_text(encoding="utf-8") == reading.to_json()


def test_an_unknown_kind_is_refused_with_the_nearest() -> None:
    with pytest.raises(BadInput, match="no kind 'line'; did you mean 'lines'"):
        Reading.schema("line")


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
