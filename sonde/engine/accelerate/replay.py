"""Record the tensor operations of one forward and backward pass, and replay them.

A small network spends most of a step on calling modules, and on building and traversing the graph.  For one shape of batch
the kernels are the same every time, so they are recorded the first time and afterwards called one after another.  The
kernels, their order and so every bit of the gradient are the same; the first replays are compared with the ordinary
gradient to prove it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from ...core.batch import Batch
from ...core.tape import RecordedOperation, Tape, ValueSlot, fill
from ...core.terms import Terms
from ...gradients.flat import Flat
from ..precision import Autocast

_aten = torch.ops.aten
_SHORT: dict[Any, Callable] = {
    _aten.mm.default: torch.mm,
    _aten.bmm.default: torch.bmm,
    _aten.addmm.default: torch.addmm,
    _aten.relu.default: torch.relu,
    _aten.tanh.default: torch.tanh,
    _aten.sigmoid.default: torch.sigmoid,
    _aten.t.default: torch.t,
    _aten.add.Tensor: torch.add,
    _aten.sub.Tensor: torch.sub,
    _aten.mul.Tensor: torch.mul,
    _aten.sum.dim_IntList: torch.sum,
    _aten.mse_loss.default: torch._C._nn.mse_loss,
}
"""shortcuts to the same kernels: the general call checks a schema, which costs as much as a small product"""


_REFUSED = {torch.Tag.nondeterministic_seeded, torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}


class Unrepeatable(Exception):
    """The operations of this step depend on more than its inputs, so they cannot be replayed."""


class Replay:
    """A recorded list of operations; `replay(*inputs)` gives the recorded outputs for new inputs.

    Args:
        tape: of the inputs and then the fixed tensors, with `refuse` as its check
        inputs: tensors whose content changes from replay to replay
        fixed: tensors that keep their memory, such as parameters; their content may change
        outputs: tensors on the tape
    """

    LARGEST = 1 << 24
    """bytes of all intermediate tensors; a replay keeps them, and for large ones the overhead of calls is small"""

    def __init__(self, tape: Tape, inputs: Sequence[Tensor], fixed: Sequence[Tensor], outputs: Sequence[Any]) -> None:
        if len({_memory(tensor) for tensor in inputs}) < len(inputs):
            raise Unrepeatable("two inputs are the same tensor, which may differ in the next batch")
        if not tape.fixed:
            raise Unrepeatable("an operation returns more than tensors")
        same = {_memory(tensor): ValueSlot(slot) for slot, tensor in enumerate((*inputs, *fixed))}
        names = [ValueSlot(slot) for slot in range(len(tape.values))]  # of each slot, the one that holds its memory
        kept, constants = set(range(len(inputs), len(inputs) + len(fixed))), set[int]()
        steps = []
        for recorded in tape.operations:
            step = replace(
                recorded, args=fill(recorded.args, names), named={key: fill(value, names) for key, value in recorded.named.items()}
            )
            if any(isinstance(operand, Tensor) and operand.dim() for operand in step.operands()):
                raise Unrepeatable("a tensor is neither an input nor a parameter or buffer")
            sources, results = set(step.reads()), {slot: tape.values[slot] for slot in step.out if tape.values[slot] is not None}
            if step.plain and results and (name := same.get(_memory(*results.values()))):  # the same memory: nothing to do
                names[step.out[0]] = name
                continue
            same |= {_memory(tensor): ValueSlot(slot) for slot, tensor in results.items()}
            if sources <= constants:
                constants.update(results)
                kept.update(results)
            elif recorded.call.is_view and sources <= kept:
                kept.update(results)  # a view of a fixed tensor is made once
            else:
                steps.append(step)
        self.outputs = [names[tape.slots[id(output)]].number for output in outputs]
        needed, needed_steps = set(self.outputs), []
        for step in reversed(steps):
            if needed.intersection(step.out):
                needed.update(step.reads())
                needed_steps.append(step)
        self.inputs, self.calls = len(inputs), [_call(step) for step in reversed(needed_steps)]
        self.tensors: list[Any] = [tensor.detach() if slot in kept else None for slot, tensor in enumerate(tape.values)]

    @torch.inference_mode()
    def __call__(self, *inputs: Tensor) -> list[Tensor]:
        tensors = self.tensors
        tensors[: self.inputs] = inputs
        for call in self.calls:
            call(tensors)
        return [tensors[slot] for slot in self.outputs]


def refuse(tape: Tape, operation: Any) -> None:
    """Raise before an operation that cannot be replayed, so that it draws no random numbers and changes nothing."""
    if operation._schema.is_mutable or not _REFUSED.isdisjoint(operation.tags):
        raise Unrepeatable(f"{operation} changes a tensor, is random or depends on values")
    if tape.bytes > Replay.LARGEST:
        raise Unrepeatable("the intermediate tensors are too large")


def _memory(tensor: Tensor) -> tuple:
    """Tensors with equal memory are the same numbers."""
    return tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride()


def _call(step: RecordedOperation) -> Callable[[list[Any]], None]:
    """One operation as a function of the list of tensors, into which it puts its outputs."""
    operation = _SHORT.get(step.call, step.call._op)
    args, kwargs, output = step.args, step.named, step.out[0]
    slots: list[Any] = [value.number if isinstance(value, ValueSlot) else None for value in args]
    first = len(slots) - slots.count(None)
    if not step.plain or len(step.reads()) > first:  # several results, or slots in lists
        return replace(step, call=operation).run
    rest = tuple(args[first:])
    if None in slots[:first] or not 1 <= first <= 3:

        def call_with_slots(tensors: list[Any]) -> None:
            tensors[output] = operation(
                *[value if slot is None else tensors[slot] for slot, value in zip(slots, args, strict=True)], **kwargs
            )

        return call_with_slots
    a, b, c = (*slots[:first], 0, 0)[:3]  # one function each for one, two and three tensors: a loop would cost as much as the kernel

    def call_with_one(tensors: list[Any]) -> None:
        tensors[output] = operation(tensors[a], *rest, **kwargs)

    def call_with_two(tensors: list[Any]) -> None:
        tensors[output] = operation(tensors[a], tensors[b], *rest, **kwargs)

    def call_with_three(tensors: list[Any]) -> None:
        tensors[output] = operation(tensors[a], tensors[b], tensors[c], *rest, **kwargs)

    return (call_with_one, call_with_two, call_with_three)[first - 1]


class ReplayedGradient:
    """Gradient of an undivided batch into a flat buffer: like `mean.full_batch`, by replay where that gives the same result.

    It does for networks made of torch's and our own modules, whose operations depend only on shapes; a user's own module may
    count its calls or branch on values, so it is always called.
    """

    LARGEST = 1 << 18
    """parameters up to which replaying is faster"""
    SHAPES = 4
    """shapes of batches that are recorded, each at its second occurrence"""
    PROOFS = 2
    """replays that are compared with the ordinary gradient before replaying alone"""

    def __init__(self, model: nn.Module, objective: Any, flat: Flat, ordinary: Callable[[Batch], float]) -> None:
        self.model, self.objective, self.flat, self.ordinary = model, objective, flat, ordinary
        self.flat_gradients: list[Any] = [slot.parameter.grad for slot in flat.slots]
        self.seen: set[tuple] = set()
        self.steps: dict[tuple, _Step | None] = {}
        """by shape of the batch; None where it cannot be replayed"""
        inner = objective.objective if isinstance(objective, Autocast) else objective  # the casts are recorded like other operations
        self.possible = flat.values.numel() <= self.LARGEST and flat.values.device.type == "cpu" and repeatable(model, inner)

    def __call__(self, batch: Batch) -> float | None:
        """The loss, with the gradient in the buffer; None where the ordinary gradient must be computed."""
        shape_key = tuple([(name, field.shape, field.stride(), field.dtype) for name, field in batch.fields.items()])
        step = self.steps.get(shape_key) or self._new(shape_key, batch)
        if step is None:
            return None
        loss, gradients = step(batch)
        if step.proofs < self.PROOFS:
            return self._prove(shape_key, step, batch, loss, gradients)
        self.flat.grad.zero_()
        torch._foreach_add_(self.flat_gradients, gradients)
        return loss

    def _new(self, shape_key: tuple, batch: Batch) -> _Step | None:
        """Record a shape at its second occurrence."""
        if shape_key in self.steps or len(self.steps) >= self.SHAPES:
            return None
        if shape_key not in self.seen:
            if len(self.seen) < 8 * self.SHAPES:
                self.seen.add(shape_key)
            return None
        needed_calls = [(buffer, buffer.clone()) for buffer in self.model.buffers()]
        self.steps[shape_key] = self._record(batch)
        for buffer, value in needed_calls:
            if not torch.equal(buffer, value):  # some kernels write into a buffer without declaring it
                buffer.copy_(value)
                self.steps[shape_key] = None
        self.possible = any(step is not None for step in self.steps.values())
        return self.steps[shape_key]

    def _record(self, batch: Batch) -> _Step | None:
        parameters = [slot.parameter for slot in self.flat.slots]
        inputs, fixed = list(batch.fields.values()), [*parameters, *self.model.buffers()]
        tape = Tape([*inputs, *fixed], refuse)
        try:
            with tape:
                terms: Terms = self.objective(self.model, batch)
            if any(isinstance(term.count, Tensor) for term in terms.values()):
                raise Unrepeatable("counts depend on the data")
            with tape:
                gradients = terms.gradients(parameters)
            if any(gradient is None for gradient in gradients):
                raise Unrepeatable("a parameter is not used")
            raws, factors = zip(*[(term.raw, factor) for term, factor in terms.factors()], strict=True)
            return _Step(Replay(tape, inputs, fixed, [*raws, *gradients]), factors)
        except (Unrepeatable, RuntimeError, TypeError, NotImplementedError):  # a real error is raised again by the ordinary gradient
            return None

    def _prove(self, shape_key: tuple, step: _Step, batch: Batch, loss: float, gradients: list[Tensor]) -> float:
        """The ordinary gradient, and whether the replayed one equals it bit for bit."""
        expected = self.ordinary(batch)
        same = loss == expected and all(torch.equal(ours, theirs) for ours, theirs in zip(gradients, self.flat_gradients, strict=True))
        step.proofs += 1
        if not same:
            self.steps[shape_key] = None
        return expected


class _Step:
    """A replay with the factors of its terms."""

    def __init__(self, replay: Replay, factors: tuple[float, ...]) -> None:
        self.replay, self.factors, self.proofs = replay, factors, 0

    def __call__(self, batch: Batch) -> tuple[float, list[Tensor]]:
        outputs = self.replay(*batch.fields.values())
        split = len(self.factors)
        return sum(raw.item() * factor for raw, factor in zip(outputs[:split], self.factors, strict=True)), outputs[split:]


def repeatable(model: nn.Module, objective: Any) -> bool:
    """Whether all modules and the objective are known to run the same operations for every batch of one shape."""
    modules, parameters = list(model.modules()), list(model.parameters())
    known = all(type(module).__module__.startswith(_KNOWN) or _declares(module) for module in modules)
    changed = any("forward" in vars(module) or any(map(_foreign, vars(module).values())) for module in modules)
    hooks = [getattr(part, name, None) for part in (*modules, *parameters, nn.modules.module) for name in _HOOKS]
    return known and not changed and not any(hooks) and _declares(objective)


_HOOKS = (
    *("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks", "_post_accumulate_grad_hooks"),
    *("_global_forward_hooks", "_global_forward_pre_hooks", "_global_backward_hooks", "_global_backward_pre_hooks"),
)


def _foreign(value: Any) -> bool:
    """A function that is neither torch's nor ours."""
    return callable(value) and not isinstance(value, (nn.Module, type)) and not str(getattr(value, "__module__", "torch")).startswith(_OURS)


_OURS = ("torch", "sonde")
_KNOWN = ("torch.nn.modules.", "sonde.nn.", "sonde.models.")


def _declares(part: Any) -> bool:
    """Whether a class itself declares that it is `repeatable`; a derived class must declare it again."""
    return vars(type(part)).get("repeatable") is True
