"""Likelihoods against torch.distributions: nll + constant = -log Pr(y), in values and gradients."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import distributions as D
from torch import nn

from sonde.core.batch import Batch
from sonde.core.errors import BadInput
from sonde.core.terms import Terms
from sonde.objectives.bernoulli import Bernoulli
from sonde.objectives.categorical import Categorical
from sonde.objectives.gaussian import Gaussian
from sonde.objectives.laplace import Laplace
from sonde.objectives.poisson import Poisson

B, T, C = 11, 5, 7


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64)


def halves(output):
    return output.chunk(2, -1)


counts_y = torch.arange(B * 3).reshape(B, 3).double() % 6
CASES = {
    "gaussian": (Gaussian(), draw(B, 3), draw(3, B).T, lambda o: D.Normal(o, 1.0)),
    "gaussian, variance 2.5": (Gaussian(variance=2.5), draw(B, 3), draw(3, B).T, lambda o: D.Normal(o, math.sqrt(2.5))),
    "gaussian, learned": (Gaussian("learned"), draw(B, 6), draw(3, B).T, lambda o: D.Normal(halves(o)[0], torch.exp(0.5 * halves(o)[1]))),
    "laplace": (Laplace(), draw(B, 3), draw(3, B).T, lambda o: D.Laplace(o, 1.0)),
    "laplace, scale 0.4": (Laplace(scale=0.4), draw(B, 3), draw(3, B).T, lambda o: D.Laplace(o, 0.4)),
    "laplace, learned": (Laplace("learned"), draw(B, 6), draw(3, B).T, lambda o: D.Laplace(halves(o)[0], torch.exp(halves(o)[1]))),
    "bernoulli": (Bernoulli(), draw(B, 3), (draw(3, B).T > 0).double(), lambda o: D.Bernoulli(logits=o)),
    "categorical": (Categorical(C), draw(B, C), torch.arange(B) % C, lambda o: D.Categorical(logits=o)),
    "categorical in time": (Categorical(), draw(B, T, C), torch.arange(B * T).reshape(B, T) % C, lambda o: D.Categorical(logits=o)),
    "poisson": (Poisson(), draw(B, 3), counts_y, lambda o: D.Poisson(torch.exp(o))),
}


def same(ours, theirs) -> None:
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("case", CASES)
def test_equals_distribution_with_gradient(case):
    likelihood, output, y, distribution = CASES[case]
    mine, theirs = output.clone().requires_grad_(), output.clone().requires_grad_()
    terms = likelihood(lambda x: x, Batch(x=mine, y=y))
    exact = -distribution(theirs).log_prob(y).sum()
    same(terms["nll"].sum + likelihood.constant(y).double().sum(), exact)
    same(*(torch.autograd.grad(value, at)[0] for value, at in ((terms["nll"].sum, mine), (exact, theirs))))
    assert terms.counts() == likelihood.counts(Batch(y=y)) == {"nll": y.numel()}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("padding", [0, -100, float("nan")])
def test_padding_counts_nothing_and_weights_count_in_full(case, padding):
    likelihood, output, y, _ = CASES[case]
    if isinstance(padding, float) and not y.is_floating_point():
        pytest.skip("whole numbers have no NaN")
    mask = torch.ones(y.shape[:2] if y.ndim > 1 else y.shape, dtype=torch.bool)
    mask[2:4] = False
    weight = torch.arange(1.0, B + 1)
    padded = y.clone()
    padded[~mask] = padding
    batch = Batch(x=output.clone().requires_grad_(), y=padded, mask=mask, weight=weight)
    likelihood.check(batch)
    terms = likelihood(lambda x: x, batch)
    one_by_one = [likelihood(lambda x: x, Batch(x=output[i : i + 1], y=y[i : i + 1]))["nll"] for i in range(B) if i not in (2, 3)]
    kept_weights = [float(w) for i, w in enumerate(weight) if i not in (2, 3)]
    same(terms["nll"].sum, sum(w * term.sum for w, term in zip(kept_weights, one_by_one, strict=True)))
    expected = sum(w * term.count for w, term in zip(kept_weights, one_by_one, strict=True))
    assert terms.counts() == likelihood.counts(batch) == {"nll": pytest.approx(expected, rel=1e-12)}
    (gradient,) = torch.autograd.grad(terms["nll"].sum, batch.x)
    assert gradient.isfinite().all() and not gradient[2:4].any()


@pytest.mark.parametrize("case", CASES)
def test_sums_of_parts_are_the_sum_of_the_whole(case):
    likelihood, output, y, _ = CASES[case]
    batch = Batch(x=output, y=y, weight=torch.linspace(0, 2, B))
    whole = likelihood(lambda x: x, batch)
    parts = sum((likelihood(lambda x: x, batch[a:b]) for a, b in ((0, 1), (1, 8), (8, B))), Terms())
    same(parts["nll"].sum, whole["nll"].sum)
    assert parts.counts() == pytest.approx(whole.counts(), rel=1e-12)


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.9])
@pytest.mark.parametrize("weighted", [False, True])
def test_categorical_equals_torch_mean_with_smoothing_and_class_weights(smoothing, weighted):
    weights = [0.5, 2.0, 1.0, 3.0, 0.0, 1.5, 0.25] if weighted else None
    output, y = draw(B, T, C), torch.arange(B * T).reshape(B, T) ** 2 % C
    mine, theirs = output.clone().requires_grad_(), output.clone().requires_grad_()
    ours = Categorical(smoothing=smoothing, weights=weights)(lambda x: x, Batch(x=mine, y=y)).loss()
    torch_weights = None if weights is None else torch.tensor(weights, dtype=torch.float64)
    exact = F.cross_entropy(theirs.permute(0, 2, 1), y, torch_weights, label_smoothing=smoothing)
    same(ours, exact)
    same(*(torch.autograd.grad(value, at)[0] for value, at in ((ours, mine), (exact, theirs))))


def test_hand_worked_numbers():
    def nll(likelihood, output, y):
        return float(likelihood(lambda x: x, Batch(x=torch.tensor(output), y=torch.tensor(y)))["nll"].sum)

    assert nll(Bernoulli(), [math.log(9)], [1.0]) == pytest.approx(0.10536, abs=1e-5)  # p = 0.9
    assert nll(Bernoulli(), [1000.0, -1000.0], [1.0, 1.0]) == 1000.0
    assert nll(Categorical(), [[3.0] * 5], [4]) == pytest.approx(math.log(5), rel=1e-6)
    assert nll(Gaussian(variance=2.0), [1.0], [4.0]) == 9 / 4
    assert nll(Laplace(scale=2.0), [1.0], [4.0]) == 3 / 2
    assert nll(Poisson(), [math.log(2)], [3.0]) == pytest.approx(2 - 3 * math.log(2), rel=1e-6)


def test_measures_by_hand():
    logits = torch.tensor([[2.0, 1.0], [0.0, 3.0], [1.0, 0.0], [9.0, 0.0]])
    batch = Batch(y=torch.tensor([0, 1, 1, 1]), mask=torch.tensor([True, True, True, False]), weight=torch.tensor([1.0, 2.0, 4.0, 8.0]))
    assert Categorical(weights=[5.0, 1.0]).measures(logits, batch).means() == {"accuracy": pytest.approx(3 / 7)}
    assert Bernoulli().measures(torch.tensor([[-1.0], [2.0]]), Batch(y=torch.tensor([1, 1]))).means() == {"accuracy": 0.5}
    learned = torch.tensor([[1.0, 0.0], [2.0, 7.0]])
    assert Gaussian("learned").measures(learned, Batch(y=torch.tensor([4.0, 2.0]))).means() == {"squared_error": 4.5, "absolute_error": 1.5}
    assert Laplace().measures(learned[:, 0], Batch(y=torch.tensor([4.0, 2.0]))).means() == {"squared_error": 4.5, "absolute_error": 1.5}
    assert Poisson().measures(torch.zeros(2), Batch(y=torch.tensor([1, 3]))).means() == {"squared_error": 2.0, "absolute_error": 1.0}


def test_predictions():
    output = draw(B, 4)
    same(Categorical().predict(output), D.Categorical(logits=output).probs)
    same(Bernoulli().predict(output), D.Bernoulli(logits=output).probs)
    same(Poisson().predict(output), output.exp())
    same(Gaussian().predict(output), output)
    same(Gaussian("learned").predict(output), output[:, :2])
    same(Laplace("learned").predict(output), output[:, :2])


@pytest.mark.parametrize("shape_y, shape_x", [((B,), (B, 1)), ((B, 1), (B,)), ((B, 1), (B, 1))])
def test_a_trailing_axis_of_one_never_broadcasts(shape_y, shape_x):
    x, y = draw(B), draw(1, B)[0]
    terms = Gaussian()(lambda x: x, Batch(x=x.reshape(shape_x), y=y.reshape(shape_y)))
    same(terms["nll"].sum, 0.5 * (x - y).square().sum())
    assert terms["nll"].count == B


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float32])
def test_loss_is_float32_under_autocast(kind):
    model = nn.Linear(3, C)
    x = torch.randn(B, 3, generator=torch.Generator().manual_seed(1))
    batch = Batch(x=x, y=torch.arange(B) % C)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=kind is torch.bfloat16):
        output = model(x)
        assert output.dtype == kind
        total = Categorical()(model, batch)["nll"].sum
    assert total.dtype == torch.float32
    torch.testing.assert_close(total, F.cross_entropy(output.float(), batch.y, reduction="sum"), rtol=1e-6, atol=0)


BAD = {
    "label too large": (Categorical(3), torch.tensor([0, 1, 7, 3]), "labels must be 0 ... 2, not 7 in example 12 and 1 more"),
    "label negative": (Categorical(), torch.tensor([0, 1, 2, -4]), "labels must be >= 0, not -4 in example 13"),
    "labels that are floats": (Categorical(3), torch.tensor([0.0, 1.0, 2.0, 0.0]), "whole numbers, not float32"),
    "labels that are truth values": (Categorical(2), torch.tensor([True, False, True, True]), "whole numbers, not bool"),
    "label in time": (Categorical(3), torch.tensor([[0, 1], [2, 9], [0, 0], [0, 0]]), "not 9 in example 11 at (1,)"),
    "nan value": (Gaussian(), torch.tensor([0.0, float("nan"), 1.0, 2.0]), "targets must be numbers, not nan in example 11"),
    "infinite value": (Laplace(), torch.tensor([0.0, 1.0, float("-inf"), 2.0]), "finite, not -inf in example 12"),
    "half": (Bernoulli(), torch.tensor([0.0, 1.0, 2.0, 1.0]), "between 0 and 1, not 2 in example 12"),
    "negative count": (Poisson(), torch.tensor([0, 3, -2, 1]), "counts 0, 1, 2, ..., not -2 in example 12"),
    "broken count": (Poisson(), torch.tensor([0, 0.5, 2, 1]), "not 0.5 in example 11"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_targets_are_named(case):
    likelihood, y, words = BAD[case]
    with pytest.raises(BadInput) as caught:
        likelihood.check(Batch(x=torch.zeros(4, 1), y=y, ids=torch.tensor([10, 11, 12, 13])))
    assert words in str(caught.value) and likelihood.name in str(caught.value)
    masked = Batch(y=y, ids=torch.arange(4), mask=torch.zeros(4, dtype=torch.bool))
    if "whole numbers" not in words:
        likelihood.check(masked)  # what does not count may hold anything


def test_bad_masks_weights_and_shapes_are_named():
    y = torch.zeros(4)
    for field, value, words in (
        ("mask", torch.ones(4), "bool mask"),
        ("mask", torch.ones(3, dtype=torch.bool), "bool mask"),
        ("weight", torch.ones(4, 1), "one number per example"),
        ("weight", torch.tensor([1.0, -1.0, 1.0, 1.0]), "not -1 in example 1"),
    ):
        with pytest.raises(BadInput, match=words):
            Gaussian().check(Batch(y=y, **{field: value}))
    for likelihood, shape in ((Gaussian(), (4, 3)), (Gaussian("learned"), (4, 3)), (Bernoulli(), (4, 2)), (Poisson(), (3,))):
        with pytest.raises(BadInput, match="does not match targets"):
            likelihood(lambda x: x, Batch(x=torch.zeros(shape), y=y))
    with pytest.raises(BadInput, match="does not match targets"):
        Categorical(5)(lambda x: x, Batch(x=torch.zeros(4, 3), y=y.long()))


@pytest.mark.parametrize("label", [-100, -1, 3, 2**40])
def test_unchecked_labels_are_caught_in_the_loss(label):
    with pytest.raises(BadInput, match=f"labels must be 0 ... 2, not {label} in example 1"):
        Categorical()(lambda x: x, Batch(x=torch.zeros(4, 3), y=torch.tensor([0, label, 1, 2])))


@pytest.mark.parametrize(
    "make",
    [
        lambda: Categorical(weights=[1.0, -1.0]),
        lambda: Categorical(classes=3, weights=[1.0, 1.0]),
    ],
)
def test_bad_settings(make):
    with pytest.raises(BadInput):
        make()
