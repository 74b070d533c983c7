"""Chapter 23, applications: image and sentence classification, one small task for each family of sequence models, music, and a price."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ..core.batch import Data
from ..core.reading import Bars, Images, Lines, Table
from ..core.recipe import Recipe
from ..core.seeds import generator
from ..data.catalog import load
from ..data.melody import TUNES, Note, intervals, notes
from ..data.tensors import TensorSource
from ..data.text.documents import Ragged
from ..data.toys import EXAMPLES
from ..generate import generate
from ..generate.stop import Stop, no_text
from ..models.seq2seq import Seq2Seq
from ..models.topologies import Tagger, Vec2Seq
from ..objectives.categorical import Categorical
from ..objectives.gaussian import Gaussian
from ..optim.build import optimizer
from ..recipes import music, sentiment, tagging
from . import _application_images
from .exhibit import Exhibit, spread

SENTENCES = ("Unfortunately it will rain.", "All students were generously gifted five dollars for attending.")
SHAPES, SIZES, SIDES = ("square", "cross", "line"), ("small", "", "large"), ("left", "right")
WORDS = ("<pad>", "<s>", "</s>", *SHAPES, "small", "large", *SIDES)
HIGH, WIDE = 11, 22
"""rows and columns of an image of one shape"""
SAMPLED = 16
"""tunes that a model of music writes to be compared with the corpus"""


def _runs(exhibit: Exhibit, recipe: Recipe, name: str) -> list[Any]:
    """One run for each seed."""
    return [exhibit.train(recipe, f"{name}-{seed}", seed=seed) for seed in exhibit.seeds(3)]


# APP-01 to APP-03


def app_01(exhibit: Exhibit) -> str:
    """Handwritten digits: a network of convolutions, and one of dense layers on flattened images."""
    return _application_images.digits(exhibit)


def app_02(exhibit: Exhibit) -> str:
    """Small photographs: shortcuts against none, for the same budget."""
    return _application_images.photographs(exhibit)


def app_03(exhibit: Exhibit) -> str:
    """Three classes of images: where the parameters of a dense net are, and its accuracy."""
    return _application_images.three_classes(exhibit)


# APP-04


def app_04(exhibit: Exhibit) -> str:
    """Sentences of any length to one vector: a bidirectional RNN judges two it never read, and one that a user brings."""
    recipe = sentiment.recipe(mixer="rnn", data="toy_sentiment", width=40, lr=8e-3, epochs=20, seed=exhibit.seed)
    runs = _runs(exhibit, recipe.replace(callbacks=(), restore_best=False), "sentiment")
    data, reader = runs[0].data, runs[0].data.reader
    batch = reader.rows([sentence.rstrip(".") for sentence in SENTENCES])
    exhibit.expect("words of the two sentences", batch.lengths, [4, 9])
    corpus = {reader.vocabulary.decode(row) for source in data.splits.values() for row in _rows(source)}
    exhibit.expect("sentences of the two that the data holds", sum(example in corpus for example in EXAMPLES), 0)
    exhibit.expect("there are sentences like them", "sadly it will rain" in corpus, True)
    probabilities = torch.stack([run.predict(batch) for run in runs])  # (seeds, sentences, labels)
    bad, good = probabilities[:, 0, 0].tolist(), probabilities[:, 1, 1].tolist()

    def labels(run: Any, rows: Any) -> list[str]:
        return [data.classes[i] for i in run.predict(rows).argmax(1)]

    exhibit.expect("labels: bad news, good news", [labels(run, batch) for run in runs], [["negative", "positive"]] * len(runs))
    exhibit.above("least certainty of the two", probabilities.amax(2).amin(1).tolist(), 0.7)
    alone = torch.cat([runs[0].predict(reader.rows([sentence.rstrip(".")])) for sentence in SENTENCES])
    exhibit.expect("each alone and both in one padded batch", probabilities[0], alone, within=1e-6)
    mine = exhibit.folder / "mine.txt"
    mine.write_text("Luckily the train left early\nThe song was not good\nthe song was good\n", encoding="utf-8")
    predictions = [labels(run, reader(mine)) for run in runs]
    exhibit.expect("a user's sentences", predictions, [["positive", "negative", "positive"]] * len(runs))
    simple, accuracy = sentiment.baseline(data, reader.vocabulary.size), [run.result["metrics"]["test/accuracy"] for run in runs]
    exhibit.exceeds("test accuracy, over a bag of words that cannot place 'not'", accuracy, simple)
    columns = {"sentence": SENTENCES, "words": batch.lengths, "positive": [f"{p:.3f}" for p in probabilities[0, :, 1].tolist()]}
    exhibit.show(Table("What a bidirectional RNN says", columns))
    summary = f"4 words {spread(bad)} negative, 9 words {spread(good)} positive"
    return f"{summary}; test accuracy {spread(accuracy)}, bag of words {simple:.3f}"


def _rows(source: Any) -> list[Tensor]:
    return list(source.rows.values.split(source.rows.lengths.tolist()))


# APP-05


def app_05(exhibit: Exhibit) -> str:
    """Translation, captions, tags and a series, each learned in seconds and evaluated on what was held out."""
    accuracies = {
        "sentences translated without a mistake": translation(exhibit),
        "captions without a mistake": captions(exhibit),
        "words tagged right": tags(exhibit),
    }
    parts = [f"{name} {spread(fractions, '.0%')}" for name, fractions in accuracies.items()]
    return "; ".join([*parts, f"next sample {spread(series(exhibit), '.2f')} of the error of the last one"])


def translation(exhibit: Exhibit) -> list[float]:
    """Unaligned: a small English to another word order; the fraction of test sentences that greedy decoding translates exactly."""
    data = load("bilingual", seed=exhibit.seed, n=1000)
    words, test = data.reader.vocabulary, data.splits["test"][:]
    start, end, pad = (words.specials[name] for name in ("start", "end", "pad"))

    def greedy(run: Any) -> Tensor:
        model = run.model()
        state, prompt = model.begin(test.source, test.lengths), torch.full((len(test), 1), start)
        return generate(model, prompt, test.y.shape[1], state=state, stop=Stop(end=end, pad=pad), temperature=0)

    recipe = _recipe(lambda: Seq2Seq(words.size, 48), data, Categorical(words.size), steps=90, batch_size=64, lr=8e-3)
    translations = [greedy(run) for run in _runs(exhibit, recipe, "translate")]
    right = [_equal_fraction(one, test.y, pad) for one in translations]
    lines = {
        "sentence": [words.decode(row[: n - 1]) for row, n in zip(test.source[:4], test.lengths[:4])],
        "translated": [words.decode(row[(row != end) & (row != pad)]) for row in translations[0][:4]],
    }
    exhibit.show(Table("Translation: from held-out sentences", lines))
    exhibit.above("translation: held-out sentences without a mistake", right, 0.85)
    return right


def captions(exhibit: Exhibit) -> list[float]:
    """One vector to a sequence: images of a shape to words about it; the fraction of test captions without an error."""
    pixels, y, mask = make_images(1600, exhibit.seed)
    x = torch.cat([torch.full_like(y[:, :1], WORDS.index("<s>")), y[:, :-1]], 1)
    whole = TensorSource(x, y, source=pixels.flatten(1), mask=mask)
    data = Data(whole.subset(torch.arange(1400)), test=whole.subset(torch.arange(1400, 1600)))
    test = data.splits["test"][:]
    recipe = _recipe(lambda: Vec2Seq(HIGH * WIDE, len(WORDS), width=32), data, Categorical(len(WORDS)), steps=180, lr=8e-3)
    models = [run.model() for run in _runs(exhibit, recipe, "captions")]
    with torch.no_grad():
        samples = [model.sample(test.source, test.x[:, :1], y.shape[1], lambda logits: logits.argmax(-1)) for model in models]
    right = [_equal_fraction(one, test.y, 0) for one in samples]
    named = [" ".join(WORDS[i] for i in row if i > 2) for row in samples[0][:6].tolist()]
    exhibit.show(Images("Captions of held-out images", {"picture": pixels[1400:1406]}, labels=named))
    exhibit.above("captions: held-out pictures without a mistake", right, 0.87)
    return right


def tags(exhibit: Exhibit) -> list[float]:
    """Aligned: the kind of each word, with and without a reader from the end."""

    def accuracy(bidirectional: bool) -> list[float]:
        recipe = tagging.recipe(mixer="gru", n=600, steps=40, lr=2e-2, bidirectional=bidirectional, seed=exhibit.seed)
        runs = _runs(exhibit, recipe.replace(evaluate_every=40), f"tagging-{bidirectional}")
        return [run.result["metrics"]["test/accuracy"] for run in runs]

    both, past = accuracy(True), accuracy(False)
    exhibit.above("tagging: words right with both directions", both, 0.99)
    exhibit.below("tagging: words right where the next one is not seen", past, 0.93)
    return both


def series(exhibit: Exhibit) -> list[float]:
    """Speech-like: tones whose pitch and loudness wander; the error of a recurrent net's forecast, in errors of the last sample."""
    sound = tones(160, 80, exhibit.seed).unsqueeze(-1)
    whole = TensorSource(sound[:, :-1], sound[:, 1:])
    data = Data(whole.subset(torch.arange(128)), test=whole.subset(torch.arange(128, 160)))
    recipe = _recipe(lambda: Tagger(1, 1, kind="numbers", width=32), data, Gaussian(), steps=60, lr=2e-2)
    test = data.splits["test"][:]
    models = [run.model() for run in _runs(exhibit, recipe, "series")]
    with torch.no_grad():
        outputs = [model(test.x) for model in models]
    last, *forecast = ((guess - test.y)[:, 10:].square().mean().sqrt().item() for guess in (test.x, *outputs))  # the first tell the pitch
    ratio = [error / last for error in forecast]
    exhibit.below("series: error of the forecast, in errors of the last sample", ratio, 0.3)
    lines = {"sound": test.y[0, :, 0], "forecast": outputs[0][0, :, 0]}
    exhibit.show(Lines("A held-out sound and the forecast of each next sample", lines, axes=["sample"]))
    return ratio


def _recipe(model: Any, data: Data, objective: Any, steps: int, batch_size: int = 32, lr: float = 5e-3) -> Recipe:
    return Recipe(
        model=model, data=data, objective=objective, optimizer=optimizer("adam", lr=lr), steps=steps, batch_size=batch_size, clip_norm=1.0
    )


def _equal_fraction(tokens: Tensor, expected: Tensor, pad: int) -> float:
    """Fraction of rows that agree wherever there is a target; rows that ended early are padded."""
    tokens = torch.cat([tokens, tokens.new_full((len(tokens), expected.shape[1] - tokens.shape[1]), pad)], 1)
    return float(((tokens == expected) | (expected == pad)).all(1).double().mean())


def make_images(n: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Noisy images (n, HIGH, WIDE) of one shape, the words about each (n, 4) and where there is one."""
    rng = generator(seed, "shapes")
    images = torch.rand(n, HIGH, WIDE, generator=rng) * 0.2
    captions = []
    for image in images:
        shape, size, side = (int(torch.randint(k, (1,), generator=rng)) for k in (len(SHAPES), len(SIZES), 2))
        reach = size + 2  # from the middle to the edge
        row, column = (HIGH // 2 + int(torch.randint(-1, 2, (1,), generator=rng)) for _ in range(2))
        column += side * WIDE // 2
        box = image[row - reach : row + reach + 1, column - reach : column + reach + 1]
        if shape == 0:
            box[[0, -1]] = 1
            box[:, [0, -1]] = 1
        else:
            box[reach] = 1
            if shape == 1:
                box[:, reach] = 1
        captions.append([WORDS.index(word) for word in (SIZES[size], SHAPES[shape], SIDES[side], "</s>") if word])
    rows = Ragged.of(captions)
    words = rows.pad(torch.arange(n), 0)
    return images, words, words > 0


def tones(n: int, length: int, seed: int) -> Tensor:
    """Sounds (n, length): sines whose step in phase and whose logarithm of loudness walk at random."""
    rng = generator(seed, "tones")

    def walk(step: float) -> Tensor:
        return (torch.randn(n, length, generator=rng) * step).cumsum(1)

    pitch = 0.6 + 0.6 * torch.rand(n, 1, generator=rng) + walk(0.01)
    return walk(0.03).exp() * torch.sin(pitch.cumsum(1) + 6.3 * torch.rand(n, 1, generator=rng))


# APP-06


def app_06(exhibit: Exhibit) -> str:
    """An LSTM over bundled melodies writes one of its own, which a player can open."""
    file = exhibit.folder / "tunes.abc"
    file.write_text("\n".join(TUNES), encoding="utf-8")
    recipe = music.recipe(mixer="lstm", depth=1, width=64, context=64, batch_size=16, steps=90, lr=1.5e-2, data=file, seed=exhibit.seed)
    runs = _runs(exhibit, recipe.replace(evaluate_every=90), "music")
    written = [notes((run.path / "tune.abc").read_text(encoding="utf-8")) for run in runs]
    played = [pitches((run.path / "tune.mid").read_bytes()) for run in runs]
    expected = [[note.pitch for note in tune if note.pitch is not None] for tune in written]
    exhibit.expect("pitches of the MIDI files, against the ABC texts", played, expected)
    corpus, drawn = [notes(tune) for tune in TUNES], [_tunes(run, seed) for run, seed in zip(runs, exhibit.seeds(3))]
    exhibit.above(f"notes in {SAMPLED} tunes", [sum(map(len, tunes)) for tunes in drawn], 100)
    near, far = zip(*(music.distances(tunes, corpus, exhibit.seed) for tunes in drawn))
    closer = [ours / baseline for ours, baseline in zip(near, far)]
    exhibit.below("distance of its intervals from the corpus, in that of notes in random order", closer, 0.6)
    loss = [[row["loss"] for row in run.metrics if "loss" in row][-1] / math.log(len(run.data.classes)) for run in runs]
    exhibit.below("loss, in that of signs drawn evenly", loss, 0.15)
    bars = {"corpus": intervals(*corpus), **{f"seed {seed}": intervals(*tunes) for seed, tunes in zip(exhibit.seeds(3), drawn)}}
    steps = [str(step) for step in range(-12, 13)]
    exhibit.show(Bars("Steps from note to note, in semitones", bars, axes=["semitones"], labels=steps))
    summary = f"intervals {spread(near)} from the corpus, {far[0]:.2f} in random order"
    return f"{spread([len(tune) for tune in played], '.0f')} notes in tune.mid; {summary}"


def _tunes(run: Any, seed: int) -> list[list[Note]]:
    """Tunes that the trained model writes; one alone is too short to compare its intervals with the corpus."""
    signs = run.data.reader.vocabulary
    prompt = signs.encode(music.PROMPT).long().expand(SAMPLED, -1)
    rows = generate(run.model(), prompt, music.LENGTH, stop=Stop(barred=no_text(signs)), temperature=0.8, seed=seed)
    return [notes((music.PROMPT + signs.decode(row)).strip("\n").split("\n\n")[0]) for row in rows]


def pitches(file: bytes) -> list[int]:
    """The notes that a MIDI file of one track and one voice begins, in their order."""
    note_numbers, at = [], 22
    while at < len(file):
        while file[at] & 128:  # a time of several bytes
            at += 1
        kind = file[at + 1]
        if kind == 0x90:
            note_numbers.append(file[at + 2])
        at += 2 + (2 + file[at + 3] if kind == 0xFF else 1 if kind >> 4 == 0xC else 2)
    return note_numbers


# APP-09


def app_09(exhibit: Exhibit) -> str:
    """A price that cannot be negative, and features made by hand beside learned ones."""
    return _application_images.prices(exhibit)
