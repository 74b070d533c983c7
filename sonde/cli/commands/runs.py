"""List runs with their status, steps and main metric."""

from __future__ import annotations

from pathlib import Path

from ...core.errors import BadInput
from ...core.options import Option
from ...report.terminal import table
from ...runs import listing
from .._options import by_name, option, parse

POSITION = 80
USAGE = "[--under DIR]"
EXAMPLES = ("sonde runs", "sonde runs --under runs/digits_cnn-sweep-001")


def options() -> list[Option]:
    return [option("under", Path | None, None, "folder that holds the runs; default: runs")]


def run(words: list[str]) -> int:
    from ...engine.progress import span
    from ...runs.layout import ROOT

    _, flags = parse(words, by_name(options(), "sonde runs"), "sonde runs")
    home = flags.get("under") or ROOT
    if "under" in flags and not home.is_dir():
        raise BadInput(f"no folder '{home}'", fix="give the folder that holds the runs")
    seen = [listing.summarize(path) for path in listing.folders(home)]
    if not seen:
        print(f"no runs under {home}; start one with `sonde train NAME`")
        return 0
    rows = [
        (one.path.name, one.recipe, one.status, one.step, one.main, None if one.seconds is None else span(one.seconds), text)
        for one, text in zip(seen, listing.differences(seen), strict=True)
    ]
    print(table(("run", "recipe", "status", "steps", "metric", "time", "options that differ"), rows))
    return 0
