"""Tensor operations recorded as they run: a list of calls on numbered values, which can run again on other values.

    with Tape([x]) as tape:
        y = model(x)
    values = [other, *[None] * (len(tape.values) - 1)]
    for operation in tape.operations:
        operation.run(values)
    values[tape.slots[id(y)]]               # model(other)

Sizes that Python code computed are constants in the list, so it is valid for inputs of the same shapes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, final

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


@dataclass(frozen=True)
class ValueSlot:
    """A reference to a recorded value, by its index."""

    number: int


@dataclass(eq=False)
class RecordedOperation:
    """One recorded call; recorded values are ValueSlots in its arguments, all other tensors are there themselves."""

    call: Any
    args: list[Any]
    named: dict[str, Any]
    out: list[int]
    """slots of its results"""
    plain: bool = True
    """it has one result, not a list of them"""

    def operands(self) -> Iterator[Any]:
        """Its arguments, those in lists one by one."""
        return _leaves([self.args, list(self.named.values())])

    def reads(self) -> list[int]:
        """Slots of its arguments."""
        return [one.number for one in self.operands() if isinstance(one, ValueSlot)]

    def writes(self) -> bool:
        """Whether it changes its input in place."""
        schema = getattr(self.call, "_schema", None)
        return schema is not None and schema.is_mutable

    def run(self, values: list[Any]) -> None:
        """Call it on the values of its slots, and put the results into theirs."""
        named = {name: fill(value, values) for name, value in self.named.items()}
        result = self.call(*fill(self.args, values), **named)
        if self.plain:
            values[self.out[0]] = result
        else:
            for slot, one in zip(self.out, result, strict=True):
                values[slot] = one


@final
class Tape(TorchDispatchMode):
    """Records every tensor operation inside its `with`.

    Args:
        inputs: tensors with the first slots; others that come from outside stay in the arguments as they are
        check: called with the tape and an operation before it runs; may raise to stop
    """

    def __init__(self, inputs: Sequence[Tensor], check: Callable[[Tape, Any], None] | None = None) -> None:
        super().__init__()
        self.operations: list[RecordedOperation] = []
        self.values: list[Any] = list(inputs)
        """the value of each slot, kept alive so that its id stays unique"""
        self.slots = {id(tensor): slot for slot, tensor in enumerate(inputs)}
        self.check = check
        self.fixed = True
        """no Python number depends on values, so the recording is valid for other values"""
        self.bytes = 0
        """of all results that are not views"""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # skipping would import the compiler, which takes more than a second

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.check is not None:
            self.check(self, operation)
        kwargs = kwargs or {}
        known = self._refer(args), {name: self._refer(value) for name, value in kwargs.items()}
        result = operation(*args, **kwargs)
        plain = not isinstance(result, (tuple, list))
        results = [result] if plain else result
        self.fixed &= all(isinstance(one, Tensor) or one is None for one in results)
        if not operation.is_view:
            self.bytes += sum(one.numel() * one.element_size() for one in results if isinstance(one, Tensor))
        self.operations.append(RecordedOperation(operation, *known, out=[self._slot(one) for one in results], plain=plain))
        return result

    def _refer(self, value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return [self._refer(one) for one in value]
        slot = self.slots.get(id(value)) if isinstance(value, Tensor) else None
        return value if slot is None else ValueSlot(slot)

    def _slot(self, result: Any) -> int:
        slot = self.slots.setdefault(id(result), len(self.values))  # an in-place operation returns its input
        if slot == len(self.values):
            self.values.append(result)
        return slot


def fill(value: Any, values: Sequence[Any]) -> Any:
    """An argument with `values` in place of its slots."""
    if type(value) is ValueSlot:
        return values[value.number]
    return [fill(one, values) for one in value] if type(value) is list else value


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, list):
        for one in value:
            yield from _leaves(one)
    else:
        yield value
