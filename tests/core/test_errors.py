"""Errors: the four parts, the frozen exit codes, text from outside made harmless."""

from __future__ import annotations

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sonde.core import errors
from sonde.core.errors import BadInput, SondeError, clean, nearest

EXIT_CODES = {
    "BadInput": 2,
    "DataUnusable": 3,
    "NoCheckpoint": 4,
    "NumericalStop": 5,
    "ResourceFault": 6,
    "PeerLost": 7,
    "RunBusy": 8,
    "Preempted": 75,
    "Interrupted": 130,
}
CLASSES = [
    thing for thing in vars(errors).values() if isinstance(thing, type) and issubclass(thing, SondeError) and thing is not SondeError
]


def test_exit_codes_are_frozen() -> None:
    assert {cls.__name__: cls.exit_code for cls in CLASSES} == EXIT_CODES


@pytest.mark.parametrize("cls", CLASSES)
def test_each_class_tells_its_parts(cls: type[SondeError]) -> None:
    error = cls("the roof leaks", where="room 7", last_good="monday", fix="call the roofer")
    assert (error.what, error.where, error.last_good, error.fix) == ("the roof leaks", "room 7", "monday", "call the roofer")
    if cls is BadInput:
        assert str(error) == "the roof leaks (room 7); call the roofer"
    else:
        assert str(error).split("\n") == ["the roof leaks", "where: room 7", "last good: monday", "to do: call the roofer"]


@pytest.mark.parametrize("cls", CLASSES)
def test_an_empty_part_leaves_no_line(cls: type[SondeError]) -> None:
    assert str(cls("the roof leaks")) == "the roof leaks"
    assert "call" in str(cls("the roof leaks", fix="call"))


@pytest.mark.parametrize("cls", CLASSES)
def test_an_error_survives_the_way_between_processes(cls: type[SondeError]) -> None:
    error = cls("the roof leaks", where="room 7", last_good="monday", fix="call")
    again = copy.copy(error)  # the same protocol that carries it from a worker to its parent
    assert type(again) is cls and vars(again) == vars(error) and str(again) == str(error)


@given(st.text(), st.text(), st.text(), st.text())
def test_text_from_outside_never_breaks_a_line_or_a_terminal(what: str, where: str, last_good: str, fix: str) -> None:
    fault = errors.DataUnusable(what, where=where, last_good=last_good, fix=fix)
    assert len(str(fault).split("\n")) <= 4
    assert str(fault).replace("\n", "").isprintable()
    one_line = str(BadInput(what, where=where, fix=fix))
    assert one_line.isprintable()
    one_line.encode("utf-8")  # lone surrogates are escaped too


def test_clean_escapes_what_a_terminal_obeys() -> None:
    assert clean("a\x1b[2Jb\nc\rd") == "a\\x1b[2Jb\\nc\\rd"
    assert clean("Größe, 尺寸") == "Größe, 尺寸"


def test_nearest() -> None:
    assert nearest("dept", ["width", "depth"]) == "did you mean 'depth'?"
    assert nearest("--learning-rate", ["--hang-timeout", "--lr"]) == "did you mean '--lr'?"
    assert nearest("learning_rate", ["restarts", "lr"]) == "did you mean 'lr'?"
    assert nearest("new-photo", ["new-photos", "np"]) == "did you mean 'new-photos'?"
    assert nearest("--learnrate", ["--restarts", "--lr"]) == "choose from --lr, --restarts"
    assert nearest("xyz", ["width", "depth"]) == "choose from depth, width"
    assert nearest("xyz", []) == "there are none"
    assert nearest("zzz", [f"a{i:02}" for i in range(25)]).endswith("a19, ...")
