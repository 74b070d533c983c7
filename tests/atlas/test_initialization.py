"""Chapter 8 made wrong on purpose: fans, factors and signs; each exhibit must notice."""

from __future__ import annotations

import math

import torch

from sonde.atlas import initialization
from sonde.gradients import mean
from sonde.lenses import flow
from sonde.optim import initialize
from tests.atlas.mistakes import Mistakes

mistakes = Mistakes()

mistakes.add("INIT-01", "a variance in place of a deviation", every="Var o").replace(
    initialize._KNOWN, "normal", lambda right, std: right(std**2)
)
mistakes.add(
    "INIT-02",
    "fans that are swapped",
    red=("fan_in: variance forward", "fan_out: variance of the gradient"),
    green="xavier, normal: variance over the formula",
).replace(initialize.init, "_calculate_fan_in_and_fan_out", lambda right, weight: right(weight)[::-1])
# E-10: with s^2 = 1/D the variance halves in each layer of ReLU.
mistakes.add(
    "INIT-03", "a factor that forgets the half", only="s^2 = 2/D: how far 1 + the slope of log variance per layer is from 1, over 50 layers"
).replace(initialize._KNOWN, "he_normal", initialize._KNOWN["fan_in"])
mistakes.add("INIT-04", "a start that is not constant", red="constant: largest difference between hidden rows after 100 steps").replace(
    initialize._KNOWN, "constant", lambda value: initialize.uniform(0.5)
)
mistakes.add(
    "INIT-05",
    "the largest singular value in place of the radius",
    red="spectral radius after scaling, against numpy",
    green="norm after each of 50 orthogonal matrices",
).replace(initialization, "spectral_radius", lambda matrix: float(torch.linalg.matrix_norm(matrix, 2)))
mistakes.add("INIT-06", "clipping by entry", red="(3, 4) clipped to 1").replace(
    mean, "clip", lambda flat, norm, largest: flat.grad.clamp_(-largest, largest)
)
mistakes.add("INIT-06", "clipping without a minimum", red="(3, 4) clipped to 10").replace(
    mean, "clip", lambda flat, norm, largest: flat.grad.mul_(largest / norm)
)
mistakes.add("INIT-07", "a residual that is left out", red="residual: orders of magnitude gained").replace(
    flow,
    "deep_flow",
    lambda right, weights, act, remedy="plain", seed=0: right(
        weights, act, remedy.replace("residual and ", "").replace("residual", "plain"), seed
    ),
)


# C-07: the second argument of N(0, .) is a deviation.
@mistakes.add("INIT-02", "the variance taken for the deviation", red="xavier, normal: variance over the formula").replace(
    initialize, "_fill_scaled"
)
def squared(fan, gain, distribution, weight):
    std = gain**2 / fan(*initialize.init._calculate_fan_in_and_fan_out(weight))
    return weight.normal_(std=std) if distribution == "normal" else weight.uniform_(-std * math.sqrt(3), std * math.sqrt(3))


@mistakes.add(
    "INIT-02",
    "a uniform bound without its factor",
    red="xavier, uniform: variance over the formula",
    green="fan_in, normal: variance over the formula",
).replace(initialize, "_fill_scaled")
def narrow(right, fan, gain, distribution, weight):
    right(fan, gain, distribution, weight)
    return weight.div_(math.sqrt(3)) if distribution == "uniform" else weight


@mistakes.each
def test_notices(mistake, monkeypatch):
    mistake.assert_noticed(monkeypatch)
