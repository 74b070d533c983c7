"""Tables: named columns of raw data -> clean, standardized tensors, with every change counted.

What is learned from the data (means, deviations, levels of a text column, constant columns) comes from the training
rows alone.  The same encoder later reads new rows for prediction.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, final

import numpy as np
import torch
from torch import Tensor

from ..core.batch import Batch, Data
from ..core.errors import BadInput, nearest
from .formats import read_columns, read_npy, suffix
from .split import SplitSize, list_names, split
from .tensors import TensorSource, split_source

Columns = Mapping[str, np.ndarray]
"""name -> float64 with NaN where missing, or texts (object) as in the file"""

MISSING = {"", "na", "n/a", "#n/a", "<na>", "nan", "null", "none", "?"}
MANY_CLASSES = 20
MANY_LEVELS = 100


@final
@dataclass(frozen=True)
class Rules:
    """How a table is cleaned and encoded.

    Args:
        task: what the target is; 'auto' takes texts and few whole numbers as classes
        missing: missing or corrupt cells get the training mean (texts: no category), or their rows are dropped, or they are an error
        text: text columns become one-hot columns, or one column of codes 1, 2, ... with 0 for unknown
        standardize: number columns get mean 0 and deviation 1 over the training rows
        standardize_target: the same for a target of numbers
        drop_duplicates: leave out rows that equal an earlier one
        ignore: columns to leave out
        classes: names of the classes in the order of their labels; by default those found, sorted
    """

    task: Literal["auto", "classes", "values", "counts"] = "auto"
    missing: Literal["mean", "drop", "error"] = "mean"
    text: Literal["onehot", "codes"] = "onehot"
    standardize: bool = True
    standardize_target: bool = False
    drop_duplicates: bool = False
    ignore: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()


def table_data(columns: Columns, target: str | None, rules: Rules, name: str, seed: int, parts: tuple[SplitSize, SplitSize]) -> Data:
    """Clean, split (stratified by class), encode.  `target` is the last column by default; parts = (valid, test)."""
    for wrong in [column for column in (*rules.ignore, *([target] if target is not None else [])) if column not in columns]:
        raise BadInput(f"'{name}' has no column '{wrong}'", fix=nearest(wrong, columns))
    columns = {column: cells for column, cells in columns.items() if column not in rules.ignore}
    if target in rules.ignore:
        raise BadInput(f"column '{target}' is the target and cannot be ignored")
    if len(columns) < 2:
        raise BadInput(
            f"'{name}' needs a target and at least one more column, but has {list_names(list(columns)) or 'none'}",
            fix="check the separator",
        )
    target = list(columns)[-1] if target is None else target
    n = len(columns[target])
    if n == 0:
        raise BadInput(f"'{name}' has no rows", fix="give a table with at least a few rows")
    report: dict[str, int | str] = {"rows read": n, "columns read": len(columns)}
    parsed = {column: parse(cells) for column, cells in columns.items() if column != target}
    target_cells = parse_target(columns[target], rules)

    keep = np.ones(n, bool)
    if rules.drop_duplicates:
        keep &= is_first_occurrence([target_cells, *(cells for cells, _ in parsed.values())])
        report["duplicate rows dropped"] = int(n - keep.sum())
    no_target = is_missing(target_cells)
    report["rows without usable target dropped"] = int((keep & no_target).sum())
    keep &= ~no_target
    features = {column: cells for column, (cells, _) in parsed.items()}
    gaps = {column: is_missing(cells) & keep for column, cells in features.items()}
    corrupt = {column: int((parsed[column][1] & keep).sum()) for column in features}
    report |= _counts("corrupt cells", corrupt)
    report |= _counts("missing cells", {column: int(gap.sum()) - corrupt[column] for column, gap in gaps.items()})
    if rules.missing != "mean" and any(gap.any() for gap in gaps.values()):
        any_gap = np.logical_or.reduce(list(gaps.values()))
        if rules.missing == "error":
            holes = [f"'{column}' ({int(gap.sum())})" for column, gap in gaps.items() if gap.any()]
            raise BadInput(f"'{name}' has missing or corrupt cells in {list_names(holes)}", fix="fix them, or set missing='mean' or 'drop'")
        report["rows with gaps dropped"] = int(any_gap.sum())
        keep &= ~any_gap
    rows_kept = np.flatnonzero(keep)
    report["rows kept"] = len(rows_kept)
    if len(rows_kept) < 3:
        raise BadInput(f"only {len(rows_kept)} of {n} rows of '{name}' are usable", fix="look for missing targets and gaps")

    target_encoder = Target.fit(target, target_cells[rows_kept], rules, name)
    labels = target_encoder(target_cells[rows_kept], name)
    indices = split(len(rows_kept), *parts, seed=seed, labels=labels if target_encoder.classes else None)
    train_rows = rows_kept[indices[0].numpy()]
    encoder = Encoder.fit({column: cells[train_rows] for column, cells in features.items()}, rules, name)
    report |= _names("constant columns left out", [column for column in features if column not in (*encoder.numbers, *encoder.levels)])
    report |= _names("target", [f"{target}: {target_encoder.note}"])
    if rules.standardize_target and not target_encoder.classes:
        target_encoder = target_encoder.standardize(labels[indices[0]])
        labels = target_encoder(target_cells[rows_kept], name)
        report |= _names("target mean and deviation", [f"{target_encoder.mean:.6g}, {target_encoder.std:.6g}"])
    x, _ = encoder({column: cells[rows_kept] for column, cells in features.items()}, name)
    whole = TensorSource(x, labels, ids=torch.from_numpy(rows_kept.astype(np.int64)))
    return Data(
        *split_source(whole, indices),
        name=name,
        task=target_encoder.task,
        classes=target_encoder.classes,
        features=encoder.names,
        report=report,
        reader=TableReader(encoder, target_encoder),
    )


def parse(cells: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A column as numbers (float64, NaN for gaps) or texts (object, None for gaps), and which cells are corrupt.

    A column is numeric if more than half of its filled cells are numbers; the others in it, and infinities, are corrupt.
    """
    values, corrupt = numbers(cells)
    filled = int((corrupt | ~np.isnan(values)).sum())
    if cells.dtype != object or not filled or corrupt.sum() * 2 < filled:
        return values, corrupt
    return texts(cells), np.zeros(len(cells), bool)


def parse_target(cells: np.ndarray, rules: Rules) -> np.ndarray:
    """The target column as numbers or texts.  A text among numbers may be a class (0, 1, X); its row is dropped as corrupt only
    where the target cannot be classes."""
    values, corrupt = parse(cells)
    if corrupt.any() and cells.dtype == object and rules.task in ("auto", "classes"):
        labels = texts(cells)
        if rules.task == "classes" or rules.classes or len(set(labels.tolist())) <= MANY_CLASSES:
            return labels
    return values


def numbers(cells: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Cells as float64 with NaN for gaps, and a mask of cells that are filled but not a finite number."""
    if cells.dtype != object:
        values = cells.astype(np.float64)
    else:
        words = [word or "nan" for word in cells.tolist()]
        try:  # fast path: a column of numbers and empty cells only
            values = np.array(list(map(float, words if "_" not in "".join(words) else "_")))
        except ValueError:
            values = np.fromiter(_each(_number, cells), np.float64, len(cells))
    corrupt = np.isinf(values)
    return np.where(corrupt, np.nan, values), corrupt


def _each(change: Callable[[Any], Any], cells: np.ndarray) -> Iterator[Any]:
    """change(cell) of each cell, computed once for equal cells."""
    known = {cell: change(cell) for cell in set(cells.tolist())}
    return map(known.__getitem__, cells.tolist())


def _number(cell: str | float | None) -> float:
    """The number in a cell, NaN for a gap, infinity for what is not a number."""
    if cell is None:
        return math.nan
    try:
        # float("1_000") is 1000 in Python, but not a number in a data file
        return math.inf if isinstance(cell, str) and "_" in cell else float(cell)
    except (ValueError, OverflowError):
        return math.nan if str(cell).strip().lower() in MISSING else math.inf


def _text(cell: Any) -> str | None:
    text = "" if cell is None else str(cell).strip()
    return None if text.lower() in MISSING else text


def texts(cells: np.ndarray) -> np.ndarray:
    """Cells as texts without blanks around them, None for gaps."""
    out = np.empty(len(cells), object)
    out[:] = list(_each(_text, cells))
    return out


def is_missing(cells: np.ndarray) -> np.ndarray:
    return np.array([cell is None for cell in cells], bool) if cells.dtype == object else np.isnan(cells)


def is_first_occurrence(columns: Sequence[np.ndarray]) -> np.ndarray:
    """True for each row that differs from all earlier rows; gaps equal gaps."""
    seen: set[tuple] = set()
    first = np.zeros(len(columns[0]), bool)
    for i, row in enumerate(zip(*(_codes(cells) for cells in columns), strict=True)):
        first[i] = row not in seen
        seen.add(row)
    return first


def _codes(cells: np.ndarray) -> list:
    return cells.tolist() if cells.dtype == object else np.where(np.isnan(cells), np.inf, cells).tolist()


@final
@dataclass(frozen=True)
class Encoder:
    """Feature columns -> x (N, F) float32, with the statistics and categories of the rows it was fitted on."""

    numbers: Mapping[str, tuple[float, float]]
    """column -> (mean, deviation)"""
    levels: Mapping[str, tuple[str, ...]]
    """text column -> its categories, sorted"""
    order: tuple[str, ...]
    rules: Rules

    @classmethod
    def fit(cls, columns: Columns, rules: Rules, name: str) -> Encoder:
        moments: dict[str, tuple[float, float]] = {}
        levels: dict[str, tuple[str, ...]] = {}
        n = len(next(iter(columns.values())))
        for column, cells in columns.items():
            present = cells[~is_missing(cells)]
            if cells.dtype == object:
                strings = sorted(set(present.tolist()))
                if len(strings) > 1:
                    levels[column] = tuple(strings)
            elif len(present) and present.min() < present.max():
                with np.errstate(all="ignore"):
                    moments[column] = (float(present.mean()), float(present.std()))
                if not (np.isfinite(moments[column]).all() and moments[column][1] > 0):
                    raise BadInput(f"the numbers in column '{column}' of '{name}' are too large or too close", fix="rescale that column")
        many = [f"'{column}' ({len(strings)})" for column, strings in levels.items() if len(strings) > max(10, min(MANY_LEVELS, n // 2))]
        if many:
            raise BadInput(
                f"too many different texts to encode in column {list_names(many)} of '{name}'",
                fix="leave such columns out with ignore=[...]",
            )
        if not moments and not levels:
            raise BadInput(f"no column of '{name}' has two different values to learn from", fix="give a table with features")
        return cls(moments, levels, tuple(column for column in columns if column in moments or column in levels), rules)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns of x."""
        onehot = self.rules.text == "onehot"
        return tuple(
            name
            for column in self.order
            for name in ([f"{column}={level}" for level in self.levels[column]] if column in self.levels and onehot else [column])
        )

    def __call__(self, columns: Columns, name: str) -> tuple[Tensor, Tensor]:
        """(x, number of filled gaps in each row)."""
        absent = [column for column in self.order if column not in columns]
        if absent:
            raise BadInput(f"'{name}' has no column {list_names(absent)}", fix=f"it needs {list_names(self.order)}")
        n = len(columns[self.order[0]])
        blocks, filled = [], np.zeros(n, np.int64)
        for column in self.order:
            if column in self.numbers:
                mean, std = self.numbers[column]
                values, _ = numbers(columns[column])
                gap = np.isnan(values)
                values = np.where(gap, mean, values)
                with np.errstate(all="ignore"):
                    block = ((values - mean) / std if self.rules.standardize else values)[:, None]
            else:
                codes_of = {level: i for i, level in enumerate(self.levels[column])}
                codes = np.array([codes_of.get(cell, -1) for cell in texts(columns[column])], np.int64)
                gap = codes < 0
                block = (codes[:, None] == np.arange(len(codes_of))) if self.rules.text == "onehot" else codes[:, None] + 1
            filled += gap
            with np.errstate(all="ignore"):
                blocks.append(block.astype(np.float32))
            if not np.isfinite(blocks[-1]).all():
                count = int((~np.isfinite(blocks[-1])).sum())
                raise BadInput(
                    f"{count} cells in column '{column}' of '{name}' are too large for a 32-bit number", fix="scale that column down"
                )
        return torch.from_numpy(np.concatenate(blocks, 1)), torch.from_numpy(filled)


@final
@dataclass(frozen=True)
class Target:
    """The target column -> y: labels (N,) of named classes, or numbers (N, 1)."""

    column: str
    task: str
    classes: tuple[str, ...] = ()
    mean: float = 0.0
    std: float = 1.0
    note: str = ""
    """what the target is, for the report"""

    @classmethod
    def fit(cls, column: str, cells: np.ndarray, rules: Rules, name: str) -> Target:
        distinct = sorted(set(cells.tolist()))
        text, task = cells.dtype == object, rules.task
        whole = not text and bool(np.all(cells == np.floor(cells)))
        if rules.classes:
            return cls(column, "classes", rules.classes, note=f"{len(rules.classes)} classes")
        if task == "auto":
            few = len(distinct) <= MANY_CLASSES and len(distinct) * 2 <= len(cells)
            task = "classes" if text or (whole and few) else "values"
        if task == "classes":
            if len(distinct) < 2:
                raise BadInput(
                    f"all {len(cells)} targets in column '{column}' of '{name}' are '{distinct[0]}'",
                    fix="give a target with two classes or more",
                )
            if not text and not whole:
                raise BadInput(
                    f"column '{column}' of '{name}' holds numbers that are not whole, so they cannot be classes", fix="set task='values'"
                )
            names = tuple(_class_name(value) for value in distinct)
            if len(names) > max(MANY_CLASSES, len(cells) // 2):
                raise BadInput(
                    f"column '{column}' of '{name}' has {len(names)} classes in {len(cells)} rows",
                    fix="name another target, or set task='values'",
                )
            return cls(column, task, names, note=f"{len(names)} classes")
        if text:
            raise BadInput(f"column '{column}' of '{name}' holds texts such as '{distinct[0]}', not numbers", fix="set task='classes'")
        if task == "counts" and not (whole and cells.min() >= 0):
            wrong = int(((cells != np.floor(cells)) | (cells < 0)).sum())
            raise BadInput(
                f"{wrong} of {len(cells)} targets in column '{column}' of '{name}' are not counts 0, 1, 2, ...", fix="set task='values'"
            )
        return cls(column, task, note=task)

    def standardize(self, y: Tensor) -> Target:
        """The same target, standardized by the given (training) values."""
        return Target(self.column, self.task, self.classes, float(y.double().mean()), float(y.double().std(correction=0)) or 1.0, self.note)

    def __call__(self, cells: np.ndarray, name: str) -> Tensor:
        if self.classes:
            index = {label: i for i, label in enumerate(self.classes)}
            labels = list(_each(_class_name, cells))
            unknown = [label for label in labels if label not in index]
            if unknown:
                raise BadInput(
                    f"{len(unknown)} of {len(labels)} labels ('{self.column}' of '{name}') are unknown: {list_names(sorted(set(unknown)))}",
                    fix=f"the classes are {list_names(self.classes)}",
                )
            return torch.tensor([index[label] for label in labels], dtype=torch.int64)
        with np.errstate(all="ignore"):
            y = ((cells - self.mean) / self.std).astype(np.float32)
        if not np.isfinite(y).all():
            raise BadInput(
                f"{int((~np.isfinite(y)).sum())} targets in column '{self.column}' of '{name}' are missing or too large", fix="fix them"
            )
        return torch.from_numpy(y)[:, None]


@final
class TableReader:
    """A file of new rows -> Batch, with the encoder of the training rows.  The target column may be absent.

    No row is dropped.  If gaps had to be filled, the field `filled` counts them per row.
    """

    def __init__(self, encoder: Encoder, target: Target) -> None:
        self.encoder, self.target = encoder, target

    def __call__(self, path: str | Path) -> Batch:
        return self.rows(_read_any(Path(path), self.encoder.order, self.target.column), Path(path).name)

    def rows(self, columns: Columns, name: str = "rows") -> Batch:
        """A Batch from columns in memory."""
        n = len(next(iter(columns.values()), ()))
        if n == 0:
            raise BadInput(f"'{name}' has no rows")
        x, filled = self.encoder(columns, name)
        if filled.any() and self.encoder.rules.missing != "mean":
            row = int(filled.nonzero()[0])
            raise BadInput(f"row {row} of '{name}' has missing or corrupt cells", fix="fix it, or train with missing='mean'")
        fields = {"x": x, "ids": torch.arange(n), **({"filled": filled} if filled.any() else {})}
        if self.target.column in columns:
            cells = columns[self.target.column]
            as_text = cells.dtype == object and any(not label.lstrip("-").isdigit() for label in self.target.classes)
            cells = texts(cells) if as_text else numbers(cells)[0]
            if not is_missing(cells).any():
                fields["y"] = self.target(cells, name)
        return Batch(**fields)


def _read_any(path: Path, order: Sequence[str], target: str) -> Columns:
    """Columns of a file for prediction; columns without names are those of training in their order."""
    if suffix(path) == ".npy":
        array = read_npy(path)
        return name_columns(array, path.name, list(order) if array.ndim == 2 and array.shape[1] == len(order) else None)
    return read_columns(path)


def name_columns(array: np.ndarray, name: str, names: Sequence[str] | None = None) -> Columns:
    """The columns of a 2-D array under the given names, or c0, c1, ..."""
    if array.ndim != 2 or array.dtype.kind not in "biuf":
        raise BadInput(
            f"'{name}' holds {' x '.join(map(str, array.shape)) or 'one'} values of {array.dtype}, not rows and columns of numbers"
        )
    names = names or [f"c{i}" for i in range(array.shape[1])]
    return {column: array[:, i].astype(np.float64) for i, column in enumerate(names)}


def _class_name(value: object) -> str:
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _counts(what: str, by_column: Mapping[str, int]) -> dict[str, int | str]:
    """A total, and its columns if it is not 0."""
    total = sum(by_column.values())
    where = {f"{what} by column": list_names([f"{column} {count}" for column, count in by_column.items() if count], 20)} if total else {}
    return {what: total, **where}


def _names(what: str, names: Sequence[str]) -> dict[str, int | str]:
    return {what: list_names(names, 20)} if names else {}
