"""Attention: how much each token takes of every other, head by head and layer by layer."""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

import torch

from ..core.batch import ask
from ..core.options import Range
from ..core.reading import Heat, Reading, Subject
from ..nn.mixers.attention import Attention, CrossAttention
from .tools.readonly import check_index, guard, hook_outputs, preserve_state, spread_evenly
from .tools.tiny import letters
from .tools.tokens import layer, no_tokens, select_row, spell_tokens, token_names


class Map(NamedTuple):
    """The weights of one layer for one example, and which sequences its queries and keys are."""

    name: str
    weights: Any
    """(H, queries, keys), each row summing to 1"""
    query_tokens: Any
    """tokens of the queries"""
    key_tokens: Any
    """tokens of the keys"""
    cross: bool


def why_not(subject: Subject) -> str:
    return no_tokens(subject) or ("" if _layers(subject.model) else "the model has no attention layer")


@guard
def read(
    subject: Subject,
    example: Annotated[int, Range(0)] = 0,
    tokens: Annotated[int, Range(1, 512)] = 28,
    heads: Annotated[int, Range(1, 64)] = 4,
    layers: Annotated[int, Range(1, 64)] = 4,
) -> list[Reading]:
    """A picture for each layer, a panel for each head: queries down, keys across, each row summing to 1.

    Args:
        example: which of the batch, from 0
        tokens: how many of its first tokens the model is given
        heads: how many to draw, the first
        layers: how many to draw, from the first to the last
    """
    attentions, names = maps(subject, example, tokens), spell_tokens(subject)
    return [
        Heat(
            f"Attention of {layer(each.name)}",
            {f"head {h + 1}": each.weights[h].round(decimals=3) for h in range(min(heads, len(each.weights)))},
            axes=["from", "to the source"] if each.cross else ["from", "to"],
            note=f"Of example {example}, {len(each.query_tokens)} tokens; {_select(heads, len(each.weights), 'heads')}, "
            f"{_select(layers, len(attentions), 'layers')}. Darker is more; a row sums to 1.",
            rows=token_names(each.query_tokens, names),
            columns=token_names(each.key_tokens, names),
            share="row",
        )
        for each in spread_evenly(attentions, layers)
    ]


def _select(shown: int, there: int, what: str) -> str:
    return f"{shown} of {there} {what}" if shown < there else f"all {there} {what}" if there > 1 else f"one of the {what}"


def maps(subject: Subject, example: int, tokens: int) -> list[Map]:
    """The weights of every attention layer, in the order in which they run, for the first tokens of one example."""
    check_index("example", example, len(subject.batch))
    batch = select_row(subject.batch, example, tokens)
    attentions: list[Map] = []

    def note(name: str, module: Any, inputs: tuple[Any, ...], output: Any) -> None:
        cross = isinstance(module, CrossAttention)
        weights = module.weights(inputs[0], inputs[1]) if cross else module.weights(inputs[0])
        # Of a pair the source is read from both sides, the target is not.
        asking = batch.source[0] if "source" in batch and not cross and not module.causal else batch.x[0]
        attentions.append(Map(name, weights[0].double(), asking, batch.source[0] if cross else asking, cross))

    with preserve_state(subject.model), torch.no_grad(), hook_outputs(_layers(subject.model), note):
        ask(subject.model, batch)
    return attentions


def _layers(model: Any) -> dict[str, Any]:
    return {name: part for name, part in model.named_modules() if isinstance(part, (Attention, CrossAttention))}


def tiny() -> Subject:
    return letters()
