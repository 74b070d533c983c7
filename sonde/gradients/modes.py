"""Derivatives of any function or module: J v, u^T J, Jacobian, Hessian and Hessian-vector product, in the cheaper mode.

For f from n numbers to m numbers the Jacobian takes n passes of forward mode, one column J e_j each, or m passes of
reverse mode, one row e_i^T J each.  `plan(f, x)` counts the multiplications of both on the traced graph and
returns which is cheaper and why; `jacobian` uses it.  The work itself is done by torch.func.

f is a function of one argument: a tensor, or named tensors such as the parameters of a model (see `of_parameters`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, final

import torch
from torch import Tensor, nn

from ..core.errors import BadInput
from ..core.options import checked

Tensors = Tensor | Mapping[str, Tensor]
Mode = Literal["forward", "reverse"]


@dataclass(frozen=True)
class DifferentiationPlan:
    """What a Jacobian costs in each mode, in multiplications, and the choice."""

    inputs: int
    outputs: int
    column: float
    """multiplications of one forward pass of tangents, which gives one column; infinite where an operation has no forward rule"""
    row: int
    """multiplications of one reverse pass of adjoints, which gives one row"""
    forward: float
    """the whole Jacobian by columns, and f itself once"""
    reverse: int
    """the whole Jacobian by rows, and f itself once"""
    mode: Mode
    why: str

    def __str__(self) -> str:
        return f"{self.mode} mode: {self.why}"


def plan(f: Callable[..., Any], x: Tensors) -> DifferentiationPlan:
    """Count both modes on the traced graph of f and choose; nothing is estimated."""
    from .graph import trace

    checked_f = _guard(f, x)
    names, flat = _flat(x)

    def bound(*parts: Tensor) -> Tensor:
        return checked_f(_join(x, names, parts))

    def tangents(*parts: Tensor) -> Tensor:
        half = len(parts) // 2
        return torch.func.jvp(bound, parts[:half], parts[half:])[1]

    def adjoints(*parts: Tensor) -> Any:
        return torch.func.vjp(bound, *parts[:-1])[1](parts[-1])

    y = bound(*flat)
    n, m = sum(part.numel() for part in flat), y.numel()
    values = trace(bound, *flat).multiplies
    by_rows = trace(adjoints, *flat, torch.ones_like(y))
    row = by_rows.multiplies_after(by_rows.inputs[-1])
    reverse = values + m * row
    try:
        by_columns = trace(tangents, *flat, *map(torch.ones_like, flat))
    except BadInput as error:  # the function itself ran above, so what fails is its forward mode
        reason = str(error.__cause__ or error).split(". ")[0]
        why = f"{_count(m, 'row')} cost {reverse:,} multiplications, columns are not available: {' '.join(reason.split())[:160]}"
        return DifferentiationPlan(n, m, math.inf, row, math.inf, reverse, "reverse", why)
    column = by_columns.multiplies_after(*by_columns.inputs[len(flat) :])
    forward = values + n * column
    mode: Mode = "forward" if forward < reverse or (forward == reverse and n < m) else "reverse"
    passes, others = (_count(n, "column"), _count(m, "row")) if mode == "forward" else (_count(m, "row"), _count(n, "column"))
    best, rest = min(forward, reverse), max(forward, reverse)
    why = f"{passes} cost {best:,} multiplications, {others} would cost {rest:,}"
    return DifferentiationPlan(n, m, column, row, forward, reverse, mode, why + (f" ({rest / best:.3g} times as many)" if best else ""))


def jvp(f: Callable[..., Any], x: Tensors, v: Tensors) -> Any:
    """J v: the directional derivative of f along v; one pass of forward mode."""
    f = _guard(f, x)
    _check_alike("direction v", v, x)
    with _differentiable():
        return torch.func.jvp(f, (x,), (v,))[1]


def vjp(f: Callable[..., Any], x: Tensors, u: Tensor) -> Any:
    """u^T J: the gradient of u . f(x); one pass of reverse mode."""
    with _differentiable():
        output_and_vjp = torch.func.vjp(_guard(f, x), x)
        _check_alike("weights u", u, output_and_vjp[0])
        return output_and_vjp[1](u)[0]


def gradient(f: Callable[..., Any], x: Tensors) -> Any:
    """All partial derivatives of a function with one number as its value."""
    with _differentiable():
        return torch.func.grad(_one_number(f, x))(x)


@checked
def jacobian(f: Callable[..., Any], x: Tensors, mode: Mode | None = None) -> Any:
    """J with the axes of the value first, then those of x; in the mode that `plan` chooses unless one is named."""
    chosen = mode or plan(f, x).mode
    with _differentiable():
        return torch.func.jacfwd(_guard(f, x))(x) if chosen == "forward" else _by_rows(_guard(f, x), x)


def _by_rows(f: Callable[[Any], Tensor], x: Tensors) -> Any:
    """All rows at once, or one by one where batching is wrong: torch's batched backward pass of cdist gives other numbers."""
    whole = torch.func.jacrev(f)(x)
    y, back = torch.func.vjp(f, x)[:2]
    u = torch.linspace(1, 2, y.numel(), dtype=y.dtype, device=y.device).view_as(y)
    pairs = zip(_flat(whole)[1], _flat(back(u)[0])[1], strict=True)
    right = all(bool(((torch.tensordot(u, rows, u.dim()) - row).abs() <= 1e-3 * row.norm()).all()) for rows, row in pairs)
    return whole if right else torch.func.jacrev(f, chunk_size=1)(x)


def hessian(f: Callable[..., Any], x: Tensors) -> Any:
    """All second derivatives: the Jacobian of the gradient.  It is square, and forward over reverse needs the least memory."""
    with _differentiable():
        return torch.func.jacfwd(torch.func.grad(_one_number(f, x)))(x)


def hvp(f: Callable[..., Any], x: Tensors, v: Tensors) -> Any:
    """H v without H, at a small multiple of the cost of a gradient.

    H is symmetric, so H v = v^T H: reverse mode through the gradient.  Forward mode through it gives the same numbers and
    was measured slower on dense, convolutional and attention layers alike.
    """
    _check_alike("direction v", v, x)
    with _differentiable():
        return torch.func.vjp(torch.func.grad(_one_number(f, x)), x)[1](v)[0]


def of_parameters(model: nn.Module, loss: Callable[[nn.Module], Tensor]) -> tuple[Callable[..., Tensor], dict[str, Tensor]]:
    """A loss as a function of the model's parameters, and their present values.

    Args:
        loss: gets the model, at these parameters: `lambda net: objective(net, batch).loss()`
    """
    now = {name: parameter.detach() for name, parameter in model.named_parameters()}
    buffers = {name: buffer.detach() for name, buffer in model.named_buffers()}
    wrapper = _ModelWithLoss(model, loss)

    def function(parameters: Mapping[str, Tensor]) -> Tensor:
        tensors = {**{name: buffer.clone() for name, buffer in buffers.items()}, **parameters}
        return torch.func.functional_call(wrapper, {f"model.{name}": tensor for name, tensor in tensors.items()})

    return function, now


@final
class _ModelWithLoss(nn.Module):
    """A model together with its loss, so that `functional_call` replaces the parameters for both."""

    def __init__(self, model: nn.Module, loss: Callable[[nn.Module], Tensor]) -> None:
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self) -> Tensor:
        return self.loss(self.model)


@contextmanager
def _differentiable() -> Iterator[None]:
    """Without fused attention, which has no second derivative and no forward mode."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    except (RuntimeError, NotImplementedError) as error:
        reason = " ".join(str(error).split())[:160]
        raise BadInput(f"torch cannot differentiate this function: {reason}", fix="use operations that have a derivative") from error


@contextmanager
def _own_statistics() -> Iterator[None]:
    """Norms in training mode use the statistics of the batch but do not update their running statistics."""
    from torch.nn.modules.batchnorm import _NormBase
    from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

    tensors: dict[nn.Module, tuple[Tensor | None, Tensor | None]] = {}

    def freeze_statistics(module: nn.Module, inputs: Any) -> None:
        if isinstance(module, _NormBase) and module.training and module.track_running_stats:
            tensors[module] = module.running_mean, module.running_var
            module.track_running_stats, module.running_mean, module.running_var = False, None, None

    def restore_statistics(module: nn.Module, inputs: Any, output: Any) -> None:
        if isinstance(module, _NormBase) and module in tensors:
            module.track_running_stats, (module.running_mean, module.running_var) = True, tensors.pop(module)

    hooks = [register_module_forward_pre_hook(freeze_statistics), register_module_forward_hook(restore_statistics, always_call=True)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


# Checks of arguments


def _flat(x: Tensors) -> tuple[tuple[str, ...], list[Tensor]]:
    return ((), [x]) if isinstance(x, Tensor) else (tuple(x), list(x.values()))


def _join(x: Tensors, names: tuple[str, ...], parts: tuple[Tensor, ...]) -> Any:
    return parts[0] if isinstance(x, Tensor) else dict(zip(names, parts, strict=True))


def _guard(f: Callable[..., Any], x: Tensors) -> Callable[[Any], Tensor]:
    """f with checks: x must be differentiable tensors, and errors of f become one-line messages."""
    if not isinstance(x, Tensor) and not (isinstance(x, Mapping) and x):
        raise BadInput(f"x is a {type(x).__name__}, not a tensor or named tensors", fix="pass torch tensors")
    for name, part in zip(*_names_and_values(x), strict=True):
        if not isinstance(part, Tensor):
            raise BadInput(f"{name} is a {type(part).__name__}, not a tensor", fix="pass torch tensors")
        if not part.is_floating_point():
            raise BadInput(f"{name} holds {str(part.dtype).removeprefix('torch.')}, which has no derivative", fix="pass x.double()")

    def evaluate(at: Any) -> Tensor:
        try:
            with _own_statistics():
                y = f(at)
        except BadInput:
            raise
        except Exception as error:
            reason = " ".join(str(error).split())[:160]
            raise BadInput(
                f"the function cannot be run on {_sizes(x)}: {reason}", fix="check the size of x, and that f changes no tensor in place"
            ) from error
        if not isinstance(y, Tensor) or not y.is_floating_point():
            kind = str(y.dtype).removeprefix("torch.") if isinstance(y, Tensor) else type(y).__name__
            raise BadInput(f"the function returns {kind}, not a tensor of floating-point numbers", fix="return one such tensor")
        return y

    return evaluate


def _one_number(f: Callable[..., Any], x: Tensors) -> Callable[[Any], Tensor]:
    """f as a function whose value is one number, without axes of size 1 around it."""
    checked_f = _guard(f, x)

    def single(at: Any) -> Tensor:
        y = checked_f(at)
        if y.numel() != 1:
            raise BadInput(f"the function returns {_sizes(y)}, not one number", fix="sum it, or ask for the jacobian")
        return y.reshape(())

    return single


def _check_alike(what: str, actual: Any, expected: Tensors) -> None:
    """The same names, sizes and kind of number."""
    if isinstance(expected, Mapping) != isinstance(actual, Mapping) or not isinstance(actual, (Tensor, Mapping)):
        raise BadInput(f"{what} is a {type(actual).__name__}", fix=f"give it the form of {_sizes(expected)}")
    if _sizes(actual) != _sizes(expected):
        raise BadInput(f"{what} has {_sizes(actual)}, not {_sizes(expected)}", fix="give both the same sizes")
    for one, other in zip(_flat(actual)[1], _flat(expected)[1], strict=True):
        if one.dtype != other.dtype:
            raise BadInput(f"{what} holds {one.dtype}, not {other.dtype}".replace("torch.", ""), fix="convert one of them")


def _names_and_values(x: Tensors) -> tuple[list[str], list[Any]]:
    return (["x"], [x]) if isinstance(x, Tensor) else ([f"'{name}'" for name in x], list(x.values()))


def _sizes(x: Tensors) -> str:
    if isinstance(x, Tensor):
        return f"size {tuple(x.shape)}"
    return "sizes " + ", ".join(f"{name} {tuple(part.shape)}" for name, part in x.items())


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"
