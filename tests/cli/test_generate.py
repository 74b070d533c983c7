"""`sonde generate` goes on with a text, and says what it needs where it cannot."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from sonde.engine.api import open_run, train

SMALL = {"mixer": "gla", "depth": 1, "width": 16, "context": 16, "batch": 4, "steps": 2}


@pytest.fixture
def run(here: Path) -> str:
    (here / "abc.txt").write_text("the cat sat on the mat. " * 60, encoding="utf-8")
    train("char_lm", run="run", text=here / "abc.txt", quiet=True, threads=1, **SMALL)
    return "run"


def test_it_goes_on_with_a_prompt(run: str, sonde: Callable) -> None:
    words = ("generate", run, "--prompt", "the c", "--length", "30", "--temperature", "0")
    answer = sonde(*words)
    assert answer.code == 0, answer.err
    model, reader = open_run(run).model(), open_run(run).data.reader
    row = reader.vocabulary.encode("the c").long()
    with torch.no_grad():
        for _ in range(30):
            row = torch.cat([row, model(row.unsqueeze(0))[:, -1].argmax(-1)])
    assert answer.out == reader.vocabulary.decode(row) + "\n"


def test_draws_follow_the_seed(run: str, sonde: Callable) -> None:
    outs = [sonde("generate", run, "--prompt", "a", "--length", "40", "--seed", seed).out for seed in ("1", "1", "2")]
    assert outs[0] == outs[1] != outs[2] and all(len(out) == 42 for out in outs)


def test_bad_input(run: str, mine: str, sonde: Callable) -> None:
    for words, told in {
        (): "needs a run",
        (run, "--prompt", "dog"): "never saw 'd' of the prompt",
        (run, "--prompt="): "the prompt is empty",
        (run, "--length", "0"): ">= 1",
        (run, "--temprature", "1"): "did you mean '--temperature'",
        ("no_such_run",): "no_such_run",
    }.items():
        answer = sonde("generate", *words)
        assert answer.code == 2 and told in answer.err, (words, answer)
    assert sonde("train", mine, "--run", "other", "--quiet").code == 0
    answer = sonde("generate", "other", "--prompt", "a")
    assert answer.code == 2 and "did not learn to go on with a text" in answer.err


def test_a_model_of_hidden_characters_cannot_go_on(here: Path, sonde: Callable) -> None:
    (here / "abc.txt").write_text("the cat sat on the mat. " * 60, encoding="utf-8")
    train("char_lm", run="both", text=here / "abc.txt", quiet=True, threads=1, **{**SMALL, "mixer": "attention causal=false"})
    answer = sonde("generate", "both", "--prompt", "a")
    assert answer.code == 2 and "did not learn to go on" in answer.err
