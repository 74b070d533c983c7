"""Checkpoints that survive: written aside, synced, renamed, with a checksum for every byte.

    checkpoints/step-00001200/
        model.safetensors  optim.safetensors  rng.safetensors
        best.safetensors   the best weights so far, unless they are those of model.safetensors
        state.json         step, best figure, early stopping, position in metrics.jsonl, callbacks
        manifest.json      written last: format, step, run id, fingerprint, {file: [size, sha256]}

Why both defenses: checksums alone never load garbage but can lose an acknowledged checkpoint at a power loss; syncing
alone cannot see bit rot.  Order is by step number, never by file time.
"""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from ..core import files, tensors
from ..core.errors import BadInput, DataUnusable, NoCheckpoint
from ..runs.checkpoints import FORMAT, NAME, _digest, _fault, _verified, damaged, path_of, set_aside, steps, sweep

PARTS = ("model", "optim", "rng", "best")


@dataclass(frozen=True)
class Checkpoint:
    """One loaded checkpoint: tensors by part, the JSON state, and the manifest it was checked against."""

    step: int
    parts: Mapping[str, Mapping[str, Tensor]]
    state: dict[str, Any]
    manifest: dict[str, Any]


def save(folder: Path, step: int, parts: Mapping[str, Mapping[str, Tensor]], state: Mapping[str, Any], about: Mapping[str, Any]) -> Path:
    """Write one checkpoint; when this returns it is on the disk, and before that nothing else has changed.

    Any failure leaves the earlier checkpoints as they were, removes what was half written and raises ResourceFault.
    """
    final = path_of(folder, step)
    if final.exists():
        return final
    need = int(1.1 * sum(tensors.encoded_size(part) for part in parts.values())) + (1 << 16)
    written = files.dump_json(state)
    if len(written) > files.JSON_LIMIT:
        raise BadInput(
            f"the state to be saved takes {len(written)} bytes", where="callbacks", fix="keep large things in files of their own"
        )
    aside = folder / f".tmp-{step}-{os.getpid()}-{secrets.token_hex(4)}"
    try:
        free = files.disk.free_bytes(folder)
        if free < need:
            raise OSError(errno.ENOSPC, "not enough room")
        files.disk.mkdir(aside)
        listing = {}
        for name, part in parts.items():
            listing[f"{name}.safetensors"] = files.write_file(aside / f"{name}.safetensors", tensors.encode(part))
        listing["state.json"] = files.write_file(aside / "state.json", [written])
        manifest = {"format": FORMAT, "step": step, **about, "files": {name: list(entry) for name, entry in listing.items()}}
        files.write_file(aside / "manifest.json", [files.dump_json({**manifest, "sha256": _digest(manifest)})])
        files.disk.fsync_directory(aside)
        files.disk.rename(aside, final)
    except OSError as error:
        files.remove_quietly(aside)
        raise _fault(error, folder, need) from error
    except BaseException:
        files.remove_quietly(aside)
        raise
    try:
        files.disk.fsync_directory(folder)
    except OSError as error:
        raise _fault(error, folder, need) from error
    return final


def read(path: Path) -> Checkpoint:
    """Load one checkpoint, checking manifest, file set, sizes and hashes before any tensor is used."""
    try:
        return _read(path)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise damaged(path, str(error)) from error


def _read(path: Path) -> Checkpoint:
    manifest = files.parse_json(files.read_file(path / "manifest.json", limit=1 << 20))
    if not isinstance(manifest, dict) or not isinstance(manifest.get("files"), dict):
        raise damaged(path, "manifest.json is not a manifest")
    if manifest.pop("sha256", None) != _digest(manifest):
        raise damaged(path, "manifest.json does not match its checksum")
    if type(manifest.get("format")) is int and manifest["format"] > FORMAT:
        raise BadInput(f"checkpoint {path.name} was made by a newer version of Sonde", where=str(path), fix="use that version")
    if manifest.get("format") != FORMAT:
        raise damaged(path, f"it has format {manifest.get('format')!r}, not {FORMAT}")
    match = NAME.match(path.name.removeprefix("bad-"))
    if type(manifest.get("step")) is not int or (match and int(match.group(1)) != manifest["step"]):
        raise damaged(path, "manifest.json belongs to another step")
    wanted = {f"{part}.safetensors" for part in PARTS} | {"state.json"}
    listed, present = set(manifest["files"]), {entry.name for entry in path.iterdir()} - {"manifest.json"}
    if listed != wanted or present != wanted:
        raise damaged(path, "files missing or extra: " + ", ".join(sorted((listed | present) ^ wanted)))
    content = {name: _verified(path / name, *manifest["files"][name]) for name in sorted(wanted)}
    if len(content["state.json"]) > files.JSON_LIMIT:
        raise damaged(path, "state.json is too large")
    state = files.parse_json(content["state.json"])
    if not isinstance(state, dict) or state.get("step") != manifest["step"]:
        raise damaged(path, "state.json belongs to another step")
    parts = {part: tensors.decode(content[f"{part}.safetensors"]) for part in PARTS}
    return Checkpoint(manifest["step"], parts, state, manifest)


def newest(folder: Path, fits: Callable[[Checkpoint], None], tell: Callable[[str], None]) -> Checkpoint | None:
    """The newest good checkpoint; damaged ones are renamed `bad-...`, never deleted, and told about.

    fits(checkpoint) raises where it cannot be loaded into the model.  None means a run without checkpoints;
    checkpoints that are all damaged are an error.
    """
    sweep(folder)
    refused: list[str] = []
    strange: dict[Path, str] = {}
    for step in reversed(steps(folder)):
        path = path_of(folder, step)
        try:
            snapshot = read(path)
        except DataUnusable as error:
            refused.append(error.what)
            tell(error.what)
            set_aside(path)
            continue
        try:
            fits(snapshot)
        except DataUnusable as error:  # sound, but of another model; if all are, none is touched
            strange[path] = f"checkpoint {path.name} does not fit the model: {error.what}"
            refused.append(strange[path])
            continue
        for path, message in strange.items():
            tell(message)
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
    return snapshot.parts["best"] or snapshot.parts["model"]
