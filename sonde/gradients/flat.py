"""All trainable parameters of a model as views of one flat buffer, and their gradients as views of another.

One buffer means one call where there were hundreds: zeroing, the global norm, clipping, the sum over processes and
the update of an elementwise optimizer each become a single pass over memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..core.errors import BadInput


class Slot(NamedTuple):
    """The slice of the buffer that belongs to a parameter."""

    name: str
    parameter: nn.Parameter
    start: int
    stop: int
    group: int


class Flat:
    """`values` and `grad` are the two buffers; the model's parameters and their `.grad` are views of them.

    Parameters of one group (same phase, decayed or not) are adjacent, so each group is one slice.
    Alignment to 16 floats keeps every parameter on a cache line of its own.
    """

    ALIGN = 16

    def __init__(
        self,
        model: nn.Module,
        decays: Callable[[str, Tensor, nn.Module], bool] = lambda name, parameter, owner: True,
        phase_of: Callable[[str], int] = lambda name: 0,
    ) -> None:
        trainable = trainable_parameters(model)
        self.slots: list[Slot] = []
        self.bounds: list[tuple[int, int]] = []
        """first and last element of each group: of phase n, group 2 n is decayed and 2 n + 1 is not"""
        belongs = [2 * phase_of(name) + (not decays(name, parameter, owner(model, name))) for name, parameter in trainable]
        position = 0
        for group in range(2 * (max(belongs) // 2 + 1)):
            begin = position
            for (name, parameter), own in zip(trainable, belongs, strict=True):
                if own == group:
                    self.slots.append(Slot(name, parameter, position, position + parameter.numel(), group))
                    position += -(-parameter.numel() // self.ALIGN) * self.ALIGN
            self.bounds.append((begin, position))
        first = trainable[0][1]
        self.values = torch.zeros(position, dtype=first.dtype, device=first.device)
        self.grad = torch.zeros_like(self.values)
        with torch.no_grad():
            for slot in self.slots:
                home = view(self.values, slot)
                home.copy_(slot.parameter)
                slot.parameter.data = home
        self.attach()

    def attach(self) -> None:
        """Make every `.grad` a view of its part of the buffer."""
        for slot in self.slots:
            slot.parameter.grad = view(self.grad, slot)

    def groups(self) -> list[tuple[int, nn.Parameter]]:
        """(group, one flat parameter with its gradient) for each group that is not empty."""
        groups = []
        for group, (begin, end) in enumerate(self.bounds):
            if end > begin:
                parameter = nn.Parameter(self.values[begin:end])
                parameter.grad = self.grad[begin:end]
                groups.append((group, parameter))
        return groups

    def rest(self, phase: int) -> None:
        """Zero the gradients of all parameters that a phase does not update."""
        self.grad[: self.bounds[2 * phase][0]].zero_()
        self.grad[self.bounds[2 * phase + 1][1] :].zero_()

    def split(self, group: int, buffer: Tensor) -> Iterator[tuple[str, Tensor]]:
        """Per-parameter views of a buffer laid out like a group: how flat optimizer state gets its names."""
        begin = self.bounds[group][0]
        for slot in self.slots:
            if slot.group == group:
                yield slot.name, view(buffer, slot._replace(start=slot.start - begin, stop=slot.stop - begin))


def trainable_parameters(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """Names and parameters that train; raises BadInput unless there are some, all of one dtype on one device."""
    trainable = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    if not trainable:
        raise BadInput("the model has no trainable parameters", where=type(model).__name__, fix="give it a layer with weights")
    for name, parameter in trainable:
        if isinstance(parameter, nn.parameter.UninitializedParameter):
            raise BadInput(f"parameter '{name}' has no shape yet", where=type(model).__name__, fix="give lazy layers their sizes")
    kinds = {(p.dtype, p.device) for _, p in trainable}
    if len(kinds) > 1:
        listing = ", ".join(sorted(f"{dtype} on {device}" for dtype, device in kinds))
        raise BadInput(f"parameters are of several kinds: {listing}", fix="keep one dtype and device for all trainable parameters")
    return trainable


def owner(model: nn.Module, name: str) -> nn.Module:
    """The module that holds a parameter."""
    return model.get_submodule(name.rpartition(".")[0])


def view(buffer: Tensor, slot: Slot) -> Tensor:
    """The slot's part of a buffer, laid out in memory exactly as the parameter was: channels-last weights stay so.

    Strides matter even for axes of size 1: a convolution with one input channel takes the layout of
    its output from the strides of that single channel.
    """
    shape, strides = slot.parameter.shape, slot.parameter.stride()
    dense = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True)) == slot.parameter.numel()
    part = buffer[slot.start : slot.stop]
    return part.as_strided(shape, strides) if dense else part.view(shape)
