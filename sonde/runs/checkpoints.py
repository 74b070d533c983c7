"""Checkpoints that survive: written to a temporary folder, synced, renamed, with a checksum for every byte.

    checkpoints/step-00001200/
        model.safetensors  optim.safetensors  rng.safetensors
        best.safetensors   the best weights so far, unless they are those of model.safetensors
        *.safetensors      tensors of any other part that has a state, by its name: stream, average, objective
        state.json         step, best metric, early stopping, position in metrics.jsonl, and the states of those parts
        manifest.json      written last: format, step, run id, fingerprint, {file: [size, sha256]}, names of segments
    checkpoints/segments/  large arrays in blocks that several checkpoints share: see segments.py

Format 1 had no other parts and no segments; it is still read.

Why both defenses: checksums alone never load garbage but can lose an acknowledged checkpoint at a power loss; syncing
alone cannot see bit rot.  Order is by step number, never by file time.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import secrets
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ..core import files
from ..core.errors import BadInput, DataUnusable, ResourceFault
from . import segments

FORMAT = 2
NAME = re.compile(r"step-(\d{8,})$")
MANIFEST_LIMIT = 16 << 20
FILE = re.compile(r"[a-z][a-z0-9_-]*\.safetensors")
"""names that the file of a part may have"""


def path_of(folder: Path, step: int) -> Path:
    return folder / f"step-{step:08d}"


def steps(folder: Path) -> list[int]:
    """Steps of the committed checkpoints, oldest first."""
    if not folder.is_dir():
        return []
    return sorted(int(match.group(1)) for entry in folder.iterdir() if (match := NAME.match(entry.name)) and entry.is_dir())


def write(
    folder: Path,
    step: int,
    contents: Mapping[str, Iterable[Any]],
    need: int,
    state: Mapping[str, Any],
    about: Mapping[str, Any],
    listed: Iterable[str] = (),
) -> Path:
    """Write one checkpoint; when this returns it is on the disk, and before that nothing else has changed.

    Any failure leaves the earlier checkpoints as they were, removes what was half written and raises ResourceFault.

    Args:
        contents: file name -> the chunks of the file
        need: bytes that must be free
        state: for state.json
        about: further entries of the manifest
        listed: names of the segments that it refers to; they are on the disk
    """
    final = path_of(folder, step)
    if final.exists():
        return final
    state_json = files.dump_json(state)
    if len(state_json) > files.JSON_LIMIT:
        raise BadInput(
            f"the state to be saved takes {len(state_json)} bytes", where="state.json", fix="keep what is large in tensors or segments"
        )
    aside = folder / f".tmp-{step}-{os.getpid()}-{secrets.token_hex(4)}"
    try:
        free = files.disk.free_bytes(folder)
        if free < need:
            raise OSError(errno.ENOSPC, "not enough room")
        files.disk.mkdir(aside)
        listing = {}
        for name, chunks in contents.items():
            listing[name] = files.write_file(aside / name, chunks)
        listing["state.json"] = files.write_file(aside / "state.json", [state_json])
        sizes = {name: list(entry) for name, entry in listing.items()}
        manifest = {"format": FORMAT, "step": step, **about, "files": sizes, "segments": sorted(listed)}
        files.write_file(aside / "manifest.json", [files.dump_json({**manifest, "sha256": _digest(manifest)})])
        files.disk.fsync_directory(aside)
        files.disk.rename(aside, final)
    except OSError as error:
        files.remove_quietly(aside)
        raise fault(error, folder, need) from error
    except BaseException:
        files.remove_quietly(aside)
        raise
    try:
        files.disk.fsync_directory(folder)
    except OSError as error:
        raise fault(error, folder, need) from error
    return final


def verify(path: Path, names: Iterable[str], whole: bool = True) -> tuple[dict[str, bytes], dict[str, Any], dict[str, Any]]:
    """The files of a checkpoint, its state and its manifest, once manifest, file set, sizes and hashes have been checked.

    Raises DataUnusable where something is wrong, or what reading a broken file raises: OSError, ValueError, KeyError, TypeError.

    Args:
        names: files that every checkpoint has
        whole: check the segments too
    """
    manifest = files.parse_json(files.read_file(path / "manifest.json", limit=MANIFEST_LIMIT))
    if not isinstance(manifest, dict) or not isinstance(manifest.get("files"), dict):
        raise damage_error(path, "manifest.json is not a manifest")
    if manifest.pop("sha256", None) != _digest(manifest):
        raise damage_error(path, "manifest.json does not match its checksum")
    if type(manifest.get("format")) is int and manifest["format"] > FORMAT:
        raise BadInput(f"checkpoint {path.name} was made by a newer version of Sonde", where=str(path), fix="use that version")
    if type(manifest.get("format")) is not int or manifest["format"] not in (1, FORMAT):
        raise damage_error(path, f"it has format {manifest.get('format')!r}, not {FORMAT}")
    match = NAME.match(path.name.removeprefix("bad-"))
    if type(manifest.get("step")) is not int or (match and int(match.group(1)) != manifest["step"]):
        raise damage_error(path, "manifest.json belongs to another step")
    listed, present = set(manifest["files"]), {entry.name for entry in path.iterdir()} - {"manifest.json"}
    more = {name for name in listed if FILE.fullmatch(name)} if manifest["format"] > 1 else set()
    expected = {*names, "state.json"} | more
    if listed != expected or present != expected:
        raise damage_error(path, "files missing or extra: " + ", ".join(sorted((listed | present) ^ expected)))
    content = {name: _verify(path / name, *manifest["files"][name]) for name in sorted(expected)}
    if len(content["state.json"]) > files.JSON_LIMIT:
        raise damage_error(path, "state.json is too large")
    state = files.parse_json(content["state.json"])
    if not isinstance(state, dict) or state.get("step") != manifest["step"]:
        raise damage_error(path, "state.json belongs to another step")
    for name in _segments_of(manifest) if whole else ():
        segments.read(path.parent, name)
    return content, state, manifest


def _segments_of(manifest: Mapping[str, Any]) -> list[str]:
    names = manifest.get("segments", [])
    if not isinstance(names, list) or not all(isinstance(name, str) and segments.NAME.fullmatch(name) for name in names):
        raise ValueError("its list of segments is not one")
    return names


def _digest(manifest: Mapping[str, Any]) -> str:
    """The checksum that a manifest carries of itself."""
    return hashlib.sha256(files.dump_json(manifest)).hexdigest()


def fault(error: OSError, folder: Path, need: int) -> ResourceFault:
    """The error of a checkpoint that a disk refused."""
    try:
        free = f"{files.disk.free_bytes(folder):,} bytes free"
    except OSError:
        free = "free space unknown"
    saved = steps(folder)
    return ResourceFault(
        f"a checkpoint could not be written: {error.strerror or error}",
        where=f"{folder} (need {need:,} bytes, {free})",
        last_good=f"checkpoint at step {saved[-1]}" if saved else "no checkpoint yet",
        fix="free some disk space or repair the directory; the run continues and tries again at the next checkpoint",
    )


def _verify(path: Path, size: Any, digest: Any) -> bytes:
    """The bytes of a file, if they are the bytes that were written."""
    actual = path.lstat().st_size
    if actual != size:
        raise damage_error(path.parent, f"{path.name} has {actual} bytes instead of {size}")
    data = files.read_file(path, actual)
    if hashlib.sha256(data).hexdigest() != digest:
        raise damage_error(path.parent, f"{path.name} does not match its checksum")
    return data


def damage_error(path: Path, why: str) -> DataUnusable:
    return DataUnusable(
        f"checkpoint {path.name} is damaged: {why}", where=str(path), fix="an earlier checkpoint is used where there is one"
    )


def set_aside(path: Path) -> None:
    """Rename a damaged checkpoint to `bad-...`; it is never deleted."""
    aside = path.with_name(f"bad-{path.name}")
    while aside.exists():
        aside = aside.with_name(aside.name + "-again")
    try:
        files.disk.rename(path, aside)
    except OSError as error:
        raise ResourceFault(
            f"the damaged checkpoint {path.name} cannot be set aside: {error.strerror}",
            where=str(path),
            last_good="nothing was changed",
            fix="make the directory writable, or rename it yourself",
        ) from error


def sweep(folder: Path) -> None:
    """Remove what an interrupted save or removal left behind."""
    for pattern in (".tmp-*", ".del-*"):
        for entry in folder.glob(pattern):
            files.remove_quietly(entry)


def retain(folder: Path, keep: int) -> None:
    """Drop all but the newest `keep` checkpoints; each is renamed first, then removed, now or at the next chance."""
    for step in steps(folder)[: -max(keep, 1)]:
        try:
            files.disk.rename(path_of(folder, step), folder / f".del-{step}-{secrets.token_hex(4)}")
        except OSError:
            continue
    sweep(folder)
    if (folder / segments.FOLDER).is_dir():
        _collect_segments(folder)


def _collect_segments(folder: Path) -> None:
    """Remove the segments that no checkpoint lists, nor one that was set aside; where a manifest cannot be read, none."""
    listed: set[str] = set()
    for path in (*folder.glob("step-*"), *folder.glob("bad-step-*")):
        try:
            listed |= set(_segments_of(files.parse_json(files.read_file(path / "manifest.json", limit=MANIFEST_LIMIT))))
        except (OSError, ValueError, AttributeError):
            if not path.name.startswith("bad-"):
                return
    segments.collect(folder, listed)
