"""Memory of the recurrent mixers: size of their states, decay per step, and for how many steps information is kept.

The state S of a linear recurrence is multiplied by its decays at every step.  The norm of the state, the distribution of the
decays and the number of steps until their product has fallen to 1/e show what a layer can remember.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..core.batch import Batch, call_model
from ..core.numbers import number
from ..core.options import Range
from ..core.reading import Bars, Lines, Reading, Subject, Table
from ..nn.mixers import Recurrent, mixer
from ..nn.recurrence import Steps, compute, record_recurrences
from .tools.readonly import guard, hook_outputs, no_model, preserve_state, spread_evenly
from .tools.tiny import CLASSES, Nll, tiny_subject

POINTS = 64
"""points of a curve"""
STARTS = 16
"""time steps from which forgetting is measured"""
ENTRIES = 256
"""entries of a state that are measured"""
LINES = 7
"""maximum number of layers in a picture"""
EDGES = [0, 1e-5, 1e-4, 3e-4, 1e-3, 3e-3, 0.01, 0.03, 0.1, 0.3, 0.6, 1]
"""bin edges of the fraction lost per step"""


@dataclass(frozen=True)
class _RecordedSteps:
    """One recurrence that ran: its layer, its steps and its form, and how many denominators were guarded."""

    name: str
    steps: Steps
    form: str
    guarded: tuple[int, int]


def why_not(subject: Subject) -> str:
    """Why the lens does not apply to a subject, or ''; `guard` turns it into an error."""
    return no_model(subject) or ("" if _mixers(subject.model) else "the model has no recurrent mixer")


@guard
def read(subject: Subject, examples: Annotated[int, Range(1, 4096)] = 8) -> list[Reading]:
    """A table of all heads; the decays; what remains of the past, and the norm of the states, for each layer.

    Args:
        examples: how many sequences, the first of the batch
    """
    with preserve_state(subject.model), torch.no_grad():
        seen = _record(subject.model, subject.batch[:examples])
        norms = [state_norms(each.steps) for each in seen]
        return [_table(seen, [size[-1] for _, size in norms]), _decays(seen), _retention_reading(seen), _norms(seen, norms)]


def _mixers(model: Any) -> dict[str, nn.Module]:
    return {name or "model": module for name, module in model.named_modules() if isinstance(module, Recurrent)}


def _record(model: Any, batch: Batch) -> list[_RecordedSteps]:
    """Run the model and note which recurrence belongs to which layer."""
    recurrences: list[_RecordedSteps] = []
    before = [0, 0, 0]
    with record_recurrences() as watch:

        def note(name: str, *_: Any) -> None:
            ran = watch.seen[before[0] :]
            counts = watch.guarded - before[1], watch.denominators - before[2]
            for i, (steps, form) in enumerate(ran):
                recurrences.append(_RecordedSteps(name if len(ran) == 1 else f"{name} {i + 1}", steps, form, counts))
            before[:] = len(watch.seen), watch.guarded, watch.denominators

        with hook_outputs(_mixers(model), note):
            call_model(model, batch)
    return recurrences


def log_gates(s: Steps) -> dict[str, Tensor]:
    """Logs of the decays by axis, each (B, H, L, entries); if every entry of the state has its own decay, of a sample of entries."""
    s = s.by_step()
    if s.rate is not None and s.log_value is not None:
        rows, columns = _entries(s)
        return {"entry": s.log_value[..., columns] * s.rate.real[:, rows, columns].unsqueeze(1)}
    gates = {"head": None if s.log_head is None else s.log_head.unsqueeze(-1), "key": s.log_key, "value": s.log_value}
    return {axis: gate for axis, gate in gates.items() if gate is not None}


def memory_lengths(s: Steps) -> Tensor:
    """(H, n) steps until an entry has decayed to 1/e, from several time steps, for entries spread over the state.

    Where the sequence ends before that, it is extrapolated with the mean decay; without decay it is infinite.
    """
    lost = _summed_decay(s)
    if lost is None:
        return torch.full((s.v.shape[1], 1), float("inf"))
    L, lengths = lost.shape[-1], []
    for start in range(0, L, max(L // STARTS, 1)):
        # What is written at `start` first decays at the next step.  The added column means "not within the sequence".
        gone = F.pad(lost[..., start + 1 :] - lost[..., start, None] >= 1 - 1e-9, (0, 1))
        lengths.append(torch.where(gone.any(-1), gone.int().argmax(-1) + 1.0, L / lost[..., -1]))
    return torch.stack(lengths, -1).transpose(0, 1).flatten(1)


def retention(s: Steps) -> tuple[list[int], Tensor]:
    """Distances up to half the sequence, and the mean fraction that remains of what was written that many steps ago."""
    half, lost = s.v.shape[2] // 2, _summed_decay(s)
    back = sorted({round(half * i / POINTS) for i in range(POINTS + 1)})
    if lost is None:
        return back, torch.ones(len(back), dtype=torch.float64)
    return back, torch.stack([(lost[..., : lost.shape[-1] - n] - lost[..., n:]).exp().mean() for n in back])


def _summed_decay(s: Steps) -> Tensor | None:
    """(B, H, entries, L) cumulative sum of the negative logs of the decays; None without decay."""
    gates, (rows, columns) = log_gates(s), _entries(s)
    if not gates:
        return None
    if len(gates) > 1:
        entry = {"head": torch.zeros_like(rows), "key": rows, "value": columns}
        gates = {axis: gate[..., entry[axis]] for axis, gate in gates.items()}
    log = sum(gate.double() for gate in gates.values())
    assert isinstance(log, Tensor)
    return -log.movedim(2, -1).clamp(-1e9, 0).cumsum(-1)


def _entries(s: Steps) -> tuple[Tensor, Tensor]:
    """Rows and columns of entries spread evenly over the state; all entries of a small one."""
    *_, K, V = s.sizes
    index = torch.linspace(0, K * V - 1, min(ENTRIES, K * V), device=s.v.device).round().long()
    return index // V, index % V


def state_norms(s: Steps) -> tuple[list[int], Tensor]:
    """Time steps, and the Frobenius norm of each head's state after them, averaged over the sequences: (times, H)."""
    L = s.v.shape[2]
    times = sorted({round((i + 1) * L / min(POINTS, L)) for i in range(min(POINTS, L))})
    state, norms = s.empty_state(), []
    for start, stop in zip([0, *times], times):
        _, state = compute(s.piece(start, stop), state)
        norms.append(torch.linalg.vector_norm(state, dim=(2, 3)).mean(0).double())
    return times, torch.stack(norms)


def _table(seen: list[_RecordedSteps], norms: list[Tensor]) -> Reading:
    columns = ["layer", "head", "decay", "steps kept: 10 %", "50 %", "90 %", "norm", "guarded"]
    rows: list[tuple[Any, ...]] = []
    for each, norm in zip(seen, norms, strict=True):
        gates = log_gates(each.steps)
        lengths = memory_lengths(each.steps)
        levels = torch.tensor([0.1, 0.5, 0.9]).to(lengths)
        for head, quantiles in enumerate(torch.quantile(lengths, levels, 1, interpolation="nearest").T.tolist()):
            decay = [f"{number(float(gate[:, head].double().exp().median()))} {axis}" for axis, gate in gates.items()]
            few, all_ = each.guarded
            steps = (f"{n:,.0f}" if n < float("inf") else "all" for n in quantiles)
            rows.append((each.name, head, ", ".join(decay) or "none", *steps, float(norm[head]), f"{few} of {all_:,}" if all_ else ""))
    guarded = " Guarded: denominators too small to divide by."
    if not any(row[-1] for row in rows):  # no layer divides
        columns, guarded = columns[:-1], ""
    ran = "; ".join(dict.fromkeys(f"{each.steps.name}, computed in the form {each.form}" for each in seen))
    return Table(
        "Memory of each head",
        {column: [row[i] for row in rows] for i, column in enumerate(columns)},
        note=f"On {_size(seen)}; {ran}. Decay: median factor per step on each axis of the state. Steps kept: number of steps until the "
        "product of the decays is 1/e, as 10 %, 50 % and 90 % quantiles over the entries; what a delta rule overwrites is not counted. "
        f"Norm: of the state after the last step.{guarded}",
    )


def _decays(seen: list[_RecordedSteps]) -> Reading:
    """Histogram of the fraction lost per step, for each axis that has a decay in some layer."""
    edges, values = torch.tensor(EDGES, dtype=torch.float64), {}
    for axis in ("head", "key", "value", "entry"):
        logs = [gates[axis].double().flatten() for each in seen if axis in (gates := log_gates(each.steps))]
        if logs:
            lost = -torch.expm1(torch.cat(logs))
            counts = torch.bincount(torch.bucketize(lost, edges[1:-1], right=True), minlength=len(edges) - 1)
            values[f"% of the {axis} decays"] = 100 * counts / len(lost)
    return Bars(
        "Fraction lost per step",
        values or {"% of the entries": [100.0] + [0.0] * (len(EDGES) - 2)},
        axes=["lost per step", "%"],
        note=f"On {_size(seen)}, all layers together. Histogram of the fraction of an entry that one step loses, 1 - exp(log gate): "
        "an entry that loses 0.1 % per step is kept for about 1,000 steps.",
        labels=[f"{100 * low:g} to {100 * high:g} %" for low, high in zip(EDGES, EDGES[1:])],
    )


def _retention_reading(seen: list[_RecordedSteps]) -> Reading:
    """Forgetting as a curve for each layer; all layers see the same length, so the distances are the same."""
    curves = {each.name: retention(each.steps) for each in spread_evenly(seen, LINES)}
    return Lines(
        "What remains of the past",
        {name: 100 * fraction for name, (_, fraction) in curves.items()},
        axes=["steps ago", "% remaining"],
        note=f"The product of the decays since then, mean over heads, entries and times; {_points(next(iter(curves.values()))[0], seen)}",
        x={name: back for name, (back, _) in curves.items()},
    )


def _norms(seen: list[_RecordedSteps], norms: list[tuple[list[int], Tensor]]) -> Reading:
    curves = {each.name: curve for each, curve in zip(seen, norms, strict=True)}
    shown = {each.name: curves[each.name] for each in spread_evenly(seen, LINES)}
    return Lines(
        "Norm of the states over time",
        {name: sizes.mean(1) for name, (_, sizes) in shown.items()},
        axes=["step", "norm of the state"],
        note=f"Frobenius norm, mean over heads and {seen[0].steps.v.shape[0]} sequences; {_points(norms[0][0], seen)}",
        x={name: times for name, (times, _) in shown.items()},
    )


def _points(x: list[int], seen: list[_RecordedSteps]) -> str:
    """How a curve was sampled, and how many layers are shown."""
    apart = (x[-1] - x[0]) / max(len(x) - 1, 1)
    every = (
        "taken at every step"
        if apart <= 1
        else f"taken at {len(x)} time steps, about every {apart:.1f} steps".replace(".0 steps", " steps")
    )
    return every + (f"; {LINES} of {len(seen)} layers." if len(seen) > LINES else ".")


def _size(seen: list[_RecordedSteps]) -> str:
    B, _, L = seen[0].steps.v.shape[:3]
    return f"{B} sequences of {L:,} steps"


class _Reader(nn.Module):
    """Sequences of numbers -> classes: a mixer and the mean of its outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.act, self.mixer, self.out = nn.Linear(4, 12), nn.Tanh(), mixer("gla", 12, form="chunk", heads=3), nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        y, _ = self.mixer(self.act(self.into(x)))
        return self.out(y.mean(1))


def tiny() -> Subject:
    """A small subject for the contract tests."""
    with preserve_state():
        torch.manual_seed(0)
        net = _Reader()
        batch = Batch(x=torch.randn(11, 40, 4), y=torch.arange(11) % 5, ids=torch.arange(11))
    return tiny_subject(net, batch, Nll(classes=True), task="classes", classes=CLASSES)
