"""Splits: disjoint, complete and seeded, by fraction or by count, stratified by class on request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, Self, TypeVar

import torch
from torch import Tensor

from ..core.errors import BadInput
from ..core.seeds import generator


class Subsettable(Protocol):
    """A source that can be split."""

    def subset(self, indices: Any) -> Self: ...


S = TypeVar("S", bound=Subsettable)
SplitSize = float | int
"""a fraction below 1, or a count of examples"""


def split(
    n: int, valid: SplitSize = 0.1, test: SplitSize = 0.1, seed: int = 0, labels: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Indices of (train, valid, test), each sorted; together every index exactly once.

    A float below 1 is a fraction, a whole number is a count; train gets the rest.  With `labels` the split is
    stratified: every class has the same fraction in each part, to within one example.
    """
    n_valid, n_test = size(n, valid, "valid"), size(n, test, "test")
    if n_valid + n_test >= n:
        raise BadInput(
            f"{n} examples cannot give {n_valid} for valid and {n_test} for test and leave any for training", fix="lower valid or test"
        )
    if labels is None:
        strata = [torch.arange(n)]
    else:
        if len(labels) != n:
            raise BadInput(f"there are {len(labels)} labels for {n} examples", fix="give one label for each")
        strata = [(labels == label).nonzero().flatten() for label in labels.unique()]
    rng = generator(seed, "split")
    shuffled = [stratum[torch.randperm(len(stratum), generator=rng)] for stratum in strata]
    sizes = [len(stratum) for stratum in strata]
    tests = apportion(n_test, sizes)
    valids = apportion(n_valid, [whole - taken for whole, taken in zip(sizes, tests, strict=True)])
    parts: tuple[list[Tensor], ...] = ([], [], [])
    for stratum, t, v in zip(shuffled, tests, valids, strict=True):
        for part, piece in zip(parts, (stratum[t + v :], stratum[t : t + v], stratum[:t]), strict=True):
            part.append(piece)
    train_part, valid_part, test_part = (torch.cat(part).sort().values for part in parts)
    return train_part, valid_part, test_part


def subsets(whole: S, indices: Sequence[Tensor]) -> tuple[S, S | None, S | None]:
    """The parts train, valid and test of a source, from the indices that `split` gives; a part without examples is None."""
    train, valid, test = (whole.subset(part) if len(part) else None for part in indices)
    assert train is not None
    return train, valid, test


def size(n: int, part: SplitSize, name: str = "part") -> int:
    """How many of n examples a fraction or a count means; a fraction above 0 means at least one."""
    if isinstance(part, bool) or not isinstance(part, (int, float)) or not part >= 0:
        raise BadInput(f"'{name}' must be a fraction below 1 or a count of examples, not {part!r}")
    if isinstance(part, int):
        return part
    if part >= 1:
        raise BadInput(
            f"'{name}' is the fraction {part:g}, which leaves nothing for training",
            fix="give a fraction below 1, or a whole number as a count",
        )
    return max(1, round(n * part)) if part > 0 else 0


def apportion(total: int, sizes: Sequence[int]) -> list[int]:
    """Distribute `total` in proportion to `sizes` by the largest remainder method; never more than a size, ties to the first."""
    whole = sum(sizes)
    if total > whole:
        raise BadInput(f"{total} examples cannot be taken from {whole}")
    counts = [total * size // whole if whole else 0 for size in sizes]
    rest = sorted(range(len(sizes)), key=lambda i: (-(total * sizes[i] % whole) if whole else 0, i))
    for i in rest[: total - sum(counts)]:
        counts[i] += 1
    return counts


def class_weights(labels: Tensor, classes: int | Sequence[str]) -> Tensor:
    """Balanced weights n / (K * count of the class): rare classes count as much as common ones."""
    names = [str(i) for i in range(classes)] if isinstance(classes, int) else list(classes)
    check_labels(labels, names, "class weights")
    counts = torch.bincount(labels, minlength=len(names))
    empty = [name for name, count in zip(names, counts.tolist(), strict=True) if not count]
    if empty:
        raise BadInput(
            f"{len(empty)} of {len(names)} classes have no example to weigh: {list_names(empty)}",
            fix="leave these classes out, add examples, or train without class weights",
        )
    return (len(labels) / (len(names) * counts.double())).float()


def check_labels(labels: Tensor, classes: Sequence[str], where: str) -> None:
    """Every label must be one of 0 .. K-1; others are counted and named."""
    wrong = (labels < 0) | (labels >= len(classes))
    if wrong.any():
        values, counts = labels[wrong].unique(return_counts=True)
        shown = list_names([f"{value} ({count} times)" for value, count in zip(values.tolist(), counts.tolist(), strict=True)])
        raise BadInput(
            f"{int(wrong.sum())} of {len(labels)} labels are outside 0 to {len(classes) - 1}: {shown}",
            where=f"{where}, first at example {int(wrong.nonzero()[0])}",
            fix="fix the labels or give the right number of classes",
        )


def list_names(names: Sequence[str], limit: int = 8) -> str:
    """Names separated by commas; the first few of many."""
    return ", ".join(map(str, names[:limit])) + (f" and {len(names) - limit} more" if len(names) > limit else "")
