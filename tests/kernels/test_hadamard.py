"""The Hadamard kernel against a loop written from its formula in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sonde.core.errors import BadInput
from sonde.kernels import available, why_not
from sonde.kernels.hadamard import HadamardStep, hadamard

pytestmark = pytest.mark.skipif(not available(), reason=why_not() or "kernels serve")
NAMES = ("q", "k", "v", "log_value", "rate", "weight", "state")


def loop(q, k, v, log_value, rate, weight=None, state=None):
    """S[c,w] = exp(log_value[w] rate[c,w]) S[c,w] + k[c] v[w];  out[w] = sum_c q[c] weight[c,w] S[c,w]."""
    B, H, L, V = v.shape
    K = rate.shape[1]
    S = v.new_zeros(B, H, K, V) if state is None else state
    one = v.new_ones(B, H, L, K)
    out = []
    for qt, kt, vt, gt in zip(*(x.unbind(2) for x in (one if q is None else q, one if k is None else k, v, log_value))):
        S = torch.exp(gt[:, :, None] * rate) * S + kt[..., None] * vt[:, :, None]
        out.append((qt[..., None] * (S if weight is None else weight * S)).sum(2))
    return torch.stack(out, 2), S


def inputs(L: int, B: int = 2, H: int = 3, K: int = 5, V: int = 37, seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    series = {"q": normal(B, H, L, K), "k": normal(B, H, L, K), "v": normal(B, H, L, V), "log_value": -normal(B, H, L, V).abs()}
    return series | {"rate": normal(H, K, V).abs(), "weight": normal(H, K, V), "state": normal(B, H, K, V)}


def run(call, tensors: dict[str, Tensor | None], dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """Output, final state and the gradients of all given arrays, for fixed weights on output and state."""
    leaves = [None if x is None else x.detach().to(dtype).requires_grad_() for x in (tensors.get(name) for name in NAMES)]
    out, last = call(*leaves)
    generator = torch.Generator().manual_seed(7)
    loss = sum((x * torch.randn(x.shape, generator=generator, dtype=torch.float64)).sum() for x in (out, last))
    return [out, last, *torch.autograd.grad(loss, [x for x in leaves if x is not None])]


def close(got: list[Tensor], want: list[Tensor], tolerance: float) -> None:
    for a, b in zip(got, want, strict=True):
        assert torch.isfinite(a).all()
        assert (a - b).abs().max() <= tolerance * (b.abs().max() + 1e-30)


@pytest.mark.parametrize("L", [1, 2, 15, 16, 17, 63, 64, 65, 100, 257])
def test_lengths(L):
    tensors = inputs(L)
    want = run(loop, tensors)
    close(run(hadamard, tensors), want, 1e-12)
    close(run(hadamard, tensors, torch.float32), want, 1e-5)


@pytest.mark.parametrize("K, V", [(1, 1), (3, 5), (16, 17), (4, 64), (2, 100), (7, 257)])
def test_widths(K, V):
    tensors = inputs(19, K=K, V=V)
    want = run(loop, tensors)
    close(run(hadamard, tensors), want, 1e-12)
    close(run(hadamard, tensors, torch.float32), want, 1e-5)


@pytest.mark.parametrize("absent", range(16))
def test_every_subset_of_the_optional_arrays(absent):
    optional = ("q", "k", "weight", "state")
    tensors = inputs(18) | {name: None for i, name in enumerate(optional) if absent >> i & 1}
    close(run(hadamard, tensors), run(loop, tensors), 1e-12)


def test_a_gate_constant_in_time_as_an_expanded_view():
    tensors = inputs(37)
    tensors["log_value"] = tensors["log_value"][:1, :, :1]

    def expanded(call):
        return lambda q, k, v, g, *rest: call(None, None, v, g.expand_as(v), *rest)

    tensors["q"] = tensors["k"] = None
    close(run(expanded(hadamard), tensors), run(expanded(loop), tensors), 1e-12)


def test_both_memory_orders_give_the_same_bits_and_merging_heads_is_free():
    tensors = inputs(21)
    other = {name: x.transpose(1, 2).contiguous().transpose(1, 2) if x.ndim == 4 else x for name, x in tensors.items()}
    out, last = hadamard(*tensors.values())
    again, last_again = hadamard(*other.values())
    assert torch.equal(out, again) and torch.equal(last, last_again)
    assert out.transpose(1, 2).is_contiguous()
    assert torch.equal(hadamard(*(x.mT.contiguous().mT for x in tensors.values()))[0], out)


def test_threads_do_not_change_a_bit():
    tensors, threads = inputs(70, H=1, V=150), torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = run(hadamard, tensors, torch.float32)
        torch.set_num_threads(3)
        assert all(torch.equal(a, b) for a, b in zip(one, run(hadamard, tensors, torch.float32)))
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("cut", [1, 16, 30])
def test_split_anywhere(cut):
    tensors = inputs(33)

    def pieces(q, k, v, g, rate, weight, state):
        head, state = hadamard(*(x[:, :, :cut] for x in (q, k, v, g)), rate, weight, state)
        tail, state = hadamard(*(x[:, :, cut:] for x in (q, k, v, g)), rate, weight, state)
        return torch.cat([head, tail], 2), state

    close(run(pieces, tensors), run(loop, tensors), 1e-12)


def test_extreme_gates():
    tensors = inputs(40)
    levels = torch.tensor([0.0, -1e-6, -0.1, -5.0, -50.0, -1e4, 0.3], dtype=torch.float64)
    tensors["log_value"] = levels[torch.randint(7, tensors["v"].shape, generator=torch.Generator().manual_seed(3))]
    want = run(loop, tensors)
    close(run(hadamard, tensors), want, 1e-12)
    close(run(hadamard, tensors, torch.float32), want, 2e-5)


def test_a_gate_of_minus_infinity_forgets_all_and_has_no_gradient():
    tensors = inputs(20)
    forget = tensors["log_value"].clone()
    forget[:, :, 9] = -torch.inf
    nearly = forget.clamp(min=-1e6)
    for dtype in (torch.float32, torch.float64):
        got = run(hadamard, tensors | {"log_value": forget}, dtype)
        close(got, run(loop, tensors | {"log_value": nearly}), 1e-5)
        assert not got[5][:, :, 9].any()


def test_long_sequences_stay_finite():
    v = torch.ones(1, 1, 65536, 3)
    gate = torch.tensor([0.0, -1e-4, -1e4]).expand_as(v)
    out, _ = hadamard(None, None, v, gate, torch.ones(1, 1, 3))
    assert out[0, 0, -1].tolist() == pytest.approx(
        [65536, (1 - torch.tensor(-6.5536).exp().item()) / -torch.tensor(-1e-4, dtype=torch.float64).expm1().item(), 1], rel=2e-3
    )


def test_not_a_number_is_not_hidden():
    tensors = inputs(5)
    tensors["log_value"][0, 0, 2, 4] = torch.nan
    out, _ = hadamard(*tensors.values())
    assert out[0, 0, 2:, 4].isnan().all() and out.isnan().sum() == 3


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_keeps_a_float32_state(dtype):
    tensors = inputs(30)
    small = {name: x.to(dtype) if name in ("q", "k", "v") else x.float() for name, x in tensors.items()}
    out, last = hadamard(*small.values())
    want, _ = loop(*(x.double() for x in small.values()))
    assert out.dtype == dtype and last.dtype == torch.float32
    assert (out.double() - want).abs().max() <= torch.finfo(dtype).eps * want.abs().max()


@pytest.mark.parametrize("B, L", [(0, 4), (2, 0)])
def test_nothing_to_do(B, L):
    tensors = inputs(L, B=B)
    out, last, *gradients = run(hadamard, tensors)
    assert out.shape == tensors["v"].shape and torch.equal(last, tensors["state"])
    assert [g.shape for g in gradients] == [x.shape for x in tensors.values()] and not gradients[4].any()


def test_step_equals_a_sequence_of_one():
    for dtype in (torch.float32, torch.float64):
        tensors = {name: x.to(dtype) for name, x in inputs(3).items()}
        want, last = hadamard(*tensors.values())
        series = {name: tensors[name][:, :, 0].contiguous() for name in ("q", "k", "v", "log_value")}
        state, out = tensors["state"].clone(), torch.empty_like(series["v"])
        step = HadamardStep(*series.values(), tensors["rate"], tensors["weight"], state, out)
        for t in range(3):
            for name, buffer in series.items():
                buffer.copy_(tensors[name][:, :, t])
            step()
            assert torch.allclose(out, want[:, :, t], rtol=1e-5, atol=1e-5)
        assert torch.allclose(state, last, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("L", [1, 7])
def test_without_gradients_the_values_are_the_same_and_a_counter_still_sees_the_op(L):
    from torch.utils.flop_counter import FlopCounterMode

    tensors = inputs(L)
    with torch.no_grad():
        close(list(hadamard(*tensors.values())), list(loop(*tensors.values())), 1e-13)
        close(list(hadamard(None, None, *list(tensors.values())[2:5])), list(loop(None, None, *list(tensors.values())[2:5])), 1e-13)
        with FlopCounterMode(display=False, custom_mapping={torch.ops.sonde.hadamard: lambda *_, **__: 11}) as counter:
            hadamard(*tensors.values())
    assert counter.get_total_flops() == 11


def test_a_step_forgets_all_at_a_gate_of_minus_infinity():
    tensors = {name: x[:, :, 0].contiguous() if x.ndim == 4 and name != "state" else x for name, x in inputs(1).items()}
    tensors["log_value"][:, 1] = -torch.inf
    out = torch.empty_like(tensors["v"])
    HadamardStep(*tensors.values(), out)()
    written = tensors["k"][..., None] * tensors["v"][:, :, None]
    assert torch.equal(tensors["state"][:, 1], written[:, 1])
    assert torch.allclose(out[:, 1], (tensors["q"][..., None] * tensors["weight"] * written).sum(2)[:, 1])


def test_a_step_refuses_buffers_it_cannot_use_in_place():
    tensors = {name: x[:, :, 0].contiguous() if x.ndim == 4 and name != "state" else x for name, x in inputs(1).items()}
    with pytest.raises(BadInput, match="make all buffers float32, or all float64"):
        HadamardStep(*(tensors | {"k": tensors["k"].float()}).values(), torch.empty_like(tensors["v"]))
    with pytest.raises(BadInput, match="last axis of 'state' is not contiguous"):
        HadamardStep(*(tensors | {"state": tensors["state"].mT.contiguous().mT}).values(), torch.empty_like(tensors["v"]))
    with pytest.raises(BadInput, match="'out' has value width 36"):
        HadamardStep(*tensors.values(), torch.empty_like(tensors["v"])[..., 1:])


def test_opcheck():
    tensors = [x.float().requires_grad_() for x in inputs(18, V=9).values()]
    torch.library.opcheck(torch.ops.sonde.hadamard.default, (*tensors, True))
    torch.library.opcheck(torch.ops.sonde.hadamard.default, (None, None, *tensors[2:5], None, None, True))


def test_compiled_whole_equals_eager():
    tensors = inputs(18, V=9)
    compiled = torch.compile(hadamard, fullgraph=True, backend="aot_eager")
    close(run(compiled, tensors), run(hadamard, tensors), 1e-14)


def test_no_second_derivative():
    tensors = [x.requires_grad_() for x in inputs(4).values()]
    (dv,) = torch.autograd.grad(hadamard(*tensors)[0].sum(), tensors[2], create_graph=True)
    with pytest.raises(BadInput, match="no second derivative"):
        dv.sum().backward()


@pytest.mark.parametrize(
    "name, change, words",
    [
        ("k", lambda x: x[..., :4], "'k' has key width 4, but 'q' has 5"),
        ("state", lambda x: x[:1], "'state' has batch 1, but 'q' has 2"),
        ("weight", lambda x: x[:2], "'weight' has heads 2, but 'q' has 3"),
        ("log_value", lambda x: x[:, :, :3], "'log_value' has length 3, but 'q' has 4"),
        ("rate", lambda x: x[0], "'rate' has 2 axes"),
        ("q", lambda x: x.to(torch.int64), "'q' has dtype torch.int64"),
        ("v", lambda x: x.to(torch.complex64), "'v' has dtype torch.complex64"),
    ],
)
def test_mistakes_are_named(name, change, words):
    tensors = inputs(4)
    tensors[name] = change(tensors[name])
    with pytest.raises(BadInput, match=words):
        hadamard(*tensors.values())
