"""A masked language model as BERT: some tokens are masked, and the model predicts them from both sides."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

from ..core.options import Range
from ..core.recipe import Recipe
from ..data.corrupt import freeze_held_out, masking
from .tools.sequence import BatchSize, Depth, LearningRate, ModelWidth, StepCount, network, sequence_recipe, window_data


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
    """A masked language model; its loss is in nats per masked token, and accuracy counts masked tokens alone.

    Args:
        mixer: sequence mixer by name (`sonde list mixers`), with its options; a bidirectional one sees both sides
        depth: blocks
        width: model dimension
        context: tokens per training window
        level: kind of tokens
        most: maximum vocabulary size
        rate: fraction of the tokens to predict: 80 % of them are masked, 10 % replaced by a random token and 10 % unchanged
        batch_size: windows per update
        lr: peak learning rate: linear warm-up, then cosine decay to a tenth
        steps: updates
        data: a plain text file; by default tiny-Shakespeare, and where that is missing the source text of Python's standard library
    """
    dataset = window_data(data, context, overlap=4, specials=("mask",), share=0.2, level=level, most=most)
    hide = masking(dataset.reader.vocabulary, rate)
    model = network(mixer, width, depth, len(dataset.classes), context, tied=True)
    frozen = replace(freeze_held_out(dataset, hide, seed), name=f"{dataset.name}, {rate:.0%} hidden")
    return sequence_recipe(model, frozen, batch_size, lr, steps).replace(augment=hide)
