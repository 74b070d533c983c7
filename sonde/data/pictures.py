"""Folders of image files -> one uint8 array (N, C, H, W), with errors that name corrupt files and those of another size."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..core.errors import BadInput, clean
from .formats import PICTURES, read_picture
from .split import list_names

LONG_WORK = 1000
PARTS = {"train": 0, "training": 0, "valid": 1, "val": 1, "validation": 1, "test": 2, "testing": 2}


class Pictures(NamedTuple):
    """Images, the indices of their files, and the files that could not be read."""

    x: np.ndarray
    kept: list[int]
    corrupt: list[str]


class Folder(NamedTuple):
    """A folder of images per class: files with their labels, train first, then valid, then test."""

    files: list[Path]
    labels: list[str]
    parts: list[int]
    """part of each file, or empty where the folder has no parts"""


def image_files(folder: Path) -> list[Path]:
    """All image files in a folder and below, sorted, broken links included, hidden files excluded."""
    paths = (path for path in folder.rglob("*") if path.suffix.lower() in PICTURES and (path.is_file() or not path.exists()))
    return sorted(path for path in paths if not any(part.startswith(".") for part in path.relative_to(folder).parts))


def by_class(folder: Path) -> Folder:
    """Files of `folder/CLASS/...`, or of `folder/train/CLASS/...` and `folder/test/CLASS/...`."""
    below = _folders(folder)
    names = {path.name.lower() for path in below}
    if names & {"train", "training"} and names <= set(PARTS):
        roots = sorted(((PARTS[path.name.lower()], path) for path in below), key=lambda pair: pair[0])
    else:
        roots = [(-1, folder)]
    for root in {folder, *(root for _, root in roots)}:
        if _folders(root) and (beside := [path.name for path in image_files(root) if path.parent == root]):
            message = f"'{root.name}' has class folders but also images outside them: {list_names(beside)}"
            raise BadInput(message, fix="move each into the folder of its class, or elsewhere")
    files, labels, parts = [], [], []
    for part, root in roots:
        empty = []
        for one in _folders(root):
            pictures = image_files(one)
            empty += [] if pictures else [one.name]
            files += pictures
            labels += [one.name] * len(pictures)
            parts += [part] * len(pictures)
        if empty:
            raise BadInput(f"class folder {list_names(empty)} in '{root.name}' holds no images", fix="add images or remove the folder")
        if untrained := sorted(set(labels) - {label for label, of in zip(labels, parts, strict=True) if of == roots[0][0]}):
            message = f"class folder {list_names(untrained)} is in '{root.name}' but not in '{roots[0][1].name}'"
            raise BadInput(message, fix="fix its name, or add images to train on")
    if len(set(labels)) < 2:
        raise BadInput(
            f"folder '{folder.name}' holds images of {'only one class' if labels else 'no class'}, two or more are needed",
            fix="put the images of each class into a folder of its own",
        )
    return Folder(files, labels, parts if roots[0][0] >= 0 else [])


def read(
    files: Sequence[Path],
    color: bool | None = None,
    size: tuple[int, int] | None = None,
    skip_corrupt: bool = False,
    root: Path | None = None,
) -> Pictures:
    """All files as one array; gray images among colored ones get three equal channels.

    Args:
        skip_corrupt: leave out what cannot be read
        root: errors name files by their path from here, such as 'cat/2.png': classes often have files of the same name
    """
    from rich.console import Console
    from rich.progress import track

    def name(path: Path) -> str:
        return path.name if root is None else path.relative_to(root).as_posix()

    console = Console(stderr=True)
    quiet = len(files) < LONG_WORK or not console.is_terminal
    images, kept, corrupt = [], [], []
    for i, path in enumerate(track(files, "reading images", console=console, transient=True, disable=quiet)):
        try:
            images.append(read_picture(path, color, size))
            kept.append(i)
        except BadInput as error:
            if not skip_corrupt:
                raise BadInput(
                    error.what.replace(clean(path.name), name(path), 1),
                    where=str(root or path.parent),
                    fix="fix it, remove it, or use --skip-corrupt (skip_corrupt=True)",
                ) from error
            corrupt.append(name(path))
    if not images:
        raise BadInput(f"none of {len(files)} images can be read: {list_names(corrupt)}", fix="give images that other programs can show")
    if len({picture.shape[0] for picture in images}) > 1:
        images = [np.repeat(picture, 3, 0) if len(picture) == 1 else picture for picture in images]
    sizes = Counter(picture.shape[1:] for picture in images)
    if len(sizes) > 1:
        shown = list_names([f"{height} x {width} ({count})" for (height, width), count in sizes.most_common()], 4)
        odd = next(files[kept[i]] for i, picture in enumerate(images) if picture.shape[1:] != sizes.most_common(1)[0][0])
        raise BadInput(
            f"images differ in size: {shown}, such as '{name(odd)}'",
            fix="give size=N where they are loaded, or bring them to one size",
        )
    return Pictures(np.stack(images), kept, corrupt)


def _folders(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
