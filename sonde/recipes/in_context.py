"""In-context learning: every sequence has a new mapping from keys to values, given by examples within the sequence."""

from __future__ import annotations

from typing import Annotated

from ..core.options import Range
from ..core.recipe import Recipe
from ..data.sequences import in_context
from .tools.sequence import BatchSize, Depth, LearningRate, ModelWidth, StepCount, network, sequence_recipe


def recipe(
    mixer: str = "attention",
    shots: Annotated[int, Range(2, 1024)] = 12,
    keys: Annotated[int, Range(2, 1024)] = 6,
    values: Annotated[int, Range(2, 1024)] = 6,
    depth: Depth = 2,
    width: ModelWidth = 64,
    batch_size: BatchSize = 64,
    lr: LearningRate = 3e-3,
    steps: StepCount = 1000,
    seed: int = 0,
) -> Recipe:
    """Predict the value of each key that appeared earlier in the sequence; accuracy counts these answers alone.

    Args:
        mixer: sequence mixer by name (`sonde list mixers`), with its options: "gla heads=8"
        shots: pairs of a key and its value per sequence
        keys: different keys
        values: different values
        depth: blocks
        width: model dimension
        batch_size: sequences per update
        lr: peak learning rate: linear warm-up, then cosine decay to a tenth
        steps: updates
    """
    data = in_context(seed, shots=shots, keys=keys, values=values)
    return sequence_recipe(network(mixer, width, depth, len(data.classes), 2 * shots), data, batch_size, lr, steps)
