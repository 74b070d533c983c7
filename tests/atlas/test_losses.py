"""Chapter 5 made wrong on purpose: signs, directions, bases, links; each exhibit must notice."""

from __future__ import annotations

import math

import torch

from sonde.atlas import losses
from sonde.objectives import bernoulli, categorical, distribution, laplace, penalized
from sonde.objectives.gaussian import Gaussian
from sonde.objectives.information import codes, measures
from tests.atlas.mistakes import wrong


def test_loss_01_notices_another_link(monkeypatch) -> None:
    monkeypatch.setitem(distribution.LINKS, "softplus", torch.exp)
    names = wrong("LOSS-01")
    assert "Gaussian: -log Pr of every target" in names and not any(name.startswith(("Bernoulli", "Poisson")) for name in names)


def test_loss_01_notices_parameters_in_the_wrong_order(monkeypatch) -> None:
    right = distribution._chosen
    monkeypatch.setattr(distribution, "_chosen", lambda known, named: right(known, named)[::-1])
    assert "Beta: -log Pr of every target" in wrong("LOSS-01")


def test_loss_01_notices_targets_that_nobody_checks(monkeypatch) -> None:
    monkeypatch.setattr(distribution.Distribution, "check", lambda self, batch: None)
    assert wrong("LOSS-01") == ["a target outside the support"]


def test_loss_02_notices_a_forgotten_half(monkeypatch) -> None:
    def whole(variance):
        gaussian = Gaussian(variance)
        gaussian.factor *= 2
        return gaussian

    monkeypatch.setattr(losses, "Gaussian", whole)
    names = wrong("LOSS-02")
    assert "s=0.5: slope is that of the MSE over 2 s^2" in names and "s=0.5: minimizer of the NLL is that of least squares" not in names


def test_loss_03_notices_squares_in_place_of_distances(monkeypatch) -> None:
    monkeypatch.setattr(laplace.F, "l1_loss", torch.nn.functional.mse_loss)
    assert "best constant under absolute error" in wrong("LOSS-03")


def test_loss_04_notices_the_printed_sign(monkeypatch) -> None:
    """E-28: the minus sign on the first term alone."""

    def printed(self, output, y, reduction="none"):
        p = torch.sigmoid(output)
        values = -y * torch.log(p) + (1 - y) * torch.log(1 - p)
        return values.sum() if reduction == "sum" else values

    monkeypatch.setattr(bernoulli.Bernoulli, "each", printed)
    names = wrong("LOSS-04")
    assert "y=0, p=0.9: the minus sign covers both terms" in names and "y=1, p=0.9" not in names
    assert "y=1, logit -1000" in names


def test_loss_05_notices_smoothed_labels(monkeypatch) -> None:
    right = categorical.F.cross_entropy
    monkeypatch.setattr(categorical.F, "cross_entropy", lambda *args, **more: right(*args, **{**more, "label_smoothing": 0.1}))
    assert "gradient in the logits: softmax - onehot" in wrong("LOSS-05")


def test_loss_05_notices_probabilities_that_nobody_checks(monkeypatch) -> None:
    monkeypatch.setattr(measures, "probabilities", lambda table, positive=False: torch.as_tensor(table, dtype=torch.float64))
    assert all(name.startswith("probabilities with") for name in wrong("LOSS-05"))


def test_loss_06_notices_the_other_direction(monkeypatch) -> None:
    right = measures.kl
    monkeypatch.setattr(measures, "kl", lambda p, q, base="nats", direction="forward": right(q, p, base, direction))
    names = wrong("LOSS-06")
    assert {"KL(p, uniform) in bits", "KL(uniform, p) in bits"} <= set(names) and "KL(p, p)" not in names


def test_loss_06_notices_nats_sold_as_bits(monkeypatch) -> None:
    monkeypatch.setattr(measures, "per", lambda base: 1.0)
    names = wrong("LOSS-06")
    assert "KL(p, uniform) in bits" in names and "KL(p, uniform) in nats, the default" not in names


def test_loss_07_notices_words_of_one_length(monkeypatch) -> None:
    def fixed(weights, letters=2):
        bits = math.ceil(math.log2(len(weights)))
        return {symbol: f"{i:0{bits}b}" for i, symbol in enumerate(weights if isinstance(weights, dict) else range(len(weights)))}

    monkeypatch.setattr(codes, "huffman", fixed)
    names = wrong("LOSS-07")
    assert "mean length of Huffman's code" in names and "Kraft's sum of 2^-length, a full tree" in names


def test_loss_08_notices_half_a_penalty(monkeypatch) -> None:
    right = penalized._OMEGA["l2"]
    monkeypatch.setitem(penalized._OMEGA, "l2", lambda weights: right(weights) / 2)
    names = wrong("LOSS-08")
    assert "l2=0.3, l1=0.0: total" in names and "lambda=0: total is the data term, to the last bit" not in names


def test_loss_08_notices_a_penalized_bias(monkeypatch) -> None:
    monkeypatch.setattr(penalized.Penalized, "weights", lambda self, model: list(model.parameters()))
    assert "y shifted by 100: weights stay, because the bias is free" in wrong("LOSS-08")
