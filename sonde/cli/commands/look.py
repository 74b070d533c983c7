"""Look at a run: its report, or what one lens shows."""

from __future__ import annotations

from pathlib import Path

from ...core.dials import Dial
from ...core.errors import BadInput
from .. import _names
from .._options import leading, parse, usable

USAGE = "RUN [LENS] [--dial value ...]"
EXAMPLES = (
    "sonde look digits_cnn-001               the whole report, with pictures",
    "sonde look digits_cnn-001 confusion     one lens; `sonde list lenses` names them",
    "sonde look - mistakes --help            the dials of a lens",
)


def options() -> list[Dial]:
    return []


def described(words: list[str]) -> _names.Named | None:
    found, _ = leading(words, {}, most=2)
    return _names.lens(found[1]) if len(found) == 2 else None


def run(words: list[str]) -> int:
    from ...engine.rundir import find

    found, rest = leading(words, {}, most=2)
    if not found:
        raise BadInput("sonde look needs a run", fix="`sonde runs` lists them")
    folder = find(usable(Path(found[0]), "RUN"))
    if len(found) == 1:
        parse(rest, {}, "sonde look")
        from ...engine.api import open_run

        print(open_run(folder.path).report())
        return 0
    lens = _names.lens(found[1])
    _, given = parse(rest, lens.dials, lens.owner)
    return _show(folder.path, lens.target, given)


def _show(path: Path, lens: str, given: dict) -> int:
    """Print the readings as text and draw them beside the run's other pictures."""
    from ...engine.api import open_run
    from ...lenses._draw import draw
    from .._readings import text

    readings = open_run(path).look(lens, **given)
    (path / "figures").mkdir(exist_ok=True)
    print(*map(text, readings), draw(readings, path / "figures" / f"{lens}.png"), sep="\n\n")
    return 0
