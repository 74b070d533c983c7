"""Chapter 3, activations: what each does to a number and to a gradient, and which belongs at the end of a network."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from ..core.batch import Batch, Data
from ..core.reading import Heat, Lines, Reading, Subject, Table
from ..core.recipe import Recipe
from ..core.seeds import generator
from ..data.tensors import TensorSource
from ..models.heads import LINKS, TASKS, OddPair, head, likelihoods_of, mismatch, objective_class
from ..models.mlp import MLP
from ..nn import activations
from ..nn.activations import Activation, Interval, activation, describe, forget, formula, measure, names, register
from ..objectives.gaussian import Gaussian
from ..optim.build import optimizer
from ..optim.initialize import initialize
from .exhibit import Exhibit, spread

GRID = torch.linspace(-6, 6, 1201).double()


def act_01(exhibit: Exhibit) -> str:
    """The step function passes no gradient, so what lies before it cannot be trained; the identity passes all of it."""
    step, identity = activation("step"), activation("identity")
    a = torch.cat([GRID, torch.tensor([-1e9, -1e-300, 0.0, 1e-300, 1e9]).double()])
    exhibit.expect("step of -2, -1, 0, 1, 2", step(torch.tensor([-2.0, -1, 0, 1, 2])), [0, 0, 1, 1, 1])
    exhibit.expect("step against NumPy's", step(a), np.heaviside(a.numpy(), 1.0))
    exhibit.expect("step at 0 with at_zero 1, 0, 0.5", [activation("step", at_zero=v)(torch.zeros(())) for v in (1, 0, 0.5)], [1, 0, 0.5])
    exhibit.expect("gradient through the step, everywhere", _slope(step, a), torch.zeros(len(a)))
    exhibit.expect("values of the identity", identity(a).clone(), a)
    exhibit.expect("gradient through the identity, everywhere", _slope(identity, a), torch.ones(len(a)))
    exhibit.expect("a step of NaN is NaN", bool(step(torch.tensor([math.nan])).isnan().all()), True)

    norms = {name: _hidden_gradient(name, exhibit.seed) for name in ("step", "identity", "sigmoid")}
    exhibit.expect("gradient norm of a hidden layer before a step", norms["step"], 0.0)
    for name in ("identity", "sigmoid"):
        exhibit.above(f"the same before {name}, as a power of 10", math.log10(norms[name]), -1.5)
    exhibit.show(_curves("Step and identity", {"step": step, "identity": identity}, reach=2))
    return f"gradient 0 at all {len(a)} points of the step, 1 at all of the identity; hidden layer before a step: {norms['step']:g}"


def act_02(exhibit: Exhibit) -> str:
    """Sigmoid and tanh: their identities, largest slopes, and no overflow."""
    from scipy.special import expit

    sigmoid, tanh = activation("sigmoid"), activation("tanh")
    a, e = GRID.numpy(), np.exp(GRID.numpy())
    gaps = [
        exhibit.expect("sigmoid against SciPy", sigmoid(GRID), expit(a), within=1e-12),
        exhibit.expect("sigmoid as 1 / (1 + e^-a)", sigmoid(GRID), 1 / (1 + 1 / e), within=1e-12),
        exhibit.expect("its derivative as s (1 - s)", _slope(sigmoid, GRID), expit(a) * (1 - expit(a)), within=1e-12),
        exhibit.expect("tanh as 2 s(2a) - 1", tanh(GRID), 2 * expit(2 * a) - 1, within=1e-12),
        exhibit.expect("tanh as (e^a - e^-a) / (e^a + e^-a)", tanh(GRID), (e - 1 / e) / (e + 1 / e), within=1e-12),
        exhibit.expect("its derivative as 1 - tanh^2", _slope(tanh, GRID), 1 - np.tanh(a) ** 2, within=1e-12),
    ]
    slopes = {name: _slope(module, GRID).max().item() for name, module in (("sigmoid", sigmoid), ("tanh", tanh))}
    exhibit.expect("largest slope of the sigmoid", slopes["sigmoid"], 0.25, within=1e-12)
    exhibit.expect("largest slope of tanh", slopes["tanh"], 1.0, within=1e-12)
    far = torch.tensor([-1000.0, 1000.0])
    exhibit.expect("sigmoid at -1000 and 1000", sigmoid(far), [0, 1])
    exhibit.expect("tanh at -1000 and 1000", tanh(far), [-1, 1])
    exhibit.expect("slopes there", torch.stack([_slope(sigmoid, far), _slope(tanh, far)]), torch.zeros(2, 2))
    exhibit.show(_curves("Sigmoid and tanh", {"sigmoid": sigmoid, "tanh": tanh}))
    exhibit.show(_slopes("Their slopes", {"sigmoid": sigmoid, "tanh": tanh}))
    return f"identities to {max(gaps):.0e}; largest slopes {slopes['sigmoid']:g} and {slopes['tanh']:g}; finite at +/-1000"


def act_03(exhibit: Exhibit) -> str:
    """ReLU and its leaky form, from ReLU (slope 0) to the identity (slope 1)."""
    relu, a = activation("relu"), GRID.numpy()
    exhibit.expect("ReLU as max(a, 0)", relu(GRID), np.maximum(a, 0))
    exhibit.expect("its derivative: 1 above 0, else 0", _slope(relu, GRID), (a > 0).astype(float))
    at_zero = _slope(relu, torch.zeros(1)).item()
    exhibit.expect("its derivative at exactly 0", at_zero, 0.0)
    for slope in (0.01, 0.2):
        leaky = activation("leaky_relu", slope=slope)
        exhibit.expect(f"leaky ReLU of {slope}", leaky(GRID), np.maximum(a, 0) + slope * np.minimum(a, 0), within=1e-15)
        exhibit.expect(f"its derivative at -1, 1 with {slope}", _slope(leaky, torch.tensor([-1.0, 1.0]).double()), [slope, 1], within=1e-12)
    exhibit.expect("leaky ReLU of slope 0 is ReLU", activation("leaky_relu", slope=0)(GRID), relu(GRID))
    exhibit.expect("leaky ReLU of slope 1 is the identity", activation("leaky_relu", slope=1)(GRID), GRID)
    exhibit.expect("ReLU is bounded only below: ReLU(1e6)", relu(torch.tensor(1e6)), 1e6)
    exhibit.below("tanh is bounded above too: tanh(1e6)", activation("tanh")(torch.tensor(1e6)), 1 + 1e-12)
    exhibit.refuses("a slope of 2", lambda: activation("leaky_relu", slope=2))
    kinds = {f"slope {slope:g}": activation("leaky_relu", slope=slope) for slope in (0, 0.1, 0.5, 1)}
    exhibit.show(_curves("Leaky ReLU from ReLU to the identity", kinds, reach=2))
    return f"derivative at 0 is {at_zero:g}; slope 0 equals ReLU and slope 1 the identity exactly"


def act_04(exhibit: Exhibit) -> str:
    """Softplus and ELU: smooth versions of ReLU that do not overflow and do not reach their lower limits."""
    from scipy.special import expit

    softplus, a = activation("softplus"), GRID.numpy()
    exhibit.expect("softplus as log(e^0 + e^a)", softplus(GRID), np.logaddexp(0, a), within=1e-12)
    exhibit.expect("its derivative is the sigmoid", _slope(softplus, GRID), expit(a), within=1e-12)
    far = softplus(torch.tensor([1000.0, -1000.0]))
    exhibit.expect("softplus at 1000 and -1000", far, [1000, 0])
    for alpha in (1.0, 0.7, 2.0):
        known = describe("elu", alpha=alpha)
        values = np.maximum(a, 0) + np.minimum(alpha * (np.exp(a) - 1), 0)
        exhibit.expect(f"ELU with alpha {alpha}", known.module(GRID), values, within=1e-12)
        exhibit.expect(
            f"its derivative with alpha {alpha}", _slope(known.module, GRID), np.where(a > 0, 1, alpha * np.exp(a)), within=1e-12
        )
        measurement = measure(known)
        exhibit.expect(f"its range with alpha {alpha}", str(known.range), f"(-{alpha:g}, inf)")
        exhibit.expect(f"and measured: above -{alpha}, as near as 1e-4, and growing without end", measurement.inside, True)
    exhibit.expect("a whole line as its range, as printed, does not hold", measure(Activation(activation("elu"), Interval())).inside, False)
    shown = {"softplus": softplus, "ELU": activation("elu"), "ReLU": activation("relu")}
    exhibit.show(_curves("Smooth relatives of ReLU", shown, reach=4))
    exhibit.show(_slopes("Their slopes", shown, reach=4))
    return f"softplus(1000) = {far[0].item():g}; ELU fills (-alpha, inf) for alpha 1, 0.7 and 2"


def act_05(exhibit: Exhibit) -> str:
    """Swish, GELU and sine: the two minima, the quick form of GELU, and their ranges."""
    from scipy.optimize import minimize_scalar
    from scipy.special import expit
    from scipy.stats import norm

    a = GRID.numpy()
    exhibit.expect("swish as a s(a)", activation("swish")(GRID), a * expit(a), within=1e-12)
    exhibit.expect("GELU as a Phi(a)", activation("gelu")(GRID), a * norm.cdf(a), within=1e-12)
    exhibit.expect("sine", activation("sine")(GRID), np.sin(a), within=1e-12)
    exhibit.expect("slope of GELU as Phi(a) + a phi(a)", _slope(activation("gelu"), GRID), norm.cdf(a) + a * norm.pdf(a), within=1e-12)
    minima = {}
    for name, value, position in (("swish", -0.27846, -1.27846), ("gelu", -0.16997, -0.75179)):
        module = activation(name)
        lowest = minimize_scalar(lambda a, m=module: m(torch.tensor(a)).item(), bounds=(-4, 0), method="bounded", options={"xatol": 1e-9})
        minima[name] = lowest.fun
        # Five printed digits: half a unit of the last one.
        exhibit.expect(f"minimum of {name}", lowest.fun, value, within=6e-6)
        exhibit.expect(f"where {name} has it", lowest.x, position, within=2e-5)
        known = describe(name)
        exhibit.expect(f"range of {name} begins there", known.range.low, lowest.fun, within=1e-9)
        exhibit.expect(f"range of {name} as measured", measure(known).inside, True)
    printed = [measure(Activation(activation(name), Interval())).inside for name in ("swish", "gelu")]
    exhibit.expect("a whole line as the range of swish and GELU, as printed, does not hold", printed, [False, False])
    quick = (activation("gelu_tanh")(GRID) - activation("gelu")(GRID)).abs().max().item()
    exhibit.below("tanh form of GELU, largest difference", quick, 1e-3)
    exhibit.above("and it is another function", quick, 1e-5)
    shown = {name: activation(name) for name in ("swish", "gelu", "sine")}
    exhibit.show(_curves("Swish, GELU, sine", shown, reach=4))
    exhibit.show(_slopes("Their slopes", shown, reach=4))
    return f"minima {minima['swish']:.5f} and {minima['gelu']:.5f}; tanh form of GELU within {quick:.1e}"


def act_06(exhibit: Exhibit) -> str:
    """Softmax and its full Jacobian, whose off-diagonal entries are not zero."""
    from scipy.special import expit
    from scipy.special import softmax as outside

    known = describe("softmax")
    softmax = known.module
    z = torch.randn(6, 5, generator=exhibit.generator("scores")).double()
    exhibit.expect("softmax against SciPy", softmax(z), outside(z.numpy(), axis=1), within=1e-12)
    exhibit.expect("sums over the classes", softmax(z).sum(1), torch.ones(6), within=1e-12)
    exhibit.expect("shifted by 7.5", softmax(z + 7.5), softmax(z), within=1e-12)
    large = softmax(torch.tensor([1e4, 1e4 - 1, -1e4]).double())
    exhibit.expect("at scores of 1e4", large, [expit(1.0), expit(-1.0), 0], within=1e-12)
    pair = softmax(torch.stack([GRID, torch.zeros_like(GRID)], 1))[:, 0]
    exhibit.expect("two classes (z, 0): sigmoid(z)", pair, expit(GRID.numpy()), within=1e-12)

    claimed = known.derivative(z)  # type: ignore[misc]
    small = 1e-5
    moves = torch.eye(5).double() * small
    # Central differences of a smooth function: an error of small^2 / 6, and rounding of a few 1e-16 / small.
    measured = torch.stack([(softmax(z + move) - softmax(z - move)) / (2 * small) for move in moves], -1)
    gap = exhibit.expect("Jacobian s_i (delta_ij - s_j) against finite differences", claimed, measured, within=1e-9)
    automatic = torch.func.vmap(torch.func.jacrev(softmax))(z)
    exhibit.expect("the same from autograd", automatic, measured, within=1e-9)
    s = softmax(z)
    printed = torch.diag_embed(s * (1 - s))
    missed = (printed - measured).abs().max().item()
    exhibit.above("s_i (1 - s_i) on the diagonal alone misses by", missed, 0.02)
    exhibit.expect("rows of the Jacobian sum to 0, because the outputs sum to 1", measured.sum(1), torch.zeros(6, 5), within=1e-9)
    labels = [f"class {i}" for i in range(5)]
    heat = {"ds_i / dz_j": measured[0].round(decimals=3)}
    exhibit.show(Heat("Jacobian of softmax", heat, axes=["output", "score"], rows=labels, columns=labels))
    return f"Jacobian right to {gap:.0e}; the diagonal alone is off by {missed:.2f}"


def act_07(exhibit: Exhibit) -> str:
    """Twenty layers of sigmoids kill the gradient of the first one; ReLU with He's weights does not."""
    depth, seeds = 20, exhibit.seeds(3)
    ratios: dict[str, list[float]] = {}
    shown: dict[str, list[float]] = {}
    for name, rule in (("sigmoid", "xavier_normal"), ("tanh", "xavier_normal"), ("relu", "he_normal")):
        runs = [_gradients(name, rule, depth, seed) for seed in seeds]
        ratios[name] = [norms[0] / norms[-1] for norms in runs]
        shown[f"{name}, {rule}"] = runs[0]
    # Products of twenty factors: their logarithms are what spreads evenly.
    powers = {name: np.log10(values).tolist() for name, values in ratios.items()}
    less = [relu - sigmoid for relu, sigmoid in zip(powers["relu"], powers["sigmoid"], strict=True)]
    exhibit.above("first / last gradient of ReLU over that of the sigmoid, as a power of 10", less, 9.0)
    exhibit.above("first / last gradient of ReLU, as a power of 10", powers["relu"], -2.0)
    # Each sigmoid multiplies by at most 1/4, and Xavier's weights keep the size of what they pass on.
    exhibit.below("first / last gradient of the sigmoid, as a power of 10", powers["sigmoid"], -(depth - 4) * math.log10(4))
    ends = {name: [activation(name)(torch.tensor(a)).item() for a in (-20.0, 20.0)] for name in ("sigmoid", "tanh")}
    exhibit.expect("sigmoid saturates at", ends["sigmoid"], [0, 1], within=1e-8)
    exhibit.expect("tanh saturates at", ends["tanh"], [-1, 1], within=1e-8)
    far = torch.tensor([10.0])
    slopes = {name: _slope(activation(name), far).item() for name in ("sigmoid", "tanh", "relu")}
    exhibit.below("slope of the sigmoid at 10", slopes["sigmoid"], 5e-5)
    exhibit.below("slope of tanh at 10", slopes["tanh"], 1e-8)
    exhibit.expect("slope of ReLU at 10", slopes["relu"], 1.0)
    exhibit.show(Lines("Gradient norm by layer", shown, axes=["layer"], x=list(range(1, depth + 1)), log=["y"]))
    sigmoid, relu = spread(ratios["sigmoid"], ".1e"), spread(ratios["relu"], ".2f")
    return f"first / last: sigmoid {sigmoid}, ReLU {relu}; {10 ** min(less):.0e} times less"


def act_08(exhibit: Exhibit) -> str:
    """All activations with range and derivative as measured, one of the reader's own among them, and the head for each task."""
    from ..report.draw import draw

    register(mish)
    try:
        known = {name: describe(name) for name in names()}
        measurements = {name: measure(kind) for name, kind in known.items()}
        columns = {
            "name": list(known),
            "definition": [formula(name) for name in known],
            "range": [str(kind.range) for kind in known.values()],
            "seen on [-16, 16]": [f"{m.low:.4g} to {m.high:.4g}" for m in measurements.values()],
            "derivative": [kind.slope for kind in known.values()],
            "off by": [m.gap for m in measurements.values()],
        }
    finally:
        forget("mish")
    exhibit.expect("activations of the notes that are missing", ", ".join({*GALLERY} - {*known}) or "none", "none")
    exhibit.expect("the reader's own comes last", list(known)[-1], "mish")
    exhibit.expect("and is gone when taken back", "mish" in names(), False)
    exhibit.expect("ranges that do not hold", ", ".join(name for name, m in measurements.items() if not m.inside) or "none", "none")
    worst = max(m.gap for m in measurements.values())
    exhibit.below("largest gap between a derivative and autograd's", worst, 1e-12)
    wrong = Activation(nn.Sigmoid(), Interval(-1, 1), "1 - g^2", lambda a: 1 - a.sigmoid() ** 2)
    exhibit.expect("a wrong range is noticed", measure(wrong).inside, False)
    exhibit.above("a wrong derivative is noticed, by a gap of", measure(wrong).gap, 0.5)
    exhibit.refuses("a name of Sonde's own is not overwritten", lambda: register(activations.relu))
    exhibit.show(Table("Activations", columns))
    for title, members in PLOTS.items():
        shown = {name: (activation(name) if name in names() else mish().module) for name in members}
        reading = _curves(title, shown, reach=4)
        exhibit.show(reading)
        written = draw(reading, exhibit.folder / f"{members[0]}.png").read_bytes()
        exhibit.expect(f"the plot '{title}' is saved as PNG", written[:8], b"\x89PNG\r\n\x1a\n")

    _heads(exhibit)
    floor, errors = _negative_targets(exhibit)
    # A theorem, not a tendency: no output that is not negative comes below the floor; only rounding could.
    under = sum(error < floor * (1 - 1e-5) for error in errors["relu"])
    exhibit.expect("ReLU output: nets below the floor of all that is not negative", under, 0)
    exhibit.below("no activation: error against that floor", [error / floor for error in errors["identity"]], 0.02)
    summary = ", ".join(f"{name} {spread(values, '.4f')}" for name, values in errors.items())
    return f"{len(known)} activations, derivatives to {worst:.0e}; error on negative targets: {summary} (floor {floor:.4f})"


GALLERY = ("step", "identity", "sigmoid", "tanh", "relu", "leaky_relu", "softplus", "elu", "silu", "gelu", "gelu_tanh", "sine", "softmax")
PLOTS = {
    "Bounded": ("step", "sigmoid", "tanh", "sine"),
    "With corners": ("identity", "relu", "leaky_relu"),
    "Smooth": ("softplus", "elu", "silu", "gelu", "mish"),
}


def mish() -> Activation:
    """a tanh(log(1 + e^a))."""

    def slope(a: Tensor) -> Tensor:
        t = torch.tanh(torch.logaddexp(a, torch.zeros_like(a)))
        return t + a * (1 - t**2) * a.sigmoid()

    return Activation(nn.Mish(), Interval(-0.30884341301725041, math.inf, "[)"), "t + a (1 - t^2) sigmoid(a), t the tanh", slope)


def _heads(exhibit: Exhibit) -> None:
    """The head of each task as the notes pair them, and warnings for pairs that do not belong together."""
    pairs = {"binary": "sigmoid", "classes": "softmax", "positive": "softplus", "real": "nothing"}
    raw = np.array([[0.3, -1.2, 2.0]])
    by_hand = {
        "sigmoid": 1 / (1 + np.exp(-raw)),
        "softmax": np.exp(raw) / np.exp(raw).sum(),
        "softplus": np.log1p(np.exp(raw)),
        "nothing": raw,
    }
    for task, expected in pairs.items():
        output_head = head(task, 3)
        applied = next((name for name in (_link(output_head.objective), output_head.activation) if name != "identity"), "nothing")
        exhibit.expect(f"{task}: what stands at the output", applied, expected)
        seen = output_head.likelihood().predict(activation(output_head.activation)(torch.tensor(raw)))
        exhibit.expect(f"{task}: predictions from raw outputs 0.3, -1.2, 2", seen, by_hand[expected], within=1e-12)
    losses = {task: head(task, 3).objective for task in pairs}
    exhibit.expect("likelihoods by task", list(losses.values()), ["bernoulli", "categorical", "gaussian", "gaussian"])
    exhibit.expect("least absolute error is at home with real targets too", mismatch("real", "identity", "laplace") or "yes", "yes")
    exhibit.expect("ReLU is at home with positive targets", mismatch("positive", "relu", "gaussian") or "yes", "yes")

    strange = (
        ("binary", "sigmoid", None),
        ("classes", "softmax", None),
        ("real", "relu", None),
        ("real", "tanh", None),
        ("binary", None, "gaussian"),
    )
    texts = []
    for task, end, objective in strange:
        with warnings.catch_warnings(record=True) as records:
            warnings.simplefilter("always")
            head(task, 2, end, objective)
        name = f"{task} with {end or objective}"
        exhibit.expect(f"{name}: warnings", [w.category is OddPair for w in records], [True])
        texts.append(str(records[0].message))
    with warnings.catch_warnings(record=True) as records:
        warnings.simplefilter("always")
        for task in TASKS:
            head(task, 2)
    exhibit.expect("warnings for the usual heads", len(records), 0)
    twice = LINKS[_link("bernoulli")](describe("sigmoid").range)
    exhibit.expect("a sigmoid of a sigmoid reaches only", list(twice[:2]), [0.5, 1 / (1 + math.exp(-1))], within=1e-12)
    usual = list(TASKS.items())
    columns = {
        "task": [name for name, _ in usual],
        "activation": [task.activation for _, task in usual],
        "likelihood": [" or ".join(likelihoods_of(name)) for name, _ in usual],
        "it adds": [_link(task.objective).replace("identity", "nothing") for _, task in usual],
        "predictions in": [str(task.predictions) for _, task in usual],
    }
    exhibit.show(Table("Output and loss by task", columns, note="Odd, for example: " + "; ".join(texts[:3]) + "."))


def _link(likelihood: str) -> str:
    """The link that a likelihood declares."""
    return objective_class(likelihood).link  # type: ignore[attr-defined]


def _negative_targets(exhibit: Exhibit) -> tuple[float, dict[str, list[float]]]:
    """Mean squared errors on sin(3x), half of it negative, for each seed; and what predicting max(y, 0) would leave."""
    x = torch.linspace(-1, 1, 64)[:, None]
    y = torch.sin(3 * x)

    def model(end: str) -> nn.Module:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", OddPair)
            return nn.Sequential(nn.Linear(1, 16), nn.Tanh(), head("real", 1, end).layer(16))

    errors: dict[str, list[float]] = {}
    for end in ("relu", "identity"):
        for seed in exhibit.seeds(3):
            recipe = Recipe(
                model=partial(model, end),
                data=Data(TensorSource(x, y)),
                objective=Gaussian(),
                optimizer=optimizer("adam", lr=0.05),
                batch_size=64,
                steps=300,
            )
            run = exhibit.train(recipe, f"{end}-{seed}", seed=seed)
            with torch.no_grad():
                errors.setdefault(end, []).append((run.model()(x) - y).square().mean().item())
    return y.clamp(max=0).square().mean().item(), errors


def _slope(module: nn.Module, a: Tensor) -> Tensor:
    """The derivative of an elementwise module by autograd."""
    a = a.clone().requires_grad_()
    return torch.autograd.grad(module(a).sum(), a)[0]


def _curves(title: str, modules: dict[str, nn.Module], reach: float = 6) -> Reading:
    return _plot(title, dict(modules), reach)


def _slopes(title: str, modules: dict[str, nn.Module], reach: float = 6) -> Reading:
    return _plot(title, {name: partial(_slope, module) for name, module in modules.items()}, reach)


def _plot(title: str, functions: dict[str, Callable[[Tensor], Tensor]], reach: float) -> Reading:
    a = torch.linspace(-reach, reach, 241).double()
    return Lines(title, {name: f(a) for name, f in functions.items()}, axes=["a"], x=a)


def _hidden_gradient(name: str, seed: int) -> float:
    """Norm of the loss's gradient in the first layer of a small network."""
    model = MLP((3, 8, 1), activation=name)
    x = torch.randn(20, 3, generator=generator(seed, "x"))
    Gaussian()(model, Batch(x=x, y=x.sum(1))).loss().backward()
    return float(model.layers.dense1.weight.grad.norm())  # type: ignore[union-attr, operator]


def _gradients(name: str, rule: str, depth: int, seed: int) -> list[float]:
    """Gradient norm of each of `depth` layers of 32 units, at the start of training."""
    from ..lenses.gradient_norms import read

    model = MLP((32,) * depth + (1,), activation=name)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        initialize(rule)(model)
    x = torch.randn(64, 32, generator=generator(seed, "x"))
    return list(read(Subject(model, Batch(x=x, y=x[:, 0]), Gaussian())).values["gradient norm"])
