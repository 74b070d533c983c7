"""A graph drawn in layers: leaves at the top, outputs at the bottom, every edge pointing down.  As SVG, or for Graphviz.

A node stands one layer below the lowest node it uses, and leaves just above their first user.  Within a layer nodes are
ordered by the mean place of their neighbours, swept down and up a few times, which removes most crossings.
"""

from __future__ import annotations

from html import escape
from typing import Any

BOX, HIGH, GAP, RISE, EDGE = 132, 40, 18, 44, 16
FILL = {"input": "#dcebf7", "parameter": "#fbe6d8", "buffer": "#eceff3", "constant": "#eceff3", "": "#ffffff"}
LINE = {"input": "#0b6bb0", "parameter": "#d05a10", "buffer": "#7a8594", "constant": "#7a8594", "": "#667080"}


def dot(graph: Any) -> str:
    """For Graphviz: `dot -Tpdf`."""
    lines = ["digraph {", '  node [shape=box, style="rounded,filled", fontname="Helvetica"]']
    for node in graph:
        label = "\\n".join(part.replace("\\", "\\\\").replace('"', '\\"') for part in _labels(node))
        lines.append(f'  {_quoted(node.name)} [label="{label}", fillcolor="{FILL.get(node.op, FILL[""])}"]')
    lines += [f"  {_quoted(name)} -> {_quoted(node.name)}" for node in graph for name in node.inputs]
    return "\n".join([*lines, "}"])


def _quoted(name: str) -> str:
    return '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'


def svg(graph: Any) -> str:
    """A picture of its own, without any other program."""
    layers = arrange(graph)
    wide = max(len(layer) for layer in layers)
    width, height = 2 * EDGE + wide * (BOX + GAP) - GAP, 2 * EDGE + len(layers) * (HIGH + RISE) - RISE
    places = _places(graph, layers, width)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'font-family="Helvetica, Arial, sans-serif" font-size="11">',
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="6" markerHeight="6" orient="auto">'
        '<path d="M0 0 L8 4 L0 8 z" fill="#667080"/></marker></defs>',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
    ]
    for node in graph:
        x, y = places[node.name]
        for name in node.inputs:
            a, b = places[name]
            start, end = b + HIGH, y
            bend = min((end - start) / 2, 60)
            parts.append(
                f'<path d="M{a:.0f} {start:.0f} C{a:.0f} {start + bend:.0f} {x:.0f} {end - bend:.0f} {x:.0f} {end:.0f}" '
                'fill="none" stroke="#667080" stroke-opacity="0.7" marker-end="url(#tip)"/>'
            )
    for node in graph:
        x, y = places[node.name]
        kind = node.op if node.op in FILL else ""
        border = 2.2 if node.name in graph.outputs else 1.1
        parts.append(
            f'<rect x="{x - BOX / 2:.0f}" y="{y:.0f}" width="{BOX}" height="{HIGH}" rx="6" fill="{FILL[kind]}" '
            f'stroke="{LINE[kind]}" stroke-width="{border}"/>'
        )
        lines = _labels(node)
        for row, label in enumerate(lines):
            base = y + HIGH / 2 + 4 + (row - (len(lines) - 1) / 2) * 14
            weight, ink = ("600", "#1c2430") if row == 0 else ("400", "#667080")
            parts.append(
                f'<text x="{x:.0f}" y="{base:.0f}" text-anchor="middle" font-weight="{weight}" fill="{ink}">{escape(_cut(label))}</text>'
            )
    return "\n".join([*parts, "</svg>"])


def arrange(graph: Any) -> list[list[str]]:
    """Names of the nodes in each layer, from left to right."""
    depth: dict[str, int] = {}
    users: dict[str, list[str]] = {node.name: [] for node in graph}
    for node in graph:
        depth[node.name] = max((depth[name] + 1 for name in node.inputs), default=0)
        for name in node.inputs:
            users[name].append(node.name)
    for node in graph:
        if not node.inputs and users[node.name]:  # a weight stands beside the layer that uses it, not far above
            depth[node.name] = min(depth[user] for user in users[node.name]) - 1
    layers: list[list[str]] = [[] for _ in range(max(depth.values()) + 1)]
    for node in graph:
        layers[depth[node.name]].append(node.name)
    layers = [layer for layer in layers if layer]
    around = {node.name: (list(node.inputs), users[node.name]) for node in graph}
    for sweep in range(6):
        down = sweep % 2 == 0
        place = {name: i - len(layer) / 2 for layer in layers for i, name in enumerate(layer)}
        for layer in layers if down else reversed(layers):
            layer.sort(key=lambda name: _mean([place[other] for other in around[name][not down]], place[name]))
            place.update({name: i - len(layer) / 2 for i, name in enumerate(layer)})
    return layers


def _places(graph: Any, layers: list[list[str]], width: int) -> dict[str, tuple[float, float]]:
    """Centre and top of every box: each layer in the middle, then nodes pulled towards those they use."""
    places: dict[str, tuple[float, float]] = {}
    used = {node.name: node.inputs for node in graph}
    for row, layer in enumerate(layers):
        y = EDGE + row * (HIGH + RISE)
        left = (width - len(layer) * (BOX + GAP) + GAP) / 2 + BOX / 2
        wish = [_mean([places[name][0] for name in used[node] if name in places], left + i * (BOX + GAP)) for i, node in enumerate(layer)]
        x = EDGE + BOX / 2
        for i, node in enumerate(layer):
            room = width - EDGE - BOX / 2 - (len(layer) - 1 - i) * (BOX + GAP)
            x = min(max(wish[i], x), room)
            places[node] = (x, y)
            x += BOX + GAP
    return places


def _mean(values: list[float], otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise


def _labels(node: Any) -> list[str]:
    from .graph import level, size

    first = node.name if node.op in FILL and node.op else node.kind
    value, adjoint = level(node.value), level(node.adjoint)
    second = size(node) if node.shape != () or value is None else f"{value:.4g}"
    return [first, second + ("" if adjoint is None else f"   ∂ {adjoint:.3g}")] if second else [first]


def _cut(label: str, most: int = 22) -> str:
    return label if len(label) <= most else "…" + label[1 - most :]
