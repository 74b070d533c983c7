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

from .library import View, call, cast, check, check_step, function, no_second_derivative, rows, view

SPAN = 16
"""Steps between two saved states.  Their decays and states just fit the first two levels of cache."""
SAVED_BYTES = 24 << 20
"""Limit of saved states before the span grows: larger temporaries are returned to the system on every call."""
STEP_WORK = 1 << 16
"""State entries per thread below which a decode step uses fewer threads."""

SERIES, MATRIX = {"q": "BHLK", "k": "BHLK", "v": "BHLV", "log_value": "BHLV"}, {"rate": "HKV", "weight": "HKV", "state": "BHKV"}
LAYOUT = SERIES | MATRIX | {"out": "BHLV"}
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
    tensors = {"q": q, "k": k, "v": v, "log_value": log_value, "rate": rate, "weight": weight, "state": state}
    check(tensors, LAYOUT)
    out, last, _ = call(_run, _forward, cast(tensors.values()))
    return out.to(v.dtype), last


@final
class HadamardStep:
    """One step in place on fixed buffers: q, k [B, H, K], v, log_value, out [B, H, V], rate, weight [H, K, V], state [B, H, K, V]."""

    def __init__(  # noqa: PLR0913 - the arrays of the formula and the output buffer
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
        tensors = {"q": q, "k": k, "v": v, "log_value": log_value, "rate": rate, "weight": weight, "state": state, "out": out}
        check_step(tensors, LAYOUT)
        self._held = tensors, arguments = tensors, _step_arguments(tensors)
        self._run, self._address = function("hadamard_step", v.dtype), ctypes.addressof(arguments)

    def __call__(self) -> None:
        self._run(self._address)


def _span(v: Tensor, rate: Tensor) -> int:
    """Steps between saved states."""
    length, state_bytes = v.shape[2], v.shape[0] * rate.numel() * v.element_size()
    span = max(1, min(SPAN, length))
    while span < length and -(-length // span) * state_bytes > SAVED_BYTES:
        span *= 2
    return span


def _call(name: str, span: int, tensors: dict[str, Tensor | None], saved: Tensor | None) -> None:
    """Runs the compiled function on tensors whose last axis is contiguous; the others may have any stride."""
    held = {key: rows(x) for key, x in tensors.items()}
    v, rate = held["v"], held["rate"]
    assert v is not None and rate is not None
    batch, heads, length, values = v.shape
    arguments = _Arguments(
        **{key: view(x) for key, x in held.items()},
        saved=None if saved is None else saved.data_ptr(),
        rows=batch,
        heads=heads,
        length=length,
        keys=rate.shape[1],
        values=values,
        every=span,
        threads=torch.get_num_threads(),
    )
    function(name, v.dtype)(ctypes.byref(arguments))


def _step_arguments(tensors: dict[str, Tensor | None]) -> _Arguments:
    """The struct of one step in place on `state`.  The caller keeps the tensors alive."""
    state = tensors["state"]
    assert state is not None
    batch, heads, keys, values = state.shape
    sizes = dict(rows=batch, heads=heads, length=1, keys=keys, values=values, every=1)
    threads = min(torch.get_num_threads(), max(1, state.numel() // STEP_WORK))
    return _Arguments(**{name: view(x) for name, x in tensors.items()}, **sizes, threads=threads)


def _outputs(v: Tensor, rate: Tensor, save: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Empty outputs, final state and saved states.  Outputs have the memory order [B, L, H, V], so that merging heads is free."""
    batch, heads, length, values = v.shape
    keys = rate.shape[1]
    spans = -(-length // _span(v, rate))
    return (
        v.new_empty(batch, length, heads, values).transpose(1, 2),
        v.new_empty(batch, heads, keys, values),
        v.new_empty((batch * heads, spans, keys, values) if save else (0,)),
    )


def _run(
    q: Tensor | None,
    k: Tensor | None,
    v: Tensor,
    log_value: Tensor,
    rate: Tensor,
    weight: Tensor | None,
    state: Tensor | None,
    save: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Outputs, final state and, if `save`, the states from which backward starts."""
    out, last, saved = _outputs(v, rate, save)
    inputs = dict(zip(INPUTS, (q, k, v, log_value, rate, weight, state)))
    if v.shape[2] == 1 and not save:
        last.zero_() if state is None else last.copy_(state)
        held = {name: rows(x) for name, x in (inputs | {"state": last, "out": out}).items()}
        function("hadamard_step", v.dtype)(ctypes.byref(_step_arguments(held)))
        return out, last, saved
    _call("hadamard_forward", _span(v, rate), inputs | {"out": out, "last": last}, saved if save else None)
    return out, last, saved


_forward = torch.library.custom_op("sonde::hadamard", _run, mutates_args=(), device_types="cpu")


@_forward.register_fake
def _(q, k, v, log_value, rate, weight, state, save):
    return _outputs(v, rate, save)


def _gradients(inputs: dict[str, Tensor | None]) -> list[Tensor]:
    """Empty gradients of the inputs in order; that of an absent input has size 0, that of an absent state its full size.

    Zeros for `rate` and `weight`, because an empty batch does not write them."""
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


_forward.register_autograd(_derivative, setup_context=_setup)
_backward.register_autograd(no_second_derivative("hadamard"))
