"""MNIST, Fashion-MNIST and CIFAR-10: from a folder, from a server, damaged, absent; and the real files where they are."""

from __future__ import annotations

import errno
import gzip
import hashlib
import http.server
import io
import json
import struct
import tarfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from sonde.core import files
from sonde.core.errors import BadInput, DataUnusable, ResourceFault
from sonde.data import archives, catalog, fetch


def idx(array: np.ndarray) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def little_mnist() -> dict[str, bytes]:
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (50, 28, 28), dtype=np.uint8), np.arange(50, dtype=np.uint8) % 10
    return dict(zip(archives.MNIST.sha256, (idx(x[:40]), idx(y[:40]), idx(x[40:]), idx(y[40:])), strict=True))


def little_cifar() -> dict[str, bytes]:
    rng = np.random.default_rng(0)
    rows = [np.column_stack([np.arange(20) % 10, rng.integers(0, 256, (20, 3072))]).astype(np.uint8) for _ in archives.CIFAR.sha256]
    return {name: row.tobytes() for name, row in zip(archives.CIFAR.sha256, rows, strict=True)}


def hashes(contents: dict[str, bytes]) -> dict[str, str]:
    return {name: hashlib.sha256(data).hexdigest() for name, data in contents.items()}


def tar_of(contents: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for name, data in {**contents, "../../outside.txt": b"no", "readme.html": b"hello"}.items():
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return out.getvalue()


@pytest.fixture
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without data or network: an empty folder, an empty cache, homes that do not answer."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("SONDE_DATA", raising=False)
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.chdir(tmp_path)
    nobody = ("http://127.0.0.1:1/",)
    monkeypatch.setattr(archives, "MNIST", replace(archives.MNIST, mirrors=nobody, sha256=hashes(little_mnist())))
    monkeypatch.setattr(archives, "CIFAR", replace(archives.CIFAR, mirrors=nobody, sha256=hashes(little_cifar())))
    return tmp_path


@pytest.fixture
def home(offline: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, bytes]]:
    """A server for both sets; tests change what it serves.  A body may be cut short of the length it was told."""
    served = {f"{name}.gz": gzip.compress(data) for name, data in little_mnist().items()}
    served[archives.CIFAR_TAR] = tar_of(little_cifar())

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            data = served.get(self.path.strip("/"))
            if data is None:
                self.send_error(404)
                return
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data[:-7] if self.path.strip("/") in served.get("cut", b"").decode() else data)

        def log_message(self, *_: object) -> None:
            """Tests are quiet."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    address = f"http://127.0.0.1:{server.server_port}/"
    monkeypatch.setattr(archives, "MNIST", replace(archives.MNIST, mirrors=("http://127.0.0.1:1/", address)))
    monkeypatch.setattr(archives, "CIFAR", replace(archives.CIFAR, mirrors=(address,)))
    yield served
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_set_that_is_nowhere_says_which_file_to_put_where(offline: Path) -> None:
    for name, file in (("mnist", "train-images-idx3-ubyte.gz"), ("cifar10", "cifar-10-binary.tar.gz")):
        with pytest.raises(DataUnusable) as caught:
            catalog.load(name)
        text = str(caught.value)
        assert (
            caught.value.exit_code == 3
            and file in text
            and str(offline / "cache" / "sonde" / name / file) in text
            and "127.0.0.1:1" in text
        )
    assert not [path for path in (offline / "cache").rglob("*") if path.is_file()]


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("place", ["SONDE_DATA", "data", "cache"])
@pytest.mark.parametrize("folder", archives.MNIST.folders)
def test_local_files_are_found(offline: Path, monkeypatch: pytest.MonkeyPatch, packed: bool, place: str, folder: str) -> None:
    root = {"SONDE_DATA": offline / "mine", "data": offline / "data", "cache": offline / "cache" / "sonde"}[place]
    (root / folder).mkdir(parents=True)
    if place == "SONDE_DATA":
        monkeypatch.setenv("SONDE_DATA", str(root))
    for name, data in little_mnist().items():
        (root / folder / (name + ".gz" * packed)).write_bytes(gzip.compress(data) if packed else data)
    data = catalog.load("mnist", valid=10)
    assert {name: len(part) for name, part in data.splits.items()} == {"train": 30, "valid": 10, "test": 10}
    assert data.test is not None and data.test[:].y.tolist() == list(range(10)) and data.classes == tuple("0123456789")
    assert data.valid is not None and sorted(data.valid[:].y.tolist()) == list(range(10))


def test_downloads_are_checked_kept_and_not_repeated(offline: Path, home: dict[str, bytes], capsys: pytest.CaptureFixture) -> None:
    first = catalog.load("mnist", valid=10)
    assert "train-images-idx3-ubyte.gz" in capsys.readouterr().err
    kept = sorted(path.name for path in (offline / "cache" / "sonde" / "mnist").iterdir())
    assert kept == sorted(f"{name}.gz" for name in little_mnist())
    home.clear()
    assert catalog.load("mnist", valid=10).train.fingerprint() == first.train.fingerprint()


def test_cifar_from_its_tar_file_or_unpacked(offline: Path, home: dict[str, bytes]) -> None:
    data = catalog.load("cifar10", valid=10)
    assert {name: len(part) for name, part in data.splits.items()} == {"train": 90, "valid": 10, "test": 20}
    assert data.classes[3] == "cat" and not list(offline.rglob("outside.txt"))
    row = np.frombuffer(little_cifar()["data_batch_2.bin"], np.uint8).reshape(20, 3073)[5]
    parts = [part for part in data.splits.values() if 25 in part[:].ids]  # batch 2 begins with example 20
    place = int((parts[0][:].ids == 25).nonzero())
    assert np.array_equal(parts[0].fields["x"][place].numpy(), row[1:].reshape(3, 32, 32)) and parts[0].y[place] == row[0]
    folder = offline / "data" / "cifar10" / "cifar-10-batches-bin"
    folder.mkdir(parents=True)
    for name, content in little_cifar().items():
        (folder / name).write_bytes(content)
    assert catalog.load("cifar10", valid=10).train.fingerprint() == data.train.fingerprint()


@pytest.mark.parametrize("damage", ["other bytes", "short", "absent", "not packed", "too large"])
def test_a_bad_download_leaves_nothing_behind(offline: Path, home: dict[str, bytes], damage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [*home]:
        if damage == "other bytes":
            home[name] = gzip.compress(b"something else")
        elif damage == "absent":
            del home[name]
        elif damage == "not packed":
            home[name] = b"<html>a page</html>"
    if damage == "short":
        home["cut"] = " ".join(home).encode()
    if damage == "too large":
        monkeypatch.setattr(archives, "LARGEST", 20)
    for name in ("mnist", "cifar10"):
        with pytest.raises(DataUnusable, match="cannot be downloaded"):
            catalog.load(name)
    assert not [path for path in (offline / "cache").rglob("*") if path.is_file()]


class FullDisk(files.Disk):
    def write(self, fd: int, data: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_is_named(offline: Path, home: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "disk", FullDisk())
    with pytest.raises(ResourceFault, match="No space left"):
        catalog.load("mnist")
    assert not [path for path in (offline / "cache").rglob("*") if path.is_file()]


def test_damaged_local_files_are_named(offline: Path) -> None:
    folder = offline / "data" / "mnist"
    folder.mkdir(parents=True)
    for name, data in little_mnist().items():
        (folder / f"{name}.gz").write_bytes(gzip.compress(data))
    path = folder / "t10k-labels-idx1-ubyte.gz"
    good = path.read_bytes()
    for bad in (good[:-9], gzip.compress(idx(np.arange(10, dtype=np.uint8))[:-1]), b""):
        path.write_bytes(bad)
        with pytest.raises(DataUnusable, match="t10k-labels-idx1-ubyte") as caught:
            catalog.load("mnist")
        assert str(path) in str(caught.value) or "data/mnist" in str(caught.value)
    (offline / "data" / archives.CIFAR_TAR).write_bytes(tar_of(little_cifar())[:2000])
    with pytest.raises(DataUnusable, match="damaged"):
        catalog.load("cifar10")


def mosaic(folder: Path, many: int = 200) -> np.ndarray:
    rng = np.random.default_rng(0)
    tiles = rng.integers(0, 256, (many, 32, 32, 3), dtype=np.uint8)
    rows = tiles.reshape(many // 100, 100, 32, 32, 3).transpose(0, 2, 1, 3, 4).reshape(-1, 3200, 3)
    folder.mkdir(parents=True)
    Image.fromarray(rows).save(folder / f"train-{many}.png")
    Image.fromarray(rows[:32]).save(folder / "test-100.png")
    labels = [i % 10 for i in range(many)]
    (folder / "labels.json").write_text(json.dumps({"classes": list(archives.THINGS), "train": labels, "test": labels[:100]}))
    return tiles


def test_a_mosaic_of_a_part_of_cifar(offline: Path) -> None:
    tiles = mosaic(offline / "data" / "cifar10")
    data = catalog.load("cifar10", valid=20)
    taken = data.train.fields
    assert np.array_equal(taken["x"].numpy(), tiles[taken["ids"].numpy()].transpose(0, 3, 1, 2)) and taken["y"].tolist() == [
        i % 10 for i in taken["ids"].tolist()
    ]
    assert data.report["only a part of the set"] == "200 of 50000 training and 100 test images"
    (offline / "data" / "cifar10" / "test-100.png").unlink()
    with pytest.raises(DataUnusable, match="test-100.png"):
        catalog.load("cifar10")
    (offline / "data" / "cifar10" / "labels.json").write_text("{}")
    with pytest.raises((DataUnusable, BadInput), match="labels.json"):
        catalog.load("cifar10")


def test_a_data_folder_that_is_none_is_named(offline: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SONDE_DATA", str(offline / "nowhere"))
    with pytest.raises(BadInput, match="SONDE_DATA names"):
        fetch.roots()


REAL = {
    "mnist": ((60000, 10000), (1, 28, 28), [0.1307], [0.3081]),
    "fashion_mnist": ((60000, 10000), (1, 28, 28), [0.2860], [0.3530]),
}


@pytest.mark.parametrize("name", REAL)
def test_the_real_sets_have_their_known_statistics(data_folder: Path, name: str) -> None:
    (n_train, n_test), shape, mean, std = REAL[name]
    data = catalog.load(name, valid=0)
    assert data.valid is None and len(data.train) == n_train and data.test is not None and len(data.test) == n_test
    assert data.train[:3].x.shape == (3, *shape)
    np.testing.assert_allclose(data.train.to_float.mean.flatten(), mean, atol=6e-5)
    np.testing.assert_allclose(data.train.to_float.std.flatten(), std, atol=6e-5)
    assert np.bincount(data.test.y).sum() == 10000 and (name == "mnist" or np.bincount(data.test.y).tolist() == [1000] * 10)
    held = catalog.load(name, valid=5000, seed=1)
    assert held.valid is not None and len(held.valid) == 5000 and len(held.train) == n_train - 5000


def test_the_real_cifar_tiles_are_the_official_first_batch(data_folder: Path) -> None:
    """Tiles put back into the layout of the official file give its official hash, label by label and pixel by pixel."""
    if not (data_folder / "cifar10" / "train-10000.png").exists():
        pytest.skip("no mosaic of CIFAR-10 there")
    data = catalog.load("cifar10", valid=0)
    first = data.train.subset(range(10000)).fields
    rows = np.column_stack([first["y"].numpy().astype(np.uint8), first["x"].numpy().reshape(10000, -1)])
    assert hashlib.sha256(rows.tobytes()).hexdigest() == "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5"
