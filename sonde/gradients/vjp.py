"""Gradient rules of the primitives: one vector-Jacobian product per ATen operation.

A rule is called as `rule(g, y, *args, **settings)` with the adjoint of the output, the output, and the arguments of the
forward call; it returns one gradient per argument, in order, None where there is none.  Arguments left over get None.
A rule may ignore broadcasting: the backward pass sums a gradient down to the shape of its argument.  An operation with several
outputs gets a list of adjoints, None for unused outputs.

Rules are made of primitives that have rules themselves, so a gradient can be traced and differentiated again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

aten = torch.ops.aten
VJPRule = Callable[..., tuple[Any, ...]]
RULES: dict[str, VJPRule] = {}
"""ATen name without overload, such as 'mul' -> its rule"""

FLAT = {
    *("gt", "ge", "lt", "le", "eq", "ne", "logical_not", "logical_and", "logical_or", "bitwise_not", "bitwise_and", "bitwise_or"),
    *("sign", "floor", "ceil", "round", "trunc", "floor_divide", "argmax", "argmin", "argsort", "isnan", "isinf", "isfinite"),
    *("ones_like", "zeros_like", "full_like", "empty_like", "rand_like", "randn_like", "new_zeros", "new_ones", "new_empty", "new_full"),
    *("bernoulli", "detach"),
}
"""operations with zero or no gradient"""


def rule(*names: str) -> Callable[[VJPRule], VJPRule]:
    def keep(function: VJPRule) -> VJPRule:
        RULES.update(dict.fromkeys(names, function))
        return function

    return keep


# One number in, one number out: the derivative times g.

_SLOPES: dict[str, Callable[..., Any]] = {
    "neg": lambda y, x: -1.0,
    "abs": lambda y, x: x.sign(),
    "exp": lambda y, x: y,
    "exp2": lambda y, x: y * math.log(2),
    "expm1": lambda y, x: y + 1,
    "log": lambda y, x: 1 / x,
    "log2": lambda y, x: 1 / (x * math.log(2)),
    "log10": lambda y, x: 1 / (x * math.log(10)),
    "log1p": lambda y, x: 1 / (x + 1),
    "sqrt": lambda y, x: 0.5 / y,
    "rsqrt": lambda y, x: -0.5 * y**3,
    "reciprocal": lambda y, x: -y * y,
    "sin": lambda y, x: x.cos(),
    "cos": lambda y, x: -x.sin(),
    "tan": lambda y, x: 1 + y * y,
    "asin": lambda y, x: (1 - x * x).rsqrt(),
    "acos": lambda y, x: -(1 - x * x).rsqrt(),
    "atan": lambda y, x: 1 / (1 + x * x),
    "sinh": lambda y, x: x.cosh(),
    "cosh": lambda y, x: x.sinh(),
    "tanh": lambda y, x: 1 - y * y,
    "erf": lambda y, x: 2 / math.sqrt(math.pi) * (-x * x).exp(),
    "sigmoid": lambda y, x: y * (1 - y),
    "relu": lambda y, x: (x > 0).to(x.dtype),
    "silu": lambda y, x: x.sigmoid() + y * (1 - x.sigmoid()),
    "leaky_relu": lambda y, x, slope=0.01: torch.where(x > 0, torch.ones_like(x), slope),
    "softplus": lambda y, x, beta=1, threshold=20: torch.where(x * beta > threshold, 1.0, (x * beta).sigmoid()),
    "sinc": lambda y, x: torch.where(x == 0, -(math.pi**2) / 3 * x, ((math.pi * x).cos() - y) / torch.where(x == 0, 1.0, x)),
    "hardtanh": lambda y, x, low=-1.0, high=1.0: ((x > low) & (x < high)).to(x.dtype),
}


def _slope(function: Callable[..., Any]) -> VJPRule:
    return lambda g, y, x, *settings: (g * function(y, x, *settings),)


RULES.update({name: _slope(function) for name, function in _SLOPES.items()})


@rule("clamp")
def _clamp(g: Tensor, y: Tensor, x: Tensor, low: Any = None, high: Any = None) -> tuple[Any, ...]:
    """Only the one that was taken gets the gradient: x, the lower or the upper bound; the upper wins where they cross."""
    nowhere = torch.zeros_like(x, dtype=torch.bool)
    under, over = nowhere if low is None else x < low, nowhere if high is None else x > high
    if isinstance(low, Tensor) and isinstance(high, Tensor):
        under, over = under & (low < high), over | (high < low)
    return g * ~(under | over), g * under, g * over


@rule("clamp_min")
def _clamp_min(g: Tensor, y: Tensor, x: Tensor, low: Any) -> tuple[Any, ...]:
    return _clamp(g, y, x, low)[:2]


@rule("clamp_max")
def _clamp_max(g: Tensor, y: Tensor, x: Tensor, high: Any) -> tuple[Any, ...]:
    inside, _, over = _clamp(g, y, x, None, high)
    return inside, over


@rule("gelu")
def _gelu(g: Tensor, y: Tensor, x: Tensor, approximate: str = "none") -> tuple[Any, ...]:
    if approximate == "tanh":
        a, c = math.sqrt(2 / math.pi), 0.044715
        t = (a * (x + c * x**3)).tanh()
        return (g * (0.5 * (1 + t) + 0.5 * x * (1 - t * t) * a * (1 + 3 * c * x * x)),)
    density = (-0.5 * x * x).exp() / math.sqrt(2 * math.pi)
    return (g * (0.5 * (1 + (x / math.sqrt(2)).erf()) + x * density),)


@rule("elu")
def _elu(g: Tensor, y: Tensor, x: Tensor, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> tuple[Any, ...]:
    return (g * torch.where(x > 0, scale, scale * alpha * input_scale * (x.clamp(max=0) * input_scale).exp()),)


# Two numbers in, one out.


@rule("add")
def _add(g: Tensor, y: Tensor, a: Any, b: Any, alpha: float = 1) -> tuple[Any, ...]:
    return g, g if alpha == 1 else g * alpha


@rule("sub")
def _sub(g: Tensor, y: Tensor, a: Any, b: Any, alpha: float = 1) -> tuple[Any, ...]:
    return g, -g if alpha == 1 else g * -alpha


@rule("rsub")
def _rsub(g: Tensor, y: Tensor, a: Any, b: Any, alpha: float = 1) -> tuple[Any, ...]:
    return g * -alpha, g


@rule("mul")
def _mul(g: Tensor, y: Tensor, a: Any, b: Any) -> tuple[Any, ...]:
    return g * b, g * a


@rule("div")
def _div(g: Tensor, y: Tensor, a: Any, b: Any, rounding_mode: str | None = None) -> tuple[Any, ...]:
    return (None, None) if rounding_mode else (g / b, -g * y / b if isinstance(b, Tensor) else None)


@rule("pow")
def _pow(g: Tensor, y: Tensor, base: Any, exponent: Any) -> tuple[Any, ...]:
    if not isinstance(exponent, Tensor):
        return (g * 0 if exponent == 0 else g * (exponent * base ** (exponent - 1)),)
    flat = exponent == 0  # x^0 is 1 for every x, 0 among them; and 0^n stays 0 for every n >= 0
    if not isinstance(base, Tensor):
        base = torch.full_like(exponent, base)
    slope = torch.where(flat, 0.0, g * (exponent * base ** torch.where(flat, 1.0, exponent - 1)))
    still = (base == 0) & (exponent >= 0)
    return slope, torch.where(still, 0.0, g * y * torch.where(still, 1.0, base).log())


@rule("xlogy")
def _xlogy(g: Tensor, y: Tensor, a: Any, b: Any) -> tuple[Any, ...]:
    b = b if isinstance(b, Tensor) else torch.full_like(y, b)
    none = (a == 0) & (b <= 0)
    return torch.where(none, 0.0, g * torch.where(none, 1.0, b).log()), g * a / b


@rule("maximum")
def _maximum(g: Tensor, y: Tensor, a: Tensor, b: Tensor) -> tuple[Any, ...]:
    return g * _share(a, b), g * _share(b, a)


@rule("minimum")
def _minimum(g: Tensor, y: Tensor, a: Tensor, b: Tensor) -> tuple[Any, ...]:
    return g * _share(b, a), g * _share(a, b)


def _share(a: Tensor, b: Tensor) -> Tensor:
    """1 where a is larger, a half where both are equal."""
    return (a > b).to(a.dtype) + 0.5 * (a == b).to(a.dtype)


@rule("where")
def _where(g: Tensor, y: Tensor, mask: Tensor, a: Any, b: Any) -> tuple[Any, ...]:
    zero = torch.zeros_like(g)
    return None, torch.where(mask, g, zero), torch.where(mask, zero, g)


@rule("masked_fill")
def _masked_fill(g: Tensor, y: Tensor, x: Tensor, mask: Tensor, value: Any) -> tuple[Any, ...]:
    zero = torch.zeros_like(g)
    return torch.where(mask, zero, g), None, torch.where(mask, g, zero)


# Many numbers into one.  `dim` None or [] means all axes.


def _back(g: Tensor, x: Tensor, dim: Any, keepdim: bool) -> Tensor:
    """A gradient after a reduction, spread over the axes that were reduced."""
    axes = range(x.dim()) if dim is None or dim == [] else [dim] if isinstance(dim, int) else dim
    if not keepdim:
        for axis in sorted(axis % max(x.dim(), 1) for axis in axes):
            g = g.unsqueeze(axis) if x.dim() else g
    return g.expand(x.shape)


@rule("sum")
def _sum(g: Tensor, y: Tensor, x: Tensor, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> tuple[Any, ...]:
    return (_back(g, x, dim, keepdim),)


@rule("mean")
def _mean(g: Tensor, y: Tensor, x: Tensor, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> tuple[Any, ...]:
    return (_back(g, x, dim, keepdim) * (y.numel() / x.numel()),)


@rule("var")
def _var(g: Any, y: Tensor, x: Tensor, dim: Any = None, correction: Any = None, keepdim: bool = False) -> tuple[Any, ...]:
    free = x.numel() // y.numel() - (1 if correction is None else correction)
    mean = x.mean(dim if dim else list(range(x.dim())), keepdim=True)
    return (_back(g, x, dim, keepdim) * (x - mean) * (2 / free),)


@rule("var_mean")
def _var_mean(g: list[Any], y: Any, x: Tensor, dim: Any = None, correction: Any = None, keepdim: bool = False) -> tuple[Any, ...]:
    return _spread_and_mean(_var, g, y, x, dim, correction, keepdim)


def _spread_and_mean(spread: VJPRule, g: list[Any], y: Any, x: Tensor, dim: Any, correction: Any, keepdim: bool) -> tuple[Any, ...]:
    parts = [spread(g[0], y[0], x, dim, correction, keepdim)[0]] if g[0] is not None else []
    parts += [_mean(g[1], y[1], x, dim, keepdim)[0]] if g[1] is not None else []
    return (sum(parts[1:], parts[0]),)


@rule("std")
def _std(g: Any, y: Tensor, x: Tensor, dim: Any = None, correction: Any = None, keepdim: bool = False) -> tuple[Any, ...]:
    """That of the variance over twice the deviation; 0 where nothing deviates."""
    same = y == 0
    return _var(torch.where(same, 0.0, g / (2 * torch.where(same, 1.0, y))), y, x, dim, correction, keepdim)


@rule("std_mean")
def _std_mean(g: list[Any], y: Any, x: Tensor, dim: Any = None, correction: Any = None, keepdim: bool = False) -> tuple[Any, ...]:
    return _spread_and_mean(_std, g, y, x, dim, correction, keepdim)


@rule("linalg_vector_norm")
def _norm(g: Tensor, y: Tensor, x: Tensor, order: float = 2, dim: Any = None, keepdim: bool = False, **more: Any) -> tuple[Any, ...]:
    """d norm / dx = sign(x) (|x| / norm)^(p - 1); 0 at the origin, and where p = 0 only counts."""
    if math.isinf(order):
        return (_extreme(g, y, x.abs(), dim, keepdim)[0] * x.sign(),)
    norm = _back(y, x, dim, keepdim)
    if order in (0, 1):
        slope = x.sign() * order
    elif order == 2:
        slope = x / torch.where(norm == 0, 1.0, norm)
    else:
        none = (x == 0) | (norm == 0)
        share = torch.where(none, 1.0, x.abs()) / torch.where(none, 1.0, norm)
        slope = torch.where(none, 0.0, x.sign() * share ** (order - 1))
    return (_back(g, x, dim, keepdim) * slope,)


@rule("amax", "amin")
def _extreme(g: Tensor, y: Tensor, x: Tensor, dim: Any = None, keepdim: bool = False) -> tuple[Any, ...]:
    winners = (x == _back(y, x, dim, keepdim)).to(x.dtype)
    ties = winners.sum(dim or list(range(x.dim())), keepdim=True)
    return (_back(g, x, dim, keepdim) * winners / ties,)


@rule("max", "min")
def _extreme_with_place(g: Any, y: Any, x: Tensor, dim: int | None = None, keepdim: bool = False) -> tuple[Any, ...]:
    if dim is None:
        return _extreme(g, y, x)
    gradient, place = (g[0], y[1]) if keepdim else (g[0].unsqueeze(dim), y[1].unsqueeze(dim))
    return (torch.zeros_like(x).scatter_add(dim, place, gradient),)


@rule("sort")
def _sort(g: Any, y: Any, x: Tensor, dim: int = -1, descending: bool = False, **more: Any) -> tuple[Any, ...]:
    return (torch.zeros_like(x).scatter_add(dim, y[1], g[0]),)


@rule("topk")
def _topk(g: Any, y: Any, x: Tensor, k: int, dim: int = -1, *settings: Any) -> tuple[Any, ...]:
    return (torch.zeros_like(x).scatter_add(dim, y[1], g[0]),)


@rule("prod")
def _prod(g: Tensor, y: Tensor, x: Tensor, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> tuple[Any, ...]:
    """Each number gets the product of all others, from the left and from the right, so that a zero does no harm."""
    line, axis = (x.reshape(-1), 0) if dim is None else (x, dim)
    one = torch.ones_like(line.narrow(axis, 0, 1))
    size = line.shape[axis]
    left = torch.cat([one, line.narrow(axis, 0, size - 1)], axis).cumprod(axis)
    right = torch.cat([line.narrow(axis, 1, size - 1), one], axis).flip(axis).cumprod(axis).flip(axis)
    return (_back(g, x, dim, keepdim) * (left * right).reshape(x.shape),)


@rule("cumprod")
def _cumprod(g: Tensor, y: Tensor, x: Tensor, dim: int, dtype: Any = None) -> tuple[Any, ...]:
    if bool((x != 0).all()):
        return ((g * y).flip(dim).cumsum(dim).flip(dim) / x,)
    # Where there is a zero, the products without the number in question are formed one by one: entry (j, i) is x_1..x_i without x_j.
    line = x.movedim(dim, -1).unsqueeze(-2) if x.dim() else x.reshape(1, 1)
    own = torch.eye(line.shape[-1], dtype=torch.bool, device=x.device)
    others = torch.where(own, 1.0, line).cumprod(-1).triu()
    back = (others * g.movedim(dim, -1).unsqueeze(-2) if g.dim() else others * g).sum(-1)
    return (back.movedim(-1, dim) if x.dim() else back.reshape(()),)


@rule("cumsum")
def _cumsum(g: Tensor, y: Tensor, x: Tensor, dim: int, dtype: Any = None) -> tuple[Any, ...]:
    return (g.flip(dim).cumsum(dim).flip(dim),)


# Products.


@rule("mm", "bmm")
def _mm(g: Tensor, y: Tensor, a: Tensor, b: Tensor) -> tuple[Any, ...]:
    return g @ b.transpose(-1, -2), a.transpose(-1, -2) @ g


@rule("addmm", "baddbmm")
def _addmm(g: Tensor, y: Tensor, c: Tensor, a: Tensor, b: Tensor, beta: float = 1, alpha: float = 1) -> tuple[Any, ...]:
    scaled = g if alpha == 1 else g * alpha
    return g if beta == 1 else g * beta, *_mm(scaled, y, a, b)


@rule("mv")
def _mv(g: Tensor, y: Tensor, a: Tensor, v: Tensor) -> tuple[Any, ...]:
    return g.unsqueeze(1) * v, a.t() @ g


@rule("addmv")
def _addmv(g: Tensor, y: Tensor, c: Tensor, a: Tensor, v: Tensor, beta: float = 1, alpha: float = 1) -> tuple[Any, ...]:
    return g * beta, *_mv(g * alpha, y, a, v)


@rule("dot")
def _dot(g: Tensor, y: Tensor, a: Tensor, b: Tensor) -> tuple[Any, ...]:
    return g * b, g * a


# Numbers moved about: the gradient moves back.


@rule(
    "view", "_unsafe_view", "reshape", "squeeze", "unsqueeze", "clone", "alias", "lift_fresh_copy", "lift_fresh", "_to_copy", "contiguous"
)
def _reshape(g: Tensor, y: Tensor, x: Tensor, *settings: Any, **more: Any) -> tuple[Any, ...]:
    return (g.reshape(x.shape).to(x.dtype),)


@rule("copy")
def _copy(g: Tensor, y: Tensor, x: Tensor, source: Tensor, *settings: Any) -> tuple[Any, ...]:
    return None, g


@rule("expand")
def _expand(g: Tensor, y: Tensor, x: Tensor, *settings: Any, **more: Any) -> tuple[Any, ...]:
    return (g,)


@rule("t")
def _t(g: Tensor, y: Tensor, x: Tensor) -> tuple[Any, ...]:
    return (g.t(),)


@rule("transpose")
def _transpose(g: Tensor, y: Tensor, x: Tensor, a: int, b: int) -> tuple[Any, ...]:
    return (g.transpose(a, b),)


@rule("permute")
def _permute(g: Tensor, y: Tensor, x: Tensor, dims: Sequence[int]) -> tuple[Any, ...]:
    back = [0] * len(dims)
    for place, axis in enumerate(dims):
        back[axis % len(dims)] = place
    return (g.permute(back),)


@rule("flip")
def _flip(g: Tensor, y: Tensor, x: Tensor, dims: list[int]) -> tuple[Any, ...]:
    return (g.flip(dims),)


@rule("tril")
def _tril(g: Tensor, y: Tensor, x: Tensor, diagonal: int = 0) -> tuple[Any, ...]:
    return (g.tril(diagonal),)


@rule("triu")
def _triu(g: Tensor, y: Tensor, x: Tensor, diagonal: int = 0) -> tuple[Any, ...]:
    return (g.triu(diagonal),)


def _embed(g: Tensor, x: Tensor, dim: int, start: int, step: int = 1) -> Tensor:
    """A gradient of a part of x, with zeros around it; built from padding, so that it has a rule of its own."""
    dim = dim % x.dim()
    if step != 1:
        place = torch.arange(start, start + step * g.shape[dim], step, device=g.device)
        return torch.zeros(x.shape, dtype=g.dtype, device=g.device).index_add(dim, place, g)
    around = [0, 0] * (x.dim() - 1 - dim) + [start, x.shape[dim] - start - g.shape[dim]]
    return pad(g, around)


@rule("slice")
def _slice(
    g: Tensor, y: Tensor, x: Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> tuple[Any, ...]:
    return (_embed(g, x, dim, range(x.shape[dim])[slice(start, end, step)].start, step),)


@rule("select")
def _select(g: Tensor, y: Tensor, x: Tensor, dim: int, index: int) -> tuple[Any, ...]:
    return (_embed(g.unsqueeze(dim), x, dim, index % x.shape[dim]),)


@rule("cat")
def _cat(g: Tensor, y: Tensor, parts: Sequence[Tensor], dim: int = 0) -> tuple[Any, ...]:
    starts = [sum(part.shape[dim] for part in parts[:i]) for i in range(len(parts))]
    return ([g.narrow(dim, start, part.shape[dim]) for start, part in zip(starts, parts, strict=True)],)


@rule("stack")
def _stack(g: Tensor, y: Tensor, parts: Sequence[Tensor], dim: int = 0) -> tuple[Any, ...]:
    return ([g.select(dim, i) for i in range(len(parts))],)


@rule("split", "unsafe_split", "split_with_sizes")
def _split(g: list[Any], y: Sequence[Tensor], x: Tensor, size: Any, dim: int = 0) -> tuple[Any, ...]:
    return (torch.cat([torch.zeros_like(part) if gradient is None else gradient for gradient, part in zip(g, y, strict=True)], dim),)


@rule("unbind")
def _unbind(g: list[Any], y: Sequence[Tensor], x: Tensor, dim: int = 0) -> tuple[Any, ...]:
    return (torch.stack([torch.zeros_like(part) if gradient is None else gradient for gradient, part in zip(g, y, strict=True)], dim),)


@rule("repeat")
def _repeat(g: Tensor, y: Tensor, x: Tensor, times: Sequence[int]) -> tuple[Any, ...]:
    shape = [1] * (len(times) - x.dim()) + list(x.shape)
    cut = g.reshape([size for pair in zip(times, shape, strict=True) for size in pair])
    return (cut.sum(list(range(0, 2 * len(times), 2))).reshape(x.shape),)


@rule("constant_pad_nd")
def _pad(g: Tensor, y: Tensor, x: Tensor, around: Sequence[int], value: float = 0) -> tuple[Any, ...]:
    return (pad(g, [-size for size in around]),)


@rule("diagonal")
def _diagonal(g: Tensor, y: Tensor, x: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> tuple[Any, ...]:
    whole = torch.diag_embed(g, offset, dim1, dim2)
    for dim in (dim1, dim2):
        whole = _fill(whole, dim, x.shape[dim])
    return (whole,)


def _fill(g: Tensor, dim: int, size: int) -> Tensor:
    return pad(g, [0, 0] * (g.dim() - 1 - dim % g.dim()) + [0, size - g.shape[dim]])


# Numbers looked up: the gradient is added back at the place it came from.


@rule("gather")
def _gather(g: Tensor, y: Tensor, x: Tensor, dim: int, index: Tensor, **more: Any) -> tuple[Any, ...]:
    return (torch.zeros_like(x).scatter_add(dim, index, g),)


@rule("scatter_add")
def _scatter_add(g: Tensor, y: Tensor, x: Tensor, dim: int, index: Tensor, source: Tensor) -> tuple[Any, ...]:
    return g, None, None, g.gather(dim, index)


@rule("scatter")
def _scatter(g: Tensor, y: Tensor, x: Tensor, dim: int, index: Tensor, source: Any) -> tuple[Any, ...]:
    return g.scatter(dim, index, 0.0), None, None, g.gather(dim, index) if isinstance(source, Tensor) else None


@rule("index_select")
def _index_select(g: Tensor, y: Tensor, x: Tensor, dim: int, index: Tensor) -> tuple[Any, ...]:
    return (torch.zeros_like(x).index_add(dim, index, g),)


@rule("index_add")
def _index_add(g: Tensor, y: Tensor, x: Tensor, dim: int, index: Tensor, source: Tensor, alpha: float = 1) -> tuple[Any, ...]:
    return g, None, None, g.index_select(dim, index) * alpha


@rule("embedding")
def _embedding(g: Tensor, y: Tensor, table: Tensor, index: Tensor, padding: int = -1, *settings: Any) -> tuple[Any, ...]:
    flat = g.reshape(-1, table.shape[1])
    if padding >= 0:
        flat = flat * (index.reshape(-1, 1) != padding)
    return (torch.zeros_like(table).index_add(0, index.reshape(-1), flat),)


@rule("index")
def _index(g: Tensor, y: Tensor, x: Tensor, places: Sequence[Any]) -> tuple[Any, ...]:
    return (aten.index_put(torch.zeros_like(x), places, g, True),)


@rule("index_put", "_unsafe_index_put")
def _index_put(g: Tensor, y: Tensor, x: Tensor, places: Sequence[Any], source: Tensor, accumulate: bool = False) -> tuple[Any, ...]:
    kept = g if accumulate else aten.index_put(g, places, torch.zeros_like(source))
    return kept, None, aten.index(g, places)


@rule("_unsafe_index")
def _unsafe_index(g: Tensor, y: Tensor, x: Tensor, places: Sequence[Any]) -> tuple[Any, ...]:
    return _index(g, y, x, places)


@rule("select_scatter")
def _select_scatter(g: Tensor, y: Tensor, x: Tensor, source: Tensor, dim: int, index: int) -> tuple[Any, ...]:
    return g.select_scatter(torch.zeros_like(source), dim, index), g.select(dim, index)


@rule("slice_scatter")
def _slice_scatter(
    g: Tensor, y: Tensor, x: Tensor, source: Tensor, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> tuple[Any, ...]:
    return g.slice_scatter(torch.zeros_like(source), dim, start, end, step), aten.slice(g, dim, start, end, step)


# Layers.


@rule("_softmax", "_safe_softmax")
def _softmax(g: Tensor, y: Tensor, x: Tensor, dim: int, *settings: Any) -> tuple[Any, ...]:
    return (y * (g - (g * y).sum(dim, keepdim=True)),)


@rule("_log_softmax")
def _log_softmax(g: Tensor, y: Tensor, x: Tensor, dim: int, *settings: Any) -> tuple[Any, ...]:
    return (g - y.exp() * g.sum(dim, keepdim=True),)


@rule("native_layer_norm")
def _layer_norm(g: list[Any], y: Any, x: Tensor, shape: Sequence[int], scale: Any, shift: Any, eps: float) -> tuple[Any, ...]:
    """x^ = (x - mean) / sd;  dx = (g' - mean g' - x^ mean(g' x^)) / sd  with g' = g scale."""
    axes = list(range(-len(shape), 0))
    _, mean, inverse = y
    normal = (x - mean) * inverse
    inner = g[0] if scale is None else g[0] * scale
    back = (inner - inner.mean(axes, keepdim=True) - normal * (inner * normal).mean(axes, keepdim=True)) * inverse
    return back, None, g[0] * normal, g[0]


@rule("native_group_norm")
def _group_norm(g: list[Any], y: Any, x: Tensor, scale: Any, shift: Any, *settings: Any) -> tuple[Any, ...]:
    """A layer norm over each group, then scale and shift by channel."""
    examples, channels, _, groups, eps = settings
    shape = (1, channels, *[1] * (x.dim() - 2))
    mean, inverse = (part.reshape(examples, groups, 1) for part in y[1:])
    inner = g[0] if scale is None else g[0] * scale.reshape(shape)
    rows = x.reshape(examples, groups, -1)
    back = _layer_norm([inner.reshape(rows.shape)], (None, mean, inverse), rows, rows.shape[2:], None, None, eps)[0]
    normal = ((rows - mean) * inverse).reshape(x.shape)
    axes = [0, *range(2, x.dim())]
    return back.reshape(x.shape), (g[0] * normal).sum(axes), g[0].sum(axes)


@rule("convolution")
def _convolution(g: Tensor, y: Tensor, x: Tensor, weight: Tensor, bias: Any, *settings: Any) -> tuple[Any, ...]:
    """The gradient of a convolution is a convolution: transposed with the same kernel for x, with g as kernel for the weight."""
    stride, padding, dilation, transposed, _, groups = settings
    axes = weight.dim() - 2
    none = [0] * axes
    # what a transposed convolution must add to come out at the size of x, where the stride did not divide it
    sizes = zip(x.shape[2:], g.shape[2:], weight.shape[2:], stride, padding, dilation, strict=True)
    missing = [n - ((m - 1) * s - 2 * p + d * (k - 1) + 1) for n, m, k, s, p, d in sizes]
    dx = aten.convolution(g, weight, None, stride, padding, dilation, not transposed, none if transposed else missing, groups)
    large, small = (g, x) if transposed else (x, g)
    parts = [(a.transpose(0, 1), b.transpose(0, 1)) for a, b in zip(large.chunk(groups, 1), small.chunk(groups, 1), strict=True)]
    dw = torch.cat([aten.convolution(a, b, None, dilation, padding, stride, False, none, 1).transpose(0, 1) for a, b in parts])
    return _first(dx, x.shape[2:]), _first(dw, weight.shape[2:]), g.sum([0, *range(2, g.dim())])


def _first(whole: Tensor, sizes: Sequence[int]) -> Tensor:
    """The first entries along the last axes."""
    for axis, size in enumerate(sizes, whole.dim() - len(sizes)):
        whole = whole.narrow(axis, 0, size) if whole.shape[axis] > size else whole
    return whole


@rule("max_pool2d_with_indices", "max_pool3d_with_indices")
def _max_pool(g: list[Any], y: Any, x: Tensor, kernel: Sequence[int], *settings: Any) -> tuple[Any, ...]:
    axes = len(kernel)
    flat = torch.zeros_like(x).flatten(-axes)
    return (flat.scatter_add(-1, y[1].flatten(-axes), g[0].flatten(-axes)).reshape(x.shape),)


@rule("avg_pool2d")
def _avg_pool(
    g: Tensor,
    y: Tensor,
    x: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0, 0),
    *settings: Any,
) -> tuple[Any, ...]:
    """Each window hands its gradient, divided by its size, to all of its entries: a transposed convolution with ones."""
    _, with_padding, divisor = list(settings) + [False, True, None][len(settings) :]
    kernel, padding = list(kernel) * (2 // len(kernel)), list(padding) * (2 // len(padding))
    stride = list(stride) * (2 // len(stride)) if stride else kernel
    height, width = x.shape[-2:]
    (top, left), out = padding, g.shape[-2:]
    reach = [(n - 1) * s + k for n, s, k in zip(out, stride, kernel, strict=True)]
    ones = torch.ones(1, 1, *kernel, dtype=g.dtype, device=g.device)
    inside = torch.ones(1, 1, height, width, dtype=g.dtype, device=g.device)
    inside = pad(inside, [left, left, top, top], value=float(with_padding))
    inside = pad(inside, [0, reach[1] - inside.shape[-1], 0, reach[0] - inside.shape[-2]])  # a last window may hang over
    count = aten.convolution(inside, ones, None, stride, [0, 0], [1, 1], False, [0, 0], 1) if divisor is None else divisor
    each = (g.reshape(-1, 1, *out)) / count
    spread = aten.convolution(each, ones, None, stride, [0, 0], [1, 1], True, [0, 0], 1)
    spread = pad(spread, [-left, left + width - reach[1], -top, top + height - reach[0]])
    return (spread.reshape(x.shape),)
