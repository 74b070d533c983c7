"""Margins: how far each measured number of the atlas is from its threshold, over seeds.

A trained model gives a different number with another seed, and rounding differs between processors.  A threshold must be
far enough away that neither changes the outcome of the check.  This is measured with SEEDS seeds, one training each:

    rule             what is compared                      margin                            required
    above, below     each seed with the bound              |mean - bound| / sd               >= MIN_MARGIN
    mean above, ...  the mean of n seeds with the bound    |mean - bound| / (sd / sqrt(n))   >= MIN_MARGIN
    within           the difference from a target          (bound - |mean|) / sd             >= MIN_MARGIN
    ordered          two numbers, for each seed            the difference / sd               positive for every seed
    equal            text, or a number without tolerance   none                              equal for every seed

With `above`, `below` and `within` every seed must also pass by itself.  An `equal` check has a line only if some seed
failed it.  `margins.tsv` holds the measurements (`make margins` writes it) and the hash of the source they were made with.
Tests and `sonde atlas --check` compare it with the checks in the code and with the numbers of the present run; numbers
that have moved away from the table show that training has changed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, fields, replace
from pathlib import Path

from ..core.errors import DataUnusable
from ..core.files import replace_file
from ..core.reading import Bars, Reading
from .exhibit import FOLDER, Finding, Result
from .index import rows

SEEDS = 20
"""minimum number of seeds for a reliable margin"""
MIN_MARGIN = 3.0
"""in standard deviations, or standard errors of a mean"""
TABLE = FOLDER / "margins.tsv"
FIXED = "fixed"
"""rule of the single line of a row that has no thresholds"""
DRIFT = 4.0
"""largest difference between the mean of a run and that of the table, in standard errors; a larger one is neither chance
nor another processor"""


@dataclass(frozen=True)
class Margin:
    """The distribution of one measured number of an exhibit over seeds, and its threshold."""

    row: str
    data: str
    """'real' if it was measured with a folder of real data, else 'built-in'"""
    name: str
    rule: str
    bound: float
    trainings: int
    """number of seeds the exhibit trains with when it runs"""
    seeds: int
    passed: int
    """number of seeds that met the expectation by themselves"""
    mean: float = 0.0
    sd: float = 0.0
    source: str = ""
    """hash of the row's source when it was measured"""

    @property
    def margin(self) -> float:
        """Distance from the bound in standard deviations (standard errors, for a mean); negative if the check fails."""
        if self.rule == "equal":
            return math.nan
        if self.rule == "within":
            distance = self.bound - abs(self.mean)
        else:
            distance = self.bound - self.mean if self.rule.endswith("below") else self.mean - self.bound
        unit = self.sd / math.sqrt(self.trainings) if self.rule.startswith("mean") else self.sd
        return distance / unit if unit else math.copysign(math.inf, distance)

    @property
    def is_sufficient(self) -> bool:
        """Whether the check is reliable.  Single seeds may fail only where the mean of several is compared."""
        met = self.passed == self.seeds or self.rule.startswith("mean")
        return met and (self.rule in ("ordered", "equal", FIXED) or self.margin >= MIN_MARGIN)

    def drift(self, values: Sequence[float]) -> float:
        """Standard errors between the mean of a run and the mean in the table; 0 if the margin of the run is large enough."""
        mean = math.fsum(values) / len(values)
        if self.rule in ("ordered", "equal", FIXED) or replace(self, mean=mean).margin >= MIN_MARGIN:
            return 0.0
        error = self.sd * math.sqrt(1 / len(values) + 1 / self.seeds)
        return abs(mean - self.mean) / error if error else math.inf


def measure(results: Sequence[Result], data: str) -> list[Margin]:
    """Margins of one row from its results: a line for each threshold, and for each exact check that some seed failed."""
    row, source = results[0].id, results[0].source
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
        first = samples[0]
        if len(samples) != len(results):
            raise DataUnusable(f"{row} checks '{name}' with {len(samples)} of {len(results)} seeds", fix="check the same with every seed")
        if first.rule and any(not finding.values for finding in samples):
            raise DataUnusable(f"{row} measured a number that is not finite: {name}", fix="fix the exhibit, then measure again")
        if is_exact(first) and passed == len(samples):
            continue
        mean = math.fsum(values) / len(values) if values else math.nan
        sd = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)) if len(values) > 1 else 0.0
        lines.append(Margin(row, data, name, first.rule or "equal", first.bound, first.trainings, len(samples), passed, mean, sd, source))
    return lines or [Margin(row, data, "", FIXED, 0.0, 1, len(results), sum(result.passed for result in results), source=source)]


def is_exact(finding: Finding) -> bool:
    """Whether an expectation has no threshold: text, and numbers that must be equal."""
    return not finding.rule or (finding.rule == "within" and not finding.bound)


def read(path: Path = TABLE) -> list[Margin]:
    """Read the table; empty if there is no file."""
    if not path.exists():
        return []
    names = [field.name for field in fields(Margin)]
    lines = [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()]
    kinds = {"bound": float, "mean": float, "sd": float, "trainings": int, "seeds": int, "passed": int}
    try:
        if lines[0] != [*names, "margin"]:
            raise ValueError("its columns are not those of this version")
        return [Margin(**{name: kinds.get(name, str)(cell) for name, cell in zip(names, line)}) for line in lines[1:]]
    except (IndexError, TypeError, ValueError) as error:
        raise DataUnusable(
            f"'{path.name}' is not a table of margins: {error}", where=str(path), fix="write it again: make margins"
        ) from error


def write(margins: Iterable[Margin], path: Path = TABLE) -> None:
    """Replace the lines of these rows and data in the table, which is sorted in the order of the atlas."""
    new = [_round(margin) for margin in margins]
    measured = {(margin.row, margin.data) for margin in new}
    old = [margin for margin in read(path) if (margin.row, margin.data) not in measured and margin.row in rows()]
    position = {row: number for number, row in enumerate(rows())}
    lines = ["\t".join([*(field.name for field in fields(Margin)), "margin"])]
    for margin in sorted(old + new, key=lambda margin: (position[margin.row], margin.data)):
        lines.append(
            "\t".join([*(f"{cell:.6g}" if isinstance(cell, float) else str(cell) for cell in astuple(margin)), f"{margin.margin:.3g}"])
        )
    replace_file(path, ("\n".join(lines) + "\n").encode())


def picture(row: str, samples: Sequence[Result], margins: Sequence[Margin], max_margin: float = 30.0) -> Reading:
    """Plot each number of each seed as its distance from the threshold in standard deviations; right of 0 it passes."""
    near = sorted((margin for margin in margins if margin.sd > 0 and margin.margin < max_margin), key=lambda margin: margin.margin)
    dots = []
    for margin in near:
        values = [value for result in samples for finding in result.findings if finding.name == margin.name for value in finding.values]
        dots.append([replace(margin, mean=value).margin for value in values])
    column = "sd inside the threshold"
    far = sum(margin.sd > 0 for margin in margins) - len(near)
    note = f"One point for each of {len(samples)} seeds, in standard deviations from the threshold, which is at 0" + (
        f"; {far} numbers are further than {max_margin:g} away." if far else "."
    )
    labels = [margin.name for margin in near]
    return Bars(
        f"{row} over seeds",
        {column: [margin.margin for margin in near]},
        note=note,
        labels=labels,
        label_width=72,
        dots={column: dots},
    )


def stale(result: Result, table: Sequence[Margin]) -> list[str]:
    """How a result differs from the table: source, rule, bound, number of seeds, or numbers far from those measured."""
    lines = [margin for margin in table if margin.row == result.id]
    if not lines:
        return ["it was never measured over seeds"]
    if any(line.source != result.source for line in lines):
        return ["its source has changed since it was measured over seeds"]
    now = {finding.name: finding for finding in result.findings}
    # A row that uses real data where they are present was measured both with and without them.
    tables = {data: {margin.name: margin for margin in lines if margin.data == data} for data in {margin.data for margin in lines}}
    return min((_differences(now, known) for known in tables.values()), key=len)


def _differences(now: dict[str, Finding], known: dict[str, Margin]) -> list[str]:
    words = [
        f"{name}: measured over seeds, and no longer checked" for name, line in known.items() if name not in now and line.rule != FIXED
    ]
    for name, finding in now.items():
        rule = finding.rule or "equal"
        if name in known:
            line = known[name]
            before, after = (f"{kind} {bound:.6g}" for kind, bound in ((line.rule, line.bound), (rule, finding.bound)))
            if before != after:
                words.append(f"{name}: {after}, measured over seeds with {before}")
            elif line.trainings != finding.trainings:
                words.append(f"{name}: {finding.trainings} seeds, measured as one of {line.trainings}")
            elif finding.values and (drift := line.drift(finding.values)) > DRIFT:
                words.append(f"{name}: {drift:.1f} standard errors from {line.mean:g}, which was measured over seeds")
        elif not is_exact(finding):
            words.append(f"{name}: {rule} {finding.bound:g}, never measured over seeds")
    return words


def _round(margin: Margin) -> Margin:
    bound, mean, sd = (float(f"{value:.6g}") for value in (margin.bound, margin.mean, margin.sd))
    return replace(margin, bound=bound, mean=mean, sd=sd)
