"""RWKV-6 against loops written here from the formula; transformers has RWKV-4, whose recurrence the rule contains."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from sonde.nn.mixers.rwkv6 import RWKV6, rule
from sonde.nn.recurrence import run
from tests.nn.mixers.compare import LENGTHS, normal, same_layer, same_rule
from tests.nn.mixers.peers import perturb

H, K, V = 3, 4, 7


def loop(q: Tensor, k: Tensor, v: Tensor, log_a: Tensor, d: Tensor, bonus: str) -> Tensor:
    """One sequence of one head, with the notes' S (values first)."""
    S, rows = torch.zeros(v.shape[1], k.shape[1], dtype=v.dtype), []
    for t in range(len(v)):
        now = torch.outer(d * v[t], k[t]) if bonus == "value" else torch.outer(v[t], d * k[t])
        rows.append((S + now) @ q[t])
        S = S @ torch.diag(log_a[t].exp()) + torch.outer(v[t], k[t])
    return torch.stack(rows)


def inputs(L: int, bonus: str = "value") -> list[Tensor]:
    """q, k, v, log_a, d with a batch of one."""
    gate = -normal(3, 1, H, L, K).exp()
    return [normal(0, 1, H, L, K), normal(1, 1, H, L, K), normal(2, 1, H, L, V), gate, normal(4, 1, H, V if bonus == "value" else K)]


@pytest.mark.parametrize("bonus", ["value", "key"])
@pytest.mark.parametrize("L", LENGTHS)
def test_rule_is_the_formula(L: int, bonus: str) -> None:
    same_rule(
        lambda q, k, v, log_a, d: rule(q, k, v, log_a, d[0], bonus),
        lambda *xs: loop(*xs, bonus),
        *inputs(L, bonus),
    )


def test_first_output_is_the_bonus_alone() -> None:
    """o_1 = (d v_1)(k_1 . q_1) as the notes have it; v_1 ((d k_1) . q_1) in the published model."""
    q, k, v, log_a, d = inputs(5)
    out, _ = run(rule(q, k, v, log_a, d[0]))
    assert torch.allclose(out[:, :, 0], d * v[:, :, 0] * (k * q)[:, :, 0].sum(-1, keepdim=True), atol=1e-12)
    d = normal(4, H, K)
    out, _ = run(rule(q, k, v, log_a, d, "key"))
    assert torch.allclose(out[:, :, 0], v[:, :, 0] * (d * (k * q)[:, :, 0]).sum(-1, keepdim=True), atol=1e-12)


def test_the_sides_are_equal_where_the_bonus_is_constant_and_only_there() -> None:
    q, k, v, log_a, _ = inputs(9)
    same = torch.full((H, 1), 0.7, dtype=torch.float64)
    value, _ = run(rule(q, k, v, log_a, same.expand(H, V)))
    key, _ = run(rule(q, k, v, log_a, same.expand(H, K), "key"))
    assert torch.allclose(value, key, atol=1e-12)
    v, ramp = v[..., :K], torch.linspace(0, 1, K, dtype=torch.float64).expand(H, K)
    assert not torch.allclose(run(rule(q, k, v, log_a, ramp))[0], run(rule(q, k, v, log_a, ramp, "key"))[0], atol=1e-2)


def test_no_decay_and_a_bonus_of_one_is_linear_attention() -> None:
    q, k, v, log_a, d = inputs(12)
    output, _ = run(rule(q, k, v, torch.zeros_like(log_a), torch.ones_like(d[0])))
    assert torch.allclose(output, (q @ k.mT).tril() @ v, atol=1e-12)


def reference(bonus: str):
    def layer(x: Tensor, w: dict[str, Tensor]) -> Tensor:
        """One sequence (T, 12) in 3 heads of 4, token by token."""
        before, outs, S = torch.zeros(12, dtype=x.dtype), [], [torch.zeros(4, 4, dtype=x.dtype) for _ in range(3)]
        for now in x:
            step = before - now
            low = torch.tanh((now + step * w["time_mix"][0]) @ w["blend_in"]).view(5, -1)
            blends = [now + step * (w["time_mix"][i + 1] + low[i] @ w["blend_out"][i]) for i in range(5)]
            a = torch.exp(-torch.exp(w["decay"] + torch.tanh(blends[0] @ w["decay_in"]) @ w["decay_out"]))
            k, v, r, g = (w[f"{name}.weight"] @ blend for name, blend in zip(("k", "v", "r", "gate"), blends[1:]))
            heads = []
            for h in range(3):
                own = slice(4 * h, 4 * h + 4)
                d = w["time_first"][h]
                write = torch.outer(k[own], v[own])
                o = r[own] @ (S[h] + (d[:, None] * write if bonus == "key" else write * d[None, :]))
                S[h] = a[own, None] * S[h] + write
                heads.append((o - o.mean()) / (o.var(unbiased=False) + 64e-5).sqrt())
            o = torch.cat(heads) * w["norm.weight"] + w["norm.bias"]
            outs.append(w["out.weight"] @ (o * F.silu(g)))
            before = now
        return torch.stack(outs)

    return layer


@pytest.mark.parametrize("bonus", ["key", "value"])
@pytest.mark.parametrize("L", LENGTHS)
def test_layer_is_what_is_written_out(L: int, bonus: str) -> None:
    layer = perturb(RWKV6(width=12, heads=3, rank=2, decay_rank=5, bonus=bonus)).double()
    same_layer(layer, reference(bonus), normal(8, 2, L, 12))


def test_starts_as_published() -> None:
    layer = RWKV6(width=8, heads=2)
    decay, share = layer.decay.detach(), layer.time_mix.detach()
    assert float(decay[0]) == -6 and float(decay[-1]) == pytest.approx(-1)
    assert torch.equal(share[:, 0], torch.ones(6)) and float(share[5, 2]) == pytest.approx(0.5) and float(share[1, 2]) == 0.75
    assert torch.allclose(layer.time_first.detach().flatten()[:4], torch.tensor([0.0, 0.1, -0.1, 0.0]))
    assert not layer.blend_in.any() and not layer.decay_in.any()


def test_contains_rwkv4_of_transformers() -> None:
    """Each channel a head with a key and a value of one number, constant decay, and a column of ones to divide by."""
    pytest.importorskip("transformers")
    from transformers.models.rwkv.modeling_rwkv import rwkv_linear_attention_cpu

    B, T, D = 2, 19, 6
    decay, first, key, value = normal(1, D).float(), normal(2, D).float(), normal(3, B, T, D).float(), normal(4, B, T, D).float()
    expected, _ = rwkv_linear_attention_cpu(decay, first, key, value)
    k = key.exp().transpose(1, 2).unsqueeze(-1)  # (B, D, T, 1)
    v = value.transpose(1, 2).unsqueeze(-1)
    log_a = (-decay.exp()).view(1, D, 1, 1).expand(B, D, T, 1)
    out, _ = run(rule(torch.ones_like(k), k, torch.cat([v, torch.ones_like(v)], -1), log_a, first.exp().view(D, 1), "key"))
    assert torch.allclose((out[..., 0] / out[..., 1]).transpose(1, 2), expected, rtol=1e-5, atol=1e-5)
