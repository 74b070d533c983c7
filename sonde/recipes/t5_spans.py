"""An encoder-decoder as T5: spans of a text are replaced by sentinels, and the decoder writes them."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

from ..core.options import Range
from ..core.recipe import Recipe
from ..data.corrupt import freeze_held_out, span_corruption, span_numbers
from ..models.encoder_decoder import EncoderDecoder
from .tools.sequence import BatchSize, Depth, LearningRate, ModelWidth, StepCount, sequence_recipe, window_data


def recipe(
    decoder: str = "attention",
    depth: Depth = 2,
    width: ModelWidth = 128,
    context: Annotated[int, Range(8, 4096)] = 96,
    level: Literal["bpe", "unigram", "wordpiece", "words", "char"] = "bpe",
    most: Annotated[int, Range(300, 1 << 20)] = 2000,
    rate: Annotated[float, Range(above=0, below=1)] = 0.15,
    mean: Annotated[float, Range(least=1)] = 3.0,
    batch_size: BatchSize = 32,
    lr: LearningRate = 2e-3,
    steps: StepCount = 1000,
    data: Path | None = None,
    seed: int = 0,
) -> Recipe:
    """Span corruption; the loss is in nats per token of the spans and their sentinels.

    Args:
        decoder: mixer of the decoder, by name; the encoder has bidirectional attention
        depth: blocks of the encoder, and of the decoder
        width: model dimension
        context: tokens per window before spans are cut out
        level: kind of tokens
        most: maximum vocabulary size
        rate: fraction of the tokens cut out
        mean: mean number of tokens per span
        batch_size: windows per update
        lr: peak learning rate: linear warm-up, then cosine decay to a tenth
        steps: updates
        data: a plain text file; by default tiny-Shakespeare, and where that is missing the source text of Python's standard library
    """
    sentinels = [f"sentinel {i}" for i in range(span_numbers(context, rate, mean)[1])]
    dataset = window_data(data, context, overlap=4, specials=("pad", "end", *sentinels), share=0.2, level=level, most=most)
    cut = span_corruption(dataset.reader.vocabulary, rate, mean)
    model = partial(EncoderDecoder, len(dataset.classes), width, depth, decoder=decoder)
    frozen = replace(freeze_held_out(dataset, cut, seed), name=f"{dataset.name}, spans cut out")
    return sequence_recipe(model, frozen, batch_size, lr, steps).replace(augment=cut)
