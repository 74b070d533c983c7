"""Proximal against plain loops, scikit-learn's lasso and the soft threshold of an orthonormal design."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.linear_model import Lasso

from sonde.core.errors import BadInput
from sonde.core.seeds import generator
from sonde.optim.build import optimizer
from sonde.optim.rules.proximal import Proximal


def soft(v, threshold):
    return np.sign(v) * np.maximum(np.abs(v) - threshold, 0)


@pytest.mark.parametrize("momentum, decay", [(0.0, 0.0), (0.0, 0.3), (0.9, 0.3)])
def test_ten_steps_against_a_loop(momentum, decay):
    random = np.random.default_rng(0)
    x, gradients = random.normal(size=17), random.normal(size=(10, 17))
    theta = torch.tensor(x, requires_grad=True)
    rule = Proximal([theta], lr=0.05, momentum=momentum, weight_decay=decay)
    m = np.zeros(17)
    for g in gradients:
        theta.grad = torch.tensor(g)
        rule.step()
        m = momentum * m + g
        x = soft(x - 0.05 * m, 0.05 * decay)
        np.testing.assert_allclose(theta.detach().numpy(), x, rtol=1e-12, atol=1e-15)


def test_adaptive_against_a_loop():
    random = np.random.default_rng(1)
    x, gradients = random.normal(size=(5, 3)), random.normal(size=(10, 5, 3))
    theta = torch.tensor(x, requires_grad=True)
    rule = Proximal([theta], lr=0.05, weight_decay=0.4, adaptive=True)
    m, v = np.zeros((5, 3)), np.zeros((5, 3))
    for t, g in enumerate(gradients, 1):
        theta.grad = torch.tensor(g)
        rule.step()
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
        x = soft(x - 0.05 * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8), 0.02)
        np.testing.assert_allclose(theta.detach().numpy(), x, rtol=1e-12, atol=1e-15)


def test_it_ends_at_the_lasso():
    draw = generator(0, "lasso")
    x = torch.randn(60, 13, generator=draw, dtype=torch.float64)
    y = x[:, :3] @ torch.tensor([2.0, -1.0, 0.5], dtype=torch.float64) + 0.1 * torch.randn(60, generator=draw, dtype=torch.float64)
    w = torch.zeros(13, dtype=torch.float64, requires_grad=True)
    rule = Proximal([w], lr=1 / float(torch.linalg.eigvalsh(x.T @ x / 60)[-1]), weight_decay=0.2)
    for _ in range(500):
        rule.zero_grad()
        ((x @ w - y).square().mean() / 2).backward()
        rule.step()
    theirs = Lasso(alpha=0.2, fit_intercept=False, tol=1e-14, max_iter=100_000).fit(x.numpy(), y.numpy()).coef_
    np.testing.assert_allclose(w.detach().numpy(), theirs, atol=1e-10)
    assert int((w == 0).sum()) == int((theirs == 0).sum()) >= 8


def test_only_decaying_groups_are_thresholded():
    weight, bias = torch.full((2, 2), 0.01, requires_grad=True), torch.full((2,), 0.01, requires_grad=True)
    rule = optimizer("proximal", lr=0.1, weight_decay=1.0)
    opt = rule.build([{"params": [weight], "weight_decay": 1.0, "names": ["w"]}, {"params": [bias], "weight_decay": 0.0, "names": ["b"]}])
    weight.grad, bias.grad = torch.zeros(2, 2), torch.zeros(2)
    opt.step()
    assert not weight.any() and bias.tolist() == pytest.approx([0.01, 0.01]) and rule.elementwise


def test_bad_settings():
    with pytest.raises(BadInput, match="momentum of its own|own momentum"):
        optimizer("proximal", lr=0.1, momentum=0.9, adaptive=True)
    with pytest.raises(BadInput, match="has no option 'l1'"):
        optimizer("proximal", lr=0.1, l1=0.9)
