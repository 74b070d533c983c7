"""Chapter 6, differentiation and computation graphs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..core.reading import Heat, Lines, Table
from ..core.seeds import generator
from ..gradients import modes
from ..gradients.check import gradcheck
from ..gradients.graph import Graph, Node, Ref, capture, trace
from ..lenses import backprop
from ..models.mlp import MLP
from .exhibit import Exhibit

EXACT = 1e-10
"""float64 against float64 along different ways: rounding only"""


def _normal(seed: int, word: str, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=generator(seed, "diff", word), dtype=torch.float64)


def diff_01(exhibit: Exhibit) -> str:
    """u = t^2, v = 3t + 1, r = u v: t reaches r along two paths, and their contributions add up."""
    graph = trace(lambda t: t**2 * (3 * t + 1), torch.tensor(2.0, dtype=torch.float64))
    slope = graph.backward()["t"]
    second = graph.gradient("t").gradient("t")
    along = {node.kind: node.adjoint for node in graph}
    exhibit.expect("dr/dt at t = 2 (9 t^2 + 2 t)", slope, 40.0, EXACT)
    exhibit.expect("second derivative at t = 2 (18 t + 2)", second(torch.tensor(2.0, dtype=torch.float64)), 38.0, EXACT)
    exhibit.expect("adjoint of u = t^2, which is v", along["pow"], 7.0, EXACT)
    exhibit.expect("adjoint of v = 3 t + 1, which is u", along["add"], 4.0, EXACT)
    paths = 2 * 2 * float(along["pow"]), 3 * float(along["add"])
    exhibit.expect("the path through u and the path through v", paths, [28.0, 12.0], EXACT)
    exhibit.expect("second derivative as a formula", second.expression(), "18*t + 2")
    exhibit.show(graph.table())
    return f"dr/dt = {float(slope):g} = {paths[0]:g} + {paths[1]:g}; d2r/dt2 = {second.expression()}"


def diff_02(exhibit: Exhibit) -> str:
    """Four stages from R^3 to R^5: the product of their Jacobians is the Jacobian of the whole."""
    a, b = _normal(exhibit.seed, "02 a", 4, 3), _normal(exhibit.seed, "02 b", 5, 6)

    def outer(h: Tensor) -> Tensor:
        return torch.cat([h[:2] * h[2:], h[:2].exp(), h[2:].sin()])

    stages: list[Callable[[Tensor], Tensor]] = [lambda x: a @ x, torch.tanh, outer, lambda h: b @ h]
    x = _normal(exhibit.seed, "02 x", 3)
    product, shapes, at = torch.eye(3, dtype=torch.float64), [], x
    for stage in stages:
        own = modes.jacobian(stage, at)
        shapes.append(list(own.shape))
        product, at = own @ product, stage(at)

    def composition(x: Tensor) -> Tensor:
        for stage in stages:
            x = stage(x)
        return x

    exhibit.expect("sizes of the four Jacobians, outputs x inputs", shapes, [[4, 3], [4, 4], [6, 4], [5, 6]])
    graph = trace(composition, x)
    rows = torch.stack([graph.backward(seed=row)["x"] for row in torch.eye(5, dtype=torch.float64)])
    gap = exhibit.expect("product of Jacobians against the walk over the graph, row by row", product, rows, EXACT)
    exhibit.expect("and against torch.func", product, modes.jacobian(composition, x), EXACT)
    exhibit.expect("row 2 is the gradient of output 2", product[2], modes.gradient(lambda x: composition(x)[2], x), EXACT)
    wrong = modes.jacobian(stages[0], x).T @ modes.jacobian(torch.tanh, a @ x)
    exhibit.expect("in the wrong order the sizes do not even fit", list(wrong.shape) == list(product.shape), False)
    exhibit.show(Heat("J = J4 J3 J2 J1", {"J": product}, axes=["output", "input"]))
    return f"product of 4 Jacobians, {gap:.1g} from the Jacobian of the composition"


class _CountedMatrix:
    """A matrix whose products are counted."""

    def __init__(self, matrix: Tensor) -> None:
        self.matrix, self.multiplies = matrix, 0

    def times(self, v: Tensor) -> Tensor:
        self.multiplies += self.matrix.numel()
        return self.matrix @ v

    def back(self, u: Tensor) -> Tensor:
        self.multiplies += self.matrix.numel()
        return self.matrix.T @ u


def _chain(widths: tuple[int, ...], seed: int) -> tuple[list[_CountedMatrix], Callable[[Tensor], Tensor]]:
    """tanh(W ... tanh(W x)), its matrices and the whole as a plain function."""
    sizes = zip(widths, widths[1:], strict=False)
    layers = [_CountedMatrix(_normal(seed, f"chain {i} {widths}", after, before) / before**0.5) for i, (before, after) in enumerate(sizes)]

    def f(x: Tensor) -> Tensor:
        for layer in layers:
            x = torch.tanh(layer.matrix @ x)
        return x

    return layers, f


def _columns(layers: list[_CountedMatrix], x: Tensor) -> tuple[Tensor, int]:
    """Forward mode by hand: value and tangent travel together, once for each input.  The Jacobian and the passes."""
    tangents = []
    for direction in torch.eye(len(x), dtype=x.dtype):
        value, tangent = x, direction
        for layer in layers:
            value, tangent = torch.tanh(layer.matrix @ value), layer.times(tangent)
            tangent = (1 - value**2) * tangent
        tangents.append(tangent)
    return torch.stack(tangents, 1), len(tangents)


def _rows(layers: list[_CountedMatrix], x: Tensor) -> tuple[Tensor, int]:
    """Reverse mode by hand: values are stored once, then an adjoint travels back for each output."""
    values = []
    for layer in layers:
        x = torch.tanh(layer.matrix @ x)
        values.append(x)
    adjoints = []
    for adjoint in torch.eye(len(x), dtype=x.dtype):
        for layer, value in zip(reversed(layers), reversed(values), strict=True):
            adjoint = layer.back((1 - value**2) * adjoint)
        adjoints.append(adjoint)
    return torch.stack(adjoints), len(adjoints)


def diff_03(exhibit: Exhibit) -> str:
    """J v and u^T J by hand: n columns or m rows give the same Jacobian."""
    layers, f = _chain((7, 6, 4), exhibit.seed)
    x, v, u = _normal(exhibit.seed, "03 x", 7), _normal(exhibit.seed, "03 v", 7), _normal(exhibit.seed, "03 u", 4)
    by_columns, forward = _columns(layers, x)
    by_rows, reverse = _rows(layers, x)
    exhibit.expect("forward passes for n = 7 inputs", forward, 7)
    exhibit.expect("reverse passes for m = 4 outputs", reverse, 4)
    gap = exhibit.expect("Jacobian by columns against by rows", by_columns, by_rows, EXACT)
    h = 1e-6
    moved = [(f(x + h * e) - f(x - h * e)) / (2 * h) for e in torch.eye(7, dtype=x.dtype)]
    # central differences with h = 1e-6: rounding of 1e-16 / h
    exhibit.expect("and against differences", by_columns, torch.stack(moved, 1), 1e-8)
    exhibit.expect("modes.jvp is J v", modes.jvp(f, x, v), by_columns @ v, EXACT)
    exhibit.expect("modes.vjp is u^T J", modes.vjp(f, x, u), u @ by_rows, EXACT)
    exhibit.expect("modes.jacobian, forward", modes.jacobian(f, x, "forward"), by_rows, EXACT)
    exhibit.expect("modes.jacobian, reverse", modes.jacobian(f, x, "reverse"), by_columns, EXACT)
    exhibit.expect("the walk over the graph is u^T J too", trace(f, x).backward(seed=u)["x"], u @ by_columns, EXACT)
    exhibit.show(Heat("One Jacobian, by columns or by rows", {"J": by_columns}, ["output", "input"]))
    return f"{forward} columns and {reverse} rows give one 4 x 7 Jacobian, {gap:.1g} apart"


def diff_04(exhibit: Exhibit) -> str:
    """Few outputs: reverse.  Few inputs: forward.  Multiplications counted, on the traced graph and by hand."""
    table: dict[str, list] = {"chain": [], "columns (forward)": [], "rows (reverse)": [], "choice": []}
    plans = {}
    for widths in ((1000, 10, 10, 1), (1, 10, 1000), (20, 15, 20)):
        layers, f = _chain(widths, exhibit.seed)
        x = _normal(exhibit.seed, f"04 {widths}", widths[0])
        plan = plans[widths] = modes.plan(f, x)
        name, each = " -> ".join(map(str, widths)), sum(a * b for a, b in zip(widths, widths[1:], strict=False))
        entries = sum(widths[1:])
        for layer in layers:
            layer.multiplies = 0
        (_columns if plan.mode == "forward" else _rows)(layers, x)
        exhibit.expect(f"{name}: multiplications of one column (matrices, and one per unit for tanh')", plan.column, each + entries)
        exhibit.expect(f"{name}: multiplications of one row", plan.row, each + entries)
        exhibit.expect(
            f"{name}: products of matrices counted by hand",
            sum(layer.multiplies for layer in layers),
            each * min(plan.inputs, plan.outputs),
        )
        row = (name, plan.forward, plan.reverse, plan.mode)
        for column, cell in zip(table.values(), row, strict=True):
            column.append(cell)
    many, few, square = plans.values()
    exhibit.expect("modes chosen", [many.mode, few.mode], ["reverse", "forward"])
    exhibit.above("1000 -> 10 -> 10 -> 1: how many times cheaper reverse is", many.forward / many.reverse, 100)
    exhibit.above("1 -> 10 -> 1000: how many times cheaper forward is", few.reverse / few.forward, 100)
    exhibit.below("20 -> 15 -> 20: neither is much cheaper", max(square.forward, square.reverse) / min(square.forward, square.reverse), 1.2)
    layers, f = _chain((1000, 10, 10, 1), exhibit.seed)
    exhibit.expect("the plan is followed", list(modes.jacobian(f, _normal(exhibit.seed, "04 x", 1000)).shape), [1, 1000])
    exhibit.show(Table("Multiplications of a whole Jacobian", table, note=f"{many}."))
    gains = many.forward / many.reverse, few.reverse / few.forward
    return f"reverse {gains[0]:.0f} times cheaper for 1000 -> 1, forward {gains[1]:.0f} times for 1 -> 1000"


def _random_graph(seed: int) -> tuple[Callable[[Tensor, Tensor], Tensor], int]:
    """A random function of two vectors in which every value may be used again; how many values are used more than once."""
    draw = generator(seed, "random graph")

    def pick(below: int) -> int:
        return int(torch.randint(below, (1,), generator=draw))

    one = (
        torch.sin,
        torch.tanh,
        torch.sigmoid,
        torch.relu,
        lambda a: a * a,
        lambda a: -a,
        lambda a: (1 + a * a).log(),
        lambda a: a.abs().sqrt(),
    )
    two = (
        torch.add,
        torch.mul,
        torch.sub,
        torch.maximum,
        lambda a, b: a / (1 + b * b),
        lambda a, b: a * b.sum(),
        lambda a, b: torch.where(a > b, a, b * b),
    )
    steps: list[tuple[Any, ...]] = []
    for size in range(2, 14):
        unary = pick(3) == 0
        steps.append((one[pick(len(one))], pick(size)) if unary else (two[pick(len(two))], pick(size), pick(size)))

    def f(x: Tensor, y: Tensor) -> Tensor:
        values = [x, y]
        for act, *indices in steps:
            values.append(act(*(values[index] for index in indices)))
        return torch.stack(values[2:]).mean()

    uses = [index for _, *indices in steps for index in indices]
    return f, sum(uses.count(value) > 1 for value in set(uses))


def diff_05(exhibit: Exhibit) -> str:
    """A walk in reverse topological order, node by node with our own rules, against autograd; a cycle is refused."""
    worst, nodes, shared = 0.0, 0, 0
    for seed in range(50 * exhibit.seed, 50 * (exhibit.seed + 1)):
        f, reused = _random_graph(seed)
        x, y = _normal(0, f"05 x {seed}", 5).requires_grad_(), _normal(0, f"05 y {seed}", 5).requires_grad_()
        graph = trace(f, x, y)
        ours, theirs = graph.backward(), torch.autograd.grad(f(x, y), (x, y), allow_unused=True)
        for name, gradient in zip("xy", theirs, strict=True):
            worst = max(worst, float((ours[name] - (0 if gradient is None else gradient)).abs().max()))
        nodes, shared = nodes + len(graph), shared + reused
    exhibit.below("largest difference from autograd over 50 random graphs", worst, EXACT)
    exhibit.above("values that are used more than once, in all", shared, 100)
    ring = [Node("h", "tanh", (Ref("s"),)), Node("s", "add", (Ref("h"), Ref("x"))), Node("x", "input")]
    exhibit.refuses("a graph with a cycle", lambda: Graph(ring, ["h"]))
    exhibit.refuses("an operation without a rule", lambda: trace(torch.linalg.det, torch.eye(3)).backward())
    chain = Graph([Node("y", "sin", (Ref("s"),)), Node("s", "mul", (Ref("x"), Ref("x"))), Node("x", "input")], ["y"])
    exhibit.expect("nodes given in any order are sorted", list(chain.nodes), ["x", "s", "y"])
    cell, steps = nn.RNNCell(3, 4).double(), _normal(exhibit.seed, "05 steps", 6, 2, 3)

    class Unrolled(nn.Module):
        """Six steps of one cell: the loop becomes a chain, in which the weights are shared."""

        def __init__(self) -> None:
            super().__init__()
            self.cell = cell

        def forward(self, x: Tensor) -> Tensor:
            h = torch.zeros(2, 4, dtype=x.dtype)
            for step in x:
                h = self.cell(step, h)
            return h.square().sum()

    graph = trace(Unrolled(), steps)
    ours = graph.backward()
    theirs = torch.autograd.grad(Unrolled()(steps), list(cell.parameters()))
    exhibit.expect("uses of the recurrent weights", sum("cell.weight_hh" in node.inputs for node in graph), 6)
    for (name, _), gradient in zip(cell.named_parameters(), theirs, strict=True):
        exhibit.expect(f"unrolled recurrence, {name}", ours[f"cell.{name}"], gradient, EXACT)
    small = trace(*_two_paths())
    small.backward()
    exhibit.show(small.table())
    return f"{nodes} nodes in 50 random graphs, {worst:.1g} from autograd; a cycle is refused, an unrolled recurrence is not"


def _two_paths() -> tuple[Callable[[Tensor, Tensor], Tensor], Tensor, Tensor]:
    """The smallest graph with a shared node."""

    def f(x: Tensor, w: Tensor) -> Tensor:
        s = x * w
        return torch.sin(s) + s**2

    return f, torch.tensor(1.5, dtype=torch.float64), torch.tensor(-0.5, dtype=torch.float64)


def diff_06(exhibit: Exhibit) -> str:
    """Captured ahead of time, or traced while it runs: the same gradient, until a branch depends on a value."""

    def smooth(x: Tensor) -> Tensor:
        return (torch.tanh(x) * x).sum()

    def branch(x: Tensor) -> Tensor:
        return x.sin().sum() if x.sum() > 0 else (x**3).sum()

    def data_dependent_loop(x: Tensor) -> Tensor:
        for _ in range(int(x.abs().max())):
            x = x * 1.5
        return x.sum()

    x = _normal(exhibit.seed, "06", 4)
    static, traced = capture(smooth, x).backward()["x"], trace(smooth, x).backward()["x"]
    by_hand = torch.tanh(x) + x * (1 - torch.tanh(x) ** 2)
    gap = exhibit.expect("captured ahead of time: gradient", static, by_hand, EXACT)
    exhibit.expect("traced while running: gradient", traced, by_hand, EXACT)
    positive, negative = x.abs(), -x.abs()
    exhibit.expect("branch on a value, traced where it is positive", trace(branch, positive).backward()["x"], positive.cos(), EXACT)
    exhibit.expect("branch on a value, traced where it is negative", trace(branch, negative).backward()["x"], 3 * negative**2, EXACT)
    for turns in (2, 4):
        there = torch.tensor([0.5, turns + 0.5], dtype=torch.float64)
        counted = trace(data_dependent_loop, there)
        exhibit.expect(f"a loop of {turns} turns has as many products", sum(node.kind == "mul" for node in counted), turns)
    exhibit.refuses("branch on a value, ahead of time", lambda: capture(branch, x))
    exhibit.refuses("loop over a value, ahead of time", lambda: capture(data_dependent_loop, x))
    try:
        capture(branch, x)
        message = ""
    except Exception as error:
        message = str(error)
    exhibit.expect(
        "the message says what, where and what to do",
        all(w in message for w in ("depends on a value", Path(__file__).name, "trace(f, x)")),
        True,
    )
    table = {"function": ["smooth", "branch on a value", "loop over a value"], "ahead of time": ["yes", "refused", "refused"]}
    exhibit.show(Table("What can be captured", {**table, "traced": ["yes", "yes", "yes"]}, note=f"To the branch: {message}."))
    return f"both methods {gap:.1g} from the formula; the branch is refused ahead of time"


def diff_07(exhibit: Exhibit) -> str:
    """A gradient as a number at one place, or as a new graph that can be differentiated again (E-42)."""
    x = torch.tensor(0.7, dtype=torch.float64)
    graph, formulas = trace(torch.sin, x), []
    numeric = graph.backward()[graph.inputs[0]]
    exhibit.expect("symbol to number: cos(0.7)", numeric, 0.7648421872844885, EXACT)
    for _ in range(3):
        graph = graph.gradient()
        formulas.append(graph.expression())
    exhibit.expect(
        "first, second and third derivative of sin",
        [f.replace(trace(torch.sin, x).inputs[0], "x") for f in formulas],
        ["cos(x)", "-sin(x)", "-cos(x)"],
    )
    points = torch.linspace(-3, 3, 25, dtype=torch.float64)
    third = torch.stack([graph(position) for position in points])
    gap = exhibit.expect("the third graph, run at 25 places", third, -points.cos(), EXACT)
    second = trace(lambda x: x.exp() * x**4, x).gradient().gradient()
    exhibit.expect("second derivative of e^x x^4 at 0.7", second(x), x.exp() * (x**4 + 8 * x**3 + 12 * x**2), EXACT)
    net = MLP((3, 4, 1), activation="tanh").double()
    at = _normal(exhibit.seed, "07", 1, 3)
    hessian = modes.hessian(lambda x: net(x).sum(), at).reshape(3, 3)
    slopes = trace(net, at).gradient("x")
    twice = torch.stack([slopes.backward(seed=row)["x"] for row in torch.eye(3, dtype=torch.float64).reshape(3, 1, 3)]).reshape(3, 3)
    exhibit.expect("gradient graph of a network, walked back again: its Hessian", twice, hessian, EXACT)
    lines = {"sin": points.sin(), "first": points.cos(), "third, from the graph": third}
    exhibit.show(Lines("sin and its derivatives", lines, axes=["x", "value"], x=points.tolist()))
    return f"d3/dx3 sin = {formulas[-1]}, {gap:.1g} off at 25 points"


def diff_08(exhibit: Exhibit) -> str:
    """Three hidden layers by hand, in the corrected form of E-23, against autograd and the lens that prints it."""
    widths = (4, 7, 6, 5, 2)
    net = MLP(widths).double()
    x, y = _normal(exhibit.seed, "08 x", widths[0]), _normal(exhibit.seed, "08 y", widths[-1])
    omega = [module.weight.detach() for module in net.modules() if isinstance(module, nn.Linear)]
    beta = [module.bias.detach() for module in net.modules() if isinstance(module, nn.Linear)]
    f, h = [beta[0] + omega[0] @ x], [x]
    for k in range(1, 4):
        h.append(f[-1].relu())
        f.append(beta[k] + omega[k] @ h[k])
    df: list[Tensor] = [torch.empty(0)] * 4
    df[3] = 2 * (f[3] - y)
    by_matrix = df[3]
    for k in range(3, 0, -1):
        df[k - 1] = (f[k - 1] > 0) * (omega[k].T @ df[k])
        by_matrix = torch.diag((f[k - 1] > 0).double()) @ omega[k].T @ by_matrix
        exhibit.expect(f"mask form equals matrix form at f{k - 1}", df[k - 1], by_matrix, EXACT)
    loss = (net(x[None])[0] - y).square().sum()
    theirs = torch.autograd.grad(loss, list(net.parameters()))
    gap = 0.0
    for k in range(4):
        gap = max(gap, exhibit.expect(f"dl/dO{k} = dl/df{k} h{k}^T", torch.outer(df[k], h[k]), theirs[2 * k], EXACT))
        gap = max(gap, exhibit.expect(f"dl/db{k} = dl/df{k}", df[k], theirs[2 * k + 1], EXACT))
    sizes = [[5, 5], list(omega[3].T.shape), [2, 1]]
    measured = [list(torch.diag((f[2] > 0).double()).shape), list(omega[3].T.shape), list(df[3][:, None].shape)]
    exhibit.expect("sizes of the three factors of dl/df2: D3 x D3, D3 x Df, Df x 1", measured, sizes)
    sent = backprop.backward(backprop.forward(net, x[None]), df[3][None])
    lens = {f"{step.name}.{key}": value for step in sent for key, value in step.gradients.items()}
    for (name, _), gradient in zip(net.named_parameters(), theirs, strict=True):
        exhibit.expect(f"lens 'backprop', {name}", lens[name], gradient, EXACT)
    for reading in backprop.read(backprop.tiny()):
        exhibit.show(reading)
    return f"hand backward pass {gap:.1g} from autograd; factors 5 x 5, 5 x 2, 2 x 1"


def diff_09(exhibit: Exhibit) -> str:
    """The delta form for sigmoid units, with squared loss and with cross-entropy."""
    widths = (3, 5, 4, 2)
    net = nn.Sequential(MLP(widths, activation="sigmoid"), nn.Sigmoid()).double()
    dense = [module for module in net.modules() if isinstance(module, nn.Linear)]
    x, y = _normal(exhibit.seed, "09 x", 3), torch.tensor([1.0, 0.0], dtype=torch.float64)
    a, z = [x], []
    for layer in dense:
        z.append(layer.weight.detach() @ a[-1] + layer.bias.detach())
        a.append(torch.sigmoid(z[-1]))

    def slope(z: Tensor) -> Tensor:
        return torch.sigmoid(z) * (1 - torch.sigmoid(z))

    costs: dict[str, tuple[Callable[[Tensor], Tensor], Tensor]] = {
        "squared loss": (lambda out: (out - y).square().sum() / 2, (a[-1] - y) * slope(z[-1])),
        "cross-entropy": (lambda out: nn.functional.binary_cross_entropy(out, y, reduction="sum"), a[-1] - y),
    }
    gap = 0.0
    for name, (cost, delta) in costs.items():
        theirs = torch.autograd.grad(cost(net(x[None])[0]), list(net.parameters()))
        _, at_output = backprop.loss_delta(lambda model, batch, cost=cost: _LossModule(cost(model(batch))), x, a[-1])
        exhibit.expect(f"{name}: grad_a C times s'(z) is the output delta", at_output * slope(z[-1]), delta, EXACT)
        sent = backprop.backward(backprop.forward(net, x[None]), at_output[None])
        lens = [step for step in sent if "weight" in step.gradients]
        for k in range(len(dense) - 1, -1, -1):
            exhibit.expect(f"{name}: dC/db of layer {k + 1} is delta", delta, theirs[2 * k + 1], EXACT)
            outer = delta[:, None] * a[k][None]
            gap = max(gap, exhibit.expect(f"{name}: dC/dw_jk = a_k delta_j, layer {k + 1}", outer, theirs[2 * k], EXACT))
            exhibit.expect(f"{name}: the form of DIFF-08, layer {k + 1}", lens[len(dense) - 1 - k].gradients["weight"], outer, EXACT)
            if k:
                delta = (dense[k].weight.detach().T @ delta) * slope(z[k - 1])
    table = {"layer": [f"{i + 1}" for i in range(3)], "z": [_short(v) for v in z], "a": [_short(v) for v in a[1:]]}
    exhibit.show(Table("Stored in the forward pass", table))
    return f"both losses {gap:.1g} from autograd; with cross-entropy the output delta is a - y"


class _LossModule:
    """The least an objective's result must be for a lens: something with a loss."""

    def __init__(self, value: Tensor) -> None:
        self.value = value

    def loss(self) -> Tensor:
        return self.value


def _short(values: Tensor) -> str:
    return "  ".join(f"{value:.3f}" for value in values.tolist())


def diff_10(exhibit: Exhibit) -> str:
    """What storing and reusing saves: linear in depth against quadratic, two passes against P + 1."""
    depths, width = (2, 4, 8, 16, 32), 6
    counted: dict[str, list[int]] = {"reused": [], "not reused": []}
    for depth in depths:
        layers, _ = _chain((width,) * (depth + 1), exhibit.seed)
        values = [_normal(exhibit.seed, f"10 {depth}", width)]
        for layer in layers:
            values.append(torch.tanh(layer.matrix @ values[-1]))
        for name, reuse in (("reused", True), ("not reused", False)):
            for layer in layers:
                layer.multiplies = 0
            deltas = _deltas(layers, values, reuse)
            counted[name].append(sum(layer.multiplies for layer in layers) // width**2)
            exhibit.expect(f"depth {depth}, {name}: delta of the first layer", deltas[0], modes.gradient(_tail(layers), values[0]), EXACT)
    exhibit.expect("products of a pass that reuses its brackets: L", counted["reused"], list(depths))
    exhibit.expect("products of a pass that does not: L (L + 1) / 2", counted["not reused"], [d * (d + 1) // 2 for d in depths])
    net = MLP((4, 6, 3), activation="tanh").double()
    x, y = _normal(exhibit.seed, "10 x", 9, 4), _normal(exhibit.seed, "10 y", 9, 3)
    loss, theta = modes.of_parameters(net, lambda model: (model(x) - y).square().sum())
    parameters = sum(parameter.numel() for parameter in net.parameters())
    # one-sided differences err by h times the curvature, and h = 1e-8 is as small as rounding allows
    one, two = gradcheck(loss, theta, sides=1, tolerance=1e-4), gradcheck(loss, theta)
    exhibit.expect("forward passes of the naive way, P + 1", one.passes, parameters + 1)
    exhibit.expect("forward passes with central differences, 2 P", two.passes, 2 * parameters)
    exhibit.below("gradient check, one side: relative error", one.error, 1e-4)
    exhibit.below("gradient check, both sides: relative error", two.error, 1e-6)
    exhibit.above("multiplications, naive way over backpropagation", one.multiplies / one.backward_multiplies, parameters / 4)
    forward = trace(_loss_of(net, x, y), x).multiplies
    exhibit.below("multiplications, backpropagation over one forward pass", one.backward_multiplies / forward, 3.0)
    whole = modes.gradient(loss, theta)
    parts = [modes.gradient(modes.of_parameters(net, _one_example(x, y, i))[0], theta) for i in range(9)]
    for name in theta:
        exhibit.expect(f"batch gradient is the sum over examples, {name}", sum(part[name] for part in parts), whole[name], EXACT)
    exhibit.refuses(
        "a gradient with one wrong sign",
        lambda: gradcheck(loss, theta, claim=lambda at: {**whole, "layers.dense1.bias": -whole["layers.dense1.bias"]}),
    )
    exhibit.show(
        Lines(
            "Products of matrices and vectors in one backward pass",
            counted,
            ["depth", "products"],
            x=list(depths),
            log=["x", "y"],
        )
    )
    price = {
        "way": ["backpropagation", "P + 1 passes", "central, 2 P passes"],
        "passes forward": [1, one.passes, two.passes],
        "multiplications": [one.backward_multiplies, one.multiplies, two.multiplies],
        "largest relative error": [0.0, one.error, two.error],
    }
    exhibit.show(Table(f"A gradient with respect to {parameters} parameters", price))
    ratio = one.multiplies / one.backward_multiplies
    saved = f"{counted['reused'][-1]} products against {counted['not reused'][-1]} at depth 32"
    return f"{saved}; naive method {ratio:.0f} times more expensive, error {two.error:.1g}"


def _one_example(x: Tensor, y: Tensor, i: int) -> Callable[[Callable[..., Any]], Tensor]:
    return lambda model: (model(x[i : i + 1]) - y[i : i + 1]).square().sum()


def _loss_of(net: nn.Module, x: Tensor, y: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda at: (net(at) - y).square().sum()


def _tail(layers: list[_CountedMatrix]) -> Callable[[Tensor], Tensor]:
    def f(x: Tensor) -> Tensor:
        for layer in layers:
            x = torch.tanh(layer.matrix @ x)
        return x.sum()

    return f


def _deltas(layers: list[_CountedMatrix], values: list[Tensor], reuse: bool) -> list[Tensor]:
    """dL/dh at the input of every layer; without reuse each is worked out from the loss again."""
    deltas: dict[int, Tensor] = {}
    for goal in reversed(range(len(layers))):
        delta, start = torch.ones_like(values[-1]), len(layers) - 1
        if reuse and goal + 1 in deltas:
            delta, start = deltas[goal + 1], goal
        for layer in range(start, goal - 1, -1):
            delta = layers[layer].back((1 - values[layer + 1] ** 2) * delta)
        deltas[goal] = delta
    return [deltas[layer] for layer in range(len(layers))]
