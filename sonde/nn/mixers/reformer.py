"""Reformer: softmax attention only between tokens that fall into the same bucket of a random hash.

Kitaev et al., Reformer: The Efficient Transformer, 2020.  Queries and keys are one vector, k = q / |q|; its bucket is
argmax [R q, -R q] for a random R, so vectors at a small angle tend to share a bucket.  Several rounds with other R
find pairs that one misses.  R is drawn once and fixed.

The exact pattern: token i attends to every earlier token that shares its bucket in any round, each once, and to itself only
where there is none.  The published program sorts by bucket and splits the sorted row into chunks, where a token attends to
its own chunk and the one before; `capacity` selects that.  The chunk boundaries depend on all tokens, later ones too, so it
is not strictly causal, has no state, and decoding cannot reproduce it.

B batch, H heads, T time, N keys, K width of a head, R rounds, C capacity.
"""

from __future__ import annotations

from typing import Annotated, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...core.errors import BadInput
from ...core.options import Range, checked
from ..precision import full_precision
from ..recurrence import State
from ._mixer import Mixer
from ._parts import Heads, PositiveWidth, merge, rotate, split
from .attention import append, attend_where, head_width, state_length

ALONE = -1e4
"""score of a token with itself: negligible beside any other token, used where there is none"""


def hash_buckets(x: Tensor, rotations: Tensor) -> Tensor:
    """x (B, H, T, K), rotations (H, R, K, buckets / 2) -> (B, H, T, R) the bucket in each round; it does not depend on the norm of x."""
    with full_precision(x):  # a rounded product would move tokens to other buckets
        wide = torch.promote_types(x.dtype, torch.float32)
        turned = torch.einsum("bhtk,hrkn->bhtrn", x.to(wide), rotations.to(wide))
        return torch.cat([turned, -turned], -1).argmax(-1)


def visible_keys(buckets: Tensor, others: Tensor, position: Tensor) -> Tensor:
    """(B, H, T, N) mask of the keys for queries in `buckets` (B, H, T, R) at `position` (B, T), of keys in `others` (B, H, N, R)."""
    same = torch.zeros(1, dtype=torch.bool, device=position.device)
    for one, other in zip(buckets.unbind(-1), others.unbind(-1)):
        same = same | (one.unsqueeze(-1) == other.unsqueeze(-2))
    gap = (position.unsqueeze(-1) - torch.arange(others.shape[2], device=position.device)).unsqueeze(1)
    pairs = same & (gap > 0)
    return pairs | ((gap == 0) & ~pairs.any(-1, keepdim=True))


@final
class Reformer(Mixer):
    """The layer: one projection for queries and keys, one for values, separate hashes for each head.

    Without `capacity` its state is a KV cache, which grows with the sequence.

    Args:
        width: model dimension
        heads: number of attention heads
        buckets: buckets of the hash, an even number
        rounds: number of hashes; a pair counts if it shares a bucket in any
        capacity: chunk length of the sorted version, at linear cost, for whole sequences only; None attends to whole buckets
        rotary: rotary position embeddings, applied after hashing
    """

    rotations: Tensor
    grows = ("k", "v", "buckets")

    @checked
    def __init__(
        self,
        width: PositiveWidth = 64,
        heads: Heads = 4,
        buckets: Annotated[int, Range(2)] = 8,
        rounds: Annotated[int, Range(1)] = 2,
        capacity: Annotated[int, Range(1)] | None = None,
        rotary: bool = True,
    ) -> None:
        super().__init__()
        d = head_width(width, heads, rotary, "Reformer")
        if buckets % 2:
            raise BadInput(f"{buckets} buckets do not pair up: every direction has an opposite", where="Reformer", fix="use an even number")
        self.width, self.heads, self.capacity, self.rotary, self.scale = width, heads, capacity, rotary, d**-0.5
        self.causal = capacity is None
        self.qk, self.v, self.out = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.register_buffer("rotations", torch.randn(heads, rounds, d, buckets // 2))

    def forms(self) -> tuple[str, ...]:
        return ("step", "parallel") if self.capacity is None else ("parallel",)

    def auto(self, length: int) -> tuple[str, str]:
        return "parallel", "all pairs that share a bucket at once"

    def mix(self, x: Tensor, state: State | None, lengths: Tensor | None) -> tuple[Tensor, State]:
        if self.capacity is not None and state is not None:
            raise BadInput(
                "the sorted Reformer has no state: its chunks move with every token, decoding cannot reproduce it",
                where="state",
                fix="give it all of x, or make it with capacity=None",
            )
        q, v = split(self.qk(x), self.heads), split(self.v(x), self.heads)
        buckets, k = hash_buckets(q, self.rotations), F.normalize(q, dim=-1)
        start = None if state is None else state["length"]
        if self.rotary:
            q, k = rotate(q, start), rotate(k, start)
        if self.capacity is not None:
            return self.out(merge(self._sorted_attention(q, append(None, {"k": k, "v": v, "buckets": buckets}, lengths)))), {}
        time, n = torch.arange(x.shape[1], device=x.device), state_length(state) + x.shape[1]
        position = (time if start is None else start.unsqueeze(1) + time).expand(len(x), -1)
        kept = append(state, {"k": k, "v": v, "buckets": buckets}, lengths)
        k, v, others = (kept[name][:, :, :n] for name in ("k", "v", "buckets"))
        size = 1 if self.form == "step" else x.shape[1]
        parts = zip(q.split(size, 2), buckets.split(size, 2), position.split(size, 1))
        o = [attend_where(visible_keys(mine, others, at), now, k, v, self.scale) for now, mine, at in parts]
        return self.out(merge(torch.cat(o, 2))), kept

    def _sorted_attention(self, q: Tensor, kept: State) -> Tensor:
        """Each round separately, combined by their sums of weights; a pair that occurs in several rounds is divided among them."""
        assert self.capacity is not None
        T, C, pad = q.shape[2], self.capacity, -q.shape[2] % self.capacity
        q, k, v = (F.pad(x, (0, 0, 0, pad)) for x in (q, kept["k"], kept["v"]))
        time = torch.arange(T + pad, device=q.device)
        counts = (time < kept["length"].unsqueeze(1))[:, None, :, None]
        buckets = torch.where(counts, F.pad(kept["buckets"], (0, 0, 0, pad)), 2 * self.rotations.shape[-1])  # padding comes last
        order = (buckets * (T + pad) + time.unsqueeze(-1)).argsort(2).movedim(-1, 2)  # (B, H, R, T)
        back = order.argsort(-1)
        chunk = (back // C).movedim(2, -1)  # (B, H, T, R)

        def pick(x: Tensor, before: bool = False) -> Tensor:
            """(B, H, T, D) -> (B, H, R, chunks, C, D) in order; `before` prepends the previous chunk to each."""
            x = x.unsqueeze(2).expand(-1, -1, order.shape[2], -1, -1)
            x = x.gather(3, order.unsqueeze(-1).expand(*order.shape, x.shape[-1])).unflatten(3, (-1, C))
            return torch.cat([F.pad(x, (0, 0, 0, 0, 1, -1), value=-1), x], -2) if before else x  # -1 is no bucket

        tags = torch.cat([buckets, chunk, time[:, None].expand(*buckets.shape[:3], 1)], -1).int()
        mine, theirs = pick(tags).unsqueeze(-2), pick(tags, before=True).unsqueeze(-3)  # (.., C, 1, tags) and (.., 1, 2 C, tags)
        rounds, times, meetings = buckets.shape[-1], torch.zeros((), dtype=q.dtype, device=q.device), []
        for r in range(rounds):  # how often each pair meets in all, and whether it does in the round it is laid out for
            gap = mine[..., rounds + r] - theirs[..., rounds + r]
            met = (mine[..., r] == theirs[..., r]) & (gap >= 0) & (gap <= 1)
            times = times + met
            meetings.append(met[:, :, r])
        here, later = torch.stack(meetings, 2), mine[..., -1] - theirs[..., -1]
        scores = pick(q) @ pick(k, before=True).mT * self.scale - times.clamp_min(1).log()
        scores = torch.where(here & (later > 0), scores, float("-inf")).masked_fill(here & (later == 0), ALONE)
        total = scores.logsumexp(-1, keepdim=True)
        both = torch.cat([torch.exp(scores - total) @ pick(v, before=True), total], -1).flatten(3, 4)
        out, total = both.gather(3, back.unsqueeze(-1).expand(*back.shape, both.shape[-1])).split([v.shape[-1], 1], -1)
        return (total.softmax(2) * out).sum(2)[:, :, :T]


def tiny() -> Reformer:
    """A small layer for the contract tests."""
    return Reformer(width=12, heads=3, buckets=4, rounds=2)
