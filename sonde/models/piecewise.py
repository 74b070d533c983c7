"""Exact analysis of ReLU networks: linear regions on a line or in a plane, composition, and counts.

A ReLU network is linear wherever the same units are on.  The regions are found layer by layer: inside a region of the
layers so far every unit of the next layer is one linear function, whose zero cuts the region in two.  Nothing is sampled,
so a region as thin as rounding allows is found too.

    W (out, in), b (out)   one dense layer
    region                 x -> weight @ x + bias on an interval or a convex polygon
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from ..core.errors import BadInput
from ..nn.affine import Affine
from .mlp import MLP

FloatArray = NDArray[np.float64]
Layers = list[tuple[FloatArray, FloatArray]]
MOST = 20_000
"""maximum number of regions"""
NEAR = 1e-10
"""a cut nearer than this to a corner, relative to the size of the region, goes through the corner"""

ROUNDING = 4 * float(np.finfo(float).eps)


@dataclass(frozen=True)
class Region:
    """Where one pattern of units is on, and the linear function the network is there."""

    corners: FloatArray
    """(2, 1) the ends of an interval, or (V, 2) the corners of a polygon in order"""
    pattern: str
    """a 1 for every unit that is on, layers parted by a bar: '101|01'"""
    weight: FloatArray
    """(outputs, inputs), the slope"""
    bias: FloatArray
    """(outputs)"""

    @property
    def size(self) -> float:
        """Length of the interval or area of the polygon."""
        if self.corners.shape[1] == 1:
            return float(self.corners[1, 0] - self.corners[0, 0])
        x, y = self.corners.T
        return float(abs(x @ np.roll(y, -1) - y @ np.roll(x, -1)) / 2)


def dense_layers(model: nn.Module) -> Layers:
    """Weights and biases of a ReLU network; linear layers with no ReLU between them count as the one layer they are."""
    layers: Layers = []
    open_layer: tuple[FloatArray, FloatArray] | None = None
    for name, module in _ordered_modules(model):
        if isinstance(module, nn.Linear):
            w = module.weight.detach().double().cpu().numpy()
            b = np.zeros(len(w)) if module.bias is None else module.bias.detach().double().cpu().numpy()
            open_layer = (w, b) if open_layer is None else (w @ open_layer[0], w @ open_layer[1] + b)
        elif isinstance(module, nn.ReLU) and (open_layer or layers):
            if open_layer is not None:  # a second ReLU in a row changes nothing
                layers.append(open_layer)
            open_layer = None
        elif isinstance(module, Affine) and open_layer is not None:
            scale, shift = float(module.scale), float(module.shift)
            open_layer = scale * open_layer[0], scale * open_layer[1] + shift
        elif not isinstance(module, (nn.Identity, nn.Dropout, nn.Flatten)):
            fix = "only dense layers with ReLU between them are linear in pieces"
            raise BadInput(f"layer '{name}' is a {type(module).__name__}", where="piecewise", fix=fix)
    if open_layer is None:
        if not layers:
            raise BadInput("the network has no dense layer", where="piecewise", fix="give an MLP or a Sequential of Linear and ReLU")
        width = len(layers[-1][1])
        open_layer = np.eye(width), np.zeros(width)  # it ends with a ReLU
    layers.append(open_layer)
    if not all(np.isfinite(w).all() and np.isfinite(b).all() for w, b in layers):
        raise BadInput("the network has weights that are not finite", where="piecewise", fix="look at an earlier checkpoint")
    return layers


def _ordered_modules(model: nn.Module, name: str = "") -> Iterator[tuple[str, nn.Module]]:
    """Modules in the order they are called, for the containers whose order is known."""
    if isinstance(model, MLP):
        model = model.layers
    if isinstance(model, nn.Sequential):
        for key, child in model.named_children():
            yield from _ordered_modules(child, f"{name}.{key}".strip("."))
    else:
        yield name or type(model).__name__, model


def from_layers(layers: Sequence[tuple[Any, Any]], activation: str = "relu") -> MLP:
    """The MLP with these weights and biases, in float64."""
    widths = (len(np.atleast_2d(layers[0][0])[0]), *(len(b) for _, b in layers))
    model = MLP(widths, activation=activation).double()
    linear = [module for module in model.layers if isinstance(module, nn.Linear)]
    with torch.no_grad():
        for module, (w, b) in zip(linear, layers, strict=True):
            module.weight.copy_(torch.as_tensor(np.asarray(w, dtype=float)))
            module.bias.copy_(torch.as_tensor(np.asarray(b, dtype=float)))
    return model


def merge(inner: nn.Module, outer: nn.Module) -> MLP:
    """outer(inner(x)) as one network: the last layer of the one and the first of the other become a single layer."""
    first, second = dense_layers(inner), dense_layers(outer)
    (w1, b1), (w2, b2) = first[-1], second[0]
    if w2.shape[1] != len(b1):
        raise BadInput(f"the inner network gives {len(b1)} numbers, the outer takes {w2.shape[1]}", where="merge", fix="they must agree")
    return from_layers([*first[:-1], (w2 @ w1, w2 @ b1 + b2), *second[1:]])


# Regions


def regions(model: nn.Module, low: float | Sequence[float], high: float | Sequence[float]) -> list[Region]:
    """Every linear region of a ReLU network between two bounds; on a line they may be infinite, and the regions come in order."""
    layers = dense_layers(model)
    inputs = layers[0][0].shape[1]
    if inputs not in (1, 2):
        raise BadInput(f"regions are found for 1 or 2 inputs, not {inputs}", where="regions", fix="look at a plane through the inputs")
    lower, upper = (np.broadcast_to(np.asarray(bound, dtype=float), (inputs,)) for bound in (low, high))
    if not (lower < upper).all() or (inputs == 2 and not np.isfinite([lower, upper]).all()):
        raise BadInput(f"no space between {low} and {high}", where="regions", fix="give a lower and a higher bound, finite in the plane")
    corners = np.stack([lower, upper])
    if inputs == 2:
        corners = np.array([[x, y] for x, y in ((lower[0], lower[1]), (upper[0], lower[1]), (upper[0], upper[1]), (lower[0], upper[1]))])
    partition = [Region(corners, "", np.eye(inputs), np.zeros(inputs))]
    for w, b in layers[:-1]:
        partition = [part for region in partition for part in _parts(region, w, b)]
        if len(partition) > MOST:
            raise BadInput(f"the network has over {MOST:,} regions there", where="regions", fix="take a smaller network or a smaller box")
    w, b = layers[-1]
    done = [Region(each.corners, each.pattern, w @ each.weight, w @ each.bias + b) for each in partition]
    return sorted(done, key=lambda region: float(region.corners[0, 0])) if inputs == 1 else done


def _parts(region: Region, w: FloatArray, b: FloatArray) -> Iterator[Region]:
    """A region cut by every unit of the next layer, with what the layer gives in each part."""
    slope, shift = w @ region.weight, w @ region.bias + b
    cut = _cut_interval if region.corners.shape[1] == 1 else _cut_polygon
    parts = [(region.corners, "")]
    for unit in range(len(b)):
        parts = [
            (half, bits + bit)
            for corners, bits in parts
            for half, bit in zip(cut(corners, slope[unit], shift[unit]), "01", strict=True)
            if half is not None
        ]
    for corners, bits in parts:
        on = np.array([bit == "1" for bit in bits])
        yield Region(corners, f"{region.pattern}|{bits}".lstrip("|"), slope * on[:, None], shift * on)


def _cut_interval(ends: FloatArray, slope: FloatArray, shift: float) -> tuple[FloatArray | None, FloatArray | None]:
    """The parts of an interval where slope * x + shift is below and above 0; None for what is empty."""
    (low,), (high,) = ends
    if slope[0] == 0:
        return (None, ends) if shift > 0 else (ends, None)
    zero = -shift / slope[0]
    near = max(NEAR * min(high - low, max(1.0, abs(zero))), ROUNDING * abs(zero))
    if low + near < zero < high - near:
        left, right = np.array([[low], [zero]]), np.array([[zero], [high]])
        return (left, right) if slope[0] > 0 else (right, left)
    return (None, ends) if (zero <= low + near) == (slope[0] > 0) else (ends, None)


def _cut_polygon(corners: FloatArray, slope: FloatArray, shift: float) -> tuple[FloatArray | None, FloatArray | None]:
    """The parts of a convex polygon where slope @ x + shift is below and above 0; None for what is empty."""
    height = corners @ slope + shift
    near = NEAR * float(np.abs(slope) @ np.ptp(corners, axis=0))
    if height.max() <= near:
        return corners, None
    if height.min() >= -near:
        return None, corners
    below: list[FloatArray] = []
    above: list[FloatArray] = []
    for i in range(len(corners)):
        here, there = height[i], height[(i + 1) % len(corners)]
        if here <= near:
            below.append(corners[i])
        if here >= -near:
            above.append(corners[i])
        if (here < -near and there > near) or (here > near and there < -near):
            crossing = corners[i] + here / (here - there) * (corners[(i + 1) % len(corners)] - corners[i])
            below.append(crossing)
            above.append(crossing)
    return np.array(below), np.array(above)


def pieces(intervals: Sequence[Region]) -> list[Region]:
    """Intervals joined where the function goes straight on although a unit switched: the pieces of the graph itself."""
    joined: list[Region] = []
    same = 1e-9 * max((float(np.abs(region.weight).max()) for region in intervals), default=0.0)
    for region in intervals:
        last = joined[-1] if joined else None
        if last is not None and np.allclose(last.weight, region.weight, rtol=1e-7, atol=same):
            joined[-1] = Region(np.stack([last.corners[0], region.corners[1]]), last.pattern, last.weight, last.bias)
        else:
            joined.append(region)
    return joined


def joints(intervals: Sequence[Region]) -> list[float]:
    """Where one interval ends and the next begins."""
    return [float(region.corners[1, 0]) for region in intervals[:-1]]


# Counts


def region_bound(inputs: int, hidden: int) -> int:
    """Most regions that `hidden` hyperplanes cut R^inputs into: sum over j <= inputs of C(hidden, j); 2^hidden for inputs >= hidden."""
    return sum(math.comb(hidden, j) for j in range(inputs + 1))


def count_regions(w: Any, b: Any) -> int:
    """Regions that the hyperplanes w @ x + b = 0 cut the whole space into, in any dimension and any position.

    Adding a hyperplane cuts in two just those regions that it meets, and these are as many as the regions which the
    others cut out of the hyperplane itself; so N(all) = N(without the last) + N(the others within the last).
    """
    w, b = np.atleast_2d(np.asarray(w, dtype=float)), np.asarray(b, dtype=float)
    rows: list[FloatArray] = []
    for normal, offset in zip(w, b, strict=True):
        size = float(np.linalg.norm(normal))
        row = np.append(normal, offset) / size if size > 1e-12 else None  # a plane without a normal is nowhere or everywhere
        if row is not None and not any(min(np.abs(row - other).max(), np.abs(row + other).max()) < 1e-9 for other in rows):
            rows.append(row)
    if not rows:
        return 1
    normal, offset = rows[-1][:-1], rows[-1][-1]
    rest = np.array(rows[:-1]).reshape(-1, len(normal) + 1)
    directions = np.linalg.svd(normal[None])[2][1:]  # spans the last hyperplane
    within = rest[:, :-1] @ directions.T, rest[:, -1] - offset * (rest[:, :-1] @ normal)
    return count_regions(rest[:, :-1], rest[:, -1]) + count_regions(*within) if len(rest) else 2
