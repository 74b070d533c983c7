"""Mistakes about attention, made on purpose, that turn chapter 17 red."""

from __future__ import annotations

from pathlib import Path

import torch

from sonde.atlas import attention as att
from sonde.atlas.exhibit import Exhibit
from sonde.nn import block, positions
from sonde.nn.mixers import attention
from tests.atlas.mistakes import Mistakes

mistakes = Mistakes()

mistakes.add("ATT-02", "weights over the wrong axis", red="weights against the sum").replace(
    attention, "scores", lambda right, q, k, last, **how: right(q, k, last, **how).mT
)
mistakes.add("ATT-03", "a missing root", red="against the matrix form").replace(
    att, "attend", lambda right, q, k, v, *a, scale=None, **how: right(q, k, v, *a, scale=1.0 if scale is None else scale, **how)
)
mistakes.add("ATT-04", "a score that does not look at the query", red="score against its formula").replace(
    att.SourceAttention, "forward", lambda right, self, query, *others: right(self, torch.zeros_like(query), *others)
)
mistakes.add("ATT-05", "a token that sees the next one", red="same bits").replace(
    attention, "attend", lambda right, q, k, v, *a, causal=False, **how: right(q, k, v, *a, causal=False, **how)
)
mistakes.add("ATT-06", "positions that do nothing", red="rotary").replace(attention, "rotate", lambda x, *how: x)
mistakes.add("ATT-07", "heads in the wrong order", red="one after the other").replace(attention, "merge", lambda right, x: right(x.flip(1)))
mistakes.add("ATT-08", "a source that is not seen", red="last source token").replace(
    attention.CrossAttention, "forward", lambda right, self, x, context: right(self, x, {**context, "length": context["length"] * 0 + 1})
)
mistakes.add("ATT-12", "a table without end", red="refuses 9").replace(
    positions.Positions, "forward", lambda self, x, *rest: (x + self.code(torch.arange(x.shape[1]).clamp_max(7)), {})
)
mistakes.add("ATT-15", "a cache that forgets", red="step by step").replace(att, "STEPS", 2).replace(
    Exhibit, "seeds", lambda self, n=3: range(2)
).replace(att.EncoderDecoder, "advance", lambda right, self, x, state, **how: (right(self, x, state, **how)[0], state))
mistakes.add("ATT-16", "tokens that do not depend on each other", red="chain of an RNN").replace(
    att, "RNN", lambda width: att._layer(Exhibit(Path()), width)
)
mistakes.add("ATT-16", "weights of a few keys only", red="bytes alive").replace(
    attention, "scores", lambda right, q, k, last, **how: right(q, k[:, :, :32], last, **how)
)


@mistakes.add("ATT-05", "a mask of zeros", red="weights of padded keys").replace(attention, "scores")
def soft(right, q, k, last, **how):
    scores = right(q, k, last, **how)
    return scores.masked_fill(scores.isinf(), 0.0)


@mistakes.add("ATT-10", "waves with the raw channel in the exponent", red="d = 4, i = 1").replace(att, "sinusoidal")
@mistakes.add("ATT-11", "waves with the raw channel in the exponent", red="R(f) P_t").replace(att, "sinusoidal")
def printed(positions, width, base=10000.0):
    channel = torch.arange(width)
    angle = positions.double().unsqueeze(-1) * base ** (-2 * channel.double() / width)
    return torch.where(channel % 2 == 0, angle.sin(), angle.cos())


@mistakes.add("ATT-13", "a norm in the wrong place", red="norms after").replace(block.Block, "_sum")
@mistakes.add("ATT-14", "a norm in the wrong place", red="norms after").replace(block.Block, "_sum")
def norm_the_branch(self, x, y, norm):
    return x + norm(y) if self.post else x + y


@mistakes.each
def test_notices(mistake, monkeypatch):
    mistake.assert_noticed(monkeypatch)
