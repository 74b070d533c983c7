"""Attention: how much each token attends to every other, by head and layer."""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

import torch

from ..core.batch import call_model
from ..core.options import Range
from ..core.reading import Heat, Reading, Subject
from ..nn.mixers.attention import Attention, CrossAttention
from .tools.readonly import check_index, guard, hook_outputs, preserve_state, spread_evenly
from .tools.tiny import letters
from .tools.tokens import layer_label, no_tokens, select_row, spell_tokens, token_names


class AttentionMap(NamedTuple):
    """Attention weights of one layer for one example, and the tokens of its queries and keys."""

    name: str
    """of the module"""
    weights: Any
    """(H, queries, keys), each row summing to 1"""
    query_tokens: Any
    """ids of the tokens that attend"""
    key_tokens: Any
    """ids of the tokens attended to"""
    cross: bool
    """from the decoder to the source"""


def why_not(subject: Subject) -> str:
    """Why the lens does not apply to a subject, or ''; `guard` turns it into an error."""
    return no_tokens(subject) or ("" if _layers(subject.model) else "the model has no attention layer")


@guard
def read(
    subject: Subject,
    example: Annotated[int, Range(0)] = 0,
    tokens: Annotated[int, Range(1, 512)] = 28,
    heads: Annotated[int, Range(1, 64)] = 4,
    layers: Annotated[int, Range(1, 64)] = 4,
) -> list[Reading]:
    """A picture per layer, a panel per head: queries in rows, keys in columns; each row sums to 1.

    Args:
        example: index of the example in the batch
        tokens: how many of its first tokens to use
        heads: how many of the first heads to draw
        layers: how many to draw, evenly spaced from the first to the last
    """
    attentions, vocabulary = attention_maps(subject, example, tokens), spell_tokens(subject)
    return [
        Heat(
            f"Attention of {layer_label(each.name)}",
            {f"head {h + 1}": each.weights[h].round(decimals=3) for h in range(min(heads, len(each.weights)))},
            axes=["from", "to the source"] if each.cross else ["from", "to"],
            note=f"Example {example}, {len(each.query_tokens)} tokens; {_count_text(heads, len(each.weights), 'heads')}, "
            f"{_count_text(layers, len(attentions), 'layers')}. Darker is more; each row sums to 1.",
            rows=token_names(each.query_tokens, vocabulary),
            columns=token_names(each.key_tokens, vocabulary),
            share="row",  # shade each weight relative to the sum of its row
        )
        for each in spread_evenly(attentions, layers)
    ]


def _count_text(shown: int, total: int, what: str) -> str:
    """For the note: '4 of 8 heads', or 'all 4 heads'."""
    return f"{shown} of {total} {what}" if shown < total else f"all {total} {what}" if total > 1 else f"1 of 1 {what}"


def attention_maps(subject: Subject, example: int, tokens: int) -> list[AttentionMap]:
    """Weights of every attention layer for the first tokens of one example, in the order the layers run."""
    check_index("example", example, len(subject.batch))
    batch = select_row(subject.batch, example, tokens)
    attentions: list[AttentionMap] = []

    def record(name: str, module: Any, inputs: tuple[Any, ...], output: Any) -> None:
        cross = isinstance(module, CrossAttention)
        weights = module.weights(inputs[0], inputs[1]) if cross else module.weights(inputs[0])
        # In an encoder-decoder the self-attention that is not causal is the encoder's, so its queries are tokens of the source.
        queries = batch.source[0] if "source" in batch and not cross and not module.causal else batch.x[0]
        attentions.append(AttentionMap(name, weights[0].double(), queries, batch.source[0] if cross else queries, cross))

    with preserve_state(subject.model), torch.no_grad(), hook_outputs(_layers(subject.model), record):
        call_model(subject.model, batch)
    return attentions


def _layers(model: Any) -> dict[str, Any]:
    """Attention layers by the name of the module."""
    return {name: part for name, part in model.named_modules() if isinstance(part, (Attention, CrossAttention))}


def tiny() -> Subject:
    """A small subject for the contract tests."""
    return letters()
