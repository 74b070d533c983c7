"""Batch-norm folding for inference: the same outputs with fewer operations.

In evaluation a batch norm is a fixed affine map, and so is the convolution or linear layer before it:

    norm(W x + b) = (g / s) W x + (g / s) (b - mean) + shift          s = sqrt(variance + eps)

Which norm follows which layer is found by running the model once.  On a CPU the folded model then runs as a list of aten
operations with images in channels-last layout and convolution, bias, sum and ReLU in one call (see _replay), recorded again
for each input size; with hooks on the layers, or with gradients, the layers themselves run.

    fast = fold(model, images[:1])
    fast(images)
"""

from __future__ import annotations

import copy
from collections import Counter
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval, fuse_linear_bn_eval

from ..core.errors import BadInput, SondeError
from ..core.tape import Tape
from ..core.versions import WeightVersions
from ..kernels.library import is_observed
from ._replay import RecordedProgram

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
KEPT = 4
"""input sizes whose recordings are cached; each holds a copy of the weights"""
CLOSE = 1e-4
"""largest difference, as a fraction of the largest output, that rounding explains; a wrong fold gives far more"""


def fold(model: nn.Module, example: Tensor) -> Folded:
    """A copy of a model in evaluation mode, with batch norms folded into the layers before them.

    Args:
        example: an input; a batch of one is enough
    """
    if not isinstance(model, nn.Module) or not isinstance(example, Tensor):
        raise _error(f"fold takes a model and an example, not {type(model).__name__} and {type(example).__name__}")
    with torch.inference_mode(False):  # inference tensors have no version counter
        model = copy.deepcopy(model).eval().requires_grad_(False)
        expected, pairs = _pairs(model, example)
        for layer, norm in pairs:
            parts = model.get_submodule(layer), model.get_submodule(norm)
            model.set_submodule(layer, _fold_norm(*parts))
            model.set_submodule(norm, nn.Identity())
    with torch.no_grad():
        if not _equal(model(example), expected):
            raise _error("the folded model has different outputs", "its output must be finite and depend on its input alone")
    return Folded(model, pairs)


@final
class Folded(nn.Module):
    """A folded model with cached recordings for inference."""

    def __init__(self, model: nn.Module, pairs: list[tuple[str, str]]) -> None:
        super().__init__()
        self.model, self.pairs = model, pairs
        """the layers, and (layer, norm) for each folded norm"""
        self._versions: WeightVersions | None = None
        """of the weights that were recorded"""
        self._programs: dict[torch.Size, RecordedProgram | None] = {}
        """recordings by input size"""
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        if not self._is_plain(x):
            return self.model(x)
        with torch.no_grad():
            images = x.contiguous(memory_format=torch.channels_last)
            if self._versions is None or not self._versions.same_weights():
                self._programs.clear()
                self._versions = WeightVersions(self)
            if x.shape not in self._programs:
                while len(self._programs) >= KEPT:
                    del self._programs[next(iter(self._programs))]
                self._programs[x.shape] = self._operations_for(images) if self._versions.has_counters else None
            program = self._programs[x.shape]
            if program is None:
                return self.model(x)
            y = program(images)
            return y.contiguous() if x.is_contiguous() else y

    def _is_plain(self, x: Tensor) -> bool:
        """Whether the fast path applies: float32 images on a CPU, no gradients, no hooks."""
        if not isinstance(x, Tensor) or x.ndim != 4 or not x.numel() or x.device.type != "cpu" or x.dtype != torch.float32 or x.is_mkldnn:
            return False
        if self.training or (torch.is_grad_enabled() and x.requires_grad) or torch.is_autocast_enabled("cpu") or is_observed((x,)):
            return False
        return torch.backends.mkldnn.is_available() and not any(_is_observed(part) for part in self.model.modules())

    def _operations_for(self, x: Tensor) -> RecordedProgram | None:
        """A recording for inputs like x, if it reproduces the layers."""
        try:
            # In inference mode torch dispatches larger operations to a tape than outside it.
            with torch.inference_mode(False), torch.no_grad(), Tape([x := x.clone()]) as tape:
                output = self.model(x)
        except RuntimeError:  # such as a view that needs the other layout; any other error is raised again by the layers
            return None
        if not tape.fixed or not isinstance(output, Tensor) or id(output) not in tape.slots:
            return None
        program = RecordedProgram(tape, output)
        return program if program.joined and _equal(program(x), output) else None

    def __getstate__(self) -> dict[str, Any]:  # a copy records again
        return {**self.__dict__, "_versions": None, "_programs": {}}


def _pairs(model: nn.Module, example: Tensor) -> tuple[Tensor, list[tuple[str, str]]]:
    """The output of a model, and each (layer, norm) where the norm alone reads the layer's output."""
    parts = _candidates(model)
    calls: Counter[str] = Counter()
    wrote: dict[int, str] = {}
    read: dict[str, Tensor] = {}
    hooks = []
    for name, part in parts.items():

        def record(_: nn.Module, inputs: tuple[Any, ...], result: Any, name: str = name) -> None:
            calls[name] += 1
            if inputs:
                wrote[id(result)], read[name] = name, inputs[0]

        hooks.append(part.register_forward_hook(record))
    try:
        with torch.no_grad(), Tape([example]) as tape:
            output = model(example)
    except SondeError:
        raise
    except Exception as error:
        raise _error(f"the model does not run on the example: {str(error).splitlines()[0][:120]}", "give one as in training") from error
    finally:
        for hook in hooks:
            hook.remove()
    if not isinstance(output, Tensor):
        raise _error(f"the model gives {type(output).__name__}, not a tensor", "fold the part of it that gives one")
    pairs = []
    for name, norm in parts.items():
        layer = wrote.get(id(read.get(name))) if type(norm) in NORMS else None
        if layer is None or type(parts[layer]) in NORMS or calls[layer] != 1 or calls[name] != 1 or norm.running_mean is None:
            continue
        number = tape.slots[id(read[name])]
        if sum(number in step.reads() for step in tape.operations) == 1 and tape.slots.get(id(output)) != number:
            pairs.append((layer, name))
    return output, pairs


def _candidates(model: nn.Module) -> dict[str, Any]:
    """Layers and norms that may be changed."""
    # Exact types: a subclass may do more.  A shared module may have other readers.
    times = Counter(id(part) for _, part in model.named_modules(remove_duplicate=False))
    return {
        name: part
        for name, part in model.named_modules()
        if type(part) in (*CONVOLUTIONS, *TRANSPOSED, nn.Linear, *NORMS)
        and times[id(part)] == 1
        and not _is_observed(part)
        and not (type(part) in TRANSPOSED and part.groups != 1)  # torch's fusion supports one group only
    }


def _fold_norm(layer: Any, norm: Any) -> nn.Module:
    if isinstance(layer, nn.Linear):
        return fuse_linear_bn_eval(layer, norm)
    return fuse_conv_bn_eval(layer, norm, transpose=type(layer) in TRANSPOSED)


def _is_observed(part: nn.Module) -> bool:
    return bool(part._forward_hooks or part._forward_pre_hooks)


def _equal(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and bool((a - b).abs().max() <= CLOSE * b.abs().max())


def _error(what: str, fix: str = "") -> BadInput:
    return BadInput(what, where="fold", fix=fix)
