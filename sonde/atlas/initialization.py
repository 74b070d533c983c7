"""Chapter 8, initialization and gradient flow."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn

from ..core.batch import Data
from ..core.reading import Lines, Plane, Table
from ..core.recipe import Recipe
from ..core.seeds import generator
from ..data.tensors import TensorSource
from ..gradients import mean
from ..gradients.flat import Flat
from ..lenses import flow
from ..lenses.spectrum import spectral_radius
from ..models.mlp import MLP
from ..nn.activations import activation
from ..objectives.categorical import Categorical
from ..optim.build import optimizer
from ..optim.initialize import initialize
from .exhibit import Exhibit


def init_01(exhibit: Exhibit) -> str:
    """A linear unit adds up n_in terms, so its variance is n_in s^2 g^2: weights of three sizes, inputs of three kinds."""
    cases = ((64, 0.1, 1.0, "normal"), (300, 0.05, 2.0, "uniform"), (1000, 0.02, 0.5, "two values"))
    rows = []
    for n_in, s, g, kind in cases:
        layer = nn.Linear(n_in, 2000)
        initialize("normal", std=s)(layer)
        x = g * _inputs(kind, 2000, n_in, exhibit.generator("x", n_in))
        with torch.no_grad():
            o = layer(x).double()
        formula = n_in * s**2 * g**2
        exhibit.expect(f"Var o, n_in={n_in}, s={s}, g={g}, {kind} inputs, over the formula", float(o.var()) / formula, 1.0, within=0.03)
        # 4,000,000 outputs share 2000 weight rows and 2000 inputs; their mean is known to less than a hundredth of their deviation.
        exhibit.below(f"|E o| in standard deviations, n_in={n_in}", abs(float(o.mean())) / math.sqrt(formula), 0.005)
        rows.append((n_in, s, g, kind, float(o.var()), formula))
    columns = ("n_in", "s", "g", "inputs", "measured variance", "n_in s^2 g^2")
    table = dict(zip(columns, map(list, zip(*rows, strict=True)), strict=True))
    exhibit.show(Table("Variance of a linear unit", table, note="4,000,000 outputs each."))
    worst = max(abs(measured / formula - 1) for *_, measured, formula in rows)
    return f"variance n_in s^2 g^2 to within {worst:.1%} for three (n_in, s, g)"


def _inputs(kind: str, rows: int, columns: int, draw: torch.Generator) -> Tensor:
    """Inputs with mean 0 and variance 1 of different distributions."""
    if kind == "normal":
        return torch.randn(rows, columns, generator=draw)
    if kind == "uniform":
        return math.sqrt(12) * (torch.rand(rows, columns, generator=draw) - 0.5)
    return 2.0 * torch.randint(0, 2, (rows, columns), generator=draw) - 1


def init_02(exhibit: Exhibit) -> str:
    """Fan-in keeps signals, fan-out keeps gradients, Xavier stands between; in a tanh net the variance falls like 1/(2 depth)."""
    n_in, n_out = 700, 300
    targets = {"fan_in": 1 / n_in, "fan_out": 1 / n_out, "xavier": 2 / (n_in + n_out)}
    for name, target in targets.items():
        for distribution in ("normal", "uniform"):
            weight = _fill(name, n_in, n_out, distribution=distribution)
            exhibit.expect(f"{name}, {distribution}: variance over the formula", float(weight.var()) / target, 1.0, within=0.02)
    bound = math.sqrt(6 / (n_in + n_out))
    edge = float(_fill("xavier", n_in, n_out, distribution="uniform").abs().max())
    exhibit.expect("xavier, uniform: largest entry against sqrt(6/(n_in+n_out))", edge, bound, within=1e-4)

    # Forward the fan of a layer is n_in, backward n_out: a layer of unequal ends keeps the one it was made for.
    x, back = (torch.randn(2000, size, generator=exhibit.generator("x", size)) for size in (n_in, n_out))
    for name, forward, backward in (("fan_in", 1.0, n_out / n_in), ("fan_out", n_in / n_out, 1.0)):
        weight = _fill(name, n_in, n_out)
        exhibit.expect(f"{name}: variance forward", float((x @ weight.T).var()), forward, within=0.05 * forward)
        exhibit.expect(f"{name}: variance of the gradient", float((back @ weight).var()), backward, within=0.05 * backward)

    depth, width = 20, 512
    lines = {
        act: torch.stack([_variances("xavier", act, depth, width, seed) for seed in _seeds(exhibit, 3)]).mean(0)
        for act in ("identity", "tanh")
    }
    linear = float(lines["identity"][-1])
    exhibit.expect("linear net: variance after 20 layers of 512", linear, 1.0, within=0.15)
    exhibit.expect(
        "tanh net: variance by layer over the recursion Var' = E tanh^2",
        lines["tanh"] / _tanh_recursion(depth),
        torch.ones(depth),
        within=0.1,
    )
    inverse = (1 / lines["tanh"]).numpy()
    slope = float(np.polyfit(np.arange(10, depth + 1), inverse[9:], 1)[0])
    exhibit.expect("tanh net: growth of 1/variance per layer, layers 10 to 20", slope, 2.0, within=0.4)
    fall = float(lines["tanh"][-1] / lines["tanh"][9])
    label = "tanh net: variance of layer 20 over layer 10, and what an exponential that fits layers 1 to 10 would leave"
    exhibit.exceeds(label, fall, _exponential(lines["tanh"]))
    law = [1 / (2 * layer) for layer in range(1, depth + 1)]
    drawn = {"linear": lines["identity"], "tanh": lines["tanh"], "1 / (2 depth)": law}
    note = f"Xavier, width {width}, mean of 3 seeds. One over the variance of the tanh net grows by {slope:.2f} per layer."
    exhibit.show(Lines("Variance by layer", drawn, axes=["layer"], note=note, x=list(range(1, depth + 1)), log=["y"]))
    return f"linear net of 20 x 512 keeps {linear:.2f} of its variance; 1/variance of the tanh net grows by {slope:.2f} a layer"


def _fill(name: str, n_in: int, n_out: int, **settings: str) -> Tensor:
    layer = nn.Linear(n_in, n_out)
    initialize(name, **settings)(layer)
    return layer.weight.detach()


def _tanh_recursion(depth: int) -> Tensor:
    """Variances of an infinitely wide tanh net with s^2 = 1/width: Var' = E tanh(sqrt(Var) z)^2, by Gauss-Hermite quadrature."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(64)
    variances = [1.0]
    for _ in range(depth - 1):
        variances.append(float(weights @ np.tanh(math.sqrt(variances[-1]) * nodes) ** 2 / weights.sum()))
    return torch.tensor(variances, dtype=torch.float64)


def _exponential(variance: Tensor) -> float:
    """Fall over ten further layers if the first ten had been an exponential decay."""
    return float(variance[9] / variance[0]) ** (10 / 9)


def init_03(exhibit: Exhibit) -> str:
    """ReLU drops half of the signal: with s^2 = 1/D the variance halves in each layer, with s^2 = 2/D it stays."""
    width, depth = 512, 50
    few = torch.stack([_variances("fan_in", "relu", depth, width, seed) for seed in _seeds(exhibit, 3)]).mean(0)
    # The first layer sees the inputs themselves; from then on each one sees what ReLU left.
    ratios = few / few[0]
    exhibit.expect("s^2 = 1/D: variance after 1, 2, 3 layers of ReLU", ratios[1:4], [0.5, 0.25, 0.125], within=0.03)
    exhibit.expect("s^2 = 1/D: slope of log variance", _slope(few), math.log(0.5), within=0.05)
    kept = torch.stack([_variances("he_normal", "relu", depth, width, seed) for seed in _seeds(exhibit, 10)])
    slope = float(np.mean([_slope(one) for one in kept]))
    exhibit.expect("s^2 = 2/D: how far 1 + the slope of log variance per layer is from 1, over 50 layers", 1 + slope, 1.0, within=0.03)
    spread = float(np.std([_slope(one) for one in kept]))
    lines = {"s^2 = 2/D": kept.mean(0), "s^2 = 1/D": few}
    note = f"Width {width}, mean of 10 and 3 seeds; slope {slope:+.4f} +/- {spread:.4f} per layer against {math.log(0.5):.2f}."
    exhibit.show(flow.depth_reading("Variance by layer, ReLU", lines, note))
    summary = ", ".join(f"{value:.2f}" for value in ratios[1:4].tolist())
    return f"s^2=1/D: {summary}; s^2=2/D: slope {slope:+.4f} +/- {spread:.4f} per layer over 50 layers"


def _variances(name: str, act: str, depth: int, width: int, seed: int) -> Tensor:
    """Variances (L) before each activation; forward only and one layer at a time, so that width is cheap."""
    x = torch.randn(128, width, generator=generator(seed, "signal"))
    layer = nn.utils.skip_init(nn.Linear, width, width, bias=False)
    fill, function, variances = initialize(name), activation(act), []
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        for _ in range(depth):
            fill(layer)
            f = layer(x)
            variances.append(float(f.double().var()))
            x = function(f)
    return torch.tensor(variances, dtype=torch.float64)


def _seeds(exhibit: Exhibit, n: int) -> range:
    """Seeds of n nets that are drawn, not trained, and averaged."""
    return range(n * exhibit.seed, n * (exhibit.seed + 1))


def _slope(variances: Tensor) -> float:
    y = variances.log().numpy()
    return float(np.polyfit(np.arange(len(y)), y, 1)[0])


def init_04(exhibit: Exhibit) -> str:
    """Units with equal initial weights stay equal: constant initialization gives in effect one unit, which cannot solve XOR."""
    corners = torch.tensor([[0.0, 0], [0, 1], [1, 0], [1, 1]])
    data = Data(TensorSource(corners, torch.tensor([0, 1, 1, 0])))
    starts = {"constant": initialize("constant", value=0.5), "uniform": initialize("uniform", std=0.7)}
    rows: list[tuple[str, int, int, float, float]] = []
    cases = [("constant", exhibit.seed, 100), ("constant", exhibit.seed, 400), *(("uniform", seed, 400) for seed in exhibit.seeds())]
    for name, seed, steps in cases:
        recipe = Recipe(
            model=lambda: MLP((2, 8, 2), activation="tanh"),
            data=data,
            objective=Categorical(classes=2),
            optimizer=optimizer("adam", lr=0.05),
            initialize=starts[name],
            batch_size=4,
            steps=steps,
        )
        model = exhibit.train(recipe, f"{name}-{seed}-{steps}", seed=seed, checkpoint_every=1000).model()
        hidden = model.layers.dense1.weight.detach()
        right = float((model(corners).argmax(1) == torch.tensor([0, 1, 1, 0])).float().mean())
        rows.append((name, seed, steps, float((hidden - hidden[0]).abs().max()), right))
        if steps == 100:
            exhibit.above("constant: how far the rows have moved in 100 steps", float((hidden - 0.5).abs().max()), 0.1)
    same, unsolved, *solved = rows
    exhibit.expect("constant: largest difference between hidden rows after 100 steps", same[3], 0.0)
    exhibit.below("constant: share of XOR that is right after 400 steps", unsolved[4], 0.76)
    exhibit.above("uniform: share of XOR that is right", [row[4] for row in solved], 0.99)
    exhibit.above("uniform: difference between hidden rows", [row[3] for row in solved], 0.1)
    columns = ("start", "seed", "steps", "rows differ by", "XOR right")
    table = dict(zip(columns, map(list, zip(*rows, strict=True)), strict=True))
    exhibit.show(Table("Hidden rows and XOR", table, note="8 hidden units, Adam, all four corners in every batch."))
    return f"constant start: rows differ by {same[3]:g}, XOR {unsolved[4]:.0%} right; bounded random start: 100 %, {len(solved)} seeds"


def init_05(exhibit: Exhibit) -> str:
    """Products of many matrices follow the spectral radius: below 1 they vanish, above they explode; a rotation spirals."""
    n, many, steps = 64, 50, 200
    draw = exhibit.generator("matrices")
    matrices = torch.randn(many, n, n, generator=draw, dtype=torch.float64)
    matrices /= torch.tensor([spectral_radius(one) for one in matrices], dtype=torch.float64)[:, None, None]
    exact = np.abs(np.linalg.eigvals(matrices[:5].numpy())).max(1)
    exhibit.expect("spectral radius after scaling, against numpy", exact, np.ones(5), within=1e-9)
    x = torch.nn.functional.normalize(torch.randn(n, generator=draw, dtype=torch.float64), dim=0)
    orders = torch.stack([torch.randperm(many, generator=draw) for _ in range(8)], 1)
    lines, powers = {}, {}
    for radius in (0.9, 1.0, 1.1):
        lines[f"radius {radius}"] = repeated = _norms((radius * matrices).expand(steps, many, n, n), x.expand(many, n)).median(1).values
        powers[radius] = float(_norms((radius * matrices)[orders], x.expand(8, n))[-1].log10().mean())
        # The first steps also feel the other eigenvalues; the last hundred only the largest.
        growth = float(repeated[-1] / repeated[-101]) ** 0.01
        exhibit.expect(f"growth per step of W^t x at radius {radius}, median of 50 matrices", growth, radius, within=0.01)
    label = "power of ten of the norm after the product of all 50 matrices, mean of 8 orders"
    exhibit.below(f"{label}, radius 0.9", powers[0.9], -3)
    # The radius of a finite random matrix lies a little beyond the circle that most of its eigenvalues fill.
    exhibit.expect(f"{label}, radius 1.0", powers[1.0], 0.0, within=2.0)
    exhibit.above(f"{label}, radius 1.1", powers[1.1], 0.0)

    layers = nn.ModuleList(nn.Linear(n, n, bias=False).double() for _ in range(many))
    initialize("orthogonal")(layers)
    turned = _norms(torch.stack([layer.get_parameter("weight").detach() for layer in layers]).unsqueeze(1), x.expand(1, n))
    exhibit.expect("norm after each of 50 orthogonal matrices", turned[:, 0], torch.ones(many + 1), within=1e-12)

    angle, shrink = 2 * math.pi / 12, 0.97
    turn = shrink * torch.tensor([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]], dtype=torch.float64)
    exhibit.expect("spectral radius of the scaled rotation", spectral_radius(turn), shrink, within=1e-12)
    path = [torch.tensor([1.0, 0.0], dtype=torch.float64)]
    for _ in range(120):
        path.append(turn @ path[-1])
    spiral = torch.stack(path)
    heights = (spiral[:, 1] / shrink ** torch.arange(121)).numpy()
    period = 120 / int(np.abs(np.fft.rfft(heights[:120])).argmax())
    exhibit.expect("period of the spiral in steps, 2 pi / angle", period, 2 * math.pi / angle, within=1e-9)
    exhibit.expect("after one period: the same direction, shorter", spiral[12], [shrink**12, 0.0], within=1e-12)
    note = f"The same matrix {steps} times, median over 50 random {n} x {n} matrices scaled to the same radius."
    exhibit.show(Lines("Norm of W^t x", lines, axes=["steps"], note=note, log=["y"]))
    grid = torch.linspace(-1.1, 1.1, 45, dtype=torch.float64)
    distance = (grid[:, None].square() + grid.square()).sqrt()
    caption = f"A rotation by {math.degrees(angle):.0f} degrees that shrinks by {shrink}; the circles are lengths."
    exhibit.show(
        Plane(
            "Complex eigenvalues: a spiral",
            {"length": distance},
            axes=["x", "y"],
            note=caption,
            x=grid,
            y=grid,
            levels=[0.25, 0.5, 0.75, 1.0],
            paths={"W^t x": spiral},
        )
    )
    norms = ", ".join(f"10^{power:.2f}" for power in powers.values())
    return f"product of 50 matrices of radius 0.9, 1.0, 1.1: norm {norms}; orthogonal 1; the rotation turns once in {period:.0f} steps"


def _norms(matrices: Tensor, x: Tensor) -> Tensor:
    """Norms (T + 1, S) of vectors (S, n) under T matrices (T, S, n, n) one after another."""
    norms = [x.norm(dim=-1)]
    for one in matrices:
        x = (one @ x.unsqueeze(-1)).squeeze(-1)
        norms.append(x.norm(dim=-1))
    return torch.stack(norms)


def init_06(exhibit: Exhibit) -> str:
    """A gradient that is too long is shortened, never turned: g' = min(1, c / norm(g)) g."""
    pair = nn.ParameterList([nn.Parameter(torch.zeros(1, dtype=torch.float64)) for _ in range(2)])
    exhibit.expect("(3, 4) clipped to 1", _clip(pair, [torch.tensor([3.0]), torch.tensor([4.0])], 1.0), [0.6, 0.8], within=1e-11)
    exhibit.expect("(3, 4) clipped to 10", _clip(pair, [torch.tensor([3.0]), torch.tensor([4.0])], 10.0), [3.0, 4.0])

    lengths, after, cosines, gaps = np.logspace(-2, 2, 25), [], [], []
    for length in lengths:
        model = MLP((7, 5, 3)).double()
        gradients = [torch.randn(p.shape, generator=exhibit.generator("g", i)).double() for i, p in enumerate(model.parameters())]
        whole = torch.cat([g.flatten() for g in gradients])
        gradients = [g * (length / whole.norm()) for g in gradients]
        for p, g in zip(model.parameters(), gradients, strict=True):
            p.grad = g.clone()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        theirs = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
        ours = torch.tensor(_clip(model, gradients, 1.0), dtype=torch.float64)
        gaps.append(float((ours - theirs).abs().max()))
        after.append(float(ours.norm()))
        cosines.append(float(torch.cosine_similarity(ours, whole, dim=0)))
    exhibit.expect("cosine with the gradient before, 25 lengths from 0.01 to 100", cosines, np.ones(25), within=1e-12)
    exhibit.expect("norm afterwards: min(norm, 1)", after, np.minimum(lengths, 1.0), within=1e-10)
    # torch adds 1e-6 to the norm it divides by, we add 1e-12.
    exhibit.below("largest difference from torch.nn.utils.clip_grad_norm_", max(gaps), 2e-6)
    lines = {"clipped to 1": after, "as it was": lengths}
    exhibit.show(Lines("Length of a gradient", lines, axes=["before"], x=lengths, log=["x", "y"]))
    return f"(3,4) -> (0.6, 0.8); direction kept to 1e-12; torch's clip differs by {max(gaps):.1e}"


def _clip(model: nn.Module, gradients: list[Tensor], largest: float) -> list[float]:
    """Gradients after the engine's clipping, in the order of the parameters."""
    flat = Flat(model)
    for slot, gradient in zip(flat.slots, gradients, strict=True):
        flat.grad[slot.start : slot.stop] = gradient.flatten()
    mean.clip(flat, mean.norm(flat), largest)
    return torch.cat([flat.grad[slot.start : slot.stop] for slot in flat.slots]).tolist()


def init_07(exhibit: Exhibit) -> str:
    """Fifty layers, each remedy alone against sigmoid with N(0, 0.01): what comes back to the first layer."""
    depth, width = 50, 128
    small, variance = initialize("normal", std=0.01), initialize("normal", std=0.1)
    cases = {
        "sigmoid, N(0, 0.01)": (small, "sigmoid", "plain"),
        "ReLU": (small, "relu", "plain"),
        "leaky ReLU": (small, "leaky_relu", "plain"),
        "Xavier": (initialize("xavier"), "sigmoid", "plain"),
        "residual": (small, "sigmoid", "residual"),
        "norm": (small, "sigmoid", "norm"),
        "ReLU and He": (initialize("he_normal"), "relu", "plain"),
        "all of them": (initialize("he_normal"), "relu", "residual and norm"),
    }
    seeds = _seeds(exhibit, 3)
    flows = {
        name: [flow.deep_flow(flow.weights([start], depth, width, seed), act, remedy, seed) for seed in seeds]
        for name, (start, act, remedy) in cases.items()
    }
    each = {name: [float(one.ratio().log10()) for one in runs] for name, runs in flows.items()}
    powers = {name: float(np.mean(values)) for name, values in each.items()}
    bare = powers.pop("sigmoid, N(0, 0.01)")
    exhibit.below("largest deviation of a power over 3 seeds", max(float(np.std(values, ddof=1)) for values in each.values()), 1.0)
    exhibit.below("sigmoid + N(0, 0.01): first over last gradient, power of ten", bare, -60)
    for name, power in powers.items():
        exhibit.above(f"{name}: orders of magnitude gained", power - bare, 10)
    for name in ("ReLU and He", "all of them", "residual"):
        exhibit.below(f"{name}: orders of magnitude between first and last layer", abs(powers[name]), 3)
    other = float(flow.deep_flow(flow.weights([variance], depth, width, exhibit.seed), "sigmoid", seed=exhibit.seed).ratio().log10())
    exhibit.below("with 0.01 read as the variance it vanishes too, power of ten", other, -20)
    weights = {
        name: float(np.mean([float((one.in_weights[0, 0] / one.in_weights[0, -1]).log10()) for one in runs]))
        for name, runs in flows.items()
    }
    for name in powers:
        exhibit.above(f"{name}: orders gained by the gradient in the weights", weights[name] - weights["sigmoid, N(0, 0.01)"], 10)
    note = f"Standard normal inputs, {depth} layers of {width} units; the loss is a random direction of the output."
    exhibit.show(
        flow.depth_reading("Gradient by layer and remedy", {name: runs[0].gradient[0] for name, runs in flows.items()}, note, back=True)
    )
    table = {"layer": list(range(1, depth + 1)), **{name: runs[0].in_weights[0] for name, runs in flows.items()}}
    exhibit.show(
        Table(
            "Norm of the gradient in the weights of each layer",
            table,
            note="The same for a run of your own: `sonde look RUN flow`.",
        )
    )
    spread = {
        "case": list(each),
        "mean": [np.mean(values) for values in each.values()],
        "deviation": [np.std(values, ddof=1) for values in each.values()],
    }
    exhibit.show(Table("First over last gradient, power of ten", spread, note="3 seeds; the plots show the first."))
    gained = ", ".join(f"{name} {power:+.0f} +/- {np.std(each[name], ddof=1):.1f}" for name, power in powers.items())
    return f"first/last gradient of 50 layers, 3 seeds: 10^{bare:.0f} with sigmoid and N(0, 0.01); {gained}"
