"""Say what a network costs, layer by layer: sizes, weights, FLOPs, memory, receptive field."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

from ...core import shelf
from ...core.dials import Dial, Range, resolve
from ...core.errors import BadInput, nearest
from .. import _names
from .._options import by_name, leading, option, parse

if TYPE_CHECKING:
    from torch import nn

USAGE = "RECIPE | MODEL | FILE.py [--dial value ...] [--input N ...]"
EXAMPLES = (
    "sonde explain digits_cnn",
    "sonde explain cnn --channels 3 64 128 --image 32 32",
    "sonde explain mlp --widths 196608 196608 196608     77 billion weights, counted without memory",
)


def options() -> list[Dial]:
    return [
        option(
            "input",
            tuple[int, ...] | None,
            None,
            "size of one example; default: that of the recipe's data or the model's own",
            Range(1, 2**40),
        )
    ]


def described(words: list[str]) -> _names.Named | None:
    found, _ = leading(words, by_name(options(), "sonde explain"))
    return _find(found[0]) if found else None


def run(words: list[str]) -> int:
    own = by_name(options(), "sonde explain")
    found, rest = leading(words, own)
    if not found:
        parse(rest[:1], own, "sonde explain", most=1)  # an option nobody knows in front of the name is the likelier mistake
    thing = _find(_names.needed(found, "sonde explain", "recipes", "models"))
    _, given = parse(rest, _names.merged(own, thing), thing.owner)
    size = given.pop("input", None)
    if size is not None and (not size or prod(size) >= 2**48):
        raise BadInput(
            f"--input of sonde explain must be sizes of one example, not '{' '.join(map(str, size))}'", fix="such as --input 3 32 32"
        )
    model, example = _model(thing, given, size) if thing.owner.startswith("model") else _recipe(thing, given, size)
    from rich.console import Console

    from ...lenses._explain import explain_model

    console = Console(markup=False, highlight=False)
    if not console.is_terminal:
        console.width = 140
    console.print(explain_model(model, example, thing.owner))
    return 0


def _find(name: str) -> _names.Named:
    """A recipe or a model; the recipe where both have the name."""
    if name.endswith(".py") or name in shelf.names("recipes"):
        return _names.recipe(name)
    if name in shelf.names("models"):
        return _names.model(name)
    raise BadInput(f"no recipe or model '{name[:60]}'", fix=nearest(name, [*shelf.names("recipes"), *shelf.names("models")]))


def _recipe(thing: _names.Named, given: dict[str, Any], size: tuple[int, ...] | None) -> tuple[Any, Any]:
    import torch

    from ...engine.api import plan

    recipe = plan(thing.target, given).make(0)
    return recipe.model, size or recipe.build_data().train[torch.arange(1)]


def _model(thing: _names.Named, given: dict[str, Any], size: tuple[int, ...] | None) -> tuple[nn.Module, tuple[int, ...]]:
    import torch

    values = resolve(thing.make, given, thing.owner)
    try:
        with torch.device("meta"):
            model = thing.make(**values)
    except (RuntimeError, TypeError, OverflowError) as error:  # sizes that no tensor can have
        raise BadInput(f"{thing.owner} cannot be built with these dials: {str(error).splitlines()[0]}", fix="give smaller sizes") from error
    return model, size or _input_size(model, thing.owner)


def _input_size(model: Any, owner: str) -> tuple[int, ...]:
    """What a model of the library takes, read off its first layer."""
    from torch import nn

    first = next((layer for layer in model.modules() if isinstance(layer, (nn.Linear, nn.Conv2d))), None)
    if isinstance(first, nn.Linear):
        return (first.in_features,)
    if first is not None and getattr(model, "image", None):
        return (first.in_channels, *model.image)
    raise BadInput(f"{owner} takes inputs of any size", fix="give one with --input, such as --input 3 32 32")
