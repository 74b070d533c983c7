"""A user's own files: every kind read, against pandas and NumPy; every fault in one line that names the file."""

from __future__ import annotations

import gzip
import io
import struct
import zipfile
from pathlib import Path

import numpy as np
import pandas
import pytest
import torch
from PIL import Image

from sonde.core.errors import BadInput
from sonde.data import catalog
from sonde.data.files import file_options, load_file, looks_like_path
from sonde.data.formats import read_columns, read_idx, read_npy, read_npz, read_picture, suffix
from sonde.data.table import parse

FRAME = pandas.DataFrame(
    {"size": [1.5, 2.0, np.nan, 4.25] * 5, "town": ["a", "b", "a", None] * 5, "big": [True, False] * 10, "kind": ["u", "v"] * 10}
)


@pytest.mark.parametrize(
    "separator, name", [(",", "t.csv"), ("\t", "t.tsv"), (";", "t.csv"), ("|", "t.csv"), (",", "T.CSV.gz"), (",", "t.csv.xz")]
)
def test_separated_files_equal_pandas(tmp_path: Path, separator: str, name: str) -> None:
    path = tmp_path / name
    kind = {"gz": "gzip", "xz": "xz"}.get(name.rsplit(".", 1)[1])
    FRAME.to_csv(path, sep=separator, index=False, compression=kind)
    columns = read_columns(path)
    assert list(columns) == list(FRAME)
    np.testing.assert_array_equal(parse(columns["size"])[0], FRAME["size"].to_numpy())
    assert parse(columns["town"])[0].tolist() == ["a", "b", "a", None] * 5


def test_parquet_gives_what_csv_gives(tmp_path: Path) -> None:
    FRAME.astype({"kind": "category"}).to_parquet(tmp_path / "t.parquet")
    FRAME.astype({"big": int}).to_csv(tmp_path / "t.csv", index=False)
    ours, theirs = (load_file(tmp_path / name, seed=3) for name in ("t.parquet", "t.csv"))
    assert ours.features == theirs.features and ours.classes == theirs.classes == ("u", "v")
    assert torch.equal(ours.train[:].x, theirs.train[:].x) and torch.equal(ours.train[:].y, theirs.train[:].y)
    assert torch.equal(ours.reader(tmp_path / "t.parquet").x, theirs.reader(tmp_path / "t.csv").x)


def test_odd_parquet_columns_are_named(tmp_path: Path) -> None:
    pandas.DataFrame({"list": [[1], [2], [3]], "y": [1, 2, 3]}).to_parquet(tmp_path / "t.parquet")
    with pytest.raises(BadInput, match="column 'list' holds values of type list"):
        load_file(tmp_path / "t.parquet")


def test_a_table_without_header_and_with_quotes(tmp_path: Path) -> None:
    (tmp_path / "n.csv").write_text('1,2,0\r\n3,"4",1\r\n\r\n5,6,0\r\n7,8,1\r\n')
    assert list(read_columns(tmp_path / "n.csv")) == ["c0", "c1", "c2"]
    (tmp_path / "q.csv").write_text('\ufeffa,"b, c"\n"x\ny",1\n', encoding="utf-8")
    columns = read_columns(tmp_path / "q.csv")
    assert list(columns) == ["a", "b, c"] and columns["a"].tolist() == ["x\ny"]


def idx(array: np.ndarray) -> bytes:
    kinds = {"u1": 8, "i1": 9, "i2": 11, "i4": 12, "f4": 13, "f8": 14}
    head = bytes([0, 0, kinds[array.dtype.str[1:]], array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return head + array.astype(array.dtype.newbyteorder(">")).tobytes()


@pytest.mark.parametrize("kind", ["u1", "i1", "i2", "i4", "f4", "f8"])
def test_idx_of_every_type(tmp_path: Path, kind: str) -> None:
    array = (np.arange(24).reshape(2, 3, 4) * 5 - 7).astype(kind)
    (tmp_path / "a.idx").write_bytes(idx(array))
    (tmp_path / "a-ubyte.gz").write_bytes(gzip.compress(idx(array)))
    for name in ("a.idx", "a-ubyte.gz"):
        got = read_idx(tmp_path / name)
        assert got.dtype == array.dtype and np.array_equal(got, array)


def images(n: int = 30, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (n, 5, 4), dtype=np.uint8), np.arange(n, dtype=np.uint8) % 3


def test_idx_images_find_their_labels(tmp_path: Path) -> None:
    x, y = images()
    (tmp_path / "my-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(x)))
    (tmp_path / "my-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(y)))
    data = load_file(tmp_path / "my-images-idx3-ubyte.gz", valid=6, test=3)
    assert data.classes == ("0", "1", "2") and data.task == "classes"
    batch = data.train[:]
    assert batch.x.shape == (21, 1, 5, 4) and torch.equal(batch.y, batch.ids % 3)
    pixels = x[batch.ids.numpy()].astype(np.float64)
    np.testing.assert_allclose(batch.x[:, 0], (pixels - pixels.mean()) / pixels.std(), atol=1e-5)
    assert data.train.fields["x"].dtype == torch.uint8
    again = data.reader(tmp_path / "my-images-idx3-ubyte.gz")
    assert torch.equal(again.x[batch.ids], batch.x)
    with pytest.raises(BadInput, match="no target 'labels'"):
        load_file(tmp_path / "my-labels-idx1-ubyte.gz", target="labels")


def test_npy_rows_are_a_table_and_npy_images_have_a_label_file(tmp_path: Path) -> None:
    rows = np.column_stack([np.random.default_rng(0).normal(size=(30, 2)), np.arange(30) % 2])
    np.save(tmp_path / "rows.npy", rows)
    data = load_file(tmp_path / "rows.npy")
    assert data.features == ("c0", "c1") and data.classes == ("0", "1")
    np.save(tmp_path / "new.npy", rows[:4, :2])
    assert torch.equal(data.reader(tmp_path / "new.npy").x, data.reader(tmp_path / "rows.npy").x[:4])
    x, y = images()
    np.save(tmp_path / "x.npy", np.asfortranarray(np.repeat(x[..., None], 3, -1)))
    np.save(tmp_path / "y.npy", np.array(["ant", "bee", "cow"])[y])
    data = load_file(tmp_path / "x.npy", target="y.npy")
    batch = data.train[:]
    assert data.classes == ("ant", "bee", "cow") and batch.x.shape[1:] == (3, 5, 4) and torch.equal(batch.y, batch.ids % 3)
    assert torch.equal(data.reader(tmp_path / "x.npy").x[batch.ids], batch.x)
    np.save(tmp_path / "one.npy", np.repeat(x[..., None], 3, -1)[7].transpose(2, 0, 1))
    assert torch.equal(data.reader(tmp_path / "one.npy").x[0], data.reader(tmp_path / "x.npy").x[7])


def test_npz_with_x_and_y_or_with_parts(tmp_path: Path) -> None:
    x, y = images()
    np.savez_compressed(tmp_path / "a.npz", X=x, y=y)
    assert load_file(tmp_path / "a.npz").train[:].x.shape == (24, 1, 5, 4)
    np.savez(tmp_path / "b.npz", x_train=x[:20], y_train=y[:20], x_test=x[20:], y_test=y[20:])
    data = load_file(tmp_path / "b.npz", valid=4)
    assert (
        data.test is not None
        and data.test[:].ids.tolist() == list(range(20, 30))
        and {n: len(s) for n, s in data.splits.items()} == {"train": 16, "valid": 4, "test": 10}
    )
    np.savez(tmp_path / "c.npz", x=np.random.default_rng(0).normal(size=(20, 3)), y=np.linspace(0, 1, 20))
    assert load_file(tmp_path / "c.npz").task == "values"
    np.savez(tmp_path / "d.npz", x=np.zeros((9, 2, 2, 2), np.float32) + np.arange(9)[:, None, None, None], y=np.ones((9, 4)))
    assert load_file(tmp_path / "d.npz").train[:].y.shape == (7, 4)
    np.savez(tmp_path / "e.npz", data=x)
    with pytest.raises(BadInput, match="no array 'x' or 'x_train', but data"):
        load_file(tmp_path / "e.npz")
    np.savez(tmp_path / "f.npz", x=x, y=y[:5])
    with pytest.raises(BadInput, match="30 examples but 5 targets"):
        load_file(tmp_path / "f.npz")


def test_values_that_are_not_finite_are_counted_and_named(tmp_path: Path) -> None:
    x = np.zeros((9, 2, 3, 3)) + np.arange(9)[:, None, None, None]
    x[2, 0, 1, 1], x[5, :, 0, 0], x[7, 0, 0, 0] = np.nan, np.inf, 1e300
    np.savez(tmp_path / "a.npz", x=x)
    with pytest.raises(BadInput, match=r"4 values in 3 of 9 examples of 'a.npz' are not finite \(first in example 2\)"):
        load_file(tmp_path / "a.npz")
    data = load_file(tmp_path / "a.npz", missing="drop", valid=1, test=1)
    assert data.report["examples not finite dropped"] == 3
    assert sorted(torch.cat([s[:].ids for s in data.splits.values()]).tolist()) == [0, 1, 3, 4, 6, 8]


class Bomb:
    def __reduce__(self):
        return Path.touch, (Path(self.path),)

    def __init__(self, path: Path) -> None:
        self.path = str(path)


def test_objects_that_could_run_code_are_never_read(tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    np.save(tmp_path / "bomb.npy", np.array([Bomb(canary)], object), allow_pickle=True)
    np.savez(tmp_path / "bomb.npz", x=np.array([Bomb(canary)], object))
    for name in ("bomb.npy", "bomb.npz"):
        with pytest.raises(BadInput, match="can run code"):
            load_file(tmp_path / name)
    assert not canary.exists()


def test_sizes_in_a_header_are_checked_before_memory_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "a.idx").write_bytes(bytes([0, 0, 14, 4]) + b"\xff" * 16 + b"\0" * 8)
    with pytest.raises(BadInput, match="holds 8 bytes"):
        read_idx(tmp_path / "a.idx")
    good = io.BytesIO()
    np.save(good, np.zeros(4))
    lie = good.getvalue().replace(b"(4,), ", b"(9,), ")
    (tmp_path / "a.npy").write_bytes(lie)
    with pytest.raises(BadInput, match="says it holds 9 values"):
        read_npy(tmp_path / "a.npy")
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as box:
        box.writestr("x.npy", lie)
    with pytest.raises(BadInput, match="says it holds 9 values"):
        read_npz(tmp_path / "a.npz")


def test_a_packed_file_that_grows_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sonde.data.formats.LIMIT", 1 << 16)
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(b"a,b\n" + b"1,2\n" * 100_000))
    np.savez_compressed(tmp_path / "a.npz", x=np.zeros(1 << 20))
    for name in ("a.csv.gz", "a.npz"):
        with pytest.raises(BadInput, match="more than"):
            load_file(tmp_path / name)


def save(path: Path, pixels: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


def picture_folder(root: Path, n: int = 6) -> dict[str, np.ndarray]:
    rng, pictures = np.random.default_rng(0), {}
    for kind in ("cat", "dog"):
        for i in range(n):
            pictures[f"{kind}/{i}"] = rng.integers(0, 256, (6, 5, 3), dtype=np.uint8)
            save(root / kind / f"{i}.png", pictures[f"{kind}/{i}"])
    return pictures


def test_a_folder_of_pictures_per_class(tmp_path: Path) -> None:
    pixels = np.stack(list(picture_folder(tmp_path).values())).astype(np.float64) / 255
    data = load_file(tmp_path, valid=2, test=2)
    assert data.classes == ("cat", "dog") and data.task == "classes" and data.report["corrupt images skipped"] == 0
    batch = data.train[:]
    assert torch.equal(batch.y, (batch.ids >= 6).long()) and batch.x.shape == (8, 3, 6, 5)
    mine = pixels[batch.ids.numpy()].transpose(0, 3, 1, 2)
    expected = (mine - mine.mean((0, 2, 3), keepdims=True)) / mine.std((0, 2, 3), keepdims=True)
    np.testing.assert_allclose(batch.x, expected, atol=1e-5)
    new = data.reader(tmp_path)
    assert torch.equal(new.x[batch.ids], batch.x) and new.y.tolist() == [0] * 6 + [1] * 6
    one = data.reader(tmp_path / "dog" / "2.png")
    assert torch.equal(one.x[0], new.x[8]) and "y" not in one
    assert torch.equal(data.reader(tmp_path / "dog").x, new.x[6:])


def test_pictures_with_train_and_test_folders(tmp_path: Path) -> None:
    picture_folder(tmp_path / "train", 8)
    picture_folder(tmp_path / "test", 2)
    data = load_file(tmp_path, valid=0.25)
    assert {n: len(s) for n, s in data.splits.items()} == {"train": 12, "valid": 4, "test": 4}
    assert data.test is not None and data.test[:].y.tolist() == [0, 0, 1, 1]


def test_corrupt_mixed_and_missing_pictures_are_named(tmp_path: Path) -> None:
    picture_folder(tmp_path)
    (tmp_path / "cat" / "2.png").write_bytes((tmp_path / "cat" / "2.png").read_bytes()[:60])
    with pytest.raises(BadInput, match=r"'cat/2.png' is a corrupt image.*skip_corrupt"):
        load_file(tmp_path)
    data = load_file(tmp_path, skip_corrupt=True)
    assert data.report["corrupt images skipped"] == 1 and data.report["skipped"] == "cat/2.png" and data.report["examples read"] == 11
    (tmp_path / "cat" / "2.png").unlink()
    save(tmp_path / "dog" / "wide.png", np.zeros((6, 9), np.uint8))
    with pytest.raises(BadInput, match=r"differ in size: 6 x 5 \(11\), 6 x 9 \(1\), such as 'dog/wide.png'; give size"):
        load_file(tmp_path)
    data = load_file(tmp_path, size=4)
    assert data.train[:].x.shape[1:] == (3, 4, 4)
    assert data.reader(tmp_path / "dog" / "wide.png").x.shape == (1, 3, 4, 4)
    assert load_file(tmp_path, size=(4, 7), color=False).train[:].x.shape[1:] == (1, 4, 7)
    (tmp_path / "emu").mkdir()
    with pytest.raises(BadInput, match="class folder emu .* holds no images"):
        load_file(tmp_path, size=4)
    with pytest.raises(BadInput, match="folder 'dog' holds images of no class, two or more are needed"):
        load_file(tmp_path / "dog")


def test_pictures_of_the_same_name_are_told_by_their_folders(tmp_path: Path) -> None:
    picture_folder(tmp_path / "train", 4)
    picture_folder(tmp_path / "test", 2)
    data = load_file(tmp_path)
    (tmp_path / "test" / "dog" / "1.png").write_bytes(b"not an image")
    with pytest.raises(BadInput, match="'test/dog/1.png' is a corrupt image: no known format begins like this"):
        load_file(tmp_path)
    with pytest.raises(BadInput, match="'dog/1.png' is a corrupt image"):
        data.reader(tmp_path / "test")
    (tmp_path / "train" / "emu").mkdir()
    with pytest.raises(BadInput, match="class folder emu in 'train' holds no images"):
        load_file(tmp_path)


@pytest.mark.parametrize("where", ["", "train"])
def test_pictures_beside_the_folders_are_not_left_out_in_silence(tmp_path: Path, where: str) -> None:
    picture_folder(tmp_path / "train", 4)
    picture_folder(tmp_path / "test", 2)
    (tmp_path / where / "notes.txt").write_text("kept by hand")
    load_file(tmp_path)
    save(tmp_path / where / "lost.png", np.zeros((6, 5), np.uint8))
    with pytest.raises(BadInput, match=r"has class folders but also images outside them: lost.png; move each"):
        load_file(tmp_path)


def test_one_picture_is_no_set(tmp_path: Path) -> None:
    picture_folder(tmp_path)
    with pytest.raises(BadInput, match=r"'0.png' is one image; give a folder that has a folder of images for each class"):
        load_file(tmp_path / "cat" / "0.png")


def test_a_class_of_which_nothing_can_be_read_is_named(tmp_path: Path) -> None:
    picture_folder(tmp_path)
    for i in range(3):
        (tmp_path / "emu").mkdir(exist_ok=True)
        (tmp_path / "emu" / f"{i}.jpg").write_bytes(b"\xff\xd8\xff")
    with pytest.raises(BadInput, match="of class emu in .* no image can be read"):
        load_file(tmp_path, skip_corrupt=True)


def test_every_class_has_pictures_to_train_on(tmp_path: Path) -> None:
    picture_folder(tmp_path / "train", 4)
    picture_folder(tmp_path / "test", 2)
    (tmp_path / "test" / "dog").rename(tmp_path / "test" / "dgo")
    with pytest.raises(BadInput, match="class folder dgo is in 'test' but not in 'train'; fix its name"):
        load_file(tmp_path)
    (tmp_path / "test" / "dgo").rename(tmp_path / "test" / "dog")
    for file in (tmp_path / "train" / "dog").iterdir():
        file.write_bytes(b"")
    with pytest.raises(BadInput, match="of class dog in .* no image to train on can be read"):
        load_file(tmp_path, skip_corrupt=True)


def test_links_that_lead_nowhere_are_named(tmp_path: Path) -> None:
    picture_folder(tmp_path)
    (tmp_path / "dog" / "dead.png").symlink_to(tmp_path / "gone.png")
    with pytest.raises(BadInput, match=r"no file 'dog/dead.png'.*skip_corrupt"):
        load_file(tmp_path)
    (tmp_path / "dog" / "dead.png").unlink()
    (tmp_path / "dog" / "circle.png").symlink_to(tmp_path / "dog" / "circle.png")
    assert load_file(tmp_path, skip_corrupt=True).report["skipped"] == "dog/circle.png"


def test_a_corrupt_file_with_an_odd_name_keeps_its_folder(tmp_path: Path) -> None:
    picture_folder(tmp_path)
    (tmp_path / "dog" / "a\nb\x1b[31m.png").write_bytes(b"")
    with pytest.raises(BadInput, match=r"'dog/a\\nb\\x1b\[31m.png' is a corrupt image"):
        load_file(tmp_path)


@pytest.mark.parametrize("kind", ["png", "tif", "pgm"])
def test_gray_values_of_16_bits_keep_their_first_8(tmp_path: Path, kind: str) -> None:
    values = np.array([[0, 257, 2000], [22000, 40000, 65535]], np.uint16)
    path = tmp_path / f"deep.{kind}"
    if kind == "pgm":
        path.write_bytes(b"P5 3 2 65535\n" + values.astype(">u2").tobytes())
    else:
        Image.fromarray(values).save(path)
    np.testing.assert_array_equal(read_picture(path), [[[0, 1, 8], [86, 156, 255]]])
    assert read_picture(path, color=True).shape == (3, 2, 3)


def test_numbers_that_are_no_pixels_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "ramp.tif"
    Image.fromarray(np.linspace(0, 1, 6, dtype=np.float32).reshape(2, 3)).save(path)
    with pytest.raises(
        BadInput, match="'ramp.tif' holds numbers from 0 to 1, not whole ones from 0 to 255 as an image does; save it with 8"
    ):
        read_picture(path)
    Image.fromarray(np.array([[0.0, 255.0, 7.0]], np.float32)).save(path)
    assert read_picture(path).tolist() == [[[0, 255, 7]]]


def test_photographs_stand_as_the_camera_was_held(tmp_path: Path) -> None:
    """EXIF 6: what is stored as the first row was the right border, from top to bottom."""
    pixels = np.zeros((16, 32, 3), np.uint8)
    pixels[:, 16:] = 255
    note = Image.Exif()
    note[0x0112] = 6
    Image.fromarray(pixels).save(tmp_path / "held.jpg", exif=note)
    picture = read_picture(tmp_path / "held.jpg")
    assert picture.shape == (3, 32, 16) and picture[:, :14].max() < 30 and picture[:, 18:].min() > 225
    Image.fromarray(np.array([[0, 257, 514], [771, 1028, 1285]], np.uint16)).save(tmp_path / "deep.png", exif=note)
    assert read_picture(tmp_path / "deep.png").tolist() == [[[3, 0], [4, 1], [5, 2]]]


def test_oddities_that_leave_a_picture_whole(tmp_path: Path) -> None:
    """A palette with a transparency for each color; a JPEG whose EXIF note ends too early.  Truncated ones stay refused."""
    pixels = np.arange(48, dtype=np.uint8).reshape(6, 8) % 5
    palette = Image.fromarray(pixels, "P")
    palette.putpalette([0, 0, 0, 10, 20, 30, 40, 50, 60, 70, 80, 90, 255, 0, 128])
    palette.save(tmp_path / "palette.png", transparency=bytes([0, 60, 120, 180, 255]))
    picture = read_picture(tmp_path / "palette.png")
    assert picture.shape == (3, 6, 8) and picture[:, 0, 1].tolist() == [10, 20, 30] and picture[:, 0, 4].tolist() == [255, 0, 128]
    save(tmp_path / "odd.jpg", np.full((8, 8, 3), 200, np.uint8))
    whole = (tmp_path / "odd.jpg").read_bytes()
    note = b"Exif\0\0II*\0\x08\0\0\0\x03\0"  # says three entries and has none
    (tmp_path / "odd.jpg").write_bytes(whole[:2] + b"\xff\xe1" + (len(note) + 2).to_bytes(2, "big") + note + whole[2:])
    assert abs(read_picture(tmp_path / "odd.jpg").astype(int) - 200).max() <= 2
    rng = np.random.default_rng(0)
    for name in ("cut.jpg", "cut.png", "cut.tif", "cut.gif", "cut.bmp", "cut.webp"):
        save(tmp_path / name, rng.integers(0, 256, (40, 30, 3), dtype=np.uint8))
        data = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(data[: len(data) // 2])
        with pytest.raises(BadInput, match=f"'{name}' is a corrupt image"):
            read_picture(tmp_path / name)


def test_resizing_looks_at_all_pixels(tmp_path: Path) -> None:
    save(tmp_path / "four.png", np.array([[0, 100], [200, 20]], np.uint8))
    assert read_picture(tmp_path / "four.png", size=(1, 1)).item() == 80


def test_fractions_for_a_model_of_whole_numbers_are_refused(tmp_path: Path) -> None:
    pixels = np.stack(list(picture_folder(tmp_path / "all").values())).transpose(0, 3, 1, 2)
    data = load_file(tmp_path / "all", valid=2, test=2)
    np.save(tmp_path / "whole.npy", pixels.astype(np.float32))
    assert torch.allclose(data.reader(tmp_path / "whole.npy").x, data.reader(tmp_path / "all").x)
    np.save(tmp_path / "part.npy", pixels / 255)
    with pytest.raises(BadInput, match="'part.npy' holds fractions from 0 to 1, .* whole numbers from 0 to 255; multiply them by 255"):
        data.reader(tmp_path / "part.npy")


def test_a_picture_of_the_wrong_size_is_refused_for_prediction(tmp_path: Path) -> None:
    picture_folder(tmp_path / "all")
    data = load_file(tmp_path / "all", valid=2, test=2)
    save(tmp_path / "small.png", np.zeros((3, 3, 3), np.uint8))
    with pytest.raises(BadInput, match="'small.png' are 3 x 3 x 3, the model was trained on 3 x 6 x 5"):
        data.reader(tmp_path / "small.png")


def test_digits_read_pictures_and_raw_values_alike(tmp_path: Path) -> None:
    data = catalog.load("digits")
    raw = np.arange(64, dtype=np.uint8).reshape(8, 8) % 17
    np.save(tmp_path / "raw.npy", raw)
    save(tmp_path / "raw.png", np.round(raw * (255 / 16)).astype(np.uint8))
    a, b = data.reader(tmp_path / "raw.npy").x, data.reader(tmp_path / "raw.png").x
    assert a.shape == b.shape == (1, 1, 8, 8)
    assert torch.allclose(a, b, atol=0.01)  # a byte of an image is 16/255 of a step, half of which rounding may cost


@pytest.mark.parametrize(
    "name, known", [("a.csv", True), ("x/y", True), ("./moons", True), ("moon", False), ("b.npz", True), ("c.csv.gz", True)]
)
def test_what_looks_like_a_path(name: str, known: bool) -> None:
    assert looks_like_path(name) is known


def test_missing_and_unknown_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "wine.csv").write_text("a,b\n1,2\n")
    with pytest.raises(BadInput, match="did you mean 'wine.csv'"):
        catalog.load(str(tmp_path / "wins.csv"))
    (tmp_path / "a.docx").write_bytes(b"x")
    with pytest.raises(BadInput, match="not a file type that can be read; give CSV"):
        catalog.load(tmp_path / "a.docx")
    (tmp_path / "latin.csv").write_bytes("a,b\ncaf\xe9,1\n".encode("latin-1"))
    with pytest.raises(BadInput, match="not UTF-8 text: byte 7 is 0xe9"):
        catalog.load(tmp_path / "latin.csv")
    assert suffix(Path("A.Tar.CSV.GZ")) == ".csv" and suffix(Path("none")) == ""


def test_options_tell_their_types() -> None:
    known = file_options(Path(__file__).parent)
    assert set(known) == {"valid", "test", "size", "color", "skip_corrupt", "standardize"} and known["size"].help
