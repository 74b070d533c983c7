"""The base class of likelihoods: -log Pr(y; theta), theta = link(model(x)), as sums with counts.

A likelihood defines the cost of one target; masks, weights, counts and precision are handled here for all of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Annotated, Literal, NoReturn

import torch
from torch import Tensor, nn

from ..core.batch import Batch, call_model
from ..core.errors import BadInput
from ..core.options import Range
from ..core.terms import Term, Terms
from . import _weight

PositiveOrLearned = Annotated[float, Range(above=0)] | Literal["learned"]
"""a fixed number, or one that the model gives for each target"""


class Likelihood(ABC):
    """Negative log-likelihood of the targets `y`, less a constant that no parameter can change.

    A `mask` in the batch (true where a target is real) leaves out padding; a `weight` (one number per example) multiplies
    both the sum and the count.  The count is that of target values, so sum / count is the mean over them.
    """

    name: str
    factor: float = 1.0
    """a fixed factor on every cost, which `each` leaves out"""
    class_weights: Tensor | None = None
    """one weight per class, where the targets are labels and classes count differently"""
    event_axes: int = 0
    """number of last axes of the targets that form one outcome, which is masked as a whole"""

    @abstractmethod
    def each(self, output: Tensor, y: Tensor, reduction: str = "none") -> Tensor:
        """Cost of every target value, shaped like `y`, or with reduction 'sum' their sum; class weights are in it, `factor` is not."""

    @abstractmethod
    def constant(self, y: Tensor) -> Tensor:
        """What is dropped, per target value: factor * each + constant = -log Pr(y)."""

    @abstractmethod
    def predict(self, output: Tensor) -> Tensor:
        """The prediction that a user wants to see, from the raw output."""

    @abstractmethod
    def metrics(self, output: Tensor, y: Tensor) -> dict[str, Tensor]:
        """Further metrics per target value, such as 1 for a correct prediction."""

    @abstractmethod
    def target_rule(self, y: Tensor) -> tuple[str, Tensor, str] | None:
        """A constraint on targets: (its description, a mask of the targets that violate it, the fix)."""

    def __call__(self, model: nn.Module, batch: Batch) -> Terms:
        if "share" in batch:
            raise BadInput(
                "examples are mixtures of two (mixup or CutMix), and the likelihood reads one target",
                where=self.name,
                fix="wrap it: Mixed(...)",
            )
        return self.terms(call_model(model, batch), batch)

    def terms(self, output: Tensor, batch: Batch) -> Terms:
        """The same from a given output."""
        weights, y = self._target_weights(batch)
        if weights is None:  # one call of torch's own sum: fewer nodes in the graph, which matters for small models
            return Terms(nll=Term(self._wide(self.each, output, y, "sum"), self._count(weights, y), 1.0, self.factor))
        return Terms(nll=Term(_total(self._wide(self.each, output, y), weights), self._count(weights, y), scale=self.factor))

    def counts(self, batch: Batch) -> dict[str, float]:
        """The count of each term; it never depends on the model."""
        return {"nll": float(self._count(*self._target_weights(batch)))}

    def measures(self, output: Tensor, batch: Batch) -> Terms:
        """Further sums for reports, with masks and example weights but without class weights."""
        weights, y = self._target_weights(batch)
        count = y.numel() if weights is None else weights.sum(dtype=torch.float64)
        measures = self._wide(self.metrics, output.detach(), y)
        return Terms(**{name: (_total(value, weights), count) for name, value in measures.items()})

    def check(self, batch: Batch) -> None:
        """Raise BadInput if targets, mask or weights are invalid."""
        self._check_mask_and_weight(batch)
        y = self._target_weights(batch)[1]
        if y.is_floating_point() and bool((bad := y.isnan()).any()):
            self._refuse("targets must be numbers", bad, y, batch, "clean the data or mask these targets")
        violation = self.target_rule(y)
        if violation is not None:
            rule, bad, fix = violation
            mask = batch.get("mask")
            bad = bad if mask is None else bad & _stretch(mask, y)  # masked targets may hold any value
            if bool(bad.any()):
                self._refuse(rule, bad, y, batch, fix)

    def _check_mask_and_weight(self, batch: Batch) -> None:
        y, mask = batch.y, batch.get("mask")
        if mask is not None and (mask.dtype != torch.bool or mask.shape != y.shape[: min(mask.ndim, y.ndim - self.event_axes)]):
            raise BadInput(
                f"the mask is {_value_text(mask)}, the targets are {_value_text(y)}",
                where=self.name,
                fix="give a bool mask with the first axes of the targets",
            )
        _weight.check(batch, self.name)

    def _refuse(self, rule: str, bad: Tensor, values: Tensor, batch: Batch, fix: str) -> NoReturn:
        index = bad.nonzero()[0].tolist()
        ids = batch.get("ids")
        example = index[0] if ids is None else int(ids[index[0]])
        inside = f" at {tuple(index[1:])}" if len(index) > 1 else ""
        more = f" and {int(bad.sum()) - 1} more" if int(bad.sum()) > 1 else ""
        value = values[tuple(index)].item()
        shown = f"{value:g}" if isinstance(value, float) else value
        # No `where`: the engine knows which part of which data set this is.
        raise BadInput(f"{self.name} {rule}, not {shown} in example {example}{inside}{more}", fix=fix)

    def _target_weights(self, batch: Batch) -> tuple[Tensor | None, Tensor]:
        """The weight of each target (None: all 1), and the targets with masked ones set to 0."""
        y, mask, weight = batch.y, batch.get("mask"), batch.get("weight")
        if mask is None and weight is None:
            return None, y
        weights = torch.ones_like(y, dtype=torch.float32 if weight is None else weight.dtype)
        if weight is not None:
            weights = weights * _stretch(weight, y)
        if mask is not None:
            real = _stretch(mask, y)
            weights = weights * real
            y = y.masked_fill(~real.expand_as(y), 0)  # padding may be NaN
        return weights, y

    def _count(self, weights: Tensor | None, y: Tensor) -> float | Tensor:
        if self.class_weights is not None:
            by_class = self.class_weights.to(y.device)[y.long()]
            weights = by_class if weights is None else weights * by_class
        return float(y.numel()) if weights is None else weights.sum(dtype=torch.float64)

    @staticmethod
    def _wide(function, output: Tensor, y: Tensor, *more):
        """Apply a function in float32 at least: sums of logarithms lose too much in 16 bits."""
        if output.dtype in (torch.bfloat16, torch.float16):
            output = output.float()
        if not torch.is_autocast_enabled(output.device.type):
            return function(output, y, *more)
        with torch.autocast(output.device.type, enabled=False):
            return function(output, y, *more)


def align(output: Tensor, y: Tensor, name: str) -> tuple[Tensor, Tensor]:
    """Output and target in one shape and dtype.  Broadcasting (B,1) against (B,) to (B,B) is a silent classic."""
    if output.shape == y.shape and output.dtype == y.dtype:
        return output, y
    if output.shape != y.shape:
        if output.shape == (*y.shape, 1):
            output = output.squeeze(-1)
        elif y.shape != (*output.shape, 1):
            raise misfit(output, y, name, "one output per target")
        else:
            output = output.unsqueeze(-1)
    return output, y.to(output.dtype)


def halves(output: Tensor, y: Tensor, name: str) -> tuple[Tensor, Tensor, Tensor]:
    """First and second half of an output with two numbers per target, and the target."""
    width = output.shape[-1]
    if width % 2 or output.numel() != 2 * y.numel():
        raise misfit(output, y, name, "two outputs per target: all means, then all spreads")
    first, second = output.chunk(2, -1)
    first, target = align(first, y, name)
    return first, align(second, y, name)[0], target


def misfit(output: Tensor, y: Tensor, name: str, needs: str) -> BadInput:
    """The error for a model whose output does not fit the targets."""
    return BadInput(
        f"model output {_value_text(output)} does not match targets {_value_text(y)}", where=name, fix=f"the likelihood needs {needs}"
    )


def errors(prediction: Tensor, y: Tensor) -> dict[str, Tensor]:
    """Squared and absolute error of a prediction shaped like the target."""
    error = prediction - y
    return {"squared_error": error.square(), "absolute_error": error.abs()}


def reduce(values: Tensor, reduction: str) -> Tensor:
    """Values as they are, or their sum."""
    return values.sum() if reduction == "sum" else values


def expand_like(y: Tensor, value: float) -> Tensor:
    """The same number for every target."""
    return torch.full_like(y, value, dtype=y.dtype if y.is_floating_point() else torch.float32)


def real_targets(y: Tensor) -> tuple[str, Tensor, str]:
    """The rule of a likelihood over all real numbers."""
    return "targets must be finite", ~torch.isfinite(y), "clean the data"


def _stretch(values: Tensor, y: Tensor) -> Tensor:
    return values.reshape(values.shape + (1,) * (y.ndim - values.ndim))


def _total(values: Tensor, weights: Tensor | None) -> Tensor:
    """Weighted sum of values; a value with weight 0 may be infinite or NaN without harm."""
    return values.sum() if weights is None else (values.masked_fill(weights == 0, 0) * weights.to(values.dtype)).sum()


def _value_text(tensor: Tensor) -> str:
    return f"{tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"
