"""T5 (Raffel and others 2020): encoder and decoder with learned numbers for distances; version 1.1 has a gate and a head of its own."""

from __future__ import annotations

from typing import Any

from torch import nn

from ...core.errors import BadInput
from ...nn.block import GATED, STYLES, Style
from ...nn.mixers.attention import Attention
from ...nn.positions import RelativeBias
from ..encoder_decoder import EncoderDecoder
from ._layout import ACTIVATIONS, Fields, TensorRow, ffn_width, first, joined_rows, pair, qkv_sizes, refuse, their_name

ARCHITECTURE = "T5ForConditionalGeneration"
PREFIX = ""
SILENT = (r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",)
"""files of the time hold a table that nothing reads"""
INSTEAD = {"lm_head.weight": "shared.weight"}
"""where a tensor that is not in the file may be read"""
NETWORKS = {"relu": "relu", "gated-gelu": "geglu", "gated-silu": "swiglu", **ACTIVATIONS}


def owns(model: nn.Module) -> bool:
    return isinstance(model, EncoderDecoder)


def build(config: Fields) -> EncoderDecoder:
    width, heads, depth = config.integer("d_model"), config.integer("num_heads"), config.depth("num_layers")
    config.only(num_decoder_layers=depth, is_encoder_decoder=True)
    attend = f"attention heads={heads} each={config.integer('d_kv')} positions=relative scale=1"
    activation = config.choice("feed_forward_proj", NETWORKS, "relu")
    # Newer versions of the package write the second field for models with a head of their own and call them tied.
    tied = config.flag("tie_word_embeddings", True) and config.flag("scale_decoder_outputs", True)
    model = EncoderDecoder(
        vocabulary=config.integer("vocab_size"),
        width=width,
        depth=depth,
        heads=heads,
        ffn=config.integer("d_ff") / width * (1.5 if activation in GATED else 1),
        encoder=f"{attend} causal=false",
        decoder=attend,
        dropout=config.fraction("dropout_rate", 0.0),
        tied=tied,
        style=Style(
            eps=config.nonnegative("layer_norm_epsilon", STYLES["t5"].eps),
            activation=activation,  # type: ignore[arg-type]
            scaled=False,
            shrunk=tied,
        ),
    )
    buckets, furthest = config.integer("relative_attention_num_buckets", 32), config.integer("relative_attention_max_distance", 128)
    if buckets % 4 or furthest <= buckets // 2:
        raise BadInput(f"config.json has {buckets} classes of distances up to {furthest}", where=config.where, fix="use 4 n classes")
    for stack, causal in ((model.encoder, False), (model.decoder, True)):
        shared = RelativeBias(heads, causal, buckets, furthest)
        for block in stack.blocks:
            block.mixer.distance = shared  # type: ignore[union-attr]
    return model


def describe(model: EncoderDecoder) -> dict[str, Any]:
    reader, writer, style = first(model.encoder), first(model.decoder), model.style
    cross: Any = model.decoder.blocks[0].cross
    refuse("t5", {f"the mixer {type(x).__name__}": not isinstance(x, Attention) for x in (reader, writer)})
    assert isinstance(reader, Attention) and isinstance(writer, Attention)
    shape = [(x.heads, x.groups, x.each, x.scale, x.positions, x.qkv.bias is None) for x in (reader, writer)]
    wanted = (writer.heads, writer.heads, writer.each, 1, "relative", True)
    refuse(
        "t5",
        {
            "norms after the sums": style.post,
            "norms with a mean": style.norm != "rms",
            "linear maps with bias": style.bias,
            "embeddings that are multiplied": style.scaled,
            "logits that are divided and embeddings of their own, or neither": style.shrunk != (model.head is None),
            "positions that are added to tokens": model.positions is not None,
            "two vocabularies": model.source_embedding is not None,
            "attention without 'positions=relative scale=1'": shape != [wanted] * 2,
            "other heads for the source": cross.heads != writer.heads or cross.q.out_features != writer.heads * writer.each,
        },
    )
    distance = writer.distance
    assert isinstance(distance, RelativeBias)
    return {
        "vocab_size": model.vocabulary,
        "d_model": model.width,
        "d_kv": writer.each,
        "d_ff": ffn_width(model.decoder),
        "num_layers": len(model.encoder.blocks),
        "num_decoder_layers": len(model.decoder.blocks),
        "num_heads": writer.heads,
        "relative_attention_num_buckets": distance.buckets,
        "relative_attention_max_distance": distance.furthest,
        "feed_forward_proj": their_name(NETWORKS, style.activation),
        "layer_norm_epsilon": style.eps,
        "dropout_rate": model.dropout.p,
        "is_encoder_decoder": True,
        "tie_word_embeddings": model.head is None,
    }


def table(model: EncoderDecoder) -> list[TensorRow]:
    rows = [TensorRow("embedding.weight", ("shared.weight",))]
    network = {"up": "wi_1", "gate": "wi_0", "down": "wo"} if model.style.activation in GATED else {"up": "wi", "down": "wo"}
    for side, stack in (("encoder", model.encoder), ("decoder", model.decoder)):
        mixer, last = first(stack), 2 if side == "decoder" else 1
        assert isinstance(mixer, Attention)
        distance = f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias"
        rows += pair(f"{side}.blocks.0.mixer.distance", distance)
        for i in range(len(stack.blocks)):
            ours, theirs = f"{side}.blocks.{i}", f"{side}.block.{i}.layer"
            rows += joined_rows(f"{ours}.mixer.qkv", tuple(f"{theirs}.0.SelfAttention.{x}" for x in "qkv"), qkv_sizes(mixer))
            rows += pair(f"{ours}.mixer.out", f"{theirs}.0.SelfAttention.o")
            rows += pair(f"{ours}.norm", f"{theirs}.0.layer_norm")
            if side == "decoder":
                for mine, other in {"q": "q", "k": "k", "v": "v", "out": "o"}.items():
                    rows += pair(f"{ours}.cross.{mine}", f"{theirs}.1.EncDecAttention.{other}")
                rows += pair(f"{ours}.cross_norm", f"{theirs}.1.layer_norm")
            for mine, other in network.items():
                rows += pair(f"{ours}.ffn.{mine}", f"{theirs}.{last}.DenseReluDense.{other}")
            rows += pair(f"{ours}.ffn_norm", f"{theirs}.{last}.layer_norm")
        rows += pair(f"{side}.norm", f"{side}.final_layer_norm")
    return rows if model.head is None else [*rows, *pair("head", "lm_head")]


def copies(model: EncoderDecoder) -> dict[str, str]:
    """Names under which some files repeat a tensor."""
    names = ["encoder.embed_tokens.weight", "decoder.embed_tokens.weight", *(["lm_head.weight"] if model.head is None else [])]
    return dict.fromkeys(names, "shared.weight")
