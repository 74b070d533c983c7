"""Mamba-2 against a loop and a matrix written here from the formula, and against the layer of the transformers package."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from sonde.core.errors import BadInput
from sonde.nn.mixers.mamba2 import Mamba2, rule, tiny
from sonde.nn.recurrence import run
from tests.nn.mixers.compare import LENGTHS, normal, same_layer, same_rule
from tests.nn.mixers.peers import perturb, same_decoding, same_outputs_and_gradients

B, H, K, V = 2, 3, 4, 7


def loop(q: Tensor, k: Tensor, v: Tensor, log_gamma: Tensor) -> Tensor:
    """One sequence of one head."""
    S, rows = torch.zeros(k.shape[1], v.shape[1], dtype=v.dtype), []
    for t in range(len(v)):
        S = log_gamma[t].exp() * S + torch.outer(k[t], v[t])
        rows.append(q[t] @ S)
    return torch.stack(rows)


def inputs(L: int) -> list[Tensor]:
    return [normal(0, B, H, L, K), normal(1, B, H, L, K), normal(2, B, H, L, V), F.logsigmoid(normal(3, B, H, L) + 1)]


@pytest.mark.parametrize("L", LENGTHS)
def test_rule_is_the_formula(L: int) -> None:
    same_rule(rule, loop, *inputs(L))


def test_time_steps_and_skip_are_options() -> None:
    q, k, v, log_gamma = inputs(9)
    a, d = normal(4, B, H, 9).exp(), normal(5, H)
    output, _ = run(rule(q, k, v, log_gamma, a, d))
    bare, _ = run(rule(q, k, a.unsqueeze(-1) * v, log_gamma))
    assert torch.allclose(output, bare + d.view(H, 1, 1) * v)


def test_equals_masked_attention() -> None:
    """(Q K^T o D) V with D_tj the product of gamma over j < s <= t."""
    q, k, v, log_gamma = inputs(11)
    D = torch.zeros(B, H, 11, 11, dtype=torch.float64)
    for t in range(11):
        for j in range(t + 1):
            D[:, :, t, j] = log_gamma[:, :, j + 1 : t + 1].exp().prod(-1)
    assert torch.allclose(run(rule(q, k, v, log_gamma))[0], (q @ k.mT * D) @ v, atol=1e-12)


def test_constant_gamma_is_retention() -> None:
    """Weights gamma^(t - j), the same for every step."""
    q, k, v, _ = inputs(8)
    gamma = torch.tensor([0.5, 0.9, 0.99], dtype=torch.float64)
    apart = torch.arange(8).view(8, 1) - torch.arange(8)
    D = torch.where(apart >= 0, gamma.view(H, 1, 1) ** apart.clamp_min(0), 0)
    assert torch.allclose(run(rule(q, k, v, gamma.log()))[0], (q @ k.mT * D) @ v, atol=1e-12)


def reference(x: Tensor, w: dict[str, Tensor]) -> Tensor:
    """The layer of `tiny` for one sequence (T, D): 4 heads of 5 values, 2 groups of 3 states."""
    z, vkq, step = (x @ w["in_proj.weight"].T).split([20, 32, 4], -1)
    T = len(x)
    padded = torch.cat([vkq.new_zeros(3, 32), vkq])
    vkq = F.silu(torch.stack([(padded[t : t + 4] * w["conv.weight"]).sum(0) for t in range(T)]) + w["conv.bias"])
    v, k, q = vkq.split([20, 6, 6], -1)
    a = torch.log1p(torch.exp(step + w["step_bias"]))
    heads = []
    for h in range(4):
        own, group = slice(5 * h, 5 * h + 5), slice(3 * (h // 2), 3 * (h // 2) + 3)
        out = loop(q[:, group], k[:, group], a[:, h, None] * v[:, own], -a[:, h] * w["log_rate"][h].exp())
        heads.append(out + w["D"][h] * v[:, own])
    o = torch.cat(heads, -1) * z * torch.sigmoid(z)
    return (o / (o.square().mean(-1, keepdim=True) + 1e-5).sqrt() * w["norm.weight"]) @ w["out.weight"].T


@pytest.mark.parametrize("L", LENGTHS)
def test_layer_is_what_is_written_out(L: int) -> None:
    same_layer(perturb(tiny()).double(), reference, normal(8, 2, L, 10))


def test_starts_as_published() -> None:
    layer = Mamba2(width=32, heads=16)
    rate, dt = layer.log_rate.exp().detach(), F.softplus(layer.step_bias).detach()
    assert float(rate.min()) >= 1 and float(rate.max()) <= 16 + 1e-4
    assert float(dt.min()) >= 1e-3 - 1e-6 and float(dt.max()) <= 0.1 + 1e-6


def test_wrong_sizes_are_named() -> None:
    with pytest.raises(BadInput, match="4 heads cannot share 3 groups of keys"):
        Mamba2(width=10, heads=4, groups=3)


# The transformers package -------------------------------------------------------------------------------------------


def pair(**limits):
    """Theirs, ours with its weights, and a new cache."""
    pytest.importorskip("transformers")
    from transformers import DynamicCache, Mamba2Config
    from transformers.models.mamba2.modeling_mamba2 import Mamba2Mixer

    torch.manual_seed(0)
    sizes = dict(hidden_size=30, num_heads=6, head_dim=10, state_size=5, n_groups=2, expand=2, conv_kernel=4, chunk_size=16)
    limit = (limits.get("least", 0.0), limits.get("most", float("inf")))
    config = Mamba2Config(num_hidden_layers=1, time_step_limit=limit, **sizes)
    theirs = perturb(Mamba2Mixer(config, 0), 0.2)
    ours = Mamba2(width=30, heads=6, states=5, groups=2, **limits)
    p = dict(theirs.named_parameters())
    ours.load_state_dict(
        {
            "in_proj.weight": p["in_proj.weight"],
            "conv.weight": p["conv1d.weight"][:, 0].T,
            "conv.bias": p["conv1d.bias"],
            "step_bias": p["dt_bias"],
            "log_rate": p["A_log"],
            "D": p["D"],
            "norm.weight": p["norm.weight"],
            "out.weight": p["out_proj.weight"],
        }
    )
    return theirs, ours, DynamicCache(config=config)


@pytest.mark.parametrize("L", [1, 17, 65])
def test_same_as_transformers(L: int) -> None:
    theirs, ours, _ = pair()
    same_outputs_and_gradients(ours, theirs, L)


def test_limits_of_the_time_step_as_in_transformers() -> None:
    theirs, ours, _ = pair(least=0.02, most=0.06)
    same_outputs_and_gradients(ours, theirs, 17)


def test_decodes_as_transformers() -> None:
    theirs, ours, cache = pair()
    same_decoding(ours, lambda x: theirs(x, cache_params=cache), prompt=9, more=6)
