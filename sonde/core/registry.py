"""The file system is the registry: plug-ins are files in a folder, listed without importing them.

A registry is a folder of the package, named by its dotted path: "recipes", "lenses", "nn.mixers".  Every file that does
not start with an underscore is one plug-in; the first line of its docstring is its summary.  A user's own file is as good
as one of ours: wherever a name is taken, the path of a file that ends in .py is taken too.

What a file must define depends on its kind: a class named like the file (mixers, objectives, models, optimizer rules;
`class_of` finds it) or a function of a fixed name (`recipe` of a recipe, `read` of a lens; `function_of` finds it).  What
the rest of the system must know about a plug-in beyond that, it declares itself as attributes of that class; they are
described where the kind is defined: `nn.mixers.Mixer`, `core.recipe.Objective`, `optim.rules`.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.util
import inspect
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from . import renamed
from .errors import BadInput, nearest

PACKAGE = Path(__file__).resolve().parent.parent


def folder(registry: str) -> Path:
    """The folder of a registry."""
    return PACKAGE.joinpath(*registry.split("."))


def names(registry: str) -> list[str]:
    """Names in a registry, sorted; nothing is imported."""
    return sorted(path.stem for path in folder(registry).glob("*.py") if not path.stem.startswith("_") and _holds_one(registry, path))


def _holds_one(registry: str, path: Path) -> bool:
    """Whether a file is a plug-in: always, except in `models`, where other files are helpers and a plug-in defines one model class."""
    if registry != "models":
        return True
    kinds = re.findall(r"^class ([A-Za-z]\w*)\(nn\.Module\)", path.read_text(encoding="utf-8"), re.MULTILINE)
    return len(kinds) == 1 or path.stem.replace("_", "") in map(str.lower, kinds)


def path_of(registry: str, name: str) -> Path:
    """The file of a plug-in, by its name in the registry or its path."""
    return Path(name) if is_file(name) else folder(registry) / f"{check(registry, name)}.py"


def summary(registry: str, name: str) -> str:
    """First line of a plug-in's docstring, read by parsing."""
    return first_line(folder(registry) / f"{name}.py")


def constant(registry: str, name: str, constant: str) -> Any:
    """The literal that a plug-in assigns to a name at the top of its file, read by parsing; None where it assigns none."""
    for node in ast.parse((folder(registry) / f"{name}.py").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and any(isinstance(target, ast.Name) and target.id == constant for target in node.targets):
            return ast.literal_eval(node.value)
    return None


def first_line(path: Path) -> str:
    """First docstring line of a Python file, or '' where there is none."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return text.strip().split("\n")[0]


def check(registry: str, name: str) -> str:
    """The name itself if it is in the registry, else an error with the nearest one."""
    known = names(registry)
    if name not in known:
        raise BadInput(f"no {kind_of(registry)} '{name}'", fix=nearest(name, known))
    return name


def kind_of(registry: str) -> str:
    """What one plug-in of a registry is called: 'mixer', 'lens', 'recipe'."""
    return registry.split(".")[-1].removesuffix("s").replace("lense", "lens")


def is_file(name: str | Path) -> bool:
    """Whether a plug-in is given by the path of a file instead of a name."""
    return str(name).endswith(".py")


def label(name: str | Path) -> str:
    """The name of a plug-in as messages and pictures show it: of a file the name without its folder and suffix."""
    return Path(name).stem if is_file(name) else str(name)


def load(registry: str, name: str) -> ModuleType:
    """Import one plug-in: by its name in the registry, or from a user's own file by its path."""
    return load_file(Path(name)) if is_file(name) else importlib.import_module(f"sonde.{registry}.{check(registry, name)}")


def function_of(registry: str, name: str, function: str, write: str) -> Callable[..., Any]:
    """The function that a plug-in of this kind must define; `write` shows how its definition begins."""
    value = getattr(load(registry, name), function, None)
    if not callable(value):
        raise BadInput(f"{_file_of(name)} defines no function '{function}'", fix=f"write: {write}")
    return value


def class_of(registry: str, name: str, base: type) -> type:
    """The class that a plug-in declares: the one named like its file, or the only one that its file defines."""
    kinds = classes_in(load(registry, name), base)
    kind, stem = kind_of(registry), label(name)
    named = [one for one in kinds if one.__name__.lower() == stem.replace("_", "").lower()]
    if len(named or kinds) == 1:
        return (named or kinds)[0]
    if not kinds:
        needs = "has __call__(model, batch)" if base.__module__ == "collections.abc" else f"derives from {base.__name__}"
        raise BadInput(f"{_file_of(name)} defines no {kind}", fix=f"define a class that {needs}, named like the file")
    listed = ", ".join(one.__name__ for one in kinds)
    raise BadInput(f"{_file_of(name)} defines {len(kinds)} classes that could be the {kind}: {listed}", fix="name one like the file")


def classes_in(module: ModuleType, base: type) -> list[type]:
    """Complete classes of this base that a module itself defines; names that begin with an underscore are private."""
    own = (one for one in vars(module).values() if inspect.isclass(one) and one.__module__ == module.__name__)
    public = dict.fromkeys(one for one in own if not one.__name__.startswith("_"))
    return [one for one in public if issubclass(one, base) and not inspect.isabstract(one)]


def parse(text: str, kind: str) -> tuple[str, dict[str, Any]]:
    """A plug-in as a user types it, with options after its name or path: 'gla heads=8', './my mixers/fade.py heads=8'."""
    match = re.match(r"\s*(\S.*?\.py)(?:\s+|$)(.*)", text, re.DOTALL)
    name, *words = [match[1], *match[2].split()] if match else text.split() or [""]
    options: dict[str, Any] = {}
    for word in words:
        option, equals, value = word.partition("=")
        if not (option and equals and value):
            raise BadInput(f"'{word}' after {kind} '{name}' is not an option", where=f"{kind} '{text}'", fix=f"write '{name} option=value'")
        try:
            options[option] = json.loads(value)
        except (ValueError, RecursionError):
            options[option] = value
    return name, options


def absolute(value: Any) -> Any:
    """An option that names a plug-in by the path of a file, with that path made absolute; anything else as it is."""
    match = re.match(r"\s*(\S.*?\.py)(?=\s|$)", value) if isinstance(value, str) else None
    try:
        there = match is not None and Path(match[1]).is_file()
    except (OSError, ValueError):
        there = False
    return f"{Path(match[1]).absolute()}{value[match.end() :]}" if match is not None and there else value


def _file_of(name: str) -> str:
    return Path(name).name if is_file(name) else f"{name}.py"


def attribute(module: str, name: str) -> Any:
    """A name from a module of the package, imported when it is first used: for the `__getattr__` of an `__init__.py`."""
    return getattr(importlib.import_module(module), name)


def load_file(path: Path) -> ModuleType:
    """Import a user's own file.  Its folder joins sys.path, so it may import its neighbors."""
    try:
        path = path.resolve()
        there = path.is_file()
    except (OSError, RuntimeError, ValueError):  # a name too long, links in a circle, a zero byte
        there = False
    if not there or path.suffix != ".py":
        raise BadInput(f"no Python file '{path.name}' in {path.parent}", fix="give the path of a file that ends in .py")
    try:
        source = path.read_text(encoding="utf-8-sig")
        compile(source, str(path), "exec")
    except (SyntaxError, ValueError, OSError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None)
        raise BadInput(
            f"{path.name} is not a readable Python file: {error}", where=f"line {line}" if line else "", fix="fix the file"
        ) from error
    # One module per path and content: an edited file is a new module, the same file is loaded once.
    name = f"sonde_user_{path.stem}_{hashlib.sha256(f'{path}|{source}'.encode()).hexdigest()[:12]}"
    if name in sys.modules:
        return sys.modules[name]
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # a file that calls sys.exit must not end the command as if all were well
        del sys.modules[name]
        fix = f"it has names of an older version; rewrite it: sonde upgrade {path.name}" if renamed.in_text(source) else "fix the file"
        raise BadInput(f"{path.name} failed while being imported: {type(error).__name__}: {error}", fix=fix) from error
    return module
