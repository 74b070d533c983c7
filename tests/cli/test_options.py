"""The option parser: every way to write an option, and every way to get one wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sonde.cli._options import by_name, flag, option, parse, take_names
from sonde.core.errors import BadInput, SondeError
from sonde.core.options import Range

KNOWN = by_name(
    [
        option("lr", float, 1e-3, "step size", Range(above=0)),
        option("widths", tuple[int, ...], (3, 5), "layers", Range(least=1)),
        option("bias", bool, True, "add one"),
        option("log_every", int | None, None, "rows", Range(least=1)),
        option("way", Literal["up", "down"], "up", "where to"),
        option("file", Path | None, None, "what to read"),
    ],
    "the test",
)


@pytest.mark.parametrize(
    "words, expected",
    [
        ("--lr 0.5", {"lr": 0.5}),
        ("--lr=5e-1", {"lr": 0.5}),
        ("--widths 7 11 13", {"widths": (7, 11, 13)}),
        ("--widths=7", {"widths": (7,)}),
        ("--widths=", {"widths": ()}),
        ("--bias", {"bias": True}),
        ("--no-bias", {"bias": False}),
        ("--bias=no", {"bias": False}),
        ("--log-every 1e3", {"log_every": 1000}),
        ("--log_every none", {"log_every": None}),
        ("--way down --file a/b.csv", {"way": "down", "file": Path("a/b.csv")}),
        ("--widths 7 11 --no-bias --lr 2", {"widths": (7, 11), "bias": False, "lr": 2.0}),
    ],
)
def test_ways_to_write_an_option(words: str, expected: dict) -> None:
    assert parse(words.split(), KNOWN, "the test") == ([], expected)


@pytest.mark.parametrize(
    "words, message",
    [
        (["--lrr", "1"], "did you mean '--lr'?"),
        (["--no-lr"], "has no option '--no-lr'"),
        (["-x"], "has no option '-x'"),
        (["--"], "has no option '--'"),
        (["--lr"], "--lr of the test needs a value"),
        (["--widths", "--bias"], "--widths of the test needs a value"),
        (["--lr", "0"], "'--lr' of the test must be > 0, not 0"),
        (["--lr", "-1e-3"], "must be > 0, not -0.001"),
        (["--lr", "nan"], "must be a finite number"),
        (["--lr", "1e999"], "must be a finite number"),
        (["--lr", "fast"], "must be a number, not 'fast'"),
        (["--lr", ""], "must be a number, not ''"),
        (["--lr", "1", "2"], "unexpected argument '2'"),
        (["--lr", "1", "--lr", "2"], "was given --lr twice"),
        (["--bias", "--no-bias"], "was given --bias twice"),
        (["--no-bias=1"], "takes no value"),
        (["--bias=maybe"], "must be true or false"),
        (["--widths", "3", "4.5"], "must be a whole number, not 4.5"),
        (["--way", "upp"], "did you mean 'up'?"),
        (["--file", "a\nb"], "without control characters"),
        (["--file", "a" * 300], "a shorter path"),
        (["--file="], "must be a path"),
    ],
)
def test_ways_to_get_an_option_wrong(words: list[str], message: str) -> None:
    with pytest.raises(BadInput) as caught:
        parse(words, KNOWN, "the test")
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_plain_words_are_counted() -> None:
    assert parse(["a", "--lr", "1", "b"], KNOWN, "the test", max_words=2) == (["a", "b"], {"lr": 1.0})
    with pytest.raises(BadInput, match="unexpected argument 'c'"):
        parse(["a", "b", "c"], KNOWN, "the test", max_words=2)


@pytest.mark.parametrize(
    "words, plain, left",
    [
        ("net --lr 1", ["net"], "--lr 1"),
        ("--lr 1 net --depth 3", ["net"], "--lr 1 --depth 3"),
        ("--no-bias net --depth 3 4", ["net"], "--no-bias --depth 3 4"),
        ("--depth net", [], "--depth net"),
        ("--lr", [], "--lr"),
        ("net more", ["net"], "more"),
        ("", [], ""),
    ],
)
def test_leading_words_are_found_before_all_options_are_known(words: str, plain: list[str], left: str) -> None:
    assert take_names(words.split(), KNOWN) == (plain, left.split())


@given(st.floats(min_value=1e-30, max_value=1e30), st.lists(st.integers(1, 2**40), min_size=1, max_size=5), st.booleans())
def test_what_is_written_is_what_is_read(lr: float, widths: list[int], bias: bool) -> None:
    words = ["--lr", repr(lr), "--widths", *map(str, widths), "--bias" if bias else "--no-bias"]
    assert parse(words, KNOWN, "the test")[1] == {"lr": lr, "widths": tuple(widths), "bias": bias}


pieces = st.one_of(
    st.text(max_size=12), st.sampled_from([flag(name) for name in KNOWN]), st.sampled_from(["-1", "1e3", "--no-bias", "--lr=", "-", "="])
)


@given(st.lists(pieces, max_size=6))
def test_any_words_are_read_or_refused_in_one_line(words: list[str]) -> None:
    take_names(words, KNOWN)
    try:
        parse(words, KNOWN, "the test", max_words=2)
    except SondeError as error:
        assert isinstance(error, BadInput) and str(error).isprintable()
