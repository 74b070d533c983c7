"""A character language model of a million weights; swap the mixer and keep everything else."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, final

from ..core.batch import Data
from ..core.options import Range
from ..core.recipe import Callback, Recipe
from ..data.sequences import MaskedSource
from ..models.language_model import mixer_of
from .tools.sequence import BatchSize, Depth, LearningRate, ModelWidth, StepCount, carry_state, network, sequence_recipe, window_data


def recipe(
    mixer: str = "attention",
    depth: Depth = 5,
    width: ModelWidth = 128,
    context: Annotated[int, Range(2, 1 << 20)] = 128,
    dropout: Annotated[float, Range(least=0, below=1)] = 0.0,
    batch_size: BatchSize = 16,
    lr: LearningRate = 2e-3,
    steps: StepCount = 1000,
    carry: bool = False,
    document_end: str = "",
    data: Path | None = None,
    valid: Annotated[float, Range(0, below=1)] = 0.05,
    test: Annotated[float, Range(0, below=1)] = 0.05,
    seed: int = 0,
) -> Recipe:
    """A character language model; its loss is in nats per character.

    A mixer that is not causal would see the next character.  It is trained to predict masked characters instead; that loss is
    not comparable with the others, and the run warns of it.

    Args:
        mixer: sequence mixer by name (`sonde list mixers`), with its options: "gla heads=8"
        depth: blocks
        width: embedding dimension
        context: characters per training window
        dropout: dropout probability in each block
        batch_size: windows per update
        lr: peak learning rate: linear warm-up, then cosine decay to a tenth
        steps: updates
        carry: read the text in order and carry the state of a recurrent mixer from update to update
        document_end: with carry: text that ends a document, after which the state is empty again
        data: a plain text file; by default tiny-Shakespeare (text/tinyshakespeare.txt of a data folder), and where that is
            missing the source text of Python's standard library
        valid: fraction of the text for validation, after the training part; the standard library is split by file
        test: fraction of the text for the test, at its end
    """
    dataset = window_data(data, context, overlap=8, split={"valid": valid, "test": test}, windows=100_000)
    causal = mixer_of(mixer, width).causal
    if not causal:
        dataset = _mask_characters(dataset, seed)
    model = network(mixer, width, depth, len(dataset.classes), context, dropout=dropout, endless=carry)
    base = sequence_recipe(model, dataset, batch_size, lr, steps)
    if carry:
        return carry_state(base, context, mixer, width, document_end)
    return base if causal else base.replace(callbacks=(WarnMaskedLoss(mixer),))


def _mask_characters(data: Data, seed: int) -> Data:
    """The same text with some characters masked, and one more token for the mask."""
    mask = partial(MaskedSource, token=len(data.classes), seed=seed)
    valid, test = (None if source is None else mask(source) for source in (data.valid, data.test))
    classes, name = (*data.classes, "hidden"), f"{data.name}, some hidden"
    return replace(data, train=mask(data.train), valid=valid, test=test, classes=classes, name=name, reader=None)


@final
class WarnMaskedLoss(Callback):
    """Warns once that the loss of this run is that of masked characters."""

    def __init__(self, mixer: str) -> None:
        self.mixer = mixer

    def start(self, run: Any) -> None:
        run.warn(f"'{self.mixer}' looks at later characters: the loss is that of hidden characters, not of the next one", 0)
