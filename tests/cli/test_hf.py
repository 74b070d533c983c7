"""`sonde hf` writes a trained run for other programs, reads such folders, and says in one line what is wrong with them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sonde.api.run import open_run
from sonde.api.training import train
from sonde.cli.main import main
from sonde.data.text.tokenizer import train as tokenizer_of
from sonde.generate.text import complete
from sonde.models import hf
from sonde.models.language_model import LanguageModel

SMALL = {"mixer": "attention heads=2", "depth": 1, "width": 16, "context": 16, "batch_size": 4, "steps": 2}


@pytest.fixture
def run(here: Path) -> str:
    (here / "abc.txt").write_text("the cat sat on the mat. " * 60, encoding="utf-8")
    train("char_lm", run="run", data=here / "abc.txt", quiet=True, threads=1, **SMALL)
    return "run"


def test_a_run_goes_out_and_comes_back(run: str, here: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(["hf", "save", run, "out"]) == 0
    assert "config.json, model.safetensors, tokenizer.json" in capsys.readouterr().out
    assert json.loads((here / "out/config.json").read_text())["model_type"] == "llama"
    assert main(["hf", "load", "out"]) == 0
    trained = open_run(here / run)
    stdout = capsys.readouterr().out
    assert stdout.startswith("out: LanguageModel of") and f"{sum(p.numel() for p in trained.model().parameters()):,} weights" in stdout
    assert main(["hf", "load", "out", "--prompt", "the c", "--length", "12"]) == 0
    wanted = complete(trained.model(), trained.data.reader.vocabulary, ["the c"], 12, temperature=0)[0]
    assert capsys.readouterr().out == f"the c{wanted}\n"
    assert main(["hf", "save", run, "out"]) == 2
    assert "'out' is already there" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words, code, message",
    [
        ([], 2, "needs an action"),
        (["lod", "x"], 2, "did you mean 'load'"),
        (["load"], 2, "sonde hf load takes 1 names, not 0"),
        (["save", "run"], 2, "sonde hf save takes 2 names, not 1"),
        (["load", "nowhere"], 2, "there is no folder 'nowhere'"),
        (["load", "empty"], 2, "'empty' is not a checkpoint in Hugging Face layout: it has no config.json and no model.safetensors"),
        (["save", "nowhere", "out"], 2, "nowhere"),
    ],
)
def test_mistakes_are_told(words: list[str], code: int, message: str, here: Path, capsys: pytest.CaptureFixture) -> None:
    (here / "empty").mkdir()
    assert main(["hf", *words]) == code
    assert message in capsys.readouterr().err


def test_a_prompt_that_is_no_text_is_refused(here: Path, capsys: pytest.CaptureFixture) -> None:
    words = tokenizer_of("bpe", ["the cat sat on the mat"], 280)
    hf.save(LanguageModel(words.size, 16, 1, "attention heads=2", style="llama"), here / "made", words)
    assert main(["hf", "load", "made", "--prompt", "the \udcff"]) == 2
    stderr = capsys.readouterr().err
    assert "the text holds" in stderr and "not a character" in stderr and len(stderr.splitlines()) <= 3
