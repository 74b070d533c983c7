"""The hash of a row's source: it sees what is computed, through helpers and other files, and nothing else."""

from __future__ import annotations

import pytest

from sonde.atlas._sources import source_key

CHAPTER = '''
"""A chapter."""
from . import _parts as toy
from ._parts import shared

STEPS = 8


def fn_01(exhibit):
    """A row."""
    exhibit.above("accuracy", _train(exhibit.seed), 0.9)  # a comment


def _train(seed):
    return toy.fit(seed, STEPS) + shared


def fn_02(exhibit):
    return "another row"
'''
PARTS = """
from ._deeper import RATE

shared = 1


def fit(seed, steps):
    return helper(seed) * steps * RATE


def helper(seed):
    return seed


def unused():
    return 0
"""


@pytest.fixture
def key(tmp_path):
    def write(chapter=CHAPTER, parts=PARTS, deeper="RATE = 0.1\n"):
        for name, text in (("chapter", chapter), ("_parts", parts), ("_deeper", deeper)):
            (tmp_path / f"{name}.py").write_text(text)
        return source_key("fn_01", tmp_path / "chapter.py")

    return write


@pytest.mark.parametrize(
    "change",
    [
        {"chapter": CHAPTER.replace("STEPS = 8", "STEPS = 7")},
        {"chapter": CHAPTER.replace("0.9", "0.8")},
        {"chapter": CHAPTER.replace("toy.fit(seed", "toy.fit(1 + seed")},
        {"chapter": CHAPTER.replace("def _train", "@twice\ndef _train")},
        {"parts": PARTS.replace("shared = 1", "shared = 2")},
        {"parts": PARTS.replace("return seed", "return seed + 1")},
        {"deeper": "RATE = 0.2\n"},
    ],
    ids=["constant", "bound", "helper", "decorator", "imported constant", "helper of a helper", "file of a file"],
)
def test_what_is_computed_counts(key, change):
    assert key(**change) != key()


@pytest.mark.parametrize(
    "change",
    [
        {"chapter": CHAPTER.replace("a comment", "another")},
        {"chapter": CHAPTER.replace("A row", "This row")},
        {"chapter": CHAPTER.replace("another row", "changed")},
        {"chapter": CHAPTER.replace("exhibit.seed), 0.9)", "exhibit.seed),\n        0.9)")},
        {"parts": PARTS.replace("return 0", "return 1")},
        {"parts": "# first\n" + PARTS},
    ],
    ids=["comment", "docstring", "other row", "layout", "unused part", "moved"],
)
def test_nothing_else_counts(key, change):
    assert key(**change) == key()
