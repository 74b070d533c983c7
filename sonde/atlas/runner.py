"""The `sonde atlas` command: list the rows, show one row, check all.  Listing does not import torch.

The last result of each row is stored as a JSON file in the user's cache folder, with its plots.  A result is valid while
the source of the row is unchanged; after an edit the row is 'not run' again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.errors import BadInput, DataUnusable, nearest
from ..core.files import read_json, replace_file
from . import _margins
from ._margins import Margin
from .exhibit import FOLDER, Finding, Result, exhibits, row_source
from .index import AtlasRow, chapters, normal, rows, select
from .worker import each, samples

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text

    from ..core.reading import Reading

STYLES = {"pass": "green", "fail": "bold red", "not run": "yellow", "missing": "dim"}
DEFAULT_SECONDS = 5.0
"""estimated time of a row that has never run"""


def listing(chapter: str | None = None, folder: Path = FOLDER) -> None:
    """Print the rows by chapter: statement, last summary, pass or fail, and seconds."""
    console = _console()
    selected, paths = select([chapter] if chapter else None), exhibits(folder)
    cached = recall(paths)
    for prefix in dict.fromkeys(row.chapter for row in selected):
        number = list(chapters()).index(prefix) + 1
        inside = [row for row in selected if row.chapter == prefix]
        console.print(_rows_table(inside, cached, paths, f"{number}. {chapters()[prefix]}"))
    console.print(_count(selected, cached, paths))


def show(word: str, folder: Path = FOLDER) -> int:
    """Run one row and print its statement, expectations, tables and the paths of its plots; returns 0 if it passed."""
    if normal(word) not in rows():
        raise BadInput(f"the atlas has no row '{word}'", fix=nearest(normal(word), rows()))
    row = rows()[normal(word)]
    if row.id not in exhibits(folder):
        raise BadInput(f"{row.id} ({row.title}) has no exhibit yet", fix="'sonde atlas' lists those that have")
    console = _console()
    console.print(_text(f"{row.id}  {row.title}", "bold"), _text(row.statement), "", sep="\n")
    (result,) = each([row.id], folder=folder)
    keep(result, console)
    console.print(_findings_table(result.findings))
    for number, reading in enumerate(result.readings, 1):
        if reading.kind == "table":
            console.print(_reading_table(reading))
        else:
            console.print(_text(f"{reading.title}: {_plot(reading, f'{row.id}-{number}')}"))
        if reading.note:
            console.print(_text(reading.note, "dim"))
    state, message = ("pass", result.summary) if result.passed else ("fail", result.why)
    console.print(_text(state, STYLES[state]), _text(message), _text(f"{result.seconds:.1f} s", "dim"))
    return 0 if result.passed else 1


def check(ids: Sequence[str] | None = None, jobs: int = 2, limit: float = 600.0, folder: Path = FOLDER) -> int:
    """Run rows or chapters, or all rows, in parallel processes; returns 0 if at least one ran and all passed.

    Args:
        ids: ids of rows or chapters
        jobs: number of processes
        limit: seconds after which a row fails
        folder: where the chapters are
    """
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    console = _console()
    selected, paths = select(ids), exhibits(folder)
    cached = recall(paths)
    expected = {row.id: cached[row.id].seconds if row.id in cached else DEFAULT_SECONDS for row in selected if row.id in paths}
    started = time.perf_counter()
    results: dict[str, Result] = {}
    columns = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[status]}"), TimeRemainingColumn()
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("atlas", total=sum(expected.values()), status="")
        # Longest first, so that no process is idle while a long row finishes.
        for result in each(sorted(expected, key=lambda row: -expected[row]), jobs, limit, folder):
            results[result.id] = result
            keep(result, console)
            progress.update(task, advance=expected[result.id], status=f"{len(results)} of {len(expected)} rows")
    console.print(_rows_table([row for row in selected if row.id in results], results, paths, "Atlas"))
    measured = _margins.read() if folder == FOLDER else []
    for result in results.values():
        if not result.passed:
            console.print(_text(f"{result.id} failed: {result.why}", "red"))
        elif measured and (changes := _margins.stale(result, measured)):
            more = f", and {len(changes) - 1} more" if len(changes) > 1 else ""
            console.print(_text(f"{result.id} differs from margins.tsv ({changes[0]}{more}): run make margins", "yellow"))
    console.print(_count(selected, results, paths), _text(f"in {time.perf_counter() - started:.0f} s", "dim"))
    return 0 if results and all(result.passed for result in results.values()) else 1


def distribution(ids: Sequence[str] | None, seeds: int, jobs: int = 2, table: Path | None = None, folder: Path = FOLDER) -> int:
    """Run rows once per seed and print the margin of each number from its threshold, smallest first.

    Returns 0 if every margin is large enough.

    Args:
        ids: ids of rows or chapters; all rows if there are none
        seeds: number of seeds
        jobs: number of processes
        table: file to write the margins to, row by row
        folder: where the chapters are
    """
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    console = _console()
    selected = [row.id for row in select(ids) if row.id in exhibits(folder)]
    data = "real" if os.environ.get("SONDE_DATA") else "built-in"
    runs: dict[str, list[Result]] = {row: [] for row in selected}
    margins: list[Margin] = []
    broken = 0
    columns = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[status]}"), TimeRemainingColumn()
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("seeds", total=len(selected) * seeds, status="")
        for result in samples(selected, seeds, jobs, folder=folder):
            of_row = runs[result.id]
            of_row.append(result)
            progress.update(task, advance=1, status=f"{result.id}, seed {result.seed}")
            if len(of_row) < seeds:
                continue
            try:
                lines = _margins.measure(of_row, data)
            except DataUnusable as error:
                broken += 1
                console.print(_text(error.what, "red"))
                continue
            margins += lines
            if table is not None:
                _margins.write(lines, table)
            if any(line.sd > 0 for line in lines):
                path = _plot(_margins.picture(result.id, of_row, lines), f"{result.id}-seeds")
                seconds = sum(one.seconds for one in of_row)
                console.print(_text(f"{result.id}: {seconds:.0f} s, {path}", "dim"))
    console.print(_margins_table(sorted(margins, key=lambda margin: (margin.is_sufficient, margin.margin))))
    short = [margin for margin in margins if not margin.is_sufficient]
    console.print(_text(f"{len(margins) - len(short)} of {len(margins)} margins are large enough, {broken} rows did not run", "bold"))
    if seeds < _margins.SEEDS:
        console.print(_text(f"these margins are rough: reliable ones need {_margins.SEEDS} seeds", "dim"))
    return 1 if short or broken or not margins else 0


def recall(paths: dict[str, Path]) -> dict[str, Result]:
    """Cached results that are still valid, by id.

    Args:
        paths: ids -> files of the exhibits
    """
    results = {}
    for row, path in paths.items():
        try:
            result = Result.from_json(read_json(_store() / f"{row}.json"))
        except (DataUnusable, KeyError, TypeError, ValueError):
            continue  # never run, or the cache cannot be read: the row counts as not run
        if result.source == row_source(row, path):
            results[row] = result
    return results


def keep(result: Result, console: Console) -> None:
    """Cache a result; if that fails, print a warning."""
    try:
        _store().mkdir(parents=True, exist_ok=True)
        replace_file(_store() / f"{result.id}.json", result.to_json().encode())
    except OSError as error:
        console.print(_text(f"the result of {result.id} is not cached: {error}", "yellow"))


def _store() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sonde" / "atlas"


def _plot(reading: Reading, name: str) -> Path:
    from ..report.draw import draw

    _store().mkdir(parents=True, exist_ok=True)
    path = _store() / f"{name}.png"
    draw(reading, path)
    return path


def _state(row: str, results: dict[str, Result], paths: dict[str, Path]) -> str:
    if row in results:
        return "pass" if results[row].passed else "fail"
    return "not run" if row in paths else "missing"


def _count(selected: Sequence[AtlasRow], results: dict[str, Result], paths: dict[str, Path]) -> Text:
    states = [_state(row.id, results, paths) for row in selected]
    return _text(", ".join(f"{states.count(state)} {state}" for state in STYLES if states.count(state) or state != "not run"), "bold")


def _rows_table(selected: Sequence[AtlasRow], results: dict[str, Result], paths: dict[str, Path], title: str) -> RenderableType:
    table = _table(title, ("id", "statement", "measured", "verdict", "s"))
    for column, ratio in zip(table.columns[1:3], (4, 3), strict=True):
        column.overflow, column.no_wrap, column.ratio = "ellipsis", True, ratio
    table.expand = True
    for row in selected:
        state, result = _state(row.id, results, paths), results.get(row.id)
        message = (result.summary if result.passed else result.why) if result else ""
        seconds = f"{result.seconds:.1f}" if result else ""
        table.add_row(row.id, _text(row.title, "bold") + _text(f": {row.statement}"), message, _text(state, STYLES[state]), seconds)
    return table


def _findings_table(findings: Sequence[Finding]) -> RenderableType:
    table = _table("", ("expectation", "measured", "expected", ""))
    for finding in findings:
        state = "pass" if finding.passed else "fail"
        table.add_row(finding.name, finding.measured, finding.expected, _text(state, STYLES[state]))
    return table


def _margins_table(margins: Sequence[Margin]) -> RenderableType:
    table = _table("Margins", ("row", "expectation", "rule", "bound", "mean", "sd", "seeds passed", "margin", ""))
    for margin in margins:
        state = "pass" if margin.is_sufficient else "fail"
        rule = f"{margin.rule} ({margin.trainings} seeds)" if margin.rule.startswith("mean") else margin.rule
        numbers = (f"{value:.4g}" for value in (margin.bound, margin.mean, margin.sd))
        table.add_row(
            margin.row,
            margin.name,
            rule,
            *numbers,
            f"{margin.passed} of {margin.seeds}",
            f"{margin.margin:.2f}",
            _text(state, STYLES[state]),
        )
    return table


def _reading_table(reading: Reading) -> RenderableType:
    table = _table(reading.title, tuple(reading.values))
    for cells in zip(*reading.values.values(), strict=True):
        table.add_row(*(f"{cell:.6g}" if isinstance(cell, float) else str(cell) for cell in cells))
    return table


def _table(title: str, names: Sequence[str]):
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(title=title or None, title_justify="left", title_style="bold", box=SIMPLE_HEAD, pad_edge=False)
    for name in names:
        table.add_column(name)
    return table


def _text(words: str, style: str = "") -> Text:
    from rich.text import Text

    return Text(words, style=style)


def _raise_broken_pipe() -> None:
    """rich would end the process here; the command line handles the error instead."""
    raise BrokenPipeError


def _console() -> Console:
    from rich.console import Console

    # Formulas contain square brackets, so markup is off; a pipe has no width, so a wide one is set.
    console = Console(markup=False, highlight=False, soft_wrap=False)
    console.on_broken_pipe = _raise_broken_pipe  # type: ignore[method-assign]
    if not console.is_terminal:
        console.width = 180
    return console
