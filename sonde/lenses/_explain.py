"""The cost of a network as a table for the terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ..core.errors import clean
from ._words import bytes_, si
from .cost import Cost, by, cost, remark

if TYPE_CHECKING:
    from rich.console import RenderableType
    from torch import nn


def explain_model(model: nn.Module | Callable[[], nn.Module], example: Any, title: str, **options: Any) -> RenderableType:
    """Count a network and lay it out: `example` and the options are those of `sonde.lenses.cost.cost`."""
    return explain(cost(model, example, **options), title)


def explain(found: Cost, title: str) -> RenderableType:
    """Rows and totals; the figures are for one example."""
    from rich import box
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(clean(title), "bold"), title_justify="left", box=box.SIMPLE_HEAD, show_footer=True, pad_edge=False)
    totals = ("total", "", "", f"{found.weights:,}", f"{found.biases:,}", _least(found), bytes_(found.memory), "")
    heads = ("layer", "kind", "output", "weights", "biases", "FLOPs", "memory", "field")
    for head, total in zip(heads, totals, strict=True):
        to_right = head in ("weights", "biases", "FLOPs", "memory")
        table.add_column(head, total, justify="right" if to_right else "left", overflow="fold", no_wrap=to_right)
    for row in found.rows:
        kind = row.kind if row.calls == 1 else f"{row.kind} ({row.calls} calls)"
        cells: Sequence[str] = (
            *(row.name, kind, by(row.output) if row.calls else "-"),
            *(f"{row.weights:,}" if row.weights else "", f"{row.biases:,}" if row.biases else ""),
            *(si(row.flops).strip(), bytes_(row.memory), by(row.field) if row.field else ""),
        )
        table.add_row(*(Text(clean(cell)) for cell in cells))
    return Group(table, Text(remark(found) + " One multiply-add counts as 2 FLOPs.", "dim"))


def _least(found: Cost) -> str:
    return ("≥ " if found.unknown else "") + si(found.flops).strip()
