"""Associative recall: pairs of keys and values, then the keys again.  How many pairs can a sequence mixer remember?"""

from __future__ import annotations

from typing import Annotated

from ..core.options import Range
from ..core.recipe import Recipe
from ..data.sequences import recall
from .tools.sequence import BatchSize, Depth, LearningRate, ModelWidth, StepCount, network, sequence_recipe


def recipe(
    mixer: str = "attention",
    pairs: Annotated[int, Range(2, 4096)] = 8,
    keys: Annotated[int, Range(2, 4096)] = 32,
    depth: Depth = 2,
    width: ModelWidth = 64,
    batch_size: BatchSize = 64,
    lr: LearningRate = 3e-3,
    steps: StepCount = 600,
    seed: int = 0,
) -> Recipe:
    """Read pairs of a key and a value, then predict the value of each key; accuracy is that of the predicted values.

    Args:
        mixer: sequence mixer by name (`sonde list mixers`), with its options: "gla heads=8"
        pairs: pairs to remember at once
        keys: number of different keys, and of different values
        depth: number of blocks
        width: model dimension
        batch_size: sequences per update
        lr: peak learning rate: linear warm-up, then cosine decay to a tenth
        steps: training steps
    """
    data = recall(seed, pairs=pairs, keys=keys)
    length = 3 * pairs  # keys and values of all pairs, then the keys to look up
    return sequence_recipe(network(mixer, width, depth, len(data.classes), length), data, batch_size, lr, steps)
