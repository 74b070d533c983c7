"""A graph as a formula people can read, lightly simplified.

An expression is a sum: {monomial: coefficient}; a monomial is a product: ((atom, exponent), ...); an atom is a name or a
call such as sin(...), whose arguments are expressions again.  In this form x*0, x*1, x+0, x^1, numbers and equal terms
fold by themselves.  Products of sums are kept as they are, never multiplied out.  Changes of size are not shown.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from torch import Tensor

from ..core.errors import BadInput

LONGEST = 4000
"""parts a formula may have; a larger graph is better read as a table or a picture"""


class Call(NamedTuple):
    """A function of expressions; they are frozen, so that calls can be compared."""

    name: str
    args: tuple[Sum, ...]


Atom = str | Call
Sum = tuple[tuple[tuple[tuple[Any, float], ...], float], ...]
GROUP = ""
"""the name of a call that is only a pair of brackets"""
ONE: Sum = (((), 1.0),)
MATH = {name: getattr(math, name) for name in ("sin", "cos", "tan", "exp", "log", "sinh", "cosh", "tanh", "erf", "atan")} | {"abs": abs}
SAME = {
    *("expand", "view", "_unsafe_view", "reshape", "squeeze", "unsqueeze"),
    *("clone", "alias", "_to_copy", "lift_fresh", "lift_fresh_copy", "detach"),
}
FULL = {"ones": 1.0, "ones_like": 1.0, "new_ones": 1.0, "zeros": 0.0, "zeros_like": 0.0, "new_zeros": 0.0}
COMPARE = {"gt": ">", "ge": ">=", "lt": "<", "le": "<=", "eq": "=", "ne": "!="}


def spell(graph: Any, output: str) -> str:
    """The formula of one node."""
    known: dict[str, Sum] = {}
    length: dict[str, int] = {}
    for node in graph:
        length[node.name] = 1 + sum(length[name] for name in node.inputs)
        if length[node.name] <= LONGEST:
            known[node.name] = _translate(node, graph, known)
    if output not in known:
        raise BadInput(f"the formula of '{output}' has {length[output]:,} parts", fix="read the table or the picture of the graph")
    return text(known[output])


def _translate(node: Any, graph: Any, known: dict[str, Sum]) -> Sum:
    kind = node.kind
    if kind == "constant":
        return _constant(node)
    if kind in ("input", "parameter", "buffer"):
        return ((((node.name, 1.0),), 1.0),)
    args = tuple(_argument(arg, known) for arg in node.args)
    if kind in FULL:
        return number(FULL[kind])
    if kind in ("full", "full_like", "new_full", "scalar_tensor"):
        return args[0 if kind == "scalar_tensor" else 1]
    if kind in SAME:
        return args[0]
    if kind in ("add", "sub", "rsub"):
        a, b = args[1::-1] if kind == "rsub" else args[:2]
        return add(a, scale(b, node.settings.get("alpha", 1) * (1 if kind == "add" else -1)))
    if kind in _ALGEBRA:
        return _ALGEBRA[kind](*args[:3])
    if kind in ("sum", "mean"):
        entries = graph[node.args[0].name].value.numel() / node.value.numel()
        if entries == 1 or _constant_value(args[0]) is not None:
            return scale(args[0], entries if kind == "sum" else 1.0)
        return call(kind, args[0])
    if kind in ("t", "transpose", "permute"):
        return _transpose(args[0])
    return call(kind, *args)


def _constant(node: Any) -> Sum:
    value = node.value
    if isinstance(value, Tensor) and value.numel() and bool((value == value.flatten()[0]).all()):
        return number(float(value.flatten()[0]))
    return ((((node.name, 1.0),), 1.0),)


def _argument(arg: Any, known: dict[str, Sum]) -> Sum:
    if isinstance(arg, (bool, int, float)):
        return number(float(arg))
    if isinstance(arg, list) and arg and all(hasattr(item, "name") for item in arg):
        return call("", *(known[item.name] for item in arg))
    return known[arg.name] if hasattr(arg, "name") else call(str(arg))


# Algebra


def number(value: float) -> Sum:
    return (((), value),) if value else ()


def _constant_value(a: Sum) -> float | None:
    """The value of an expression that is only a number."""
    if not a:
        return 0.0
    return a[0][1] if len(a) == 1 and a[0][0] == () else None


def add(a: Sum, b: Sum) -> Sum:
    factors = dict(a)
    for term, factor in b:
        factors[term] = factors.get(term, 0.0) + factor
    return tuple((term, factor) for term, factor in factors.items() if factor)


def scale(a: Sum, factor: float) -> Sum:
    return tuple((term, old * factor) for term, old in a) if factor else ()


def mul(a: Sum, b: Sum) -> Sum:
    for one, other in ((a, b), (b, a)):
        value = _constant_value(one)
        if value is not None:
            return scale(other, value)
    ((first, p),), ((second, q),) = _single(a), _single(b)
    powers = dict(first)
    for atom, exponent in second:
        powers[atom] = powers.get(atom, 0.0) + exponent
    term = tuple(sorted(((atom, n) for atom, n in powers.items() if n), key=_rank))
    return ((term, p * q),)


def power(a: Sum, n: float) -> Sum:
    value = _constant_value(a)
    if n in (0.0, 1.0):
        return ONE if n == 0 else a
    if value is not None and (value > 0 or n == int(n)) and (value or n > 0):
        return number(value**n)
    ((term, factor),) = _single(a)
    if n == int(n) or (factor > 0 and len(term) == 1 and term[0][1] == 1):
        return ((tuple((atom, exponent * n) for atom, exponent in term), factor**n),)
    return ((((Call(GROUP, (a,)), n),), 1.0),)


def _single(a: Sum) -> Sum:
    """One term; a sum of several goes into brackets."""
    return a if len(a) == 1 else ((((Call(GROUP, (a,)), 1.0),), 1.0),)


def call(name: str, *args: Sum) -> Sum:
    value = _constant_value(args[0]) if len(args) == 1 else None
    if value is not None and name in MATH and (name != "log" or value > 0):
        return number(MATH[name](value))
    return ((((Call(name, args), 1.0),), 1.0),)


def _transpose(a: Sum) -> Sum:
    if _constant_value(a) is not None:
        return a
    if len(a) == 1 and len(a[0][0]) == 1 and isinstance(a[0][0][0][0], Call) and a[0][0][0][0].name == ".T":
        return scale(a[0][0][0][0].args[0], a[0][1])
    return call(".T", a)


def _power_or_call(a: Sum, n: Sum) -> Sum:
    exponent = _constant_value(n)
    return call("^", a, n) if exponent is None else power(a, exponent)


_ALGEBRA: dict[str, Any] = {
    "mul": mul,
    "dot": lambda a, b: call("@", a, b),
    "neg": lambda a: scale(a, -1.0),
    "div": lambda a, b, *_: mul(a, power(b, -1.0)),
    "pow": _power_or_call,
    "square": lambda a: power(a, 2.0),
    "sqrt": lambda a: power(a, 0.5),
    "rsqrt": lambda a: power(a, -0.5),
    "reciprocal": lambda a: power(a, -1.0),
    **dict.fromkeys(("mm", "mv", "bmm"), lambda a, b: call("@", a, b)),
    **dict.fromkeys(("addmm", "addmv", "baddbmm"), lambda c, a, b: add(c, call("@", a, b))),
}


# Text


def text(a: Sum) -> str:
    if not a:
        return "0"
    parts = [_term(term, factor) for term, factor in a]
    return parts[0] + "".join(f" - {part[1:]}" if part.startswith("-") else f" + {part}" for part in parts[1:])


def _term(term: tuple[tuple[Any, float], ...], factor: float) -> str:
    if factor == 1 and len(term) == 1 and term[0][1] == 1:
        return _atom(term[0][0])
    above = [_factor(atom, n) for atom, n in term if n > 0]
    below = [_factor(atom, -n) for atom, n in term if n < 0]
    sign, size = ("-", -factor) if factor < 0 else ("", factor)
    if size != 1 or not above:
        above.insert(0, _number(size))
    if not below:
        return sign + "*".join(above)
    return f"{sign}{'*'.join(above)}/{below[0] if len(below) == 1 else '(' + '*'.join(below) + ')'}"


def _factor(atom: Atom, n: float) -> str:
    shown = _atom(atom)
    if n == 0.5:
        return f"sqrt{shown}" if _is_group(atom) else f"sqrt({shown})"
    loose = isinstance(atom, Call) and (atom.name == "@" or (n != 1 and atom.name in ("^", ".T")))
    return (f"({shown})" if loose else shown) + ("" if n == 1 else f"^{_number(n)}")


def _is_group(atom: Atom) -> bool:
    return isinstance(atom, Call) and atom.name == GROUP


def _atom(atom: Atom) -> str:
    if isinstance(atom, str):
        return atom
    shown = [text(arg) for arg in atom.args]
    if atom.name == "@":
        return " @ ".join(_bracket(arg, one) for arg, one in zip(atom.args, shown, strict=True))
    if atom.name == ".T":
        return f"{_bracket(atom.args[0], shown[0])}.T"
    if atom.name == "^":
        return "^".join(_bracket(arg, one) for arg, one in zip(atom.args, shown, strict=True))
    if atom.name in COMPARE:
        return f"[{shown[0]} {COMPARE[atom.name]} {shown[1]}]"
    return f"{atom.name.strip('_')}({', '.join(shown)})" if atom.args else atom.name


def _bracket(arg: Sum, shown: str) -> str:
    """In brackets where it is more than one name, number or call."""
    alone = len(arg) == 1 and arg[0][1] == 1 and len(arg[0][0]) == 1 and arg[0][0][0][1] == 1
    atom = arg[0][0][0][0] if alone else None
    simple = isinstance(atom, str) or (isinstance(atom, Call) and atom.name not in ("@", "^")) or (_constant_value(arg) or -1.0) >= 0
    return shown if simple else f"({shown})"


def _number(value: float) -> str:
    return f"{int(value)}" if value == int(value) and abs(value) < 1e15 else f"{value:.6g}"


def _rank(factor: tuple[Atom, float]) -> tuple[int, str]:
    """Names first, then functions, then brackets."""
    atom = factor[0]
    return (0, atom) if isinstance(atom, str) else (2 if atom.name == GROUP else 1, _atom(atom))
