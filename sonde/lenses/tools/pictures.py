"""What lenses over images share: pictures for the eye, and the maps that a network makes of an image, layer by layer.

B batch, C channels, H height, W width of an image; h, w those of a map.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from ...core.batch import ask
from ...core.errors import BadInput, nearest
from ...core.reading import Subject
from ...nn.block import Block
from .readonly import hook_inputs, hook_outputs, no_model

MORE = 960
"""pixels by which an image grows: a multiple of most products of strides, and large against the squares of the others"""


def no_images(subject: Subject) -> str:
    """Why there is no image to look at, or ''."""
    if missing := no_model(subject):
        return missing
    x = subject.batch.x
    if x.dim() == 4 and x.is_floating_point() and x.numel():
        return ""
    return f"the inputs are not images (examples of size {tuple(x.shape[1:])})"


def no_maps(subject: Subject) -> str:
    """Why the network makes no maps of an image, or ''."""
    if missing := no_images(subject):
        return missing
    return "" if _mapping(subject.model) else "the model has neither convolution nor patches"


def _mapping(model: Any) -> bool:
    return hasattr(model, "patch") or any(isinstance(part, (nn.Conv2d, nn.ConvTranspose2d)) for part in model.modules())


def stretch(images: Any) -> Any:
    """Images of any shape as numbers from 0 to 1, all by the same scale."""
    images = images.detach().float()
    low, high = images.min(), images.max()
    return (images - low) / (high - low) if high > low else images * 0


def picture(image: Any) -> Any:
    """One image (C, H, W) as (H, W) or (H, W, 3), stretched to 0..1 for the eye; other numbers of channels as their mean."""
    return flat(stretch(image if len(image) in (1, 3) else image.mean(0, keepdim=True)))


def flat(image: Any) -> Any:
    """One image (C, H, W) as it is drawn, (H, W) or (H, W, 3)."""
    return image.permute(1, 2, 0) if len(image) == 3 else image.mean(0)


def maps(model: Any, batch: Any) -> dict[str, Any]:
    """Outputs of all layers that are images, (B, C, h, w), in the order in which they run.

    The tokens of a transformer's blocks are laid out as the patches they stand for.  A layer that changed nothing, such as
    dropout outside training, or only put the channels last is left out.  With gradients on, the maps are those through which
    the output depends on x.
    Called inside `preserve_state`, which must last until the gradients are taken.
    """
    fmaps: dict[str, Any] = {}
    with gathering(model, batch.x, fmaps):
        ask(model, batch)
    return fmaps


def maps_of(model: Any, batch: Any, x: Any) -> dict[str, Any]:
    """The same for images `x` of another size, as far as some part of the network that is given the image takes them.

    A classifier for images of one size may refuse others only where its maps end, or before they begin; then the part that
    makes the maps is asked alone.
    """
    best: dict[str, Any] = {}
    for part in _image_inputs(model, batch):
        fmaps: dict[str, Any] = {}
        try:
            with gathering(model, x, fmaps):
                ask(model, batch[: len(x)].replace(x=x)) if part is model else part(x)
        except Exception:  # whatever layer stops it, the maps before it stand
            best = max(best, fmaps, key=len)
        else:
            return max(best, fmaps, key=len)
    return best


def _image_inputs(model: Any, batch: Any) -> list[Any]:
    """The parts of a network that get the image itself, the outermost first."""
    one, modules = batch[:1], []

    def look(module: Any, inputs: tuple[Any, ...]) -> None:
        if inputs and inputs[0] is one.x:
            modules.append(module)

    with torch.no_grad(), hook_inputs(model.modules(), look):
        ask(model, one)
    return modules


@contextmanager
def gathering(model: Any, x: Any, fmaps: dict[str, Any]) -> Iterator[None]:
    """While it lasts, every map of images x is noted in `found`, as `maps` tells; a layer that runs again gets a number."""
    side, last, runs = getattr(model, "patch", None), x, Counter[str]()

    def note(name: str, module: Any, inputs: tuple[Any, ...], output: Any) -> Any:
        nonlocal last
        name = name or "output"
        runs[name] += 1
        block = isinstance(module, Block)
        own = output[0] if block else output
        shown = to_map(own, x.shape[-2:], side) if block and side else own
        if not torch.is_tensor(shown) or shown.dim() != 4 or any(torch.equal(same, shown) for same in (last, last.movedim(1, 3))):
            return None
        fmaps[f"{name} ({runs[name]})" if runs[name] > 1 else name] = last = shown
        # What comes after depends on what was noted, and layers that work in place do not change it.
        return (torch.cat([own[:, : own.shape[1] - shown[0, 0].numel()], shown.flatten(2).mT], 1), *output[1:]) if block else own.clone()

    with hook_outputs(_outside_blocks(model), note):
        yield


def _outside_blocks(model: Any) -> dict[str, Any]:
    """All modules by name but those inside the blocks of a transformer."""
    inside = {part for block in model.modules() if isinstance(block, Block) for part in block.modules() if part is not block}
    return {name: part for name, part in model.named_modules() if part not in inside}


def to_map(tokens: Any, size: Sequence[int], side: Any) -> Any:
    """Tokens (B, T, D) as a map (B, D, h, w) of patches with a side, row by row; None where there are fewer.

    What stands before the patches, such as a class token, is no part of the image.
    """
    h, w = patches(size, side)
    if tokens.dim() != 3 or tokens.shape[1] < h * w:
        return None
    return tokens[:, tokens.shape[1] - h * w :].mT.unflatten(2, (h, w))


def patches(size: Sequence[int], side: Any) -> tuple[int, int]:
    """How many patches an image has, down and across."""
    high, wide = side if isinstance(side, (tuple, list)) else (side, side)
    return size[0] // high, size[1] // wide


def jumps(model: Any, batch: Any, fmaps: dict[str, Any]) -> dict[str, tuple[float, float]]:
    """How many pixels apart neighbors of each map are, down and across.

    From how much a map grows with the image; where the network takes no other size, from the map's share of the image.  Below 1
    where a map has more places than the image has pixels.
    """
    height, width = batch.x.shape[-2:]

    def along_axis(axis: int) -> dict[str, float]:
        size = (height + MORE, width) if axis == -2 else (height, width + MORE)
        # Not zeros, of which a network without biases makes nothing else, so that no layer seems to do anything.
        x = torch.randn(1, batch.x.shape[1], *size, generator=torch.Generator().manual_seed(0), dtype=batch.x.dtype)
        with torch.no_grad():
            larger = maps_of(model, batch, x)
        more = {name: larger[name].shape[axis] - own.shape[axis] for name, own in fmaps.items() if name in larger}
        return {
            name: _stride(more[name]) if more.get(name, 0) > 0 else batch.x.shape[axis] / own.shape[axis] for name, own in fmaps.items()
        }

    down, across = along_axis(-2), along_axis(-1)
    return {name: (down[name], across[name]) for name in fmaps}


def _stride(more: int) -> float:
    """Pixels between places if MORE pixels give so many more places, to one that is cut off: the simplest fraction that fits."""
    fractions = ((max(1, round(MORE / more * places)), places) for places in itertools.count(1))
    return next(pixels / places for pixels, places in fractions if abs(MORE * places / pixels - more) < 1)


def spread_out(fmaps: dict[str, Any]) -> dict[str, Any]:
    """Maps with more than one place; all of them where none has."""
    return {name: own for name, own in fmaps.items() if own[0, 0].numel() > 1} or fmaps


def chosen(name: str, fmaps: dict[str, Any], default: str) -> str:
    """The layer that is asked for, or the default."""
    if name and name not in fmaps:
        raise BadInput(f"the model has no layer '{name}' that makes maps", fix=nearest(name, fmaps))
    return name or default


def last_convolution(model: Any, fmaps: dict[str, Any]) -> str:
    """The last convolution among the maps; of a network without any, its last map."""
    kinds = {name for name, part in model.named_modules() if isinstance(part, nn.Conv2d)}
    return next((name for name in reversed(fmaps) if name in kinds), list(fmaps)[-1])


@contextmanager
def enable_gradients() -> Iterator[None]:
    """Gradients are on, wherever this is called from."""
    with torch.inference_mode(False), torch.enable_grad():
        yield
