"""Recurrent cells through a whole sequence in one call: the vanilla RNN, the GRU and the LSTM in all their conventions.

    RNN         h' = tanh(p + W h)   or relu
    GRU         r, z = s(p + W h);   n = tanh(p + W_n (r h))   or, reset after, tanh(p + r (W_n h + b));   h' = z h + (1 - z) n
    LSTM        i, f, g, o = s, s, tanh, s(p + W h);   c' = f c + i g;   h' = o tanh(c')
      peephole  o = s(p + W h + w c')        cell only  o = s(b + W h + U c')

p [B, T, gates H] is what the inputs contribute, x W_x + b, one matrix product for all steps; weights are [gates H, H], the
gates in torch's order (r, z, n and i, f, g, o).  B batch, T time, H width of the state.
"""

from __future__ import annotations

import ctypes
from enum import IntEnum
from typing import Any

import torch
from torch import Tensor

from ..core.errors import BadInput
from .library import cast, function, is_unobserved, no_second_derivative, records

_FIELDS = ("p", "weight", "inner", "vector", "h", "c", "out", "last_h", "last_c", "gates", "cells")
_GRADIENT = ("dout", "dlast_h", "dlast_c", "dp", "dheld", "dh", "dc")
_Row = ctypes.c_int64 * (len(_FIELDS) + len(_GRADIENT) + 6)


class GateKind(IntEnum):
    """The cells, numbered as in the enum of gates.c."""

    RNN_TANH = 0
    RNN_RELU = 1
    GRU_BEFORE = 2
    GRU_AFTER = 3
    LSTM = 4
    LSTM_PEEPHOLE = 5
    LSTM_CELL = 6


def rnn(p: Tensor, weight: Tensor, h: Tensor, lengths: Tensor | None = None, *, relu: bool = False) -> tuple[Tensor, Tensor]:
    """p [B, T, H], weight [H, H], h [B, H] -> all states [B, T, H] and the last one; of each row the first `lengths` steps count."""
    out, last, _ = _run(GateKind.RNN_RELU if relu else GateKind.RNN_TANH, p, weight, None, None, h, None, lengths)
    return out, last


def gru(p: Tensor, weight: Tensor, bias: Tensor | None, h: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """p [B, T, 3 H], weight [3 H, H], h [B, H] -> all states [B, T, H] and the last one.

    With a bias [H], that of W_n h, the reset comes after the product; without one before.
    """
    out, last, _ = _run(GateKind.GRU_BEFORE if bias is None else GateKind.GRU_AFTER, p, weight, None, bias, h, None, lengths)
    return out, last


def lstm(  # noqa: PLR0913 - the terms of one formula
    p: Tensor,
    weight: Tensor,
    h: Tensor,
    c: Tensor,
    lengths: Tensor | None = None,
    *,
    vector: Tensor | None = None,
    inner: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """p [B, T, 4 H], weight [4 H, H], h, c [B, H] -> all outputs [B, T, H], the last of them and the last cell.

    With a vector [H] the output gate also sees vector * c'.  With `inner` [H, H] too it sees c' through that matrix and no
    input: then p is [B, T, 3 H] and the vector is the gate's bias.
    """
    kind = GateKind.LSTM if vector is None else GateKind.LSTM_PEEPHOLE if inner is None else GateKind.LSTM_CELL
    return _run(kind, p, weight, inner, vector, h, c, lengths)


def _run(  # noqa: PLR0913 - the terms of one formula
    kind: GateKind,
    p: Tensor,
    weight: Tensor,
    inner: Tensor | None,
    vector: Tensor | None,
    h: Tensor,
    c: Tensor | None,
    lengths: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    _check(kind, p, weight, h)
    inputs: Any = cast([p, weight, inner, vector, h, c])
    if not p.shape[1]:  # no step: the state is unchanged
        *_, h, c = inputs
        return p.new_empty(*h.shape[:1], 0, h.shape[1]), h, h if c is None else c
    keep = records(inputs) or torch._C._are_functorch_transforms_active()
    run: Any = _run_forward if is_unobserved(inputs) else _forward
    out, last_h, last_c, _, _ = run(int(kind), *inputs, lengths, keep)
    return out.to(p.dtype), last_h, last_c


def _check(kind: GateKind, p: Tensor, weight: Tensor, h: Tensor) -> None:
    """Check the sizes, by which the kernel reads memory."""
    H, gates = h.shape[-1], 1 if kind <= GateKind.RNN_RELU else 3 if kind <= GateKind.GRU_AFTER else 4
    input_gates = gates - (kind == GateKind.LSTM_CELL)
    if p.dim() != 3 or p.shape[0] != h.shape[0] or p.shape[2] != input_gates * H or weight.shape != (gates * H, H):
        raise BadInput(
            f"p is {tuple(p.shape)}, the weights {tuple(weight.shape)}, the state {tuple(h.shape)}",
            where=f"kernel {kind.name.lower()}",
            fix=f"give p (batch, time, {input_gates} H), weights ({gates} H, H) and a state (batch, H)",
        )


def _call(name: str, kind: int, lengths: Tensor | None, tensors: dict[str, Tensor | None]) -> None:
    """Runs a compiled function; every tensor in `tensors` stays alive until it returns, absent and empty ones are NULL."""
    p, h = tensors["p"], tensors["h"]
    assert p is not None and h is not None
    if p.numel():
        addresses = [0 if (x := tensors.get(field)) is None or not x.numel() else x.data_ptr() for field in _FIELDS + _GRADIENT]
        ends = None if lengths is None else lengths.to(torch.int64).contiguous()
        sizes = (kind, len(p), p.shape[1], h.shape[-1], torch.get_num_threads())
        function(name, p.dtype)(_Row(*addresses, 0 if ends is None else ends.data_ptr(), *sizes))


def _empty_outputs(kind: int, p: Tensor, h: Tensor, keep: bool) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """All h, the last h and c, and what backward needs: the gates and all c; empty where there are none."""
    (B, H), T, cells = h.shape, p.shape[1], int(kind >= GateKind.LSTM)
    gates = 0 if kind <= GateKind.RNN_RELU else 3 if kind <= GateKind.GRU_AFTER else 4
    new = p.new_empty
    return new(B, T, H), new(B, H), new(B, H * cells), new(B, T, H * gates * keep), new(B, T, H * cells * keep)


def _run_forward(  # noqa: PLR0913 - the terms of one formula
    kind: int,
    p: Tensor,
    weight: Tensor,
    inner: Tensor | None,
    vector: Tensor | None,
    h: Tensor,
    c: Tensor | None,
    lengths: Tensor | None,
    keep: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    inputs = [x if x is None else x.contiguous() for x in (p, weight, inner, vector, h, c)]
    outputs = _empty_outputs(kind, p, h, keep)
    _call("gates_forward", kind, lengths, dict(zip(_FIELDS, (*inputs, *outputs))))
    return outputs


_forward = torch.library.custom_op("sonde::gates", _run_forward, mutates_args=(), device_types="cpu")


@_forward.register_fake
def _(kind, p, weight, inner, vector, h, c, lengths, keep):  # noqa: PLR0913
    return _empty_outputs(kind, p, h, keep)


@torch.library.custom_op("sonde::gates_backward", mutates_args=(), device_types="cpu")
def _backward(  # noqa: PLR0913 - the inputs of the forward, what it kept, and three gradients
    kind: int,
    p: Tensor,
    weight: Tensor,
    inner: Tensor | None,
    vector: Tensor | None,
    h: Tensor,
    c: Tensor | None,
    lengths: Tensor | None,
    out: Tensor,
    gates: Tensor,
    cells: Tensor,
    dout: Tensor | None,
    dlast_h: Tensor | None,
    dlast_c: Tensor | None,
) -> list[Tensor]:
    """Gradients of p, weight, inner, vector (empty where absent), h and c."""
    B, T, H = out.shape
    (dp, dh, dc), dheld = (torch.empty_like(x) for x in (p, h, h if c is None else c)), p.new_empty(B, T, H * _has_constant(kind))
    inputs = [x if x is None else x.contiguous() for x in (p, weight, inner, vector, h, c, dout, dlast_h, dlast_c)]
    named = dict(zip((*_FIELDS[:6], *_GRADIENT), (*inputs, dp, dheld, dh, dc)))
    _call("gates_backward", kind, lengths, {**named, "out": out, "gates": gates, "cells": cells})
    # Sums over all steps are matrix products again.
    d, held, before = dp.flatten(0, 1), dheld.flatten(0, 1), torch.cat([h.unsqueeze(1), out[:, :-1]], 1).flatten(0, 1)
    if kind == GateKind.GRU_BEFORE:
        dweight = torch.cat([d[:, : 2 * H].mT @ before, d[:, 2 * H :].mT @ (gates[..., :H].flatten(0, 1) * before)])
    elif _has_constant(kind):
        dweight = torch.cat([d[:, : weight.shape[0] - H].mT @ before, held.mT @ before])
    else:
        dweight = d.mT @ before
    dinner = d.new_empty(0) if inner is None else held.mT @ cells.flatten(0, 1)
    dvector = (
        d.new_empty(0)
        if vector is None
        else held.sum(0)
        if _has_constant(kind)
        else torch.linalg.vecdot(dp[..., 3 * H :], cells, dim=1).sum(0)
    )
    return [dp, dweight, dinner, dvector, dh, dc if c is not None else dc.new_empty(0)]


def _has_constant(kind: int) -> bool:
    """Whether a gate has a bias of its own besides p."""
    return kind in (GateKind.GRU_AFTER, GateKind.LSTM_CELL)


@_backward.register_fake
def _(kind, p, weight, inner, vector, h, c, lengths, out, gates, cells, dout, dlast_h, dlast_c):  # noqa: PLR0913
    return [p.new_empty(0) if x is None else torch.empty_like(x) for x in (p, weight, inner, vector, h, c)]


def _keep(ctx: Any, inputs: tuple, output: tuple[Tensor, ...]) -> None:
    ctx.kind, *tensors, keep = inputs
    if not keep:
        raise BadInput("sonde::gates was called without 'keep' and has no gradients", fix="call sonde.kernels.gates.lstm, gru or rnn")
    ctx.set_materialize_grads(False)
    out, _, _, gates, cells = output
    ctx.mark_non_differentiable(gates, cells)
    ctx.save_for_backward(*tensors, out, gates, cells)


def _differentiate(ctx: Any, dout: Tensor, dlast_h: Tensor, dlast_c: Tensor, *_kept: Any) -> tuple:
    inputs = ctx.saved_tensors[:6]
    gradients = _backward(ctx.kind, *ctx.saved_tensors, dout, dlast_h, dlast_c)
    return None, *(d if x is not None else None for d, x in zip(gradients, inputs)), None, None


_forward.register_autograd(_differentiate, setup_context=_keep)
_backward.register_autograd(no_second_derivative("gates"))
