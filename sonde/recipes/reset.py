"""A running count that begins again at each reset: can a mixer forget at once?"""

from __future__ import annotations

from typing import Annotated

from ..core.options import Range
from ..core.recipe import Recipe
from ..data.sequences import reset
from .tools.sequence import BatchSize, Depth, LearningRate, ModelWidth, StepCount, network, training


def recipe(
    mixer: str = "attention",
    length: Annotated[int, Range(2, 65_536)] = 64,
    top: Annotated[int, Range(2, 4096)] = 8,
    chance: Annotated[float, Range(0, 1)] = 0.05,
    depth: Depth = 1,
    width: ModelWidth = 64,
    batch_size: BatchSize = 64,
    lr: LearningRate = 3e-3,
    steps: StepCount = 1000,
    seed: int = 0,
) -> Recipe:
    """Count ones since the last reset; one block, so that the mixer has to do it.

    Args:
        mixer: what moves information along the sequence, by name; its options may follow: "gla heads=8"
        length: tokens of a sequence
        top: the largest answer; from there on it stays
        chance: share of resets
        depth: blocks
        width: model dimension
        batch_size: sequences per update
        lr: peak learning rate: linear warm-up, then cosine decay to a tenth
        steps: updates
    """
    data = reset(seed, length=length, top=top, chance=chance)
    return training(network(mixer, width, depth, len(data.classes), length), data, batch_size, lr, steps)
