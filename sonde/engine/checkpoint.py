"""Checkpoints: the tensors and the state of a training loop as a folder on the disk, and back."""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from ..core import renamed, tensors
from ..core.errors import BadInput, DataUnusable, NoCheckpoint
from ..runs import checkpoints
from ..runs.checkpoints import damage_error, path_of, set_aside, steps, sweep

PARTS = ("model", "optim", "rng", "best")
"""what every checkpoint has; other parts go by their own names"""


@dataclass(frozen=True)
class Checkpoint:
    """One loaded checkpoint: tensors by part, the JSON state, and the manifest it was checked against."""

    step: int
    parts: Mapping[str, Mapping[str, Tensor]]
    state: dict[str, Any]
    manifest: dict[str, Any]


def save(
    folder: Path,
    step: int,
    parts: Mapping[str, Mapping[str, Tensor]],
    state: Mapping[str, Any],
    about: Mapping[str, Any],
    segments: Collection[str] = (),
) -> Path:
    """Write one checkpoint; when this returns it is on the disk, and before that nothing else has changed.

    Any failure leaves the earlier checkpoints as they were, removes what was half written and raises ResourceFault.

    Args:
        segments: names of those it refers to; they are on the disk
    """
    need = int(1.1 * sum(tensors.encoded_size(part) for part in parts.values())) + (1 << 16)
    contents = {f"{name}.safetensors": tensors.encode(part) for name, part in parts.items()}
    return checkpoints.write(folder, step, contents, need, state, about, segments)


def read(path: Path, names: Container[str] = (), whole: bool = True) -> Checkpoint:
    """Load one checkpoint, checking manifest, file set, sizes and hashes before any tensor is used.

    Args:
        names: of the model's tensors; an older version may have saved them under other names
        whole: check its segments too, which the weights do not need
    """
    try:
        return _read(path, names, whole)
    except BadInput:  # of a newer version: not damaged
        raise
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise damage_error(path, str(error)) from error


def _read(path: Path, names: Container[str], whole: bool) -> Checkpoint:
    content, state, manifest = checkpoints.verify(path, [f"{part}.safetensors" for part in PARTS], whole)
    parts = {name.removesuffix(".safetensors"): tensors.decode(data) for name, data in content.items() if name != "state.json"}
    for part in {"model", "best", "average"} & parts.keys():
        parts[part] = {renamed.tensor(name, names): value for name, value in parts[part].items()}
    moments = ((*name.rpartition("."), value) for name, value in parts["optim"].items())
    parts["optim"] = {f"{renamed.tensor(parameter, names)}{dot}{moment}": value for parameter, dot, moment, value in moments}
    return Checkpoint(manifest["step"], parts, state, manifest)


def newest(
    folder: Path, fits: Callable[[Checkpoint], None], report: Callable[[str], None], names: Container[str] = ()
) -> Checkpoint | None:
    """The newest good checkpoint; damaged ones are renamed `bad-...`, never deleted, and reported.

    fits(checkpoint) raises where it cannot be loaded into the model.  None means a run without checkpoints;
    checkpoints that are all damaged are an error.  `names` is as in `read`.
    """
    sweep(folder)
    refused: list[str] = []
    strange: dict[Path, str] = {}
    for step in reversed(steps(folder)):
        path = path_of(folder, step)
        try:
            snapshot = read(path, names)
        except DataUnusable as error:
            refused.append(error.what)
            report(error.what)
            set_aside(path)
            continue
        try:
            fits(snapshot)
        except DataUnusable as error:  # sound, but of another model; if all are, none is touched
            strange[path] = f"checkpoint {path.name} does not fit the model: {error.what}"
            refused.append(strange[path])
            continue
        for path, message in strange.items():
            report(message)
            set_aside(path)
        return snapshot
    if refused or any(folder.glob("bad-*")):
        raise NoCheckpoint(
            "no checkpoint of this run can be loaded" + (f": {refused[-1]}" if refused else ""),
            where=str(folder),
            last_good="none",
            fix="start again with another --run, or restore the directory from a copy",
        )
    return None


def best_weights(snapshot: Checkpoint) -> Mapping[str, Tensor]:
    """The best weights a checkpoint knows of."""
    return snapshot.parts["best"] or last_weights(snapshot)


def last_weights(snapshot: Checkpoint) -> Mapping[str, Tensor]:
    """The weights of a checkpoint as a user wants them: averaged where the run averages them."""
    return snapshot.parts.get("average") or snapshot.parts["model"]
