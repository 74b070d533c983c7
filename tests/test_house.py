"""House rules a reader relies on: plug-ins say what they are, nothing names a machine, starting up is cheap."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sonde.core import registry

ROOT = Path(__file__).resolve().parent.parent
REGISTRIES = ("objectives", "optim.rules", "lenses", "recipes", "nn.mixers")
PLUGINS = [(name, plugin) for name in REGISTRIES for plugin in registry.names(name)]
ENTRY = {"recipes": "recipe", "lenses": "read"}
HEAVY = ("torch", "numpy", "matplotlib", "sklearn", "pandas", "scipy", "optuna", "pyarrow")


def functions(registry_name: str, plugin: str) -> set[str]:
    """Names of the functions at the top of a plug-in's file, read by parsing."""
    tree = ast.parse((registry.folder(registry_name) / f"{plugin}.py").read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("registry_name, plugin", PLUGINS)
def test_a_plugin_says_what_it_is(registry_name: str, plugin: str) -> None:
    line = registry.summary(registry_name, plugin)
    assert 10 <= len(line) <= 140, f"the docstring of {plugin} must begin with one line that says what it is"


@pytest.mark.parametrize("registry_name, plugin", [pair for pair in PLUGINS if pair[0] != "recipes"])
def test_a_plugin_ends_with_tiny(registry_name: str, plugin: str) -> None:
    assert "tiny" in functions(registry_name, plugin)


@pytest.mark.parametrize("registry_name, plugin", [pair for pair in PLUGINS if pair[0] in ENTRY])
def test_a_plugin_has_its_entry(registry_name: str, plugin: str) -> None:
    assert ENTRY[registry_name] in functions(registry_name, plugin)


def test_every_module_has_a_docstring() -> None:
    files = [path for path in (ROOT / "sonde").rglob("*.py") if path.name != "__init__.py"]
    assert [str(path.relative_to(ROOT)) for path in files if not registry.first_line(path)] == []


def machine_names(text: str) -> list[str]:
    """Paths of one machine and addresses of package indexes in a text."""
    # Spelled in pieces, so that this file does not find itself.
    folders = "|".join("/" + name + "/[a-z]" for name in ("work", "root", "home", "opt", "Users"))
    hosts = "|".join(a + b for a, b in (("pypi", r"\.org"), ("python", "hosted"), ("download.pytorch", r"\.org"), ("arti", "factory")))
    options = "|".join(a + b for a, b in (("index", "-url"), ("find", "-links"), ("trusted", "-host")))
    return re.findall(rf"(?<![\w.])(?:{folders})|{hosts}|{options}|://[^/\s]*registry", text)


def test_no_file_names_a_machine() -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a git clone")
    matches = {}
    for name in filter(None, listed.stdout.split("\0")):
        path = ROOT / name
        if path.is_file() and b"\0" not in path.read_bytes()[:4096]:
            matches[name] = machine_names(path.read_text(encoding="utf-8", errors="replace"))
    assert {name: names for name, names in matches.items() if names} == {}


def test_machine_names_are_found() -> None:
    assert machine_names("see /" + "work/main and pip --index" + "-url https://pypi" + ".org/simple") != []
    assert machine_names("see docs/work/plan.md, ./root.py, https://example.org/home") == []


def modules_after(code: str) -> set[str]:
    """Names of all modules loaded once a fresh interpreter has run the code."""
    tail = "\nimport sys\nsys.stderr.write('\\nLOADED ' + ' '.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code + tail], capture_output=True, text=True, cwd=ROOT, timeout=120)
    assert done.returncode == 0, done.stderr
    return set(done.stderr.rsplit("LOADED ", 1)[1].split())


def test_import_sonde_is_cheap() -> None:
    before = modules_after("")
    loaded = modules_after("import sonde") - before
    assert not loaded & set(HEAVY)
    assert len(loaded) < 30, sorted(loaded)


@pytest.mark.parametrize("module", ["errors", "registry", "seeds", "options", "files"])
def test_light_core_modules_need_no_torch(module: str) -> None:
    assert not modules_after(f"import sonde.core.{module}") & set(HEAVY)


@pytest.mark.skipif(not (ROOT / "sonde/cli/main.py").is_file(), reason="no command line yet")
@pytest.mark.parametrize("words", [["--help"], ["list"], ["train", "--help"], ["train", "no_such_recipe"]])
def test_help_and_lists_need_no_torch(words: list[str]) -> None:
    code = f"import sys\nsys.argv = ['sonde', *{words!r}]\nfrom sonde.cli.main import main\ntry:\n    main()\nexcept SystemExit:\n    pass"
    assert not modules_after(code) & set(HEAVY)


def test_every_constraint_is_a_plain_pin() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert all(re.fullmatch(r"[A-Za-z0-9_.-]+==[A-Za-z0-9.]+", line) for line in pins)
    assert "torch==2.13.0" in pins and len(pins) == len({line.split("==")[0].lower() for line in pins})


def test_timm_is_installed_with_the_tools_and_never_brings_torchvision() -> None:
    """Tests skip without it, so nobody would notice that they do."""
    pins = (ROOT / "constraints.txt").read_text().splitlines()
    assert any(line.startswith("timm==") for line in pins) and not any(line.startswith(("torchvision", "torchaudio")) for line in pins)
    dev = (ROOT / "Makefile").read_text().split("$(VENV)/.sonde-dev:")[1].split("\n\n")[0]
    assert "$(PIP) --no-deps timm" in dev
    assert "timm" not in (ROOT / "pyproject.toml").read_text(), "an extra would bring torchvision with it"
