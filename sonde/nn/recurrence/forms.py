"""The execution forms in torch: the same outputs by a loop, by matrix products, by chunks, by a scan, by a convolution.

    step         one step after the other: the definition, and decoding
    parallel     (Q K^T o D) V, all pairs of positions: quadratic in the length
    chunk        pairs inside chunks, states between them: linear in the length
    scan         chunks again, their summaries joined in a tree: logarithmic depth
    convolution  where every step is the same: the output is v convolved with a kernel, by FFT

No form ever divides by a decay or subtracts two sums of logs: where a pair of positions is far apart its decay is taken
as a product of two factors below one that meet at a boundary between them.  So gates may have any value from log 1 = 0 to
log 0 = -inf, at any length.

Every form maps (steps, state (B, H, K, V)) to (out (B, H, L, V), state).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from .scan import combine_rule, scan
from .steps import Steps

CHUNK = 64
PIECE = 32
"""steps per scan of a Hadamard recurrence: its temporary states take K x V numbers per step"""
FIRST, SECOND = (..., 0, slice(None), slice(None)), (..., 1, slice(None), slice(None))
"""halves of a chunk, once its axis is split in two"""


def step(s: Steps, state: Tensor) -> tuple[Tensor, Tensor]:
    """The recurrence as it is written, one step after the other."""
    s = s.ungroup().by_step()
    B, H, L, K, V = s.sizes
    # unbind once: an index inside the loop would make the gradient of each step as long as the sequence
    times = {
        name: x.unbind(2) for name in ("q", "k", "v", "log_head", "log_key", "log_value", "beta") if (x := getattr(s, name)) is not None
    }
    S, outs = state, []
    for t in range(L):
        now = {name: x[t] for name, x in times.items()}
        before = S
        S = _decay(S, now, s.rate)
        v = now["v"].to(S.dtype)
        if s.beta is not None:
            v = now["beta"].unsqueeze(-1) * (v - torch.einsum("bhkv,bhk->bhv", S, now["k"]))
        S = S + (v.unsqueeze(-2) if s.k is None else now["k"].unsqueeze(-1) * v.unsqueeze(-2))
        outs.append(_read_out(before if s.read == "before" else S, now.get("q"), s.weight))
    return torch.stack(outs, 2) if outs else s.v.new_zeros(B, H, 0, V), S


def _decay(S: Tensor, now: dict[str, Tensor], rate: Tensor | None) -> Tensor:
    """The state after the decay of one step."""
    if rate is not None:
        return S * torch.exp(now["log_value"].unsqueeze(-2) * rate)
    if "log_head" in now:
        S = S * now["log_head"].exp()[..., None, None]
    if "log_key" in now:
        S = S * now["log_key"].exp().unsqueeze(-1)
    return S * now["log_value"].exp().unsqueeze(-2) if "log_value" in now else S


def _read_out(S: Tensor, q: Tensor | None, weight: Tensor | None) -> Tensor:
    """o = sum over keys of q weight S."""
    S = S if weight is None else S * weight
    out = S.sum(-2) if q is None else torch.einsum("...kv,...k->...v", S, q.to(S.dtype))
    return _real(out)


def parallel(s: Steps, state: Tensor) -> tuple[Tensor, Tensor]:
    """All pairs at once: one chunk as long as the sequence."""
    return _chunks(s, state, 1 << max(s.v.shape[2] - 1, 0).bit_length(), tree=False)


def chunk(s: Steps, state: Tensor) -> tuple[Tensor, Tensor]:
    """Pairs inside chunks, a loop over the states between them."""
    if s.kind == "hadamard":
        return _pieces(s, state, PIECE)
    return _chunks(s, state, CHUNK, tree=False)


def scan_form(s: Steps, state: Tensor) -> tuple[Tensor, Tensor]:
    """Summaries of chunks joined in a tree; a Hadamard recurrence has no cheaper summary than each step itself."""
    if s.kind == "hadamard":
        return _pieces(s, state, max(s.v.shape[2], 1))
    return _chunks(s, state, 16, tree=True)


# Pairs ------------------------------------------------------------------------------------------------------------


def _chunks(s: Steps, state: Tensor, C: int, tree: bool) -> tuple[Tensor, Tensor]:
    s = s.ungroup().by_step()
    L = s.v.shape[2]
    if L == 0:
        return s.v.new_zeros(s.v.shape), state
    gates = [x for x in (s.log_key, None if s.log_head is None else s.log_head.unsqueeze(-1)) if x is not None]
    row = sum(gates[1:], gates[0]) if gates else None  # over the key axis, or one number for all of it

    def fold(x: Tensor | None) -> Tensor | None:
        """(B, H, L, D) -> (n, B, H, C, D), padded with steps that change nothing."""
        if x is None:
            return None
        return F.pad(x, (0, 0, 0, -L % C)).unflatten(2, (-1, C)).movedim(2, 0)

    q, k, v, key, value = (fold(x) for x in (s.q, s.k, s.v, row, s.log_value))
    assert q is not None and k is not None and v is not None
    before = s.read == "before"
    q_in, k_out, v_out = _times(q, _decay_up_to(key, before)), _times(k, _after(key)), _times(v, _after(value))
    end = _end(key, value, state, len(v))
    if s.beta is None:
        inside = _inside(q, k, v, key, value, before)
        H = k_out.mT @ v_out
        end = end.expand_as(H)
        states, state = _states_by_scan(torch.mul, end, H, state) if tree else _states_in_order(end, H, state)
        out = inside + _times(q_in @ states, _decay_up_to(value, before))
    else:
        beta = fold(s.beta.unsqueeze(-1))
        assert beta is not None
        # (I + M) u = beta (v - k_in S): removes the dependence on earlier writes of the same chunk
        M = beta * _scores(k, k, key, before=False).tril(-1)
        A = _scores(q, k, key, before)
        both = torch.cat([beta * v, beta * _times(k, _decay_up_to(key, False))], -1)
        U, W = torch.linalg.solve_triangular(M, both, upper=False, unitriangular=True).split([v.shape[-1], k.shape[-1]], -1)
        if tree:
            P = torch.diag_embed(end.squeeze(-1).expand(*end.shape[:-2], k.shape[-1])) - k_out.mT @ W
            states, state = _states_by_scan(torch.matmul, P, k_out.mT @ U, state)
            out = q_in @ states + A @ (U - W @ states)
        else:
            outs = []
            for n in range(len(U)):
                u = U[n] - W[n] @ state
                outs.append(q_in[n] @ state + A[n] @ u)
                state = end[n] * state + k_out[n].mT @ u
            out = torch.stack(outs)
    return out.movedim(0, 2).flatten(2, 3)[:, :, :L], state


def _states_by_scan(apply: Callable[[Tensor, Tensor], Tensor], P: Tensor, H: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """States before each chunk (n, B, H, K, V) and the one after the last, S' = P S + H for each, by a scan."""
    _, after = scan(combine_rule(apply), (P, torch.cat([(apply(P[0], state) + H[0]).unsqueeze(0), H[1:]])))
    return torch.cat([state.unsqueeze(0), after[:-1]]), after[-1]


def _states_in_order(P: Tensor, H: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """The same, one chunk after the other."""
    states = [state]
    for p, h in zip(P, H):
        states.append(p * states[-1] + h)
    return torch.stack(states[:-1]), states[-1]


def _inside(q: Tensor, k: Tensor, v: Tensor, key: Tensor | None, value: Tensor | None, before: bool) -> Tensor:
    """out_i = sum over j <= i of (q_i . k_j) v_j, each pair decayed by the steps between; j < i where read before.

    The second half of the positions reads the first through the boundary between them, and each half is solved recursively:
    exponents are sums away from a boundary, never differences.
    """
    if value is None:
        return _scores(q, k, key, before) @ v
    C = q.shape[-2]
    if C == 1:
        return torch.zeros_like(v) if before else (q * k).sum(-1, keepdim=True) * v
    q, k, v, value = (x.unflatten(-2, (2, -1)) for x in (q, k, v, value))
    key = None if key is None else key.unflatten(-2, (2, -1))
    inner = _inside(q, k, v, key, value, before)
    reads = _times(q[SECOND], None if key is None else _decay_up_to(key[SECOND], before))
    writes = _times(k[FIRST], None if key is None else _after(key[FIRST]))
    cross = reads @ writes.mT @ _times(v[FIRST], _after(value[FIRST]))
    return torch.cat([inner[FIRST], inner[SECOND] + _times(cross, _decay_up_to(value[SECOND], before))], -2)


def _scores(q: Tensor, k: Tensor, key: Tensor | None, before: bool) -> Tensor:
    """(..., C, C) the lower triangle of q_i . k_j with the decay of the steps j+1 .. i; .. i-1 and no diagonal where read before."""
    C = q.shape[-2]
    if key is None or key.shape[-1] == 1:  # one number per pair, whatever the channel
        scores = (q @ k.mT).tril(-1 if before else 0)
        return scores if key is None else scores * _sums(key.squeeze(-1), before).exp()
    if C == 1:
        return torch.zeros_like(q[..., :1]) if before else (q * k).sum(-1, keepdim=True)
    q, k, key = (x.unflatten(-2, (2, -1)) for x in (q, k, key))
    inner = _scores(q, k, key, before)
    cross = _times(q[SECOND], _decay_up_to(key[SECOND], before)) @ _times(k[FIRST], _after(key[FIRST])).mT
    return torch.cat([F.pad(inner[FIRST], (0, C // 2)), torch.cat([cross, inner[SECOND]], -1)], -2)


def _sums(g: Tensor, before: bool) -> Tensor:
    """(..., C, C) g_{j+1} + ... + g_i, or to g_{i-1}: sums of their own for each j, so that -inf never meets -inf."""
    C = g.shape[-1]
    if before:
        g = F.pad(g[..., :-1], (1, 0))
    below = torch.ones(C, C, dtype=torch.bool, device=g.device).tril(-2 if before else -1)
    return torch.where(below, g.unsqueeze(-1), 0).cumsum(-2)


def _decay_up_to(g: Tensor | None, before: bool) -> Tensor | None:
    """Decay from the start of the chunk up to each step, this one included or not."""
    if g is None:
        return None
    return (F.pad(g[..., :-1, :], (0, 0, 1, 0)) if before else g).cumsum(-2).exp()


def _after(g: Tensor | None) -> Tensor | None:
    """Decay from each step, this one left out, to the end of the chunk."""
    return None if g is None else F.pad(g[..., 1:, :], (0, 0, 0, 1)).flip(-2).cumsum(-2).flip(-2).exp()


def _end(key: Tensor | None, value: Tensor | None, state: Tensor, n: int) -> Tensor:
    """(n, B, H, K or 1, V or 1) decay of the state over each whole chunk."""
    end = state.new_ones(n, 1, 1, 1, 1)
    if key is not None:
        end = end * key.sum(-2).exp().unsqueeze(-1)
    return end if value is None else end * value.sum(-2).exp().unsqueeze(-2)


def _times(x: Tensor, factor: Tensor | None) -> Tensor:
    return x if factor is None else x * factor


# Steps of a Hadamard recurrence -----------------------------------------------------------------------------------


def _pieces(s: Steps, state: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """A scan over the steps of each piece, one piece after the other."""
    outs = []
    for start in range(0, s.v.shape[2], size):
        out, state = _scan_steps(s.piece(start, start + size), state)
        outs.append(out)
    return torch.cat(outs, 2) if outs else s.v.new_zeros(s.v.shape), state


def _scan_steps(s: Steps, state: Tensor) -> tuple[Tensor, Tensor]:
    s = s.ungroup()
    assert s.rate is not None and s.log_value is not None
    P = torch.exp(s.log_value.unsqueeze(-2) * s.rate.unsqueeze(1)).movedim(2, 0)
    H = s.v.unsqueeze(-2).to(state.dtype)
    H = (H.expand(*H.shape[:3], s.rate.shape[1], -1) if s.k is None else s.k.unsqueeze(-1) * H).movedim(2, 0)
    H = torch.cat([(H[0] + P[0] * state).unsqueeze(0), H[1:]])
    _, after = scan(combine_rule(torch.mul), (P, H))
    weight = None if s.weight is None else s.weight.unsqueeze(1)
    return _read_out(after.movedim(0, 2), s.q, weight), after[-1]


def convolution(s: Steps, state: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """v convolved with the impulse response: L log L instead of L K for each channel.

    With e = log_value * rate a step multiplies by exp(e).  The power exp(t e) of t = n C + l is that of l in the first chunk
    times that of n C, so C + L / C exponentials an entry are enough, fewest for C near sqrt(L); the rest are products over K.

    An FFT rounds relative to the largest value of the sequence: a value that is not finite affects all outputs of its channel,
    where the other forms affect only later ones.
    """
    rate, gate, v, (B, H, L, _, V) = s.rate, s.log_value, s.v, s.sizes
    assert rate is not None and gate is not None
    if not L or not B:
        return v.new_zeros(v.shape), state
    ends = torch.full((B,), L, device=v.device) if lengths is None else lengths
    if lengths is not None:
        v = torch.where((torch.arange(L, device=v.device) < lengths.unsqueeze(1))[:, None, :, None], v, 0)
    e = gate.unsqueeze(-2) * rate  # (H, K, V)
    C = 1 << ((L - 1).bit_length() + 1) // 2
    time = torch.arange(-(-L // C) * C, device=v.device, dtype=v.dtype)
    inside, chunks = (torch.exp(t.view(-1, 1, 1, 1) * e) for t in (time[:C], time[::C]))
    read = torch.ones_like(e) if s.weight is None else s.weight.to(e.dtype)
    kernel = _real(torch.einsum("lhkv,nhkv->hnlv", inside, chunks * read)).flatten(1, 2)[:, :L]
    out = torch.fft.irfft(torch.fft.rfft(v, 2 * L, dim=2) * torch.fft.rfft(kernel, 2 * L, dim=1), 2 * L, dim=2)[:, :, :L]
    if state.requires_grad or state.is_meta or bool(state.any()):
        carried = (read * e.exp() * state).unsqueeze(1) * chunks
        out = out + _real(torch.einsum("lhkv,bnhkv->bhnlv", inside, carried)).flatten(2, 3)[:, :, :L]
    # The weight of a step in the final state is a power of its distance to the end.
    back = ends.unsqueeze(1) - 1 - time.long()
    v = v.gather(2, back.clamp_min(0)[:, None, :, None].expand(-1, H, -1, V))
    v = torch.where((back >= 0)[:, None, :, None], v, 0).unflatten(2, (-1, C)).to(e.dtype)
    written = (torch.einsum("lhkv,bhnlv->bnhkv", inside, v) * chunks).sum(1)
    return out, torch.exp(ends.to(v.dtype)[:, None, None, None] * e) * state + written


def _real(x: Tensor) -> Tensor:
    return 2 * x.real if x.is_complex() else x
