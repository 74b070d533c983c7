"""How far the checks of the atlas stay from their thresholds: the distribution of every number over seeds.

A trained model gives another number with another seed, and with the last digits of another processor.  A threshold must
lie where neither turns the verdict, and that is measured, over SEEDS seeds, one training each:

    above, below     every seed is held against the bound    |mean - bound| / sd               at least LEAST
    mean above, ...  the mean of n seeds is                  |mean - bound| / (sd / sqrt(n))   at least LEAST
    within           the difference from a target            (bound - |mean|) / sd             at least LEAST
    ordered          one side leads for every seed           it does so in SEEDS of SEEDS
    equal            what is no number is what it should be  it is so in SEEDS of SEEDS

`margins.tsv` keeps what was measured (`make margins` writes it); a test compares it with the thresholds in the code.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, fields, replace
from pathlib import Path

from ..core.errors import DataUnusable
from ..core.files import replace_file
from ..core.reading import Reading
from ._exhibit import FOLDER, Finding, Result
from ._index import rows

SEEDS = 20
"""the fewest that a margin is believed from"""
LEAST = 3.0
"""standard deviations, or standard errors of a mean"""
TABLE = FOLDER / "margins.tsv"
FIXED = "fixed"
"""rule of the one line of a row in which no number changes with the seed"""


@dataclass(frozen=True)
class Margin:
    """The distribution of one number of an exhibit, and what it is held against."""

    row: str
    data: str
    """'real' where it was measured with a data folder, else 'built-in'"""
    name: str
    rule: str
    bound: float
    trainings: int
    """seeds that a mean is taken over when the exhibit runs"""
    seeds: int
    passed: int
    """of these seeds, how many met the expectation by themselves"""
    mean: float = 0.0
    sd: float = 0.0

    @property
    def margin(self) -> float:
        """Standard deviations (standard errors, for a mean) between the numbers and the bound; negative on its wrong side."""
        if self.rule == "equal":
            return math.nan
        if self.rule == "within":
            room = self.bound - abs(self.mean)
        else:
            room = self.bound - self.mean if self.rule.endswith("below") else self.mean - self.bound
        unit = self.sd / math.sqrt(self.trainings) if self.rule.startswith("mean") else self.sd
        return room / unit if unit else math.copysign(math.inf, room)

    @property
    def enough(self) -> bool:
        if self.rule in ("ordered", "equal", FIXED):
            return self.passed == self.seeds
        return self.margin >= LEAST


def measure(results: Sequence[Result], data: str) -> list[Margin]:
    """The margins of one row from its samples: a line for each number that changes with the seed, or one that says that none does."""
    row = results[0].id
    broken = [result for result in results if result.error]
    if broken:
        raise DataUnusable(f"{row} did not run with seed {broken[0].seed}: {broken[0].error}", fix="fix the exhibit, then measure again")
    by_name: dict[str, list[Finding]] = {}
    for result in results:
        for finding in result.findings:
            by_name.setdefault(finding.name, []).append(finding)
    lines = []
    for name, samples in by_name.items():
        values = [value for finding in samples for value in finding.values]
        passed = sum(finding.passed for finding in samples)
        if len(set(values)) <= 1 and passed == len(samples):
            continue  # the same with every seed: nothing that chance could turn
        first = samples[0]
        mean = math.fsum(values) / len(values) if values else math.nan
        sd = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)) if len(values) > 1 else 0.0
        lines.append(Margin(row, data, name, first.rule or "equal", first.bound, first.trainings, len(samples), passed, mean, sd))
    return lines or [Margin(row, data, "", FIXED, 0.0, 1, len(results), sum(result.passed for result in results))]


def read(path: Path = TABLE) -> list[Margin]:
    """The table as it was written."""
    if not path.exists():
        return []
    names = [field.name for field in fields(Margin)]
    lines = [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()]
    kinds = {"bound": float, "mean": float, "sd": float, "trainings": int, "seeds": int, "passed": int}
    try:
        if lines[0] != [*names, "margin"]:
            raise ValueError("it has other columns")
        return [Margin(**{name: kinds.get(name, str)(cell) for name, cell in zip(names, line)}) for line in lines[1:]]
    except (IndexError, TypeError, ValueError) as error:
        raise DataUnusable(
            f"'{path.name}' is not a table of margins: {error}", where=str(path), fix="write it again: make margins"
        ) from error


def write(margins: Iterable[Margin], path: Path = TABLE) -> None:
    """Put the lines into the table, in the order of the atlas, in place of all older ones of the same row and data."""
    fresh = [_rounded(margin) for margin in margins]
    renewed = {(margin.row, margin.data) for margin in fresh}
    kept = [margin for margin in read(path) if (margin.row, margin.data) not in renewed and margin.row in rows()]
    place = {row: number for number, row in enumerate(rows())}
    lines = ["\t".join([*(field.name for field in fields(Margin)), "margin"])]
    for margin in sorted(kept + fresh, key=lambda margin: (place[margin.row], margin.data)):
        lines.append(
            "\t".join([*(f"{cell:.6g}" if isinstance(cell, float) else str(cell) for cell in astuple(margin)), f"{margin.margin:.3g}"])
        )
    replace_file(path, ("\n".join(lines) + "\n").encode())


def picture(row: str, samples: Sequence[Result], margins: Sequence[Margin], most: float = 30.0) -> Reading:
    """Every number of every seed as its distance from the threshold, in standard deviations; right of 0 it passes."""
    near = sorted((margin for margin in margins if margin.sd > 0 and margin.margin < most), key=lambda margin: margin.margin)
    dots = []
    for margin in near:
        values = [value for result in samples for finding in result.findings if finding.name == margin.name for value in finding.values]
        dots.append([replace(margin, mean=value).margin for value in values])
    column = "sd inside the threshold"
    far = sum(margin.sd > 0 for margin in margins) - len(near)
    note = f"One point for each of {len(samples)} seeds, in standard deviations from the threshold, which is at 0" + (
        f"; {far} numbers are further than {most:g} away." if far else "."
    )
    labels = [margin.name for margin in near]
    return Reading(
        f"{row} over seeds",
        "bars",
        {column: [margin.margin for margin in near]},
        note=note,
        extra={"labels": labels, "label_width": 72, "dots": {column: dots}},
    )


def stale(result: Result, table: Sequence[Margin]) -> list[str]:
    """Expectations of a result whose threshold is not the one in the table."""
    known = {margin.name: margin for margin in table if margin.row == result.id}
    words = []
    for finding in result.findings:
        line = known.get(finding.name)
        if line is not None and (line.rule, f"{line.bound:.6g}") != (finding.rule or "equal", f"{finding.bound:.6g}"):
            words.append(f"{finding.name}: {finding.rule} {finding.bound:g}, measured with {line.rule} {line.bound:g}")
    return words


def _rounded(margin: Margin) -> Margin:
    bound, mean, sd = (float(f"{value:.6g}") for value in (margin.bound, margin.mean, margin.sd))
    return replace(margin, bound=bound, mean=mean, sd=sd)
