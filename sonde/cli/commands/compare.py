"""Compare runs: final metrics, options that differ, and curves."""

from __future__ import annotations

from pathlib import Path

from ...core.errors import BadInput
from ...core.options import Option
from ...report.terminal import table
from .._options import by_name, option, parse, usable

POSITION = 100
USAGE = "RUN RUN ... [--out FILE.html]"
EXAMPLES = ("sonde compare digits_cnn-001 digits_cnn-002",)


def options() -> list[Option]:
    return [option("out", Path | None, None, "page to write, with a PNG next to it; default: runs/compare.html")]


def run(words: list[str]) -> int:
    from ...runs.layout import ROOT, find

    names, flags = parse(words, by_name(options(), "sonde compare"), "sonde compare", max_words=64)
    if len(names) < 2:
        raise BadInput("sonde compare needs two runs or more", fix="`sonde runs` lists them")
    out = flags.get("out") or ROOT / "compare.html"
    if out.suffix != ".html":
        raise BadInput(f"--out of sonde compare must end in .html, not '{out.name}'", fix=f"such as {out.stem or 'compare'}.html")
    paths = [find(usable(Path(name), "RUN")).path for name in names]
    for i, path in enumerate(paths):
        if any(path.samefile(other) for other in paths[:i]):
            raise BadInput(f"sonde compare was given run '{path.name}' twice", fix="give each run once")
    from ...api.run import open_run
    from ...report.page import compare, compare_rows

    runs = [open_run(path) for path in paths]
    rows = compare_rows(runs)
    print(table(list(rows[0]), [list(row.values()) for row in rows]))
    print(compare(runs, out))
    return 0
