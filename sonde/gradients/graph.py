"""The graph of any function or module: every operation with its value, and after a backward pass its adjoint.

    graph = trace(f, x)             run f once and record its ATen operations (torch's make_fx)
    graph.backward()                adjoints in reverse topological order, one rule per primitive (see vjp.py)
    graph.gradient("x")             the gradient as a new graph, which can be differentiated again
    graph.table(), .dot(), .svg(), .to_json(), .expression()

The backward pass does not use torch.autograd: it is an independent computation of the same numbers.  The adjoint of a node is
d output / d node; where a node is used several times, the contributions of all paths add up.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple, final

import torch
from torch import Tensor, nn

from ..core.errors import BadInput, nearest
from ..core.reading import Reading, Table, finite, plain
from .vjp import FLAT, RULES

LEAVES = ("input", "parameter", "buffer", "constant")


class Ref(NamedTuple):
    """The name of another node, as an argument."""

    name: str


@dataclass
class Node:
    """One operation: `op` is a leaf's kind or an ATen name, such as 'aten.mul.Tensor' or in short 'mul'."""

    name: str
    op: str
    args: tuple[Any, ...] = ()
    settings: dict[str, Any] = field(default_factory=dict)
    value: Any = None
    adjoint: Any = None

    @property
    def kind(self) -> str:
        """The operation without namespace and overload: 'mul'."""
        parts = self.op.split(".")
        return parts[1] if len(parts) > 1 else self.op

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the nodes it uses, in order, each once."""
        return tuple(dict.fromkeys(ref.name for ref in _refs((self.args, self.settings))))

    @property
    def shape(self) -> tuple[int, ...] | None:
        """Of the value; None where it is not a single tensor."""
        return tuple(self.value.shape) if isinstance(self.value, Tensor) else None


@final
class Graph:
    """A directed acyclic graph of operations, in topological order.  A cycle is refused.

    Built by `trace` or `capture`, or by hand: `Graph([Node("x", "input"), Node("y", "sin", (Ref("x"),))], ["y"])`.
    """

    def __init__(self, nodes: Iterable[Node], outputs: Sequence[str]) -> None:
        self.nodes = _topological(list(nodes))
        self.outputs = tuple(outputs)
        for name in self.outputs:
            if name not in self.nodes:
                raise BadInput(f"the graph has no node '{name}' for its output", fix=nearest(name, self.nodes))

    def __iter__(self) -> Iterator[Node]:
        return iter(self.nodes.values())

    def __len__(self) -> int:
        return len(self.nodes)

    def __getitem__(self, name: str) -> Node:
        if name not in self.nodes:
            raise BadInput(f"the graph has no node '{name}'", fix=nearest(name, self.nodes))
        return self.nodes[name]

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the leaves that are not constant: inputs, parameters and buffers."""
        return tuple(node.name for node in self if node.op in LEAVES and node.op != "constant")

    # Forward

    def run(self, *inputs: Tensor) -> dict[str, Any]:
        """The value of every node, in topological order; nothing is stored."""
        if len(inputs) != len(self.inputs):
            raise BadInput(f"the graph takes {len(self.inputs)} inputs, not {len(inputs)}", fix=f"give {', '.join(self.inputs)}")
        values: dict[str, Any] = dict(zip(self.inputs, inputs, strict=True))
        for node in self:
            if node.op == "constant":
                values[node.name] = node.value
            elif node.op not in LEAVES:
                args, settings = _fill((node.args, node.settings), values)
                values[node.name] = _call(node.op)(*args, **settings)
        return values

    def __call__(self, *inputs: Tensor) -> Any:
        """The outputs of the function: one tensor, or a tuple of them."""
        return self._outputs(self.run(*inputs))

    def _outputs(self, values: Mapping[str, Any]) -> Any:
        outputs = tuple(values[name] for name in self.outputs)
        return outputs[0] if len(outputs) == 1 else outputs

    def forward(self, *inputs: Tensor) -> Any:
        """Run, and store the value of every node."""
        with torch.no_grad():
            values = self.run(*inputs)
        for node in self:
            node.value, node.adjoint = values[node.name], None
        return self._outputs(values)

    # Backward

    def adjoints(self, values: Mapping[str, Any], seed: Tensor | None = None, output: str | None = None) -> dict[str, Any]:
        """d output / d node for every node the output depends on; nothing is stored.

        Args:
            seed: the adjoint of the output itself; 1 for a single number
        """
        output = output or self.outputs[0]
        adjoints: dict[str, Any] = {output: _seed(values[output], seed)}
        differentiable = self._differentiable_nodes(values)
        for node in reversed(self.nodes.values()):
            gradient = adjoints.get(node.name)
            if gradient is None or node.op in LEAVES or node.name not in differentiable:
                continue
            if node.op == "getitem":
                parent, index = node.args
                parts = adjoints.setdefault(parent.name, [None] * len(values[parent.name]))
                parts[index] = gradient if parts[index] is None else parts[index] + gradient
                continue
            if any(_is_complex(values[name]) for name in (node.name, *node.inputs)):
                raise BadInput(f"'{node.op}' works with complex numbers", where=f"node '{node.name}'", fix="write it with real numbers")
            args, settings = _fill((node.args, node.settings), values)
            contributions = _rule(node)(gradient, values[node.name], *args, **settings)
            for ref in _refs((node.args[len(contributions) :], node.settings)):
                if ref.name in differentiable and _is_floating(values[ref.name]):
                    fix = "write a rule that returns one"
                    raise BadInput(f"the rule of '{node.op}' returns no gradient for '{ref.name}'", where=f"node '{node.name}'", fix=fix)
            for arg, part in zip(node.args, contributions, strict=False):
                for ref, contribution in zip(arg, part, strict=True) if isinstance(part, list) else ((arg, part),):
                    if isinstance(ref, Ref) and contribution is not None and ref.name in differentiable:
                        contribution = _fit(contribution, values[ref.name])
                        adjoints[ref.name] = adjoints[ref.name] + contribution if ref.name in adjoints else contribution
        return adjoints

    def backward(self, seed: Tensor | None = None, output: str | None = None) -> dict[str, Tensor]:
        """Backward pass from an output: store the adjoint of every node, and return those of the floating-point leaves."""
        values = self._values()
        with torch.no_grad():
            adjoints = self.adjoints(values, seed, output)
        for node in self:
            node.adjoint = adjoints.get(node.name)
        return {name: self._zero_or(name, adjoints, values) for name in self.inputs if _is_floating(values[name])}

    def gradient(self, *names: str) -> Graph:
        """The gradient with respect to the named leaves (all of them if none is named) as a new graph."""
        values = self._values()
        names = names or tuple(name for name in self.inputs if _is_floating(values[name]))
        for name in names:
            if not _is_floating(self[name].value) or name not in self.inputs:
                raise BadInput(f"there is no gradient with respect to '{name}'", fix=f"choose from {', '.join(self.inputs)}")

        def pull_back(*inputs: Tensor) -> tuple[Tensor, ...]:
            now = self.run(*inputs)
            adjoints = self.adjoints(now)
            return tuple(self._zero_or(name, adjoints, now) for name in names)

        leaves = [(name, self[name].op, values[name]) for name in self.inputs]
        return _lower(pull_back, leaves)

    def _values(self) -> dict[str, Any]:
        missing = [node.name for node in self if node.value is None]
        if missing:
            raise BadInput(f"node '{missing[0]}' has no value yet", fix="call forward(...) first")
        return {node.name: node.value for node in self}

    def _zero_or(self, name: str, adjoints: Mapping[str, Any], values: Mapping[str, Any]) -> Tensor:
        return adjoints[name] if name in adjoints else torch.zeros_like(values[name])

    def _differentiable_nodes(self, values: Mapping[str, Any]) -> set[str]:
        """Names of the nodes that depend on a floating-point leaf, without constants and what follows a detach."""
        differentiable: set[str] = set()
        for node in self:
            leaf = node.op in LEAVES and node.op != "constant" and _is_floating(values[node.name])
            if leaf or (node.kind not in FLAT and any(name in differentiable for name in node.inputs)):
                differentiable.add(node.name)
        return differentiable

    # Views of the graph

    @property
    def multiplies(self) -> int:
        """Multiplications and divisions of one run, counted node by node from the sizes of the values."""
        values = self._values()
        return sum(_multiplies(node, values) for node in self)

    def multiplies_after(self, *names: str) -> int:
        """Those of the nodes that depend on the named leaves."""
        after: set[str] = set(names)
        for node in self:
            if any(name in after for name in node.inputs):
                after.add(node.name)
        values = self._values()
        return sum(_multiplies(node, values) for node in self if node.name in after)

    def expression(self, output: str | None = None) -> str:
        """An output as a formula in the leaves, lightly simplified."""
        from ._expression import spell

        return spell(self, output or self.outputs[0])

    def table(self, max_rows: int | None = None) -> Reading:
        """Every node: operation, inputs, size, and the root mean square of value and adjoint."""
        shown = list(self)[: max_rows or len(self)]
        return Table(
            "Computation graph",
            {
                "node": [node.name for node in shown],
                "operation": [node.kind for node in shown],
                "inputs": [", ".join(node.inputs) for node in shown],
                "size": [size(node) for node in shown],
                "value": [level(node.value) for node in shown],
                "adjoint": [level(node.adjoint) for node in shown],
            },
            axes=["node"],
            note=f"{len(self)} nodes, {sum(len(node.inputs) for node in self)} edges, {self.multiplies:,} multiplications forward. "
            "A single number is shown as it is, a tensor by its root mean square."
            + (f" The first {len(shown)} nodes are shown." if len(shown) < len(self) else ""),
        )

    def to_json(self, values: bool = False) -> str:
        """Nodes with operation, inputs, size, level of value and adjoint; with `values`, all numbers as well."""
        body = []
        for node in self:
            entry: dict[str, Any] = {"name": node.name, "op": node.op, "inputs": node.inputs, "shape": node.shape}
            entry |= {"value": level(node.value), "adjoint": level(node.adjoint)}
            if values:
                entry |= {"values": plain(node.value), "adjoints": plain(node.adjoint)}
            body.append(entry)
        return json.dumps(finite({"nodes": body, "outputs": self.outputs}), allow_nan=False)

    def dot(self) -> str:
        """The graph in the language of Graphviz."""
        from .layout import dot

        return dot(self)

    def svg(self) -> str:
        """A drawing: leaves at the top, outputs at the bottom, every edge pointing down."""
        from .layout import svg

        return svg(self)


# Making a graph


def trace(f: Callable[..., Any], *inputs: Tensor, names: Sequence[str] = ()) -> Graph:
    """Run a function or module on values and record its operations; of a branch on a value, only the taken side is recorded.

    The parameters and buffers of a module become leaves too, under their own names.

    Args:
        names: of the inputs; by default those of the function's arguments
    """
    _check_inputs(inputs)
    function, leaves = _leaves(f, inputs, list(names))
    return _lower(function, leaves)


def capture(f: Callable[..., Any], *inputs: Tensor) -> Graph:
    """Record a function ahead of time (torch.fx), without values; a branch on a value is refused.

    The inputs only define sizes; their values do not affect the graph.
    """
    from torch.fx import symbolic_trace
    from torch.fx.proxy import TraceError

    _check_inputs(inputs)
    try:
        program = symbolic_trace(f)
    except TraceError as error:
        raise BadInput(
            f"static capture met a branch or loop that depends on a value: {_short(error)}",
            where=_user_line(error),
            fix="trace(f, x) follows the values of a run; or write the choice with torch.where",
        ) from error
    except Exception as error:
        raise BadInput(f"the function cannot be captured ahead of time: {_short(error)}", fix="trace(f, x) runs it instead") from error
    return trace(program, *inputs)


def _leaves(f: Callable[..., Any], inputs: Sequence[Tensor], names: list[str]) -> tuple[Callable[..., Any], list[tuple[str, str, Tensor]]]:
    """A function of tensors alone, and its leaves: name, kind, value."""
    import inspect

    own: dict[str, tuple[str, Tensor]] = {}
    if isinstance(f, nn.Module):
        own |= {name: ("parameter", tensor) for name, tensor in f.named_parameters()}
        own |= {name: ("buffer", tensor) for name, tensor in f.named_buffers()}
    try:
        parameters = inspect.signature(f.forward if isinstance(f, nn.Module) else f).parameters.values()
        names = names or [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    except (TypeError, ValueError):  # functions written in C have no signature
        names = ["x", "y", "z"]
    names = (names + [f"x{i}" for i in range(len(names), len(inputs))])[: len(inputs)]
    leaves = [(name, kind, tensor.detach().clone() if kind == "buffer" else tensor.detach()) for name, (kind, tensor) in own.items()]
    leaves += [(name if name not in own else f"{name}_", "input", tensor.detach()) for name, tensor in zip(names, inputs, strict=True)]

    def function(*flat: Tensor) -> Any:
        if not isinstance(f, nn.Module):
            return f(*flat)
        return torch.func.functional_call(f, dict(zip(own, flat, strict=False)), flat[len(own) :])

    return function, leaves


def _lower(function: Callable[..., Any], leaves: Sequence[tuple[str, str, Tensor]]) -> Graph:
    """Trace to ATen primitives that have a rule, and run the graph once for the values."""
    tensors = [tensor for _, _, tensor in leaves]
    program = _trace(function, tensors)
    if any(_writes(node) for node in program.graph.nodes):  # a rule needs the value before it was written over
        leaves = [*leaves, *_lift_constants(program)]
        program = _trace(torch.func.functionalize(program, remove="mutations"), [tensor for _, _, tensor in leaves])
    graph = _from_fx(program, leaves)
    with torch.random.fork_rng(devices=[]):
        graph.forward(*tensors)
    return graph


def _trace(function: Callable[..., Any], tensors: Sequence[Tensor]) -> Any:
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.utils import _pytree as pytree

    def flat(*inputs: Tensor) -> list[Any]:
        return pytree.tree_leaves(function(*inputs))

    try:
        with _plain_kernels(), _one_fake_mode(), torch.random.fork_rng(devices=[]):
            # by default make_fx refuses code that reads a value; here values are real and may be read
            tracer = make_fx(flat, decomposition_table=_decompositions(), tracing_mode="real", _error_on_data_dependent_ops=False)
            return tracer(*tensors)
    except BadInput:
        raise
    except Exception as error:
        shapes = ", ".join(str(tuple(tensor.shape)) for tensor in tensors[-3:])
        raise BadInput(f"the function cannot be run on inputs of size {shapes}: {_short(error)}", fix="check the sizes") from error


def _lift_constants(program: Any) -> list[tuple[str, str, Tensor]]:
    """Make the constants of a program its last inputs: torch functionalizes only the inputs."""
    constants = []
    last = [node for node in program.graph.nodes if node.op == "placeholder"][-1]
    for node in [node for node in program.graph.nodes if node.op == "get_attr"]:
        with program.graph.inserting_after(last):
            last = program.graph.placeholder(f"{node.name}_given")
        node.replace_all_uses_with(last)
        constants.append((node.name, "constant", operator.attrgetter(node.target)(program)))
        program.graph.erase_node(node)
    program.recompile()
    return constants


def _from_fx(program: Any, leaves: Sequence[tuple[str, str, Tensor]]) -> Graph:
    """A Graph from an fx program: the leaves and all that the outputs depend on."""
    from torch.fx import Node as FxNode
    from torch.fx.node import map_arg

    names: dict[Any, str] = {}
    nodes: dict[str, Node] = {}
    used = _dependencies(program.graph)
    remaining_leaves = iter(leaves)
    leaf_names = {name for name, _, _ in leaves}
    for item in program.graph.nodes:
        if item.op == "placeholder":
            name, kind, value = next(remaining_leaves)
            names[item] = name
            if kind != "constant" or item in used:
                nodes[name] = Node(name, kind, value=value if kind == "constant" else None)
        elif item.op == "get_attr" and item in used:
            names[item] = item.name
            nodes[item.name] = Node(item.name, "constant", value=operator.attrgetter(item.target)(program))
        elif item.op == "call_function" and item in used:
            name = item.name if item.name not in leaf_names else f"{item.name}_"
            names[item] = name
            op = "getitem" if item.target is operator.getitem else str(item.target)
            args = map_arg(item.args, lambda other: Ref(names[other]))
            nodes[name] = Node(name, op, tuple(args), dict(map_arg(item.kwargs, lambda other: Ref(names[other]))))
        elif item.op == "output":
            outputs = [value for value in item.args[0] if isinstance(value, FxNode)]
            if not outputs:
                raise BadInput("the function returns no tensor that depends on its inputs", fix="return a tensor")
            return Graph(nodes.values(), [names[value] for value in outputs])
    raise AssertionError("an fx graph ends with its output")


def _dependencies(graph: Any) -> set[Any]:
    """Nodes the output depends on."""
    visited: set[Any] = set()
    pending = [node for node in graph.nodes if node.op == "output"]
    while pending:
        node = pending.pop()
        if node not in visited:
            visited.add(node)
            pending += node.all_input_nodes
    return visited


@cache
def _decompositions() -> dict[Any, Any]:
    """torch's decompositions of everything that has no rule here."""
    from torch._decomp import core_aten_decompositions, get_decompositions

    aten = torch.ops.aten
    more = get_decompositions([aten.native_batch_norm, aten.nll_loss_forward, aten.nll_loss2d_forward, aten._adaptive_avg_pool2d])
    known = RULES.keys() | FLAT
    return {
        op: decomposition
        for op, decomposition in {**core_aten_decompositions(), **more}.items()
        if op._schema.name.split("::")[1] not in known
    }


@contextmanager
def _plain_kernels() -> Iterator[None]:
    """Without fused kernels of attention, transformer and recurrent layers, which hide their operations."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    fast, onednn = torch.backends.mha.get_fastpath_enabled(), torch._C._get_mkldnn_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    torch._C._set_mkldnn_enabled(False)  # its public form warns about graphics cards
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        torch._C._set_mkldnn_enabled(onednn)


@contextmanager
def _one_fake_mode() -> Iterator[None]:
    """make_fx records the size of each value under a fake mode; one mode for all values saves half of its time."""
    from torch._guards import TracingContext, tracing
    from torch._subclasses import FakeTensorMode

    with tracing(TracingContext(FakeTensorMode(allow_fallback_kernels=True))):
        yield


def _writes(node: Any) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and schema.is_mutable


# Order, arguments, sizes


def _topological(nodes: Sequence[Node]) -> dict[str, Node]:
    """Nodes by name in topological order, as close to the given order as can be."""
    known = {node.name: node for node in nodes}
    if len(known) < len(nodes):
        raise BadInput("two nodes of the graph have the same name", fix="give each its own")
    for node in nodes:
        for name in node.inputs:
            if name not in known:
                raise BadInput(f"node '{node.name}' uses '{name}', which does not exist", fix=nearest(name, known))
    done: dict[str, Node] = {}
    for first in nodes:
        stack, path = [first.name], set[str]()
        while stack:
            name = stack[-1]
            pending = [other for other in known[name].inputs if other not in done]
            if name in done or not pending:
                done.setdefault(name, known[name])
                path.discard(stack.pop())
            else:
                path.add(name)
                if pending[0] in path:
                    cycle = stack[stack.index(pending[0]) :]
                    raise BadInput(
                        f"the graph has a cycle: {' -> '.join(reversed([*cycle, cycle[0]]))}",
                        fix="unroll it over time, one node for each step",
                    )
                stack.append(pending[0])
    return done


def _refs(value: Any) -> Iterator[Ref]:
    if isinstance(value, Ref):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _refs(item)
    elif isinstance(value, dict):
        yield from _refs(list(value.values()))


def _fill(value: Any, values: Mapping[str, Any]) -> Any:
    """Arguments with values in place of names."""
    if isinstance(value, Ref):
        return values[value.name]
    if isinstance(value, (list, tuple)):
        return type(value)([_fill(item, values) for item in value])
    if isinstance(value, dict):
        return {name: _fill(item, values) for name, item in value.items()}
    return value


@cache
def _call(op: str) -> Callable[..., Any]:
    """The function behind a name."""
    if op == "getitem":
        return operator.getitem
    try:
        return operator.attrgetter(op if "." in op else f"aten.{op}")(torch.ops)
    except AttributeError:
        raise BadInput(f"torch has no operation '{op}'", fix=nearest(op, RULES)) from None


def _rule(node: Node) -> Callable[..., tuple[Any, ...]]:
    if node.kind not in RULES:
        raise BadInput(f"no gradient rule for '{node.op}'", where=f"node '{node.name}'", fix=f"write one with @rule('{node.kind}')")
    return RULES[node.kind]


def _seed(output: Any, seed: Tensor | None) -> Tensor:
    if not _is_floating(output):
        raise BadInput("only a tensor of floating-point numbers can be differentiated", fix="choose another output")
    if seed is None:
        if output.numel() != 1:
            raise BadInput(f"the output has size {tuple(output.shape)}, not one number", fix="sum it, or give the seed of its adjoint")
        return torch.ones(output.shape, dtype=output.dtype, device=output.device)
    if seed.shape != output.shape:
        raise BadInput(f"the seed has size {tuple(seed.shape)}, the output {tuple(output.shape)}", fix="give them the same size")
    return seed


def _fit(gradient: Tensor, value: Tensor) -> Tensor:
    """A gradient summed over the axes along which the value was broadcast."""
    return gradient if gradient.shape == value.shape else gradient.sum_to_size(value.shape)


def _is_floating(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def _is_complex(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_complex()


_ONCE_PER_OUTPUT = {"mul", "div", "pow", "reciprocal", "sqrt", "rsqrt", "_softmax", "_safe_softmax", "mean", "leaky_relu", "silu", "gelu"}


def _multiplies(node: Node, values: Mapping[str, Any]) -> int:
    """Products and convolutions by torch's own formulas; otherwise one per output entry for what multiplies or divides."""
    from torch.utils.flop_counter import flop_registry

    args, settings = _fill((node.args, node.settings), values)
    value = values[node.name]
    if node.kind in ("mv", "addmv", "dot"):
        return args[-2].numel()
    if node.kind == "native_layer_norm":
        return value[0].numel() * (2 + (args[2] is not None))  # square, divide by the deviation, scale
    packet = getattr(torch.ops.aten, node.kind, None)
    if packet in flop_registry:
        return flop_registry[packet](*args, **settings, out_val=value) // 2
    return value.numel() if node.kind in _ONCE_PER_OUTPUT and _is_floating(value) else 0


def size(node: Node) -> str:
    """The shape of a node's value as text: '3 × 4'."""
    first = node.value[0] if isinstance(node.value, (tuple, list)) else node.value  # of several outputs, the first
    return " × ".join(map(str, first.shape)) or "1" if isinstance(first, Tensor) else ""


def level(value: Any) -> float | None:
    """A single number as it is, a tensor by its root mean square, None for other values."""
    if isinstance(value, (list, tuple)):
        value = value[0] if value else None
    if isinstance(value, (bool, int, float)):
        return float(value)
    if not isinstance(value, Tensor) or not value.numel() or value.is_complex():
        return None
    return float(value) if value.numel() == 1 else float(value.double().square().mean().sqrt())


# Checks of arguments


def _check_inputs(inputs: Sequence[Any]) -> None:
    for index, value in enumerate(inputs):
        if not isinstance(value, Tensor):
            raise BadInput(f"input {index} is a {type(value).__name__}, not a tensor", fix="pass torch tensors")


def _short(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= 160 else text[:157] + "..."


def _user_line(error: BaseException) -> str:
    """The last line of the user's own code in a traceback."""
    import traceback

    lines = [frame for frame in traceback.extract_tb(error.__traceback__) if "/torch/" not in frame.filename and frame.filename != __file__]
    return f"line {lines[-1].lineno} of {lines[-1].filename.rsplit('/', 1)[-1]}" if lines else ""
