"""Associative recall: pairs of keys and values, then keys to look up.  How many pairs can the state of a mixer hold?"""

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
    """Look up values by their keys; accuracy counts the answers alone.

    Args:
        mixer: sequence mixer by name (`sonde list mixers`), with its options: "gla heads=8"
        pairs: pairs to remember at once
        keys: different keys, and as many different values
        depth: blocks
        width: model dimension
        batch_size: sequences per update
        lr: peak learning rate: linear warm-up, then cosine decay to a tenth
        steps: updates
    """
    data = recall(seed, pairs=pairs, keys=keys)
    return sequence_recipe(network(mixer, width, depth, len(data.classes), 3 * pairs), data, batch_size, lr, steps)
