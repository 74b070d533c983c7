"""Batch: named tensors that share their first axis.  Source: a data set that returns whole batches by index."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from torch import Tensor


class Batch:
    """Named tensors with one common first axis: usually `x`, `y`, `ids`, sometimes `mask`, `weight` and others.

    `batch.x` reads a field, `len(batch)` counts examples, `batch[a:b]` cuts, `batch.replace(x=...)` swaps fields.
    """

    __slots__ = ("fields",)
    fields: dict[str, Tensor]

    def __init__(self, **fields: Tensor) -> None:
        object.__setattr__(self, "fields", fields)

    def __getattr__(self, name: str) -> Tensor:
        try:
            return self.fields[name]
        except KeyError:
            raise AttributeError(f"this batch has no field '{name}'; it has {', '.join(self.fields)}") from None

    def __getstate__(self) -> dict[str, Tensor]:
        return self.fields

    def __setstate__(self, fields: dict[str, Tensor]) -> None:
        object.__setattr__(self, "fields", fields)

    def __len__(self) -> int:
        return len(next(iter(self.fields.values())))

    def __contains__(self, name: str) -> bool:
        return name in self.fields

    def __iter__(self) -> Iterator[str]:
        return iter(self.fields)

    def __getitem__(self, part: slice | Tensor) -> Batch:
        return Batch(**{name: tensor[part] for name, tensor in self.fields.items()})

    def get(self, name: str, default: Any = None) -> Any:
        return self.fields.get(name, default)

    def replace(self, **fields: Tensor) -> Batch:
        return Batch(**{**self.fields, **fields})

    def to(self, device: Any) -> Batch:
        return Batch(**{name: tensor.to(device) for name, tensor in self.fields.items()})

    def __repr__(self) -> str:
        inside = ", ".join(f"{name} {tuple(t.shape)} {str(t.dtype).removeprefix('torch.')}" for name, t in self.fields.items())
        return f"Batch({inside})"


def call_model(model: Callable[..., Any], batch: Batch) -> Any:
    """Call the model on a batch: on its `x`, or on the fields that the model names in `reads`, with None for missing ones."""
    reads = getattr(model, "reads", None)
    return model(batch.x) if reads is None else model(*(batch.get(name) for name in reads))


@runtime_checkable
class Source(Protocol):
    """Examples that can be counted and taken by an index tensor, whole batches at a time."""

    def __len__(self) -> int: ...

    def __getitem__(self, indices: Any) -> Batch: ...

    def fingerprint(self) -> str:
        """A hash of the content, to notice data that changed between start and resume."""
        ...


class EmptySource:
    """No examples: the training part of data whose batches come from elsewhere, such as from an environment."""

    def __len__(self) -> int:
        return 0

    def __getitem__(self, indices: Any) -> Batch:
        return Batch()

    def fingerprint(self) -> str:
        return "empty"


@dataclass(frozen=True)
class Data:
    """The splits of a data set, with what is known about them: training, validation and, for the end of a run, test.

    A split may also be a torch `Dataset` or `DataLoader`; the engine makes a source of it.
    """

    train: Source = field(default_factory=EmptySource)
    valid: Source | None = None
    test: Source | None = None
    name: str = "data"
    task: str = "other"
    """'classes', 'values', 'counts' or 'other': what the target is"""
    classes: tuple[str, ...] = ()
    """names of the classes, in label order"""
    features: tuple[str, ...] = ()
    """names of the input columns, where they have names"""
    report: Mapping[str, int | str] = field(default_factory=dict)
    """what cleaning did, in counts"""
    reader: Any = None
    """turns a file of new examples into a Batch with the statistics of this data; used by `sonde predict`"""

    @property
    def splits(self) -> dict[str, Source]:
        parts = {"train": self.train, "valid": self.valid, "test": self.test}
        return {name: source for name, source in parts.items() if source is not None and not isinstance(source, EmptySource)}
