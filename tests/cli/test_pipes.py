"""Readers that leave early, and which part of the data a lens shows."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import sonde as library


def test_a_reader_that_leaves_is_no_error() -> None:
    words = [sys.executable, "-m", "sonde", "atlas"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as listing:
        assert listing.stdout is not None and listing.stderr is not None
        listing.stdout.readline()
        listing.stdout.close()
        assert listing.stderr.read() == "" and listing.wait() == 1


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory):
    return library.train("digits_cnn", run=tmp_path_factory.mktemp("run") / "r", epochs=0.2, threads=1, quiet=True)


def test_a_lens_says_which_examples_it_shows(run, capsys: pytest.CaptureFixture[str]) -> None:
    from sonde.cli.main import main

    assert main(["look", str(run.path), "confusion"]) == 0
    assert "test split, 359 of 359 examples" in capsys.readouterr().out  # the split the report shows
    assert main(["look", str(run.path), "confusion", "--split", "valid", "--first", "50"]) == 0
    assert "valid split, 50 of 180 examples" in capsys.readouterr().out
    assert main(["look", str(run.path), "confusion", "--split", "tset"]) == 2


def test_rows_of_numbers_are_brought_into_shape(run, tmp_path: Path) -> None:
    images = run.data.test.fields["x"][:5].numpy()
    np.save(tmp_path / "images.npy", images)
    np.save(tmp_path / "rows.npy", images.reshape(5, -1))
    one, other = (run.predict(run.data.reader(tmp_path / name)) for name in ("images.npy", "rows.npy"))
    np.testing.assert_array_equal(one.numpy(), other.numpy())
