"""Softmax attention: every query takes a weighted mean of the values, o_i = sum_j softmax_j(scale q_i . k_j) v_j.

Vaswani et al., Attention Is All You Need, 2017; grouped keys: Ainslie et al., GQA, 2023; rotations by position: Su et al.,
RoFormer, 2021.  Not a linear recurrence: a step must look at all keys so far, so its memory grows with the sequence.

    parallel  all pairs at once, by a fused kernel
    chunk     online softmax over blocks of keys, Milakov & Gimelshein 2018: memory linear in the length
    step      one query after the other against the keys kept so far

B batch, H heads, G key groups (G divides H), R = H / G, T queries, N keys, K key width, V value width.
"""

from __future__ import annotations

from typing import Annotated, Literal, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from ...core.errors import BadInput
from ...core.options import Range, checked
from ...kernels.attend import attend as fused
from ...kernels.decode import Program, Vectors
from ...kernels.states import KVCache, Memory, cannot_decode, linear
from ..positions import Alibi, RelativeBias
from ..recurrence import State
from ._mixer import Mixer
from ._parts import Heads, PositiveWidth, merge, rotate, split, width_per_head

CHUNK = 128


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    last: Tensor | None = None,
    *,
    causal: bool = False,
    scale: float | None = None,
    bias: Tensor | None = None,
    form: str = "auto",
) -> Tensor:
    """q (B, H, T, K), k (B, G, N, K), v (B, G, N, V) -> (B, H, T, V).

    Args:
        last: (B, T) the last key that each query attends to; None is all keys, or with `causal` those up to its own position
        scale: of the scores; None is K^-1/2
        bias: (B or 1, H, T, N) added to the scores
    """
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    parallel = form in ("auto", "parallel")
    if parallel and last is None and bias is None:
        k, v = k.to(q.dtype), v.to(q.dtype)  # they may have been computed under another autocast
        return fused(q, k, v, scale, causal)
    if last is None:
        last = torch.arange(q.shape[2], device=q.device) if causal else q.new_full((q.shape[2],), k.shape[2] - 1, dtype=torch.long)
        last = last.unsqueeze(0)
    if parallel:
        return attend_where(_visible_keys(last, k), q, k, v, scale, bias)
    wide = torch.promote_types(q.dtype, torch.float32)  # half precision is summed in float32, as in torch's own kernel
    bias = None if bias is None else bias.to(wide)
    return (_steps if form == "step" else _blocks)(q.to(wide) * scale, k.to(wide), v.to(wide), last, bias).to(q.dtype)


def attend_where(seen: Tensor, q: Tensor, k: Tensor, v: Tensor, scale: float, bias: Tensor | None = None) -> Tensor:
    """The same over the pairs that are true in the mask `seen` (B or 1, 1, T, N), or (B, H, T, N) where each head has its own keys."""
    (H, T), G = q.shape[1:3], k.shape[1]
    k, v = k.to(q.dtype), v.to(q.dtype)
    # grouped heads become more queries of the same keys, so that no key is repeated
    q, seen = _queries(q, G), seen.repeat(1, 1, H // G, 1)
    mask = seen if bias is None else _queries(bias.to(q.dtype), G).masked_fill(~seen, float("-inf"))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale).unflatten(2, (-1, T)).flatten(1, 2)


def _queries(x: Tensor, groups: int) -> Tensor:
    """(B, H, T, *) -> (B, G, R T, *)."""
    return x.unflatten(1, (groups, -1)).flatten(2, 3)


def _visible_keys(last: Tensor, k: Tensor) -> Tensor:
    """(B, 1, T, N) mask of the keys that each query attends to."""
    return (torch.arange(k.shape[2], device=k.device) <= last.unsqueeze(-1)).unsqueeze(1)


def _steps(q: Tensor, k: Tensor, v: Tensor, last: Tensor, bias: Tensor | None) -> Tensor:
    """One query after the other, as the formula is written."""
    outs, G = [], k.shape[1]
    for t, (now, end) in enumerate(zip(q.unflatten(1, (G, -1)).unbind(3), last.unbind(1))):  # (B, G, R, K) and (B,)
        scores = now @ k.mT
        scores = scores if bias is None else scores + bias[:, :, t].unflatten(1, (G, -1))
        outs.append(scores.masked_fill(~_visible_keys(end.unsqueeze(1), k), float("-inf")).softmax(-1) @ v)
    return torch.stack(outs, 3).flatten(1, 2)


def _blocks(q: Tensor, k: Tensor, v: Tensor, last: Tensor, bias: Tensor | None) -> Tensor:
    """Blocks of queries, each against blocks of keys; the backward pass recomputes the scores of one block of queries at a time."""
    (H, T), G = q.shape[1:3], k.shape[1]
    q, last = _queries(q, G), last.repeat(1, H // G)
    keys, values = k.split(CHUNK, 2), v.split(CHUNK, 2)
    blocks = q.split(CHUNK, 2)
    biases = [None] * len(blocks) if bias is None else _queries(bias, G).split(CHUNK, 2)
    outs = []
    for block, end, added in zip(blocks, last.split(CHUNK, 1), biases):
        n = int(end.max()) // CHUNK + 1
        outs.append(checkpoint(_merge_blocks, block, end, added, *keys[:n], *values[:n], use_reentrant=False, preserve_rng_state=False))
    return torch.cat(outs, 2).unflatten(2, (-1, T)).flatten(1, 2)


def _merge_blocks(q: Tensor, last: Tensor, bias: Tensor | None, *blocks: Tensor) -> Tensor:
    """Attention of one block of queries, from blocks of keys and then as many of values, one at a time."""
    half = len(blocks) // 2
    top, total, out = q.new_full((*q.shape[:-1], 1), float("-inf")), q.new_zeros(*q.shape[:-1], 1), torch.zeros_like(blocks[-1][:, :, :1])
    for i, (k, v) in enumerate(zip(blocks[:half], blocks[half:])):
        scores = q @ k.mT
        scores = scores if bias is None else scores + bias[..., i * CHUNK : (i + 1) * CHUNK]
        scores = scores.masked_fill(~_visible_keys(last - i * CHUNK, k), float("-inf"))
        # every query sees key 0, so `higher` is finite from the first block on; the result does not depend on it
        higher = torch.maximum(top, scores.detach().amax(-1, keepdim=True))
        shrink, weights, top = (top - higher).exp(), (scores - higher).exp(), higher
        total, out = total * shrink + weights.sum(-1, keepdim=True), out * shrink + weights @ v
    return out / total


def append(state: State | None, new: State, lengths: Tensor | None) -> State:
    """The state with `new` tensors (B, G, T, *) appended to each sequence; the first `lengths` tokens of each count.

    Without gradients tokens are written into spare capacity, which doubles when it is full, so that a token needs no copy of
    the others.  `used` counts the entries in use and is shared by all states that share a buffer: a state that is continued
    twice finds them in use and is copied.
    """
    like = next(iter(new.values()))
    B, _, T = like.shape[:3]
    time = torch.arange(T, device=like.device)
    if lengths is not None:  # where() and not a product: what lies beyond the end may be anything, even NaN
        inside = (time < lengths.unsqueeze(1))[:, None, :, None]
        new = {name: torch.where(inside, x, 0) for name, x in new.items()}
    count = torch.full((B,), T, device=like.device) if lengths is None else lengths
    if state is None:
        return {**new, "length": count, "used": torch.full_like(count, T)}
    start, need = state["length"], state_length(state) + T
    index = (start.unsqueeze(1) + time)[:, None, :, None]
    after, learning = start + count, torch.is_grad_enabled()
    if not learning and need <= _capacity(state, new) and torch.equal(state["used"], start):
        for name, x in new.items():
            state[name].scatter_(2, index.expand_as(x), x.to(state[name].dtype))
        return {**state, "length": after, "used": state["used"].copy_(after)}
    capacity = need if learning else 2 * need  # a graph may still need the old buffer, so then there is no spare capacity
    grown = {name: F.pad(state[name], (0, 0, 0, capacity - state[name].shape[2])) for name in new}
    kept = {name: grown[name].scatter(2, index.expand_as(x), x.to(grown[name].dtype)) for name, x in new.items()}
    return {**kept, "length": after, "used": torch.full_like(after, capacity) if learning else after.clone()}


def state_length(state: State | None) -> int:
    """Tokens of the longest sequence."""
    return 0 if state is None else int(state["length"].max())


def _capacity(state: State, new: State) -> int:
    return min(state[name].shape[2] for name in new)


@final
class Attention(Mixer):
    """The layer: queries, keys and values by one linear map, position-dependent scores, heads, an output projection.

    The state of causal attention is its KV cache, which grows with the sequence.  The rows of `qkv` are the queries
    of all heads, then the keys and then the values of all groups.

    Args:
        width: model dimension
        heads: number of attention heads
        groups: key-value heads, each shared by heads / groups heads; None is one for each head
        causal: tokens attend to earlier tokens only; otherwise to all, and there is no state
        positions: how scores depend on distance: 'rotary' rotates queries and keys by an angle that grows with the position,
            'alibi' subtracts a multiple of the distance, 'relative' adds a learned bias for each bucket of distances
        base: of the rotary angles; the slowest pair rotates once in about 2 pi times as many tokens
        scale: factor of the scores; None is one over the root of the head's width
        bias: add biases to queries, keys, values and outputs
        each: width of one head; None is width / heads
    """

    grows = ("k", "v")
    small_start = True

    @checked
    def __init__(  # noqa: PLR0913  the choices in which published attention layers differ
        self,
        width: PositiveWidth = 64,
        heads: Heads = 4,
        groups: Heads | None = None,
        causal: bool = True,
        positions: Literal["rotary", "alibi", "relative", "none"] = "rotary",
        base: Annotated[float, Range(above=1)] = 10000.0,
        scale: float | None = None,
        bias: bool = False,
        each: PositiveWidth | None = None,
    ) -> None:
        super().__init__()
        rotary = positions == "rotary"
        d = head_width(width if each is None else each * heads, heads, rotary, "Attention")
        if groups is not None and heads % groups:
            raise BadInput(f"{groups} groups of keys do not divide {heads} heads", where="Attention", fix="use a divisor of the heads")
        self.width, self.heads, self.groups, self.causal = width, heads, groups or heads, causal
        self.positions, self.base, self.scale, self.each = positions, base, scale, d
        self.distance: nn.Module | None = None
        if positions in ("alibi", "relative"):
            self.distance = Alibi(heads) if positions == "alibi" else RelativeBias(heads, causal)
        self.qkv, self.out = nn.Linear(width, (heads + 2 * self.groups) * d, bias), nn.Linear(heads * d, width, bias)

    def forms(self) -> tuple[str, ...]:
        return ("step", "parallel", "chunk")

    def auto(self, length: int) -> tuple[str, str]:
        return "parallel", "all pairs in one call, the fastest where their scores fit into memory"

    def mix(self, x: Tensor, state: State | None, lengths: Tensor | None) -> tuple[Tensor, State]:
        if not self.causal:
            refuse_state(state, "Attention(causal=False)")
        start = None if state is None else state["length"]
        q, k, v = self._heads(x, start)
        n = state_length(state) + x.shape[1]
        kept = append(state, {"k": k, "v": v}, lengths)
        last = None
        if start is not None:
            last = start.unsqueeze(1) + torch.arange(x.shape[1], device=x.device)
        elif not self.causal and lengths is not None:
            last = _ends(lengths, x)
        # a new causal sequence needs no lengths: padding comes last
        bias = None if self.distance is None else self.distance(self._positions(start, x), n).to(q.dtype)
        o = attend(q, kept["k"][:, :, :n], kept["v"][:, :, :n], last, causal=self.causal, scale=self.scale, bias=bias, form=self.form)
        return self.out(merge(o)), kept if self.causal else {}

    def weights(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """(B, H, T, T) attention weights for new sequences x (B, T, D); for inspection, not used by `forward`."""
        q, k, _ = self._heads(x, None)
        positions = self._positions(None, x)
        ends = torch.full((len(x),), x.shape[1], device=x.device) if lengths is None else lengths
        last = torch.minimum(positions, _ends(ends, x)) if self.causal else _ends(ends, x)
        bias = None if self.distance is None else self.distance(positions, x.shape[1]).to(q.dtype)
        return scores(q, k, last, scale=self.scale, bias=bias).softmax(-1)

    def _heads(self, x: Tensor, start: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (B, H, T, K), keys and values (B, G, T, K) of x after `start` tokens."""
        H, G = self.heads, self.groups
        qk, v = split(self.qkv(x), H + 2 * G).split((H + G, G), 1)
        if self.positions == "rotary":
            qk = rotate(qk, start, self.base)
        q, k = qk.split((H, G), 1)
        return q, k, v

    def decode(self, program: Program, part: str, x: Vectors, y: Vectors, add: Vectors) -> Memory:
        """y = add + attention of x."""
        if not self.causal or self.positions == "relative":
            raise cannot_decode("attention looks at later tokens" if not self.causal else "attention has learned biases of distances")
        H, G, d = self.heads, self.groups, self.each
        qkv, mixed = program.add_shared("qkv", (H + 2 * G) * d), program.add_shared("mixed", H * d)
        angles = program.angles(d, self.base) if self.positions == "rotary" else None
        slopes = self.distance.get_buffer("slopes").to(program.dtype) if isinstance(self.distance, Alibi) else None
        program.linear(x, qkv, *linear(self.qkv))
        scale = d**-0.5 if self.scale is None else self.scale
        memory = KVCache(program, part, program.attend(qkv, mixed, (H, G, d), scale, angles=angles, slopes=slopes))
        program.linear(mixed, y, *linear(self.out), add=add)
        return memory

    @staticmethod
    def _positions(start: Tensor | None, x: Tensor) -> Tensor:
        time = torch.arange(x.shape[1], device=x.device).unsqueeze(0)
        return time if start is None else start.unsqueeze(1) + time


@final
class CrossAttention(nn.Module):
    """Queries from one sequence, keys and values from another, without positions and without a mask.

    Args:
        width: features per token of the queries
        heads: number of attention heads
        keys: features per token of the context; None is `width`
        values: features per token of the values, where they come from a third sequence
        scale: factor of the scores; None is one over the root of the head's width
        bias: add biases to queries, keys, values and outputs
        each: width of one head; None is width / heads
    """

    small_start = True

    @checked
    def __init__(
        self,
        width: PositiveWidth = 64,
        heads: Heads = 4,
        keys: PositiveWidth | None = None,
        values: PositiveWidth | None = None,
        scale: float | None = None,
        bias: bool = False,
        each: PositiveWidth | None = None,
    ) -> None:
        super().__init__()
        d = head_width(width if each is None else each * heads, heads, False, "CrossAttention")
        keys = keys or width
        self.width, self.heads, self.scale = width, heads, scale
        self.q, self.out = nn.Linear(width, heads * d, bias), nn.Linear(heads * d, width, bias)
        self.k, self.v = nn.Linear(keys, heads * d, bias), nn.Linear(values or keys, heads * d, bias)

    def read(self, context: Tensor, lengths: Tensor | None = None, values: Tensor | None = None) -> State:
        """Keys and values of a context (B, N, *), the first `lengths` tokens of each row, for `forward`."""
        k, v = split(self.k(context), self.heads), split(self.v(context if values is None else values), self.heads)
        if lengths is None:
            return {"k": k, "v": v, "length": torch.full((len(k),), k.shape[2], device=k.device)}
        inside = (torch.arange(k.shape[2], device=k.device) < lengths.unsqueeze(1))[:, None, :, None]
        return {"k": torch.where(inside, k, 0), "v": torch.where(inside, v, 0), "length": lengths}

    def forward(self, x: Tensor, context: State) -> Tensor:
        """x (B, T, D) attends to a context from `read` -> (B, T, D)."""
        q = split(self.q(x), self.heads)
        return self.out(merge(attend(q, context["k"], context["v"], _ends(context["length"], x), scale=self.scale)))

    def weights(self, x: Tensor, context: State) -> Tensor:
        """(B, H, T, N) attention weights."""
        q = split(self.q(x), self.heads)
        return scores(q, context["k"], _ends(context["length"], x), scale=self.scale).softmax(-1)


def scores(q: Tensor, k: Tensor, last: Tensor, *, scale: float | None = None, bias: Tensor | None = None) -> Tensor:
    """(B, H, T, N) scores before the softmax: scale q . k + bias, and -inf for masked keys."""
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    G = k.shape[1]
    logits = (_queries(q, G) @ k.mT * scale).unflatten(2, (-1, q.shape[2])).flatten(1, 2)
    return (logits if bias is None else logits + bias).masked_fill(~_visible_keys(last, k), float("-inf"))


def head_width(width: int, heads: int, rotary: bool, owner: str) -> int:
    """Width of one head; even for rotary positions, which rotate pairs."""
    d = width_per_head(width, heads, owner)
    if rotary and d % 2:
        raise BadInput(
            f"heads of width {d} have no pairs to rotate", where=owner, fix="use a width that is an even multiple of heads, or rotary=False"
        )
    return d


def refuse_state(state: State | None, owner: str) -> None:
    """Refuse a state where every token attends to the whole sequence."""
    if state is not None:
        raise BadInput(f"{owner} sees the whole sequence at once and cannot continue from a state", where="state", fix="give it all of x")


def _ends(lengths: Tensor, x: Tensor) -> Tensor:
    """(B, T) index of the last token of each row; an empty row attends to its first zeros, so that nothing is divided by zero."""
    return (lengths - 1).clamp_min(0).unsqueeze(1).expand(-1, x.shape[1])


def tiny() -> Attention:
    """A small layer for the contract tests."""
    return Attention(width=12, heads=6, groups=3)
