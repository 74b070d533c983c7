"""Llama (Touvron and others 2023): rotary positions, root-mean-square norms before the branches, a gated network, grouped keys."""

from __future__ import annotations

from typing import Any

from torch import nn

from ...core.errors import BadInput
from ...nn.block import STYLES, Style
from ...nn.mixers.attention import Attention
from ..language_model import LanguageModel
from ._layout import Fields, TensorRow, ffn_width, first, joined_rows, pair, qkv_sizes, refuse

ARCHITECTURE = "LlamaForCausalLM"
PREFIX = "model."
SILENT = (r"model\.(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq",)
CONTEXT = 2048
"""written where a model has no longest sequence; it limits nothing"""


def owns(model: nn.Module) -> bool:
    return isinstance(model, LanguageModel) and isinstance(first(model.stack), Attention) and model.style.norm == "rms"


def build(config: Fields) -> LanguageModel:
    config.only(hidden_act="silu", pretraining_tp=1)
    width, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    options = {
        "heads": heads,
        "groups": config.integer("num_key_value_heads", heads),
        "each": config.integer("head_dim", max(width // heads, 1)),
        "base": _base(config),
        "bias": str(config.flag("attention_bias", False)).lower(),
    }
    return LanguageModel(
        vocabulary=config.integer("vocab_size"),
        width=width,
        depth=config.depth("num_hidden_layers"),
        mixer="attention " + " ".join(f"{name}={value}" for name, value in options.items()),
        ffn=config.integer("intermediate_size") * 1.5 / width,
        tied=config.flag("tie_word_embeddings", False),
        style=Style(eps=config.nonnegative("rms_norm_eps", STYLES["llama"].eps), bias=config.flag("mlp_bias", False), scaled=False),
    )


def _base(config: Fields) -> float:
    """The base of the rotations, which has moved between versions; any other way to stretch them is refused."""
    for name in ("rope_parameters", "rope_scaling"):
        rope = config.values.get(name) or {}
        kind = rope.get("rope_type", rope.get("type", "default")) if isinstance(rope, dict) else rope
        if kind != "default":
            raise BadInput(
                f"config.json has {name} = {str(rope)[:80]}, which is not supported", where=config.where, fix="only 'default' is"
            )
    inside = Fields(config.values.get("rope_parameters") or {}, config.where)
    return inside.number("rope_theta", config.number("rope_theta", 10000.0))


def describe(model: LanguageModel) -> dict[str, Any]:
    mixer, style = first(model.stack), model.style
    assert isinstance(mixer, Attention)
    refuse(
        "llama",
        {
            "norms after the sums": style.post,
            f"blocks with '{style.activation}'": style.activation != "swiglu",
            "blocks without a network for each token": model.stack.blocks[0].ffn is None,
            f"'{mixer.positions}' positions in attention": mixer.positions != "rotary",
            "another scale of the scores": mixer.scale is not None,
            "positions that are added to tokens": model.positions is not None,
        },
    )
    return {
        "vocab_size": model.vocabulary,
        "hidden_size": model.width,
        "intermediate_size": ffn_width(model.stack),
        "num_hidden_layers": len(model.stack.blocks),
        "num_attention_heads": mixer.heads,
        "num_key_value_heads": mixer.groups,
        "head_dim": mixer.each,
        "rope_theta": mixer.base,
        "rope_parameters": {"rope_type": "default", "rope_theta": mixer.base},
        "rms_norm_eps": style.eps,
        "attention_bias": mixer.qkv.bias is not None,
        "mlp_bias": style.bias,
        "hidden_act": "silu",
        "max_position_embeddings": CONTEXT,
        "tie_word_embeddings": model.head is None,
    }


def table(model: LanguageModel) -> list[TensorRow]:
    mixer, tied = first(model.stack), model.head is None
    assert isinstance(mixer, Attention)
    rows, bias = [TensorRow("embedding.weight", ("model.embed_tokens.weight",), factor=model.scale)], mixer.qkv.bias is not None
    for i in range(len(model.stack.blocks)):
        ours, theirs = f"stack.blocks.{i}", f"model.layers.{i}"
        rows += pair(f"{ours}.norm", f"{theirs}.input_layernorm")
        rows += joined_rows(f"{ours}.mixer.qkv", tuple(f"{theirs}.self_attn.{x}_proj" for x in "qkv"), qkv_sizes(mixer), bias)
        rows += pair(f"{ours}.mixer.out", f"{theirs}.self_attn.o_proj", bias)
        rows += pair(f"{ours}.ffn_norm", f"{theirs}.post_attention_layernorm")
        for name in ("gate", "up", "down"):
            rows += pair(f"{ours}.ffn.{name}", f"{theirs}.mlp.{name}_proj", model.style.bias)
    # What multiplies the embeddings would multiply the logits too where one matrix serves both, so the last norm takes it back.
    rows += pair("stack.norm", "model.norm", factor=model.style.shrink(model.width, tied) / model.scale if tied else 1.0)
    return rows if tied else [*rows, *pair("head", "lm_head")]


def copies(model: LanguageModel) -> dict[str, str]:
    """Names under which some files repeat a tensor."""
    return {"lm_head.weight": "model.embed_tokens.weight"} if model.head is None else {}
