"""The delta rule with a scalar decay as a torch op, and its decode step.

    S' = exp(log_head) S;   u = beta (v - S'^T k);   S = S' + k (x) u;   out = S^T q

B batch, H heads, G key groups (head h reads group h // (H / G)), L length, K key width, V value width.
A decay per key channel (Kimi delta attention) is not supported here: the decay is one number per head and step.
"""

from __future__ import annotations

import ctypes
from typing import final

import torch
from torch import Tensor

from ..core.errors import BadInput
from .library import View, call, cast, check, check_step, function, no_second_derivative, rows, view

_LAYOUT = {"q": "BGLK", "k": "BGLK", "v": "BHLV", "beta": "BHL", "log_head": "BHL", "state": "BHKV", "out": "BHLV"}
_SEQUENCE = ("q", "k", "v", "beta", "gate", "state", "out", "final", "residual", "states")
_GRADIENT = ("dout", "dfinal", "dq", "dk", "dv", "dbeta", "dgate", "dstate")
_BLOCKS = ("dq_block", "dk_block", "dgate_block")
_SIZES = ("rows", "heads", "groups", "length", "key_width", "value_width", "interval", "blocks", "threads")
_STATES_BYTES = 2**24  # all saved states together; the torch allocator reuses blocks below 32 MiB
_STEP_WORK = 2**18  # state entries below which a decode step is faster on one thread


class _Arguments(ctypes.Structure):
    """Mirror of `arguments` in delta.c."""

    _fields_ = [(name, View) for name in _SEQUENCE + _GRADIENT] + [(name, ctypes.c_int64) for name in _BLOCKS + _SIZES]


def delta(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, log_head: Tensor | None = None, state: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The outputs [B, H, L, V] and the final state [B, H, K, V] of the delta rule, by the fused kernel.

    q, k: [B, G, L, K]; v: [B, H, L, V]; beta, log_head: [B, H, L]; state: [B, H, K, V].  Computes in
    float32 (float64 if any input is), which is also the dtype of the state; `out` has the dtype of v.
    """
    tensors = {"q": q, "k": k, "v": v, "beta": beta, "log_head": log_head, "state": state}
    check(tensors, _LAYOUT)
    out, last, _, _ = call(_run, _delta, cast(tensors.values()))
    return out.to(v.dtype), last


def _new(like: Tensor, heads: int, width: int, blocks: int = 1) -> Tensor:
    """An empty [blocks, B, heads, L, width] in [blocks, B, L, heads, width] memory order, so merging heads is free."""
    batch, _, length, _ = like.shape
    return like.new_empty(blocks, batch, length, heads, width).transpose(2, 3)


def _interval(v: Tensor, k: Tensor) -> int:
    """Steps between saved states: as few as keep all of them small, a multiple of every build's chunk."""
    states_bytes = v.numel() * k.shape[-1] * v.element_size()  # of a state at every step
    return 128 * max(1, -(-states_bytes // (128 * _STATES_BYTES)))


def _arguments(tensors: dict[str, Tensor | None], blocks: int, interval: int = 1, **strides: int) -> _Arguments:
    """The filled struct.  The caller keeps the tensors alive."""
    q, v = tensors["q"], tensors["v"]
    assert q is not None and v is not None
    flat = ("beta", "gate", "dbeta", "dgate")
    views = {name: view(x, width=name not in flat) for name, x in tensors.items()}
    batch, heads, length, value_width = v.shape
    return _Arguments(
        **views, **strides, rows=batch, heads=heads, groups=q.shape[1], length=length, key_width=q.shape[-1], value_width=value_width,
        interval=interval, blocks=blocks, threads=torch.get_num_threads(),
    )  # fmt: skip


def _step_arguments(tensors: dict[str, Tensor | None]) -> _Arguments:
    """The struct of one step in place on `state`."""
    arguments, state = _arguments(tensors, 1), tensors["state"]
    assert state is not None
    arguments.threads = min(arguments.threads, max(1, state.numel() // _STEP_WORK))
    return arguments


def _blocks(v: Tensor, tasks: int) -> int:
    """Into how many blocks of value channels, at least 32 wide, each head is cut to make this many tasks."""
    return max(1, min(v.shape[-1] // 32, -(-tasks // max(1, v.shape[0] * v.shape[1]))))


def _run(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, log_head: Tensor | None, state: Tensor | None, save: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Out, final state and, if `save`, what backward needs: the residuals v - S'^T k and a state every interval."""
    results = _results(q, k, v, beta, log_head, state, save)
    out, last, residual, states = results
    tensors = dict(q=rows(q), k=rows(k), v=rows(v), beta=beta, gate=log_head, state=rows(state))
    tensors |= dict(out=out, final=last, residual=residual if save else None, states=states if save else None)
    if v.shape[2] == 1 and not save:
        last.zero_() if state is None else last.copy_(state)
        function("delta_step", v.dtype)(ctypes.byref(_step_arguments(tensors | {"state": last})))
        return results
    # Value channels do not depend on each other here: any number of blocks gives the same bits.
    arguments = _arguments(tensors, _blocks(v, 2 * torch.get_num_threads()), _interval(v, k))
    function("delta_forward", v.dtype)(ctypes.byref(arguments))
    return results


_delta = torch.library.custom_op("sonde::delta", _run, mutates_args=(), device_types="cpu")


@_delta.register_fake
def _results(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, log_head: Tensor | None, state: Tensor | None, save: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    batch, heads, length, width = v.shape
    out, last = _new(v, heads, width)[0], v.new_empty(batch, heads, k.shape[-1], width)
    if not save:
        return out, last, v.new_empty(0), v.new_empty(0)
    saved = -(-length // _interval(v, k))
    return out, last, _new(v, heads, width)[0], v.new_empty(batch, heads, saved, k.shape[-1] * width)


@torch.library.custom_op("sonde::delta_backward", mutates_args=(), device_types="cpu")
def _delta_backward(  # noqa: PLR0913 - the inputs of the forward, what it saved, and two gradients
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, log_head: Tensor | None,
    residual: Tensor, states: Tensor, dout: Tensor | None, dlast: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of q, k, v, beta, log_head (empty without one) and state."""
    dq, dk, dv, dbeta, dgate, dstate = buffers = _gradient_buffers(q, v)
    tensors: dict[str, Tensor | None] = dict(q=rows(q), k=rows(k), v=v, beta=beta, gate=log_head, residual=residual, states=states)
    tensors |= dict(dout=rows(dout), dfinal=rows(dlast))
    tensors |= dict(dq=dq[0], dk=dk[0], dv=dv, dbeta=dbeta[0], dgate=None if log_head is None else dgate[0], dstate=dstate)
    strides = dict(dq_block=dq.stride(0), dk_block=dk.stride(0), dgate_block=dgate.stride(0))
    arguments = _arguments(tensors, len(dq), _interval(v, k), **strides)
    function("delta_backward", v.dtype)(ctypes.byref(arguments))
    return _gradients(buffers, q.shape[1], log_head is not None)


@_delta_backward.register_fake
def _(q, k, v, beta, log_head, residual, states, dout, dlast):  # noqa: PLR0913 - the op's own signature
    return _gradients(_gradient_buffers(q, v), q.shape[1], log_head is not None)


def _gradient_buffers(q: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    """Empty dq, dk, dv, dbeta, dgate, dstate; all but dv and dstate once per block of value channels, dq and dk per head."""
    batch, heads, length, width = v.shape
    blocks = _blocks(v, 8)  # by the sizes alone: sums over blocks must not depend on the number of threads
    dq, dk = (_new(v, heads, q.shape[-1], blocks) for _ in range(2))
    dbeta, dgate = (v.new_empty(blocks, batch, heads, length) for _ in range(2))
    return dq, dk, _new(v, heads, width)[0], dbeta, dgate, v.new_empty(batch, heads, q.shape[-1], width)


def _gradients(buffers: tuple[Tensor, ...], groups: int, gated: bool) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The gradients, summed over blocks of value channels and over the heads of a key group."""
    dq, dk, dv, dbeta, dgate, dstate = buffers
    if groups != dq.shape[2]:
        dq, dk = (x.unflatten(2, (groups, -1)).sum(3) for x in (dq, dk))
    dq, dk, dbeta, dgate = (x[0] if len(x) == 1 else x.sum(0) for x in (dq, dk, dbeta, dgate))
    return dq, dk, dv, dbeta, dgate if gated else dgate.new_empty(0), dstate


def _keep(ctx, inputs, output) -> None:
    q, k, v, beta, log_head, state, save = inputs
    if not save:
        raise BadInput("sonde::delta was called without 'save' and has no gradients", fix="call sonde.kernels.delta.delta")
    ctx.set_materialize_grads(False)
    ctx.has_state = state is not None
    ctx.save_for_backward(q, k, v, beta, log_head, *output[2:])


def _backward(ctx, dout, dlast, _dresidual, _dstates):
    dq, dk, dv, dbeta, dgate, dstate = _delta_backward(*ctx.saved_tensors, dout, dlast)
    gated = ctx.saved_tensors[4] is not None
    return dq, dk, dv, dbeta, dgate if gated else None, dstate if ctx.has_state else None, None


_delta.register_autograd(_backward, setup_context=_keep)
_delta_backward.register_autograd(no_second_derivative("delta"))


@final
class DeltaStep:
    """One decode step on buffers it holds: reads q, k, v, beta and log_head, changes `state` and `out` in place.

    q, k: [B, G, K]; v, out: [B, H, V]; beta, log_head: [B, H]; state: [B, H, K, V]; all float32 or all float64, last
    axes contiguous.  Fill the buffers, then call: the struct the kernel reads is made once.
    """

    def __init__(  # noqa: PLR0913 - the tensors of the formula
        self, q: Tensor, k: Tensor, v: Tensor, beta: Tensor, state: Tensor, out: Tensor, log_head: Tensor | None = None
    ) -> None:
        self.buffers = dict(q=q, k=k, v=v, beta=beta, log_head=log_head, state=state, out=out)
        check_step(self.buffers, _LAYOUT)
        with_time = {name: x if x is None or name == "state" else x.unsqueeze(2) for name, x in self.buffers.items()}
        with_time["gate"] = with_time.pop("log_head")
        self._arguments = _step_arguments(with_time)
        self._address = ctypes.addressof(self._arguments)
        self._run = function("delta_step", state.dtype)

    def __call__(self) -> None:
        self._run(self._address)
