"""Decoding in one call for each token: the whole model as a program of the `decode` kernel.

`prepare(model, batch)` returns an object that advances like the model, with the same logits and interchangeable states: a
prompt is read by the model itself, then single tokens by the program, and either can continue from the other's state.

A mixer adds its operations to the program itself, by its method `decode` (see `kernels.states`).

B batch, T time, D width, H heads, G key groups.
"""

from __future__ import annotations

from typing import Any, final

import torch
from torch import Tensor, nn

from ..core.errors import BadInput
from ..core.versions import WeightVersions
from ..kernels import library
from ..kernels.decode import ROWS, Program, Vectors, Weights
from ..kernels.states import Memory, cannot_decode, get_tensor, linear
from ..models.language_model import LanguageModel, embed
from ..nn.block import Block, FeedForward
from ..nn.recurrence import State
from ..nn.spans import Spans

FUNCTIONS = {"swiglu": "silu", "geglu": "gelu_tanh", "gelu": "gelu", "gelu_tanh": "gelu_tanh", "relu": "relu"}
"""the kernel's name of what a feed-forward network applies"""


def prepare(model: Any, batch_size: int = 1, weights: Weights | None = None) -> Fused | None:
    """An object that advances `batch` sequences in one call per token; None where `why_not` has a reason."""
    try:
        return Fused(model, batch_size, weights)
    except BadInput:
        return None


def why_not(model: Any, batch_size: int = 1) -> str:
    """Why a model is advanced by torch; empty where the program can run."""
    try:
        Fused(model, batch_size)
    except BadInput as problem:
        return problem.what
    return ""


def prepare_quantized(model: LanguageModel, batch_size: int = 1) -> Fused:
    """The same with int8 matrices, a quarter of the memory to read; the prompt is still read with the model's own weights."""
    return Fused(model, batch_size, "int8")


@final
class Fused:
    """Advances a language model by one token of a few sequences in one call.

    Everything else (a prompt, gradients, training, more sequences) goes through the model.  Weights that change later are used:
    changes in place that torch counts and those by the engine from the next token on, any other from the first token after the next
    prompt that this object reads (see `WeightVersions`).
    """

    def __init__(self, model: LanguageModel, batch_size: int = 1, weights: Weights | None = None) -> None:
        if problem := library.why_not():
            raise cannot_decode(problem)
        if type(model) is not LanguageModel:
            raise cannot_decode(f"{type(model).__name__} is not a LanguageModel")
        if any(part._forward_hooks or part._forward_pre_hooks for part in model.modules()):
            raise cannot_decode("the model has forward hooks, which a compiled program would skip")
        self.model, self.weights = model, weights
        self._bytes: dict[int, tuple] = {}
        self._programs: dict[int, _Line] = {}
        self._continues = False
        """the last call ran the program"""
        self._pack(batch_size)

    @property
    def training(self) -> bool:
        return self.model.training

    def train(self, mode: bool = True) -> Fused:
        self.model.train(mode)
        return self

    def advance(self, tokens: Tensor, state: State | None = None, *, spans: Spans | None = None) -> tuple[Tensor, State]:
        """tokens (B, T) after a state -> logits (B, T, vocabulary) and the next state."""
        one = state is not None and spans is None and tokens.dim() == 2 and tokens.shape[1] == 1 and len(tokens) <= ROWS
        if not one or self.training or torch.is_grad_enabled() or torch.is_autocast_enabled("cpu") or not library.is_unobserved([tokens]):
            self._continues = False
            return self.model.advance(tokens, state, spans=spans)
        assert state is not None
        if not (self._versions.same_counts() and (self._continues or self._versions.same_weights())):
            self._pack(len(tokens))
        elif len(tokens) not in self._programs:
            self._programs[len(tokens)] = _Line(self.model, len(tokens), self.weights, self._bytes)
        self._continues = True
        return self._programs[len(tokens)].advance(tokens, state)

    def _pack(self, rows: int) -> None:
        """Write the program of the weights as they are now."""
        self._programs.clear()
        self._bytes.clear()
        self._versions = WeightVersions(self.model, exact=self.weights is not None)
        self._programs[rows] = _Line(self.model, rows, self.weights, self._bytes)


@final
class _Line:
    """The program of a model for a fixed number of sequences."""

    def __init__(self, model: LanguageModel, rows: int, weights: Weights | None, kept: dict[int, tuple]) -> None:
        table = model.embedding.weight
        if table.dtype not in library.SUFFIX or not table.is_cpu:
            raise cannot_decode(f"its weights are {str(table.dtype).removeprefix('torch.')} on {table.device.type}")
        self.model, self.program = model, (program := Program(rows, table.dtype, weights, kept))
        self.x = program.tensor("x", model.width)
        self.memories: list[Memory] = []
        self.lengths: list[str] | None = None
        """names of the lengths in a state"""
        # The residual stream is shared; each thread computes its norm for itself.
        total = x = program.add_shared("x", model.width)
        for i, block in enumerate(model.stack.blocks):
            x = self._block(block, str(i), total, x)
        x = x if isinstance(model.stack.norm, nn.Identity) else self._norm(model.stack.norm, total)
        head = table if model.head is None else linear(model.head)[0]
        self.shrink = model.style.shrink(model.width, tied=model.head is None)
        self.last = program.linear(x, Vectors(0, model.vocabulary, 0), head, None if model.head is None else model.head.bias)

    def _block(self, block: nn.Module, part: str, total: Vectors, x: Vectors) -> Vectors:
        if type(block) is not Block or block.cross is not None:
            raise cannot_decode("a block looks at another sequence" if type(block) is Block else f"a block is a {type(block).__name__}")
        decode = getattr(block.mixer, "decode", None)
        if decode is None:
            raise cannot_decode(f"mixer {type(block.mixer).__name__} has no operations in the program")
        inner = x if block.post else self._norm(block.norm, total)
        self.memories.append(decode(self.program, part, inner, total, x if block.post else total))
        x = self._norm(block.norm, total) if block.post else total
        if block.ffn is None:
            return x
        inner = x if block.post else self._norm(block.ffn_norm, total)
        _network(self.program, block.ffn, inner, total, x)
        return self._norm(block.ffn_norm, total) if block.post else total

    def _norm(self, norm: nn.Module | None, x: Vectors) -> Vectors:
        """A norm of x, by each thread for itself."""
        width = self.model.width
        y = self.program.add_per_thread("norm", width)
        if type(norm) is nn.LayerNorm and norm.normalized_shape == (width,):
            self.program.norm(x, y, width, norm.weight, norm.bias, norm.eps, centered=True)
        elif type(norm) is nn.RMSNorm and norm.normalized_shape == (width,):
            self.program.norm(x, y, width, norm.weight, None, torch.finfo(self.program.dtype).eps if norm.eps is None else norm.eps)
        else:
            raise cannot_decode(f"a norm is a {type(norm).__name__}")
        return y

    def advance(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """tokens (B, 1) after a state -> logits (B, 1, vocabulary) and the next state."""
        model = self.model
        x, position = embed(model.embedding, tokens, model.scale), State()
        if model.positions is not None:
            x, position = model.positions(x, {"seen": get_tensor(state, "positions.seen", (len(tokens),))})
        self.x.copy_(x.squeeze(1))
        logits = x.new_empty(len(tokens), 1, model.vocabulary)
        self.last.y.data = logits.data_ptr()
        seen = next((value for name, value in state.items() if name.endswith(".length")), tokens)
        after = self._bind(state, position, seen, moving=False)
        if not self.program.run(seen):
            after = self._bind(state, position, seen, moving=True)
            if not self.program.run(seen):
                raise AssertionError("a state that was moved has no capacity")
        if self.shrink != 1:
            logits *= self.shrink
        if self.lengths is None:
            self.lengths = [name for name in after if name.endswith(".length")]
        return logits, after | dict.fromkeys(self.lengths, seen + 1)

    def _bind(self, state: State, position: State, seen: Tensor, *, moving: bool) -> State:
        """The state after the program ran on this one, except for the lengths."""
        after = {f"positions.{name}": value for name, value in position.items()}
        for memory in self.memories:
            memory.bind(state, seen, after, moving)
        if after.keys() != state.keys():
            raise BadInput(
                f"the state holds unknown {sorted(state.keys() - after.keys())}",
                where="state",
                fix="pass state=None to start a new sequence",
            )
        return after


def _network(program: Program, ffn: nn.Module, x: Vectors, y: Vectors, add: Vectors) -> None:
    """y = add + the network of each token."""
    if type(ffn) is not FeedForward:
        raise cannot_decode(f"a block's network is a {type(ffn).__name__}")
    (up, bias), f = linear(ffn.up), FUNCTIONS[ffn.kind]
    hidden = program.add_shared("hidden", len(up))
    if ffn.gate is None:
        program.linear(x, hidden, up, bias, activation=f)
    else:
        program.linear(x, hidden, *linear(ffn.gate), activation=f, wait=False)
        program.linear(x, hidden, up, bias, times=hidden)
    program.linear(hidden, y, *linear(ffn.down), add=add)
