"""Building blocks of a family: fields of a config.json, and rows that map tensors of a file to ours.

A row is read in both directions, so what `save` writes is what `load` reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, final

import torch
from torch import Tensor, nn

from ...core.errors import BadInput, DataUnusable, nearest
from ...nn.mixers import Mixer
from ...nn.mixers.attention import Attention
from ...nn.stack import Stack

T = TypeVar("T")

SIZE_LIMIT = 2**31
ACTIVATIONS = {"gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "gelu": "gelu", "relu": "relu"}
"""their names of activations -> ours; the first of several is the one written"""


@final
class Fields:
    """Values of a config.json, each checked when it is read; None counts as missing.

    Args:
        tensors: number of tensors in the checkpoint
    """

    def __init__(self, values: Mapping[str, Any], where: str, tensors: int = SIZE_LIMIT) -> None:
        self.values, self.where, self.tensors = values, where, tensors

    def has(self, name: str) -> bool:
        return self.values.get(name) is not None

    def integer(self, name: str, default: int | None = None) -> int:
        value = self._value(name, default)
        if type(value) is not int or not 1 <= value < SIZE_LIMIT:
            raise self._error(name, "a whole number above 0")
        return value

    def depth(self, name: str) -> int:
        """A number of blocks.  Each has tensors of its own, so more blocks than tensors is an error."""
        value = self.integer(name)
        if value > self.tensors:
            message = f"config.json has {name} = {value:,}, the checkpoint holds {self.tensors} tensors"
            raise DataUnusable(message, where=self.where, fix="use the config.json and the tensors of one model")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        value = self._value(name, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < float("inf"):
            raise self._error(name, "a number")
        return float(value)

    def nonnegative(self, name: str, default: float | None = None) -> float:
        if (value := self.number(name, default)) < 0:
            raise self._error(name, "a number of at least 0")
        return value

    def fraction(self, name: str, default: float) -> float:
        if not 0 <= (value := self.number(name, default)) <= 1:
            raise self._error(name, "a number from 0 to 1")
        return value

    def flag(self, name: str, default: bool) -> bool:
        value = self._value(name, default)
        if not isinstance(value, bool):
            raise self._error(name, "true or false")
        return value

    def choice(self, name: str, known: Mapping[str, T], default: str | None = None) -> T:
        """The value that a known string maps to."""
        value = self._value(name, default)
        if not isinstance(value, str) or value not in known:
            raise BadInput(f"config.json has {name} = {value!r}, which is not supported", where=self.where, fix=nearest(str(value), known))
        return known[value]

    def only(self, **fixed: Any) -> None:
        """Refuse other values than these, which would change what the tensors mean; a missing field has this value."""
        for name, value in fixed.items():
            if self.has(name) and self.values[name] != value:
                message = f"config.json has {name} = {self.values[name]!r}, which is not supported"
                raise BadInput(message, where=self.where, fix=f"only {name} = {value!r} is")

    def _value(self, name: str, default: Any) -> Any:
        value = self.values.get(name)
        if value is None and default is None:
            raise DataUnusable(f"config.json has no '{name}'", where=self.where, fix="restore the file")
        return default if value is None else value

    def _error(self, name: str, kind: str) -> DataUnusable:
        return DataUnusable(f"'{name}' of config.json must be {kind}, not {str(self.values[name])[:60]!r}", where=self.where)


FORMS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "same": (lambda x: x, lambda x: x),
    "turned": (lambda x: x.mT, lambda x: x.mT),
    "flipped": (lambda x: x.flip(0), lambda x: x.flip(0)),
    "taps": (lambda x: x.mT.unsqueeze(1), lambda x: x.squeeze(1).mT),
    "alone": (lambda x: x.unsqueeze(0), lambda x: x.squeeze(0)),
}
"""layout of a tensor in a file: from ours to theirs and back.  'turned' is (in, out) for our (out, in), 'flipped' has the rows
in the other order, 'taps' is (channels, 1, taps) for our (taps, channels), 'alone' has one more axis of length 1 in front"""


@final
@dataclass(frozen=True)
class TensorRow:
    """One of our tensors and its name in a file."""

    ours: str
    theirs: tuple[str, ...]
    """one name, or several whose rows follow each other in ours"""
    sizes: tuple[int, ...] = ()
    """how many rows of ours each of several has"""
    form: str = "same"
    factor: float = 1.0
    """theirs = factor * ours"""

    def give(self, ours: Tensor) -> dict[str, Tensor]:
        """The tensors of the file, by name; shapes only for a meta tensor."""
        parts = ours.split(self.sizes) if self.sizes else (ours,)
        there = FORMS[self.form][0]
        return {name: there(part if self.factor == 1 else part * self.factor) for name, part in zip(self.theirs, parts, strict=True)}

    def take(self, tensors: Mapping[str, Tensor], dtype: torch.dtype) -> Tensor:
        """Ours from the tensors of the file."""
        back = FORMS[self.form][1]
        parts = [back(tensors[name]).to(dtype) for name in self.theirs]
        whole = (torch.cat(parts) if len(parts) > 1 else parts[0]).contiguous()
        return whole if self.factor == 1 else whole / self.factor


def pair(ours: str, theirs: str, bias: bool = False, **how: Any) -> Iterator[TensorRow]:
    """Rows of one module: its weight, and its bias if it has one."""
    yield from joined_rows(ours, (theirs,), (), bias, **how)


def joined_rows(ours: str, theirs: tuple[str, ...], sizes: tuple[int, ...], bias: bool = False, **how: Any) -> Iterator[TensorRow]:
    """Rows of one module of ours that concatenates several of theirs."""
    yield TensorRow(f"{ours}.weight", tuple(f"{name}.weight" for name in theirs), sizes, **how)
    if bias:
        plain = {name: value for name, value in how.items() if name != "form"}  # a bias has only one layout
        yield TensorRow(f"{ours}.bias", tuple(f"{name}.bias" for name in theirs), sizes, **plain)


def qkv_sizes(mixer: Attention) -> tuple[int, int, int]:
    """Rows of queries, keys and values."""
    return mixer.heads * mixer.each, mixer.groups * mixer.each, mixer.groups * mixer.each


def ffn_width(stack: Stack) -> int:
    """Hidden width of the network of each block."""
    return stack.blocks[0].ffn.up.out_features  # type: ignore[union-attr,return-value]


def first(stack: Stack) -> Mixer:
    """The mixer of the first block; the others are like it."""
    return stack.blocks[0].mixer  # type: ignore[return-value]


def refuse(family: str, faults: Mapping[str, bool]) -> None:
    """An error for the first thing a model has that a checkpoint of this family cannot represent."""
    for what, present in faults.items():
        if present:
            raise BadInput(f"a {family} checkpoint cannot represent {what}", where="save", fix="build the model in another style")


def their_name(table: Mapping[str, str], ours: str) -> str:
    """Their name of one of our options."""
    return next(theirs for theirs, mine in table.items() if mine == ours)


def owner(model: nn.Module, name: str) -> tuple[nn.Module, str]:
    """The module that has a parameter, and the parameter's name in it."""
    path, _, leaf = name.rpartition(".")
    return model.get_submodule(path), leaf
