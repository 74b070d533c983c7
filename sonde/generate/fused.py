"""Decoding in one call for each token: the whole model as a program of the `decode` kernel.

`ready(model, batch)` gives something that advances like the model, with the same logits and interchangeable states: a
prompt is read by the model itself, then single tokens by the program, and either can go on from the other's state.

A kind of mixer is known by a function in MIXERS that adds its operations to the program; the rest of this file does not
change with a new one.

B batch, T time, D width, H heads, G key groups.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, final

import torch
from torch import Tensor, nn

from ..core.errors import BadInput
from ..kernels import library
from ..kernels.decode import ROWS, Operation, Program, Vectors, Weights
from ..kernels.library import view
from ..models.language_model import LanguageModel, embedded
from ..nn.block import Block, FeedForward
from ..nn.mixers import Mixer
from ..nn.mixers.attention import Attention
from ..nn.mixers.mamba2 import Mamba2
from ..nn.positions import Alibi
from ..nn.recurrence import State
from ..nn.spans import Spans

FUNCTIONS = {"swiglu": "silu", "geglu": "gelu_tanh", "gelu": "gelu", "gelu_tanh": "gelu_tanh", "relu": "relu"}
"""the kernel's name of what a feed-forward network applies"""


def ready(model: Any, batch_size: int = 1, weights: Weights | None = None) -> Fused | None:
    """What advances `batch` sequences in one call for each token; none where `why_not` has a reason."""
    try:
        return Fused(model, batch_size, weights)
    except BadInput:
        return None


def why_not(model: Any, batch_size: int = 1) -> str:
    """Why a model is advanced by torch; empty where the program serves."""
    try:
        Fused(model, batch_size)
    except BadInput as problem:
        return problem.what
    return ""


def quantized(model: LanguageModel, batch_size: int = 1) -> Fused:
    """The same with matrices as bytes, a quarter to read; the prompt is still read with the model's own weights."""
    return Fused(model, batch_size, "int8")


@final
class Fused:
    """Advances a language model like itself, one token of a few sequences in one call.

    Everything else (a prompt, gradients, training, more sequences) goes through the model.
    """

    def __init__(self, model: LanguageModel, batch_size: int = 1, weights: Weights | None = None) -> None:
        if problem := library.why_not():
            raise _unfit(problem)
        if type(model) is not LanguageModel:
            raise _unfit(f"{type(model).__name__} is not a LanguageModel")
        if any(part._forward_hooks or part._forward_pre_hooks for part in model.modules()):
            raise _unfit("somebody watches the model through hooks")
        self.model, self.weights = model, weights
        self._bytes: dict[int, tuple] = {}
        self._programs = {batch_size: _Line(model, batch_size, weights, self._bytes)}

    @property
    def training(self) -> bool:
        return self.model.training

    def train(self, mode: bool = True) -> Fused:
        self.model.train(mode)
        return self

    def advance(self, tokens: Tensor, state: State | None = None, *, spans: Spans | None = None) -> tuple[Tensor, State]:
        """tokens (B, T) after a state -> logits (B, T, vocabulary) and the next state."""
        one = state is not None and spans is None and tokens.dim() == 2 and tokens.shape[1] == 1 and len(tokens) <= ROWS
        if not one or self.training or torch.is_grad_enabled() or torch.is_autocast_enabled("cpu") or not library.unseen([tokens]):
            return self.model.advance(tokens, state, spans=spans)
        assert state is not None
        line = self._programs.get(len(tokens))
        if line is None:
            line = self._programs[len(tokens)] = _Line(self.model, len(tokens), self.weights, self._bytes)
        return line.advance(tokens, state)


class Memory(Protocol):
    """The state of one block as its operations see it."""

    def bind(self, state: State, seen: Tensor, after: State, moving: bool) -> None:
        """Let the operations read this state, and put what they will leave into `after`.

        seen: (B,) tokens of each sequence
        moving: a state that has no space for one more token moves to a larger room
        """


@final
class _Line:
    """The program of a model for so many sequences."""

    def __init__(self, model: LanguageModel, rows: int, weights: Weights | None, kept: dict[int, tuple]) -> None:
        table = model.embedding.weight
        if table.dtype not in library.SUFFIX or not table.is_cpu:
            raise _unfit(f"its weights are {str(table.dtype).removeprefix('torch.')} on {table.device.type}")
        self.model, self.program = model, (program := Program(rows, table.dtype, weights, kept))
        self.x = program.tensor("x", model.width)
        self.memories: list[Memory] = []
        # The sum of the branches is shared; each thread has a norm of it for itself.
        total = x = program.shared("x", model.width)
        for i, block in enumerate(model.stack.blocks):
            x = self._block(block, str(i), total, x)
        x = x if isinstance(model.stack.norm, nn.Identity) else self._norm(model.stack.norm, total)
        head = table if model.head is None else _linear(model.head)[0]
        self.shrink = model.style.shrink(model.width, tied=model.head is None)
        self.last = program.linear(x, Vectors(0, model.vocabulary, 0), head, None if model.head is None else model.head.bias)

    def _block(self, block: nn.Module, part: str, total: Vectors, x: Vectors) -> Vectors:
        if type(block) is not Block or block.cross is not None:
            raise _unfit("a block looks at another sequence" if type(block) is Block else f"a block is a {type(block).__name__}")
        emit = MIXERS.get(type(block.mixer))
        if emit is None:
            raise _unfit(f"mixer {type(block.mixer).__name__} has no operations in the program")
        inner = x if block.post else self._norm(block.norm, total)
        self.memories.append(emit(self.program, block.mixer, part, inner, total, x if block.post else total))
        x = self._norm(block.norm, total) if block.post else total
        if block.ffn is None:
            return x
        inner = x if block.post else self._norm(block.ffn_norm, total)
        _network(self.program, block.ffn, inner, total, x)
        return self._norm(block.ffn_norm, total) if block.post else total

    def _norm(self, norm: nn.Module | None, x: Vectors) -> Vectors:
        """A norm of x, by each thread for itself."""
        width = self.model.width
        y = self.program.own("norm", width)
        if type(norm) is nn.LayerNorm and norm.normalized_shape == (width,):
            self.program.norm(x, y, width, norm.weight, norm.bias, norm.eps, centered=True)
        elif type(norm) is nn.RMSNorm and norm.normalized_shape == (width,):
            self.program.norm(x, y, width, norm.weight, None, torch.finfo(self.program.dtype).eps if norm.eps is None else norm.eps)
        else:
            raise _unfit(f"a norm is a {type(norm).__name__}")
        return y

    def advance(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """tokens (B, 1) after a state -> logits (B, 1, vocabulary) and the next state."""
        model = self.model
        x, place = embedded(model.embedding, tokens, model.scale), State()
        if model.positions is not None:
            x, place = model.positions(x, {"seen": _found(state, "place.seen", (len(tokens),))})
        self.x.copy_(x.squeeze(1))
        logits = x.new_empty(len(tokens), 1, model.vocabulary)
        self.last.y.data = logits.data_ptr()
        seen = next((value for name, value in state.items() if name.endswith(".length")), tokens)
        after = self._bound(state, place, seen, moving=False)
        if not self.program.run(seen):
            after = self._bound(state, place, seen, moving=True)
            if not self.program.run(seen):
                raise AssertionError("a state that moved has no room")
        if self.shrink != 1:
            logits *= self.shrink
        later = seen + 1
        return logits, {name: later if name.endswith(".length") else value for name, value in after.items()}

    def _bound(self, state: State, place: State, seen: Tensor, *, moving: bool) -> State:
        """What the state will be after the program ran on this one, but for the lengths."""
        after = {f"place.{name}": value for name, value in place.items()}
        for memory in self.memories:
            memory.bind(state, seen, after, moving)
        if after.keys() != state.keys():
            raise BadInput(f"the state holds unknown {sorted(state.keys() - after.keys())}", where="state", fix="begin with state=None")
        return after


@final
class _Rooms:
    """Keys and values in rooms with spare space, as `nn.mixers.attention.append` keeps them."""

    def __init__(self, program: Program, part: str, operation: Operation) -> None:
        self.program, self.operation = program, operation
        self.names = [f"{part}.{name}" for name in ("k", "v", "used", "length")]
        self.bound: list[Tensor] = []

    def bind(self, state: State, seen: Tensor, after: State, moving: bool) -> None:
        kept = [_found(state, name) for name in self.names[:3]]
        if moving or len(self.bound) != 3 or any(x is not y for x, y in zip(kept, self.bound)):
            kept = self._fitting(kept, seen, moving)
            self._point(kept)
        length = _found(state, self.names[3])
        if length is not seen and not torch.equal(length, seen):
            raise BadInput("the lengths in the state differ from block to block", where="state", fix="begin with state=None")
        after.update(zip(self.names, (*self.bound, length)))

    def _fitting(self, kept: list[Tensor], seen: Tensor, moving: bool) -> list[Tensor]:
        """The same in one larger room, where this one is full, taken, or not as the program reads it."""
        (k, v, used), o = kept, self.operation
        for name, x in zip(self.names, (k, v)):
            wanted = (self.program.rows, o.groups, x.shape[2] if x.dim() == 4 else 0, getattr(o, "in"))
            if x.shape != wanted:
                raise BadInput(f"state '{name}' is {tuple(x.shape)}, the block keeps {wanted}", where="state", fix="begin with state=None")
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
class _Renewed:
    """Tensors of fixed size that are written anew for each token; each belongs to one operation."""

    def __init__(self, program: Program, part: str, operations: dict[str, tuple[Operation, tuple[int, ...]]]) -> None:
        self.program = program
        self.parts = [(f"{part}.{name}", operation, shape) for name, (operation, shape) in operations.items()]
        self.bound: list[Tensor] = []

    def bind(self, state: State, seen: Tensor, after: State, moving: bool) -> None:
        self.bound = []  # what is read and written has to live until the program ran
        for name, operation, shape in self.parts:
            old = _found(state, name, (self.program.rows, *shape)).to(self.program.dtype)
            old = old if old.stride(-1) == 1 else old.contiguous()
            new = torch.empty(old.shape, dtype=old.dtype)
            operation.past, operation.next = (view(x if x.dim() == 4 else x.unsqueeze(1)) for x in (old, new))
            self.bound += (old, new)
            after[name] = new


def _attention(program: Program, mixer: Mixer, part: str, x: Vectors, y: Vectors, add: Vectors) -> Memory:
    """y = add + attention of x."""
    assert isinstance(mixer, Attention)
    if not mixer.causal or mixer.positions == "relative":
        raise _unfit("attention looks at later tokens" if not mixer.causal else "attention has learned numbers for distances")
    H, G, d = mixer.heads, mixer.groups, mixer.each
    qkv, mixed = program.shared("qkv", (H + 2 * G) * d), program.shared("mixed", H * d)
    turns = program.angles(d, mixer.base) if mixer.positions == "rotary" else None
    slopes = mixer.distance.get_buffer("slopes").to(program.dtype) if isinstance(mixer.distance, Alibi) else None
    program.linear(x, qkv, *_linear(mixer.qkv))
    scale = d**-0.5 if mixer.scale is None else mixer.scale
    memory = _Rooms(program, part, program.attend(qkv, mixed, (H, G, d), scale, angles=turns, slopes=slopes))
    program.linear(mixed, y, *_linear(mixer.out), add=add)
    return memory


def _mamba2(program: Program, mixer: Mixer, part: str, x: Vectors, y: Vectors, add: Vectors) -> Memory:
    """y = add + a Mamba-2 layer of x."""
    assert isinstance(mixer, Mamba2)
    H, G, (inner, keys, _) = mixer.heads, mixer.groups, mixer.sizes
    channels, sizes = sum(mixer.sizes), (H, G, keys // G, inner // H)
    into, vkq, mixed, gated = (
        *(program.shared(name, n) for name, n in (("into", inner + channels + H), ("vkq", channels), ("mixed", inner))),
        program.own("gated", inner),
    )
    program.linear(x, into, *_linear(mixer.into))
    conv = program.convolve(program.later(into, inner), vkq, mixer.conv.weight, mixer.conv.bias)
    limits = (mixer.least, float("inf") if mixer.most is None else mixer.most)
    step = program.later(into, inner + channels)
    recur = program.recur(vkq, step, mixed, sizes, (mixer.step_bias, mixer.log_rate, mixer.skip), limits)
    program.norm(mixed, gated, inner, mixer.norm.weight, None, mixer.norm.eps or 0.0, gate=into)
    program.linear(gated, y, *_linear(mixer.out), add=add)
    return _Renewed(program, part, {"S0": (recur, (H, *sizes[2:])), "tail": (conv, (mixer.conv.taps - 1, channels))})


MIXERS: dict[type[Mixer], Callable[[Program, Mixer, str, Vectors, Vectors, Vectors], Memory]] = {Attention: _attention, Mamba2: _mamba2}
"""adds the operations of a mixer to a program: y = add + mixer(x); `part` begins the names of its state"""


def _network(program: Program, ffn: nn.Module, x: Vectors, y: Vectors, add: Vectors) -> None:
    """y = add + the network of each token."""
    if type(ffn) is not FeedForward:
        raise _unfit(f"a block's network is a {type(ffn).__name__}")
    (up, bias), f = _linear(ffn.up), FUNCTIONS[ffn.kind]
    hidden = program.shared("hidden", len(up))
    if ffn.gate is None:
        program.linear(x, hidden, up, bias, activation=f)
    else:
        program.linear(x, hidden, *_linear(ffn.gate), activation=f, wait=False)
        program.linear(x, hidden, up, bias, times=hidden)
    program.linear(hidden, y, *_linear(ffn.down), add=add)


def _linear(module: nn.Module) -> tuple[Tensor, Tensor | None]:
    """Weight and bias of a linear map that is nothing more, such as one with an adapter."""
    if type(module) is not nn.Linear:
        raise _unfit(f"a linear map is a {type(module).__name__}")
    return module.weight, module.bias


def _found(state: State, name: str, shape: tuple[int, ...] | None = None) -> Tensor:
    """A tensor of the state, which is there and has this shape."""
    if name not in state:
        raise BadInput(f"the state lacks '{name}'", where="state", fix="begin with state=None")
    if shape is not None and state[name].shape != shape:
        raise BadInput(f"state '{name}' is {tuple(state[name].shape)}, not {shape}", where="state", fix="begin with state=None")
    return state[name]


def _unfit(why: str) -> BadInput:
    return BadInput(why, where="fused decoding", fix="the model's own advance serves")
