"""The common half of all likelihoods: -log Pr(y; theta), theta = link(model(x)), as sums with counts.

A likelihood says what one target costs; masks, weights, counts and precision are handled here, once, for all of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Annotated, Literal, NoReturn

import torch
from torch import Tensor, nn

from ..core.batch import Batch, ask
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
    """last axes of the targets that make one outcome, which a mask takes or leaves as a whole"""

    @abstractmethod
    def each(self, output: Tensor, y: Tensor, reduction: str = "none") -> Tensor:
        """Cost of every target value, shaped like `y`, or with reduction 'sum' their sum; class weights are in it, `factor` is not."""

    @abstractmethod
    def constant(self, y: Tensor) -> Tensor:
        """What is dropped, per target value: factor * each + constant = -log Pr(y)."""

    @abstractmethod
    def predict(self, output: Tensor) -> Tensor:
        """What a user wants to see of the model's raw output."""

    @abstractmethod
    def metrics(self, output: Tensor, y: Tensor) -> dict[str, Tensor]:
        """Further metrics per target value, such as 1 for a right answer."""

    @abstractmethod
    def target_rule(self, y: Tensor) -> tuple[str, Tensor, str] | None:
        """The rule a target may break: (the rule in words, which targets break it, what to do about it)."""

    def __call__(self, model: nn.Module, batch: Batch) -> Terms:
        if "share" in batch:
            raise BadInput("examples are mixtures of two, and the likelihood reads one target", where=self.name, fix="wrap it: Mixed(...)")
        return self.terms(ask(model, batch), batch)

    def terms(self, output: Tensor, batch: Batch) -> Terms:
        """The same from an output that is already there."""
        share, y = self._share(batch)
        if share is None:  # one call of torch's own sum: fewer nodes in the graph, and a small model feels each of them
            return Terms(nll=Term(self._wide(self.each, output, y, "sum"), self._count(share, y), 1.0, self.factor))
        return Terms(nll=Term(_total(self._wide(self.each, output, y), share), self._count(share, y), scale=self.factor))

    def counts(self, batch: Batch) -> dict[str, float]:
        """The count of each term; it never depends on the model."""
        return {"nll": float(self._count(*self._share(batch)))}

    def measures(self, output: Tensor, batch: Batch) -> Terms:
        """Further sums for reports; classes count alike here, masks and example weights still hold."""
        share, y = self._share(batch)
        count = y.numel() if share is None else share.sum(dtype=torch.float64)
        measures = self._wide(self.metrics, output.detach(), y)
        return Terms(**{name: (_total(value, share), count) for name, value in measures.items()})

    def check(self, batch: Batch) -> None:
        """Look at targets, mask and weights once and say precisely what is wrong with them."""
        self._check_share(batch)
        y = self._share(batch)[1]
        if y.is_floating_point() and bool((bad := y.isnan()).any()):
            self._refuse("targets must be numbers", bad, y, batch, "clean the data or mask these targets")
        violation = self.target_rule(y)
        if violation is not None:
            rule, bad, fix = violation
            mask = batch.get("mask")
            bad = bad if mask is None else bad & _stretch(mask, y)  # what does not count may hold anything
            if bool(bad.any()):
                self._refuse(rule, bad, y, batch, fix)

    def _check_share(self, batch: Batch) -> None:
        y, mask = batch.y, batch.get("mask")
        if mask is not None and (mask.dtype != torch.bool or mask.shape != y.shape[: min(mask.ndim, y.ndim - self.event_axes)]):
            raise BadInput(
                f"the mask is {_value_text(mask)}, the targets are {_value_text(y)}",
                where=self.name,
                fix="give a bool mask with the first axes of the targets",
            )
        _weight.check(batch, self.name)

    def _refuse(self, rule: str, bad: Tensor, values: Tensor, batch: Batch, fix: str) -> NoReturn:
        place = bad.nonzero()[0].tolist()
        ids = batch.get("ids")
        example = place[0] if ids is None else int(ids[place[0]])
        inside = f" at {tuple(place[1:])}" if len(place) > 1 else ""
        more = f" and {int(bad.sum()) - 1} more" if int(bad.sum()) > 1 else ""
        value = values[tuple(place)].item()
        shown = f"{value:g}" if isinstance(value, float) else value
        # The place is left open: the engine knows which part of which data set this is.
        raise BadInput(f"{self.name} {rule}, not {shown} in example {example}{inside}{more}", fix=fix)

    def _share(self, batch: Batch) -> tuple[Tensor | None, Tensor]:
        """How much each target counts (None: all alike), and targets that are harmless where they do not count."""
        y, mask, weight = batch.y, batch.get("mask"), batch.get("weight")
        if mask is None and weight is None:
            return None, y
        share = torch.ones_like(y, dtype=torch.float32 if weight is None else weight.dtype)
        if weight is not None:
            share = share * _stretch(weight, y)
        if mask is not None:
            real = _stretch(mask, y)
            share = share * real
            y = y.masked_fill(~real.expand_as(y), 0)  # padding may hold anything; 0 is at least a number
        return share, y

    def _count(self, share: Tensor | None, y: Tensor) -> float | Tensor:
        if self.class_weights is not None:
            by_class = self.class_weights.to(y.device)[y.long()]
            share = by_class if share is None else share * by_class
        return float(y.numel()) if share is None else share.sum(dtype=torch.float64)

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


def _total(values: Tensor, share: Tensor | None) -> Tensor:
    """Sum of values by share; what does not count may be infinite or NaN without harm."""
    return values.sum() if share is None else (values.masked_fill(share == 0, 0) * share.to(values.dtype)).sum()


def _value_text(tensor: Tensor) -> str:
    return f"{tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"
