"""Text: windows that spell the text again, a fixed split, characters that were not seen in training."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import torch

from sonde.core.errors import BadInput, DataUnusable
from sonde.data import catalog, fetch
from sonde.data.files import load_file
from sonde.data.text import windows as text
from sonde.data.text.tokenizer import UNKNOWN, Vocabulary
from sonde.data.text.windows import library

TEXT = "".join(chr(97 + (i * i) % 7) for i in range(400)) + "é" * 30 + "xyz" * 24


def test_plain_text_is_cut_in_order(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(TEXT, encoding="utf-8")
    data = load_file(tmp_path / "a.txt", valid=60, test=42, length=9)
    vocabulary = Vocabulary(data.classes, "char")
    texts = [vocabulary.decode(source[:].x.flatten()) for source in (data.train, data.valid, data.test)]
    assert texts[0] == TEXT[: len(texts[0])] and len(texts[0]) == (400 - 1) // 9 * 9
    assert texts[1].startswith(UNKNOWN * 30) and data.report["characters not in training text"] == 102
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
    with pytest.raises(BadInput, match="smaller length .'context' in a recipe. or a longer text"):
        load_file(tmp_path / "a.txt")
    (tmp_path / "b.txt").write_text("")
    with pytest.raises(BadInput, match="'b.txt' is empty"):
        load_file(tmp_path / "b.txt")
    with pytest.raises(BadInput, match="has no target column"):
        load_file(tmp_path / "a.txt", target="y")
    with pytest.raises(BadInput, match="'length'"):
        load_file(tmp_path / "a.txt", length=0)


def test_the_standard_library_is_a_fixed_corpus() -> None:
    names = [name for name, _ in library()]
    assert names == sorted(names) and "random.py" in names and len(names) > 300
    assert not any(part in name.split("/")[:-1] for name in names for part in ("test", "site-packages", "__pycache__"))
    data, again = catalog.load("stdlib_text", length=64), catalog.load("stdlib_text", seed=9, length=64)
    prints = [source.fingerprint() for source in data.splits.values()]
    assert prints == [source.fingerprint() for source in again.splits.values()] and len(set(prints)) == 3
    sizes = [int(data.report[f"{part} tokens"]) for part in ("train", "valid", "test")]
    total = sum(len(text.encode()) + 1 for _, text in library())
    assert sum(sizes) == total - 3  # one line break between files, none after the last of a part
    assert 0.8 < sizes[0] / total < 0.97
    batch = data.train[torch.tensor([5, 2])]
    assert batch.x.shape == (2, 64) and torch.equal(batch.x[:, 1:], batch.y[:, :-1])


@pytest.fixture
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine that has a home with the text, but neither a data folder nor a cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("SONDE_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    home = tmp_path / "home"
    home.mkdir()
    (home / "input.txt").write_text(TEXT, encoding="utf-8")
    monkeypatch.setattr(text, "SHAKESPEARE_MIRRORS", (home.as_uri() + "/",))
    monkeypatch.setattr(text, "SHAKESPEARE_SHA256", hashlib.sha256(TEXT.encode()).hexdigest())
    return tmp_path


@pytest.mark.parametrize("place", text.SHAKESPEARE)
def test_shakespeare_is_found_and_checked(offline: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    monkeypatch.setattr(text, "SHAKESPEARE_MIRRORS", ())
    path = offline / "data" / place
    path.parent.mkdir(parents=True)
    path.write_text(TEXT, encoding="utf-8")
    data = catalog.load("tiny_shakespeare", length=9, valid=60, test=42)
    same = load_file(path, length=9, valid=60, test=42)
    assert data.name == "tiny_shakespeare" and data.classes == same.classes
    assert [part.fingerprint() for part in data.splits.values()] == [part.fingerprint() for part in same.splits.values()]
    path.write_text(TEXT[:-1], encoding="utf-8")
    with pytest.raises(DataUnusable, match=f"'{path.name}' is not the file it should be"):
        catalog.load("tiny_shakespeare", length=9)


def test_shakespeare_is_downloaded_once(offline: Path) -> None:
    options = {"length": 9, "valid": 60, "test": 42}
    first = catalog.load("tiny_shakespeare", **options)
    assert (fetch.cache() / "tinyshakespeare/input.txt").read_text(encoding="utf-8") == TEXT
    (offline / "home/input.txt").unlink()
    assert catalog.load("tiny_shakespeare", **options).train.fingerprint() == first.train.fingerprint()


@pytest.mark.parametrize("served", ["another text", None])
def test_shakespeare_that_cannot_be_had_says_where_to_put_it(offline: Path, served: str | None) -> None:
    (offline / "home/input.txt").unlink()
    if served:
        (offline / "home/input.txt").write_text(served)
    with pytest.raises(DataUnusable) as caught:
        catalog.load("tiny_shakespeare")
    assert str(fetch.cache() / "tinyshakespeare/input.txt") in str(caught.value)
    assert not [path for path in (offline / "cache").rglob("*") if path.is_file()]


@pytest.mark.skipif(fetch.find(*text.SHAKESPEARE) is None, reason="tiny-Shakespeare is not in a data folder")
def test_the_real_shakespeare() -> None:
    data = catalog.load("tiny_shakespeare", length=64)
    assert sum(int(data.report[f"{part} tokens"]) for part in ("train", "valid", "test")) == 1_115_394
    assert len(data.classes) == 66  # 65, and one for those not seen
    assert Vocabulary(data.classes, "char").decode(data.train[:1].x[0]).startswith("First Citizen:\nBefore we proceed")
