"""What all pictures share: colors, the sheet with its title and note, shortened texts, ticks."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ...core.errors import clean
from ...core.numbers import number
from ...core.reading import Reading

FONTS = ("Inter", "Source Sans 3", "Helvetica Neue", "Helvetica", "Arial", "Liberation Sans", "DejaVu Sans")
NARROW, WIDE = 4.6, 7.6
ROW = 0.24
BEYOND = 1e60
SCALE = 1.1
"""inches of a color bar"""


@dataclass(frozen=True)
class Theme:
    """Colors of a picture.  Text on a palette color has the color of the paper."""

    paper: str
    ink: str
    muted: str
    rule: str
    palette: tuple[str, ...]

    @property
    def all(self) -> tuple[str, ...]:
        return self.paper, self.ink, self.muted, self.rule, *self.palette

    def color(self, index: int) -> str:
        return self.palette[index % len(self.palette)]

    def dash(self, index: int) -> str:
        """Dash style of a line: a new one each time the palette repeats."""
        return ("-", "--", ":", "-.")[index // len(self.palette) % 4]


LIGHT = Theme("#ffffff", "#1c2430", "#667080", "#dde2e8", ("#0b6bb0", "#d05a10", "#0a8f6c", "#b5579a", "#b8860b", "#4f9fd0", "#7a8594"))
DARK = Theme("#14181d", "#e6eaef", "#98a3b1", "#2f3740", ("#5ab0ee", "#ff9457", "#41c79e", "#e59cc9", "#e5b94f", "#9bd2f5", "#9aa5b3"))


@contextmanager
def house_style(theme: Theme, reading: Reading) -> Iterator[None]:
    """Matplotlib settings for one picture; names are never parsed as formulas."""
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


class Sheet:
    """A figure measured in inches: title above, note below, the picture between them."""

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

    def nothing(self) -> None:
        """A sheet with the text 'nothing to show'."""
        self.open(NARROW, 0.5)
        self.text(0.14, self.floor + 0.22, "nothing to show", color=self.theme.muted)


def short(name: Any, length: int = 26) -> str:
    """A shortened name: control characters are made visible, and the middle is left out where it is too long."""
    text = clean(name)
    if len(text) <= length:
        return text
    if "." in text.split(" ")[0]:  # the name of a module: its last part matters most
        return f"…{text[-(length - 1) :]}"
    return f"{text[: length // 2]}…{text[-(length - length // 2 - 1) :]}"


def inches(words: Sequence[str], size: float) -> float:
    """Approximate width of the longest text, for margins."""
    return max((len(word) for word in words), default=0) * size * 0.0078


def floats(values: Any) -> list[float]:
    """Numbers for matplotlib: missing, infinite or extremely large values become NaN, extremely small ones 0."""

    def finite(value: Any) -> float:
        if value is None or not abs(value) < BEYOND:
            return math.nan
        return float(value) if abs(value) > 1 / BEYOND else 0.0

    return [finite(value) for value in values]


def ticks(axis: Any, log: bool, count: int = 5, whole: bool = False) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

    def format_tick(value: float, _: int) -> str:
        return number(int(value) if float(value).is_integer() and abs(value) < 1e9 else value).replace("-", "−")

    axis.set_major_formatter(FuncFormatter(format_tick))
    low, high = sorted(axis.get_view_interval())
    if log and low > 0:
        for locator in (LogLocator(numticks=6), LogLocator(subs=(1.0, 2.0, 5.0), numticks=8), MaxNLocator(count)):
            if sum(low <= tick <= high for tick in locator.tick_values(low, high)) >= 3:
                break  # powers of ten if at least three are visible, else finer steps
        axis.set_major_locator(locator)
        axis.set_minor_formatter(NullFormatter())
    else:
        axis.set_major_locator(MaxNLocator(count, steps=[1, 2, 2.5, 5, 10], integer=whole))


def largest_of(cells: list[list[float]]) -> float:
    return max((abs(v) for row in cells for v in row if math.isfinite(v)), default=0.0)
