"""Output heads: the last layer and the likelihood that suit a task, and a warning for a pair that does not.

    task        targets                activation    likelihood          the likelihood adds
    binary      0 or 1                 identity      bernoulli           a sigmoid
    classes     0 ... C-1              identity      categorical         a softmax
    counts      0, 1, 2, ...           identity      poisson             an exponential
    positive    above 0                softplus      gaussian            nothing
    real        any number             identity      gaussian, laplace   nothing

Likelihoods work on raw outputs ("logits") and add their own link, which is exact where a sigmoid followed by a logarithm
would round to log 0.  A pair is odd where activation and link together cannot reach every target, or reach what no target is.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn

from ..core import registry
from ..core.errors import BadInput, nearest
from ..nn.activations import Interval, about

PROBABILITY, POSITIVE, REAL = Interval(0, 1), Interval(0, math.inf), Interval()


class OddPair(UserWarning):
    """An output activation and a likelihood that do not suit each other or the task."""


@final
@dataclass(frozen=True)
class Task:
    """What targets are, and the usual way to predict them."""

    activation: str
    objectives: tuple[str, ...]
    """likelihoods that fit the targets, the usual one first"""
    predictions: Interval
    """where predictions should lie"""


TASKS = {
    "binary": Task("identity", ("bernoulli",), PROBABILITY),
    "classes": Task("identity", ("categorical",), PROBABILITY),
    "counts": Task("identity", ("poisson",), POSITIVE),
    "positive": Task("softplus", ("gaussian", "laplace"), POSITIVE),
    "real": Task("identity", ("gaussian", "laplace"), REAL),
}


def _through(link: Callable[[Tensor], Tensor]) -> Callable[[Interval], Interval]:
    """What a rising function makes of an interval."""
    return lambda span: Interval(*link(torch.tensor([span.low, span.high], dtype=torch.float64)).tolist())


def _between_two(span: Interval) -> Interval:
    """Probabilities of two classes: only the difference of their logits counts, at most the width of the interval."""
    width = span.high - span.low
    return _through(torch.sigmoid)(Interval(-width, width))


LINKS: dict[str, tuple[str, Callable[[Interval], Interval]]] = {
    "bernoulli": ("sigmoid", _through(torch.sigmoid)),
    "categorical": ("softmax", _between_two),
    "poisson": ("exponential", _through(torch.exp)),
    "gaussian": ("", _through(torch.clone)),
    "laplace": ("", _through(torch.clone)),
}
"""the function each likelihood puts on raw outputs, by name and as what it does to an interval"""


@final
@dataclass(frozen=True)
class Head:
    """The end of a network: how many outputs, the activation on them, and the likelihood by name."""

    outputs: int
    activation: str
    objective: str

    def layer(self, inputs: int) -> nn.Module:
        """The last layer for a network of this width; raw outputs need no activation after it."""
        dense = nn.Linear(inputs, self.outputs)
        return dense if self.activation == "identity" else nn.Sequential(dense, about(self.activation).module)

    def likelihood(self, **settings: Any) -> Any:
        """The objective itself, e.g. `head("classes", 3).likelihood(smoothing=0.1)`."""
        kind = getattr(registry.load("objectives", self.objective), self.objective.title().replace("_", ""))
        return kind(**({"classes": self.outputs} if self.objective == "categorical" else {}), **settings)


def head(task: str, outputs: int = 1, activation: str | None = None, objective: str | None = None) -> Head:
    """The usual head for a task; an activation or likelihood of your own is taken as given, with a warning where it is odd."""
    usual = _task(task)
    if not isinstance(outputs, int) or outputs < (2 if task == "classes" else 1):
        raise BadInput(f"task '{task}' cannot have {outputs!r} outputs", where="head", fix="give one output per class, two or more")
    new_head = Head(outputs, activation or usual.activation, objective or usual.objectives[0])
    message = odd(task, new_head.activation, new_head.objective)
    if message:
        warnings.warn(message, OddPair, stacklevel=2)
    return new_head


def odd(task: str, activation: str, objective: str) -> str:
    """What is odd about an output activation and a likelihood for a task, in one line; '' where nothing is."""
    usual = _task(task)
    if objective not in LINKS:
        raise BadInput(f"no likelihood '{objective}' with a known link", where="head", fix=nearest(objective, LINKS))
    if objective not in usual.objectives:
        return f"'{objective}' is not a likelihood of {task} targets; use {' or '.join(usual.objectives)}"
    name, link = LINKS[objective]
    reach = link(about(activation).range)
    if reach.low == usual.predictions.low and reach.high == usual.predictions.high:
        return ""
    added = f" with the {name} that '{objective}' adds" if name else ""
    return f"'{activation}'{added} predicts {reach}, and {task} targets need {usual.predictions}; use '{usual.activation}'"


def _task(name: str) -> Task:
    if name not in TASKS:
        raise BadInput(f"no task '{name}'", where="head", fix=nearest(name, TASKS))
    return TASKS[name]
