"""Train a recipe for every combination of some dials, and rank the results."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from ...core.dials import Dial, Range
from ...core.errors import BadInput
from .. import _names
from .._options import by_name, flag, leading, option, parse

USAGE = "NAME | FILE.py --dial value value ... [--seed 0 1 2] [options]"
EXAMPLES = (
    "sonde sweep digits_cnn --lr 1e-3 3e-3 --seed 0 1 2",
    "sonde sweep digits_mlp --widths 64,64 128 --method random --trials 8",
)
SEED = Dial("seed", int, 0, Range(0, 2**63 - 1), "seeds to repeat each combination with")


def options() -> list[Dial]:
    return [
        option("method", Literal["grid", "random", "tpe"], "grid", "all combinations, random ones, or those that look promising"),
        option("trials", int | None, None, "how many combinations; needed for random and tpe", Range(1, 1_000_000)),
        option("dir", Path | None, None, "folder of the sweep; the same one again goes on where it stopped"),
    ]


def dials(words: list[str]) -> tuple[str, str, dict[str, Dial]]:
    """The axes of the recipe named in the words, for the help text."""
    found, _ = leading(words, by_name(options(), "sonde sweep"))
    if not found:
        return "", "", {}
    owner, about, axes = _names.recipe(found[0]).described()
    return owner, about, {**axes, "seed": SEED}


def run(words: list[str]) -> int:
    own = by_name(options(), "sonde sweep")
    found, rest = leading(words, own)
    recipe = _names.recipe(_names.needed(found, "sonde sweep", "recipes"))
    axes = {**recipe.dials, "seed": SEED}
    for clash in axes.keys() & own.keys():
        raise BadInput(f"{recipe.owner} has a dial '{clash}' that `sonde sweep` uses itself", fix="give the dial another name")
    # An axis is read as plain words first: each word is then one value of the dial, `64,64` one list of them.
    raw = {name: replace(dial, name=flag(name), type=tuple[str, ...], range=None, owner=recipe.owner) for name, dial in axes.items()}
    _, given = parse(rest, {**own, **raw}, recipe.owner)
    grid: dict[str, list[Any]] = {
        name: [axes[name].parse(word.split(",") if axes[name].many else [word]) for word in given[name]] for name in axes if name in given
    }
    if not grid:
        raise BadInput("sonde sweep needs at least one axis", fix=f"such as {flag(next(iter(recipe.dials), 'seed'))} with several values")
    for name, values in grid.items():
        if not values or len(set(values)) < len(values):
            raise BadInput(f"{flag(name)} of {recipe.owner} names the same value twice or none", fix="give each value once")
    from ...engine.sweep import sweep

    result = sweep(recipe.target, grid, method=given.get("method", "grid"), trials=given.get("trials"), folder=given.get("dir"))
    print(result.table())
    return 0
