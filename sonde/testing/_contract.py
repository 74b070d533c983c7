"""What all checks share: loading a plug-in, comparisons with the size of the error, and the name of the violated requirement."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from ..core import registry

Plugin = str | Path | ModuleType


def load(kind: str, plugin: Plugin) -> ModuleType:
    """The module of a plug-in, given by name, by path or as a module."""
    return plugin if isinstance(plugin, ModuleType) else registry.load(kind, str(plugin))


def plugin_name(module: ModuleType) -> str:
    """The name of a plug-in: that of its file."""
    return Path(str(module.__file__)).stem


def required_function(module: ModuleType, name: str) -> Callable[..., Any]:
    """A function that a plug-in must define."""
    value = getattr(module, name, None)
    require(callable(value), f"{plugin_name(module)}.py defines no function '{name}'")
    assert value is not None
    return value


def run(name: str, checks: Iterable[Callable[[Any], None]], subject: Any) -> None:
    """Run all checks on a subject; the error names the first that fails by the first line of its docstring."""
    for check in checks:
        requirement = (inspect.getdoc(check) or check.__name__).split("\n")[0].rstrip(".")
        try:
            check(subject)
        except AssertionError as failure:
            raise AssertionError(f"{name} violates its contract: {requirement}: {failure}") from failure
        except Exception as error:  # whatever a plug-in raises on a valid input
            raise AssertionError(f"{name} violates its contract: {requirement}: {type(error).__name__}: {error}") from error


def require(holds: bool, message: str) -> None:
    """Raise an AssertionError with this message unless the condition holds, even if Python runs without assertions."""
    if not holds:
        raise AssertionError(message)


def smooth(x: Tensor) -> bool:
    """Whether a tensor holds floating-point or complex numbers."""
    return x.is_floating_point() or x.is_complex()


def agree(actual: Mapping[str, Tensor], expected: Mapping[str, Tensor], tolerance: float, label: object) -> None:
    """Require that tensors are equal up to a tolerance relative to the largest number of each."""
    require(actual.keys() == expected.keys(), f"{label}: got {', '.join(actual)}, not {', '.join(expected)}")
    for name, right in expected.items():
        left = actual[name]
        require(left.shape == right.shape, f"{label}: '{name}' is {tuple(left.shape)}, not {tuple(right.shape)}")
        if not right.numel():
            continue
        if not smooth(right):
            require(torch.equal(left, right), f"{label}: '{name}' differs")
            continue
        wide = torch.complex128 if right.is_complex() else torch.float64
        error = float((left.detach().to(wide) - right.to(wide)).abs().max()) / max(float(right.abs().max()), 1e-2)
        require(error < tolerance, f"{label}: '{name}' differs by {error:.2g} of its largest number, more than {tolerance:g}")


BF16 = 2.0**-8
"""the largest relative change by rounding to bfloat16"""
BF16_FACTOR = 3.0


def agrees_in_bf16(
    module: nn.Module, inputs: Mapping[str, Tensor], call: Callable[[nn.Module, Mapping[str, Tensor]], Mapping[str, Tensor]]
) -> None:
    """Require that outputs and gradients under bfloat16 autocast are those of float32 up to BF16_FACTOR times (2^-8 + what a change of
    all inputs and weights by up to 2^-8 makes of them in float32): a quotient of small numbers may lose more, but not by our fault.

    Args:
        module: in float32
        inputs: of the call; those of floating point are float32
        call: gives the outputs by name
    """

    def run(module: nn.Module, inputs: Mapping[str, Tensor], narrow: bool) -> dict[str, Tensor]:
        with torch.autocast("cpu", torch.bfloat16, enabled=narrow):
            outs = {name: out for name, out in call(module, inputs).items() if out.is_floating_point()}
        products = [(out.double().flatten() * draw(out.numel())).sum() for out in outs.values() if out.requires_grad]
        weights = [p for p in module.parameters() if p.requires_grad]
        slopes = torch.autograd.grad(products, weights, allow_unused=True) if products and weights else ()
        flat = [slope.flatten() for slope in slopes if slope is not None]
        real = [torch.view_as_real(slope).flatten() if slope.is_complex() else slope for slope in flat]
        outs = {name: out.detach() for name, out in outs.items()}
        return {**outs, "its gradient": torch.cat(real)} if real else outs

    def distance(one: Tensor, other: Tensor) -> float:
        return float((one.double() - other.double()).norm() / other.double().norm().clamp_min(1e-6))

    expected, actual = run(module, inputs, False), run(module, inputs, True)
    spread = dict.fromkeys(expected, 0.0)
    for seed in range(3):
        rng = torch.Generator().manual_seed(seed)
        moved = copy.deepcopy(module)
        for p in moved.parameters():
            p.data.mul_(1 + BF16 * (2 * torch.rand(p.shape, generator=rng) - 1))
        changed = {
            name: x * (1 + BF16 * (2 * torch.rand(x.shape, generator=rng) - 1)) if x.is_floating_point() else x
            for name, x in inputs.items()
        }
        for name, value in run(moved, changed, False).items():
            spread[name] = max(spread[name], distance(value, expected[name]))
    for name, value in actual.items():
        error, limit = distance(value, expected[name]), BF16_FACTOR * (BF16 + spread[name])
        require(error <= limit, f"'{name}' differs by {error:.2g} under bfloat16 autocast, more than {limit:.2g}")


def draw(*shape: int, seed: int = 3) -> Tensor:
    """Standard normal numbers in float64, without using global random state."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
