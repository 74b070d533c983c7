"""Every option of every command and every kind of option x every way to get it wrong: exit code 2, one line, no trace on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, get_origin

import pytest

from sonde.cli._options import flag
from sonde.core import registry
from sonde.core.options import Option, options_of
from sonde.core.registry import load_file

BASE = {
    "train": ["{mine}"],
    "sweep": ["{mine}", "--lr", "1", "2"],
    "explain": ["mlp"],
    "compare": ["a", "b"],
    "predict": ["a", "b"],
    "look": ["a"],
    "bench": ["mixers", "gla"],
}
FAULTS = {
    "missing": None,
    "empty": "",
    "wrong type": "x1",
    "negative": "-1",
    "huge": "9" * 400,
    "NaN": "nan",
    "unicode": "é\u202e漢",
    "newline": "a\nb",
}
FINE: dict[Any, set[str]] = {Path: {"wrong type", "negative", "NaN", "unicode"}, bool: {"missing"}}
"""faults that are none: nearly everything is a path, and a flag needs no value"""


def kind_of(option: Option) -> Any:
    kind = option.type
    return next((one for one in (Path, bool, int, float, str) if kind in (one, one | None)), get_origin(kind))


TEXTS = {("data", "specials"), ("generate", "stop"), ("hf", "prompt")}
"""options that take any text"""


def fine(command: str, one: Option) -> set[str]:
    """Faults that are none for an option."""
    if (command, one.name) in TEXTS:
        return FAULTS.keys() - {"missing"}
    return FINE.get(kind_of(one), set()) | ({"negative"} if (command, one.name) == ("generate", "seed") else set())


OPTIONS = [
    (command, one, fault)
    for command in registry.names("cli.commands")
    for one in registry.load("cli.commands", command).options()
    for fault in FAULTS
    if fault not in fine(command, one)
]


def test_the_generator_reaches_every_kind_of_option() -> None:
    assert len(OPTIONS) > 100
    assert {kind_of(one) for _, one, _ in OPTIONS} >= {int, float, bool, str, Path, Literal}


def words_for(one: Option, fault: str) -> list[str]:
    value = FAULTS[fault]
    if value is None:
        return [flag(one.name)]
    return [f"{flag(one.name)}={value}"] if one.type is bool else [flag(one.name), value]


def check_refused(answer: Any, here: Path, name: str) -> None:
    assert answer.code == 2, answer
    assert answer.out == "" and answer.err.endswith("\n") and answer.err[:-1].isprintable(), answer.err
    assert name in answer.err and "Traceback" not in answer.err and len(answer.err) < 1000
    assert list(here.iterdir()) == []


@pytest.mark.parametrize("command, one, fault", OPTIONS, ids=[f"{c} {flag(o.name)} {f}" for c, o, f in OPTIONS])
def test_a_wrong_option_is_refused(command: str, one: Option, fault: str, sonde, here: Path, mine: str) -> None:
    words = [word.format(mine=mine) for word in BASE.get(command, [])]
    check_refused(sonde(command, *words, *words_for(one, fault)), here, one.name.replace("_", "-"))


FINE_RECIPE_OPTIONS = {"text": FINE[Path], "bias": FINE[bool], "widths": {"negative", "empty"}}  # any whole numbers, even none
RECIPE_OPTIONS = [
    (name, fault)
    for name in ("width", "lr", "widths", "bias", "way", "text")
    for fault in FAULTS
    if fault not in FINE_RECIPE_OPTIONS.get(name, ())
]


@pytest.mark.parametrize("name, fault", RECIPE_OPTIONS)
def test_a_wrong_recipe_option_is_refused(name: str, fault: str, sonde, here: Path, mine: str) -> None:
    check_refused(sonde("train", mine, *words_for(options_of(load_file(Path(mine)).recipe)[name], fault)), here, name)


@pytest.mark.parametrize(
    "words, message",
    [
        (["train", "no_such"], "no recipe 'no_such'"),
        (["train"], "needs the name of a recipe"),
        (["train", "--lr", "3"], "has no option '--lr'"),
        (["train", "{mine}", "--widht", "3"], "did you mean '--width'?"),
        (["train", "{mine}", "--lr", "1", "--lr", "2"], "--lr twice"),
        (["train", "{mine}", "lr=3"], "unexpected argument 'lr=3'"),
        (["train", "{mine}", "--processes", "3", "--shards", "2"], "3 processes cannot share 2 shards"),
        (["train", "nowhere.py"], "'nowhere.py'"),
        (["train", "a\0b.py"], "without control characters"),
        (["train", "a/" * 2500 + ".py"], "a shorter path"),
        (["train", "--resume"], "no run to resume"),
        (["train", "--resume", "gone"], "no run 'gone'"),
        (["train", "--resume", "gone", "--run", "other"], "not both"),
        (["train", "--resume", "x" * 300], "a shorter path"),
        (["sweep"], "needs the name of a recipe"),
        (["sweep", "{mine}"], "at least one option"),
        (["sweep", "{mine}", "--lr", "1", "-2"], "must be > 0"),
        (["sweep", "{mine}", "--lr", "1", "1.0"], "needs one or more different values"),
        (["sweep", "{mine}", "--seed", "0", "-1"], "must be >= 0"),
        (["sweep", "{mine}", "--widths", "3,x"], "must be a whole number"),
        (["sweep", "{mine}", "--bias", "perhaps"], "must be true or false"),
        (["explain"], "needs the name of a recipe or model"),
        (["explain", "mlpp"], "did you mean 'mlp'?"),
        (["explain", "mlp", "--widths", "3"], "two or more numbers"),
        (["explain", "mlp", "--widths", *["9223372036854775807"] * 3], "cannot be built"),
        (["explain", "mlp", "--activation", "rellu"], "did you mean 'relu'?"),
        (["explain", "mlp", "--input", "7", "9"], "cannot be run on an input of size (7, 9)"),
        (["explain", "mlp", "--input", *["1099511627776"] * 3], "sizes of one example"),
        (["explain", "cnn", "--image", "none"], "choose one with --input"),
        (["look"], "needs a run"),
        (["look", "gone"], "no run 'gone'"),
        (["look", "gone", "confusion"], "no run 'gone'"),
        (["look", "../" * 2000], "a shorter path"),
        (["compare", "gone"], "two runs or more"),
        (["compare", "gone", "far"], "no run 'gone'"),
        (["compare", "gone", "far", "--out", "x.pdf"], "must end in .html"),
        (["predict"], "needs a run and a file"),
        (["predict", "gone", "x.csv"], "no run 'gone'"),
        (["runs", "--under", "gone"], "no folder 'gone'"),
        (["runs", "more"], "unexpected argument 'more'"),
        (["atlas", "CNN-99"], "the atlas has no row or chapter 'CNN-99'"),
        (["atlas", "--jobs", "3"], "needs --check"),
        (["list", "nothing"], "there is no list of 'nothing'"),
        (["no\nsuch\x1b"], "no command 'no\\nsuch\\x1b'"),
    ],
)
def test_a_wrong_word_is_refused(words: list[str], message: str, sonde, here: Path, mine: str) -> None:
    check_refused(sonde(*(word.format(mine=mine) if "{mine}" in word else word for word in words)), here, message)


BROKEN = {
    "syntax": "def recipe(:",
    "no recipe": "x = 1",
    "not a function": "recipe = 3",
    "fails on import": "1 / 0",
    "fails when built": "def recipe():\n    raise KeyError('odd')",
    "returns something else": "def recipe():\n    return 3",
    "annotation unknown": "def recipe(x: Nowhere = 3):\n    pass".replace("def", "from __future__ import annotations\ndef"),
    "an option that is an option": "def recipe(device: str = 'x'):\n    pass",
    "an option without a value": "def recipe(x: int):\n    pass",
    "bytes": "\udcff\udcfe",
}


@pytest.mark.parametrize("fault", BROKEN)
def test_a_broken_recipe_file_is_refused(fault: str, sonde, here: Path, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text(BROKEN[fault], encoding="utf-8", errors="surrogateescape")
    message = "is already an option" if fault == "an option that is an option" else "broken"
    check_refused(sonde("train", str(tmp_path / "broken.py")), here, message)


def test_a_file_that_is_a_folder_or_unreadable_is_refused(sonde, here: Path, tmp_path: Path) -> None:
    (tmp_path / "folder.py").mkdir()
    check_refused(sonde("train", str(tmp_path / "folder.py")), here, "'folder.py'")
