"""The run directory can be read by programs that have no time for torch: standard library only."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from sonde.core import registry

ROOT = Path(__file__).resolve().parents[2]
MODULES = ["sonde.runs", *(f"sonde.runs.{name}" for name in registry.names("runs"))]


def packages_after(code: str) -> set[str]:
    """Packages from outside the standard library that a fresh interpreter has loaded after the code, but for Sonde."""
    tail = "\nimport json, sys\nprint(json.dumps(sorted({name.split('.')[0] for name in sys.modules})))"
    done = subprocess.run([sys.executable, "-I", "-c", f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n{code}{tail}"], capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    return set(json.loads(done.stdout.splitlines()[-1])) - set(sys.stdlib_module_names) - {"sonde"}


@pytest.mark.parametrize("module", MODULES)
def test_a_module_imports_neither_torch_nor_numpy(module: str) -> None:
    assert packages_after(f"import {module}") <= packages_after("")


def test_runs_are_listed_without_torch(tmp_path: Path) -> None:
    (tmp_path / "one" / "checkpoints").mkdir(parents=True)
    lines = "from pathlib import Path", "from sonde.runs import listing", f"for path in listing.folders(Path({str(tmp_path)!r})):"
    code = "\n".join((*lines, "    listing.summarize(path)"))
    assert not packages_after(code) & {"torch", "numpy"}


def test_a_heavy_import_would_be_seen() -> None:
    assert "numpy" in packages_after("import numpy")
