"""A graph drawn in layers: leaves at the top, outputs at the bottom, every edge pointing down.  As SVG, or for Graphviz.

A node is one layer below the lowest node it uses; weights are just above their user.  An edge over several layers
reserves a narrow slot in each, so that it passes between the boxes; edges from one node share it.  Items of a layer are
sorted by the mean position of their neighbors, in a few sweeps down and up, which removes most crossings.
The SVG leaves out operations that only change the size (view, transpose, ...); the file for Graphviz has them all.
"""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

BOX, EDGE_WIDTH, HIGH, GAP, LAYER_GAP, MARGIN = 168, 6, 40, 18, 30, 16
FILL = {"input": "#dcebf7", "parameter": "#fbe6d8", "buffer": "#eceff3", "constant": "#eceff3", "": "#ffffff"}
LINE = {"input": "#0b6bb0", "parameter": "#d05a10", "buffer": "#7a8594", "constant": "#7a8594", "": "#667080"}
RESHAPES = {
    *("view", "_unsafe_view", "reshape", "squeeze", "unsqueeze", "expand", "t", "transpose", "permute"),
    *("clone", "alias", "_to_copy", "lift_fresh", "lift_fresh_copy", "getitem"),
}
Item = str | tuple[str, int]
"""a node, or the slot of the edges of a node in a layer"""


def dot(graph: Any) -> str:
    """For Graphviz: `dot -Tpdf`."""
    lines = ["digraph {", '  node [shape=box, style="rounded,filled", fontname="Helvetica"]']
    for node in graph:
        label = "\\n".join(part.replace("\\", "\\\\").replace('"', '\\"') for part in _labels(node))
        lines.append(f'  {_quote(node.name)} [label="{label}", fillcolor="{FILL.get(node.op, FILL[""])}"]')
    lines += [f"  {_quote(name)} -> {_quote(node.name)}" for node in graph for name in node.inputs]
    return "\n".join([*lines, "}"])


def _quote(name: str) -> str:
    return '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'


def svg(graph: Any) -> str:
    """The graph as an SVG drawing."""
    edges = visible_edges(graph)
    layers, depth = arrange(edges, {node.name for node in graph if node.op == "input"})
    width = max(sum(_wide(item) + GAP for item in layer) for layer in layers) - GAP + 2 * MARGIN
    height = 2 * MARGIN + len(layers) * (HIGH + LAYER_GAP) - LAYER_GAP
    positions = _places(layers, edges, width)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'font-family="Helvetica, Arial, sans-serif" font-size="11">',
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="6" markerHeight="6" orient="auto">'
        '<path d="M0 0 L8 4 L0 8 z" fill="#667080"/></marker></defs>',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
    ]
    parts += [_edge(name, user, depth, positions) for user, names in edges.items() for name in names]
    for name in edges:
        parts += _box(graph[name], positions[name], name in _outputs(graph, edges))
    return "\n".join([*parts, "</svg>"])


def visible_edges(graph: Any) -> dict[str, list[str]]:
    """Node -> the nodes it uses; operations that only reshape are folded into edges, unused leaves are left out."""
    sources_of: dict[str, list[str]] = {}
    edges: dict[str, list[str]] = {}
    for node in graph:
        used = list(dict.fromkeys(name for operand in node.inputs for name in sources_of[operand]))
        if node.kind in RESHAPES and len(used) == 1:
            sources_of[node.name] = used
        else:
            sources_of[node.name], edges[node.name] = [node.name], used
    used_by_some = {name for names in edges.values() for name in names} | _outputs(graph, edges)
    return {name: names for name, names in edges.items() if names or name in used_by_some}


def _outputs(graph: Any, edges: Mapping[str, list[str]]) -> set[str]:
    """The boxes of the outputs; for a folded output, the box that it comes from."""
    names = set()
    for name in graph.outputs:
        while name not in edges:
            name = graph[name].inputs[0]
        names.add(name)
    return names


def arrange(edges: Mapping[str, list[str]], inputs: set[str]) -> tuple[list[list[Item]], dict[str, int]]:
    """The items of each layer, from left to right, and the layer of each node."""
    depth: dict[str, int] = {}
    users: dict[str, list[str]] = {name: [] for name in edges}
    driven = set(inputs)
    for name, used in edges.items():
        depth[name] = max((depth[other] + 1 for other in used), default=0)
        driven |= {name} if any(other in driven for other in used) else set()
        for other in used:
            users[other].append(name)
    for name in reversed(list(edges)):
        if users[name] and (name not in driven or name in inputs):  # close to its user, not far above
            depth[name] = min(depth[user] for user in users[name]) - 1
    lowest = min(depth.values())
    depth = {name: row - lowest for name, row in depth.items()}
    layers: list[list[Item]] = [[] for _ in range(max(depth.values()) + 1)]
    above: dict[Item, list[Item]] = {}
    below: dict[Item, list[Item]] = {}
    for name in edges:
        layers[depth[name]].append(name)
        for row in range(depth[name] + 1, max((depth[user] for user in users[name]), default=0)):
            layers[row].append((name, row))
    for user, used in edges.items():
        for name in used:
            chain: list[Item] = [name, *((name, row) for row in range(depth[name] + 1, depth[user])), user]
            for high, low in zip(chain, chain[1:], strict=False):
                above.setdefault(low, []).append(high)
                below.setdefault(high, []).append(low)
    for sweep in range(8):
        down = sweep % 2 == 0
        around = above if down else below
        order = {item: i - len(layer) / 2 for layer in layers for i, item in enumerate(layer)}
        for layer in layers if down else reversed(layers):
            layer.sort(key=lambda item: _mean([order[other] for other in around.get(item, ())], order[item]))
            order.update({item: i - len(layer) / 2 for i, item in enumerate(layer)})
    return layers, depth


def _places(layers: list[list[Item]], edges: Mapping[str, list[str]], width: int) -> dict[Item, tuple[float, float]]:
    """Center and top of each item: as close as possible to its sources, without overlap."""
    positions: dict[Item, tuple[float, float]] = {}
    for row, layer in enumerate(layers):
        y = MARGIN + row * (HIGH + LAYER_GAP)
        layer_width = sum(_wide(item) + GAP for item in layer) - GAP
        left = (width - layer_width) / 2
        x, right = float(MARGIN), float(width - MARGIN - layer_width)
        for item in layer:
            item_width = _wide(item)
            sources: list[Item] = [(item[0], row - 1)] if isinstance(item, tuple) else [(name, row - 1) for name in edges[item]]
            nodes_or_slots = (positions.get(source) or positions.get(source[0]) for source in sources)
            known = [position[0] for position in nodes_or_slots if position is not None]
            center = min(max(_mean(known, left + item_width / 2), x + item_width / 2), right + item_width / 2)
            positions[item] = (center, y)
            x = center + item_width / 2 + GAP
            right += item_width + GAP
            left += item_width + GAP
    return positions


def _edge(name: str, user: str, depth: Mapping[str, int], positions: Mapping[Item, tuple[float, float]]) -> str:
    """A smooth curve through the slots of the edge."""
    stops = [positions[(name, layer)] for layer in range(depth[name] + 1, depth[user])]
    x, y = positions[name][0], positions[name][1] + HIGH
    path = f"M{x:.0f} {y:.0f}"
    for a, b in [*stops, positions[user]]:
        path += f" C{x:.0f} {y + LAYER_GAP * 0.6:.0f} {a:.0f} {b - LAYER_GAP * 0.6:.0f} {a:.0f} {b:.0f}"
        x, y = a, b
        if (a, b) in stops:
            y = b + HIGH
            path += f" L{x:.0f} {y:.0f}"
    return f'<path d="{path}" fill="none" stroke="#667080" stroke-opacity="0.7" marker-end="url(#tip)"/>'


def _box(node: Any, order: tuple[float, float], output: bool) -> list[str]:
    x, y = order
    kind = node.op if node.op in FILL else ""
    parts = [
        f'<rect x="{x - BOX / 2:.0f}" y="{y:.0f}" width="{BOX}" height="{HIGH}" rx="6" fill="{FILL[kind]}" '
        f'stroke="{LINE[kind]}" stroke-width="{2.2 if output else 1.1}"/>'
    ]
    lines = _labels(node)
    for row, label in enumerate(lines):
        base = y + HIGH / 2 + 4 + (row - (len(lines) - 1) / 2) * 14
        weight, ink = ("600", "#1c2430") if row == 0 else ("400", "#667080")
        text = escape(_shorten(label))
        parts.append(f'<text x="{x:.0f}" y="{base:.0f}" text-anchor="middle" font-weight="{weight}" fill="{ink}">{text}</text>')
    return parts


def _wide(item: Item) -> int:
    return BOX if isinstance(item, str) else EDGE_WIDTH


def _mean(values: list[float], otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise


def _labels(node: Any) -> list[str]:
    from .graph import level, size

    first = node.name if node.op in FILL and node.op else node.kind.strip("_")
    value, adjoint = level(node.value), level(node.adjoint)
    second = size(node) if node.shape != () or value is None else f"{value:.4g}"
    return [first, second + ("" if adjoint is None else f"  ·  ∂ {adjoint:.3g}")] if second else [first]


def _shorten(label: str, max_length: int = 28) -> str:
    return label if len(label) <= max_length else "…" + label[1 - max_length :]
