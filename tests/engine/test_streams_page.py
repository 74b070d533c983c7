"""The examples of docs/how-to/streams.md run as they stand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sonde import train
from sonde.core.errors import BadInput
from tests.engine.harness import attempt, checkpoint, checkpoints, differences, digest, finished, kill_in_save
from tests.engine.small import line

PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "how-to" / "streams.md"


@pytest.fixture
def examples(tmp_path: Path) -> dict[str, Path]:
    """The code of the page that is a whole file, by what it defines."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    paths = {}
    for name, mark in (("hard", "class HardExamples"), ("mine", "class Plain")):
        paths[name] = tmp_path / f"{name}.py"
        paths[name].write_text(next(block for block in blocks if mark in block))
    return paths


def test_hard_examples_resume_on_two_processes(examples, memory):
    how = {"recipe": str(examples["hard"]), "steps": 23, "shards": 2}
    whole = digest(finished(memory / "whole", **how))
    path = memory / "run"
    assert attempt(path, kill_in_save(2, 3), **how).wait().killed
    finished(path, **how, processes=2)
    assert [name for name in differences(digest(path), whole) if name != "random states"] == []
    saved = checkpoint.read(checkpoints.path_of(path / "checkpoints", 23)).parts["stream"]
    assert sum(int(counts.sum()) for counts in saved.values()) == 23 * 32


def test_a_strategy_that_does_nothing_changes_nothing(examples, tmp_path):
    runs = [
        train(line, run=tmp_path / name, quiet=True, threads=1, steps=4, parallel=parallel)
        for name, parallel in (("one", "ddp"), ("two", str(examples["mine"])))
    ]
    one, two = (digest(run.path) for run in runs)
    assert differences(one, two) == []


@pytest.mark.parametrize(
    "text, message", [("x = 1", "has no function 'build'"), ("def build(*parts): return object()", "the strategy has no 'weights'")]
)
def test_a_file_that_is_no_strategy_is_named(text, message, tmp_path):
    path = tmp_path / "odd.py"
    path.write_text(text)
    with pytest.raises(BadInput, match=message):
        train(line, run=tmp_path / "run", quiet=True, steps=2, parallel=str(path))


def test_an_unknown_strategy_is_named(tmp_path):
    with pytest.raises(BadInput, match="no strategy 'ddq'.*choose from ddp, fsdp"):
        train(line, run=tmp_path / "run", quiet=True, steps=2, parallel="ddq")
