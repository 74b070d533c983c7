"""Data sets of real text, read from files in the data folder ($SONDE_DATA): reviews, translations, names, tunes, novels.

Nothing is downloaded.  Arguments of each function are options of the data set; a function that returns Annotated[Data, "texts"]
can be used by every recipe that classifies texts.
"""

from __future__ import annotations

import io
import tarfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal, final

import torch

from ...core.batch import Batch, Data
from ...core.errors import BadInput, DataUnusable
from ...core.options import Range
from .. import fetch
from ..formats import read_bytes, read_text, report_errors
from ..split import SplitSize, split, subsets
from .documents import DocumentSource, LineSource, Ragged
from .pairs import pairs
from .tokenizer import Tokenizer, TokenKind, special, train
from .windows import VocabularySize, text_set

MaxTokens = Annotated[int, Range(1, 1 << 20)]
Language = Literal["en", "de", "fr"]
MULTI30K_FILES = ("train", "val", "test_2016_flickr")
SPECIAL_TOKENS = ("pad", "unknown", "cls", "sep", "mask")
SENTIMENTS = ("negative", "positive")
IMDB = "sentiment/imdb.train.tsv.xz"


@final
class LinesReader:
    """Turns a text file into a Batch, one padded row per non-empty line; used to predict for new texts.

    Args:
        vocabulary: the tokenizer of the training data
        most: tokens per line; the rest is cut off
        field: name of the field of the Batch: 'x', or 'source' for a model that translates
    """

    def __init__(self, vocabulary: Tokenizer, most: int, field: str = "x") -> None:
        self.vocabulary, self.most, self.field = vocabulary, most, field

    def __call__(self, path: str | Path) -> Batch:
        lines = [line for line in read_text(Path(path)).splitlines() if line.strip()]
        if not lines:
            raise BadInput(f"'{Path(path).name}' holds no text", fix="give one text per line")
        return self.rows(lines)

    def rows(self, lines: Sequence[str]) -> Batch:
        """One row per text."""
        rows = Ragged(*self.vocabulary.encode_all(lines)).truncate(self.most)
        if self.field == "source":
            rows = rows.wrap(end=special(self.vocabulary, "end"))
        ids = torch.arange(len(rows))
        return Batch(**{self.field: rows.pad(ids, special(self.vocabulary, "pad"))}, lengths=rows.lengths, ids=ids)


def sst2(seed: int = 0, level: TokenKind = "words", most: VocabularySize = 20_000, longest: MaxTokens = 128) -> Annotated[Data, "texts"]:
    """SST-2: 9,613 sentences of film reviews, negative or positive.

    Args:
        level: tokens are words, sub-words, characters or bytes
        most: largest vocabulary of words or sub-words
        longest: tokens of a sentence; the rest is cut off
    """
    splits = [_read_labeled(find(f"sentiment/sst2.{name}.tsv"), text=0, label=1) for name in ("train", "dev", "test")]
    return _labeled_data("sst2", splits, level, most, longest)


def imdb(
    seed: int = 0, valid: SplitSize = 0.1, level: TokenKind = "words", most: VocabularySize = 20_000, longest: MaxTokens = 256
) -> Annotated[Data, "texts"]:
    """IMDB: 50,000 film reviews, negative or positive.

    Args:
        valid: fraction or count of the 25,000 training reviews held out for validation
        level: tokens are words, sub-words, characters or bytes
        most: largest vocabulary of words or sub-words
        longest: tokens of a review; the rest is cut off
    """
    labeled, test = (_read_labeled(find(f"sentiment/imdb.{name}.tsv.xz"), text=3, label=0, header=True) for name in ("train", "test"))
    train_reviews, valid_reviews, _ = (_take(labeled, rows) for rows in split(len(labeled[0]), valid, 0, seed, torch.tensor(labeled[1])))
    return _labeled_data("imdb", [train_reviews, valid_reviews, test], level, most, longest)


def sentence_polarity(
    seed: int = 0,
    valid: SplitSize = 0.1,
    test: SplitSize = 0.1,
    level: TokenKind = "words",
    most: VocabularySize = 20_000,
    longest: MaxTokens = 128,
) -> Annotated[Data, "texts"]:
    """10,662 sentences of film reviews, negative or positive.

    Args:
        valid: fraction or count of sentences held out for validation
        test: fraction or count of sentences held out for the test
        level: tokens are words, sub-words, characters or bytes
        most: largest vocabulary of words or sub-words
        longest: tokens of a sentence; the rest is cut off
    """
    path = find("sentiment/sentence_polarity.zip")
    with report_errors(path, "is a damaged zip file"), zipfile.ZipFile(io.BytesIO(read_bytes(path))) as archive:
        names = ("sentence_polarity/rt-polarity.neg", "sentence_polarity/rt-polarity.pos")
        negative, positive = (archive.read(name).decode("latin-1").splitlines() for name in names)
    sentences = [*negative, *positive], [0] * len(negative) + [1] * len(positive)
    splits = [_take(sentences, rows) for rows in split(len(sentences[0]), valid, test, seed, torch.tensor(sentences[1]))]
    return _labeled_data("sentence_polarity", splits, level, most, longest)


def multi30k(
    seed: int = 0,
    source: Language = "de",
    target: Language = "en",
    level: TokenKind = "bpe",
    most: VocabularySize = 8000,
    longest: MaxTokens = 80,
) -> Data:
    """Multi30k: 31,014 captions of photographs in English, German and French, to translate.

    Args:
        source: the language translated from
        target: the language translated to
        level: tokens are sub-words, words, characters or bytes; both languages share them
        most: largest vocabulary of words or sub-words
        longest: tokens of a sentence; the rest is cut off
    """
    if source == target:
        raise BadInput(f"'{source}' is both source and target", where="data set 'multi30k'", fix="choose two of en, de, fr")
    files = {name: [find(f"translation/multi30k.{name}.{language}.gz") for language in (source, target)] for name in MULTI30K_FILES}
    texts = {name: [read_text(path).strip().split("\n") for path in languages] for name, languages in files.items()}
    tokenizer = train(level, (line for language in texts["train"] for line in language), most, ("pad", "unknown", "start", "end"))
    train_source, valid, test = (pairs(texts_in, texts_out, tokenizer, tokenizer, longest) for texts_in, texts_out in texts.values())
    name, reader = f"multi30k {source}-{target}", LinesReader(tokenizer, longest, "source")
    splits = train_source, valid.sort_by_size(), test.sort_by_size()
    # both languages share one vocabulary
    return Data(*splits, name=name, task="other", features=tokenizer.tokens, classes=tokenizer.tokens, reader=reader)


def given_names(seed: int = 0, valid: SplitSize = 0.1, test: SplitSize = 0.1) -> Data:
    """29,494 given names, to predict letter by letter.

    Args:
        valid: fraction or count of names held out for validation
        test: fraction or count of names held out for the test
    """
    return letter_data("given_names", read_text(find("names/names.txt")).splitlines(), seed, valid, test)


def letter_data(name: str, lines: Sequence[str], seed: int = 0, valid: SplitSize = 0.1, test: SplitSize = 0.1) -> Data:
    """Names in lower case, to predict letter by letter; duplicates are removed, so that no name is in two splits."""
    lines = sorted({line.strip().lower() for line in lines} - {""})
    if len(lines) < 20:
        raise DataUnusable(f"'{name}' holds {len(lines)} different names", where="data", fix="give 20 or more, one per line")
    tokenizer = train("char", lines, specials=("pad", "start", "end"))
    start, end, pad = (special(tokenizer, token) for token in ("start", "end", "pad"))
    names = LineSource(Ragged(*tokenizer.encode_all(lines)).wrap(start, end), pad)
    splits, reader = subsets(names, split(len(lines), valid, test, seed)), LinesReader(tokenizer, 64)
    report = {"names": len(lines), "letters": tokenizer.size - len(tokenizer.specials)}
    return Data(*splits, name=name, task="other", classes=tokenizer.tokens, report=report, reader=reader)


def _tunes() -> list[str]:
    return ["X:" + tune for tune in read_text(find("music/nottingham-abc.txt.gz")).split("X:")[1:]]


def _verses() -> list[str]:
    path = find("text/kjv.tsv.xz")
    with report_errors(path, "is not a table of verses"):
        return [line.split("\t")[1] for line in read_text(path).splitlines()]


def _articles() -> list[str]:
    return read_text(find("text/wikitext-2.valid.txt.gz")).splitlines()


nottingham = text_set("nottingham", "1,034 English folk tunes in ABC notation.", "tunes", _tunes, separator="")
novels = text_set(
    "novels", "33 English novels of 1839 to 1919, 25 million characters.", "novels", lambda: [text for _, text in novel_texts()]
)
kjv = text_set("kjv", "King James Bible, 31,102 verses, one in each line.", "verses", _verses)
wikitext2 = text_set(
    "wikitext2",
    "The validation split of WikiText-2, 213,886 words of Wikipedia articles.",
    "lines",
    _articles,
    held_out=0.1,
    tokens="words",
    vocabulary_size=20_000,
)


def novel_texts() -> list[tuple[str, str]]:
    """(file name, text) of each novel, in the order of their names."""
    path = find("text/english-novels.tar.xz")
    with report_errors(path, "is a damaged tar file"), tarfile.open(fileobj=io.BytesIO(read_bytes(path))) as archive:
        members = sorted((member for member in archive if member.isfile()), key=lambda member: member.name)
        return [(Path(member.name).name, archive.extractfile(member).read().decode("utf-8-sig")) for member in members]  # type: ignore[union-attr]


def find(name: str) -> Path:
    """The path of a file in a data folder; raises DataUnusable, which says where to put it, if there is none."""
    path = fetch.find(name)
    if path is None:
        searched = ", ".join(map(str, fetch.roots()))
        raise DataUnusable(
            f"no data folder has '{name}'",
            where=f"looked in {searched}",
            fix=f"set SONDE_DATA to a folder and put the file at $SONDE_DATA/{name}",
        )
    return path


def reviews(most: int) -> list[str]:
    """The first `most` reviews of the training split of IMDB, without their labels."""
    return [text.replace("<br />", " ") for text in _read_labeled(find(IMDB), text=3, label=0, header=True)[0][:most]]


def _labeled_data(name: str, splits: Sequence[tuple[list[str], list[int]]], level: TokenKind, most: int, longest: int) -> Data:
    """Data from (texts, labels) of train, valid and test; the tokenizer is trained on the first."""
    tokenizer = train(level, splits[0][0], most, SPECIAL_TOKENS)
    sources = []
    for texts, labels in splits:
        rows = Ragged(*tokenizer.encode_all(texts)).truncate(longest)
        sources.append(DocumentSource(rows, special(tokenizer, "pad"), torch.tensor(labels)) if texts else None)
    if sources[0] is None:
        raise BadInput(f"'{name}' leaves no text for training", fix="lower valid or test")
    report: dict[str, int | str] = {"tokens of the vocabulary": tokenizer.size}
    reader = LinesReader(tokenizer, longest)
    return Data(sources[0], sources[1], sources[2], name=name, task="classes", classes=SENTIMENTS, report=report, reader=reader)


def _read_labeled(path: Path, text: int, label: int, header: bool = False) -> tuple[list[str], list[int]]:
    """Texts and labels of a tab-separated file, from the columns `text` and `label`."""
    with report_errors(path, "is not a table of texts and labels"):
        rows = [line.split("\t") for line in read_text(path).split("\n")[int(header) :] if line]
        return [row[text] for row in rows], [int(row[label]) for row in rows]


def _take(examples: tuple[list[str], list[int]], rows: torch.Tensor) -> tuple[list[str], list[int]]:
    texts, labels = examples
    return [texts[i] for i in rows.tolist()], [labels[i] for i in rows.tolist()]
