"""`sonde explain` for mixers and models of sequences."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sonde.cli.main import main
from sonde.core import registry


def test_a_mixer_by_name(sonde: Callable) -> None:
    answer = sonde("explain", "gla", "--width", "32", "--input", "500")
    assert answer.code == 0 and "mixer 'gla'" in answer.out and "500 × 16" in answer.out
    assert "GLA, separable: key decay" in answer.out and "expected ms:" in answer.out


def test_a_mixer_has_a_length_of_its_own(sonde: Callable) -> None:
    assert "1024 × 64" in sonde("explain", "attention", "--width", "64").out
    assert "7 × 64" in sonde("explain", "attention", "--input", "7", "64").out


@pytest.mark.parametrize("name", registry.names("nn.mixers"))
def test_every_mixer_in_the_registry(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each is counted without memory, in whole, and its form is named with a reason."""
    assert main(["explain", name, "--width", "256", "--input", "4096"]) == 0
    costs, _, forms = capsys.readouterr().out.partition("How the mixers are computed")
    assert "4096 × " in costs and "Unknown FLOPs" not in costs, costs
    assert " 4,096 " in forms and f" {name.replace('_', '')}" in forms.lower()


@pytest.mark.parametrize("name", ["mlstm", "performer", "gated_deltanet"])
def test_a_recipe_with_a_mixer(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "char_lm", "--mixer", name, "--input", "50"]) == 0
    costs, _, forms = capsys.readouterr().out.partition("How the mixers are computed")
    assert "50 × " in costs and "Unknown FLOPs" not in costs
    assert f"blocks.0–4.mixer   {name.replace('_', '')}" in forms.lower()


def test_a_model_of_tokens(sonde: Callable) -> None:
    answer = sonde("explain", "language_model", "--mixer", "mamba2", "--depth", "2", "--width", "32", "--input", "90")
    assert answer.code == 0 and "blocks.1.mixer" in answer.out and "90 × 256" in answer.out
    assert "Mamba2, separable: head decay" in answer.out


@pytest.mark.parametrize(
    "words, expected",
    [
        (["t5_small"], "60,506,624 parameters"),
        (["bert_base"], "512 × 768"),
        (["seq2seq", "--input", "9"], "decoder.layers.0"),
        (["t5_spans", "--depth", "1"], "decoder.blocks.0.cross.q"),
        (["masked_lm", "--depth", "1"], "stack.blocks.0.mixer"),
    ],
)
def test_models_that_read_several_fields(words: list[str], expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", *words]) == 0
    shown = capsys.readouterr().out
    assert expected in shown and "Unknown FLOPs" not in shown


@pytest.mark.parametrize(
    "words, message",
    [
        (["gl"], "no recipe, model or mixer 'gl'; did you mean 'gla'"),
        (["gla", "--width", "10", "--heads", "3"], "cannot be divided"),
        (["gla", "--input", "5", "7"], "cannot be run on an input of size (5, 7)"),
        (["gla", "--head", "3"], "did you mean"),
    ],
)
def test_mistakes(sonde: Callable, words: list[str], message: str) -> None:
    answer = sonde("explain", *words)
    assert answer.code == 2 and message in answer.err
