"""Options read from source text are those of the imported function, for everything the package has; what cannot be read is left alone."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

from sonde.core import registry, signatures
from sonde.core.options import Range, options_of

KINDS = {"recipes": "recipe", "lenses": "read", "nn.mixers": "tiny()"}
PLUGINS = [(kind, name) for kind in KINDS for name in registry.names(kind)]


@pytest.mark.parametrize(("kind", "name"), PLUGINS, ids=[f"{kind}-{name}" for kind, name in PLUGINS])
def test_reading_and_importing_agree(kind: str, name: str) -> None:
    module = registry.load(kind, name)
    function = type(module.tiny()) if kind == "nn.mixers" else getattr(module, KINDS[kind])
    declared = signatures.read_signature(registry.folder(kind) / f"{name}.py", KINDS[kind], "owner", skip=("subject", "seed"))
    assert declared is not None, "write its options with types, Annotated, Literal, Range and constants"
    assert declared.options == options_of(function, "owner", skip=("subject", "seed"))
    assert declared.summary == (inspect.getdoc(function) or "").split("\n")[0]


def declared(tmp_path: Path, text: str, name: str = "recipe") -> signatures.Signature | None:
    path = tmp_path / "mine.py"
    path.write_text(text, encoding="utf-8")
    return signatures.read_signature(path, name, skip=("seed",))


def test_what_options_are_written_with(tmp_path: Path) -> None:
    text = '''
from pathlib import Path
from typing import Annotated, Literal
from sonde.core.options import Range as Between
from sonde.recipes.tools.sequence import ModelWidth
MOST = 2 * 3
Share = Annotated[float, Between(0, below=1 << 2)]
def recipe(a: int, b: Share = -0.5, c: Literal["x", 3] = "x", *, d: tuple[int, ...] = (1, MOST), e: Path | None = None,
           f: ModelWidth = 10**2, g=True, h: Annotated[int | None, Between(1)] = None, seed: int = 0):
    """What it is."""
'''
    read = declared(tmp_path, text)
    assert read is not None and read.summary == "What it is."
    assert read.options == options_of(registry.load_file(tmp_path / "mine.py").recipe, skip=("seed",))
    assert read.options["a"].is_required and read.options["b"].range == Range(0, below=4) and read.options["d"].default == (1, 6)


@pytest.mark.parametrize(
    "text",
    [
        "from functools import partial\nrecipe = partial(int)",
        "def recipe(a: int = len('x')): pass",
        "import torch\ndef recipe(a: torch.dtype = torch.float32): pass",
        "from os import sep\ndef recipe(a: str = sep): pass",
        "def recipe(a: nothing = 1): pass",
        "def decorate(f): return f\n@decorate\ndef recipe(a: int = 1): pass",
        "from .neighbor import Width\ndef recipe(a: Width = 1): pass",
        "def recipe(a: int = 10**99999999): pass",
        "def recipe(:",
        "",
    ],
)
def test_what_says_too_little_is_not_guessed(tmp_path: Path, text: str) -> None:
    assert declared(tmp_path, text) is None


def test_nothing_is_run(tmp_path: Path) -> None:
    assert declared(tmp_path, "raise SystemExit('it was imported')\ndef recipe(a: int = 1): pass") is not None


@pytest.mark.parametrize("words", ["train char_lm", "sweep char_lm", "look - lag", "explain gla", "explain resnet", "generate", "atlas"])
def test_no_help_page_imports_torch(words: str) -> None:
    code = f"import sys; from sonde.cli.main import main; main({[*words.split(), '--help']}); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
