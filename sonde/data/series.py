"""Measurements over time from a data folder: windows of the past, and the values that came next."""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor

from ..core.batch import Data
from ..core.errors import BadInput, DataUnusable
from ..core.options import Range
from .formats import read_columns, reading
from .split import size
from .tensors import TensorSource
from .text.corpora import find

SplitSize = float | int
SeriesLength = Annotated[int, Range(1, 4096)]


def sunspots(seed: int = 0, valid: SplitSize = 0.1, test: SplitSize = 0.1, length: SeriesLength = 48, ahead: SeriesLength = 1) -> Data:
    """Sunspots of each month, 1749 to 1983: 2,820 numbers, to forecast.

    Args:
        valid: fraction or count of months held out for validation, after those for training
        test: fraction or count of the last months, for the test
        length: months of the past that are seen
        ahead: months to forecast
    """
    return forecast("sunspots", values("timeseries/monthly-sunspots.csv"), valid, test, length, ahead)


def passengers(seed: int = 0, valid: SplitSize = 0.15, test: SplitSize = 0.15, length: SeriesLength = 12, ahead: SeriesLength = 1) -> Data:
    """Passengers of an airline in each month, 1949 to 1960: 144 numbers, to forecast.

    Args:
        valid: fraction or count of months held out for validation, after those for training
        test: fraction or count of the last months, for the test
        length: months of the past that are seen
        ahead: months to forecast
    """
    return forecast("passengers", values("timeseries/airline-passengers.csv"), valid, test, length, ahead)


def temperatures(seed: int = 0, valid: SplitSize = 0.1, test: SplitSize = 0.1, length: SeriesLength = 30, ahead: SeriesLength = 1) -> Data:
    """Lowest temperature of each day in Melbourne, 1981 to 1990: 3,650 numbers, to forecast.

    Args:
        valid: fraction or count of days held out for validation, after those for training
        test: fraction or count of the last days, for the test
        length: days of the past that are seen
        ahead: days to forecast
    """
    return forecast("temperatures", values("timeseries/daily-min-temperatures.csv"), valid, test, length, ahead)


def values(name: str) -> Tensor:
    """The second column of a table in a data folder, (N,)."""
    path = find(name)
    with reading(path, "is not a table of dates and numbers"):
        column = list(read_columns(path, ",", True).values())[1]
        numbers = torch.tensor([float(cell) for cell in column], dtype=torch.float64)
    if not torch.isfinite(numbers).all():
        raise DataUnusable(f"'{path.name}' has a value that is not a number", where=str(path), fix="put a good copy there")
    return numbers


def forecast(name: str, row: Tensor, valid: SplitSize, test: SplitSize, length: int, ahead: int) -> Data:
    """Windows x (B, T, 1) and what came next y (B, ahead), standardized by the training part; each part's targets lie in that part."""
    n_valid, n_test = size(len(row), valid, "valid"), size(len(row), test, "test")
    stop = len(row) - n_valid - n_test
    if stop < length + ahead:
        raise BadInput(f"{max(stop, 0)} values to train on are too few for windows of {length} + {ahead}", fix="use a smaller length")
    mean, std = row[:stop].mean(), row[:stop].std(correction=0)
    cuts = [length, stop, stop + n_valid, len(row)]
    parts = []
    whole = ((row - mean) / std).float().unfold(0, length + ahead, 1)  # one window for each first target from `length` on
    for first, last in zip(cuts, cuts[1:]):
        taken = whole[first - length : last - ahead - length + 1]
        parts.append(TensorSource(taken[:, :length, None], taken[:, length:]) if len(taken) and last > first else None)
    if parts[0] is None:
        raise BadInput(f"'{name}' leaves nothing to train on", fix="use a smaller length")
    report: dict[str, int | str] = {"mean of training": f"{float(mean):.6g}", "deviation of training": f"{float(std):.6g}"}
    return Data(parts[0], parts[1], parts[2], name=name, task="values", report=report)
