"""Attention rollout: how much each position depends on each input token through all attention layers.

Abnar & Zuidema, Quantifying Attention Flow in Transformers, 2020: every layer outputs half of its input and half of what
it attends to, so the layers multiply as  R = (A_L + I)/2 ... (A_1 + I)/2  with A the mean of a layer's heads.
"""

from __future__ import annotations

from typing import Annotated, Any

import torch

from ..core.options import Range
from ..core.reading import Heat, Reading, Subject
from ..nn.mixers.attention import Attention
from .attention import attention_maps
from .tools.readonly import guard
from .tools.tiny import letters
from .tools.tokens import no_tokens, spell_tokens, token_names


def why_not(subject: Subject) -> str:
    """Why the lens does not apply to a subject, or ''; `guard` turns it into an error."""
    if missing := no_tokens(subject):
        return missing
    return "" if any(isinstance(part, Attention) for part in subject.model.modules()) else "the model has no self-attention layer"


@guard
def read(subject: Subject, example: Annotated[int, Range(0)] = 0, tokens: Annotated[int, Range(1, 512)] = 32) -> list[Reading]:
    """For each stack of layers: positions after the last layer in rows, input tokens in columns; each row sums to 1.

    Args:
        example: index of the example in the batch
        tokens: how many of its first tokens to use
    """
    stacks: dict[str, list[Any]] = {}
    for each in attention_maps(subject, example, tokens):
        if not each.cross:
            stacks.setdefault(_stack(each.name), []).append(each)
    names = spell_tokens(subject)
    readings: list[Reading] = []
    for stack, layers in stacks.items():
        words = token_names(layers[0].query_tokens, names)
        readings.append(
            Heat(
                "Attention rollout" + (f" of the {stack}" if len(stacks) > 1 else ""),
                {"weight": roll_out([each.weights for each in layers]).round(decimals=3)},
                axes=["after the last layer", "input"],
                note=f"Example {example}, through {len(layers)} attention layers, heads averaged; each layer outputs half of its input and "
                "half of what it attends to. Darker is more; each row sums to 1.",
                rows=words,
                columns=words,
                share="row",
            )
        )
    return readings


def roll_out(layers: list[Any]) -> Any:
    """The product of all layers' weights (H, T, T), first layer first, each mixed with the identity: (T, T)."""
    rollout = torch.eye(layers[0].shape[-1], dtype=layers[0].dtype)
    for weights in layers:
        rollout = 0.5 * (weights.mean(0) @ rollout + rollout)
    return rollout


def _stack(name: str) -> str:
    """encoder.blocks.0.mixer -> encoder"""
    return name.split(".")[0]


def tiny() -> Subject:
    """A small subject for the contract tests."""
    return letters()
