"""Reading: what a lens found.  Data with named axes and a note; drawing happens elsewhere (`sonde.report.draw`)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .errors import BadInput, DataUnusable, nearest
from .files import parse_json


@dataclass
class Reading:
    """One finding.

    kind says how to draw it: 'lines', 'bars', 'heat', 'table', 'images', 'scatter', 'plane', 'graph', 'text'.
    values maps a name to plain nested lists (or arrays and tensors, which are converted).
    axes names the axes of those lists, outermost first.
    """

    title: str
    kind: str
    values: Mapping[str, Any]
    axes: Sequence[str] = ()
    note: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """labels, log scales and other hints for drawing"""

    KINDS = ("lines", "bars", "heat", "table", "images", "scatter", "plane", "graph", "text")

    def __post_init__(self) -> None:
        if self.kind not in self.KINDS:
            raise BadInput(f"a reading has no kind '{self.kind}'", fix=nearest(self.kind, self.KINDS))
        self.values = plain(self.values)
        self.extra = plain(self.extra)
        self.axes = list(self.axes)

    def to_json(self) -> str:
        """JSON in the order of the values; numbers that are not finite become null, because JSON has no word for them."""
        body = {name: getattr(self, name) for name in ("title", "kind", "values", "axes", "note", "extra")}
        return json.dumps(_finite(body), allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Reading:
        try:
            return cls(**parse_json(text.encode()))
        except (TypeError, ValueError, AttributeError) as error:
            raise DataUnusable(f"this is not a reading: {error}", where=text[:60], fix="make it again with `sonde look`") from error

    def save(self, path: str | Path) -> None:
        Path(path).write_text(self.to_json(), encoding="utf-8")


def plain(value: Any) -> Any:
    """Tensors and arrays as nested lists; everything else as it is."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if value == value and abs(value) != float("inf") else None
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return value


@dataclass
class Subject:
    """What a lens looks at.  Lenses read it and change nothing: not the model, not its gradients, not random state."""

    model: Any
    batch: Any
    objective: Any = None
    data: Any = None
    metrics: Sequence[Mapping[str, Any]] = ()
    """rows of metrics.jsonl"""
    name: str = ""
