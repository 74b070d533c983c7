"""Mamba-2 (Dao and Gu 2024): blocks of one recurrence each, without attention and without a network for each token."""

from __future__ import annotations

from typing import Any

from torch import nn

from ...core.errors import DataUnusable
from ...nn.block import Style
from ...nn.mixers.mamba2 import Mamba2
from ..language_model import LanguageModel
from ._layout import Fields, TensorRow, first, pair, refuse

ARCHITECTURE = "Mamba2ForCausalLM"
PREFIX = "backbone."
SILENT = ()
ENDLESS = 1e30
"""a longest time step from here on is none"""

MIXER = {"step_bias": "dt_bias", "log_rate": "A_log", "D": "D", "conv.bias": "conv1d.bias"}
LINEAR = {"in_proj": "in_proj", "norm": "norm", "out": "out_proj"}


def owns(model: nn.Module) -> bool:
    return isinstance(model, LanguageModel) and isinstance(first(model.stack), Mamba2)


def build(config: Fields) -> LanguageModel:
    config.only(use_bias=False, use_conv_bias=True, hidden_act="silu", norm_before_gate=False)
    width, heads, expand = config.integer("hidden_size"), config.integer("num_heads"), config.integer("expand", 2)
    config.only(head_dim=width * expand // heads)
    least, most = _limits(config)
    options = {
        "heads": heads,
        "states": config.integer("state_size"),
        "groups": config.integer("n_groups"),
        "expand": expand,
        "taps": config.integer("conv_kernel", 4),
        "least": least,
        **({} if most is None else {"most": most}),
    }
    eps = config.nonnegative("layer_norm_epsilon", 1e-5)
    model = LanguageModel(
        vocabulary=config.integer("vocab_size"),
        width=width,
        depth=config.depth("num_hidden_layers"),
        mixer="mamba2 " + " ".join(f"{name}={value}" for name, value in options.items()),
        ffn=0,
        tied=config.flag("tie_word_embeddings", False),
        style=Style(eps=eps, scaled=False),
    )
    for block in model.stack.blocks:
        block.mixer.norm.eps = eps  # type: ignore[union-attr]
    return model


def _limits(config: Fields) -> tuple[float, float | None]:
    """The shortest and longest time step; infinity is written in two ways."""
    limits = config.values.get("time_step_limit") or [0.0, float("inf")]
    if isinstance(limits, list) and len(limits) == 2:
        least, most = (float("inf") if value == {"__float__": "Infinity"} else value for value in limits)
        if all(isinstance(value, (int, float)) for value in (least, most)) and 0 <= least < most:
            return float(least), None if most >= ENDLESS else float(most)
    raise DataUnusable(f"'time_step_limit' of config.json must be two numbers, not {str(limits)[:60]}", where=config.where)


def describe(model: LanguageModel) -> dict[str, Any]:
    mixer, style = first(model.stack), model.style
    assert isinstance(mixer, Mamba2)
    refuse(
        "mamba2",
        {
            "norms after the sums": style.post,
            "norms with a mean": style.norm != "rms",
            "a network for each token": model.stack.blocks[0].ffn is not None,
            "positions that are added to tokens": model.positions is not None,
            "two sorts of norms": mixer.norm.eps != style.eps,
        },
    )
    inner, keys, _ = mixer.sizes
    limits = {} if mixer.least == 0 and mixer.most is None else {"time_step_limit": [mixer.least, mixer.most or ENDLESS]}
    return {
        "vocab_size": model.vocabulary,
        "hidden_size": model.width,
        "num_hidden_layers": len(model.stack.blocks),
        "num_heads": mixer.heads,
        "head_dim": inner // mixer.heads,
        "state_size": keys // mixer.groups,
        "n_groups": mixer.groups,
        "expand": inner // model.width,
        "conv_kernel": mixer.conv.taps,
        "layer_norm_epsilon": style.eps,
        "use_bias": False,
        "use_conv_bias": True,
        "hidden_act": "silu",
        "tie_word_embeddings": model.head is None,
        **limits,
    }


def table(model: LanguageModel) -> list[TensorRow]:
    tied = model.head is None
    rows = [TensorRow("embedding.weight", ("backbone.embeddings.weight",), factor=model.scale)]
    for i in range(len(model.stack.blocks)):
        ours, theirs = f"stack.blocks.{i}", f"backbone.layers.{i}"
        rows += pair(f"{ours}.norm", f"{theirs}.norm")
        rows += [TensorRow(f"{ours}.mixer.{mine}", (f"{theirs}.mixer.{other}",)) for mine, other in MIXER.items()]
        rows.append(TensorRow(f"{ours}.mixer.conv.weight", (f"{theirs}.mixer.conv1d.weight",), form="taps"))
        for mine, other in LINEAR.items():
            rows += pair(f"{ours}.mixer.{mine}", f"{theirs}.mixer.{other}")
    # What multiplies the embeddings would multiply the logits too where one matrix serves both, so the last norm takes it back.
    rows += pair("stack.norm", "backbone.norm_f", factor=model.style.shrink(model.width, tied) / model.scale if tied else 1.0)
    return rows if tied else [*rows, *pair("head", "lm_head")]


def copies(model: LanguageModel) -> dict[str, str]:
    """Names under which some files repeat a tensor."""
    return {"lm_head.weight": "backbone.embeddings.weight"} if model.head is None else {}
