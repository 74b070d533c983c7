"""The kernel of recurrent cells against torch's own layers and against loops written from the formulas."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sonde import kernels
from sonde.core.errors import BadInput
from sonde.kernels.gates import gru, lstm, rnn

pytestmark = pytest.mark.skipif(not kernels.available(), reason="the compiled kernels were not built")
SIZES = [(1, 1, 1), (3, 5, 7), (5, 9, 16), (13, 4, 37), (2, 65, 24)]  # batch, time, width
s = torch.sigmoid


def draw(*shape: int, seed: int = 0, size: float = 0.7, dtype: torch.dtype = torch.float64) -> Tensor:
    return (size * torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)).to(dtype).requires_grad_()


def rnn_loop(p, W, h, relu):
    return {"h": (torch.relu if relu else torch.tanh)(p + h @ W.mT)}


def gru_loop(p, W, h, b):
    (pr, pz, pn), (Wr, Wz, Wn) = p.chunk(3, -1), W.chunk(3)
    r, z = s(pr + h @ Wr.mT), s(pz + h @ Wz.mT)
    n = torch.tanh(pn + ((r * h) @ Wn.mT if b is None else r * (h @ Wn.mT + b)))
    return {"h": z * h + (1 - z) * n}


def lstm_loop(p, W, h, c, w, U):
    Wi, Wf, Wg, Wo = W.chunk(4)
    pi, pf, pg, *po = p.chunk(3 if U is not None else 4, -1)
    c = s(pf + h @ Wf.mT) * c + s(pi + h @ Wi.mT) * torch.tanh(pg + h @ Wg.mT)
    o = h @ Wo.mT + (w + c @ U.mT if U is not None else po[0] if w is None else po[0] + w * c)
    return {"h": s(o) * torch.tanh(c), "c": c}


def unrolled(step, p, state, lengths):
    outs = []
    for t in range(p.shape[1]):
        new = step(p[:, t], **state)
        live = (t < lengths).unsqueeze(1)
        state = {name: torch.where(live, new[name], state[name]) for name in new}
        outs.append(state["h"])
    return torch.stack(outs, 1), *state.values()


KINDS = ["tanh", "relu", "before", "after", "standard", "peephole", "cell"]


def case(kind: str, B: int, T: int, H: int, dtype=torch.float64):
    """Leaves by name, the kernel's call and one step of the formula."""
    gates = 1 if kind in KINDS[:2] else 3 if kind in KINDS[2:4] else 4
    projected = gates - (kind == "cell")
    calm = 0.8 * H**-0.5  # larger recurrent weights are chaotic: rounding would grow with time
    leaves = {"p": draw(B, T, projected * H, seed=1, dtype=dtype), "W": draw(gates * H, H, seed=2, size=calm, dtype=dtype)}
    leaves["h"] = draw(B, H, seed=3, dtype=dtype)
    if gates == 4:
        leaves["c"] = draw(B, H, seed=4, dtype=dtype)
    if kind in ("after", "peephole", "cell"):
        leaves["v"] = draw(H, seed=5, dtype=dtype)
    if kind == "cell":
        leaves["U"] = draw(H, H, seed=6, size=calm, dtype=dtype)
    p, W, h, c, v, U = (leaves.get(name) for name in ("p", "W", "h", "c", "v", "U"))
    if gates == 1:
        return leaves, lambda n: rnn(p, W, h, n, relu=kind == "relu"), lambda p, h: rnn_loop(p, W, h, kind == "relu")
    if gates == 3:
        return leaves, lambda n: gru(p, W, v, h, n), lambda p, h: gru_loop(p, W, h, v)
    return leaves, lambda n: lstm(p, W, h, c, n, vector=v, inner=U), lambda p, h, c: lstm_loop(p, W, h, c, v, U)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("B", "T", "H"), SIZES)
@pytest.mark.parametrize("padded", [False, True])
def test_equals_the_formula_in_values_and_gradients(kind: str, B: int, T: int, H: int, padded: bool) -> None:
    for dtype, tolerance in ((torch.float64, 1e-11), (torch.float32, 2e-5)):
        leaves, fused, step = case(kind, B, T, H, dtype)
        lengths = torch.arange(B) * 3 % (T + 1) if padded else None
        actual = fused(lengths)
        state = {name: leaves[name] for name in ("h", "c") if name in leaves}
        expected = unrolled(step, leaves["p"], state, torch.full((B,), T) if lengths is None else lengths)
        actual = actual[: len(expected)]
        for outs in (actual, expected):  # padding is nothing's business
            loss = sum((x * draw(*x.shape, seed=7, dtype=dtype).detach()).sum() for x in outs)
            grads = torch.autograd.grad(loss, list(leaves.values()))
            if outs is actual:
                mine = grads
        for name, a, b in zip(["out", "h", "c"], actual, expected):
            torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance, msg=lambda m, name=name: f"{kind} {name}: {m}")
        for name, a, b in zip(leaves, mine, grads):
            scale = max(float(b.abs().max()), 1.0)
            torch.testing.assert_close(a / scale, b / scale, rtol=tolerance, atol=tolerance, msg=lambda m, name=name: f"d{name}: {m}")


@pytest.mark.parametrize("name", ["LSTM", "GRU", "RNN"])
def test_equals_torch(name: str) -> None:
    torch.manual_seed(0)
    layer = getattr(torch.nn, name)(6, 11, batch_first=True).double()
    x, h = draw(4, 10, 6), draw(4, 11, seed=9)
    Wx, W, bx, bh = (getattr(layer, f"{part}_l0") for part in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"))
    both = torch.cat([bh[:22], torch.zeros(11)]) if name == "GRU" else bh
    p = x @ Wx.mT + bx + both
    if name == "LSTM":
        (out, last, cell), (expected, (end, c)) = lstm(p, W, h, 2 * h), layer(x, (h[None], 2 * h[None]))
        torch.testing.assert_close(cell, c[0])
    else:
        out, last = gru(p, W, bh[22:], h) if name == "GRU" else rnn(p, W, h)
        expected, end = layer(x, h[None])
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(last, end[0])
    leaves = [x, h, *layer.parameters()]
    mine, theirs = (torch.autograd.grad((y * y.detach().cos()).sum(), leaves) for y in (out, expected))
    for a, b in zip(mine, theirs):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("kind", KINDS)
def test_threads_change_no_bit(kind: str) -> None:
    results, threads = [], torch.get_num_threads()
    try:
        for n in (1, 2, 3):
            torch.set_num_threads(n)
            leaves, fused, _ = case(kind, 7, 6, 20, torch.float32)
            outs = fused(None)
            results.append([*outs, torch.autograd.grad(outs[0].square().sum(), leaves["p"])[0]])
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(a, b) for other in results[1:] for a, b in zip(results[0], other))


def test_closed_and_open_gates_are_exact() -> None:
    """F = 1 and I = 0 keep a cell for a thousand steps to the last bit."""
    H, c = 5, draw(2, 5, dtype=torch.float32).detach()
    p = torch.zeros(2, 1000, 4, H)
    p[:, :, 0], p[:, :, 1], p[:, :, 2] = -200, 200, 3
    _, _, last = lstm(p.flatten(2), torch.zeros(4 * H, H), torch.zeros(2, H), c)
    assert torch.equal(last, c)


def test_not_a_number_stays_in_its_row() -> None:
    p = torch.zeros(2, 3, 8)
    p[0, 1, 0] = torch.nan
    out, _, _ = lstm(p, torch.ones(8, 2), torch.zeros(2, 2), torch.zeros(2, 2))
    assert out[0, 1:].isnan().any() and out[0, 0].isfinite().all() and out[1].isfinite().all()


def test_no_rows_and_wrong_sizes() -> None:
    out, last = rnn(torch.zeros(0, 4, 3), torch.zeros(3, 3), torch.zeros(0, 3))
    assert out.shape == (0, 4, 3) and last.shape == (0, 3)
    with pytest.raises(BadInput, match=r"kernel gru_before.*3 H"):
        gru(torch.zeros(2, 4, 8), torch.zeros(12, 4), None, torch.zeros(2, 4))
    with pytest.raises(BadInput, match="second derivative"):
        leaves, fused, _ = case("before", 2, 3, 4)
        (d,) = torch.autograd.grad(fused(None)[0].square().sum(), leaves["p"], create_graph=True)
        d.sum().backward()


def test_no_steps_leave_the_state_as_it_was() -> None:
    h, c = (torch.randn(3, 5, requires_grad=True) for _ in range(2))
    for outputs, states in (
        (rnn(torch.zeros(3, 0, 5), torch.randn(5, 5), h), (h,)),
        (gru(torch.zeros(3, 0, 15), torch.randn(15, 5), None, h), (h,)),
        (lstm(torch.zeros(3, 0, 20), torch.randn(20, 5), h, c), (h, c)),
    ):
        assert outputs[0].shape == (3, 0, 5) and all(torch.equal(x, y) for x, y in zip(outputs[1:], states, strict=True))
        (dh,) = torch.autograd.grad(outputs[1].sum(), h)
        assert (dh == 1).all()


def test_the_op_is_a_good_torch_op() -> None:
    leaves, _, _ = case("cell", 2, 3, 4)
    args = (6, leaves["p"], leaves["W"], leaves["U"], leaves["v"], leaves["h"], leaves["c"], None, True)
    torch.library.opcheck(torch.ops.sonde.gates.default, args, test_utils=("test_schema", "test_faketensor"))
