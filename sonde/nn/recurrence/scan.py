"""Prefixes under an associative operation in logarithmic depth.

    scan(combine, x)[i] = x_0 o x_1 o ... o x_i

For a linear recurrence the operation composes two segments of steps: a segment maps the state S to P S + H, so

    (P1, H1) o (P2, H2) = (P2 P1, P2 H1 + H2)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

Element = tuple[Tensor, ...]
Combine = Callable[[Element, Element], Element]


def scan(combine: Combine, x: Element, method: Literal["tree", "shallow"] = "tree") -> Element:
    """All prefixes of the elements along axis 0.

    tree     about 2 L combinations in at most 2 ceil(log2 L) - 1 rounds
    shallow  ceil(log2 L) rounds, the fewest there can be, with L log2 L combinations
    """
    return _tree(combine, x) if method == "tree" else _shallow(combine, x)


def _tree(combine: Combine, x: Element) -> Element:
    """Combine neighbors, scan these half as many, and fill in the positions between."""
    n = len(x[0])
    if n <= 1:
        return x
    odd = _tree(combine, combine(_slice(x, slice(0, n - 1, 2)), _slice(x, slice(1, n, 2))))
    if n == 2:
        return tuple(torch.cat([first[:1], last]) for first, last in zip(x, odd))
    even = combine(_slice(odd, slice(0, (n - 1) // 2)), _slice(x, slice(2, n, 2)))
    return tuple(_weave(torch.cat([first[:1], rest]), between) for first, rest, between in zip(x, even, odd))


def _shallow(combine: Combine, x: Element) -> Element:
    """In each round every position combines with the prefix that ends a power of two before it."""
    reach = 1
    while reach < len(x[0]):
        joined = combine(_slice(x, slice(None, -reach)), _slice(x, slice(reach, None)))
        x = tuple(torch.cat([old[:reach], new]) for old, new in zip(x, joined))
        reach *= 2
    return x


def _slice(x: Element, part: slice) -> Element:
    return tuple(one[part] for one in x)


def _weave(even: Tensor, odd: Tensor) -> Tensor:
    """even_0, odd_0, even_1, odd_1, ..."""
    both = torch.stack([even[: len(odd)], odd], 1).flatten(0, 1)
    return both if len(even) == len(odd) else torch.cat([both, even[-1:]])


def combine_rule(apply: Callable[[Tensor, Tensor], Tensor]) -> Combine:
    """The composition of two segments; `apply` applies a transition: torch.mul elementwise, torch.matmul as a matrix."""

    def combine(first: Element, second: Element) -> Element:
        (P1, H1), (P2, H2) = first, second
        return apply(P2, P1), apply(P2, H1) + H2

    return combine
