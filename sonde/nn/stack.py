"""Stack: transformer blocks one after the other and a norm at the end.

A mixer is the layer of a block that moves information between positions: attention, or a recurrence.  The state is what it keeps
from one call to the next (keys and values, or a recurrent state), a flat dict of tensors.  Entries of block i have the prefix "i.",
and "i.cross." for the keys and values of the sequence that its cross-attention reads.

B batch, T time, N time of the other sequence, D width.
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
    """x (B, T, D) -> output (B, T, D) and the new state.

    Args:
        blocks: in order
        norm: after the last block; post-norm blocks need none
    """

    def __init__(self, blocks: Iterable[Block], norm: nn.Module | None = None) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.norm = nn.Identity() if norm is None else norm

    @classmethod
    def of(cls, mixers: Iterable[Mixer], ffn: float, style: Style, dropout: float = 0.0, **cross: Any) -> Stack:
        """Make one block for each mixer.

        Args:
            mixers: one for each block
            ffn: width of the feed-forward network relative to the model; 0 for none
            style: norm, activation and biases, the same in all blocks
            dropout: dropout probability
            **cross: options of CrossAttention; without any, blocks have none
        """

        def block(mixer: Mixer) -> Block:
            feed_forward = FeedForward(mixer.width, ffn, style.activation, style.bias) if ffn else None
            cross_attention = CrossAttention(mixer.width, **cross) if cross else None
            return Block(mixer, feed_forward, style.make_norm, dropout, style.post, cross_attention)

        blocks = [block(mixer) for mixer in mixers]
        return cls(blocks, None if style.post else style.make_norm(blocks[0].mixer.width))

    @property
    def causal(self) -> bool:
        """Whether no output depends on a later token."""
        return all(block.mixer.causal for block in self.blocks)  # type: ignore[union-attr]

    def read(self, context: Tensor, lengths: Tensor | None = None) -> State:
        """A new state with keys and values for cross-attention to the sequence `context` (B, N, D); `lengths` (B,) excludes padding."""
        state: State = {}
        for i, block in enumerate(self.blocks):
            state |= prefix_state(f"{i}.cross", block.cross.read(context, lengths))  # type: ignore[union-attr,operator]
        return state

    def forward(self, x: Tensor, state: State | None = None, *, spans: Spans | None = None) -> tuple[Tensor, State]:
        """Continue from `state`, or start new sequences; `spans` marks separate sequences in a row: padding, packed documents."""
        old_state = split_state(state, [str(i) for i in range(len(self.blocks))], "Stack")
        new_state: State = {}
        for i, block in enumerate(self.blocks):
            entries = old_state.get(str(i), {})
            context = {name.removeprefix("cross."): value for name, value in entries.items() if name.startswith("cross.")}
            mixer_state = {name: value for name, value in entries.items() if not name.startswith("cross.")}
            x, new = block(x, mixer_state or None, spans=spans, context=context or None)
            new_state |= prefix_state(str(i), new) | prefix_state(f"{i}.cross", context)
        return self.norm(x), new_state


def prefix_state(part: str, state: State) -> State:
    """Put the name of a part before the names of its state: 'k' of part '0' becomes '0.k'."""
    return {f"{part}.{name}": value for name, value in state.items()}


def split_state(state: State | None, names: Sequence[str], where: str) -> dict[str, State]:
    """Undo `prefix_state`: one state for each part in `names`; {} for a new sequence.

    Raises:
        BadInput: the state has other parts, so it is that of another model; `where` names the class in the message
    """
    if state is None:
        return {}
    states: dict[str, State] = {}
    for key, value in state.items():
        part, _, name = key.partition(".")
        states.setdefault(part, {})[name] = value
    if states.keys() != set(names):
        wrong = {"lacks": set(names) - states.keys(), "has unknown": states.keys() - set(names)}
        detail = " and ".join(f"{verb} {', '.join(map(repr, sorted(keys)))}" for verb, keys in wrong.items() if keys)
        raise BadInput(f"the state does not match the model: it {detail}", where=where, fix="pass state=None to start a new sequence")
    return states
