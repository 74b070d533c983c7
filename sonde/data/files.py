"""A user's own files: tables, arrays, folders of images and plain text, chosen by suffix."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from ..core.batch import Data
from ..core.errors import BadInput, closest
from ..core.options import Option, check_values, options_of
from . import pictures
from .arrays import Arrays, array_data, cells, pick
from .formats import PICTURES, read_columns, read_idx, read_npy, read_npz, suffix
from .split import SplitSize, list_names
from .table import Rules, name_columns, table_data
from .text.token_folder import token_folder
from .text.windows import text_file

TABLES = (".csv", ".tsv", ".tab", ".parquet", ".pq")
ARRAYS = (".npy", ".npz", ".idx")
TEXTS = (".txt", ".text", ".md")
KINDS = "CSV, TSV, Parquet, NPY, NPZ, idx, text (.txt), or a folder: images in one folder per class, or token shards"


def load_file(path: str | Path, target: str | None = None, seed: int = 0, **options: Any) -> Data:
    """Data from a file or folder.

    Args:
        target: the column to predict (tables: by default the last), the array of an NPZ file, or the file with the labels
        options: those of this type of file, see `file_options`; an unknown one is an error
    """
    path = Path(path)
    load = _loader(path)
    own, of_rules = _options(load)
    values = check_values({**own, **of_rules}, options, f"data file '{path.name}'")
    if of_rules:
        values["rules"] = Rules(**{name: values.pop(name) for name in options if name in of_rules})
    return load(path, target, seed, **values)


def file_options(path: str | Path) -> dict[str, Option]:
    """Options of the loader for this type of file."""
    own, of_rules = _options(_loader(Path(path)))
    return {**own, **of_rules}


@cache
def _options(load: Callable[..., Data]) -> tuple[dict[str, Option], dict[str, Option]]:
    """Options of a loader itself, and those of the `Rules` that it takes, if any."""
    kind = load.__name__.replace("_", " ")
    own = options_of(load, kind, skip=("path", "target", "seed"))
    return own, options_of(Rules, kind) if own.pop("rules", None) else {}


def looks_like_path(name: str) -> bool:
    """True if it has a slash or a known suffix, or exists."""
    kind = suffix(Path(name))
    return "/" in name or "\\" in name or kind in TABLES + ARRAYS + TEXTS or Path(name).exists()


def _loader(path: Path) -> Callable[..., Data]:
    if "\0" in str(path) or not path.exists():
        raise BadInput(f"no file or folder '{path}'", fix=_neighbor(path))
    kind = suffix(path)
    if path.is_dir():
        return token_folder if any((path / name).is_file() for name in ("manifest.json", "plan.json")) else image_folder
    if kind in TABLES:
        return table_file
    if _is_array(path):
        return array_file
    if kind in TEXTS:
        return text_file
    if kind in PICTURES:
        raise BadInput(f"'{path.name}' is one image", fix="give a folder that has a folder of images for each class")
    raise BadInput(f"'{path.name}' is not a file type that can be read", fix=f"give {KINDS}")


def _is_array(path: Path) -> bool:
    return suffix(path) in ARRAYS or "ubyte" in path.name


def _neighbor(path: Path) -> str:
    """The nearest name in the folder of a path that does not exist."""
    try:
        beside = [one.name for one in path.parent.iterdir()]
    except (OSError, ValueError):
        return "check the path"
    close = closest(path.name, beside)
    return f"did you mean '{close}'?" if close else "check the path"


def table_file(
    path: Path,
    target: str | None,
    seed: int,
    valid: SplitSize = 0.1,
    test: SplitSize = 0.1,
    separator: str | None = None,
    header: bool | None = None,
    rules: Rules = Rules(),  # noqa: B008  frozen
) -> Data:
    """CSV, TSV or Parquet: one row per example.

    Args:
        valid: fraction or count of rows held out for validation
        test: fraction or count of rows held out for the test
        separator: the character between cells; by default the most frequent of , ; tab | in the first line
        header: whether the first line names the columns; by default it does unless it is all numbers
    """
    return table_data(read_columns(path, separator, header), target, rules, path.name, seed, (valid, test))


def array_file(
    path: Path,
    target: str | None,
    seed: int,
    valid: SplitSize = 0.1,
    test: SplitSize = 0.1,
    rules: Rules = Rules(),  # noqa: B008  frozen
) -> Data:
    """NPY, NPZ or idx: one example per index of the first axis; a 2-D array is treated as a table.

    Args:
        valid: fraction or count of examples held out for validation
        test: fraction or count of examples held out for the test
    """
    kind = suffix(path)
    if kind == ".npz":
        arrays = pick(read_npz(path), path.name, target)
    else:
        labels = path.parent / target if target is not None and _is_array(Path(target)) else _label_file(path)
        arrays = Arrays(_read_array(path), None if labels is None else _read_array(labels))
        if kind == ".npy" and labels is None and arrays.x.ndim == 2:
            return table_data(name_columns(arrays.x, path.name), target, rules, path.name, seed, (valid, test))
        if labels is None and target is not None:
            raise BadInput(f"'{path.name}' has no target '{target}'", fix="give the file with the labels as target")
    if 0 in (arrays.x.ndim, 1 if arrays.y is None else arrays.y.ndim):
        raise BadInput(f"'{path.name}' holds single values, not examples")
    if arrays.x.ndim <= 2 and arrays.y is not None and arrays.y.ndim == 1 and arrays.fixed is None:
        if len(arrays.x) != len(arrays.y):
            raise BadInput(
                f"'{path.name}' has {len(arrays.x)} examples but {len(arrays.y)} targets", fix="give arrays that belong together"
            )
        columns = {**name_columns(arrays.x.reshape(len(arrays.x), -1), path.name), "target": cells(arrays.y)}
        return table_data(columns, "target", rules, path.name, seed, (valid, test))
    return array_data(arrays, rules, path.name, seed, (valid, test))


def image_folder(  # noqa: PLR0913  the options of a kind of file
    path: Path,
    target: str | None,
    seed: int,
    valid: SplitSize = 0.1,
    test: SplitSize = 0.1,
    size: int | tuple[int, int] | None = None,
    color: bool | None = None,
    skip_corrupt: bool = False,
    standardize: bool = True,
) -> Data:
    """A folder with one folder of images per class, or train/ and test/ folders of such.

    Args:
        valid: fraction or count of images held out for validation
        test: fraction or count of images held out for the test, where there is no test folder
        size: height and width to resize all images to
        color: three channels or one; by default three if any image has color
        skip_corrupt: leave out images that cannot be read, and count them
        standardize: mean 0 and deviation 1 over the training images, each channel alone
    """
    if target is not None:
        raise BadInput(f"'{path.name}' is a folder of images: its folders are the classes, it has no target", fix="leave 'target' out")
    shape = (size, size) if isinstance(size, int) else size
    if shape is not None and (len(shape) != 2 or not all(isinstance(side, int) and 1 <= side <= 8192 for side in shape)):
        raise BadInput(f"size must be a number of pixels or (height, width), not {size!r}")
    folder = pictures.by_class(path)
    images = pictures.read(folder.files, color, shape, skip_corrupt, root=path)
    labels = np.array([folder.labels[i] for i in images.kept], object)
    parts = [folder.parts[i] for i in images.kept] if folder.parts else None
    fixed = None if parts is None else (parts.count(0), parts.count(1), parts.count(2))
    if unreadable := sorted(set(folder.labels) - set(labels[: None if fixed is None else fixed[0]])):
        message = f"of class {list_names(unreadable)} in '{path.name}' no image {'to train on ' if parts else ''}can be read"
        raise BadInput(message, fix="fix the images or remove the folder")
    classes = tuple(sorted(set(folder.labels)))
    arrays = Arrays(images.x, labels, classes, fixed, size=shape)
    data = array_data(arrays, Rules("classes", standardize=standardize), path.name, seed, (valid, test))
    skipped = {"corrupt images skipped": len(images.corrupt)} | ({"skipped": list_names(images.corrupt, 20)} if images.corrupt else {})
    return replace(data, report={**data.report, **skipped})


def _read_array(path: Path) -> np.ndarray:
    return read_npy(path) if suffix(path) == ".npy" else read_idx(path)


def _label_file(path: Path) -> Path | None:
    """train-images-idx3-ubyte.gz -> train-labels-idx1-ubyte.gz, if that file exists."""
    name = path.name.replace("images", "labels").replace("idx3", "idx1")
    beside = path.with_name(name)
    return beside if name != path.name and beside.exists() else None
