"""Token shards: the tokens of the text, killed and resumed, side by side, damaged; and windows over them."""

from __future__ import annotations

import gzip
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sonde.core.errors import BadInput, DataUnusable, SondeError
from sonde.data import catalog
from sonde.data.text import shards
from sonde.data.text.shards import ShardOptions, prepare
from sonde.data.text.token_folder import open_shards
from sonde.data.text.tokenizer import load, train

ROOT = Path(__file__).parents[3]
PIECES = ["the cat", "a naïve\tdog", "☃ snow", "x", "12 mice; three", "it's 'so'", "end."]


def text(lines: int, seed: int = 0) -> str:
    rng = np.random.default_rng(seed)
    sentences = [" ".join(rng.choice(PIECES, rng.integers(1, 9))) for _ in range(lines)]
    return "".join(line + ("\n\n" if i % 5 == 4 else "\n") for i, line in enumerate(sentences))


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """A long file, a short one and a packed one."""
    (tmp_path / "a.txt").write_text(text(700), encoding="utf-8")
    (tmp_path / "b.txt").write_text("one line only", encoding="utf-8")
    (tmp_path / "c.txt.gz").write_bytes(gzip.compress(text(50, 1).encode()))
    return [tmp_path / name for name in ("a.txt", "b.txt", "c.txt.gz")]


def everything(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != ".lock"}


def spelled(folder: Path) -> list[list[int]]:
    """The documents of a folder as tokens, read with nothing but NumPy."""
    corpus, _ = open_shards(folder)
    tokens = np.concatenate([np.fromfile(folder / f"{name}.tokens", corpus.dtype) for name in corpus.names])
    return [part.tolist() for part in np.split(tokens, corpus.documents[0])[:-1]]


@pytest.mark.parametrize("kind", ["byte", "char", "bpe", "words", "unigram"])
@pytest.mark.parametrize("how", ["file", "line", "paragraph"])
def test_documents_are_those_of_the_text(files: list[Path], tmp_path: Path, kind: str, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "BLOCK", 1000)  # many blocks, cut at odd places
    manifest = prepare(files, tmp_path / "out", ShardOptions(kind, 400, how, 5000))  # type: ignore[arg-type]
    tokenizer = load(tmp_path / "out/tokenizer.json")
    raw = [file.read_bytes() if file.suffix == ".txt" else gzip.decompress(file.read_bytes()) for file in files]
    split = {"file": lambda t: [t], "line": str.splitlines, "paragraph": lambda t: re.split(r"\n\s*\n", t)}[how]
    want = [document.strip("\n") if how == "paragraph" else document for one in raw for document in split(one.decode())]
    want = [document for document in want if document.strip()]
    ends = [tokenizer.specials["end"]]
    assert spelled(tmp_path / "out") == [tokenizer.encode(document).tolist() + ends for document in want]
    assert len(manifest["shards"]) > 5 and manifest["documents"] == len(want) and manifest["dtype"] == "uint16"


@pytest.mark.slow
def test_side_by_side_the_bytes_are_the_same(files: list[Path], tmp_path: Path) -> None:
    request = ShardOptions("bpe", 300, "line", 9000)
    heard: list[tuple[int, int]] = []
    prepare(files, tmp_path / "one", request, 1, lambda *args: heard.append(args))
    prepare(files, tmp_path / "two", request, 2)
    assert everything(tmp_path / "one") == everything(tmp_path / "two")
    assert heard == sorted(heard) and heard[0][0] == 0 and heard[-1][0] == heard[-1][1]


@pytest.mark.parametrize("how", ["file", "line"])
def test_what_was_stopped_goes_on_and_ends_the_same(files: list[Path], tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    request = ShardOptions("char", 300, how, 4000)  # type: ignore[arg-type]
    prepare(files, tmp_path / "whole", request)
    make, calls = shards._shard, []

    def stops(number: int, job: object, **more: object) -> dict:
        if len(calls) == 3:
            raise KeyboardInterrupt
        calls.append(number)
        return make(number, job, **more)

    monkeypatch.setattr(shards, "_shard", stops)
    with pytest.raises(KeyboardInterrupt):
        prepare(files, tmp_path / "cut", request)
    assert not (tmp_path / "cut/manifest.json").exists()
    (tmp_path / "cut/.tmp-00003.tokens-1").write_bytes(b"half")  # as a killed process leaves it
    damaged = bytearray((tmp_path / "cut/00001.tokens").read_bytes())
    damaged[0] ^= 1
    (tmp_path / "cut/00001.tokens").write_bytes(damaged)
    numbers = []
    monkeypatch.setattr(shards, "_shard", lambda number, job, **more: numbers.append(number) or make(number, job, **more))
    prepare(files, tmp_path / "cut", request)
    assert everything(tmp_path / "cut") == everything(tmp_path / "whole") and 0 not in numbers and 2 not in numbers and 1 in numbers
    numbers.clear()
    prepare(files, tmp_path / "cut", request)
    assert numbers == []


@pytest.mark.slow
def test_killed_outright_it_goes_on_and_ends_the_same(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(text(60_000), encoding="utf-8")
    words = ["data", "tokens", str(tmp_path / "a.txt"), "--tokenizer", "byte", "--documents", "line", "--shard", "1", "--processes", "1"]
    start = [sys.executable, "-m", "sonde", *words, "--out"]
    process = subprocess.Popen([*start, str(tmp_path / "killed")], cwd=ROOT, stdout=subprocess.PIPE)
    until = time.monotonic() + 60
    while not (tmp_path / "killed/00000.json").exists() and process.poll() is None and time.monotonic() < until:
        os.sched_yield()
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()  # type: ignore[union-attr]
    for name in ("killed", "whole"):
        done = subprocess.run([*start, str(tmp_path / name)], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0 and "documents" in done.stdout, done.stderr
    assert everything(tmp_path / "killed") == everything(tmp_path / "whole")


def test_windows_spell_the_text_and_know_its_documents(files: list[Path], tmp_path: Path) -> None:
    prepare(files, tmp_path / "out", ShardOptions("char", 0, "line", 4000))
    rows = spelled(tmp_path / "out")
    whole = catalog.load(tmp_path / "out", length=20, stride=7, by="place", valid=300, test=0.1, boundaries=True)
    flat = [token for row in rows for token in row]
    number = [i for i, row in enumerate(rows) for _ in row]
    assert whole.valid is not None and sum(int(whole.report[f"{part} tokens"]) for part in ("train", "valid", "test")) == len(flat)
    batch = whole.train[torch.tensor([11, 0, 40])]
    for i, start in enumerate((77, 0, 280)):
        assert batch.x[i].tolist() == flat[start : start + 20] and batch.y[i].tolist() == flat[start + 1 : start + 21]
        documents = number[start : start + 21]
        assert batch.documents[i].tolist() == [one - documents[0] for one in documents[:20]]
        assert batch.mask[i].tolist() == [a == b for a, b in zip(documents, documents[1:])]
    assert torch.equal(whole.train[:3].x, whole.train[torch.arange(3)].x) and "mask" not in catalog.load(tmp_path / "out").train[:1]
    valid = whole.valid[:]
    at = int(whole.report["train tokens"])
    assert valid.x[0].tolist() == flat[at : at + 20] and len(whole.valid) == (300 - 21) // 7 + 1


def test_documents_go_to_one_part_by_what_they_say(files: list[Path], tmp_path: Path) -> None:
    prepare(files, tmp_path / "out", ShardOptions("char", 0, "line", 4000))
    data = catalog.load(tmp_path / "out", length=4, valid=0.2, test=0.1)
    assert data.report["split by"] == "document"
    parts = []
    for source in data.splits.values():
        stops = source.starts + np.diff(source.bounds)
        parts.append({tuple(source.shards.take(np.arange(a, b))) for a, b in zip(source.starts, stops)})
    assert not parts[0] & parts[1] and not parts[0] & parts[2] and not parts[1] & parts[2]
    assert set.union(*parts) == {tuple(row) for row in spelled(tmp_path / "out")}
    assert 0.1 < len(parts[1]) / len(set.union(*parts)) < 0.3
    prints = [source.fingerprint() for source in data.splits.values()]
    again = catalog.load(tmp_path / "out", seed=5, length=4, valid=0.2, test=0.1)
    assert len(set(prints)) == 3 and prints == [source.fingerprint() for source in again.splits.values()]
    assert data.reader(files[1]).x.shape == (3, 4) and data.classes == load(tmp_path / "out/tokenizer.json").tokens


def test_a_large_vocabulary_takes_larger_numbers() -> None:
    assert shards.dtype(1 << 16) == "uint16" and shards.dtype((1 << 16) + 1) == "uint32"


def test_bad_text_and_folders_are_said(files: list[Path], tmp_path: Path) -> None:
    (tmp_path / "bad.txt").write_bytes(b"good text, then \xff\xfe")
    (tmp_path / "empty.txt").write_bytes(b"")
    (tmp_path / "blank.txt").write_bytes(b"\n \n\t\n")
    (tmp_path / "torn.txt.gz").write_bytes(gzip.compress(b"text " * 999)[:40])
    (tmp_path / "full").mkdir()
    (tmp_path / "full/mine.txt").write_text("mine")
    (tmp_path / "none.json").write_text("{}")
    for names, out, request, message in (
        (["bad.txt"], "o1", ShardOptions("byte"), "'bad.txt' is not UTF-8 text: byte 16 is 0xff"),
        (["empty.txt"], "o2", ShardOptions("byte"), "hold no text"),
        (["blank.txt"], "o3", ShardOptions("byte", documents="line"), "hold no text"),
        (["torn.txt.gz"], "o4", ShardOptions("byte"), "'torn.txt.gz' cannot be read"),
        (["gone.txt"], "o5", ShardOptions("byte"), "no file"),
        ([], "o6", ShardOptions("byte"), "no file to tokenize"),
        (["a.txt"], "full", ShardOptions("byte"), "is not empty and not a token folder"),
        (["a.txt"], "b.txt", ShardOptions("byte"), "is not empty and not a token folder"),
        (["a.txt"], "o7", ShardOptions(str(tmp_path / "none.json")), "is not a tokenizer.json"),
        (["a.txt"], "o8", ShardOptions("bpe", 3), "needs 259 tokens or more"),
    ):
        with pytest.raises(SondeError, match=message):
            prepare([tmp_path / name for name in names], tmp_path / out, request)
        assert not (tmp_path / out / "manifest.json").exists()
    prepare(files, tmp_path / "out", ShardOptions("byte"))
    with pytest.raises(BadInput, match="started with another 'documents'"):
        prepare(files, tmp_path / "out", ShardOptions("byte", documents="line"))
    files[1].write_text("another text")
    with pytest.raises(BadInput, match="the text files are different, or changed"):
        prepare(files, tmp_path / "out", ShardOptions("byte"))


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("good")
    (folder / "a.txt").write_text(text(60), encoding="utf-8")
    prepare([folder / "a.txt"], folder / "out", ShardOptions("char", 0, "line", 1000))
    return folder / "out"


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_damage_is_noticed(good: Path, tmp_path: Path, data: st.DataObject) -> None:
    folder = tmp_path / "copy"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(good, folder)
    names = sorted(path.name for path in folder.iterdir() if re.match(r"\d+\.(tokens|documents)|manifest|tokenizer", path.name))
    path = folder / data.draw(st.sampled_from(names))
    before = path.read_bytes()
    at = data.draw(st.integers(0, max(len(before) - 1, 0)))
    how = data.draw(st.sampled_from(["flip", "cut", "grow", "remove"]))
    after = {
        "flip": before[:at] + bytes([before[at] ^ 1]) + before[at + 1 :] if before else b"",
        "cut": before[:at],
        "grow": before + b"\0\0",
    }
    path.unlink() if how == "remove" else path.write_bytes(after[how])
    try:
        open_shards(folder)
    except DataUnusable as error:
        assert "cannot be used" in str(error) and folder.name in str(error)
    else:  # a manifest may change where it says nothing that matters, such as the name of a text file
        assert path.name == "manifest.json" or after.get(how) == before


def test_another_tokenizer_is_noticed(good: Path, tmp_path: Path) -> None:
    shutil.copytree(good, tmp_path / "copy")
    (tmp_path / "copy/tokenizer.json").write_text(train("char", ["other"]).to_json())
    with pytest.raises(DataUnusable, match="not the one the tokens were made with"):
        catalog.load(tmp_path / "copy")
    with pytest.raises(BadInput, match="too few for one window of 9999"):
        catalog.load(good, length=9999)
    for parts in ({"valid": 0.5, "test": 0.5}, {"valid": 10**6, "by": "place"}):
        with pytest.raises(BadInput, match="leave nothing"):
            catalog.load(good, **{"by": "document", **parts})
    with pytest.raises(BadInput, match="has no target"):
        catalog.load(good, target="y")


def test_an_unfinished_folder_is_told_as_one(tmp_path: Path) -> None:
    """Killed before the manifest, or made of empty files: it is no folder of images, whatever options come with it."""
    (tmp_path / "empty.txt").write_text("")
    with pytest.raises(DataUnusable, match="hold no text"):
        prepare([tmp_path / "empty.txt"], tmp_path / "out", ShardOptions("byte"))
    for options in ({}, {"length": 16}):
        with pytest.raises(DataUnusable, match="'out' cannot be used: the folder is incomplete") as caught:
            catalog.load(str(tmp_path / "out"), **options)
        assert "sonde data tokens" in str(caught.value)
    with pytest.raises(DataUnusable, match="incomplete"):
        open_shards(tmp_path / "out")
