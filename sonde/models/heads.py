"""Output heads: the last layer and the likelihood that suit a task, and a warning for a pair that does not.

    task        targets                activation    likelihood          the likelihood adds
    binary      0 or 1                 identity      bernoulli           a sigmoid
    classes     0 ... C-1              identity      categorical         a softmax
    counts      0, 1, 2, ...           identity      poisson             an exponential
    positive    above 0                softplus      gaussian            nothing
    real        any number             identity      gaussian, laplace   nothing

Likelihoods work on raw outputs ("logits") and add their own link, which is exact where a sigmoid followed by a logarithm
would round to log 0.  A pair does not match where activation and link together cannot reach every target, or reach what no target is.
"""

from __future__ import annotations

import functools
import inspect
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn

from ..core import registry
from ..core.errors import BadInput, nearest
from ..core.options import options_of, resolve
from ..nn.activations import Interval, describe

PROBABILITY, POSITIVE, REAL = Interval(0, 1), Interval(0, math.inf), Interval()


class OddPair(UserWarning):
    """An output activation and a likelihood that do not suit each other or the task."""


@final
@dataclass(frozen=True)
class Task:
    """A kind of targets, and the usual activation and likelihood for it."""

    activation: str
    objective: str
    """the usual likelihood; others that declare this task fit its targets too"""
    predictions: Interval
    """where predictions should lie"""


TASKS = {
    "binary": Task("identity", "bernoulli", PROBABILITY),
    "classes": Task("identity", "categorical", PROBABILITY),
    "counts": Task("identity", "poisson", POSITIVE),
    "positive": Task("softplus", "gaussian", POSITIVE),
    "real": Task("identity", "gaussian", REAL),
}


def _image_of(link: Callable[[Tensor], Tensor]) -> Callable[[Interval], Interval]:
    """The image of an interval under an increasing function."""
    return lambda span: Interval(*link(torch.tensor([span.low, span.high], dtype=torch.float64)).tolist())


def _two_class_range(span: Interval) -> Interval:
    """Probabilities of two classes: only the difference of their logits counts, at most the width of the interval."""
    width = span.high - span.low
    return _image_of(torch.sigmoid)(Interval(-width, width))


LINKS: dict[str, Callable[[Interval], Interval]] = {
    "identity": _image_of(torch.clone),
    "sigmoid": _image_of(torch.sigmoid),
    "softmax": _two_class_range,
    "exponential": _image_of(torch.exp),
}
"""links that a likelihood can declare by name, as what they do to an interval"""


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
        return dense if self.activation == "identity" else nn.Sequential(dense, describe(self.activation).module)

    def likelihood(self, **settings: Any) -> Any:
        """The objective itself, e.g. `head("classes", 3).likelihood(smoothing=0.1)`."""
        kind = objective_class(self.objective)
        known = {"classes": self.outputs} if "classes" in inspect.signature(kind).parameters else {}
        return kind(**{**known, **settings})


def head(task: str, outputs: int = 1, activation: str | None = None, objective: str | None = None) -> Head:
    """The usual head for a task, with a warning where activation and likelihood do not match it.

    Args:
        task: binary, classes, counts, positive or real
        outputs: number of outputs; for classes their number
        activation: output activation by name; None is the usual one of the task
        objective: likelihood by name or file; None is the usual one of the task
    """
    usual = _task(task)
    if not isinstance(outputs, int) or outputs < (2 if task == "classes" else 1):
        raise BadInput(f"task '{task}' cannot have {outputs!r} outputs", where="head", fix="give one output per class, two or more")
    new_head = Head(outputs, activation or usual.activation, objective or usual.objective)
    message = mismatch(task, new_head.activation, new_head.objective)
    if message:
        warnings.warn(message, OddPair, stacklevel=2)
    return new_head


def mismatch(task: str, activation: str, objective: str) -> str:
    """Why an output activation and a likelihood do not match a task, in one line; '' where they match."""
    usual, shown = _task(task), registry.label(objective)
    if not registry.is_file(objective) and objective not in likelihoods():
        raise BadInput(f"no likelihood '{objective}' with a known link", where="head", fix=nearest(objective, likelihoods()))
    kind = objective_class(objective)
    link: str | Callable[[Tensor], Tensor] = getattr(kind, "link", "identity")
    if isinstance(link, str) and link not in LINKS:
        raise BadInput(f"objective '{shown}' declares an unknown link '{link}'", where="head", fix=nearest(link, LINKS))
    if task not in getattr(kind, "tasks", ()):
        return f"'{shown}' is not a likelihood of {task} targets; use {' or '.join(likelihoods_of(task))}"
    reach = (LINKS[link] if isinstance(link, str) else _image_of(link))(describe(activation).range)
    if reach.low == usual.predictions.low and reach.high == usual.predictions.high:
        return ""
    name = link if isinstance(link, str) else getattr(link, "__name__", "link")
    added = "" if name == "identity" else f" with the {name} that '{shown}' adds"
    return f"'{activation}'{added} predicts {reach}, and {task} targets need {usual.predictions}; use '{usual.activation}'"


def likelihoods_of(task: str) -> list[str]:
    """Likelihoods that declare a task, the usual one first."""
    usual = _task(task).objective
    return [usual, *(name for name, tasks in likelihoods().items() if task in tasks and name != usual)]


def objective_class(name: str) -> type:
    """The class of an objective, by its name or the path of its file."""
    return registry.class_of("objectives", name, Callable)  # type: ignore[arg-type]


def objective_of(text: str, **more: Any) -> Any:
    """An objective from its name or file and any options after it: 'laplace', 'gaussian variance=2', './huber.py delta=2'.

    Args:
        more: defaults for options that the text leaves out; ignored where the class does not have them
    """
    name, options = registry.parse(text, "objective")
    kind, owner = objective_class(name), f"objective '{registry.label(name)}'"
    known = options_of(kind, owner) if "__init__" in vars(kind) else {}
    return (
        kind(**resolve(kind, {**{one: value for one, value in more.items() if one in known}, **options}, owner))
        if known or options
        else kind()
    )


@functools.cache
def likelihoods() -> dict[str, tuple[str, ...]]:
    """Name of each objective that declares which tasks it fits -> these tasks."""
    declared = {name: getattr(objective_class(name), "tasks", ()) for name in registry.names("objectives")}
    return {name: tasks for name, tasks in declared.items() if tasks}


def _task(name: str) -> Task:
    if name not in TASKS:
        raise BadInput(f"no task '{name}'", where="head", fix=nearest(name, TASKS))
    return TASKS[name]
