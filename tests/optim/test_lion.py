"""Lion against a trace worked by hand, and against a second formulation in NumPy."""

from __future__ import annotations

import numpy as np
import torch

from sonde.optim.rules.lion import Lion


def test_three_steps_by_hand():
    # b1 = 0.5, b2 = 0.75, lr = 0.1, no decay, theta = 1, gradients 1, -3, 1:
    #   m = 0:       0.5*0       + 0.5*1    =  0.5     -> sign +1 -> theta 0.9,  m =  0.25
    #   m = 0.25:    0.5*0.25    + 0.5*(-3) = -1.375   -> sign -1 -> theta 1.0,  m = -0.5625
    #   m = -0.5625: 0.5*-0.5625 + 0.5*1    =  0.21875 -> sign +1 -> theta 0.9,  m = -0.171875
    theta = torch.tensor([1.0], dtype=torch.float64, requires_grad=True)
    lion = Lion([theta], lr=0.1, betas=(0.5, 0.75))
    seen = []
    for gradient in (1.0, -3.0, 1.0):
        theta.grad = torch.tensor([gradient], dtype=torch.float64)
        lion.step()
        seen.append((round(theta.item(), 12), float(lion.state[theta]["momentum"])))
    assert seen == [(0.9, 0.25), (1.0, -0.5625), (0.9, -0.171875)]


def test_decay_by_hand():
    theta = torch.tensor([2.0, -2.0, 4.0], dtype=torch.float64, requires_grad=True)
    theta.grad = torch.tensor([5.0, -1e-9, 0.0], dtype=torch.float64)
    Lion([theta], lr=0.1, weight_decay=0.5).step()
    np.testing.assert_allclose(theta.detach().numpy(), [2 - 0.1 * (1 + 1), -2 + 0.1 * (1 + 1), 4 - 0.1 * 2], rtol=1e-15)


def test_every_coordinate_moves_by_the_rate():
    theta = torch.zeros(3, 5, dtype=torch.float64, requires_grad=True)
    theta.grad = torch.randn(3, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    Lion([theta], lr=0.25).step()
    assert torch.equal(theta.detach().abs(), torch.full((3, 5), 0.25, dtype=torch.float64))


def test_a_hundred_steps_against_numpy():
    random = np.random.default_rng(0)
    start, gradients = random.normal(size=17), random.normal(size=(100, 17))
    theta = torch.tensor(start, requires_grad=True)
    lion = Lion([theta], lr=0.01, betas=(0.9, 0.99), weight_decay=0.1)
    x, m = start.copy(), np.zeros(17)
    for g in gradients:
        theta.grad = torch.tensor(g)
        lion.step()
        x = x - 0.01 * (np.sign(0.9 * m + 0.1 * g) + 0.1 * x)
        m = 0.99 * m + 0.01 * g
    np.testing.assert_allclose(theta.detach().numpy(), x, rtol=1e-12)
