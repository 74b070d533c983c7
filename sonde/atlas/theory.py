"""Chapter 22, theory: concentration, learnability, double descent, wide networks and their corrections."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import combinations, product

import numpy as np
import torch
from torch import Tensor, nn

from ..core.batch import Batch
from ..core.errors import BadInput
from ..core.reading import Bars, Lines, Plane, Table
from ..core.seeds import key
from ..gradients import mean
from ..gradients.flat import Flat
from ..models.mlp import MLP
from ..nn import wide
from ..nn.activations import activation as make_activation
from ..objectives.gaussian import Gaussian
from ..optim.initialize import initialize
from .exhibit import Exhibit


def markov(expected: float, threshold: float) -> float:
    """P(X >= threshold) <= E X / threshold, for X >= 0."""
    if not (expected >= 0 and threshold > 0):
        raise BadInput(f"Markov's bound needs a mean >= 0 and a threshold > 0, not {expected!r} and {threshold!r}")
    return min(1.0, expected / threshold)


def chebyshev(variance: float, n: int, t: float) -> float:
    """P(|mean of n - mu| >= t) <= variance / n t^2."""
    if not (variance >= 0 and n > 0 and t > 0):
        raise BadInput(f"Chebyshev's bound needs a variance >= 0, n > 0 and t > 0, not {variance!r}, {n!r} and {t!r}")
    return min(1.0, variance / (n * t * t))


def hoeffding(n: int, t: float, width: float = 1.0) -> float:
    """P(|mean of n - mu| >= t) <= 2 exp(-2 n t^2 / width^2), for values in an interval of this width."""
    if not (n > 0 and t > 0 and width > 0):
        raise BadInput(f"Hoeffding's bound needs n, t and width > 0, not {n!r}, {t!r} and {width!r}")
    return min(1.0, 2 * math.exp(-2 * n * (t / width) ** 2))


def pac_examples(hypotheses: int, error: float, delta: float, realizable: bool = True) -> int:
    """Examples that are enough for a finite class: with this chance of failure, no more than this error above the best.

    Args:
        realizable: some hypothesis is right everywhere, and the learner takes one that fits; else (agnostic) training errors

    of all hypotheses must lie within `error` of the true ones
    """
    if not (hypotheses >= 1 and 0 < error < 1 and 0 < delta < 1):
        raise BadInput(f"PAC needs a class, and error and delta between 0 and 1, not {hypotheses!r}, {error!r} and {delta!r}")
    if realizable:
        return math.ceil((math.log(hypotheses) + math.log(1 / delta)) / error)
    return math.ceil(math.log(2 * hypotheses / delta) / (2 * error**2))


def sauer(points: int, dimension: int) -> int:
    """Most labelings of this many points under a class of this VC dimension: sum over i <= d of C(m, i)."""
    return sum(math.comb(points, i) for i in range(dimension + 1))


def vc_gap(dimension: int, examples: int, delta: float = 0.05) -> float:
    """Bound on |true - training error| over a whole class of this VC dimension: sqrt((8 d log(2 e m / d) + 8 log(4 / chance)) / m)."""
    if not (1 <= dimension <= examples and 0 < delta < 1):
        raise BadInput(
            f"the VC bound needs examples >= dimension >= 1 and a delta between 0 and 1, not {examples!r}, {dimension!r} and {delta!r}"
        )
    return math.sqrt((8 * dimension * math.log(2 * math.e * examples / dimension) + 8 * math.log(4 / delta)) / examples)


def labelings(points: np.ndarray) -> list[tuple[int, ...]]:
    """All labelings of points by 0 and 1 that a plane can make, each decided by a linear program."""
    half = [labels for labels in _half(len(points)) if _by_a_plane(points, labels)]
    return half + [tuple(1 - label for label in labels) for labels in half]


def shatters(points: np.ndarray) -> bool:
    """Whether planes make every labeling of these points."""
    return all(_by_a_plane(points, labels) for labels in _half(len(points)))


def _half(points: int) -> list[tuple[int, ...]]:
    """Labelings with a 0 in front, even ones first, which are the hardest; the others are the same with 0 and 1 exchanged."""
    return sorted(((0, *rest) for rest in product((0, 1), repeat=points - 1)), key=lambda labels: abs(2 * sum(labels) - points))


def _by_a_plane(points: np.ndarray, labels: tuple[int, ...]) -> bool:
    from ..estimators.perceptron import separability

    return len(set(labels)) == 1 or separability(points, np.array(labels)).separable


def th_01(exhibit: Exhibit) -> str:
    """Markov, Chebyshev and Hoeffding bound how often a mean of n deviates; what is drawn stays below each of them."""
    from scipy import stats

    n, trials = 100, 200_000
    exhibit.expect("Hoeffding at n=100, t=0.1: 2 exp(-2)", hoeffding(n, 0.1), 0.2707, within=5e-5)
    exhibit.expect("Chebyshev for fair coins: 1/4 / n t^2", chebyshev(0.25, n, 0.1), 0.25, within=1e-12)
    exhibit.expect("Markov for P(mean >= 0.6): 0.5 / 0.6", markov(0.5, 0.6), 0.8333, within=5e-5)
    distances = (0.06, 0.08, 0.1, 0.12, 0.14, 0.16, 0.18)
    rng = exhibit.generator("means")
    draws = {
        "fair coin": (torch.binomial(torch.full((trials,), 100.0), torch.tensor(0.5).expand(trials), generator=rng) / n, 0.5, 0.25),
        "coin of 0.1": (torch.binomial(torch.full((trials,), 100.0), torch.tensor(0.1).expand(trials), generator=rng) / n, 0.1, 0.09),
        "uniform": (torch.cat([torch.rand(trials // 10, n, generator=rng).mean(1) for _ in range(10)]), 0.5, 1 / 12),
    }
    measured: dict[str, list[float]] = {}
    for name, (means, center, variance) in draws.items():
        away = (means.double() - center).abs()
        measured[name] = [float((away >= t - 1e-6).double().mean()) for t in distances]
        for t, frequency in zip(distances, measured[name], strict=True):
            exhibit.below(f"{name}, t={t}: frequency below Hoeffding", frequency, hoeffding(n, t))
            exhibit.below(f"{name}, t={t}: below Chebyshev", frequency, chebyshev(variance, n, t))
            upper = float((means.double() >= center + t - 1e-6).double().mean())
            exhibit.below(f"{name}, t={t}: P(mean >= mu + t) below Markov", upper, markov(center, center + t))
    exact = [float(stats.binom.cdf(round(50 - 100 * t), 100, 0.5) + stats.binom.sf(round(50 + 100 * t) - 1, 100, 0.5)) for t in distances]
    # 200,000 trials tell a frequency to 0.1 points.
    exhibit.expect("fair coin: frequencies drawn, against the binomial distribution", measured["fair coin"], exact, within=0.005)
    lines = {
        "Hoeffding": [hoeffding(n, t) for t in distances],
        "Chebyshev, fair coin": [chebyshev(0.25, n, t) for t in distances],
        **{name: [value or math.nan for value in values] for name, values in measured.items()},
    }
    note = f"{trials:,} means of {n} draws each. Chebyshev is closer near the mean, Hoeffding further out."
    exhibit.show(Lines("How often a mean deviates by t", lines, axes=["t"], note=note, x=distances, log=["y"]))
    at = distances.index(0.1)
    return f"n=100, t=0.1: drawn {measured['fair coin'][at]:.4f}, Chebyshev 0.25, Hoeffding {hoeffding(n, 0.1):.4f}"


def th_02(exhibit: Exhibit) -> str:
    """How many examples a class of 1000 hypotheses needs, and how often a learner with that many fails."""
    from scipy import stats

    size, error, delta = 1000, 0.1, 0.05
    enough, agnostic = pac_examples(size, error, delta), pac_examples(size, error, delta, realizable=False)
    exhibit.expect("realizable: (ln 1000 + ln 20) / 0.1, rounded up", enough, 100)
    exhibit.expect("agnostic: ln(2 * 1000 / 0.05) / (2 * 0.1^2), rounded up", agnostic, 530)
    # The worst case: every other hypothesis errs on its own tenth of the examples, and the learner picks the worst that fits.
    trials, sizes = 1000, (40, 60, 80, 100, 120)
    rng = exhibit.generator("hypotheses")
    rates, exact = [], []
    for m in sizes:
        wrong = torch.binomial(torch.full((trials, size - 1), float(m)), torch.full((trials, size - 1), error), generator=rng)
        rates.append(float((wrong == 0).any(1).double().mean()))
        exact.append(1 - (1 - (1 - error) ** m) ** (size - 1))
    exhibit.expect(
        "failure rates drawn, against 1 - (1 - 0.9^m)^999", rates, exact, within=0.05
    )  # three standard errors of 1000 trials at 1/2
    exhibit.below("realizable, m=100: failure rate", rates[sizes.index(100)], delta)
    exhibit.above("with 40 examples it fails more often", rates[0], delta)
    # A class people use: thresholds on a line.  A sample fits all thresholds between its nearest points on either side.
    x = torch.rand(trials, enough, generator=rng)
    edge = 0.5
    left = torch.where(x < edge, x, 0.0).amax(1)
    right = torch.where(x >= edge, x, 1.0).amin(1)
    misses = torch.maximum(edge - (left * size).ceil() / size, (right * size).floor() / size - edge)
    thresholds = float((misses > error).double().mean())
    exhibit.below("1000 thresholds, m=100: failure rate of the worst that fits", thresholds, delta)
    strayed = {}
    for m in (350, agnostic):
        wrong = torch.binomial(torch.full((trials, size), float(m)), torch.full((trials, size), 0.5), generator=rng)
        strayed[m] = float(((wrong - m / 2).abs() >= math.ceil(m * error)).any(1).double().mean())
    exhibit.below("agnostic, m=530: some training error off by 0.1 or more", strayed[agnostic], delta)
    tail = 2 * stats.binom.cdf(350 // 2 - 35, 350, 0.5)
    exhibit.expect("agnostic, m=350: the same, against the binomial distribution", strayed[350], 1 - (1 - tail) ** size, within=0.06)
    exhibit.refuses("an error of 0", lambda: pac_examples(size, 0.0, delta))
    bound = [min(1.0, size * math.exp(-error * m)) for m in sizes]
    lines = {"bound |H| exp(-eps m)": bound, "drawn": [rate or math.nan for rate in rates], "exact": exact}
    note = f"Fraction of {trials} samples that fit a hypothesis with an error of 0.1; 0.05 is allowed, reached at m = {enough}."
    exhibit.show(Lines("Failure of the worst learner that fits", lines, axes=["examples m"], note=note, x=sizes, log=["y"]))
    table = {
        "setting": ["realizable", "thresholds", "agnostic"],
        "examples": [enough, enough, agnostic],
        "failure rate": [rates[sizes.index(100)], thresholds, strayed[agnostic]],
    }
    exhibit.show(Table("Failure with enough examples", table, note="allowed: 0.05"))
    rate = rates[sizes.index(100)]
    return f"{enough} and {agnostic} examples; failure rates {rate:.4f} and {strayed[agnostic]:.4f} where {delta} is allowed"


def th_03(exhibit: Exhibit) -> str:
    """Lines shatter 3 points and never 4; the gap between training and test error goes as sqrt(d / m), far below its bound."""
    from scipy import stats

    triangle, row = np.array([[0.0, 0.0], [1.0, 0.0], [0.3, 0.8]]), np.array([[0.0, 0.0], [1.0, 1.0], [2.0, 2.0]])
    exhibit.expect("labelings of 3 points in a triangle", len(labelings(triangle)), 8)
    exhibit.expect("labelings of 3 points on a line", len(labelings(row)), 6)
    grid = np.array(list(product((0.0, 1.0, 2.0), repeat=2)))
    fours = [grid[list(four)] for four in combinations(range(9), 4)]
    exhibit.expect("sets of 4 points on a 3 x 3 grid", len(fours), 126)
    exhibit.expect("of these, sets that lines shatter", sum(map(shatters, fours)), 0)
    rng = exhibit.generator("points")
    random = [len(labelings(torch.rand(4, 2, generator=rng).numpy())) for _ in range(8)]
    exhibit.expect("labelings of 8 random sets of 4", random, [14] * 8)
    cloud = torch.rand(6, 2, generator=rng).double().numpy()
    counts = [len(labelings(cloud[:m])) for m in range(1, 7)]
    cover = [2 * sum(math.comb(m - 1, i) for i in range(3)) for m in range(1, 7)]
    exhibit.expect("labelings of 1 to 6 points in general position, by Cover's count", counts, cover)
    for m, number in enumerate(counts, 1):
        exhibit.below(f"m={m}: not above Sauer's bound for dimension 3", number, sauer(m, 3) + 0.5)
    exhibit.expect("Sauer's bound is 2^m up to the dimension", [sauer(m, 3) for m in range(1, 5)], [2, 4, 8, 15])

    # Labels are coin tosses, so every classifier is wrong on half of all new points: the whole training success is gap.
    # The bound says nothing until it is below 1/2, the gap of a learner that knows all labels by heart: hence 512 d examples.
    label = "VC bound at d=5, m=2560: sqrt((40 (1 + 10 ln 2) + 8 ln 80) / 2560)"
    exhibit.expect(label, vc_gap(5, 2560), 0.37098, within=1e-5)
    ratios = (4, 8, 16, 32, 64, 512)
    gaps: dict[int, list[float]] = {}
    for d in (5, 20, 60):
        gaps[d] = []
        for ratio in ratios:
            m, trials = d * ratio, max(2, 60_000 // (d * ratio))
            x = torch.randn(trials, m, d, generator=rng).double()
            y = torch.randint(0, 2, (trials, m, 1), generator=rng).double() * 2 - 1
            fitted = x @ torch.linalg.lstsq(x, y).solution
            gaps[d].append(float(((fitted * y) > 0).double().mean()) - 0.5)
        exact = [float(stats.norm.cdf(math.sqrt(1 / (ratio - 1)))) - 0.5 for ratio in ratios]
        within = 0.02 if d == 5 else 0.01  # few features are not quite Gaussian in sum; about 60,000 labels each
        exhibit.expect(f"d={d}: gap, against Phi(sqrt(r / (1 - r))) - 1/2 with r = d/m", gaps[d], exact, within=within)
        slope = float(np.polyfit(np.log(ratios), np.log(gaps[d]), 1)[0])
        # The formula itself has -0.51 here, and 60,000 labels estimate a slope to 0.02; 1 / m would be -1.
        exhibit.expect(f"d={d}: slope of log gap against log m", slope, -0.5, within=0.1)
        exhibit.below(f"d={d}, m={d * ratios[-1]}: gap below the VC bound", gaps[d][-1], vc_gap(d, d * ratios[-1]))
    lines = {f"measured, d = {d}": values for d, values in gaps.items()}
    lines |= {
        "sqrt(d / m)": [math.sqrt(1 / ratio) for ratio in ratios],
        "VC bound, d = 60": [vc_gap(60, 60 * ratio) for ratio in ratios],
    }
    exhibit.show(Lines("Gap between training and true error on random labels", lines, axes=["m / d"], x=ratios, log=["x", "y"]))
    table = {
        "points": list(range(1, 7)),
        "by a line": counts,
        "Sauer, d = 3": [sauer(m, 3) for m in range(1, 7)],
        "all": [2**m for m in range(1, 7)],
    }
    exhibit.show(Table("Labelings of points in the plane", table, note="4 points have 16 labelings, lines make 14: none is shattered"))
    most = max(random)
    return f"8 of 8 labelings of 3 points, at most {most} of 16 of 4; gap {gaps[20][0]:.3f} at m = 4d, {gaps[20][-1]:.3f} at 512d"


def th_04(exhibit: Exhibit) -> str:
    """Random ReLU features fitted with least norm: the test error peaks where features equal examples and falls again."""
    n, trials, sizes = 40, 41, (5, 10, 20, 30, 36, 40, 44, 52, 70, 100, 200, 400)
    penalties = (0.0, 0.01, 0.1)
    errors, train = np.zeros((len(penalties), trials, len(sizes))), np.zeros((trials, len(sizes)))
    for trial in range(trials):
        rng = exhibit.generator("descent", trial)

        def draw(*shape: int, rng: torch.Generator = rng) -> Tensor:
            return torch.randn(*shape, generator=rng).double()

        truth, weights, biases = draw(10) / math.sqrt(10), draw(sizes[-1], 10) / math.sqrt(10), draw(sizes[-1]) / 2
        x, fresh = draw(n, 10), draw(300, 10)
        y = x @ truth + 0.3 * draw(n)
        for column, p in enumerate(sizes):
            features, test = ((z @ weights[:p].mT + biases[:p]).relu() / math.sqrt(p) for z in (x, fresh))
            for index, penalty in enumerate(penalties):
                fit = _least_norm(features, y, penalty)
                errors[index, trial, column] = float((test @ fit - fresh @ truth).square().mean())
                if not penalty:
                    train[trial, column] = float((features @ fit - y).square().mean())
    middle = np.median(errors, 1)
    plain = dict(zip(sizes, middle[0].tolist(), strict=True))
    exhibit.exceeds("median test error: the peak at 40 features over 20", plain[40], plain[20])
    exhibit.exceeds("median test error: 20 features over 400", plain[20], plain[400])
    exhibit.expect("number of features at the peak", max(plain, key=plain.__getitem__), n)
    exhibit.below("training error with 44 features and more", train[:, sizes.index(44) :].max(), 1e-8)
    exhibit.above("training error with 20", np.median(train[:, sizes.index(20)]), 1e-3)
    for index, penalty in enumerate(penalties[1:], 1):
        ridge = dict(zip(sizes, middle[index].tolist(), strict=True))
        exhibit.below(f"ridge {penalty}: error at 40 features, of that without", ridge[40] / plain[40], 0.1)
    strong = middle[2]
    exhibit.below("ridge 0.1: the largest rise from one size to the next, of the error at 5", np.diff(strong).max() / strong[0], 0.05)
    names = ["least norm", *(f"ridge {penalty}" for penalty in penalties[1:])]
    lines = {name: middle[i] for i, name in enumerate(names)}
    note = f"Median of {trials} draws; {n} examples of a noisy linear function in 10 dimensions."
    exhibit.show(Lines("Double descent", lines, axes=["random ReLU features"], note=note, x=sizes, log=["x", "y"]))
    ridged = f"ridge 0.1 at 40: {strong[sizes.index(40)]:.2f}"
    return f"median test error {plain[20]:.2f} at 20 features, {plain[40]:.1f} at 40, {plain[400]:.2f} at 400; {ridged}"


def _least_norm(features: Tensor, y: Tensor, penalty: float) -> Tensor:
    """Weights of least norm among those of least squared error; with a penalty, ridge."""
    if penalty:
        gram = features @ features.mT + penalty * torch.eye(len(y)).double()
        return features.mT @ torch.linalg.solve(gram, y)
    return torch.linalg.lstsq(features, y.unsqueeze(1), driver="gelsd").solution[:, 0]


Learner = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]
"""(training inputs, their labels, new inputs) -> labels"""


def _nearest(x: np.ndarray, y: np.ndarray, new: np.ndarray) -> np.ndarray:
    return y[np.abs(new[:, None] - x[None]).sum(-1).argmin(1)]


def _line(x: np.ndarray, y: np.ndarray, new: np.ndarray) -> np.ndarray:
    fit = np.linalg.lstsq(np.c_[x, np.ones(len(x))], 2 * y - 1.0, rcond=None)[0]
    return (np.c_[new, np.ones(len(new))] @ fit > 1e-9).astype(int)


def _majority(x: np.ndarray, y: np.ndarray, new: np.ndarray) -> np.ndarray:
    return np.full(len(new), int(2 * y.sum() > len(y)))


def _tree(seed: int) -> Learner:
    from sklearn.tree import DecisionTreeClassifier

    return lambda x, y, new: DecisionTreeClassifier(random_state=seed).fit(x, y).predict(new)


LEARNERS: dict[str, Learner] = {
    "nearest neighbor": _nearest,
    "opposite of the nearest": lambda x, y, new: 1 - _nearest(x, y, new),
    "straight line": _line,
    "majority": _majority,
}


def th_05(exhibit: Exhibit) -> str:
    """All 256 Boolean targets on 3 bits: off the 4 training points every learner is right half of the time, exactly."""
    cube = np.array(list(product((0, 1), repeat=3)))
    targets = np.array(list(product((0, 1), repeat=8)))
    seen = np.array([0, 3, 5, 6])
    rest = np.setdiff1d(np.arange(8), seen)
    learners = {**LEARNERS, "decision tree": _tree(exhibit.seed)}
    right = {name: _right(learner, cube, targets, seen, rest) for name, learner in learners.items()}
    for name, hits in right.items():
        exhibit.expect(f"{name}: right answers of 256 * 4", int(hits.sum()), 512)
        exhibit.expect(f"{name}: mean accuracy off the training points", hits.mean() / 4, 0.5)
        exhibit.expect(f"{name}: targets with 0 to 4 right answers, as coins would have it", np.bincount(hits), [16, 64, 96, 64, 16])
    for name in ("nearest neighbor", "straight line", "majority"):
        every = [
            _right(LEARNERS[name], cube, targets, np.array(four), np.setdiff1d(np.arange(8), four)) for four in combinations(range(8), 4)
        ]
        exhibit.expect(f"{name}: the same for each of 70 choices of training points", [int(hits.sum()) for hits in every], [512] * 70)
    exhibit.above(
        "targets on which nearest neighbor and straight line differ", int((right["nearest neighbor"] != right["straight line"]).sum()), 50
    )

    linear = set(labelings(cube.astype(float)))
    among = np.array([tuple(target) in linear for target in targets])
    exhibit.expect("targets that a plane can make", int(among.sum()), 104)
    accuracy = {name: float(hits[among].mean()) / 4 for name, hits in right.items()}
    exhibit.above("straight line, on those targets alone", accuracy["straight line"], 0.55)
    exhibit.expect(
        "a learner and its opposite, on those targets",
        accuracy["nearest neighbor"] + accuracy["opposite of the nearest"],
        1.0,
        within=1e-12,
    )
    shown = {"any learner, all targets": np.bincount(right["majority"], minlength=5)}
    shown |= {f"{name}, linear": np.bincount(right[name][among], minlength=5) for name in ("straight line", "opposite of the nearest")}
    note = "'linear': only the 104 targets that a plane can make. What is known about targets is what makes a learner good."
    exhibit.show(
        Bars("Targets by right answers off the training points", shown, axes=["right"], note=note, labels=[f"{k} of 4" for k in range(5)])
    )
    table = {
        "learner": list(right),
        "all 256 targets": [float(h.mean()) / 4 for h in right.values()],
        "the 104 a plane can make": list(accuracy.values()),
    }
    exhibit.show(Table("Mean accuracy off the training points", table))
    best = accuracy["straight line"]
    return f"0.5 exactly for {len(right)} learners over 256 targets; over the 104 linear ones a straight line has {best:.3f}"


def _right(learner: Learner, cube: np.ndarray, targets: np.ndarray, seen: np.ndarray, rest: np.ndarray) -> np.ndarray:
    """Right answers off the training points for each target; a learner sees the training labels alone, so 16 fits are all there are."""
    answers = {labels: learner(cube[seen], np.array(labels), cube[rest]) for labels in product((0, 1), repeat=len(seen))}
    return np.array([int((answers[tuple(target[seen])] == target[rest]).sum()) for target in targets])


def _outputs(x: Tensor, hidden: Sequence[int], activation: str, weight: float, bias: float, nets: int, rng: torch.Generator) -> Tensor:
    """One output of many random nets for inputs x (N, d): (nets, N)."""
    s = make_activation(activation)
    h = x.float().expand(nets, *x.shape)
    for width in (*hidden, 1):
        fan_in = h.shape[-1]
        w = torch.randn(nets, fan_in, width, generator=rng) * math.sqrt(weight / fan_in)
        z = h @ w + math.sqrt(bias) * torch.randn(nets, 1, width, generator=rng)
        h = s(z)
    return z.squeeze(-1).double()


def th_06(exhibit: Exhibit) -> str:
    """Outputs of random nets become Gaussian as 1/width, with the covariance of the kernel recursion."""
    rng = exhibit.generator("wide")
    x = torch.tensor([[1.0, 0.5, -0.5], [0.5, 1.0, 1.0], [-1.0, 0.3, 0.2]])
    widths, excess = (2, 4, 8, 16, 32), []
    for width in widths:
        z = torch.cat([_outputs(x[:1], (width,), "relu", 2.0, 0.0, 100_000, rng) for _ in range(4)])[:, 0]
        excess.append(float((z**4).mean() / (z**2).mean() ** 2) - 3)
    # Given the hidden layer the output is Gaussian with variance S, so its excess is 3 Var S / (E S)^2 = 15 / width for ReLU.
    scaled = [value * width / 15 for value, width in zip(excess, widths, strict=True)]
    exhibit.expect("excess kurtosis times width / 15", scaled, [1.0] * len(widths), within=0.2)  # fourth powers of 400,000 heavy tails
    slope = float(np.polyfit(np.log(widths), np.log(excess), 1)[0])
    exhibit.expect("slope of log excess kurtosis against log width", slope, -1.0, within=0.1)

    gaps, drawn = {}, {}
    for name, weight, bias in (("relu", 2.0, 0.1), ("tanh", 1.5, 0.2)):
        exact = wide.kernel(x, 2, name, weight, bias)[-1]
        z = torch.cat([_outputs(x, (64, 64), name, weight, bias, 2000, rng) for _ in range(20)])
        sample_covariance = z.mT @ z / len(z)
        # 40,000 nets tell a variance to 0.8 %; width 64 is worth another 1 to 2 %.
        gaps[name] = exhibit.expect(
            f"{name}: covariance of sampled nets, against the recursion",
            sample_covariance / exact.diagonal().mean(),
            exact / exact.diagonal().mean(),
            within=0.05,
        )
        drawn[name] = (sample_covariance, exact)
    far = wide.kernel(torch.eye(2), 1, "relu", 2.0, 0.0)
    exhibit.expect("arc-cosine kernel of inputs at right angles: K = (C_W/d) / pi", far[1, 0, 1], 1 / math.pi, within=1e-12)
    angles = torch.linspace(0, math.pi, 25).double()
    circle = torch.stack([angles.cos(), angles.sin()], 1)
    layers = wide.kernel(circle, 3, "relu")
    sampled = torch.cat([_outputs(circle, (128,), "relu", 2.0, 0.0, 5000, rng) for _ in range(4)])
    lines = {f"{depth} hidden": layers[depth, 0] / layers[depth, 0, 0] for depth in range(1, 4)}
    lines["1 hidden, 20,000 nets"] = (sampled[:, :1] * sampled).mean(0) / sampled[:, 0].square().mean()
    exhibit.expect("correlation of outputs against the angle of inputs", lines["1 hidden, 20,000 nets"], lines["1 hidden"], within=0.04)
    shown = {"excess kurtosis": excess, "15 / width": [15 / width for width in widths]}
    note = "400,000 random nets of one hidden layer at each width"
    exhibit.show(Lines("Random nets become Gaussian", shown, axes=["width"], note=note, x=widths, log=["x", "y"]))
    exhibit.show(Lines("The arc-cosine kernel of ReLU nets", lines, axes=["angle between inputs"], x=angles))
    pairs = [(i, j) for i in range(3) for j in range(i, 3)]
    table: dict[str, list] = {"inputs": [f"{i + 1}, {j + 1}" for i, j in pairs]}
    for name, both in drawn.items():
        for source, covariance in zip(("sampled", "recursion"), both, strict=True):
            table[f"{name}, {source}"] = [float(covariance[i, j]) for i, j in pairs]
    exhibit.show(Table("Covariance of outputs, two hidden layers of 64", table))
    near = f"covariances within {max(gaps.values()):.3f} of the recursion"
    return f"excess kurtosis ~ width^{slope:.2f}, times width {np.mean(scaled) * 15:.1f} (15); {near}"


def _variances(activation: str, weight: float, depth: int, width: int, nets: int, rng: torch.Generator) -> Tensor:
    """Mean square before each activation of random nets without biases, from inputs of mean square 1 / weight: (nets, depth).

    Given one layer, the values of the next are independent Gaussians with one variance, so they can be drawn without the
    weights; the law is that of full matrices.
    """
    s = make_activation(activation)
    k = torch.ones(nets)
    layers = []
    for _ in range(depth):
        z = k.sqrt().unsqueeze(1) * torch.randn(nets, width, generator=rng)
        layers.append(z.square().mean(1).double())
        k = weight * s(z).square().mean(1)
    return torch.stack(layers, 1)


def th_07(exhibit: Exhibit) -> str:
    """Below, at and above the critical C_W: the recursion, and nets of 50 layers that follow it."""
    depth, rng = 50, exhibit.generator("critical")
    settings = [("relu", 1.8), ("relu", 2.0), ("relu", 2.2), ("tanh", 0.8), ("tanh", 1.0), ("tanh", 1.5)]
    lines: dict[str, list[float]] = {}
    worst = 0.0
    for name, weight in settings:
        exact = wide.kernel(torch.tensor([[weight**-0.5]], dtype=torch.float64), depth - 1, name, weight)[:, 0, 0]
        variance = _variances(name, weight, depth, 1000, 300, rng).mean(0)
        # 300 ReLU nets of width 1000 and depth 50 tell the mean to 3 %, tanh nets better.
        worst = max(
            worst,
            exhibit.expect(f"{name}, C_W={weight}: K of sampled nets over the recursion", variance / exact, torch.ones(depth), within=0.12),
        )
        lines[f"{name} {weight}"] = exact.tolist()
        real = _full_nets(exhibit.seed, name, weight, depth, 100, 100).double().square().mean(2)
        # 100 nets of 49 steps tell the mean to 0.3 %: a step has a variance of 5 / width for ReLU, less for tanh.
        steps = real[:, 1:] / (weight * wide.mean_square(real[:, :-1], name))
        exhibit.expect(f"{name}, C_W={weight}: a layer of full matrices over the recursion from the one before", steps.mean(), 1.0, 0.012)
    relu = {weight: lines[f"relu {weight}"] for weight in (1.8, 2.0, 2.2)}
    for weight, values in relu.items():
        exhibit.expect(
            f"relu, C_W={weight}: K after 49 layers is (C_W/2)^49", values[-1], (weight / 2) ** 49, within=1e-9 * (weight / 2) ** 49
        )
    exhibit.expect("relu: gain at C_W=2 is 1 at every K", wide.gain(torch.tensor([0.1, 1.0, 30.0]), "relu", 2.0), [1.0] * 3, within=1e-9)

    k, slow = torch.tensor(1.0).double(), []
    for _ in range(2000):
        k = wide.mean_square(k, "tanh")
        slow.append(float(k))
    layer = np.arange(1, 2001)
    power = float(np.polyfit(np.log(layer[500:]), np.log(slow[500:]), 1)[0])
    exhibit.expect("tanh, C_W=1: K falls as a power of the layer", power, -1.0, within=0.01)
    exhibit.expect("tanh, C_W=1: 2 l K at layer 2000", 2 * 2000 * slow[-1], 1.0, within=0.01)  # K' = K - 2 K^2 + ..., so K ~ 1 / 2l
    below = np.diff(np.log(lines["tanh 0.8"]))[-1]
    exhibit.expect("tanh, C_W=0.8: K falls by the factor 0.8 a layer", math.exp(below), 0.8, within=1e-4)
    rest = float(wide.fixed_point("tanh", 1.5, 0.0))
    exhibit.expect("tanh, C_W=1.5: K settles at its fixed point", lines["tanh 1.5"][-1], rest, within=1e-6)
    exhibit.above("tanh, C_W=1.5: that point is not 0", rest, 0.1)
    exhibit.above("tanh, C_W=1.5: gain there, beyond the edge of chaos", wide.gain(torch.tensor(rest), "tanh", 1.5), 1.0)
    exhibit.expect("tanh: gain at K=0 is C_W", wide.gain(torch.tensor(0.0), "tanh", 1.0), 1.0, within=1e-9)

    c_w, c_b = torch.linspace(0.5, 3.0, 51).double(), torch.linspace(0.0, 0.3, 31).double()
    fixed_points = wide.fixed_point("tanh", c_w.unsqueeze(0), c_b.unsqueeze(1), max_layers=300, tolerance=1e-6)
    gains = torch.stack([wide.gain(fixed_points[:, i], "tanh", float(weight)) for i, weight in enumerate(c_w)], 1)
    note = "Gain of a layer at its fixed point, less 1: on the line 0 a deep net is critical. It starts at C_W = 1, C_b = 0."
    exhibit.show(
        Plane(
            "Order and chaos of tanh nets",
            {"gain - 1": gains - 1},
            axes=["C_W", "C_b"],
            note=note,
            x=c_w,
            y=c_b,
            levels=[-0.6, -0.4, -0.2, 0.0, 0.1, 0.2],
            points={"C_W = 1": [[1.0, 0.0]]},
        )
    )
    exhibit.show(
        Lines("Variance through 50 layers", lines, axes=["layer"], note="recursion; names give C_W", x=list(range(1, depth + 1)), log=["y"])
    )
    return (
        f"sampled nets within {worst:.1%} of the recursion over 50 layers; relu at 2: K {relu[2.0][-1]:.3f}; tanh at 1: K ~ l^{power:.2f}"
    )


def _full_nets(seed: int, activation: str, weight: float, depth: int, width: int, nets: int) -> Tensor:
    """Values before each activation in nets of the library with weights N(0, C_W / width): (nets, depth, width)."""
    model, fill = MLP((width,) * (depth + 1), activation), initialize("normal", std=math.sqrt(weight / width))
    preactivations = []
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(key(seed, "nets", activation, str(weight)))
        for _ in range(nets):
            fill(model)
            h = torch.randn(1, width)
            h = h / h.square().mean().sqrt() / math.sqrt(weight)
            for part in model.layers:
                h = part(h)
                if isinstance(part, nn.Linear):
                    preactivations.append(h)
    return torch.cat(preactivations).view(nets, depth, width)


def th_08(exhibit: Exhibit) -> str:
    """Neurons of one layer are not independent at finite width, by depth/width; and what gradient flow conserves."""
    rng = exhibit.generator("four points")
    depths, widths = (1, 2, 4, 8), (32, 64, 128)
    four: dict[int, list[float]] = {}
    for width in widths:
        z2 = torch.cat([_pairs(width, max(depths), 12_000_000 // (width * 10), rng) for _ in range(3)])
        four[width] = _connected_moment(z2, depths)
        # Each layer multiplies the variance by an independent factor with mean 1 and variance 5 / width.
        exact = [(1 + 5 / width) ** depth - 1 for depth in depths]
        relative = [value / target for value, target in zip(four[width], exact, strict=True)]
        exhibit.expect(f"width {width}: connected 4-point over (1 + 5/n)^depth - 1", relative, [1.0] * len(depths), within=0.15)
    real = _connected_moment(_square_pairs(_full_nets(exhibit.seed, "relu", 2.0, 5, 32, 3000)), (1, 2, 4))
    relative = [value / ((1 + 5 / 32) ** depth - 1) for value, depth in zip(real, (1, 2, 4), strict=True)]
    exhibit.expect("3000 nets with full matrices of width 32: the same over (1 + 5/n)^depth - 1", relative, [1.0] * 3, within=0.2)
    ratio = four[32][0] / four[128][0]
    exhibit.expect("4 times the width, a quarter of it", ratio, 4.0, within=0.5)
    exhibit.expect("twice the depth, twice as much (width 128)", four[128][1] / four[128][0], 2.0, within=0.3)

    drift = {rate: _check_balance(exhibit, "relu", rate) for rate in (1e-2, 1e-3)}
    exhibit.below("relu, rate 0.001: drift of |row of W1|^2 + b1^2 - |column of W2|^2", drift[1e-3][0], 2e-3)
    exhibit.above("while the weights themselves moved: furthest, as a power of 10", math.log10(drift[1e-3][1]), -0.5)
    exhibit.expect("a tenth of the rate, a tenth of the drift", drift[1e-2][0] / drift[1e-3][0], 10.0, within=1.0)
    exhibit.above("the loss fell by a third or more: logarithm to base 2 of the factor", math.log2(drift[1e-3][2]), math.log2(1.5))
    smooth, without = _check_balance(exhibit, "tanh", 1e-3), _check_balance(exhibit, "relu", 1e-3, biases=False)
    for name, (other, *_) in {"tanh": smooth, "relu without the term b1^2": without}.items():
        exhibit.above(f"{name}: not conserved; drift over that of relu, as a power of 10", math.log10(other / drift[1e-3][0]), 1.5)
    lines = {f"width {width}": values for width, values in four.items()}
    lines |= {f"5 depth / {width}": [5 * depth / width for depth in depths] for width in (32, 128)}
    exhibit.show(
        Lines(
            "Connected 4-point function of ReLU nets",
            lines,
            axes=["depth"],
            note="C_W = 2, two neurons of one layer",
            x=depths,
            log=["x", "y"],
        )
    )
    traces = {"relu": drift[1e-3][3], "tanh": smooth[3], "relu without b1^2": without[3]}
    note = "Largest change over the hidden units of |row of W1|^2 + b1^2 - |column of W2|^2, at rate 0.001"
    exhibit.show(Lines("What gradient descent conserves", traces, axes=["step"], note=note, x=[20 * i for i in range(len(traces["relu"]))]))
    at = ", ".join(f"{four[width][2]:.2f}" for width in widths)
    return f"4-point {at} at depth 4 and width 32, 64, 128; drift {drift[1e-3][0]:.1e} at rate 0.001"


def _pairs(width: int, depth: int, nets: int, rng: torch.Generator) -> Tensor:
    """`_square_pairs` of layers 0 ... depth of ReLU nets at C_W = 2, drawn without the weights: (nets, depth + 1, 2)."""
    k, pairs = torch.ones(nets, 1), []
    for _ in range(depth + 1):
        z = k.sqrt() * torch.randn(nets, width, generator=rng)
        pairs.append(_square_pairs(z))
        k = 2 * z.relu().square().mean(1, keepdim=True)
    return torch.stack(pairs, 1)


def _square_pairs(z: Tensor) -> Tensor:
    """Mean z_i^2 and mean z_i^2 z_j^2 over i != j of each layer (..., width): (..., 2)."""
    square, width = z.square().double(), z.shape[-1]
    pairs = (square.sum(-1).square() - square.square().sum(-1)) / (width * (width - 1))
    return torch.stack([square.mean(-1), pairs], -1)


def _connected_moment(z2: Tensor, depths: Sequence[int]) -> list[float]:
    """E z_i^2 z_j^2 / (E z_i^2)^2 - 1 over nets, from their `_square_pairs` (nets, layers, 2)."""
    two, four = z2.mean(0).unbind(-1)
    return [float(four[depth] / two[depth] ** 2) - 1 for depth in depths]


def _check_balance(exhibit: Exhibit, activation: str, rate: float, biases: bool = True) -> tuple[float, float, float, list[float]]:
    """Gradient descent over a fixed time: largest drift of the balance, way of the weights, factor of the loss, drift by step."""
    torch.manual_seed(exhibit.seed)
    model = MLP((3, 12, 1), activation).double()
    x = torch.randn(50, 3, generator=exhibit.generator("flow")).double()
    batch = Batch(x=x, y=x[:, 0] * 2 - x[:, 1].abs() * 3 + 1)
    first, last = model.layers.get_submodule("dense1"), model.layers.get_submodule("dense2")
    assert isinstance(first, nn.Linear) and isinstance(last, nn.Linear)

    def balance() -> Tensor:
        inner = first.weight.square().sum(1) + (first.bias.square() if biases else 0.0)
        return (inner - last.weight[0].square()).detach().clone()

    flat = Flat(model)
    start, origin = balance(), flat.values.clone()
    losses, drifts = [], []
    steps = round(2.0 / rate)
    for step in range(steps + 1):
        losses.append(mean.full_batch(model, Gaussian(), flat, batch))
        if step % 20 == 0:
            drifts.append(float((balance() - start).abs().max()))
        flat.values.sub_(flat.grad, alpha=rate)
    return drifts[-1], float((flat.values - origin).abs().max()), losses[0] / losses[-1], drifts
