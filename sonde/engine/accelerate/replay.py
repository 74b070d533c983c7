"""Record the tensor operations of one forward and backward pass, and replay them.

A small network spends most of a step on calling modules, and on building and traversing the graph.  For one shape of batch
the kernels are the same every time, so they are recorded the first time and afterwards called one after another.  The
kernels, their order and so every bit of the gradient are the same; the first replays are compared with the ordinary
gradient to prove it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from ...core.batch import Batch
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


class Recorder(TorchDispatchMode):
    """Records every tensor operation that runs inside its `with`.

    Args:
        inputs: tensors whose content changes from replay to replay
        fixed: tensors that keep their memory, such as parameters; their content may change
    """

    LARGEST = 1 << 24
    """bytes of all intermediate tensors; a replay keeps them, and for large ones the overhead of calls is small"""

    def __init__(self, inputs: Sequence[Tensor], fixed: Sequence[Tensor]) -> None:
        super().__init__()
        if len({_storage_key(tensor) for tensor in inputs}) < len(inputs):
            raise Unrepeatable("two inputs are the same tensor, which may differ in the next batch")
        self.bytes = 0
        self.alive: list[Any] = [*inputs, *fixed]
        """all tensors seen, by slot; none may be freed while recording, or its id could be reused"""
        self.slots = {id(tensor): slot for slot, tensor in enumerate(self.alive)}
        self.storages = {_storage_key(tensor): slot for slot, tensor in enumerate(self.alive)}
        self.inputs, self.fixed = len(inputs), set(range(len(inputs), len(self.alive)))
        self.constants: set[int] = set()
        """slots whose content never changes"""
        self.calls: list[tuple[Callable, tuple, dict[str, Any], list[int]]] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # skipping would import the compiler, which takes more than a second

    def __torch_dispatch__(self, operation: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        if operation._schema.is_mutable or not _REFUSED.isdisjoint(operation.tags):
            raise Unrepeatable(f"{operation} changes a tensor, is random or depends on values")
        result = operation(*args, **kwargs)
        outputs = [result] if isinstance(result, Tensor) else list(result)
        if not all(output is None or isinstance(output, Tensor) for output in outputs):
            raise Unrepeatable(f"{operation} returns more than tensors")
        operands = tuple(self._to_slots(value) for value in args), {name: self._to_slots(value) for name, value in kwargs.items()}
        if isinstance(result, Tensor) and _storage_key(result) in self.storages:  # the same memory: nothing to do
            self.alive.append(result)
            self.slots[id(result)] = self.storages[_storage_key(result)]
            return result
        output_indices = [self._new(output) for output in outputs]
        sources = {value.index for value in _slots_in(operands)}
        if sources and sources <= self.constants:
            self.constants.update(output_indices)
            self.fixed.update(output_indices)
        elif operation.is_view and sources <= self.fixed:
            self.fixed.update(output_indices)  # a view of a fixed tensor is made once
        else:
            self.calls.append((_SHORT.get(operation, operation._op), *operands, output_indices))
        return result

    def _new(self, tensor: Tensor | None) -> int:
        slot = len(self.alive)
        self.alive.append(tensor)
        if tensor is not None:
            self.slots[id(tensor)] = self.storages[_storage_key(tensor)] = slot
            self.bytes += tensor.numel() * tensor.element_size()
        if self.bytes > self.LARGEST:
            raise Unrepeatable("the intermediate tensors are too large")
        return slot

    def _to_slots(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            if id(value) not in self.slots:
                if value.dim():
                    raise Unrepeatable("a tensor is neither an input nor a parameter or buffer")
                slot = self._new(value)
                self.fixed.add(slot)
                self.constants.add(slot)
            return _Slot(self.slots[id(value)])
        return [self._to_slots(item) for item in value] if isinstance(value, (list, tuple)) else value

    def finish(self, outputs: Sequence[Any]) -> Replay:
        """The calls that compute these outputs."""
        output_slots = [self.slots[id(output)] for output in outputs]
        needed, needed_calls = set(output_slots), []
        for call in reversed(self.calls):
            if needed.intersection(call[3]):
                needed.update(value.index for value in _slots_in(call[1:3]))
                needed_calls.append(call)
        tensors = [tensor.detach() if slot in self.fixed else None for slot, tensor in enumerate(self.alive)]
        return Replay(self.inputs, tensors, needed_calls[::-1], output_slots)


class _Slot:
    __slots__ = ("index",)

    def __init__(self, index: int) -> None:
        self.index = index


def _slots_in(value: Any) -> list[_Slot]:
    if isinstance(value, _Slot):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [slot for item in value for slot in _slots_in(item)] if isinstance(value, (list, tuple)) else []


def _storage_key(tensor: Tensor) -> tuple:
    """The memory of a tensor; tensors with equal keys are the same numbers."""
    return tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride()


class Replay:
    """A recorded list of operations; `replay(*inputs)` gives the recorded outputs for new inputs."""

    def __init__(self, inputs: int, tensors: list[Any], calls: list[tuple], output_slots: list[int]) -> None:
        self.inputs, self.tensors, self.output_slots = inputs, tensors, output_slots
        self.calls = [_call(*call) for call in calls]

    @torch.inference_mode()
    def __call__(self, *inputs: Tensor) -> list[Tensor]:
        tensors = self.tensors
        tensors[: self.inputs] = inputs
        for call in self.calls:
            call(tensors)
        return [tensors[slot] for slot in self.output_slots]


def _call(operation: Callable, args: tuple, kwargs: dict[str, Any], output_indices: list[int]) -> Callable[[list[Any]], None]:
    """One operation as a function of the list of tensors, into which it puts its outputs."""
    slots: list[Any] = [value.index if isinstance(value, _Slot) else None for value in args]
    simple = not _slots_in(kwargs) and all(slot is not None or not _slots_in(value) for slot, value in zip(slots, args, strict=True))
    if not simple or len(output_indices) > 1:

        def call_general(tensors: list[Any]) -> None:
            result = operation(*_fill_slots(args, tensors), **_fill_slots(kwargs, tensors))
            tensors[slice(output_indices[0], output_indices[-1] + 1)] = [result] if len(output_indices) == 1 else result

        return call_general
    (output_index,) = output_indices
    first = sum(slot is not None for slot in slots)
    rest = args[first:]
    if any(slot is None for slot in slots[:first]) or not 1 <= first <= 3:

        def call_with_slots(tensors: list[Any]) -> None:
            tensors[output_index] = operation(
                *[value if slot is None else tensors[slot] for slot, value in zip(slots, args, strict=True)], **kwargs
            )

        return call_with_slots
    a, b, c = (*slots[:first], 0, 0)[:3]  # one function each for one, two and three tensors: a loop would cost as much as the kernel

    def call_with_one(tensors: list[Any]) -> None:
        tensors[output_index] = operation(tensors[a], *rest, **kwargs)

    def call_with_two(tensors: list[Any]) -> None:
        tensors[output_index] = operation(tensors[a], tensors[b], *rest, **kwargs)

    def call_with_three(tensors: list[Any]) -> None:
        tensors[output_index] = operation(tensors[a], tensors[b], tensors[c], *rest, **kwargs)

    return (call_with_one, call_with_two, call_with_three)[first - 1]


def _fill_slots(value: Any, tensors: list[Any]) -> Any:
    if isinstance(value, _Slot):
        return tensors[value.index]
    if isinstance(value, dict):
        return {name: _fill_slots(item, tensors) for name, item in value.items()}
    return [_fill_slots(item, tensors) for item in value] if isinstance(value, (list, tuple)) else value


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
        if not self.possible:
            return None
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
        return self.steps[shape_key]

    def _record(self, batch: Batch) -> _Step | None:
        parameters = [slot.parameter for slot in self.flat.slots]
        fields = list(batch.fields.values())
        try:
            recorder = Recorder(fields, [*parameters, *self.model.buffers()])
            with recorder:
                terms: Terms = self.objective(self.model, batch)
            if any(isinstance(term.count, Tensor) for term in terms.values()):
                raise Unrepeatable("counts depend on the data")
            with recorder:
                gradients = terms.gradients(parameters)
            if any(gradient is None for gradient in gradients):
                raise Unrepeatable("a parameter is not used")
            raws, factors = zip(*[(term.raw, factor) for term, factor in terms.factors()], strict=True)
            return _Step(recorder.finish([*raws, *gradients]), factors)
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
