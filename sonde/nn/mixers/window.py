"""Sliding-window attention: softmax attention over the last W tokens only, so cost is linear and memory constant.

Token i attends to tokens i, i - r, i - 2r, .., i - (W - 1) r; a dilation r > 1 reaches further with as many pairs.  All
later tokens attend to the global tokens too, the first g of a sequence.  Beltagy et al., Longformer, 2020.

    parallel  all pairs at once behind a mask
    chunk     blocks of queries, each against its own block and the window before it: linear in the length
    step      one token after the other against the last W

There is no scan: a softmax over a moving window cannot subtract the token that leaves it.

Tokens are counted in `whole`, the `past` kept ones and then the T new ones, so the t-th new one is entry past + t of every
row, wherever its sequence stands.

B batch, H heads, T new tokens, W window, R dilation, N blocks, C block length, D = key width + value width.
"""

from __future__ import annotations

from typing import Annotated, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...core.options import Range, checked
from ..recurrence import State
from ._mixer import Mixer
from ._parts import Heads, PositiveWidth, advance_position, merge, rotate, split
from .attention import attend_where, head_width

BLOCK = 32
"""smallest block of queries in the chunk form: smaller ones are all overhead"""


@final
class Window(Mixer):
    """The layer.  With window >= length and no dilation it is full attention.

    Args:
        width: model dimension
        heads: number of attention heads
        window: tokens in the window, this one included
        dilation: step between them
        global_tokens: how many of the first tokens all later ones attend to
        rotary: rotary position embeddings
    """

    @checked
    def __init__(
        self,
        width: PositiveWidth = 64,
        heads: Heads = 4,
        window: Annotated[int, Range(1)] = 64,
        dilation: Annotated[int, Range(1)] = 1,
        global_tokens: Annotated[int, Range(0)] = 0,
        rotary: bool = True,
    ) -> None:
        super().__init__()
        d = head_width(width, heads, rotary, "Window")
        self.width, self.heads, self.rotary, self.scale = width, heads, rotary, d**-0.5
        self.window, self.dilation, self.global_tokens = window, dilation, global_tokens
        self.q, self.k, self.v, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))

    def forms(self) -> tuple[str, ...]:
        return ("step", "parallel", "chunk")

    def auto(self, length: int) -> tuple[str, str]:
        if max(self.window, BLOCK) < length:
            return "chunk", f"the window of {self.window} is shorter than the sequence, so most pairs need no look"
        return "parallel", "the window holds the whole sequence"

    def mix(self, x: Tensor, state: State | None, lengths: Tensor | None) -> tuple[Tensor, State]:
        B, T, _ = x.shape
        if lengths is not None:  # where() and not a product: what lies beyond the end may be anything, even NaN
            x = torch.where((torch.arange(T, device=x.device) < lengths.unsqueeze(1)).unsqueeze(-1), x, 0)
        position = torch.zeros(B, dtype=torch.long, device=x.device) if state is None else state["position"]
        q, k, v = (split(project(x), self.heads) for project in (self.q, self.k, self.v))
        if self.rotary:
            q, k = rotate(q, position), rotate(k, position)
        new = torch.cat([k, v], -1)
        whole = new if state is None else torch.cat([state["tail"].to(new.dtype), new], 2)
        first = self._first(None if state is None else state["first"], new, position)
        form = self.form if self.form != "auto" else self.auto(T)[0]
        o = {"step": self._steps, "parallel": self._parallel, "chunk": self._blocks}[form](q, whole, first, position)
        after = advance_position(position, x, lengths)
        # a copy, so that the whole can be freed; entries before the start are masked
        kept = whole.shape[2] - T + (after - position).unsqueeze(1) + torch.arange(-self.window * self.dilation, 0, device=x.device)
        return self.out(merge(o)), {"tail": _take(whole, kept.clamp_min(0)), "first": first, "position": after}

    def _first(self, old: Tensor | None, new: Tensor, position: Tensor) -> Tensor:
        """(B, H, global tokens, D) the first tokens of each sequence, as far as it has come."""
        offset = torch.arange(self.global_tokens, device=new.device) - position.unsqueeze(1)
        entries = _take(new, offset.clamp(0, new.shape[2] - 1))
        return entries if old is None else torch.where((offset < 0)[:, None, :, None], old.to(new.dtype), entries)

    def _visible_keys(self, query: Tensor, key: Tensor, past: int, position: Tensor) -> Tensor:
        """(B, .., C, global tokens + keys) which pairs count, of queries (.., C, 1) and keys (.., 1, keys) by their position in `whole`.

        A global token inside the window counts as a global one, so that no pair counts twice.
        """
        gap, start = query - key, position.view(-1, *(1,) * query.dim()) - past
        near = (gap >= 0) & (gap < self.window * self.dilation) & (gap % self.dilation == 0) & (key + start >= self.global_tokens)
        everywhere = torch.arange(self.global_tokens, device=key.device) <= query + start
        return torch.cat([everywhere.expand(*near.shape[:-1], -1), near], -1)

    def _parallel(self, q: Tensor, whole: Tensor, first: Tensor, position: Tensor) -> Tensor:
        positions = torch.arange(whole.shape[2], device=q.device)
        past = whole.shape[2] - q.shape[2]
        seen = self._visible_keys(positions[past:].unsqueeze(1), positions, past, position)
        return self._attend(seen.unsqueeze(1), q, torch.cat([first, whole], 2))

    def _steps(self, q: Tensor, whole: Tensor, first: Tensor, position: Tensor) -> Tensor:
        tokens, past, outs = whole.unbind(2), whole.shape[2] - q.shape[2], []
        for t, now in enumerate(q.split(1, 2), past):
            near = range(t, -1, -self.dilation)[: self.window]
            seen = self._visible_keys(position.new_tensor([[t]]), position.new_tensor([list(near)]), past, position)
            outs.append(self._attend(seen.unsqueeze(1), now, torch.cat([first, torch.stack([tokens[i] for i in near], 2)], 2)))
        return torch.cat(outs, 2)

    def _blocks(self, q: Tensor, whole: Tensor, first: Tensor, position: Tensor) -> Tensor:
        """The tokens of one residue modulo the dilation form a sequence with a plain window; each is split into blocks."""
        B, T, W, R = len(q), q.shape[2], self.window, self.dilation
        C = min(max(W, BLOCK), -(-T // R))
        N = -(-T // (R * C))
        past, end = W * R, N * C * R
        whole = F.pad(whole, (0, 0, past - (whole.shape[2] - T), end - T))
        keys = whole.unflatten(2, (-1, R)).unfold(2, W + C, C).permute(0, 3, 2, 1, 5, 4)  # (B, R, N, H, W + C, D)
        queries = F.pad(q, (0, 0, 0, end - T)).unflatten(2, (N, C, R)).permute(0, 4, 2, 1, 3, 5)  # (B, R, N, H, C, K)
        positions = torch.arange(past + end, device=q.device)
        key_positions = positions.unflatten(0, (-1, R)).unfold(0, W + C, C).transpose(0, 1)  # (R, N, W + C)
        query_positions = positions[past:].unflatten(0, (N, C, R)).permute(2, 0, 1)  # (R, N, C)
        seen = self._visible_keys(query_positions.unsqueeze(-1), key_positions.unsqueeze(-2), past, position)
        keys = torch.cat([first[:, None, None].expand(-1, R, N, -1, -1, -1), keys], -2)
        out = self._attend(seen.flatten(0, 2).unsqueeze(1), queries.flatten(0, 2), keys.flatten(0, 2))
        return out.unflatten(0, (B, R, N)).permute(0, 3, 2, 4, 1, 5).flatten(2, 4)[:, :, :T]

    def _attend(self, seen: Tensor, q: Tensor, kv: Tensor) -> Tensor:
        k, v = kv.chunk(2, -1)
        return attend_where(seen, q, k, v, self.scale)


def _take(x: Tensor, positions: Tensor) -> Tensor:
    """x (B, H, L, D) at positions (B, n) of each row -> (B, H, n, D)."""
    return x.gather(2, positions[:, None, :, None].expand(-1, x.shape[1], -1, x.shape[-1]))


def tiny() -> Window:
    """A small layer for the contract tests."""
    return Window(width=12, heads=3, window=5, dilation=2, global_tokens=2)
