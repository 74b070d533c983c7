"""Categorical likelihood: cross-entropy on logits, for one label out of C classes; also one label per time step.

-log Pr(y; p) = -log p_y,  p = softmax(output)          output (B, C) or (B, T, C), y (B,) or (B, T)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..core.batch import Batch
from ..core.errors import BadInput
from ..core.options import Range, checked
from ._likelihood import Likelihood, expand_like, misfit

# torch silently skips targets equal to ignore_index; targets are left out by a mask only, so this value never occurs.
_NEVER = -(2**60)


@final
class Categorical(Likelihood):
    """y is a whole number 0 ... C-1; output = log p up to a common shift, the logits.  Drops nothing.

    Args:
        classes: how many there are, so that labels can be checked before training; without it, at the first bad batch
        smoothing: this fraction of each target is spread evenly over all classes; the loss is then the cross-entropy with the
            smoothed target, no longer a pure likelihood
        weights: one number per class, which multiplies the cost and the count of its targets
    """

    name = "categorical"
    tasks = ("classes",)
    link = "softmax"
    repeatable = True

    @checked
    def __init__(
        self, classes: int | None = None, smoothing: Annotated[float, Range(0, below=1)] = 0.0, weights: Sequence[float] | None = None
    ) -> None:
        self.smoothing, self.classes = smoothing, classes
        if weights is not None:
            self.class_weights = torch.as_tensor(weights, dtype=torch.float32)
            if self.class_weights.ndim != 1 or not bool((self.class_weights.isfinite() & (self.class_weights >= 0)).all()):
                raise BadInput("weights must be finite numbers >= 0, one per class", where=self.name)
            if classes not in (None, len(weights)):
                raise BadInput(f"{len(weights)} weights for {classes} classes", where=self.name, fix="give one weight per class")
            self.classes = len(weights)

    def each(self, output: Tensor, y: Tensor, reduction: str = "none") -> Tensor:
        if output.shape[:-1] != y.shape or self.classes not in (None, output.shape[-1]):
            raise misfit(output, y, self.name, f"{self.classes or 'as many'} outputs per target, one for each class")
        weights = None if self.class_weights is None else self.class_weights.to(output)
        logits, labels = output.reshape(-1, output.shape[-1]), y.reshape(-1).long()
        try:
            cost = F.cross_entropy(logits, labels, weights, reduction=reduction, label_smoothing=self.smoothing, ignore_index=_NEVER)
        except IndexError:
            self._check_labels(y, output.shape[-1])
            raise
        return cost if reduction == "sum" else cost.reshape(y.shape)

    def constant(self, y: Tensor) -> Tensor:
        return expand_like(y, 0.0)

    def predict(self, output: Tensor) -> Tensor:
        """The probability of each class."""
        return torch.softmax(output, -1)

    def metrics(self, output: Tensor, y: Tensor) -> dict[str, Tensor]:
        return {"accuracy": (output.argmax(-1) == y).to(output.dtype)}

    def target_rule(self, y: Tensor) -> tuple[str, Tensor, str] | None:
        if y.is_floating_point() or y.is_complex() or y.dtype == torch.bool:
            kind = str(y.dtype).removeprefix("torch.")
            raise BadInput(
                f"labels must be whole numbers, not {kind}", where=self.name, fix="convert with y.long(), or use 'gaussian' for values"
            )
        return self._label_rule(y, self.classes)

    def _label_rule(self, y: Tensor, classes: int | None) -> tuple[str, Tensor, str]:
        if classes is None:
            return "labels must be >= 0", y < 0, "number the classes from 0"
        return f"labels must be 0 ... {classes - 1}", (y < 0) | (y >= classes), "number the classes from 0, or give the model more outputs"

    def _check_labels(self, y: Tensor, classes: int) -> None:
        rule, bad, fix = self._label_rule(y, classes)
        if bool(bad.any()):
            self._refuse(rule, bad, y, Batch(y=y), fix)


def tiny() -> tuple[Categorical, nn.Module, Batch]:
    """A small working instance with input."""
    x = torch.linspace(-1, 1, 21).reshape(7, 3)
    return Categorical(classes=4), nn.Linear(3, 4), Batch(x=x, y=torch.arange(7) % 4)
