"""Train a recipe for every combination of some options, and rank them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from ...core.errors import BadInput
from ...core.options import Option, Range, options_of
from .. import _names
from .._options import by_name, flag, option, parse, take_names

POSITION = 70
USAGE = "NAME | FILE.py --option value value ... [--seed 0 1 2] [options]"
EXAMPLES = (
    "sonde sweep digits_cnn --lr 1e-3 3e-3 --seed 0 1 2",
    "sonde sweep digits_mlp --widths 64,64 128 --method random --trials 8",
)
SEED = Option("seed", int, 0, Range(0, 2**63 - 1), "seeds to repeat each combination with", "sonde sweep")


def options() -> list[Option]:
    from ...engine.options import Options

    shared = options_of(Options)
    return [
        option(
            "method",
            Literal["grid", "random", "tpe"],
            "grid",
            "grid tries all combinations; random and tpe sample, and treat two numbers as a range",
        ),
        option("trials", int | None, None, "number of trials, for random and tpe", Range(1, 1_000_000)),
        option("dir", Path | None, None, "folder of the sweep; give it again to continue; default: runs/NAME-sweep-001, ..."),
        shared["threads"],
        shared["quiet"],
    ]


def describe_target(words: list[str]) -> _names.Named | None:
    names, _ = take_names(words, by_name(options(), "sonde sweep"))
    if not names:
        return None
    recipe = _names.recipe(names[0])
    return replace(recipe, options={**recipe.options, "seed": SEED})


def run(words: list[str]) -> int:
    own = by_name(options(), "sonde sweep")
    names, rest = take_names(words, own)
    recipe = _names.recipe(_names.first_name(names, "sonde sweep", "recipes"))
    recipe = replace(recipe, options={**recipe.options, "seed": SEED})
    # An axis is first parsed as plain words: each word is one value of the option, and `64,64` is one list.
    raw = {name: replace(option, type=tuple[str, ...], range=None) for name, option in recipe.options.items()}
    _, flags = parse(rest, _names.merge_options(own, replace(recipe, options=raw)), recipe.owner)
    axes = {name: _values(option, flags[name]) for name, option in recipe.options.items() if name in flags}
    if not axes:
        raise BadInput(
            "sonde sweep needs at least one option to vary",
            fix=f"give an option several values: {flag(next(iter(recipe.options)))} VALUE VALUE",
        )
    from ...api.sweeps import sweep

    settings = {name: value for name, value in flags.items() if name in own}
    result = sweep(recipe.target, axes, folder=settings.pop("dir", None), **settings)
    print(result.table(), result.plot(), sep="\n")
    return 0


def _values(option: Option, words: tuple[str, ...]) -> list[Any]:
    values = [option.parse(word.split(",") if option.many else [word]) for word in words]
    if not values or any(value in values[:i] for i, value in enumerate(values)):
        raise BadInput(f"{flag(option.name)} of {option.owner} needs one or more different values", fix="give each value once")
    return values
