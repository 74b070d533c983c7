"""List recipes, models, mixers, data sets and more."""

from __future__ import annotations

from ...core.errors import BadInput, nearest
from ...core.options import Option
from ...report.terminal import bold, columns
from .. import _catalog
from .._options import parse

POSITION = 20
"""order of the commands in `sonde --help`; USAGE and EXAMPLES are shown by `sonde list --help`"""
USAGE = "[recipes | data | models | mixers | objectives | optimizers | schedules | initializers | lenses]"
EXAMPLES = ("sonde list", "sonde list data")


def options() -> list[Option]:
    """This command has no --options."""
    return []


def run(arguments: list[str]) -> int:
    """Print all names, or with WHAT the names and summaries of one kind; returns the exit code."""
    kinds, _ = parse(arguments, {}, "sonde list", max_words=1)
    if kinds and kinds[0] not in _catalog.KINDS:
        raise BadInput(f"there is no list of '{kinds[0][:60]}'", fix=nearest(kinds[0], _catalog.KINDS))
    catalog = {kind: _catalog.entries(kind) for kind in kinds or _catalog.KINDS}
    if kinds:
        print(columns((bold(name), summary) for name, summary in catalog[kinds[0]].items()) or f"  no {kinds[0]} yet")
        return 0
    print(bold("recipes"), columns(catalog.pop("recipes").items()) or "  none yet", "", sep="\n")
    print(columns((bold(kind), ", ".join(entries) or "none yet") for kind, entries in catalog.items()))
    print("\n`sonde list WHAT` describes each one; `sonde explain NAME` shows the cost of a network; `sonde train NAME` trains a recipe")
    return 0
