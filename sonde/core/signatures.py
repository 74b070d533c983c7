"""Read the options of a function from its source text: nothing is imported, so a help page costs milliseconds.

    read_signature(Path("sonde/recipes/char_lm.py"), "recipe").options     the same as options_of(char_lm.recipe)

Annotations and defaults are worked out by a small evaluator that knows what options are written with: types, `Annotated`,
`Literal`, `Range`, numbers, tuples, and names that a neighboring file of the package assigns such an expression to.  A
signature written with anything else is not guessed at: `read_signature` gives None, and the caller imports the file.
"""

from __future__ import annotations

import ast
import inspect
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Optional, Union, get_args, get_origin

from .options import Count, Option, Range, Share, find_range, help_texts
from .registry import PACKAGE

KNOWN: dict[str, dict[str, Any]] = {
    "typing": {"Annotated": Annotated, "Literal": Literal, "Any": Any, "Optional": Optional, "Union": Union, "Sequence": Sequence},
    "collections.abc": {"Sequence": Sequence, "Mapping": Mapping},
    "pathlib": {"Path": Path},
    "sonde.core.options": {"Range": Range, "Count": Count, "Share": Share},
}
BUILTINS: dict[str, Any] = {kind.__name__: kind for kind in (int, float, str, bool, tuple, list, dict)}
OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.LShift: operator.lshift,
    ast.BitOr: operator.or_,
}


TRANSPARENT = {"checked", "guard"}
"""decorators that do not change the signature"""


@dataclass(frozen=True)
class Signature:
    """A function or class as its file declares it."""

    summary: str
    options: dict[str, Option]


def read_signature(path: Path, name: str, owner: str = "", skip: Sequence[str] = ()) -> Signature | None:
    """Read the options of a function, or of a class's constructor, that a file defines at its top level.

    Args:
        path: the Python file.
        name: of the function or class; `tiny()` means the class that the function `tiny` is annotated to return.
        owner: how errors name what the options belong to.
        skip: arguments that are not options.

    Returns:
        None where the file must be imported to know: it does not define the name itself, or writes an annotation or a
        default with more than constants and types.
    """
    try:
        file = _File(path)
        node = file.definition(name)
        function, bound = (_constructor(node), 1) if isinstance(node, ast.ClassDef) else (node, 0)
        doc = ast.get_docstring(node) or ""
        return Signature(doc.split("\n")[0], _options(file, function, bound, doc, owner, skip))
    except (_Unreadable, OSError, ValueError, SyntaxError, TypeError, RecursionError):
        return None


def classes(path: Path) -> list[str]:
    """Names of the classes that a file defines at its top level; none where it cannot be read."""
    try:
        return [node.name for node in _parse(path, path.stat().st_mtime_ns).body if isinstance(node, ast.ClassDef)]
    except (OSError, ValueError, SyntaxError, RecursionError):
        return []


class _Unreadable(Exception):
    """The signature cannot be read from the source; the file must be imported."""


def _options(file: _File, function: ast.FunctionDef, bound: int, doc: str, owner: str, skip: Sequence[str]) -> dict[str, Option]:
    arguments, helps = function.args, help_texts(doc)
    positional = [*arguments.posonlyargs, *arguments.args][bound:]
    missing = [None] * (len(positional) - len(arguments.defaults))
    pairs = [*zip(positional, [*missing, *arguments.defaults]), *zip(arguments.kwonlyargs, arguments.kw_defaults)]
    options = {}
    for argument, default in pairs:
        if argument.arg in skip:
            continue
        value = inspect.Parameter.empty if default is None else file.value(default)
        hint = Any if argument.annotation is None else file.value(argument.annotation)
        kind = plain(hint)
        if kind is Any and default is not None and value is not None:
            kind = type(value)
        options[argument.arg] = Option(argument.arg, kind, value, find_range(hint), helps.get(argument.arg, ""), owner)
    return options


def _constructor(node: ast.ClassDef) -> ast.FunctionDef:
    for one in node.body:
        if isinstance(one, ast.FunctionDef) and one.name == "__init__":
            return one
    raise _Unreadable(node.name)


def plain(hint: Any) -> Any:
    """An annotation without what `Annotated` adds, at any depth."""
    if get_origin(hint) is Annotated:
        return plain(get_args(hint)[0])
    inside = get_args(hint)
    if not inside or get_origin(hint) is Literal:
        return hint
    new = tuple(plain(one) for one in inside)
    if new == inside:
        return hint
    origin = get_origin(hint)
    return Union[new] if origin is Union else _either(new) if not hasattr(origin, "__class_getitem__") else origin[new]  # noqa: UP007


def _either(kinds: tuple[Any, ...]) -> Any:
    """`int | None` of its parts."""
    whole = kinds[0]
    for kind in kinds[1:]:
        whole = whole | kind
    return whole


class _File:
    """One source file: what its top level defines, and the value of an expression in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.assigned: dict[str, ast.expr] = {}
        self.imported: dict[str, tuple[str, str]] = {}
        self.defined: dict[str, ast.FunctionDef | ast.ClassDef] = {}
        for node in _parse(path, path.stat().st_mtime_ns).body:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                self.defined[node.name] = node
            elif isinstance(node, ast.ImportFrom):
                self.imported |= {alias.asname or alias.name: (self._module(node), alias.name) for alias in node.names}
            elif isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
                self.assigned[node.targets[0].id] = node.value
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
                self.assigned[node.target.id] = node.value

    def definition(self, name: str) -> ast.FunctionDef | ast.ClassDef:
        if name == "tiny()":
            returns = self.definition("tiny").returns  # type: ignore[union-attr]
            name = returns.id if isinstance(returns, ast.Name) else ""
        node = self.defined.get(name)
        if node is None or (isinstance(node, ast.FunctionDef) and not {ast.unparse(one) for one in node.decorator_list} <= TRANSPARENT):
            raise _Unreadable(name)
        return node

    def value(self, node: ast.expr) -> Any:
        """The value of an expression, or _Unreadable."""
        match node:
            case ast.Constant(value=value):
                return value
            case ast.Name(id=name):
                return self.name(name)
            case ast.Tuple(elts=parts):
                return tuple(self.value(part) for part in parts)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -self.value(operand)
            case ast.BinOp(left=left, op=sign, right=right) if type(sign) in OPERATORS:
                return OPERATORS[type(sign)](self.value(left), self.value(right))
            case ast.BinOp(left=ast.Constant(value=int(base)), op=ast.Pow(), right=ast.Constant(value=int(power))) if power < 1000:
                return base**power
            case ast.Subscript(value=kind, slice=inside):
                return self.value(kind)[self.value(inside)]
            case ast.Call(func=function, args=positional, keywords=keywords) if self.value(function) is Range:
                return Range(*map(self.value, positional), **{str(keyword.arg): self.value(keyword.value) for keyword in keywords})
        raise _Unreadable(ast.unparse(node))

    def name(self, name: str) -> Any:
        if name in self.assigned:
            return self.value(self.assigned[name])
        if name in self.imported:
            module, original = self.imported[name]
            if original in KNOWN.get(module, {}):
                return KNOWN[module][original]
            return _File(_source_path(module)).name(original)
        if name in BUILTINS:
            return BUILTINS[name]
        raise _Unreadable(name)

    def _module(self, node: ast.ImportFrom) -> str:
        """The module that an import names; relative ones are known inside the package only."""
        if not node.level:
            return node.module or ""
        package = ("sonde", *self.path.resolve().relative_to(PACKAGE).parent.parts) if self.path.resolve().is_relative_to(PACKAGE) else ()
        return ".".join((*package[: len(package) - node.level + 1], *filter(None, [node.module])))


def _source_path(module: str) -> Path:
    """The file of one of the package's modules."""
    parts = module.split(".")
    path = PACKAGE.joinpath(*parts[1:])
    if parts[0] != "sonde" or not (path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()):
        raise _Unreadable(module)
    return path.with_suffix(".py") if path.with_suffix(".py").is_file() else path / "__init__.py"


@cache
def _parse(path: Path, changed: int) -> ast.Module:
    """The syntax tree of a file as it was at a time of change."""
    return ast.parse(path.read_text(encoding="utf-8-sig"), filename=str(path))
