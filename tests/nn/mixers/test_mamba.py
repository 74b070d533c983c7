"""Mamba against a loop written here from the formula, and against the layer of the transformers package."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from sonde.nn.mixers.mamba import Mamba, rule, tiny
from sonde.nn.recurrence import run
from tests.nn.mixers.compare import LENGTHS, normal, same_layer, same_rule
from tests.nn.mixers.peers import perturb, same_decoding, same_outputs_and_gradients

K, V = 4, 7


def loop(q: Tensor, k: Tensor, v: Tensor, a: Tensor, rate: Tensor, d: Tensor) -> Tensor:
    """One sequence of one head, entry by entry of the state where the formula says so."""
    S, rows = torch.zeros(rate.shape, dtype=v.dtype), []
    for t in range(len(v)):
        S = torch.exp(-a[t][None, :] * rate) * S + k[t][:, None] * (a[t] * v[t])[None, :]
        rows.append((q[t][:, None] * S).sum(0) + d * v[t])
    return torch.stack(rows)


def inputs(L: int, H: int = 2) -> list[Tensor]:
    """q, k, v, a, rate, d with a batch of one."""
    a = F.softplus(normal(3, 1, H, L, V))
    return [normal(0, 1, H, L, K), normal(1, 1, H, L, K), normal(2, 1, H, L, V), a, normal(4, 1, H, K, V).exp(), normal(5, 1, H, V)]


@pytest.mark.parametrize("L", LENGTHS)
def test_rule_is_the_formula(L: int) -> None:
    same_rule(lambda q, k, v, a, rate, d: rule(q, k, v, a, rate[0], d[0]), loop, *inputs(L))


def test_a_step_of_no_time_keeps_the_state_and_writes_nothing() -> None:
    q, k, v, a, rate, d = inputs(5)
    a[:, :, 3:] = 0
    _, before = run(rule(q[:, :, :3], k[:, :, :3], v[:, :, :3], a[:, :, :3], rate[0]))
    _, after = run(rule(q, k, v, a, rate[0]))
    assert torch.equal(before["S0"], after["S0"])


def test_without_d_there_is_no_skip() -> None:
    q, k, v, a, rate, d = inputs(6)
    bare, _ = run(rule(q, k, v, a, rate[0]))
    with_skip, _ = run(rule(q, k, v, a, rate[0], d[0]))
    assert torch.allclose(with_skip - bare, d[0].unsqueeze(1) * v)


def test_one_step_by_hand() -> None:
    """S = 1 * k a v = 2 * 0.5 * 3 = 3, o = q S + d v = 10 * 3 + 4 * 3; then S halves over a = ln 2 / 7 at rate 7."""
    one = torch.tensor([[[[1.0], [1.0]]]], dtype=torch.float64)
    a = torch.tensor([[[[0.5], [torch.log(torch.tensor(2.0)) / 7]]]], dtype=torch.float64)
    v = one * torch.tensor([3.0, 0.0]).view(2, 1)
    out, state = run(rule(10 * one, 2 * one, v, a, torch.full((1, 1, 1), 7.0).double(), torch.full((1, 1), 4.0).double()))
    assert torch.allclose(out.flatten(), torch.tensor([42.0, 15.0], dtype=torch.float64), atol=1e-6)
    assert float(state["S0"]) == pytest.approx(1.5, abs=1e-6)


def reference(x: Tensor, w: dict[str, Tensor]) -> Tensor:
    """The layer for one sequence (T, D)."""
    v, z = (x @ w["in_proj.weight"].T).chunk(2, -1)
    T, taps = len(x), len(w["conv.weight"])
    padded = torch.cat([v.new_zeros(taps - 1, v.shape[1]), v])
    v = F.silu(torch.stack([(padded[t : t + taps] * w["conv.weight"]).sum(0) for t in range(T)]) + w["conv.bias"])
    low, k, q = (v @ w["x_proj.weight"].T).split([3, 5, 5], -1)
    a = torch.log1p(torch.exp(low @ w["step.weight"].T + w["step_bias"]))
    return (loop(q, k, v, a, w["log_rate"][0].exp(), w["D"][0]) * F.silu(z)) @ w["out.weight"].T


@pytest.mark.parametrize("L", LENGTHS)
def test_layer_is_what_is_written_out(L: int) -> None:
    same_layer(perturb(tiny()).double(), reference, normal(8, 2, L, 6))


def test_starts_as_published() -> None:
    layer = Mamba(width=32)
    assert torch.allclose(layer.log_rate.exp()[0, :, 3], torch.arange(1.0, 17.0))
    dt = F.softplus(layer.step_bias).detach()
    assert float(dt.min()) >= 1e-3 and float(dt.max()) <= 0.1 + 1e-6
    assert layer.step.weight.shape == (64, 2) and bool((layer.D == 1).all())


# The transformers package -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pair():
    """Theirs, ours with its weights, and a function that makes a new cache."""
    pytest.importorskip("transformers")
    from transformers import DynamicCache, MambaConfig
    from transformers.models.mamba.modeling_mamba import MambaMixer

    torch.manual_seed(0)
    config = MambaConfig(hidden_size=24, state_size=5, num_hidden_layers=1, time_step_rank=3, expand=2, conv_kernel=4)
    theirs = perturb(MambaMixer(config, 0), 0.2)
    ours = Mamba(width=24, states=5, rank=3)
    p = dict(theirs.named_parameters())
    ours.load_state_dict(
        {
            "in_proj.weight": p["in_proj.weight"],
            "conv.weight": p["conv1d.weight"][:, 0].T,
            "conv.bias": p["conv1d.bias"],
            "x_proj.weight": p["x_proj.weight"],
            "step.weight": p["dt_proj.weight"],
            "step_bias": p["dt_proj.bias"],
            "log_rate": p["A_log"].T.unsqueeze(0),
            "D": p["D"].unsqueeze(0),
            "out.weight": p["out_proj.weight"],
        }
    )
    return theirs, ours, lambda: DynamicCache(config=config)


@pytest.mark.parametrize("L", [1, 17, 65])
def test_same_as_transformers(pair, L: int) -> None:
    theirs, ours, _ = pair
    same_outputs_and_gradients(ours, theirs, L)


def test_decodes_as_transformers(pair) -> None:
    """Token by token: continuing its cache by several tokens at once forgets the state, so that is no authority."""
    theirs, ours, fresh = pair
    cache = fresh()
    same_decoding(ours, lambda x: theirs(x, cache_params=cache), prompt=9, more=6)
