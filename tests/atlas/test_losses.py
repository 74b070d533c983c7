"""Chapter 5 made wrong on purpose: signs, directions, bases, links; each exhibit must notice."""

from __future__ import annotations

import math

import torch

from sonde.atlas import losses
from sonde.objectives import bernoulli, categorical, distribution, laplace, penalized
from sonde.objectives.gaussian import Gaussian
from sonde.objectives.information import codes, measures
from tests.atlas.mistakes import Mistakes

mistakes = Mistakes()

mistakes.add("LOSS-01", "another link", red="Gaussian: -log Pr of every target", green=("Bernoulli", "Poisson")).replace(
    distribution.LINKS, "softplus", torch.exp
)
mistakes.add("LOSS-01", "parameters in the wrong order", red="Beta: -log Pr of every target").replace(
    distribution, "_choose_parameters", lambda right, known, named: right(known, named)[::-1]
)
mistakes.add("LOSS-01", "targets that nobody checks", only="a target outside the support").replace(
    distribution.Distribution, "check", lambda self, batch: None
)
mistakes.add("LOSS-03", "squares in place of distances", red="best constant under absolute error").replace(
    laplace.F, "l1_loss", torch.nn.functional.mse_loss
)
mistakes.add("LOSS-05", "smoothed labels", red="gradient in the logits: softmax - onehot").replace(
    categorical.F, "cross_entropy", lambda right, *args, **more: right(*args, **{**more, "label_smoothing": 0.1})
)
mistakes.add("LOSS-05", "probabilities that nobody checks", every="probabilities with").replace(
    measures, "probabilities", lambda table, positive=False: torch.as_tensor(table, dtype=torch.float64)
)
mistakes.add("LOSS-06", "the other direction", red=("KL(p, uniform) in bits", "KL(uniform, p) in bits"), green="KL(p, p)").replace(
    measures, "kl", lambda right, p, q, base="nats", direction="forward": right(q, p, base, direction)
)
mistakes.add("LOSS-06", "nats sold as bits", red="KL(p, uniform) in bits", green="KL(p, uniform) in nats, the default").replace(
    measures, "nats_per_unit", lambda base: 1.0
)
mistakes.add("LOSS-08", "half a penalty", red="l2=0.3, l1=0.0: total", green="lambda=0: total is the data term, to the last bit").replace(
    penalized._OMEGA, "l2", lambda right, weights: right(weights) / 2
)
mistakes.add("LOSS-08", "a penalized bias", red="y shifted by 100: weights stay, because the bias is free").replace(
    penalized.Penalized, "weights", lambda self, model: list(model.parameters())
)


@mistakes.add(
    "LOSS-02",
    "a forgotten half",
    red="s=0.5: slope is that of the MSE over 2 s^2",
    green="s=0.5: minimizer of the NLL is that of least squares",
).replace(losses, "Gaussian")
def whole(variance):
    gaussian = Gaussian(variance)
    gaussian.factor *= 2
    return gaussian


# E-28: the minus sign on the first term alone.
@mistakes.add(
    "LOSS-04", "the printed sign", red=("y=0, p=0.9: the minus sign covers both terms", "y=1, logit -1000"), green="y=1, p=0.9"
).replace(bernoulli.Bernoulli, "each")
def printed(self, output, y, reduction="none"):
    p = torch.sigmoid(output)
    values = -y * torch.log(p) + (1 - y) * torch.log(1 - p)
    return values.sum() if reduction == "sum" else values


@mistakes.add("LOSS-07", "words of one length", red=("mean length of Huffman's code", "Kraft's sum of 2^-length, a full tree")).replace(
    codes, "huffman"
)
def fixed(weights, letters=2):
    bits = math.ceil(math.log2(len(weights)))
    return {symbol: f"{i:0{bits}b}" for i, symbol in enumerate(weights if isinstance(weights, dict) else range(len(weights)))}


@mistakes.each
def test_notices(mistake, monkeypatch):
    mistake.assert_noticed(monkeypatch)
