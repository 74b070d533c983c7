"""Stack: blocks one after the other and a norm at the end, with one state for all of them.

The state of block i has the prefix "i.": that of its mixer, and with cross-attention the keys and values of the context
under "i.cross.".

B batch, T time, D width.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, final

from torch import Tensor, nn

from ..core.errors import BadInput
from .block import Block, FeedForward, Style
from .mixers import Mixer
from .mixers.attention import CrossAttention
from .spans import Spans, State


@final
class Stack(nn.Module):
    """x (B, T, D) through all blocks; post-norm blocks need no norm at the end."""

    def __init__(self, blocks: Iterable[Block], norm: nn.Module | None = None) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.norm = nn.Identity() if norm is None else norm

    @classmethod
    def of(cls, mixers: Iterable[Mixer], ffn: float, style: Style, dropout: float = 0.0, **cross: Any) -> Stack:
        """One block for each mixer, all in one style; `cross` holds the options of cross-attention where blocks have it."""

        def block(mixer: Mixer) -> Block:
            network = FeedForward(mixer.width, ffn, style.activation, style.bias) if ffn else None
            look = CrossAttention(mixer.width, **cross) if cross else None
            return Block(mixer, network, style.make_norm, dropout, style.post, look)

        blocks = [block(mixer) for mixer in mixers]
        return cls(blocks, None if style.post else style.make_norm(blocks[0].mixer.width))

    @property
    def causal(self) -> bool:
        """Nothing depends on a later token."""
        return all(block.mixer.causal for block in self.blocks)  # type: ignore[union-attr]

    def read(self, context: Tensor, lengths: Tensor | None = None) -> State:
        """A new state with keys and values of the context (B, N, D), the first `lengths` tokens of each row."""
        state: State = {}
        for i, block in enumerate(self.blocks):
            state |= prefix_state(f"{i}.cross", block.cross.read(context, lengths))  # type: ignore[union-attr,operator]
        return state

    def forward(self, x: Tensor, state: State | None = None, *, spans: Spans | None = None) -> tuple[Tensor, State]:
        before = split_state(state, [str(i) for i in range(len(self.blocks))], "Stack")
        after: State = {}
        for i, block in enumerate(self.blocks):
            own = before.get(str(i), {})
            context = {name.removeprefix("cross."): value for name, value in own.items() if name.startswith("cross.")}
            memory = {name: value for name, value in own.items() if not name.startswith("cross.")}
            x, new = block(x, memory or None, spans=spans, context=context or None)
            after |= prefix_state(str(i), new) | prefix_state(f"{i}.cross", context)
        return self.norm(x), after


def prefix_state(part: str, state: State) -> State:
    """The state of a part with the part's name as prefix."""
    return {f"{part}.{name}": value for name, value in state.items()}


def split_state(state: State | None, own: Sequence[str], where: str) -> dict[str, State]:
    """Split a state by prefix, one entry for each name in `own`; empty for a new sequence; an error where names differ."""
    if state is None:
        return {}
    states: dict[str, State] = {}
    for key, value in state.items():
        part, _, name = key.partition(".")
        states.setdefault(part, {})[name] = value
    if states.keys() != set(own):
        wrong = {"lacks": set(own) - states.keys(), "has unknown": states.keys() - set(own)}
        detail = " and ".join(f"{verb} {', '.join(repr(name) for name in sorted(names))}" for verb, names in wrong.items() if names)
        raise BadInput(f"the state does not match the model: it {detail}", where=where, fix="pass state=None to start a new sequence")
    return states
