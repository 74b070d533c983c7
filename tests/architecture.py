"""The house and the walk of a training step, as `docs/architecture.md` shows them.

    python tests/architecture.py          write the page and its picture again

Both are made from the code: the picture from the imports of all files, the walk from a run that is traced.
"""

from __future__ import annotations

import ast
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.test_layers import HOUSE, PACKAGE, imported_modules, parsed  # noqa: E402

PAGE, PICTURE = ROOT / "docs" / "architecture.md", ROOT / "docs" / "pictures" / "house.svg"
BELOW = ("nn/", "models/", "kernels/")
"""folders of the network itself, which the walk leaves out"""
LOGGING = {"engine/record.py", "engine/progress.py", "runs/rows.py", "core/files.py"}
"""files that a step enters only where it writes a row"""


# The house


def rooms() -> dict[str, str]:
    """Folders from the top of the house to the bottom, with the first sentence of each."""
    sentences = {}
    for room in HOUSE:
        path = PACKAGE / room / "__init__.py"
        if path.is_file():
            text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
            sentences[room] = text.split("\n\n")[0].replace("\n", " ").split(".  ")[0].rstrip(".") + "."
    return sentences


def imports() -> dict[str, set[str]]:
    """Folder -> folders that it imports from, at the top of a file or inside a function."""
    arrows: dict[str, set[str]] = {room: set() for room in rooms()}
    for _, inside, tree in parsed(PACKAGE):
        if len(inside) > 1:
            for node in ast.walk(tree):
                for module in imported_modules(node, ("sonde", *inside[:-1])):
                    parts = module.split(".")
                    if parts[0] == "sonde" and len(parts) > 1 and parts[1] in arrows and parts[1] != inside[0]:
                        arrows[inside[0]].add(parts[1])
    return arrows


def picture() -> str:
    """A square for each import: all of them are left of the diagonal where folders import only what is above them."""
    names, arrows = list(rooms()), imports()
    cell, left, top = 24, 110, 96
    size = len(names) * cell
    width, height = left + size + 20, top + size + 20
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="13">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
    ]
    for row, room in enumerate(names):
        y, x = top + row * cell, left + row * cell
        if row % 2 == 0:
            lines.append(f'<rect x="{left}" y="{y}" width="{size}" height="{cell}" fill="#f4f5f7"/>')
        lines.append(f'<text x="{left - 8}" y="{y + 16}" text-anchor="end" fill="#222">{room}</text>')
        lines.append(f'<text transform="translate({x + 16} {top - 8}) rotate(-60)" fill="#222">{room}</text>')
        lines.append(f'<rect x="{x + 3}" y="{y + 3}" width="{cell - 6}" height="{cell - 6}" fill="#c9ced6"/>')
        for other in sorted(arrows[room], key=names.index):
            column = left + names.index(other) * cell
            color = "#2f6db3" if names.index(other) < row else "#c0392b"
            lines.append(f'<rect x="{column + 3}" y="{y + 3}" width="{cell - 6}" height="{cell - 6}" fill="{color}"/>')
    return "\n".join([*lines, "</svg>"]) + "\n"


# The walk


@contextmanager
def tiny_run(**more: Any) -> Iterator[Any]:
    """A short run of char_lm with the mixer gla, trained inside the context."""
    import sonde

    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder, "text.txt")
        text.write_text("a small text to learn from\n" * 300)
        sizes: dict[str, Any] = {"depth": 2, "width": 32, "context": 16, "batch_size": 4, "steps": 12}
        yield lambda: sonde.train("char_lm", run=Path(folder, "run"), mixer="gla", data=text, quiet=True, threads=1, **{**sizes, **more})


def inside_package(frame: Any) -> str:
    """The file of a frame, relative to the package; empty where it is elsewhere."""
    path = Path(frame.f_code.co_filename)
    return path.relative_to(PACKAGE).as_posix() if PACKAGE in path.parents else ""


def walk() -> list[tuple[str, str]]:
    """(file, function) of the frames from the loop to torch's backward pass, outermost first."""
    from sonde.core import terms

    frames: list[tuple[str, str]] = []
    real = terms._ENGINE

    class Watched:
        @staticmethod
        def run_backward(*of: Any, **more: Any) -> Any:
            frame = sys._getframe(1)
            if not frames:
                while frame is not None:
                    frames.insert(0, (inside_package(frame), frame.f_code.co_name))
                    if frame.f_code.co_name == "run" and frames[0][0] == "engine/trainer.py":
                        break
                    frame = frame.f_back
            return real.run_backward(*of, **more)

    terms._ENGINE = Watched
    try:
        with tiny_run(steps=2) as run:
            run()
    finally:
        terms._ENGINE = real
    return frames


def entered() -> list[str]:
    """Files of the package that training steps enter, but for those of the network; the first three steps only warm up."""
    from sonde.engine.trainer import Trainer

    files: set[str] = set()
    real = Trainer._take_step

    def look(frame: Any, event: str, argument: Any) -> None:
        if event == "call" and (name := inside_package(frame)):
            files.add(name)

    def watched(self: Trainer) -> bool:
        before = sys.getprofile()
        sys.setprofile(look if self.step > 2 else before)
        try:
            return real(self)
        finally:
            sys.setprofile(before)

    Trainer._take_step = watched  # type: ignore[method-assign]
    try:
        with tiny_run() as run:
            run()
    finally:
        Trainer._take_step = real  # type: ignore[method-assign]
    return sorted(name for name in files if not name.startswith(BELOW))


def page() -> str:
    """The text of docs/architecture.md."""
    steps, files = walk(), entered()
    lines = [
        "# Architecture",
        "",
        "Made by `python tests/architecture.py` from the code; a test compares.",
        "",
        "## The house",
        "",
        "A folder imports only folders above it. In the picture a row is a folder and a blue square is a folder it imports from:",
        "all squares are left of the diagonal.",
        "",
        "![which folder imports which](pictures/house.svg)",
        "",
        "| folder | what it is |",
        "|---|---|",
        *(f"| `sonde/{room}` | {sentence} |" for room, sentence in rooms().items()),
        "",
        "## The walk of a training step",
        "",
        f"From the loop to torch's backward pass: {len(steps)} functions in {len({file for file, _ in steps})} files.",
        "",
        "| file | function |",
        "|---|---|",
        *(f"| `sonde/{file}` | `{function}` |" for file, function in steps),
        "",
        "Files that the steps of `sonde train char_lm --mixer gla` enter, besides those of the network itself",
        f"({', '.join(f'`{name[:-1]}`' for name in BELOW)}): {len([name for name in files if name not in LOGGING])}, and "
        f"{len([name for name in files if name in LOGGING])} more where a step writes a row.",
        "",
        *(f"- `sonde/{name}`" + (" (rows)" if name in LOGGING else "") for name in files),
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    PICTURE.write_text(picture(), encoding="utf-8")
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE.relative_to(ROOT)} and {PICTURE.relative_to(ROOT)}")
