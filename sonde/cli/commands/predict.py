"""Apply a trained run to a file of new examples."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ...core.dials import Dial
from ...core.errors import BadInput, clean
from .._options import by_name, option, parse, usable

USAGE = "RUN FILE [--out FILE.csv]"
EXAMPLES = (
    "sonde predict table-001 new.csv --out answers.csv    a table with the columns of the training data",
    "sonde predict digits_cnn-001 new.npy                 images as NPY, NPZ or idx; rows of numbers are brought into shape",
    "sonde predict images-001 new.png                     a picture, or a folder of them, for a run of 'images'",
)


def options() -> list[Dial]:
    return [option("out", Path | None, None, "write there instead of printing")]


def run(words: list[str]) -> int:
    from ...engine.rundir import find

    found, given = parse(words, by_name(options(), "sonde predict"), "sonde predict", most=2)
    if len(found) < 2:
        raise BadInput("sonde predict needs a run and a file", fix=f"sonde predict {USAGE}")
    file, out = usable(Path(found[1]), "FILE"), given.get("out")
    folder = find(usable(Path(found[0]), "RUN"))
    if not file.exists():
        raise BadInput(f"no file '{file}'", fix="give a file of the kind the run was trained on")
    if out is not None and not out.parent.is_dir():
        raise BadInput(f"no folder '{out.parent}' for --out", fix="make it first")
    if out is not None and out.is_dir():
        raise BadInput(f"'{out}' is a folder", fix=f"give a file for --out, such as {out / 'answers.csv'}")
    from ...engine.api import open_run

    trained = open_run(folder.path)
    if trained.data.reader is None:
        raise BadInput(
            f"the data '{trained.data.name}' of run '{trained.name}' cannot be read from a file", fix="in Python: run.predict(batch)"
        )
    reader = trained.data.reader
    batch, names = reader.named(file) if hasattr(reader, "named") else (reader(file), ())
    rows = answers(trained.predict(batch), trained.data, names)
    if out is None:  # a terminal would obey what some names of files and classes hold
        rows = ([clean(cell) for cell in row] for row in rows)
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    if out is None:
        print(text.getvalue(), end="")
        return 0
    from ...core.files import replace_file

    replace_file(out, text.getvalue().encode(errors="surrogateescape"))  # names as they are, also those that are no UTF-8
    print(out)
    return 0


def answers(predicted: Any, data: Any, names: Sequence[str] = ()) -> Iterator[Sequence[Any]]:
    """Rows of a CSV, head first: class and probability, or the value, behind the example's name, or its number from 0."""
    rows = predicted.reshape(len(predicted), -1)
    first, each = ("file", names) if names else ("row", range(len(rows)))
    if data.task == "classes":
        import torch

        if rows.shape[1] == 1:  # one number is the probability of the second of two classes
            rows = torch.cat([1 - rows, rows], 1)
        classes = data.classes or tuple(range(rows.shape[1]))
        yield first, "class", "probability"
        for name, probability, label in zip(each, *(part.tolist() for part in rows.max(1)), strict=True):
            yield name, classes[label], f"{probability:.6g}"
        return
    yield first, *(("value",) if rows.shape[1] == 1 else (f"value{j}" for j in range(rows.shape[1])))
    for name, row in zip(each, rows.tolist(), strict=True):
        yield name, *(f"{value:.6g}" for value in row)
