"""Chapter 2, perceptrons: what one threshold unit can learn, what it cannot, and what two layers of them can."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..core.reading import Bars, Plane, Reading, Scatter, Table
from ..core.seeds import generator
from ..nn.threshold import ThresholdLayer, boolean, corners
from .exhibit import Exhibit

AND, OR, XOR = [0, 0, 0, 1], [0, 1, 1, 1], [0, 1, 1, 0]
"""truth tables in the order 00, 01, 10, 11"""


def per_01(exhibit: Exhibit) -> str:
    """Gates from hand-set weights, both codes of the output, and all three values on the boundary."""
    gates = {"AND": ([[1.0, 1.0]], [-1.5], AND), "OR": ([[1.0, 1.0]], [-0.5], OR), "NOT x1": ([[-1.0, 0.0]], [0.5], [1, 1, 0, 0])}
    units = {name: ThresholdLayer(weight, bias) for name, (weight, bias, _) in gates.items()}
    for name, (_, _, truth) in gates.items():
        exhibit.expect(f"{name} of 00, 01, 10, 11", units[name](corners(2))[:, 0], truth)

    weight, bias = torch.randn(3, 5, generator=exhibit.generator("weights")).double(), torch.tensor([0.3, -0.2, 0.0]).double()
    x = torch.randn(200, 5, generator=exhibit.generator("inputs")).double()
    outside = np.sign(x.numpy() @ weight.numpy().T + bias.numpy())
    exhibit.expect("sign(w.x + b) on 200 inputs of 3 units", ThresholdLayer(weight, bias, labels="pm1")(x), outside)
    exhibit.expect("2 f - 1 on the same", 2 * ThresholdLayer(weight, bias)(x) - 1, outside)

    ramp = torch.arange(-16, 17).double()[:, None] / 8
    first = {at_zero: ramp[ThresholdLayer([[2.0]], [-1.5], at_zero)(ramp)[:, 0] == 1][0].item() for at_zero in (1, 0)}
    exhibit.expect("2 x passes -b = 1.5 first at x, reached or exceeded", list(first.values()), [0.75, 0.875])

    edge = torch.tensor([[0.5, 1.0]])  # on the boundary of AND, exactly
    at_zero = [ThresholdLayer([[1.0, 1.0]], [-1.5], value)(edge).item() for value in (1, 0, 0.5)]
    signs = [ThresholdLayer([[1.0, 1.0]], [-1.5], value, labels="pm1")(edge).item() for value in (1, 0, 0.5)]
    exhibit.expect("output on the boundary with at_zero 1, 0, 0.5", at_zero, [1, 0, 0.5])
    exhibit.expect("the same in the code -1, +1", signs, [1, -1, 0])
    exhibit.refuses("at_zero=0.7", lambda: ThresholdLayer([[1.0]], [0.0], at_zero=0.7))
    exhibit.show(_regions("Gates of one threshold unit", units, {"inputs": corners(2)}))
    return f"AND, OR and NOT right on all inputs; on the boundary {', '.join(f'{value:g}' for value in at_zero)} by option"


def per_02(exhibit: Exhibit) -> str:
    """AND learned from labels -1 and +1, update by update."""
    from sklearn.linear_model import Perceptron as Outside

    from ..estimators.perceptron import Perceptron

    x, signs = corners(2).numpy(), 2 * np.array(AND) - 1
    fitted = Perceptron(keep_updates=True).fit(x, signs)
    exhibit.expect("converged", fitted.converged_, True)
    exhibit.expect("errors afterwards", int((fitted.predict(x) != signs).sum()), 0)
    exhibit.expect("mistakes in the last epoch", fitted.mistakes_[-1], 0)
    exhibit.expect("corrections in the history", len(fitted.updates_), sum(fitted.mistakes_))
    # By hand: 00 ties at 0 and takes 1 from the bias; 01 and 10 are right then; 11 scores -1 and adds (1, 1, 1).
    worked = [(1, 0, [0, 0, -1]), (1, 3, [1, 1, 0])]
    for number, (correction, (epoch, row, weights)) in enumerate(zip(fitted.updates_, worked, strict=False), 1):
        exhibit.expect(f"correction {number}: epoch and row", [correction.epoch, correction.row], [epoch, row])
        exhibit.expect(f"correction {number}: weights and bias", correction.weights, weights)
    outside = Outside(shuffle=False, tol=None, max_iter=fitted.n_iter_).fit(x, signs)
    exhibit.expect("weights of scikit-learn's perceptron", fitted.coef_, outside.coef_)
    exhibit.expect("its bias", fitted.intercept_, outside.intercept_)
    others = {"0 and 1": np.array(AND), "words": np.array(["no", "no", "no", "yes"])}
    for name, labels in others.items():
        exhibit.expect(f"weights from labels {name}", Perceptron().fit(x, labels).coef_, fitted.coef_.copy())
    swapped = Perceptron(keep_updates=True).fit(x[::-1], signs[::-1])
    first = [(update.epoch, update.row) for update in swapped.updates_[:1]]
    exhibit.expect("a tie is a mistake: the first row met corrects w = 0, whichever it is", first, [(1, 0)])

    history = np.array([update.weights for update in fitted.updates_])
    steps = {"epoch": [update.epoch for update in fitted.updates_], "input": [f"{x[update.row].astype(int)}" for update in fitted.updates_]}
    exhibit.show(Table("Corrections", {**steps, "w1": history[:, 0], "w2": history[:, 1], "b": history[:, 2]}))
    some = {f"after {k} corrections": _unit(history[k - 1]) for k in (2, 5, len(history))}
    exhibit.show(_regions("AND: where the perceptron answers +1", some, _corner_points(AND)))
    learned = f"w = {fitted.coef_[0]}, b = {fitted.intercept_[0]:g}"
    return f"0 errors after {sum(fitted.mistakes_)} corrections in {fitted.n_iter_} epochs; {learned}"


def per_03(exhibit: Exhibit) -> str:
    """100 separable sets of known margin: corrections never exceed (R / margin)^2."""
    from ..estimators.perceptron import Perceptron

    corrections, bounds, errors = [], [], 0
    for seed in range(100 * exhibit.seed, 100 * (exhibit.seed + 1)):
        rows, signs, radius, margin = _separable(seed)
        bound = (radius / margin) ** 2
        fitted = Perceptron(max_epochs=math.ceil(bound) + 1, fit_intercept=False).fit(rows, signs)
        errors += int((fitted.predict(rows) != signs).sum()) + (not fitted.converged_)
        corrections.append(sum(fitted.mistakes_))
        bounds.append(bound)
    used = np.array(corrections) / np.array(bounds)
    exhibit.expect("sets not learned without an error", errors, 0)
    exhibit.exceeds("corrections never exceed (R / margin)^2: room in the tightest set", 1.0, used.max())
    exhibit.above("sets that needed more than one correction", sum(count > 1 for count in corrections), 90)
    # Two rows (1, 0) and (0, -1) of sign +, - meet the bound as closely as whole numbers allow: R = 1, margin 1/sqrt(2).
    tight = Perceptron(fit_intercept=False).fit([[1.0, 0.0], [0.0, -1.0]][::-1], [-1, 1])
    exhibit.expect("corrections on two orthogonal rows, whose bound is 2", sum(tight.mistakes_), 2)
    note = f"The fullest use of the bound is {used.max():.0%}, the mean {used.mean():.1%}."
    points = {"(R / margin)^2": bounds, "corrections": corrections}
    exhibit.show(Scatter("Corrections and their bound", points, axes=list(points), note=note, log=["x", "y"], diagonal=True))
    return f"100 of 100 within the bound; at most {used.max():.0%} of it used, {max(corrections)} corrections in the hardest"


def per_04(exhibit: Exhibit) -> str:
    """XOR: a linear program proves that no line separates it, and the perceptron rule cycles."""
    from sklearn.exceptions import ConvergenceWarning

    from ..estimators.perceptron import Perceptron, separability

    x, truth = corners(2).numpy(), np.array(XOR)
    report = separability(x, truth)
    exhibit.expect("XOR separable", bool(report.separable), False)
    means = [2 * report.share[truth == label] @ x[truth == label] for label in (0, 1)]  # either class has half of the weight
    exhibit.expect("mixtures of both classes that are one point", means, [[0.5, 0.5], [0.5, 0.5]], within=1e-9)
    tables = [[number >> bit & 1 for bit in range(4)] for number in range(1, 15)]
    separable = [table for table in tables if separability(x, table).separable]
    exhibit.expect("separable functions of two inputs, the two constants aside", len(separable), 12)
    exhibit.expect("margin of AND", separability(x, AND).margin, math.sqrt(2) / 4, within=1e-9)

    grid = torch.cartesian_prod(*[torch.arange(-2, 3).double()] * 2, torch.arange(-5, 6).double() / 2)
    answers = ThresholdLayer(grid[:, :2], grid[:, 2])(corners(2))
    scores = (answers == torch.tensor(XOR)[:, None]).double().mean(0)
    exhibit.expect("different functions among 275 threshold units, of 14 that exist", len(torch.unique(answers, dim=1).T), 14)
    exhibit.expect("best score of a single perceptron", scores.max(), 0.75)

    with warnings.catch_warnings(record=True) as records:
        warnings.simplefilter("always")
        fitted = Perceptron(max_epochs=30, keep_updates=True).fit(x, truth)
    exhibit.expect("converged", fitted.converged_, False)
    exhibit.expect("epochs", fitted.n_iter_, 30)
    exhibit.expect(
        "warnings that name max_epochs", sum("max_epochs=30" in str(w.message) and w.category is ConvergenceWarning for w in records), 1
    )
    ends = np.array([fitted.updates_[sum(fitted.mistakes_[: epoch + 1]) - 1].weights for epoch in range(30)])
    exhibit.expect("weights after each epoch, the same again and again", ends, np.zeros((30, 3)))
    panels = {f"after correction {k + 1}": _unit(fitted.updates_[k].weights) for k in range(4)}
    exhibit.show(_regions("XOR: one round of corrections, then it begins anew", panels, _corner_points(XOR)))
    met = f"both classes meet at {means[0].round(3).tolist()}"
    return f"not separable, {met}; best score {scores.max():g}; 30 epochs, converged {fitted.converged_}"


def per_05(exhibit: Exhibit) -> str:
    """XOR from three threshold units with weights set by hand."""
    hidden, output = ThresholdLayer([[1.0, 1.0], [1.0, 1.0]], [-1.5, -0.5]), ThresholdLayer([[-1.0, 1.0]], [-0.5])
    net = nn.Sequential(hidden, output)
    x = corners(2)
    before = hidden.before(x)
    exhibit.expect("h1 = AND of the four inputs", hidden(x)[:, 0], AND)
    exhibit.expect("h2 = OR", hidden(x)[:, 1], OR)
    exhibit.expect("y = (not h1) and h2", net(x)[:, 0], [int(a != b) for a, b in x.tolist()])
    exhibit.expect("sum of h1 at (1, 1)", before[3, 0], 0.5)
    exhibit.expect("sums of both units at all inputs, by hand", before, [[-1.5, -0.5], [-0.5, 0.5], [-0.5, 0.5], [0.5, 1.5]])
    columns = {"x1": x[:, 0], "x2": x[:, 1], "sum of h1": before[:, 0], "h1": hidden(x)[:, 0], "h2": hidden(x)[:, 1], "y": net(x)[:, 0]}
    exhibit.show(Table("XOR, step by step", columns))
    panels: dict[str, Any] = {"h1": lambda x: hidden(x)[:, :1], "h2": lambda x: hidden(x)[:, 1:], "y": net}
    exhibit.show(_regions("Two lines make a strip", panels, _corner_points(XOR)))
    return f"4 of 4 rows right; the sum of h1 at (1, 1) is {before[3, 0].item():g}"


def per_06(exhibit: Exhibit) -> str:
    """Every Boolean function of one, two and three inputs, built from threshold units."""
    wrong: dict[int, int] = {}
    sizes: list[int] = []
    for inputs, functions in ((1, 4), (2, 16), (3, 256)):
        x = corners(inputs)
        tables = [[number >> bit & 1 for bit in range(2**inputs)] for number in range(functions)]
        nets = [boolean(table) for table in tables]
        wrong[inputs] = sum(net(x)[:, 0].tolist() != table for net, table in zip(nets, tables, strict=True))
        exhibit.expect(f"functions of {inputs} inputs that come out wrong, of {functions}", wrong[inputs], 0)
        sizes = [len(net[0].bias) for net in nets]  # type: ignore[arg-type]
    exhibit.expect("functions of three inputs with 0, 1, ... 8 hidden units", np.bincount(sizes), [math.comb(8, k) for k in range(9)])
    parity = boolean([bin(row).count("1") % 2 for row in range(32)])
    exhibit.expect("parity of five inputs, at all of them", parity(corners(5))[:, 0], corners(5).sum(1) % 2)
    exhibit.refuses("a table of three entries", lambda: boolean([0, 1, 1]))
    counts = {"functions": np.bincount(sizes)}
    note = "One hidden unit for each true row: of 8 rows, k are true in 8 over k functions."
    exhibit.show(Bars("All 256 functions of three inputs", counts, axes=["hidden units"], note=note, labels=list(range(9))))
    return f"4 + 16 + 256 functions, {sum(wrong.values())} wrong; at most {max(sizes)} hidden units"


def per_07(exhibit: Exhibit) -> str:
    """Three classes by the multi-class rule; with two it is the binary perceptron, doubled."""
    from ..estimators.perceptron import MulticlassPerceptron, Perceptron, separability

    centers = torch.tensor([[0.0, 2.4], [-2.4, -1.6], [2.4, -1.6]])
    labels = torch.arange(90) % 3
    x = (centers[labels] + 0.5 * torch.randn(90, 2, generator=generator(exhibit.seed + 5, "blobs"))).double().numpy()
    y = labels.numpy()
    report = separability(x, y)
    exhibit.expect("the three blobs are separable", bool(report.separable), True)
    fitted = MulticlassPerceptron(keep_updates=True).fit(x, y)
    exhibit.expect("converged", fitted.converged_, True)
    exhibit.expect("errors", int((fitted.predict(x) != y).sum()), 0)
    exhibit.expect("shape of the weights, classes x features", fitted.coef_.shape, (3, 2))
    slow, corrections = _multiclass_by_hand(x, y)
    exhibit.expect("weights of a plain loop over the same rows", np.c_[fitted.coef_, fitted.intercept_], slow, within=1e-12)
    exhibit.expect("corrections of that loop", len(fitted.updates_), corrections)

    draw = np.random.default_rng(exhibit.seed)
    rows = draw.integers(-4, 5, size=(60, 3)).astype(float)  # whole numbers: sums are exact, ties are ties
    rows = rows[rows @ [2, -1, 1] != 1]
    side = (rows @ [2, -1, 1] > 1).astype(int)
    two, binary = MulticlassPerceptron(max_epochs=500).fit(rows, side), Perceptron(max_epochs=500).fit(rows, side)
    exhibit.expect("two classes: W_1 - W_0", two.coef_[1] - two.coef_[0], 2 * binary.coef_[0])
    exhibit.expect("two classes: b_1 - b_0", two.intercept_[1] - two.intercept_[0], 2 * binary.intercept_[0])
    exhibit.expect("two classes: mistakes in each epoch", two.mistakes_, list(binary.mistakes_))

    net = lambda points: torch.as_tensor(fitted.predict(points.numpy()))[:, None]  # noqa: E731
    points = {f"class {label}": x[y == label] for label in range(3)}
    exhibit.show(_regions("Three classes, three planes", {"class": net}, points, (-6.0, 6.0), ["class 0", "class 1", "class 2"]))
    return f"3 blobs learned with {len(fitted.updates_)} corrections; with 2 classes W_1 - W_0 = {two.coef_[1] - two.coef_[0]} = 2 w"


def per_08(exhibit: Exhibit) -> str:
    """A random perceptron over a grid of 120 x 120 points of [-1, 1]^2, drawn flat and in space."""
    from ..report.draw import draw

    side = torch.linspace(-1, 1, 120).double()
    points = torch.stack(torch.meshgrid(side, side, indexing="ij"), -1).reshape(-1, 2)
    weights = torch.randn(2, 1, generator=exhibit.generator("weights")).double()
    inside = torch.rand(1, 2, generator=exhibit.generator("inside")).double() - 0.5
    bias = -(inside @ weights)[0]  # the line runs through a point well inside the square
    unit = ThresholdLayer(weights.T, bias, at_zero=0)
    z = unit(points)
    exhibit.expect(
        "shapes of points, weights, bias and output",
        [list(t.shape) for t in (points, weights, bias, z)],
        [[14400, 2], [2, 1], [1], [14400, 1]],
    )
    exhibit.expect("smallest and largest coordinate", [points.min(), points.max()], [-1, 1])
    exhibit.expect("the first 120 points share their first coordinate", points[:120, 0], torch.full((120,), -1.0))
    exhibit.expect("values of the output", torch.unique(z), [0, 1])

    table = z.reshape(120, 120)
    gaps = []
    for colors, (across, slope) in ((table, weights), (table.T, weights.flip(0))):  # along x2, then along x1
        i, j = (colors[:, 1:] != colors[:, :-1]).nonzero(as_tuple=True)
        between = (side[j] + side[j + 1]) / 2
        gaps.append((between + (across * side[i] + bias) / slope).abs())
    distances = torch.cat(gaps)
    gap = distances.max()
    half = (side[1] - side[0]).item() / 2
    # From a point of [-0.5, 0.5]^2 the line runs half the square at least in one direction and in the other.
    exhibit.above("rows and columns of the grid in which the color changes", len(distances), 58)
    away = int((distances > half * (1 + 1e-9)).sum())
    exhibit.expect("changes that lie more than half a step of the grid from the line w.x + b = 0", away, 0)

    flat = Plane("A random perceptron", {"output": table.T}, axes=["x1", "x2"], x=side, y=side, classes=["0", "1"])
    every = points[::7], z[::7, 0]
    values = {"x1": every[0][:, 0], "x2": every[0][:, 1], "output": every[1]}
    groups = [f"{value:g}" for value in every[1].tolist()]
    space = Scatter("The same in space", values, axes=list(values), groups=groups, view=[24, -64])
    for name, reading in (("flat", flat), ("space", space)):
        written = draw(reading, exhibit.folder / f"{name}.png").read_bytes()
        exhibit.expect(f"the {name} picture is a PNG", written[:8], b"\x89PNG\r\n\x1a\n")
        exhibit.above(f"the {name} picture has content (bytes)", len(written), 5000)
        exhibit.show(reading)
    fraction = z.mean().item()
    return f"14400 points, {fraction:.1%} of them 1; the color changes within {gap / half:.3f} half steps of the line"


def per_09(exhibit: Exhibit) -> str:
    """Perceptrons accept any separating plane; the widest one belongs to the SVM; a frozen random layer makes XOR linear."""
    from sklearn.svm import SVC

    from ..estimators.perceptron import Perceptron

    label = torch.arange(40) % 2
    x = (torch.tensor([[-1.6, -1.0], [1.6, 1.0]])[label] + 0.4 * torch.randn(40, 2, generator=exhibit.generator("clouds"))).double().numpy()
    y = label.numpy()
    planes, errors = [], []
    for seed in range(8 * exhibit.seed, 8 * (exhibit.seed + 1)):
        order = np.random.default_rng(seed).permutation(len(x))
        fitted = Perceptron().fit(x[order], y[order])
        errors.append(int((fitted.predict(x) != y).sum()))
        planes.append(np.r_[fitted.coef_[0], fitted.intercept_])
    exhibit.expect("errors of the plane from each of 8 orders", errors, [0] * 8)
    directions = [plane / np.linalg.norm(plane[:2]) for plane in planes]
    spread = max(np.linalg.norm(a - b) for a in directions for b in directions)
    exhibit.above("largest difference between planes of unit normal", spread, 0.1)
    widest = SVC(kernel="linear", C=1e6, tol=1e-9).fit(x, y)
    signs = 2 * y - 1
    margins = [float((signs * (x @ plane[:2] + plane[2])).min()) for plane in directions]
    best = float((signs * widest.decision_function(x)).min() / np.linalg.norm(widest.coef_))
    exhibit.expect("widest margin, also 1 / |w| of the SVM", best, 1 / np.linalg.norm(widest.coef_), within=1e-5)
    exhibit.exceeds("no perceptron has a margin wider than the widest", best * (1 + 1e-6), max(margins))
    exhibit.exceeds("every perceptron separates: the narrowest margin", min(margins), 0.0)

    widths, draws = (1, 2, 4, 8, 16, 32), 40
    solved = [np.mean([_learns_xor(width, seed) for seed in range(draws * exhibit.seed, draws * (exhibit.seed + 1))]) for width in widths]
    exhibit.expect("XOR solved over one frozen unit, share of draws", solved[0], 0.0)
    exhibit.above(f"XOR solved over {widths[-1]} frozen units, share of draws", solved[-1], 0.95)

    side = np.linspace(-4, 4, 81)
    z = widest.decision_function(np.stack(np.meshgrid(side, side), -1).reshape(-1, 2)).reshape(81, 81)
    lines = {f"order {number}": _segment(plane) for number, plane in enumerate(directions[:4])}
    note = f"Contours: the SVM's plane and its margin of {best:.2f}. Perceptrons have {min(margins):.2f} to {max(margins):.2f}."
    exhibit.show(
        Plane(
            "Many planes separate these clouds",
            {"SVM": z},
            axes=["x1", "x2"],
            note=note,
            x=side,
            y=side,
            levels=[-1, 0, 1],
            points={"class 0": x[y == 0], "class 1": x[y == 1]},
            paths=lines,
        )
    )
    fractions = {"share of draws": solved}
    title = "XOR solved by a perceptron over random frozen units"
    exhibit.show(Bars(title, fractions, axes=["hidden units"], note=f"{draws} draws each.", labels=list(widths)))
    return (
        f"8 orders, margins {min(margins):.2f} to {max(margins):.2f}, SVM {best:.2f}; XOR over 32 frozen units in {solved[-1]:.0%} of draws"
    )


def _unit(weights: np.ndarray) -> ThresholdLayer:
    """A threshold unit from weights with the bias last."""
    return ThresholdLayer(weights[None, :-1], weights[-1:])


def _corner_points(truth: list[int]) -> dict[str, Tensor]:
    table = torch.tensor(truth)
    return {"0": corners(2)[table == 0], "1": corners(2)[table == 1]}


def _regions(
    title: str, nets: dict[str, Any], points: dict[str, Any], span: tuple[float, float] = (-0.5, 1.5), classes: list[str] | None = None
) -> Reading:
    """Outputs of several networks over a square, as flat colors, with points on top."""
    side = torch.linspace(*span, 101).double()
    grid = torch.stack(torch.meshgrid(side, side, indexing="xy"), -1).reshape(-1, 2)
    values = {name: net(grid)[:, 0].reshape(101, 101) for name, net in nets.items()}
    return Plane(title, values, axes=["x1", "x2"], x=side, y=side, classes=classes or ["0", "1"], points=points)


def _separable(seed: int) -> tuple[np.ndarray, np.ndarray, float, float]:
    """Rows with the bias folded in, their signs, the largest norm and the distance of the nearest row from the plane that made them."""
    draw = np.random.default_rng(seed)
    features = int(draw.integers(2, 7))
    plane = draw.normal(size=features + 1)
    plane[-1] = plane[:-1] @ draw.uniform(-0.2, 0.2, size=features)  # through a point near the middle: both classes have rows
    plane /= np.linalg.norm(plane)
    rows = np.c_[draw.uniform(-1, 1, size=(400, features)), np.ones(400)]
    rows = rows[np.abs(rows @ plane) > draw.uniform(0.05, 0.3)][:80]
    score = rows @ plane
    return rows, np.where(score > 0, 1, -1), float(np.linalg.norm(rows, axis=1).max()), float(np.abs(score).min())


def _multiclass_by_hand(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, int]:
    """The rule as it is written: on a mistake W_y += x and W_yhat -= x, row by row, until an epoch has none."""
    weights, corrections, clean = np.zeros((y.max() + 1, x.shape[1] + 1)), 0, False
    while not clean:
        clean = True
        for row, label in zip(np.c_[x, np.ones(len(x))], y, strict=True):
            scores = [float(w @ row) for w in weights]
            rival = max((k for k in range(len(weights)) if k != label), key=lambda k: scores[k])
            if scores[label] <= scores[rival]:
                weights[label] += row
                weights[rival] -= row
                corrections, clean = corrections + 1, False
    return weights, corrections


def _learns_xor(width: int, seed: int) -> bool:
    """Whether a perceptron learns XOR from the outputs of random threshold units that stay as they are."""
    from ..estimators.perceptron import Perceptron

    draw = generator(seed, "frozen", width)
    hidden = ThresholdLayer(torch.randn(width, 2, generator=draw), torch.randn(width, generator=draw))(corners(2)).numpy()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fitted = Perceptron(max_epochs=200).fit(hidden, XOR)
    return bool((fitted.predict(hidden) == XOR).all())


def _segment(plane: np.ndarray, reach: float = 3.5) -> np.ndarray:
    """The ends of the line w.x + b = 0, symmetric about its point nearest to the origin."""
    normal, offset = plane[:2], plane[2]
    foot, along = -offset * normal, np.array([-normal[1], normal[0]])
    return np.stack([foot - reach * along, foot + reach * along])
