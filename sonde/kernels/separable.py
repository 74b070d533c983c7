"""The separable recurrence: a matrix state that decays per head, per key channel and per value channel.

    S_t[c,w] = exp(log_head_t + log_key_t[c] + log_value_t[w]) S_{t-1}[c,w] + k_t[c] v_t[w]
    out_t[w] = sum_c q_t[c] S_t[c,w]              (before=True reads S_{t-1} instead)

B batch, H heads, G key groups (head h uses q and k of group h // (H/G)), L length, K key width, V value width.
`separable` runs whole sequences with gradients; `SeparableStep` runs one step in place, for decoding.
"""

from __future__ import annotations

import ctypes
from typing import Any, final

import torch
from torch import Tensor

from ..core.errors import BadInput
from .library import View, cast, check, check_step, function, is_unobserved, no_second_derivative, records, rows, view

_SEQUENCE = ("q", "k", "v", "log_head", "log_key", "log_value", "state", "out", "final", "past")
_GRADIENT = ("dout", "dfinal", "dq", "dk", "dv", "dlog_head", "dlog_key", "dlog_value", "dstate")
_SIZES = ("rows", "heads", "share", "length", "key", "value", "before", "threads")
_LAYOUT = {"q": "BGLK", "k": "BGLK", "v": "BHLV", "log_head": "BHL", "log_key": "BHLK", "log_value": "BHLV", "state": "BHKV", "out": "BHLV"}


class _Arguments(ctypes.Structure):
    """The struct `arguments` of separable.c."""

    _fields_ = [(name, View) for name in _SEQUENCE + _GRADIENT] + [(name, ctypes.c_int64) for name in _SIZES]


_Row = ctypes.c_int64 * (ctypes.sizeof(_Arguments) // 8)


def separable(  # noqa: PLR0913 - the terms of one formula
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_head: Tensor | None = None,
    log_key: Tensor | None = None,
    log_value: Tensor | None = None,
    state: Tensor | None = None,
    before: bool = False,
) -> tuple[Tensor, Tensor]:
    """Runs the recurrence over a sequence: (out [B, H, L, V], final state [B, H, K, V]).

    q, k [B, G, L, K], v [B, H, L, V], log_head [B, H, L], log_key [B, H, L, K], log_value [B, H, L, V] and
    state [B, H, K, V]; log decays are at most 0, -inf forgets all.  Computes in float32 (float64 if any input is),
    which is also the dtype of the state; `out` has the dtype of v.  Any order of axes in memory is taken as it is.
    """
    tensors = {"q": q, "k": k, "v": v, "log_head": log_head, "log_key": log_key, "log_value": log_value, "state": state}
    check(tensors, _LAYOUT)
    inputs: Any = cast(tensors.values())
    # Inside vmap no input seems to require a gradient, though one may.
    wanted = records(inputs) or torch._C._are_functorch_transforms_active()
    run: Any = _run_forward if is_unobserved(inputs) else _forward
    out, last, _ = run(*inputs, before, log_value is not None and wanted)
    return out if out.dtype is v.dtype else out.to(v.dtype), last


def _call(name: str, tensors: dict[str, Tensor | None], before: bool) -> None:
    """Fills the struct and runs a compiled function; every tensor in `tensors` stays alive until it returns."""
    k, v = tensors["k"], tensors["v"]
    assert k is not None and v is not None
    (batch, groups, length, key), (heads, value) = k.shape, v.shape[1::2]
    if batch * heads:
        # The struct as an array of integers: a `ctypes.Structure` of views takes ten times as long to fill.
        numbers: list[int] = []
        for field in _SEQUENCE + _GRADIENT:
            x = tensors.get(field)
            numbers += (0, 0, 0, 0) if x is None else (x.data_ptr(), *x.stride()[:3])
        numbers += (batch, heads, heads // groups, length, key, value, int(before), torch.get_num_threads())
        function(name, v.dtype)(_Row(*numbers))


def _empty_outputs(k: Tensor, v: Tensor, keep: bool) -> tuple[Tensor, Tensor, Tensor]:
    """`out` in [B, L, H, V] memory order, so that merging heads is free; the state; and what backward needs."""
    B, H, L, V = v.shape
    return v.new_empty(B, L, H, V).transpose(1, 2), v.new_empty(B, H, k.shape[-1], V), v.new_empty(B, H, L, V if keep else 0)


def _run_forward(  # noqa: PLR0913 - the terms of one formula
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_head: Tensor | None,
    log_key: Tensor | None,
    log_value: Tensor | None,
    state: Tensor | None,
    before: bool,
    keep: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Also returns, with `keep`, the outputs before each step's own write, for the gradient of log_value."""
    inputs = dict(zip(_SEQUENCE, (rows(q), rows(k), rows(v), log_head, rows(log_key), rows(log_value), rows(state))))
    out, last, past = _empty_outputs(k, v, keep)
    if v.shape[2] == 1 and not keep:  # one token: on a copy of the state, without blocking
        last.zero_() if state is None else last.copy_(state)
        _call("separable_step", {**inputs, "state": last, "out": out}, before)
    else:
        _call("separable_forward", {**inputs, "out": out, "final": last, "past": past if keep else None}, before)
    return out, last, past


_forward = torch.library.custom_op("sonde::separable", _run_forward, mutates_args=(), device_types="cpu")


@_forward.register_fake
def _(q, k, v, log_head, log_key, log_value, state, before, keep):  # noqa: PLR0913
    return _empty_outputs(k, v, keep)


def _empty_gradients(k: Tensor, v: Tensor, gates: list[bool]) -> list[Tensor]:
    """Gradients of q, k (per head), v, the three gates (empty where absent) and the state."""
    B, H, L, V = v.shape
    K = k.shape[-1]
    widths = [K, K, V, *(width if there else 0 for width, there in zip((1, K, V), gates))]
    return [*(v.new_empty(B, L, H, width).transpose(1, 2) for width in widths), v.new_empty(B, H, K, V)]


@torch.library.custom_op("sonde::separable_backward", mutates_args=(), device_types="cpu")
def _backward(  # noqa: PLR0913 - the terms of one formula
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_head: Tensor | None,
    log_key: Tensor | None,
    log_value: Tensor | None,
    state: Tensor | None,
    before: bool,
    past: Tensor,
    dout: Tensor,
    dfinal: Tensor,
) -> list[Tensor]:
    inputs = (rows(q), rows(k), rows(v), log_head, rows(log_key), rows(log_value), rows(state))
    gates = [log_head is not None, log_key is not None, log_value is not None]
    gradients = _empty_gradients(k, v, gates)
    results = [x if x.shape[-1] else None for x in gradients]
    tensors = dict(zip((*_SEQUENCE[:7], "past", *_GRADIENT), (*inputs, past, rows(dout), rows(dfinal), *results)))
    _call("separable_backward", tensors, before)
    return gradients


@_backward.register_fake
def _(q, k, v, log_head, log_key, log_value, state, before, past, dout, dfinal):  # noqa: PLR0913
    return _empty_gradients(k, v, [log_head is not None, log_key is not None, log_value is not None])


def _save(ctx: Any, inputs: tuple, output: tuple[Tensor, Tensor, Tensor]) -> None:
    *tensors, ctx.before, _keep = inputs
    ctx.save_for_backward(*tensors, output[2])
    ctx.mark_non_differentiable(output[2])


def _differentiate(ctx: Any, dout: Tensor, dfinal: Tensor, _dpast: Any) -> tuple:
    *inputs, past = ctx.saved_tensors
    q, _k, v, log_head, log_key, log_value, state = inputs
    if log_value is not None and past.numel() < v.numel():
        raise BadInput("the separable kernel was run without gradients", fix="run it with gradients turned on")
    dq, dk, dv, dhead, dkey, dvalue, dstate = _backward(*inputs, ctx.before, past, dout, dfinal)
    if q.shape[1] != dq.shape[1]:
        dq, dk = (x.unflatten(1, (q.shape[1], -1)).sum(2) for x in (dq, dk))
    gates = (
        dhead.squeeze(-1) if log_head is not None else None,
        *(x if g is not None else None for x, g in ((dkey, log_key), (dvalue, log_value))),
    )
    return dq, dk, dv, *gates, dstate if state is not None else None, None, None


_forward.register_autograd(_differentiate, setup_context=_save)
_backward.register_autograd(no_second_derivative("separable"))


_STEP = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)


@final
class SeparableStep:
    """One step of the recurrence on fixed buffers: fill the inputs, call, read `out`; the state is updated in place.

    q, k [B, G, K], v [B, H, V], log_head [B, H], log_key [B, H, K], log_value [B, H, V], state [B, H, K, V] and
    out [B, H, V], all float32 or all float64 with the last axis contiguous.  A call costs microseconds.
    """

    def __init__(  # noqa: PLR0913 - the terms of one formula
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        state: Tensor,
        out: Tensor,
        log_head: Tensor | None = None,
        log_key: Tensor | None = None,
        log_value: Tensor | None = None,
        before: bool = False,
    ) -> None:
        buffers = {"q": q, "k": k, "v": v, "log_head": log_head, "log_key": log_key, "log_value": log_value, "state": state, "out": out}
        check_step(buffers, _LAYOUT)
        held = {name: x if x is None or name == "state" else x.unsqueeze(2) for name, x in buffers.items()}
        views = {name: view(x, width=x is None or x.ndim == 4) for name, x in held.items()}
        (batch, groups, key), (heads, value) = k.shape, v.shape[1:]
        sizes = dict(zip(_SIZES, (batch, heads, heads // max(groups, 1), 1, key, value, int(before), torch.get_num_threads())))
        self._held = (held, arguments := _Arguments(**views, **sizes))
        self._address = ctypes.addressof(arguments)
        # A step takes no memory, so it cannot fail: called by its address, without the check of the result that costs 0.3 us.
        compiled: Any = function("separable_step", v.dtype)
        self._run = _STEP(ctypes.cast(compiled, ctypes.c_void_p).value or 0)

    def __call__(self) -> None:
        """Update the state in place and write the output into `out`."""
        self._run(self._address)
