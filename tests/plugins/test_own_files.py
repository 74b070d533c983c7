"""A mixer, lens, objective or data set in a user's own file works wherever a name does; a wrong file is answered in one line."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import sonde
from sonde.cli.main import main
from sonde.core import registry
from sonde.core.errors import BadInput, SondeError
from sonde.data.catalog import load
from sonde.models.heads import head, mismatch, objective_of
from sonde.models.language_model import mixer_of
from sonde.nn.mixers import mixer_class

FADE = '''"""A running mean that fades."""
from typing import final

import torch
from torch import nn

from sonde.nn.mixers import Mixer


@final
class Fade(Mixer):
    """s = share s + x.

    Args:
        width: numbers per token
        share: what is kept
    """

    no_decay = ("table",)

    def __init__(self, width: int = 6, share: float = 0.5) -> None:
        super().__init__()
        self.width, self.share, self.out = width, share, nn.Linear(width, width)
        self.table = nn.Parameter(torch.ones(1, width))

    def forms(self):
        return ("step",)

    def auto(self, length):
        return "step", "the only one"

    def mix(self, x, state, lengths):
        s, outs = torch.zeros_like(x[:, 0]) if state is None else state["s"], []
        for t, now in enumerate(x.unbind(1)):
            new = self.share * s + now * self.table
            s = new if lengths is None else torch.where((t < lengths).unsqueeze(1), new, s)
            outs.append(self.out(s))
        return torch.stack(outs, 1), {"s": s}


def tiny():
    return Fade()
'''
HUBER = '''"""Absolute error."""
from typing import final

import torch
from torch import nn

from sonde.core.batch import Batch
from sonde.core.terms import Terms


@final
class Far:
    """y is any real number.

    Args:
        power: of the error
    """

    tasks = ("real",)

    def __init__(self, power: float = 1.0) -> None:
        self.power = power

    def __call__(self, model, batch):
        return Terms(nll=((model(batch.x).flatten() - batch.y.flatten()).abs().pow(self.power).sum(), batch.y.numel()))


def tiny():
    x = torch.linspace(-1, 1, 21).reshape(7, 3)
    return Far(), nn.Linear(3, 1), Batch(x=x, y=x[:, 0])
'''
LENS = '''"""The mean of each input."""
from sonde.core.reading import Bars, Subject
from sonde.lenses.tools.readonly import guard, no_model


def why_not(subject):
    return no_model(subject)


@guard
def read(subject: Subject, most: int = 3) -> Bars:
    """Means.

    Args:
        most: how many
    """
    return Bars("Means", {"mean": subject.batch.x.float().flatten(1).mean(0)[:most]}, axes=["input"], note="Measured.")
'''
DATA = '''"""Small squares."""
import torch

from sonde.core.batch import Data
from sonde.data.catalog import load


def squares(seed: int = 0, standardize: bool = True) -> Data:
    """Digits under another name."""
    from dataclasses import replace

    return replace(load("digits", seed=seed, standardize=standardize), name="squares")
'''


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in {"fade": FADE, "far": HUBER, "means": LENS, "squares": DATA}.items():
        (tmp_path / f"{name}.py").write_text(text)
    (tmp_path / "a b").mkdir()
    (tmp_path / "a b" / "fade.py").write_text(FADE)
    rows = [f"{a},{a * a}" for a in range(-20, 20)]
    (tmp_path / "table.csv").write_text("a,b\n" + "\n".join(rows) + "\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_mixer_is_made_with_its_options(folder: Path) -> None:
    for text in ("./fade.py share=0.25", "a b/fade.py share=0.25", f"{folder}/fade.py  share=0.25", "fade.py share=0.25"):
        fade = mixer_of(text, 4)
        assert type(fade).__name__ == "Fade" and fade.share == 0.25 and fade.width == 4
    assert mixer_class("./fade.py") is type(mixer_of("fade.py", 3))


def test_a_mixer_trains_is_looked_at_and_its_run_opens_from_elsewhere(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    words = ["--width", "8", "--depth", "1", "--steps", "2", "--length", "16", "--n", "50"]
    assert main(["train", "copying", "--mixer", "./fade.py share=0.25", *words[:6], "--run", "run", "--quiet"]) == 0
    assert main(["look", "run", "./means.py", "--most", "2"]) == 0
    assert "Means" in capsys.readouterr().out and (folder / "run/figures/means.png").exists()
    monkeypatch.chdir(folder / "a b")
    run = sonde.open_run(folder / "run")
    assert any(type(part).__name__ == "Fade" for part in run.model().modules())
    assert [reading.title for reading in run.look(str(folder / "means.py"), most=1)] == ["Means"]


def test_what_a_mixer_declares_is_used(folder: Path) -> None:
    from sonde.optim.build import optimizer

    rule, mix = optimizer("adamw", lr=1e-3, weight_decay=0.1), mixer_of("./fade.py", 4)
    assert not rule.decays("mixer.table", mix.table, mix) and rule.decays("mixer.out.weight", mix.out.weight, mix.out)


def test_bench_and_explain(folder: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(["bench", "mixers", "./fade.py share=0.1", "rnn", "--lengths", "4", "--width", "8"]) == 0
    shown = capsys.readouterr().out
    assert "\nfade " in shown and "\nrnn " in shown
    assert main(["explain", "./fade.py", "--width", "8", "--share", "0.1", "--input", "5"]) == 0
    assert "mixer 'fade'" in capsys.readouterr().out
    assert main(["explain", "./squares.py"]) == 2
    assert "squares.py defines no recipe, mixer or model" in capsys.readouterr().err


def test_an_objective(folder: Path) -> None:
    assert objective_of("./far.py power=2").power == 2 and objective_of("far.py", classes=3).power == 1
    assert mismatch("real", "identity", "./far.py") == "" and "'far' is not a likelihood of binary" in mismatch(
        "binary", "identity", "./far.py"
    )
    assert type(head("real", 1, objective="./far.py").likelihood()).__name__ == "Far"
    run = sonde.train("table", data="table.csv", target="b", objective="./far.py power=1.5", epochs=1, run="run", quiet=True)
    assert run.recipe.objective.power == 1.5


def test_a_data_set(folder: Path) -> None:
    data = load("./squares.py", seed=3, standardize=False)
    assert data.name == "squares" and torch.equal(data.train[:2].x, load("digits", seed=3, standardize=False).train[:2].x)
    run = sonde.train("autoencoder", data="./squares.py", epochs=0.01, run="run", quiet=True)
    assert run.info["about_data"]["name"] == "squares" and run.info["options"]["data"] == str(folder / "squares.py")
    with pytest.raises(BadInput, match="data set 'squares' has no option 'noise'"):
        load("./squares.py", noise=1)


TWO = "from sonde.nn.mixers import Mixer\n" + FADE.replace("Fade", "A") + FADE.replace("Fade", "B")
WRONG = {
    "missing": (None, "no Python file 'mine.py'"),
    "broken": ("def (", "not a readable Python file"),
    "raises": ("1 / 0", "failed while being imported: ZeroDivisionError"),
    "exits": ("import sys; sys.exit(0)", "failed while being imported: SystemExit"),
    "nothing": ("x = 1", "mine.py defines no "),
}


@pytest.mark.parametrize("case", WRONG)
@pytest.mark.parametrize("kind", ["mixer", "objective", "lens", "data", "recipe"])
def test_a_wrong_file_is_answered_in_one_line(folder: Path, kind: str, case: str, capsys: pytest.CaptureFixture) -> None:
    text, message = WRONG[case]
    if text is not None:
        (folder / "mine.py").write_text(text)
    words = {
        "mixer": ["train", "copying", "--mixer", "./mine.py", "--quiet"],
        "objective": ["train", "table", "--data", "table.csv", "--target", "b", "--objective", "./mine.py", "--quiet"],
        "lens": ["look", "-", "./mine.py"],
        "data": ["train", "autoencoder", "--data", "./mine.py", "--quiet"],
        "recipe": ["train", "./mine.py"],
    }[kind]
    assert main(words) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1, error


def test_two_in_a_file_and_a_wrong_signature(folder: Path, capsys: pytest.CaptureFixture) -> None:
    (folder / "mine.py").write_text(TWO)
    with pytest.raises(BadInput, match="mine.py defines 2 classes that could be the mixer: A, B; name one like the file"):
        mixer_of("./mine.py", 4)
    (folder / "mine.py").write_text(TWO.replace("class B(", "class Mine("))
    assert mixer_class("./mine.py").__name__ == "Mine"
    (folder / "mine.py").write_text(DATA + DATA.replace("squares", "circles"))
    with pytest.raises(BadInput, match="mine.py defines 2 data sets: squares, circles"):
        load("./mine.py")
    (folder / "mine.py").write_text(LENS.replace("subject: Subject, most", "thing: Subject, most"))
    assert main(["look", "-", "./mine.py"]) == 2
    assert "the first argument of 'read' of lens 'mine' is not 'subject'" in capsys.readouterr().err
    (folder / "mine.py").write_text(
        FADE.replace("Fade", "Mine").replace("width: int = 6, share", "size: int = 6, share").replace("width = width", "width = size")
    )
    with pytest.raises(BadInput, match="mixer 'mine' has no option 'width'"):
        mixer_of("./mine.py", 4)
    (folder / "mine.py").write_text(FADE.replace("share: float", "share: Flout"))
    with pytest.raises(BadInput, match="failed while being imported|annotation that cannot be read"):
        mixer_of("./mine.py", 4)


@given(st.text(max_size=60))
def test_any_text_is_a_mixer_or_bad_input(text: str) -> None:
    for spec in (text, f"{text}.py", f"gla {text}", f"./{text}.py heads=2"):
        try:
            mixer_of(spec, 8)
        except SondeError as error:
            assert isinstance(error, BadInput) and "\n" not in str(error)


@given(
    st.text(alphabet=st.characters(blacklist_categories=("Cs",)), max_size=40),
    st.dictionaries(st.from_regex(r"[a-z_]{1,8}", fullmatch=True), st.integers() | st.booleans(), max_size=3),
)
def test_options_after_a_name_come_back(name: str, options: dict) -> None:
    stem = "".join(name.split()).replace(".py", "") or "x"
    words = " ".join(f"{option}={str(value).lower()}" for option, value in options.items())
    for path in (stem, f"a b/{stem}.py"):
        if path == stem and "=" in stem:
            continue
        assert registry.parse(f"{path} {words}", "mixer") == (path, options)


@given(st.binary(max_size=80))
def test_any_bytes_in_a_file_are_bad_input(content: bytes) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as place:
        mine = Path(place) / "mine.py"
        mine.write_bytes(b"raise ValueError\n" + content)
        with pytest.raises(BadInput) as caught:
            mixer_of(str(mine), 8)
        assert "\n" not in str(caught.value) and "mine.py" in str(caught.value)
