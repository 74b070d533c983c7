"""BERT (Devlin and others 2019): an encoder with two heads.  Files of the time call the numbers of norms gamma and beta."""

from __future__ import annotations

from typing import Any

from torch import nn

from ...nn.block import STYLES, Style
from ...nn.mixers.attention import Attention
from ..bert import Bert
from ._layout import ACTIVATIONS, Fields, TensorRow, ffn_width, first, joined_rows, pair, qkv_sizes, refuse, their_name

ARCHITECTURE = "BertForPreTraining"
PREFIX = "bert."
SILENT = (r"bert\.embeddings\.position_ids",)

BLOCK = {
    "mixer.out": "attention.output.dense",
    "norm": "attention.output.LayerNorm",
    "ffn.up": "intermediate.dense",
    "ffn.down": "output.dense",
    "ffn_norm": "output.LayerNorm",
}
ENDS = {
    "norm": "bert.embeddings.LayerNorm",
    "pooler": "bert.pooler.dense",
    "token_map": "cls.predictions.transform.dense",
    "token_norm": "cls.predictions.transform.LayerNorm",
}


def owns(model: nn.Module) -> bool:
    return isinstance(model, Bert)


def build(config: Fields) -> Bert:
    config.only(position_embedding_type="absolute", is_decoder=False, add_cross_attention=False, tie_word_embeddings=True)
    width = config.integer("hidden_size")
    return Bert(
        vocabulary=config.integer("vocab_size"),
        width=width,
        depth=config.depth("num_hidden_layers"),
        mixer=f"attention heads={config.integer('num_attention_heads')}",
        ffn=config.integer("intermediate_size") / width,
        max_positions=config.integer("max_position_embeddings"),
        kinds=config.integer("type_vocab_size"),
        dropout=config.fraction("hidden_dropout_prob", 0.0),
        style=Style(
            "layer",
            eps=config.nonnegative("layer_norm_eps", STYLES["bert"].eps),
            post=True,
            activation=config.choice("hidden_act", ACTIVATIONS, "gelu"),  # type: ignore[arg-type]
            bias=True,
            scaled=False,
        ),
    )


def describe(model: Bert) -> dict[str, Any]:
    mixer, style = first(model.stack), model.style
    refuse("bert", {f"the mixer {type(mixer).__name__}": not isinstance(mixer, Attention)})
    assert isinstance(mixer, Attention)
    refuse(
        "bert",
        {
            "norms before the branches": not style.post,
            "norms without a mean": style.norm != "layer",
            "a gate in the network of each token": style.activation not in ACTIVATIONS.values(),
            "linear maps without bias": not style.bias or mixer.qkv.bias is None,
            f"'{mixer.positions}' positions in attention": mixer.positions != "none",
            "grouped keys": mixer.groups != mixer.heads,
            "heads whose widths do not add up to that of the tokens": mixer.heads * mixer.each != model.width,
            "another scale of the scores": mixer.scale is not None,
        },
    )
    return {
        "vocab_size": model.vocabulary,
        "hidden_size": model.width,
        "num_hidden_layers": len(model.stack.blocks),
        "num_attention_heads": mixer.heads,
        "intermediate_size": ffn_width(model.stack),
        "max_position_embeddings": model.positions.max_positions,
        "type_vocab_size": model.segments.num_embeddings,
        "hidden_act": their_name(ACTIVATIONS, style.activation),
        "layer_norm_eps": style.eps,
        "hidden_dropout_prob": model.dropout.p,
        "attention_probs_dropout_prob": 0.0,
        "tie_word_embeddings": True,
    }


def table(model: Bert) -> list[TensorRow]:
    mixer = first(model.stack)
    assert isinstance(mixer, Attention)
    tables = {"embedding": "word", "positions": "position", "segments": "token_type"}
    rows = [TensorRow(f"{ours}.weight", (f"bert.embeddings.{theirs}_embeddings.weight",)) for ours, theirs in tables.items()]
    for ours, theirs in ENDS.items():
        rows += pair(ours, theirs, bias=True)
    for i in range(len(model.stack.blocks)):
        ours, theirs = f"stack.blocks.{i}", f"bert.encoder.layer.{i}"
        names = tuple(f"{theirs}.attention.self.{name}" for name in ("query", "key", "value"))
        rows += joined_rows(f"{ours}.mixer.qkv", names, qkv_sizes(mixer), bias=True)
        for mine, other in BLOCK.items():
            rows += pair(f"{ours}.{mine}", f"{theirs}.{other}", bias=True)
    rows.append(TensorRow("token_bias", ("cls.predictions.bias",)))
    # Their first class is 'next', ours 'not next'.
    rows += [TensorRow(f"pair_head.{leaf}", (f"cls.seq_relationship.{leaf}",), form="flipped") for leaf in ("weight", "bias")]
    return rows


def copies(model: Bert) -> dict[str, str]:
    """Names under which some files repeat a tensor."""
    word = "bert.embeddings.word_embeddings.weight"
    return {"cls.predictions.decoder.weight": word, "cls.predictions.decoder.bias": "cls.predictions.bias"}
