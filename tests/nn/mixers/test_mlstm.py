"""mLSTM against a loop written here from the formula without any stabilizer, and against xLSTM of the transformers package."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from sonde.core.errors import BadInput
from sonde.nn.mixers.mlstm import MLSTM, rule
from sonde.nn.recurrence import run
from tests.nn.mixers.compare import LENGTHS, normal, same_layer, same_rule
from tests.nn.mixers.peers import perturb, same_decoding, same_outputs_and_gradients

B, H, K, V = 2, 3, 4, 7


def loop(q: Tensor, k: Tensor, v: Tensor, log_i: Tensor, log_f: Tensor) -> Tensor:
    """One sequence of one head: gates as they are, nothing subtracted."""
    S, z, rows = torch.zeros(k.shape[1], v.shape[1], dtype=v.dtype), torch.zeros(k.shape[1], dtype=v.dtype), []
    for t in range(len(v)):
        f, i = log_f[t].exp(), log_i[t].exp()
        S, z = f * S + i * torch.outer(k[t], v[t]), f * z + i * k[t]
        below = (z @ q[t]).abs()
        rows.append(q[t] @ S / (below if below > 1 else 1))
    return torch.stack(rows)


def inputs(L: int, loud: float = 1.0) -> list[Tensor]:
    gates = [loud * normal(3, B, H, L), F.logsigmoid(loud * normal(4, B, H, L) + 1)]
    return [normal(0, B, H, L, K), normal(1, B, H, L, K), normal(2, B, H, L, V), *gates]


@pytest.mark.parametrize("loud", [1.0, 8.0])
@pytest.mark.parametrize("L", LENGTHS)
def test_rule_is_the_formula(L: int, loud: float) -> None:
    same_rule(rule, loop, *inputs(L, loud))


def test_pieces_carry_the_maximum() -> None:
    xs = inputs(30, 8.0)
    expected, end = run(rule(*xs))
    outs, state = [], None
    for piece in zip(*(x.split([1, 13, 16], 2) for x in xs)):
        out, state = run(rule(*piece, state), state)
        outs.append(out)
    assert state is not None and torch.allclose(torch.cat(outs, 2), expected, atol=1e-10)
    assert all(torch.allclose(state[name], end[name], atol=1e-10) for name in ("S0", "m"))


def test_the_denominator_is_never_below_one() -> None:
    """Tiny inputs: nothing is divided.  Open gates and |z . q| < 1: plain linear attention."""
    q, k, v, _, _ = inputs(10)
    q, open_ = 1e-3 * q, torch.zeros(B, H, 10, dtype=torch.float64)
    out, _ = run(rule(q, k, v, open_, open_))
    assert torch.allclose(out, (q @ k.mT).tril() @ v, atol=1e-14)
    one = torch.ones(1, 1, 1, 1, dtype=torch.float64)
    closed = torch.zeros(1, 1, 1, dtype=torch.float64)
    assert float(run(rule(0.25 * one, one, 8 * one, closed, closed))[0]) == 2.0  # 8 / 4, over 1 and not over 1/4
    assert float(run(rule(-4 * one, one, 8 * one, closed, closed))[0]) == -8.0  # -32 over |-4|


@pytest.mark.parametrize("log_i", [-1e4, 0.0, 80.0, 1e4, float("-inf")])
@pytest.mark.parametrize("log_f", [0.0, -1e-6, -50.0, -1e4, float("-inf")])
def test_extreme_gates(log_i: float, log_f: float) -> None:
    """Any mixture of extreme and ordinary gates in float32: finite, gradients too, and equal to float64.

    Keys and queries are positive: a denominator that cancels would multiply roundings by whatever it lost.
    """
    xs = [x.float() for x in inputs(40)]
    xs[:2] = [x.abs() for x in xs[:2]]
    xs[3][..., 1::3], xs[4][..., ::2] = log_i, log_f
    xs[3][..., 0] = log_i
    leaves = [x.clone().requires_grad_() for x in xs]
    out, state = run(rule(*leaves))
    grads = torch.autograd.grad(out.square().sum(), leaves)
    assert out.isfinite().all() and all(g.isfinite().all() for g in grads) and state["m"].isfinite().all()
    expected, _ = run(rule(*(x.double() for x in xs)), form="step")
    # Sums of logs reach some hundreds, whose rounding in float32 is 1e-5 of what they decide.
    assert float((out.detach() - expected).abs().max() / expected.abs().max()) < 1e-5


def test_long_sequences_lose_nothing() -> None:
    """Sums of 65,536 logs are hundreds of thousands; the maximum must still be right to a rounding of itself."""
    L = 65536
    log_f, log_i = torch.full((1, 1, L), -7.3), torch.zeros(1, 1, L)
    x = torch.ones(1, 1, L, 1)
    out, state = run(rule(x, x, x, log_i, log_f), form="chunk")
    assert float(state["m"]) == pytest.approx(0.0, abs=1e-6)
    assert torch.allclose(out, torch.ones_like(out), atol=1e-5)


def reference(cap: float | None):
    def layer(x: Tensor, w: dict[str, Tensor]) -> Tensor:
        """One sequence (T, 12) in 3 heads: keys of 2, values of 4."""
        q, k, v = (x @ w[f"{name}.weight"].T for name in ("q", "k", "v"))
        i, f = (x @ w[f"{name}.weight"].T + w[f"{name}.bias"] for name in ("input", "forget"))
        if cap is not None:
            i, f = cap * torch.tanh(i / cap), cap * torch.tanh(f / cap)
        heads = []
        for h in range(3):
            key, value = slice(2 * h, 2 * h + 2), slice(4 * h, 4 * h + 4)
            o = loop(q[:, key] / 2**0.5, k[:, key], v[:, value], i[:, h], torch.log(torch.sigmoid(f[:, h])))
            heads.append((o - o.mean(-1, keepdim=True)) / (o.var(-1, keepdim=True, unbiased=False) + 1e-6).sqrt())
        return (torch.cat(heads, -1) * w["norm"] * torch.sigmoid(x @ w["gate.weight"].T)) @ w["out.weight"].T

    return layer


@pytest.mark.parametrize("cap", [15.0, 1.5, None])
@pytest.mark.parametrize("L", LENGTHS)
def test_layer_is_what_is_written_out(L: int, cap: float | None) -> None:
    layer = perturb(MLSTM(width=12, heads=3, cap=cap, input_bias=0.0)).double()
    same_layer(layer, reference(cap), normal(8, 2, L, 12))


def test_starts_as_published() -> None:
    layer = MLSTM(width=16, heads=4)
    assert torch.allclose(layer.forget.bias, torch.linspace(3, 6, 4)) and not layer.forget.weight.any()
    assert bool((layer.input.bias == -10).all()) and not layer.input.weight.any()


def test_heads_must_divide_the_width() -> None:
    with pytest.raises(BadInput, match="a width of 12 take half of it, which cannot be divided into 4 heads .*a multiple of 8"):
        MLSTM(width=12, heads=4)


# The transformers package -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=[0.0, -10.0], ids=["open", "as published"])
def pair(request):
    """Theirs, and ours with its weights."""
    pytest.importorskip("transformers")
    from transformers import xLSTMConfig
    from transformers.models.xlstm.modeling_xlstm import xLSTMLayer

    torch.manual_seed(0)
    config = xLSTMConfig(hidden_size=24, num_heads=3, num_hidden_layers=1, chunk_size=16, autocast_kernel_dtype="float32")
    theirs = perturb(xLSTMLayer(config))
    with torch.no_grad():
        theirs.igate_preact.bias += request.param
        theirs.fgate_preact.bias += torch.linspace(3, 6, 3)
    ours = MLSTM(width=24, heads=3)
    p = dict(theirs.named_parameters())
    same = {"q": "q", "k": "k", "v": "v", "gate": "ogate_preact", "input": "igate_preact", "forget": "fgate_preact", "out": "out_proj"}
    weights = {
        f"{one}.{part}": p[f"{other}.{part}"] for one, other in same.items() for part in ("weight", "bias") if f"{other}.{part}" in p
    }
    ours.load_state_dict({**weights, "norm": p["multihead_norm.weight"]})
    return theirs, ours


@pytest.mark.parametrize("L", [1, 17, 65])
def test_same_as_transformers(pair, L: int) -> None:
    theirs, ours = pair
    same_outputs_and_gradients(ours, lambda x: theirs(x)[0], L)


def test_decodes_as_transformers(pair) -> None:
    theirs, ours = pair
    cache = None

    def step(x: Tensor) -> Tensor:
        nonlocal cache
        y, cache = theirs(x, cache)
        return y

    same_decoding(ours, step, prompt=9, more=6)
