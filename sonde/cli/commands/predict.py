"""Predict new examples from files with a trained run."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ...core.errors import BadInput, clean
from ...core.options import Option
from .._options import by_name, option, parse, usable

POSITION = 110
USAGE = "RUN FILE ... [--out FILE.csv] [--skip-corrupt]"
EXAMPLES = (
    "sonde predict table-001 new.csv --out answers.csv    a table with the columns of the training data",
    "sonde predict digits_cnn-001 new.npy                 images as NPY, NPZ or idx; flat rows are reshaped",
    "sonde predict images-001 new.png more/ *.jpg         pictures, or folders of them, for a run of 'images'",
)


def options() -> list[Option]:
    return [
        option("out", Path | None, None, "CSV file to write instead of printing"),
        option("skip_corrupt", bool, False, "skip pictures that cannot be read, and list them"),
    ]


def run(words: list[str]) -> int:
    from ...runs.layout import find

    args, flags = parse(words, by_name(options(), "sonde predict"), "sonde predict", max_words=sys.maxsize)
    if len(args) < 2:
        raise BadInput("sonde predict needs a run and a file", fix=f"write: sonde predict {USAGE}")
    paths, out = [usable(Path(word), "FILE") for word in args[1:]], flags.get("out")
    folder = find(usable(Path(args[0]), "RUN"))
    for path in paths:
        if not path.exists():
            raise BadInput(f"no file '{path}'", fix="give a file of the kind the run was trained on")
    if out is not None and not out.parent.is_dir():
        raise BadInput(f"no folder '{out.parent}' for --out", fix="create it first")
    if out is not None and out.is_dir():
        raise BadInput(f"'{out}' is a folder", fix=f"give a file for --out, such as {out / 'answers.csv'}")
    from ...api.run import open_run

    trained = open_run(folder.path)
    if trained.data.reader is None:
        raise BadInput(
            f"the data '{trained.data.name}' of run '{trained.name}' cannot be read from a file",
            fix="predict from Python: sonde.open_run(RUN).predict(Batch(x=...))",
        )
    batch, names = _examples(trained.data.reader, paths, flags.get("skip_corrupt", False))
    rows = prediction_rows(trained.predict(batch), trained.data, names)
    if out is None:  # names of files and classes may hold control characters
        rows = ([clean(cell) for cell in row] for row in rows)
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    if out is None:
        print(text.getvalue(), end="")
        return 0
    from ...core.files import replace_file

    replace_file(out, text.getvalue().encode(errors="surrogateescape"))  # keeps names that are not valid UTF-8
    print(out)
    return 0


def _examples(reader: Any, paths: Sequence[Path], skip_corrupt: bool) -> tuple[Any, Sequence[str]]:
    """A batch and the names of its pictures; skipped pictures are listed on standard error."""
    if not hasattr(reader, "read_named"):
        if len(paths) > 1 or skip_corrupt:
            problem = "several files are" if len(paths) > 1 else "--skip-corrupt is"
            raise BadInput(
                f"the run was not trained on image files, and {problem} supported only for those",
                fix="give one file and leave --skip-corrupt out",
            )
        return reader(paths[0]), ()
    batch, names, corrupt = reader.read_named(paths, skip_corrupt)
    if corrupt:
        shown = ", ".join(clean(name) for name in corrupt[:20]) + (f" and {len(corrupt) - 20:,} more" if len(corrupt) > 20 else "")
        many = f"{len(corrupt):,} of {len(corrupt) + len(names):,} pictures cannot be read and "
        print(f"{many}{'is' if len(corrupt) == 1 else 'are'} skipped: {shown}", file=sys.stderr)
    return batch, names


def prediction_rows(predicted: Any, data: Any, names: Sequence[str] = ()) -> Iterator[Sequence[Any]]:
    """Rows of a CSV, header first: name or index of each example, then class and probability, or the predicted values."""
    rows = predicted.reshape(len(predicted), -1)
    first, each = ("file", names) if names else ("row", range(len(rows)))
    if data.task == "classes":
        import torch

        if rows.shape[1] == 1:  # a single probability is that of the second of two classes
            rows = torch.cat([1 - rows, rows], 1)
        classes = data.classes or tuple(range(rows.shape[1]))
        yield first, "class", "probability"
        for name, probability, label in zip(each, *(part.tolist() for part in rows.max(1)), strict=True):
            yield name, classes[label], f"{probability:.6g}"
        return
    yield first, *(("value",) if rows.shape[1] == 1 else (f"value{j}" for j in range(rows.shape[1])))
    for name, row in zip(each, rows.tolist(), strict=True):
        yield name, *(f"{value:.6g}" for value in row)
