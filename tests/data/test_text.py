"""Text: windows that spell the text again, a fixed split, characters that were not seen in training."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from sonde.core.errors import BadInput
from sonde.data import catalogue
from sonde.data.files import load_file
from sonde.data.text import UNKNOWN, Vocabulary, library

TEXT = "".join(chr(97 + (i * i) % 7) for i in range(400)) + "é" * 30 + "xyz" * 24


def test_plain_text_is_cut_in_order(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(TEXT, encoding="utf-8")
    data = load_file(tmp_path / "a.txt", valid=60, test=42, length=9)
    vocabulary = Vocabulary(data.classes, "char")
    spelt = [vocabulary.decode(source[:].x.flatten()) for source in (data.train, data.valid, data.test)]
    assert spelt[0] == TEXT[: len(spelt[0])] and len(spelt[0]) == (400 - 1) // 9 * 9
    assert spelt[1].startswith(UNKNOWN * 30) and data.report["characters not in training text"] == 102
    assert data.classes == (UNKNOWN, *sorted(set(TEXT[:400]))) and data.report["train tokens"] == 400
    assert torch.equal(data.reader(tmp_path / "a.txt").x[:44], data.train[:].x)
    whole = load_file(tmp_path / "a.txt", valid=0, test=0, length=9, stride=4, level="byte")
    assert whole.valid is None and len(whole.classes) == 256 and len(whole.train) == (len(TEXT.encode()) - 10) // 4 + 1
    assert Vocabulary(whole.classes, "byte").decode(whole.train[:].x[::1, 0]) == TEXT.encode()[: len(whole.train) * 4 : 4].decode(
        "utf-8", "replace"
    )


@pytest.mark.parametrize("level", ["byte", "char"])
@pytest.mark.parametrize("text", ["plain", "ünï☃😀", "a\x00b\n", "".join(map(chr, range(300, 700)))])
def test_encoding_and_decoding_give_the_text_back(level: str, text: str) -> None:
    vocabulary = Vocabulary.of(text, level)
    assert vocabulary.decode(vocabulary.encode(text)) == text


def test_short_text_and_wrong_options(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("short")
    with pytest.raises(BadInput, match="'a.txt' has 5 characters, too few for windows of 128"):
        load_file(tmp_path / "a.txt")
    with pytest.raises(BadInput, match="has no target column"):
        load_file(tmp_path / "a.txt", target="y")
    with pytest.raises(BadInput, match="'length'"):
        load_file(tmp_path / "a.txt", length=0)


def test_the_standard_library_is_a_fixed_corpus() -> None:
    names = [name for name, _ in library()]
    assert names == sorted(names) and "random.py" in names and len(names) > 300
    assert not any(part in name.split("/")[:-1] for name in names for part in ("test", "site-packages", "__pycache__"))
    data, again = catalogue.load("stdlib_text", length=64), catalogue.load("stdlib_text", seed=9, length=64)
    prints = [source.fingerprint() for source in data.splits.values()]
    assert prints == [source.fingerprint() for source in again.splits.values()] and len(set(prints)) == 3
    sizes = [int(data.report[f"{part} tokens"]) for part in ("train", "valid", "test")]
    total = sum(len(text.encode()) + 1 for _, text in library())
    assert sum(sizes) == total - 3  # one line break between files, none after the last of a part
    assert 0.8 < sizes[0] / total < 0.97
    batch = data.train[torch.tensor([5, 2])]
    assert batch.x.shape == (2, 64) and torch.equal(batch.x[:, 1:], batch.y[:, :-1])
