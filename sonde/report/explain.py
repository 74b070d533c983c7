"""The cost of a network as a table for the terminal, and how its mixers are computed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import torch

from ..core.batch import call_model
from ..core.errors import clean
from ..core.numbers import bytes_, si
from ..lenses.cost import Cost, CostRow, cost, describe_totals, on_meta, size_text
from ..lenses.tools.readonly import hook_outputs
from ..nn.mixers import Mixer
from ..nn.recurrence import choose, record_recurrences

if TYPE_CHECKING:
    import torch
    from rich.console import RenderableType
    from torch import nn

    from ..nn.recurrence import Steps


R = TypeVar("R")
MANY = 3
"""from this many equal blocks on, they are summarized"""


def explain_model(model: nn.Module | Callable[[], nn.Module], example: Any, title: str, **options: Any) -> RenderableType:
    """The cost of a network as a table; `example` and the options are those of `sonde.lenses.cost.cost`."""
    from rich.console import Group

    table, forms = explain(cost(model, example, **options), title), chosen_forms(model, example, **options)
    return Group(table, _forms(forms)) if forms else table


class ChosenForm(NamedTuple):
    """How one mixer is computed, and why."""

    layer: str
    kind: str
    steps: int
    form: str
    why: str


def chosen_forms(model: nn.Module | Callable[[], nn.Module], example: Any, **options: Any) -> list[ChosenForm]:
    """The form that every mixer takes on the model's device, in the order they run; for a recurrence, by its cost model."""
    net, batch = on_meta(model, example, **options)
    mixers = {name: module for name, module in net.named_modules() if isinstance(module, Mixer)}
    real = next((p.device for p in model.parameters()), None) if isinstance(model, torch.nn.Module) else None
    device = torch.device("cpu") if real is None or real.type == "meta" else real
    forms: list[ChosenForm] = []

    def note(name: str, mixer: Any, inputs: Any, _: Any) -> None:
        name, kind, fixed = name or "model", type(mixer).__name__, mixer.form != "auto"
        for steps, form in watch.seen:
            choice = choose(_on_device(steps, device))
            why = "requested" if fixed else f"{choice.why}; {_seconds(choice.estimates)}"
            forms.append(ChosenForm(name, f"{kind}, {steps.name}", steps.v.shape[2], form if fixed else choice.form, why))
        if not watch.seen:
            length = inputs[0].shape[1]
            form, why = (mixer.form, "requested") if fixed else mixer.auto(length)
            forms.append(ChosenForm(name, kind, length, form, why))
        watch.seen.clear()

    if mixers:
        with torch.no_grad(), torch.device("meta"), record_recurrences() as watch, hook_outputs(mixers, note):
            call_model(net, batch)
    return forms


def _on_device(steps: Steps, device: torch.device) -> Steps:
    """Tensors of the same sizes on a device, each in the memory of one number."""
    tensors = {f.name: x for f in fields(steps) if isinstance(x := getattr(steps, f.name), torch.Tensor)}
    with torch.device(device):
        small: dict[str, Any] = {name: torch.zeros((), dtype=x.dtype).expand(x.shape) for name, x in tensors.items()}
    return replace(steps, **small)


def _seconds(estimates: dict[str, float]) -> str:
    return "expected ms: " + ", ".join(f"{form} {1e3 * seconds:.3g}" for form, seconds in sorted(estimates.items(), key=lambda one: one[1]))


def _forms(forms: Sequence[ChosenForm]) -> RenderableType:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text("How the mixers are computed", "bold"), title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for head in ChosenForm._fields:
        table.add_column(head, justify="right" if head == "steps" else "left", overflow="fold")
    for row in _fold_forms(forms):
        table.add_row(*(Text(clean(f"{cell:,}" if isinstance(cell, int) else cell)) for cell in row))
    return table


def _fold_rows(rows: Iterable[CostRow]) -> list[CostRow]:
    """Of consecutive equal blocks, the first and one row with the sums of the others."""
    shown: list[CostRow] = []
    for run in _group_alike(rows, lambda row: row.name, lambda row: replace(row, name="")):
        one, others = run[0], run[1:]
        every = [row for block in others for row in block]
        shown += one
        if len(run) < MANY:
            shown += every
            continue
        flops = None if any(row.flops is None for row in every) else sum(row.flops or 0 for row in every)
        name, kind = _span(others[0][0].name, others[-1][0].name)[0], f"{len(others)} × block {_split_name(one[0].name)[1]}"
        sums = {what: sum(getattr(row, what) for row in every) for what in ("weights", "biases", "memory")}
        output = next((row.output for row in reversed(every) if row.output), ())
        shown.append(CostRow(name, kind, output, flops=flops, **sums))
    return shown


def _fold_forms(forms: Iterable[ChosenForm]) -> list[ChosenForm]:
    """Of consecutive equal blocks, one, with the range of their numbers in the name."""
    shown: list[ChosenForm] = []
    for run in _group_alike(forms, lambda row: row.layer, lambda row: row[1:]):
        if len(run) >= MANY:
            shown += [one._replace(layer="".join(_span(one.layer, last.layer))) for one, last in zip(run[0], run[-1], strict=True)]
        else:
            shown += [row for block in run for row in block]
    return shown


def _group_alike(rows: Iterable[R], name: Callable[[R], str], bare: Callable[[R], Any]) -> list[list[list[R]]]:
    """Rows grouped by block, and consecutive blocks that differ only in their number grouped together."""

    def key(block: list[R]) -> list[Any]:
        return [(_split_name(name(row))[::2], bare(row)) for row in block]

    blocks = [list(block) for _, block in groupby(rows, lambda row: _split_name(name(row))[:2])]
    return [list(run) for _, run in groupby(blocks, key)]


def _split_name(name: str) -> tuple[str, str, str]:
    """'stack.blocks.3.ffn.up' -> 'stack.blocks.', '3', '.ffn.up'."""
    match = re.match(r"((?:[^.]*[^.\d][^.]*\.)*)(\d+)((?:\..*)?)$", name)
    return (match[1], match[2], match[3]) if match else (name, "", "")


def _span(first: str, last: str) -> tuple[str, str]:
    """Name of the blocks from one to another, and what follows the number: 'stack.blocks.0–11', '.mixer'."""
    (head, start, tail), end = _split_name(first), _split_name(last)[1]
    return f"{head}{start}–{end}", tail


def explain(profile: Cost, title: str) -> RenderableType:
    """Rows and totals, for one example."""
    from rich import box
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(clean(title), "bold"), title_justify="left", box=box.SIMPLE_HEAD, show_footer=True, pad_edge=False)
    totals = ("total", "", "", f"{profile.weights:,}", f"{profile.biases:,}", _flops_text(profile), bytes_(profile.memory), "")
    heads = ("layer", "kind", "output", "weights", "biases", "FLOPs", "memory", "field")
    for head, total in zip(heads, totals, strict=True):
        to_right = head in ("weights", "biases", "FLOPs", "memory")
        table.add_column(head, total, justify="right" if to_right else "left", overflow="fold", no_wrap=to_right)
    for row in _fold_rows(profile.rows):
        kind = row.kind if row.calls == 1 else f"{row.kind} ({row.calls} calls)"
        cells: Sequence[str] = (
            *(row.name, kind, size_text(row.output) if row.calls else "-"),
            *(f"{row.weights:,}" if row.weights else "", f"{row.biases:,}" if row.biases else ""),
            *(si(row.flops).strip(), bytes_(row.memory), size_text(row.field) if row.field else ""),
        )
        table.add_row(*(Text(clean(cell)) for cell in cells))
    return Group(table, Text(describe_totals(profile) + " One multiply-add counts as 2 FLOPs.", "dim"))


def _flops_text(profile: Cost) -> str:
    return ("≥ " if profile.unknown else "") + si(profile.flops).strip()
