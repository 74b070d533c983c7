"""What lenses over images share: images scaled for display, and the feature maps of a network, layer by layer.

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

from ...core.batch import call_model
from ...core.errors import BadInput, nearest
from ...core.reading import Subject
from ...nn.block import Block
from .readonly import hook_inputs, hook_outputs, no_model

MORE = 960
"""pixels added to an image to measure strides: a multiple of most products of strides, and large compared with other strides"""


def no_images(subject: Subject) -> str:
    """Why the inputs are not images, or ''."""
    if missing := no_model(subject):
        return missing
    x = subject.batch.x
    if x.dim() == 4 and x.is_floating_point() and x.numel():
        return ""
    return f"the inputs are not images (examples of size {tuple(x.shape[1:])})"


def no_maps(subject: Subject) -> str:
    """Why the network has no feature maps, or ''."""
    if missing := no_images(subject):
        return missing
    return "" if _has_maps(subject.model) else "the model has neither a convolution nor patches"


def _has_maps(model: Any) -> bool:
    return hasattr(model, "patch") or any(isinstance(part, (nn.Conv2d, nn.ConvTranspose2d)) for part in model.modules())


def stretch(images: Any) -> Any:
    """Images of any shape scaled to 0..1, all by the same factor."""
    images = images.detach().float()
    low, high = images.min(), images.max()
    return (images - low) / (high - low) if high > low else images * 0


def picture(image: Any) -> Any:
    """One image (C, H, W) as (H, W) or (H, W, 3), scaled to 0..1; other numbers of channels are averaged."""
    return flat(stretch(image if len(image) in (1, 3) else image.mean(0, keepdim=True)))


def flat(image: Any) -> Any:
    """One image (C, H, W) in the layout of a picture, (H, W) or (H, W, 3)."""
    return image.permute(1, 2, 0) if len(image) == 3 else image.mean(0)


def maps(model: Any, batch: Any) -> dict[str, Any]:
    """Outputs of all layers that are feature maps, (B, C, h, w), in the order in which the layers run.

    The tokens of a transformer's blocks are arranged as the grid of their patches.  A layer that changes nothing, such as
    dropout in evaluation mode, or only moves the channel axis is left out.  With gradients enabled, the output depends on x
    through these maps.  Call it inside `preserve_state` and leave that only after the gradients are computed.
    """
    fmaps: dict[str, Any] = {}
    with collect_maps(model, batch.x, fmaps):
        call_model(model, batch)
    return fmaps


def maps_of(model: Any, batch: Any, x: Any) -> dict[str, Any]:
    """The same for images `x` of another size, up to the layer that does not accept that size.

    A classifier for images of one size may refuse others before its first layer; then the part of the network that makes the
    maps is run alone.
    """
    best: dict[str, Any] = {}
    for part in _image_inputs(model, batch):
        fmaps: dict[str, Any] = {}
        try:
            with collect_maps(model, x, fmaps):
                call_model(model, batch[: len(x)].replace(x=x)) if part is model else part(x)
        except Exception:  # whichever layer fails, the maps before it are valid
            best = max(best, fmaps, key=len)
        else:
            return max(best, fmaps, key=len)
    return best


def _image_inputs(model: Any, batch: Any) -> list[Any]:
    """The modules of a network whose input is the image itself, the outermost first."""
    one, modules = batch[:1], []

    def look(module: Any, inputs: tuple[Any, ...]) -> None:
        if inputs and inputs[0] is one.x:
            modules.append(module)

    with torch.no_grad(), hook_inputs(model.modules(), look):
        call_model(model, one)
    return modules


@contextmanager
def collect_maps(model: Any, x: Any, fmaps: dict[str, Any]) -> Iterator[None]:
    """Inside, every feature map of images x is added to `fmaps`, as `maps` describes; a layer that runs again gets a number."""
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
        # Later layers read a copy: the output depends on the recorded map, and in-place layers do not change it.
        return (torch.cat([own[:, : own.shape[1] - shown[0, 0].numel()], shown.flatten(2).mT], 1), *output[1:]) if block else own.clone()

    with hook_outputs(_outside_blocks(model), note):
        yield


def _outside_blocks(model: Any) -> dict[str, Any]:
    """All modules by name, without those inside transformer blocks."""
    inside = {part for block in model.modules() if isinstance(block, Block) for part in block.modules() if part is not block}
    return {name: part for name, part in model.named_modules() if part not in inside}


def to_map(tokens: Any, size: Sequence[int], side: Any) -> Any:
    """Tokens (B, T, D) as a map (B, D, h, w) of patches of this side length, row by row; None where there are fewer tokens.

    Tokens before the patches, such as a class token, are left out.
    """
    h, w = patches(size, side)
    if tokens.dim() != 3 or tokens.shape[1] < h * w:
        return None
    return tokens[:, tokens.shape[1] - h * w :].mT.unflatten(2, (h, w))


def patches(size: Sequence[int], side: Any) -> tuple[int, int]:
    """Number of patches of an image, vertically and horizontally."""
    high, wide = side if isinstance(side, (tuple, list)) else (side, side)
    return size[0] // high, size[1] // wide


def jumps(model: Any, batch: Any, fmaps: dict[str, Any]) -> dict[str, tuple[float, float]]:
    """Total stride of each map: pixels between adjacent positions, vertically and horizontally.

    Measured by how much a map grows with the image; where the network accepts no other size, image size over map size.  Below 1
    where a map has more positions than the image has pixels.
    """
    height, width = batch.x.shape[-2:]

    def along_axis(axis: int) -> dict[str, float]:
        size = (height + MORE, width) if axis == -2 else (height, width + MORE)
        # Random and not zeros: with zeros and without biases every map is 0, so no layer seems to change anything.
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
    """Stride if MORE pixels add `more` positions, up to one that is cut off: the simplest fraction that fits."""
    fractions = ((max(1, round(MORE / more * positions)), positions) for positions in itertools.count(1))
    return next(pixels / positions for pixels, positions in fractions if abs(MORE * positions / pixels - more) < 1)


def spread_out(fmaps: dict[str, Any]) -> dict[str, Any]:
    """Maps with more than one position; all maps where none has."""
    return {name: own for name, own in fmaps.items() if own[0, 0].numel() > 1} or fmaps


def select_layer(name: str, fmaps: dict[str, Any], default: str) -> str:
    """The layer of this name, or the default if the name is empty."""
    if name and name not in fmaps:
        raise BadInput(f"the model has no layer '{name}' with feature maps", fix=nearest(name, fmaps))
    return name or default


def last_convolution(model: Any, fmaps: dict[str, Any]) -> str:
    """The name of the last convolution with a map; without convolutions, of the last map."""
    kinds = {name for name, part in model.named_modules() if isinstance(part, nn.Conv2d)}
    return next((name for name in reversed(fmaps) if name in kinds), list(fmaps)[-1])


@contextmanager
def enable_gradients() -> Iterator[None]:
    """Enable gradients, even inside no_grad or inference mode."""
    with torch.inference_mode(False), torch.enable_grad():
        yield
