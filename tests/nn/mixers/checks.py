"""What must hold for every mixer that keeps keys and values, asked by their tests."""

from __future__ import annotations

import torch
from torch import Tensor

from sonde import kernels
from sonde.nn.mixers import Mixer
from sonde.nn.recurrence import State
from sonde.nn.spans import Spans

TIGHT = dict(rtol=1e-9, atol=1e-9)


def tokens(m: Mixer, B: int, T: int, seed: int = 0) -> Tensor:
    return torch.randn(B, T, m.width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def runnable(m: Mixer) -> list[str]:
    """Forms that can run here: kernels may not be built."""
    return [form for form in m.forms() if form != "fused" or kernels.available()]


def gradients(m: Mixer, x: Tensor, run) -> list[Tensor]:
    """Output of `run(x)` and the gradients of x and of all parameters by a fixed mix of it."""
    x = x.clone().requires_grad_()
    y = run(x)
    mix = torch.randn(y.shape, generator=torch.Generator().manual_seed(7), dtype=y.dtype)
    return [y.detach(), *torch.autograd.grad((y * mix).sum(), [x, *(p for p in m.parameters() if p.requires_grad)])]


def agree(actual: list[Tensor], expected: list[Tensor], what: object = "") -> None:
    for i, (one, other) in enumerate(zip(actual, expected, strict=True)):
        assert torch.allclose(one, other, **TIGHT), (what, i, float((one - other).abs().max()))


def feed(m: Mixer, x: Tensor, sizes: list[int], state: State | None = None) -> Tensor:
    """x in pieces of these sizes, the state handed on."""
    outs = []
    for piece in x.split(sizes, 1):
        y, state = m(piece, state)
        outs.append(y)
    return torch.cat(outs, 1)


def check_forms(m: Mixer, lengths: tuple[int, ...] = (1, 2, 65, 200)) -> None:
    for T in lengths:
        expected = gradients(m.use("step"), tokens(m, 2, T), lambda x: m(x)[0])
        for form in runnable(m):
            agree(gradients(m.use(form), tokens(m, 2, T), lambda x: m(x)[0]), expected, (form, T))
    m.use("auto")


def check_pieces(m: Mixer) -> None:
    """Fed in pieces, with gradients through the state and without them."""
    x = tokens(m, 2, 23)
    expected = gradients(m, x, lambda x: m(x)[0])
    for form in runnable(m):
        for sizes in ([23], [1] * 23, [5, 1, 1, 9, 7], [16, 7]):
            m.use(form)
            agree(gradients(m, x, lambda x, sizes=sizes: feed(m, x, sizes)), expected, (form, sizes))
            with torch.no_grad():
                agree([feed(m, x, sizes)], expected[:1], (form, sizes))
    m.use("auto")


def check_ragged(m: Mixer) -> None:
    """Rows of different lengths, fed in two padded pieces: as each row alone; what lies beyond the end may be NaN."""
    first, second = torch.tensor([4, 7, 0]), torch.tensor([6, 2, 5])
    x = tokens(m, 3, 20)
    rows = [m(x[b : b + 1, : n + k])[0] for b, (n, k) in enumerate(zip(first.tolist(), second.tolist()))]
    pieces = [torch.full((3, 7, m.width), torch.nan).double(), torch.full((3, 6, m.width), torch.nan).double()]
    for b, (n, k) in enumerate(zip(first.tolist(), second.tolist())):
        pieces[0][b, :n], pieces[1][b, :k] = x[b, :n], x[b, n : n + k]
    for form in runnable(m):
        for learning in (True, False):
            with torch.set_grad_enabled(learning):
                one, state = m.use(form).mix(pieces[0], None, first)
                two, state = m.mix(pieces[1], state, second)
                more, _ = m(tokens(m, 3, 3, seed=4), state)  # and on from there, each row at its own position
            for b, (n, k) in enumerate(zip(first.tolist(), second.tolist())):
                agree([torch.cat([one[b, :n], two[b, :k]])], [rows[b][0]], (form, b))
                alone = m(torch.cat([x[b : b + 1, : n + k], tokens(m, 3, 3, seed=4)[b : b + 1]], 1))[0]
                agree([more[b]], [alone[0, -3:]], (form, b, "more"))
    m.use("auto")


def check_padded(m: Mixer) -> None:
    """Padded rows and packed documents as each alone, in outputs and gradients."""
    lengths = [5, 0, 11]
    x = tokens(m, 3, 11)

    def separate(x: Tensor) -> Tensor:
        return torch.cat([m(x[b : b + 1, :n])[0].flatten(0, 1) for b, n in enumerate(lengths) if n])

    def padded(x: Tensor) -> Tensor:
        y = m(x, spans=Spans.of_lengths(torch.tensor(lengths)))[0]
        return torch.cat([y[b, :n] for b, n in enumerate(lengths)])

    def mixed(x: Tensor) -> Tensor:
        y = m.mix(x, None, torch.tensor(lengths))[0]
        return torch.cat([y[b, :n] for b, n in enumerate(lengths)])

    def packed(x: Tensor) -> Tensor:
        row = torch.cat([x[b, :n] for b, n in enumerate(lengths)]).unsqueeze(0)
        return m(row, spans=Spans.of_bounds(torch.tensor([0, 5, 5, 16])))[0][0]

    expected = gradients(m, x, separate)
    for form in runnable(m):
        for run in (padded, mixed, packed):
            agree(gradients(m.use(form), x, run), expected, (form, run.__name__))
    m.use("auto")


def check_no_leak(m: Mixer) -> None:
    x = tokens(m, 2, 40)
    for form in runnable(m):
        y = m.use(form)(x)[0]
        for t in (1, 17, 39):
            other = x.clone()
            other[:, t:] = 30 * tokens(m, 2, 40, seed=1)[:, t:]
            assert torch.allclose(m(other)[0][:, :t], y[:, :t], **TIGHT), (form, t)
            assert not torch.allclose(m(other)[0][:, t:], y[:, t:])
    m.use("auto")


def check_all(m: Mixer) -> None:
    check_forms(m)
    check_pieces(m)
    check_ragged(m)
    check_padded(m)
    check_no_leak(m)
