"""Units of FSDP: the parts of a model that are gathered and freed as one, so that only one of them is whole at a time.

A unit is freed when its forward pass returns and gathered again for its backward pass.  So its weights must be read by its own
forward pass and by nothing else, and must not live on in what it returns.  Whether that is so cannot be seen in the code of a
user's model: a trial pass observes it, and a part for which it does not hold is replaced by its own parts.  What is in no unit is
gathered for the whole of a step, which is always right.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

LEAST = 1 << 14
"""parameters below which a part is no unit: gloo gathers 64 of them as slowly as 65,536, in a quarter of a millisecond"""


def choose_units(
    model: nn.Module, run_trial: Callable[[], Any], replicated: set[nn.Parameter], agree: Callable[[list[bool]], list[bool]]
) -> list[nn.Module]:
    """The units of a model, a part before what contains it: the elements of its stacks at any depth, then its children.

    Args:
        run_trial: uses the model as training and evaluation do
        replicated: parameters that every process holds as a whole
        agree: flags of this process -> whether each is set on one of the processes
    """
    parts = _with_weights([*_stack_elements(model), *model.children()])
    while True:
        unfit = {part for part in parts if _is_tied(model, part, replicated)}
        if not unfit:
            units = _large_enough(model, parts, replicated)
            with _observe(units) as seen:
                run_trial()
            flags = agree([unit in seen for unit in units])
            unfit = {unit for unit, flag in zip(units, flags, strict=True) if flag}
            if not unfit:
                return units
        parts = {part: None for part in parts if part not in unfit} | _inner_parts(unfit)


def replicated_parameters(model: nn.Module) -> set[nn.Parameter]:
    """Parameters that cannot or need not be divided: single numbers, and small ones that several parts of a model share."""
    holders = Counter(p for module in model.modules() for p in _own_parameters(module))
    parents = Counter(child for module in model.modules() for child in module.children())
    shared = {p for p, count in holders.items() if count > 1}
    shared |= {p for module, count in parents.items() if count > 1 for p in module.parameters()}
    return {p for p in model.parameters() if not p.ndim or (p in shared and p.numel() < LEAST)}


def _own_parameters(module: nn.Module) -> Iterator[nn.Parameter]:
    return (p for p in module._parameters.values() if p is not None)


def _stack_elements(model: nn.Module) -> Iterator[nn.Module]:
    """The elements of every list of layers in which a kind of layer repeats."""
    for module in model.modules():
        if isinstance(module, nn.ModuleList | nn.Sequential):
            kinds = Counter(type(part) for part in module if any(True for _ in part.parameters()))
            if max(kinds.values(), default=0) > 1:
                yield from module.children()


def _with_weights(parts: Iterable[nn.Module]) -> dict[nn.Module, None]:
    """Each part once, if it has weights; a list of layers has no forward pass, so its elements stand for it."""
    chosen: dict[nn.Module, None] = {}
    for part in parts:
        if isinstance(part, nn.ModuleList | nn.ModuleDict):
            chosen |= _with_weights(part.children())
        elif any(True for _ in part.parameters()):
            chosen[part] = None
    return chosen


def _inner_parts(parts: Iterable[nn.Module]) -> dict[nn.Module, None]:
    return _with_weights(child for part in parts for child in part.children())


def _is_tied(model: nn.Module, part: nn.Module, replicated: set[nn.Parameter]) -> bool:
    """Whether some of its parameters also belong to a module outside of it, as tied weights do."""
    outside, pending = {part}, [model]
    elsewhere: set[nn.Parameter] = set()
    while pending:
        module = pending.pop()
        if module not in outside:
            outside.add(module)
            elsewhere.update(_own_parameters(module))
            pending.extend(module.children())
    return any(p in elsewhere and p not in replicated for p in part.parameters())


def _large_enough(model: nn.Module, parts: dict[nn.Module, None], replicated: set[nn.Parameter]) -> list[nn.Module]:
    """The parts that have enough parameters besides those of the units inside them, inner ones first."""
    units: list[nn.Module] = []
    taken = set(replicated)
    for module in reversed(list(model.modules())):
        own = [p for p in module.parameters() if p not in taken] if module in parts else []
        if sum(p.numel() for p in own) >= LEAST:
            units.append(module)
            taken.update(own)
    return units


@contextmanager
def _observe(units: list[nn.Module]) -> Iterator[set[nn.Module]]:
    """The units that a pass inside the context uses in a way that they could not be freed after their forward pass."""
    watch = _Watch(units)
    handles = [unit.register_forward_pre_hook(watch.enter) for unit in units]
    handles += [unit.register_forward_hook(watch.leave) for unit in units]
    try:
        with watch:
            yield watch.unfit
    finally:
        watch.views.clear()  # they hold the graph, and so the weights
        for handle in handles:
            handle.remove()


class _Watch(TorchDispatchMode):
    """Sees every operation of a pass, and which units run meanwhile."""

    def __init__(self, units: list[nn.Module]) -> None:
        super().__init__()
        self.owners: dict[int, nn.Module] = {}
        for unit in units:  # inner ones first
            for p in unit.parameters():
                self.owners.setdefault(id(p), unit)
        self.running: list[nn.Module] = []
        self.views: list[tuple[Tensor, nn.Module]] = []
        self.unfit: set[nn.Module] = set()

    def enter(self, module: nn.Module, inputs: Any) -> None:
        self.running.append(module)

    def leave(self, module: nn.Module, inputs: Any, output: Any) -> None:
        self.running.remove(module)
        tensors = [leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor)]
        slopes = [tensor for tensor in tensors if tensor.requires_grad]
        if any(_share_memory(tensor, p) for tensor in tensors for p in module.parameters()):
            self.unfit.add(module)  # a view of its weights outlives it
        if torch.is_grad_enabled() and not slopes and any(p.requires_grad for p in module.parameters()):
            self.unfit.add(module)  # there is nothing by which to see that its backward pass begins
        for tensor in slopes:
            tensor.register_hook(lambda slope: self.unfit.add(module))  # the pass itself differentiates, and needs the weights again
        self.views += [(tensor, module) for tensor in slopes if tensor._is_view()]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for value in tree_leaves((args, kwargs)):
            unit = self.owners.get(id(value))
            if unit is not None and unit not in self.running:
                self.unfit.add(unit)
        if func._schema.is_mutable and isinstance(args[0] if args else None, Tensor):
            # torch finds the beginning of a backward pass by a hook, which a view loses when its memory is changed
            self.unfit.update(module for view, module in self.views if _share_memory(view, args[0]))
        return func(*args, **(kwargs or {}))


def _share_memory(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors lie in the same memory; inside a transform such as vmap, where it cannot be seen, True."""
    try:
        return one.numel() > 0 and one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):
        return True
