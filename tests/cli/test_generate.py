"""`sonde generate` continues a text, and says what it needs where it cannot."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from sonde.api.run import open_run
from sonde.api.training import train
from sonde.data.text.tokenizer import train as tokenizer_of
from sonde.generate import beam, translate
from sonde.models.encoder_decoder import EncoderDecoder
from sonde.models.language_model import LanguageModel

SMALL = {"mixer": "gla", "depth": 1, "width": 16, "context": 16, "batch_size": 4, "steps": 2}


@pytest.fixture
def run(here: Path) -> str:
    (here / "abc.txt").write_text("the cat sat on the mat. " * 60, encoding="utf-8")
    train("char_lm", run="run", data=here / "abc.txt", quiet=True, threads=1, **SMALL)
    return "run"


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch, here: Path) -> Callable:
    """Stands in for a trained run: any model with any reader."""
    (here / "made").mkdir()

    def put(model: torch.nn.Module, **reader: object) -> str:
        stub = SimpleNamespace(name="made", model=lambda: model, data=SimpleNamespace(reader=SimpleNamespace(**reader)))
        monkeypatch.setattr("sonde.api.run.open_run", lambda path: stub)
        monkeypatch.setattr("sonde.runs.layout.find", lambda path: SimpleNamespace(path=path))
        return "made"

    return put


def test_it_goes_on_with_a_prompt(run: str, sonde: Callable) -> None:
    words = ("generate", run, "--prompt", "the c", "--length", "30", "--temperature", "0")
    answer = sonde(*words)
    assert answer.code == 0, answer.err
    model, reader = open_run(run).model(), open_run(run).data.reader
    row = reader.vocabulary.encode("the c").long()
    with torch.no_grad():
        for _ in range(30):
            row = torch.cat([row, model(row.unsqueeze(0))[:, -1].argmax(-1)])
    text = reader.vocabulary.decode(row)
    assert answer.out == text + "\n"
    stop = text[12:14]
    assert sonde(*words, "--stop", stop, "zz").out == text[: text.index(stop, 5)] + "\n"
    best = beam(model, row[:5].unsqueeze(0), 8, beams=3).tokens[0]
    answer = sonde("generate", run, "--prompt", "the c", "--length", "8", "--beams", "3", "--samples", "2")
    assert answer.out == "\n---\n".join("the c" + reader.vocabulary.decode(tokens) for tokens in best[:2]) + "\n"


def test_draws_follow_the_seed(run: str, sonde: Callable) -> None:
    outs = [sonde("generate", run, "--prompt", "a", "--length", "40", "--seed", seed).out for seed in ("1", "1", "2")]
    assert outs[0] == outs[1] != outs[2] and all(len(out) == 42 for out in outs)
    many = sonde("generate", run, "--prompt", "a", "--length", "40", "--seed", "1", "--samples", "3").out.split("\n---\n")
    assert len(set(many)) == 3 and many[0] == outs[0][:-1]
    assert sonde("generate", run, "--prompt", "a", "--length", "40", "--top-p", "0.001", "--min-p", "0.9").out == (
        sonde("generate", run, "--prompt", "a", "--length", "40", "--temperature", "0").out
    )


@pytest.mark.parametrize("kind", ["byte", "char", "bpe", "unigram"])
def test_any_tokenizer_and_the_places_of_the_model(kind: str, opened: Callable, sonde: Callable) -> None:
    torch.manual_seed(0)
    tokenizer = tokenizer_of(kind, ["the cat sat on the mat, café"] * 4, size=280, specials=("pad", "unknown", "start", "end"))
    model = LanguageModel(tokenizer.size, width=16, depth=1, positions="learned", max_positions=20)
    answer = sonde("generate", opened(model, vocabulary=tokenizer), "--prompt", "the café", "--seed", "3")
    assert answer.code == 0 and answer.out.startswith("the café"), answer.err
    n = len(tokenizer.encode("the café"))
    answer = sonde("generate", "made", "--prompt", "the café", "--length", "30")
    assert (
        answer.code == 2
        and answer.out == ""
        and f"a prompt of {n} tokens and 30 new ones do not fit into the model's context of 20 tokens" in answer.err
    )
    answer = sonde("generate", opened(LanguageModel(5, width=16, depth=1), vocabulary=tokenizer), "--prompt", "the")
    assert answer.code == 2 and f"the tokenizer has {tokenizer.size} tokens, the model knows 5" in answer.err


def test_an_encoder_decoder_answers(opened: Callable, sonde: Callable) -> None:
    torch.manual_seed(0)
    theirs, ours = (tokenizer_of("words", [text] * 3, size=30) for text in ("ein Hund und eine Katze", "a dog and a cat sit"))
    model = EncoderDecoder(ours.size, width=16, depth=1, heads=2, sources=theirs.size, tied=False)
    words = ("generate", opened(model, vocabulary=ours, source=theirs), "--prompt", "ein Hund", "--length", "9")
    assert sonde(*words, "--temperature", "0").out == translate(model, ["ein Hund"], (theirs, ours), 9)[0] + "\n"
    assert sonde(*words, "--beams", "3").out == translate(model, ["ein Hund"], (theirs, ours), 9, beams=3)[0] + "\n"
    assert len(set(sonde(*words, "--samples", "3").out.split("\n---\n"))) == 3
    answer = sonde("generate", "made", "--prompt", "ein Pferd")
    assert answer.code == 2 and "never saw 'Pferd' of the prompt" in answer.err


def test_a_prompt_longer_than_the_run_was_trained_on(run: str, opened: Callable, sonde: Callable) -> None:
    for prompt, warning in (
        ("the cat sat on th", "warning: the prompt has 17 tokens and the run was trained on windows of 16"),
        ("the cat sat on t", ""),
    ):
        for more in ((), ("--samples", "2"), ("--beams", "2")):
            answer = sonde("generate", run, "--prompt", prompt, "--length", "3", *more)
            assert answer.code == 0 and answer.err.startswith(warning) and answer.err.count("\n") == bool(warning), answer
    tokenizer = tokenizer_of("char", ["the cat sat"], size=99)
    model = LanguageModel(tokenizer.size, width=16, depth=1, positions="learned", max_positions=8)
    answer = sonde("generate", opened(model, vocabulary=tokenizer, length=8), "--prompt", "the cat sat")
    assert answer.code == 2 and answer.err.count("\n") == 1 and not answer.out
    assert "a prompt of 11 tokens does not fit into the model's context of 8 tokens" in answer.err


def test_bad_input(run: str, mine: str, sonde: Callable) -> None:
    for words, message in {
        (): "needs a run",
        (run, "--prompt", "dog"): "never saw 'd' of the prompt",
        (run, "--prompt="): "the prompt is empty",
        (run,): "the prompt is empty",
        (run, "--length", "0"): ">= 1",
        (run, "--temprature", "1"): "did you mean '--temperature'",
        (run, "--prompt", "a", "--beams", "2", "--top-k", "3"): "--top-k is for sampling and has no effect with --beams",
        (run, "--prompt", "a", "--beams", "2", "--samples", "3"): "--beams 2 gives at most 2 texts, not 3",
        (run, "--prompt", "a", "--stop", "b", ""): "a stop string is empty",
        (run, "--prompt", "a", "--weights", "int8"): "int8",
        ("no_such_run",): "no_such_run",
    }.items():
        answer = sonde("generate", *words)
        assert answer.code == 2 and message in answer.err and not answer.out, (words, answer)
    assert sonde("train", mine, "--run", "other", "--quiet").code == 0
    answer = sonde("generate", "other", "--prompt", "a")
    assert answer.code == 2 and "is not a language model" in answer.err


def test_a_model_of_hidden_characters_cannot_go_on(here: Path, sonde: Callable) -> None:
    (here / "abc.txt").write_text("the cat sat on the mat. " * 60, encoding="utf-8")
    train("char_lm", run="both", data=here / "abc.txt", quiet=True, threads=1, **{**SMALL, "mixer": "attention causal=false"})
    answer = sonde("generate", "both", "--prompt", "a")
    assert answer.code == 2 and "is not a language model" in answer.err
