"""Is the number of ones so far odd?  The state must flip at every one, which few recurrences can do."""

from __future__ import annotations

from typing import Annotated

from ..core.options import Range
from ..core.recipe import Recipe
from ..data.sequences import parity
from .tools.sequence import BatchSize, Depth, LearningRate, ModelWidth, StepCount, network, sequence_recipe


def recipe(
    mixer: str = "deltanet negative=true",
    length: Annotated[int, Range(2, 65_536)] = 32,
    longer: Annotated[int, Range(1, 64)] = 4,
    modulus: Annotated[int, Range(2, 4096)] = 2,
    depth: Depth = 1,
    width: ModelWidth = 64,
    batch_size: BatchSize = 64,
    lr: LearningRate = 3e-3,
    steps: StepCount = 1000,
    seed: int = 0,
) -> Recipe:
    """The running sum modulo a number; the test sequences are longer, so only a recurrent state that generalizes over length solves it.

    A gate between 0 and 1 cannot flip a sign.  The delta rule with its strength up to 2 can: I - 2 k k^T is a reflection.

    Args:
        mixer: sequence mixer by name (`sonde list mixers`), with its options: "deltanet negative=true"
        length: tokens per training sequence
        longer: length of a test sequence, as a multiple of --length
        modulus: modulus of the sum; 2 is parity
        depth: blocks
        width: model dimension
        batch_size: sequences per update
        lr: peak learning rate: linear warm-up, then cosine decay to a tenth
        steps: updates
    """
    data = parity(seed, length=length, modulus=modulus, longer=longer)
    return sequence_recipe(network(mixer, width, depth, len(data.classes), length * longer), data, batch_size, lr, steps)
