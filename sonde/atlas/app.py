"""Chapter 23, applications: sentences judged, one toy for each family of sequence models, and music."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ..core.batch import Data
from ..core.reading import Reading
from ..core.recipe import Recipe
from ..core.seeds import generator
from ..data.catalogue import load
from ..data.documents import Ragged
from ..data.melody import TUNES, intervals, notes
from ..data.tensors import TensorSource
from ..generate import generate
from ..generate.stop import Stop
from ..models.seq2seq import Seq2Seq
from ..models.topologies import Tagger, Vec2Seq
from ..objectives.categorical import Categorical
from ..objectives.gaussian import Gaussian
from ..optim.build import optimiser
from ..recipes import music, sentiment, tagging
from ..recipes._texts import EXAMPLES
from ._exhibit import Exhibit

SENTENCES = ("Unfortunately it will rain.", "All students were generously gifted five dollars for attending.")
SHAPES, SIZES, SIDES = ("square", "cross", "line"), ("small", "", "large"), ("left", "right")
WORDS = ("<pad>", "<s>", "</s>", *SHAPES, "small", "large", *SIDES)
HIGH, WIDE = 11, 22
"""rows and columns of a picture of one shape"""


# APP-04


def app_04(exhibit: Exhibit) -> str:
    """Sentences of any length to one vector: a bidirectional RNN judges two it never read, and one that a user brings."""
    recipe = sentiment.recipe(mixer="rnn", data="toy", width=24, lr=5e-3, epochs=12)
    run = exhibit.train(recipe, "sentiment", seed=0)
    reader = run.data.reader
    asked = reader.rows([sentence.rstrip(".") for sentence in SENTENCES])
    exhibit.expect("words of the two sentences", asked.lengths, [4, 9])
    learnt = {reader.vocabulary.decode(row) for source in run.data.splits.values() for row in _rows(source)}
    exhibit.expect("sentences of the two that the data holds", sum(example in learnt for example in EXAMPLES), 0)
    exhibit.expect("there are sentences like them", "sadly it will rain" in learnt, True)
    said = run.predict(asked)
    exhibit.expect("labels: bad news, good news", [run.data.classes[i] for i in said.argmax(1)], ["negative", "positive"])
    exhibit.above("least certainty of the two", said.max(1).values.min(), 0.8)
    alone = torch.cat([run.predict(reader.rows([sentence.rstrip(".")])) for sentence in SENTENCES])
    exhibit.expect("each alone and both in one padded batch", said, alone, within=1e-6)
    mine = exhibit.folder / "mine.txt"
    mine.write_text("Luckily the train left early\nThe song was not good\nthe song was good\n", encoding="utf-8")
    exhibit.expect(
        "a user's sentences", [run.data.classes[i] for i in run.predict(reader(mine)).argmax(1)], ["positive", "negative", "positive"]
    )
    simple, accuracy = sentiment.baseline(run.data, reader.vocabulary.size), run.result["figures"]["test/accuracy"]
    exhibit.above("test accuracy, over a bag of words that cannot place 'not'", accuracy - simple, 0)
    columns = {"sentence": SENTENCES, "words": asked.lengths, "positive": [f"{p:.3f}" for p in said[:, 1].tolist()]}
    exhibit.show(Reading("What a bidirectional RNN says", "table", columns))
    return f"4 words {said[0, 0]:.3f} negative, 9 words {said[1, 1]:.3f} positive; test accuracy {accuracy:.3f}, bag of words {simple:.3f}"


def _rows(source: Any) -> list[Tensor]:
    return list(source.rows.values.split(source.rows.lengths.tolist()))


# APP-05


def app_05(exhibit: Exhibit) -> str:
    """Translation, captions, tags and a series, each learnt in seconds and judged on what was held out."""
    figures = {
        "sentences translated without a mistake": translation(exhibit),
        "captions without a mistake": captions(exhibit),
        "words tagged right": tags(exhibit),
    }
    before, after = series(exhibit)
    told = [f"{name} {share:.0%}" for name, share in figures.items()]
    return "; ".join([*told, f"next sample {after / before:.2f} of the error of the last one"])


def translation(exhibit: Exhibit) -> float:
    """Unaligned: a small English to another word order; the share of test sentences that greedy decoding gets wholly right."""
    data = load("bilingual", n=1000)
    words = data.reader.vocabulary
    run = exhibit.train(_recipe(lambda: Seq2Seq(words.size, 48), data, Categorical(words.size), steps=120, batch=64), "translate")
    model: Any = run.model()
    test = data.splits["test"][:]
    start, end, pad = (words.specials[name] for name in ("start", "end", "pad"))
    prompt = torch.full((len(test), 1), start)
    state = model.begin(test.source, test.lengths)
    said = generate(model, prompt, test.y.shape[1], state=state, stop=Stop(end=end, pad=pad), temperature=0)
    right = _same(said, test.y, pad)
    lines = {
        "sentence": [words.decode(row[: n - 1]) for row, n in zip(test.source[:4], test.lengths[:4])],
        "translated": [words.decode(row[(row != end) & (row != pad)]) for row in said[:4]],
    }
    exhibit.show(Reading("Translation: from held-out sentences", "table", lines))
    exhibit.above("translation: held-out sentences without a mistake", right, 0.8)
    return right


def captions(exhibit: Exhibit) -> float:
    """One vector to a sequence: pictures of a shape to words about it; the share of test captions that are wholly right."""
    pixels, y, mask = pictures(800)
    x = torch.cat([torch.full_like(y[:, :1], WORDS.index("<s>")), y[:, :-1]], 1)
    whole = TensorSource(x, y, source=pixels.flatten(1), mask=mask)
    data = Data(whole.subset(torch.arange(700)), test=whole.subset(torch.arange(700, 800)))
    run = exhibit.train(_recipe(lambda: Vec2Seq(HIGH * WIDE, len(WORDS), width=32), data, Categorical(len(WORDS)), steps=200), "captions")
    model: Any = run.model()
    test = data.splits["test"][:]
    with torch.no_grad():
        said = model.sample(test.source, test.x[:, :1], y.shape[1], lambda logits: logits.argmax(-1))
    right = _same(said, test.y, 0)
    named = [" ".join(WORDS[i] for i in row if i > 2) for row in said[:6].tolist()]
    exhibit.show(Reading("Captions of held-out pictures", "images", {"picture": pixels[700:706]}, extra={"labels": named}))
    exhibit.above("captions: held-out pictures without a mistake", right, 0.9)
    return right


def tags(exhibit: Exhibit) -> float:
    """Aligned: the kind of each word, with and without a reader from the end."""

    def accuracy(bidirectional: bool) -> float:
        recipe = tagging.recipe(mixer="gru", n=600, steps=80, lr=1e-2, bidirectional=bidirectional)
        return exhibit.train(recipe, f"tagging-{bidirectional}").result["figures"]["test/accuracy"]

    both, past = accuracy(True), accuracy(False)
    exhibit.above("tagging: words right with both directions", both, 0.99)
    exhibit.below("tagging: words right where the next one is not seen", past, 0.92)
    return both


def series(exhibit: Exhibit) -> tuple[float, float]:
    """Speech-like: tones whose pitch and loudness wander; errors of the last sample and of a recurrent net as a forecast."""
    sound = tones(160, 80).unsqueeze(-1)
    whole = TensorSource(sound[:, :-1], sound[:, 1:])
    data = Data(whole.subset(torch.arange(128)), test=whole.subset(torch.arange(128, 160)))
    run = exhibit.train(_recipe(lambda: Tagger(1, 1, kind="numbers", width=32), data, Gaussian(), steps=150, lr=1e-2), "series")
    test = data.splits["test"][:]
    with torch.no_grad():
        said = run.model()(test.x)
    later = slice(10, None)  # the first samples tell the pitch
    last, forecast = ((guess - test.y)[:, later].square().mean().sqrt().item() for guess in (test.x, said))
    exhibit.below("series: error of the forecast, in errors of the last sample", forecast / last, 0.5)
    lines = {"sound": test.y[0, :, 0], "forecast": said[0, :, 0]}
    exhibit.show(Reading("A held-out sound and the forecast of each next sample", "lines", lines, axes=["sample"]))
    return last, forecast


def _recipe(model: Any, data: Data, objective: Any, steps: int, batch: int = 32, lr: float = 5e-3) -> Recipe:
    return Recipe(model=model, data=data, objective=objective, optimiser=optimiser("adam", lr=lr), steps=steps, batch=batch, clip=1.0)


def _same(said: Tensor, wanted: Tensor, pad: int) -> float:
    """Share of rows that agree wherever something is wanted; rows that ended early are filled up."""
    said = torch.cat([said, said.new_full((len(said), wanted.shape[1] - said.shape[1]), pad)], 1)
    return float(((said == wanted) | (wanted == pad)).all(1).double().mean())


def pictures(n: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Noisy pictures (n, HIGH, WIDE) of one shape, the words about each (n, 4) and where there is one."""
    dice = generator(seed, "shapes")
    found = torch.rand(n, HIGH, WIDE, generator=dice) * 0.2
    captions = []
    for picture in found:
        shape, size, side = (int(torch.randint(k, (1,), generator=dice)) for k in (len(SHAPES), len(SIZES), 2))
        reach = size + 2  # from the middle to the edge
        row, column = (HIGH // 2 + int(torch.randint(-1, 2, (1,), generator=dice)) for _ in range(2))
        column += side * WIDE // 2
        box = picture[row - reach : row + reach + 1, column - reach : column + reach + 1]
        if shape == 0:
            box[[0, -1]] = 1
            box[:, [0, -1]] = 1
        else:
            box[reach] = 1
            if shape == 1:
                box[:, reach] = 1
        captions.append([WORDS.index(word) for word in (SIZES[size], SHAPES[shape], SIDES[side], "</s>") if word])
    rows = Ragged.of(captions)
    words = rows.padded(torch.arange(n), 0)
    return found, words, words > 0


def tones(n: int, length: int, seed: int = 0) -> Tensor:
    """Sounds (n, length): sines whose step in phase and whose logarithm of loudness walk at random."""
    dice = generator(seed, "tones")

    def walk(step: float) -> Tensor:
        return (torch.randn(n, length, generator=dice) * step).cumsum(1)

    pitch = 0.6 + 0.6 * torch.rand(n, 1, generator=dice) + walk(0.01)
    return walk(0.03).exp() * torch.sin(pitch.cumsum(1) + 6.3 * torch.rand(n, 1, generator=dice))


# APP-06


def app_06(exhibit: Exhibit) -> str:
    """An LSTM over bundled melodies writes one of its own, which a player can open."""
    file = exhibit.folder / "tunes.abc"
    file.write_text("\n".join(TUNES), encoding="utf-8")
    recipe = music.recipe(mixer="lstm", depth=1, width=64, context=64, batch=16, steps=150, lr=1e-2, file=file)
    run = exhibit.train(recipe, "music", seed=0)
    written = notes((run.path / "tune.abc").read_text(encoding="utf-8"))
    played = pitches((run.path / "tune.mid").read_bytes())
    exhibit.expect("pitches of the MIDI file, against the ABC text", played, [note.pitch for note in written if note.pitch is not None])
    exhibit.above("notes", len(played), 20)
    corpus, sampled = [notes(tune) for tune in TUNES], [written]
    near, far = music.distances(sampled, corpus)
    exhibit.below("distance of its intervals from the corpus, in that of notes in random order", near / far, 0.75)
    loss = [row["loss"] for row in run.metrics if "loss" in row][-1]
    exhibit.below("loss, in that of signs drawn evenly", loss / math.log(len(run.data.classes)), 0.5)
    bars = {"corpus": intervals(*corpus), "sampled": intervals(written)}
    steps = [str(step) for step in range(-12, 13)]
    exhibit.show(Reading("Steps from note to note, in semitones", "bars", bars, axes=["semitones"], extra={"labels": steps}))
    return f"{len(played)} notes in tune.mid; intervals {near:.2f} from the corpus, {far:.2f} in random order"


def pitches(file: bytes) -> list[int]:
    """The notes that a MIDI file of one track and one voice begins, in their order."""
    found, at = [], 22
    while at < len(file):
        while file[at] & 128:  # a time of several bytes
            at += 1
        kind = file[at + 1]
        if kind == 0x90:
            found.append(file[at + 2])
        at += 2 + (2 + file[at + 3] if kind == 0xFF else 1 if kind >> 4 == 0xC else 2)
    return found
