"""What a program of the decode kernel keeps between two tokens, and what a mixer needs to add its operations to one.

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
            moving: a state that has no space for one more token moves to a larger room
        """


@final
class KVCache:
    """KV cache with spare capacity."""

    def __init__(self, program: Program, part: str, operation: ProgramOperation) -> None:
        self.program, self.operation = program, operation
        self.names = [f"{part}.{name}" for name in ("k", "v", "used", "length")]
        self.bound: list[Tensor] = []

    def bind(self, state: State, seen: Tensor, after: State, moving: bool) -> None:
        kept = [get_tensor(state, name) for name in self.names[:3]]
        if moving or len(self.bound) != 3 or any(x is not y for x, y in zip(kept, self.bound)):
            kept = self._match_program(kept, seen, moving)
            self._point(kept)
        length = get_tensor(state, self.names[3])
        if length is not seen and not torch.equal(length, seen):
            raise BadInput(
                "the blocks of the state have different sequence lengths", where="state", fix="pass state=None to start a new sequence"
            )
        after.update(zip(self.names, (*self.bound, length)))

    def _match_program(self, kept: list[Tensor], seen: Tensor, moving: bool) -> list[Tensor]:
        """The same in one larger room, where this one is full, taken, or not as the program reads it."""
        (k, v, used), o = kept, self.operation
        for name, x in zip(self.names, (k, v)):
            wanted = (self.program.rows, o.groups, x.shape[2] if x.dim() == 4 else 0, getattr(o, "in"))
            if x.shape != wanted:
                raise BadInput(
                    f"state '{name}' is {tuple(x.shape)}, expected {wanted}", where="state", fix="pass state=None to start a new sequence"
                )
        most = int(seen.max())
        fits = all(x.dtype == self.program.dtype and x.stride(-1) == 1 for x in (k, v))
        if fits and not (moving and (most >= min(k.shape[2], v.shape[2]) or not torch.equal(used, seen))):
            return kept
        rooms = [x.new_zeros(*x.shape[:2], 2 * (most + 1), x.shape[3], dtype=self.program.dtype) for x in (k, v)]
        for room, x in zip(rooms, (k, v)):
            room[:, :, :most] = x[:, :, :most]
        return [*rooms, seen.clone()]

    def _point(self, kept: list[Tensor]) -> None:
        (k, v, used), o = kept, self.operation
        o.past, o.past2, o.used, o.room = view(k), view(v), used.data_ptr(), min(k.shape[2], v.shape[2])
        self.bound = kept


@final
class RecurrentState:
    """Tensors of fixed size that are written anew for each token; each belongs to one operation."""

    def __init__(self, program: Program, part: str, operations: dict[str, tuple[ProgramOperation, tuple[int, ...]]]) -> None:
        self.program = program
        self.parts = [(f"{part}.{name}", operation, shape) for name, (operation, shape) in operations.items()]
        self.bound: list[Tensor] = []

    def bind(self, state: State, seen: Tensor, after: State, moving: bool) -> None:
        self.bound = []  # what is read and written has to live until the program ran
        for name, operation, shape in self.parts:
            old = get_tensor(state, name, (self.program.rows, *shape)).to(self.program.dtype)
            old = old if old.stride(-1) == 1 else old.contiguous()
            new = torch.empty(old.shape, dtype=old.dtype)
            operation.past, operation.next = (view(x if x.dim() == 4 else x.unsqueeze(1)) for x in (old, new))
            self.bound += (old, new)
            after[name] = new


def linear(module: nn.Module) -> tuple[Tensor, Tensor | None]:
    """Weight and bias of a linear map that is nothing more, such as one with an adapter."""
    if type(module) is not nn.Linear:
        raise cannot_decode(f"expected a plain nn.Linear, got {type(module).__name__}")
    return module.weight, module.bias


def get_tensor(state: State, name: str, shape: tuple[int, ...] | None = None) -> Tensor:
    """A tensor of the state, which is there and has this shape."""
    if name not in state:
        raise BadInput(f"the state lacks '{name}'", where="state", fix="pass state=None to start a new sequence")
    if shape is not None and state[name].shape != shape:
        raise BadInput(
            f"state '{name}' is {tuple(state[name].shape)}, not {shape}", where="state", fix="pass state=None to start a new sequence"
        )
    return state[name]


def cannot_decode(why: str) -> BadInput:
    return BadInput(why, where="fused decoding", fix="call model.advance(...) instead")
