"""Memory of tensors while code runs: the peak, and the largest single tensor."""

from __future__ import annotations

import weakref
from typing import Any, final

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


@final
class Live(TorchDispatchMode):
    """Inside its `with`, counts the bytes of new tensors that are alive.

        with Live() as live:
            loss(model, x).backward()
        live.peak, live.largest

    Memory that a compiled kernel allocates and frees internally is not counted.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = self.largest = 0
        self._known: dict[int, int] = {}

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = op(*args, **(kwargs or {}))
        for x in torch.utils._pytree.tree_leaves(out):
            if isinstance(x, Tensor) and not _is_alias(x, args, self._known):
                self._add(x)
        return out

    def _add(self, x: Tensor) -> None:
        storage = x.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        self._known[key] = size
        self.now += size
        self.peak, self.largest = max(self.peak, self.now), max(self.largest, size)
        weakref.finalize(storage, self._drop, key)

    def _drop(self, key: int) -> None:
        self.now -= self._known.pop(key, 0)


def _is_alias(x: Tensor, args: Any, known: dict[int, int]) -> bool:
    """Whether x is a view of a known tensor or of an argument."""
    key = x.untyped_storage()._cdata
    return key in known or any(isinstance(a, Tensor) and a.untyped_storage()._cdata == key for a in torch.utils._pytree.tree_leaves(args))
