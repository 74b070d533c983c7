"""Every operation of the decode program equals its formula in torch, with one thread and with two, for any number of sequences."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from sonde import kernels
from sonde.core.errors import BadInput
from sonde.kernels.decode import ACTIVATIONS, GROUP, ROWS, Program, Vectors, quantize
from sonde.kernels.library import view

pytestmark = pytest.mark.skipif(not kernels.available(), reason="no compiled kernels here")

FUNCTIONS = {
    "identity": lambda x: x,
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
}
KINDS = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
TOLERANCE = {torch.float32: 2e-6, torch.float64: 1e-14}


@pytest.fixture(params=[1, 2], autouse=True)
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.fixture
def rng():
    return torch.Generator().manual_seed(3)


def close(actual, expected):
    assert (actual - expected).abs().max() <= TOLERANCE[expected.dtype] * expected.abs().max()


def none(rows):
    return torch.zeros(rows, dtype=torch.long)


@KINDS
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize(("rows", "size", "out"), [(1, 40, 70), (2, 16, 33), (3, 5, 3), (8, 67, 129), (1, 1, 1)])
def test_linear_is_torchs(rng, dtype, activation, rows, size, out):
    x, weight, bias = torch.randn(rows, size, generator=rng), torch.randn(out, size, generator=rng), torch.randn(out, generator=rng)
    times, add = torch.randn(rows, out, generator=rng), torch.randn(rows, out, generator=rng)
    x, weight, bias, times, add = (t.to(dtype) for t in (x, weight, bias, times, add))
    program = Program(rows, dtype)
    for name, value in (("x", x), ("times", times), ("y", add)):
        program.tensor(name, value.shape[1]).copy_(value)
    y = program.add_shared("y", out)
    program.linear(program.add_shared("x", size), y, weight, bias, activation=activation, times=program.add_shared("times", out), add=y)
    assert program.run(none(rows))
    close(program.tensor("y", out), FUNCTIONS[activation](F.linear(x, weight, bias)) * times + add)


@pytest.mark.parametrize(("rows", "size", "out"), [(1, 128, 70), (2, 65, 33), (5, 5, 3)])
def test_bytes_multiply_as_the_numbers_they_stand_for(rng, rows, size, out):
    x, weight = torch.randn(rows, size, generator=rng), torch.randn(out, size, generator=rng)
    data, scales = quantize(weight)
    meant = (data.unflatten(1, (-1, GROUP)) * scales.unsqueeze(-1)).flatten(1)[:, :size]
    assert (meant - weight).abs().max() <= 0.501 * scales.max()  # half a step, and rounding of the product
    program = Program(rows, torch.float32, "int8")
    program.tensor("x", size).copy_(x)
    program.linear(program.add_shared("x", size), program.add_shared("y", out), weight)
    assert program.run(none(rows))
    close(program.tensor("y", out), F.linear(x, meant))


def test_bytes_of_nothing_are_nothing():
    data, scales = quantize(torch.zeros(3, 70))
    assert not data.any()
    assert not scales.any()
    assert data.shape == (3, 128)


@KINDS
@pytest.mark.parametrize("size", [8, 37])
def test_norms_are_torchs(rng, dtype, size):
    x, gate = torch.randn(2, size, generator=rng).to(dtype), torch.randn(2, size, generator=rng).to(dtype)
    weight, bias = torch.randn(size, generator=rng).to(dtype), torch.randn(size, generator=rng).to(dtype)
    expected = {
        "layer": F.layer_norm(x, (size,), weight, bias, 1e-5),
        "rms": F.rms_norm(x, (size,), weight, 1e-6),
        "gated": F.rms_norm(x * F.silu(gate), (size,), weight, 1e-6),
    }
    program = Program(2, dtype)
    program.tensor("x", size).copy_(x)
    program.tensor("gate", size).copy_(gate)
    source, eye = program.add_shared("x", size), torch.eye(size, dtype=dtype)
    targets = {name: program.add_per_thread(name, size) for name in expected}
    program.norm(source, targets["layer"], size, weight, bias, 1e-5, centered=True)
    program.norm(source, targets["rms"], size, weight, None, 1e-6)
    program.norm(source, targets["gated"], size, weight, None, 1e-6, gate=program.add_shared("gate", size))
    for name, own in targets.items():  # every thread has its own: a product with 1 reads them
        program.linear(own, program.add_shared(f"{name} told", size), eye)
    assert program.run(none(2))
    for name, value in expected.items():
        close(program.tensor(f"{name} told", size), value)


@KINDS
@pytest.mark.parametrize(("heads", "groups", "d"), [(6, 6, 8), (4, 2, 10), (3, 1, 34)])
@pytest.mark.parametrize("how", ["plain", "rotary", "alibi"])
def test_attention_over_kept_keys(rng, dtype, heads, groups, d, how):
    seen, room = torch.tensor([70, 0, 3]), 80
    rows = len(seen)
    k, v = (torch.randn(rows, groups, room, d, generator=rng).to(dtype) for _ in range(2))
    qkv = torch.randn(rows, (heads + 2 * groups) * d, generator=rng).to(dtype)
    slopes = torch.rand(heads, generator=rng).to(dtype)
    q, new_k, new_v = qkv.view(rows, heads + 2 * groups, d).split((heads, groups, groups), 1)
    if how == "rotary":
        angle = seen[:, None, None].double() * 100.0 ** (-torch.arange(0, d, 2).double() / d)
        turn = torch.polar(torch.ones_like(angle), angle)

        def rotate_by_hand(x):
            pairs = torch.complex(*x.double().chunk(2, -1)) * turn
            return torch.cat([pairs.real, pairs.imag], -1).to(dtype)

        q, new_k = rotate_by_hand(q), rotate_by_hand(new_k)
    expected = torch.empty(rows, heads * d, dtype=dtype)
    for row, n in enumerate(seen.tolist()):
        keys, values = (
            torch.cat([old[row, :, :n], new[row, :, None]], 1).repeat_interleave(heads // groups, 0)
            for old, new in ((k, new_k), (v, new_v))
        )
        scores = 0.3 * (keys @ q[row].unsqueeze(-1)).squeeze(-1)
        if how == "alibi":
            scores = scores - slopes[:, None] * torch.arange(n, -1, -1)
        expected[row] = (scores.softmax(-1).unsqueeze(1) @ values).flatten()
    program = Program(rows, dtype)
    program.tensor("qkv", qkv.shape[1]).copy_(qkv)
    angles = program.angles(d, 100.0) if how == "rotary" else None
    source, y = program.add_shared("qkv", qkv.shape[1]), program.add_shared("y", heads * d)
    operation = program.attend(source, y, (heads, groups, d), 0.3, angles=angles, slopes=slopes if how == "alibi" else None)
    used = seen.clone()
    operation.past, operation.past2, operation.used, operation.room = view(k), view(v), used.data_ptr(), room
    assert program.run(seen)
    close(program.tensor("y", heads * d), expected)
    assert used.tolist() == [71, 1, 4]
    for row, n in enumerate(seen.tolist()):
        close(k[row, :, n], new_k[row])
        assert torch.equal(v[row, :, n], new_v[row])
    # the cache now holds more than was seen; a full one has no capacity either
    assert not program.run(seen)
    operation.room = 71
    assert not program.run(used)


@KINDS
@pytest.mark.parametrize(("taps", "size"), [(4, 24), (1, 9), (3, 35)])
def test_short_convolution(rng, dtype, taps, size):
    x, tail = torch.randn(2, size, generator=rng).to(dtype), torch.randn(2, taps - 1, size, generator=rng).to(dtype)
    weight, bias = torch.randn(taps, size, generator=rng).to(dtype), torch.randn(size, generator=rng).to(dtype)
    whole = torch.cat([tail, x.unsqueeze(1)], 1)
    program, after = Program(2, dtype), torch.empty_like(tail)
    program.tensor("x", size).copy_(x)
    operation = program.convolve(program.add_shared("x", size), program.add_shared("y", size), weight, bias)
    operation.past, operation.next = view(tail.unsqueeze(1)), view(after.unsqueeze(1))
    assert program.run(none(2))
    close(program.tensor("y", size), F.silu((whole * weight).sum(1) + bias))
    assert torch.equal(after, whole[:, 1:])


@KINDS
@pytest.mark.parametrize("sizes", [(4, 2, 3, 9), (2, 2, 5, 32), (3, 1, 4, 40)])
def test_recurrence_of_mamba(rng, dtype, sizes):
    heads, groups, K, V = sizes
    v, k, q = (torch.randn(2, n, d, generator=rng).to(dtype) for n, d in ((heads, V), (groups, K), (groups, K)))
    state, step = torch.randn(2, heads, K, V, generator=rng).to(dtype), torch.randn(2, heads, generator=rng).to(dtype)
    bias, log_rate, skip = (torch.randn(heads, generator=rng).to(dtype) for _ in range(3))
    a = F.softplus(step + bias).clamp(0.3, 1.1)
    keys, queries = (x.repeat_interleave(heads // groups, 1) for x in (k, q))
    kept = (-a * log_rate.exp()).exp()[..., None, None]
    expected = kept * state + keys.unsqueeze(-1) * (a.unsqueeze(-1) * v).unsqueeze(-2)
    read = (queries.unsqueeze(-1) * expected).sum(-2) + skip.unsqueeze(-1) * v
    program, after = Program(2, dtype), torch.empty_like(state)
    program.tensor("vkq", n := heads * V + 2 * groups * K).copy_(torch.cat([x.flatten(1) for x in (v, k, q)], 1))
    program.tensor("step", heads).copy_(step)
    operation = program.recur(
        program.add_shared("vkq", n),
        program.add_shared("step", heads),
        program.add_shared("y", heads * V),
        sizes,
        (bias, log_rate, skip),
        (0.3, 1.1),
    )
    operation.past, operation.next = view(state), view(after)
    assert program.run(none(2))
    close(after, expected)
    close(program.tensor("y", heads * V), read.flatten(1))


def test_a_long_program_meets_at_every_barrier(rng, threads):
    """Each product needs all of the one before it, so a thread that does not wait is seen; torch's own threads work in between."""
    turn = torch.linalg.qr(torch.randn(48, 48, generator=rng, dtype=torch.float64))[0].contiguous()
    program = Program(1, torch.float64)
    spaces = [program.add_shared(name, 48) for name in "ab"]
    for i in range(200):
        program.linear(spaces[i % 2], spaces[1 - i % 2], turn)
    x, big = torch.randn(1, 48, generator=rng, dtype=torch.float64), torch.randn(300, 300, generator=rng)
    expected = x @ torch.linalg.matrix_power(turn, 200).T
    for _ in range(20):
        program.tensor("a", 48).copy_(x)
        assert program.run(none(1))
        assert (program.tensor("a", 48) - expected).abs().max() < 1e-12
        big @ big


def test_mistakes_are_told():
    with pytest.raises(BadInput, match=f"1 to {ROWS} sequences, not 9"):
        Program(9, torch.float32)
    program = Program(1, torch.float32)
    with pytest.raises(BadInput, match="float64"):
        program.linear(program.add_shared("x", 4), Vectors(), torch.zeros(4, 4, dtype=torch.float64))
