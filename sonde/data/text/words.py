"""Questions to word vectors: pairs of words that people judged, and analogies."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from ...core.errors import BadInput, nearest
from ..formats import decode, reading
from .corpora import find

SIMILARITY = {
    "wordsim353": "EN-WS-353-ALL.txt",
    "wordsim353-similar": "EN-WS-353-SIM.txt",
    "wordsim353-related": "EN-WS-353-REL.txt",
    "simlex999": "EN-SIMLEX-999.txt",
    "men3000": "EN-MEN-TR-3k.txt",
    "rg65": "EN-RG-65.txt",
    "mc30": "EN-MC-30.txt",
    "mturk287": "EN-MTurk-287.txt",
    "mturk771": "EN-MTurk-771.txt",
    "yp130": "EN-YP-130.txt",
}


class WordPair(NamedTuple):
    """Two words and how alike people find them."""

    first: str
    second: str
    score: float


def similarity(which: str | Path) -> list[WordPair]:
    """Pairs of words with scores: a known set by its name, or a file with two words and a number in each line."""
    if isinstance(which, str) and which not in SIMILARITY and not Path(which).is_file():
        raise BadInput(f"no word-similarity set '{which}'", fix=nearest(which, SIMILARITY) + " (or give the path of a file)")
    path = find(f"word-vectors/{SIMILARITY[which]}") if isinstance(which, str) and which in SIMILARITY else Path(which)
    with reading(path, "is not a list of two words and a number"):
        rows = [line.split() for line in decode(path).splitlines() if line.strip()]
        pairs = [WordPair(first.lower(), second.lower(), float(score)) for first, second, score in rows]
    if not pairs:
        raise BadInput(f"'{path.name}' holds no pairs", fix="give two words and a number in each line")
    return pairs


def analogies(file: Path | None = None) -> dict[str, list[tuple[str, str, str, str]]]:
    """Questions 'a is to b as c is to d' by group, in small letters; by default the 19,544 of word2vec."""
    path = file or find("word-vectors/questions-words.txt")
    questions: dict[str, list[tuple[str, str, str, str]]] = {}
    with reading(path, "is not a list of analogies"):
        group = ""
        for line in decode(path).splitlines():
            if line.startswith(":"):
                group = line[1:].strip()
            elif line.strip():
                a, b, c, d = line.lower().split()
                questions.setdefault(group, []).append((a, b, c, d))
    return questions
