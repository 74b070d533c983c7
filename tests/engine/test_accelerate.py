"""The folder of fast paths may be deleted: every bit of a run stays the same."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import sonde

PACKAGE = Path(sonde.__file__).parent
PROGRAM = """
import sys
import sonde
from sonde.engine import fast
assert (fast.ReplayedGradient is None) == (fast.quick_step is None) == (sys.argv[2] == "without")
sonde.train("tiny_mlp", run=sys.argv[1], quiet=True, threads=1, steps=60, precision=sys.argv[3])
"""


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_a_run_without_the_folder_has_the_same_bits(tmp_path, precision):
    copy = tmp_path / "copy"
    shutil.copytree(PACKAGE, copy / "sonde", ignore=shutil.ignore_patterns("accelerate", "__pycache__"))
    for name, tree in (("with", PACKAGE.parent), ("without", copy)):
        environment = {**os.environ, "PYTHONPATH": str(tree)}
        command = [sys.executable, "-c", PROGRAM, str(tmp_path / name), name, precision]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240)
        assert done.returncode == 0, done.stderr
    files = [path.relative_to(tmp_path / "with") for path in (tmp_path / "with").glob("checkpoints/*/*.safetensors")]
    assert files
    for file in [*files, Path("metrics.jsonl")]:
        assert (tmp_path / "with" / file).read_bytes() == (tmp_path / "without" / file).read_bytes(), file
