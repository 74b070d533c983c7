"""Writing checkpoints: at once, or in the background, where the next step waits for a copy in memory and not for the disk.

    1  every process writes the blocks of its segments that are not on the disk yet
    2  rank 0 waits until all blocks are there, writes the checkpoint and then removes older ones

Nothing refers to a block before step 2 is complete, so a kill at any instant leaves the checkpoint before.  A new save begins when the
one before it has ended on rank 0; so no block is removed as unused while another process writes it for the next checkpoint.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from ..core.errors import ResourceFault
from ..core.segments import Segments, encode_block
from ..core.tensors import decode, encode
from ..runs import checkpoints, segments
from . import checkpoint
from .parts import Gathered

POLL = 0.005
"""seconds between two looks at the disk for a block that another process writes"""
PATIENCE = 20.0
"""seconds that the end of a run waits for such blocks"""
GROUP = 32
"""blocks that are sent to rank 0 at a time, where processes share no disk"""


@dataclass(frozen=True)
class Snapshot:
    """Everything that rank 0 writes at one step."""

    step: int
    parts: Mapping[str, Mapping[str, Tensor]]
    state: Mapping[str, Any]
    about: Mapping[str, Any]
    names: frozenset[str]
    """blocks that it refers to"""
    keep: int
    """checkpoints to keep"""
    sync: Callable[[], None]
    """puts the rows on the disk that the state speaks of"""


@dataclass
class Outcome:
    """How a save ended."""

    step: int
    bytes: int = 0
    """bytes of segments that this process wrote"""
    fault: BaseException | None = None


class Saver:
    """Writes the checkpoints of a run.

    Args:
        folder: where they are.
        world: the processes of the run.
        shared: whether all of them see the folder.
    """

    def __init__(self, folder: Path, world: Any, shared: bool = True) -> None:
        self.folder, self.world, self.shared = folder, world, shared
        self._thread: threading.Thread | None = None
        self._outcome: Outcome | None = None
        self._stop = threading.Event()

    def blocks_to_write(self, states: Gathered, copy: bool) -> dict[str, Tensor]:
        """The blocks that this process must write: its own that are not on the disk, or for rank 0 those of all where no disk is shared.

        Args:
            copy: give copies, which later changes of the segments do not touch
        """
        own = _blocks(states.segments)
        if self.shared or self.world.size == 1:
            missing = {name for name in own if not segments.path_of(self.folder, name).exists()}
            return {name: block.clone() if copy else block for name, block in own.items() if name in missing}
        return self._fetch(states.names, own)

    def _fetch(self, names: Iterable[str], own: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Send the blocks that rank 0 lacks to it, a group at a time."""
        there = self.world.is_main
        wanted = [name for name in sorted(names) if there and not segments.path_of(self.folder, name).exists()]
        wanted = self.world.broadcast_bytes("\n".join(wanted).encode() if there else None).decode().split("\n")
        blocks: dict[str, Tensor] = {}
        for start in range(0, len(wanted), GROUP):
            mine = {name: own[name] for name in wanted[start : start + GROUP] if name in own}
            for message in self.world.gather_bytes(b"".join(encode(mine))):
                blocks |= decode(message)
        return blocks

    def save(self, snapshot: Snapshot | None, blocks: Mapping[str, Tensor], step: int) -> Outcome:
        """Write now.  All processes call it; only rank 0 has a snapshot."""
        outcome = self._write_blocks(blocks, step)
        failed = self.world.any(outcome.fault is not None)
        if snapshot is not None and outcome.fault is None:
            if failed:
                outcome.fault = ResourceFault(
                    "a checkpoint could not be written: another process could not write its part", where=str(self.folder)
                )
            else:
                self._commit(snapshot, outcome)
        return outcome

    def start(self, snapshot: Snapshot | None, blocks: Mapping[str, Tensor], step: int) -> None:
        """Write in the background; `wait` must have been called before."""
        assert self._thread is None
        self._stop.clear()

        def work() -> None:
            self._outcome = self._write_blocks(blocks, step)
            if snapshot is not None and self._outcome.fault is None and self._all_there(snapshot, self._outcome):
                self._commit(snapshot, self._outcome)

        self._thread = threading.Thread(target=work, name="checkpoint", daemon=True)
        self._thread.start()

    def wait(self) -> Outcome | None:
        """End the background save, if there is one; how it ended.  All processes call it."""
        if self.world.size > 1 and self.world.any(self._thread is not None):
            outcome = None if self.world.is_main else self._join()
            if self.world.any(outcome is not None and outcome.fault is not None):
                self._stop.set()  # a block will never come
            return self._join() if self.world.is_main else outcome
        return self._join()

    def close(self) -> Outcome | None:
        """As `wait`, where other processes may have ended already."""
        if self._thread is not None:
            self._thread.join(PATIENCE)
            self._stop.set()
        return self._join()

    def _join(self) -> Outcome | None:
        if self._thread is None:
            return None
        self._thread.join()
        outcome, self._thread, self._outcome = self._outcome, None, None
        return outcome

    def _write_blocks(self, blocks: Mapping[str, Tensor], step: int) -> Outcome:
        outcome = Outcome(step)
        try:
            for name, block in blocks.items():
                outcome.bytes += segments.write(self.folder, name, encode_block(block))
        except OSError as error:
            outcome.fault = checkpoints.fault(error, self.folder, sum(block.nbytes for block in blocks.values()))
        except BaseException as error:
            outcome.fault = error
        return outcome

    def _all_there(self, snapshot: Snapshot, outcome: Outcome) -> bool:
        """Wait for the blocks that other processes write."""
        for name in snapshot.names:
            while not segments.path_of(self.folder, name).exists():
                if self._stop.wait(POLL):
                    outcome.fault = ResourceFault(
                        f"the checkpoint of step {snapshot.step} is not complete: a part of another process is missing",
                        where=str(self.folder),
                    )
                    return False
        return True

    def _commit(self, snapshot: Snapshot, outcome: Outcome) -> None:
        try:
            snapshot.sync()
            checkpoint.save(self.folder, snapshot.step, snapshot.parts, snapshot.state, snapshot.about, snapshot.names)
            checkpoints.retain(self.folder, snapshot.keep)
        except BaseException as error:
            outcome.fault = error


def _blocks(all_segments: Iterable[Segments]) -> dict[str, Tensor]:
    return {name: block for one in all_segments for name, block in one.blocks()}
