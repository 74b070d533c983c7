"""Numbers as people read them: 1.2 G, 4.0 MiB, 98.61 %.  One owner, for terminals, pictures and pages."""

from __future__ import annotations

import math
from typing import Any


def si(value: float | None) -> str:
    """A count with a prefix and a trailing space for the unit: 1.23 G."""
    if value is None:
        return "-"
    for power, prefix in ((15, "P"), (12, "T"), (9, "G"), (6, "M"), (3, "k")):
        if abs(value) >= 10**power:
            return f"{value / 10**power:.3g} {prefix}" if abs(value) < 10 ** (power + 3) else f"{value / 10**power:,.0f} {prefix}"
    return f"{value:g} "


def bytes_(value: float | None) -> str:
    """Bytes in powers of 1024."""
    if value is None:
        return "-"
    for power, unit in ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")):
        if abs(value) >= 2**power:
            return f"{value / 2**power:.1f} {unit}"
    return f"{value:g} B"


def number(value: Any) -> str:
    """Any value in a table cell: whole numbers with separators, others to four digits, nothing as '-'."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "-"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    if isinstance(value, int):
        return f"{value:,}"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if value and not 1e-4 <= abs(value) < 1e5:
        mantissa, power = f"{value:.2e}".split("e")
        return f"{mantissa.rstrip('0').rstrip('.')}e{int(power)}"
    return f"{value:.4g}"


def percent(value: float) -> str:
    return f"{100 * value:.2f} %"


def format_cell(value: Any, how: str = "") -> str:
    """A table cell in the format a Reading asks for: 'si', 'bytes', 'percent', or plain."""
    if value is None:
        return "-"
    if how == "si":
        return si(value).strip()
    if how == "bytes":
        return bytes_(value)
    if how == "percent":
        return percent(value)
    return number(value)
