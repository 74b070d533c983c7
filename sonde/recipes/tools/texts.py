"""Texts of the recipes over words and letters: from a data folder, else a small bundled or generated substitute."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import torch

from ...core.errors import DataUnusable
from ...core.seeds import generator
from ...data import fetch
from ...data.formats import read_text
from ...data.melody import TUNES

AMBIGUOUS = ("light", "fish", "watch", "play", "walk", "drink", "paint", "dance")
"""words that can be a noun or a verb"""
ARTICLES, AUXILIARIES = ("the", "a", "this"), ("can", "will", "must")

NAMES = (
    "ada alan albert alice amalie ana andrew anna arthur barbara beatrice bela benjamin bernard bertha blaise boris brook "
    "bruno carl carla cecilia charles christine clara claude daniel david diana dorothy edith edward elena elias eliza emil "
    "emma emmy erwin esther eva felix flora frances frank frieda gabriel george georgia gerda grace hanna harold helen henri "
    "herbert hermann hilda hugo ida irene isaac isabel ivan jacob jane jean joan johann john josef julia karen karl kate "
    "katherine klara konrad kurt laura leo leonard leonhard lida lina lise louis louisa lucia ludwig marcel margaret maria "
    "marian marie martha martin mary max melitta michael mina miriam nadia nicolas niels nina nora norbert olga oliver oscar "
    "otto pascal paul paula peter philip pierre rachel ralph richard rita robert rosa rosalind rose rudolf ruth sara sergei "
    "simon sofia sonia stefan susan sylvia thea theodor thomas ursula valentina vera victor virginia walter werner wilhelm "
    "william xenia yvonne zoe"
)
"""used where no data folder has more"""


def given_names(file: Path | None = None) -> tuple[str, list[str]]:
    """(description, one name per line)."""
    path = file or fetch.find("names/names.txt", "names.txt")
    if path is None:
        return "a few bundled names (a data folder with names/names.txt has 29,494)", NAMES.split()
    return path.name, read_text(path).splitlines()


def tunes(file: Path | None = None) -> tuple[str, list[str]]:
    """(description, tunes in ABC): of each its meter, unit length and key, and the melody without chords, words and titles."""
    path = file or fetch.find("music/nottingham-abc.txt.gz", "nottingham-abc.txt.gz")
    if path is None:
        return "a few bundled melodies (a data folder with music/nottingham-abc.txt.gz has 1,034)", [_melody(tune) for tune in TUNES]
    songs = [_melody(tune) for tune in re.split(r"^X:.*$", read_text(path), flags=re.MULTILINE)[1:]]
    if len(songs) < 5:
        raise DataUnusable(f"'{path.name}' holds {len(songs)} tunes", where=str(path), fix="give 5 or more in ABC, each after a line 'X:'")
    return path.name, songs


def grammar(n: int, seed: int) -> tuple[list[list[str]], list[list[str]]]:
    """Sentences and the tag of each word; whether the first word of a clause is a verb or a noun depends on the next word.

    watch the light and fish can play .     verb article noun and noun auxiliary verb end
    """
    rng = generator(seed, "grammar")

    def pick(words: Sequence[str]) -> str:
        return words[int(torch.randint(len(words), (1,), generator=rng))]

    sentences, tags = [], []
    for _ in range(n):
        sentence, tag_row = [], []
        for clause in range(1 + int(torch.randint(3, (1,), generator=rng))):
            imperative = bool(torch.randint(2, (1,), generator=rng))
            sentence += ["and"] * (clause > 0) + [
                pick(AMBIGUOUS),
                pick(ARTICLES if imperative else AUXILIARIES),
                pick(AMBIGUOUS),
            ]
            tag_row += ["and"] * (clause > 0) + (["verb", "article", "noun"] if imperative else ["noun", "auxiliary", "verb"])
        sentences.append([*sentence, "."])
        tags.append([*tag_row, "end"])
    return sentences, tags


def _melody(tune: str) -> str:
    """Meter, unit length and key, and the notes."""
    lines = [line for line in tune.splitlines() if not re.match(r"[A-Za-z]:", line) or line[0] in "MLK"]
    plain = [re.sub(r'"[^"]*"|![^!]*!|%.*|[\\\s]', "", line) for line in lines]
    return "\n".join(line for line in plain if line) + "\n"
