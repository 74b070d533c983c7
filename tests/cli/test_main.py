"""The command `sonde` as a whole: help, errors as words and exit codes, and what it costs to start."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sonde import __version__
from sonde.cli import main as cli
from sonde.core import errors, registry

CODES = {0, 1, 2, 3, 4, 5, 6, 7, 8, 75, 130}
COMMANDS = registry.names("cli.commands")


def test_all_promised_commands_are_there() -> None:
    assert set(COMMANDS) >= {"list", "train", "runs", "explain", "look", "compare", "sweep", "predict", "atlas"}
    assert sorted(cli.commands()) == COMMANDS and next(iter(cli.commands())) == "doctor"
    positions = [registry.load("cli.commands", name).POSITION for name in cli.commands()]
    assert positions == sorted(set(positions)), "two commands have the same position"


@pytest.mark.parametrize("words", [[], ["--help"], ["-h"], ["help"]])
def test_help_names_every_command_on_one_screen(words: list[str], capsys: pytest.CaptureFixture) -> None:
    assert cli.main(words) == 0
    shown = capsys.readouterr().out
    assert all(f"\n  {name} " in shown for name in COMMANDS)
    assert len(shown.splitlines()) <= 30 and max(map(len, shown.splitlines())) <= 100 and "\x1b" not in shown


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself_on_one_screen(name: str, capsys: pytest.CaptureFixture) -> None:
    command = registry.load("cli.commands", name)
    assert cli.main([name, "--help"]) == 0
    shown = capsys.readouterr().out
    assert registry.summary("cli.commands", name) in shown
    assert all(f"  --{one.name.replace('_', '-')} " in shown and one.help for one in command.options())
    assert len(shown.splitlines()) <= 40


def test_version(capsys: pytest.CaptureFixture) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"sonde {__version__}\n"


def broken(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    """Let every command fail with an error."""

    def run(words: list[str]) -> int:
        raise error

    monkeypatch.setattr(registry, "load", lambda *_: SimpleNamespace(run=run))


OURS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.SondeError)]


@pytest.mark.parametrize("kind", OURS)
def test_our_errors_keep_their_exit_code(
    kind: type[errors.SondeError], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    broken(monkeypatch, kind("it broke\x1b[31m", where="here", last_good="step 3", fix="fix it"))
    assert cli.main(["x"]) == kind.exit_code
    shown = capsys.readouterr().err
    assert shown.startswith("error: it broke\\x1b[31m") and "fix it" in shown and "Traceback" not in shown
    assert len(shown.splitlines()) == (1 if kind.one_line else 4)


@pytest.mark.parametrize(
    "error, code, message",
    [
        (ValueError("odd\nthing\x07"), 1, "internal error: ValueError: odd; run again with --debug"),
        (ZeroDivisionError(), 1, "internal error: ZeroDivisionError;"),
        (RecursionError("deep"), 1, "internal error: RecursionError"),
        (SystemExit(0), 1, "internal error: SystemExit"),
        (MemoryError(), 6, "memory ran out"),
        (
            RuntimeError("[enforce] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
            6,
            "you tried to allocate 9 bytes",
        ),
        (RuntimeError("shapes differ"), 1, "internal error: RuntimeError: shapes differ"),
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "runs/a"), 6, "no space left on device\nwhere: runs/a\nto do: free some space"),
        (OSError(errno.EACCES, os.strerror(errno.EACCES), "runs/a"), 6, "permission denied\nwhere: runs/a"),
        (OSError(errno.EROFS, os.strerror(errno.EROFS), "runs/a"), 6, "read-only"),
        (FileNotFoundError(errno.ENOENT, "gone", "x"), 1, "internal error: FileNotFoundError"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_foreign_errors_become_words(error: BaseException, code: int, message: str, monkeypatch, capsys) -> None:
    broken(monkeypatch, error)
    assert cli.main(["x"]) == code
    shown = capsys.readouterr().err
    assert message in shown and "Traceback" not in shown and "\x07" not in shown
    if code == 1:
        assert len(shown.splitlines()) == 1


def test_debug_shows_where(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    broken(monkeypatch, ValueError("odd"))
    assert cli.main(["x", "--debug"]) == 1
    assert "Traceback" in capsys.readouterr().err
    broken(monkeypatch, errors.BadInput("wrong"))
    assert cli.main(["--debug", "x"]) == 2
    assert "Traceback" in capsys.readouterr().err


def sonde(*words: str, **more) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-m", "sonde", *words], capture_output=True, text=True, timeout=120, **more)


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["list"], ["runs"], *([name, "--help"] for name in COMMANDS)])
def test_starting_is_light(words: list[str]) -> None:
    code = "import sys; from sonde.cli.main import main; code = main(sys.argv[1:]); sys.stderr.write(' '.join(sys.modules)); sys.exit(code)"
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    heavy = {"torch", "numpy", "matplotlib", "sklearn", "pandas", "scipy", "optuna", "rich"}
    assert not heavy & set(done.stderr.split())


def test_module_entry_and_exit_code(tmp_path: Path) -> None:
    done = sonde("trian", cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(registry.PACKAGE.parent)})
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "error: no command 'trian'; did you mean 'train'?\n")


def test_a_reader_that_leaves_is_no_error() -> None:
    with subprocess.Popen([sys.executable, "-m", "sonde", "list"], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()  # before the process can write
        assert process.stderr.read() == b""
    assert process.returncode == 1


def test_bytes_that_are_no_text_are_escaped() -> None:
    done = subprocess.run([sys.executable.encode(), b"-m", b"sonde", b"tr\xff\x1bn"], capture_output=True, timeout=60)
    assert done.returncode == 2
    assert done.stderr.isascii() and b"\\udcff\\x1b" in done.stderr and done.stderr.count(b"\n") == 1


def test_a_narrow_encoding_does_not_break_output() -> None:
    done = sonde("list", "data", env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0 and done.stderr == ""


words_of_the_trade = st.sampled_from(
    [
        "--help",
        "list",
        "explain",
        "mlp",
        "cnn",
        "--widths",
        "--input",
        "--debug",
        "--no-norm",
        "--norm",
        "runs",
        "--under",
        "7",
        "-3",
        "1e9",
        "nan",
        "=",
    ]
)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.one_of(words_of_the_trade, st.text(max_size=10)), max_size=6))
def test_no_command_line_ends_in_a_traceback(tmp_path: Path, monkeypatch, capsys, words: list[str]) -> None:
    monkeypatch.chdir(tmp_path)
    if words and words[0] in ("train", "sweep", "atlas", "look", "predict", "compare"):
        words[0] = "list"
    code = cli.main(words)
    shown = capsys.readouterr()
    assert code in CODES - {1}
    assert "internal error" not in shown.err
    assert "--debug" in words or "Traceback" not in shown.err
    assert (code == 0) == (shown.err == "")
    assert list(tmp_path.iterdir()) == []


def test_an_option_with_one_choice_shows_it(capsys: pytest.CaptureFixture) -> None:
    assert cli.main(["generate", "--help"]) == 0
    assert "--weights int8 " in capsys.readouterr().out
