"""Draws a Reading in the house style: quiet, direct labels, colours that colour-blind readers can tell apart.

What each kind expects (beside `title` and `note`):

    lines    values {name: [y, ...]}; x from extra["x"] (a list, or one list per name), or from the entry of values that
             is called axes[0], else 0, 1, 2, ...; extra["smooth"] {name: window} adds a running mean;
             extra["colours"] {name: place in the palette} keeps a name's colour from picture to picture;
             axes[1] names y; extra["marks"] {words: x} are upright lines, extra["top"] is where the y axis ends at most;
             extra["ticks"] are the places marked on the x axis; extra["thin"] draws thin whole lines with open rings, so
             that lines that lie on each other can be seen
    bars     values {name: [height, ...]}, one panel each; extra["labels"] names the bars, or extra["edges"] bounds them;
             extra["dots"] {name: [[value, ...], ...]} are the single values a bar is the mean of
    heat     values {name: [[...], ...]}, one panel each, all of one shape; extra["rows"], extra["columns"] name them;
             extra["share"] = "row" shades each entry by its share of the row; extra["diagonal"] sets what lies off the
             diagonal in a second colour; extra["words"] [[...], ...] are written into the cells instead of their numbers;
             where there are no numbers in the cells, a scale beside the panel tells what its shades stand for
    table    values {column: [...]}; extra["formats"] {column: "si" | "bytes" | "percent"}, extra["total"] {column: sum}
    images   values {name: [image, ...]} of (H, W) or (H, W, 3) in 0..1, None for a place left free; extra["labels"],
             extra["details"] are captions; extra["across"] pictures stand in a row and extra["rows"] names the rows;
             extra["size"] is the longer side of a picture in inches.  Over each picture: extra["heat"] [matrix or None, ...]
             of any size, clear at 0, in one colour above and another below, strongest at extra["top"], else at its own largest,
             with a scale below the pictures;
             extra["frames"] [{name: [top, left, height, width]}, ...] are boxes in pixels, named beside the pictures
    scatter  values {axes[0]: [...], axes[1]: [...]}; extra["groups"] colours the points, extra["diagonal"] draws y = x;
             extra["labels"] are written at the points, those that would cover an earlier one left out;
             with three names in axes it is drawn in 3-D, and extra["view"] = [elevation, azimuth] turns it
    plane    a function over a rectangle: values {name: Z} with Z of shape (ny, nx), one panel each, axes [x, y];
             extra["x"], extra["y"] are the coordinates of its columns and rows (y upwards); NaN and None stay blank.
             extra["levels"], how many contour lines or a list of them, over shading that is in one colour, or in two
             where Z changes its sign; extra["classes"], names of the numbers 0, 1, 2, ... in Z, gives flat colours instead.
             On top of every panel: extra["paths"] {name: [[x, y], ...]} with an open ring at the start and a dot at the
             end, extra["points"] {name: [[x, y], ...]}, extra["arrows"] [[x, y, dx, dy], ...], extra["outlines"], a list
             of polygons [[x, y], ...]; extra["colours"] {name: place in the palette} for paths and points

    text     values {"token": [...], axes[1]: [...]}: a running text with a mark on each token that has a number, stronger where
             it is larger, strongest at extra["top"]; a token that ends in the sign for the end of a line ends a line

    graph    values {"x", "y": middle and top of each box in pixels downwards, "words": its lines, "kind": "input", "parameter",
             "output" or another}; extra["box"] [width, height] of a box, extra["edges"], a list of ways [[x, y], ...]

Everywhere extra["log"] lists axes with a logarithmic scale ("x", "y", "value").
"""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core.errors import BadInput, clean
from ..core.files import replace_file
from ..core.reading import Reading
from ._words import formatted, number


@dataclass(frozen=True)
class Theme:
    """Colours of a picture.  Text on a full palette colour is set in the colour of the paper."""

    paper: str
    ink: str
    muted: str
    rule: str
    palette: tuple[str, ...]

    @property
    def all(self) -> tuple[str, ...]:
        return self.paper, self.ink, self.muted, self.rule, *self.palette


LIGHT = Theme("#ffffff", "#1c2430", "#667080", "#dde2e8", ("#0b6bb0", "#d05a10", "#0a8f6c", "#b5579a", "#b8860b", "#4f9fd0", "#7a8594"))
DARK = Theme("#14181d", "#e6eaef", "#98a3b1", "#2f3740", ("#5ab0ee", "#ff9457", "#41c79e", "#e59cc9", "#e5b94f", "#9bd2f5", "#9aa5b3"))
FONTS = ("Inter", "Source Sans 3", "Helvetica Neue", "Helvetica", "Arial", "Liberation Sans", "DejaVu Sans")
DOTS_PER_INCH = 200
NARROW, WIDE = 4.6, 7.6
MOST_ROWS = 80
ROW = 0.24
BEYOND = 1e60
DASH = 0.28
"""inches of a sample of a line before its label"""
EARLY = 0.85
"""a line that ends before this share of the width has its label where it ends"""
PIXEL = 1 / 105
"""inches of a pixel of a laid-out graph"""
DRAWN_CELLS = 30
"""matrices up to this size are drawn cell by cell, with their numbers where these are large enough"""
SMALLEST = 3.0
"""points of the smallest number that is written into a cell"""
SCALE = 1.1
"""inches of the bar that tells what shades stand for"""
WORD = 7.0
"""points of a word in a cell"""
OPAQUE, PALE = 0.85, 0.5
"""how much the warmest place hides of the picture below it, and how much is left of the picture itself"""
LETTER = 9 / 72 * 0.602
"""inches of a letter of a running text"""
LETTERS = 72
"""letters of a line of it"""


def draw(reading: Reading | Sequence[Reading], path: str | Path) -> Path:
    """Write a reading as PNG, whole or not at all; several readings share one sheet in two columns."""
    path = Path(path)
    several = [reading] if isinstance(reading, Reading) else list(reading)
    pictures = [_render(each, "png", bare=False) for each in several]
    try:
        replace_file(path, pictures[0] if len(pictures) == 1 else _sheet(pictures))
    except FileNotFoundError as error:
        raise BadInput(f"there is no folder '{path.parent}'", fix="create it first") from error
    return path


def _sheet(pictures: Sequence[bytes], across: int = 2) -> bytes:
    """Pictures side by side, row by row."""
    from PIL import Image

    tiles = [Image.open(io.BytesIO(picture)) for picture in pictures]
    rows = [tiles[start : start + across] for start in range(0, len(tiles), across)]
    width, heights = max((tile.width for tile in tiles), default=1), [max(tile.height for tile in row) for row in rows]
    sheet = Image.new("RGB", (width * min(across, max(len(tiles), 1)), sum(heights) or 1), LIGHT.paper)
    for index, row in enumerate(rows):
        for column, tile in enumerate(row):
            sheet.paste(tile, (column * width, sum(heights[:index])))
    buffer = io.BytesIO()
    sheet.save(buffer, "PNG", dpi=(DOTS_PER_INCH, DOTS_PER_INCH))
    return buffer.getvalue()


def svg(reading: Reading) -> tuple[bytes, bytes]:
    """A reading as SVG for light and for dark pages, on transparent ground and without title and note, which a page sets itself.

    The dark one is the light one with its colours exchanged, so it is drawn once.
    """
    import re

    light = _render(reading, "svg", bare=True)
    swap = {old.encode(): new.encode() for old, new in zip(LIGHT.all, DARK.all, strict=True)}
    return light, re.sub(b"|".join(swap), lambda match: swap[match.group()], light)


def _render(reading: Reading, kind: str, bare: bool) -> bytes:
    import warnings

    with _style(LIGHT, reading), warnings.catch_warnings():
        for kind_of in (UserWarning, RuntimeWarning):
            warnings.simplefilter("ignore", kind_of)  # a script the font lacks or an axis without extent is no fault of the reading
        sheet = _Sheet(reading, LIGHT, bare)
        _PAINTERS[reading.kind](reading, LIGHT, sheet)
        buffer = io.BytesIO()
        ground = "none" if bare else LIGHT.paper
        meta = {"Date": None, "Creator": None} if kind == "svg" else {"Software": None}
        sheet.figure.savefig(buffer, format=kind, dpi=DOTS_PER_INCH, facecolor=ground, metadata=meta)
    return buffer.getvalue()


@contextmanager
def _style(theme: Theme, reading: Reading) -> Iterator[None]:
    """The house style, for the life of one picture; names are never read as formulas."""
    import matplotlib
    from matplotlib import font_manager

    known = {font.name for font in font_manager.fontManager.ttflist}
    settings: dict[Any, Any] = {
        "font.family": [font for font in FONTS if font in known][:1] + ["DejaVu Sans"],
        "font.size": 8.5,
        "text.color": theme.ink,
        "text.parse_math": False,
        "axes.edgecolor": theme.rule,
        "axes.facecolor": "none",
        "axes.labelcolor": theme.muted,
        "axes.labelsize": 8,
        "axes.linewidth": 0.8,
        "axes.formatter.use_mathtext": False,
        "axes.unicode_minus": True,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.spines.left": False,
        "axes.axisbelow": True,
        "grid.color": theme.rule,
        "grid.linewidth": 0.6,
        "lines.solid_capstyle": "round",
        "xtick.color": theme.muted,
        "ytick.color": theme.muted,
        "xtick.labelsize": 7.5,
        "ytick.labelsize": 7.5,
        "xtick.major.size": 0,
        "ytick.major.size": 0,
        "xtick.minor.size": 0,
        "ytick.minor.size": 0,
        "svg.fonttype": "path",
        "svg.hashsalt": reading.title,  # the same reading gives the same bytes
    }
    with matplotlib.rc_context(settings):
        yield


class _Sheet:
    """A page of paper measured in inches: title above, note below, the picture between them."""

    def __init__(self, reading: Reading, theme: Theme, bare: bool) -> None:
        self.reading, self.theme, self.bare = reading, theme, bare
        self.figure: Any = None
        self.width = self.height = self.floor = 0.0

    def open(self, width: float, height: float) -> None:
        """Make the figure with a picture area of the given height."""
        from matplotlib.figure import Figure

        note = "" if self.bare else clean(self.reading.note)
        lines = textwrap.wrap(note, int(width * 15.5))
        self.floor = 0.17 * len(lines) + 0.14 if lines else 0.04
        top = 0.04 if self.bare else 0.42
        self.width, self.height = width, height + self.floor + top
        self.figure = Figure(figsize=(self.width, self.height))
        if not self.bare:
            self.text(0.14, self.height - 0.15, short(self.reading.title, 90), size=11, weight="bold", va="top")
        for index, line in enumerate(reversed(lines)):
            self.text(0.14, 0.12 + 0.17 * index, line, size=8, color=self.theme.muted, va="bottom")

    def axes(self, left: float, bottom: float, width: float, height: float, **options: Any) -> Any:
        """Axes placed in inches, measured from the left edge and from just above the note."""
        bottom += self.floor
        return self.figure.add_axes((left / self.width, bottom / self.height, width / self.width, height / self.height), **options)

    def text(self, x: float, y: float, words: str, **style: Any) -> Any:
        return self.figure.text(x / self.width, y / self.height, words, **style)


def short(name: Any, most: int = 26) -> str:
    """A name that fits: control characters shown, the middle left out where it is too long."""
    text = clean(name)
    if len(text) <= most:
        return text
    if "." in text.split(" ")[0]:  # a part of a model: which block it is stands late in the name
        return f"…{text[-(most - 1) :]}"
    return f"{text[: most // 2]}…{text[-(most - most // 2 - 1) :]}"


def _cut(text: str, most: int = 40) -> str:
    """A table cell that fits: the end left out where it is too long, from a blank or comma on, so that no number is cut in two."""
    text = clean(text)
    if len(text) <= most:
        return text
    place = max(text.rfind(mark, most // 2, most) for mark in " ,")
    return text[: place if place > 0 else most - 1].rstrip(" ,") + "…"


def _inches(words: Sequence[str], size: float) -> float:
    """Width of the longest of some texts, near enough to plan margins."""
    return max((len(word) for word in words), default=0) * size * 0.0078


def _colour(theme: Theme, index: int) -> str:
    return theme.palette[index % len(theme.palette)]


def _dash(theme: Theme, index: int) -> str:
    return ("-", "--", ":", "-.")[index // len(theme.palette) % 4]


def _floats(values: Any) -> list[float]:
    """Numbers an axis can bear: what is missing, infinite or beyond all measure is left out, the immeasurably small is 0."""

    def bearable(value: Any) -> float:
        if value is None or not abs(value) < BEYOND:
            return math.nan
        return float(value) if abs(value) > 1 / BEYOND else 0.0

    return [bearable(value) for value in values]


def _nothing(sheet: _Sheet, words: str = "nothing to show") -> None:
    sheet.open(NARROW, 0.5)
    sheet.text(0.14, sheet.floor + 0.22, words, color=sheet.theme.muted)


def _ticks(axis: Any, log: bool, most: int = 5, whole: bool = False) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

    def say(value: float, _: int) -> str:
        return number(int(value) if float(value).is_integer() and abs(value) < 1e9 else value).replace("-", "−")

    axis.set_major_formatter(FuncFormatter(say))
    low, high = sorted(axis.get_view_interval())
    if log and low > 0:
        for locator in (LogLocator(numticks=6), LogLocator(subs=(1.0, 2.0, 5.0), numticks=8), MaxNLocator(most)):
            if sum(low <= tick <= high for tick in locator.tick_values(low, high)) >= 3:
                break  # powers of ten where three can be seen, else finer steps
        axis.set_major_locator(locator)
        axis.set_minor_formatter(NullFormatter())
    else:
        axis.set_major_locator(MaxNLocator(most, steps=[1, 2, 2.5, 5, 10], integer=whole))


# One painter per kind


def _lines(reading: Reading, theme: Theme, sheet: _Sheet) -> None:
    values = dict(reading.values)
    given = reading.extra.get("x")
    if given is None and reading.axes and reading.axes[0] in values:
        given = values.pop(reading.axes[0])
    if not any(len(series) for series in values.values()):
        return _nothing(sheet)
    log, smooth = set(reading.extra.get("log", ())), reading.extra.get("smooth", {})
    if not any(value > 0 for series in values.values() for value in _floats(series)):
        log -= {"y"}
    colours = reading.extra.get("colours", {})
    alone = len(values) == 1 and next(iter(values)) in reading.axes  # the title already says what the only line is
    labels = [] if alone else [short(name, 22) for name in values]
    places = {name: colours.get(name, index) for index, name in enumerate(values)}
    thin = bool(reading.extra.get("thin"))
    dashed = not thin and any(place >= len(theme.palette) for place in places.values())  # colours repeat, so labels show their dash
    right = 0.16 + (_inches(labels, 8.5) + 0.06 + DASH * dashed if labels else 0.0)
    upright = {words: x for words, x in reading.extra.get("marks", {}).items() if x is not None}
    y_name = short(reading.axes[1], 30) if len(reading.axes) > 1 else ""
    left, height = 0.78 if y_name else 0.62, max(2.5, 0.15 * len(labels) + 0.6)
    sheet.open(NARROW + max(0.0, right - 1.1), height + 0.15 * len(upright))
    axes = sheet.axes(left, 0.42, sheet.width - left - right, height - 0.5)
    ends = []
    for index, (name, series) in enumerate(values.items()):
        y = _floats(series)
        x = _floats(given[name] if isinstance(given, Mapping) else given if given is not None else range(len(y)))
        colour, dash = _colour(theme, places[name]), "-" if thin else _dash(theme, places[name])
        window = int(smooth.get(name, 0))
        few = sum(value == value for value in y) <= 14
        width, size = (0.7 if window > 1 or thin else 1.7), (3.2 + 1.4 * (index % 4) if thin else 3.2)
        ring = {"mfc": "none", "mew": 0.7} if thin else {}
        axes.plot(x, y, dash, color=colour, lw=width, alpha=0.35 if window > 1 else 1.0, marker="o" if few else None, ms=size, **ring)
        if window > 1:
            y = _running_mean(y, window)
            axes.plot(x, y, dash, color=colour, lw=1.7)
        last = next((i for i in reversed(range(len(y))) if math.isfinite(y[i])), None)
        if last is not None and labels:
            ends.append((x[last], y[last], labels[index], colour, dash if dashed else ""))
    for axis, scale in (("x", axes.set_xscale), ("y", axes.set_yscale)):
        if axis in log:
            scale("log")
    axes.grid(axis="y")
    axes.margins(x=0.02, y=0.06)
    drawn = {value for series in values.values() for value in _floats(series) if value == value}
    if len(drawn) == 1 and min(drawn) > 0 and "y" not in log:
        axes.set_ylim(0, 2 * min(drawn))  # a constant has no scale of its own but its distance from zero
    top = reading.extra.get("top")
    if top is not None and axes.get_ylim()[0] < top < axes.get_ylim()[1]:
        low = min(drawn)  # the margin below would be that of the whole height
        axes.set_ylim(low / (top / low) ** 0.06 if "y" in log else low - 0.06 * (top - low), top)
    _ticks(axes.xaxis, "x" in log, 6)
    if "ticks" in reading.extra:
        axes.set_xticks(_floats(reading.extra["ticks"]))
        axes.set_xticks([], minor=True)
    _ticks(axes.yaxis, "y" in log)
    axes.set_xlabel(short(reading.axes[0] if reading.axes else "", 40))
    axes.set_ylabel(y_name, labelpad=2)
    for row, (words, x) in enumerate(sorted(upright.items(), key=lambda mark: mark[1])):
        axes.axvline(x, color=theme.muted, lw=0.9, ls=":")
        to_left = axes.transAxes.inverted().transform(axes.transData.transform((x, 1)))[0] > 0.5
        spot = (x, 1 + (0.06 + 0.15 * row) / (height - 0.5))
        axes.text(*spot, short(words, 40), size=7.5, ha="right" if to_left else "left", transform=axes.get_xaxis_transform())
    _end_labels(axes, ends)


def _running_mean(values: list[float], window: int) -> list[float]:
    """Mean over a centred window, cut at the ends and blind to NaN."""
    half, found = window // 2, []
    for i in range(len(values)):
        near = [v for v in values[max(0, i - half) : i + half + 1] if math.isfinite(v)]
        found.append(sum(near) / len(near) if near else math.nan)
    return found


def _end_labels(axes: Any, ends: list[tuple[float, float, str, str, str]]) -> None:
    """Names beside the last points (x, y, name, colour, dash), pushed apart until none covers another."""
    from matplotlib.lines import Line2D

    if not ends:
        return
    axes.get_ylim()  # settles the limits, on which the transform depends
    box = axes.get_window_extent()
    gap = 12.0 / box.height * axes.figure.dpi / 100 * 1.3
    places = []
    for x, y, *style in ends:
        across, up = axes.transAxes.inverted().transform(axes.transData.transform((x, y)))
        places.append((min(max(up, 0.0), 1.0), across if across < EARLY else 1.0, *style))  # near the edge they stand in one column
    places.sort()
    spots: list[float] = []
    for wanted, *_ in places:
        spots.append(max(wanted, spots[-1] + gap) if spots else wanted)
    excess = max(0.0, spots[-1] - 1.0)
    spots[-1] -= excess
    for i in range(len(spots) - 2, -1, -1):
        spots[i] = min(spots[i], spots[i + 1] - gap)
    for spot, (_, across, label, colour, dash) in zip(spots, places, strict=True):
        left = across + 0.015
        if dash:
            wide = DASH * axes.figure.dpi / box.width
            axes.add_artist(
                Line2D([left, left + 0.8 * wide], [spot] * 2, ls=dash, color=colour, lw=1.5, transform=axes.transAxes, clip_on=False)
            )
            left += wide
        axes.text(left, spot, label, color=colour, size=8.5, va="center", ha="left", transform=axes.transAxes)


def _bars(reading: Reading, theme: Theme, sheet: _Sheet) -> None:
    if not any(len(series) for series in reading.values.values()):
        return _nothing(sheet)
    if "edges" in reading.extra:
        return _histogram(reading, theme, sheet)
    names = list(reading.values)
    count = max(len(series) for series in reading.values.values())
    labels = [short(label) for label in reading.extra.get("labels", range(count))]
    step = min(ROW, 12.0 / count)
    log = "value" in reading.extra.get("log", ())
    left, height = 0.24 + _inches(labels, 8), step * count + 0.1
    width = WIDE if len(names) > 1 else NARROW
    sheet.open(max(width, left + 1.5 * len(names)), height + 0.62)
    gap = 0.3
    each = (sheet.width - left - 0.2 - gap * (len(names) - 1)) / len(names)
    for index, name in enumerate(names):
        axes = sheet.axes(left + index * (each + gap), 0.3, each, height)
        y, values = list(range(count)), _floats(reading.values[name])
        colour = _colour(theme, index)
        if log and any(value > 0 for value in values):  # a bar needs a zero, which a logarithmic axis lacks: points instead
            axes.set_xscale("log")
            axes.plot(values, y, "o", color=colour, ms=5)
            axes.hlines(y, 0, 1, color=theme.rule, lw=0.6, transform=axes.get_yaxis_transform(), zorder=0)
            positive = [value for value in values if value > 0 and math.isfinite(value)]
            axes.set_xlim(min(positive) / 2, max(positive) * 2)
        else:
            axes.barh(y, values, height=0.62, color=colour)
            for place, single in zip(y, reading.extra.get("dots", {}).get(name, []), strict=False):
                axes.plot(_floats(single), [place] * len(single), "o", ms=3.2, color=theme.ink, mec=theme.paper, mew=0.5)
            axes.axvline(0, color=theme.muted, lw=0.8)
            axes.margins(x=0.06)
        axes.set_ylim(count - 0.4, -0.6)
        every = max(1, math.ceil(0.11 / step))
        axes.set_yticks(y[::every] if index == 0 else [], labels[::every] if index == 0 else [], color=theme.ink)
        axes.grid(axis="x")
        axes.spines["bottom"].set_visible(False)
        _ticks(axes.xaxis, log, 4)
        axes.set_title(short(name, 30), size=8.5, color=colour, loc="left", pad=5)


def _histogram(reading: Reading, theme: Theme, sheet: _Sheet) -> None:
    edges = _floats(reading.extra["edges"])
    sheet.open(NARROW, 2.7)
    axes = sheet.axes(0.62, 0.42, sheet.width - 0.82, 2.2)
    widths = [high - low for low, high in zip(edges, edges[1:], strict=False)]
    for index, series in enumerate(reading.values.values()):
        axes.bar(edges[:-1], _floats(series), widths, align="edge", color=_colour(theme, index), edgecolor=theme.paper, linewidth=0.7)
    if edges[0] < 0 < edges[-1]:
        axes.axvline(0, color=theme.muted, lw=0.8)
    axes.grid(axis="y")
    axes.margins(x=0.01)
    _ticks(axes.xaxis, False, 6)
    _ticks(axes.yaxis, False, whole=all(isinstance(value, int) for series in reading.values.values() for value in series))
    axes.set_xlabel(short(reading.axes[0], 40) if reading.axes else "")
    axes.set_ylabel(short(reading.axes[1], 40) if len(reading.axes) > 1 else "")


def _heat(reading: Reading, theme: Theme, sheet: _Sheet) -> None:
    panels = {name: [_floats(row) for row in matrix] for name, matrix in reading.values.items()}
    first = next(iter(panels.values()), [])
    if not first or not first[0]:
        return _nothing(sheet)
    rows, columns = len(first), len(first[0])
    row_names = [short(name, 18) for name in reading.extra.get("rows", range(rows))]
    column_names = [short(name, 18) for name in reading.extra.get("columns", range(columns))]
    words = [[short(word, 10) for word in row] for row in reading.extra.get("words", [])]
    several = len(panels) > 1
    each = min(0.42, max((3.8 if several else 4.2) / max(rows, columns), 0.02))
    wide, high = (max(0.24, _inches([word for row in words for word in row], WORD) + 0.07), 0.24) if words else (each, each)
    told = {name: _told(cells, words, wide, reading.extra) for name, cells in panels.items()}
    scales = {name: _ends(cells, reading.extra) for name, cells in panels.items() if words or not told[name]}
    beside = max((_inches([end for _, end in ends], 6.5) + 0.26 for ends in scales.values() if ends), default=0.0)
    turned = _inches(column_names, 7.5) > wide * 0.92
    left = 0.36 + _inches(row_names, 7.5)
    top = 0.34 + (_inches(column_names, 7.5) * 0.95 if turned else 0.14) + 0.2 * several
    across = min(len(panels), 2)
    down, tall, step = math.ceil(len(panels) / across), top + rows * high + 0.1, left + columns * wide + 0.2 + beside
    sheet.open(max(across * step, 3.4), down * tall)
    for index, (name, cells) in enumerate(panels.items()):
        place = (left + index % across * step, 0.08 + (down - 1 - index // across) * tall)
        axes = sheet.axes(*place, columns * wide, rows * high)
        edge = min(1.2, wide * 4) if words or max(rows, columns) <= DRAWN_CELLS else None
        _cells(axes, theme, cells, told[name], edge, reading.extra)
        if ends := scales.get(name):
            _scale(sheet, theme, ends, (place[0] + columns * wide + 0.1, place[1], rows * high), edge)
        across_every, down_every = max(1, math.ceil(0.13 / wide)), max(1, math.ceil(0.13 / high))
        axes.xaxis.tick_top()
        axes.xaxis.set_label_position("top")
        axes.set_xticks(range(0, columns, across_every), column_names[::across_every], rotation=90 if turned else 0, color=theme.ink)
        axes.set_yticks(range(0, rows, down_every), row_names[::down_every], color=theme.ink)
        for axis, put in zip(reading.axes[:2], (axes.set_ylabel, axes.set_xlabel), strict=False):
            put(short(axis, 40))
        if several:
            spot = place[0] / sheet.width, (sheet.floor + place[1] + rows * high + top - 0.2) / sheet.height
            sheet.figure.text(*spot, short(name, 40), size=8.5, va="bottom", color=theme.ink)
        for spine in axes.spines.values():
            spine.set_visible(False)


def _told(cells: list[list[float]], words: list[list[str]], wide: float, extra: Mapping[str, Any]) -> list[list[tuple[str, float]]]:
    """What is written into each cell and how large; nothing where that could not be read."""

    def one(i: int, j: int) -> tuple[str, float]:
        if words:
            return words[i][j], WORD
        value = cells[i][j]
        if value != value or (extra.get("diagonal") and not value):
            return "", WORD
        text = number(int(value) if float(value).is_integer() else value)
        return text, min(8.0, wide * 72 / max(len(text), 2) * 1.35)

    if not words and max(len(cells), len(cells[0])) > DRAWN_CELLS:
        return []
    found = [[one(i, j) for j in range(len(row))] for i, row in enumerate(cells)]
    return found if words or min(points for row in found for _, points in row) >= SMALLEST else []


def _cells(
    axes: Any, theme: Theme, cells: list[list[float]], told: list[list[tuple[str, float]]], edge: float | None, extra: Mapping[str, Any]
) -> None:
    """The cells of one matrix with what is written into them, with an edge in points between them; without one as an image."""
    from matplotlib.collections import PolyCollection
    from matplotlib.colors import to_rgba

    rows, columns = len(cells), len(cells[0])
    shade = _shades(cells, extra.get("share") == "row")
    off_diagonal = bool(extra.get("diagonal"))

    def colour(i: int, j: int) -> tuple[float, ...]:
        second = (i != j) if off_diagonal else cells[i][j] < 0
        return to_rgba(theme.palette[1 if second else 0], shade[i][j])

    if edge is None:
        axes.imshow([[colour(i, j) for j in range(columns)] for i in range(rows)], interpolation="nearest", aspect="auto")
    else:
        places = [(i, j) for i in range(rows) for j in range(columns)]
        squares = [[(j + x, i + y) for x, y in ((-0.5, -0.5), (0.5, -0.5), (0.5, 0.5), (-0.5, 0.5))] for i, j in places]
        axes.add_collection(PolyCollection(squares, facecolors=[to_rgba(theme.rule, 0.28)] * len(places)), autolim=False)
        axes.add_collection(
            PolyCollection(squares, facecolors=[colour(i, j) for i, j in places], edgecolors=theme.paper, linewidths=edge), autolim=False
        )
    for i, row in enumerate(told):
        for j, (text, points) in enumerate(row):
            axes.text(j, i + 0.02, text, ha="center", va="center", size=points, color=theme.paper if shade[i][j] > 0.55 else theme.ink)
    axes.set_xlim(-0.5, columns - 0.5)
    axes.set_ylim(rows - 0.5, -0.5)


def _ends(cells: list[list[float]], extra: Mapping[str, Any]) -> list[tuple[float, str]]:
    """The numbers that a scale of the shades of these cells names, the largest first; none where all cells are 0."""
    largest = _largest(cells)
    if not largest:
        return []
    if extra.get("share") == "row":
        return [(1.0, "all of a row"), (0.0, "0")]
    signs = [sign for sign in (1, 0, -1) if not sign or any(v * sign > 0 for row in cells for v in row)]
    return [(sign * largest, number(sign * largest).replace("-", "−") if sign else "0") for sign in signs]


def _scale(sheet: _Sheet, theme: Theme, ends: list[tuple[float, str]], place: tuple[float, float, float], edge: float | None) -> None:
    """A bar of shades from the largest number down to the smallest, beside the upper right corner of its matrix."""
    x, bottom, room = place
    (high, _), (low, _) = ends[0], ends[-1]
    height, steps = max(min(room, SCALE), 0.3), 96 if edge is None else 12
    ramp = [[high + (low - high) * i / steps] for i in range(steps + 1)]
    axes = sheet.axes(x, bottom + max(room - height, 0), 0.09, height)
    _cells(axes, theme, ramp, [], None if edge is None else 0.3, {})
    axes.yaxis.tick_right()
    axes.set_xticks([])
    axes.set_yticks([(high - value) / (high - low) * steps for value, _ in ends], [told for _, told in ends], size=6.5)
    axes.tick_params(axis="y", pad=2)
    for label, align in zip(axes.get_yticklabels(), ("top", *["center"] * (len(ends) - 2), "bottom"), strict=True):
        label.set_verticalalignment(align)
    for spine in axes.spines.values():
        spine.set_visible(False)


def _shades(cells: list[list[float]], by_row: bool) -> list[list[float]]:
    """Opacity of every cell, 0 to 1; the square root lets small entries be seen."""
    largest = _largest(cells)
    found = []
    for row in cells:
        scale = sum(abs(v) for v in row if math.isfinite(v)) if by_row else largest
        found.append([math.sqrt(min(abs(v) / scale, 1.0)) if scale and math.isfinite(v) else 0.0 for v in row])
    return found


def _table(reading: Reading, theme: Theme, sheet: _Sheet) -> None:
    from matplotlib.lines import Line2D

    heads = [short(name, 30) for name in reading.values]
    formats, total = reading.extra.get("formats", {}), reading.extra.get("total", {})
    length = max((len(column) for column in reading.values.values()), default=0)
    if not heads or not length:
        return _nothing(sheet)
    columns = [[_cut(formatted(cell, formats.get(name, ""))) for cell in column[:MOST_ROWS]] for name, column in reading.values.items()]
    right = [_numeric(column) for column in reading.values.values()]
    sums = [short(formatted(total[name], formats.get(name, ""))) if name in total else "" for name in reading.values] if total else []
    if sums and not sums[0]:
        sums[0] = "total"
    widths = [_inches([head, *column, *(sums[i : i + 1])], 8.5) + 0.26 for i, (head, column) in enumerate(zip(heads, columns, strict=True))]
    lines = min(length, MOST_ROWS) + 1 + bool(sums) + (length > MOST_ROWS)
    sheet.open(max(sum(widths) + 0.16, 3.0), ROW * lines + 0.16)
    y, edge = sheet.floor + ROW * lines - 0.02, sum(widths) + 0.08

    def write(cells: Sequence[str], **style: Any) -> None:
        x = 0.08
        for cell, width, to_right in zip(cells, widths, right, strict=False):
            sheet.text(x + width - 0.13 if to_right else x + 0.06, y, cell, ha="right" if to_right else "left", va="center", **style)
            x += width

    def rule(colour: str) -> None:
        ends = [0.14 / sheet.width, edge / sheet.width], [(y + ROW / 2) / sheet.height] * 2
        sheet.figure.add_artist(Line2D(*ends, color=colour, lw=0.7))

    write(heads, color=theme.muted, size=8)
    for index in range(min(length, MOST_ROWS)):
        y -= ROW
        rule(theme.muted if index == 0 else theme.rule)
        write([column[index] if index < len(column) else "" for column in columns])
    if length > MOST_ROWS:
        y -= ROW
        rule(theme.rule)
        sheet.text(0.14, y, f"… and {length - MOST_ROWS:,} more rows", va="center", color=theme.muted)
    if sums:
        y -= ROW
        rule(theme.muted)
        write(sums, weight="bold")


def _numeric(column: Sequence[Any]) -> bool:
    return any(isinstance(cell, (int, float)) for cell in column) and not any(isinstance(cell, str) for cell in column)


def _images(reading: Reading, theme: Theme, sheet: _Sheet) -> None:
    pictures: list[Any] = next(iter(reading.values.values()), [])
    first = next((picture for picture in pictures if picture is not None), None)
    if first is None:
        return _nothing(sheet)
    extra, dense = reading.extra, bool(reading.extra.get("dense"))
    captions = [words for words in (extra.get("labels", []), extra.get("details", [])) if words]
    heat, frames = extra.get("heat", []), extra.get("frames", [])
    row_names = [short(name, 22) for name in extra.get("rows", [])]
    legend = {name: place for place, name in enumerate(dict.fromkeys(name for boxes in frames for name in boxes))}
    indent = _inches(row_names, 7.5) + 0.12 if row_names else 0.0
    beside = _inches([short(name) for name in legend], 7.5) + 0.1 if legend else 0.0
    tall, wide = len(first), len(first[0])
    gap, room = 0.08 if dense else 0.22, WIDE - 0.2 - indent - beside
    each = extra.get("size", 0.5 if dense else 0.86)
    if across := int(extra.get("across", 0)):
        each = min(each, max(room / across - gap, 0.1))
    width, height = each * min(1.0, wide / tall), each * min(1.0, tall / wide)
    step = (width if across else each) + gap  # a table of pictures has no free space between its columns
    across = across or max(1, min(len(pictures), int(room / (each + gap))))
    rows = range(0, len(pictures), across)
    below = [0.16 * sum(any(words[start : start + across]) for words in captions) for start in rows]
    tops = [sum(below[:row]) + row * (height + gap) for row in range(len(rows))]
    foot = 0.3 if any(each is not None for each in heat) else 0.0
    area_height = max(tops[-1] + height + below[-1], 0.2 * len(legend)) + foot
    sheet.open(max(0.2 + indent + across * step + beside, NARROW), area_height + 0.1)
    left = 0.0 if sheet.bare else 0.14
    axes = sheet.axes(left, 0.05, sheet.width - left, area_height)
    axes.set_axis_off()
    for index, picture in enumerate(pictures):
        if picture is None:
            continue
        x, y = indent + (index % across) * step, area_height - tops[index // across]
        _picture(axes, theme, picture, (x, x + width, y - height, y), _at(heat, index), extra.get("top"))
        _frames(axes, theme, _at(frames, index) or {}, legend, (x, y, width / wide, height / tall))
        for position, words in enumerate(captions):
            size, colour = (7.5, theme.ink) if words is extra.get("labels") else (6.5, theme.muted)
            text = short(_at(words, index) or "", int((step - gap * 0.3) / (size * 0.0076)))
            axes.text(x, y - height - 0.045 - 0.14 * position, text, size=size, va="top", color=colour)
    for name, top in zip(row_names, tops, strict=False):
        axes.text(0, area_height - top - height / 2, name, size=7.5, va="center", color=theme.ink)
    for name, place in legend.items():
        spot = indent + across * step, area_height - 0.2 * place - 0.1
        axes.text(*spot, short(name), size=7.5, va="center", color=_colour(theme, place))
    if foot:
        _warmth_scale(axes, theme, [each for each in heat if each is not None], extra.get("top"), indent)
    axes.set_xlim(0, sheet.width - left)
    axes.set_ylim(0, area_height)


def _at(items: Sequence[Any], index: int) -> Any:
    return items[index] if index < len(items) else None


def _picture(axes: Any, theme: Theme, picture: Any, extent: tuple[float, ...], heat: Any, top: float | None) -> None:
    """One image with an edge, paler where heat lies over it, so that this is seen on black too."""
    from matplotlib.patches import Rectangle

    x, right, bottom, y = extent
    how = {"extent": extent, "interpolation": "nearest", "aspect": "auto"}
    axes.imshow(picture, cmap="gray", vmin=0, vmax=1, alpha=None if heat is None else PALE, **how)
    if heat is not None:
        axes.imshow(_warmth(heat, top, theme), **how)
    axes.add_patch(Rectangle((x, bottom), right - x, y - bottom, fill=False, ec=theme.rule, lw=0.6, clip_on=False))


def _frames(
    axes: Any, theme: Theme, boxes: Mapping[str, Sequence[float]], places: Mapping[str, int], scale: tuple[float, float, float, float]
) -> None:
    """Boxes in pixels over the picture with this corner and size of a pixel; one on the same pixels as others is drawn around them."""
    from matplotlib.patches import Rectangle

    x, y, across, down = scale
    drawn: list[list[float]] = []
    for name, (top, left, height, width) in boxes.items():
        thick = 1.4 + 2.2 * drawn.count([top, left, height, width])
        drawn.append([top, left, height, width])
        corner, colour = (x + left * across, y - (top + height) * down), _colour(theme, places[name])
        frame = Rectangle(
            corner, width * across, height * down, fill=False, ec=colour, lw=thick, clip_on=False, zorder=2.4 - 0.01 * places[name]
        )
        axes.add_patch(frame)


def _warmth(values: Any, top: float | None, theme: Theme) -> list[list[tuple[float, ...]]]:
    """A matrix as colours to lay over a picture: the larger a number, the less is seen through it."""
    from matplotlib.colors import to_rgb

    cells = [_floats(row) for row in values]
    largest = top or _largest(cells) or 1.0
    above, below = to_rgb(theme.palette[1]), to_rgb(theme.palette[0])
    return [[(*(below if v < 0 else above), OPAQUE * min(abs(v) / largest, 1.0) if v == v else 0.0) for v in row] for row in cells]


def _warmth_scale(axes: Any, theme: Theme, heat: Sequence[Any], top: float | None, x: float) -> None:
    """A bar along the foot of some pictures, from 0 or the lowest to the largest heat over them."""
    below = any(v < 0 for each in heat for row in each for v in _floats(row))
    most = number(top) if top else "largest of each picture"
    words = [f"−{most if top else 'largest'}" if below else "0", most]
    start = x + _inches(words[:1], 6.5) + 0.05
    ramp = [i / 48 for i in range(-48 if below else 0, 49)]
    axes.imshow(_warmth([ramp], 1.0, theme), extent=(start, start + SCALE, 0.05, 0.13), interpolation="nearest", aspect="auto")
    axes.text(x, 0.09, words[0], size=6.5, va="center", color=theme.muted)
    axes.text(start + SCALE + 0.05, 0.09, words[1], size=6.5, va="center", color=theme.muted)


def _largest(cells: list[list[float]]) -> float:
    return max((abs(v) for row in cells for v in row if math.isfinite(v)), default=0.0)


def _scatter(reading: Reading, theme: Theme, sheet: _Sheet) -> None:
    names = [name for name in reading.axes[:3] if name in reading.values]
    names = names if len(names) >= 2 else list(reading.values)[:2]
    if len(names) < 2 or not len(reading.values[names[0]]):
        return _nothing(sheet)
    if len(names) == 3:
        return _scatter_in_space(reading, theme, sheet, names)
    x, y = (_floats(reading.values[name]) for name in names)
    groups, log = reading.extra.get("groups", []), reading.extra.get("log", ())
    kinds = sorted(set(groups), key=str) if groups else []
    labels = [short(kind, 20) for kind in kinds]
    right = 0.2 + (_inches(labels, 8.5) + 0.2 if labels else 0.0)
    sheet.open(3.9 + right, 3.7)
    axes = sheet.axes(0.66, 0.44, 3.1, 3.1)
    size = 6.0 if "labels" in reading.extra else max(4.0, min(22.0, 6000 / len(x)))
    if reading.extra.get("diagonal"):
        ends = [min(v for v in x + y if math.isfinite(v)), max(v for v in x + y if math.isfinite(v))]
        axes.plot(ends, ends, color=theme.muted, lw=0.9)
    for index, kind in enumerate(kinds or [None]):
        mine = [i for i in range(len(x)) if not kinds or groups[i] == kind]
        axes.scatter([x[i] for i in mine], [y[i] for i in mine], s=size, color=_colour(theme, index), alpha=0.6, linewidths=0)
        if kinds:
            axes.text(1.03, 0.96 - 0.065 * index, labels[index], color=_colour(theme, index), transform=axes.transAxes, va="center")
    for axis, scale in (("x", axes.set_xscale), ("y", axes.set_yscale)):
        if axis in log:
            scale("log")
    axes.grid()
    _ticks(axes.xaxis, "x" in log)
    _ticks(axes.yaxis, "y" in log)
    axes.set_xlabel(short(names[0], 40))
    axes.set_ylabel(short(names[1], 40))
    _point_labels(axes, theme, list(zip(x, y, reading.extra.get("labels", []), strict=False)))


def _point_labels(axes: Any, theme: Theme, points: Sequence[tuple[float, float, Any]]) -> None:
    """Names beside points (x, y, name), the first ones first; a name with room on neither side is left out."""
    axes.get_ylim()  # settles the limits, on which the transform depends
    known = [(x, y, short(name, 16)) for x, y, name in points if math.isfinite(x) and math.isfinite(y)]
    spots = [tuple(float(v) / axes.figure.dpi for v in axes.transData.transform((x, y))) for x, y, _ in known]
    taken = [(across - 0.02, across + 0.02, up) for across, up in spots]  # inches of what must not be covered: points, then names
    for (x, y, text), (across, up) in zip(known, spots, strict=True):
        for side in (1, -1):
            edges = sorted((across + side * 0.03, across + side * (_inches([text], 7.5) + 0.06)))
            if all(edges[1] < left or edges[0] > right or abs(up - other) > 0.09 for left, right, other in taken):
                taken.append((*edges, up))
                to = {"ha": "left" if side > 0 else "right", "va": "center"}
                axes.annotate(text, (x, y), (3 * side, 0), textcoords="offset points", size=7.5, color=theme.ink, **to)
                break


def _scatter_in_space(reading: Reading, theme: Theme, sheet: _Sheet, names: Sequence[str]) -> None:
    import numpy as np

    points = np.array([_floats(reading.values[name]) for name in names])
    groups = np.array([str(group) for group in reading.extra.get("groups", [])])
    kinds = sorted(set(reading.extra.get("groups", [])), key=str)
    labels = [short(kind, 20) for kind in kinds]
    sheet.open(4.4 + (_inches(labels, 8.5) if labels else 0.0), 3.4)
    axes = sheet.axes(0.05, -0.2, 3.9, 3.9, projection="3d")  # a cube leaves room above and below itself
    axes.set_box_aspect((1, 1, 0.8), zoom=0.98)
    axes.view_init(*reading.extra.get("view", (24, -58)))
    size = max(1.2, min(18.0, 6000 / points.shape[1]))
    for index, kind in enumerate(kinds or [None]):
        mine = points if kind is None else points[:, groups == str(kind)]
        axes.scatter(*mine, s=size, color=_colour(theme, index), alpha=0.75, linewidths=0)
        if kinds:
            sheet.text(4.1, sheet.floor + 3.1 - 0.2 * index, labels[index], color=_colour(theme, index), va="center")
    for axis, name in zip((axes.xaxis, axes.yaxis, axes.zaxis), names, strict=True):
        axis.pane.fill = False
        axis.pane.set_edgecolor(theme.rule)
        axis.line.set_color(theme.muted)
        axis._axinfo["grid"].update(color=theme.rule, linewidth=0.6)  # matplotlib has no public way to quieten this grid
        axis.set_label_text(short(name, 30))
        axis.labelpad = -4
        _ticks(axis, False, 4)
        axis.set_tick_params(pad=-1)


# A function over a rectangle


def _plane(reading: Reading, theme: Theme, sheet: _Sheet) -> None:
    import numpy as np

    extra, panels = reading.extra, {name: np.array([_floats(row) for row in z]) for name, z in reading.values.items()}
    if not any(z.size for z in panels.values()):
        return _nothing(sheet)
    rows, columns = next(iter(panels.values())).shape
    x, y = np.array(_floats(extra.get("x", range(columns)))), np.array(_floats(extra.get("y", range(rows))))
    for name, z in panels.items():
        if z.shape != (len(y), len(x)) or min(z.shape) < 2:
            wanted = f"(y, x) = ({len(y)}, {len(x)}), each at least 2"
            raise BadInput(f"panel '{short(name)}' of a plane has shape {z.shape}", where=reading.title, fix=f"give {wanted}")
    colours = {name: i for i, name in enumerate([*extra.get("paths", {}), *extra.get("points", {})])} | dict(extra.get("colours", {}))
    classes = [] if extra.get("classes") is None else list(extra["classes"])
    legend = {short(name, 20): _colour(theme, colours[name]) for name in [*extra.get("paths", {}), *extra.get("points", {})]}
    across = 2 if len(panels) == 4 else min(len(panels), 3)
    width = (3.4, 2.75, 2.1)[across - 1]
    height = width * min(1.3, max(0.5, float(np.ptp(y) / np.ptp(x)) if np.ptp(x) and np.ptp(y) else 1.0))
    left, gap, head = 0.62, 0.42 if classes else 0.86, 0.24 if len(panels) > 1 else 0.06
    down = math.ceil(len(panels) / across)
    right = (0.2 if classes else 0.62) + (_inches(list(legend), 8.5) + 0.12 if legend else 0.0)
    sheet.open(left + across * width + (across - 1) * gap + right, down * (height + head) + (down - 1) * 0.3 + 0.46)
    for index, (name, z) in enumerate(panels.items()):
        column, row = index % across, index // across
        edge, base = left + column * (width + gap), 0.42 + (down - 1 - row) * (height + head + 0.3)
        axes = sheet.axes(edge, base, width, height)
        if classes:
            _flat(axes, theme, x, y, z, classes)
        else:
            _contours(axes, sheet.axes(edge + width + 0.07, base, 0.08, height), theme, x, y, z, extra)
        _overlay(axes, theme, extra, colours)
        axes.set_xlim(x.min(), x.max())
        axes.set_ylim(y.min(), y.max())
        _ticks(axes.xaxis, False, 4)
        _ticks(axes.yaxis, False, 4)
        axes.set_xlabel(short(reading.axes[0], 30) if reading.axes and row == down - 1 else "")
        axes.set_ylabel(short(reading.axes[1], 30) if len(reading.axes) > 1 and not column else "", labelpad=1)
        if len(panels) > 1:
            axes.set_title(short(name, int(width * 13)), size=8.5, color=theme.ink, loc="left", pad=5)
    for index, (label, colour) in enumerate(legend.items()):
        sheet.text(sheet.width - right + (0.2 if classes else 0.62), sheet.floor + 0.42 + height - 0.1 - 0.2 * index, label, color=colour)


def _contours(axes: Any, scale: Any, theme: Theme, x: Any, y: Any, z: Any, extra: Mapping[str, Any]) -> None:
    """Shaded bands between contour lines, and their scale.  Shading is opacity of one colour, so it suits dark pages too."""
    import numpy as np
    from matplotlib.colors import to_rgba
    from matplotlib.ticker import MaxNLocator

    log = "value" in extra.get("log", ()) and bool((z > 0).any())
    z = np.ma.masked_invalid(np.where(z > 0, z, math.nan) if log else z)
    if not z.count():
        return scale.set_axis_off()
    low, high = float(z.min()), float(z.max())
    asked = extra.get("levels", 10)
    if low == high:
        edges = [low - 1e-9 - abs(low) * 1e-9, high + 1e-9 + abs(high) * 1e-9]
    elif isinstance(asked, (int, float)):
        lines = np.geomspace(low, high, int(asked) + 2) if log else MaxNLocator(int(asked) + 1).tick_values(low, high)
        edges = [low, *(float(v) for v in lines if low < v < high), high]
    else:
        edges = [low, *sorted({float(v) for v in asked if low < v < high}), high]
    middles = [math.sqrt(a * b) if log else (a + b) / 2 for a, b in zip(edges, edges[1:], strict=False)]
    signed = low < 0 < high and min(-low, high) > 0.02 * max(-low, high)
    steps = [math.log(v / low) / max(math.log(high / low), 1e-9) if log else (v - low) / max(high - low, 1e-300) for v in middles]

    def shade(value: float, step: float) -> tuple[float, ...]:
        if extra.get("paths"):  # the paths have the colours
            return to_rgba(theme.muted, 0.03 + 0.42 * step**1.5)
        if signed:
            return to_rgba(theme.palette[0 if value > 0 else 1], 0.05 + 0.8 * abs(value) / max(-low, high))
        return to_rgba(theme.palette[0], 0.05 + 0.8 * step)

    fills = [shade(value, step) for value, step in zip(middles, steps, strict=True)]
    axes.contourf(x, y, z, levels=edges, colors=fills)
    if len(edges) > 2:
        axes.contour(x, y, z, levels=edges[1:-1], colors=[theme.muted], linewidths=0.45, linestyles="solid")
    scale.bar([0] * len(fills), np.diff(edges), 1, bottom=edges[:-1], align="edge", color=fills, linewidth=0)
    scale.set_yscale("log" if log else "linear")
    scale.set_xlim(0, 1)
    scale.set_ylim(edges[0], edges[-1])
    scale.set_xticks([])
    scale.yaxis.tick_right()
    _ticks(scale.yaxis, log, 4)
    scale.spines["bottom"].set_visible(False)


def _flat(axes: Any, theme: Theme, x: Any, y: Any, z: Any, classes: Sequence[str]) -> None:
    """One flat colour per class, its name where it is farthest from every other class."""
    import numpy as np
    from matplotlib.colors import to_rgba
    from scipy.ndimage import distance_transform_edt

    for index, name in enumerate(classes):
        inside = z == index
        if not inside.any():
            continue
        axes.contourf(x, y, inside.astype(float), levels=[0.5, 1.5], colors=[to_rgba(_colour(theme, index), 0.3)])
        depth = distance_transform_edt(np.pad(inside, 1))[1:-1, 1:-1]
        row, column = np.unravel_index(depth.argmax(), depth.shape)
        if name and depth[row, column] > 0.035 * max(z.shape):
            axes.text(x[column], y[row], short(name, 16), size=8, ha="center", va="center", color=theme.ink)


def _overlay(axes: Any, theme: Theme, extra: Mapping[str, Any], colours: Mapping[str, int]) -> None:
    from matplotlib.collections import PolyCollection

    if extra.get("outlines"):
        width = 0.8 if len(extra["outlines"]) < 40 else 0.35
        axes.add_collection(PolyCollection(extra["outlines"], facecolors="none", edgecolors=theme.ink, linewidths=width), autolim=False)
    if extra.get("arrows"):
        x, y, dx, dy = zip(*map(_floats, extra["arrows"]), strict=True)
        axes.quiver(x, y, dx, dy, angles="xy", scale_units="xy", scale=1, color=theme.ink, width=0.004)
    for name, places in extra.get("points", {}).items():
        x, y = zip(*map(_floats, places), strict=True) if places else ((), ())
        axes.scatter(
            x, y, s=max(5.0, min(20.0, 3000 / max(len(x), 1))), color=_colour(theme, colours[name]), ec=theme.paper, lw=0.4, zorder=3
        )
    for name, places in extra.get("paths", {}).items():
        x, y = zip(*map(_floats, places), strict=True) if places else ((), ())
        colour, few = _colour(theme, colours[name]), len(x) <= 40
        axes.plot(x, y, color=colour, lw=1.3, marker="o" if few else None, ms=1.8, zorder=4)
        axes.plot(x[:1], y[:1], "o", color=colour, mfc=theme.paper, ms=4.5, zorder=5)
        axes.plot(x[-1:], y[-1:], "o", color=colour, ms=4.5, zorder=5)


# A running text


def _text(reading: Reading, theme: Theme, sheet: _Sheet) -> None:
    from matplotlib.colors import to_rgba
    from matplotlib.patches import Rectangle

    unit = reading.axes[1] if len(reading.axes) > 1 else next((name for name in reading.values if name != "token"), "")
    tokens, values = [clean(token) for token in reading.values.get("token", [])], _floats(reading.values.get(unit, []))
    if not tokens:
        return _nothing(sheet)
    places, x, y = [], 0, 0
    for token in tokens:
        if x and x + len(token) > LETTERS:
            x, y = 0, y + 1
        places.append((x, y))
        x, y = (0, y + 1) if token.endswith("\u21b5") else (x + len(token), y)
    largest = float(reading.extra.get("top", max((value for value in values if value == value), default=0.0)))
    lines = max(row for _, row in places) + 1
    sheet.open(max(LETTERS * LETTER + 0.3, NARROW), ROW * (lines + 1.8))
    axes = sheet.axes(0.14, 0.04, LETTERS * LETTER, ROW * (lines + 1.6))
    axes.set_axis_off()
    axes.set_xlim(0, LETTERS)
    axes.set_ylim(lines + 1.1, -0.5)

    def mark(x: float, y: float, width: float, value: float) -> None:
        shade = 0.04 + 0.76 * max(value, 0.0) / largest if largest > 0 else 0.04
        axes.add_patch(Rectangle((x, y - 0.42), width, 0.84, fc=to_rgba(theme.palette[1], shade), ec=theme.paper, lw=0.6))

    style: dict[str, Any] = {"size": 9, "family": "DejaVu Sans Mono", "va": "center_baseline", "color": theme.ink}
    for token, value, (x, y) in zip(tokens, values, places, strict=False):
        if value == value:
            mark(x, y, len(token), value)
        axes.text(x, y, token, **style)
    for step in range(5):  # what the marks mean
        mark(step * 6, lines + 0.6, 6, step / 4 * largest)
        axes.text(
            step * 6 + 3, lines + 0.6, number(float(f"{step / 4 * largest:.2g}")), size=7.5, ha="center", va="center", color=theme.ink
        )
    axes.text(31, lines + 0.6, short(unit, 30), size=7.5, va="center", color=theme.muted)


# Boxes and arrows


def _graph(reading: Reading, theme: Theme, sheet: _Sheet) -> None:
    from matplotlib.colors import to_rgba
    from matplotlib.patches import FancyArrowPatch, FancyBboxPatch
    from matplotlib.path import Path as Way

    boxes = list(zip(*(reading.values.get(name, []) for name in ("x", "y", "words", "kind")), strict=True))
    if not boxes:
        return _nothing(sheet)
    wide, high = reading.extra["box"]
    ways = reading.extra.get("edges", [])
    across = [x + side * wide / 2 for x, *_ in boxes for side in (-1, 1)] + [x for way in ways for x, _ in way]
    left, right, floor = min(across) - 8, max(across) + 8, max(y for _, y, *_ in boxes) + high + 8
    sheet.open(max((right - left) * PIXEL, NARROW), (floor + 8) * PIXEL)
    axes = sheet.axes(0.0, 0.0, (right - left) * PIXEL, (floor + 8) * PIXEL)
    axes.set_axis_off()
    axes.set_xlim(left, right)
    axes.set_ylim(floor, -8)
    for way in ways:
        stops, codes = [way[0]], [Way.MOVETO]
        for (x, y), (a, b) in zip(way, way[1:], strict=False):  # leaves and arrives upright
            stops += [[x, y + 0.6 * (b - y)], [a, b - 0.6 * (b - y)], [a, b]]
            codes += [Way.CURVE4] * 3
        style: dict[str, Any] = {"arrowstyle": "-|>", "mutation_scale": 6, "lw": 0.8, "color": theme.muted, "shrinkA": 0, "shrinkB": 0}
        axes.add_patch(FancyArrowPatch(path=Way(stops, codes), **style))
    colours = {"input": theme.palette[0], "parameter": theme.palette[1], "output": theme.ink}
    for x, y, words, kind in boxes:
        colour = colours.get(kind, theme.muted)
        rounded = "round,pad=0,rounding_size=6"
        ground = to_rgba(colour, 0.12 if kind in ("input", "parameter") else 0.0)
        axes.add_patch(FancyBboxPatch((x - wide / 2, y), wide, high, rounded, fc=ground, ec=colour, lw=1.6 if kind == "output" else 0.8))
        for row, line in enumerate(words):
            spot = y + high * (row + 1) / (len(words) + 1)
            ink, size = (theme.muted, 6.5) if row else (theme.ink, 7.5)
            axes.text(x, spot, short(line, 28), size=size, color=ink, ha="center", va="center")


_PAINTERS = {
    "lines": _lines,
    "bars": _bars,
    "heat": _heat,
    "table": _table,
    "images": _images,
    "scatter": _scatter,
    "plane": _plane,
    "graph": _graph,
    "text": _text,
}
