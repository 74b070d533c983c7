"""Any bytes in any file: data or an error of ours, never a foreign exception, and nothing is ever run."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import sys
from pathlib import Path

import numpy as np
import pandas
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from sonde.core.batch import Data
from sonde.core.errors import SondeError
from sonde.data.files import load_file

FORBIDDEN = ("pickle.find_class", "os.system", "subprocess.Popen", "exec", "os.exec", "os.posix_spawn", "socket.connect")
events: list[str] = []
watching = False


@pytest.fixture(scope="module", autouse=True)
def warm_up(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Late imports run code on purpose; they are done before anybody watches."""
    folder = tmp_path_factory.mktemp("warm")
    for name, data in GOOD.items():
        (folder / name).write_bytes(data)
        load_file(folder / name)
    Image.init()
    sys.addaudithook(lambda event, _: events.append(event) if watching and event in FORBIDDEN else None)


def attempt(path: Path, data: bytes, **options: object) -> None:
    """Load the bytes; whatever happens must be ours."""
    global watching
    path.write_bytes(data)
    events.clear()
    watching = True
    try:
        dataset = load_file(path, **options)
    except SondeError as error:
        assert "\n" not in str(error) and path.name in str(error) or error.exit_code == 2
    else:
        assert isinstance(dataset, Data) and len(dataset.train) >= 1 and len(dataset.train[:]) == len(dataset.train)
    finally:
        watching = False
    assert events == []


def good_files() -> dict[str, bytes]:
    """One small file of each kind that loads."""
    rng = np.random.default_rng(0)
    frame = pandas.DataFrame({"a": rng.normal(size=24), "b": ["u", "v", "w"] * 8, "y": [0, 1] * 12})
    npy, npz, parquet = io.BytesIO(), io.BytesIO(), io.BytesIO()
    np.save(npy, rng.normal(size=(12, 3)))
    np.savez(npz, x=rng.integers(0, 255, (12, 4, 4), dtype=np.uint8), y=np.arange(12) % 2)
    frame.to_parquet(parquet)
    return {
        "a.csv": frame.to_csv(index=False).encode(),
        "a.tsv": frame.to_csv(index=False, sep="\t").encode(),
        "a.npy": npy.getvalue(),
        "a.npz": npz.getvalue(),
        "a.idx": bytes([0, 0, 8, 3, 0, 0, 0, 6, 0, 0, 0, 2, 0, 0, 0, 2]) + bytes(range(24)),
        "a.parquet": parquet.getvalue(),
        "a.txt": b"the quick brown fox jumps over the lazy dog " * 90,
        "b.csv.gz": gzip.compress(frame.to_csv(index=False).encode()),
        "b.idx.bz2": bz2.compress(bytes([0, 0, 8, 3, 0, 0, 0, 6, 0, 0, 0, 2, 0, 0, 0, 2]) + bytes(range(24))),
        "b.csv.xz": lzma.compress(frame.to_csv(index=False).encode()),
    }


GOOD = good_files()
per_example = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.mark.parametrize("name", GOOD)
@per_example
@given(data=st.binary(max_size=300))
def test_any_bytes(tmp_path: Path, name: str, data: bytes) -> None:
    attempt(tmp_path / name, data)


@pytest.mark.parametrize("name", GOOD)
@per_example
@given(where=st.floats(0, 1, exclude_max=True), change=st.binary(min_size=0, max_size=6), cut=st.integers(0, 8), keep=st.floats(0.2, 1))
def test_good_files_damaged_anywhere(tmp_path: Path, name: str, where: float, change: bytes, cut: int, keep: float) -> None:
    data = GOOD[name]
    place = int(where * len(data))
    damaged = data[:place] + change + data[place + cut :]
    attempt(tmp_path / name, damaged if keep > 0.5 else damaged[: int(keep * len(damaged))])


cell = st.one_of(
    st.text(max_size=6), st.floats().map(str), st.integers().map(str), st.sampled_from(["", "NA", "inf", "1_0", "1e999", "yes", "٣"])
)


@per_example
@given(
    rows=st.lists(st.lists(cell, min_size=3, max_size=3), min_size=1, max_size=14),
    options=st.fixed_dictionaries(
        {},
        optional={
            "missing": st.sampled_from(["mean", "drop", "error"]),
            "text": st.sampled_from(["onehot", "codes"]),
            "task": st.sampled_from(["auto", "classes", "values", "counts"]),
            "standardize": st.booleans(),
            "drop_duplicates": st.booleans(),
            "standardize_target": st.booleans(),
            "header": st.booleans(),
            "valid": st.one_of(st.integers(-2, 5), st.floats(-1, 2)),
        },
    ),
)
def test_any_cells_with_any_rules(tmp_path: Path, rows: list[list[str]], options: dict) -> None:
    text = "\n".join(",".join('"' + word.replace('"', '""') + '"' for word in row) for row in [["a", "b", "c"], *rows])
    attempt(tmp_path / "a.csv", text.encode("utf-8", "surrogatepass"), **options)


def encoded(kind: str, height: int = 5, width: int = 5) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.arange(height * width * 3, dtype=np.uint8).reshape(height, width, 3)).save(file, kind)
    return file.getvalue()


def two_classes(root: Path, suffix: str, data: bytes) -> Path:
    for kind in ("a", "b"):
        (root / kind).mkdir(parents=True, exist_ok=True)
        for i in range(4):
            (root / kind / f"{i}.{suffix}").write_bytes(data)
    return root


@pytest.mark.parametrize(("suffix", "kind"), [("png", "PNG"), ("jpg", "JPEG")])
@per_example
@given(data=st.binary(max_size=200), where=st.floats(0, 1), keep=st.booleans())
def test_any_bytes_as_a_picture(tmp_path: Path, suffix: str, kind: str, data: bytes, where: float, keep: bool) -> None:
    """Data, or an error that names class and file; on request the file is left out and counted."""
    good = encoded(kind)
    folder, place = two_classes(tmp_path / "all", suffix, good), int(where * len(good))
    for bad in (data, good[:place] + data + (good[place + len(data) :] if keep else b"")):
        (folder / "b" / f"2.{suffix}").write_bytes(bad)
        message = ""
        try:
            load_file(folder, valid=2, test=2)
        except SondeError as error:
            message = str(error)
            assert error.exit_code == 2 and f"'b/2.{suffix}'" in message and "\n" not in message
        if "corrupt" in message:
            report = load_file(folder, skip_corrupt=True, valid=2, test=2).report
            assert (report["corrupt images skipped"], report["skipped"], report["examples read"]) == (1, f"b/2.{suffix}", 7)


@per_example
@given(sides=st.lists(st.tuples(st.integers(1, 4), st.integers(1, 4)), min_size=8, max_size=8))
def test_pictures_of_any_sizes(tmp_path: Path, sides: list[tuple[int, int]]) -> None:
    folder = two_classes(tmp_path / "all", "png", b"")
    files = sorted(folder.rglob("*.png"))
    for file, (height, width) in zip(files, sides, strict=True):
        file.write_bytes(encoded("PNG", height, width))
    try:
        data = load_file(folder, valid=2, test=2)
    except SondeError as error:
        named = next(i for i, file in enumerate(files) if f"'{file.relative_to(folder).as_posix()}'" in str(error))
        most = max(sides.count(size) for size in sides)
        assert len(set(sides)) > 1 and any(sides.count(size) == most and size != sides[named] for size in sides)
        assert all(f"{height} x {width} (" in str(error) for height, width in set(sides)) or len(set(sides)) > 4
    else:
        assert len(set(sides)) == 1 and data.train[:].x.shape[1:] == (3, *sides[0])
    assert load_file(folder, size=3, valid=2, test=2).train[:].x.shape == (4, 3, 3, 3)


@pytest.mark.parametrize("name", GOOD)
@per_example
@given(data=st.binary(max_size=120))
def test_any_bytes_as_new_rows_to_predict(tmp_path: Path, name: str, data: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(GOOD[name])
    reader = load_file(path).reader
    for content in (data, GOOD[name][: len(data) * 3]):
        path.write_bytes(content)
        try:
            assert len(reader(path)) >= 1
        except SondeError as error:
            assert error.exit_code == 2


def test_the_watch_sees_what_runs() -> None:
    global watching
    events.clear()
    watching = True
    try:
        exec("1")
    finally:
        watching = False
    assert events == ["exec"]
