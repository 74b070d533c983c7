"""Chapter 9, regularization and overfitting."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector

from ..core.batch import Batch, Data
from ..core.reading import Images, Lines, Plane, Reading, Table
from ..core.recipe import Recipe
from ..core.seeds import generator
from ..core.terms import Terms
from ..data import augment
from ..data.catalog import load
from ..data.order import Order
from ..data.split import class_weights, split
from ..data.tensors import TensorSource
from ..estimators.least_squares import LeastSquares, Ridge
from ..lenses import diagnosis
from ..models.mlp import MLP
from ..nn.dropout import Dropout
from ..objectives.categorical import Categorical
from ..objectives.gaussian import Gaussian
from ..objectives.penalized import Penalized
from ..optim.build import Optimizer, optimizer
from ..recipes import digits_cnn
from ..recipes.tools.parts import apply_with_chance
from .exhibit import Exhibit, spread

DIRTY_CSV = """length,width,site,kind
5.1,3.5,1,a
4.9,3.0,1,a
4.9,3.0,1,a
4.7,,1,a
x7,3.1,1,a
5.0,3.6,1,b
5.4,3.9,1,b
4.6,inf,1,b
5.0,3.4,1,
4.4,2.9,1,b
,3.7,1,b
4.8,3.4,1,a
"""


NOISE = 0.25
SETS = 30
"""data sets that errors are averaged over"""


def reg_01(exhibit: Exhibit) -> str:
    """Polynomials of rising degree on a noisy sine pass through all three regimes; each remedy moves the number it should."""
    degrees = tuple(range(16))
    train, valid, test = (_sines(exhibit.seed, size, part) for size, part in ((20, "train"), (200, "valid"), (200, "judge")))
    sets = Sets(train, valid, test, exhibit.seed)
    start, floor = float(valid[1].var()), NOISE**2
    errors = {degree: _fit(LeastSquares(), degree, train, valid) for degree in degrees}
    means = {degree: (float(on_train.mean()), float(on_new.mean())) for degree, (on_train, on_new) in errors.items()}
    diagnoses = {degree: diagnosis.diagnose_losses(seen, new, start, floor) for degree, (seen, new) in means.items()}
    for degree, regime in ((0, "under"), (2, "under"), (6, "good fit"), (7, "good fit"), (14, "over"), (15, "over")):
        regime += "" if " " in regime else "fitting"
        exhibit.expect(f"degree {degree}: regime", diagnoses[degree].regime, regime)
    for word in ("more capacity", "less regularization", "longer training"):
        exhibit.expect(f"remedies against underfitting: {word}", word in diagnoses[0].remedies, True)
    for word in ("weight decay", "early stopping", "dropout", "augmentation"):
        exhibit.expect(f"remedies against overfitting: {word}", any(word in remedy for remedy in diagnoses[15].remedies), True)
    rises = sum(int((errors[d + 1][0] > errors[d][0] + 1e-9).sum()) for d in degrees[:-1])
    exhibit.expect("rises of the training error of any data set from one degree to the next", rises, 0)
    best = min(degrees, key=lambda degree: means[degree][1])
    exhibit.expect("the best degree on new points lies between 5 and 9", best, 7, within=2)

    rows = []
    for name, (before, after) in _against_overfitting(sets).items():
        exhibit.above(f"{name}: training error rises by", float((after[0] - before[0]).mean()), 0.0)
        exhibit.below(
            f"{name}: validation error, over what it was", float(after[1].mean() / before[1].mean()), 0.75 if name == "L1" else 0.5
        )
        rows.append(("overfitting, degree 15", name, before, after))
    for name, (before, after) in _against_underfitting(sets).items():
        exhibit.below(f"{name}: training error changes by", float((after[0] - before[0]).mean()), -0.05)
        rows.append(("underfitting", name, before, after))
    lines = {"train": [means[d][0] for d in degrees], "valid": [min(means[d][1], 3.0) for d in degrees], "noise": [floor] * len(degrees)}
    note = f"Mean squared error over {SETS} data sets of 20 points, log axis. " + "; ".join(
        f"{d}: {diagnoses[d].regime}" for d in (1, 6, 15)
    )
    exhibit.show(
        Lines(
            "Error by degree of the polynomial",
            lines,
            axes=["degree"],
            note=note + ".",
            x=degrees,
            log=["y"],
            colors={"train": 0, "valid": 1, "noise": 6},
        )
    )
    table = {"regime": [row[0] for row in rows], "remedy": [row[1] for row in rows]}
    for side, part in (("training", 0), ("validation", 1)):
        table[f"{side} before"] = [_spread_text(row[2][part]) for row in rows]
        table[f"{side} after"] = [_spread_text(row[3][part]) for row in rows]
    exhibit.show(Table("What each remedy moves", table, note=f"Mean +/- deviation over {SETS} data sets."))
    gained = " to ".join(_spread_text(errors[1]) for errors in rows[0][2:])
    return f"best degree {best} of 0..15; {len(rows)} remedies each move the right number; L2 takes the validation error from {gained}"


XY = tuple[np.ndarray, np.ndarray]
"""x and y, (data sets, points) each"""
Errors = tuple[np.ndarray, np.ndarray]
"""mean squared errors on training and on new points, one per data set"""


class Sets(NamedTuple):
    """What is fitted, what it is measured on, what a stop is decided on."""

    train: XY
    valid: XY
    test: XY
    seed: int


def _sines(seed: int, points: int, part: str) -> XY:
    """y = sin(2 pi x) + noise, drawn again for each data set."""
    draw = generator(seed, "sines", part)
    x = torch.linspace(-1, 1, points, dtype=torch.float64).expand(SETS, points)
    y = torch.sin(2 * math.pi * x) + NOISE * torch.randn(SETS, points, generator=draw, dtype=torch.float64)
    return x.numpy(), y.numpy()


def _features(x: np.ndarray, degree: int) -> np.ndarray:
    """Legendre polynomials 1..degree, scaled to variance 1 on the interval; the constant is the intercept.  (..., degree)"""
    return np.polynomial.legendre.legvander(x, degree)[..., 1:] * np.sqrt(2 * np.arange(1, degree + 1) + 1)


def _fit(estimator: LeastSquares | Ridge, degree: int, train: XY, valid: XY) -> Errors:
    def one(number: int) -> tuple[float, float]:
        (x, y), (new, truth) = ((part[0][number], part[1][number]) for part in (train, valid))
        if degree == 0:
            return float(np.mean((y - y.mean()) ** 2)), float(np.mean((truth - y.mean()) ** 2))
        fit = estimator.fit(_features(x, degree), y)
        pairs = ((x, y), (new, truth))
        seen, unseen = (float(np.mean((fit.predict(_features(at, degree)) - values) ** 2)) for at, values in pairs)
        return seen, unseen

    a, b = zip(*(one(number) for number in range(len(train[0]))), strict=True)
    return np.array(a), np.array(b)


def _descend_all(
    degree: int, sets: Sets, steps: int, rule: str = "adam", decay: float = 0.0, drop: float = 0.0, stop: bool = False
) -> Errors:
    """All data sets at once by gradient descent from 0: the weights are one (data sets, degree + 1) tensor, the rule is elementwise."""
    (a, y), (new, truth), test = ((torch.from_numpy(_with_bias(x, degree)), torch.from_numpy(y)) for x, y in sets[:3])
    w = torch.zeros(len(a), degree + 1, dtype=torch.float64, requires_grad=True)
    step = optimizer(rule, lr=0.02 if rule == "adam" else 0.05).build([{"params": [w], "weight_decay": decay, "names": ["w"]}])
    mask, rng = Dropout(drop), torch.random.fork_rng(devices=[])
    best, kept = torch.full((len(a),), math.inf, dtype=torch.float64), w.detach().clone()
    with rng:
        torch.manual_seed(sets.seed)
        for at in range(steps):
            step.zero_grad()
            ((mask(a) @ w.unsqueeze(-1)).squeeze(-1) - y).square().mean(1).sum().backward()
            step.step()
            if stop and at % 5 == 0:
                now = _mse(*test, w)
                kept = torch.where((now < best)[:, None], w.detach(), kept)
                best = torch.minimum(now, best)
    end = kept if stop else w.detach()
    return _mse(a, y, end).numpy(), _mse(new, truth, end).numpy()


def _with_bias(x: np.ndarray, degree: int) -> np.ndarray:
    return np.concatenate([np.ones((*x.shape, 1)), _features(x, degree)], -1)


def _mse(a: Tensor, y: Tensor, w: Tensor) -> Tensor:
    return ((a @ w.detach().unsqueeze(-1)).squeeze(-1) - y).square().mean(1)


def _against_overfitting(sets: Sets) -> dict[str, tuple[Errors, Errors]]:
    """Remedy -> errors before and after, for polynomials of degree 15.

    "Before" is found in the same way, less the remedy: a descent is compared with as many steps of the same rule.
    """
    train, valid, _, seed = sets
    copies = [np.tile(part, (1, 40)) for part in train]
    jitter = 0.08 * torch.randn(copies[0].shape, generator=generator(seed, "jitter"), dtype=torch.float64).numpy()
    jittered = (np.clip(copies[0] + jitter, -1, 1), copies[1])
    more = tuple(np.concatenate([a, b], 1) for a, b in zip(train, _sines(seed, 60, "more"), strict=True))
    bare, adam = _fit(LeastSquares(), 15, train, valid), _descend_all(15, sets, 800)
    return {
        "L2": (bare, _fit(Ridge(alpha=1.0), 15, train, valid)),
        "L1": (
            _descend_all(15, sets, 800, rule="proximal"),
            _descend_all(15, sets, 800, rule="proximal", decay=0.05),
        ),
        "early stopping": (adam, _descend_all(15, sets, 800, stop=True)),
        "dropout": (adam, _descend_all(15, sets, 800, drop=0.1)),
        "augmentation": (bare, _fit(LeastSquares(), 15, jittered, valid)),
        "more data": (bare, _fit(LeastSquares(), 15, (more[0], more[1]), valid)),
        "a smaller model": (bare, _fit(LeastSquares(), 7, train, valid)),
    }


def _against_underfitting(sets: Sets) -> dict[str, tuple[Errors, Errors]]:
    train, valid = sets.train, sets.valid
    return {
        "more capacity": (_fit(LeastSquares(), 1, train, valid), _fit(LeastSquares(), 7, train, valid)),
        "less regularization": (_fit(Ridge(alpha=100.0), 9, train, valid), _fit(Ridge(alpha=0.1), 9, train, valid)),
        "longer training": (_descend_all(9, sets, 10), _descend_all(9, sets, 600)),
    }


def _spread_text(values: np.ndarray) -> str:
    return f"{values.mean():.3f} +/- {values.std():.3f}"


def reg_02(exhibit: Exhibit) -> str:
    """Squared weights in the loss pull by lambda W; for plain SGD that is a decay of every weight, for Adam it is not."""
    strength, lr, steps = 0.1, 0.05, 60
    draw = exhibit.generator("decay")
    batch = Batch(x=torch.randn(30, 4, generator=draw).double(), y=torch.randn(30, 2, generator=draw).double())
    model = MLP((4, 6, 2), activation="tanh").double()
    # The penalty of the row is lambda / 2 times the squares of all weights; ours is l2 times them.
    penalized = Penalized(Gaussian(), l2=strength / 2, biases=True)
    slopes = [_gradient(model, objective, batch) for objective in (Gaussian(), penalized)]
    weights = parameters_to_vector(model.parameters()).detach()
    exhibit.expect("gradient of the penalty, against lambda W", slopes[1] - slopes[0], strength * weights, within=1e-14)
    prior = torch.distributions.Normal(torch.zeros((), dtype=torch.float64), strength**-0.5)
    penalty = strength / 2 * float(weights.square().sum())
    likely = float((prior.log_prob(torch.zeros_like(weights)) - prior.log_prob(weights)).sum())
    exhibit.expect("penalty, against the log-density of a Gaussian prior of variance 1/lambda", penalty, likely, within=1e-12)

    start = [p.detach().clone() for p in model.parameters()]
    ends = {}
    for rule in ("sgd", "adam", "adamw"):
        ends[rule, "in the loss"] = _follow_steps(model, start, penalized, batch, optimizer(rule, lr=lr), steps)
        decaying = optimizer(rule, lr=lr, weight_decay=strength, decay_all=True)
        ends[rule, "by the rule"] = _follow_steps(model, start, Gaussian(), batch, decaying, steps)
    ends["sgd", "decoupled"] = _follow_steps(model, start, Gaussian(), batch, optimizer("sgd", lr=lr), steps, shrink=1 - lr * strength)
    ends["adam", "decoupled"] = _follow_steps(model, start, Gaussian(), batch, optimizer("adam", lr=lr), steps, shrink=1 - lr * strength)
    for label, one, other, within in (
        ("SGD: penalty in the loss, against W <- (1 - eta lambda) W - eta g", ("sgd", "in the loss"), ("sgd", "decoupled"), 1e-12),
        ("SGD: weight decay of the rule, against the same", ("sgd", "by the rule"), ("sgd", "decoupled"), 1e-12),
        ("Adam: weight decay of the rule is the penalty in the loss", ("adam", "by the rule"), ("adam", "in the loss"), 1e-9),
        ("AdamW: weight decay of the rule is decoupled", ("adamw", "by the rule"), ("adam", "decoupled"), 1e-9),
    ):
        exhibit.expect(label, ends[one], ends[other], within=within)
    gap = float((ends["adam", "in the loss"] - ends["adamw", "by the rule"]).abs().max())
    exhibit.above("Adam against AdamW: largest difference of a weight", gap, 0.05)
    from sklearn.linear_model import Ridge as Theirs

    line = nn.Linear(4, 2, bias=False).double()
    solution = _follow_steps(line, [torch.zeros(2, 4).double()], penalized, batch, optimizer("sgd", lr=0.3), 400)
    # The loss is a mean over 60 targets, scikit-learn's a sum.
    theirs = Theirs(alpha=60 * strength, fit_intercept=False).fit(batch.x.numpy(), batch.y.numpy()).coef_
    exhibit.expect("SGD with L2 on a linear model ends at scikit-learn's ridge", solution.view(2, 4), theirs, within=1e-10)
    exhibit.show(_decay_paths())
    same = float((ends["sgd", "in the loss"] - ends["sgd", "decoupled"]).abs().max())
    return f"SGD: L2 and decoupled decay differ by {same:.0e}; Adam: by {gap:.2f} after {steps} steps"


def _gradient(model: nn.Module, objective: Callable[[nn.Module, Batch], Terms], batch: Batch) -> Tensor:
    return parameters_to_vector(torch.autograd.grad(objective(model, batch).loss(), list(model.parameters())))


def _follow_steps(
    model: nn.Module,
    start: list[Tensor],
    objective: Callable[[nn.Module, Batch], Terms],
    batch: Batch,
    rule: Optimizer,
    steps: int,
    shrink: float = 1.0,
) -> Tensor:
    """Where the weights end; `shrink` multiplies them before each step: decoupled weight decay."""
    params = list(model.parameters())
    with torch.no_grad():
        for p, first in zip(params, start, strict=True):
            p.copy_(first)
    optimizer = rule.build([{"params": params, "weight_decay": rule.weight_decay, "names": [str(i) for i in range(len(params))]}])
    for _ in range(steps):
        optimizer.zero_grad()
        objective(model, batch).loss().backward()
        with torch.no_grad():
            for p in params:
                p.mul_(shrink)
        optimizer.step()
    return parameters_to_vector(params).detach().clone()


def _decay_paths() -> Reading:
    """Two weights on a long bowl: where each rule goes with the same strength of decay."""
    curvature, best, strength = torch.tensor([1.0, 20.0]), torch.tensor([2.0, 1.0]), 0.5
    paths = {}
    for name, rule in (("SGD, L2 = decoupled", "sgd"), ("Adam, L2 in the loss", "adam"), ("AdamW, decoupled", "adamw")):
        w = torch.tensor([-0.5, -0.8], requires_grad=True)
        opt = optimizer(rule, lr=0.05).build([{"params": [w], "weight_decay": strength, "names": ["w"]}])
        path = [w.tolist()]
        for _ in range(200):
            w.grad = curvature * (w.detach() - best)
            opt.step()
            path.append(w.tolist())
        paths[name] = path
    x, y = torch.linspace(-1, 2.5, 71), torch.linspace(-1, 1.5, 51)
    loss = 0.5 * ((x[None, :] - best[0]).square() * curvature[0] + (y[:, None] - best[1]).square() * curvature[1])
    note = "The loss without decay; all three have the same strength. In the loss, Adam divides the pull by the size of the gradients."
    return Plane(
        "Decay on a long bowl",
        {"loss": loss},
        axes=["w1", "w2"],
        note=note,
        x=x,
        y=y,
        levels=12,
        paths=paths,
        points={"minimum": [best.tolist()]},
    )


def reg_03(exhibit: Exhibit) -> str:
    """L1 with an orthonormal design is a soft threshold, with zeros that are exactly 0; L2 only makes weights smaller."""
    from sklearn.datasets import load_diabetes
    from sklearn.linear_model import Lasso

    n, d = 60, 16
    draw = exhibit.generator("lasso")
    x = torch.linalg.qr(torch.randn(n, d, generator=draw, dtype=torch.float64))[0]
    y = x[:, :5] @ torch.tensor([3.0, -2.0, 1.5, 1.0, -0.6]).double() + 0.2 * torch.randn(n, generator=draw, dtype=torch.float64)
    plain = x.T @ y
    strengths = torch.linspace(0.0, 3.5, 29, dtype=torch.float64)
    l1 = torch.stack([_lasso(x, y, float(s), steps=60) for s in strengths])
    l2 = plain / (1 + strengths[:, None])
    soft = plain.sign() * (plain.abs() - strengths[:, None]).clamp(min=0)
    exhibit.expect("proximal descent against the soft threshold, 29 strengths", l1, soft, within=1e-12)
    at = 4
    theirs = Lasso(alpha=float(strengths[at]) / n, fit_intercept=False, tol=1e-14, max_iter=100_000).fit(x.numpy(), y.numpy()).coef_
    exhibit.expect(f"the same at strength {float(strengths[at]):g} against scikit-learn", l1[at], theirs, within=1e-8)
    zeros = (l1 == 0).sum(1)
    exhibit.expect("exact zeros at each strength", zeros, (plain.abs() <= strengths[:, None]).sum(1))
    exhibit.above(f"exact zeros of 16 at strength {float(strengths[at]):g}", int(zeros[at]), 8)
    exhibit.expect("exact zeros of L2 at any strength", int((l2 == 0).sum()), 0)
    ridge = Ridge(alpha=float(strengths[at]), fit_intercept=False).fit(x.numpy(), y.numpy()).coef_
    exhibit.expect("ridge, against the weights divided by 1 + strength", ridge, l2[at], within=1e-10)
    exhibit.expect("exact zeros of ridge", int((ridge == 0).sum()), 0)
    swinging = _lasso(x, y, float(strengths[at]), steps=400, proximal=False)
    exhibit.expect("exact zeros with the penalty left in the loss", int((swinging == 0).sum()), 0)
    w = torch.linspace(-2, 2, 9, dtype=torch.float64)
    prior = torch.distributions.Laplace(torch.zeros((), dtype=torch.float64), 1 / 0.7)
    exhibit.expect(
        "penalty, against the log-density of a Laplace prior",
        0.7 * w.abs(),
        prior.log_prob(torch.zeros_like(w)) - prior.log_prob(w),
        within=1e-12,
    )

    features, target = load_diabetes(return_X_y=True)
    features = (features - features.mean(0)) / features.std(0)
    target = (target - target.mean()) / target.std()
    real = _lasso(torch.from_numpy(features), torch.from_numpy(target), 0.1 * len(target), steps=1500)
    sk = Lasso(alpha=0.1, fit_intercept=False, tol=1e-14, max_iter=100_000).fit(features, target).coef_
    exhibit.expect("diabetes data: weights against scikit-learn", real, sk, within=1e-8)
    exhibit.expect("diabetes data: which weights are exactly 0", real == 0, sk == 0)
    for name, table in (("L1", l1), ("L2", l2)):
        lines = {f"w{i + 1}": table[:, i] for i in range(8)}
        note = "Eight of sixteen weights." + (" Each reaches 0 and stays there." if name == "L1" else " None reaches 0.")
        exhibit.show(Lines(f"Weights by strength of {name}", lines, axes=["strength"], note=note, x=strengths))
    on_real = f"{int((real == 0).sum())} of 10 on diabetes, as scikit-learn"
    return f"soft threshold to 1e-12; {int(zeros[at])} of {d} weights exactly 0 under L1, 0 under L2; {on_real}"


def _lasso(x: Tensor, y: Tensor, strength: float, steps: int, proximal: bool = True) -> Tensor:
    """Minimum of  |y - x w|^2 / 2 + strength |w|_1  by proximal descent, or by plain descent on the whole of it."""
    w = torch.zeros(x.shape[1], dtype=torch.float64, requires_grad=True)
    lr = 1 / float(torch.linalg.matrix_norm(x, 2)) ** 2
    rule = optimizer("proximal" if proximal else "sgd", lr=lr if proximal else 0.3 * lr)
    opt = rule.build([{"params": [w], "weight_decay": strength if proximal else 0.0, "names": ["w"]}])
    for _ in range(steps):
        opt.zero_grad()
        loss = (x @ w - y).square().sum() / 2 + (0.0 if proximal else strength * w.abs().sum())
        loss.backward()
        opt.step()
    return w.detach()


def reg_04(exhibit: Exhibit) -> str:
    """Dropout averages sub-networks: exactly, over all 2^n masks, for a linear layer; evaluation needs no draw at all."""
    n, p = 8, 0.3
    layer = nn.Linear(n, 3).double()
    x = torch.randn(n, generator=exhibit.generator("x"), dtype=torch.float64)
    masks = torch.tensor(list(product((0.0, 1.0), repeat=n)), dtype=torch.float64)
    exhibit.expect("masks", len(masks), 2**n)
    for rate in (0.5, p):
        probability = (rate ** (1 - masks) * (1 - rate) ** masks).prod(1)
        each = layer(masks * x / (1 - rate)).detach()
        evaluated = layer(Dropout(rate).eval()(x)).detach()
        exhibit.expect(
            f"p={rate}: average over all {2**n} sub-networks, against one forward pass", probability @ each, evaluated, within=1e-12
        )
        # The normalized geometric mean of the sub-networks' probabilities is one softmax of the scaled pass.
        logs = probability @ each.log_softmax(1)
        exhibit.expect(f"p={rate}: geometric mean of their class probabilities", logs.softmax(0), evaluated.softmax(0), within=1e-12)
    unscaled = (p ** (1 - masks) * (1 - p) ** masks).prod(1) @ layer(masks * x).detach()
    scaled = layer(Dropout(p, scale="test").eval()(x)).detach()
    exhibit.expect("without division in training, evaluation multiplies by 1 - p", unscaled, scaled, within=1e-12)

    wide = torch.ones(400, 500, dtype=torch.float64)
    drop = Dropout(p)
    # 200,000 units: the fraction kept is known to 0.1 %, and the mean of what is kept to 0.15 %.
    exhibit.expect("training mean, against evaluation", float(drop(wide).mean()), float(drop.eval()(wide).mean()), within=0.01)
    exhibit.expect("share of active units, 1 - p", float((drop.train()(wide) != 0).double().mean()), 1 - p, within=0.01)
    exhibit.expect("keep_prob = 0.7 is p = 0.3", Dropout(keep_prob=0.7).p, p, within=1e-12)
    exhibit.expect("no scale anywhere: training mean", float(Dropout(p, scale=None)(wide).mean()), 1 - p, within=0.01)
    net = MLP((n, 32, 3), dropout=0.5).double().eval().requires_grad_(False)
    exhibit.expect("evaluation twice: largest difference", float((net(x[None]) - net(x[None])).abs().max()), 0.0)
    rows = x.expand(64, n)
    exhibit.above("training twice: outputs of 64 that differ", int((net.train()(rows) != net(rows)).any(1).sum()), 48)
    exhibit.expect("p = 0 is the identity", Dropout(0.0)(x), x.clone())
    few = torch.stack([torch.stack([layer(Dropout(p)(x)).detach() for _ in range(many)]).mean(0) for many in (1, 4, 16, 64, 256, 1024)])
    gap = (few - layer(x).detach()).norm(dim=1)
    exhibit.below("distance from the whole ensemble after 1024 draws, against one draw", float(gap[-1] / gap[0]), 0.3)
    lines = {"distance": gap, "1 / sqrt(draws)": [float(gap[0]) / math.sqrt(k) for k in (1, 4, 16, 64, 256, 1024)]}
    note = "Average of this many sub-networks against one pass in evaluation mode."
    exhibit.show(Lines("Dropout as an ensemble", lines, axes=["draws"], note=note, x=[1, 4, 16, 64, 256, 1024], log=["x", "y"]))
    return f"average of {2**n} sub-networks = one scaled pass to 1e-12; active {1 - p:.0%}; evaluation without a draw"


def reg_05(exhibit: Exhibit) -> str:
    """Training pulls one weight from 0 to 1 along w_t = 1 - 0.9^t; the validation loss is smallest at 1/2, and step 7 is nearest to it."""
    stops, kept, traces = [], [], []
    for patience, every, best, stopped in ((1, 1, 7, 8), (3, 1, 7, 10), (5, 1, 7, 12), (3, 2, 6, 12)):
        run = exhibit.train(_one_weight_recipe(patience, every), f"patience-{patience}-{every}", seed=exhibit.seed, checkpoint_every=1000)
        label = f"patience {patience}, checked every {'step' if every == 1 else f'{every} steps'}"
        exhibit.expect(f"{label}: last step", run.result["steps"], stopped)
        exhibit.expect(f"{label}: weight that is kept", run.model().weight.item(), 1 - 0.9**best, within=1e-6)
        stops.append(run.result["steps"])
        kept.append(run.result["model_step"])
        traces.append([row["valid/loss"] for row in run.metrics if "valid/loss" in row])
    run = exhibit.train(_one_weight_recipe(0, 1), "no-patience", seed=exhibit.seed)
    exhibit.expect("without patience: last step", run.result["steps"], 20)
    exhibit.expect("without patience: weight that is kept", run.model().weight.item(), 1 - 0.9**20, within=1e-6)
    exhibit.expect("validation loss at each check", traces[2], [0.5 * (0.5 - 0.9**step) ** 2 for step in range(1, 13)], within=1e-6)
    note = f"stopped at step {stops[2]}, the weights of step {kept[2]} are kept"
    drawn = {"loss": traces[2], "step": list(range(1, len(traces[2]) + 1))}
    exhibit.show(Lines("Validation loss, patience 5", drawn, axes=["step"], note=note))
    ends, nearest = (", ".join(map(str, steps[:3])) for steps in (stops, kept))
    return f"patience 1, 3, 5 stops at step {ends} and keeps the weights of step {nearest}"


def _one_weight_recipe(patience: int, every: int) -> Recipe:
    def model() -> nn.Module:
        line = nn.Linear(1, 1, bias=False)
        nn.init.zeros_(line.weight)
        return line

    one = torch.ones(1, 1)
    return Recipe(
        model=model,
        data=Data(TensorSource(one, one), valid=TensorSource(one, one / 2)),
        objective=Gaussian(),
        optimizer=optimizer("sgd", lr=0.1),
        batch_size=1,
        steps=20,
        evaluate_every=every,
        patience=patience,
    )


def reg_06(exhibit: Exhibit) -> str:
    """Flips, shifts, crops, noise and holes keep label and shape; on 200 images they raise the validation accuracy."""
    images = load("digits", seed=exhibit.seed).train[:60]
    changes = {
        "flip": augment.flip(1.0),
        "shift": augment.shift(1),
        "crop": augment.crop(8, padding=1),
        "noise": augment.noise(0.3),
        "cutout": augment.cutout(3),
        "all": augment.compose(augment.flip(), augment.shift(2), augment.crop(8, padding=1), augment.cutout(2), augment.noise(0.1)),
    }
    shown = {"as they are": images.x[:3, 0]}
    for name, change in changes.items():
        new, again = (change(images, exhibit.generator("augment")) for _ in range(2))
        exhibit.expect(f"{name}: labels", new.y, images.y.clone())
        exhibit.expect(f"{name}: shape", list(new.x.shape), list(images.x.shape))
        exhibit.above(f"{name}: images that changed", int((new.x != images.x).flatten(1).any(1).sum()), 30)
        exhibit.expect(f"{name}: the same draw gives the same images", again.x, new.x)
        shown[name] = new.x[:3, 0]
    exhibit.expect("flip, against reversed columns", changes["flip"](images, exhibit.generator("a")).x, images.x.numpy()[..., ::-1].copy())
    # Both cut a random window out of a larger image: a shift repeats the border, a crop puts 0 around it.
    pixels, around = images.x.numpy(), ((0, 0), (0, 0), (1, 1), (1, 1))
    for name, padded in (("shift", np.pad(pixels, around, mode="edge")), ("crop", np.pad(pixels, around))):
        moved = changes[name](images, exhibit.generator("a")).x.numpy()
        windows = np.stack([padded[:, :, i : i + 8, j : j + 8] for i in range(3) for j in range(3)])
        exhibit.expect(f"{name}: images that are one of the nine windows", int((windows == moved).all((2, 3, 4)).any(0).sum()), 60)
    exhibit.expect("noise: deviation", float((changes["noise"](images, exhibit.generator("a")).x - images.x).std()), 0.3, within=0.02)

    seeds = exhibit.seeds(5)
    scores = {name: [_few_images(exhibit, name, seed) for seed in seeds] for name in ("plain", "augmented")}
    gain = [after - before for before, after in zip(scores["plain"], scores["augmented"], strict=True)]
    exhibit.above("200 images: gain in validation accuracy, mean", gain, 0.0, mean=True)
    exhibit.above("200 images: validation accuracy with augmentation", scores["augmented"], 0.918, mean=True)
    flat = torch.cat(list(shown.values()))
    labels = [name for name in shown for _ in range(3)]
    scaled = (flat - flat.min()) / (flat.max() - flat.min())
    exhibit.show(Images("Digits, changed", {"image": scaled}, note="Drawn anew for every batch.", labels=labels))
    table = {"seed": list(seeds), "plain": scores["plain"], "augmented": scores["augmented"]}
    exhibit.show(Table("Validation accuracy, 200 images", table))
    plain, augmented = (spread(scores[name], ".3f") for name in ("plain", "augmented"))
    return f"accuracy on 200 images {plain} plain, {augmented} with shifts and noise ({len(seeds)} seeds)"


def _few_images(exhibit: Exhibit, name: str, seed: int) -> float:
    """Validation accuracy on 1,000 digits after training on 200, with or without shifted and noisy images."""
    recipe = digits_cnn.recipe(width=8, hidden=32, dropout=0.0, batch_size=50, lr=4e-3, epochs=80).replace(
        data=lambda: replace(load("digits", seed=seed, valid=1000, test=597), test=None),
        augment=augment.compose(apply_with_chance(augment.shift(1), 0.25), augment.noise(0.3)) if name == "augmented" else None,
        evaluate_every=10_000,
    )
    run = exhibit.train(recipe, f"{name}-{seed}", seed=seed, checkpoint_every=10_000)
    return run.result["metrics"]["valid/accuracy"]


def reg_07(exhibit: Exhibit) -> str:
    """A table with errors is cleaned, splits do not overlap, class weights balance the loss, and wrong labels reduce accuracy."""
    file = exhibit.folder / "flowers.csv"
    file.write_text(DIRTY_CSV, encoding="utf-8")
    report = load(file, missing="drop", drop_duplicates=True, valid=1, test=1).report
    counts = {
        "rows read": 12,
        "duplicate rows dropped": 1,
        "rows without usable target dropped": 1,
        "corrupt cells": 2,
        "missing cells": 2,
        "rows with gaps dropped": 4,
        "rows kept": 6,
        "constant columns left out": "site",
    }
    for name, count in counts.items():
        exhibit.expect(name, report.get(name), count)

    labels = torch.arange(100) % 4
    parts, again, other = (
        split(100, valid=0.2, test=12, seed=seed, labels=labels) for seed in (exhibit.seed + 7, exhibit.seed + 7, exhibit.seed + 8)
    )
    exhibit.expect("sizes of train, valid and test", [len(part) for part in parts], [68, 20, 12])
    exhibit.expect("most parts an index stands in", max(Counter(torch.cat(parts).tolist()).values()), 1)
    exhibit.expect("indices in all parts together", torch.cat(parts).sort().values, torch.arange(100))
    exhibit.expect("examples of each class in valid", labels[parts[1]].bincount(), [5, 5, 5, 5])
    exhibit.expect("the same seed splits alike", torch.cat(again), torch.cat(parts))
    exhibit.above("examples another seed puts elsewhere in test", len(set(other[2].tolist()) - set(parts[2].tolist())), 0)

    gap = max(
        exhibit.expect(f"{name}: weighted against re-balanced", *pair, within=1e-6) for name, pair in _class_weight_pairs(exhibit).items()
    )

    fractions, seeds = (0.0, 0.4, 0.7), exhibit.seeds()
    scores = [[_accuracy(exhibit, fraction, seed) for seed in seeds] for fraction in fractions]
    exhibit.above("test accuracy with right labels", scores[0], 0.9)
    for high, low in ((0, 1), (1, 2)):
        lost = [before - after for before, after in zip(scores[high], scores[low], strict=True)]
        exhibit.above(f"test accuracy lost from {fractions[high]:.0%} to {fractions[low]:.0%} wrong labels", lost, 0.0)
    lines = {f"seed {seed}": [row[number] for row in scores] for number, seed in enumerate(seeds)}
    exhibit.show(Lines("Test accuracy and wrong training labels", lines, axes=["share of wrong labels"], x=fractions))
    exhibit.show(Table("What cleaning did", {"what": list(report), "count": list(report.values())}))
    reached = ", ".join(spread(row, ".3f") for row in scores)
    kept = f"{report['rows kept']} of {report['rows read']} rows kept"
    return f"{kept}; weighted loss off by {gap:.1e}; accuracy at 0, 40, 70 % wrong labels {reached}"


def _class_weight_pairs(exhibit: Exhibit) -> dict[str, tuple[Tensor, Tensor]]:
    """Loss and gradient with class weights on 30, 10 and 5 examples, and without them on 30 of each class."""
    y = torch.tensor([0] * 30 + [1] * 10 + [2] * 5)
    x = torch.randn(45, 4, generator=exhibit.generator("x"))
    model = MLP((4, 6, 3), activation="tanh")
    copies = torch.tensor([1, 3, 6])[y]
    even = Batch(x=x.repeat_interleave(copies, 0), y=y.repeat_interleave(copies))
    pairs = []
    for objective, batch in ((Categorical(weights=class_weights(y, 3).tolist()), Batch(x=x, y=y)), (Categorical(3), even)):
        model.zero_grad()
        loss = objective(model, batch).loss()
        loss.backward()
        pairs.append((loss.detach(), parameters_to_vector([p.grad for p in model.parameters() if p.grad is not None]).clone()))
    return dict(zip(("loss", "gradient"), zip(*pairs, strict=True), strict=True))


def _accuracy(exhibit: Exhibit, fraction: float, seed: int) -> float:
    """Test accuracy on digits after training with a fraction of the training labels moved to another class."""
    data = load("digits", seed=seed, valid=1, test=600)
    assert isinstance(data.train, TensorSource)
    fields = dict(data.train.fields)
    rng = generator(seed, "noise")
    wrong = torch.rand(len(data.train), generator=rng) < fraction
    moved = (fields["y"] + torch.randint(1, 10, fields["y"].shape, generator=rng)) % 10
    fields["y"] = torch.where(wrong, moved, fields["y"])
    recipe = Recipe(
        model=lambda: MLP((64, 48, 10)),
        data=replace(data, train=TensorSource(to_float=data.train.to_float, **fields), valid=None),
        objective=Categorical(classes=10),
        optimizer=optimizer("adam", lr=3e-3),
        batch_size=64,
        steps=200,
    )
    run = exhibit.train(recipe, f"noise-{fraction}-{seed}", seed=seed, checkpoint_every=200)
    return run.result["metrics"]["test/accuracy"]


def reg_08(exhibit: Exhibit) -> str:
    """More weights than examples: descent from 0 ends at the shortest of all solutions, the pseudo-inverse."""
    n, d = 8, 40
    draw = exhibit.generator("short")
    x = torch.randn(n, d, generator=draw, dtype=torch.float64)
    y = torch.randn(n, generator=draw, dtype=torch.float64)
    shortest = torch.from_numpy(np.linalg.pinv(x.numpy()) @ y.numpy())
    others = torch.randn(d, 3, generator=draw, dtype=torch.float64)
    starts = torch.cat([torch.zeros(d, 1, dtype=torch.float64), others], 1)
    lr = 1 / float(torch.linalg.matrix_norm(x, 2)) ** 2
    ends, lengths, errors = _descend(exhibit, x, y, starts, lr, steps=400)
    gap = exhibit.expect("gradient descent from 0, against the pseudo-inverse", ends[:, 0], shortest, within=1e-9)
    exhibit.below("its training error", float((x @ ends[:, 0] - y).abs().max()), 1e-6)
    noisy, _, _ = _descend(exhibit, x, y, starts[:, :1], 0.015, steps=1500, batch_size=3)
    exhibit.expect("stochastic descent in batches of 3 from 0, against the pseudo-inverse", noisy[:, 0], shortest, within=1e-10)
    unseen = (torch.eye(d, dtype=torch.float64) - torch.from_numpy(np.linalg.pinv(x.numpy())) @ x) @ others
    label = "from 3 other starts: the same plus what the data cannot see of the start"
    exhibit.expect(label, ends[:, 1:], shortest[:, None] + unseen, within=1e-10)
    exhibit.below("their training error", float((x @ ends[:, 1:] - y[:, None]).abs().max()), 1e-6)
    ratio = ends[:, 1:].norm(dim=0) / shortest.norm()
    exhibit.above("their length beyond the shortest", float(ends[:, 1:].norm(dim=0).min() - shortest.norm()), 2)
    lines = {"from 0": lengths[:, 0], "from elsewhere": lengths[:, 1], "pseudo-inverse": [float(shortest.norm())] * len(lengths)}
    note = f"{n} examples, {d} weights. Both fit the data without error."
    exhibit.show(Lines("Length of the weights", lines, axes=["step"], note=note, colors={"pseudo-inverse": 6}))
    residual = {"from 0": errors[:, 0], "from elsewhere": errors[:, 1]}
    exhibit.show(Lines("Training error", residual, axes=["step"], log=["y"]))
    longer = f"{float(ratio.min()):.1f} to {float(ratio.max()):.1f} times as long"
    return f"GD from 0 is {gap:.0e} from the pseudo-inverse; other starts fit as well with weights {longer}"


def _descend(
    exhibit: Exhibit, x: Tensor, y: Tensor, starts: Tensor, lr: float, steps: int, batch_size: int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    """Weights (D, S) after descent from several starts at once; their lengths and errors on the way, (200, S) each."""
    w = starts.clone().requires_grad_()
    opt = optimizer("sgd", lr=lr).build([{"params": [w], "weight_decay": 0.0, "names": ["w"]}])
    order, lengths, errors = Order(len(x), batch_size or len(x), seed=exhibit.seed), [], []
    for step in range(steps):
        rows = order.at(step)
        opt.zero_grad()
        ((x[rows] @ w - y[rows, None]).square().sum() / 2).backward()
        opt.step()
        if step < 200:
            lengths.append(w.detach().norm(dim=0))
            errors.append((x @ w.detach() - y[:, None]).square().mean(0))
    return w.detach(), torch.stack(lengths), torch.stack(errors)
