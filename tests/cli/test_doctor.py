"""`sonde doctor`: one screen that is right about versions, kernels and data, whatever is missing."""

from __future__ import annotations

import platform
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from sonde import __version__, kernels
from sonde.kernels import library


def test_one_screen(sonde: Callable, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "sets" / "mnist").mkdir(parents=True)
    monkeypatch.setenv("SONDE_DATA", str(here / "sets"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(here / "cache"))
    answer = sonde("doctor")
    assert answer.code == 0 and not answer.err and len(answer.out.splitlines()) < 30
    lines = {line[2:18].strip(): line[18:].strip() for line in answer.out.splitlines()}
    assert lines["Sonde"].startswith(__version__) and lines["Python"].startswith(platform.python_version())
    assert lines["torch"].startswith(torch.__version__) and torch.backends.cpu.get_cpu_capability() in lines["processor"]
    assert lines["threads"].startswith(str(torch.get_num_threads()))
    assert lines["mnist"] == str(here / "sets" / "mnist") and lines["cifar10"].startswith("not found")
    assert "blobs" in lines["always available"] and "mnist" not in lines["always available"]


@pytest.fixture
def unloaded():
    """Forget which kernels were loaded, before and after."""
    library._load.cache_clear()
    yield
    library._load.cache_clear()


def test_kernels_that_were_not_built(sonde: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "_load", lambda: (None, "they were not built: install a compiler"))
    assert "they were not built: install a compiler" in sonde("doctor").out


@pytest.mark.skipif(not kernels.available(), reason="no compiled kernels here")
def test_kernels_and_how_to_choose_them(unloaded, sonde: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SONDE_KERNELS", "base")
    words = " ".join(sonde("doctor").out.split())
    assert "the base build loaded and used" in words and "SONDE_KERNELS=0 none" in words
    library._load.cache_clear()
    monkeypatch.setenv("SONDE_KERNELS", "bass")
    answer = sonde("doctor")
    assert answer.code == 0 and "SONDE_KERNELS=bass is not a level of the kernels" in " ".join(answer.out.split())


def test_a_broken_machine_is_told_and_no_error(sonde: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SONDE_DATA", "no/such/folder")
    answer = sonde("doctor")
    assert answer.code == 0 and "is not a folder" in answer.out
    code = "import sys; sys.modules['torch'] = None; from sonde.cli.main import main; sys.exit(main(['doctor']))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and not done.stderr and "cannot be loaded" in done.stdout, done.stderr


def test_it_is_in_the_help_and_takes_nothing(sonde: Callable) -> None:
    assert "doctor" in sonde("--help").out
    assert sonde("doctor", "--help").code == 0
    assert sonde("doctor", "me").code == 2
