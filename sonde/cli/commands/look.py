"""Look at a run: write its report, or show one lens."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from ...core import registry
from ...core.errors import BadInput
from ...core.options import Option, Range
from .. import _names
from .._options import by_name, flag, option, parse, take_names, usable

POSITION = 90
USAGE = "RUN [LENS | FILE.py] [--split PART] [--first N] [--option value ...]"
EXAMPLES = (
    "sonde look digits_cnn-001               the whole report, with pictures",
    "sonde look digits_cnn-001 confusion     one lens; `sonde list lenses` lists them",
    "sonde look digits_cnn-001 ./my_lens.py  a lens of your own",
    "sonde look - mistakes --help            the options of a lens",
)


def options() -> list[Option]:
    return [
        option("split", Literal["train", "valid", "test"] | None, None, "split of the data a lens looks at; default: test, else valid"),
        option("first", int, 512, "look at the first N examples of the split", Range(1)),
    ]


def describe_target(words: list[str]) -> _names.Named | None:
    names, _ = take_names(words, {}, max_words=2)
    return _names.lens(names[1]) if len(names) == 2 else None


def run(words: list[str]) -> int:
    from ...runs.layout import find

    own = by_name(options(), "sonde look")
    names, rest = take_names(words, own, max_words=2)
    if not names:
        raise BadInput("sonde look needs a run", fix="`sonde runs` lists them")
    lens = _names.lens(names[1]) if len(names) == 2 else None
    _, flags = parse(rest, {**own, **lens.options}, lens.owner) if lens else parse(rest, own, "sonde look")
    folder = find(usable(Path(names[0]), "RUN"))
    if lens:
        return _show(folder.path, lens.target, flags)
    if flags:
        raise BadInput(f"the report has no option {', '.join(map(flag, flags))}", fix="give a lens: sonde look RUN LENS")
    from ...api.run import open_run

    print(open_run(folder.path).report())
    return 0


def _show(path: Path, lens: str, flags: dict) -> int:
    """Print the readings as text and draw them into the run's figures/."""
    from ...api.run import open_run
    from ...report.draw import draw
    from ...report.readings import text

    run = open_run(path)
    split, first = flags.pop("split", None) or run.shown_split, flags.pop("first", 512)
    readings = run.look(lens, split=split, first=first, **flags)
    (path / "figures").mkdir(exist_ok=True)
    whole = len(run.data.splits[split])
    heading = f"{run.name}, {split} split, {min(first, whole)} of {whole} examples"
    print(heading, *map(text, readings), draw(readings, path / "figures" / f"{registry.label(lens)}.png"), sep="\n\n")
    return 0
