"""Chapter 4, multi-layer perceptrons and what they can express."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ..core.batch import Batch, Data
from ..core.errors import BadInput
from ..core.reading import Heat, Lines, Plane, Scatter, Subject, Table
from ..core.recipe import Recipe
from ..core.seeds import generator
from ..data.catalog import load
from ..data.tensors import TensorSource
from ..lenses import intrinsic
from ..lenses import regions as regions_lens
from ..models import constructive, piecewise
from ..models.mlp import MLP
from ..nn.affine import Affine
from ..objectives.gaussian import Gaussian
from ..optim.build import optimizer
from ..optim.schedules import cosine
from ..recipes import xor
from ..report.draw import draw
from .exhibit import Exhibit, spread


def mlp_01(exhibit: Exhibit) -> str:
    """Three ReLU units on a line: at most four straight pieces, with joints where a unit's input is 0."""
    exhibit.expect("parameters of a 1-3-1 net", _count((1, 3, 1)), 10)
    draw_from = exhibit.generator("shallow")
    counts, wrong, worst_sum = [], 0.0, 0.0
    for _ in range(200):
        slope, shift, scale = torch.randn(3, 3, generator=draw_from, dtype=torch.float64)
        offset = torch.randn(1, generator=draw_from, dtype=torch.float64)
        net = piecewise.from_layers([(slope[:, None], shift), (scale[None], offset)])
        regions = piecewise.pieces(piecewise.regions(net, -math.inf, math.inf))
        counts.append(len(regions))
        wrong = max(wrong, float(np.abs(np.array(piecewise.joints(regions)) - (-shift / slope).sort().values.numpy()).max()))
        x = torch.randn(7, 1, generator=draw_from, dtype=torch.float64)
        by_hand = offset + sum(scale[d] * (shift[d] + slope[d] * x[:, 0]).clamp_min(0) for d in range(3))
        worst_sum = max(worst_sum, float((net(x)[:, 0].detach() - by_hand).abs().max()))
    exhibit.expect("most pieces of 200 random nets", max(counts), 4)
    exhibit.expect("joints against -th_d0/th_d1, largest difference", wrong, 0.0, within=1e-9)
    exhibit.expect("phi_0 counted once: net against the sum written out", worst_sum, 0.0, within=1e-12)
    fewer = {
        "a joint shared by two units": ([[1.0], [2.0], [1.0]], [1.0, 2.0, -1.0]),
        "a unit that ignores x": ([[1.0], [0.0], [1.0]], [1.0, 5.0, -1.0]),
        "one joint for all": ([[1.0], [-1.0], [2.0]], [0.0, 0.0, 0.0]),
    }
    special = {}
    for (name, layer), pieces in zip(fewer.items(), (3, 3, 2), strict=True):
        net = piecewise.from_layers([layer, ([[1.0, 0.5, -2.0]], [0.0])])
        special[name] = len(piecewise.pieces(piecewise.regions(net, -9, 9)))
        exhibit.expect(f"pieces with {name}", special[name], pieces)
    columns = {"three units": ["in general", *special], "pieces": [max(counts), *special.values()]}
    exhibit.show(Table("Pieces of a net with three units", columns))
    return f"10 parameters; {max(counts)} pieces at most in 200 nets, joints off by {wrong:.0e}"


def mlp_02(exhibit: Exhibit) -> str:
    """A net of three units taken apart: lines, clipped lines, scaled lines, their sum; the pattern and slope of each region."""
    slope, shift, scale = torch.tensor([[2.0, -1.25, 1.5], [-0.5, 1.5, -2.4], [0.6, -0.8, -1.4]], dtype=torch.float64)
    offset = 0.2
    net = piecewise.from_layers([(slope[:, None], shift), (scale[None], [offset])])
    x = torch.linspace(0, 2, 81, dtype=torch.float64)
    with torch.no_grad():
        before, clipped, y = net.layers[0](x[:, None]), net.layers[:2](x[:, None]), net(x[:, None])[:, 0]
    exhibit.expect("clipping keeps what is above 0", clipped, before.clamp_min(0) + 0.0, within=0.0)
    exhibit.expect("the scaled units and phi_0 add up to the net", (clipped * scale).sum(1) + offset, y, within=1e-12)
    exhibit.expect("the sum at 0, 0.25, 1.2, 1.6 and 2", y[[0, 10, 48, 64, 80]], [-1.0, -0.75, 1.34, 1.82, 1.46], within=1e-12)

    curve, table = regions_lens.read(Subject(net, Batch(x=x[:, None])), margin=0.0)
    values = table.values
    exhibit.expect("units that are on, region by region", values["active units"], ["010", "110", "100", "101"])
    exhibit.expect("slopes, worked by hand", values["slope"], [1.0, 2.2, 1.2, -0.9], within=1e-12)
    active = [float(sum(p * t for p, t, on in zip(scale, slope, bits, strict=True) if on == "1")) for bits in values["active units"]]
    exhibit.expect("slopes are sums of phi_d th_d1 over the units that are on", values["slope"], active, within=1e-12)
    off = [(a, b) for a, b, bits in zip(values["from"], values["to"], values["active units"], strict=True) if bits[1] == "0"]
    exhibit.expect("unit 2 is off from 1.2 to the end", [off[0][0], off[-1][1]], [1.2, 2.0], within=1e-12)

    panels = {"1 pre-activations": before, "2 clipped at 0": clipped, "3 scaled": clipped * scale}
    for title, lines in panels.items():
        named = {f"unit {d + 1}": lines[:, d] for d in range(3)}
        exhibit.show(Lines(title, named, axes=["x"], x=x))
    note = f"unit 2 is off from {off[0][0]:g} to {off[-1][1]:g}"
    exhibit.show(replace(curve, title="4 summed", note=note))
    exhibit.show(replace(table, title="Regions"))
    summary = ", ".join(f"{bits}: {s:g}" for bits, s in zip(values["active units"], values["slope"], strict=True))
    return f"slopes {summary}; {note}"


def mlp_03(exhibit: Exhibit) -> str:
    """Parameter counts of shallow and deep nets, and two outputs that bend at the same points."""
    worked: dict[tuple[int, ...], int] = {(2, 3, 1): 13, (1, 3, 1): 10, (1, 3, 2): 14, (5, 11, 7): 150}
    counts = {widths: _count(widths) for widths in worked}
    for widths, count in counts.items():
        exhibit.expect(f"parameters of {widths}", count, worked[widths])
    formula = [hidden * (inputs + 1) + outputs * (hidden + 1) for inputs, hidden, outputs in worked]
    exhibit.expect("D(D_i+1) + D_o(D+1) for each", formula, list(counts.values()))
    deep = (5, 7, 4, 6, 2)
    counts[deep] = _count(deep)
    exhibit.expect(f"parameters of {deep}: 6*7 + 8*4 + 5*6 + 7*2", counts[deep], 118)

    model = MLP((1, 3, 2)).double()
    slopes, shifts = torch.tensor([1.0, -2.0, 0.5]), torch.tensor([1.25, 1.0, -0.875])
    model.load_state_dict({**model.state_dict(), "layers.dense1.weight": slopes[:, None], "layers.dense1.bias": shifts})
    x = torch.arange(-3 * 64, 3 * 64 + 1).double() / 64
    with torch.no_grad():
        y = model(x[:, None])
    joints = [_bends(x, y[:, output]) for output in (0, 1)]
    for output, measured in zip(("first", "second"), joints, strict=True):
        exhibit.expect(f"joints of the {output} output, at -th_d0/th_d1", measured, (-shifts / slopes).sort().values, within=1e-12)
    exhibit.above("the outputs themselves differ, by a power of 10 of", (y[:, 0] - y[:, 1]).abs().max().log10(), -1.0)
    lines = {"first output": y[:, 0], "second output": y[:, 1]}
    exhibit.show(Lines("Two outputs of one hidden layer bend together", lines, axes=["x"], x=x))
    columns = {"widths": ["-".join(map(str, widths)) for widths in counts], "parameters": list(counts.values())}
    exhibit.show(Table("Parameters", columns))
    summary = ", ".join(map(str, counts.values()))
    return f"{summary} parameters; both outputs bend at {', '.join(f'{joint:g}' for joint in joints[1].tolist())}"


def mlp_04(exhibit: Exhibit) -> str:
    """Neuron by neuron, as matrices, and for a whole batch at once: the same numbers; a wrong shape names its layer."""
    widths, n = (3, 5, 2), 7
    hidden_and_out = MLP(widths, activation="sigmoid").double()
    net = nn.Sequential(hidden_and_out, nn.Sigmoid())
    w1, b1, w2, b2 = (parameter.detach().numpy() for parameter in hidden_and_out.parameters())
    x = torch.randn(n, widths[0], generator=exhibit.generator("batch"), dtype=torch.float64).numpy()

    def sigma(z: Any) -> Any:
        return 1 / (1 + np.exp(-z))

    def neurons(weights: Any, biases: Any, inputs: list[float]) -> list[float]:
        return [
            1 / (1 + math.exp(-(bias + sum(w * v for w, v in zip(row, inputs, strict=True)))))
            for row, bias in zip(weights, biases, strict=True)
        ]

    loop = [neurons(w2, b2, neurons(w1, b1, example)) for example in x.tolist()]
    one_by_one = [sigma(w2 @ sigma(w1 @ example + b1) + b2) for example in x]
    columns = sigma(w2 @ sigma(w1 @ x.T + b1[:, None]) + b2[:, None]).T
    with torch.no_grad():
        batch = net(torch.as_tensor(x))
    forms = {"one example, matrices": one_by_one, "data matrix, examples as columns": columns, "batch through MLP": batch}
    gaps = {name: exhibit.expect(f"{name}, against a loop over neurons", value, loop, within=1e-12) for name, value in forms.items()}
    broadcast = np.concatenate([w1, b1[:, None]], 1) @ np.concatenate([x.T, np.ones((1, n))])
    exhibit.expect("a bias added to every column is one more column of weights", w1 @ x.T + b1[:, None], broadcast, within=1e-12)
    exhibit.refuses("4 numbers per example are refused", lambda: net(torch.zeros(n, 4, dtype=torch.float64)))
    exhibit.expect("the refusal names the layer", _names_first_layer(lambda: net(torch.zeros(n, 4, dtype=torch.float64))), True)
    shapes = {
        "array": ["x", "W1", "b1", "hidden", "W2", "b2", "output"],
        "shape": [str(np.shape(a)) for a in (x, w1, b1, x @ w1.T, w2, b2, batch)],
    }
    exhibit.show(Table("Shapes of a batch of 7", shapes))
    return f"loop, matrix and batch agree to {max(gaps.values()):.0e}; a wrong shape is laid to dense1"


def _names_first_layer(call: Callable[[], Any]) -> bool:
    """Whether the error of a call names the first dense layer."""
    try:
        call()
    except BadInput as error:
        return "dense1" in str(error)
    return False


def mlp_05(exhibit: Exhibit) -> str:
    """Layers without an activation are one layer, whose rank no hidden width can exceed."""
    inputs, outputs = 6, 5
    x = torch.randn(11, inputs, generator=exhibit.generator("x"), dtype=torch.float64)
    widths, ranks, gaps = list(range(1, 8)), [], []
    for hidden in widths:
        net = MLP((inputs, hidden, outputs), activation="identity").double()
        (w, b), *rest = piecewise.dense_layers(net)
        gaps.append(exhibit.expect(f"one layer W2 W1, hidden width {hidden}", x.numpy() @ w.T + b, net(x).detach(), within=1e-12))
        exhibit.expect(f"layers left, hidden width {hidden}", 1 + len(rest), 1)
        ranks.append(int(np.linalg.matrix_rank(w)))
    exhibit.expect("rank of W2 W1 is min(inputs, hidden, outputs)", ranks, [min(inputs, hidden, outputs) for hidden in widths])
    bent = MLP((inputs, 7, outputs)).double()
    straight = np.linalg.lstsq(np.c_[x, np.ones(len(x))], bent(x).detach().numpy(), rcond=None)[1]
    exhibit.above("with a ReLU between them no single layer fits: squared error, as a power of 10", np.log10(straight.max()), -3.0)
    columns = {"hidden width": widths, "rank of W2 W1": ranks}
    exhibit.show(Table("A bottleneck stays a bottleneck", columns))
    return f"equal to {max(gaps):.0e}; ranks {', '.join(map(str, ranks))} for hidden widths 1 to 7"


def mlp_06(exhibit: Exhibit) -> str:
    """A deep MLP gives what scikit-learn's gives with the same weights, and learns XOR by plain gradient descent."""
    from sklearn.neural_network import MLPRegressor

    worst = 0.0
    rows = np.random.default_rng(exhibit.seed)
    x, y = rows.normal(size=(40, 3)), rows.normal(size=(40, 2))
    for theirs, ours in (("relu", "relu"), ("tanh", "tanh"), ("logistic", "sigmoid"), ("identity", "identity")):
        other = MLPRegressor(hidden_layer_sizes=(7, 5, 6), activation=theirs, random_state=exhibit.seed).partial_fit(x, y)
        net = piecewise.from_layers([(w.T, b) for w, b in zip(other.coefs_, other.intercepts_, strict=True)], activation=ours)
        answer = net(torch.as_tensor(x)).detach()
        worst = max(worst, exhibit.expect(f"3-7-5-6-2 with {theirs}, against scikit-learn", answer, other.predict(x), within=1e-12))
    plain = optimizer("sgd", lr=0.5)
    runs = {
        name: [
            exhibit.train(xor.recipe(hidden=hidden).replace(optimizer=plain, evaluate_every=400), f"{name}-{seed}", seed=seed)
            for seed in exhibit.seeds(3)
        ]
        for name, hidden in (("hidden", (8,)), ("none", ()))
    }
    with_hidden, without = ([run.result["metrics"]["test/accuracy"] for run in each] for each in runs.values())
    learned, linear_losses = ([run.result["metrics"]["test/loss"] for run in each] for each in runs.values())
    exhibit.above("XOR with 8 hidden units: accuracy", with_hidden, 0.98)
    exhibit.below("XOR with 8 hidden units: cross-entropy", learned, 0.006)
    # A line through the clouds gets any fraction of them right by chance, but it knows nothing: its loss is that of a coin, 0.693.
    exhibit.above("XOR without hidden units: cross-entropy", linear_losses, 0.67)
    solved, train = runs["hidden"][0].model(), runs["hidden"][0].data.train
    points = train[torch.arange(len(train))]
    line = torch.linspace(-1.8, 1.8, 80)
    grid = torch.stack(torch.meshgrid(line, line, indexing="xy"), -1).reshape(-1, 2)
    with torch.no_grad():
        probability = solved(grid).softmax(1)[:, 1].reshape(80, 80)
    clouds = {f"class {c}": points.x[points.y == c][:60] for c in (0, 1)}
    exhibit.show(
        Plane(
            "Chance of class 1, learned",
            {"chance": probability},
            axes=["x1", "x2"],
            x=line,
            y=line,
            levels=[0.1, 0.5, 0.9],
            points=clouds,
            colors={"class 0": 1, "class 1": 0},
        )
    )
    summary = f"{spread(with_hidden, '.3f')}, {np.mean(without):.2f} without hidden units"
    return f"as scikit-learn to {worst:.0e}; XOR accuracy {summary}"


def mlp_07(exhibit: Exhibit) -> str:
    """A sine built from sigmoids and from ReLUs without any training, against trained nets of the same width."""
    x = torch.linspace(0, 1, 4001, dtype=torch.float64)
    target = torch.sin(2 * math.pi * x)

    def f(points: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.sin(2 * np.pi * points)

    def error(net: nn.Module) -> float:
        with torch.no_grad():
            return float((net.double()(x[:, None])[:, 0] - target).abs().max())

    widths = (16, 40, 128)
    built: dict[str, list[float]] = {"sigmoids": [], "ReLUs": [], "h^2 max|f''|/8": []}
    for width in widths:
        knots = np.linspace(0, 1, width + 1)
        bound = (1 / width) ** 2 * (2 * math.pi) ** 2 / 8
        built["sigmoids"].append(error(constructive.sigmoid_steps(f, 0.0, 1.0, width)))
        built["ReLUs"].append(error(constructive.interpolant(knots, f(knots))))
        built["h^2 max|f''|/8"].append(bound)
        exhibit.below(f"ReLU interpolant of width {width}, sup error against its bound", built["ReLUs"][-1], bound * (1 + 1e-9))
        exhibit.above(f"the bound is nearly reached at width {width}", built["ReLUs"][-1], 0.9 * bound)
    exhibit.below(f"sigmoids, width {widths[1]}: sup error", built["sigmoids"][1], 1e-2)
    exhibit.below(f"sigmoids, width {widths[2]}: sup error", built["sigmoids"][2], 1e-3)

    columns: dict[str, list[Any]] = {"width": [], "units": [], "built": [], "trained and spread": []}
    for at, width in enumerate(widths[:2]):
        for activation, units in (("sigmoid", "sigmoids"), ("relu", "ReLUs")):
            runs = [exhibit.train(_wave(width, activation), f"{activation}-{width}-{seed}", seed=seed) for seed in exhibit.seeds(3)]
            errors = [error(run.model()) for run in runs]
            exhibit.below(f"trained {activation} net of width {width}: sup error", errors, 0.3, mean=True)
            if units == "ReLUs":
                exhibit.above(
                    f"width {width}: error of trained ReLUs over built ones, which training does not find, as a power of 10",
                    [math.log10(value / built[units][at]) for value in errors],
                    0.0,
                )
            row = (width, units, built[units][at], spread(errors))
            for column, value in zip(columns.values(), row, strict=True):
                column.append(value)
    note = "The theorem promises that good weights exist; it neither gives them nor says that training finds them."
    exhibit.show(Table("Built and trained", columns, note=note))
    exhibit.show(Lines("Sup error by width", built, axes=["width"], x=list(widths), log=["x", "y"]))
    with torch.no_grad():
        shown = {
            "sine": target[::40],
            "16 sigmoids": constructive.sigmoid_steps(f, 0.0, 1.0, 16)(x[::40, None])[:, 0],
            "8 ReLUs": constructive.interpolant(np.linspace(0, 1, 9), f(np.linspace(0, 1, 9)))(x[::40, None])[:, 0],
        }
    exhibit.show(Lines("Written down, not trained", shown, axes=["x"], x=x[::40]))
    return (
        f"sigmoids: {built['sigmoids'][1]:.1e} with {widths[1]} units, {built['sigmoids'][2]:.1e} with {widths[2]}; "
        f"16 ReLUs built {built['ReLUs'][0]:.3f}, trained {columns['trained and spread'][1]}"
    )


def _wave(width: int, activation: str) -> Recipe:
    x = torch.linspace(0, 1, 256)[:, None]
    data = Data(TensorSource(x, torch.sin(2 * math.pi * x)), name="wave", task="values")
    return Recipe(
        model=lambda: nn.Sequential(Affine(-2.0, 4.0), MLP((1, width, 1), activation=activation)),  # from [0, 1] to [-2, 2]
        data=data,
        objective=Gaussian(),
        optimizer=optimizer("adam", lr=0.1),
        schedule=cosine(),
        batch_size=256,
        steps=400,
    )


def mlp_08(exhibit: Exhibit) -> str:
    """Units drawn to suit the function lose error as 1/n in five dimensions; a fixed grid as n^(-2/d)."""
    inputs, radius, repeats = 5, 1.0, 40
    draw_from = exhibit.generator("barron")
    x = nn.functional.normalize(torch.randn(1000, inputs, generator=draw_from, dtype=torch.float64), dim=1)
    x = radius * x * torch.rand(len(x), 1, generator=draw_from, dtype=torch.float64) ** (1 / inputs)
    target = torch.exp(-x.square().sum(1) / 2)
    units = [8, 16, 32, 64, 128, 256, 512]
    errors = []
    for n in units:
        nets = [constructive.barron_units(inputs, radius, n, draw_from) for _ in range(repeats)]
        errors.append(float(np.mean([float((net(x) - target).square().mean()) for net in nets])))
    norm = constructive.gaussian_barron_norm(inputs)
    exhibit.expect("C, the mean frequency: sqrt(2) G(3)/G(5/2)", norm, math.sqrt(2) * 2 / (0.75 * math.sqrt(math.pi)), within=1e-12)
    bounds = [constructive.barron_bound(radius, norm, n) for n in units]
    slope = _slope(units, errors)
    exhibit.expect("slope of log error against log n, d=5", slope, -1.0, within=0.2)
    for n, error, bound in zip(units, errors, bounds, strict=True):
        exhibit.below(f"error with {n} units, against (2 r C)^2/n", error, bound)
    exhibit.expect(
        "c grows with the radius as (2 r C)^2",
        constructive.barron_bound(3.0, norm, 1) / constructive.barron_bound(1.0, norm, 1),
        9.0,
        within=1e-9,
    )

    grids = {}
    for d in (1, 2, 5):
        points = torch.rand(4000, d, generator=exhibit.generator("grid", d), dtype=torch.float64)
        sides = (2, 3, 4, 6)
        missed = [float(((points - ((points * m).floor() + 0.5) / m).sum(1) ** 2).mean()) for m in sides]
        grids[d] = _slope([m**d for m in sides], missed)
        exhibit.expect(f"a grid of constants for x1 + ... + xd, d={d}: slope -2/d", grids[d], -2 / d, within=0.1 / d)
    dimensions = [1, 2, 3, 5, 10]
    needed = [constructive.fixed_units(0.01, d) for d in dimensions]
    exhibit.expect("log10 of the fixed units for an error of 0.01: d", np.log10(needed), dimensions, within=1e-9)
    exhibit.expect("d=10 needs 1e10", needed[-1], 1e10, within=1.0)
    lines = {
        "drawn units, measured": errors,
        "(2 r C)^2 / n": bounds,
        "fixed basis, n^(-2/5)": [errors[0] * (n / units[0]) ** -0.4 for n in units],
    }
    exhibit.show(Lines("Squared error in five dimensions", lines, axes=["n"], x=units, log=["x", "y"]))
    columns = {"d": dimensions, "fixed units for an error of 0.01": needed}
    exhibit.show(Table("What fixed basis functions cost", columns, note="learned units: c / 0.01 in every dimension"))
    return f"slope {slope:.2f} with drawn units in d=5, {grids[5]:.2f} on a grid; error 0.01 takes {needed[-1]:.0e} fixed units in d=10"


def _slope(n: list[int], error: list[float]) -> float:
    return float(np.polyfit(np.log(n), np.log(error), 1)[0])


def mlp_09(exhibit: Exhibit) -> str:
    """Three lines cut the plane into seven; counted exactly by polygons, by counting, and by sign patterns on a grid."""
    lines, offsets = np.array([[1.0, 0.3], [-0.4, 1.0], [1.0, 1.2]]), np.array([0.4, 0.3, -0.9])
    net = piecewise.from_layers([(lines, offsets), (np.array([[1.0, -0.7, 0.8]]), [0.0])])
    regions = piecewise.regions(net, -3, 3)
    exhibit.expect("sum over j <= 2 of C(3, j)", piecewise.region_bound(2, 3), 1 + 3 + 3)
    exhibit.expect("regions of three lines in general position", len(regions), 7)
    exhibit.expect("areas add up to the box", sum(region.size for region in regions), 36.0, within=1e-9)
    rows = []
    random = np.random.default_rng(exhibit.seed)
    for inputs, hidden in ((1, 6), (2, 3), (2, 6), (3, 5), (3, 3), (4, 3), (6, 5)):
        count = piecewise.count_regions(random.normal(size=(hidden, inputs)), random.normal(size=hidden))
        rows.append((inputs, hidden, count))
        exhibit.expect(f"regions in R^{inputs} by {hidden} hyperplanes reach the bound", count, piecewise.region_bound(inputs, hidden))
        if inputs >= hidden:
            exhibit.expect(f"2^D where D_i={inputs} >= D={hidden}", count, 2**hidden)
    special = {"two parallel": ([[1, 0], [1, 0], [0, 1]], [0, 1, 0], 6), "all through one point": ([[1, 0], [0, 1], [1, 1]], [0, 0, 0], 6)}
    for name, (w, b, count) in special.items():
        exhibit.expect(f"three lines, {name}", piecewise.count_regions(w, b), count)

    deep = piecewise.from_layers([(w, b) for w, b in _random_layers((2, 8, 8, 1), exhibit.seed)])
    inside = piecewise.regions(deep, -2, 2)
    line = torch.linspace(-2, 2, 401, dtype=torch.float64)
    seen = _patterns(deep, torch.cartesian_prod(line, line))
    exhibit.expect("patterns seen on a grid that are not among the exact ones", len(seen - {region.pattern for region in inside}), 0)
    missed = [region.size for region in inside if region.pattern not in seen]
    exhibit.below("the grid misses only slivers: largest area it missed", max(missed, default=0.0), 30 * float(line[1] - line[0]) ** 2)
    exhibit.below("slivers it missed", len(missed), 0.1 * len(inside))

    points = np.linspace(-3, 3, 121)
    home = regions_lens.locate(regions, np.stack(np.meshgrid(points, points), -1).reshape(-1, 2)).reshape(121, 121)
    missing = sorted({f"{i:03b}" for i in range(8)} - {region.pattern for region in regions})
    exhibit.expect("the one pattern of eight that no place has", missing, ["001"])
    note = f"Each region by the units that are on; no point has {', '.join(missing)}."
    exhibit.show(
        Plane(
            "Three lines, seven regions",
            {"regions": home},
            axes=["x1", "x2"],
            note=note,
            x=points,
            y=points,
            classes=[r.pattern for r in regions],
            outlines=[r.corners for r in regions],
        )
    )
    readings = regions_lens.read(Subject(deep, Batch(x=torch.tensor([[-2.0, -2.0], [2.0, 2.0]]))), margin=0.0)
    exhibit.show(replace(readings[1], title=f"A random 2-8-8-1 net: {len(inside)} regions"))
    exhibit.show(replace(readings[0], title="The function over them"))
    exhibit.show(Table("Hyperplanes in general position", dict(zip(("D_i", "D", "regions"), zip(*rows, strict=True), strict=True))))
    return f"7 regions for three lines; a random 2-8-8-1 net has {len(inside)}, of which a grid of 160,801 points sees {len(seen)}"


def _random_layers(widths: tuple[int, ...], seed: int) -> piecewise.Layers:
    random = np.random.default_rng(seed + 1)
    pairs = zip(widths, widths[1:], strict=False)
    return [(random.normal(size=(out, inputs)) / math.sqrt(inputs), 0.5 * random.normal(size=out)) for inputs, out in pairs]


def _patterns(net: MLP, x: Tensor) -> set[str]:
    """Which units are on, at each of many points."""
    bits = []
    with torch.no_grad():
        for layer in net.layers:
            x = layer(x)
            if isinstance(layer, nn.ReLU):
                bits.append(x > 0)
    distinct = torch.unique(torch.cat(bits, 1), dim=0).int()
    parts = distinct.split([each.shape[1] for each in bits], 1)
    return {"|".join("".join(map(str, row)) for row in rows) for rows in zip(*(part.tolist() for part in parts), strict=True)}


def mlp_10(exhibit: Exhibit) -> str:
    """A zig-zag of three pieces fed into itself: the pieces multiply, where adding units only adds them."""
    depths = list(range(1, 7))
    counts, units = [], []
    for times in depths:
        net = constructive.fold_zigzag(times)
        regions = piecewise.pieces(piecewise.regions(net, -1, 1))
        counts.append(len(regions))
        units.append(sum(len(b) for _, b in piecewise.dense_layers(net)[:-1]))
        steep = np.array([float(region.weight[0, 0]) for region in regions])
        exhibit.expect(
            f"slopes of {times}-fold pieces are +3^K, -3^K in turn", steep, (3.0**times) * (-1.0) ** np.arange(len(regions)), within=1e-6
        )
    exhibit.expect("pieces on [-1, 1], K = 1 to 6: 3^K", counts, [3**times for times in depths])
    x = torch.linspace(-1, 1, 13, dtype=torch.float64)
    hand = -1 + 3 * (x + 1).clamp_min(0) - 6 * (x + 1 / 3).clamp_min(0) + 6 * (x - 1 / 3).clamp_min(0)
    exhibit.expect("the zig-zag as written", constructive.zigzag()(x[:, None])[:, 0].detach(), hand, within=1e-12)
    exhibit.expect("its ends and joints are at -1 and 1", hand[[0, 4, 8, 12]], [-1.0, 1.0, -1.0, 1.0], within=1e-12)
    random = np.random.default_rng(exhibit.seed)
    shallow = []
    for _ in range(100):
        layers = [(random.normal(size=(6, 1)), random.normal(size=6)), (random.normal(size=(1, 6)), [0.0])]
        shallow.append(len(piecewise.pieces(piecewise.regions(piecewise.from_layers(layers), -math.inf, math.inf))))
    exhibit.expect("most pieces of 100 shallow nets with 6 units", max(shallow), 7)
    exhibit.expect("their bound", piecewise.region_bound(1, 6), 7)
    lines, points = {}, {}
    for times in (1, 2, 3):
        regions = piecewise.regions(constructive.fold_zigzag(times), -1, 1)
        where = [-1.0, *piecewise.joints(regions), 1.0]
        # Each further fold is set below the last, so that the three can be read together.
        lines[f"{3**times} pieces"] = [
            float(v) - 2.5 * (times - 1) for v in constructive.fold_zigzag(times)(torch.tensor(where).double()[:, None]).detach()[:, 0]
        ]
        points[f"{3**times} pieces"] = where
    exhibit.show(Lines("Folding", lines, axes=["x"], note="one, two and three folds, set below each other", x=points))
    columns = {"folds": depths, "units": units, "pieces": counts, "shallow net, at most": [n + 1 for n in units]}
    exhibit.show(Table("Pieces multiply with depth", columns))
    return f"{', '.join(map(str, counts))} pieces for 1 to 6 folds; 6 units in one layer give {max(shallow)} at most"


def mlp_11(exhibit: Exhibit) -> str:
    """Two nets in a row are one deep net, whose middle matrix is an outer product."""
    first = piecewise.from_layers(_random_layers((1, 3, 1), exhibit.seed))
    pairs = {
        "random": (first, piecewise.from_layers([(2 * w, b - 0.3) for w, b in _random_layers((1, 3, 1), exhibit.seed)])),
        "zig-zag": (constructive.zigzag(),) * 2,
    }
    x = torch.linspace(-2, 2, 401, dtype=torch.float64)[:, None]
    worst, ranks, middles = 0.0, [], []
    for name, (inner, outer) in pairs.items():
        one = piecewise.merge(inner, outer)
        with torch.no_grad():
            worst = max(worst, exhibit.expect(f"{name}: merged against composed", one(x), outer(inner(x)), within=1e-12))
        layers = piecewise.dense_layers(one)
        exhibit.expect(f"{name}: widths of the merged net", [layers[0][0].shape[1], *(len(b) for _, b in layers)], [1, 3, 3, 1])
        middle, _ = layers[1]
        outside, inside = piecewise.dense_layers(outer)[0][0], piecewise.dense_layers(inner)[1][0]
        exhibit.expect(f"{name}: middle matrix = outer product of the two", middle, np.outer(outside, inside), within=1e-12)
        ranks.append(int(np.linalg.matrix_rank(middle)))
        exhibit.expect(f"{name}: rank of the middle matrix", ranks[-1], 1)
        middles.append(middle)
    free = piecewise.from_layers(_random_layers((1, 3, 3, 1), exhibit.seed))
    exhibit.expect("rank of the middle matrix of a net drawn freely", int(np.linalg.matrix_rank(piecewise.dense_layers(free)[1][0])), 3)
    exhibit.show(Heat("Middle matrix of the merged zig-zags", {"W": middles[1]}, axes=["to", "from"]))
    return f"merged = composed to {worst:.0e}; rank {ranks[0]} in the middle, 3 for a net drawn freely"


def mlp_12(exhibit: Exhibit) -> str:
    """How many coefficients a polynomial has: a power of the dimension at fixed order, exponential on a grid."""
    from sklearn.preprocessing import PolynomialFeatures

    inputs = [1, 2, 10, 100]
    distinct, full = ([count(d, 3) for d in inputs] for count in (constructive.monomials, constructive.tensor_entries))
    exhibit.expect("distinct monomials of order 3", distinct, [4, 10, 286, 176851])
    exhibit.expect("entries of the full tensors", full, [4, 15, 1111, 1010101])
    for d, order in ((1, 3), (2, 3), (10, 3), (3, 5), (6, 2)):
        listed = PolynomialFeatures(order).fit(np.zeros((1, d))).n_output_features_
        exhibit.expect(f"D={d}, order {order}: those scikit-learn lists", constructive.monomials(d, order), int(listed))
    large = [10**3, 10**4, 10**5]
    power = _slope(large, [float(constructive.monomials(d, 3)) for d in large])
    exhibit.expect("order 3 fixed: count ~ D^3, a power law (slope of log against log)", power, 3.0, within=0.01)
    growth = constructive.monomials(31, 31) / constructive.monomials(30, 30)
    exhibit.expect("order growing with D: one more dimension multiplies by 4", growth, 4.0, within=0.1)
    columns = {"D": inputs, "distinct monomials": distinct, "full tensors": full, "cells of a grid, 10 a side": [f"1e{d}" for d in inputs]}
    exhibit.show(Table("Coefficients of a polynomial of order 3", columns))
    ds = list(range(1, 13))
    lines = {
        "order 3": [constructive.monomials(d, 3) for d in ds],
        "order D": [constructive.monomials(d, d) for d in ds],
        "grid, 10 a side": [10**d for d in ds],
    }
    exhibit.show(Lines("Power law or exponential", lines, axes=["D"], x=ds, log=["y"]))
    return (
        f"order 3: {', '.join(f'{n:,}' for n in distinct)} distinct, {', '.join(f'{n:,}' for n in full)} in full tensors; ~ D^{power:.2f}"
    )


def mlp_13(exhibit: Exhibit) -> str:
    """One vote per cell of a grid: perfect where every cell has points, a coin toss where none has."""
    side, n = 10, 10_000
    dimensions = list(range(1, 7))
    occupied, accuracy = [], []
    for d in dimensions:
        x, test = (torch.rand(n, d, generator=exhibit.generator(part, d), dtype=torch.float64) for part in ("train", "test"))
        # The class is the color of a chess board whose squares are the cells, so a cell with a point in it is known for sure.
        votes = _block_votes(x, _board(x, side), side)
        right = (votes[_cells(test, side)] == _board(test, side)).double().mean()
        occupied.append(float((votes >= 0).double().mean()))
        accuracy.append(float(right) + 0.5 * float((votes[_cells(test, side)] < 0).double().mean()))  # an empty cell is guessed
    expected = [1 - (1 - side**-d) ** n for d in dimensions]
    exhibit.expect("cells, D = 1 to 6", [side**d for d in dimensions], [10, 100, 1000, 10_000, 100_000, 1_000_000])
    exhibit.expect("all cells are occupied for D <= 2", occupied[:2], [1.0, 1.0])
    exhibit.expect("occupied share: 1 - (1 - m^-D)^n", occupied, expected, within=0.01)
    exhibit.expect("accuracy: share known + half of the rest", accuracy, [(1 + fraction) / 2 for fraction in expected], within=0.02)
    exhibit.below("occupied share at D=6", occupied[-1], 0.02)
    exhibit.below("accuracy at D=6", accuracy[-1], 0.52)
    lines = {"cells with points": occupied, "accuracy": accuracy}
    note = f"{n:,} points, {side} cells a side; the class is the color of a chess board"
    exhibit.show(Lines("A grid classifier runs out of points", lines, axes=["D"], note=note, x=dimensions))
    fractions = ", ".join(f"{fraction:.3g}" for fraction in occupied)
    return f"occupied {fractions} for D = 1 to 6; accuracy falls from {accuracy[0]:.2f} to {accuracy[-1]:.2f}"


def _cells(x: Tensor, side: int) -> Tensor:
    """The number of the cell each point of the unit cube lies in."""
    return ((x * side).long().clamp_max(side - 1) * side ** torch.arange(x.shape[1])).sum(1)


def _board(x: Tensor, side: int) -> Tensor:
    return (x * side).long().sum(1) % 2


def _block_votes(x: Tensor, y: Tensor, side: int) -> Tensor:
    """The majority class of every cell of the grid, -1 where it is empty."""
    votes = torch.zeros(side ** x.shape[1], 2).index_put_((_cells(x, side), y), torch.ones(len(x)), accumulate=True)
    return torch.where(votes.sum(1) > 0, votes.argmax(1), -1)


def mlp_14(exhibit: Exhibit) -> str:
    """Where a Gaussian cloud in many dimensions lies: in a thin shell, which thins as exp(-eps^2/sigma^2)."""
    from scipy import integrate, stats

    for d, sigma in ((1, 0.7), (2, 1.0), (10, 2.0), (100, 1.0)):
        whole, _ = integrate.quad(
            lambda r, d=d, s=sigma: math.exp(_radial_log_density(r, d, s)), 0, 40 * sigma, points=[sigma * math.sqrt(d)]
        )
        exhibit.expect(f"integral of p(r), D={d}, sigma={sigma:g}", whole, 1.0, within=1e-7)
        r = np.linspace(0.2, 1.8, 9) * sigma * math.sqrt(d)
        ours = [_radial_log_density(each, d, sigma) for each in r]
        exhibit.expect(f"log p(r) against scipy's chi law, D={d}", ours, stats.chi(d, scale=sigma).logpdf(r), within=1e-9)
    d, mode = 100, math.sqrt(99)
    grid = np.linspace(9, 11, 20_001)
    highest = float(grid[np.argmax([_radial_log_density(r, d, 1.0) for r in grid])])
    exhibit.expect("mode at sigma sqrt(D-1)", highest, mode, within=1e-4)
    norms = torch.randn(40_000, d, generator=exhibit.generator("shell")).norm(dim=1)
    mean, std = float(norms.mean()), float(norms.std())
    # The atlas gives 9.99, a sampled number; the law of the norm has the mean sqrt(2) G(50.5)/G(50) = 9.975.
    exhibit.expect("sampled mean of the norm, D=100", mean, 9.99, within=0.03)
    exhibit.expect("the same against the exact mean", mean, float(stats.chi(d).mean()), within=0.02)
    exhibit.expect("sampled deviation of the norm", std, 0.71, within=0.02)
    fall = _radial_log_density(mode + 0.1, d, 1.0) - _radial_log_density(mode, d, 1.0)
    exhibit.expect("log p(r*+0.1) - log p(r*): -eps^2, not the printed -3 eps^2/2", fall, -0.00997, within=1e-5)
    exhibit.expect(
        "for D = 1e6 it is -eps^2",
        _radial_log_density(math.sqrt(1e6 - 1) + 0.1, 10**6, 1.0) - _radial_log_density(math.sqrt(1e6 - 1), 10**6, 1.0),
        -0.01,
        within=1e-5,
    )
    points = np.linspace(0.01, 13, 260)
    lines = {f"D = {d}": [math.exp(_radial_log_density(r, d, 1.0)) for r in points] for d in (1, 2, 10, 100)}
    exhibit.show(Lines("Distance from the center of a Gaussian", lines, axes=["r / sigma"], x=points))
    return f"D=100: norm {mean:.3f} +/- {std:.3f} sampled; log p falls by {-fall:.5f} at 0.1 from the mode"


def _radial_log_density(r: float, inputs: int, sigma: float) -> float:
    """log of S_D r^(D-1) (2 pi sigma^2)^(-D/2) exp(-r^2 / 2 sigma^2), S_D = 2 pi^(D/2) / Gamma(D/2)."""
    surface = math.log(2) + inputs / 2 * math.log(math.pi) - math.lgamma(inputs / 2)
    return surface + (inputs - 1) * math.log(r) - inputs / 2 * math.log(2 * math.pi * sigma**2) - r**2 / (2 * sigma**2)


def mlp_15(exhibit: Exhibit) -> str:
    """A rolled sheet in R^3 and a curved one in R^50 both have dimension 2, whatever space they lie in."""
    estimates: dict[str, list[float]] = {}
    for seed in exhibit.seeds(3):
        for name, cloud in _manifolds(seed).items():
            estimates.setdefault(name, []).append(intrinsic.two_nn(cloud))
    for name, values in estimates.items():
        truth = DIMENSIONS[name]
        exhibit.expect(f"intrinsic dimension of a {name}", values, [truth] * len(values), within=0.1 * truth)
    exhibit.above("directions with over 1 % of the sheet's variance, so it is no plane", _directions(_manifolds(exhibit.seed)[SHEET]), 4.5)
    roll = load("swiss_roll", exhibit.seed, n=2800, noise=0.0).train
    batch = roll[torch.arange(len(roll))]
    quarter = (batch.y.flatten().argsort().argsort() * 4 // len(batch)).tolist()
    points = dict(zip("xyz", batch.x[::2].T, strict=True))
    names = ["1 innermost", "2", "3", "4 outermost"]
    exhibit.show(Scatter("A Swiss roll", points, axes=["x", "y", "z"], groups=[names[q] for q in quarter[::2]], view=[12, -72]))
    summaries = {name: spread(values, ".2f") for name, values in estimates.items()}
    exhibit.show(Table("Intrinsic dimension", {"points": list(summaries), "mean and spread over seeds": list(summaries.values())}))
    return "; ".join(f"{name}: {text}" for name, text in summaries.items())


SHEET = "curved sheet in R^50"
DIMENSIONS = {"Swiss roll in R^3": 2, SHEET: 2, "flat cloud of dimension 1 in R^50": 1, "flat cloud of dimension 5 in R^50": 5}


def _manifolds(seed: int) -> dict[str, Tensor]:
    """About 3000 points of each."""
    roll = load("swiss_roll", seed, n=4200, noise=0.0).train
    draw_from = generator(seed, "sheet")

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw_from, dtype=torch.float64)

    flat, turn = (torch.rand(*shape, generator=draw_from, dtype=torch.float64) for shape in ((3000, 2), (50,)))
    sheet = torch.sin((2 * flat - 1) @ (2 * normal(2, 50)) + 6 * turn)
    clouds = [normal(3000, d) @ normal(d, 50) for d in (1, 5)]
    return dict(zip(DIMENSIONS, (roll[torch.arange(len(roll))].x, sheet, *clouds), strict=True))


def _directions(x: Tensor) -> int:
    """How many principal directions carry over 1 % of the variance each."""
    fraction = torch.linalg.svdvals(x - x.mean(0)).square()
    return int((fraction / fraction.sum() > 0.01).sum())


def mlp_16(exhibit: Exhibit) -> str:
    """A random net with 400 hidden units over a square, with a step at the end and with a sigmoid: four plots."""
    from sklearn.linear_model import LogisticRegression

    side, hidden = 200, 400
    line = torch.linspace(-1, 1, side)
    points = torch.stack(torch.meshgrid(line, line, indexing="ij"), -1).reshape(-1, 2)
    draw_from = exhibit.generator("random net")
    net = MLP((2, hidden, 1), activation="sigmoid")
    with torch.no_grad():
        for parameter, scale in zip(net.parameters(), (9.0, 5.0, 0.5, 0.1), strict=True):
            parameter.copy_(scale * torch.randn(parameter.shape, generator=draw_from))
        inside, score = net.layers[:2](points), net(points)[:, 0]
        score = score - score.mean()  # so that both answers occur
    step, probability = (score > 0).float(), score.double().sigmoid()  # in float32 a score of 17 is a probability of 1
    exhibit.expect("grid points", list(points.shape), [40_000, 2])
    exhibit.expect("hidden values", list(inside.shape), [40_000, 400])
    exhibit.expect("first and last point: the square is [-1, 1]^2", points[[0, -1]], [[-1.0, -1.0], [1.0, 1.0]])
    exhibit.expect("order 'ij': the second coordinate runs first", points[1], [-1.0, -1 + 2 / 199], within=1e-6)
    exhibit.expect("values of the step output", sorted(set(step.tolist())), [0.0, 1.0])
    exhibit.expect("sigmoid outputs that are not strictly between 0 and 1", int(((probability <= 0) | (probability >= 1)).sum()), 0)
    exhibit.expect("both agree where the probability passes one half", int(((probability > 0.5).float() != step).sum()), 0)
    missed = 1 - LogisticRegression(C=1e3).fit(points[::7], step[::7]).score(points, step)
    # On a straight boundary it misses a point in a thousand or none.
    exhibit.above("it is curved: share that a straight boundary gets wrong, as a power of 10", math.log10(max(missed, 1e-5)), -2.6)

    few = torch.arange(0, len(points), 13)
    space = {"x1": points[few, 0], "x2": points[few, 1]}
    levels = [0.0, 0.25, 0.5, 0.75, 1.0]
    bins = [f"{levels[i]:g} to {levels[i + 1]:g}" for i in torch.bucketize(probability[few], torch.tensor(levels[1:-1])).tolist()]
    readings = {
        "step": Plane("Step output", {"y": step.reshape(side, side).T}, axes=["x1", "x2"], x=line, y=line, classes=["0", "1"]),
        "step in space": Scatter("Step output in space", {**space, "y": step[few]}, axes=["x1", "x2", "y"], groups=step[few].int()),
        "sigmoid": Plane("Probability", {"p": probability.reshape(side, side).T}, axes=["x1", "x2"], x=line, y=line, levels=9),
        "sigmoid in space": Scatter("Probability in space", {**space, "p": probability[few]}, axes=["x1", "x2", "p"], groups=bins),
    }
    sizes = []
    for name, reading in readings.items():
        exhibit.show(reading)
        sizes.append(draw(reading, exhibit.folder / f"{name}.png").stat().st_size)
    exhibit.expect("pictures saved", len(list(exhibit.folder.glob("*.png"))), 4)
    exhibit.above("bytes of the smallest", min(sizes), 5000)
    reach = f"p from {float(probability.min()):.3f} to {float(probability.max()):.3f}"
    return f"grid {tuple(points.shape)}, hidden {tuple(inside.shape)}; {float(step.mean()):.0%} ones; {reach}; 4 plots"


def _count(widths: tuple[int, ...]) -> int:
    return sum(parameter.numel() for parameter in MLP(widths).parameters())


def _bends(x: Tensor, y: Tensor) -> Tensor:
    """Where a piecewise linear curve changes its slope: the points with a second difference."""
    return x[1:-1][y.diff(n=2).abs() > 1e-9]
