"""A recorded forward pass with operations fused where one call can do several.

    y = relu(conv(x) + z)         three passes over memory in eager torch, one here

A list is valid for one input size: sizes that Python code computed are constants in it.  Convolutions of images are fused
with a bias, a sum and a ReLU, by our kernel where it is faster and else by oneDNN, with weights prepacked for that size.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

import torch
from torch import Tensor

from ..core.tape import RecordedOperation, Tape, ValueSlot
from ..kernels.convolve import PreparedConvolution, can_run

aten = torch.ops.aten
RELU = (aten.relu.default, aten.relu_.default)
SUM = (aten.add.Tensor, aten.add_.Tensor)


@final
class RecordedProgram:
    """The fused operations of a tape; call it with an input of the same size."""

    def __init__(self, tape: Tape, output: Tensor) -> None:
        self.output = tape.slots[id(output)]
        joined = _Joiner(tape, self.output)
        self.joined = joined.count
        """number of fused convolutions"""
        last: dict[int, int] = {}
        for i, step in enumerate(joined.steps):
            last |= dict.fromkeys([*step.reads(), *step.out], i)
        last.pop(self.output, None)
        self.steps = [(step, [n for n, end in last.items() if end == i]) for i, step in enumerate(joined.steps)]
        self.slots = len(tape.values)

    def __call__(self, x: Tensor) -> Tensor:
        held: list[Tensor | None] = [None] * self.slots
        held[0] = x
        for step, ended in self.steps:
            step.run(held)
            for number in ended:  # frees memory as early as the layers would
                held[number] = None
        output = held[self.output]
        assert output is not None
        return output


class _Joiner:
    """Fuses convolutions of a tape with a sum and a ReLU that follow them."""

    def __init__(self, tape: Tape, output: int) -> None:
        self.tape, self.output, self.count = tape, output, 0
        self.steps = list(tape.operations)
        for step in tape.operations:
            if self._joinable(step):
                self._join(step)
                self.count += 1

    def _joinable(self, step: RecordedOperation) -> bool:
        """Whether it is a convolution of images with constant weights."""
        if step.call is not aten.convolution.default:
            return False
        x, weight, bias, transposed = step.args[0], step.args[1], step.args[2], step.args[6]
        fixed = isinstance(weight, Tensor) and weight.ndim == 4 and (bias is None or isinstance(bias, Tensor))
        return fixed and isinstance(x, ValueSlot) and not transposed

    def _join(self, conv: RecordedOperation) -> None:
        x, weight, bias, stride, padding, dilation, _, _, groups = conv.args
        at = last = self.steps.index(conv)
        (out,) = conv.out
        other, after = None, None
        if (index := self._next(at, out, SUM)) is not None and self._can_wait(conv, index):
            other = next(one for one in self.steps[index].args[:2] if one != ValueSlot(out))
            last, (out,) = index, self.steps[index].out
        if (index := self._next(last, out, RELU)) is not None:
            after = self.steps.pop(index)
            (out,) = after.out
        call, args = self._one_call(x, other, weight, bias, [padding, stride, dilation, groups], after is not None)
        self.steps[last] = RecordedOperation(call, args, {}, [out])
        if last != at:
            del self.steps[at]

    def _one_call(
        self, x: ValueSlot, other: ValueSlot | None, weight: Tensor, bias: Tensor | None, sizes: list[Any], relu: bool
    ) -> tuple[Callable[..., Any], list[Any]]:
        """The fused operation for a convolution with the sum and the ReLU after it, and its arguments."""
        value = self.tape.values[x.number]
        if sizes == [[1, 1], [1, 1], [1, 1], 1] and value.dtype == weight.dtype and can_run(value, weight, bias):
            return PreparedConvolution(weight, bias, relu), [x] if other is None else [x, other]
        packed = torch._C._nn.mkldnn_reorder_conv2d_weight(weight.to_mkldnn(), *sizes, list(value.shape))  # type: ignore[call-arg]
        if other is None:
            return torch.ops.mkldnn._convolution_pointwise.default, [x, packed, bias, *sizes, "relu" if relu else "none", [], ""]
        args = [x, other, packed, bias, *sizes, "add", 1.0, "relu" if relu else None, [], None]
        return torch.ops.mkldnn._convolution_pointwise.binary, args

    def _next(self, at: int, number: int, calls: tuple[Any, ...]) -> int | None:
        """The operation that reads a value first, if it is one of `calls` and nothing else reads the old value."""
        after = [i for i in range(at + 1, len(self.steps)) if number in self.steps[i].reads()]
        if not after or self.steps[after[0]].call not in calls:
            return None
        step = self.steps[after[0]]
        # In place: all later operations read the result anyway.
        alone = step.args[0] == ValueSlot(number) if step.writes() else len(after) == 1 and number != self.output
        return after[0] if alone else None

    def _can_wait(self, conv: RecordedOperation, index: int) -> bool:
        """Whether the convolution can be computed as late as the sum."""
        step, values = self.steps[index], self.tape.values
        a, b = step.args[:2]
        if step.named.get("alpha", 1) != 1 or a == b or not (isinstance(a, ValueSlot) and isinstance(b, ValueSlot)):
            return False
        if values[a.number].shape != values[b.number].shape or values[a.number].dtype != values[b.number].dtype:
            return False
        home = values[conv.args[0].number].untyped_storage().data_ptr()
        between = self.steps[self.steps.index(conv) + 1 : index]
        changed = (values[n].untyped_storage().data_ptr() for one in between if one.writes() for n in one.reads())
        return home not in changed
