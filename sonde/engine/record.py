"""The record of a run in progress: rows, events, checkpoints.  Only rank 0 writes files."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Container, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..core import files, tensors
from ..core.batch import Batch
from ..core.errors import BadInput, DataUnusable, ResourceFault
from ..core.recipe import Callback
from ..core.state_tree import segment_names
from ..runs import checkpoints, segments
from ..runs.clock import now
from ..runs.layout import RunDirectory
from ..runs.rows import Log
from . import checkpoint
from .fingerprint import differences, list_changes
from .options import Options
from .parts import gather, load
from .progress import Progress, print_line
from .saver import Outcome, Saver, Snapshot
from .state import misfit_random_states, model_tensors, random_states, restore_random_states, seed_everything

if TYPE_CHECKING:
    from .trainer import Trainer


class Record:
    """Writes metrics and events of a trainer, and saves and restores its state."""

    EVERY = 20.0
    """seconds between checkpoints where no number of steps is set"""

    def __init__(self, directory: RunDirectory, options: Options, world: Any, about: Mapping[str, Any]) -> None:
        self.directory, self.options, self.world, self.about = directory, options, world, about
        self.path, self.name = directory.path, directory.path.name
        self.owner = world.is_main
        self.prints = self.owner and not options.quiet
        self.metrics = Log(self.path / "metrics.jsonl")
        self.events = Log(self.path / "events.jsonl")
        self.callbacks: list[Callback] = []
        self.progress: Progress | None = None
        self.skips: set[int] = set()
        self.last_saved: int | None = None
        self.saved_at, self.save_seconds = time.monotonic(), 0.0
        self.warned: set[str] = set()
        self.saver = Saver(directory.checkpoints, world)

    def open(self) -> None:
        """Open the log of events; `restore` opens the rows."""
        if self.owner:
            self.events.open(None)
        self.saver.shared = self._shares_disk()

    def _shares_disk(self) -> bool:
        """Whether every process sees the files that rank 0 writes."""
        if self.world.size == 1:
            return True
        mark = f".shared-{secrets.token_hex(8)}" if self.owner else ""
        if self.owner:
            (self.path / mark).touch()
        mark = self.world.broadcast_bytes(mark.encode() if self.owner else None).decode()
        shared = not self.world.any(not (self.path / mark).exists())
        if self.owner:
            files.remove_quietly(self.path / mark)
        return shared

    def close(self) -> None:
        self._report(self.saver.close())
        self.metrics.close()
        self.events.close()

    def row(self, row: Mapping[str, Any]) -> None:
        """One row of metrics."""
        if self.owner:
            if not self.metrics.add(row):
                self.warn_once("metrics.jsonl cannot be written; its rows wait in memory until there is room", row["step"])
            if self.progress is not None:
                self.progress.note(row)

    def event(self, kind: str, step: int, **more: Any) -> None:
        """One event with its time."""
        if self.owner:
            self.events.add({"event": kind, "step": step, "time": now(), **more})

    def say(self, text: str) -> None:
        if self.progress is not None:
            self.progress.say(text)
        elif self.prints:
            print_line(text)

    def warn(self, text: str, step: int) -> None:
        self.event("warning", step, text=text)
        self.say(f"warning: {text}")

    def warn_once(self, what: str, step: int, more: str = "") -> None:
        """Warn once between two successful saves, whatever the details `more` are."""
        if what not in self.warned:
            self.warned.add(what)
            self.warn(what + more, step)

    def skip(self, steps: Iterable[int]) -> None:
        """Skip these steps from now on, also after a restart."""
        self.skips |= set(steps)
        if self.owner:
            self.directory.write("skips.json", sorted(self.skips))

    def keep_bad_batch(self, step: int, batch: Mapping[int, Batch]) -> None:
        """The batch that broke a step, for a closer look.  Failing to keep it must not hide the fault itself."""
        fields = {f"{shard}.{name}": tensor for shard, part in batch.items() for name, tensor in part.fields.items()}
        path = self.path / f"bad-batch-{step}-rank-{self.world.rank}.safetensors"
        if self.owner and fields and not path.exists():
            try:
                files.replace_file(path, b"".join(tensors.encode(fields)))
            except OSError as error:
                self.warn(f"the bad batch could not be kept: {error.strerror}", step)

    def save(self, trainer: Trainer, must: bool = False) -> None:
        """A checkpoint of the trainer.  A disk that refuses is a warning, unless this save must succeed."""
        self.world.beat(trainer.step, "save")
        began = time.monotonic()
        background = self.options.async_save and not must
        self._report(self.saver.wait())
        states = gather({name: part.state_dict() for name, part in trainer.parts.items()}, self.world)
        blocks = self.saver.blocks_to_write(states, background)
        weights, older = trainer.job.weights, trainer.best.older_weights(trainer.step)
        parts = {**weights.tensors(), "rng": self._all_random_states(), "best": weights.gather(older)}
        snapshot, fault = None, None
        if self.owner:
            try:
                self.metrics.flush()
                more = {name: values for name, values in states.tensors.items() if values}
                state = {**trainer.state(), "parts": states.json, "metrics": self.metrics.size}
                copied = {**(copy(parts, but=("best", "rng")) if background else parts), **(copy(more) if background else more)}
                keep, names = trainer.job.recipe.keep, frozenset(states.names)
                snapshot = Snapshot(trainer.step, copied, state, self.about, names, keep, self.metrics.fsync)
            except ResourceFault as error:
                fault = error
        if background:
            self.saver.start(snapshot, blocks, trainer.step)
            if fault is not None:
                self._report(Outcome(trainer.step, fault=fault))
        else:
            outcome = self.saver.save(snapshot, blocks, trainer.step)
            outcome.fault = fault or outcome.fault
            self._report(outcome, must)
        self.saved_at = time.monotonic()
        self.save_seconds = self.saved_at - began

    def _report(self, outcome: Outcome | None, must: bool = False) -> None:
        """Say how a save ended; raise its error where it must not fail, or is none of the disk."""
        if outcome is None or not self.owner:
            return
        fault = outcome.fault
        if fault is None:
            self.last_saved = outcome.step
            self.warned.clear()
            self.event("checkpoint", outcome.step, **({"segment_bytes": outcome.bytes} if outcome.bytes else {}))
        elif must or not isinstance(fault, ResourceFault):
            raise fault
        else:
            self.warn_once(fault.what, outcome.step, f"; {fault.where}; last good: {fault.last_good}; {fault.fix}")

    def save_is_due(self) -> bool:
        """With no interval given: some time since the last checkpoint, more where saving is slow."""
        return self.owner and time.monotonic() - self.saved_at > max(self.EVERY, 30 * self.save_seconds)

    def restore(self, trainer: Trainer) -> bool:
        """Restore the trainer from the newest good checkpoint; False where there is none and the run starts at step 0."""
        self._report(self.saver.wait())
        snapshot = None
        if self.owner:
            names = model_tensors(trainer.job.model).keys()
            snapshot = checkpoint.newest(
                self.directory.checkpoints, partial(self._fits, trainer), lambda text: self.warn(text, trainer.step), names
            )
            self._compare(snapshot)
            self.skips = self._read_skips()
        parts, state = self.share(snapshot)
        blocks = self._share_blocks(state)
        if self.owner:
            self.metrics.close()
            self.metrics.open(int(state["metrics"]) if state else 0)
        if not state:
            return False
        trainer.job.weights.load(parts)
        trainer.load(state)
        load(trainer.parts, state.get("parts", {}), parts, trainer.job.own, blocks)
        trainer.best.weights = trainer.job.weights.hold(parts["best"] or parts.get("average") or parts["model"])
        self._restore_random_states(parts["rng"])
        self.last_saved = trainer.step
        if self.owner:  # a kill may have come between the last save and this
            checkpoints.retain(self.directory.checkpoints, trainer.job.recipe.keep)
        return True

    def _compare(self, snapshot: checkpoint.Checkpoint | None) -> None:
        """Warn once if the environment that decides the bits has changed since the checkpoint or the start of the run; refuse with `exact`.

        The checkpoint is asked, not run.json: what another machine computed and never saved is computed again.
        """
        before = snapshot.manifest.get("fingerprint") if snapshot is not None else None
        changes = differences(before if isinstance(before, dict) else self.directory.info()["fingerprint"], self.about["fingerprint"])
        if not changes:
            return
        step = snapshot.step if snapshot is not None else 0
        if self.options.exact:
            raise BadInput(
                f"--exact: the resumed run would not be bitwise identical: {list_changes(changes)}",
                where=self.name,
                fix="resume with the same setup, or leave out --exact",
            )
        text = f"resuming with a different setup ({list_changes(changes)}): bits may differ from step {step} on"
        self.event("arithmetic", step, differs=changes, text=text)
        self.say(f"warning: {text}")

    def _fits(self, trainer: Trainer, snapshot: checkpoint.Checkpoint) -> None:
        """Raise DataUnusable unless the checkpoint can be loaded here, all of it."""
        trainer.fits(snapshot)
        for rank in range(max(1, sum(name.endswith(".torch") for name in snapshot.parts["rng"]))):
            misfit_random_states(_of_rank(rank, snapshot.parts["rng"]))
        if type(snapshot.state.get("metrics")) is not int or snapshot.state["metrics"] < 0:
            raise DataUnusable("state.json has no number of rows")

    def _read_skips(self) -> set[int]:
        path = self.path / "skips.json"
        skips = files.read_json(path) if path.is_file() else []
        if not isinstance(skips, list) or not all(type(step) is int for step in skips):
            raise DataUnusable("skips.json is not a list of steps", where=str(path), fix="restore the file")
        return set(skips)

    def share(self, snapshot: checkpoint.Checkpoint | None) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
        """Broadcast what rank 0 has read: a run directory need not be visible to other ranks."""
        if self.world.size == 1:
            return ({name: dict(part) for name, part in snapshot.parts.items()}, snapshot.state) if snapshot else ({}, {})
        names = sorted(snapshot.parts) if snapshot else []
        sent = {"state": snapshot.state if snapshot else {}, "skips": sorted(self.skips), "parts": names}
        received = files.parse_json(self.world.broadcast_bytes(files.dump_json(sent) if self.owner else None))
        self.skips = set(received["skips"])
        parts = {}
        for name in received["parts"]:
            data = b"".join(tensors.encode(snapshot.parts[name])) if snapshot is not None else None
            parts[name] = tensors.decode(self.world.broadcast_bytes(data))
        return parts, received["state"]

    def _share_blocks(self, state: Mapping[str, Any]) -> Callable[[str], bytes]:
        """What reads a block of a segment: from the disk, or from memory where rank 0 had to send it."""
        if self.saver.shared:
            return partial(segments.read, self.directory.checkpoints)
        blocks = {}
        for name in sorted(segment_names(state.get("parts", {}))):
            data = segments.read(self.directory.checkpoints, name) if self.owner else None
            blocks[name] = self.world.broadcast_bytes(data)
        return blocks.__getitem__

    def _all_random_states(self) -> dict[str, Tensor]:
        """Random states of all ranks under their names; every number in them is exact in float64."""
        own = random_states()
        if self.world.size == 1:
            return {f"rank-0.{name}": tensor for name, tensor in own.items()}
        gauss = own["python.gauss"]  # present or not: fixed length for the gather
        numbers = [float(len(gauss)), *(gauss.tolist() or [0.0])]
        for name in ("torch", "python", "numpy", "numpy.gauss"):
            numbers += own[name].double().tolist()
        states = {}
        for rank, row in enumerate(self.world.gather_floats(numbers)):
            values = torch.tensor(row, dtype=torch.float64)
            states[f"rank-{rank}.python.gauss"] = values[1 : 1 + int(row[0])].clone()
            position = 2
            for name in ("torch", "python", "numpy", "numpy.gauss"):
                part = values[position : position + own[name].numel()]
                states[f"rank-{rank}.{name}"] = part.to(own[name].dtype)
                position += own[name].numel()
        return states

    def _restore_random_states(self, saved: Mapping[str, Tensor]) -> None:
        own = _of_rank(self.world.rank, saved)
        if own:
            restore_random_states(own)
        else:  # a rank that the saved run did not have
            seed_everything(self.options.seed, "rank", self.world.rank)


def copy(parts: Mapping[str, Mapping[str, Tensor]], but: Container[str] = ()) -> dict[str, dict[str, Tensor]]:
    """Copies of tensors that training goes on to change; a tensor with several names is copied once."""
    copies: dict[Any, Tensor] = {}

    def once(tensor: Tensor) -> Tensor:
        where = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        if where not in copies:
            copies[where] = tensor.clone()
        return copies[where]

    return {name: dict(part) if name in but else {key: once(value) for key, value in part.items()} for name, part in parts.items()}


def _of_rank(rank: int, saved: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The random states of one rank, out of those of all."""
    mine = f"rank-{rank}."
    return {name.removeprefix(mine): tensor for name, tensor in saved.items() if name.startswith(mine)}
