"""Train a recipe, or continue a run that stopped."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ...core.errors import BadInput
from ...core.options import Option, options_of
from ...report.terminal import columns
from .. import _names
from .._options import by_name, option, parse, take_names, usable

if TYPE_CHECKING:
    from ...api.run import Run

POSITION = 60
USAGE = "NAME | FILE.py | --resume [RUN]  [--option value ...] [options]"
EXAMPLES = (
    "sonde train digits_cnn --lr 3e-3 --run runs/fast",
    "sonde train digits_cnn --help     the options of a recipe",
    "sonde train ./mine.py             a recipe of your own",
    "sonde train --resume runs/fast    continue a run; without a name, the latest",
)


def options() -> list[Option]:
    from ...engine.options import Options

    return [
        option("run", Path | None, None, "directory of the run; an existing one is resumed; default: runs/NAME-001, -002, ..."),
        option("resume", bool, False, "continue a run; its recipe and options are read from it"),
        *options_of(Options).values(),
    ]


def describe_target(words: list[str]) -> _names.Named | None:
    names, _ = take_names(words, by_name(options(), "sonde train"))
    return _names.recipe(names[0]) if names else None


def run(words: list[str]) -> int:
    own = by_name(options(), "sonde train")
    if any(word.startswith("--resume") for word in words):
        return _resume(*parse(words, own, "sonde train --resume", max_words=1))
    names, rest = take_names(words, own)
    if not names:
        parse(rest[:1], own, "sonde train", max_words=1)  # an unknown option before the name is the likelier mistake
    recipe = _names.recipe(_names.first_name(names, "sonde train", "recipes"))
    _, flags = parse(rest, _names.merge_options(own, recipe), recipe.owner)
    from ...api.training import train

    return _print_summary(train(recipe.target, **flags), flags)


def _resume(names: list[str], flags: dict) -> int:
    flags.pop("resume")
    if names and "run" in flags:
        raise BadInput("sonde train --resume accepts the run by name or by --run, not both", fix="leave one out")
    directory = usable(Path(names[0]), "RUN") if names else flags.pop("run", True)
    from ...api.training import train

    return _print_summary(train(resume=directory, **flags), flags)


def _print_summary(run: Run, flags: dict) -> int:
    """Print the final metrics and the path of the report."""
    if os.environ.get("RANK", "0") != "0":
        return 0  # under torchrun only the first process prints
    from ...core.numbers import number

    if not flags.get("quiet"):
        print("writing the report ...", file=sys.stderr, flush=True)
    print(columns([*((name, number(value)) for name, value in run.result.get("metrics", {}).items()), ("report", str(run.report()))]))
    return 0
