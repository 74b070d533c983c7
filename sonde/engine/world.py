"""World: the rank of a process in a run, and communication with the other ranks.

One process and several answer to the same methods; with one, nothing is sent and torch.distributed is not touched.
Everything but a broadcast is built on one collective, all-to-all: it needs a single round, and measured four times
faster for small messages than gloo's all-reduce.

    W processes (ranks), V virtual shards, P entries of a flat tensor
"""

from __future__ import annotations

import fcntl
import mmap
import os
import socket
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple, final

import torch
from torch import Tensor

from ..core.errors import BadInput, PeerLost

PHASES = ("start", "step", "evaluate", "save", "batch")
_NUMBER = {phase: number for number, phase in enumerate(PHASES)}

CHUNK = 1 << 20  # entries summed at a time: bounds memory, and larger chunks were slower
SMALL = 1 << 17  # up to this size one all-gather is faster than reduce-scatter and all-gather


def shards_of(rank: int, size: int, shards: int) -> range:
    """The virtual shards a rank computes: contiguous blocks that differ by at most one, in rank order."""
    if shards < size:
        raise BadInput(f"{shards} shards are fewer than {size} processes", fix=f"use --shards {size} or more, or fewer --processes")
    return range(-(-rank * shards // size), -(-(rank + 1) * shards // size))


class Sign(NamedTuple):
    """The last sign of life of a rank."""

    time: float
    step: int
    phase: str
    waiting: bool
    """inside a collective, so perhaps kept there by another rank"""


@final
class Pulse:
    """Signs of life of all ranks, in memory that the supervisor and its forked workers share."""

    slot = struct.Struct("dqqq")

    def __init__(self, size: int) -> None:
        self.memory = mmap.mmap(-1, size * self.slot.size)

    def write(self, rank: int, step: int, phase: str, waiting: bool = False) -> None:
        # The time goes first: a reader between two fields then sees a phase that is too old, never a time that is.
        self.slot.pack_into(self.memory, rank * self.slot.size, time.monotonic(), step, _NUMBER[phase], waiting)

    def read(self, rank: int) -> Sign:
        seen, again = self._read(rank), self._read(rank)
        while seen != again:
            seen, again = again, self._read(rank)
        return seen

    def _read(self, rank: int) -> Sign:
        moment, step, phase, waiting = self.slot.unpack_from(self.memory, rank * self.slot.size)
        return Sign(moment, step, PHASES[phase], bool(waiting))


@final
class World:
    """The processes of a run as one of them sees it.  Every rank must make the same calls in the same order."""

    def __init__(self, rank: int = 0, size: int = 1, device: str = "cpu", pulse: Pulse | None = None) -> None:
        self.rank, self.size, self.device = rank, size, torch.device(device)
        self.is_main = rank == 0
        self.step, self.phase = 0, "start"
        self._pulse = pulse

    @classmethod
    def single(cls) -> World:
        """A run of one process."""
        return cls()

    @classmethod
    def from_launcher(cls, rank: int, size: int, store: Path, pulse: Pulse) -> World:
        """A local worker: gloo over loopback, meeting the others in a file of its own for each attempt.

        Collectives have no time limit that matters, because the supervisor knows better: it sees which rank is busy
        with a long save and which one hangs.
        """
        world = cls(rank, size, pulse=pulse)
        if size > 1:
            import torch.distributed as dist

            os.environ["GLOO_SOCKET_IFNAME"] = "lo"
            forever = timedelta(days=7)
            with world._collective():
                dist.init_process_group("gloo", store=dist.FileStore(str(store), size), rank=rank, world_size=size, timeout=forever)
        return world

    @classmethod
    def from_torchrun(cls, device: str = "cpu", timeout: float = 600.0) -> World:
        """A worker started by torchrun, on one machine or several: nccl for cuda, else gloo.

        Args:
            timeout: seconds after which a silent peer counts as lost; longer than the longest save or evaluation
        """
        try:
            rank, size, local = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
            master = os.environ["MASTER_ADDR"]
        except (KeyError, ValueError) as error:
            raise BadInput(
                f"torchrun did not set the environment of this process: {error}", fix="start with torchrun, or use --processes"
            ) from error
        if device.startswith("cuda"):
            device = f"cuda:{local}"
            torch.cuda.set_device(local)
        world = cls(rank, size, device)
        if size > 1:
            import torch.distributed as dist

            if world.device.type == "cpu":
                _choose_interface(master, alone=os.environ.get("LOCAL_WORLD_SIZE") == str(size))
            with world._collective():
                dist.init_process_group("nccl" if world.device.type == "cuda" else "gloo", timeout=timedelta(seconds=timeout))
        return world

    @staticmethod
    def under_torchrun() -> bool:
        """True where torchrun (or something that sets the same environment) started this process."""
        return all(name in os.environ for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR"))

    def close(self) -> None:
        """Leave the group.  The others may continue with work that needs no collective."""
        if self.size > 1:
            import torch.distributed as dist

            dist.destroy_process_group()

    def beat(self, step: int, phase: str) -> None:
        """A sign of life: the supervisor takes a rank for hung whose last one is older than its phase allows."""
        self.step, self.phase = step, phase
        if self._pulse is not None:
            self._pulse.write(self.rank, step, phase)

    def ordered_sum(self, parts: Mapping[int, Tensor], total_parts: int) -> Tensor:
        """Sum of one flat (P,) tensor per shard, added in shard order: the same bits on every rank and for every W.

        Args:
            parts: this rank's tensors by shard, as `shards_of` gives them out; with one shard in all, that very tensor returns
        """
        own = shards_of(self.rank, self.size, total_parts)
        assert sorted(parts) == list(own), f"rank {self.rank} owns shards {list(own)}, not {sorted(parts)}"
        mine = [parts[shard] for shard in own]
        if self.size == 1:
            return _in_order(mine)
        total = torch.empty_like(mine[0])
        for start in range(0, len(total), CHUNK):
            total[start : start + CHUNK] = self._sum_chunk([part[start : start + CHUNK] for part in mine], total_parts)
        return total

    def _sum_chunk(self, parts: Sequence[Tensor], shards: int) -> Tensor:
        size, length, most = self.size, len(parts[0]), -(-shards // self.size)
        share = length if length <= SMALL else -(-length // size)
        rows = parts[0].new_zeros(size, most, share)
        for index, part in enumerate(parts):
            rows[:, index] = part if share == length else torch.nn.functional.pad(part, (0, share * size - length)).view(size, share)
        got = self._exchange(rows)
        total = _in_order([got[rank, index] for rank in range(size) for index in range(len(shards_of(rank, size, shards)))])
        return total if share == length else self._gather(total).view(-1)[:length]

    def gather_floats(self, values: Sequence[float]) -> list[list[float]]:
        """Equally many numbers of every rank, by rank, in float64."""
        if self.size == 1:
            return [[float(value) for value in values]]
        return self._gather(torch.tensor(values, dtype=torch.float64, device=self.device)).tolist()

    def gather_texts(self, text: str) -> list[str]:
        """A text of every rank, by rank."""
        data = text.encode()
        lengths = [int(length) for (length,) in self.gather_floats([len(data)])]
        rows = self.gather_floats(list(data.ljust(max(lengths))))
        return [bytes(map(int, row[:length])).decode() for row, length in zip(rows, lengths, strict=True)]

    def max_vector(self, values: Sequence[float]) -> list[float]:
        """The largest of every entry over the ranks; NaN wins."""
        return [max(column, key=lambda value: (value != value, value)) for column in zip(*self.gather_floats(values), strict=True)]

    def sum_vector(self, values: Sequence[float]) -> list[float]:
        """The sum of every entry, in float64 and in rank order; whole numbers below 2**53 add exactly."""
        return [sum(column) for column in zip(*self.gather_floats(values), strict=True)]

    def any(self, flag: bool) -> bool:
        """True on every rank if it is true on one."""
        return self.max_vector([flag])[0] > 0

    def barrier(self) -> None:
        """Wait for every rank."""
        self.gather_floats([0.0])

    def broadcast_(self, tensors: Sequence[Tensor]) -> None:
        """Overwrite the tensors, of any type and memory layout, with those of rank 0."""
        for tensor in tensors if self.size > 1 else ():
            flat = tensor.detach().contiguous()
            self._broadcast_bytes(flat.view(-1).view(torch.uint8))
            if flat.data_ptr() != tensor.data_ptr():
                tensor.detach().copy_(flat)

    def broadcast_bytes(self, data: bytes | None) -> bytes:
        """The bytes of rank 0; the others give None."""
        if self.size == 1:
            assert data is not None
            return data
        length = int(self.gather_floats([len(data) if data is not None and self.is_main else 0])[0][0])
        buffer = torch.frombuffer(bytearray(data), dtype=torch.uint8) if self.is_main and data else torch.empty(length, dtype=torch.uint8)
        buffer = buffer.to(self.device)
        if length:
            self._broadcast_bytes(buffer)
        return buffer.cpu().numpy().tobytes()

    def gather_bytes(self, data: bytes) -> list[bytes]:
        """The bytes of every rank, by rank, on rank 0; nothing on the others."""
        import torch.distributed as dist

        if self.size == 1:
            return [data]
        lengths = [int(length) for (length,) in self.gather_floats([len(data)])]
        mine = torch.zeros(max(lengths), dtype=torch.uint8)
        mine[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else 0
        mine = mine.to(self.device)
        rows = [torch.empty_like(mine) for _ in range(self.size)] if self.is_main else None
        if max(lengths):
            with self._collective():
                dist.gather(mine, rows, dst=0)
        return [row[:length].cpu().numpy().tobytes() for row, length in zip(rows or [], lengths, strict=False)]

    def _broadcast_bytes(self, data: Tensor) -> None:
        import torch.distributed as dist

        if data.numel():
            with self._collective():
                dist.broadcast(data, src=0)

    def _gather(self, mine: Tensor) -> Tensor:
        """(n,) of this rank -> (W, n) of all."""
        return self._exchange(mine.expand(self.size, *mine.shape).contiguous())

    def _exchange(self, rows: Tensor) -> Tensor:
        """Row r goes to rank r; row r of the result came from rank r."""
        import torch.distributed as dist

        got = torch.empty_like(rows)
        with self._collective():
            dist.all_to_all_single(got.view(-1), rows.view(-1))
        return got

    @contextmanager
    def _collective(self) -> Iterator[None]:
        """Marks this rank as waiting for others, and turns errors meanwhile into PeerLost."""
        if self._pulse is not None:
            self._pulse.write(self.rank, self.step, self.phase, waiting=True)
        try:
            yield
        except RuntimeError as error:
            raise peer_lost(error, self.rank, f"step {self.step}, phase '{self.phase}'") from error
        if self._pulse is not None:
            self._pulse.write(self.rank, self.step, self.phase)


def peer_lost(error: BaseException, rank: int, where: str) -> PeerLost:
    """PeerLost for a failed collective."""
    reason = str(error).strip().split("\n")[0] or type(error).__name__
    return PeerLost(
        f"rank {rank} lost the other processes: {reason}",
        where=where,
        last_good="the last checkpoint",
        fix="look for the rank that ended first; the same command continues from the last checkpoint",
    )


def is_network_error(error: BaseException) -> bool:
    """True for torch's errors about a lost peer, as DDP and FSDP raise them outside of World."""
    import torch.distributed as dist

    return isinstance(error, dist.DistError) or (isinstance(error, RuntimeError) and "/gloo/" in str(error))


def _in_order(parts: Sequence[Tensor]) -> Tensor:
    """((p0 + p1) + p2) + ..., the one order that does not depend on which rank holds what."""
    if len(parts) == 1:
        return parts[0]
    total = parts[0] + parts[1]
    for part in parts[2:]:
        total += part
    return total


def _choose_interface(master: str, alone: bool) -> None:
    """Point gloo at the network interface that leads to the master, unless the user chose one.

    Left to itself gloo looks up the host's own name, which on many systems is a loopback address that no other
    machine can reach, and on one machine may be an address that others can.
    """
    if "GLOO_SOCKET_IFNAME" in os.environ:
        return
    name = _interface_toward(master)
    if name == "lo" and not alone:
        raise BadInput(
            f"'{master}' leads to this machine's loopback, which other machines cannot reach", fix="set GLOO_SOCKET_IFNAME and --local-addr"
        )
    if name:
        os.environ["GLOO_SOCKET_IFNAME"] = name


def _interface_toward(host: str) -> str | None:
    """Name of the interface this machine uses toward a host, or None where it is unknown."""
    get_address = 0x8915  # SIOCGIFADDR
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host, 9))  # a datagram socket sends nothing here; it only picks the way
            wanted = socket.inet_aton(probe.getsockname()[0])
            for _, name in socket.if_nameindex():
                try:
                    answer = fcntl.ioctl(probe, get_address, struct.pack("256s", name.encode()))
                except OSError:
                    continue
                if answer[20:24] == wanted:
                    return name
    except OSError:
        return None
    return None
