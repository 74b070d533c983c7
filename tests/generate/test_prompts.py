"""The few-shot prompt has the layout of the grammar-correction prompt and stops before the last answer."""

from __future__ import annotations

from sonde.generate import Layout, few_shot
from sonde.generate.prompts import CORRECTION


def test_demonstrations_then_the_query_up_to_its_answer():
    shots = [
        ("I eated.", "I ate."),
        ("Thank you for picking me.", "Thank you for choosing me."),
        ("Changes have done.", "Changes have been made."),
    ]
    prompt = few_shot(shots, "I work in another project.", CORRECTION)
    assert prompt == (
        "Poor English input: I eated.\n"
        "Good English output: I ate.\n"
        "Poor English input: Thank you for picking me.\n"
        "Good English output: Thank you for choosing me.\n"
        "Poor English input: Changes have done.\n"
        "Good English output: Changes have been made.\n"
        "Poor English input: I work in another project.\n"
        "Good English output:"
    )


def test_layouts():
    assert few_shot([], "a") == "Input: a\nOutput:"
    assert few_shot([("1", "2")], "3", Layout(ask="", answer=">", between=";", head="Double. ")) == "Double. 1;>2;3;>"
