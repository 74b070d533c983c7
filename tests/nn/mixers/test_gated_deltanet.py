"""Gated DeltaNet against a loop written here from the formula, and against Qwen3-Next of the transformers package."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from sonde.core.errors import BadInput
from sonde.nn.mixers import deltanet
from sonde.nn.mixers.gated_deltanet import GatedDeltaNet, rule, tiny
from sonde.nn.recurrence import run
from tests.nn.mixers.compare import LENGTHS, normal, same_layer, same_rule
from tests.nn.mixers.peers import perturb, same_decoding, same_outputs_and_gradients

B, H, K, V = 2, 3, 4, 7


def loop(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, log_a: Tensor) -> Tensor:
    """One sequence of one head, with the notes' S (values first)."""
    S, rows = torch.zeros(v.shape[1], k.shape[1], dtype=v.dtype), []
    eye = torch.eye(k.shape[1], dtype=v.dtype)
    for t in range(len(v)):
        S = S @ (log_a[t].exp() * (eye - beta[t] * torch.outer(k[t], k[t]))) + beta[t] * torch.outer(v[t], k[t])
        rows.append(S @ q[t])
    return torch.stack(rows)


def inputs(L: int) -> list[Tensor]:
    k = normal(1, B, H, L, K)
    gates = [torch.sigmoid(normal(3, B, H, L)), F.logsigmoid(normal(4, B, H, L) + 1)]
    return [normal(0, B, H, L, K), k / k.norm(dim=-1, keepdim=True), normal(2, B, H, L, V), *gates]


@pytest.mark.parametrize("L", LENGTHS)
def test_rule_is_the_formula(L: int) -> None:
    same_rule(rule, loop, *inputs(L))


def test_keeping_all_is_deltanet() -> None:
    q, k, v, beta, log_a = inputs(20)
    output, _ = run(rule(q, k, v, beta, torch.zeros_like(log_a)))
    assert torch.allclose(output, run(deltanet.rule(q, k, v, beta))[0], atol=1e-12)


def test_writing_nothing_is_pure_decay() -> None:
    q, k, v, beta, log_a = inputs(20)
    S = normal(6, B, H, K, V)
    _, after = run(rule(q, k, v, torch.zeros_like(beta), log_a), {"S0": S})
    assert torch.allclose(after["S0"], S * log_a.sum(-1).exp()[..., None, None], atol=1e-12)


def reference(x: Tensor, w: dict[str, Tensor]) -> Tensor:
    """The layer of `tiny` for one sequence (T, 7): 2 heads of keys of 3, 4 states with values of 6."""
    padded = torch.cat([x.new_zeros(3, 36), x @ w["qkv.weight"].T])
    qkv = F.silu(torch.stack([(padded[t : t + 4] * w["conv.weight"]).sum(0) for t in range(len(x))]))
    beta = torch.sigmoid(x @ w["beta.weight"].T)
    log_a = -w["log_rate"].exp() * torch.log1p(torch.exp(x @ w["forget.weight"].T + w["step_bias"]))
    heads = []
    for h in range(4):
        q, k = (qkv[:, n + 3 * (h // 2) : n + 3 * (h // 2) + 3] for n in (0, 6))
        q, k = (part / (part.square().sum(-1, keepdim=True) + 1e-6).sqrt() for part in (q, k))
        o = loop(q / 3**0.5, k, qkv[:, 12 + 6 * h : 18 + 6 * h], beta[:, h], log_a[:, h])
        heads.append(o / (o.square().mean(-1, keepdim=True) + 1e-6).sqrt() * w["norm.weight"])
    z = x @ w["gate.weight"].T
    return (torch.cat(heads, -1) * z * torch.sigmoid(z)) @ w["out.weight"].T


@pytest.mark.parametrize("L", LENGTHS)
def test_layer_is_what_is_written_out(L: int) -> None:
    same_layer(perturb(tiny()).double(), reference, normal(8, 2, L, 7))


def test_starts_as_published() -> None:
    layer = GatedDeltaNet(width=64, heads=4)
    assert layer.sizes == (48, 48, 96) and bool(layer.log_rate.isfinite().all()) and float(layer.log_rate.exp().detach().max()) <= 16 + 1e-4
    dt = F.softplus(layer.step_bias).detach()
    assert float(dt.min()) >= 1e-3 - 1e-6 and float(dt.max()) <= 0.1 + 1e-6


def test_wrong_heads_are_named() -> None:
    with pytest.raises(BadInput, match="5 value heads cannot share 2 heads"):
        GatedDeltaNet(width=8, heads=2, value_heads=5)


# The transformers package -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pair():
    """Theirs, ours with its weights, and a function that makes a new cache."""
    pytest.importorskip("transformers")
    from transformers import DynamicCache, Qwen3NextConfig
    from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextGatedDeltaNet

    torch.manual_seed(0)
    heads, states, K, V, width = 2, 6, 5, 10, 24
    config = Qwen3NextConfig(
        hidden_size=width,
        num_hidden_layers=1,
        linear_num_key_heads=heads,
        linear_num_value_heads=states,
        linear_key_head_dim=K,
        linear_value_head_dim=V,
        linear_conv_kernel_dim=4,
        layer_types=["linear_attention"],
    )
    theirs = perturb(Qwen3NextGatedDeltaNet(config, 0))
    ours = GatedDeltaNet(width=width, heads=heads, value_heads=states, key=K, expand=2)
    p, each = dict(theirs.named_parameters()), states // heads
    # Theirs lays out q, k, v, z (and beta, a) head by head, ours part by part.
    qkvz = p["in_proj_qkvz.weight"].view(heads, -1, width).split([K, K, each * V, each * V], 1)
    q, k, v, z = (part.reshape(-1, width) for part in qkvz)
    beta, a = (part.reshape(-1, width) for part in p["in_proj_ba.weight"].view(heads, -1, width).split([each, each], 1))
    ours.load_state_dict(
        {
            "qkv.weight": torch.cat([q, k, v]),
            "conv.weight": p["conv1d.weight"][:, 0].T,
            "beta.weight": beta,
            "forget.weight": a,
            "step_bias": p["dt_bias"],
            "log_rate": p["A_log"],
            "norm.weight": p["norm.weight"],
            "gate.weight": z,
            "out.weight": p["out_proj.weight"],
        }
    )
    return theirs, ours, lambda: DynamicCache(config=config)


@pytest.mark.parametrize("L", [1, 17, 65])
def test_same_as_transformers(pair, L: int) -> None:
    theirs, ours, _ = pair
    same_outputs_and_gradients(ours, theirs, L)


def test_decodes_as_transformers(pair) -> None:
    theirs, ours, fresh = pair
    cache = fresh()
    same_decoding(ours, lambda x: theirs(x, cache_params=cache), prompt=9, more=6)
