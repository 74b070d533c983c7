"""Chapter 24, complexity and derivative rules."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ..core.reading import Lines, Reading, Table
from ..core.seeds import generator
from ..gradients import modes
from ..gradients.graph import trace
from ..lenses.cost import Cost, cost
from ..models.mlp import MLP
from .convolutional_networks import example_network
from .exhibit import Exhibit

EXACT = 1e-10
"""float64 against float64 along different ways: rounding only"""


def _normal(seed: int, word: str, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=generator(seed, "calc", word), dtype=torch.float64)


RULES: list[tuple[str, Callable[[Tensor], Tensor], str]] = [
    ("constant", lambda x: 3 + 0 * x, "0"),
    ("power", lambda x: x**5, "5*x^4"),
    ("root", lambda x: x.sqrt(), "0.5/sqrt(x)"),
    ("exponential", lambda x: x.exp(), "exp(x)"),
    ("logarithm", lambda x: x.log(), "1/x"),
    ("sine", lambda x: x.sin(), "cos(x)"),
    ("cosine", lambda x: x.cos(), "-sin(x)"),
    ("chain", lambda x: (x**2).sin(), "2*x*cos(x^2)"),
    ("chain, three deep", lambda x: (3 * x).cos().exp(), "-3*exp(cos(3*x))*sin(3*x)"),
    ("sum", lambda x: x**2 + x.sin(), "cos(x) + 2*x"),
    ("product", lambda x: x**2 * x.exp(), "x^2*exp(x) + 2*x*exp(x)"),
    ("quotient", lambda x: x.sin() / x, "-sin(x)/x^2 + cos(x)/x"),
    ("sigmoid", lambda x: x.sigmoid(), "sigmoid(x)*(1 - sigmoid(x))"),
    ("hyperbolic tangent", lambda x: x.tanh(), "1 - tanh(x)^2"),
]
"""name, function, derivative as it must be printed"""


def calc_01(exhibit: Exhibit) -> str:
    """Every elementary and structural rule by the symbolic differentiator: printed, and against differences."""
    table: dict[str, list[str]] = {"rule": [], "f": [], "df/dx": []}
    worst = 0.0
    points = torch.linspace(0.3, 2.1, 7, dtype=torch.float64)
    for name, f, printed in RULES:
        graph = trace(lambda x, f=f: f(x), points[0])
        slope = graph.gradient("x")
        exhibit.expect(f"{name}: as printed", slope.expression(), printed)
        worst = max(worst, exhibit.expect(f"{name}: against differences", _run(slope, points), _differences(f, points), 1e-8))
        for column, cell in zip(table.values(), (name, graph.expression(), slope.expression()), strict=True):
            column.append(cell)
    factors: list[Callable[[Tensor], Tensor]] = [torch.sin, torch.exp, lambda x: x**2, lambda x: 1 + x]
    slopes: list[Callable[[Tensor], Tensor]] = [torch.cos, torch.exp, lambda x: 2 * x, torch.ones_like]

    def product(x: Tensor) -> Tensor:
        return torch.stack([f(x) for f in factors]).prod(0)

    # sum over i of f_i' times the product over j != i (E-49: the notes print i != i)
    expected = sum(slopes[i](points) * math.prod(f(points) for j, f in enumerate(factors) if j != i) for i in range(4))
    exhibit.expect(
        "product of four: sum over i of f_i' times the others", _run(trace(product, points[0]).gradient(), points), expected, EXACT
    )
    with_zero = torch.tensor([0.0, 2.0, 3.0], dtype=torch.float64)
    exhibit.expect("product of numbers with a zero among them", trace(torch.prod, with_zero).backward()["x"], [6.0, 0.0, 0.0], EXACT)
    third = trace(torch.sin, points[0]).gradient().gradient().gradient()
    exhibit.expect("the results can be differentiated again: third derivative of sin", _run(third, points), -points.cos(), EXACT)
    exhibit.show(Table("Derivatives as they are printed", table))
    return f"{len(RULES)} rules printed as on paper, at most {worst:.1g} from differences"


def _run(graph: Any, points: Tensor) -> Tensor:
    return torch.stack([graph(point) for point in points])


def _differences(f: Callable[[Tensor], Tensor], points: Tensor, h: float = 1e-3) -> Tensor:
    """Central differences of fourth order."""
    near, far = f(points + h) - f(points - h), f(points + 2 * h) - f(points - 2 * h)
    return (8 * near - far) / (12 * h)


def calc_02(exhibit: Exhibit) -> str:
    """Gradients of linear and quadratic forms, on random matrices."""
    n, m = 5, 3
    a, square, b, x = (
        _normal(exhibit.seed, "02 A", m, n),
        _normal(exhibit.seed, "02 S", n, n),
        _normal(exhibit.seed, "02 b", n),
        _normal(exhibit.seed, "02 x", n),
    )
    symmetric = square + square.T

    def outer(z: Tensor) -> Tensor:
        return (z.sin() * z).sum()

    def outer_slope(z: Tensor) -> Tensor:
        return z.cos() * z + z.sin()

    rules: dict[str, tuple[Callable[[Tensor], Tensor], Tensor]] = {
        "c -> 0": (lambda x: 0 * x.sum() + 2.5, torch.zeros(n, dtype=torch.float64)),
        "x^T A x -> (A + A^T) x": (lambda x: x @ (square @ x), (square + square.T) @ x),
        "x^T A x -> 2 A x, A symmetric": (lambda x: x @ (symmetric @ x), 2 * symmetric @ x),
        "x^T x -> 2 x": (lambda x: x @ x, 2 * x),
        "b^T x -> b": (lambda x: b @ x, b.clone()),
        "f(A x) -> A^T grad f(A x)": (lambda x: outer(a @ x), a.T @ outer_slope(a @ x)),
        "f(a x) -> a grad f(a x)": (lambda x: outer(-1.7 * x), -1.7 * outer_slope(-1.7 * x)),
    }
    worst = 0.0
    for name, (f, expected) in rules.items():
        worst = max(worst, exhibit.expect(f"{name}, torch.func", modes.gradient(f, x), expected, EXACT))
        exhibit.expect(f"{name}, walk over the graph", trace(f, x).backward()["x"], expected, EXACT)
    off = 2 * square @ x - modes.gradient(rules["x^T A x -> (A + A^T) x"][0], x)
    exhibit.expect("x^T A x: 2 A x is off by (A - A^T) x when A is not symmetric", off, (square - square.T) @ x, EXACT)
    printed = trace(lambda x, A: x @ (A @ x), x, square).gradient("x").expression()
    exhibit.expect("x^T A x as a formula", printed, "A @ x + A.T @ x")
    exhibit.expect("x^T x as a formula", trace(lambda x: x @ x, x).gradient().expression(), "2*x")
    exhibit.expect("b^T x as a formula", trace(lambda x, b: b @ x, x, b).gradient("x").expression(), "b")
    exhibit.show(Table("Gradient rules", {"rule": list(rules), "gradient at x": [_short(expected) for _, expected in rules.values()]}))
    return f"{len(rules)} rules at most {worst:.1g} off; grad x^T A x prints as {printed}"


def _short(values: Tensor) -> str:
    return "  ".join(f"{value:.3f}" for value in values.tolist())


class _Naive:
    """Operations written as loops over single numbers, with every multiplication and every visit of an entry counted."""

    def __init__(self) -> None:
        self.multiplies = self.visits = 0

    def product(self, a: list[list[float]], b: list[list[float]]) -> list[list[float]]:
        return [[self.inner(row, [line[j] for line in b]) for j in range(len(b[0]))] for row in a]

    def inner(self, a: list[float], b: list[float]) -> float:
        return sum(self._times(x, y) for x, y in zip(a, b, strict=True))

    def outer(self, a: list[float], b: list[float]) -> list[list[float]]:
        return [[self._times(x, y) for y in b] for x in a]

    def hadamard(self, a: list[list[float]], b: list[list[float]]) -> list[list[float]]:
        return [[self._times(x, y) for x, y in zip(p, q, strict=True)] for p, q in zip(a, b, strict=True)]

    def transpose(self, a: list[list[float]]) -> list[list[float]]:
        return [[self._visit(a[i][j]) for i in range(len(a))] for j in range(len(a[0]))]

    def diagonal(self, a: list[list[float]]) -> list[float]:
        return [self._visit(a[i][i]) for i in range(min(len(a), len(a[0])))]

    def build(self, values: list[float], rows: int, columns: int) -> list[list[float]]:
        return [[self._visit(values[i] if i == j else 0.0) for j in range(columns)] for i in range(rows)]

    def elementwise(self, a: list[list[float]]) -> list[list[float]]:
        return [[math.tanh(self._visit(x)) for x in row] for row in a]

    def softmax(self, a: list[list[float]]) -> list[list[float]]:
        """Row by row; each entry is divided once, so the count is one per entry although a row is coupled (E-49)."""
        rows = []
        for row in a:
            powers = [math.exp(x) for x in row]
            total = sum(powers)
            rows.append([self._times(power, 1 / total) for power in powers])
        return rows

    def _times(self, x: float, y: float) -> float:
        self.multiplies += 1
        return x * y

    def _visit(self, x: float) -> float:
        self.visits += 1
        return x


def calc_03(exhibit: Exhibit) -> str:
    """What an operation costs, counted in loops over single numbers, for sizes that are all different."""
    n, d, m = 7, 5, 4
    a, b, c = _normal(exhibit.seed, "03 a", n, d), _normal(exhibit.seed, "03 b", d, m), _normal(exhibit.seed, "03 c", n, m)
    square = _normal(exhibit.seed, "03 s", n, m)
    u, v = _normal(exhibit.seed, "03 u", n), _normal(exhibit.seed, "03 v", m)
    wide = torch.zeros(n, m, dtype=torch.float64)
    wide[range(m), range(m)] = v
    cases: list[tuple[str, str, Callable[[_Naive], Any], Tensor, int]] = [
        ("matrix product", "N D M", lambda k: k.product(a.tolist(), b.tolist()), a @ b, n * d * m),
        ("inner product", "D", lambda k: k.inner(a[0].tolist(), a[1].tolist()), a[0] @ a[1], d),
        ("outer product", "N M", lambda k: k.outer(u.tolist(), v.tolist()), torch.outer(u, v), n * m),
        ("transpose, copied", "N D", lambda k: k.transpose(a.tolist()), a.T, n * d),
        ("diagonal taken out", "min(N, M)", lambda k: k.diagonal(c.tolist()), c.diagonal(), min(n, m)),
        ("diagonal matrix built", "N M", lambda k: k.build(v.tolist(), n, m), wide, n * m),
        ("Hadamard product", "N M", lambda k: k.hadamard(c.tolist(), square.tolist()), c * square, n * m),
        ("tanh of every entry", "N M", lambda k: k.elementwise(c.tolist()), c.tanh(), n * m),
        ("softmax of every row", "N M", lambda k: k.softmax(c.tolist()), c.softmax(-1), n * m),
    ]
    table: dict[str, list[Any]] = {"operation": [], "cost": [], "counted": []}
    for name, formula, run, right, count in cases:
        kernel = _Naive()
        exhibit.expect(f"{name}: the right result", run(kernel), right, EXACT)
        counted = kernel.multiplies + kernel.visits
        exhibit.expect(f"{name}: {formula}", counted, count)
        for column, cell in zip(table.values(), (name, formula, counted), strict=True):
            column.append(cell)
    traced = trace(lambda a, b: a @ b, a, b)
    exhibit.expect("matrix product, counted on the traced graph", traced.multiplies, n * d * m)
    large = torch.zeros(3000, 2000)
    exhibit.expect("a transposed view is the same memory, whatever the size", large.T.data_ptr() == large.data_ptr(), True)
    exhibit.expect("the walk counts nothing for it", trace(lambda a: a.T, a).multiplies, 0)
    # E-49: softmax is not elementwise, for one input moves every output of its row
    coupling = modes.jacobian(lambda z: z.softmax(-1), v)
    probability = v.softmax(-1)
    exhibit.expect(
        "Jacobian of softmax: s_i (delta_ij - s_j)", coupling, torch.diag(probability) - torch.outer(probability, probability), EXACT
    )
    exhibit.show(Table(f"Counted for N = {n}, D = {d}, M = {m}", table))
    return f"{len(cases)} operations count exactly; {n} x {d} by {d} x {m} takes {n * d * m} multiplications"


class LinearAttention(nn.Module):
    """phi(Q) (phi(K)^T V), phi = 1 + elu: linear in the length, because keys and values are summed up first.

    T time, D width; one head.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(width, width, bias=False) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = nn.functional.elu(self.query(x)) + 1, nn.functional.elu(self.key(x)) + 1, self.value(x)
        return q @ (k.mT @ v)


class AttentionFormula(nn.Module):
    """softmax(Q K^T / sqrt(D)) V, written out; one head."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.scale = width**-0.5

    def forward(self, x: Tensor) -> Tensor:
        scores = (self.query(x) * self.scale) @ self.key(x).mT
        return scores.softmax(-1) @ self.value(x)


def calc_04(exhibit: Exhibit) -> str:
    """The rules applied to whole networks, against counts worked by hand; one multiply-add is 2 FLOPs, a bias 1."""
    costs: dict[str, Cost] = {}
    costs["MLP 5-7-3"] = cost(MLP((5, 7, 3)), (5,))
    exhibit.expect("MLP 5-7-3: FLOPs", costs["MLP 5-7-3"].flops, 7 * (2 * 5 + 1) + 7 + 3 * (2 * 7 + 1))
    costs["CNN of CNN-12"] = cost(example_network(), (1, 192, 256))
    by_hand = {
        "conv1": 192 * 256 * 5 * (2 * 9 + 1),
        "relu1": 192 * 256 * 5,
        "pool1": 96 * 128 * 5 * 3,
        "conv2": 92 * 124 * 10 * (2 * 125 + 1),
        "relu2": 92 * 124 * 10,
        "pool2": 46 * 62 * 10 * 3,
        "conv3": 23 * 31 * 20 * (2 * 40 + 1),
        "relu3": 23 * 31 * 20,
        "pool3": 10 * 14 * 20 * 24,
        "flat": 0,
        "linear": 6 * (2 * 2800 + 1),
    }
    for row in costs["CNN of CNN-12"].rows:
        exhibit.expect(f"CNN-12, {row.name}: FLOPs", row.flops, by_hand[row.name])
    exhibit.expect("CNN-12: layers counted", [row.name for row in costs["CNN of CNN-12"].rows], list(by_hand))
    exhibit.expect("CNN-12: FLOPs in all", costs["CNN of CNN-12"].flops, 35_203_366)
    exhibit.expect("CNN-12: parameters", costs["CNN of CNN-12"].parameters, 18936)
    t, d, h = 9, 6, 5
    costs["RNN, 9 steps"] = cost(nn.RNN(d, h, batch_first=True), (t, d))
    # W x, U h, their sum, two biases, tanh
    exhibit.expect("RNN: FLOPs", costs["RNN, 9 steps"].flops, t * h * (2 * d + 2 * h + 1 + 2 + 1))
    e, heads, f = 16, 4, 40
    costs["transformer block"] = cost(nn.TransformerEncoderLayer(e, heads, f, batch_first=True), (t, e))
    parts = {
        "projections of queries, keys, values": 3 * t * e * (2 * e + 1),
        "scaling of the queries": t * e,
        "scores and mixing": 2 * (2 * t * t * e),
        "softmax": 3 * heads * t * t,
        "output projection": t * e * (2 * e + 1),
        "two layer norms": 2 * 7 * t * e,
        "feed-forward": t * f * (2 * e + 1) + t * f + t * e * (2 * f + 1),
        "two residual sums": 2 * t * e,
    }
    exhibit.expect("transformer block: FLOPs", costs["transformer block"].flops, sum(parts.values()))
    exhibit.expect("transformer block: parameters", costs["transformer block"].parameters, 4 * (e * e + e) + 2 * e * f + f + e + 4 * e)
    exhibit.expect("transformer block: layers of unknown cost", len(costs["transformer block"].unknown), 0)
    lengths, growth = (16, 64, 256, 1024), {"softmax attention": [], "linear attention": []}  # type: ignore[var-annotated]
    for time in lengths:
        soft, linear = cost(AttentionFormula(e), (time, e)), cost(LinearAttention(e), (time, e))
        projections = 3 * time * e * 2 * e
        exhibit.expect(f"attention, T = {time}", soft.flops, projections + time * e + 4 * time * time * e + 3 * time * time)
        # elu and + 1 for queries and keys, then phi(K)^T V and its product with phi(Q)
        exhibit.expect(f"linear attention, T = {time}", linear.flops, projections + 4 * time * e + 4 * time * e * e)
        growth["softmax attention"].append(soft.flops)
        growth["linear attention"].append(linear.flops)
    costs["attention, T = 1024"], costs["linear attention, T = 1024"] = soft, linear
    exhibit.expect("linear attention grows like T", growth["linear attention"][-1] / growth["linear attention"][0], 64.0)
    exhibit.above("attention grows faster", growth["softmax attention"][-1] / growth["softmax attention"][0], 1000)
    exhibit.show(_overview(costs))
    exhibit.show(Lines("FLOPs of one sequence", growth, ["length", "FLOPs"], x=list(lengths), log=["x", "y"]))
    exhibit.show(
        Table(
            "One transformer block by hand",
            {"part": list(parts), "FLOPs": list(parts.values())},
            total={"FLOPs": sum(parts.values())},
        )
    )
    return f"{costs['CNN of CNN-12'].flops:,} FLOPs for CNN-12, {sum(parts.values()):,} for a block, as by hand"


def _overview(costs: dict[str, Cost]) -> Reading:
    return Table(
        "Whole networks, one example",
        {
            "network": list(costs),
            "parameters": [cost.parameters for cost in costs.values()],
            "FLOPs": [cost.flops for cost in costs.values()],
            "memory": [cost.memory for cost in costs.values()],
        },
        formats={"FLOPs": "si", "memory": "bytes"},
    )
