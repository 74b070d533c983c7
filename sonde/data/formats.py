"""File formats: bytes -> arrays and columns.  Any bytes give either that or a one-line error.

Nothing here unpickles or runs what it reads, sizes in a header are checked against the size of the file before anything is
allocated, and compressed files are decompressed up to a limit.
"""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import lzma
import math
import warnings
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..core.errors import BadInput, ResourceFault, SondeError

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

LIMIT = 4 << 30
"""bytes a file may have once decompressed"""

PACKED: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".xz": lzma.open, ".bz2": bz2.open}
PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".pgm", ".ppm")

IDX_TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


def suffix(path: Path) -> str:
    """Suffix in lower case, without that of a compression: 'rows.CSV.gz' -> '.csv'."""
    name = path.name.lower()
    for packed in PACKED:
        name = name.removesuffix(packed)
    return "." + name.rsplit(".", 1)[1] if "." in name else ""


def read_bytes(path: Path) -> bytes:
    """All bytes of a file, decompressed if its suffix is one of a compression."""
    if not path.exists():
        raise BadInput(f"no file '{path.name}' in {path.parent}", fix="check the path")
    if not path.is_file():
        raise BadInput(f"'{path}' is not a file", fix="give the path of a data file")
    unpack = PACKED.get(path.suffix.lower())
    try:
        with open(path, "rb") as file:
            data = file.read(LIMIT + 1)
    except OSError as error:
        raise ResourceFault(f"'{path.name}' cannot be read: {error.strerror}", where=str(path), fix="check its permissions") from error
    if unpack is not None:
        with report_errors(path, "is a damaged compressed file"), unpack(io.BytesIO(data)) as file:
            data = file.read(LIMIT + 1)
    if len(data) > LIMIT:
        raise BadInput(f"'{path.name}' holds more than {LIMIT >> 30} GiB", fix="split it into smaller files")
    return data


@contextmanager
def report_errors(path: Path, what: str) -> Iterator[None]:
    """Turn any error of a parser into one line about the file."""
    try:
        yield
    except SondeError:
        raise
    except Exception as error:  # parsers raise nearly anything on invalid bytes
        why = str(error).strip().split("\n")[0][:120]
        raise BadInput(f"'{path.name}' {what}: {why or type(error).__name__}", fix="fix the file or give another") from error


def read_idx(path: Path) -> np.ndarray:
    """An idx file: two zero bytes, type, number of axes, each axis as 4 bytes, then the values, big-endian."""
    return parse_idx(read_bytes(path), path)


def parse_idx(data: bytes, path: Path) -> np.ndarray:
    if len(data) < 4 or data[:2] != b"\0\0" or data[2] not in IDX_TYPES or not 1 <= data[3] <= 8:
        raise BadInput(
            f"'{path.name}' is not an idx file: it starts with {data[:4].hex() or 'nothing'}",
            fix="give images as NPY, NPZ, idx, image file or folder of image files",
        )
    dtype, head = np.dtype(IDX_TYPES[data[2]]), 4 + 4 * data[3]
    if len(data) < head:
        raise BadInput(f"'{path.name}' ends inside its idx header", fix="get the whole file")
    shape = tuple(int.from_bytes(data[i : i + 4], "big") for i in range(4, head, 4))
    _check_size(path, len(data) - head, shape, dtype)
    return np.frombuffer(data, dtype, offset=head).reshape(shape).astype(dtype.newbyteorder("="))


def read_npy(path: Path) -> np.ndarray:
    """An NPY file of plain numbers or short texts; object arrays, which can run code, are refused."""
    return _parse_npy(read_bytes(path), path)


def _parse_npy(data: bytes, path: Path) -> np.ndarray:
    stream = io.BytesIO(data)
    with report_errors(path, "is not a readable NPY file"):
        version = np.lib.format.read_magic(stream)
        heads = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
        if version not in heads:
            raise ValueError(f"NPY version {version[0]}.{version[1]} is not one of plain arrays")
        shape, fortran, dtype = heads[version](stream)
    if dtype.hasobject:
        raise BadInput(f"'{path.name}' holds Python objects, which can run code when read; it was not read", fix="save plain numbers")
    if dtype.kind not in "biufUS" or dtype.itemsize == 0:
        raise BadInput(f"'{path.name}' holds values of type {dtype}", fix="save plain numbers")
    start = stream.tell()
    _check_size(path, len(data) - start, shape, dtype)
    with report_errors(path, "is not a readable NPY file"):
        flat = np.frombuffer(data, dtype, offset=start)
        return flat.reshape(shape, order="F" if fortran else "C").astype(dtype.newbyteorder("="))


def read_npz(path: Path) -> dict[str, np.ndarray]:
    """All arrays of an NPZ file by name."""
    data, arrays, total = read_bytes(path), {}, 0
    with report_errors(path, "is not a readable NPZ file"), zipfile.ZipFile(io.BytesIO(data)) as box:
        for member in box.infolist():
            total += member.file_size
            if total > LIMIT:
                raise BadInput(f"'{path.name}' unpacks to more than {LIMIT >> 30} GiB", fix="split it into smaller files")
            with box.open(member) as file:
                arrays[member.filename.removesuffix(".npy")] = _parse_npy(file.read(member.file_size + 1), path)
    return arrays


def _check_size(path: Path, actual: int, shape: Sequence[int], dtype: np.dtype) -> None:
    """Compare the size in a header with that of the file; integers of Python do not overflow."""
    expected = math.prod(shape) * dtype.itemsize
    if min(shape, default=0) < 0 or expected != actual:
        size = " x ".join(map(str, shape)) or "one"
        raise BadInput(
            f"'{path.name}' says it holds {size} values of {dtype} ({expected} bytes) but holds {actual} bytes", fix="get the whole file"
        )


def read_columns(path: Path, separator: str | None = None, header: bool | None = None) -> dict[str, np.ndarray]:
    """Columns of a CSV, TSV or Parquet file: texts as in the file, or float64 with NaN where a value is missing."""
    if suffix(path) in (".parquet", ".pq"):
        return _parquet(path)
    return _read_separated(path, separator or ("\t" if suffix(path) in (".tsv", ".tab") else None), header)


def read_text(path: Path) -> str:
    """The text of a UTF-8 file."""
    data = read_bytes(path)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadInput(
            f"'{path.name}' is not UTF-8 text: byte {error.start} is 0x{data[error.start]:02x}", fix="save it as UTF-8"
        ) from error


def _read_separated(path: Path, separator: str | None, header: bool | None) -> dict[str, np.ndarray]:
    text = read_text(path)
    if separator is None:
        first = text.split("\n", 1)[0]
        separator = max(",;\t|", key=first.count)  # the first of them where none occurs: one column
    if len(separator) != 1 or separator in '"\r\n ':
        raise BadInput(f"a separator is one character such as ',' or ';', not {separator!r}")
    rows, lines = [], []
    with report_errors(path, "is not a readable table"):
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator)
        for row in reader:
            if row:
                rows.append(row)
                lines.append(reader.line_num)
    if not rows:
        raise BadInput(f"'{path.name}' is empty", fix="give a table with a header and rows")
    if header is None:
        header = not all(_is_number(cell) for cell in rows[0])
    names = [cell.strip() or f"column {i}" for i, cell in enumerate(rows[0])] if header else [f"c{i}" for i in range(len(rows[0]))]
    twice = sorted({name for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else []
    if twice:
        raise BadInput(f"'{path.name}' has {names.count(twice[0])} columns named '{twice[0]}'", fix="give each column its own name")
    for row, line in zip(rows, lines, strict=True):
        if len(row) != len(names):
            raise BadInput(f"line {line} of '{path.name}' has {len(row)} cells, the first line has {len(names)}", fix="fix that line")
    body = rows[1:] if header else rows
    columns = zip(*body, strict=True) if body else ([] for _ in names)
    return {name: _texts(cells) for name, cells in zip(names, columns, strict=True)}


def _texts(cells: Sequence[str | None]) -> np.ndarray:
    out = np.empty(len(cells), object)
    out[:] = cells
    return out


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _parquet(path: Path) -> dict[str, np.ndarray]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise BadInput(f"'{path.name}' is a Parquet file and pyarrow is not installed", fix="pip install pyarrow") from error
    data, columns = read_bytes(path), {}
    with report_errors(path, "is not a readable Parquet file"):
        table = pyarrow.parquet.ParquetFile(io.BytesIO(data)).read()
        if len(set(table.column_names)) < len(table.column_names):
            raise ValueError("two columns have the same name")
        kinds = pyarrow.types
        for name, column in zip(table.column_names, table.columns, strict=True):
            kind = column.type.value_type if kinds.is_dictionary(column.type) else column.type
            if kinds.is_floating(kind) or kinds.is_integer(kind) or kinds.is_boolean(kind) or kinds.is_decimal(kind):
                values = column.cast(pyarrow.int8()) if kinds.is_boolean(kind) else column
                columns[name] = values.cast(pyarrow.float64(), safe=False).to_numpy().astype(np.float64)
            elif kinds.is_string(kind) or kinds.is_large_string(kind) or kinds.is_temporal(kind):
                columns[name] = _texts([None if cell is None else str(cell) for cell in column.to_pylist()])
            else:
                raise ValueError(f"column '{name}' holds values of type {kind}")
    return columns


def read_picture(path: Path, color: bool | None = None, size: tuple[int, int] | None = None) -> np.ndarray:
    """One image as uint8 (C, H, W), turned upright by its EXIF orientation.

    Gray values of 16 bits are scaled to 8; other values must be integers from 0 to 255.

    Args:
        color: 3 channels or 1; by default 3 if the image has color
        size: height and width to resize to
    """
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError as error:
        raise BadInput(f"'{path.name}' is an image and Pillow is not installed", fix="pip install pillow") from error
    data = read_bytes(path)
    with report_errors(path, "is a corrupt image"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about oddities that do not change the image
        warnings.simplefilter("error", Image.DecompressionBombWarning)  # an image that would decompress to gigabytes
        try:
            image = Image.open(io.BytesIO(data))
        except UnidentifiedImageError:  # its own message contains a memory address
            raise ValueError("no known format begins like this") from None
        with image as opened:
            if color is None:
                color = opened.mode.split(";")[0] not in ("1", "L", "LA", "La", "I", "F")
            opened.load()
            picture = _bytes(_upright(opened), opened.format == "PPM", path).convert("RGB" if color else "L")
            if size is not None and picture.size != (size[1], size[0]):
                picture = picture.resize((size[1], size[0]), Image.Resampling.BILINEAR)
            pixels = np.array(picture, dtype=np.uint8)
    return pixels.transpose(2, 0, 1).copy() if color else pixels[None]


def _bytes(picture: Picture, stretched: bool, path: Path) -> Picture:
    """Convert an image of one wide value per pixel to values from 0 to 255; others are returned as they are.

    Args:
        stretched: its values fill 16 bits whatever their type, as those of a deep PGM do
    """
    from PIL.Image import fromarray

    if not picture.mode.startswith(("I", "F")):
        return picture
    values = np.asarray(picture)
    if values.dtype.itemsize == 2 or stretched:
        values = np.round(values / 257)
    elif not ((values >= 0) & (values <= 255) & (values == np.round(values))).all():
        message = f"'{path.name}' holds numbers from {values.min():g} to {values.max():g}, not whole ones from 0 to 255 as an image does"
        raise BadInput(message, fix="save it with 8 or 16 bits, or give the numbers as NPY")
    return fromarray(values.astype(np.uint8))


def _upright(picture: Picture) -> Picture:
    """Apply the EXIF orientation, where it can be read."""
    from PIL.ImageOps import exif_transpose

    try:
        return exif_transpose(picture)
    except Exception:  # damaged EXIF data do not damage the pixels
        return picture
