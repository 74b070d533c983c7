"""The gradient of a mean, over one batch, many parts of it, or many processes: the only place that averages.

Objectives return sums and counts.  The loss of a step is  sum over terms of  weight * (sum over all parts) / (count
over all parts),  so unequal parts, padding and accumulation are exact by construction.  Parts ("shards") are added in
shard order, whichever process computed them, so the number of processes never changes a bit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from ..core.batch import Batch
from ..core.terms import Term, Terms
from .flat import Flat

LONG, ROW = 1 << 16, 1 << 10
"""numbers up to which a norm is taken at once, and numbers of a row where it is not"""


class Peers(Protocol):
    """What a sum over processes needs; `sonde.engine.world.World` is one."""

    size: int

    def ordered_sum(self, parts: Mapping[int, Tensor], shards: int) -> Tensor: ...

    def sum_vector(self, numbers: Sequence[float]) -> list[float]: ...

    def broadcast_bytes(self, data: bytes | None) -> bytes: ...


def full_batch(model: nn.Module, objective: Any, flat: Flat, batch: Batch) -> float:
    """Gradient of one undivided batch into `flat.grad`, and its loss: the textbook case and the fast one."""
    flat.grad.zero_()
    return objective(model, batch).backward()


def accumulate_shards(
    model: nn.Module,
    objective: Any,
    flat: Flat,
    shards: Mapping[int, Batch],
    total: int,
    peers: Peers,
    before: Callable[[int], None],
    memory: dict[str, Any],
) -> float:
    """Gradient of a batch cut into `total` parts, of which this process computes `shards`, into `flat.grad`; its loss.

    before(shard) is called ahead of each part; it sets the part's random key.
    memory keeps the names of the terms from step to step, for a process whose parts are empty.
    Buffers such as running means start each part from the same values and end as the mean over the parts.
    """
    counts = global_counts(model, objective, shards, peers, before, memory)
    names = sorted(counts)
    moving = Moving(model)
    parts: dict[int, Tensor] = {}
    summed: Tensor | None = None
    weights = dict.fromkeys(names, 1.0)
    for shard, batch in shards.items():
        flat.grad.zero_()
        sums = torch.zeros(len(names) + 1, dtype=flat.grad.dtype, device=flat.grad.device)
        if len(batch):
            moving.rewind()
            before(shard)
            terms = objective(model, batch)
            terms.backward(counts)
            moving.note(shard)
            for index, name in enumerate(names):
                if name in terms:
                    sums[index] = terms[name].sum.detach()
                    weights[name] = terms[name].weight
            sums[-1] = 1.0
        part = torch.cat([flat.grad, sums])
        if peers.size > 1:
            parts[shard] = part
        else:  # alone, the parts come in shard order anyway: add as we go and hold two of them, not all
            summed = part if summed is None else summed.add_(part)
    if summed is None:
        summed = peers.ordered_sum(parts, total)
    width = flat.grad.numel()
    flat.grad.copy_(summed[:width])
    sums = summed[width:]
    moving.settle(peers, shards, total, float(sums[-1]))
    return Terms(**{name: Term(sums[index], counts[name], weights[name]) for index, name in enumerate(names)}).loss().item()


class Moving:
    """Buffers that a forward pass may change, such as running means, over the shards of one step.

    Every shard starts from the same values.  In the end a floating buffer that changed has moved by the mean over the
    shards that had examples, added in shard order in float64; a counter stands where shard 0 left it.
    """

    def __init__(self, model: nn.Module) -> None:
        self.buffers = list(model.buffers())
        self.start = [buffer.clone() for buffer in self.buffers]
        self.moved: dict[int, list[Tensor]] = {}

    def rewind(self) -> None:
        for buffer, value in zip(self.buffers, self.start, strict=True):
            buffer.copy_(value)

    def note(self, shard: int) -> None:
        """Keep where a shard left the buffers."""
        if self.buffers:
            self.moved[shard] = [buffer.clone() for buffer in self.buffers]

    def settle(self, peers: Any, shards: Mapping[int, Batch], total: int, active: float) -> None:
        if not self.buffers:
            return
        changed = [any(not torch.equal(after[i], value) for after in self.moved.values()) for i, value in enumerate(self.start)]
        changed = [flag > 0 for flag in peers.max_vector([float(flag) for flag in changed])]
        floats = [i for i, flag in enumerate(changed) if flag and self.start[i].is_floating_point()]
        counters = [i for i, flag in enumerate(changed) if flag and not self.start[i].is_floating_point()]
        if floats:
            still = torch.zeros(sum(self.start[i].numel() for i in floats), dtype=torch.float64, device=self.start[floats[0]].device)
            steps = {shard: torch.cat([self._step(shard, i) for i in floats]) if shard in self.moved else still for shard in shards}
            mean = peers.ordered_sum(steps, total) / active
            for i, part in zip(floats, mean.split([self.start[i].numel() for i in floats]), strict=True):
                self.buffers[i].copy_((self.start[i].double().view(-1) + part).view_as(self.start[i]))
        for i in counters:
            if 0 in self.moved:
                self.buffers[i].copy_(self.moved[0][i])
        peers.broadcast_([self.buffers[i] for i in counters])

    def _step(self, shard: int, i: int) -> Tensor:
        return (self.moved[shard][i].double() - self.start[i].double()).view(-1)


def global_counts(
    model: nn.Module, objective: Any, shards: Mapping[int, Batch], peers: Peers, before: Callable[[int], None], memory: dict[str, Any]
) -> dict[str, float]:
    """Counts of each term over all parts and processes.

    They never depend on the model, so an objective may offer `counts(batch)`; for one that does not, a forward pass
    without gradients finds them out.
    """
    own: dict[str, float] = {}
    for shard, batch in shards.items():
        if len(batch):
            for name, count in count_part(model, objective, shard, batch, before).items():
                own[name] = own.get(name, 0.0) + count
    return sum_counts(own, peers, memory)


def sum_counts(own: Mapping[str, float], peers: Peers, memory: dict[str, Any]) -> dict[str, float]:
    """The counts of this process -> those of all; `memory` keeps their names from step to step."""
    if peers.size == 1:
        return dict(own)
    if "terms" not in memory:  # rank 0 has shard 0, which is never empty
        memory["terms"] = peers.broadcast_bytes("\n".join(sorted(own)).encode()).decode().split("\n")
    names = memory["terms"]
    return dict(zip(names, peers.sum_vector([own.get(name, 0.0) for name in names]), strict=True))


def count_part(model: nn.Module, objective: Any, shard: int, batch: Batch, before: Callable[[int], None]) -> dict[str, float]:
    """Counts of each term of one part; buffers stay as they are."""
    if hasattr(objective, "counts"):
        return {name: float(count) for name, count in objective.counts(batch).items()}
    buffers = [b.clone() for b in model.buffers()]
    before(shard)
    with torch.no_grad():
        counts = objective(model, batch).counts()
        for buffer, value in zip(model.buffers(), buffers, strict=True):
            buffer.copy_(value)
    return counts


def long_norm(vector: Tensor) -> Tensor:
    """2-norm of a contiguous vector of any length.

    torch adds the squares of a float32 vector one after the other: of 20 million numbers the sum is wrong in its third digit.
    Norms of short rows, and then their norm, have the rounding of float32 and take the same time.
    """
    if len(vector) <= LONG:
        return torch.linalg.vector_norm(vector)
    whole = len(vector) // ROW * ROW
    rows = torch.linalg.vector_norm(vector[:whole].view(-1, ROW), dim=1)
    return torch.linalg.vector_norm(torch.cat([rows, torch.linalg.vector_norm(vector[whole:]).view(1)]))


def norm(flat: Flat) -> Tensor:
    """Global 2-norm of the gradient."""
    return long_norm(flat.grad)


def clip(flat: Flat, norm: Tensor, largest: float) -> None:
    """Scale the gradient so that its global norm is at most `largest`:  g <- min(1, c / norm(g)) g."""
    flat.grad.mul_(clip_factor(norm, largest))


def clip_factor(norm: Tensor, largest: float) -> Tensor:
    """min(1, c / norm), by which a gradient is multiplied."""
    return torch.clamp(largest / (norm + 1e-12), max=1.0)
