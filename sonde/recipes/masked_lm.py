"""A masked language model in the manner of BERT: some tokens are hidden, and the model says what they were, from both sides."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

from ..core.options import Range
from ..core.recipe import Recipe
from ..data.corrupt import freeze_held_out, masking
from .tools.sequence import BatchSize, Depth, LearningRate, ModelWidth, StepCount, network, training, window_data


def recipe(
    mixer: str = "attention causal=false",
    depth: Depth = 4,
    width: ModelWidth = 128,
    context: Annotated[int, Range(2, 4096)] = 64,
    level: Literal["bpe", "unigram", "wordpiece", "words", "char"] = "bpe",
    most: Annotated[int, Range(300, 1 << 20)] = 2000,
    rate: Annotated[float, Range(above=0, below=1)] = 0.15,
    batch_size: BatchSize = 32,
    lr: LearningRate = 2e-3,
    steps: StepCount = 1000,
    data: Path | None = None,
    seed: int = 0,
) -> Recipe:
    """A masked language model; its loss is in nats per hidden token, and accuracy counts hidden tokens alone.

    Args:
        mixer: what moves information along the sequence, by name; one that looks both ways sees the most
        depth: blocks
        width: model dimension
        context: tokens of a training window
        level: what a token is
        most: most different tokens
        rate: share of the tokens to predict; of these 80 % are masked, 10 % replaced by another and 10 % left as they are
        batch_size: windows per update
        lr: peak learning rate: linear warm-up, then cosine decay to a tenth
        steps: updates
        data: a plain text file; by default tiny-Shakespeare, and where that is missing the source text of Python's standard library
    """
    dataset = window_data(data, context, overlap=4, specials=("mask",), share=0.2, level=level, most=most)
    hide = masking(dataset.reader.vocabulary, rate)
    model = network(mixer, width, depth, len(dataset.classes), context, tied=True)
    base = training(model, replace(freeze_held_out(dataset, hide, seed), name=f"{dataset.name}, {rate:.0%} hidden"), batch_size, lr, steps)
    return base.replace(augment=hide)
