"""A checkout of an older revision beside the present one, with its kernels built."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def worktree(revision: str, folder: Path) -> Path:
    """A checkout of a revision with its kernels built; one that is there already is used again."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short=10", f"{revision}^{{commit}}"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()
    tree = folder / commit
    if not (tree / ".built").exists():
        if not tree.exists():
            subprocess.run(["git", "worktree", "add", "--detach", "--force", str(tree), commit], cwd=ROOT, check=True, capture_output=True)
        subprocess.run([sys.executable, "setup.py", "-q", "build_ext", "--inplace"], cwd=tree, check=True, capture_output=True)
        (tree / ".built").touch()
    return tree
