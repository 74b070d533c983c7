"""The record of one linear recurrence: what each step keeps, writes and reads.  Everything else is derived from it.

    S_t = A_t o S_{t-1} + k_t (x) v_t        o_t = S_t^T q_t

S is (K, V), key first.  Which fields are present decides what A_t is and therefore which execution forms exist:

    separable   log A[c,w] = log_head + log_key[c] + log_value[w]     any of the three may be missing
    hadamard    log A[c,w] = log_value[w] * rate[c,w]                 `rate` is present
    delta       A S = a (I - beta k k^T) S, the write is beta k (x) v  `beta` is present

Gates are logarithms, so a product over a thousand steps is a sum; an input gate is folded into k, a scale into q.

B batch, H heads, G key groups (G divides H), L length, K key width, V value width.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, final

import torch
from torch import Tensor

from ...core.errors import BadInput

RecurrenceKind = Literal["separable", "hadamard", "delta"]


@final
@dataclass(frozen=True)
class Steps:
    """One recurrence over a sequence.  A gate without batch and time axes is the same at every step."""

    q: Tensor | None
    """(B, G, L, K) queries; None is all ones"""
    k: Tensor | None
    """(B, G, L, K) keys; None is all ones"""
    v: Tensor
    """(B, H, L, V) values"""
    log_head: Tensor | None = None
    """(B, H, L) or (H,) log decay of the whole state"""
    log_key: Tensor | None = None
    """(B, H, L, K) or (H, K) log decay of each row of the state"""
    log_value: Tensor | None = None
    """(B, H, L, V) or (H, V) log decay of each column; with `rate` a (negative) time step instead"""
    rate: Tensor | None = None
    """(H, K, V) decay rate of each entry; may be complex, then the output is 2 Re(o)"""
    beta: Tensor | None = None
    """(B, H, L) write strength: how far the value stored under k moves to v"""
    read: Literal["after", "before"] = "after"
    """whether o_t sees the write of step t"""
    bonus_key: Tensor | None = None
    """(H, K) weight of the current step where the state is read before the write: o_t += (q . (bonus k)) v"""
    bonus_value: Tensor | None = None
    """(H, V) the same on the value side: o_t += (q . k) (bonus v)"""
    weight: Tensor | None = None
    """(H, K, V) fixed weight of each entry of the state when it is read"""

    def __post_init__(self) -> None:
        _check(self)

    @property
    def kind(self) -> RecurrenceKind:
        return "hadamard" if self.rate is not None else "delta" if self.beta is not None else "separable"

    @property
    def name(self) -> str:
        """The kind in full, such as 'separable: key + value decay'."""
        if self.kind == "hadamard":
            inside = "constant" if self.constant else "by step"
            return f"hadamard: {'complex, ' if self.complex else ''}{inside}"
        gates = [axis for axis in ("head", "key", "value") if getattr(self, f"log_{axis}") is not None]
        return f"{self.kind}: {' + '.join(gates) or 'no'} decay"

    @property
    def constant(self) -> bool:
        """The same step over and over, only v changes: the recurrence is a convolution."""
        return self.rate is not None and self.q is None and self.k is None and _like(self.log_value).dim() == 2

    @property
    def complex(self) -> bool:
        return self.rate is not None and self.rate.is_complex()

    @property
    def sizes(self) -> tuple[int, int, int, int, int]:
        """B, H, L, K, V."""
        B, H, L, V = self.v.shape
        K = _like(self.rate).shape[1] if self.k is None else self.k.shape[-1]
        return B, H, L, K, V

    @property
    def forms(self) -> tuple[str, ...]:
        """Execution forms this recurrence has, best known first."""
        if self.kind == "hadamard":
            fused = () if self.complex else ("fused",)
            return ("step", *fused, "chunk", "scan", *(("convolution",) if self.constant else ()))
        if self.kind == "delta" and self.log_value is not None:
            return ("step",)  # each value channel would need a triangular system of its own
        fused = () if self.kind == "delta" and (self.log_key is not None or self.read == "before") else ("fused",)
        return ("step", *fused, "parallel", "chunk", "scan")

    @property
    def state_dtype(self) -> torch.dtype:
        """What the state is kept in: at least float32, whatever the inputs are."""
        real = torch.float64 if self.v.dtype == torch.float64 else torch.float32
        return real.to_complex() if self.complex else real

    def empty_state(self) -> Tensor:
        B, H, _, K, V = self.sizes
        return torch.zeros(B, H, K, V, dtype=self.state_dtype, device=self.v.device)

    def by_step(self) -> Steps:
        """The same with constant gates spread over batch and time, as views."""
        B, H, L, _, _ = self.sizes
        if all(gate is None or gate.dim() == dims for gate, dims in ((self.log_head, 3), (self.log_key, 4), (self.log_value, 4))):
            return self

        def spread(gate: Tensor | None, dims: int) -> Tensor | None:
            if gate is None or gate.dim() == dims:
                return gate
            return gate.unsqueeze(1).unsqueeze(0).expand(B, H, L, *gate.shape[1:])

        return replace(self, log_head=spread(self.log_head, 3), log_key=spread(self.log_key, 4), log_value=spread(self.log_value, 4))

    def ungroup(self) -> Steps:
        """The same with one key per head instead of one per group."""
        H = self.v.shape[1]
        if all(x is None or x.shape[1] == H for x in (self.q, self.k)):
            return self

        def spread(x: Tensor | None) -> Tensor | None:
            if x is None or x.shape[1] == H:
                return x
            return x.unsqueeze(2).expand(-1, -1, H // x.shape[1], -1, -1).flatten(1, 2)

        return replace(self, q=spread(self.q), k=spread(self.k))

    def end_at(self, lengths: Tensor) -> Steps:
        """The same with steps from `lengths` (B,) on that change nothing: no decay, no write."""
        steps = self.by_step()
        B, H, L, K, _ = self.sizes
        alive = (torch.arange(L, device=self.v.device) < lengths.unsqueeze(1)).view(B, 1, L)

        def cut(x: Tensor | None) -> Tensor | None:
            # where() and not a product: what lies beyond the end may be anything, even NaN
            return None if x is None else torch.where(alive if x.dim() == 3 else alive.unsqueeze(-1), x, 0)

        # A row is written where k is not zero; without k it is v that must be zero.
        k, v = (None, cut(self.v)) if self.k is None else (cut(self.k), cut(self.v))
        assert v is not None
        gates = {name: cut(getattr(steps, name)) for name in ("log_head", "log_key", "log_value", "beta")}
        return replace(steps, k=k, v=v, q=cut(self.q), **gates)  # type: ignore[arg-type]

    def piece(self, start: int, stop: int) -> Steps:
        """Steps from `start` up to `stop`."""
        steps = self.by_step()
        names = ("q", "k", "v", "log_head", "log_key", "log_value", "beta")
        cut = {name: x[:, :, start:stop] for name in names if (x := getattr(steps, name)) is not None}
        return replace(steps, **cut)

    def bonus(self) -> Tensor | None:
        """(B, H, L, V) contribution of the current step to its own output; None without a bonus."""
        if self.bonus_key is None and self.bonus_value is None:
            return None
        steps = self.ungroup()
        q, k, v = _like(steps.q), _like(steps.k), steps.v
        if self.bonus_key is not None:
            k = k * self.bonus_key.unsqueeze(1)
        if self.bonus_value is not None:
            v = v * self.bonus_value.unsqueeze(1)
        return (q * k).sum(-1, keepdim=True) * v


def _like(x: Tensor | None) -> Tensor:
    """A field that is present for this kind of recurrence."""
    assert x is not None
    return x


def _check(s: Steps) -> None:
    """Check shapes and mutually exclusive fields, once for every form and mixer."""
    if s.v.dim() != 4:
        raise BadInput(f"v must be (batch, heads, length, width), not {tuple(s.v.shape)}", where="Steps", fix="add the missing axis")
    B, H, L, V = s.v.shape
    if s.rate is not None:
        if s.log_value is None or s.beta is not None or s.log_head is not None or s.log_key is not None or s.read == "before":
            raise BadInput("`rate` goes with log_value alone", where="Steps", fix="leave out beta, log_head, log_key and read='before'")
        K = s.rate.shape[1] if s.rate.dim() == 3 else -1
    else:
        if s.q is None or s.k is None or s.weight is not None:
            raise BadInput("without `rate` a recurrence needs q and k and has no `weight`", where="Steps", fix="give q and k")
        K = s.k.shape[-1]
    expected = {
        "log_head": (B, H, L), "log_key": (B, H, L, K), "log_value": (B, H, L, V), "beta": (B, H, L),
        "rate": (H, K, V), "weight": (H, K, V), "bonus_key": (H, K), "bonus_value": (H, V),
    }  # fmt: skip
    for name, shape in expected.items():
        x = getattr(s, name)
        constant = name.startswith("log_") and x is not None and tuple(x.shape) == (shape[1], *shape[3:])
        if x is not None and tuple(x.shape) != shape and not constant:
            raise BadInput(f"{name} is {tuple(x.shape)}, {_axis(x.shape, shape)}", where="Steps", fix=f"make it {shape}")
    if s.read == "after" and (s.bonus_key is not None or s.bonus_value is not None):
        raise BadInput("a bonus is for steps read before they are written", where="Steps", fix="say read='before', or leave it out")
    for name in ("q", "k"):
        x = getattr(s, name)
        if x is None:
            continue
        G = x.shape[1] if x.dim() == 4 else 0
        if G < 1 or H % G:
            raise BadInput(
                f"{name} is {tuple(x.shape)} and has no number of heads that divides {H}", where="Steps", fix=f"make it {(B, H, L, K)}"
            )
        if tuple(x.shape) != (B, G, L, K):
            raise BadInput(f"{name} is {tuple(x.shape)}, {_axis(x.shape, (B, G, L, K))}", where="Steps", fix=f"make it {(B, G, L, K)}")
    if s.q is not None and s.k is not None and s.q.shape[1] != s.k.shape[1]:
        raise BadInput(f"q has {s.q.shape[1]} groups and k {s.k.shape[1]}", where="axis 1 (heads)", fix="give both the same number")
    if not s.v.dtype.is_floating_point:
        raise BadInput(f"v is {str(s.v.dtype).removeprefix('torch.')}", where="Steps", fix="give floating-point numbers")


def _axis(actual: torch.Size, expected: tuple[int, ...]) -> str:
    """Which axis is wrong, in words."""
    names = {2: "heads width", 3: "batch heads length", 4: "batch heads length width"}.get(len(expected), "").split()
    if len(actual) != len(expected):
        return f"{len(actual)} axes instead of {len(expected)}"
    i = next(i for i, (a, b) in enumerate(zip(actual, expected)) if a != b)
    return f"axis {i} ({names[i]}) must be {expected[i]}"
