"""Symbols among blanks, to be named in their order later: can a mixer choose what it remembers?"""

from __future__ import annotations

from typing import Annotated

from ..core.options import Range
from ..core.recipe import Recipe
from ..data.sequences import copying
from .tools.sequence import BatchSize, Depth, LearningRate, ModelWidth, StepCount, network, training


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
    """Name the symbols of a sequence in their order; accuracy counts the answers alone.

    Args:
        mixer: what moves information along the sequence, by name; its options may follow: "gla heads=8"
        selective: the symbols stand at random places; otherwise at the beginning, and a fixed delay is enough
        length: places before the answers
        items: symbols to remember
        symbols: different symbols
        depth: blocks
        width: model dimension
        batch_size: sequences per update
        lr: peak learning rate: linear warm-up, then cosine decay to a tenth
        steps: updates
    """
    data = copying(seed, length=length, items=items, symbols=symbols, selective=selective)
    return training(network(mixer, width, depth, len(data.classes), length + items), data, batch_size, lr, steps)
