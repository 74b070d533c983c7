"""The order of the house: a folder imports only folders above it, and nobody uses a tool that is not safe.

Checked by parsing, so nothing is imported and a wrong line is named with its file and number.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "sonde"

# From the top of the house to the bottom.
HOUSE = ["core", "runs", "data", "kernels", "nn", "models", "objectives", "gradients", "optim", "engine", "generate", "rl", "estimators"]
HOUSE += ["lenses", "report", "recipes", "api", "atlas", "serve", "lab", "testing", "cli"]
ALONE = {"runs", "data", "nn", "objectives", "gradients", "optim"}
"""Siblings that can each be read and taught alone: they know core (and the kernels that speed them up), nothing else."""
ON_DEMAND = {"cli", "lab"}
"""These name everything and load it late: at the top of a file they may import only their own folder and what is light."""
LIGHT = ("sonde.core", "sonde.runs", "sonde.report.terminal")
"""what costs a command line next to nothing"""
IMPORTERS = {"import_module", "__import__", "exec_module"}
"""functions that import a module named by a string; core/registry is the only one to call them"""

PICKLES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
CLOCKS = {"time.time", "time.time_ns", "datetime.now", "datetime.utcnow", "datetime.today", "date.today"}
CLOCK_OWNER = "runs/clock.py"
NEVER_CALLED = {
    "eval": "runs text as code",
    "exec": "runs text as code",
    "torch.load": "unpickles; read safetensors with sonde.core.tensors",
    "torch.save": "pickles; write safetensors with sonde.core.tensors",
    "yaml.load": "builds objects",
    "yaml.unsafe_load": "builds objects",
    "pandas.read_pickle": "unpickles",
    "pd.read_pickle": "unpickles",
}


def allowed(importer: str, imported: str) -> bool:
    """May code in folder `importer` import from folder `imported`?"""
    if importer == imported or imported == "core":
        return True
    if importer in ON_DEMAND:
        return True
    if importer in ALONE:
        return imported == "kernels" and HOUSE.index("kernels") < HOUSE.index(importer)
    return HOUSE.index(imported) < HOUSE.index(importer)


def walk(tree: ast.AST, late: bool = False) -> Iterator[tuple[ast.AST, bool]]:
    """Every node below `tree`, with whether it runs late: inside a function, or only for the type checker."""
    for node in ast.iter_child_nodes(tree):
        inside = late or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            inside = True
        yield node, inside
        yield from walk(node, inside)


def imported_modules(node: ast.AST, home: tuple[str, ...]) -> list[str]:
    """Dotted names a node imports, relative imports resolved against `home`, the package of the file."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        base = ".".join(home[: len(home) - node.level + 1]) if node.level else ""
        module = ".".join(part for part in (base, node.module) if part)
        # `from sonde import lenses` names a folder; `from sonde.lenses import x` names one already.
        return [f"{module}.{alias.name}" for alias in node.names] if module == "sonde" else [module]
    return []


def layer_faults(package: Path) -> list[str]:
    """Imports against the order of the house."""
    faults = []
    for path, inside, tree in parsed(package):
        if len(inside) == 1:
            continue  # sonde/__init__.py and __main__.py name everything and load it on demand
        folder = inside[0]
        home = ("sonde", *inside[:-1])
        for node, late in walk(tree):
            for module in imported_modules(node, home):
                parts = module.split(".")
                if parts[0] != "sonde" or len(parts) < 2 or not (package / parts[1]).is_dir():
                    continue
                place = f"{path}:{node.lineno}"
                if folder not in HOUSE or parts[1] not in HOUSE:
                    faults.append(f"{place}: '{folder}' or '{parts[1]}' is no folder of the house")
                elif not allowed(folder, parts[1]):
                    faults.append(f"{place}: {folder} must not import {module}")
                elif (
                    folder in ON_DEMAND
                    and not late
                    and parts[1] != folder
                    and not f"{module}.".startswith(tuple(f"{one}." for one in LIGHT))
                ):
                    faults.append(f"{place}: {folder} must import {module} inside the function that needs it")
    return faults


def private_faults(package: Path) -> list[str]:
    """Imports of another room's `_x`, be it a module or a name in one."""
    faults = []
    for path, inside, tree in parsed(package):
        home = ("sonde", *inside[:-1])
        for node, _ in walk(tree):
            for module in imported_names(node, home):
                parts = module.split(".")
                if parts[0] == "sonde" and len(parts) > 2 and parts[1] != inside[0] and any(_private(part) for part in parts[2:]):
                    faults.append(f"{path}:{node.lineno}: {module} is private to {parts[1]}")
    return faults


def imported_names(node: ast.AST, home: tuple[str, ...]) -> list[str]:
    """Dotted names a node imports, with what it takes out of a module."""
    if not isinstance(node, ast.ImportFrom):
        return imported_modules(node, home)
    base = ".".join(home[: len(home) - node.level + 1]) if node.level else ""
    module = ".".join(part for part in (base, node.module) if part)
    return [f"{module}.{alias.name}" for alias in node.names]


def _private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def string_faults(package: Path) -> list[str]:
    """Imports of a module named by a string: nothing that reads imports sees them, so only core/registry may.

    `registry.attribute` imports by a string too; it serves the lazy names of an `__init__.py`.
    """
    faults = []
    for path, inside, tree in parsed(package):
        if inside == ("core", "registry.py"):
            continue
        for node, _ in walk(tree):
            names = [alias.name for alias in node.names] if isinstance(node, ast.ImportFrom) else []
            name = getattr(node, "attr", getattr(node, "id", "")) if isinstance(node, (ast.Attribute, ast.Name)) else ""
            wrong = IMPORTERS & {name, *names}
            if name == "attribute" and ast.unparse(node) == "registry.attribute" and inside[-1] != "__init__.py":
                wrong = {"registry.attribute"}
            faults += [f"{path}:{node.lineno}: {one} imports by a string; use an import, or registry.load for a plug-in" for one in wrong]
    return faults


def tool_faults(package: Path) -> list[str]:
    """Uses of what the house rules forbid: pickles, text run as code, unchecked array files, the wall clock."""
    faults = []
    for path, inside, tree in parsed(package):
        for node, _ in walk(tree):
            place = f"{path}:{getattr(node, 'lineno', 0)}"
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            faults += [f"{place}: imports {name}, which can run what it reads" for name in names if name.split(".")[0] in PICKLES]
            if isinstance(node, ast.ImportFrom) and node.module == "time":
                faults += [f"{place}: write time.{alias.name} in full" for alias in node.names if alias.name in ("time", "time_ns")]
            if isinstance(node, ast.Attribute) and "/".join(inside) != CLOCK_OWNER:
                name = ".".join(ast.unparse(node).split(".")[-2:])
                if name in CLOCKS:
                    faults.append(f"{place}: {name} jumps; durations use time.monotonic, the wall clock belongs to {CLOCK_OWNER}")
            if isinstance(node, ast.Call):
                faults += [f"{place}: {fault}" for fault in call_faults(node)]
    return faults


def call_faults(call: ast.Call) -> Iterator[str]:
    """What is wrong with one call."""
    name = ast.unparse(call.func)
    if name in NEVER_CALLED:
        yield f"{name} {NEVER_CALLED[name]}"
    if name in ("np.load", "numpy.load"):
        keywords = {word.arg: word.value for word in call.keywords}
        safe = keywords.get("allow_pickle")
        if not (isinstance(safe, ast.Constant) and safe.value is False):
            yield "np.load must say allow_pickle=False"


def parsed(package: Path) -> Iterator[tuple[Path, tuple[str, ...], ast.Module]]:
    """Each file of the package: its path, its path inside the package as parts, its syntax tree."""
    for path in sorted(package.rglob("*.py")):
        yield path, path.relative_to(package).parts, ast.parse(path.read_text(encoding="utf-8"))


def test_imports_point_up_the_house() -> None:
    assert layer_faults(PACKAGE) == []


def test_no_room_imports_what_is_private_to_another() -> None:
    assert private_faults(PACKAGE) == []


def test_no_import_by_string_but_in_the_registry() -> None:
    assert string_faults(PACKAGE) == []


def test_no_unsafe_tools() -> None:
    assert tool_faults(PACKAGE) == []


def test_every_folder_has_its_place() -> None:
    folders = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert folders <= set(HOUSE) and HOUSE.index("runs") == 1 and HOUSE.index("generate") < HOUSE.index("rl")
    assert HOUSE.index("lenses") < HOUSE.index("report") < HOUSE.index("recipes") < HOUSE.index("api") < HOUSE.index("atlas")


def house(tmp_path: Path, file: str, text: str) -> Path:
    """A package like ours with every folder and one file of interest."""
    package = tmp_path / "sonde"
    for name in HOUSE:
        (package / name).mkdir(parents=True)
        (package / name / "__init__.py").touch()
    (package / file).parent.mkdir(parents=True, exist_ok=True)
    (package / file).write_text(text)
    return package


@pytest.mark.parametrize(
    "file, text",
    [
        ("core/a.py", "from sonde.engine import trainer"),
        ("data/a.py", "from sonde.nn.norms import Norm"),
        ("optim/a.py", "import sonde.data.order"),
        ("objectives/a.py", "from ..models import mlp"),
        ("nn/mixers/a.py", "from ...objectives import gaussian"),
        ("nn/mixers/a.py", "def f():\n    from sonde import engine"),
        ("engine/a.py", "from ..report.draw import draw"),
        ("engine/a.py", "from ..api.run import Run"),
        ("lenses/a.py", "from ..report.draw import draw"),
        ("runs/a.py", "from ..engine.progress import Progress"),
        ("recipes/a.py", "from ..api.training import train"),
        ("models/a.py", "if True:\n    class A:\n        from sonde.recipes import digits"),
        ("cli/commands/a.py", "from sonde.api.training import train"),
        ("cli/a.py", "from ..lenses import curves"),
    ],
)
def test_a_wrong_way_import_is_caught(tmp_path: Path, file: str, text: str) -> None:
    faults = layer_faults(house(tmp_path, file, text))
    assert len(faults) == 1 and file in faults[0]


@pytest.mark.parametrize(
    "file, text",
    [
        ("data/a.py", "from ..core.batch import Batch\nfrom .order import order"),
        ("nn/mixers/a.py", "from ...kernels import scan\nfrom ..norms import Norm\nfrom . import b"),
        ("engine/a.py", "from sonde.gradients.mean import gradient\nimport torch"),
        ("recipes/a.py", "from sonde.data import catalog\nfrom sonde.engine import trainer"),
        ("cli/commands/a.py", "from ...core import registry\nfrom .. import main\ndef run():\n    from ...api.training import train"),
        ("cli/a.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from sonde.api.run import Run"),
    ],
)
def test_a_right_way_import_passes(tmp_path: Path, file: str, text: str) -> None:
    assert layer_faults(house(tmp_path, file, text)) == []


@pytest.mark.parametrize(
    "file, text",
    [
        ("atlas/a.py", "from ..lenses._x import draw"),
        ("atlas/a.py", "from ..lenses import _x"),
        ("cli/a.py", "def run():\n    from ..atlas import _x as x"),
        ("lenses/a.py", "import sonde.nn.mixers._x"),
        ("api/a.py", "from ..engine.execute import _finish"),
    ],
)
def test_an_import_of_what_is_private_is_caught(tmp_path: Path, file: str, text: str) -> None:
    faults = private_faults(house(tmp_path, file, text))
    assert len(faults) == 1 and file in faults[0]


@pytest.mark.parametrize(
    "file, text",
    [
        ("lenses/a.py", "from ._x import draw\nfrom .tools import y\nfrom .curves import _line"),
        ("nn/mixers/a.py", "from .._x import draw\nfrom . import _y"),
        ("atlas/a.py", "from __future__ import annotations\nfrom .. import __version__\nimport torch._dynamo"),
    ],
)
def test_what_is_private_may_be_used_at_home(tmp_path: Path, file: str, text: str) -> None:
    assert private_faults(house(tmp_path, file, text)) == []


@pytest.mark.parametrize(
    "file, text",
    [
        ("engine/a.py", "import importlib\nimportlib.import_module('sonde.lenses.curves')"),
        ("engine/a.py", "from importlib import import_module"),
        ("atlas/a.py", "def load(name):\n    return __import__(f'sonde.atlas.{name}')"),
        ("engine/a.py", "from ..core import registry\nregistry.attribute('sonde.lenses.curves', 'read')"),
    ],
)
def test_an_import_by_string_is_caught(tmp_path: Path, file: str, text: str) -> None:
    faults = string_faults(house(tmp_path, file, text))
    assert len(faults) == 1 and file in faults[0]


@pytest.mark.parametrize(
    "file, text",
    [
        ("core/registry.py", "import importlib\nimportlib.import_module('sonde.lenses.curves')"),
        ("generate/__init__.py", "from ..core import registry\nregistry.attribute('sonde.generate.sample', 'steps')"),
        ("api/a.py", "from ..core import registry\nregistry.load('lenses', 'curves')"),
    ],
)
def test_the_registry_may_import_by_string(tmp_path: Path, file: str, text: str) -> None:
    assert string_faults(house(tmp_path, file, text)) == []


@pytest.mark.parametrize(
    "text",
    [
        "import pickle",
        "from joblib import load",
        "import torch\ntorch.load('x')",
        "eval('1')",
        "import yaml\nyaml.load('x')",
        "import numpy as np\nnp.load('x')",
        "import numpy as np\nnp.load('x', allow_pickle=True)",
        "import time\nstart = time.time()",
        "import time\nclock = time.time",
        "from time import time",
        "import datetime\ndatetime.datetime.now()",
    ],
)
def test_an_unsafe_tool_is_caught(tmp_path: Path, text: str) -> None:
    assert len(tool_faults(house(tmp_path, "data/a.py", text))) == 1


@pytest.mark.parametrize(
    "file, text",
    [
        ("runs/clock.py", "import time\nnow = time.time()"),
        ("data/a.py", "import time\nstart = time.monotonic() + time.perf_counter()"),
        ("data/a.py", "import numpy as np\nnp.load('x', allow_pickle=False)"),
        ("data/a.py", "model.eval()\nsession.exec('x')"),
    ],
)
def test_a_safe_tool_passes(tmp_path: Path, file: str, text: str) -> None:
    assert tool_faults(house(tmp_path, file, text)) == []
