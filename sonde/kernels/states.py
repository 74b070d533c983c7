"""The state of a program of the decode kernel between tokens, and what a mixer needs to add its operations to one.

A mixer that can be decoded so has a method `decode`, which adds the operations of one token to the program, y = add + mixer(x),
and returns the memory they work on:

    def decode(self, program: Program, part: str, x: Vectors, y: Vectors, add: Vectors) -> Memory:
        mixed = program.add_shared("mixed", self.width)
        ...                                                # operations from x to mixed
        program.linear(mixed, y, *linear(self.out), add=add)
        return RecurrentState(program, part, {"S": (operation, (self.heads, K, V))})

part: begins the names of its state, as in the state of the model
x, y, add: vectors of the mixer's width
"""

from __future__ import annotations

from typing import Protocol, final

import torch
from torch import Tensor, nn

from ..core.errors import BadInput
from .decode import Program, ProgramOperation
from .library import view

State = dict[str, Tensor]


class Memory(Protocol):
    """The state of one block as its operations see it."""

    def bind(self, state: State, seen: Tensor, after: State, moving: bool) -> None:
        """Let the operations read this state, and put what they will leave into `after`.

        Args:
            seen: (B,) tokens of each sequence
            moving: copy a state without capacity for one more token into a larger cache
        """


@final
class KVCache:
    """KV cache with spare capacity."""

    def __init__(self, program: Program, part: str, operation: ProgramOperation) -> None:
        self.program, self.operation = program, operation
        self.names = [f"{part}.{name}" for name in ("k", "v", "used", "length")]
        self.bound: list[Tensor] = []

    def bind(self, state: State, seen: Tensor, after: State, moving: bool) -> None:
        k, v, used, _ = self.names
        bound = self.bound
        if moving or not bound or state.get(k) is not bound[0] or state.get(v) is not bound[1] or state.get(used) is not bound[2]:
            self._point(self._match_program([get_tensor(state, name) for name in self.names[:3]], seen, moving))
        length = get_tensor(state, self.names[3])
        if length is not seen and not torch.equal(length, seen):
            raise BadInput(
                "the blocks of the state have different sequence lengths", where="state", fix="pass state=None to start a new sequence"
            )
        after.update(zip(self.names, (*self.bound, length)))

    def _match_program(self, tensors: list[Tensor], seen: Tensor, moving: bool) -> list[Tensor]:
        """A copy in a larger cache, where this one is full, in use by another state, or has the wrong layout."""
        (k, v, used), o = tensors, self.operation
        for name, x in zip(self.names, (k, v)):
            expected = (self.program.rows, o.groups, x.shape[2] if x.dim() == 4 else 0, getattr(o, "in"))
            if x.shape != expected:
                raise BadInput(
                    f"state '{name}' is {tuple(x.shape)}, expected {expected}", where="state", fix="pass state=None to start a new sequence"
                )
        longest = int(seen.max())
        fits = all(x.dtype == self.program.dtype and x.stride(-1) == 1 for x in (k, v))
        if fits and not (moving and (longest >= min(k.shape[2], v.shape[2]) or not torch.equal(used, seen))):
            return tensors
        caches = [x.new_zeros(*x.shape[:2], 2 * (longest + 1), x.shape[3], dtype=self.program.dtype) for x in (k, v)]
        for cache, x in zip(caches, (k, v)):
            cache[:, :, :longest] = x[:, :, :longest]
        return [*caches, seen.clone()]

    def _point(self, tensors: list[Tensor]) -> None:
        (k, v, used), o = tensors, self.operation
        o.past, o.past2, o.used, o.room = view(k), view(v), used.data_ptr(), min(k.shape[2], v.shape[2])
        self.bound = tensors


@final
class RecurrentState:
    """Tensors of fixed size that are replaced at each token; each belongs to one operation."""

    def __init__(self, program: Program, part: str, operations: dict[str, tuple[ProgramOperation, tuple[int, ...]]]) -> None:
        self.program = program
        self.parts = [(f"{part}.{name}", operation, shape) for name, (operation, shape) in operations.items()]
        self.bound: list[Tensor] = []

    def bind(self, state: State, seen: Tensor, after: State, moving: bool) -> None:
        self.bound = []  # kept alive until the program has run
        for name, operation, shape in self.parts:
            old = get_tensor(state, name, (self.program.rows, *shape)).to(self.program.dtype)
            old = old if old.stride(-1) == 1 else old.contiguous()
            new = torch.empty(old.shape, dtype=old.dtype)
            operation.past, operation.next = (view(x if x.dim() == 4 else x.unsqueeze(1)) for x in (old, new))
            self.bound += (old, new)
            after[name] = new


def linear(module: nn.Module) -> tuple[Tensor, Tensor | None]:
    """Weight and bias of a plain nn.Linear; an error for any other module, such as an adapter."""
    if type(module) is not nn.Linear:
        raise cannot_decode(f"expected a plain nn.Linear, got {type(module).__name__}")
    return module.weight, module.bias


def get_tensor(state: State, name: str, shape: tuple[int, ...] | None = None) -> Tensor:
    """A tensor of the state; an error where it is missing or has another shape."""
    if name not in state:
        raise BadInput(f"the state lacks '{name}'", where="state", fix="pass state=None to start a new sequence")
    if shape is not None and state[name].shape != shape:
        raise BadInput(
            f"state '{name}' is {tuple(state[name].shape)}, not {shape}", where="state", fix="pass state=None to start a new sequence"
        )
    return state[name]


def cannot_decode(why: str) -> BadInput:
    return BadInput(why, where="fused decoding", fix="call model.advance(...) instead")
