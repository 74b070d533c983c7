"""Expectations: what passes, what fails, and what is refused because it could not fail."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sonde.atlas.exhibit import Exhibit, Result, exhibits, run, spread
from sonde.core.errors import BadInput
from sonde.core.reading import Lines


@pytest.fixture
def exhibit(tmp_path):
    return Exhibit(tmp_path)


def verdict(exhibit, *args, **kwargs):
    exhibit.expect(f"number {len(exhibit.findings)}", *args, **kwargs)
    return exhibit.findings[-1].passed


def test_numbers_and_arrays_are_compared_entry_by_entry(exhibit):
    assert verdict(exhibit, 3, 3)
    assert not verdict(exhibit, 3, 4)
    assert not verdict(exhibit, 77309804544, 77309804545)
    assert verdict(exhibit, torch.tensor([1.0, 2.0]), [1.0, 2.0 + 1e-9], within=1e-8)
    assert not verdict(exhibit, torch.tensor([1.0, 2.0]), [1.0, 2.1], within=0.05)
    assert verdict(exhibit, {"a": (1, 2)}, {"a": [1, 2]})
    assert not verdict(exhibit, "12", 12)
    assert not verdict(exhibit, True, False)


def test_nan_infinity_and_other_shapes_never_pass(exhibit):
    assert not verdict(exhibit, math.nan, 1.0, within=0.5)
    assert not verdict(exhibit, math.inf, 1.0, within=0.5)
    assert not verdict(exhibit, torch.zeros(3, 1), torch.zeros(3))
    assert not verdict(exhibit, torch.zeros(3, 3), torch.zeros(3))
    assert not verdict(exhibit, None, 0)


@given(st.floats(allow_nan=True, allow_infinity=True), st.floats(-1e6, 1e6), st.floats(0, 1))
def test_a_pass_means_the_gap_is_within_the_tolerance(measured, target, within):
    exhibit = Exhibit(None)
    try:
        passed = verdict(exhibit, measured, target, within=within)
    except BadInput:
        assert 0 < abs(target) <= within
    else:
        assert passed == (abs(measured - target) <= within)


def test_the_worst_seed_decides(exhibit):
    exhibit.above("all above", [0.9, 0.8, 1.0], 0.7)
    exhibit.above("one is not", [0.9, 0.8, 1.0], 0.85)
    exhibit.below("all below", (0.9, 0.8, 1.0), 1.1)
    exhibit.below("one is not either", (0.9, 0.8, 1.0), 0.95)
    exhibit.above("one is nothing", [0.9, math.nan, 1.0], 0.5)
    assert [finding.passed for finding in exhibit.findings] == [True, False, True, False, False]
    assert exhibit.findings[0].measured == "0.9 +/- 0.1 over 3 seeds, worst 0.8"
    assert spread([0.9, 0.8, 1.0], ".0%") == "90% +/- 10%"
    with pytest.raises(BadInput, match="no standard deviation"):
        exhibit.above("alone", [0.9], 0.5)


def test_bounds_and_refusals(exhibit):
    exhibit.above("more", 2.0, 1.0)
    exhibit.above("equal is not above", 1.0, 1.0)
    exhibit.below("nan is below nothing", math.nan, 1.0)
    exhibit.refuses("a wrong name", lambda: found_nothing("x"))
    exhibit.refuses("goes through", lambda: None)
    exhibit.refuses("another error", lambda: 1 / 0)
    assert [finding.passed for finding in exhibit.findings] == [True, False, False, True, False, False]


def found_nothing(name):
    raise BadInput(f"no '{name}'")


def test_a_check_that_cannot_fail_is_refused(exhibit):
    same = torch.ones(3)
    for call in (
        lambda: exhibit.expect("itself", same, same),
        lambda: exhibit.expect("nothing", torch.zeros(0), torch.zeros(0)),
        lambda: exhibit.expect("all of it", 0.1, 0.1, within=0.1),
        lambda: exhibit.expect("no bound", 0.1, 0.1, within=math.inf),
        lambda: exhibit.expect("nan bound", 0.1, 0.1, within=math.nan),
        lambda: exhibit.expect("less than nothing", 0.1, 0.1, within=-1.0),
        lambda: exhibit.expect("target nan", 0.1, math.nan),
        lambda: exhibit.expect("words", "a", "a", within=0.1),
        lambda: exhibit.above("no floor", 1.0, -math.inf),
        lambda: exhibit.expect("  ", 1, 1),
    ):
        with pytest.raises(BadInput):
            call()
    exhibit.expect("once", 1, 1)
    with pytest.raises(BadInput, match="must be unique"):
        exhibit.expect("once", 1, 2)
    assert len(exhibit.findings) == 1


def chapter(folder, body, name="par"):
    (folder / f"{name}.py").write_text(f"from pathlib import Path\n{body}\n", encoding="utf-8")
    return folder


PASSING = "def par_01(exhibit):\n    exhibit.expect('one', 1, 1)\n    return 'one is 1'\n"


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("def par_01(exhibit):\n    return 'fine'", "has no expectation"),
        ("def par_01(exhibit):\n    exhibit.expect('one', 1, 1)", "no summary"),
        ("def par_01(exhibit):\n    exhibit.expect('one', 2, 1)\n    return 'two'", "one: 2, expected 1"),
        ("def par_01(exhibit):\n    exhibit.expect('one', 1, 1)\n    return 'x' + 1", r"TypeError: .*par.py line 4"),
        ("def par_01(exhibit):\n    exhibit.expect('one', [], [])\n    return 'x'", r"BadInput: .*empty"),
        ("import nothing_of_this_name\n" + PASSING, "nothing_of_this_name"),
    ],
)
def test_run_fails_with_a_reason(tmp_path, body, why):
    result = run("PAR-01", chapter(tmp_path, body))
    assert not result.passed
    assert re.search(why, result.why), result.why


def test_run_passes_and_its_folder_is_gone(tmp_path):
    body = PASSING.replace("return", "(exhibit.folder / 'x').write_text('x')\n    return str(exhibit.folder) or")
    result = run("PAR-01", chapter(tmp_path, body))
    assert result.passed and result.why == ""
    assert not Path(result.summary).exists()


def test_an_exhibit_neither_sees_nor_leaves_random_state(tmp_path):
    body = "import torch\ndef par_01(exhibit):\n    exhibit.expect('one', 1, 1)\n    return str(torch.rand(1).item())"
    folder = chapter(tmp_path, body)
    torch.manual_seed(5)
    first = run("PAR-01", folder).summary
    assert torch.rand(1).item() == torch.rand(1, generator=torch.Generator().manual_seed(5)).item()
    assert run("PAR-01", folder).summary == first


def test_discovery_parses_and_does_not_import(tmp_path):
    chapter(tmp_path, "raise SystemExit\n" + PASSING + "def helper(): ...\nasync def par_02(): ...")
    chapter(tmp_path, "def mlp_03(exhibit): ...", "mlp")
    chapter(tmp_path, "def cnn_12(exhibit): ...", "_cnn")
    assert {row: path.name for row, path in exhibits(tmp_path).items()} == {"MLP-03": "mlp.py", "PAR-01": "par.py"}
    assert list(exhibits(tmp_path)) == ["MLP-03", "PAR-01"]


@pytest.mark.parametrize("body", [PASSING + "def cnn_12(exhibit): ...", "def par_04(exhibit): ...", PASSING + PASSING])
def test_a_function_in_the_wrong_place_is_not_passed_over(tmp_path, body):
    with pytest.raises(BadInput, match="not a row of its chapter"):
        exhibits(chapter(tmp_path, body))


def test_a_chapter_has_one_file(tmp_path):
    chapter(tmp_path, PASSING)
    with pytest.raises(BadInput, match="not a row of its chapter"):
        exhibits(chapter(tmp_path, "def par_02(exhibit): ...", "parallel"))


def test_result_survives_json():
    reading = Lines("a", {"y": [1.0, math.nan], "b": [2, 3]}, ("step",))
    exhibit = Exhibit(None)
    exhibit.expect("one", 1, 1)
    result = Result("PAR-01", "fine", 1.5, "abc", tuple(exhibit.findings), (reading,))
    again = Result.from_json(json.loads(result.to_json()))
    assert again.findings == result.findings and again.passed
    assert list(again.readings[0].values.items()) == [("y", [1.0, None]), ("b", [2, 3])]
