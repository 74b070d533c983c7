"""Rewrite a recipe file of an older version with the new names."""

from __future__ import annotations

import ast
import io
import tokenize
from pathlib import Path

from ...core import renamed
from ...core.errors import BadInput
from ...core.files import replace_file
from ...core.options import Option
from .._options import by_name, option, parse, show

POSITION = 150
USAGE = "FILE ... [--check]"
EXAMPLES = ("sonde upgrade mine.py", "sonde upgrade --check mine.py")


def options() -> list[Option]:
    return [option("check", bool, False, "change nothing; exit code 1 if a file has old names")]


def run(words: list[str]) -> int:
    names, flags = parse(words, by_name(options(), "sonde upgrade"), "sonde upgrade", max_words=1000)
    if not names:
        raise BadInput("sonde upgrade needs a file", fix="such as: sonde upgrade mine.py")
    old = 0
    for path in map(Path, names):
        text = _read(path)
        try:
            new = rewrite(text)
        except (SyntaxError, ValueError, RecursionError, tokenize.TokenError) as error:
            raise BadInput(f"{show(str(path))} is not a readable Python file: {error}", fix="fix the file, then try again") from error
        lines = [number for number, (a, b) in enumerate(zip(text.split("\n"), new.split("\n"), strict=True), 1) if a != b]
        old += bool(lines)
        if not lines:
            print(f"{path}: nothing to change")
            continue
        if not flags.get("check"):
            replace_file(path, new.encode())
        print(
            f"{path}: {'old names in' if flags.get('check') else 'new names in'} line{'s' * (len(lines) > 1)} {', '.join(map(str, lines))}"
        )
    return 1 if old and flags.get("check") else 0


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise BadInput(f"{show(str(path))} cannot be read: {error}", fix="give the path of a Python file") from error


def rewrite(source: str) -> str:
    """Replace old names in the source of a Python file; line numbers do not change.

    Names that only Sonde uses are replaced everywhere; fields of a Recipe such as `batch`, which may mean something else in a
    user's code, only as keywords of `Recipe(...)`, of `.replace(...)` and of calls of a recipe.
    """
    lines = source.split("\n")
    tree = ast.parse(source)
    modules = _modules(tree, lines)
    inside = {(line, column) for line, start, stop, _ in modules for column in range(start, stop)}
    names = [edit for edit in _identifiers(source, _imports(tree)) if edit[:2] not in inside]
    edits = [*_keywords(tree, lines), *names, *modules]
    for line, start, stop, new in sorted(set(edits), reverse=True):
        lines[line] = lines[line][:start] + new + lines[line][stop:]
    return "\n".join(lines)


Edit = tuple[int, int, int, str]
"""line from 0, first and last column, new text"""


def _keywords(tree: ast.AST, lines: list[str]) -> list[Edit]:
    """Edits of recipe fields given as keywords."""
    edits: list[Edit] = []
    for call in ast.walk(tree):
        if not isinstance(call, ast.Call) or _callee(call) not in ("Recipe", "replace", "recipe", "train", "sweep"):
            continue
        for keyword in call.keywords:
            if keyword.arg not in renamed.FIELDS:
                continue
            line, start = keyword.lineno - 1, _column(lines[keyword.lineno - 1], keyword.col_offset)
            edits.append((line, start, start + len(keyword.arg), renamed.FIELDS[keyword.arg]))
            value = keyword.value
            if keyword.arg == "watch" and isinstance(value, ast.Constant) and isinstance(value.value, str) and value.value.startswith("-"):
                first, last = (_column(lines[value.lineno - 1], place) for place in (value.col_offset, value.end_col_offset or 0))
                edits.append((value.lineno - 1, first, last, f'"{value.value[1:]}", mode="max"'))
    return edits


def _callee(call: ast.Call) -> str:
    function = call.func
    return function.attr if isinstance(function, ast.Attribute) else function.id if isinstance(function, ast.Name) else ""


def _imports(tree: ast.AST) -> dict[str, str]:
    """Names that the file imports from a module of Sonde and that have a new name."""
    return {
        name.name: renamed.IMPORTS[node.module][name.name]
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module in renamed.IMPORTS
        for name in node.names
        if name.name in renamed.IMPORTS[node.module]
    }


def _identifiers(source: str, imports: dict[str, str]) -> list[Edit]:
    """Edits of names that only Sonde uses, outside strings and comments."""
    table = {**renamed.NAMES, **renamed.PYTHON, **imports}
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return [
        (token.start[0] - 1, token.start[1], token.end[1], table[token.string])
        for token in tokens
        if token.type == tokenize.NAME and token.string in table
    ]


def _modules(tree: ast.AST, lines: list[str]) -> list[Edit]:
    """Edits of paths of modules that were renamed or moved."""
    edits: list[Edit] = []
    for node in ast.walk(tree):
        if not isinstance(node, (ast.Import, ast.ImportFrom)):
            continue
        paths = [(one.name, renamed.MODULES.get(one.name)) for one in node.names]
        if isinstance(node, ast.ImportFrom):
            paths = [(node.module or "", renamed.MODULES.get(node.module or ""))]
            if len(node.names) == 1:  # from sonde.data import tokenizer
                name = node.names[0].name
                parent, _, last = renamed.MODULES.get(f"{node.module}.{name}", "").rpartition(".")
                paths += [(node.module or "", parent)] if last in (name, renamed.PYTHON.get(name)) else []
        for name, new in paths:
            start = lines[node.lineno - 1].find(name)
            if new and start >= 0:
                edits.append((node.lineno - 1, start, start + len(name), new))
    return edits


def _column(line: str, offset: int) -> int:
    """Index of a character from an offset that `ast` counts in bytes."""
    return len(line.encode()[:offset].decode(errors="ignore"))
