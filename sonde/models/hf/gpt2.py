"""GPT-2 (Radford and others 2019): learned positions, norms before the branches, one matrix for both ends."""

from __future__ import annotations

from typing import Any

from torch import nn

from ...nn.block import STYLES, Style
from ...nn.mixers.attention import Attention
from ..language_model import LanguageModel
from ._layout import ACTIVATIONS, Fields, TensorRow, ffn_width, first, pair, refuse, their_name

ARCHITECTURE = "GPT2LMHeadModel"
PREFIX = "transformer."
SILENT = (r"transformer\.h\.\d+\.attn\.(masked_)?bias",)
"""tensors of some files that hold nothing learned"""

BLOCK = {
    "norm": "ln_1",
    "mixer.qkv": "attn.c_attn",
    "mixer.out": "attn.c_proj",
    "ffn_norm": "ln_2",
    "ffn.up": "mlp.c_fc",
    "ffn.down": "mlp.c_proj",
}


def owns(model: nn.Module) -> bool:
    return isinstance(model, LanguageModel) and isinstance(first(model.stack), Attention) and model.style.norm == "layer"


def build(config: Fields) -> LanguageModel:
    config.only(scale_attn_weights=True, scale_attn_by_inverse_layer_idx=False, reorder_and_upcast_attn=False, add_cross_attention=False)
    width = config.integer("n_embd")
    return LanguageModel(
        vocabulary=config.integer("vocab_size"),
        width=width,
        depth=config.depth("n_layer"),
        mixer=f"attention heads={config.integer('n_head')} positions=none bias=true",
        ffn=config.integer("n_inner", 4 * width) / width,
        positions="learned",
        max_positions=config.integer("n_positions"),
        dropout=config.fraction("resid_pdrop", 0.0),
        tied=config.flag("tie_word_embeddings", True),
        style=Style(
            "layer",
            eps=config.nonnegative("layer_norm_epsilon", STYLES["gpt2"].eps),
            activation=config.choice("activation_function", ACTIVATIONS, "gelu_new"),  # type: ignore[arg-type]
            bias=True,
            scaled=False,
        ),
    )


def describe(model: LanguageModel) -> dict[str, Any]:
    mixer, style, positions = first(model.stack), model.style, model.positions
    assert isinstance(mixer, Attention)
    refuse(
        "gpt2",
        {
            "norms after the sums": style.post,
            "a gate in the network of each token": style.activation not in ACTIVATIONS.values(),
            "linear maps without bias": not style.bias or mixer.qkv.bias is None,
            f"'{mixer.positions}' positions in attention": mixer.positions != "none",
            "grouped keys": mixer.groups != mixer.heads,
            "heads whose widths do not add up to that of the tokens": mixer.heads * mixer.each != model.width,
            "another scale of the scores": mixer.scale is not None,
            "tokens without learned positions": positions is None or positions.kind != "learned",
        },
    )
    assert positions is not None
    return {
        "vocab_size": model.vocabulary,
        "n_embd": model.width,
        "n_layer": len(model.stack.blocks),
        "n_head": mixer.heads,
        "n_inner": ffn_width(model.stack),
        "n_positions": positions.max_positions,
        "activation_function": their_name(ACTIVATIONS, style.activation),
        "layer_norm_epsilon": style.eps,
        "resid_pdrop": model.dropout.p,
        "embd_pdrop": model.dropout.p,
        "attn_pdrop": 0.0,
        "tie_word_embeddings": model.head is None,
    }


def table(model: LanguageModel) -> list[TensorRow]:
    assert model.positions is not None
    tied = model.head is None
    rows = [TensorRow("embedding.weight", ("transformer.wte.weight",), factor=model.scale)]
    rows.append(TensorRow("positions.weight", ("transformer.wpe.weight",), factor=model.positions.scale))
    for i in range(len(model.stack.blocks)):
        for ours, theirs in BLOCK.items():
            form = "same" if theirs.startswith("ln_") else "turned"
            rows += pair(f"stack.blocks.{i}.{ours}", f"transformer.h.{i}.{theirs}", bias=True, form=form)
    # What multiplies the embeddings would multiply the logits too where one matrix serves both, so the last norm takes it back.
    rows += pair("stack.norm", "transformer.ln_f", bias=True, factor=model.style.shrink(model.width, tied) / model.scale if tied else 1.0)
    return rows if tied else [*rows, *pair("head", "lm_head")]


def copies(model: LanguageModel) -> dict[str, str]:
    """Names under which some files repeat a tensor."""
    return {"lm_head.weight": "transformer.wte.weight"} if model.head is None else {}
