"""The recurrence with a decay of its own for every state entry (Mamba, S4), as one fused kernel.

    S_t[c,w] = exp(log_value_t[w] rate[c,w]) S_{t-1}[c,w] + k_t[c] v_t[w]
    out_t[w] = sum_c q_t[c] weight[c,w] S_t[c,w]

Shapes: B batch, H heads, L length, K key width (the states of a channel), V value width (the channels).
"""

from __future__ import annotations

import ctypes
from typing import Any, final

import torch
from torch import Tensor

from ..core.errors import BadInput
from ._library import SUFFIX, View, function, view

SPAN = 16
"""Steps between two saved states.  Their decays and states just fit the first two levels of cache."""
SAVED_BYTES = 24 << 20
"""Saved states may take this much before the span grows: larger temporaries go back to the system on every call."""

INPUTS = ("q", "k", "v", "log_value", "rate", "weight", "state")
GRADIENTS = ("dq", "dk", "dv", "d_log_value", "d_rate", "d_weight", "d_state")
SIZES = ("rows", "heads", "length", "keys", "values", "every", "threads")


class _Arguments(ctypes.Structure):
    """Mirrors `arguments` of hadamard.c."""

    _fields_ = [
        *((name, View) for name in (*INPUTS, "out", "last")),
        ("saved", ctypes.c_void_p),
        *((name, View) for name in ("d_out", "d_last", *GRADIENTS)),
        *((name, ctypes.c_int64) for name in SIZES),
    ]


def hadamard(  # noqa: PLR0913 - the seven arrays of the formula
    q: Tensor | None,
    k: Tensor | None,
    v: Tensor,
    log_value: Tensor,
    rate: Tensor,
    weight: Tensor | None = None,
    state: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Outputs [B, H, L, V] and final state [B, H, K, V] from q, k [B, H, L, K], v, log_value [B, H, L, V], rate, weight [H, K, V].

    A `q`, `k` or `weight` of None is all ones, a `state` of None is zero.  A `log_value` that is constant in time should
    come as an expanded view: its decays are then computed once.  Half precision is computed in float32.
    """
    given = {"q": q, "k": k, "v": v, "log_value": log_value, "rate": rate, "weight": weight, "state": state}
    _check_shapes(given, steps=True)
    kind = _kind(given)
    cast = [None if x is None else x.to(kind) for x in given.values()]
    save = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in cast)
    out, last, _ = _forward(*cast, save)
    return out.to(v.dtype), last


@final
class HadamardStep:
    """One step in place on held buffers: q, k [B, H, K], v, log_value, out [B, H, V], rate, weight [H, K, V], state [B, H, K, V]."""

    def __init__(  # noqa: PLR0913 - the arrays of the formula and the place of the result
        self,
        q: Tensor | None,
        k: Tensor | None,
        v: Tensor,
        log_value: Tensor,
        rate: Tensor,
        weight: Tensor | None,
        state: Tensor,
        out: Tensor,
    ) -> None:
        given = {"q": q, "k": k, "v": v, "log_value": log_value, "rate": rate, "weight": weight, "state": state, "out": out}
        _check_shapes(given, steps=False)
        self._held = {name: x for name, x in given.items() if x is not None}
        for name, x in self._held.items():
            if x.dtype != v.dtype or x.dtype not in SUFFIX:
                raise BadInput(f"{name} is {x.dtype}", where="HadamardStep", fix="make all buffers float32, or all float64")
            if x.stride(-1) != 1:
                raise BadInput(f"{name} is not contiguous along its last axis", where="HadamardStep", fix="pass a contiguous buffer")
        rows, heads, keys, values = state.shape
        views = {name: view(x) for name, x in self._held.items()}
        self._arguments = _Arguments(
            **views, last=views["state"], rows=rows, heads=heads, length=1, keys=keys, values=values, every=1, threads=1
        )
        self._run, self._pointer = function("hadamard_forward", v.dtype), ctypes.addressof(self._arguments)

    def __call__(self) -> None:
        self._run(self._pointer)


def _check_shapes(given: dict[str, Tensor | None], *, steps: bool) -> None:
    """Every given array has the sizes that `v` and `rate` set."""
    v, rate = given["v"], given["rate"]
    assert v is not None and rate is not None
    wanted = "B, H, L, V" if steps else "B, H, V"
    if v.ndim != 3 + steps:
        raise BadInput(f"v has {v.ndim} axes", where="kernel hadamard", fix=f"pass [{wanted}]")
    if rate.ndim != 3:
        raise BadInput(f"rate has {rate.ndim} axes", where="kernel hadamard", fix="pass [H, K, V]")
    rows, heads, values, keys = v.shape[0], v.shape[1], v.shape[-1], rate.shape[1]
    lead = {"batch": rows, "heads": heads} | ({"length": v.shape[2]} if steps else {})
    key_row, value_row = lead | {"key width": keys}, lead | {"value width": values}
    matrix = {"heads": heads, "key width": keys, "value width": values}
    shapes = {"q": key_row, "k": key_row, "rate": matrix, "weight": matrix, "state": {"batch": rows} | matrix}
    for name, x in given.items():
        if x is None:
            continue
        shape = shapes.get(name, value_row)
        if x.ndim != len(shape):
            raise BadInput(f"{name} has {x.ndim} axes", where="kernel hadamard", fix=f"pass [{', '.join(shape)}]")
        for axis, (size, (meaning, right)) in enumerate(zip(x.shape, shape.items())):
            if size != right:
                raise BadInput(
                    f"{name} has size {size} on axis {axis} ({meaning})", where="kernel hadamard", fix=f"v and rate ask for {right}"
                )
        if not x.is_floating_point():
            raise BadInput(f"{name} is {x.dtype}", where="kernel hadamard", fix="pass a real floating point tensor")
        if x.device.type != "cpu":
            raise BadInput(f"{name} is on {x.device}", where="kernel hadamard", fix="this kernel runs on the CPU: move it there")


def _kind(given: dict[str, Tensor | None]) -> torch.dtype:
    """The dtype to compute in: float64 when any array is, else float32."""
    return torch.float64 if any(x is not None and x.dtype == torch.float64 for x in given.values()) else torch.float32


def _span(v: Tensor, rate: Tensor) -> int:
    """Steps between saved states, and so of one piece of work."""
    length, state_bytes = v.shape[2], v.shape[0] * rate.numel() * v.element_size()
    span = SPAN
    while span < length and -(-length // span) * state_bytes > SAVED_BYTES:
        span *= 2
    return span


def _call(name: str, span: int, tensors: dict[str, Tensor | None], saved: Tensor | None) -> None:
    """Runs the compiled function on tensors whose last axis is contiguous; the others may have any stride."""
    held = {key: x if x is None or x.stride(-1) == 1 else x.contiguous() for key, x in tensors.items()}
    v, rate = held["v"], held["rate"]
    assert v is not None and rate is not None
    rows, heads, length, values = v.shape
    arguments = _Arguments(
        **{key: view(x) for key, x in held.items()},
        saved=None if saved is None else saved.data_ptr(),
        rows=rows,
        heads=heads,
        length=length,
        keys=rate.shape[1],
        values=values,
        every=span,
        threads=torch.get_num_threads(),
    )
    function(name, v.dtype)(ctypes.byref(arguments))


def _outputs(v: Tensor, rate: Tensor, save: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Empty outputs, final state and saved states.  Outputs lie in the order [B, L, H, V]: merging heads is then free."""
    rows, heads, length, values = v.shape
    keys = rate.shape[1]
    spans = -(-length // _span(v, rate))
    return (
        v.new_empty(rows, length, heads, values).transpose(1, 2),
        v.new_empty(rows, heads, keys, values),
        v.new_empty((rows * heads, spans, keys, values) if save else (0,)),
    )


@torch.library.custom_op("sonde::hadamard", mutates_args=(), device_types="cpu")
def _forward(
    q: Tensor | None,
    k: Tensor | None,
    v: Tensor,
    log_value: Tensor,
    rate: Tensor,
    weight: Tensor | None,
    state: Tensor | None,
    save: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    out, last, saved = _outputs(v, rate, save)
    inputs = dict(zip(INPUTS, (q, k, v, log_value, rate, weight, state)))
    _call("hadamard_forward", _span(v, rate), inputs | {"out": out, "last": last}, saved if save else None)
    return out, last, saved


@_forward.register_fake
def _(q, k, v, log_value, rate, weight, state, save):
    return _outputs(v, rate, save)


def _gradients(inputs: dict[str, Tensor | None]) -> list[Tensor]:
    """Room for the gradients of the inputs in order; an absent input has one of no size, and an absent state its real one.

    Zeros, for a batch of no rows leaves those of `rate` and `weight` as they are."""
    v, rate = inputs["v"], inputs["rate"]
    assert v is not None and rate is not None
    shape = (*v.shape[:2], *rate.shape[1:])
    return [
        (v.new_zeros if name in ("rate", "weight") else v.new_empty)(shape if name == "state" else (0,) if x is None else x.shape)
        for name, x in inputs.items()
    ]


@torch.library.custom_op("sonde::hadamard_backward", mutates_args=(), device_types="cpu")
def _backward(  # noqa: PLR0913 - the arrays of the formula
    q: Tensor | None,
    k: Tensor | None,
    v: Tensor,
    log_value: Tensor,
    rate: Tensor,
    weight: Tensor | None,
    saved: Tensor,
    d_out: Tensor,
    d_last: Tensor | None,
) -> list[Tensor]:
    inputs = dict(zip(INPUTS, (q, k, v, log_value, rate, weight, None)))
    gradients = _gradients(inputs)
    wanted = {name: x if x.numel() or x.ndim > 1 else None for name, x in zip(GRADIENTS, gradients)}
    tensors = inputs | wanted | {"d_out": d_out, "d_last": d_last}
    _call("hadamard_backward", _span(v, rate), tensors, saved)
    return gradients


@_backward.register_fake
def _(q, k, v, log_value, rate, weight, saved, d_out, d_last):  # noqa: PLR0913
    return _gradients(dict(zip(INPUTS, (q, k, v, log_value, rate, weight, None))))


def _setup(ctx: Any, inputs: tuple, output: tuple) -> None:
    *tensors, state, _ = inputs
    ctx.set_materialize_grads(False)
    ctx.stateless = state is None
    ctx.save_for_backward(*tensors, output[2])


def _derivative(ctx: Any, d_out: Tensor | None, d_last: Tensor | None, _: Tensor | None) -> tuple:
    *tensors, saved = ctx.saved_tensors
    v = tensors[2]
    gradients = _backward(*tensors, saved, torch.zeros_like(v) if d_out is None else d_out, d_last)
    absent = [x is None for x in tensors] + [ctx.stateless]
    return *(None if skip else x for skip, x in zip(absent, gradients)), None


def _no_second_derivative(ctx: Any, *gradients: Any) -> tuple:
    raise BadInput("the hadamard kernel has no second derivative", fix="use a torch form, such as form='scan'")


_forward.register_autograd(_derivative, setup_context=_setup)
_backward.register_autograd(_no_second_derivative)
