"""`sonde bench mixers`: rows for the members and forms asked for, a picture, and clear refusals."""

from __future__ import annotations

import pytest

from sonde.cli.main import main


def test_prints_a_row_for_each_form_and_length(capsys: pytest.CaptureFixture[str], tmp_path) -> None:
    picture = tmp_path / "cost.png"
    assert main(["bench", "mixers", "gla", "--lengths", "8", "16", "--width", "16", "--forms", "step", "chunk", "--out", str(picture)]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("gla")]
    assert [row[:3] for row in rows] == [["gla", form, n] for form in ("step", "chunk") for n in ("8", "16")]
    assert picture.stat().st_size > 10_000 and picture.with_name("cost-memory.png").exists()


@pytest.mark.parametrize(
    "words, message",
    [
        (["bench"], "write: sonde bench mixers"),
        (["bench", "mixers", "retnett"], "did you mean 'retnet'"),
        (["bench", "mixers", "gla", "--forms", "stepp"], "did you mean 'step'"),
        (["bench", "mixers", "gla", "--lengths", "0"], "--lengths"),
    ],
)
def test_refuses_what_it_does_not_know(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    assert message in capsys.readouterr().err
