"""Exhibit: one row of the atlas, running.  It states what it expects, is measured against it, and may show a picture.

An exhibit is a function in its chapter's file, `cnn_12` in `convolutional_networks.py` for row CNN-12:

    def opt_06(exhibit: Exhibit) -> str:
        exhibit.expect("draws of each index in an epoch", draws, torch.ones(N))
        return "1 draw of each of 10 indices per epoch"        # the measured figure, as a reader sees it in the list

It passes when every expectation held, and fails when it states none: a check that cannot fail is not a check.

All randomness of an exhibit comes from `exhibit.seed`: data from `exhibit.generator("name")`, trainings from
`exhibit.seeds()`.  So the distribution of everything it measures can be drawn (`sonde atlas LM-16 --seeds 20`, see
`_margins`), and a threshold can be kept well away from what chance, or another processor, makes of the number.
"""

from __future__ import annotations

import ast
import json
import math
import re
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ..core import registry, seeds
from ..core.errors import BadInput, SondeError
from ..core.reading import Reading, plain
from ._sources import source_key
from .index import rows

if TYPE_CHECKING:
    import torch

FOLDER = Path(__file__).parent


class Finding(NamedTuple):
    """One expectation after the fact, in words a reader can compare, and the numbers behind them."""

    name: str
    measured: str
    expected: str
    passed: bool
    rule: str = ""
    """how `values` are held against `bound`: 'above', 'below', 'mean above', 'mean below', 'within' or 'ordered'; '' without numbers"""
    values: tuple[float, ...] = ()
    """one number for each seed, or the only one; for 'within' the difference from the target, for 'ordered' that of the two sides"""
    bound: float = 0.0
    trainings: int = 1
    """seeds that a mean is taken over"""


class Exhibit:
    """Handed to every exhibit: a place to state expectations, to hang readings, a seed, and a folder that is gone afterwards."""

    def __init__(self, folder: Path, seed: int = 0, sampled: bool = False) -> None:
        self.folder, self.seed, self.sampled = folder, seed, sampled
        self.trainings = 1
        self.findings: list[Finding] = []
        self.readings: list[Reading] = []

    def seeds(self, n: int = 3) -> range:
        """Seeds of n trainings.  Where a distribution is sampled, each sample is one training."""
        self.trainings = n
        return range(self.seed, self.seed + 1) if self.sampled else range(n * self.seed, n * (self.seed + 1))

    def generator(self, *parts: int | str) -> torch.Generator:
        """A generator for the data named by the parts, another one for each seed of the exhibit."""
        return seeds.generator(self.seed, *parts)

    def expect(self, name: str, measured: Any, target: Any, within: float = 0.0) -> float:
        """`measured` equals `target`: numbers and arrays entry by entry to `within`, anything else exactly.

        Returns the largest difference.  Shapes must agree, NaN never passes.  Refused as unable to fail: comparing an
        object with itself, comparing nothing, and a tolerance so wide that a measured zero would pass for the target.
        """
        import numpy as np

        if measured is target and not isinstance(target, (int, float, str, bool)):
            raise BadInput(f"expectation '{name}' compares an object with itself", fix="measure and target must come from two places")
        if not (math.isfinite(within) and within >= 0):
            raise BadInput(f"expectation '{name}' has the tolerance {within}", fix="give a finite number, 0 or more")
        have, want = _numbers(measured), _numbers(target)
        if want is None:
            if within:
                raise BadInput(f"expectation '{name}' gives a tolerance to something that is not a number", fix="leave it out")
            equal = plain(measured) == plain(target)
            self._record(name, _short(plain(measured)), _short(plain(target)), equal)
            return 0.0 if equal else math.inf
        largest = float(np.abs(want).max(initial=0.0))
        if want.size == 0 or not math.isfinite(largest):
            raise BadInput(f"expectation '{name}' has an empty or infinite target", fix="compare at least one finite number")
        if 0 < largest <= within:
            raise BadInput(f"expectation '{name}' has a tolerance as large as its target", fix="a measured 0 must not pass")
        spread = f" +/- {within:g}" if within else ""
        if have is None or have.shape != want.shape:
            shape = "no numbers" if have is None else f"shape {have.shape}"
            self._record(name, shape, f"shape {want.shape}{spread}", False)
            return math.inf
        gap = np.abs(have - want).max()
        difference = float(have[()] - want[()]) if want.ndim == 0 else float(gap)
        if want.ndim == 0:
            words = _number(have[()]), _number(want[()]) + spread
        elif want.size <= 8 and not within:
            words = _short(have.tolist()), _short(want.tolist())
        else:
            words = f"largest difference {gap:.3g}", f"{want.size} numbers{spread or ' exactly'}"
        self._record(name, *words, bool(gap <= within), "within", (difference,), within)
        return float(gap)

    def above(self, name: str, measured: Any, bound: float, mean: bool = False) -> None:
        """The number `measured` lies above `bound`; of a list with one number for each seed all do, or with `mean` their mean."""
        values = self._values(measured)
        words, value = _worst(values, min) if not mean else _mean(values)
        self._record(
            name, words, f"> {_number(_check_bound(name, bound))}", value > bound, "mean above" if mean else "above", values, bound
        )

    def below(self, name: str, measured: Any, bound: float, mean: bool = False) -> None:
        """The number `measured` lies below `bound`; of a list with one number for each seed all do, or with `mean` their mean."""
        values = self._values(measured)
        words, value = _worst(values, max) if not mean else _mean(values)
        self._record(
            name, words, f"< {_number(_check_bound(name, bound))}", value < bound, "mean below" if mean else "below", values, bound
        )

    def exceeds(self, name: str, larger: Any, smaller: Any) -> None:
        """Of two lists with one number for each seed, the first has the larger number for every seed."""
        high, low = self._values(larger), self._values(smaller)
        low = low * len(high) if len(low) == 1 else low
        if len(high) != len(low):
            raise BadInput(f"expectation '{name}' orders {len(high)} numbers and {len(low)}", fix="give one pair for each seed")
        leads = tuple(a - b for a, b in zip(high, low, strict=True))
        words, value = _worst(leads, min)
        self._record(name, f"leads by {words}", "> 0 for every seed", value > 0, "ordered", leads, 0.0)

    def refuses(self, name: str, call: Callable[[], Any], error: type[Exception] = BadInput) -> None:
        """`call` raises `error`."""
        outcome = "it went through"
        try:
            call()
        except Exception as raised:
            outcome = f"{type(raised).__name__}: {_short(str(raised))}"
            return self._record(name, outcome, error.__name__, isinstance(raised, error))
        self._record(name, outcome, error.__name__, False)

    def train(self, recipe: Any, name: str, **options: Any) -> Any:
        """A run of the engine in this exhibit's folder: quiet, and on one thread so that sums are the same everywhere."""
        from ..api.training import train

        return train(recipe, run=self.folder / name, quiet=True, threads=1, **options)

    def show(self, reading: Reading) -> None:
        """A table or picture that belongs beside the figure."""
        self.readings.append(reading)

    def _values(self, measured: Any) -> tuple[float, ...]:
        """The number, or the numbers of a list with one for each seed."""
        if not isinstance(measured, (list, tuple)):
            return (float(measured),)
        if len(measured) < 2 and not (self.sampled and measured):
            raise BadInput(f"{len(measured)} numbers are no spread", fix="measure two seeds or more, or give the number alone")
        return tuple(float(value) for value in measured)

    def _record(
        self, name: str, measured: str, expected: str, passed: bool, rule: str = "", values: tuple[float, ...] = (), bound: float = 0.0
    ) -> None:
        if not name.strip() or any(finding.name == name for finding in self.findings):
            raise BadInput(f"an expectation needs a name of its own, not '{name}'", fix="say what is measured")
        # JSON has no word for what is not finite; such a number has no place in a distribution either.
        values = values if all(map(math.isfinite, values)) else ()
        self.findings.append(Finding(name, measured, expected, bool(passed), rule, values, float(bound), self.trainings))


@dataclass(frozen=True)
class Result:
    """What running one exhibit gave; plain data, so it crosses processes and lies in the cache as JSON."""

    id: str
    figure: str
    """the measured figure, in words"""
    seconds: float
    source: str
    """hash of the source that gave it"""
    findings: tuple[Finding, ...] = ()
    readings: tuple[Reading, ...] = ()
    error: str = ""
    """why there is no verdict but failure: an exception, a dead worker, a vacuous check"""
    seed: int = 0

    @property
    def passed(self) -> bool:
        return not self.error and bool(self.findings) and all(finding.passed for finding in self.findings)

    @property
    def why(self) -> str:
        """What went wrong, in one line; empty when it passed."""
        wrong = [f"{f.name}: {f.measured}, expected {f.expected}" for f in self.findings if not f.passed]
        return "; ".join([self.error] * bool(self.error) + wrong)

    def to_json(self) -> str:
        # A reading's JSON has its names sorted; the order of a table's columns is kept beside it.
        readings = [(reading.to_json(), list(reading.values)) for reading in self.readings]
        return json.dumps({**asdict(self), "readings": readings}, sort_keys=True)

    @classmethod
    def from_json(cls, body: dict[str, Any]) -> Result:
        findings = tuple(Finding(*finding)._replace(values=tuple(finding[5])) for finding in body["findings"])
        readings = tuple(_in_order(Reading.from_json(text), names) for text, names in body["readings"])
        return cls(**{**body, "findings": findings, "readings": readings})


def spread(values: Sequence[float], form: str = ".3g") -> str:
    """Mean and deviation of what several seeds gave, for a figure: '0.97 +/- 0.01'; of one seed the number."""
    import numpy as np

    return f"{np.mean(values):{form}}" + (f" +/- {np.std(values, ddof=1):{form}}" if len(values) > 1 else "")


def exhibits(folder: Path = FOLDER) -> dict[str, Path]:
    """Ids that have an exhibit -> the file it stands in, in the order of the atlas; read by parsing, nothing is imported.

    A file holds one chapter, that of its first exhibit, and no other file holds any of it.
    """
    places: dict[str, Path] = {}
    homes: dict[str, Path] = {}
    for path in sorted(folder.glob("[!_]*.py")):
        chapter = ""
        for name, line in _functions(path.read_text(encoding="utf-8"), str(path)):
            row = name.upper().replace("_", "-")
            chapter = chapter or row.split("-")[0]
            if row not in rows() or rows()[row].chapter != chapter or row in places or homes.setdefault(chapter, path) != path:
                what = f"{path.name} has a function '{name}' that is no row of its chapter or stands there twice"
                raise BadInput(what, where=f"line {line}")
            places[row] = path
    return {row: places[row] for row in rows() if row in places}


@lru_cache
def _functions(text: str, filename: str) -> list[tuple[str, int]]:
    """Names of exhibits in a chapter's text and the lines they stand in; a worker asks again for each seed."""
    body = ast.parse(text, filename=filename).body
    functions = [node for node in body if isinstance(node, ast.FunctionDef)]
    return [(node.name, node.lineno) for node in functions if re.fullmatch(r"[a-z][a-z0-9]*_\d\d", node.name)]


def row_source(row: str, path: Path) -> str:
    """Hash of what a row runs in the file of its chapter and those beside it: a result of another source no longer counts."""
    return source_key(_function_name(row), path)


def _function_name(row: str) -> str:
    return row.lower().replace("-", "_")


def run(row: str, folder: Path = FOLDER, seed: int = 0, sampled: bool = False) -> Result:
    """Run one exhibit in this process; `sampled` trains with one seed what is otherwise trained with several.

    Whatever goes wrong inside it is part of the result.
    """
    path = exhibits(folder)[row]
    started = time.perf_counter()
    figure, error = "", ""
    with tempfile.TemporaryDirectory(prefix="sonde-atlas-") as work:
        exhibit = Exhibit(Path(work), seed, sampled)
        try:
            function = getattr(_chapter(path), _function_name(row))
            started = time.perf_counter()  # again: importing torch is not this row's doing
            with _own_randomness(seed):
                figure = function(exhibit)
            if not isinstance(figure, str) or not figure.strip():
                figure, error = "", "it returns no measured figure"
            elif not exhibit.findings:
                error = "it states no expectation, so it cannot fail"
        except (Exception, SystemExit) as raised:
            error = f"{type(raised).__name__}: {_one_line(raised)} ({_locate(raised, path)})"
    seconds = round(time.perf_counter() - started, 3)
    return Result(row, figure, seconds, row_source(row, path), tuple(exhibit.findings), tuple(exhibit.readings), error, seed)


def _in_order(reading: Reading, names: list[str]) -> Reading:
    return replace(reading, values={name: reading.values[name] for name in names})


def _chapter(path: Path) -> Any:
    return registry.load("atlas", path.stem) if path.parent == FOLDER else registry.load_file(path)


@contextmanager
def _own_randomness(seed: int):
    """Fresh layers draw their weights from torch's global generator; give every exhibit one of its own, and leave none behind."""
    torch = sys.modules.get("torch")
    if torch is None:
        yield
        return
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def _locate(raised: BaseException, path: Path) -> str:
    lines = [frame.lineno for frame in traceback.extract_tb(raised.__traceback__) if frame.filename == str(path)]
    return f"{path.name} line {lines[-1]}" if lines else path.name


def _one_line(raised: BaseException) -> str:
    text = raised.what if isinstance(raised, SondeError) else str(raised)
    return _short(" ".join(text.split()), 200)


def _numbers(value: Any) -> Any:
    """A NumPy array of the value if it is made of numbers alone, else None."""
    import numpy as np

    try:
        array = np.asarray(plain(value))
    except ValueError:  # ragged lists
        return None
    return array if array.dtype.kind in "iuf" else None


def _check_bound(name: str, bound: float) -> float:
    if not math.isfinite(bound):
        raise BadInput(f"expectation '{name}' has the bound {bound}", fix="give a finite number")
    return bound


def _worst(values: tuple[float, ...], worst: Callable[[tuple[float, ...]], float]) -> tuple[str, float]:
    """The number that decides, and words for it: alone, or as the worst of some seeds beside their mean and deviation."""
    value = worst(values) if len(values) == 1 or all(map(math.isfinite, values)) else math.nan
    return (_number(value) if len(values) == 1 else f"{spread(values)} over {len(values)} seeds, worst {_number(value)}"), value


def _mean(values: tuple[float, ...]) -> tuple[str, float]:
    """The mean of some seeds, which decides, and words for it."""
    return f"{spread(values)}, mean of {len(values)} seeds", math.fsum(values) / len(values)


def _number(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _short(value: Any, width: int = 72) -> str:
    text = value if isinstance(value, str) else str(value)
    return text if len(text) <= width else text[: width - 3] + "..."
