"""Every form of every kind of recurrence against a loop written here from the formula, in outputs and all gradients."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
import torch
from torch import Tensor

from sonde.core.errors import BadInput
from sonde.nn.recurrence import Steps, choose, compute
from sonde.nn.recurrence.fused import available_forms, why_not

B, H, K, V = 2, 3, 5, 7
LENGTHS = [1, 2, 63, 64, 65, 100, 257]


def naive(s: Steps, S: Tensor) -> tuple[Tensor, Tensor]:
    """The recurrence by the book, one step at a time."""
    repeat = H // s.q.shape[1] if s.q is not None else 1
    ones = torch.ones(B, H, s.v.shape[2], K).to(S)
    qs = ones if s.q is None else s.q.repeat_interleave(repeat, 1).to(S)
    ks = ones if s.k is None else s.k.repeat_interleave(repeat, 1).to(S)
    log = torch.zeros(()).to(S)
    if s.log_head is not None:
        log = log + (s.log_head[:, None] if s.log_head.dim() == 1 else s.log_head)[..., None, None]
    if s.log_key is not None:
        log = log + s.log_key[..., None]
    if s.log_value is not None:
        times = (s.log_value[:, None] if s.log_value.dim() == 2 else s.log_value)[..., None, :]
        log = log + (times if s.rate is None else times * s.rate[:, None])
    decays = log.exp().expand(B, H, s.v.shape[2], K, V).unbind(2)
    outs = []
    for t, (q, k, v) in enumerate(zip(qs.unbind(2), ks.unbind(2), s.v.to(S).unbind(2))):
        old, S = S, decays[t] * S
        if s.beta is not None:
            v = s.beta[:, :, t, None] * (v - (S * k[..., None]).sum(-2))
        S = S + k[..., None] * v[..., None, :]
        seen = old if s.read == "before" else S
        out = ((seen if s.weight is None else seen * s.weight) * q[..., None]).sum(-2)
        if s.bonus_key is not None:
            out = out + (q * s.bonus_key * k).sum(-1, keepdim=True) * v
        if s.bonus_value is not None:
            out = out + (q * k).sum(-1, keepdim=True) * s.bonus_value * v
        outs.append(2 * out.real if out.is_complex() else out)
    return torch.stack(outs, 2), S


def make(kind: str, L: int, G: int = H) -> Steps:
    """Random steps of a kind, in float64."""
    draw = torch.Generator().manual_seed(L)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw, dtype=torch.float64)

    def log(*shape: int) -> Tensor:
        return torch.nn.functional.logsigmoid(normal(*shape) + 1)

    base = Steps(normal(B, G, L, K), normal(B, G, L, K), normal(B, H, L, V))
    unit = replace(base, k=torch.nn.functional.normalize(base.k, dim=-1), beta=torch.sigmoid(normal(B, H, L)) * 2)
    rate = normal(H, K, V).exp()
    return {
        "none": lambda: base,
        "head": lambda: replace(base, log_head=log(B, H, L)),
        "head constant": lambda: replace(base, log_head=log(H)),
        "key": lambda: replace(base, log_key=log(B, H, L, K)),
        "value": lambda: replace(base, log_value=log(B, H, L, V)),
        "all axes": lambda: replace(base, log_head=log(B, H, L), log_key=log(B, H, L, K), log_value=log(B, H, L, V)),
        "key before": lambda: replace(base, log_key=log(B, H, L, K), read="before", bonus_key=normal(H, K)),
        "value before": lambda: replace(base, log_value=log(B, H, L, V), read="before", bonus_value=normal(H, V)),
        "head before": lambda: replace(base, log_head=log(B, H, L), read="before"),
        "delta": lambda: unit,
        "delta head": lambda: replace(unit, log_head=log(B, H, L)),
        "delta key": lambda: replace(unit, log_key=log(B, H, L, K)),
        "delta before": lambda: replace(unit, log_head=log(B, H, L), read="before"),
        "delta value": lambda: replace(unit, log_value=log(B, H, L, V)),
        "hadamard": lambda: replace(base, log_value=log(B, H, L, V), rate=rate),
        "constant": lambda: Steps(None, None, base.v, log_value=log(H, V), rate=rate, weight=normal(H, K, V)),
        "complex": lambda: Steps(
            None, None, base.v, log_value=log(H, V), rate=torch.complex(rate, normal(H, K, V)), weight=torch.complex(rate, normal(H, K, V))
        ),
    }[kind]()  # fmt: skip


KINDS = ["none", "head", "head constant", "key", "value", "all axes", "key before", "value before", "head before", "delta", "delta head",
         "delta key", "delta before", "delta value", "hadamard", "constant", "complex"]  # fmt: skip


def leaves(s: Steps, state: Tensor) -> tuple[Steps, Tensor, list[Tensor]]:
    """Copies of all tensors that ask for gradients."""
    tensors = {f.name: getattr(s, f.name).clone().requires_grad_() for f in fields(s) if isinstance(getattr(s, f.name), Tensor)}
    state = state.clone().requires_grad_()
    return replace(s, **tensors), state, [*tensors.values(), state]


def results(run, s: Steps, state: Tensor) -> list[Tensor]:
    """Output, final state and the gradients of everything by a fixed mix of both."""
    s, state, inputs = leaves(s, state)
    out, end = run(s, state)
    draw = torch.Generator().manual_seed(5)
    loss = (out * torch.randn(out.shape, generator=draw, dtype=torch.float64).to(out)).sum()
    loss = loss + (end * torch.randn(end.shape, generator=draw, dtype=torch.float64).to(end)).real.sum()
    return [out.detach(), end.detach(), *torch.autograd.grad(loss, inputs)]


def start(s: Steps) -> Tensor:
    draw = torch.Generator().manual_seed(9)
    return torch.randn(B, H, K, V, generator=draw, dtype=torch.float64).to(s.state_dtype)


@pytest.mark.parametrize("L", LENGTHS)
@pytest.mark.parametrize("kind", KINDS)
def test_forms_equal_the_formula(kind: str, L: int) -> None:
    s = make(kind, L)
    expected = results(naive, s, start(s))
    for form in s.forms:
        if form == "fused" and why_not(s):
            continue
        actual = results(lambda s, state, form=form: compute(s, state, form), s, start(s))
        for one, other in zip(actual, expected, strict=True):
            assert torch.allclose(one, other, rtol=1e-9, atol=1e-9), (form, float((one - other).abs().max()))


@pytest.mark.parametrize("kind", ["head", "key before", "delta head", "hadamard"])
def test_grouped_keys_equal_repeated_ones(kind: str) -> None:
    s = make(kind, 20, G=1)
    expected = results(naive, s, start(s))
    for form in s.forms:
        if form == "fused" and why_not(s):
            continue
        actual = results(lambda s, state, form=form: compute(s, state, form), s, start(s))
        assert all(torch.allclose(one, other, rtol=1e-9, atol=1e-9) for one, other in zip(actual, expected, strict=True)), form


@pytest.mark.parametrize("kind", KINDS)
def test_lengths_end_sequences_early(kind: str) -> None:
    """Each row with its own length gives the outputs and the state of that row alone; what lies beyond may even be NaN."""
    L, lengths = 21, torch.tensor([13, 0])
    s = make(kind, L)
    spoiled = replace(s, v=s.v.clone())
    spoiled.v[0, :, 13:] = float("nan")
    for form in s.forms:
        if form == "fused" and why_not(s):
            continue
        out, end = compute(spoiled, start(s), form, lengths)
        first = s.piece(0, 13) if form != "convolution" else replace(s, v=s.v[:, :, :13])
        out1, end1 = compute(first, start(s), form)
        assert torch.allclose(end[0], end1[0], atol=1e-9) and torch.equal(end[1], start(s)[1]), form
        if form != "convolution":  # an FFT spreads a NaN; its outputs before the end are checked without one
            assert torch.allclose(out[0, :, :13], out1[0], atol=1e-9), form


@pytest.mark.parametrize("gate", [0.0, -1e-6, -0.1, -5.0, -50.0, -1e4, float("-inf")])
@pytest.mark.parametrize("kind", ["head", "key", "value", "key before", "delta head", "delta key", "hadamard"])
def test_extreme_gates(kind: str, gate: float) -> None:
    """From keeping all to forgetting all at once, mixed with ordinary channels: finite, and equal in float32 and float64."""
    s = make(kind, 100)
    name = next(n for n in ("log_key", "log_value", "log_head") if getattr(s, n) is not None)
    g = getattr(s, name).clone()
    g[..., ::2] = gate
    s = replace(s, **{name: g})
    expected = results(lambda s, state: compute(s, state, "step"), s, start(s))
    for form in s.forms:
        if form == "fused" and why_not(s):
            continue
        for dtype, tolerance in ((torch.float64, 1e-9), (torch.float32, 1e-4)):
            cast = replace(s, **{f.name: getattr(s, f.name).to(dtype) for f in fields(s) if isinstance(getattr(s, f.name), Tensor)})
            actual = results(lambda s, state, form=form: compute(s, state, form), cast, start(s).to(dtype))
            for one, other in zip(actual, expected, strict=True):
                assert one.isfinite().all(), (form, dtype)
                scale = float(other.abs().max()) + 1e-30
                assert float((one.double() - other).abs().max()) / scale < tolerance, (form, dtype)


def test_a_missing_form_names_those_there_are() -> None:
    s = make("hadamard", 4)
    with pytest.raises(BadInput, match="has no form 'parallel'; it has step, fused, chunk, scan"):
        compute(s, form="parallel")
    with pytest.raises(BadInput, match="no form 'paralel'; did you mean 'parallel'"):
        compute(s, form="paralel")


def test_a_state_of_another_size_is_named() -> None:
    s = make("key", 4)
    with pytest.raises(BadInput, match=r"axis 0 \(batch\) must be 2"):
        compute(s, torch.zeros(3, H, K, V))
    with pytest.raises(BadInput, match=r"axis 3 \(value width\) must be 7"):
        compute(s, torch.zeros(B, H, K, 8))


@pytest.mark.parametrize(
    "change, message",
    [
        (dict(log_key=torch.zeros(B, H, 4, K + 1)), r"axis 3 \(width\) must be 5"),
        (dict(log_head=torch.zeros(B, H, 3)), r"axis 2 \(length\) must be 4"),
        (dict(beta=torch.zeros(B + 1, H, 4)), r"axis 0 \(batch\) must be 2"),
        (dict(q=torch.zeros(B, 2, 4, K)), "no number of heads that divides 3"),
        (dict(rate=torch.zeros(H, K, V)), "goes with log_value alone"),
        (dict(v=torch.zeros(B, H, 4, V, dtype=torch.long)), "v is int64"),
    ],
)
def test_records_that_do_not_fit_are_refused(change: dict, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        replace(make("none", 4), **change)


def test_auto_says_why() -> None:
    choice = choose(make("key", 257))
    assert choice.form in choice.estimates and choice.why
    assert choice.estimates[choice.form] == min(choice.estimates.values())


def test_a_convolution_survives_what_lies_beyond_the_end() -> None:
    s, lengths = make("complex", 21), torch.tensor([13, 21])
    spoiled = replace(s, v=s.v.clone())
    spoiled.v[0, :, 13:] = float("nan")
    out, end = compute(spoiled, start(s), "convolution", lengths)
    expected, state = compute(replace(s, v=s.v[:, :, :13]), start(s), "convolution")
    assert torch.allclose(out[0, :, :13], expected[0], atol=1e-9) and torch.allclose(end[0], state[0], atol=1e-9)
    assert out.isfinite().all() and end.isfinite().all()


def test_a_constant_gate_may_forget_all_at_once() -> None:
    s = make("constant", 9)
    gate = s.log_value.clone()
    gate[:, ::2] = float("-inf")
    s = replace(s, log_value=gate)
    expected = compute(s, start(s), "step")[0]
    for form in ("chunk", "scan", "convolution"):
        assert torch.allclose(compute(s, start(s), form)[0], expected, atol=1e-9), form


@pytest.mark.parametrize("kind", ["head", "key", "delta head", "hadamard", "constant"])
def test_autocast_rounds_nothing_inside(kind: str) -> None:
    s = make(kind, 33)
    s = replace(s, **{f.name: getattr(s, f.name).float() for f in fields(s) if isinstance(getattr(s, f.name), Tensor)})
    for form in available_forms(s):
        expected, state = compute(s, None, form)
        with torch.autocast("cpu", torch.bfloat16):
            out, end = compute(s, None, form)
        assert end.dtype == torch.float32 and torch.equal(end, state) and torch.equal(out, expected), form


def test_a_bonus_needs_a_step_read_before_and_groups_must_agree() -> None:
    s = make("key", 4)
    with pytest.raises(BadInput, match="read='before'"):
        replace(s, bonus_key=torch.ones(H, K))
    with pytest.raises(BadInput, match="q has 1 groups and k 3"):
        replace(s, q=s.q[:, :1])
