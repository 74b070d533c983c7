"""Measure time and memory of every form of mixers against length."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from ...core import registry
from ...core.errors import BadInput, nearest
from ...core.options import Option, Range
from ...report.terminal import bold, wide
from .._options import by_name, option, parse

if TYPE_CHECKING:
    from ...core.reading import Reading
    from ...nn.mixers import Mixer

POSITION = 50
USAGE = "mixers [NAME | FILE.py ...] [--forms FORM ...] [--lengths N ...] [--out FILE.png]"
EXAMPLES = (
    "sonde bench mixers",
    "sonde bench mixers gla mamba2 attention --lengths 256 1024 4096 16384",
    "sonde bench mixers mamba --forms fused scan --backward",
    "sonde bench mixers ./fade.py gla               your own mixer next to one of Sonde",
)
LENGTHS = (128, 512, 2048)


def options() -> list[Option]:
    return [
        option("forms", tuple[str, ...] | None, None, "forms of computation, such as chunk or scan; default: all that a mixer has"),
        option("lengths", tuple[int, ...], LENGTHS, "lengths of the sequence", Range(1, 2**20)),
        option("width", int, 256, "width of the mixers", Range(8, 2**14)),
        option("batch", int, 1, "batch size", Range(1, 2**12)),
        option("backward", bool, False, "time the backward pass too"),
        option("threads", int, 0, "number of threads; 0: the default of torch", Range(0, 4096)),
        option("limit", float, 2.0, "time limit in seconds; a form that takes longer is not tried at longer lengths", Range(above=0)),
        option("out", Path | None, None, "picture to write; default: none"),
    ]


def run(words: list[str]) -> int:
    plain, flags = parse(words, by_name(options(), "sonde bench"), "sonde bench", max_words=200)
    values = {one.name: flags.get(one.name, one.default) for one in options()}
    if not plain or plain[0] != "mixers":
        raise BadInput(
            f"sonde bench cannot measure '{plain[0][:40]}'" if plain else "sonde bench needs something to measure",
            fix="write: sonde bench mixers",
        )
    texts = [_known(text) for text in plain[1:]] or registry.names("nn.mixers")
    names = [registry.label(registry.parse(text, "mixer")[0]) for text in texts]
    for name, example in (("lengths", "--lengths 128 512 2048"), ("forms", "--forms fused chunk")):
        if values[name] == ():
            raise BadInput(f"--{name} of sonde bench is empty", fix=f"such as {example}, or leave it out")
    import torch

    from ...lenses.tools.mixers import COLUMNS, MixerRow, cells, readings, sweep
    from ...nn.recurrence import FORMS

    for form in values["forms"] or ():
        if form not in FORMS:
            raise BadInput(f"no form '{form}'", where="--forms", fix=nearest(form, FORMS))
    if values["threads"]:
        torch.set_num_threads(values["threads"])
    lengths = sorted(set(values["lengths"]))
    torch.manual_seed(0)
    mixers = {name: _build_mixer(text, values["width"], lengths[-1]) for name, text in zip(names, texts, strict=True)}
    available = {form for one in mixers.values() for form in one.forms()}
    if values["forms"] and not available & set(values["forms"]):
        request = ", ".join(values["forms"])
        raise BadInput(f"none of these mixers has the form {request}", where="--forms", fix="they have " + ", ".join(sorted(available)))
    passes, forms = "forward and backward" if values["backward"] else "forward", ", ".join(values["forms"] or ["all forms"])
    setting = (
        f"Width {values['width']}, batch {values['batch']}, lengths {', '.join(f'{n:,}' for n in lengths)}, "
        f"threads {torch.get_num_threads()}, {passes}, {forms}"
    )
    print(bold(wide(setting)))
    rows: list[MixerRow] = []
    try:
        with _stop_on_signal():
            for row in sweep(mixers, values["forms"] or (), lengths, values["batch"], values["backward"], values["limit"]):
                if not rows:
                    print(_line(COLUMNS, names))
                rows.append(row)
                print(_line(cells(row, values["batch"]), names), flush=True)
    finally:  # rows measured before a signal are kept
        if rows:
            _conclude(readings(rows, values["batch"], setting), values["out"])
    return 0


def _known(text: str) -> str:
    """A mixer as typed, after checking that its name is in the registry if it is not a file."""
    name, _ = registry.parse(text, "mixer")
    if not registry.is_file(name):
        registry.check("nn.mixers", name)
    return text


def _build_mixer(text: str, width: int, length: int) -> Mixer:
    """A mixer that reads sequences of this length."""
    from ...nn.mixers import length_options, mixer, mixer_class

    name, options = registry.parse(text, "mixer")
    return mixer(name, width, **{**length_options(mixer_class(name), length), **options})


def _line(cells: Sequence[Any], names: Sequence[str]) -> str:
    """One line of a table that is printed row by row, with columns of fixed width."""
    from ...core.numbers import format_cell
    from ...lenses.tools.mixers import COLUMNS, FORMATS

    texts = [format_cell(cell, FORMATS.get(column, "") if cell != column else "") for column, cell in zip(COLUMNS, cells, strict=True)]
    widths = (max(len("mixer"), *map(len, names)), len("convolution"), *(max(len(column), 11) for column in COLUMNS[2:]))
    return "  ".join(cell.ljust(width) if i < 2 else cell.rjust(width) for i, (cell, width) in enumerate(zip(texts, widths))).rstrip()


def _conclude(readings: list[Reading], out: Path | None) -> None:
    """Print the best forms and draw the pictures."""
    from ...report.draw import draw

    for reading in readings[1:]:
        print(wide(f"{reading.title.split()[0]}: {reading.note.partition('. ')[2]}"))
    if out:
        for reading, path in zip(readings[1:], (out, out.with_stem(out.stem + "-memory"))):
            draw(reading, path)
            print(path)


def _stop_on_signal() -> AbstractContextManager[object]:
    """Stop measuring at once when a signal arrives."""
    from ...engine.signals import Handlers, stop_error

    @final
    class Stop(Handlers):
        def __enter__(self) -> None:
            self.install()

        def on_signal(self, number: int, frame: object) -> None:
            raise stop_error(
                number, "while measuring", "sonde bench", "every row printed", "fewer mixers, forms or --lengths take less time"
            )

    return Stop()
