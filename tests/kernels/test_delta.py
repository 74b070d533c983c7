"""The delta kernel against a plain float64 loop written from the formula: values, every gradient, and hard inputs."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from sonde import kernels
from sonde.core.errors import BadInput
from sonde.kernels import delta as module
from sonde.kernels.delta import DeltaStep, delta

pytestmark = pytest.mark.skipif(not kernels.available(), reason=kernels.why_not())


def loop(q, k, v, beta, log_head=None, state=None):
    """S' = exp(log_head) S; u = beta (v - S'^T k); S = S' + k (x) u; out = S^T q, step by step."""
    share = v.shape[1] // q.shape[1]
    q, k = (x.repeat_interleave(share, 1).unbind(2) for x in (q, k))
    decays = [1.0] * v.shape[2] if log_head is None else log_head.exp()[..., None, None].unbind(2)
    S = v.new_zeros(*v.shape[:2], q[0].shape[-1], v.shape[-1]) if state is None else state
    outs = []
    for q_t, k_t, v_t, beta_t, decay in zip(q, k, v.unbind(2), beta[..., None].unbind(2), decays, strict=True):
        S = decay * S
        u = beta_t * (v_t - (S * k_t[..., None]).sum(2))
        S = S + k_t[..., None] * u[..., None, :]
        outs.append((S * q_t[..., None]).sum(2))
    return torch.stack(outs, 2), S


def draw(B=2, G=3, H=6, L=37, K=5, V=7, *, gate=True, state=True, seed=0) -> list[Tensor | None]:
    """Random inputs in float64, keys of length one, beta in [0, 2]."""
    make = torch.Generator().manual_seed(seed)
    normal = lambda *size: torch.randn(*size, generator=make, dtype=torch.float64)  # noqa: E731
    k = torch.nn.functional.normalize(normal(B, G, L, K), dim=-1)
    beta = 2 * torch.rand(B, H, L, generator=make, dtype=torch.float64)
    gates = -0.3 * normal(B, H, L).abs() if gate else None
    return [normal(B, G, L, K), k, normal(B, H, L, V), beta, gates, normal(B, H, K, V) if state else None]


def run(function, inputs: list[Tensor | None], dtype=torch.float64) -> list[Tensor]:
    """Out, final state, and the gradient of every input under fixed random weights on both."""
    leaves = [None if x is None else x.detach().to(dtype).requires_grad_() for x in inputs]
    out, last = function(*leaves)
    make = torch.Generator().manual_seed(1)
    loss = sum((x * torch.randn(x.shape, generator=make, dtype=torch.float64).to(x.dtype)).sum() for x in (out, last))
    return [out.detach(), last.detach(), *torch.autograd.grad(loss, [x for x in leaves if x is not None])]


def close(got: list[Tensor], want: list[Tensor], tolerance: float) -> None:
    for place, (a, b) in enumerate(zip(got, want, strict=True)):
        assert a.shape == b.shape and a.isfinite().all(), place
        worst = (a.double() - b).abs().max() if b.numel() else torch.zeros(())
        assert worst <= tolerance * max(1.0, float(b.abs().max()) if b.numel() else 1.0), (place, float(worst))


@pytest.mark.parametrize("L", [1, 2, 15, 16, 17, 63, 64, 65, 100, 257])
def test_equals_the_loop_at_every_length(L):
    inputs = draw(L=L)
    want = run(loop, inputs)
    close(run(delta, inputs), want, 1e-12)
    close(run(delta, inputs, torch.float32), want, 1e-5)


@pytest.mark.parametrize("gate", [False, True])
@pytest.mark.parametrize("state", [False, True])
def test_every_subset_of_gate_and_state(gate, state):
    inputs = draw(B=1, G=2, H=4, L=33, K=6, V=9, gate=gate, state=state)
    close(run(delta, inputs), run(loop, inputs), 1e-12)


@pytest.mark.parametrize(("K", "V"), [(1, 3), (3, 1), (17, 5), (5, 17), (64, 100), (100, 64), (33, 257)])
def test_any_width(K, V):
    inputs = draw(B=1, G=1, H=2, L=19, K=K, V=V)
    close(run(delta, inputs), run(loop, inputs), 1e-12)


def test_states_saved_several_times_and_heads_cut_into_blocks():
    inputs = draw(B=1, G=1, H=1, L=300, K=8, V=128)
    close(run(delta, inputs), run(loop, inputs), 1e-12)


def test_memory_order_strides_and_expanded_inputs_do_not_matter():
    q, k, v, beta, gate, state = draw()
    want = run(delta, [q, k, v, beta, gate, state])
    turned = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v, beta, gate)]
    close(run(delta, [*turned, state.transpose(2, 3).contiguous().transpose(2, 3)]), want, 0)
    flipped = v.transpose(2, 3).contiguous().transpose(2, 3)
    with torch.no_grad():
        assert torch.equal(delta(q, k, flipped, beta, gate, state)[0], want[0])
        one = delta(q, k, v, beta[:, :1, :1].expand_as(beta), gate, state)[0]
        assert torch.equal(one, delta(q, k, v, beta[:, :1, :1].expand_as(beta).contiguous(), gate, state)[0])
    assert want[0].transpose(1, 2).is_contiguous(), "heads merge without a copy"


@pytest.mark.parametrize("cut", [0, 1, 16, 30, 37])
def test_two_pieces_joined_by_the_state_equal_one_pass(cut):
    inputs = draw()

    def pieces(q, k, v, beta, gate, state):
        first, state = delta(*(x[:, :, :cut] for x in (q, k, v, beta, gate)), state)
        second, state = delta(*(x[:, :, cut:] for x in (q, k, v, beta, gate)), state)
        return torch.cat([first, second], 2), state

    close(run(pieces, inputs), run(loop, inputs), 1e-12)


def test_extreme_gates_are_exact():
    inputs = draw(L=70)
    gate = inputs[4]
    gate[:, :, 0], gate[:, 1, 5:9], gate[:, 2], gate[:, 3, 20], gate[:, 4, ::3] = -math.inf, -math.inf, 0.0, -1e4, -50.0
    want = run(loop, inputs)
    for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 1e-5)):
        got = run(delta, inputs, dtype)
        close(got, want, tolerance)
        assert (got[6][gate == -math.inf] == 0).all(), "a full reset has no slope"


def test_gate_gradients_keep_their_digits_under_strong_decay():
    """The gradient of a gate of -30 is about e^-30; a difference of sums would give rounding noise of 1e-7."""
    inputs = draw(L=48)
    inputs[4] = inputs[4] * 0 - torch.linspace(5, 30, 48, dtype=torch.float64)
    want, got = run(loop, inputs)[6], run(delta, inputs, torch.float32)[6]
    assert ((got - want).abs() <= 3e-4 * want.abs() + 1e-6 * want.abs().mean((0, 1))).all()


@pytest.mark.parametrize("likeness", [0.9, 1.0])
def test_correlated_keys_and_large_beta_stay_stable(likeness):
    q, k, v, beta, _, _ = draw(B=1, G=2, H=2, L=257, K=16, V=12)
    k = torch.nn.functional.normalize(likeness * k[:, :, :1] + (1 - likeness**2) ** 0.5 * k, dim=-1)
    beta = torch.where(torch.arange(257) % 3 > 0, 2.0, beta)
    close(run(delta, [q, k, v, beta, None, None], torch.float32), run(loop, [q, k, v, beta, None, None]), 2e-5)


def test_long_sequences_stay_finite():
    q, k, v, beta, gate, _ = draw(B=1, G=1, H=2, L=65536, K=4, V=3, state=False)
    gate[:, 0], gate[:, 1, ::1000] = 0.0, -math.inf
    assert all(x.isfinite().all() for x in run(delta, [q, k, v, beta, gate, None], torch.float32))


def test_any_number_of_threads_gives_the_same_bits():
    inputs = draw(B=1, G=1, H=3, L=50, K=8, V=70)
    before, results = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            results.append(run(delta, inputs, torch.float32))
    finally:
        torch.set_num_threads(before)
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_half_precision_in_and_out_with_a_float32_state(half):
    q, k, v, beta, gate, state = draw()
    rounded = [x.to(half) for x in (q, k, v)]
    leaves = [x.requires_grad_() for x in (*rounded, beta.float(), gate.float(), state.float())]
    out, last = delta(*leaves)
    assert out.dtype == half and last.dtype == torch.float32
    want = loop(*(x.detach().double() for x in leaves))
    assert torch.equal(out, want[0].float().to(half)) or (out.double() - want[0]).abs().max() < 0.02 * want[0].abs().max()
    (out.float().sum() + last.sum()).backward()
    assert [x.grad.dtype for x in leaves] == [half] * 3 + [torch.float32] * 3


def test_empty_inputs():
    for sizes in (dict(L=0), dict(B=0)):
        inputs = draw(**sizes)
        out, last, *gradients = run(delta, inputs)
        assert out.numel() == 0 and all(g.shape == x.shape for g, x in zip(gradients, inputs, strict=True))
        assert torch.equal(last, inputs[5])


def test_nothing_is_saved_without_gradients_and_little_with():
    q, k, v, beta, gate, state = draw()
    assert all(x.numel() == 0 for x in module._delta(q, k, v, beta, gate, state, False)[2:])
    for L in (2048, 65536):
        wide = torch.empty(2, 8, L, 64, device="meta")
        states = module._results(wide, wide, wide, wide[..., 0], None, None, True)[3]
        assert states.numel() * 4 < 2**25


@pytest.mark.parametrize("state", [False, True])
def test_one_step_without_gradients_runs_as_a_step(state):
    inputs = draw(L=1, K=6, V=37, state=state)
    with torch.no_grad():
        close(list(delta(*inputs)), list(loop(*inputs)), 1e-13)


def test_op_is_registered_in_full_and_compiles():
    inputs = [x.float().requires_grad_() for x in draw(L=20)]
    torch.library.opcheck(torch.ops.sonde.delta.default, (*inputs, True))
    compiled = torch.compile(delta, fullgraph=True, backend="aot_eager")
    inputs = draw(L=20)
    close(run(compiled, inputs), run(delta, inputs), 0)


def test_autocast_keeps_the_state_in_float32():
    q, k, v, beta, gate, _ = (x.float() for x in draw())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out, last = delta(q @ torch.eye(5), k, v, beta, gate)
    assert out.dtype == torch.float32 and last.dtype == torch.float32


def test_second_derivatives_are_refused():
    leaves = [x.requires_grad_() for x in draw()]
    (slope,) = torch.autograd.grad(delta(*leaves)[0].square().sum(), leaves[:1], create_graph=True)
    with pytest.raises(BadInput, match="no second derivative"):
        slope.sum().backward()


@pytest.mark.parametrize("gate", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_decode_step_equals_the_sequence(gate, dtype):
    q, k, v, beta, gates, state = (None if x is None else x.to(dtype) for x in draw(L=9, K=6, V=37, gate=gate))
    want, last = delta(q, k, v, beta, gates, state)
    state, out = state.clone(), torch.empty_like(v[:, :, 0])
    buffers = [x[:, :, 0].clone() for x in (q, k, v, beta)]
    log_head = None if gates is None else gates[:, :, 0].clone()
    step = DeltaStep(*buffers, state, out, log_head)
    for t in range(9):
        for buffer, x in zip([*buffers, log_head], (q, k, v, beta, gates), strict=True):
            if buffer is not None:
                buffer.copy_(x[:, :, t])
        step()
        torch.testing.assert_close(out, want[:, :, t], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(state, last, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "wrong", "says"),
    [
        ("k", lambda x: x[..., 1:], "k' has key width 4"),
        ("k", lambda x: x[:, :, 1:], "k' has length 36"),
        ("q", lambda x: x[:, :1].expand(2, 4, 37, 5), "key groups"),
        ("v", lambda x: x[:, :5], "5 heads"),
        ("beta", lambda x: x[..., None], "beta' has 4 axes"),
        ("log_head", lambda x: x[:1], "log_head' has batch 1"),
        ("state", lambda x: x[:1], "state' has batch 1"),
        ("state", lambda x: x.transpose(2, 3), "state' has key width 7"),
        ("v", lambda x: x.int(), "v' has dtype torch.int32"),
        ("q", lambda x: x.to(torch.complex128), "q' has dtype torch.complex128"),
    ],
)
def test_bad_input_names_the_tensor_and_the_axis(name, wrong, says):
    tensors = dict(zip(("q", "k", "v", "beta", "log_head", "state"), draw(), strict=True))
    tensors[name] = wrong(tensors[name])
    if name == "v" and tensors["v"].shape[1] == 5:
        tensors |= {x: tensors[x][:, :5] for x in ("beta", "log_head", "state")}
    with pytest.raises(BadInput, match=says) as caught:
        delta(**tensors)
    assert "\n" not in str(caught.value)


def test_step_refuses_mixed_and_scattered_buffers():
    q, k, v, beta, gate, state = (x.float() for x in draw(L=1))
    q, k, v, beta, gate = (x[:, :, 0] for x in (q, k, v, beta, gate))
    with pytest.raises(BadInput, match="make all buffers float32"):
        DeltaStep(q, k.double(), v, beta, state, torch.empty_like(v), gate)
    with pytest.raises(BadInput, match="not contiguous"):
        DeltaStep(q, k, v, beta, state.transpose(2, 3).contiguous().transpose(2, 3), torch.empty_like(v), gate)
    with pytest.raises(BadInput, match="'out'"):
        DeltaStep(q, k, v, beta, state, torch.empty(2, 6, 8), gate)
