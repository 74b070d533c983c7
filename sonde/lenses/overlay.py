"""Attention over the image: how much a vision transformer attends to each patch, in its last layer and by rollout."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

import torch

from ..core.batch import call_model
from ..core.options import Range
from ..core.reading import Images, Reading, Subject
from ..models.vit import ViT
from ..nn.mixers.attention import Attention
from .rollout import roll_out
from .tools.pictures import no_images, patches, picture
from .tools.readonly import guard, hook_outputs, preserve_state
from .tools.tiny import images


def why_not(subject: Subject) -> str:
    """Why the lens does not apply to a subject, or ''; `guard` turns it into an error."""
    if missing := no_images(subject):
        return missing
    return "" if hasattr(subject.model, "patch") and _layers(subject.model) else "the model has no attention over image patches"


@guard
def read(subject: Subject, n: Annotated[int, Range(1, 32)] = 6, heads: Annotated[int, Range(0, 16)] = 4) -> Reading:
    """A row for each image: the weights of the last layer, the rollout of all layers, and single heads of the last layer.

    Args:
        n: how many images, the first of the batch
        heads: how many of the first heads to draw
    """
    batch = subject.batch[:n]
    layers = weights(subject.model, batch)
    h, w = patches(batch.x.shape[-2:], subject.model.patch)
    heads, class_token = min(heads, layers[0].shape[1]), layers[0].shape[-1] > h * w
    views = [patch_weights(layers, h * w, i, heads).unflatten(1, (h, w)) for i in range(len(batch))]
    names = ["image", "last layer", "rollout", *(f"head {i + 1}" for i in range(heads))]
    return Images(
        "Attention over the image",
        {"images": [picture(image) for image in batch.x for _ in names]},
        axes=["picture", "row", "column"],
        note=f"Heat is the attention weight of each patch of {_side(subject.model.patch)} pixels for "
        f"{'the class token' if class_token else 'the mean of all tokens'}: in the last of {len(layers)} layers (mean of the heads, and "
        "single heads), and by rollout through all layers. Each picture has its own scale.",
        across=len(names),
        labels=[*[""] * len(names) * (len(batch) - 1), *names],
        heat=[each for view in views for each in (None, *view.tolist())],
        rows=[str(i) for i in range(len(batch))],
    )


def weights(model: Any, batch: Any) -> list[Any]:
    """(B, H, T, T) for each attention layer, in the order in which they run."""
    maps: list[Any] = []
    with (
        preserve_state(model),
        torch.no_grad(),
        hook_outputs(_layers(model), lambda name, module, inputs, _: maps.append(module.weights(inputs[0]))),
    ):
        call_model(model, batch)
    return [each.double() for each in maps]


def patch_weights(layers: list[Any], count: int, example: int, heads: int) -> Any:
    """(2 + heads, patches) attention to each patch: in the last layer, by rollout, and in single heads of the last layer.

    The query is the class token before the patches; without one, the mean over all tokens.
    """
    each, last = [layer[example] for layer in layers], layers[-1][example]
    matrices = torch.stack([last.mean(0), roll_out(each), *last[:heads]])
    query = matrices[:, 0] if matrices.shape[-1] > count else matrices.mean(1)
    return query[:, matrices.shape[-1] - count :]


def _side(side: Any) -> str:
    return " × ".join(map(str, side if isinstance(side, (tuple, list)) else (side, side)))


def _layers(model: Any) -> dict[str, Any]:
    return {name: part for name, part in model.named_modules() if isinstance(part, Attention)}


def tiny() -> Subject:
    """A small subject for the contract tests."""
    subject = images()
    with preserve_state():
        torch.manual_seed(0)
        model = ViT(image=(8, 6), patch=2, width=8, depth=2, heads=2, classes=5, channels=1, ffn=1.0)
        torch.nn.init.normal_(model.head.weight)
    return replace(subject, model=model, objective=None)
