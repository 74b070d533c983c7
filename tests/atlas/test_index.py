"""The index holds every row of the atlas, once."""

from __future__ import annotations

import pytest

from sonde.atlas.index import chapters, rows, select
from sonde.core.errors import BadInput

COUNTS = {
    "FN": 11, "PER": 9, "ACT": 8, "MLP": 16, "LOSS": 8, "DIFF": 10, "OPT": 15, "INIT": 7, "REG": 8, "PAR": 3, "CNN": 18, "RES": 10,
    "AE": 10, "EMB": 6, "RNN": 12, "S2S": 9, "ATT": 16, "LIN": 25, "LM": 19, "VIT": 3, "RL": 8, "TH": 8, "APP": 10, "CALC": 4, "MISC": 6,
}  # fmt: skip


def test_259_rows_in_25_chapters_in_order():
    assert list(chapters()) == list(COUNTS)
    ids = [f"{prefix}-{number:02d}" for prefix, count in COUNTS.items() for number in range(1, count + 1)]
    assert list(rows()) == ids
    assert len(ids) == 259


def test_every_row_has_a_title_and_a_statement_of_one_line():
    for row in rows().values():
        assert row.title and row.statement
        assert len(row.statement) <= 112
    assert len({row.title for row in rows().values()}) == 259


def test_select_takes_ids_and_chapters_in_any_case():
    assert [row.id for row in select(["par", "cnn-12", "mlp-3"])] == ["MLP-03", "PAR-01", "PAR-02", "PAR-03", "CNN-12"]
    assert len(select()) == len(select([])) == 259


@pytest.mark.parametrize(("word", "near"), [("CNM-12", "CNN-12"), ("pax", "PAR"), ("opt-99", "OPT-09")])
def test_an_unknown_row_names_the_nearest(word, near):
    with pytest.raises(BadInput, match=f"'{word}'.*did you mean '{near}'"):
        select([word])
