"""The walk over a traced graph against autograd, hand-worked numbers and NumPy; what cannot be done is refused in one line."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from sonde.core.errors import BadInput
from sonde.gradients.graph import Graph, Node, Ref, capture, trace
from sonde.gradients.vjp import RULES

EXACT = 1e-10


def normal(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


class Loss(nn.Module):
    """One number from a model's output."""

    def __init__(self, model: nn.Module, reduce=lambda y: (y.sin() + y * y).sum()) -> None:
        super().__init__()
        self.model, self.reduce = model, reduce

    def forward(self, *inputs):
        return self.reduce(self.model(*inputs))


def agree(model: nn.Module, *inputs: torch.Tensor) -> Graph:
    """Parameters and inputs: the walk gives what autograd gives."""
    inputs = tuple(value.clone().requires_grad_(value.is_floating_point()) for value in inputs)
    graph = trace(model, *inputs)
    ours = graph.backward()
    leaves = {**dict(model.named_parameters()), **{n: v for n, v in zip(graph.inputs[-len(inputs) :], inputs) if v.requires_grad}}
    theirs = torch.autograd.grad(model(*inputs), list(leaves.values()), allow_unused=True)
    for name, gradient in zip(leaves, theirs, strict=True):
        torch.testing.assert_close(ours[name], torch.zeros_like(ours[name]) if gradient is None else gradient, rtol=EXACT, atol=EXACT)
    return graph


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 4), nn.SiLU(), nn.LayerNorm(4), nn.Linear(4, 3)).double()


def cnn() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(2, 4, 3, stride=2, padding=1, groups=2), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.MaxPool2d(2, padding=1)),
        *(nn.Conv2d(4, 6, 2, dilation=2, bias=False), nn.GELU(), nn.AvgPool2d(3, 2, 1, ceil_mode=True, count_include_pad=False)),
        *(nn.ConvTranspose2d(6, 4, 3, stride=2, output_padding=1, groups=2), nn.AdaptiveAvgPool2d((3, 2)), nn.Flatten(), nn.Linear(24, 5)),
    ).double()


class Step(nn.Module):
    def __init__(self, cell: nn.Module) -> None:
        super().__init__()
        self.cell = cell

    def forward(self, x, h, c):
        h, c = self.cell(x, (h, c))
        return torch.cat([h, c], 1)


def transformer(**settings) -> nn.Module:
    return nn.TransformerEncoderLayer(12, 3, 20, batch_first=True, dropout=0.0, **settings).double()


NETS = {
    "mlp": (mlp, [normal(0, 6, 5)]),
    "cnn": (cnn, [normal(1, 3, 2, 31, 27)]),
    "lstm step": (lambda: Step(nn.LSTMCell(3, 4).double()), [normal(2, 2, 3), normal(3, 2, 4), normal(4, 2, 4)]),
    "transformer block": (lambda: transformer(activation="gelu"), [normal(5, 2, 5, 12)]),
    "transformer block, norm first": (lambda: transformer(norm_first=True), [normal(6, 2, 5, 12)]),
    "causal attention": (lambda: Causal(), [normal(7, 2, 3, 6, 4)]),
    "conv1d": (lambda: nn.Sequential(nn.Conv1d(3, 4, 3, 2, 1), nn.MaxPool1d(2), nn.AvgPool1d(2)).double(), [normal(8, 2, 3, 17)]),
    "conv3d": (lambda: nn.Sequential(nn.Conv3d(2, 3, 2), nn.MaxPool3d(2)).double(), [normal(9, 1, 2, 5, 6, 7)]),
    "gru": (lambda: First(nn.GRU(3, 4, 2, batch_first=True).double()), [normal(10, 2, 4, 3)]),
    "group norm": (lambda: nn.Sequential(nn.GroupNorm(2, 4), nn.Softmax(1)).double(), [normal(11, 2, 4, 3)]),
}


class Causal(nn.Module):
    def forward(self, x):
        return F.scaled_dot_product_attention(x, x * 2, x.cos(), is_causal=True)


class First(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x):
        return self.model(x)[0]


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", NETS)
def test_networks_equal_autograd(name: str, training: bool) -> None:
    torch.manual_seed(0)
    make, inputs = NETS[name]
    graph = agree(Loss(make().train(training)), *inputs)
    assert graph.multiplies >= 0 and graph[graph.outputs[0]].adjoint == 1


def test_a_language_model_with_lookup_and_cross_entropy() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Embedding(11, 6, padding_idx=0), nn.Linear(6, 11)).double()
    ids, labels = torch.tensor([[1, 4, 4, 0], [9, 2, 1, 10]]), torch.tensor([4, 4, -100, 5, 2, 1, 10, 0])
    agree(Loss(net, lambda y: F.cross_entropy(y.flatten(0, 1), labels, label_smoothing=0.1)), ids)


A, B, V = normal(20, 4, 5), normal(21, 5, 3), normal(22, 5)
I = torch.tensor([3, 0, 3])  # noqa: E741
ONE = {
    **{name: getattr(torch, name) for name in "neg abs exp exp2 expm1 sin cos tan atan sinh cosh tanh erf sigmoid relu square".split()},  # noqa: SIM905
    **{f"{name} of positive": lambda x, n=name: getattr(torch, n)(x.abs() + 0.1) for name in ("log", "log2", "log10", "log1p", "sqrt")},
    "rsqrt": lambda x: (x * x + 1).rsqrt(),
    "asin": lambda x: (x / 9).asin() * (x / 9).acos(),
    "activations": lambda x: (
        F.gelu(x) + F.gelu(x, approximate="tanh") + F.silu(x) + F.leaky_relu(x, 0.2) + F.elu(x, 1.3) + F.softplus(x, 2.0)
    ),
    "more activations": lambda x: F.hardtanh(x) + F.relu6(3 * x) + F.logsigmoid(x) + F.mish(x) + F.selu(x) + F.hardswish(x),
    "clamp": lambda x: x.clamp(-0.5, 0.5) * x.clamp(min=0.1) * x.clamp(max=0.3),
    "powers": lambda x: x**3 + (x.abs() + 1) ** 2.5 + 2**x + (x.abs() + 0.5) ** x + x**0,
    "division": lambda x: 3 / (x * x + 1) - x / (2 + x.cos()) - 5 + torch.rsub(x, 2, alpha=3) + torch.add(x, x, alpha=0.5),
    "extremes": lambda x: torch.maximum(x, x.flip(0)) * torch.minimum(x, -x) + torch.where(x > 0, x, x * x),
    "masked": lambda x: x.masked_fill(x > 0.4, 0.7) + x.tril() * x.triu(1),
    "reductions": lambda x: x.sum(0).sin().sum() + x.mean(1, keepdim=True) + x.var() + x.std(1).sum() + x.amax(1, keepdim=True) * x.amin(),
    "more reductions": lambda x: (
        x.max(1).values.sum() * x.prod() + x.prod(1).sum() + x.logsumexp(0).sum() + x.norm() + x.norm(1, dim=1).sum()
    ),
    "running": lambda x: x.cumsum(1) * x.cumsum(0) + x.cumprod(1),
    "sorted": lambda x: x.sort(1).values * x.sort(0, descending=True).values + x.topk(2, 1).values.sum(),
    "products": lambda x: (
        x @ x.mT @ A + torch.einsum("ij,kj->ik", x, A) @ A + (x @ V).sum() + x[0].dot(V) + torch.addmm(x, A @ B, B.T, alpha=2)
    ),
    "moved": lambda x: x.reshape(2, 10).t().unsqueeze(0).permute(2, 0, 1).expand(2, 3, 10).flip(0).sum(1).view(4, 5) * x.repeat(2, 1)[4:],
    "parts": lambda x: (
        torch.cat([x[1:3], x[::2], x[:2, 1:2].expand(2, 5)]).sum(0) + x.select(1, 2).sum() + torch.stack([x, x * 2], 1)[:, 1]
    ),
    "split": lambda x: (
        x.split([2, 3], 1)[1].sum() * x.chunk(2)[0].sum() + x.unbind(1)[3].sin().sum() + x.narrow(1, 1, 2).sum() + F.pad(x, (1, 2)).sum()
    ),
    "looked up": lambda x: x[I].sum(0) * x[:, I].sum() + x.index_select(1, I).sum() + x.gather(1, I.expand(4, 3)).sum() * x[x > 0].sum(),
    "put": lambda x: x.index_put((I,), x[1:] * x[1:]).sin() + x.scatter(1, I[:2].expand(4, 2), x[:, :2] * 2) + x.index_add(0, I, x[:3]),
    "diagonal": lambda x: x.diagonal(1).sin().sum() + torch.diag(x[0]).exp().sum() + x[:, :4].trace() * x,
    "softmax": lambda x: x.softmax(0) * x.log_softmax(1) + F.normalize(x, dim=1) + F.cosine_similarity(x, A, dim=1).sum(),
    "losses": lambda x: F.mse_loss(x, A) + F.l1_loss(x, A) + F.huber_loss(x, A) + F.binary_cross_entropy_with_logits(x, (A > 0).double()),
    "more losses": lambda x: (
        F.kl_div(x.log_softmax(1), A.softmax(1), reduction="sum") + F.smooth_l1_loss(x, A) + F.poisson_nll_loss(x, A.exp())
    ),
    "in place": lambda x: (x * 1).add_(x).mul_(2).sigmoid_(),
    "cut off": lambda x: x * x.detach() + x.sin().round(),
}


@pytest.mark.parametrize("name", ONE)
def test_rules_equal_autograd(name: str) -> None:
    f = ONE[name]
    weights = normal(33, 4, 5)

    def loss(x):
        y = f(x)
        return (y * weights.flatten()[: y.numel()].view_as(y)).sum() if y.numel() <= 20 else (y * y).sum()

    x = normal(30, 4, 5).requires_grad_()
    graph = trace(loss, x)
    torch.testing.assert_close(graph.backward()["x"], torch.autograd.grad(loss(x), x)[0], rtol=EXACT, atol=EXACT)


@pytest.mark.parametrize("name", ["sin", "powers", "softmax", "reductions", "parts", "looked up", "products", "division", "activations"])
def test_the_gradient_is_a_graph_that_can_be_differentiated_again(name: str) -> None:
    f, v = ONE[name], normal(31, 4, 5)
    x = normal(30, 4, 5).requires_grad_()
    twice = trace(lambda x: (f(x).sin()).sum(), x).gradient("x").backward(seed=v)["x"]
    (slope,) = torch.autograd.grad(f(x).sin().sum(), x, create_graph=True)
    torch.testing.assert_close(twice, torch.autograd.grad((slope * v).sum(), x)[0], rtol=1e-9, atol=1e-9)


def test_second_derivatives_of_convolution_and_pool() -> None:
    w, x = normal(40, 3, 2, 3, 3), normal(41, 2, 2, 9, 8).requires_grad_()

    def f(x):
        return F.avg_pool2d(F.max_pool2d(F.conv2d(x, w, stride=2, padding=1).tanh(), 2, 1), 2).square().sum()

    v = normal(42, 2, 2, 9, 8)
    (slope,) = torch.autograd.grad(f(x), x, create_graph=True)
    expected = torch.autograd.grad((slope * v).sum(), x)[0]
    torch.testing.assert_close(trace(f, x).gradient("x").backward(seed=v)["x"], expected, rtol=EXACT, atol=EXACT)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_random_graphs_with_shared_nodes(data) -> None:
    one = [torch.sin, torch.tanh, torch.relu, torch.exp, lambda a: a * a]
    two = [torch.add, torch.mul, torch.sub, torch.maximum, lambda a, b: a / (1 + b * b), lambda a, b: a * b.mean()]
    steps = []
    for size in range(2, 10):
        place = st.integers(0, size - 1)
        if data.draw(st.booleans()):
            steps.append((data.draw(st.sampled_from(one)), data.draw(place)))
        else:
            steps.append((data.draw(st.sampled_from(two)), data.draw(place), data.draw(place)))

    def f(x, y):
        values = [x, y]
        for act, *places in steps:
            values.append(act(*(values[p] for p in places)).tanh())
        return torch.stack(values).sum()

    x, y = normal(50, 3).requires_grad_(), normal(51, 3).requires_grad_()
    ours = trace(f, x, y).backward()
    theirs = torch.autograd.grad(f(x, y), (x, y))
    assert max(float((ours[n] - g).abs().max()) for n, g in zip("xy", theirs)) < EXACT


def test_values_and_adjoints_by_hand() -> None:
    graph = trace(lambda t: t**2 * (3 * t + 1), torch.tensor(2.0))
    assert graph.backward() == {"t": torch.tensor(40.0)}
    nodes = {node.kind: (float(node.value), float(node.adjoint)) for node in graph if node.name != "mul_1"}
    assert nodes == {"input": (2.0, 40.0), "pow": (4.0, 7.0), "mul": (6.0, 4.0), "add": (7.0, 4.0)}
    assert float(graph(torch.tensor(1.0))) == 4.0 and float(graph["t"].value) == 2.0


def test_third_derivative_of_sine_and_formulas() -> None:
    graph = trace(lambda x: x.sin(), torch.tensor(0.3, dtype=torch.float64))
    texts = []
    for _ in range(3):
        graph = graph.gradient("x")
        texts.append(graph.expression())
    assert texts == ["cos(x)", "-sin(x)", "-cos(x)"]
    assert trace(lambda x: x * 0 + 1 * x + 0 - 2 * 3, torch.ones(())).expression() == "x - 6"
    assert trace(lambda x, A: (A @ x).sin().sum(), V, A).gradient("x").expression() == "A.T @ cos(A @ x)"
    assert trace(lambda x: (x + x) / (x * x) + x**1.5, torch.ones(())).expression() == "2/x + x^1.5"
    long = torch.ones(())

    def doubled(x):
        for _ in range(20):
            x = x.sin() + x.cos()
        return x

    with pytest.raises(BadInput, match="parts; read the table"):
        trace(doubled, long).expression()


def test_static_capture_and_dynamic_tracing() -> None:
    def f(x):
        return x.sin().sum() if x.sum() > 0 else (x**3).sum()

    x = torch.tensor([0.5, 1.0])
    torch.testing.assert_close(trace(f, x).backward()["x"], x.cos())
    torch.testing.assert_close(trace(f, -x).backward()["x"], 3 * x**2)
    with pytest.raises(BadInput, match=r"depends on a value.*\(line \d+ of test_graph.py\); trace\(f, x\)") as caught:
        capture(f, x)
    assert "\n" not in str(caught.value)
    net, u = mlp(), normal(61, 2, 3)
    static, dynamic = capture(net, normal(60, 2, 5)).backward(seed=u), trace(net, normal(60, 2, 5)).backward(seed=u)
    assert len(static) == len(dynamic) == 9
    for one, other in zip(static.values(), dynamic.values(), strict=True):
        torch.testing.assert_close(one, other)


def test_hand_built_graphs_are_sorted_and_checked() -> None:
    graph = Graph([Node("y", "sin", (Ref("s"),)), Node("s", "mul", (Ref("x"), Ref("w"))), Node("x", "input"), Node("w", "input")], ["y"])
    assert list(graph.nodes) == ["x", "w", "s", "y"]
    graph.forward(torch.tensor(2.0), torch.tensor(0.5))
    assert float(graph.backward()["x"]) == pytest.approx(0.5 * 0.5403023)
    ring = [Node("a", "sin", (Ref("b"),)), Node("b", "cos", (Ref("c"),)), Node("c", "tanh", (Ref("a"),))]
    with pytest.raises(BadInput, match="cycle: a -> c -> b -> a|cycle: "):
        Graph(ring, ["a"])
    for nodes, outputs, words in (
        ([Node("a", "sin", (Ref("x"),))], ["a"], "uses 'x', which does not exist"),
        ([Node("a", "input"), Node("a", "input")], ["a"], "same name"),
        ([Node("a", "input")], ["b"], "no node 'b'"),
    ):
        with pytest.raises(BadInput, match=words):
            Graph(nodes, outputs)
    with pytest.raises(BadInput, match="no operation 'sine'; did you mean 'sin'"):
        Graph([Node("x", "input"), Node("y", "sine", (Ref("x"),))], ["y"]).forward(torch.ones(()))


def test_bad_input_is_refused_in_one_line() -> None:
    x = torch.ones(3)
    for call, words in (
        (lambda: trace(torch.linalg.det, torch.eye(3)).backward(), "no gradient rule for 'aten._linalg_det.default'"),
        (lambda: trace(torch.sin, x).backward(), "not one number"),
        (lambda: trace(torch.sin, x).backward(seed=torch.ones(2)), "the seed has size"),
        (lambda: trace(torch.argmax, x).backward(), "floating-point"),
        (lambda: trace(lambda x: x @ torch.ones(4), x), "cannot be run on inputs of size"),
        (lambda: trace(torch.sin, 3.0), "not a tensor"),
        (lambda: trace(lambda x: 5, x), "returns no tensor"),
        (lambda: trace(lambda x: x.sum(), x).gradient("y"), "no node 'y'"),
        (lambda: trace(lambda x: x.sum(), x)(x, x), "takes 1 inputs, not 2"),
        (lambda: trace(lambda x: x.sum(), x)["sum_l"], "did you mean 'sum"),
    ):
        with pytest.raises(BadInput, match=words) as caught:
            call()
        assert "\n" not in str(caught.value)


def test_tracing_leaves_the_model_and_torch_alone() -> None:
    net, x = cnn().train(), normal(1, 3, 2, 31, 27)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    random, fast = torch.get_rng_state(), torch.backends.mha.get_fastpath_enabled()
    trace(Loss(nn.Sequential(net, nn.Dropout())), x).backward()
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert torch.equal(random, torch.get_rng_state()) and fast == torch.backends.mha.get_fastpath_enabled()
    assert torch._C._get_mkldnn_enabled() and all(p.grad is None for p in net.parameters())


def test_exports() -> None:
    graph = trace(Loss(mlp()), normal(0, 6, 5))
    graph.backward()
    body = json.loads(graph.to_json(values=True))
    names = [node["name"] for node in body["nodes"]]
    assert names == list(graph.nodes) and body["outputs"] == list(graph.outputs)
    weight = next(node for node in body["nodes"] if node["name"] == "model.0.weight")
    assert weight["shape"] == [7, 5] and torch.tensor(weight["adjoints"]).shape == (7, 5) and weight["op"] == "parameter"
    table = graph.table(max_rows=4)
    assert table.values["node"] == names[:4] and "The first 4 nodes" in table.note
    dot = graph.dot()
    assert dot.startswith("digraph {") and dot.count("->") == sum(len(node.inputs) for node in graph)
    root = ElementTree.fromstring(graph.svg())
    boxes = [box for box in root.iter("{http://www.w3.org/2000/svg}rect") if box.get("rx")]
    assert 10 < len(boxes) < len(graph)  # what only changes sizes is folded into edges
    spots = {(box.get("x"), box.get("y")) for box in boxes}
    assert len(spots) == len(boxes)
    width = float(root.get("width"))
    assert all(float(box.get("x")) >= 0 and float(box.get("x")) + float(box.get("width")) <= width for box in boxes)


def test_edges_of_the_drawing_point_down() -> None:
    from sonde.gradients.layout import arrange, visible_edges

    graph = trace(Loss(transformer()), normal(5, 2, 5, 12))
    edges = visible_edges(graph)
    layers, depth = arrange(edges, {"inputs"})
    assert all(depth[name] < depth[user] for user, names in edges.items() for name in names)
    assert sorted(item for layer in layers for item in layer if isinstance(item, str)) == sorted(edges)


def at(*numbers: float) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


EDGES = {
    "lower bound": (lambda x, low: x.clamp(min=low), at(1, 2, 3), at(0, 2, 5)),
    "upper bound": (lambda x, high: x.clamp(max=high), at(1, 2, 3), at(0, 2, 5)),
    "crossed bounds": (torch.clamp, at(1, 2, 3, 4, 2), at(0, 2, 5, 6, 1), at(0.5, 2, 4, 9, 0)),
    "one bound for all": (lambda x, low: x.clamp(min=low), at(1, 2, 3), torch.tensor(2.5, dtype=torch.float64)),
    "running product over zeros": (lambda x: x.cumprod(0), at(2, 0, 3, 0, 5)),
    "product with a zero": (lambda x: x.prod(), at(2, 0, 3)),
    "std of a constant": (lambda x: x.std(1) + torch.std_mean(x, 1)[0], torch.stack([at(2, 2, 2), at(1, 2, 4)])),
    "power 0 at 0": (lambda x, e: x**e, at(0, 0, 2), at(0, 2, 3)),
    "powers of 0": (lambda e: torch.pow(0.0, e), at(0, 2, 3)),
    "xlogy at 0": (torch.xlogy, at(0, 2, 0), at(3, 2, -1)),
    "sinc at 0": (torch.sinc, at(0, 2, 0.3)),
    **{
        f"norm {p:g} of {len(x)}": (lambda x, p=p: torch.linalg.vector_norm(x, p), x)
        for p in (0.5, 1, 1.5, 2, 3, float("inf"))
        for x in (at(0, 2, -2, 1), at(0, 0, 0))
    },
}


@pytest.mark.parametrize("name", EDGES)
def test_rules_equal_autograd_at_their_edges(name: str) -> None:
    f, *inputs = EDGES[name]
    inputs = [x.requires_grad_() for x in inputs]
    y = f(*inputs)
    u = normal(80, y.numel()).view_as(y)
    ours = trace(f, *inputs).backward(seed=u)
    for gradient, expected in zip(ours.values(), torch.autograd.grad(y, inputs, u), strict=True):
        torch.testing.assert_close(gradient, expected, rtol=EXACT, atol=EXACT)


def test_second_derivatives_at_the_edges() -> None:
    """d2 / dx_i dx_j of x_1 x_2 x_3 is the number left over: 3, 0 and 2 at (2, 0, 3); and sinc'' at 0 is -pi^2 / 3."""
    twice = trace(lambda x: x.prod(), at(2, 0, 3)).gradient("x")
    rows = [twice.backward(seed=e)["x"] for e in torch.eye(3, dtype=torch.float64)]
    torch.testing.assert_close(torch.stack(rows), torch.stack([at(0, 3, 0), at(3, 0, 2), at(0, 2, 0)]))
    x, v = at(0, 2, -2, 1).requires_grad_(), at(1, 2, 3, 4)
    (slope,) = torch.autograd.grad(x.norm(), x, create_graph=True)
    twice = trace(torch.linalg.vector_norm, x).gradient("x").backward(seed=v)
    torch.testing.assert_close(twice["x"], torch.autograd.grad(slope, x, v)[0])
    curved = trace(torch.sinc, torch.zeros((), dtype=torch.float64)).gradient("x").backward()["x"]
    assert float(curved) == pytest.approx(-(torch.pi**2) / 3)


def test_no_norm_counts_up_when_a_number_moves() -> None:
    assert trace(lambda x: torch.linalg.vector_norm(x, 0), at(1, 0, 3)).backward()["x"].tolist() == [0, 0, 0]


def test_a_part_used_twice_gets_both_paths() -> None:
    nodes = [Node("x", "input"), Node("s", "split", (Ref("x"), 1)), *(Node(name, "getitem", (Ref("s"), 0)) for name in "ab")]
    graph = Graph([*nodes, Node("y", "mul", (Ref("a"), Ref("b")))], ["y"])
    graph.forward(at(3))
    assert graph.backward()["x"].tolist() == [6]


def test_a_gradient_that_would_be_lost_is_refused(monkeypatch) -> None:
    monkeypatch.setitem(RULES, "maximum", lambda g, y, a, b: (g * (a > b),))
    with pytest.raises(BadInput, match="the rule of 'aten.maximum.default' returns no gradient for 'b'"):
        trace(lambda a, b: torch.maximum(a, b).sum(), at(1, 2), at(2, 1)).backward()
    with pytest.raises(BadInput, match="complex numbers"):
        trace(lambda x: torch.fft.rfft(x).abs().sum(), at(1, 2, 3)).backward()


def test_a_wrong_rule_is_noticed(monkeypatch) -> None:
    right = RULES["mm"]
    monkeypatch.setitem(RULES, "addmm", lambda g, y, c, a, b: (g, *reversed([part.t() for part in right(g, y, a, b)])))
    with pytest.raises((AssertionError, RuntimeError)):
        agree(Loss(nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)).double()), normal(70, 3, 3))
