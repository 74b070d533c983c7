"""mLSTM: a matrix memory with a forget gate, an exponential input gate and a normalizer that never divides by less than one.

    S_t = f_t S_{t-1} + i_t k_t (x) v_t     z_t = f_t z_{t-1} + i_t k_t     o_t = S_t^T q_t / max(1, |z_t . q_t|)

Beck et al., xLSTM: Extended Long Short-Term Memory, 2024; the layer is that of xLSTM 7B, 2025.
"""

from __future__ import annotations

from typing import Annotated, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...core.errors import BadInput
from ...core.options import Range, checked
from ..recurrence import Rule, State, Steps, divide, with_ones
from ._gates import at_least_float32
from ._mixer import Recurrent
from ._parts import Heads, PositiveWidth, merge, split, width_per_head

LEAST = -1e5
"""lower limit of the log of a forget gate in the running maximum"""
FLOOR = 80.0
"""largest exponent for which exp and its gradient are finite in float32"""


def rule(q: Tensor, k: Tensor, v: Tensor, log_i: Tensor, log_f: Tensor, state: State | None = None) -> Rule:
    """S = f S + i k (x) v, z = f z + i k, o = S^T q / max(1, |z . q|): q, k (B, H, L, K), v (B, H, L, V), log_i, log_f (B, H, L).

    S and z are kept divided by e^m, m_t = max(log f_t + m_{t-1}, log i_t), so that no gate is above one.  The logs are
    summed in float64: small differences of large sums matter.
    """
    i, f = log_i.double(), log_f.double()
    start = (state or {}).get("m")
    # A new sequence has no maximum yet; its state is zero, so any finite value works.
    start = torch.zeros_like(i[..., 0]) if start is None else torch.where(start.isinf(), 0, start)
    m = _running_max(i, f, start)
    before = torch.cat([start.unsqueeze(-1), m[..., :-1]], -1)
    write, keep = (i - m).exp().to(log_i.dtype), (f + before - m).to(log_f.dtype)
    out = yield Steps(q, k * write.unsqueeze(-1), with_ones(v), log_head=keep)
    one = (-m).clamp(-FLOOR, FLOOR).exp().to(out.dtype).unsqueeze(-1)
    return divide(out[..., :-1], out[..., -1:].abs(), one), {"m": m}


def _running_max(i: Tensor, f: Tensor, start: Tensor) -> Tensor:
    """(B, H, L) m_t = max(f_t + m_{t-1}, i_t) from logs of the gates and the m (B, H) before the first step."""
    forgotten = f.clamp_min(LEAST).cumsum(-1)
    return forgotten + torch.maximum(start.unsqueeze(-1), (i - forgotten).cummax(-1).values)


@final
class MLSTM(Recurrent):
    """The layer: keys of half the width, gates of each head held within a cap, a norm for each head, a sigmoid output gate.

    Args:
        width: model dimension
        heads: independent states
        cap: soft cap of the gate preactivations; None is no cap
        input_bias: initial bias of the input gate; low, so that the gate starts almost closed
    """

    @checked
    def __init__(
        self, width: PositiveWidth = 64, heads: Heads = 4, cap: Annotated[float, Range(above=0)] | None = 15.0, input_bias: float = -10.0
    ) -> None:
        super().__init__()
        width_per_head(width, heads, "MLSTM")
        if width // 2 % heads:
            raise BadInput(
                f"the keys of a width of {width} take half of it, which cannot be divided into {heads} heads",
                where="MLSTM",
                fix=f"use a width that is a multiple of {2 * heads}",
            )
        self.width, self.heads, self.cap = width, heads, cap
        self.q, self.k = nn.Linear(width, width // 2, bias=False), nn.Linear(width, width // 2, bias=False)
        self.v, self.gate = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.input, self.forget = nn.Linear(width, heads), nn.Linear(width, heads)
        with torch.no_grad():
            self.input.weight.zero_()
            self.input.bias.fill_(input_bias)
            self.forget.weight.zero_()
            self.forget.bias.copy_(torch.linspace(3, 6, heads))
        self.norm = nn.Parameter(torch.ones(width))
        self.out = nn.Linear(width, width, bias=False)

    def mix(self, x: Tensor, state: State | None, lengths: Tensor | None) -> tuple[Tensor, State]:
        q, k, v = (split(project(x), self.heads) for project in (self.q, self.k, self.v))
        log_i, forget = (self._cap(at_least_float32(gate(x))).transpose(1, 2) for gate in (self.input, self.forget))
        o, after = self.recur(rule(q * q.shape[-1] ** -0.5, k, v, log_i, F.logsigmoid(forget), state), state, lengths)
        o = merge(F.layer_norm(o.to(v.dtype), o.shape[-1:], eps=1e-6)) * self.norm
        return self.out(o * torch.sigmoid(self.gate(x))), after

    def _cap(self, x: Tensor) -> Tensor:
        return x if self.cap is None else self.cap * torch.tanh(x / self.cap)


def tiny() -> MLSTM:
    """A small layer for the contract tests."""
    return MLSTM(width=12, heads=3)
