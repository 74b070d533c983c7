"""Hash of the source code of a row of the atlas.

The hash covers the function of the row and every function, class and constant of the atlas that it uses, directly or
through other files of the folder.  It does not depend on comments, docstrings, white space or other rows of the chapter.
A result or a margin is valid as long as its hash is the present one.
"""

from __future__ import annotations

import ast
import hashlib
import io
import re
import tokenize
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path


@dataclass(frozen=True)
class _Source:
    """One file: its top-level definitions, and what it imports from other files of its folder."""

    lines: list[str]
    definitions: dict[str, list[ast.stmt]] = field(default_factory=dict)
    imports: dict[str, tuple[str, str]] = field(default_factory=dict)
    """name in this file -> (stem of the other file, name there); the latter is empty if the module itself is imported"""


def source_key(function: str, path: Path) -> str:
    """Hash of a function and of everything it uses from the same folder."""
    queue, parts = [(path, function)], {}
    while queue:
        file, name = queue.pop()
        source = _read(file.read_text(encoding="utf-8"))
        for number, node in enumerate(source.definitions.get(name, [])):
            key = (file.name, name, number)
            if key not in parts:
                parts[key] = _plain_text(source.lines, node)
                queue += _uses(source, node, file)
        if name in source.imports:
            stem, there = source.imports[name]
            queue.append((file.with_name(f"{stem}.py"), there))
    text = "\n".join(" ".join((*map(str, key), parts[key])) for key in sorted(parts))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _uses(source: _Source, node: ast.stmt, file: Path) -> list[tuple[Path, str]]:
    """Names that a definition uses: those of its own file, and those of files in the folder that it imports."""
    uses = [(file, one.id) for one in ast.walk(node) if isinstance(one, ast.Name)]
    for one in ast.walk(node):
        if isinstance(one, ast.Attribute) and isinstance(one.value, ast.Name):
            stem, name = source.imports.get(one.value.id, ("", "-"))
            if not name:
                uses.append((file.with_name(f"{stem}.py"), one.attr))
    return [(path, name) for path, name in uses if path != file or name in source.definitions or source.imports.get(name, ("", ""))[1]]


@lru_cache(maxsize=128)
def _read(text: str) -> _Source:
    tree = ast.parse(text)
    source = _Source(_without_comments(text, tree))
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            source.definitions.setdefault(node.name, []).append(node)
        elif isinstance(node, ast.ImportFrom) and node.level == 1:
            for one in node.names:
                source.imports[one.asname or one.name] = (node.module, one.name) if node.module else (one.name, "")
        elif isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                for name in ast.walk(target):
                    if isinstance(name, ast.Name):
                        source.definitions.setdefault(name.id, []).append(node)
    return source


def _without_comments(text: str, tree: ast.Module) -> list[str]:
    """Lines of a file, with comments and docstrings removed."""
    lines = text.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column]
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            for row in range(node.lineno - 1, node.end_lineno or node.lineno):
                lines[row] = ""
    return lines


def _plain_text(lines: list[str], node: ast.stmt) -> str:
    """Text of a definition and its decorators, without white space."""
    first = min([node.lineno, *(one.lineno for one in getattr(node, "decorator_list", []))])
    return re.sub(r"\s+", "", "".join(lines[first - 1 : node.end_lineno]))
