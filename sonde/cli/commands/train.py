"""Train a recipe, or go on with a run that stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from ...core.dials import Dial, Range
from ...core.errors import BadInput, nearest
from ...core.shelf import names as shelf_names
from .. import _names
from .._options import by_name, leading, option, parse
from .._text import columns, figure

USAGE = "NAME | FILE.py [--dial value ...] [options]"
OPTIONS = (
    option("run", Path, None, "directory of the run; the same one again goes on where it stopped (default runs/NAME-001, -002, ...)"),
    option("resume", bool, False, "go on with a run, never start one: NAME may be its directory, or left out for the newest"),
    option("seed", int, 0, "where all random draws come from", Range(0, 2**63 - 1)),
    option("processes", int, 1, "worker processes on this machine", Range(1, 4096)),
    option("threads", int | None, None, "threads per process; by default the cores are shared out", Range(1, 4096)),
    option("device", str, "cpu", "cpu, cuda or cuda:N"),
    option("shards", int | None, None, "virtual shards of a batch: equal bits for any number of processes that divides it", Range(1, 4096)),
    option("parallel", Literal["ddp", "fsdp"], "ddp", "copy the model to every process, or spread it over them"),
    option("checkpoint_every", int | None, None, "steps between checkpoints; by default a few a minute", Range(1, 2**31 - 1)),
    option("exact", bool, False, "refuse to go on where the bits could differ from an uninterrupted run"),
    option("accept_data_change", bool, False, "go on although the data are not those the run began with"),
    option("tensorboard", bool, False, "write TensorBoard files beside the metrics"),
    option("quiet", bool, False, "no progress line"),
)
EXAMPLES = (
    "sonde train digits_cnn --lr 3e-3",
    "sonde train ./mine.py --run runs/mine",
    "sonde train --resume",
)


def dials(words: list[str]) -> tuple[str, str, dict[str, Dial]]:
    """The dials of the recipe named in the words, for the help text."""
    found, _ = leading(words, by_name(OPTIONS, "sonde train"))
    return _names.recipe(found[0]).described() if found else ("", "", {})


def run(words: list[str]) -> int:
    known = by_name(OPTIONS, "sonde train")
    found, rest = leading(words, known)
    if not found and "--resume" not in words:
        parse(rest[:1], known, "sonde train")  # a mistyped option in front is the likelier mistake
        raise BadInput("sonde train needs the name of a recipe or a file", fix=nearest("", shelf_names("recipes")))
    ...
