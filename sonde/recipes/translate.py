"""Translation by an encoder-decoder, recurrent or a transformer; BLEU on the test part, compared with word-for-word translation."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch

from ..core.batch import Data
from ..core.options import Range
from ..core.recipe import Recipe
from ..data import fetch
from ..data.catalog import load
from ..data.text.tokenizer import Tokenizer, special
from ..generate import Stop, beam, bleu, exact, generate
from ..models.encoder_decoder import EncoderDecoder
from ..models.seq2seq import Seq2Seq
from ..objectives.categorical import Categorical
from ..objectives.scheduled import Scheduled, linear
from ..optim.build import optimizer
from ..optim.schedules import warmup_cosine
from .tools.final_report import FinalReport
from .tools.sequence import BatchSize, Depth, LearningRate, ModelWidth, StepCount

Language = Literal["en", "de", "fr"]
AT_ONCE, TOYS = 100, 7200
"""sentences per batch of translation, and sentences of the generated language"""


def recipe(
    source: Language = "de",
    target: Language = "en",
    pairs: Literal["auto", "multi30k", "toy"] = "auto",
    model: Literal["rnn", "transformer"] = "rnn",
    mixer: str | None = None,
    attention: Literal["none", "dot", "general", "additive"] = "general",
    feeding: bool = False,
    width: ModelWidth = 256,
    depth: Depth = 1,
    vocabulary: Annotated[int, Range(300, 100_000)] = 6000,
    dropout: Annotated[float, Range(least=0, below=1)] = 0.3,
    sampling: Annotated[float, Range(0, 1)] = 0.0,
    beams: Annotated[int, Range(1, 64)] = 1,
    batch_size: BatchSize = 64,
    lr: LearningRate = 1e-3,
    steps: StepCount = 3000,
    seed: int = 0,
) -> Recipe:
    """Translate sentences; at the end the test part is translated and compared, as a whole (BLEU) and sentence by sentence.

    Args:
        source: the language translated from
        target: the language translated to
        pairs: captions of photographs in both languages (multi30k), or generated sentences of a small grammar (toy, always from
            English); auto takes multi30k where a data folder has it
        model: rnn has a recurrent encoder and decoder, transformer a stack of blocks for each
        mixer: sequence mixer of the encoder and decoder of an rnn, by default gru, or of the decoder of a transformer, by default
            attention; by name, with its options: "lstm hidden=400"
        attention: attention of the rnn decoder to the source; none passes one vector only
        feeding: the attention output is an input of the next step of the rnn, as in Bahdanau's model; slower
        width: model dimension
        depth: layers of the encoder, and of the decoder
        vocabulary: sub-words, shared by both languages
        dropout: dropout probability
        sampling: scheduled sampling: fraction of its own tokens that the model reads at the end of training, rising from 0
        beams: beam width of a second translation of the test part; 1 is greedy decoding alone
        batch_size: sentences per update
        lr: peak learning rate: linear warm-up, then cosine decay to a twentieth
        steps: updates
    """
    available = fetch.find(f"translation/multi30k.train.{source}.gz") is not None
    if pairs == "toy" or (pairs == "auto" and not available):
        data = load("bilingual", seed=seed, n=TOYS)
    else:
        data = load("multi30k", source=source, target=target, most=vocabulary)
    size = len(data.classes)
    build: partial[Seq2Seq] | partial[EncoderDecoder]
    if model == "rnn":
        build = partial(Seq2Seq, size, width, depth, mixer or "gru", attention=attention, feeding=feeding, dropout=dropout)
    else:
        heads = next(heads for heads in (4, 2, 1) if width % heads == 0)
        build = partial(EncoderDecoder, size, width, depth, heads, decoder=mixer or f"attention heads={heads}", dropout=dropout)
    plain = Categorical(size, smoothing=0.1)
    objective = Scheduled(plain, linear(steps, sampling)) if sampling else plain
    return Recipe(
        model=build,
        data=data,
        objective=objective,
        optimizer=optimizer("adamw", lr=lr, weight_decay=0.01, betas=(0.9, 0.98)),
        schedule=warmup_cosine(warmup=0.1, floor=0.05),
        clip_norm=1.0,
        batch_size=batch_size,
        steps=steps,
        evaluate_every=max(steps // 10, 1),
        evaluate_batch_size=AT_ONCE,
        callbacks=(FinalReport(partial(report, data, beams)),),
    )


def report(data: Data, beams: int, model: Any, folder: Path) -> Mapping[str, str]:
    """BLEU and exact matches on the test part; all translations are written into the run's folder."""
    translations, references, sources = translate_test(model, data)
    scores = {"translated": translations, "word for word": word_for_word(data, sources), "source copied": sources}
    if beams > 1:
        translations = scores[f"with {beams} beams"] = translate_test(model, data, beams)[0]
    lines = [f"{question}\n  {answer}\n  ({reference})" for question, answer, reference in zip(sources, translations, references)]
    (folder / "translations.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    summary = ", ".join(f"{name} {bleu(_words(texts), _words(references)):.1f}" for name, texts in scores.items())
    return {
        "BLEU": f"{summary} ({len(references):,} sentences of the test part)",
        "exact": f"{exact(translations, references):.1%} of them equal their reference",
        "example": f"{sources[0]} -> {translations[0]} ({references[0]})",
    }


def translate_test(model: Any, data: Data, beams: int = 1) -> tuple[list[str], list[str], list[str]]:
    """Translations, references and sources of the test part, as texts."""
    tokenizer, source = data.reader.vocabulary, data.test
    start, end, pad = (special(tokenizer, name) for name in ("start", "end", "pad"))
    stop, translations, references, sources = Stop(end=end, pad=pad), [], [], []
    assert source is not None
    model.eval()
    for first in range(0, len(source), AT_ONCE):
        batch = source[torch.arange(first, min(first + AT_ONCE, len(source)))]
        max_tokens = 10 + 3 * batch.source.shape[1] // 2  # nothing real is longer
        with torch.no_grad():
            state, starts = model.begin(batch.source, batch.lengths), torch.full((len(batch), 1), start)
            if beams == 1:
                tokens = generate(model, starts, max_tokens, state=state, stop=stop, temperature=0)
            else:
                tokens = beam(model, starts, max_tokens, beams=beams, stop=stop, state=state).tokens[:, 0]
        translations += _texts(tokenizer, tokens)
        references += _texts(tokenizer, batch.y)
        sources += _texts(tokenizer, batch.source)
    return translations, references, sources


def word_for_word(data: Data, texts: Sequence[str]) -> list[str]:
    """Replace each word by the one with the largest Dice coefficient 2 n(s, t) / (n(s) + n(t)) in the training pairs."""
    tokenizer, rows = data.reader.vocabulary, data.train[torch.arange(len(data.train))]
    sides = [[set(row) for row in _words(_texts(tokenizer, side))] for side in (rows.source, rows.y)]
    words = sorted(set().union(*sides[0], *sides[1]))
    number = {word: i for i, word in enumerate(words)}
    ours, theirs = ([np.array([number[word] for word in sorted(row)], np.int64) for row in side] for side in sides)
    counts = [np.bincount(np.concatenate(side), minlength=len(words)) for side in (ours, theirs)]
    codes = np.concatenate([(a[:, None] * len(words) + b).ravel() for a, b in zip(ours, theirs)])
    codes, times = np.unique(codes, return_counts=True)
    word, other = np.divmod(codes, len(words))
    rising = np.lexsort((2 * times / (counts[0][word] + counts[1][other]), word))  # the last of each word is its best
    best = {words[i]: words[j] for i, j in zip(word[rising], other[rising])}
    return [" ".join(best.get(word, word) for word in row) for row in _words(texts)]


def _texts(tokenizer: Tokenizer, tokens: torch.Tensor) -> list[str]:
    """Decode rows of tokens, without special tokens such as padding."""
    return [tokenizer.decode(row).strip() for row in tokens]


def _words(texts: Sequence[str]) -> list[list[str]]:
    """Words and punctuation marks of each text."""
    return [re.findall(r"\w+|[^\w\s]", text) for text in texts]
