"""The registry: plug-ins are files, listed without importing, loaded by name, and a user's file gets a readable answer."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sonde.core import registry
from sonde.core.errors import BadInput


@pytest.fixture
def pretend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with one registry; importing its files fails, so a listing that imports is caught."""
    folder = tmp_path / "recipes"
    folder.mkdir()
    for name in ("digits_cnn", "cheese_lm", "_helper", "__init__"):
        (folder / f"{name}.py").write_text(f'"""What {name} is.\n\nMore.\n"""\nraise RuntimeError("imported")\n')
    (folder / "notes.txt").write_text("not a plug-in")
    monkeypatch.setattr(registry, "PACKAGE", tmp_path)
    return folder


def test_names_and_summaries_are_read_without_importing(pretend: Path) -> None:
    assert registry.names("recipes") == ["cheese_lm", "digits_cnn"]
    assert registry.summary("recipes", "cheese_lm") == "What cheese_lm is."
    assert not any(name.startswith("sonde.recipes.cheese_lm") for name in sys.modules)


def test_a_file_without_a_docstring_has_no_summary(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\n")
    assert registry.first_line(tmp_path / "a.py") == ""


@pytest.mark.parametrize(
    "place, name, message",
    [
        ("recipes", "digit_cnn", "no recipe 'digit_cnn'; did you mean 'digits_cnn'?"),
        ("recipes", "zzz", "no recipe 'zzz'; choose from cheese_lm, digits_cnn"),
        ("lenses", "x", "no lens 'x'; there are none"),
        ("nn.mixers", "x", "no mixer 'x'; there are none"),
    ],
)
def test_a_wrong_name_gets_the_nearest(pretend: Path, place: str, name: str, message: str) -> None:
    with pytest.raises(BadInput) as caught:
        registry.load(place, name)
    assert str(caught.value) == message


@given(st.text())
def test_any_name_is_known_or_bad_input(name: str) -> None:
    try:
        assert registry.check("recipes", name) in registry.names("recipes")
    except BadInput as error:
        assert "\n" not in str(error)


def test_helpers_and_paths_are_no_names(pretend: Path) -> None:
    for name in ("_helper", "__init__", "../recipes/cheese_lm", "cheese_lm.py", ""):
        with pytest.raises(BadInput):
            registry.check("recipes", name)


# ---------------------------------------------------------------- a user's own file


def test_a_users_file_is_loaded_with_its_neighbors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "neighbor_of_mine.py").write_text("width = 7\n")
    mine = tmp_path / "mine.py"
    mine.write_text("\ufefffrom neighbor_of_mine import width\nmade = []\n", encoding="utf-8")  # an editor's byte-order mark is no fault
    module = registry.load_file(mine)
    assert module.width == 7 and registry.load_file(tmp_path / "." / "mine.py") is module
    mine.write_text("width = 8\n")
    assert registry.load_file(mine).width == 8


@pytest.mark.parametrize(
    "text, message",
    [
        (b"def recipe(:\n", "not a readable Python file"),
        (b"x = 1\n\xff\xfe", "not a readable Python file"),
        (b"x = '\0'", "not a readable Python file"),
        (b"import no_such_package\n", "ModuleNotFoundError: No module named 'no_such_package'"),
        (b"1 / 0\n", "ZeroDivisionError"),
        (b"import sys\nsys.exit(0)\n", "SystemExit"),
        (b"x = " + b"(" * 500 + b")" * 500, "not a readable Python file"),
    ],
)
def test_a_faulty_file_is_named_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: bytes, message: str) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "mine.py").write_bytes(text)
    with pytest.raises(BadInput) as caught:
        registry.load_file(tmp_path / "mine.py")
    assert message in str(caught.value) and "mine.py" in str(caught.value) and "\n" not in str(caught.value)
    assert not any(name.startswith("sonde_user_mine") and sys.modules[name].__file__ == str(tmp_path / "mine.py") for name in sys.modules)


def test_a_syntax_error_is_placed(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("x = 1\ny = (\n")
    with pytest.raises(BadInput, match="line 2"):
        registry.load_file(tmp_path / "mine.py")


@pytest.mark.parametrize("name", ["nothing.py", "folder.py", "mine.txt", "a\0b.py", "x" * 300 + ".py", "loop.py", ""])
def test_what_is_no_python_file_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder.py").mkdir()
    (tmp_path / "mine.txt").write_text("x = 1\n")
    (tmp_path / "loop.py").symlink_to(tmp_path / "loop.py")
    with pytest.raises(BadInput, match="no Python file .*; give the path of a file that ends in .py"):
        registry.load_file(tmp_path / name)
