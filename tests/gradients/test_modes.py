"""Derivatives in both modes against closed forms and NumPy; the plan against counts worked by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from sonde.core.errors import BadInput
from sonde.gradients import modes

D = torch.float64


def normal(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=D)


A, B = normal(0, 4, 3), normal(1, 2, 4)
X, V, U = normal(2, 3), normal(3, 3), normal(4, 2)


def f(x: torch.Tensor) -> torch.Tensor:
    """B tanh(A x), whose Jacobian is B diag(1 - tanh^2) A."""
    return B @ torch.tanh(A @ x)


def jacobian_by_hand() -> np.ndarray:
    a, b, x = A.numpy(), B.numpy(), X.numpy()
    return b @ np.diag(1 - np.tanh(a @ x) ** 2) @ a


def test_products_and_jacobian_against_numpy() -> None:
    expected = jacobian_by_hand()
    np.testing.assert_allclose(modes.jvp(f, X, V), expected @ V.numpy(), rtol=1e-12)
    np.testing.assert_allclose(modes.vjp(f, X, U), U.numpy() @ expected, rtol=1e-12)
    for mode in (None, "forward", "reverse"):
        np.testing.assert_allclose(modes.jacobian(f, X, mode), expected, rtol=1e-12)
    np.testing.assert_allclose(modes.gradient(lambda x: f(x)[0], X), expected[0], rtol=1e-12)


def test_second_order_against_numpy() -> None:
    a, b, x = A.numpy(), B.numpy(), X.numpy()
    t = np.tanh(a @ x)
    expected = a.T @ np.diag(b.sum(0) * -2 * t * (1 - t**2)) @ a
    np.testing.assert_allclose(modes.hessian(lambda x: f(x).sum(), X), expected, rtol=1e-11)
    np.testing.assert_allclose(modes.hvp(lambda x: f(x).sum(0, keepdim=True), X, V), expected @ V.numpy(), rtol=1e-11)


def test_functions_of_the_parameters_of_a_model() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 2)).double()
    x, y = normal(5, 6, 3), normal(6, 6, 2)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    loss, theta = modes.of_parameters(net, lambda model: (model(x) - y).square().mean())
    gradient = modes.gradient(loss, theta)
    v = {name: normal(7 + i, *part.shape) for i, (name, part) in enumerate(theta.items())}
    product = modes.hvp(loss, theta, v)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    gradients = torch.autograd.grad((net(x) - y).square().mean(), list(net.parameters()), create_graph=True)
    twice = torch.autograd.grad(sum((g * w).sum() for g, w in zip(gradients, v.values())), list(net.parameters()), allow_unused=True)
    for name, g, h in zip(theta, gradients, twice, strict=True):
        torch.testing.assert_close(gradient[name], g)
        torch.testing.assert_close(product[name], torch.zeros_like(g) if h is None else h)


def test_attention_has_second_derivatives() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 12, batch_first=True, dropout=0.0).double().eval()
    x, v = normal(8, 1, 3, 8), normal(9, 1, 3, 8)

    def g(x):
        return layer(x).square().sum()

    step = 1e-5
    expected = (modes.gradient(g, x + step * v) - modes.gradient(g, x - step * v)) / (2 * step)
    torch.testing.assert_close(modes.hvp(g, x, v), expected, rtol=1e-6, atol=1e-7)


def linear_chain(*widths: int):
    matrices = [normal(i, b, a) for i, (a, b) in enumerate(zip(widths, widths[1:]))]

    def g(x):
        for matrix in matrices:
            x = matrix @ x
        return x

    return g


@pytest.mark.parametrize(
    "widths, mode", [((50, 7, 6, 1), "reverse"), ((1, 7, 50), "forward"), ((3, 20, 9), "forward"), ((9, 20, 3), "reverse")]
)
def test_the_plan_counts_what_a_hand_counts(widths, mode) -> None:
    each = sum(a * b for a, b in zip(widths, widths[1:]))
    plan = modes.plan(linear_chain(*widths), normal(9, widths[0]))
    assert (plan.inputs, plan.outputs) == (widths[0], widths[-1])
    assert plan.column == plan.row == each
    assert plan.forward == each * (widths[0] + 1) and plan.reverse == each * (widths[-1] + 1)
    assert plan.mode == mode and f"{min(plan.forward, plan.reverse):,} multiplications" in str(plan)


def test_the_plan_counts_passes_not_sizes_alone() -> None:
    """More inputs than outputs, but the plan goes by counted cost; ties go to reverse unless inputs are fewer."""
    plan = modes.plan(lambda x: x * 2.0, normal(0, 5))
    assert plan.forward == plan.reverse == 5 + 25 and plan.mode == "reverse"
    net = nn.Conv2d(1, 2, 3).double()
    plan = modes.plan(net, normal(1, 1, 1, 5, 5))
    assert plan.inputs == 25 and plan.outputs == 18 and plan.column == 18 * 9 and plan.mode == "reverse"


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 5), st.integers(1, 5), st.integers(0, 100))
def test_both_modes_agree(n: int, m: int, seed: int) -> None:
    w, x = normal(seed, m, n), normal(seed + 1, n)

    def g(x):
        return (w @ x).sin() * x.square().sum()

    torch.testing.assert_close(modes.jacobian(g, x, "forward"), modes.jacobian(g, x, "reverse"), rtol=1e-12, atol=1e-12)


BAD = [
    (lambda: modes.jvp(f, X, normal(0, 4)), r"direction v has size \(4,\), not size \(3,\)"),
    (lambda: modes.vjp(f, X, normal(0, 3)), r"weights u has size \(3,\)"),
    (lambda: modes.vjp(f, X, U.float()), "holds float32, not float64"),
    (lambda: modes.gradient(f, X), "not one number; sum it"),
    (lambda: modes.hessian(f, X), "not one number"),
    (lambda: modes.hvp(f, X, V), "not one number"),
    (lambda: modes.gradient(f, torch.arange(3)), "holds int64, which has no derivative"),
    (lambda: modes.gradient(f, normal(0, 7)), r"cannot be run on size \(7,\)"),
    (lambda: modes.gradient(f, [1.0]), "x is a list"),
    (lambda: modes.gradient(f, {}), "x is a dict"),
    (lambda: modes.gradient(f, {"a": 3}), "'a' is a int"),
    (lambda: modes.jacobian(f, X, "sideways"), "must be one of forward, reverse, not 'sideways'"),
    (lambda: modes.jacobian(torch.argmax, X), "returns int64"),
    (lambda: modes.plan(lambda x: 3.0, X), "returns float, not a tensor"),
    (lambda: modes.hvp(lambda t: t["a"].sum(), {"a": X}, X), "direction v is a Tensor"),
]


@pytest.mark.parametrize("call, words", BAD)
def test_bad_input_is_refused_in_one_line(call, words: str) -> None:
    with pytest.raises(BadInput, match=words) as caught:
        call()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("norm", [nn.BatchNorm1d(3), nn.InstanceNorm1d(3, track_running_stats=True)])
def test_a_norm_in_training_mode_keeps_its_statistics(norm) -> None:
    """Against autograd through the formula of a norm; nothing is written down."""
    net, x, v = norm.double().train(), normal(5, 6, 3, 4), normal(6, 6, 3, 4)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    axes = (0, 2) if isinstance(net, nn.BatchNorm1d) else (2,)

    def by_hand(x):
        return (x - x.mean(axes, keepdim=True)) / (x.var(axes, correction=0, keepdim=True) + net.eps).sqrt()

    _, expected = torch.autograd.functional.jvp(by_hand, x, v)
    torch.testing.assert_close(modes.jvp(net, x, v), expected)
    torch.testing.assert_close(modes.vjp(lambda x: net(x), x, v), torch.autograd.functional.vjp(by_hand, x, v)[1])
    for mode in ("forward", "reverse", None):
        whole = modes.jacobian(net, x[:2, :, :2], mode)
        torch.testing.assert_close(whole, torch.autograd.functional.jacobian(by_hand, x[:2, :, :2]))
    (slope,) = torch.autograd.grad(by_hand(leaf := x.clone().requires_grad_()).sin().sum(), leaf, create_graph=True)
    torch.testing.assert_close(modes.hvp(lambda x: net(x).sin().sum(), x, v), torch.autograd.grad(slope, leaf, v)[0])
    loss, theta = modes.of_parameters(net, lambda model: model(x).sin().sum())
    modes.gradient(loss, theta) if theta else None
    with pytest.raises(BadInput, match="cannot be run"):
        modes.gradient(net, normal(7, 2, 9, 4, 4))
    after = net.state_dict()
    assert net.track_running_stats and after.keys() == before.keys() and all(torch.equal(after[name], before[name]) for name in before)


def test_where_an_operation_has_no_forward_rule_the_plan_is_reverse_and_says_why() -> None:
    a, x = normal(8, 4, 2), normal(9, 3, 2)
    plan = modes.plan(lambda x: torch.cdist(x, a), x)
    assert plan.mode == "reverse" and plan.forward == float("inf") and "columns are not available" in str(plan) and "cdist" in str(plan)
    expected = torch.autograd.functional.jacobian(lambda x: (x[:, None] - a).square().sum(-1).sqrt(), x)
    torch.testing.assert_close(modes.jacobian(lambda x: torch.cdist(x, a), x), expected)
