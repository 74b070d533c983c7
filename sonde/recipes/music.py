"""Folk tunes in ABC notation, character by character: a language model that ends by writing a tune, tune.abc and tune.mid."""

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
from .tools.final_report import FinalReport
from .tools.sequence import BatchSize, Depth, LearningRate, ModelWidth, StepCount, network, require_causal, sequence_recipe
from .tools.texts import tunes

SAMPLED, LENGTH = 4, 400
"""tunes sampled at the end, and their characters"""


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
    """A language model over tunes in ABC notation; at the end it writes a new one into the run's folder, as text and as a MIDI file.

    Args:
        mixer: sequence mixer by name (`sonde list mixers`), with its options: "gla heads=8"
        depth: blocks
        width: model dimension
        context: characters per training window
        batch_size: windows per update
        lr: peak learning rate: linear warm-up, then cosine decay to a tenth
        steps: updates
        data: text file of tunes in ABC notation, each beginning with a line X: ; by default the 1,034 of the Nottingham collection
            (music/nottingham-abc.txt.gz of a data folder), and where that is missing a few bundled ones
    """
    require_causal(mixer, width)
    origin, corpus = tunes(data)
    dataset = _windows(origin, corpus, context)
    length = max(context, len(PROMPT) + LENGTH)
    base = sequence_recipe(network(mixer, width, depth, len(dataset.classes), length), dataset, batch_size, lr, steps)
    return base.replace(callbacks=(FinalReport(partial(_write_tune, dataset, corpus[:200], seed)),))


PROMPT = "\nM:4/4\n"


def _windows(origin: str, corpus: list[str], context: int) -> Data:
    """Windows over the tunes, joined by empty lines; the last tunes are for validation and test."""
    few = max(len(corpus) // 20, 1)
    texts = ["\n" + "\n".join(part) for part in (corpus[: -2 * few], corpus[-2 * few : -few], corpus[-few:])]
    context = min(context, min(map(len, texts)) - 1)
    data = windows((texts[0], texts[1], texts[2]), f"tunes: {origin}", context, None, "char")
    assert isinstance(data.train, WindowSource)
    train = WindowSource(data.train.tokens, context, max(context // 8, 1))
    return replace(data, train=train, report={"tunes": len(corpus), **data.report})


def _write_tune(data: Data, corpus: list[str], seed: int, model: Any, folder: Path) -> dict[str, str]:
    """Write the sampled tune with the most notes; compare its intervals with the corpus and with chance."""
    vocabulary, device = data.reader.vocabulary, next(model.parameters()).device
    prompt = vocabulary.encode(PROMPT).long().to(device).expand(SAMPLED, -1)
    rows = generate(model, prompt, LENGTH, stop=Stop(barred=no_text(vocabulary)), temperature=0.8, seed=seed)
    texts = [PROMPT + vocabulary.decode(row.cpu()) for row in rows]
    sampled = [text.strip("\n").split("\n\n")[0] for text in texts]
    melodies = [notes(tune) for tune in sampled]
    best = max(range(SAMPLED), key=lambda i: len(melodies[i]))
    if not any(note.pitch is not None for note in melodies[best]):
        return {"tune": "the samples hold no note; train longer"}
    replace_file(folder / "tune.abc", f"X:1\nT:Made up\n{sampled[best]}\n".encode())
    replace_file(folder / "tune.mid", midi(melodies[best]))
    near, far = distances(melodies, [notes(tune) for tune in corpus], seed)
    return {
        "tune": f"{len(melodies[best])} notes, in tune.abc and tune.mid",
        "intervals": f"{near:.2f} from those of the corpus; {far:.2f} for notes drawn at random (0 same, 1 nothing in common)",
    }


def distances(sampled: list[list[Note]], corpus: list[list[Note]], seed: int = 0) -> tuple[float, float]:
    """Total variation distance from the intervals of the corpus: of the samples, and of the corpus with its notes shuffled."""
    target = intervals(*corpus)
    all_notes = [note for melody in corpus for note in melody]
    shuffled = [all_notes[i] for i in torch.randperm(len(all_notes), generator=generator(seed, "random notes")).tolist()]
    return tuple(float(np.abs(intervals(*some) - target).sum() / 2) for some in (sampled, [shuffled]))  # type: ignore[return-value]
