"""A language model over sub-words, words or bytes of a text, or of token shards larger than memory."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from ..core.options import Range
from ..core.recipe import Recipe
from .tools.sequence import BatchSize, Depth, LearningRate, ModelWidth, StepCount, network, sequence_recipe, window_data


def recipe(
    mixer: str = "attention",
    depth: Depth = 4,
    width: ModelWidth = 128,
    context: Annotated[int, Range(2, 1 << 20)] = 128,
    level: Literal["bpe", "unigram", "wordpiece", "words", "byte", "char"] = "bpe",
    most: Annotated[int, Range(300, 1 << 20)] = 2000,
    dropout: Annotated[float, Range(least=0, below=1)] = 0.0,
    batch_size: BatchSize = 16,
    lr: LearningRate = 2e-3,
    steps: StepCount = 1000,
    data: Path | None = None,
) -> Recipe:
    """A language model over sub-words learned from the training text; its loss is in nats per token.

    Args:
        mixer: sequence mixer by name (`sonde list mixers`), with its options: "gla heads=8"
        depth: blocks
        width: model dimension
        context: tokens per training window
        level: kind of tokens
        most: maximum vocabulary size
        dropout: dropout probability in each block
        batch_size: windows per update
        lr: peak learning rate: linear warm-up, then cosine decay to a tenth
        steps: updates
        data: a plain text file, or a folder of token shards (`sonde data tokens`), which has its own tokenizer; by default
            tiny-Shakespeare, and where that is missing the source text of Python's standard library
    """
    dataset = window_data(data, context, overlap=4, share=0.2, level=level, most=most)
    model = network(mixer, width, depth, len(dataset.classes), context, dropout=dropout, tied=True)
    return sequence_recipe(model, dataset, batch_size, lr, steps)
