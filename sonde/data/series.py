"""Time series from a data folder: windows of the past, and the values that follow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import torch
from torch import Tensor

from ..core.batch import Data
from ..core.errors import BadInput, DataUnusable
from ..core.options import Range
from .formats import read_columns, report_errors
from .split import SplitSize, size
from .tensors import TensorSource
from .text.corpora import find

SeriesLength = Annotated[int, Range(1, 4096)]


def series_set(name: str, summary: str, unit: str, file: str, window: int, part: float = 0.1) -> Callable[..., Data]:
    """Measurements at equal intervals, in their order.

    Args:
        unit: what lies between two measurements, in the plural
        file: a table of a data folder, the measurements in its second column
        window: default of `length`
        part: default fraction for validation, and for the test
    """

    def load(
        seed: int = 0, valid: SplitSize = part, test: SplitSize = part, length: SeriesLength = window, ahead: SeriesLength = 1
    ) -> Data:
        return forecast(name, values(file), valid, test, length, ahead)

    load.__name__ = load.__qualname__ = name
    load.__doc__ = f"""{summary}

    Args:
        valid: fraction or count of {unit} held out for validation, after those for training
        test: fraction or count of the last {unit}, for the test
        length: {unit} of the past in a window
        ahead: {unit} to forecast
    """
    return load


sunspots = series_set(
    "sunspots", "Monthly sunspots, 1749 to 1983: 2,820 values, to forecast.", "months", "timeseries/monthly-sunspots.csv", 48
)
passengers = series_set(
    "passengers",
    "Monthly airline passengers, 1949 to 1960: 144 values, to forecast.",
    "months",
    "timeseries/airline-passengers.csv",
    12,
    part=0.15,
)
temperatures = series_set(
    "temperatures",
    "Daily minimum temperatures in Melbourne, 1981 to 1990: 3,650 values, to forecast.",
    "days",
    "timeseries/daily-min-temperatures.csv",
    30,
)


def values(name: str) -> Tensor:
    """The second column of a table in a data folder, (N,)."""
    path = find(name)
    with report_errors(path, "is not a table of dates and numbers"):
        column = list(read_columns(path, ",", True).values())[1]
        numbers = torch.tensor([float(cell) for cell in column], dtype=torch.float64)
    if not torch.isfinite(numbers).all():
        raise DataUnusable(f"'{path.name}' has a value that is not a number", where=str(path), fix="put a good copy there")
    return numbers


def forecast(name: str, row: Tensor, valid: SplitSize, test: SplitSize, length: int, ahead: int) -> Data:
    """Windows x (B, T, 1) and the values y (B, ahead) that follow, standardized by the training part; the targets of a part lie in it."""
    n_valid, n_test = size(len(row), valid, "valid"), size(len(row), test, "test")
    stop = len(row) - n_valid - n_test
    if stop < length + ahead:
        raise BadInput(f"{max(stop, 0)} values to train on are too few for windows of {length} + {ahead}", fix="use a smaller length")
    mean, std = row[:stop].mean(), row[:stop].std(correction=0)
    cuts = [length, stop, stop + n_valid, len(row)]
    parts = []
    whole = ((row - mean) / std).float().unfold(0, length + ahead, 1)  # one window for each first target after the first `length` values
    for first, last in zip(cuts, cuts[1:]):
        taken = whole[first - length : last - ahead - length + 1]
        parts.append(TensorSource(taken[:, :length, None], taken[:, length:]) if len(taken) and last > first else None)
    if parts[0] is None:
        raise BadInput(f"'{name}' leaves nothing to train on", fix="use a smaller length")
    report: dict[str, int | str] = {"mean of training": f"{float(mean):.6g}", "deviation of training": f"{float(std):.6g}"}
    return Data(parts[0], parts[1], parts[2], name=name, task="values", report=report)
