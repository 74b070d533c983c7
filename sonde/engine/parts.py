"""The states of all parts of a run that have one: gathered from its processes for a checkpoint, and handed out again.

The state of a part is a tree of tensors, segments and JSON (`core.state_tree`).  What belongs to a shard is under `shard-<number>`; every
process gives that of its own shards, whichever those are, and gets that of its own shards back.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from ..core import files, tensors
from ..core.errors import DataUnusable
from ..core.segments import Segments
from ..core.state_tree import StateParts, join, segment_names, split

SHARD = re.compile(r"shard-(\d+)")


@runtime_checkable
class Stateful(Protocol):
    """Anything that a checkpoint must keep besides the model."""

    def state_dict(self) -> Mapping[str, Any]: ...

    def load_state_dict(self, state: Any) -> Any: ...


@dataclass(frozen=True)
class Gathered:
    """The states of all parts.  Only rank 0 has those of other processes; segments stay where they are."""

    json: dict[str, Any] = field(default_factory=dict)
    """part -> JSON of its state"""
    tensors: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    """part -> its tensors"""
    segments: list[Segments] = field(default_factory=list)
    """those of this process"""

    @property
    def names(self) -> set[str]:
        """The blocks of all segments."""
        return segment_names(self.json)


def gather(states: Mapping[str, Any], world: Any) -> Gathered:
    """The states of all processes together.

    Args:
        states: part -> its state on this process.
    """
    own = {name: split(state if world.is_main else _of_shards(state), name) for name, state in states.items()}
    gathered = Gathered({}, {}, [one for parts in own.values() for one in parts.segments])
    messages = world.gather_bytes(_encode(own)) if world.size > 1 else []
    for name, parts in own.items():
        gathered.json[name], gathered.tensors[name] = parts.json, parts.tensors
    for message in messages[1:]:
        for name, parts in _decode(message).items():
            gathered.json[name] = {**gathered.json.get(name, {}), **parts.json}
            gathered.tensors[name] = {**gathered.tensors.get(name, {}), **parts.tensors}
    return gathered


def load(
    parts: Mapping[str, Stateful],
    json: Mapping[str, Any],
    values: Mapping[str, Mapping[str, Tensor]],
    own: range,
    read: Callable[[str], bytes],
) -> None:
    """Give every part its saved state: what belongs to no shard, and what belongs to the shards of this process.

    Args:
        parts: those that have a state.
        json: part -> JSON of its state.
        values: part -> its tensors.
        own: the shards of this process.
        read: gives the bytes of a block of a segment by its name.
    """
    for name, part in parts.items():
        if name in json:
            try:
                part.load_state_dict(join(_without_others(json[name], own), values.get(name, {}), read))
            except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
                raise DataUnusable(f"the state of the {name} cannot be restored: {type(error).__name__}: {error}") from error


def _of_shards(state: Any) -> dict[str, Any]:
    return {name: value for name, value in state.items() if SHARD.fullmatch(name)} if isinstance(state, Mapping) else {}


def _without_others(json: Any, own: range) -> Any:
    if not isinstance(json, dict):
        return json
    shards = {name: SHARD.fullmatch(name) for name in json}
    return {name: value for name, value in json.items() if not (match := shards[name]) or int(match.group(1)) in own}


def _encode(own: Mapping[str, StateParts]) -> bytes:
    text = files.dump_json({name: parts.json for name, parts in own.items()})
    values = {f"{name}:{path}": tensor for name, parts in own.items() for path, tensor in parts.tensors.items()}
    return len(text).to_bytes(8, "little") + text + b"".join(tensors.encode(values))


def _decode(message: bytes) -> dict[str, StateParts]:
    end = 8 + int.from_bytes(message[:8], "little")
    parts = {name: StateParts(json) for name, json in files.parse_json(message[8:end]).items()}
    for name, tensor in tensors.decode(message[end:]).items():
        part, _, path = name.partition(":")
        parts[part].tensors[path] = tensor
    return parts
