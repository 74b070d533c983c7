"""Files of version 0.1.0 are rewritten, and old names are refused with the new ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from sonde.cli.commands.upgrade import rewrite
from sonde.cli.main import main
from sonde.core import renamed
from sonde.core.errors import BadInput, nearest
from sonde.core.recipe import Recipe
from sonde.core.registry import load_file

OLD = '''from sonde import Recipe
from sonde.data.catalogue import load
from sonde.models.mlp import MLP
from sonde.objectives.categorical import Categorical
from sonde.optim.build import optimiser


def recipe(width: int = 32, batch: int = 16, lr: float = 1e-2, seed: int = 0) -> Recipe:
    """Zwei Möndchen: optimiser and batch in a text stay."""
    größe = width; made = Recipe(model=lambda: MLP((2, width, 2)), data=lambda: load("moons", seed=seed), batch=batch,
        objective=Categorical(), optimiser=optimiser("adamw", lr=lr), watch="-valid/accuracy", clip=1.0, steps=2)
    return made.replace(evaluate_batch=64)  # batch=1
'''
NEW = '''from sonde import Recipe
from sonde.data.catalog import load
from sonde.models.mlp import MLP
from sonde.objectives.categorical import Categorical
from sonde.optim.build import optimizer


def recipe(width: int = 32, batch: int = 16, lr: float = 1e-2, seed: int = 0) -> Recipe:
    """Zwei Möndchen: optimiser and batch in a text stay."""
    größe = width; made = Recipe(model=lambda: MLP((2, width, 2)), data=lambda: load("moons", seed=seed), batch_size=batch,
        objective=Categorical(), optimizer=optimizer("adamw", lr=lr), monitor="valid/accuracy", mode="max", clip_norm=1.0, steps=2)
    return made.replace(evaluate_batch_size=64)  # batch=1
'''


def test_a_recipe_of_the_first_version_is_rewritten_and_runs(sonde: Callable, tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(OLD, encoding="utf-8")
    assert sonde("upgrade", "--check", path).code == 1 and path.read_text(encoding="utf-8") == OLD
    done = sonde("upgrade", path)
    assert done.code == 0 and "new names in lines 2, 5, 10, 11, 12" in done.out
    assert path.read_text(encoding="utf-8") == NEW
    recipe = load_file(path).recipe()
    assert (recipe.batch_size, recipe.clip_norm, recipe.monitor, recipe.mode) == (16, 1.0, "valid/accuracy", "max")
    assert sonde("upgrade", path).out.endswith("nothing to change\n") and sonde("upgrade", "--check", path).code == 0


def test_names_that_are_old_only_where_they_are_imported() -> None:
    old = "from sonde.lenses._untouched import leaves, untouched\nleaves(1)\nwith untouched():\n    fixed = 1\n"
    new = "from sonde.lenses.tools.readonly import leaf_modules, preserve_state\nleaf_modules(1)\nwith preserve_state():\n    fixed = 1\n"
    assert renamed.in_text(old) and rewrite(old) == new
    assert rewrite("leaves = 1\n") == "leaves = 1\n" and not renamed.in_text("leaves = 1")


def test_a_file_with_old_imports_is_told_how_to_go_on(sonde: Callable, tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(OLD, encoding="utf-8")
    answer = sonde("train", str(path))
    assert answer.code == 2 and answer.err.endswith("it has names of an older version; rewrite it: sonde upgrade mine.py\n")


def test_names_of_a_users_own_stay() -> None:
    text = "batch = 3\nprint(batch, clip(x, watch=1))\nfoo(batch=batch)\n"
    assert rewrite(text) == text


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("from sonde.engine.api import open_run, train", "from sonde import open_run, train"),
        ("from sonde.data.tokeniser import Tokeniser", "from sonde.data.text.tokenizer import Tokenizer"),
        ("from sonde.data import tokeniser", "from sonde.data.text import tokenizer"),
        ("from sonde.data.corpora import kjv  # words", "from sonde.data.text.corpora import kjv  # words"),
        ("import sonde.engine.rundir as r", "import sonde.runs.layout as r"),
    ],
)
def test_a_module_that_moved_is_found_again(old: str, new: str) -> None:
    assert renamed.in_text(old) and rewrite(old) == new == rewrite(new) and not renamed.in_text(new)


def test_a_word_that_is_also_a_module_is_no_old_name() -> None:
    assert not renamed.in_text("from sonde.data.text import pairs, words\napi = sweep(corpus, documents)")


@pytest.mark.parametrize("words", [[], ["nowhere.py"], ["broken.py"]])
def test_what_cannot_be_rewritten_is_named(words: list[str], sonde: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.py").write_text("def f(:\n", encoding="utf-8")
    answer = sonde("upgrade", *words)
    assert answer.code == 2 and answer.err.count("\n") == 1 and (not words or words[0] in answer.err)
    assert (tmp_path / "broken.py").read_text(encoding="utf-8") == "def f(:\n"


@pytest.mark.parametrize(("old", "new"), [("optimiser", "optimizer"), ("batch", "batch_size"), ("clip", "clip_norm"), ("watch", "monitor")])
def test_old_fields_of_a_recipe(old: str, new: str) -> None:
    with pytest.raises(BadInput, match=f"a recipe has no field '{old}'; '{old}' is now '{new}'"):
        Recipe(**{old: None})
    with pytest.raises(BadInput, match=f"'{old}' is now '{new}'"):
        load_file_recipe().replace(**{old: 1})


def load_file_recipe() -> Recipe:
    from sonde.recipes.tiny_mlp import recipe

    return recipe()


def test_old_options_and_plug_ins(sonde: Callable) -> None:
    assert "'--batch' is now '--batch-size'" in sonde("train", "tiny_mlp", "--batch", "3").err
    assert "'neighbours' is now 'neighbors'" in sonde("look", "somewhere", "neighbours").err
    assert nearest("colour", ["width", "color"]) == "'colour' is now 'color'"
    assert nearest("batch", ["width"]).startswith("choose from")


def test_every_new_name_exists() -> None:
    import importlib.util

    for old, new in renamed.MODULES.items():
        assert importlib.util.find_spec(new) and not importlib.util.find_spec(old)


@pytest.mark.parametrize(
    ("recipe", "old"), [("char_lm", "text"), ("subword_lm", "text"), ("names", "file"), ("table", "file"), ("images", "folder")]
)
def test_a_users_files_come_in_by_one_option(recipe: str, old: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", recipe, f"--{old}", "mine"]) == 2
    assert f"'--{old}' is now '--data'" in capsys.readouterr().err
    record = renamed.record({"format": 1, "recipe": {"name": recipe}, "dials": {old: "mine"}, "options": {}})
    assert record["options"] == {"data": "mine"}
