"""Memory: what the recurrent mixers of a model keep, how fast they forget it, and for how many steps.

The state S of a linear recurrence is multiplied by its decays at every step.  How large it gets, how the decays are
spread, and after how many steps their product has fallen to 1/e say what a layer can remember and what it cannot.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..core.batch import Batch, Data
from ..core.dials import Range
from ..core.reading import Reading, Subject
from ..nn.mixers import Recurrent, mixer
from ..nn.recurrence import Steps, compute, watching
from ._tiny import METRICS, _Nll, _Rows
from ._untouched import hooked, need, no_model, untouched
from ._words import number

POINTS = 64
"""times at which the size of a state is taken"""
STARTS = 16
"""times from which forgetting is counted"""
ENTRIES = 256
"""entries of a state that are followed"""
LINES = 6
"""heads that are drawn"""
EDGES = [0, 1e-5, 1e-4, 3e-4, 1e-3, 3e-3, 0.01, 0.03, 0.1, 0.3, 0.6, 1]
"""bounds of the share lost in a step"""


@dataclass(frozen=True)
class _Seen:
    """One recurrence that ran: where, its steps, and the denominators its layer divided by."""

    name: str
    steps: Steps
    form: str
    guarded: tuple[int, int]


def why_not(subject: Subject) -> str:
    return no_model(subject) or ("" if _mixers(subject.model) else "the model has no recurrent mixer")


def read(subject: Subject, examples: Annotated[int, Range(1, 4096)] = 8) -> list[Reading]:
    """A table of all layers, the decays, and the size of each layer's states over time.

    examples: sequences to look at, the first of the batch
    """
    need(__name__, subject, examples=examples)
    with untouched(subject.model), torch.no_grad():
        seen = _seen(subject.model, subject.batch.x[:examples])
        return [_table(seen), _decays(seen), *(_norms(each) for each in seen)]


def _mixers(model: Any) -> dict[str, nn.Module]:
    return {name or "model": module for name, module in model.named_modules() if isinstance(module, Recurrent)}


def _seen(model: Any, x: Tensor) -> list[_Seen]:
    """Run the model and note which recurrence belongs to which layer."""
    found: list[_Seen] = []
    before = [0, 0, 0]
    with watching() as watch:

        def note(name: str, *_: Any) -> None:
            ran = watch.seen[before[0] :]
            counts = watch.guarded - before[1], watch.denominators - before[2]
            for i, (steps, form) in enumerate(ran):
                found.append(_Seen(name if len(ran) == 1 else f"{name} {i + 1}", steps, form, counts))
            before[:] = len(watch.seen), watch.guarded, watch.denominators

        with hooked(_mixers(model), note):
            model(x)
    return found


def log_gates(s: Steps) -> dict[str, Tensor]:
    """Logs of the decays by axis, each (B, H, L, entries); where every entry of the state has its own, of some of them."""
    s = s.by_step()
    if s.rate is not None and s.log_value is not None:
        rows, columns = _entries(s)
        return {"entry": s.log_value[..., columns] * s.rate.real[:, rows, columns].unsqueeze(1)}
    gates = {"head": None if s.log_head is None else s.log_head.unsqueeze(-1), "key": s.log_key, "value": s.log_value}
    return {axis: gate for axis, gate in gates.items() if gate is not None}


def memory_lengths(s: Steps) -> Tensor:
    """(H, n) steps until what was written is kept to 1/e, counted from several times in entries spread over the state.

    Where the sequence ends before, its mean decay goes on; without decay it is infinite.
    """
    gates, (rows, columns) = log_gates(s), _entries(s)
    if not gates:
        return torch.full((s.v.shape[1], 1), float("inf"))
    if len(gates) > 1:
        entry = {"head": torch.zeros_like(rows), "key": rows, "value": columns}
        gates = {axis: gate[..., entry[axis]] for axis, gate in gates.items()}
    log = sum(gate.double() for gate in gates.values())
    assert isinstance(log, Tensor)
    lost = -log.movedim(2, -1).clamp(-1e9, 0).cumsum(-1)  # (B, H, entries, L)
    L, lengths = lost.shape[-1], []
    for start in range(0, L, max(L // STARTS, 1)):
        # What is written at `start` first decays at the next step.  One more column stands for "not within the sequence".
        gone = F.pad(lost[..., start + 1 :] - lost[..., start, None] >= 1 - 1e-9, (0, 1))
        lengths.append(torch.where(gone.any(-1), gone.int().argmax(-1) + 1.0, L / lost[..., -1]))
    return torch.stack(lengths, -1).transpose(0, 1).flatten(1)


def _entries(s: Steps) -> tuple[Tensor, Tensor]:
    """Row and column of entries spread over the state; all of a small one."""
    *_, K, V = s.sizes
    place = torch.linspace(0, K * V - 1, min(ENTRIES, K * V), device=s.v.device).round().long()
    return place // V, place % V


def state_norms(s: Steps) -> tuple[list[int], Tensor]:
    """Steps taken, and the Frobenius norm of each head's state after them, mean over the sequences: (times, H)."""
    L = s.v.shape[2]
    times = sorted({round((i + 1) * L / min(POINTS, L)) for i in range(min(POINTS, L))})
    state, norms = s.empty_state(), []
    for start, stop in zip([0, *times], times):
        _, state = compute(s.piece(start, stop), state)
        norms.append(torch.linalg.vector_norm(state, dim=(2, 3)).mean(0).double())
    return times, torch.stack(norms)


def _table(seen: list[_Seen]) -> Reading:
    columns = ("layer", "head", "recurrence", "form", "decay", "memory 10 %", "memory 50 %", "memory 90 %", "guarded")
    rows: list[tuple[Any, ...]] = []
    for each in seen:
        gates = log_gates(each.steps)
        lengths = memory_lengths(each.steps)
        levels = torch.tensor([0.1, 0.5, 0.9]).to(lengths)
        for head, quantiles in enumerate(torch.quantile(lengths, levels, 1, interpolation="nearest").T.tolist()):
            decay = [f"{number(float(gate[:, head].double().exp().median()))} {axis}" for axis, gate in gates.items()]
            few, all_ = each.guarded
            lines = (*(f"{n:,.0f}" if n < float("inf") else "all" for n in quantiles), f"{few} of {all_:,}" if all_ else "-")
            rows.append((each.name, head, each.steps.name, each.form, ", ".join(decay) or "none", *lines))
    return Reading(
        "What the states remember",
        "table",
        {column: [row[i] for row in rows] for i, column in enumerate(columns)},
        note=f"On {_size(seen)}. Decay: median factor per step on each axis of the state. Memory: steps until the product of the "
        "decays is 1/e, for a tenth, half and nine tenths of the entries; what a delta rule overwrites is not counted. "
        "Guarded: denominators too small to divide by.",
    )


def _decays(seen: list[_Seen]) -> Reading:
    """How the share that a step loses is spread, for each axis that has a decay in some layer."""
    edges, values = torch.tensor(EDGES, dtype=torch.float64), {}
    for axis in ("head", "key", "value", "entry"):
        logs = [gates[axis].double().flatten() for each in seen if axis in (gates := log_gates(each.steps))]
        if logs:
            lost = -torch.expm1(torch.cat(logs))
            values[f"{axis} decay"] = torch.bincount(torch.bucketize(lost, edges[1:-1], right=True), minlength=len(edges) - 1) / len(lost)
    return Reading(
        "Decays",
        "bars",
        values or {"no decay": [1.0] + [0.0] * (len(EDGES) - 2)},
        axes=["lost in a step", "share of gates"],
        note=f"On {_size(seen)}. What a step loses of an entry, 1 - exp(log gate): at 0.001 it is kept for about 1,000 steps.",
        extra={"labels": [f"{low:g} to {high:g}" for low, high in zip(EDGES, EDGES[1:])]},
    )


def _norms(each: _Seen) -> Reading:
    times, norms = state_norms(each.steps)
    heads = norms.shape[1]
    ranked = norms[-1].argsort(descending=True)
    shown = ranked[torch.linspace(0, heads - 1, min(LINES, heads)).round().long()].sort().values.tolist()
    which = "" if heads <= LINES else f" {LINES} of {heads} heads, from the largest at the end to the smallest."
    return Reading(
        f"State norm over time: {each.name}",
        "lines",
        {f"head {head}": norms[:, head] for head in shown},
        axes=["step", "norm of the state"],
        note=f"Frobenius norm, mean over {each.steps.v.shape[0]} sequences; {each.steps.name}.{which}",
        extra={"x": times},
    )


def _size(seen: list[_Seen]) -> str:
    B, _, L = seen[0].steps.v.shape[:3]
    return f"{B} sequences of {L:,} steps"


class _Reader(nn.Module):
    """Sequences of numbers -> classes: a mixer, and the mean of what it says."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.act, self.mixer, self.out = nn.Linear(4, 12), nn.Tanh(), mixer("gla", 12, form="chunk", heads=3), nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        y, _ = self.mixer(self.act(self.into(x)))
        return self.out(y.mean(1))


def tiny() -> Subject:
    with untouched():
        torch.manual_seed(0)
        net = _Reader()
        batch = Batch(x=torch.randn(11, 40, 4), y=torch.arange(11) % 5, ids=torch.arange(11))
    data = Data(train=_Rows(batch), name="tiny", task="classes", classes=("ant", "bee", "cat", "dog", "elk"))
    return Subject(net, batch, _Nll(classes=True), data, METRICS, "tiny")
