"""Every lens in the registry keeps the contract of `sonde.testing`, and where it refuses a subject it names those that do not."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import ModuleType

import pytest

from sonde.api.run import Run
from sonde.cli.commands.look import options
from sonde.core import registry
from sonde.core.errors import BadInput
from sonde.lenses.tools.readonly import applicable
from sonde.testing import lenses as checks

LENSES = registry.names("lenses")
LONG = pytest.param(checks.works_where_it_does_not_refuse, "race", marks=pytest.mark.slow)
CASES = [(check, name) for check in checks.CHECKS for name in LENSES if (check, name) != LONG.values]


def test_options_of_looking_are_those_a_lens_may_not_have() -> None:
    own = {option.name for option in options()} | set(inspect.signature(Run.look).parameters)
    assert own - {"options"} == set(checks.RESERVED)


@pytest.mark.parametrize("check, name", [*CASES, LONG], ids=lambda value: getattr(value, "__name__", value))
def test_keeps_the_contract(check: Callable[[ModuleType], None], name: str) -> None:
    check(registry.load("lenses", name))


@pytest.mark.parametrize("name", LENSES)
def test_refusal_names_lenses_that_do_apply(name: str) -> None:
    """Where a lens refuses one of the tiny subjects, it names those that do not."""
    for other in LENSES:
        subject = registry.load("lenses", other).tiny()
        if not registry.load("lenses", name).why_not(subject):
            continue
        with pytest.raises(BadInput, match="; try ") as caught:
            checks.look(registry.load("lenses", name), subject)
        named = str(caught.value).rsplit("; try ", 1)[1].split(", ")
        assert named == applicable(subject) and other in named
