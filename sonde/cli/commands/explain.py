"""Show the cost of a network by layer, and the forms of its mixers."""

from __future__ import annotations

import sys
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...core import registry
from ...core.errors import BadInput, DataUnusable, nearest
from ...core.options import Option, Range, resolve
from .. import _names
from .._options import by_name, option, parse, take_names

if TYPE_CHECKING:
    from torch import nn

POSITION = 40
USAGE = "RECIPE | MODEL | MIXER | PUBLISHED | FILE.py [--option value ...] [--input N ...]"
EXAMPLES = (
    "sonde explain digits_cnn",
    "sonde explain cnn --channels 3 64 128 --image 32 32",
    "sonde explain mlp --widths 196608 196608 196608     77 billion weights, counted without allocating memory",
    "sonde explain gpt2_xl                               a published model, of its exact size",
    "sonde explain gla --width 256 --input 4096          which form a mixer uses for 4096 steps, and why",
)
STEPS = 1024
"""default length of a sequence"""
SIDE = 252
"""default side of an image; it can be halved four times, also without padding"""


def options() -> list[Option]:
    return [
        option(
            "input",
            tuple[int, ...] | None,
            None,
            "size of one example, for a mixer its length; default: that of the recipe's data or of the model",
            Range(1, 2**40),
        )
    ]


def describe_target(words: list[str]) -> _names.Named | None:
    names, _ = take_names(words, by_name(options(), "sonde explain"))
    return _find(names[0]) if names else None


def run(words: list[str]) -> int:
    own = by_name(options(), "sonde explain")
    names, rest = take_names(words, own)
    if not names:
        parse(rest[:1], own, "sonde explain", max_words=1)  # an unknown option before the name is the likelier mistake
    thing = _find(_names.first_name(names, "sonde explain", "recipes", "models"))
    _, flags = parse(rest, _names.merge_options(own, thing), thing.owner)
    size = flags.pop("input", None)
    if size is not None and (not size or prod(size) >= 2**48):
        raise BadInput(
            f"--input of sonde explain must be sizes of one example, not '{' '.join(map(str, size))}'", fix="such as --input 3 32 32"
        )
    model, example = _recipe(thing, flags, size) if thing.owner.startswith("recipe") else _model(thing, flags, size)
    if hasattr(model, "buffers") and next(model.parameters(), None) is None:
        tables = sum(x.numel() for x in model.buffers())
        print(f"{thing.owner}, {type(model).__name__}: no trainable weights; its tables hold {tables:,} numbers")
        return 0
    from rich.console import Console

    from ...report.explain import explain_model

    console = Console(markup=False, highlight=False)
    if not console.is_terminal:
        console.width = 140
    console.print(explain_model(model, example, thing.owner))
    return 0


def _find(name: str) -> _names.Named:
    """The recipe, model, mixer or published model of this name, searched in this order."""
    if registry.is_file(name):
        return _of_file(name)
    if name in registry.names("recipes"):
        return _names.recipe(name)
    if name in registry.names("models"):
        return _names.model(name)
    if name in registry.names("nn.mixers"):
        return _names.mixer(name)
    from ...models.published import PUBLISHED, published_model

    if name in PUBLISHED:
        return _names.Named(name, f"published model '{name}'", "", {}, lambda: lambda: published_model(name))
    known = [*PUBLISHED, *(one for kind in ("recipes", "models", "nn.mixers") for one in registry.names(kind))]
    raise BadInput(f"no recipe, model or mixer '{name[:60]}'", fix=nearest(name, known))


def _of_file(name: str) -> _names.Named:
    """The recipe, else the mixer, else the model that a user's file defines."""
    from torch import nn

    from ...nn.mixers import Mixer

    module = registry.load_file(Path(_names.check_name(name)))
    if hasattr(module, "recipe"):
        return _names.recipe(name)
    for base, find in ((Mixer, _names.mixer), (nn.Module, _names.model)):
        if registry.classes_in(module, base):
            return find(name)
    raise BadInput(
        f"{Path(name).name} defines no recipe, mixer or model", fix="write: def recipe(...) -> Recipe, or a class for one of these"
    )


def _recipe(thing: _names.Named, overrides: dict[str, Any], size: tuple[int, ...] | None) -> tuple[Any, Any]:
    import torch

    from ...core.seeds import generator
    from ...engine.plan import plan

    recipe = plan(thing.target, overrides).make(0)
    missing: DataUnusable | None = None
    if not size:
        try:
            batch = recipe.build_data().train[torch.arange(1)]  # as in training
        except DataUnusable as error:
            missing = error
        else:
            return recipe.model, batch if recipe.augment is None else recipe.augment(batch, generator(0, "explain"))
    with torch.device("meta"):
        model = recipe.build_model()
    if missing is not None:
        size = _size_without_data(model, thing.owner, missing)
    assert size is not None
    return model, _example(model, size)


def _size_without_data(model: Any, owner: str, missing: DataUnusable) -> tuple[int, ...]:
    """The input size that the model itself specifies, with a notice; if it specifies none, the data are needed."""
    try:
        size = _input_size(model, owner)
    except BadInput:
        fix = "give the size of an example, such as --input 3 32 32" + (f", or {missing.fix}" if missing.fix else "")
        raise DataUnusable(missing.what, where=missing.where, fix=fix) from missing
    shape = " x ".join(map(str, size))
    print(f"notice: {missing.what}; explained for an input of {shape}, as the model specifies", file=sys.stderr)
    return size


def _model(thing: _names.Named, overrides: dict[str, Any], size: tuple[int, ...] | None) -> tuple[nn.Module, Any]:
    import torch

    make: Any = thing.load()
    parts = [name for name, option in thing.options.items() if option.is_required and name not in overrides]
    if parts and not registry.is_file(thing.target) and not hasattr(make, "mix"):
        return _tiny(thing, overrides, size, parts)
    if size and (limit := getattr(make, "length_option", "")):
        overrides = {limit: size[0], **overrides}
    values = resolve(make, overrides, thing.owner)
    try:
        with torch.device("meta"):
            model = make(**values)
    except (RuntimeError, TypeError, OverflowError) as error:  # impossible sizes
        raise BadInput(
            f"{thing.owner} cannot be built with these options: {str(error).splitlines()[0]}", fix="give smaller sizes"
        ) from error
    return model, _example(model, size or _input_size(model, thing.owner))


def _tiny(thing: _names.Named, overrides: dict[str, Any], size: tuple[int, ...] | None, parts: list[str]) -> tuple[nn.Module, Any]:
    """A small instance of a model whose constructor takes modules, which cannot be given on the command line."""
    if overrides or size:
        fix = f"write `sonde explain {thing.target}` to explain a small one"
        raise BadInput(f"{thing.owner} is built from parts ({', '.join(parts)}) and takes no options here", fix=fix)
    print(f"notice: {thing.owner} is built from parts ({', '.join(parts)}); explaining a small one", file=sys.stderr)
    model, batch = registry.load("models", thing.target).tiny()
    return model, batch[:1]


def _example(model: Any, size: tuple[int, ...]) -> Any:
    """One example of this size: token ids if the model begins with an embedding; for a mixer, its width is added if left out."""
    import torch
    from torch import nn

    from ...core.batch import Batch
    from ...nn.mixers import Mixer

    if isinstance(model, Mixer):
        return size if len(size) > 1 else (*size, model.width)
    if _first(model, nn.Embedding, nn.Linear, nn.Conv2d, nn.Conv1d)[0] is not nn.Embedding:
        return size
    tokens = torch.empty((1, *size), dtype=torch.int64, device="meta")
    return Batch(x=tokens, source=tokens)  # an encoder-decoder gets a source of the same length


def _first(model: Any, *kinds: type[nn.Module]) -> tuple[type[nn.Module] | None, Any]:
    """The first layer of one of these kinds, and its kind."""
    return next(((kind, layer) for layer in model.modules() for kind in kinds if isinstance(layer, kind)), (None, None))


def _input_size(model: Any, owner: str) -> tuple[int, ...]:
    """The input size of a model, from its first layer."""
    from torch import nn

    from ...nn.mixers import Mixer
    from ...nn.positions import Positions

    kind, first = _first(model, nn.Embedding, nn.Linear, nn.Conv2d, nn.Conv1d)
    if isinstance(model, Mixer) or kind is nn.Embedding:
        return (min([STEPS, *(part.max_positions for part in model.modules() if isinstance(part, Positions) and part.max_positions)]),)
    if isinstance(shape := getattr(model, "shape", None), tuple):
        return shape
    if kind is nn.Linear:
        return (first.in_features,)
    if first is not None and getattr(model, "image", None):
        return (first.in_channels, *model.image)
    if first is not None and owner.startswith("model") and not hasattr(model, "image"):
        print(f"notice: {owner} accepts inputs of any size; explained for {SIDE} x {SIDE}; choose another with --input", file=sys.stderr)
        return (first.in_channels, SIDE, SIDE)
    raise BadInput(f"{owner} accepts inputs of any size", fix="choose one with --input, such as --input 3 32 32")
