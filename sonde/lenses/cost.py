"""What a network costs, layer by layer: output size, weights, biases, FLOPs, activation memory, receptive field.

The network is run once on the meta device, where tensors have sizes and no memory, so the largest model is counted in
milliseconds (the first count of a process waits for torch to load its meta kernels).  All values are for one example.

Convention: one multiply-add is 2 FLOPs and adding a bias is 1.  An activation is 1 per element, a softmax 3 (exponential,
sum, division).  A norm is 2 per element where the statistics are stored, 5 where they are computed, and 1 more for each
of scale and shift.  Pooling over k entries is k-1 comparisons, or k additions and divisions.  Copies and views are free.
A layer not listed here has unknown FLOPs, written '-' and never counted as zero.  Operations in a container's own forward,
such as the sum of a residual block, are counted by the same convention in a row of the container itself: matrix products,
convolutions, elementwise sums and products, activations, softmax; other operations count 0.  Where a container with
parameters of its own ran operations other than copies and none was counted, its FLOPs are unknown.  Small layers of this
library without submodules, such as the short convolution of a mixer, are counted the same way.

Receptive field of layer L in a chain of convolutions and pools: 1 + sum_l (k_l - 1) d_l prod_{m<l} s_m.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from ..core.batch import Batch, call_model
from ..core.errors import BadInput
from ..core.numbers import bytes_, si
from ..core.reading import Reading, Subject, Table
from ..kernels import delta, hadamard, separable  # noqa: F401  they register the ops
from ..kernels.gates import GateKind
from ..nn import features
from ..nn.positions import Alibi, Positions, RelativeBias
from ..nn.recurrence import Steps
from ..nn.recurrence.choose import flops
from ..nn.short_conv import ShortConv
from .tools.readonly import guard, no_model, preserve_state
from .tools.tiny import images

REPORT = {"position": 80}


@dataclass(frozen=True)
class CostRow:
    """One layer.  Sizes leave out the batch axis."""

    name: str
    kind: str
    output: tuple[int, ...] = ()
    weights: int = 0
    biases: int = 0
    flops: int | None = 0
    """None where unknown"""
    memory: int = 0
    """bytes of the output; a view or an in-place result adds nothing"""
    field: tuple[int, ...] | None = None
    """receptive field on each spatial axis, where it applies"""
    calls: int = 1


@dataclass(frozen=True)
class Cost:
    """Rows in the order the layers first ran, and their totals."""

    rows: tuple[CostRow, ...]

    @cached_property
    def weights(self) -> int:
        return sum(row.weights for row in self.rows)

    @cached_property
    def biases(self) -> int:
        return sum(row.biases for row in self.rows)

    @property
    def parameters(self) -> int:
        return self.weights + self.biases

    @cached_property
    def flops(self) -> int:
        """FLOPs of all layers where they are known; `unknown` lists the others."""
        return sum(row.flops or 0 for row in self.rows)

    @cached_property
    def unknown(self) -> tuple[str, ...]:
        return tuple(row.name for row in self.rows if row.flops is None)

    @cached_property
    def memory(self) -> int:
        return sum(row.memory for row in self.rows)


def cost(model: nn.Module | Callable[[], nn.Module], example: Batch | Tensor | Sequence[int], dtype: torch.dtype = torch.float32) -> Cost:
    """Count a network on the meta device, without computing anything.

    Args:
        model: a module on any device, or a function that returns one (called under `torch.device("meta")`)
        example: a Batch or tensor with a batch axis, or the size of one example without it
        dtype: of the input if `example` is a size; token ids are torch.int64
    """
    net, batch = on_meta(model, example, dtype)
    with preserve_state(), torch.enable_grad(), torch.device("meta"):
        walk = _Walk(net, batch)
        with walk.uncounted, walk.products:
            try:
                call_model(net, batch)
            except Exception as error:
                raise walk.fail(error) from error
    return Cost(tuple(walk.finish()))


def on_meta(model: Any, example: Batch | Tensor | Sequence[int], dtype: torch.dtype = torch.float32) -> tuple[nn.Module, Batch]:
    """A copy of the network and a batch of one example, both on the meta device; the arguments are those of `cost`."""
    with preserve_state(), torch.enable_grad(), torch.device("meta"):
        net = _on_meta(model)
        return net, _input(net, example, dtype)


def _on_meta(model: Any) -> nn.Module:
    """A copy whose tensors are all meta: each tensor is replaced during the copy, so no weight is ever duplicated."""
    if not isinstance(model, nn.Module):
        try:
            model = model()
        except Exception as error:
            raise BadInput(f"the model cannot be built on the meta device: {error}", fix="build it first and pass the module") from error
    replacements: dict[int, Any] = {}
    for module in model.modules():
        owned = (*module._parameters.values(), *module._buffers.values(), *vars(module).values())
        for tensor in (item for item in owned if isinstance(item, Tensor)):
            meta = torch.empty_like(tensor, device="meta", requires_grad=False)
            replacements[id(tensor)] = nn.Parameter(meta, requires_grad=False) if isinstance(tensor, nn.Parameter) else meta
    net = copy.deepcopy(model, replacements).eval()
    for parameter in net.parameters():  # with gradients, torch does not use its fused attention, whose parts no hook sees
        parameter.requires_grad_(parameter.is_floating_point())
    return net


def _input(net: nn.Module, example: Batch | Tensor | Sequence[int], dtype: torch.dtype) -> Batch:
    """The fields that the network reads, except lengths: a meta tensor has no values, so a row counts at full length."""
    if not isinstance(example, (Batch, Tensor)):
        shape = tuple(example)
        if not all(isinstance(size, int) and size >= 0 for size in shape):
            raise BadInput(f"an input size is a list of whole numbers, not {example!r}", fix="leave out the batch axis: (1, 28, 28)")
        example = torch.empty((1, *shape), dtype=dtype, device="meta")
    batch = example if isinstance(example, Batch) else Batch(x=example)
    own = next((p.dtype for p in net.parameters() if p.is_floating_point()), None)
    return Batch(
        **{
            name: torch.empty((1, *field.shape[1:]), dtype=own if own and field.is_floating_point() else field.dtype, device="meta")
            for name in getattr(net, "reads", ("x",))
            if (field := batch.get(name)) is not None and not name.endswith("lengths")
        }
    )


class _Walk:
    """Follows one forward pass with hooks and fills the rows."""

    def __init__(self, net: nn.Module, batch: Batch) -> None:
        self.products = FlopCounterMode(display=False, custom_mapping=_operation_flops())
        self.names = {module: name or type(module).__name__ for name, module in net.named_modules()}
        self.rows: dict[nn.Module, CostRow] = {}
        self.own: dict[nn.Module, int] = {}  # FLOPs of a container's own matrix products
        self.stack: list[list[Any]] = []  # module, FLOPs counted at entry, FLOPs of its children
        self.uncounted = _UncountedOperations(self)
        self.counted: set[Tensor] = set()
        self.inputs = list(batch.fields.values())
        self.alive: list[Any] = [*self.inputs]  # keeps tensors alive so that no id or storage is reused
        self.storages = {x.untyped_storage()._cdata for x in self.inputs}
        self.fields = {id(x): ((1,) * (x.dim() - 2), (1,) * (x.dim() - 2)) for x in self.inputs if x.dim() > 2}
        for module in net.modules():
            module.register_forward_pre_hook(self.enter)
            module.register_forward_hook(self.leave, with_kwargs=True)

    def enter(self, module: nn.Module, _: Any) -> None:
        self.stack.append([module, self.products.get_total_flops(), 0])

    def leave(self, module: nn.Module, positional: tuple[Any, ...], named: dict[str, Any], output: Any) -> None:
        inputs = (*positional, *named.values())
        _, before, children = self.stack.pop()
        inside = self.products.get_total_flops() - before
        if self.stack:
            self.stack[-1][2] += inside
        rule = _rule(module)
        if any(_rule(frame[0]) for frame in self.stack):
            return  # part of a layer that is counted as a whole
        tensors = _tensors(output)
        shape = tuple(tensors[0].shape[1:]) if tensors else ()
        if rule is None and next(module.children(), None) is not None:
            self.own[module] = self.own.get(module, 0) + inside - children
            if module not in self.rows:
                self.rows[module] = CostRow(self.names[module], f"{type(module).__name__} itself", shape)
            return
        fresh = [t for t in tensors if t.untyped_storage()._cdata not in self.storages]
        self.storages |= {t.untyped_storage()._cdata for t in fresh}
        self.alive += tensors
        self.follow(module, inputs, tensors)
        flops = rule(module, inputs, output) if rule else inside if isinstance(module, _AS_WRITTEN) else None
        row = self.rows.get(module) or CostRow(self.names[module], type(module).__name__, calls=0)
        first = tensors[0] if tensors else None
        self.rows[module] = replace(
            row,
            output=shape,
            flops=None if flops is None or row.flops is None else row.flops + flops,
            memory=row.memory + sum(t.numel() * t.element_size() for t in fresh),
            field=self.fields[id(first)][0] if id(first) in self.fields else None,
            calls=row.calls + 1,
        )

    def follow(self, module: nn.Module, inputs: tuple[Any, ...], outputs: list[Tensor]) -> None:
        """Receptive field (field, jump between neighbors) of an output, from that of the input."""
        before = self.fields.get(id(inputs[0])) if inputs else None
        if before is None or not outputs:
            return
        if type(module) in _POINTWISE:
            self.fields[id(outputs[0])] = before
        elif type(module) in _WINDOWS:
            size, jump = before
            k, s, d = _window(module, len(size))
            field = tuple(f + (kk - 1) * dd * j for f, j, kk, dd in zip(size, jump, k, d, strict=True))
            self.fields[id(outputs[0])] = field, tuple(j * ss for j, ss in zip(jump, s, strict=True))

    def join(self, parts: tuple[Any, ...], total: Tensor) -> None:
        """The field of a sum is the largest known field of its parts: a shortcut connection never sees more than the layers it skips."""
        known = [self.fields[id(part)] for part in parts if id(part) in self.fields]
        if known:
            self.alive.append(total)
            self.fields[id(total)] = max(known, key=lambda field: field[0])

    def finish(self) -> list[CostRow]:
        """Rows with parameters, each tensor counted once where it first belongs; layers that never ran come last."""
        done = []
        for module, row in self.rows.items():
            weights, biases = self.parameters(module, whole=module not in self.own)
            if module in self.own:
                if not (self.own[module] or weights or biases):
                    continue
                row = replace(row, flops=self.own[module] or (None if module in self.uncounted.modules else 0))
            done.append(replace(row, weights=weights, biases=biases))
        for module, name in self.names.items():
            weights, biases = self.parameters(module, whole=False)
            if weights or biases:
                done.append(CostRow(name, f"{type(module).__name__}, not run", weights=weights, biases=biases))
        return done

    def parameters(self, module: nn.Module, whole: bool) -> tuple[int, int]:
        weights = biases = 0
        for name, parameter in module.named_parameters(recurse=whole):
            if parameter not in self.counted:
                self.counted.add(parameter)
                bias = "bias" in name.rsplit(".", 1)[-1]
                weights, biases = weights + parameter.numel() * (not bias), biases + parameter.numel() * bias
        return weights, biases

    def fail(self, error: Exception) -> BadInput:
        message = " ".join(str(error).split())
        message = message if len(message) <= 200 else message[:197] + "..."
        sizes = " and ".join(str(tuple(x.shape[1:])) for x in self.inputs)
        where = f"layer '{self.names[self.stack[-1][0]]}' ({type(self.stack[-1][0]).__name__})" if self.stack else "model"
        return BadInput(
            f"the network cannot be run on an input of size {sizes}: {message}",
            where=where,
            fix="check the input size",
        )


class _UncountedOperations(TorchDispatchMode):
    """Sees the operations between layers: notes modules that ran one that is neither counted nor a copy, and joins fields at sums."""

    def __init__(self, walk: _Walk) -> None:
        super().__init__()
        self.walk, self.modules = walk, set[nn.Module]()
        self.known = {*walk.products.flop_registry, *_COPYING}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.walk.stack and not func.is_view and func._overloadpacket not in self.known:
            self.modules.add(self.walk.stack[-1][0])
        result = func(*args, **kwargs or {})
        if func is torch.ops.aten.add.Tensor:
            self.walk.join(args, result)
        return result


_COPYING = {
    getattr(torch.ops.aten, name)
    for name in (
        *("cat", "stack", "clone", "copy_", "_to_copy", "_unsafe_view", "embedding", "index", "index_select", "gather", "repeat", "flip"),
        *("roll", "constant_pad_nd", "arange", "zeros", "ones", "empty", "full", "new_zeros", "new_ones", "new_empty", "new_full"),
        *("zeros_like", "ones_like", "empty_like", "full_like", "pixel_shuffle", "pixel_unshuffle"),
    )
}
"""operations that only move numbers, besides views"""


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [tensor for item in value for tensor in _tensors(item)] if isinstance(value, (list, tuple)) else []


def _operation_flops() -> dict[Any, Any]:
    """FLOPs of operations in a container's forward, besides torch's own formulas for products and convolutions."""
    aten = torch.ops.aten

    def per_output(count: int) -> Callable[..., int]:
        return lambda *shapes, out_shape=None, **_: count * prod(out_shape)

    def with_bias(bias: Any, a: Any, b: Any, *_: Any, out_shape: Any = None, **__: Any) -> int:
        return prod(out_shape) * (2 * a[-1] + 1)

    def per_input(count: int) -> Callable[..., int]:
        return lambda shape, *_, **__: count * prod(shape)

    once = "add sub rsub mul div neg exp log sqrt rsqrt reciprocal pow abs tanh sigmoid relu gelu silu elu leaky_relu softplus sin cos"
    formulas = {getattr(aten, name): per_output(1) for name in (*once.split(" "), "maximum", "minimum", "clamp", "clamp_min")}
    formulas |= {getattr(aten, f"{name}_"): per_output(1) for name in ("add", "sub", "mul", "div", "relu", "tanh", "sigmoid", "silu")}
    formulas |= dict.fromkeys((aten._softmax, aten._log_softmax, aten._safe_softmax), per_output(3))
    formulas |= dict.fromkeys((aten.sum, aten.mean), per_input(1)) | dict.fromkeys((aten.addmm, aten.baddbmm), with_bias)
    formulas |= {aten.addcmul: per_output(2), aten.linalg_vector_norm: per_input(2)}
    return formulas | _kernel_flops() | attention_on_cpu()


def attention_on_cpu() -> dict[Any, Any]:
    """FLOPs of torch's attention on a CPU; torch itself counts it only on a GPU."""

    def count(q: Any, k: Any, v: Any, *_: Any, out_val: Any = None, **__: Any) -> int:
        """Scores and weighted sums of all pairs, from the shapes (B, H, T, d)."""
        return 2 * q[0] * q[1] * q[2] * k[2] * (q[3] + v[3])

    return {torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: count}


def _kernel_flops() -> dict[Any, Any]:
    """FLOPs of the fused recurrences: linear ones by their cost model, cells by their formula."""

    def of(*names: str) -> Callable[..., int]:
        def count(*args: Any, out_val: Any = None, **_: Any) -> int:
            return round(flops(Steps(**dict(zip(names, args))), "fused"))

        count._get_raw = True  # type: ignore[attr-defined]  # tensors, not their shapes
        return count

    pointwise = dict(zip(GateKind, (2, 2, 11, 12, 13, 15, 14)))  # elementwise FLOPs per number of the state

    def cell(kind: int, p: Any, weight: Any, inner: Any, *_: Any, out_val: Any = None, **__: Any) -> int:
        """Products of the state (B, H) with weights (gates H, H) at each step of p (B, T, *), and the elementwise operations."""
        H = weight[1]
        return p[0] * p[1] * H * (2 * weight[0] + (2 * H if inner else 0) + pointwise[GateKind(kind)])

    return {
        torch.ops.sonde.separable: of("q", "k", "v", "log_head", "log_key", "log_value"),
        torch.ops.sonde.hadamard: of("q", "k", "v", "log_value", "rate", "weight"),
        torch.ops.sonde.delta: of("q", "k", "v", "beta", "log_head"),
        torch.ops.sonde.gates: cell,
    }


# FLOP rules: (module, inputs, output) -> FLOPs

FlopRule = Callable[[Any, tuple[Any, ...], Any], int]


def _rule(module: nn.Module) -> FlopRule | None:
    """The rule of a layer.  A subclass has its parent's rule only if it does not override forward."""
    for base in type(module).__mro__:
        if base in _RULES:
            return _RULES[base] if type(module).forward is base.forward else None  # type: ignore[attr-defined]
    return None


def _free(module: Any, inputs: Any, output: Any) -> int:
    return 0


def _per_element(count: int) -> FlopRule:
    return lambda module, inputs, output: count * output.numel()


def _linear(module: nn.Linear, inputs: Any, output: Tensor) -> int:
    return output.numel() * (2 * module.in_features + (module.bias is not None))


def _bilinear(module: nn.Bilinear, inputs: Any, output: Tensor) -> int:
    a, b = module.in1_features, module.in2_features
    return output.numel() * (2 * a * b + 2 * a + (module.bias is not None))


def _convolution(module: Any, inputs: Any, output: Tensor) -> int:
    each = 2 * module.in_channels // module.groups * prod(module.kernel_size)
    return output.numel() * (each + (module.bias is not None))


def _transposed_flops(module: Any, inputs: tuple[Tensor, ...], output: Tensor) -> int:
    each = 2 * module.out_channels // module.groups * prod(module.kernel_size)
    return inputs[0].numel() * each + output.numel() * (module.bias is not None)


def _norm(module: Any, inputs: Any, output: Tensor) -> int:
    stored = getattr(module, "running_mean", None) is not None
    shared = sum(getattr(module, name, None) is not None for name in ("weight", "bias"))
    return output.numel() * ((2 if stored else 5) + shared)


def _rms_norm(module: Any, inputs: Any, output: Tensor) -> int:
    return output.numel() * (3 + (module.weight is not None))  # square, sum, scale


def _pool(module: Any, inputs: Any, output: Any) -> int:
    """Comparisons, or additions and a division, per window; windows of an adaptive pool differ in size."""
    first, average, axes = _tensors(output)[0], isinstance(module, _AVERAGES), inputs[0].dim() - 2
    if isinstance(module, _ADAPTIVE):
        before, after = inputs[0].shape[-axes:], first.shape[-axes:]
        entries = prod(sum(-(-(i + 1) * n // m) - i * n // m for i in range(m)) for n, m in zip(before, after, strict=True))
        windows = prod(after)
        return first.numel() // max(windows, 1) * (entries - (not average) * windows)
    entries = prod(_window(module, axes)[0])
    return first.numel() * (entries - (not average))


def _recurrent(module: Any, inputs: Any, output: Any) -> int | None:
    """Per step: gates from input and state, their sum, biases, then the elementwise operations of the cell."""
    if module.proj_size:
        return None
    gates, pointwise = {"RNN": (1, 1), "LSTM": (4, 9), "GRU": (3, 8)}[module.mode.split("_")[0]]
    steps = output[0].numel() // output[0].shape[-1]
    width, directions = module.hidden_size, 1 + module.bidirectional
    total = 0
    for layer in range(module.num_layers):
        size = module.input_size if layer == 0 else width * directions
        total += steps * directions * width * (gates * (2 * (size + width) + 1 + 2 * module.bias) + pointwise)
    return total


def _attention(module: nn.MultiheadAttention, inputs: tuple[Tensor, ...], output: Any) -> int | None:
    """Projections, scaled scores, softmax, mixing, output projection."""
    query, keys, values = inputs[:3]
    if query.dim() != 3 or module.bias_k is not None or module.add_zero_attn:
        return None
    batch, time = (0, 1) if module.batch_first else (1, 0)
    n, t, s, e = query.shape[batch], query.shape[time], keys.shape[time], module.embed_dim
    bias = module.in_proj_bias is not None
    projections = 2 * e * (t * e + s * keys.shape[-1] + s * values.shape[-1]) + bias * e * (t + 2 * s)
    mixing = t * e + 4 * t * s * e + 3 * t * s * module.num_heads
    return n * (projections + mixing + t * e * (2 * e + (module.out_proj.bias is not None)))


def _window(module: Any, axes: int) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Kernel, stride and dilation of a convolution or pool on each axis."""

    def spread(value: Any) -> tuple[int, ...]:
        return tuple(value) if isinstance(value, (tuple, list)) else (value,) * axes

    kernel = spread(module.kernel_size)
    return kernel, spread(module.stride) if module.stride is not None else kernel, spread(getattr(module, "dilation", 1))


_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_POOLS = (nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d)
_ADAPTIVE_AVERAGES = (nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d)
_ADAPTIVE = (*_ADAPTIVE_AVERAGES, nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d)
_AVERAGES = (nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d, *_ADAPTIVE_AVERAGES)
_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_INSTANCE_NORMS = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
_ACTIVATIONS = (
    *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.PReLU, nn.RReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish, nn.Sigmoid),
    *(nn.LogSigmoid, nn.Tanh, nn.Softplus, nn.Softsign, nn.Hardtanh, nn.Hardsigmoid, nn.Hardswish, nn.Softshrink, nn.Threshold),
)
_COPIES = (
    *(
        nn.Identity,
        nn.Flatten,
        nn.Unflatten,
        nn.Embedding,
        nn.ZeroPad1d,
        nn.ZeroPad2d,
        nn.ZeroPad3d,
        nn.ReflectionPad1d,
        nn.ReflectionPad2d,
    ),
    *(nn.ReplicationPad1d, nn.ReplicationPad2d, nn.ConstantPad1d, nn.ConstantPad2d, nn.PixelShuffle, nn.PixelUnshuffle, nn.ChannelShuffle),
)
_DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)
_POINTWISE = {*_ACTIVATIONS, *_DROPOUTS, *_BATCH_NORMS, nn.Identity}
_WINDOWS = {*_CONVOLUTIONS, *_POOLS}
_AS_WRITTEN = (ShortConv, features.Elu, features.Polynomial, features.DPFP, features.Fourier, Alibi, Positions, RelativeBias)
_RULES: dict[type, Any] = {
    nn.Linear: _linear,
    nn.Bilinear: _bilinear,
    nn.RMSNorm: _rms_norm,
    nn.MultiheadAttention: _attention,
    nn.Softmax: _per_element(3),
    nn.LogSoftmax: _per_element(3),
    **dict.fromkeys(_CONVOLUTIONS, _convolution),
    **dict.fromkeys((nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d), _transposed_flops),
    **dict.fromkeys((*_BATCH_NORMS, *_INSTANCE_NORMS, nn.LayerNorm, nn.GroupNorm), _norm),
    **dict.fromkeys((*_POOLS, *_ADAPTIVE), _pool),
    **dict.fromkeys((nn.RNN, nn.LSTM, nn.GRU), _recurrent),
    **dict.fromkeys(_ACTIVATIONS, _per_element(1)),
    **dict.fromkeys((*_COPIES, *_DROPOUTS), _free),
}


# The lens


def why_not(subject: Subject) -> str:
    """Why the lens does not apply to a subject, or ''; `guard` turns it into an error."""
    return no_model(subject)


@guard
def read(subject: Subject) -> Reading:
    """Per layer: output size, weights, biases, FLOPs, activation memory, receptive field; for one example."""
    profile = cost(subject.model, subject.batch)
    rows = profile.rows
    return Table(
        "Cost of one example",
        {
            "layer": [row.name for row in rows],
            "kind": [row.kind for row in rows],
            "output": [size_text(row.output) for row in rows],
            "weights": [row.weights for row in rows],
            "biases": [row.biases for row in rows],
            "FLOPs": [row.flops for row in rows],
            "memory": [row.memory for row in rows],
            "field": [size_text(row.field) if row.field else None for row in rows],
        },
        axes=["layer"],
        note=describe_totals(profile),
        formats={"FLOPs": "si", "memory": "bytes"},
        total={"weights": profile.weights, "biases": profile.biases, "FLOPs": profile.flops, "memory": profile.memory},
    )


def size_text(sizes: Sequence[int | str]) -> str:
    """Sizes as text: 5 × 192 × 256."""
    return " × ".join(map(str, sizes)) or "1"


def describe_totals(profile: Cost) -> str:
    """The totals in a sentence, with the layers whose FLOPs are unknown."""
    at_least = "at least " if profile.unknown else ""
    text = f"{profile.parameters:,} parameters, {at_least}{si(profile.flops)}FLOPs, {bytes_(profile.memory)} of activations."
    if profile.unknown:
        text += f" Unknown FLOPs: {', '.join(profile.unknown[:5])}{' and more' if len(profile.unknown) > 5 else ''}."
    return text


def tiny() -> Subject:
    """A small subject for the contract tests."""
    return images()
