"""Signal and gradient by depth: variance and gradient norm of every layer, by initializer, activation and remedy.

A layer multiplies the variance of its values by about n_in Var(w) E g'^2 and that of the gradient by about the same
with n_out.  A product of many such factors vanishes or explodes unless each is near 1.  An initializer sets them near 1;
a residual connection or a normalization makes that unnecessary.  The lens shows your own model, as it is and with every
initializer, and a standard deep net of equal layers with and without these remedies:

    f = W h         h' = act(f)        plain
                    h' = h + act(f)    residual
                    h' = act(norm(f))  norm, over the units of each example

    S settings side by side, L layers, B examples, N units
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.modules.conv import _ConvNd

from ..core.errors import BadInput, nearest
from ..core.numbers import number
from ..core.options import Range
from ..core.reading import Heat, Lines, Reading, Subject
from ..core.seeds import generator, key
from ..nn import activations
from ..nn.activations import activation as make
from ..optim.initialize import initialize, names
from .tools.readonly import guard, hook_outputs, no_gradient, preserve_state
from .tools.tiny import images

if TYPE_CHECKING:
    from torch import Tensor, nn

REMEDIES = ("plain", "residual", "norm", "residual and norm")
EXAMPLES = 32
AS_IT_IS = "as it is"


class SignalFlow(NamedTuple):
    """What passes through each layer, (..., L) each."""

    variance: Tensor
    """of its values before the activation"""
    gradient: Tensor
    """norm of the gradient of the loss with respect to those values"""
    in_weights: Tensor
    """norm of the gradient of the loss with respect to its weights: the gradient above times the inputs of the layer"""

    def ratio(self) -> Tensor:
        """Gradient norm of the first layer over that of the last: far below 1 it vanishes, far above 1 it explodes."""
        return self.gradient[..., 0] / self.gradient[..., -1]


def why_not(subject: Subject) -> str:
    """Why the lens does not apply to a subject, or ''; `guard` turns it into an error."""
    if missing := no_gradient(subject):
        return missing
    return "" if _layers(subject.model) else f"the model has no {nn.Linear.__name__} or convolution that can be trained"


@guard
def read(
    subject: Subject,
    activation: str = "sigmoid",
    initializer: str = "normal",
    compare: tuple[str, ...] = ("sigmoid", "tanh", "relu", "gelu"),
    depth: Annotated[int, Range(2, 500)] = 20,
    width: Annotated[int, Range(1, 1024)] = 32,
    seed: int = 0,
) -> list[Reading]:
    """Your model with every initializer, and a deep net of equal layers with every initializer, activation and remedy.

    Args:
        activation: of the deep net whose layers are drawn; the tables show all
        initializer: of the deep net whose layers are drawn
        compare: activations of the tables; 'all' for every elementwise one
        depth: number of layers of the deep net
        width: units per layer of the deep net
        seed: of weights and inputs
    """
    shown = (
        [name for name in activations.names() if activations.describe(name).elementwise] if tuple(compare) == ("all",) else list(compare)
    )
    for name in (activation, *shown):
        activations.describe(name)  # refuse a wrong name before the work begins
    initialize(initializer)
    with preserve_state(subject.model):
        own = {AS_IT_IS: model_flow(subject.model, subject.objective, subject.batch)}
        for name in names():
            own[name] = model_flow(subject.model, subject.objective, subject.batch, initialize(name), seed)
        stacked = weights([initialize(name) for name in names()], depth, width, seed)
        deep = {
            (name, remedy): deep_flow(stacked, name, remedy, seed) for remedy in REMEDIES for name in dict.fromkeys([*shown, activation])
        }
    row = names().index(initializer)
    lines = {remedy: SignalFlow(*(part[row] for part in deep[activation, remedy])) for remedy in REMEDIES}
    what = f"{depth} layers of {width} units, {activation}, weights '{initializer}'"
    return [
        *_own_flow(own, _layers(subject.model), len(subject.batch)),
        depth_reading("Gradient by layer", {name: flow.gradient for name, flow in lines.items()}, f"A standard net: {what}.", back=True),
        depth_reading("Variance by layer", {name: flow.variance for name, flow in lines.items()}, f"A standard net: {what}."),
        *(_table(remedy, {name: deep[name, remedy].ratio() for name in shown}, names(), depth, width) for remedy in REMEDIES),
    ]


def model_flow(
    model: nn.Module, objective: Any, batch: Any, initialize: Callable[[nn.Module], None] | None = None, seed: int = 0
) -> SignalFlow:
    """Flow through a model's linear and convolution layers, in the order of `named_modules`; `initialize` is applied to a copy.

    A layer that runs several times has the values of all its runs.
    """
    if initialize is not None:
        model = copy.deepcopy(model)
        torch.manual_seed(key(seed, "weights"))
        initialize(model)
    layers = _layers(model)
    seen: dict[str, list[Tensor]] = {}

    def note(name: str, layer: Any, inputs: Any, out: Tensor) -> Tensor:
        seen.setdefault(name, []).append(out)
        return out.clone()  # so that an in-place activation does not change the recorded values

    with hook_outputs(layers, note), torch.inference_mode(False), torch.enable_grad():
        loss = objective(model, batch).loss()
        trained = [layer.get_parameter("weight") for layer in layers.values()]
        values = [out for uses in seen.values() for out in uses]
        slopes = torch.autograd.grad(loss, [*values, *trained], allow_unused=True)
    norms = [0.0 if slope is None else float(slope.double().norm()) for slope in slopes]
    back = iter(norms)
    measured = {name: (float(_join(uses).var(correction=0)), math.hypot(*(next(back) for _ in uses))) for name, uses in seen.items()}
    each = [(*measured.get(name, (math.nan, math.nan)), norm) for name, norm in zip(layers, back, strict=True)]
    return SignalFlow(*torch.tensor(each, dtype=torch.float64).T)


def _join(uses: Sequence[Tensor]) -> Tensor:
    return torch.cat([out.detach().double().flatten() for out in uses])


def weights(initializers: Sequence[Callable[[nn.Module], None]], depth: int, width: int, seed: int = 0) -> Tensor:
    """Weights (S, L, N, N) of a deep net of equal layers, in float64: its gradients may be 1e-80."""
    stacked = torch.empty(len(initializers), depth, width, width, dtype=torch.float64)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(key(seed, "weights"))
        for net_weights, fill in zip(stacked, initializers, strict=True):
            layers = nn.ModuleList(nn.utils.skip_init(nn.Linear, width, width, bias=False) for _ in range(depth))
            fill(layers)
            for weight, layer in zip(net_weights, layers, strict=True):
                weight.copy_(layer.get_parameter("weight").detach())
    return stacked


def deep_flow(weights_SLNN: Tensor, activation: str, remedy: str = "plain", seed: int = 0, examples: int = EXAMPLES) -> SignalFlow:
    """Flow through several deep nets at once, from standard normal inputs to a random projection of the output."""
    if remedy not in REMEDIES:
        raise BadInput(f"no remedy '{remedy}'", fix=nearest(remedy, REMEDIES))
    settings, depth, width, _ = weights_SLNN.shape
    rng = generator(seed, "signal")
    x_BN, target_BN = (torch.randn(examples, width, generator=rng, dtype=weights_SLNN.dtype) for _ in range(2))
    act = make(activation).to(weights_SLNN.dtype)
    layers = [layer.detach().requires_grad_() for layer in weights_SLNN.unbind(1)]
    h = x_BN.expand(settings, examples, width)
    values: list[Tensor] = []
    with torch.inference_mode(False), torch.enable_grad():
        for w_SNN in layers:
            f = h @ w_SNN.mT
            values.append(f)
            out = act(F.layer_norm(f, (width,)) if "norm" in remedy else f)
            h = h + out if "residual" in remedy else out
        slopes = torch.autograd.grad((h * target_BN).sum() / examples, [*values, *layers])
    norms = torch.stack([slope.flatten(1).norm(dim=1) for slope in slopes], 1)
    variance = torch.stack([f.detach().flatten(1).var(1, correction=0) for f in values], 1)
    return SignalFlow(variance, norms[:, :depth], norms[:, depth:])


def depth_reading(title: str, lines: dict[str, Tensor], note: str, back: bool = False) -> Reading:
    """log10 by depth; `back` goes from the loss to the inputs, the direction of backpropagation, so that the ends of the lines differ."""
    series = {name: _logarithms(values.flip(0) if back else values, digits=3) for name, values in lines.items()}
    ranges = [f"{name} {number(float(values[0]))} to {number(float(values[-1]))}" for name, values in lines.items()]
    axes = ["layers back from the loss" if back else "layer", "log10"]
    return Lines(
        title,
        series,
        axes,
        f"{note} log10 scale; first to last layer: {', '.join(ranges)}.",
        x=list(range(1, 1 + max(map(len, series.values())))),
    )


def _layers(model: nn.Module) -> dict[str, nn.Module]:
    """Linear and convolution layers with trainable weights: those an initializer fills."""
    layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, (nn.Linear, _ConvNd))}
    return {name: layer for name, layer in layers.items() if layer.weight.requires_grad}


def _own_flow(flows: dict[str, SignalFlow], layers: dict[str, nn.Module], examples: int) -> list[Reading]:
    readings: list[Reading] = []
    for part, what in (
        ("gradient", "norm of the gradient with respect to the values of each layer"),
        ("variance", "variance of the values of each layer"),
    ):
        cells = {name: _logarithms(getattr(flow, part)) for name, flow in flows.items()}
        note = f"log10 of the {what}, on {examples} examples. First the model as it is, then copies with new weights from each initializer."
        title = f"Your model: {part}"
        readings.append(
            Heat(
                title,
                {"log10": list(cells.values())},
                axes=["initializer", "layer"],
                note=note,
                rows=list(cells),
                columns=[name or "model" for name in layers],
            )
        )
    return readings


def _table(remedy: str, ratios: dict[str, Tensor], rows: Sequence[str], depth: int, width: int) -> Reading:
    columns = [_logarithms(ratio) for ratio in ratios.values()]
    cells = [[column[i] for column in columns] for i in range(len(rows))]
    note = (
        f"log10 of the gradient norm in the first layer over that in the last, {depth} layers of {width} units: "
        "far below 0 it vanishes, far above 0 it explodes; blank where the gradient is 0 or not finite."
    )
    title = f"Gradient flow, {remedy}"
    return Heat(title, {"log10": cells}, axes=["initializer", "activation"], note=note, rows=rows, columns=list(ratios))


def _logarithms(values: Tensor, digits: int = 1) -> list[float | None]:
    return [round(math.log10(value), digits) + 0.0 if 0 < value < math.inf else None for value in values.tolist()]


def tiny() -> Subject:
    """A small subject for the contract tests."""
    return images()
