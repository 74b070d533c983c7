"""Arrays: examples of any shape, mostly images, stored in their own type and converted to floats batch by batch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, final

import numpy as np
import torch
from torch import Tensor

from ..core.batch import Batch, Data
from ..core.errors import BadInput
from . import pictures
from .formats import PICTURES, read_idx, read_npy, read_npz, suffix
from .split import SplitSize, check_labels, list_names, split
from .table import Rules, Target, texts
from .tensors import TensorSource, ToFloat, split_source


@final
@dataclass(frozen=True)
class Arrays:
    """Examples x (N, ...) with their targets, before the split."""

    x: np.ndarray
    y: np.ndarray | None = None
    """labels as integers or texts, or values (N,) or (N, K)"""
    classes: tuple[str, ...] = ()
    """names of labels 0 .. K-1, where they have names"""
    fixed: tuple[int, int, int] | None = None
    """sizes of train, valid and test, in this order in x; without a valid part one is split off train"""
    top: float = 255.0
    """largest value of a pixel"""
    size: tuple[int, int] | None = None
    """height and width that images are resized to"""
    names: tuple[str, ...] = ()
    """names of the files, where each example comes from its own"""
    corrupt: tuple[str, ...] = ()
    """files that were left out on request"""


def array_data(arrays: Arrays, rules: Rules, name: str, seed: int, parts: tuple[SplitSize, SplitSize]) -> Data:
    """Check, split (stratified by class), standardize by the training part; parts = (valid, test)."""
    if arrays.y is not None and len(arrays.y) != len(arrays.x):
        raise BadInput(f"'{name}' has {len(arrays.x)} examples but {len(arrays.y)} targets", fix="give files that belong together")
    if len(arrays.x) < 3:
        raise BadInput(f"'{name}' has only {len(arrays.x)} examples", fix="give at least a few")
    x, keep = finite(layout(arrays.x, name), rules, name)
    y = None if arrays.y is None else arrays.y[keep]
    report: dict[str, int | str] = {"examples read": len(keep)}
    if not keep.all():
        report["examples not finite dropped"] = int(len(keep) - keep.sum())
    target = fit_target(y, arrays.classes or rules.classes, rules, name)
    labels = None if y is None else encode(y, target, name)
    by_class = labels if target.classes else None
    if arrays.fixed is None:
        indices = split(len(x), *parts, seed=seed, labels=by_class)
    else:
        ends = np.cumsum(arrays.fixed)
        indices = _fixed_split([int(part.sum()) for part in np.split(keep, ends[:2])], parts[0], seed, by_class)
    scale = 1.0 / arrays.top if x.dtype == torch.uint8 else 1.0
    whole = TensorSource(x, labels, ids=torch.from_numpy(np.flatnonzero(keep)))
    channels = x.dim() == 4
    fit = (lambda train: ToFloat.fit(train, scale, channels)) if rules.standardize else (lambda _: ToFloat(scale))
    train, valid, test = split_source(whole, indices, fit)
    reader = ArrayReader(tuple(x.shape[1:]), train.to_float, target, arrays)
    return Data(train, valid, test, name=name, task=target.task, classes=target.classes, report=report, reader=reader)


def layout(x: np.ndarray, name: str) -> Tensor:
    """Images as (N, C, H, W) uint8 or float32; other arrays as they are, as float32."""
    if x.dtype.kind not in "biuf":
        raise BadInput(f"'{name}' holds values of type {x.dtype}, not numbers")
    if x.size == 0:
        raise BadInput(f"'{name}' holds no values: its shape is {' x '.join(map(str, x.shape))}")
    if x.ndim == 3 and x.dtype == np.uint8:
        x = x[:, None]
    elif x.ndim == 4 and x.shape[1] not in (1, 3, 4) and x.shape[3] in (1, 3, 4):
        x = x.transpose(0, 3, 1, 2)
    with np.errstate(over="ignore"):  # values too large become infinite and are counted by `finite`
        return torch.from_numpy(np.ascontiguousarray(x if x.dtype == np.uint8 else x.astype(np.float32)))


def finite(x: Tensor, rules: Rules, name: str) -> tuple[Tensor, np.ndarray]:
    """The examples without NaN or infinite values, and a mask of them; others are an error unless missing='drop'."""
    if x.dtype == torch.uint8:
        return x, np.ones(len(x), bool)
    bad = ~torch.isfinite(x)
    rows = bad.flatten(1).any(1)
    if rows.any() and rules.missing != "drop":
        raise BadInput(
            f"{int(bad.sum())} values in {int(rows.sum())} of {len(x)} examples of '{name}' are not finite",
            where=f"first in example {int(rows.nonzero()[0])}",
            fix="fix them or set missing='drop'",
        )
    return x[~rows], (~rows).numpy()


def fit_target(y: np.ndarray | None, classes: tuple[str, ...], rules: Rules, name: str) -> Target:
    if y is None:
        return Target("target", "other", classes)
    if classes:
        return Target("target", "classes", classes)
    if y.ndim > 1 and y.shape[1:] != (1,):
        return Target("target", "values")
    return Target.fit("target", cells(y), rules, name)


def encode(y: np.ndarray, target: Target, name: str) -> Tensor:
    """Targets as a tensor: labels by their names, or by position where names are words and labels are integers."""
    if y.ndim > 1 and y.shape[1:] != (1,):
        with np.errstate(over="ignore"):
            values = torch.from_numpy(y.astype(np.float32))
        if not torch.isfinite(values).all():
            raise BadInput(f"{int((~torch.isfinite(values)).sum())} targets of '{name}' are not finite", fix="fix them")
        return values
    if target.classes and y.dtype.kind in "biu" and not all(label.lstrip("-").isdigit() for label in target.classes):
        labels = torch.from_numpy(y.reshape(-1).astype(np.int64))
        check_labels(labels, target.classes, name)
        return labels
    return target(cells(y), name)


def cells(y: np.ndarray) -> np.ndarray:
    """A target array as a column of a table: float64, or texts."""
    flat = y.reshape(-1)
    if flat.dtype.kind == "S":
        flat = np.char.decode(flat, "utf-8", "replace")
    return texts(flat) if flat.dtype.kind in "UO" else flat.astype(np.float64)


def _fixed_split(sizes: list[int], valid: SplitSize, seed: int, labels: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    train, valid_part, test = torch.arange(sum(sizes)).split(sizes)
    if len(valid_part) == 0:
        train, valid_part, _ = split(len(train), valid, 0, seed=seed, labels=None if labels is None else labels[: len(train)])
    return train, valid_part, test


class NamedExamples(NamedTuple):
    """Examples to predict, the names of their image files, and of those left out."""

    batch: Batch
    names: tuple[str, ...]
    corrupt: tuple[str, ...]


@final
class ArrayReader:
    """A file or folder of new examples -> Batch, with the shape and statistics of the training examples."""

    def __init__(self, shape: tuple[int, ...], to_float: ToFloat | None, target: Target, arrays: Arrays) -> None:
        self.shape, self.to_float, self.target = shape, to_float, target
        self.top, self.size = arrays.top, arrays.size

    def __call__(self, path: str | Path, skip_corrupt: bool = False) -> Batch:
        return self.read_named([Path(path)], skip_corrupt).batch

    def read_named(self, paths: Sequence[Path], skip_corrupt: bool = False) -> NamedExamples:
        """The examples of a file, or of several images or folders of them.

        Args:
            skip_corrupt: leave out images that cannot be read, and list them
        """
        path = paths[0]
        arrays = self._read(paths, skip_corrupt)
        flat = arrays.x.ndim == 2 and len(self.shape) > 1 and arrays.x.shape[1] == math.prod(self.shape)
        x = torch.as_tensor(arrays.x).reshape(-1, *self.shape) if flat else layout(self._add_axes(arrays.x), path.name)
        if tuple(x.shape[1:]) != self.shape:
            expected, actual = (" x ".join(map(str, shape)) for shape in (self.shape, x.shape[1:]))
            raise BadInput(f"examples of '{path.name}' are {actual}, the model was trained on {expected}", fix="bring them to that shape")
        if len(x) == 0:
            raise BadInput(f"'{path.name}' has no examples")
        x, _ = finite(x, Rules(missing="error"), path.name)
        if x.is_floating_point() and self.to_float is not None and self.to_float.scale != 1 and _fractions(x):
            message = f"'{path.name}' holds fractions from 0 to 1, the model was trained on whole numbers from 0 to {self.top:g}"
            raise BadInput(message, fix=f"multiply them by {self.top:g}")
        if x.dtype == torch.uint8 and arrays.top != self.top:
            x = x.float() * (self.top / arrays.top)
        fields = {"x": x.float() if self.to_float is None else self.to_float(x), "ids": torch.arange(len(x))}
        if arrays.y is not None and len(arrays.y) == len(x):
            fields["y"] = encode(arrays.y, self.target, path.name)
        return NamedExamples(Batch(**fields), arrays.names, arrays.corrupt)

    def _add_axes(self, x: np.ndarray) -> np.ndarray:
        """Add the batch axis to a single example, and the channel axis to gray images."""
        gray = len(self.shape) == 3 and self.shape[0] == 1
        if x.shape == self.shape or (gray and x.shape == self.shape[1:]):
            x = x[None]
        return x[:, None] if gray and x.shape[1:] == self.shape[1:] else x

    def _read(self, paths: Sequence[Path], skip_corrupt: bool) -> Arrays:
        drawn = [path.is_dir() or suffix(path) in PICTURES for path in paths]
        if all(drawn):
            color = None if len(self.shape) != 3 else self.shape[0] == 3
            return read_pictures(paths, color, self.size, self.target.classes, skip_corrupt)
        path = paths[drawn.index(False)]
        if len(paths) > 1:
            raise BadInput(f"'{path.name}' is not an image; several files can be given only if all are images", fix="give it alone")
        if skip_corrupt:
            raise BadInput(f"'{path.name}' is not an image; only images can be skipped", fix="leave --skip-corrupt out")
        kind = suffix(path)
        if kind == ".npy":
            return Arrays(read_npy(path), top=self.top)
        if kind == ".npz":
            return pick(read_npz(path), path.name, None, top=self.top)
        return Arrays(read_idx(path), top=self.top)


def _fractions(x: Tensor) -> bool:
    """Whether all values are in 0..1 and some are not integers."""
    return bool(x.min() >= 0 and x.max() <= 1 and (x != x.round()).any())


def read_pictures(
    paths: Sequence[Path], color: bool | None, size: tuple[int, int] | None, classes: tuple[str, ...], skip_corrupt: bool = False
) -> Arrays:
    """Images to predict: files, or folders of them, which may have a folder per class.

    A name is that of the file, or its path inside the folder if one is given; with several paths it is the path as given.
    """
    files: list[Path] = []
    names: list[str] = []
    folders: list[str] = []
    for path in paths:
        own = pictures.image_files(path) if path.is_dir() else [path]
        if not own:
            raise BadInput(f"folder '{path.name}' holds no images", fix="give a folder of image files")
        files += own
        names += [file.as_posix() if len(paths) > 1 else file.name if file == path else file.relative_to(path).as_posix() for file in own]
        folders += ["" if file == path else file.relative_to(path).parts[0] for file in own]
    images = pictures.read(files, color, size, skip_corrupt, root=paths[0] if len(paths) == 1 and paths[0].is_dir() else None)
    labels = np.array([folders[i] for i in images.kept], object) if all(folder in classes for folder in folders) else None
    kept = set(images.kept)
    corrupt = tuple(name for i, name in enumerate(names) if i not in kept)
    return Arrays(images.x, labels, names=tuple(names[i] for i in images.kept), corrupt=corrupt)


def pick(arrays: dict[str, np.ndarray], name: str, target: str | None, top: float = 255.0) -> Arrays:
    """Examples and targets of an NPZ file: x and y, or x_train, y_train, x_valid, y_valid, x_test, y_test."""
    lower = {key.lower(): value for key, value in arrays.items()}
    key = target.lower() if target is not None else "y"
    if target is not None and key not in lower:
        raise BadInput(f"'{name}' has no array '{target}'", fix=f"it has {list_names(sorted(arrays))}")
    if "x" in lower:
        return Arrays(lower["x"], lower.get(key), top=top)
    if "x_train" not in lower:
        raise BadInput(
            f"'{name}' has no array 'x' or 'x_train', but {list_names(sorted(arrays)) or 'none at all'}",
            fix="save it with np.savez(file, x=..., y=...)",
        )
    parts = ("train", "valid", "test")
    there = [part for part in parts if f"x_{part}" in lower]
    xs, ys = ([lower[f"{letter}_{part}"] for part in there if f"{letter}_{part}" in lower] for letter in "xy")
    if len(ys) not in (0, len(xs)):
        raise BadInput(
            f"'{name}' has targets for some parts and not for others: {list_names(sorted(arrays))}", fix="save x and y of each part"
        )
    if len({x.shape[1:] for x in xs}) > 1 or len({y.shape[1:] for y in ys}) > 1 or 0 in [x.ndim for x in xs + ys]:
        raise BadInput(f"the parts of '{name}' have examples of different shapes", fix="save parts of one shape")
    sizes = [len(lower[f"x_{part}"]) if part in there else 0 for part in parts]
    for x, y, part in zip(xs, ys, there, strict=False):
        if len(x) != len(y):
            raise BadInput(f"part '{part}' of '{name}' has {len(x)} examples but {len(y)} targets", fix="save parts that belong together")
    return Arrays(np.concatenate(xs), np.concatenate(ys) if ys else None, fixed=(sizes[0], sizes[1], sizes[2]), top=top)
