"""Sources in memory: tensors indexed a batch at a time, and windows over a long sequence of tokens."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from ..core.batch import Batch
from ..core.errors import BadInput
from .split import subsets


@final
@dataclass(frozen=True)
class ToFloat:
    """x -> (x * scale - mean) / std as float32; mean and std are numbers, or tensors that broadcast against one example."""

    scale: float = 1.0
    mean: float | Tensor = 0.0
    std: float | Tensor = 1.0

    def __post_init__(self) -> None:
        # Folded into one multiplication and one addition per batch.
        object.__setattr__(self, "_factor", self.scale / self.std)
        object.__setattr__(self, "_offset", -self.mean / self.std)

    def __call__(self, x: Tensor) -> Tensor:
        out = x.to(torch.float32, copy=True)
        return out.mul_(self._factor).add_(self._offset)  # type: ignore[attr-defined]

    @classmethod
    def fit(cls, x: Tensor, scale: float = 1.0, channels: bool = False) -> ToFloat:
        """Mean and deviation of the examples, over all values or (channels) over all but axis 1 of (N, C, ...)."""
        axes = tuple(axis for axis in range(x.dim()) if not (channels and axis == 1))
        count, total, squares = 0, torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
        for part in x.split(4096):  # float64 sums over blocks: exact enough, and no float copy of the whole set
            block = part.double() * scale
            count += block.numel() // (block.shape[1] if channels else 1)
            total, squares = total + block.sum(axes), squares + block.square().sum(axes)
        mean = total / count
        std = (squares / count - mean**2).clamp(min=0).sqrt()
        std = torch.where(std > 1e-12, std, torch.ones_like(std))
        if not channels:
            return cls(scale, float(mean), float(std))
        shape = (-1,) + (1,) * (x.dim() - 2)
        return cls(scale, mean.float().view(shape), std.float().view(shape))


@final
class TensorSource:
    """Examples as tensors with one common first axis: x, y and any others.  A batch also has `ids`, the positions in the whole set.

    Args:
        to_float: converts x, which may be stored as uint8, when a batch is taken
    """

    def __init__(self, x: Tensor, y: Tensor | None = None, *, to_float: ToFloat | None = None, **others: Tensor) -> None:
        fields = {"x": x, **({} if y is None else {"y": y}), **others}
        numbered = "ids" not in fields
        fields.setdefault("ids", torch.arange(len(x)))
        uneven = {name: len(tensor) for name, tensor in fields.items() if len(tensor) != len(x)}
        if uneven:
            name, length = next(iter(uneven.items()))
            raise BadInput(f"'{name}' has {length} examples but 'x' has {len(x)}", fix="give tensors with the same first axis")
        self.fields = {name: tensor.contiguous() for name, tensor in fields.items()}
        self.to_float = to_float
        self.whole = self.fields["ids"] if numbered else None

    def __len__(self) -> int:
        return len(self.fields["ids"])

    def __getitem__(self, indices: Any) -> Batch:
        if isinstance(indices, Tensor) and indices.dtype == torch.int64:
            fields = {name: tensor.index_select(0, indices) for name, tensor in self.fields.items() if tensor is not self.whole}
            if self.whole is not None:  # ids that count 0, 1, 2, ... are the indices themselves
                fields["ids"] = indices
        else:
            part = indices if isinstance(indices, slice) else torch.as_tensor(indices)
            fields = {name: tensor[part] for name, tensor in self.fields.items()}
        if self.to_float is not None:
            fields["x"] = self.to_float(fields["x"])
        return Batch(**fields)

    @property
    def y(self) -> Tensor:
        """All targets, for class weights and checks."""
        return self.fields["y"]

    def subset(self, indices: Any) -> TensorSource:
        """The chosen examples as a new source; their ids stay those of the whole set."""
        fields = {name: tensor[torch.as_tensor(indices)] for name, tensor in self.fields.items()}
        return TensorSource(to_float=self.to_float, **fields)

    def fingerprint(self) -> str:
        change = self.to_float
        extra = {} if change is None else {"scale": change.scale, "mean": change.mean, "std": change.std}
        return fingerprint({**self.fields, **{f"to_float.{name}": torch.as_tensor(value) for name, value in extra.items()}})


@final
class WindowSource:
    """Next-token examples from one long sequence of tokens: x (B, T) and y (B, T), which is x shifted by one.

    Windows start every `stride` tokens; a tail too short for a window is left out.
    """

    def __init__(self, tokens: Tensor, length: int, stride: int | None = None) -> None:
        stride = stride or length
        if len(tokens) < length + 1:
            raise BadInput(
                f"{len(tokens)} tokens are too few for one window of {length} and its next token",
                fix="use a smaller length ('context' in a recipe) or more text",
            )
        self.tokens, self.length, self.stride = tokens.contiguous(), length, stride
        self._windows = self.tokens.unfold(0, length + 1, stride)  # a view: overlapping windows cost no memory

    def __len__(self) -> int:
        return len(self._windows)

    def __getitem__(self, indices: Any) -> Batch:
        ids = torch.arange(len(self))[indices] if isinstance(indices, slice) else torch.as_tensor(indices)
        rows = self._windows.index_select(0, ids)
        return Batch(x=rows[:, :-1].to(torch.int64).contiguous(), y=rows[:, 1:].to(torch.int64).contiguous(), ids=ids)

    def fingerprint(self) -> str:
        return fingerprint({"tokens": self.tokens, "window": torch.tensor([self.length, self.stride])})


def fingerprint(fields: dict[str, Tensor]) -> str:
    """sha256 over name, dtype, shape and bytes of each tensor, in the order of their names."""
    digest = hashlib.sha256()
    for name in sorted(fields):
        tensor = fields[name].detach().cpu().contiguous()
        digest.update(f"{name}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
        digest.update(tensor.flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def split_source(
    whole: TensorSource, indices: Sequence[Tensor], to_float: Callable[[Tensor], ToFloat] | None = None
) -> tuple[TensorSource, TensorSource | None, TensorSource | None]:
    """Split a source into train, valid and test; a part without examples is None.

    Args:
        to_float: fits the conversion to floats on the training examples, so that no statistics leak from the others
    """
    train, valid, test = subsets(whole, indices)
    if to_float is not None:
        change = to_float(train.fields["x"])
        for part in filter(None, (train, valid, test)):
            part.to_float = change
    return train, valid, test
