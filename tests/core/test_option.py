"""Options: one signature, every way to give a value, and never an error a user cannot read."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, Optional

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sonde.core.errors import BadInput
from sonde.core.options import Option, Range, check_names, check_values, checked, help_texts, json_schema, options_of, resolve

KINDS: list[Any] = [
    int,
    float,
    bool,
    str,
    Path,
    Literal["relu", "gelu"],
    Literal[1, 2, 4],
    int | None,
    Path | None,
    Optional[Literal["a"]],  # noqa: UP045
    int | str,
    float | Literal["auto"],
    bool | int,
    tuple[int, ...],
    tuple[int, int],
    tuple[int, str],
    list[float],
    Sequence[str],
    tuple,
    tuple[int, ...] | None,
    Any,
]
BOUNDS = [None, Range(0, 10), Range(above=0, below=1), Range(least=-3.5)]


def example(
    width: Annotated[int, Range(1, 4096)] = 32,
    lr: Annotated[float, Range(above=0)] = 1e-3,
    widths: tuple[int, ...] = (64, 64),
    act: Literal["relu", "gelu"] = "relu",
    text: Path | None = None,
    depth: Annotated[int, Range(1)] | None = None,
    shifts: tuple[Annotated[float, Range(-1, 1)], ...] = (),
    bias=True,
    *,
    steps: int,
) -> None:
    """A function with an option of every sort.

    Args:
        width: channels of the first convolution
        lr: step size
          of the first step
        act: the bend

    not an option
    """


# ---------------------------------------------------------------- reading a signature


def test_a_signature_is_read() -> None:
    options = options_of(example, "example")
    assert list(options) == ["width", "lr", "widths", "act", "text", "depth", "shifts", "bias", "steps"]
    assert options["width"] == Option("width", int, 32, Range(1, 4096), "channels of the first convolution", "example")
    assert options["lr"].help == "step size of the first step" and options["bias"].type is bool
    assert options["steps"].is_required and not options["width"].is_required
    assert options["widths"].many and not options["text"].many


def test_a_range_is_found_inside_unions_and_tuples() -> None:
    options = options_of(example)
    assert options["depth"].range == Range(1) and options["depth"].check(3) == 3 and options["depth"].check(None) is None
    assert options["shifts"].check([0.5, -1]) == (0.5, -1.0)
    with pytest.raises(BadInput, match=">= 1"):
        options["depth"].check(0)
    with pytest.raises(BadInput, match=">= -1 and <= 1"):
        options["shifts"].check([0.5, 1.5])


def test_what_help_says() -> None:
    options = options_of(example)
    assert options["width"].describe() == "a whole number, >= 1 and <= 4,096, default 32"
    assert options["widths"].describe() == "a whole number ..., default 64 64"
    assert options["act"].describe() == "one of relu, gelu, default relu"
    assert options["steps"].describe() == "a whole number"


def test_resolve_fills_checks_and_refuses() -> None:
    full = resolve(example, {"steps": 1e4, "widths": [8], "text": "a.txt"}, "example")
    assert full["steps"] == 10_000 and full["widths"] == (8,) and full["text"] == Path("a.txt") and full["width"] == 32
    with pytest.raises(BadInput, match="^example has no option 'widht'; did you mean 'width'"):
        resolve(example, {"steps": 1, "widht": 3}, "example")
    with pytest.raises(BadInput, match="needs the option 'steps'; add --steps VALUE"):
        resolve(example, {}, "example")


@pytest.mark.parametrize("annotation", ["Nowhere", "Path.nowhere", "int[", "'('"])
def test_an_annotation_that_cannot_be_read_is_the_users_mistake(annotation: str) -> None:
    def broken(width=1) -> None: ...

    broken.__annotations__["width"] = annotation
    with pytest.raises(BadInput, match="annotation that cannot be read"):
        options_of(broken)


def test_a_constructor_has_options_too() -> None:
    class Net:
        def __init__(self, width: int = 3, **rest: int) -> None: ...

    assert list(options_of(Net, skip=("self",))) == ["width"]


def test_help_texts_of_a_docstring() -> None:
    assert help_texts("What it is: a thing\n\nArgs:\n    width: how wide\n        it is\n    lr: step\n\nReturns:\n    no: option\n") == {
        "width": "how wide it is",
        "lr": "step",
    }
    assert help_texts("") == {}


# ---------------------------------------------------------------- words and values


@pytest.mark.parametrize(
    "kind, words, value",
    [
        (int, ["32"], 32),
        (int, ["1e4"], 10_000),
        (int, ["-7"], -7),
        (float, ["3"], 3.0),
        (float, ["1e-3"], 0.001),
        (bool, ["Yes"], True),
        (bool, ["0"], False),
        (str, ["12"], "12"),
        (Path, ["a/b"], Path("a/b")),
        (Literal["relu", "gelu"], ["gelu"], "gelu"),
        (Literal[1, 2, 4], ["4"], 4),
        (int | None, ["none"], None),
        (int | None, ["5"], 5),
        (int | str, ["5"], 5),
        (int | str, ["x"], "x"),
        (float | Literal["auto"], ["1"], 1.0),
        (float | Literal["auto"], ["auto"], "auto"),
        (Path | int, ["3"], Path("3")),
        (tuple[int, ...], ["1", "2", "3"], (1, 2, 3)),
        (tuple[int, ...], [], ()),
        (tuple[int, str], ["1", "2"], (1, "2")),
        (tuple[int, ...] | None, ["None"], None),
        (list[float], ["1", "2.5"], (1.0, 2.5)),
        (Sequence[str], ["a"], ("a",)),
    ],
)
def test_words_become_values(kind: Any, words: list[str], value: Any) -> None:
    got = Option("d", kind, None).parse(words)
    assert got == value and type(got) is type(value)
    if isinstance(value, tuple):
        assert [type(item) for item in got] == [type(item) for item in value]


@pytest.mark.parametrize(
    "kind, words, message",
    [
        (int, ["1.5"], "must be a whole number, not 1.5"),
        (int, ["x"], "must be a whole number, not 'x'"),
        (int, ["9" * 30], "too large"),
        (int, ["9" * 5000], "must be"),
        (float, ["nan"], "finite"),
        (float, ["1e999"], "finite"),
        (float, ["9" * 400], "finite"),
        (bool, ["maybe"], "true or false"),
        (Path, [""], "must be a path"),
        (Path, ["a\0b"], "must be a path"),
        (Literal["relu", "gelu"], ["gelo"], "did you mean 'gelu'"),
        (int, [], "needs a value"),
        (int, ["1", "2"], "takes one value"),
        (tuple[int, int], ["1", "2", "3"], "takes 2 values"),
        (tuple[int, int], ["1"], "takes 2 values"),
        (tuple[int, ...], ["1", "x"], "whole number"),
        (int, ["none"], "whole number"),
    ],
)
def test_wrong_words_are_named(kind: Any, words: list[str], message: str) -> None:
    with pytest.raises(BadInput) as caught:
        Option("d", kind, None, owner="recipe 'x'").parse(words)
    assert message in str(caught.value) and "option 'd' of recipe 'x'" in str(caught.value) and len(str(caught.value)) < 250


@pytest.mark.parametrize(
    "kind, value",
    [
        (int, True),
        (int, "3"),
        (int, None),
        pytest.param(int, 10**5000, id="huge"),
        pytest.param(float, 10**5000, id="huge float"),
        (float, True),
        (tuple[int, ...], 3),
        pytest.param(tuple[int, ...], [10**5000], id="huge in a list"),
        (Literal[1, 2], True),
        (Literal[1, 2], 1.0),
        (str, 3),
        (bool, 1),
    ],
)
def test_wrong_values_are_refused(kind: Any, value: Any) -> None:
    with pytest.raises(BadInput):
        Option("d", kind, None).check(value)


@given(st.sampled_from(KINDS), st.sampled_from(BOUNDS), st.lists(st.text(), max_size=3))
def test_any_text_gives_a_value_or_bad_input(kind: Any, bounds: Range | None, words: list[str]) -> None:
    option = Option("d", kind, None, bounds)
    try:
        value = option.parse(words)
    except BadInput as error:
        assert "\n" not in str(error)
    else:
        assert option.check(value) == value


numbers = st.integers() | st.floats() | st.booleans()
anything = st.recursive(
    st.none() | numbers | st.text() | st.binary(), lambda inner: st.lists(inner, max_size=3) | st.tuples(inner), max_leaves=4
)


@given(st.sampled_from(KINDS), st.sampled_from(BOUNDS), anything)
def test_any_value_is_checked_once_for_all(kind: Any, bounds: Range | None, value: Any) -> None:
    option = Option("d", kind, None, bounds)
    try:
        first = option.check(value)
    except BadInput:
        return
    assert option.check(first) == first


@given(st.sampled_from(KINDS), st.lists(st.sampled_from(["1", "2.5", "1e4", "true", "a", "auto", "relu", "none", "-3"]), max_size=3))
def test_a_value_survives_run_json(kind: Any, words: list[str]) -> None:
    """run.json holds paths as text and tuples as lists; checking them again gives the value back."""
    option = Option("d", kind, None)
    try:
        value = option.parse(words)
    except BadInput:
        return
    assert option.check(json.loads(json.dumps(value, default=str))) == value


@given(st.integers(-(2**62), 2**62) | st.floats(allow_nan=False, allow_infinity=False))
def test_numbers_survive_being_typed(number: float) -> None:
    kind = type(number)
    assert Option("d", kind, None).parse([repr(number)]) == number


@given(st.floats(allow_nan=False), *[st.none() | st.integers(-5, 5)] * 4)
def test_a_range_holds_what_it_says(value: float, least: int | None, most: int | None, above: int | None, below: int | None) -> None:
    bounds = Range(least, most, above, below)
    parts = [part.split(" ") for part in str(bounds).split(" and ") if part]
    compare = {">=": float.__ge__, "<=": float.__le__, ">": float.__gt__, "<": float.__lt__}
    assert bounds.holds(value) == all(compare[sign](value, float(bound)) for sign, bound in parts)


def test_a_json_schema_refuses_what_an_option_refuses() -> None:
    """Held against an outside judge of JSON schemas: both take and both refuse the same values."""
    options = options_of(example, "example")
    schema = json_schema(options, "example", "what it is")
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["required"] == [name for name, option in options.items() if option.is_required]
    values = [0, 1, 3, -1, 1.5, 1e9, True, None, "up", "x", "", [1, 2], [0.5], [0], [], ["a"], {}]
    for name, option in options.items():
        judge = jsonschema.Draft202012Validator(schema["properties"][name])
        for value in values:
            try:
                option.check(value)
            except BadInput:
                assert not judge.is_valid(value), f"{name}={value!r} passes the schema only"
            else:
                assert judge.is_valid(value), f"{name}={value!r} passes the option only"
        if not option.is_required:
            assert judge.is_valid(schema["properties"][name]["default"])


class Layer:
    """A layer."""

    @checked
    def __init__(
        self,
        width: Annotated[int, Range(1, 64)],
        act: Literal["relu", "tanh"] = "relu",
        *,
        share: Annotated[float, Range(0, below=1)] = 0.5,
        free: int = 0,
    ) -> None:
        self.values = width, act, share, free


def test_a_constructor_is_held_to_its_annotations() -> None:
    assert Layer(3).values == (3, "relu", 0.5, 0)
    assert Layer(8.0, "tanh", share=0, free="anything").values == (8, "tanh", 0.0, "anything")  # type: ignore[arg-type]
    assert isinstance(Layer(width=3, share=0).values[2], float)
    assert list(options_of(Layer, skip=("self",))) == ["width", "act", "share", "free"]


@pytest.mark.parametrize(
    ("places", "words", "message"),
    [
        ((0,), {}, "argument 'width' of Layer must be >= 1 and <= 64, not 0"),
        ((), {"width": 65}, "argument 'width' of Layer must be >= 1 and <= 64, not 65"),
        ((True,), {}, "argument 'width' of Layer must be a whole number, not True"),
        ((1, "gelu"), {}, "argument 'act' of Layer must be one of relu, tanh, not 'gelu'"),
        ((1,), {"share": 1.0}, "argument 'share' of Layer must be >= 0 and < 1, not 1.0"),
        ((1,), {"share": math.nan}, "argument 'share' of Layer must be a finite number, not nan"),
        ((1,), {"act": "rely"}, "did you mean 'relu'?"),
    ],
)
def test_a_constructor_refuses(places: tuple, words: dict, message: str) -> None:
    with pytest.raises(BadInput, match=re.escape(message)):
        Layer(*places, **words)
    with pytest.raises(TypeError, match="missing 1 required"):
        Layer()  # type: ignore[call-arg]


@checked
@dataclass(frozen=True, kw_only=True)
class Plan:
    """A dataclass whose fields say their ranges."""

    steps: Annotated[int | None, Range(1)] = None
    which: Literal["best", "last"] | int = "best"


def test_a_dataclass_is_held_to_its_annotations() -> None:
    assert Plan(steps=1e3, which=2) == Plan(steps=1000, which=2.0) and Plan().steps is None  # type: ignore[arg-type]
    for change, message in (
        ({"steps": 0}, "argument 'steps' of Plan must be >= 1, not 0"),
        ({"which": "bset"}, "argument 'which' of Plan must be one of best, last or a whole number, not 'bset'; did you mean 'best'?"),
    ):
        with pytest.raises(BadInput, match=re.escape(message)):
            replace(Plan(), **change)


def test_values_are_checked_by_name() -> None:
    known = options_of(Plan, "a plan")
    assert check_values(known, {"steps": 3.0}, "a plan") == {"steps": 3}
    with pytest.raises(BadInput, match="a plan has no option 'stepz'; did you mean 'steps'?"):
        check_values(known, {"stepz": 3}, "a plan")
    with pytest.raises(BadInput, match="a plan has no field 'x'; choose from steps, which"):
        check_names(["x"], known, "a plan", "field")
