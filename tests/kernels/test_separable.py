"""The separable kernel against a plain float64 loop written from the formula, in outputs and every gradient."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from sonde import kernels
from sonde.core.errors import BadInput
from sonde.kernels.separable import SeparableStep, separable

pytestmark = pytest.mark.skipif(not kernels.available(), reason="no compiled kernels here")

LENGTHS = [1, 2, 15, 16, 17, 63, 64, 65, 100, 257]
GATES = list(itertools.product((False, True), repeat=3))
EXTREME = [0.0, -1e-6, -0.1, -5.0, -50.0, -1e4, -torch.inf]
TOLERANCE = {torch.float64: 1e-11, torch.float32: 2e-5}


def loop(q, k, v, log_head, log_key, log_value, state, before) -> tuple[Tensor, Tensor]:
    """S = A S + k (x) v;  out = S^T q, step by step."""
    B, H, L, V = v.shape
    q, k = (x.repeat_interleave(H // x.shape[1], 1) for x in (q, k))
    decay = torch.zeros(B, H, L, 1, 1, dtype=v.dtype)
    for gate, axes in ((log_head, (..., None, None)), (log_key, (..., slice(None), None)), (log_value, (..., None, slice(None)))):
        if gate is not None:
            decay = decay + gate[axes]
    S = v.new_zeros(B, H, k.shape[-1], V) if state is None else state
    outs = []
    for q_t, k_t, v_t, a_t in zip(q.unbind(2), k.unbind(2), v.unbind(2), decay.exp().unbind(2)):
        old, S = S, a_t * S + k_t[..., :, None] * v_t[..., None, :]
        outs.append(((old if before else S) * q_t[..., :, None]).sum(-2))
    return torch.stack(outs, 2) if outs else torch.zeros_like(v), S


def inputs(B, H, G, L, K, V, gates=(True, True, True), scale=1.0, seed=0, with_state=True) -> list[Tensor | None]:
    """Random float64 inputs; gates are uniform on [-scale, 0]."""
    make = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=make, dtype=torch.float64)

    def gate(*shape):
        return -scale * torch.rand(*shape, generator=make, dtype=torch.float64)

    shapes = ((B, H, L), (B, H, L, K), (B, H, L, V))
    log_gates = [gate(*shape) if there else None for shape, there in zip(shapes, gates)]
    return [normal(B, G, L, K), normal(B, G, L, K), normal(B, H, L, V), *log_gates, normal(B, H, K, V) if with_state else None]


def results(form, tensors, before, dtype=torch.float64, arrange=lambda x: x) -> list[Tensor]:
    """out, final state, and the gradients of all inputs of a fixed random function of both."""
    leaves = [None if x is None else arrange(x.to(dtype)).detach().requires_grad_() for x in tensors]
    out, last = form(*leaves, before)
    make = torch.Generator().manual_seed(1)
    weigh = [torch.randn(x.shape, generator=make, dtype=torch.float64).to(dtype) for x in (out, last)]
    gradients = torch.autograd.grad((out * weigh[0]).sum() + (last * weigh[1]).sum(), [x for x in leaves if x is not None])
    return [out.detach(), last.detach(), *gradients]


def assert_close(got, expected, tolerance):
    assert len(got) == len(expected)
    for i, (x, y) in enumerate(zip(got, expected)):
        assert x.shape == y.shape and x.isfinite().all(), i
        if y.numel():  # relative to the largest of its own entries, down to what a gate of -32 leaves: the kernel calls that nothing
            error, largest = (x.double() - y).abs().max(), y.abs().max()
            assert error <= tolerance * largest + 1e-13, f"result {i}: {error:.2e} of {largest:.2e}"


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("length", LENGTHS)
def test_equals_the_loop_at_every_length(length, before):
    tensors = inputs(2, 6, 3, length, 5, 7)
    expected = results(loop, tensors, before)
    for dtype, tolerance in TOLERANCE.items():
        assert_close(results(separable, tensors, before, dtype), expected, tolerance)


@pytest.mark.parametrize("gates", GATES)
def test_equals_the_loop_for_every_set_of_gates(gates):
    for before, with_state, scale in itertools.product((False, True), (False, True), (0.05, 12.0)):
        tensors = inputs(1, 2, 1, 37, 9, 4, gates, scale, with_state=with_state)
        expected = results(loop, tensors, before)
        for dtype, tolerance in TOLERANCE.items():
            assert_close(results(separable, tensors, before, dtype), expected, tolerance)


@pytest.mark.parametrize("key, value", [(1, 1), (3, 17), (17, 3), (64, 65), (100, 1), (5, 257), (40, 24)])
def test_any_width(key, value):
    tensors = inputs(1, 2, 2, 19, key, value)
    expected = results(loop, tensors, False)
    for dtype, tolerance in TOLERANCE.items():
        assert_close(results(separable, tensors, False, dtype), expected, tolerance)


@pytest.mark.parametrize("before", [False, True])
def test_memory_orders_give_the_same_bits(before):
    """[B, L, H, D] in memory, a last axis that is not contiguous, and expanded inputs are all taken."""
    tensors = inputs(2, 3, 3, 33, 6, 10)
    plain = results(separable, tensors, before, torch.float32)
    swap = lambda x: x.transpose(1, 2).contiguous().transpose(1, 2)  # noqa: E731
    turn = lambda x: x.transpose(-1, -2).contiguous().transpose(-1, -2)  # noqa: E731
    for arrange in (swap, turn):
        for x, y in zip(results(separable, tensors, before, torch.float32, arrange), plain):
            assert torch.equal(x, y)
    tensors[4] = tensors[4][:, :, :1].expand_as(tensors[4])
    tensors[2] = tensors[2][:1].expand_as(tensors[2])
    expected = results(loop, tensors, before)
    assert_close(results(separable, tensors, before), expected, 1e-11)


def test_out_joins_heads_without_a_copy():
    out, _ = separable(*inputs(2, 3, 1, 11, 4, 5))
    assert out.transpose(1, 2).flatten(2).data_ptr() == out.data_ptr()


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_extreme_gates_mixed_over_channels(dtype, before):
    """Full forget, full memory and all between, in one head: finite, right, and no gradient for a gate that is -inf."""
    tensors = inputs(1, 2, 2, 150, 7, 8)
    make = torch.Generator().manual_seed(3)
    levels = torch.tensor(EXTREME, dtype=torch.float64)
    for i in (3, 4, 5):
        # Strong gates are rare on the head axis, else little of the others would be left to see.
        odds = torch.tensor([9.0, 9, 9, 1, 1, 1, 1] if i == 3 else [3.0, 3, 3, 1, 1, 1, 1])
        picks = torch.multinomial(odds, tensors[i].numel(), replacement=True, generator=make)
        tensors[i] = levels[picks].view_as(tensors[i])
    expected = results(loop, [x if x is None else x.nan_to_num(neginf=-1e30) for x in tensors], before)
    got = results(separable, tensors, before, dtype)
    assert_close(got, expected, TOLERANCE[dtype])
    for gate, gradient in zip(tensors[3:6], got[5:8]):
        assert (gradient[gate == -torch.inf] == 0).all()


@pytest.mark.parametrize("level", EXTREME)
def test_one_gate_level_everywhere(level):
    tensors = inputs(1, 1, 1, 70, 3, 5)
    for i, j in ((3, 4), (4, 5), (5, 3)):
        one = list(tensors)
        one[i], one[j] = torch.full_like(tensors[i], level), None
        expected = results(loop, [x if x is None else x.nan_to_num(neginf=-1e30) for x in one], False)
        assert_close(results(separable, one, False, torch.float32), expected, 2e-5)


def test_gate_gradients_keep_their_digits_under_strong_decay():
    """Relative to the gradients themselves, which exp(-9) has made small: sums that cancel would leave nothing."""
    tensors = inputs(1, 2, 1, 200, 8, 6, scale=0.0)
    for i, level in ((3, -1.0), (4, -4.0), (5, -4.0)):
        tensors[i] = tensors[i] + level
    expected, got = (
        [x.double() for x in results(form, tensors, False, dtype)] for form, dtype in ((loop, torch.float64), (separable, torch.float32))
    )
    for x, y in zip(got[5:8], expected[5:8]):
        # The last step also meets the gradient of the final state, whose own terms are large.
        assert (x - y)[:, :, :-1].abs().max() < 1e-4 * y[:, :, :-1].abs().max()


def test_long_sequences_with_extreme_gates_stay_finite():
    L = 65_536
    make = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 1, L, 2, generator=make) for _ in range(3))
    for level in (0.0, -1e-6, -1e4, -torch.inf):
        gate = torch.full((1, 1, L, 2), level, requires_grad=True)
        out, last = separable(q, k, v, log_key=gate)
        (gradient,) = torch.autograd.grad(out.sum() + last.sum(), gate)
        assert out.isfinite().all() and last.isfinite().all() and gradient.isfinite().all()
    # Without decay the state is the sum of the writes.
    _, last = separable(q, k, v, log_head=torch.zeros(1, 1, L))
    assert torch.allclose(last.double(), k.double().transpose(-1, -2) @ v.double(), atol=5e-2, rtol=1e-4)


@pytest.mark.parametrize("before", [False, True])
def test_split_anywhere(before):
    tensors = inputs(1, 2, 1, 50, 4, 6)
    *sequences, state = tensors
    whole, last = separable(*tensors, before)
    for cuts in ((1, 50), (17, 18, 50), (0, 33, 33, 50)):
        parts, now, start = [], state, 0
        for cut in cuts:
            part, now = separable(*(x[:, :, start:cut] for x in sequences), now, before)
            parts.append(part)
            start = cut
        assert torch.allclose(torch.cat(parts, 2), whole, atol=1e-12) and torch.allclose(now, last, atol=1e-12)


def test_empty_batch_and_empty_sequence():
    tensors = inputs(2, 4, 2, 0, 3, 5)
    out, last = separable(*tensors)
    assert out.shape == (2, 4, 0, 5) and torch.equal(last, tensors[6])
    _, last = separable(*tensors[:6])
    assert torch.equal(last, torch.zeros_like(last))
    state = tensors[6].requires_grad_()
    for before in (False, True):
        (gradient,) = torch.autograd.grad(separable(*tensors, before)[1].sum(), state)
        assert torch.equal(gradient, torch.ones_like(state))
    out, last = separable(*inputs(0, 4, 2, 7, 3, 5))
    assert out.shape == (0, 4, 7, 5) and last.shape == (0, 4, 3, 5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_in_and_out_float32_inside(dtype):
    q, k, v, *gates, state = inputs(2, 4, 2, 40, 8, 6)
    half = [x.to(dtype) for x in (q, k, v)]
    gates = [x.float() for x in gates]
    out, last = separable(*half, *gates, state.float())
    expected, wanted_last = separable(*(x.float() for x in half), *gates, state.float())
    assert out.dtype == dtype and last.dtype == torch.float32
    assert torch.equal(out, expected.to(dtype)) and torch.equal(last, wanted_last)
    half[0].requires_grad_()
    assert torch.autograd.grad(separable(*half, *gates)[0].sum(), half[0])[0].dtype == dtype


def test_threads_change_nothing():
    tensors = inputs(2, 3, 1, 40, 5, 7)
    alone = results(separable, tensors, False, torch.float32)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        together = results(separable, tensors, False, torch.float32)
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(x, y) for x, y in zip(alone, together))


@pytest.mark.parametrize("gates", [(False, False, False), (True, True, True)])
def test_custom_op_is_well_made(gates):
    tensors = [None if x is None else x.requires_grad_() for x in inputs(1, 2, 1, 5, 3, 4, gates)]
    torch.library.opcheck(torch.ops.sonde.separable.default, (*tensors, False, gates[2]))


@pytest.mark.parametrize("gates", [(True, False, False), (True, True, True)])
def test_compiled_equals_eager(gates):
    tensors = inputs(1, 4, 2, 20, 3, 5, gates)
    compiled = torch.compile(separable, fullgraph=True, backend="aot_eager")
    for x, y in zip(results(compiled, tensors, False), results(separable, tensors, False)):
        assert torch.equal(x, y)


def test_autocast_is_taken():
    q, k, v, log_head, _, _, state = (None if x is None else x.float() for x in inputs(1, 2, 2, 9, 4, 4))
    eye = torch.eye(4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out, last = separable(q @ eye, k @ eye, v @ eye, log_head, state=state)
    assert out.dtype == torch.bfloat16 and last.dtype == torch.float32


def test_second_derivative_is_refused_clearly():
    tensors = inputs(1, 1, 1, 3, 2, 2)
    v = tensors[2].requires_grad_()
    q = tensors[0].requires_grad_()
    (first,) = torch.autograd.grad(separable(*tensors)[0].sum(), v, create_graph=True)
    with pytest.raises(BadInput, match="no second derivative"):
        torch.autograd.grad(first.sum(), q)


@pytest.mark.parametrize("gates, before", [*((g, False) for g in GATES), ((True, True, True), True)])
def test_step_on_held_buffers_equals_the_sequence(gates, before):
    *sequences, state = inputs(2, 4, 2, 6, 67, 37, gates)
    expected, last = loop(*sequences, state, before)
    for dtype, tolerance in TOLERANCE.items():
        held = [None if x is None else x[:, :, 0].to(dtype).clone() for x in sequences]
        now, out = state.to(dtype).clone(), torch.full((2, 4, 37), torch.nan, dtype=dtype)
        step = SeparableStep(*held[:3], now, out, *held[3:], before=before)
        for t in range(6):
            for buffer, x in zip(held, sequences):
                if buffer is not None:
                    buffer.copy_(x[:, :, t])
            step()
            assert_close([out], [expected[:, :, t]], tolerance)
        assert_close([now], [last], tolerance)


@pytest.mark.parametrize(
    "name, change, words",
    [
        ("k", lambda x: x[..., :2], "'k' has key width 2, but 'q' has 3"),
        ("v", lambda x: x[:, :, :4], "'v' has length 4, but 'q' has 5"),
        ("log_key", lambda x: x[:, :1], "'log_key' has heads 1, but 'v' has 4"),
        ("log_head", lambda x: x[..., None], r"'log_head' has 4 axes .*give \[B, H, L\]"),
        ("state", lambda x: x[:1], "'state' has batch 1, but 'q' has 2"),
        ("state", lambda x: x.transpose(-1, -2), "'state' has key width 6"),
        ("q", lambda x: x.long(), "'q' has dtype torch.int64"),
        ("v", lambda x: x.to(torch.complex64), "'v' has dtype torch.complex64"),
    ],
)
def test_wrong_input_names_tensor_axis_and_fix(name, change, words):
    names = ("q", "k", "v", "log_head", "log_key", "log_value", "state")
    tensors = dict(zip(names, inputs(2, 4, 2, 5, 3, 6)))
    tensors[name] = change(tensors[name])
    with pytest.raises(BadInput, match=words):
        separable(**tensors)


def test_groups_must_divide_heads():
    tensors = inputs(1, 4, 3, 5, 2, 2)
    with pytest.raises(BadInput, match="4 heads and 3 key groups"):
        separable(*tensors)


def test_step_refuses_buffers_it_cannot_hold():
    x = torch.zeros(1, 2, 3)
    state = torch.zeros(1, 2, 3, 3)
    with pytest.raises(BadInput, match="'.*' of a decode step is torch.float(32|64)"):
        SeparableStep(x, x, x, state, x.double())
    with pytest.raises(BadInput, match="last axis of 'state' is not contiguous"):
        SeparableStep(x, x, x, state.transpose(-1, -2), x)
