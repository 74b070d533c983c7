"""A running count that starts again at each reset token: can a mixer forget at once?"""

from __future__ import annotations

from typing import Annotated

from ..core.options import Range
from ..core.recipe import Recipe
from ..data.sequences import reset
from .tools.sequence import BatchSize, Depth, LearningRate, ModelWidth, StepCount, network, sequence_recipe


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
    """Count the ones since the last reset; one block by default, so that the mixer itself has to count.

    Args:
        mixer: sequence mixer by name (`sonde list mixers`), with its options: "gla heads=8"
        length: tokens per sequence
        top: largest count; further ones do not raise it
        chance: probability of a reset token
        depth: blocks
        width: model dimension
        batch_size: sequences per update
        lr: peak learning rate: linear warm-up, then cosine decay to a tenth
        steps: updates
    """
    data = reset(seed, length=length, top=top, chance=chance)
    return sequence_recipe(network(mixer, width, depth, len(data.classes), length), data, batch_size, lr, steps)
