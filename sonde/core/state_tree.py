"""The state of any part of a run as JSON, tensors and segments: how a checkpoint keeps what it knows nothing about.

{"epoch": 3, "weights": tensor, "shards": [{"buffer": Segments(...)}]}
    JSON      {"epoch": 3, "weights": {"$tensor": "weights"}, "shards": [{"buffer": {"$segments": {...}}}]}
    tensors   {"weights": tensor}
    segments  [Segments(...)]
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from .errors import BadInput, DataUnusable
from .segments import Segments


@dataclass(frozen=True)
class StateParts:
    """A state in the three forms in which it is stored."""

    json: Any
    tensors: dict[str, Tensor] = field(default_factory=dict)
    segments: list[Segments] = field(default_factory=list)


def split(state: Any, owner: str) -> StateParts:
    """Take a state apart; BadInput names what cannot be saved.

    Args:
        state: dictionaries with text as keys, lists, tensors, `Segments`, numbers, text, yes or no, None.
        owner: whose state it is, for the error.
    """
    parts = StateParts(None)
    return StateParts(_split(state, (), parts, owner), parts.tensors, parts.segments)


def join(json: Any, tensors: Mapping[str, Tensor], read: Callable[[str], bytes]) -> Any:
    """The state again; DataUnusable where something is missing.

    Args:
        read: gives the bytes of a block of a segment by its name.
    """
    try:
        return _join(json, tensors, read)
    except (KeyError, TypeError, ValueError, OSError) as error:
        raise DataUnusable(f"a saved state cannot be put together: {type(error).__name__}: {error}") from error


def segment_names(json: Any) -> set[str]:
    """Names of all blocks that the JSON of a state refers to."""
    if isinstance(json, dict):
        if "$segments" in json:
            return set(json["$segments"]["names"])
        return set().union(*map(segment_names, json.values()))
    return set().union(*map(segment_names, json)) if isinstance(json, list) else set()


def _split(value: Any, path: tuple[str, ...], parts: StateParts, owner: str) -> Any:
    where = "/".join(path) or "the state"
    if isinstance(value, Tensor):
        parts.tensors[where] = value.detach()
        return {"$tensor": where}
    if isinstance(value, Segments):
        parts.segments.append(value)
        return {"$segments": value.describe()}
    if isinstance(value, Mapping):
        for name in value:
            if not isinstance(name, str) or name.startswith("$") or "/" in name:
                raise BadInput(f"the state of {owner} has the key {name!r}", where=where, fix="use text without '$' and '/' as keys")
        return {name: _split(item, (*path, name), parts, owner) for name, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        return [_split(item, (*path, str(number)), parts, owner) for number, item in enumerate(value)]
    if isinstance(value, float) and not math.isfinite(value):
        return {"$float": str(value)}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise BadInput(
        f"the state of {owner} holds a {type(value).__name__}, which cannot be saved", where=where, fix="use tensors, numbers and text"
    )


def _join(json: Any, tensors: Mapping[str, Tensor], read: Callable[[str], bytes]) -> Any:
    if isinstance(json, list):
        return [_join(item, tensors, read) for item in json]
    if not isinstance(json, dict):
        return json
    if "$tensor" in json:
        return tensors[json["$tensor"]]
    if "$segments" in json:
        return Segments.restore(json["$segments"], read)
    if "$float" in json:
        return float(json["$float"])
    return {name: _join(item, tensors, read) for name, item in json.items()}
