"""Copying: symbols among blanks, to be repeated in order at the end.  Can a mixer select what it remembers?"""

from __future__ import annotations

from typing import Annotated

from ..core.options import Range
from ..core.recipe import Recipe
from ..data.sequences import copying
from .tools.sequence import BatchSize, Depth, LearningRate, ModelWidth, StepCount, network, sequence_recipe


def recipe(
    mixer: str = "attention",
    selective: bool = True,
    length: Annotated[int, Range(2, 65_536)] = 48,
    items: Annotated[int, Range(2, 4096)] = 6,
    symbols: Annotated[int, Range(2, 4096)] = 8,
    depth: Depth = 2,
    width: ModelWidth = 64,
    batch_size: BatchSize = 64,
    lr: LearningRate = 3e-3,
    steps: StepCount = 1000,
    seed: int = 0,
) -> Recipe:
    """Repeat the symbols of a sequence in order; accuracy counts the answers alone.

    Args:
        mixer: sequence mixer by name (`sonde list mixers`), with its options: "gla heads=8"
        selective: the symbols are at random positions; otherwise at the beginning, where a fixed delay is enough
        length: tokens before the answers
        items: symbols to remember
        symbols: different symbols
        depth: blocks
        width: model dimension
        batch_size: sequences per update
        lr: peak learning rate: linear warm-up, then cosine decay to a tenth
        steps: updates
    """
    data = copying(seed, length=length, items=items, symbols=symbols, selective=selective)
    return sequence_recipe(network(mixer, width, depth, len(data.classes), length + items), data, batch_size, lr, steps)
