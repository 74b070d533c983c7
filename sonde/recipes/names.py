"""Given names, letter by letter: a language model that ends by sampling new ones."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import torch

from ..core.batch import Data
from ..core.recipe import Recipe
from ..data.text.corpora import letter_data
from ..data.text.tokenizer import Tokenizer, special
from ..generate import generate
from ..generate.stop import Stop, no_text
from ..models.ngram import Ngram
from .tools.final_report import FinalReport
from .tools.sequence import BatchSize, Depth, LearningRate, ModelWidth, StepCount, network, require_causal, sequence_recipe
from .tools.texts import given_names

SHOWN, LONGEST = 20, 24
ORDER = 4
"""n of the n-gram baseline"""


def recipe(
    mixer: str = "gru",
    depth: Depth = 2,
    width: ModelWidth = 64,
    batch_size: BatchSize = 64,
    lr: LearningRate = 5e-3,
    steps: StepCount = 1000,
    data: Path | None = None,
    seed: int = 0,
) -> Recipe:
    """A language model over the letters of names; at the end sampled names, and the loss of an n-gram model for comparison.

    Args:
        mixer: sequence mixer by name (`sonde list mixers`), with its options: "gla heads=8"
        depth: blocks
        width: model dimension
        batch_size: names per update
        lr: peak learning rate: linear warm-up, then cosine decay to a tenth
        steps: updates
        data: a text file with one name per line; by default 29,494 given names (names/names.txt of a data folder), and where
            that is missing a few bundled ones
    """
    require_causal(mixer, width)
    origin, lines = given_names(data)
    dataset = letter_data(f"names: {origin}", lines, seed)
    longest = max(LONGEST, *(len(row) for row in _rows(dataset.train)))
    base = sequence_recipe(network(mixer, width, depth, len(dataset.classes), longest), dataset, batch_size, lr, steps)
    return base.replace(callbacks=(FinalReport(partial(_sample_names, dataset, seed)),))


def _sample_names(data: Data, seed: int, model: Any, folder: Path) -> dict[str, str]:
    """Sampled names, how many of them are in the training list, and the loss of an n-gram model."""
    letters: Tokenizer = data.reader.vocabulary
    start, end, pad = (special(letters, name) for name in ("start", "end", "pad"))
    device = next(model.parameters()).device
    stop = Stop(end=end, pad=pad, barred=no_text(letters))
    rows = generate(model, torch.full((SHOWN, 1), start, device=device), LONGEST - 1, stop=stop, seed=seed)
    samples = [letters.decode(row[(row != end) & (row != pad)].cpu()) for row in rows]
    train_rows, valid_rows = _rows(data.train), _rows(data.valid)
    known = {letters.decode(row[1:-1]) for row in train_rows}
    scores = Ngram(train_rows, letters.size, ORDER).scores(valid_rows)
    predicted = torch.cat(valid_rows) != start  # that token is given
    return {
        "made up": f"{', '.join(samples)} ({sum(name in known for name in samples)} of {SHOWN} are in the training list)",
        "baseline": f"a {ORDER}-gram model has a validation loss of {-float(scores[predicted].mean()):.4f}",
    }


def _rows(source: Any) -> list[torch.Tensor]:
    """The lines of a source, each with its start and end token."""
    return list(source.rows.values.split(source.rows.lengths.tolist()))
