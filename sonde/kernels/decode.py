"""One token of each sequence through a whole model in one call: a program of operations on vectors.

Decoding is bound by memory bandwidth: it reads every weight once for each token.  So the threads stay together for the whole
token, and weights are not copied.  With `weights='int8'` they are quantized in groups of 64 inputs of a row, and a quarter of
the memory is read.

    program = Program(rows=1, dtype=torch.float32)
    x, hidden = program.add_shared("x", 12), program.add_shared("hidden", 48)
    program.linear(x, hidden, up.weight, activation="gelu")
    program.linear(hidden, x, down.weight, add=x)
    program.tensor("x", 12).copy_(values)
    program.run(seen)

Nothing here has gradients.  Vectors have names; two with the same name and size are the same.
"""

from __future__ import annotations

import ctypes
from typing import Any, Literal, final

import torch
from torch import Tensor

from ..core.errors import BadInput
from .library import View, function

ROWS = 8
"""maximum number of sequences"""
GROUP = 64
"""inputs per quantization group"""
ACTIVATIONS = ("identity", "silu", "gelu", "gelu_tanh", "relu")
Weights = Literal["int8"]


class Vectors(ctypes.Structure):
    """A vector for each sequence: one that all threads share, or (`own` is not 0) one for each thread."""

    _fields_ = [("data", ctypes.c_void_p), ("row", ctypes.c_int64), ("own", ctypes.c_int64)]


class ProgramOperation(ctypes.Structure):
    """As `operation` of decode.c, where each function says which fields it reads."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("kind", "wait")),
        *((name, Vectors) for name in ("x", "y", "z", "m")),
        *((name, ctypes.c_void_p) for name in ("weight", "scales", "a", "b", "c")),
        *((name, View) for name in ("past", "past2", "next")),
        ("used", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("in", "out", "heads", "groups", "flag", "room")),
        *((name, ctypes.c_double) for name in ("scale", "low", "high")),
    ]


class _Arguments(ctypes.Structure):
    _fields_ = [
        ("operations", ctypes.c_void_p),
        ("seen", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("count", "rows", "threads")),
    ]


KINDS = ("linear", "norm", "angles", "attend", "convolve", "recur")
_RUN = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)


def quantize(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Quantize a matrix [out, in] to int8 [out, groups * 64] and scales [out, groups]; the largest value of a group becomes 127."""
    short = -weight.shape[1] % GROUP
    groups = torch.nn.functional.pad(weight.detach(), (0, short)).unflatten(1, (-1, GROUP))
    scales = groups.abs().amax(-1) / 127
    counts = (groups / scales.unsqueeze(-1)).nan_to_num_(0.0).round_()  # a group of zeros has scale 0
    return counts.to(torch.int8).flatten(1), scales.contiguous()


@final
class Program:
    """Operations in the order in which they were added; `run` executes them all for the next token of each sequence.

    Args:
        rows: sequences
        dtype: of the vectors and weights
        weights: 'int8' quantizes matrices; None uses them without a copy
        share: quantized matrices of another program of the same model
    """

    def __init__(self, rows: int, dtype: torch.dtype, weights: Weights | None = None, share: dict[int, tuple] | None = None) -> None:
        if not 1 <= rows <= ROWS:
            raise BadInput(f"a program is for 1 to {ROWS} sequences, not {rows}", where="decode", fix="use the model itself for more")
        self.rows, self.dtype, self.weights, self.threads = rows, dtype, weights, torch.get_num_threads()
        self._operations: list[ProgramOperation] = []
        self._arguments = _Arguments(rows=rows, threads=self.threads)
        self._address = ctypes.addressof(self._arguments)
        self.bytes = {} if share is None else share
        self._spaces: dict[tuple[str, int, bool], Tensor] = {}
        self._held: list[Any] = []
        compiled: Any = function("decode", dtype)
        self._run = _RUN(ctypes.cast(compiled, ctypes.c_void_p).value or 0)

    # ---- vectors ----

    def add_shared(self, name: str, size: int) -> Vectors:
        """A vector shared by all threads."""
        return self._vectors(name, size, False)

    def add_per_thread(self, name: str, size: int) -> Vectors:
        """A vector of which every thread has a copy, for work too small to divide."""
        return self._vectors(name, size, True)

    def _vectors(self, name: str, size: int, own: bool) -> Vectors:
        space = self._spaces.get((name, size, own))
        if space is None:  # zero-padded to a whole quantization group
            space = torch.zeros(self.threads if own else 1, self.rows, -(-size // GROUP) * GROUP, dtype=self.dtype)
            self._spaces[name, size, own] = space
        return Vectors(space.data_ptr(), space.stride(1), space.stride(0) if own else 0)

    def tensor(self, name: str, size: int) -> Tensor:
        """The shared vectors (rows, size) themselves."""
        self.add_shared(name, size)
        return self._spaces[name, size, False][0, :, :size]

    def later(self, x: Vectors, start: int) -> Vectors:
        """The same vectors from an offset on."""
        return Vectors(x.data + start * self.dtype.itemsize, x.row, x.own)

    # ---- operations ----

    def linear(  # noqa: PLR0913  the terms of one formula
        self,
        x: Vectors,
        y: Vectors,
        weight: Tensor,
        bias: Tensor | None = None,
        *,
        activation: str = "identity",
        times: Vectors | None = None,
        add: Vectors | None = None,
        wait: bool = True,
    ) -> ProgramOperation:
        """y = f(weight x + bias) * times + add.

        Args:
            wait: synchronize the threads after it; not needed where the next operation has as many outputs and only multiplies
                or adds y, because each thread computes the same outputs of both
        """
        data, scales = self._matrix(weight)
        out, size = weight.shape
        return self._append("linear", x=x, y=y, m=times or Vectors(), z=add or Vectors(), weight=data, scales=scales, b=self._pointer(bias),
                            flag=ACTIVATIONS.index(activation), wait=int(wait), out=out, size=size)  # fmt: skip

    def norm(  # noqa: PLR0913  the terms of one formula
        self,
        x: Vectors,
        y: Vectors,
        size: int,
        weight: Tensor | None,
        bias: Tensor | None,
        eps: float,
        *,
        centered: bool = False,
        gate: Vectors | None = None,
    ) -> ProgramOperation:
        """y = x over its root mean square, or with `centered` over its standard deviation; y is each thread's own.

        Args:
            gate: x silu(gate) instead of x
        """
        a, b = self._pointer(weight), self._pointer(bias)
        return self._append("norm", x=x, y=y, z=gate or Vectors(), a=a, b=b, scale=eps, flag=int(centered), size=size)

    def angles(self, size: int, base: float) -> Vectors:
        """Cosines and then sines of position * base^(-2i/size), made once for a token by each thread for itself."""
        name = f"angles {base}"
        fresh, y = (name, size, True) not in self._spaces, self.add_per_thread(name, size)
        if fresh:
            speed = base ** (-torch.arange(0, size, 2, dtype=torch.float64) / size)
            self._held.append(speed)
            self._append("angles", y=y, a=speed.data_ptr(), size=len(speed))
        return y

    def attend(
        self,
        qkv: Vectors,
        y: Vectors,
        sizes: tuple[int, int, int],
        scale: float,
        *,
        angles: Vectors | None = None,
        slopes: Tensor | None = None,
    ) -> ProgramOperation:
        """Attention of all heads to the caches `past` (keys) and `past2` (values), to which this token's are appended.

        sizes are heads, groups of keys and values, and the width of each.  Before a run `past`, `past2`, `room` and `used` have to be set.
        """
        heads, groups, size = sizes
        return self._append("attend", x=qkv, y=y, z=angles or Vectors(), a=self._pointer(slopes), heads=heads, groups=groups, scale=scale,
                            size=size)  # fmt: skip

    def convolve(self, x: Vectors, y: Vectors, weight: Tensor, bias: Tensor | None) -> ProgramOperation:
        """y = silu of each channel's last inputs times weight [taps, size]; before a run `past` and `next` have to be set."""
        taps, size = weight.shape
        return self._append("convolve", x=x, y=y, a=self._pointer(weight), b=self._pointer(bias), flag=taps, size=size)

    def recur(
        self,
        vkq: Vectors,
        step: Vectors,
        y: Vectors,
        sizes: tuple[int, int, int, int],
        parameters: tuple[Tensor, Tensor, Tensor],
        limits: tuple[float, float],
    ) -> ProgramOperation:
        """One step of Mamba-2 for all heads; before a run `past` and `next` have to be set.

        sizes are heads, groups, key and value width; parameters by head are the bias of its step, the log rate, the skip
        """
        (heads, groups, key, value), (bias, log_rate, skip) = sizes, parameters
        return self._append("recur", x=vkq, z=step, y=y, a=self._pointer(bias), b=self._pointer(log_rate), c=self._pointer(skip),
                            heads=heads, groups=groups, size=key, out=value, low=limits[0], high=limits[1])  # fmt: skip

    # ---- running ----

    def run(self, seen: Tensor) -> bool:
        """Run the program for sequences that had `seen` (rows,) tokens before.

        False, and nothing is done, where a cache is full or does not hold the tokens seen.
        """
        self._arguments.seen = seen.data_ptr()
        return self._run(self._address) == 0

    # ---- parts ----

    def _append(self, kind: str, *, size: int, **fields: Any) -> ProgramOperation:
        operation = ProgramOperation(kind=KINDS.index(kind), **{"wait": int(kind not in ("norm", "angles")), **fields})
        setattr(operation, "in", size)
        self._operations.append(operation)
        self._table = (ctypes.c_void_p * len(self._operations))(*map(ctypes.addressof, self._operations))
        self._arguments.operations, self._arguments.count = ctypes.addressof(self._table), len(self._table)
        return operation

    def _pointer(self, x: Tensor | None) -> int | None:
        """Address of a parameter, after checking its dtype and layout."""
        if x is None:
            return None
        if x.dtype != self.dtype or not x.is_cpu or not x.is_contiguous():
            actual = f"{str(x.dtype).removeprefix('torch.')} on {x.device}" + ("" if x.is_contiguous() else ", not contiguous")
            wanted = str(self.dtype).removeprefix("torch.")
            raise BadInput(f"a weight is {actual}", where="decode", fix=f"make it {wanted}, contiguous, on the CPU")
        self._held.append(x.detach())  # keeps the memory even if the parameter gets another
        return x.data_ptr()

    def _matrix(self, weight: Tensor) -> tuple[int | None, int | None]:
        """Address of a matrix, and of its scales where it is quantized."""
        if self.weights is None:
            return self._pointer(weight), None
        if weight.data_ptr() not in self.bytes:
            self.bytes[weight.data_ptr()] = (*quantize(weight), weight.detach())  # its memory too, so that the address is not reused
        data, scales, _ = self.bytes[weight.data_ptr()]
        self._held.append(data)
        return data.data_ptr(), self._pointer(scales)
