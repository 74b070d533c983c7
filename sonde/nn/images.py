"""Image layers by fast kernels: 3 x 3 convolutions, and batch norms fused with a following ReLU, or a sum and a ReLU, where no
hook observes the layers."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.modules import module as every

from ..kernels.convolve import convolve
from ..kernels.normalize import Running, normalize


def apply_convolution(layer: nn.Module, x: Tensor) -> Tensor:
    """layer(x), by the fast kernel where it supports the layer."""
    if type(layer) is nn.Conv2d and _keeps_size(layer) and not is_observed(layer):
        return convolve(x, layer.weight, layer.bias)
    return layer(x)


def apply_norm(norm: nn.Module, x: Tensor, relu: nn.Module | None = None, other: Tensor | None = None) -> Tensor:
    """relu(norm(x) + other), each part if present."""
    if isinstance(norm, nn.BatchNorm2d) and _trains(norm) and x.dim() == 4 and not is_observed(norm) and (relu is None or _cuts(relu)):
        norm.num_batches_tracked.add_(1)  # type: ignore[union-attr]
        running = Running(norm.running_mean, norm.running_var, norm.momentum, norm.eps)  # type: ignore[arg-type]
        return normalize(x, norm.weight, norm.bias, running, relu is not None, other)
    y = norm(x)
    if other is not None:
        y = y + other if y is x or is_observed(norm) else y.add_(other)  # a tensor that a hook has seen is not changed in place
    return y if relu is None else relu(y)


def run_layers(layers: nn.Sequential, x: Tensor) -> Tensor:
    """Apply the layers to x, one after the other."""
    if is_observed(layers):
        return layers(x)
    parts = list(layers)
    while parts:
        part, *parts = parts
        if type(part) is nn.BatchNorm2d:
            relu = parts.pop(0) if parts and type(parts[0]) is nn.ReLU else None
            x = apply_norm(part, x, relu)
        else:
            x = apply_convolution(part, x)
    return x


def is_observed(part: nn.Module) -> bool:
    """Whether a module has hooks, or a replaced forward."""
    return "forward" in vars(part) or any(getattr(part, f"_{name}") or getattr(every, f"_global_{name}") for name in _HOOKS)


_HOOKS = ("forward_hooks", "forward_pre_hooks", "backward_hooks", "backward_pre_hooks")


def _keeps_size(layer: nn.Conv2d) -> bool:
    """Whether it is a 3 x 3 convolution with stride 1 and zero padding 1."""
    return (
        layer.kernel_size == (3, 3)
        and layer.padding in ((1, 1), "same")
        and layer.stride == layer.dilation == (1, 1)
        and layer.groups == 1
        and layer.padding_mode == "zeros"
    )


def _trains(norm: nn.BatchNorm2d) -> bool:
    """Whether it is torch's own batch norm, in training, with weights and running averages."""
    return type(norm) is nn.BatchNorm2d and norm.training and norm.affine and norm.running_mean is not None and norm.momentum is not None


def _cuts(relu: nn.Module) -> bool:
    return type(relu) is nn.ReLU and not is_observed(relu)
