"""The gradient check: right gradients pass, each wrong one is named; its costs are those counted by hand."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from sonde.core.errors import BadInput
from sonde.gradients import modes
from sonde.gradients.check import gradcheck

X = torch.tensor([[0.3, -1.2, 2.0], [1.5, 0.1, -0.4]], dtype=torch.float64)


def f(x: torch.Tensor) -> torch.Tensor:
    return (x.sin() * x**2).sum()


def right(x: torch.Tensor) -> torch.Tensor:
    return x.cos() * x**2 + 2 * x * x.sin()


def test_a_right_gradient_passes_both_ways() -> None:
    for claim in (None, right):
        check = gradcheck(f, X, claim)
        assert check.error < 1e-8 and check.passes == 12 and check.claimed == pytest.approx(check.measured)
    assert gradcheck(f, X, sides=1, tolerance=1e-5).passes == 7


def test_the_worst_element_is_named() -> None:
    def wrong(x):
        g = right(x)
        g[1, 2] *= 1.001
        return g

    with pytest.raises(BadInput, match=r"wrong at x\[1, 2\]: it is -?\d.*differences give.*relative error 0.001") as caught:
        gradcheck(f, X, wrong)
    assert "\n" not in str(caught.value)
    assert gradcheck(f, X, wrong, tolerance=0.01).worst == "x[1, 2]"


def test_a_layer_with_a_wrong_backward_is_found() -> None:
    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(x):
            return x.tanh()

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(output)

        @staticmethod
        def backward(ctx, g):
            (y,) = ctx.saved_tensors
            return g * (1 + y * y)  # the sign is wrong

    with pytest.raises(BadInput, match="the gradient is wrong at x"):
        gradcheck(lambda x: Wrong.apply(x).sum(), X)


def test_named_parameters_and_costs_by_hand() -> None:
    torch.manual_seed(0)
    net = nn.Linear(3, 2, bias=False).double()
    loss, theta = modes.of_parameters(net, lambda model: model(X).square().sum())
    check = gradcheck(loss, theta)
    assert check.worst.startswith("weight[") and check.passes == 12
    forward = 2 * 3 * 2 + 4  # the product, and the square of 2 x 2 outputs
    assert check.multiplies == 12 * forward
    # forward once, 2 x from the square (times the seed), and X^T delta
    assert forward < check.backward_multiplies <= forward + 4 * 4 + 12


def pair(x: dict[str, torch.Tensor]) -> torch.Tensor:
    return (x["a"] * x["b"].sin()).sum()


def test_a_claim_goes_by_its_names() -> None:
    x = {"a": X, "b": X.flip(0)}
    right = {"b": x["a"] * x["b"].cos(), "a": x["b"].sin()}
    assert gradcheck(pair, x, lambda at: right).error < 1e-8
    with pytest.raises(BadInput, match="wrong at"):
        gradcheck(pair, x, lambda at: dict(zip(right, reversed(list(right.values())), strict=True)))


def test_numbers_in_any_order_of_memory() -> None:
    assert gradcheck(f, X.T, right).error < 1e-8
    assert gradcheck(f, X[:, ::2]).passes == 8


def test_a_small_element_beside_large_ones_is_checked_too() -> None:
    slopes = torch.tensor([1e6, 1e-3, 1.0], dtype=torch.float64)
    x = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    assert gradcheck(lambda x: slopes @ x, x, lambda x: slopes).error <= 1e-6
    with pytest.raises(BadInput, match=r"wrong at x\[1\]: it is 0.002"):
        gradcheck(lambda x: slopes @ x, x, lambda x: torch.tensor([1e6, 2e-3, 1.0], dtype=torch.float64))
    assert gradcheck(lambda x: (x**3).sum(), torch.tensor([0.0, 1.0], dtype=torch.float64)).error <= 1e-6


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda: gradcheck(f, X.float()), "need float64"),
        (lambda: gradcheck(lambda x: x, X), "not one number"),
        (lambda: gradcheck(f, X, lambda x: x.sum()), r"has size \(\), not \(2, 3\)"),
        (lambda: gradcheck(lambda x: x.log().sum(), X), "not finite"),
        (lambda: gradcheck(f, X[:0]), "x is empty"),
        (lambda: gradcheck(f, X, lambda x: 3.0), "the gradient of x is a float"),
        (lambda: gradcheck(pair, {"a": X, "b": X}, lambda x: {"a": X}), "must name a, b, not a; give"),
        (lambda: gradcheck(pair, {"a": X, "b": X}, lambda x: X), "must name a, b, not a Tensor"),
    ],
)
def test_bad_input_is_refused_in_one_line(call, words: str) -> None:
    with pytest.raises(BadInput, match=words) as caught:
        call()
    assert "\n" not in str(caught.value)
