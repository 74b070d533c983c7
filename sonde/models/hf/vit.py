"""ViT (Dosovitskiy and others 2021): an encoder over patches of an image with a token for the answer."""

from __future__ import annotations

from typing import Any

from torch import nn

from ...core.errors import DataUnusable
from ...nn.block import Style
from ...nn.mixers.attention import Attention
from ..vit import ViT
from ._layout import ACTIVATIONS, SIZE_LIMIT, Fields, TensorRow, ffn_width, first, joined_rows, pair, qkv_sizes, refuse, their_name

ARCHITECTURE = "ViTForImageClassification"
PREFIX = "vit."
SILENT = (r"vit\.pooler\.dense\.(weight|bias)",)
"""of the body alone there is a layer that classification does not use"""

BLOCK = {
    "mixer.out": "attention.output.dense",
    "norm": "layernorm_before",
    "ffn.up": "intermediate.dense",
    "ffn.down": "output.dense",
    "ffn_norm": "layernorm_after",
}
ENDS = {"patches": "vit.embeddings.patch_embeddings.projection", "stack.norm": "vit.layernorm", "head": "classifier"}


def owns(model: nn.Module) -> bool:
    return isinstance(model, ViT)


def build(config: Fields) -> ViT:
    config.only(qkv_bias=True)
    width = config.integer("hidden_size", 768)
    return ViT(
        image=_sides(config, "image_size", 224),
        patch=_square(config),
        width=width,
        depth=config.depth("num_hidden_layers"),
        heads=config.integer("num_attention_heads", 12),
        classes=_classes(config),
        channels=config.integer("num_channels", 3),
        ffn=config.integer("intermediate_size", 3072) / width,
        dropout=config.fraction("hidden_dropout_prob", 0.0),
        style=Style(
            "layer",
            eps=config.nonnegative("layer_norm_eps", 1e-12),
            activation=config.choice("hidden_act", ACTIVATIONS, "gelu"),  # type: ignore[arg-type]
            bias=True,
            scaled=False,
        ),
    )


def _sides(config: Fields, name: str, default: int) -> tuple[int, int]:
    """Height and width, which are written as one number where they are equal."""
    value = config.values.get(name) or default
    sides = value if isinstance(value, list) else [value, value]
    if len(sides) != 2 or any(type(side) is not int or not 1 <= side < SIZE_LIMIT for side in sides):
        raise DataUnusable(f"'{name}' of config.json must be one or two whole numbers, not {str(value)[:60]!r}", where=config.where)
    return sides[0], sides[1]


def _square(config: Fields) -> int:
    high, wide = _sides(config, "patch_size", 16)
    config.only(**({} if high == wide else {"patch_size": high}))
    return high


def _classes(config: Fields) -> int:
    """One for each name; files without names have two."""
    names = config.values.get("id2label")
    return len(names) if isinstance(names, dict) and names else config.integer("num_labels", 2)


def describe(model: ViT) -> dict[str, Any]:
    mixer, style = first(model.stack), model.style
    assert isinstance(mixer, Attention)
    refuse(
        "vit",
        {
            "an answer made of the mean of all patches": model.pool != "token",
            f"'{model.positions.kind}' positions": model.positions.kind != "learned",
            "norms after the sums": style.post,
            "norms without a mean": style.norm != "layer",
            "a gate in the network of each token": style.activation not in ACTIVATIONS.values(),
            "linear maps without bias": not style.bias,
        },
    )
    names = {str(i): f"LABEL_{i}" for i in range(model.head.out_features)}
    return {
        "image_size": list(model.image),
        "patch_size": model.patch,
        "num_channels": model.channels,
        "hidden_size": model.width,
        "num_hidden_layers": len(model.stack.blocks),
        "num_attention_heads": mixer.heads,
        "intermediate_size": ffn_width(model.stack),
        "hidden_act": their_name(ACTIVATIONS, style.activation),
        "layer_norm_eps": style.eps,
        "hidden_dropout_prob": model.dropout.p,
        "attention_probs_dropout_prob": 0.0,
        "qkv_bias": True,
        "id2label": names,
        "label2id": {name: int(i) for i, name in names.items()},
    }


def table(model: ViT) -> list[TensorRow]:
    mixer = first(model.stack)
    assert isinstance(mixer, Attention)
    rows = [
        TensorRow("class_token", ("vit.embeddings.cls_token",)),
        TensorRow("positions.weight", ("vit.embeddings.position_embeddings",), form="alone"),
    ]
    for ours, theirs in ENDS.items():
        rows += pair(ours, theirs, bias=True)
    for i in range(len(model.stack.blocks)):
        ours, theirs = f"stack.blocks.{i}", f"vit.encoder.layer.{i}"
        names = tuple(f"{theirs}.attention.attention.{name}" for name in ("query", "key", "value"))
        rows += joined_rows(f"{ours}.mixer.qkv", names, qkv_sizes(mixer), bias=True)
        for mine, other in BLOCK.items():
            rows += pair(f"{ours}.{mine}", f"{theirs}.{other}", bias=True)
    return rows


def copies(model: ViT) -> dict[str, str]:
    """Names under which some files repeat a tensor."""
    return {}
