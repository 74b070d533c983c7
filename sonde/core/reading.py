"""Reading: the result of a lens.  Data with named axes and a note; drawing happens elsewhere (`sonde.report.draw`).

Each kind of reading is a class: `Lines`, `Bars`, `Heat`, `Table`, `Images`, `Scatter`, `Plane`, `Diagram`, `Text`.

    reading = Bars("Fraction of zeros", {"zeros": [0.1, 0.4]}, axes=["layer"], labels=["conv1", "conv2"])
    reading.to_json()         Reading.from_json(text)         Reading.schema("bars")

Arrays and tensors are stored as nested lists, and every field is checked when a reading is made.  None, NaN and the
infinities all mean "not measured": JSON has null for them, pictures leave them blank, and no check refuses them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields
from functools import cache
from inspect import getdoc
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, get_type_hints

from . import renamed
from ._shapes import Schema, mismatch, schema_of
from .errors import BadInput, DataUnusable, nearest
from .files import parse_json
from .options import help_texts

Number = float | None
Label = str | float | None
Numbers = Annotated[Any, list[Number]]
Matrix = Annotated[Any, list[list[Number]]]
ImageStack = Annotated[Any, list[list[list[Number]] | list[list[list[Number]]] | None]]
PointList = Annotated[Any, list[tuple[Number, Number]]]


@dataclass(frozen=True)
class Reading:
    """One result of a lens; the base class of all kinds.

    Args:
        title: what it shows, in a few words
        values: the measured data by name
        axes: names of the axes of that data
        note: what was measured and what it shows, in sentences
        results: further results by name, which are not drawn
    """

    title: str
    values: Mapping[str, Any]
    axes: Sequence[str] = ()
    note: str = ""
    _: KW_ONLY
    results: Mapping[str, Any] = field(default_factory=dict)

    kind: ClassVar[str] = ""
    KINDS: ClassVar[dict[str, type[Reading]]] = {}

    def __init_subclass__(cls, kind: str) -> None:
        cls.kind = kind
        Reading.KINDS[kind] = cls

    def __new__(cls, *arguments: Any, **named: Any) -> Reading:
        if cls is Reading:
            kinds = ", ".join(each.__name__ for each in cls.KINDS.values())
            raise BadInput("a Reading is always of one kind", fix=f"make one of {kinds}: Lines(title, values, ...)")
        return super().__new__(cls)

    def __post_init__(self) -> None:
        for name, schema in _schemas(self.kind).items():
            value = plain(getattr(self, name))
            object.__setattr__(self, name, value)
            if why := mismatch(value, schema, name):
                raise self._wrong(why)
        self._check()

    def _check(self) -> None:
        """Raise BadInput where parts of the data do not match."""

    def _wrong(self, why: str) -> BadInput:
        return BadInput(f"a reading of kind '{self.kind}' is wrong: {why}", where=self.title)

    def _same_length(self, what: str, part: Sequence[Any], expected: int) -> None:
        if len(part) != expected:
            raise self._wrong(f"{what} has {len(part)} items for {expected}")

    def to_json(self) -> str:
        """JSON with the fields that are set, in order; numbers that are not finite become null, because JSON cannot represent them."""
        empty = type(self)("", {})
        body = {"title": self.title, "kind": self.kind, "values": self.values, "axes": self.axes, "note": self.note}
        body |= {one.name: value for one in fields(self)[4:] if (value := getattr(self, one.name)) != getattr(empty, one.name)}
        return json.dumps(finite(body), allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Reading:
        """The reading that `to_json` wrote, now or in an older version."""
        try:
            body = parse_json(text.encode())
            kind = body.pop("kind")
            return _kind(kind)(**renamed.reading(body, _schemas(kind)))
        except (TypeError, ValueError, AttributeError, KeyError) as error:
            raise DataUnusable(f"this is not a reading: {error}", where=text[:60], fix="make it again with `sonde look`") from error

    def save(self, path: str | Path) -> None:
        """Write it as JSON."""
        Path(path).write_text(self.to_json(), encoding="utf-8")

    @staticmethod
    def schema(kind: str) -> Schema:
        """The JSON Schema of a kind of reading as `to_json` writes it, with a description of each field."""
        helps = help_texts(getdoc(Reading) or "") | help_texts(getdoc(_kind(kind)) or "")
        properties = {name: {**schema, "description": helps[name]} for name, schema in _schemas(kind).items()}
        return {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "title": kind,
            "description": (getdoc(_kind(kind)) or "").partition("\n\n")[0].replace("\n", " "),
            "type": "object",
            "properties": {"kind": {"const": kind}, **properties},
            "required": ["title", "kind", "values", "axes", "note"],
            "additionalProperties": False,
        }


@dataclass(frozen=True)
class Lines(Reading, kind="lines"):
    """Curves: named series over a common axis, with their names at their ends.

    Args:
        values: y of each line
        axes: names of the x and the y axis; an entry of values called like the x axis gives x
        x: x of all lines, or of each by name; without it and without such an entry, 0, 1, 2, ...
        log: axes with a logarithmic scale
        smooth: window of a running mean that is drawn over a line
        colors: index of each line's color in the palette, to keep it the same in several pictures
        marks: x of vertical lines, by the label above them
        top: upper limit of the y axis
        ticks: tick positions on the x axis
        thin: thin solid lines with open circles, so that overlapping lines can be seen
    """

    values: Mapping[str, Numbers]
    _: KW_ONLY
    x: Annotated[Any, list[Number] | dict[str, list[Number]] | None] = None
    log: Annotated[Sequence[str], list[Literal["x", "y"]]] = ()
    smooth: Mapping[str, int] = field(default_factory=dict)
    colors: Mapping[str, int] = field(default_factory=dict)
    marks: Mapping[str, Number] = field(default_factory=dict)
    top: Number = None
    ticks: Annotated[Any, list[Number] | None] = None
    thin: bool = False

    def _check(self) -> None:
        for name, (x, y) in self.curves().items():
            self._same_length(f"x of '{name}'", x, len(y))

    def curves(self) -> dict[str, tuple[Sequence[Any], Sequence[Any]]]:
        """x and y of each line."""
        lines, x = dict(self.values), self.x
        if x is None and self.axes:
            x = lines.pop(self.axes[0], None)
        if isinstance(x, Mapping) and (missing := [name for name in lines if name not in x]):
            raise self._wrong(f"x has no entry '{missing[0]}'")
        return {name: (x[name] if isinstance(x, Mapping) else range(len(y)) if x is None else x, y) for name, y in lines.items()}


@dataclass(frozen=True)
class Bars(Reading, kind="bars"):
    """Bars side by side, one panel per name; with edges a histogram.

    Args:
        values: height of each bar, one panel each
        axes: what the bars are; for a histogram the names of both axes
        labels: names of the bars
        label_width: characters of a label that are shown at most
        edges: bounds of the bins of a histogram, one more than there are bars
        dots: for each bar the single values it is the mean of, by panel
        log: 'value' for a logarithmic scale
    """

    values: Mapping[str, Numbers]
    _: KW_ONLY
    labels: Sequence[Label] = ()
    label_width: int = 26
    edges: Numbers = ()
    dots: Mapping[str, Sequence[Numbers]] = field(default_factory=dict)
    log: Annotated[Sequence[str], list[Literal["value"]]] = ()

    def _check(self) -> None:
        bars = max(map(len, self.values.values()), default=0)
        for name, heights in self.values.items():
            self._same_length(f"values['{name}']", heights, bars)
        if self.labels:
            self._same_length("labels", self.labels, bars)
        if self.edges:
            self._same_length("edges", self.edges, bars + 1)


@dataclass(frozen=True)
class Heat(Reading, kind="heat"):
    """Matrices as shaded cells, with numbers if they are readable, else with a color scale.

    Args:
        values: matrices of one shape, one panel each
        axes: what the rows and what the columns are
        rows: names of the rows
        columns: names of the columns
        share: 'row' shades each entry by its fraction of the row sum
        diagonal: draws the entries off the diagonal in a second color
        words: text in the cells instead of their numbers
    """

    values: Mapping[str, Matrix]
    _: KW_ONLY
    rows: Sequence[Label] = ()
    columns: Sequence[Label] = ()
    share: Literal["", "row"] = ""
    diagonal: bool = False
    words: Sequence[Sequence[Label]] = ()

    def _check(self) -> None:
        first: Sequence[Any] = next(iter(self.values.values()), [])
        shape = len(first), len(first[0]) if first else 0
        for name, matrix in [*self.values.items(), *([("words", self.words)] if self.words else [])]:
            if len(matrix) != shape[0] or any(len(row) != shape[1] for row in matrix):
                raise self._wrong(f"'{name}' does not have the shape {shape} of the first matrix")
        for what, names, expected in (("rows", self.rows, shape[0]), ("columns", self.columns, shape[1])):
            if names:
                self._same_length(what, names, expected)


@dataclass(frozen=True)
class Table(Reading, kind="table"):
    """Columns of numbers and text, with an optional row of sums.

    Args:
        values: the cells of each column, top to bottom
        formats: number format of a column: 1.2 G, 4.0 MiB, 98.61 %
        total: sums of columns
    """

    values: Mapping[str, Annotated[Any, list[str | float | bool | None]]]
    _: KW_ONLY
    formats: Annotated[Mapping[str, str], dict[str, Literal["si", "bytes", "percent"]]] = field(default_factory=dict)
    total: Mapping[str, Number] = field(default_factory=dict)

    def _check(self) -> None:
        rows = max(map(len, self.values.values()), default=0)
        for name, column in self.values.items():
            self._same_length(f"column '{name}'", column, rows)


@dataclass(frozen=True)
class Images(Reading, kind="images"):
    """Pictures in rows with captions, heat laid over them and frames around parts.

    Args:
        values: one list of pictures, (H, W) or (H, W, 3) in 0..1; null for an empty cell
        labels: captions
        details: smaller second captions
        across: pictures in a row; 0 for as many as fit
        rows: names of the rows
        size: longer side of a picture in inches
        dense: small pictures with little space between them
        heat: a matrix of any size over each picture, clear at 0, in one color above and another below
        top: the heat that is drawn in the full color; by default the largest of each picture
        strong: fraction of each picture's heat that is drawn in the full color
        frames: boxes over each picture by name, (top, left, height, width) in pixels, named beside the pictures
    """

    values: Mapping[str, ImageStack]
    _: KW_ONLY
    labels: Sequence[Label] = ()
    details: Sequence[Label] = ()
    across: int = 0
    rows: Sequence[Label] = ()
    size: Number = None
    dense: bool = False
    heat: Annotated[Any, list[list[list[Number]] | None]] = ()
    top: Number = None
    strong: float = 0.0
    frames: Annotated[Sequence[Mapping[str, Any]], list[dict[str, tuple[float, float, float, float]]]] = ()

    def _check(self) -> None:
        if len(self.values) > 1:
            raise self._wrong(f"values has {len(self.values)} lists of pictures; give one")
        count = len(next(iter(self.values.values()), []))
        for name in ("labels", "details", "heat", "frames"):
            if len(getattr(self, name)) > count:
                raise self._wrong(f"{name} has {len(getattr(self, name))} items for {count} pictures")


@dataclass(frozen=True)
class Scatter(Reading, kind="scatter"):
    """Points in a plane or in space, colored by group.

    Args:
        values: coordinates of the points, by axis
        axes: which entries of values are x and y; with a third, z
        groups: the group of each point
        labels: text at the points; one that would overlap an earlier one is left out
        diagonal: draws y = x
        view: elevation and azimuth in degrees from which points in space are seen
        log: axes with a logarithmic scale
    """

    values: Mapping[str, Numbers]
    _: KW_ONLY
    groups: Annotated[Any, list[Label]] = ()
    labels: Sequence[Label] = ()
    diagonal: bool = False
    view: Annotated[Any, tuple[float, float]] = (24, -58)
    log: Annotated[Sequence[str], list[Literal["x", "y"]]] = ()

    def _check(self) -> None:
        points = max(map(len, self.values.values()), default=0)
        for name, coordinates in self.values.items():
            self._same_length(f"values['{name}']", coordinates, points)
        for what, each in (("groups", self.groups), ("labels", self.labels)):
            if each:
                self._same_length(what, each, points)


@dataclass(frozen=True)
class Plane(Reading, kind="plane"):
    """Functions over a rectangle: contours or flat classes, with paths, points and arrows on top of every panel.

    Args:
        values: the function at each (y, x), a matrix per panel; null stays blank
        axes: names of x and y
        x: coordinates of the columns
        y: coordinates of the rows, upwards
        levels: how many contour lines, or where they are
        classes: names of the numbers 0, 1, 2, ..., which are drawn as flat colors
        log: 'value' for a logarithmic scale of the function
        paths: trajectories by name, with an open circle at the start and a dot at the end
        points: points by name
        arrows: (x, y, dx, dy) of each arrow
        outlines: corners of polygons
        colors: index in the palette of the color of paths and points
    """

    values: Mapping[str, Matrix]
    _: KW_ONLY
    x: Annotated[Any, list[Number] | None] = None
    y: Annotated[Any, list[Number] | None] = None
    levels: Annotated[Any, int | list[Number]] = 10
    classes: Sequence[Label] = ()
    log: Annotated[Sequence[str], list[Literal["value"]]] = ()
    paths: Mapping[str, PointList] = field(default_factory=dict)
    points: Mapping[str, PointList] = field(default_factory=dict)
    arrows: Annotated[Any, list[tuple[Number, Number, Number, Number]]] = ()
    outlines: Sequence[PointList] = ()
    colors: Mapping[str, int] = field(default_factory=dict)

    def _check(self) -> None:
        x, y = self.coordinates()
        for name, z in self.values.items():
            shape = len(z), max(map(len, z), default=0)
            if shape != (len(y), len(x)) or min(map(len, z), default=0) != len(x) or min(shape) < 2:
                expected = f"(y, x) = ({len(y)}, {len(x)}), each at least 2"
                raise BadInput(f"panel '{name}' of a plane has shape {shape}", where=self.title, fix=f"give {expected}")

    def coordinates(self) -> tuple[Sequence[Any], Sequence[Any]]:
        """x of the columns and y of the rows."""
        z: Sequence[Any] = next(iter(self.values.values()), [])
        columns, rows = range(len(z[0]) if z else 0), range(len(z))
        return columns if self.x is None else self.x, rows if self.y is None else self.y


@dataclass(frozen=True)
class Diagram(Reading, kind="graph"):
    """Boxes and arrows between them.

    Args:
        values: 'x' and 'y', the middle and the top of each box in pixels downwards; 'words', its lines; 'kind', which is
            'input', 'parameter', 'output' or another
        box: width and height of a box
        edges: the points of each arrow
    """

    values: Mapping[str, Annotated[Any, list[float] | list[str] | list[list[str]]]]
    _: KW_ONLY
    box: Annotated[Any, tuple[float, float]] = (168, 40)
    edges: Sequence[PointList] = ()

    def _check(self) -> None:
        if self.values and (wrong := set(self.values) ^ {"x", "y", "words", "kind"}):
            raise self._wrong(f"values must have 'x', 'y', 'words' and 'kind'; look at '{min(wrong)}'")
        for name, each in self.values.items():
            self._same_length(f"values['{name}']", each, len(self.values["x"]))


@dataclass(frozen=True)
class Text(Reading, kind="text"):
    """A text with a highlight on each token that has a value, stronger for larger values.

    Args:
        values: 'token', the tokens, where one that ends in the line-end symbol ends a line; and the values by their name
        axes: 'token' and the name of the values
        top: the value with the strongest highlight; by default the largest
    """

    values: Mapping[str, Annotated[Any, list[str] | list[Number]]]
    _: KW_ONLY
    top: Number = None

    def _check(self) -> None:
        for name, each in self.values.items():
            self._same_length(f"values['{name}']", each, len(self.values.get("token", [])))


def _kind(name: str) -> type[Reading]:
    if name not in Reading.KINDS:
        raise BadInput(f"a reading has no kind '{name}'", fix=nearest(name, Reading.KINDS))
    return Reading.KINDS[name]


@cache
def _schemas(kind: str) -> dict[str, Schema]:
    """The JSON Schema of every field."""
    hints = get_type_hints(_kind(kind), include_extras=True)
    return {one.name: schema_of(hints[one.name]) for one in fields(_kind(kind))}


def plain(value: Any) -> Any:
    """Tensors and arrays as nested lists; everything else as it is."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple, range)):
        return [plain(item) for item in value]
    return value


def finite(value: Any) -> Any:
    """A plain value with None for numbers that JSON cannot represent."""
    if isinstance(value, float):
        return value if value == value and abs(value) != float("inf") else None
    if isinstance(value, dict):
        return {name: finite(item) for name, item in value.items()}
    if isinstance(value, list):
        return [finite(item) for item in value]
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
