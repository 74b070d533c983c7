"""Folk tunes in ABC, sign by sign: a language model that ends by writing a tune one can play, tune.abc and tune.mid."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch

from ..core.batch import Data
from ..core.files import replace_file
from ..core.options import Range
from ..core.recipe import Recipe
from ..core.seeds import generator
from ..data.melody import Note, intervals, midi, notes
from ..data.tensors import WindowSource
from ..data.text.windows import windows
from ..generate import generate
from ..generate.stop import Stop, no_text
from .tools.sequence import BatchSize, Depth, LearningRate, ModelWidth, StepCount, network, training
from .tools.shown import FinalReport, causal
from .tools.texts import tunes

SAMPLED, LENGTH = 4, 400
"""texts drawn at the end, and their signs"""


def recipe(
    mixer: str = "lstm",
    depth: Depth = 2,
    width: ModelWidth = 96,
    context: Annotated[int, Range(16, 4096)] = 96,
    batch_size: BatchSize = 32,
    lr: LearningRate = 4e-3,
    steps: StepCount = 1000,
    data: Path | None = None,
    seed: int = 0,
) -> Recipe:
    """A language model over tunes in ABC; the run's folder then holds a new one, as text and to be played.

    Args:
        mixer: what moves information along a tune; its options may follow: "gla heads=8"
        depth: blocks
        width: numbers per sign
        context: signs of a training window
        batch_size: windows per update
        lr: peak learning rate: linear warm-up, then cosine decay to a tenth
        steps: updates
        data: tunes in ABC, each after a line X: of its own; by default the 1,034 of the Nottingham collection
            (music/nottingham-abc.txt.gz of a data folder), and where that is missing a few that are bundled
    """
    causal(mixer, width)
    origin, every = tunes(data)
    dataset = _windows(origin, every, context)
    places = max(context, len(PROMPT) + LENGTH)
    base = training(network(mixer, width, depth, len(dataset.classes), places), dataset, batch_size, lr, steps)
    return base.replace(callbacks=(FinalReport(partial(_write_tune, dataset, every[:200], seed)),))


PROMPT = "\nM:4/4\n"


def _windows(origin: str, every: list[str], context: int) -> Data:
    """Windows of the tunes, an empty line between two; the last tunes are for validation and test."""
    few = max(len(every) // 20, 1)
    texts = ["\n" + "\n".join(part) for part in (every[: -2 * few], every[-2 * few : -few], every[-few:])]
    context = min(context, min(map(len, texts)) - 1)
    data = windows((texts[0], texts[1], texts[2]), f"tunes: {origin}", context, None, "char")
    assert isinstance(data.train, WindowSource)
    train = WindowSource(data.train.tokens, context, max(context // 8, 1))
    return replace(data, train=train, report={"tunes": len(every), **data.report})


def _write_tune(data: Data, corpus: list[str], seed: int, model: Any, folder: Path) -> dict[str, str]:
    """Write the tune with the most notes, and compare the steps from note to note with the corpus and with chance."""
    signs, device = data.reader.vocabulary, next(model.parameters()).device
    prompt = signs.encode(PROMPT).long().to(device).expand(SAMPLED, -1)
    rows = generate(model, prompt, LENGTH, stop=Stop(barred=no_text(signs)), temperature=0.8, seed=seed)
    texts = [PROMPT + signs.decode(row.cpu()) for row in rows]
    sampled = [text.strip("\n").split("\n\n")[0] for text in texts]
    melodies = [notes(tune) for tune in sampled]
    best = max(range(SAMPLED), key=lambda i: len(melodies[i]))
    if not any(note.pitch is not None for note in melodies[best]):
        return {"tune": "what was sampled holds no note; train longer"}
    replace_file(folder / "tune.abc", f"X:1\nT:Made up\n{sampled[best]}\n".encode())
    replace_file(folder / "tune.mid", midi(melodies[best]))
    near, far = distances(melodies, [notes(tune) for tune in corpus], seed)
    return {
        "tune": f"{len(melodies[best])} notes, in tune.abc and tune.mid",
        "intervals": f"{near:.2f} from those of the corpus; {far:.2f} for notes drawn at random (0 same, 1 nothing in common)",
    }


def distances(sampled: list[list[Note]], corpus: list[list[Note]], seed: int = 0) -> tuple[float, float]:
    """Total variation between the intervals of the corpus and those sampled, and those of its own notes in random order."""
    want = intervals(*corpus)
    every = [note for melody in corpus for note in melody]
    shuffled = [every[i] for i in torch.randperm(len(every), generator=generator(seed, "random notes")).tolist()]
    return tuple(float(np.abs(intervals(*some) - want).sum() / 2) for some in (sampled, [shuffled]))  # type: ignore[return-value]
