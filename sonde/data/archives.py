"""Well-known image sets, from a data folder or downloaded: MNIST, Fashion-MNIST, CIFAR-10."""

from __future__ import annotations

import io
import tarfile
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated

import numpy as np

from ..core.batch import Data
from ..core.errors import BadInput, DataUnusable
from ..core.files import parse_json
from . import fetch
from .arrays import Arrays, array_data
from .formats import parse_idx, read_bytes, read_picture, report_errors
from .split import SplitSize
from .table import Rules


@dataclass(frozen=True)
class Archive:
    """Folders and download addresses of a data set, and the hashes of its decompressed files."""

    folders: tuple[str, ...]
    mirrors: tuple[str, ...]
    sha256: dict[str, str]


# The author's page no longer serves MNIST to everyone; the mirrors have the same bytes.
MNIST = Archive(
    ("mnist", "MNIST/raw"),
    (
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "https://storage.googleapis.com/cvdf-datasets/mnist/",
        "http://yann.lecun.com/exdb/mnist/",
    ),
    {
        "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    },
)
FASHION = Archive(
    ("fashion-mnist", "fashion_mnist", "FashionMNIST/raw"),
    ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
    {
        "train-images-idx3-ubyte": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        "train-labels-idx1-ubyte": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        "t10k-images-idx3-ubyte": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        "t10k-labels-idx1-ubyte": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    },
)
CIFAR = Archive(
    ("cifar10", "cifar-10"),
    ("https://www.cs.toronto.edu/~kriz/",),
    {
        "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
        "data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
        "data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
        "data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
        "data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
        "test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
    },
)
CIFAR_TRAIN = 50_000
CIFAR_TAR = "cifar-10-binary.tar.gz"
LARGEST = 256 << 20

GARMENTS = ("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")
THINGS = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def mnist(seed: int = 0, valid: SplitSize = 5000, standardize: bool = True) -> Annotated[Data, "images"]:
    """MNIST: 70,000 handwritten digits as 28 x 28 images, 10 classes.

    Args:
        valid: fraction or count of the 60,000 training images held out for validation
        standardize: mean 0 and deviation 1 over the training images
    """
    return _idx_set("mnist", MNIST, tuple(map(str, range(10))), seed, valid, standardize)


def fashion_mnist(seed: int = 0, valid: SplitSize = 5000, standardize: bool = True) -> Annotated[Data, "images"]:
    """Fashion-MNIST: 70,000 garments as 28 x 28 images, 10 classes.

    Args:
        valid: fraction or count of the 60,000 training images held out for validation
        standardize: mean 0 and deviation 1 over the training images
    """
    return _idx_set("fashion_mnist", FASHION, GARMENTS, seed, valid, standardize)


def cifar10(seed: int = 0, valid: SplitSize = 0.1, standardize: bool = True) -> Annotated[Data, "images"]:
    """CIFAR-10: 60,000 small color photographs, 32 x 32, 10 classes.

    A data folder may instead hold a part of it as two mosaic images with labels.json; the report says so.

    Args:
        valid: fraction or count of the training images held out for validation
        standardize: mean 0 and deviation 1 over the training images, each channel alone
    """
    path = fetch.cache() / CIFAR.folders[0] / CIFAR_TAR
    parts = _cifar_batches() or _cifar_mosaic() or _cifar_tar(fetch.download(CIFAR.mirrors, path, LARGEST, _cifar_tar))
    data = _image_set("cifar10", parts, THINGS, seed, valid, standardize)
    if len(parts[0][0]) == CIFAR_TRAIN:
        return data
    summary = f"{len(parts[0][0])} of {CIFAR_TRAIN} training and {len(parts[1][0])} test images"
    return replace(data, report={**data.report, "only a part of the set": summary})


def _image_set(
    name: str, parts: list[tuple[np.ndarray, np.ndarray]], classes: tuple[str, ...], seed: int, valid: SplitSize, standardize: bool
) -> Data:
    """Data from (images, labels) of train and test."""
    (x, y), (x_test, y_test) = parts
    arrays = Arrays(np.concatenate([x, x_test]), np.concatenate([y, y_test]), classes, fixed=(len(x), 0, len(x_test)))
    return array_data(arrays, Rules(standardize=standardize), name, seed, (valid, 0))


def _idx_set(name: str, archive: Archive, classes: tuple[str, ...], seed: int, valid: SplitSize, standardize: bool) -> Data:
    arrays = {}
    for file, sha256 in archive.sha256.items():
        path = fetch.find(*(f"{folder}/{file}{packed}" for folder in archive.folders for packed in ("", ".gz")))
        if path is None:
            path = fetch.cache() / archive.folders[0] / f"{file}.gz"
            fetch.download(archive.mirrors, path, LARGEST, partial(_verify, sha256=sha256))
        arrays[file] = parse_idx(_verify(path, sha256), path)
    train_x, train_y, test_x, test_y = arrays.values()
    return _image_set(name, [(train_x, train_y), (test_x, test_y)], classes, seed, valid, standardize)


def _verify(path: Path, sha256: str) -> bytes:
    return fetch.check_hash(_read_known(path), sha256, path)


def _read_known(path: Path) -> bytes:
    """Bytes of a file of a known data set; a damaged one is DataUnusable, not BadInput."""
    try:
        return read_bytes(path)
    except BadInput as error:
        raise DataUnusable(
            error.what, where=str(path), fix="remove this file; it is then downloaded again, or put a good copy there"
        ) from error


def _cifar_batches() -> list[tuple[np.ndarray, np.ndarray]] | None:
    """The official binary files, extracted or in their tar file, or None."""
    folder = fetch.find(*(f"{name}/cifar-10-batches-bin" for name in CIFAR.folders), "cifar-10-batches-bin")
    if folder is not None:
        return _batches({file: _read_known(folder / file) for file in CIFAR.sha256}, folder)
    tar = fetch.find(*(f"{name}/{CIFAR_TAR}" for name in CIFAR.folders), CIFAR_TAR)
    return None if tar is None else _cifar_tar(tar)


def _cifar_tar(path: Path) -> list[tuple[np.ndarray, np.ndarray]]:
    """Members are read by name and never extracted to disk, so a tar file cannot write anywhere."""
    blobs: dict[str, bytes] = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(_read_known(path))) as tar:
            for member in tar:
                name = member.name.rsplit("/", 1)[-1]
                file = tar.extractfile(member) if name in CIFAR.sha256 and member.size < LARGEST else None
                if file is not None:
                    blobs[name] = file.read()
    except (tarfile.TarError, OSError, EOFError, ValueError) as error:
        raise DataUnusable(
            f"'{path.name}' is a damaged tar file: {error}", where=str(path), fix="remove this file and get it again"
        ) from error
    return _batches(blobs, path)


def _batches(blobs: dict[str, bytes], where: Path) -> list[tuple[np.ndarray, np.ndarray]]:
    """Rows of 1 label and 3 x 32 x 32 pixels -> (images, labels) of train and test."""
    rows = []
    for file, sha256 in CIFAR.sha256.items():
        if file not in blobs:
            raise DataUnusable(f"'{where.name}' lacks {file}", where=str(where), fix=f"put the whole {CIFAR_TAR} there")
        rows.append(np.frombuffer(fetch.check_hash(blobs[file], sha256, where / file), np.uint8).reshape(-1, 3073))
    return [(part[:, 1:].reshape(-1, 3, 32, 32), part[:, 0]) for part in (np.concatenate(rows[:-1]), rows[-1])]


def _cifar_mosaic() -> list[tuple[np.ndarray, np.ndarray]] | None:
    """A part of the set as images train-*.png and test-*.png of 100 tiles per row, and labels.json; None if absent."""
    labels_path = fetch.find(*(f"{name}/labels.json" for name in CIFAR.folders))
    if labels_path is None:
        return None
    with report_errors(labels_path, "is not a list of labels"):
        labels = parse_json(read_bytes(labels_path))
        targets = {part: np.array(labels[part], np.int64) for part in ("train", "test")}
    parts = []
    for part, y in targets.items():
        path = labels_path.with_name(f"{part}-{len(y)}.png")
        pixels = read_picture(path, color=True) if path.exists() else np.zeros((3, 0, 0), np.uint8)
        _, height, width = pixels.shape
        if width != 3200 or height % 32 or height // 32 * 100 < len(y):
            raise DataUnusable(
                f"'{path.name}' is {height} x {width} pixels, not rows of 100 tiles of 32 x 32 for {len(y)} labels",
                where=str(path),
                fix="put a good copy there",
            )
        tiles = pixels.reshape(3, height // 32, 32, 100, 32).transpose(1, 3, 0, 2, 4).reshape(-1, 3, 32, 32)
        parts.append((tiles[: len(y)], y))
    return parts
