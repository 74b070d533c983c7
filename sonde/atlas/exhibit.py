"""Exhibits: each row of the atlas is a function that measures something, compares it with expectations, and may show a plot.

An exhibit is a function in its chapter's file, `cnn_12` in `convolutional_networks.py` for row CNN-12:

    def opt_06(exhibit: Exhibit) -> str:
        exhibit.expect("draws of each index in an epoch", draws, torch.ones(N))
        return "1 draw of each of 10 indices per epoch"        # summary of what was measured, printed in the list

It passes if every expectation is met.  It fails if it has none: a check that cannot fail is not a check.

All randomness of an exhibit comes from `exhibit.seed`: data from `exhibit.generator("name")`, training runs from
`exhibit.seeds()`.  The distribution of every measured number over seeds can therefore be computed
(`sonde atlas LM-16 --seeds 20`, see `_margins`), and each threshold is set well outside it.
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
    """One expectation and its outcome: as text for the reader, and as numbers."""

    name: str
    measured: str
    expected: str
    passed: bool
    rule: str = ""
    """how `values` are compared with `bound`: 'above', 'below', 'mean above', 'mean below', 'within' or 'ordered'; '' without numbers"""
    values: tuple[float, ...] = ()
    """one number per seed, or a single one; for 'within' the difference from the target, for 'ordered' that of the two numbers"""
    bound: float = 0.0
    trainings: int = 1
    """number of seeds the exhibit trains with"""


class Exhibit:
    """The argument of every exhibit: it records expectations and readings, and provides a seed and a temporary folder."""

    def __init__(self, folder: Path, seed: int = 0, sampled: bool = False) -> None:
        self.folder, self.seed, self.sampled = folder, seed, sampled
        self.trainings = 1
        self.findings: list[Finding] = []
        self.readings: list[Reading] = []

    def seeds(self, n: int = 3) -> range:
        """Seeds of n training runs; only one if `sampled`, when the exhibit is run once for each seed."""
        self.trainings = n
        return range(self.seed, self.seed + 1) if self.sampled else range(n * self.seed, n * (self.seed + 1))

    def generator(self, *parts: int | str) -> torch.Generator:
        """A random generator that depends on the seed of the exhibit and on `parts`, which name its purpose."""
        return seeds.generator(self.seed, *parts)

    def expect(self, name: str, measured: Any, target: Any, within: float = 0.0) -> float:
        """Expect `measured` to equal `target`: numbers and arrays elementwise up to `within`, anything else exactly.

        Returns the largest absolute difference.  Shapes must agree, and NaN never passes.  Comparisons that cannot fail
        raise an error: an object with itself, an empty array, and a tolerance so large that zeros would pass.
        """
        import numpy as np

        if measured is target and not isinstance(target, (int, float, str, bool)):
            raise BadInput(
                f"expectation '{name}' compares an object with itself", fix="compute the measured value and the target separately"
            )
        if not (math.isfinite(within) and within >= 0):
            raise BadInput(f"expectation '{name}' has the tolerance {within}", fix="give a finite number, 0 or more")
        have, want = _numbers(measured), _numbers(target)
        if want is None:
            if within:
                raise BadInput(f"expectation '{name}' has a tolerance, and its target is not a number", fix="leave the tolerance out")
            equal = plain(measured) == plain(target)
            self._record(name, _short(plain(measured)), _short(plain(target)), equal)
            return 0.0 if equal else math.inf
        largest = float(np.abs(want).max(initial=0.0))
        if want.size == 0 or not math.isfinite(largest):
            raise BadInput(f"expectation '{name}' has an empty or infinite target", fix="compare at least one finite number")
        if 0 < largest <= within:
            raise BadInput(
                f"expectation '{name}' has a tolerance as large as its target, so that 0 would pass", fix="give a smaller tolerance"
            )
        tolerance = f" +/- {within:g}" if within else ""
        if have is None or have.shape != want.shape:
            shape = "no numbers" if have is None else f"shape {have.shape}"
            self._record(name, shape, f"shape {want.shape}{tolerance}", False)
            return math.inf
        gap = np.abs(have - want).max()
        difference = float(have[()] - want[()]) if want.ndim == 0 else float(gap)
        if want.ndim == 0:
            words = _number(have[()]), _number(want[()]) + tolerance
        elif want.size <= 8 and not within:
            words = _short(have.tolist()), _short(want.tolist())
        else:
            words = f"largest difference {gap:.3g}", f"{want.size} numbers{tolerance or ' exactly'}"
        self._record(name, *words, bool(gap <= within), "within", (difference,), within)
        return float(gap)

    def above(self, name: str, measured: Any, bound: float, mean: bool = False) -> None:
        """Expect `measured` to be above `bound`; for a list with one number per seed, every number, or with `mean` their mean."""
        values = self._values(measured)
        words, value = _worst(values, min) if not mean else _mean(values)
        self._record(
            name, words, f"> {_number(_check_bound(name, bound))}", value > bound, "mean above" if mean else "above", values, bound
        )

    def below(self, name: str, measured: Any, bound: float, mean: bool = False) -> None:
        """Expect `measured` to be below `bound`; for a list with one number per seed, every number, or with `mean` their mean."""
        values = self._values(measured)
        words, value = _worst(values, max) if not mean else _mean(values)
        self._record(
            name, words, f"< {_number(_check_bound(name, bound))}", value < bound, "mean below" if mean else "below", values, bound
        )

    def exceeds(self, name: str, larger: Any, smaller: Any) -> None:
        """Expect `larger` to exceed `smaller` for every seed; each is a list with one number per seed, or one number."""
        high, low = self._values(larger), self._values(smaller)
        low = low * len(high) if len(low) == 1 else low
        if len(high) != len(low):
            raise BadInput(f"expectation '{name}' compares {len(high)} numbers with {len(low)}", fix="give one pair for each seed")
        differences = tuple(a - b for a, b in zip(high, low, strict=True))
        words, value = _worst(differences, min)
        self._record(name, f"larger by {words}", "> 0 for every seed", value > 0, "ordered", differences, 0.0)

    def refuses(self, name: str, call: Callable[[], Any], error: type[Exception] = BadInput) -> None:
        """Expect `call` to raise `error`."""
        outcome = "no error"
        try:
            call()
        except Exception as raised:
            outcome = f"{type(raised).__name__}: {_short(str(raised))}"
            return self._record(name, outcome, error.__name__, isinstance(raised, error))
        self._record(name, outcome, error.__name__, False)

    def train(self, recipe: Any, name: str, **options: Any) -> Any:
        """Train a recipe in the folder of this exhibit, without output, and on one thread so that results do not depend on the machine."""
        from ..api.training import train

        return train(recipe, run=self.folder / name, quiet=True, threads=1, **options)

    def show(self, reading: Reading) -> None:
        """Add a table or plot to the result."""
        self.readings.append(reading)

    def _values(self, measured: Any) -> tuple[float, ...]:
        """One number, or a list of numbers with one per seed, as a tuple."""
        if not isinstance(measured, (list, tuple)):
            return (float(measured),)
        if len(measured) < 2 and not (self.sampled and measured):
            raise BadInput(
                f"a list of {len(measured)} numbers has no standard deviation",
                fix="use two or more seeds, or give a number instead of a list",
            )
        return tuple(float(value) for value in measured)

    def _record(
        self, name: str, measured: str, expected: str, passed: bool, rule: str = "", values: tuple[float, ...] = (), bound: float = 0.0
    ) -> None:
        if not name.strip() or any(finding.name == name for finding in self.findings):
            raise BadInput(f"the name of an expectation must be unique and not empty, not '{name}'", fix="say what is measured")
        # JSON cannot represent NaN and infinity, and they have no place in a distribution over seeds either.
        values = values if all(map(math.isfinite, values)) else ()
        self.findings.append(Finding(name, measured, expected, bool(passed), rule, values, float(bound), self.trainings))


@dataclass(frozen=True)
class Result:
    """The result of running one exhibit: plain data, sent between processes and cached as JSON."""

    id: str
    summary: str
    """what was measured, in one line"""
    seconds: float
    source: str
    """hash of the source of the row"""
    findings: tuple[Finding, ...] = ()
    readings: tuple[Reading, ...] = ()
    error: str = ""
    """why it failed without a comparison: an exception, a dead worker process, no expectations"""
    seed: int = 0

    @property
    def passed(self) -> bool:
        return not self.error and bool(self.findings) and all(finding.passed for finding in self.findings)

    @property
    def why(self) -> str:
        """Why it failed, in one line; empty if it passed."""
        wrong = [f"{f.name}: {f.measured}, expected {f.expected}" for f in self.findings if not f.passed]
        return "; ".join([self.error] * bool(self.error) + wrong)

    def to_json(self) -> str:
        # The JSON of a reading sorts its names, so the order of the columns of a table is stored beside it.
        readings = [(reading.to_json(), list(reading.values)) for reading in self.readings]
        return json.dumps({**asdict(self), "readings": readings}, sort_keys=True)

    @classmethod
    def from_json(cls, body: dict[str, Any]) -> Result:
        findings = tuple(Finding(*finding)._replace(values=tuple(finding[5])) for finding in body["findings"])
        readings = tuple(_in_order(Reading.from_json(text), names) for text, names in body["readings"])
        return cls(**{**body, "findings": findings, "readings": readings})


def spread(values: Sequence[float], form: str = ".3g") -> str:
    """Mean and standard deviation over seeds as text, such as '0.97 +/- 0.01'; a single number has no deviation."""
    import numpy as np

    return f"{np.mean(values):{form}}" + (f" +/- {np.std(values, ddof=1):{form}}" if len(values) > 1 else "")


def exhibits(folder: Path = FOLDER) -> dict[str, Path]:
    """Ids of rows that have an exhibit -> its file, in the order of the atlas; files are parsed, not imported.

    A file has the exhibits of one chapter, and no other file has any of them.
    """
    paths: dict[str, Path] = {}
    chapter_paths: dict[str, Path] = {}
    for path in sorted(folder.glob("[!_]*.py")):
        chapter = ""
        for name, line in _functions(path.read_text(encoding="utf-8"), str(path)):
            row = name.upper().replace("_", "-")
            chapter = chapter or row.split("-")[0]
            if row not in rows() or rows()[row].chapter != chapter or row in paths or chapter_paths.setdefault(chapter, path) != path:
                what = f"{path.name} has a function '{name}' that is not a row of its chapter or is defined twice"
                raise BadInput(what, where=f"line {line}")
            paths[row] = path
    return {row: paths[row] for row in rows() if row in paths}


@lru_cache
def _functions(text: str, filename: str) -> list[tuple[str, int]]:
    """Names and line numbers of the exhibits in the source of a chapter; cached, since a worker asks again for each seed."""
    body = ast.parse(text, filename=filename).body
    functions = [node for node in body if isinstance(node, ast.FunctionDef)]
    return [(node.name, node.lineno) for node in functions if re.fullmatch(r"[a-z][a-z0-9]*_\d\d", node.name)]


def row_source(row: str, path: Path) -> str:
    """Hash of the source of a row; a result with another hash is out of date."""
    return source_key(_function_name(row), path)


def _function_name(row: str) -> str:
    return row.lower().replace("-", "_")


def run(row: str, folder: Path = FOLDER, seed: int = 0, sampled: bool = False) -> Result:
    """Run one exhibit in this process; an exception inside it becomes part of the result.

    Args:
        row: its id, such as CNN-12
        folder: where the chapters are
        seed: the seed of the exhibit
        sampled: train with this seed only, where the exhibit trains with several
    """
    path = exhibits(folder)[row]
    started = time.perf_counter()
    summary, error = "", ""
    with tempfile.TemporaryDirectory(prefix="sonde-atlas-") as work:
        exhibit = Exhibit(Path(work), seed, sampled)
        try:
            function = getattr(_chapter(path), _function_name(row))
            started = time.perf_counter()  # importing torch does not count
            with _own_randomness(seed):
                summary = function(exhibit)
            if not isinstance(summary, str) or not summary.strip():
                summary, error = "", "it returns no summary of what it measured"
            elif not exhibit.findings:
                error = "it has no expectation, so it cannot fail"
        except (Exception, SystemExit) as raised:
            error = f"{type(raised).__name__}: {_one_line(raised)} ({_locate(raised, path)})"
    seconds = round(time.perf_counter() - started, 3)
    return Result(row, summary, seconds, row_source(row, path), tuple(exhibit.findings), tuple(exhibit.readings), error, seed)


def _in_order(reading: Reading, names: list[str]) -> Reading:
    return replace(reading, values={name: reading.values[name] for name in names})


def _chapter(path: Path) -> Any:
    return registry.load("atlas", path.stem) if path.parent == FOLDER else registry.load_file(path)


@contextmanager
def _own_randomness(seed: int):
    """Seed torch's global generator, which initializes new layers, and restore its state afterwards."""
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
    """The value as a NumPy array if it contains only numbers, else None."""
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
    """Text for a number or for the numbers of several seeds, and the number to compare with the bound: the worst."""
    value = worst(values) if len(values) == 1 or all(map(math.isfinite, values)) else math.nan
    return (_number(value) if len(values) == 1 else f"{spread(values)} over {len(values)} seeds, worst {_number(value)}"), value


def _mean(values: tuple[float, ...]) -> tuple[str, float]:
    """Text for the mean over seeds, and the mean, which is compared with the bound."""
    return f"{spread(values)}, mean of {len(values)} seeds", math.fsum(values) / len(values)


def _number(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _short(value: Any, width: int = 72) -> str:
    text = value if isinstance(value, str) else str(value)
    return text if len(text) <= width else text[: width - 3] + "..."
