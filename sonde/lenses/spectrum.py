"""Spectral norm, spectral radius and condition number of every layer, and the extreme eigenvalues of the Hessian of the loss.

The spectral norm of a layer bounds how much it can amplify a signal; the spectral radius describes many products with the
same square matrix.  The Hessian H of the loss sets the step size: gradient descent diverges beyond 2 / lambda_max, and
needs on the order of the condition number lambda_max / lambda_min steps.  H is only multiplied by vectors, at a
few times the cost of a gradient, so a model with millions of parameters needs tens of products and no matrix.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import torch
from torch import nn
from torch.nn.modules.conv import _ConvNd

from ..core.batch import call_model
from ..core.numbers import number
from ..core.options import Range
from ..core.reading import Lines, Reading, Subject, Table
from ..core.seeds import generator
from ..gradients.lanczos import Spectrum, lanczos, spectral_norm
from ..gradients.modes import hvp, of_parameters
from .tools.readonly import guard, hook_outputs, no_gradient, preserve_state, without_kernels
from .tools.tiny import images

if TYPE_CHECKING:
    from torch import Tensor, nn

DENSE = 1024
"""a matrix up to this size is decomposed; a larger one is only multiplied by vectors"""
BASIS = 2**30
"""maximum bytes of Lanczos vectors; beyond that they are not stored"""
POINTS = 201


def why_not(subject: Subject) -> str:
    """Why the lens does not apply to a subject, or ''; `guard` turns it into an error."""
    return no_gradient(subject)


@guard
def read(
    subject: Subject,
    steps: Annotated[int, Range(2, 1000)] = 60,
    tolerance: Annotated[float, Range(least=0, below=1)] = 1e-4,
    seed: int = 0,
) -> list[Reading]:
    """The spectrum of each layer, then of the Hessian of the loss on the batch.

    Args:
        steps: maximum number of products with the Hessian
        tolerance: stop when the error of the two extreme eigenvalues is below this fraction of the largest
        seed: seed of the start vector
    """
    with preserve_state(subject.model):
        rows = [_layer(name, layer, shape, seed) for name, (layer, shape) in _linear_maps(subject).items()]
        spectrum = hessian_spectrum(subject.model, subject.objective, subject.batch, steps, tolerance, seed)
    columns = ("layer", "kind", "spectral norm", "stable rank", "condition", "spectral radius")
    layers = Table(
        "Layers as linear maps",
        {column: [row[i] for row in rows] for i, column in enumerate(columns)},
        note="Stable rank: squared Frobenius norm over squared spectral norm. Condition: largest over smallest singular value; "
        f"not for convolutions or above {DENSE:,} units. Radius: of square matrices.",
    )
    return ([layers] if rows else []) + [_curvature(spectrum, len(subject.batch), sum(p.numel() for p in _trainable(subject.model)))]


def hessian_spectrum(model: nn.Module, objective: Any, batch: Any, steps: int = 60, tolerance: float = 1e-4, seed: int = 0) -> Spectrum:
    """Ritz values of the Hessian of the loss in all trained parameters."""
    params = _trainable(model)
    n, dtype = sum(p.numel() for p in params), params[0].dtype
    start = torch.randn(n, generator=generator(seed, "lanczos"), dtype=dtype).to(params[0].device)
    keep = steps * n * params[0].element_size() <= BASIS
    with without_kernels(model), torch.inference_mode(False):
        return lanczos(hessian_product(model, objective, batch), start, steps, tolerance, keep)


def hessian_product(model: nn.Module, objective: Any, batch: Any) -> Callable[[Tensor], Tensor]:
    """v -> H v for flat vectors over the trained parameters."""
    loss, now = of_parameters(model, lambda net: objective(net, batch).loss())
    trained = {name: now[name] for name, parameter in model.named_parameters() if parameter.requires_grad}
    sizes = [value.numel() for value in trained.values()]

    def product(v: Tensor) -> Tensor:
        along = {name: part.view_as(value) for (name, value), part in zip(trained.items(), v.split(sizes), strict=True)}
        return torch.cat([part.flatten() for part in hvp(lambda moved: loss({**now, **moved}), trained, along).values()])

    return product


def spectral_radius(matrix: Tensor, seed: int = 0) -> float:
    """Largest absolute eigenvalue of a square matrix: the factor per step of a long product with a vector."""
    if len(matrix) <= DENSE:
        return float(torch.linalg.eigvals(matrix.double()).abs().max())
    from scipy.sparse.linalg import eigs

    start = torch.randn(len(matrix), generator=generator(seed, "radius"), dtype=torch.float64).numpy()
    return float(abs(eigs(matrix.double().cpu().numpy(), k=1, which="LM", v0=start, return_eigenvectors=False)[0]))


def layer_norm(layer: nn.Module, shape: tuple[int, ...], seed: int = 0) -> float:
    """Spectral norm of a linear layer without its bias, on inputs (..., features) or (channels, ...) of the given shape."""
    weight = layer.get_parameter("weight").detach()
    start = torch.randn(shape, generator=generator(seed, "norm"), dtype=weight.dtype).to(weight.device)
    if weight.dim() == 2:
        return spectral_norm(weight.mv, weight.mT.mv, start.flatten())
    no_bias = torch.zeros_like(layer.bias) if isinstance(layer.bias, torch.Tensor) else None

    def apply(x: Tensor) -> Tensor:
        params = {"weight": weight} | ({} if no_bias is None else {"bias": no_bias})
        return torch.func.functional_call(layer, params, (x.view(1, *shape),))

    out, back = torch.func.vjp(apply, start.flatten())[:2]
    return spectral_norm(apply, lambda y: back(y.view_as(out))[0], start.flatten())


def _linear_maps(subject: Subject) -> dict[str, tuple[nn.Module, tuple[int, ...]]]:
    """Linear and convolution layers with the shape of their input for one example, from one forward pass."""
    seen: dict[str, tuple[nn.Module, tuple[int, ...]]] = {}

    def note(name: str, layer: nn.Module, inputs: tuple[Tensor, ...], _: Tensor) -> None:
        axes = 1 if isinstance(layer, nn.Linear) else layer.get_parameter("weight").dim() - 1
        seen[name] = (layer, tuple(inputs[0].shape[-axes:]))

    maps = {name: layer for name, layer in subject.model.named_modules() if isinstance(layer, (nn.Linear, _ConvNd))}
    with hook_outputs(maps, note), torch.no_grad():
        call_model(subject.model, subject.batch[:2])
    return seen


def _layer(name: str, layer: nn.Module, shape: tuple[int, ...], seed: int) -> list[Any]:
    weight = layer.get_parameter("weight").detach()
    kind = f"{type(layer).__name__} {' x '.join(map(str, weight.shape))}"
    norm = layer_norm(layer, shape, seed)
    if weight.dim() != 2:
        return [name or "model", kind, norm, None, None, None]
    rank = float(weight.double().square().sum()) / norm**2 if norm else None
    condition = None
    if min(weight.shape) <= DENSE:
        values = torch.linalg.svdvals(weight.double())
        condition = float(values[0] / values[-1]) if values[-1] > 0 else float("inf")
    radius = spectral_radius(weight, seed) if weight.shape[0] == weight.shape[1] else None
    return [name or "model", kind, norm, rank, condition, radius]


def _curvature(spectrum: Spectrum, examples: int, parameters: int) -> Reading:
    """The density of the Hessian's eigenvalues: each Ritz value as a narrow Gaussian with its weight."""
    low, high = spectrum.low, spectrum.high
    extent = max(high - low, 1e-12)
    x = torch.linspace(low - 0.05 * extent, high + 0.05 * extent, POINTS, dtype=torch.float64)
    width = extent / 60
    gaussians = torch.exp(-0.5 * ((x[:, None] - spectrum.values) / width).square()) / (width * (2 * torch.pi) ** 0.5)
    density = (gaussians * spectrum.weights).sum(1).clamp(min=1e-6 / extent)
    error = float(spectrum.errors[[0, -1]].max())
    note = (
        f"Loss on {examples} examples, {number(parameters)} parameters, {spectrum.products} products. "
        f"Eigenvalues from {number(low)} to {number(high)}, with an error of at most {number(error)}. {verdict(low, high, error)}"
    )
    return Lines(
        "Curvature of the loss",
        {"density": density},
        axes=["eigenvalue", "density"],
        note=note,
        x=x,
        log=["y"],
        results={"low": low, "high": high, "error": error, "products": spectrum.products},
    )


def verdict(low: float, high: float, error: float = 0.0) -> str:
    """What the extreme eigenvalues of a Hessian mean for gradient descent."""
    if high <= error:
        return "The Hessian has no positive eigenvalue." if low < -error else "The loss is flat: all eigenvalues are 0."
    limit = f"Gradient descent is stable up to a rate of {number(2 / high)}."
    if low > max(error, 1e-9 * high):
        return f"Convex here, condition number {number(high / low)}. {limit}"
    if low < -max(error, 1e-6 * high):
        return f"Indefinite, a saddle: the negative curvature is {number(-low / high)} times the positive one. {limit}"
    return f"Flat in some directions: the condition number is unbounded. {limit}"


def _trainable(model: nn.Module) -> list[Any]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def tiny() -> Subject:
    """A small subject for the contract tests."""
    return images()
