"""Tables: cleaning in counts, statistics of the training rows only, new rows read the same way."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas
import pytest
import torch
from sklearn.preprocessing import StandardScaler

from sonde.core.batch import Data
from sonde.core.errors import BadInput
from sonde.data.files import load_file

ROWS = """age,town,pay,same,kind
30,Rome,1000,5,yes
41,Oslo,2000,5,no
,Rome,3000,5,yes
29,,4000,5,no
55,Lima,oops,5,yes
61,Rome,inf,5,
33,Oslo,2500,5,no
33,Oslo,2500,5,no
48,Lima,NA,5,yes
27,Rome,1500,5,no
52,Oslo,?,5,yes
38,Rome,900,5,no
"""


def write(folder: Path, text: str, name: str = "rows.csv") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def whole(data: Data) -> dict[str, torch.Tensor]:
    """All rows of all parts by their place in the file."""
    batches = [source[:] for source in data.splits.values()]
    fields = {name: torch.cat([batch.fields[name] for batch in batches]) for name in batches[0]}
    return {name: field[fields["ids"].argsort()] for name, field in fields.items()}


def test_cleaning_is_reported_in_counts(tmp_path: Path) -> None:
    data = load_file(write(tmp_path, ROWS), drop_duplicates=True)
    assert dict(data.report) == {
        "rows read": 12,
        "columns read": 5,
        "duplicate rows dropped": 1,
        "rows without usable target dropped": 1,
        "corrupt cells": 1,
        "corrupt cells by column": "pay 1",
        "missing cells": 4,
        "missing cells by column": "age 1, town 1, pay 2",
        "rows kept": 10,
        "constant columns left out": "same",
        "target": "kind: 2 classes",
    }
    assert data.classes == ("no", "yes") and data.task == "classes"
    assert data.features == ("age", "town=Lima", "town=Oslo", "town=Rome", "pay")
    got = whole(data)
    assert got["ids"].tolist() == [0, 1, 2, 3, 4, 6, 8, 9, 10, 11]
    assert got["y"].tolist() == [1, 0, 1, 0, 1, 0, 1, 0, 1, 0]
    assert got["x"][:4, 1:4].tolist() == [[0, 0, 1], [0, 1, 0], [0, 0, 1], [0, 0, 0]]
    assert torch.isfinite(got["x"]).all()


def test_an_infinite_cell_is_corrupt(tmp_path: Path) -> None:
    data = load_file(write(tmp_path, ROWS.replace("61,Rome,inf,5,", "61,Rome,inf,5,no")))
    assert data.report["corrupt cells"] == 2


def test_a_column_with_another_way_to_write_numbers_is_text_not_guessed(tmp_path: Path) -> None:
    data = load_file(write(tmp_path, "a,b\n" + "1_000,0\n2_000,1\n" * 10))
    assert data.features == ("a=1_000", "a=2_000")


def test_standardizing_equals_scikit_learn_on_the_training_rows(tmp_path: Path) -> None:
    frame = pandas.DataFrame(np.random.default_rng(1).normal(5, 3, (80, 3)), columns=["a", "b", "c"])
    frame["y"] = frame.a * 2 + frame.b
    frame.to_csv(tmp_path / "t.csv", index=False)
    data = load_file(tmp_path / "t.csv", seed=4)
    scaler = StandardScaler().fit(frame[["a", "b", "c"]].to_numpy()[data.train[:].ids])
    for source in data.splits.values():
        batch = source[:]
        np.testing.assert_allclose(batch.x, scaler.transform(frame[["a", "b", "c"]].to_numpy()[batch.ids]), atol=1e-5)
        np.testing.assert_allclose(batch.y[:, 0], frame.y.to_numpy()[batch.ids], rtol=1e-6)
    assert data.task == "values" and data.features == ("a", "b", "c")


def test_missing_numbers_get_the_training_mean(tmp_path: Path) -> None:
    rows = "a,b,y\n" + "".join(f"{i if i % 3 else ''},{i * i},{i % 2}\n" for i in range(30))
    data = load_file(write(tmp_path, rows), standardize=False)
    train = pandas.read_csv(tmp_path / "rows.csv").iloc[data.train[:].ids.numpy()]
    assert data.report["missing cells"] == 10
    got = whole(data)["x"][::3, 0]
    np.testing.assert_allclose(got, np.full(10, train.a.mean()), rtol=1e-6)


def test_rows_with_gaps_can_be_dropped_or_refused(tmp_path: Path) -> None:
    path = write(tmp_path, ROWS)
    kept = load_file(path, missing="drop", valid=1, test=1)
    complete = pandas.read_csv(path, na_values=["oops", "?", "inf"]).dropna()
    assert whole(kept)["ids"].tolist() == complete.index.tolist() and kept.report["rows with gaps dropped"] == 5
    with pytest.raises(BadInput, match=r"missing or corrupt cells in 'age' \(1\), 'town' \(1\), 'pay' \(3\)"):
        load_file(path, missing="error")


def test_levels_are_coded_on_request(tmp_path: Path) -> None:
    data = load_file(write(tmp_path, ROWS), text="codes", valid=1, test=1, standardize=False)
    assert data.features == ("age", "town", "pay")
    towns = {2: 3.0, 3: 0.0, 4: 1.0, 6: 2.0}  # Rome, missing, Lima, Oslo
    got = whole(data)
    assert {int(i): float(x) for i, x in zip(got["ids"], got["x"][:, 1], strict=True) if int(i) in towns} == towns


@pytest.mark.parametrize(
    "targets, task, classes",
    [
        (["a", "b"], "classes", ("a", "b")),
        (["3", "7", "5"], "classes", ("3", "5", "7")),
        (["-1", "1"], "classes", ("-1", "1")),
        (["0", "1", "X"], "classes", ("0", "1", "X")),
        ([str(i) for i in range(40)], "values", ()),
        (["0.5", "1.5"], "values", ()),
    ],
)
def test_the_kind_of_target_is_found(tmp_path: Path, targets: list[str], task: str, classes: tuple[str, ...]) -> None:
    rows = "x,y\n" + "".join(f"{i * 0.37},{targets[i % len(targets)]}\n" for i in range(40))
    data = load_file(write(tmp_path, rows))
    assert (data.task, data.classes) == (task, classes)
    expected = [targets[i % len(targets)] for i in range(40)]
    y = whole(data)["y"]
    if classes:
        assert [classes[label] for label in y] == expected and y.dtype == torch.int64
    else:
        np.testing.assert_allclose(y[:, 0], [float(value) for value in expected])


def test_classes_in_a_given_order_and_unknown_labels_counted(tmp_path: Path) -> None:
    path = write(tmp_path, ROWS)
    assert load_file(path, classes=["yes", "no"]).classes == ("yes", "no")
    with pytest.raises(BadInput, match="5 of 11 labels .* are unknown: yes; the classes are no, maybe"):
        load_file(path, classes=["no", "maybe"])


def test_a_target_can_be_standardized_or_counted(tmp_path: Path) -> None:
    rows = "x,y\n" + "".join(f"{i * 0.37},{i * i}\n" for i in range(40))
    data = load_file(write(tmp_path, rows), standardize_target=True)
    y = data.train[:].y.double()
    assert abs(y.mean()) < 1e-6 and abs(y.std(correction=0) - 1) < 1e-6 and "target mean and deviation" in data.report
    assert load_file(tmp_path / "rows.csv", task="counts").task == "counts"
    with pytest.raises(BadInput, match="39 of 40 targets in column '-y' .* are not counts"):
        load_file(write(tmp_path, rows.replace(",", ",-"), "negative.csv"), task="counts", target="-y")


def test_another_column_can_be_the_target_and_others_ignored(tmp_path: Path) -> None:
    data = load_file(write(tmp_path, ROWS), target="town", ignore=["pay", "same"], valid=2, test=2)
    assert data.classes == ("Lima", "Oslo", "Rome") and data.features == ("age", "kind=no", "kind=yes")


def test_splits_keep_the_share_of_each_class(tmp_path: Path) -> None:
    rows = "x,y\n" + "".join(f"{i},{'rare' if i % 5 == 0 else 'common'}\n" for i in range(100))
    data = load_file(write(tmp_path, rows), valid=0.2, test=0.1)
    assert [torch.bincount(source[:].y).tolist() for source in data.splits.values()] == [[56, 14], [16, 4], [8, 2]]


def test_new_rows_are_read_with_the_statistics_of_training(tmp_path: Path) -> None:
    data = load_file(write(tmp_path, ROWS), valid=1, test=1)
    seen = data.train[:]
    again = data.reader(tmp_path / "rows.csv")
    assert torch.equal(again.x[seen.ids], seen.x) and "y" not in again  # one target is missing, so none is given
    new = data.reader(write(tmp_path, "pay,town,age,more\n1000,Rome,30,x\n,Paris,abc,y\n", "new.csv"))
    assert torch.equal(new.x[0], again.x[0]) and new.filled.tolist() == [0, 3] and new.ids.tolist() == [0, 1]
    assert new.x[1].tolist() == [0, 0, 0, 0, 0]
    assert data.reader(write(tmp_path, "age,town,pay,kind\n1,Rome,1,no\n", "one.csv")).y.tolist() == [0]
    with pytest.raises(BadInput, match="has no column town"):
        data.reader(write(tmp_path, "age,pay\n1,2\n", "short.csv"))
    with pytest.raises(BadInput, match="1 of 1 labels .* are unknown: perhaps"):
        data.reader(write(tmp_path, "age,town,pay,kind\n1,Rome,1,perhaps\n", "odd.csv"))
    with pytest.raises(BadInput, match="has no rows"):
        data.reader(write(tmp_path, "age,town,pay\n", "none.csv"))


def test_gaps_in_new_rows_are_refused_where_training_had_none(tmp_path: Path) -> None:
    data = load_file(write(tmp_path, ROWS), missing="drop", valid=1, test=1)
    with pytest.raises(BadInput, match="row 1 of 'new.csv' has missing or corrupt cells"):
        data.reader(write(tmp_path, "age,town,pay\n1,Rome,2\n1,Rome,\n", "new.csv"))


@pytest.mark.parametrize(
    "text, options, message",
    [
        ("", {}, "is empty"),
        ("a,b\n", {}, "has no rows"),
        ("a,b\n1,2\n3\n", {}, "line 3 of 'rows.csv' has 1 cells, the first line has 2"),
        ("a,a\n1,2\n", {}, "2 columns named 'a'"),
        ("a\n1\n2\n3\n", {}, "at least one more column"),
        ("a,b\n1,2\n2,3\n3,4\n", {"target": "bb"}, "no column 'bb'; did you mean 'b'"),
        ("a,b\n1,x\n2,x\n3,x\n4,x\n", {}, "all 4 targets in column 'b' of 'rows.csv' are 'x'"),
        ("a,b\n1,x\n1,y\n1,x\n1,y\n", {}, "no column of 'rows.csv' has two different values"),
        ("n,b\n" + "".join(f"name{i},{i % 2}\n" for i in range(40)), {}, r"too many different texts to encode in column 'n' \(3\d\)"),
        ("a,b\n1e300,1\n2,0\n3,1\n4,0\n-1e300,1\n5,0\n", {"valid": 1, "test": 1}, "too large"),
        ("a,b\n1,2\n", {"ignore": ["c"]}, "no column 'c'"),
        ("a,b\n1,2\n", {"separator": "ab"}, "one character"),
        ("a,b\n1,0.5\n2,1.5\n3,2.5\n4,3.5\n", {"task": "classes"}, "not whole"),
        ("a,b\n1,x\n2,y\n3,z\n4,x\n", {"task": "values"}, "holds texts such as 'x'"),
        ("a,b\n1,2\n", {"vaild": 0.5}, "no option 'vaild'; did you mean 'valid'"),
        ("a,b\n1,2\n", {"missing": "men"}, "must be one of mean, drop, error, not 'men'; did you mean 'mean'"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(tmp_path: Path, text: str, options: dict, message: str) -> None:
    with pytest.raises(BadInput, match=message) as caught:
        load_file(write(tmp_path, text), **options)
    assert "\n" not in str(caught.value) and caught.value.exit_code == 2
