"""What every lens shares: it changes nothing, and where it does not apply, its error names the lenses that do."""

from __future__ import annotations

import inspect
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial, wraps
from pathlib import Path
from typing import Any, NamedTuple, ParamSpec, TypeVar

import numpy
import torch

from ...core import registry
from ...core.batch import call_model
from ...core.errors import BadInput
from ...core.options import options_of
from ...core.reading import Subject
from ...nn.mixers import Mixer

CHUNK = 512
P = ParamSpec("P")
R = TypeVar("R")


@contextmanager
def preserve_state(model: Any = None) -> Iterator[None]:
    """Restore random states and the model's buffers, gradients and modes bit for bit on leaving the context.

    Inside, the model is in evaluation mode: what a lens shows must not depend on a dropout mask.
    """
    python, arrays = random.getstate(), numpy.random.get_state()
    modules = [] if model is None else list(model.modules())
    modes = [module.training for module in modules]
    buffers = [] if model is None else [(buffer, buffer.clone()) for buffer in model.buffers()]
    gradients = [] if model is None else [(parameter, parameter.grad) for parameter in model.parameters()]
    saved = [None if gradient is None else gradient.clone() for _, gradient in gradients]
    try:
        with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
            for module in modules:
                module.training = False
            yield
    finally:
        random.setstate(python)
        numpy.random.set_state(arrays)
        for module, mode in zip(modules, modes, strict=True):
            module.training = mode
        with torch.no_grad():
            for buffer, value in buffers:
                buffer.copy_(value)
            for (parameter, gradient), value in zip(gradients, saved, strict=True):
                parameter.grad = gradient
                if gradient is not None:
                    gradient.copy_(value)


@contextmanager
def without_kernels(model: Any) -> Iterator[None]:
    """Inside, mixers run as torch operations and not as compiled kernels, which have no graph and no second derivative."""
    forms = {m: m.form for m in model.modules() if isinstance(m, Mixer) and m.form in ("auto", "fused") and "fused" in m.forms()}
    try:
        for mixer in forms:
            mixer.use("chunk" if "chunk" in mixer.forms() else "step")
        yield
    finally:
        for mixer, form in forms.items():
            mixer.form = form


@contextmanager
def hook_outputs(modules: Mapping[str, Any], seen: Callable[[str, Any, Any, Any], Any]) -> Iterator[None]:
    """Inside, call `seen(name, module, inputs, output)` after every run of a module; a value it returns replaces the output."""
    handles = [module.register_forward_hook(partial(seen, name)) for name, module in modules.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def hook_inputs(modules: Iterable[Any], seen: Callable[[Any, Any], None]) -> Iterator[None]:
    """Inside, call `seen(module, inputs)` before every run of a module."""
    handles = [module.register_forward_pre_hook(seen) for module in modules]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def leaf_modules(model: Any) -> dict[str, Any]:
    """Modules without submodules, by name."""
    return {name: module for name, module in model.named_modules() if next(module.children(), None) is None}


def outputs(subject: Subject) -> Any:
    """The model's output for the whole batch, computed in chunks so that a large batch needs little memory.

    Outputs with names stay a dict.
    """
    batch = subject.batch
    with preserve_state(subject.model), torch.no_grad():
        parts = [call_model(subject.model, batch[start : start + CHUNK]) for start in range(0, len(batch), CHUNK)]
    if not isinstance(parts[0], Mapping):
        return _join(parts, "the model's output", len(batch))
    return {name: _join([part[name] for part in parts], f"the model's output '{name}'", len(batch)) for name in parts[0]}


def _join(parts: list[Any], what: str, rows: int) -> Any:
    if not all(isinstance(part, torch.Tensor) and part.ndim for part in parts) or sum(map(len, parts)) != rows:
        raise BadInput(
            f"{what} is not a tensor with a row for each of the {rows} examples", where="lens", fix="this lens needs one output per example"
        )
    return torch.cat([part.detach() for part in parts])


def predictions(subject: Subject) -> Any:
    """Predictions of the objective from the model's output: class probabilities, a mean, a rate."""
    out = outputs(subject)
    prediction = subject.objective.predict(out) if hasattr(subject.objective, "predict") else out
    if isinstance(prediction, Mapping):
        message = f"the model has several outputs ({', '.join(prediction)}), and the objective does not say which is the prediction"
        raise BadInput(message, where="lens", fix="give an objective with `predict`, such as Joint")
    return prediction


def check_index(what: str, value: int, count: int) -> None:
    """Refuse an index of an example or an output that does not exist."""
    if value >= count:
        raise BadInput(f"there is no {what} {value}", where="the batch" if what == "example" else "", fix=f"choose 0 to {count - 1}")


def guard(read: Callable[P, R]) -> Callable[P, R]:
    """Decorate the `read` of a lens: check its options, and raise an error that names other lenses where this one does not apply."""
    name = Path(read.__code__.co_filename).stem  # a user's own file is a lens too
    signature = inspect.signature(read)

    @wraps(read)
    def check_and_read(*arguments: P.args, **options: P.kwargs) -> R:
        call = signature.bind(*arguments, **options)
        known = options_of(read, f"lens '{name}'")
        subject, *_ = call.arguments.values()
        for option, value in list(call.arguments.items())[1:]:
            known[option].check(value)
        if reason := sys.modules[read.__module__].why_not(subject):
            others = applicable(subject)
            fix = f"try {', '.join(others)}" if others else "no lens applies to this subject"
            raise BadInput(f"lens '{name}' does not apply: {reason}", fix=fix)
        return read(*arguments, **options)

    return check_and_read


def applicable(subject: Subject) -> list[str]:
    """Names of the lenses that apply to a subject: those whose `why_not(subject)` returns ''."""
    return [name for name in registry.names("lenses") if not registry.load("lenses", name).why_not(subject)]


def no_model(subject: Subject) -> str:
    """Why there is no model with a batch, or ''."""
    if subject.model is None:
        return "there is no model"
    if subject.batch is None or "x" not in subject.batch or not len(subject.batch):
        return "there is no batch of inputs"
    return ""


def no_gradient(subject: Subject) -> str:
    """Why there is nothing to differentiate, or ''."""
    if missing := no_model(subject):
        return missing
    if subject.objective is None:
        return "there is no objective to differentiate"
    if not any(parameter.requires_grad for parameter in subject.model.parameters()):
        return "no parameter is trainable"
    return _no_loss(subject)


def _no_loss(subject: Subject) -> str:
    """Why the objective cannot compute a loss of this model, tried on two examples, or ''."""
    try:
        with preserve_state(subject.model), torch.inference_mode(False), torch.enable_grad():
            subject.objective(subject.model, subject.batch[:2]).loss()
    except Exception as error:  # whatever fails here would fail in the lens too
        message = " ".join(str(error).split())
        return f"the objective cannot be evaluated on the model's output: {message[:160]}"
    return ""


def not_classes(subject: Subject) -> str:
    """Why this is not a classification, or ''."""
    if reason := _other_task(subject, ("classes",), "labels", "classes"):
        return reason
    return "the labels are not whole numbers" if subject.batch.y.is_floating_point() and _task(subject) != "classes" else ""


def not_values(subject: Subject) -> str:
    """Why this is not a regression, or ''."""
    if reason := _other_task(subject, ("values", "counts"), "targets", "a number"):
        return reason
    whole = not subject.batch.y.is_floating_point() and _task(subject) not in ("values", "counts")
    return "the targets are labels, not numbers" if whole else ""


def _task(subject: Subject) -> str:
    return getattr(subject.data, "task", "")


def _other_task(subject: Subject, tasks: tuple[str, ...], targets: str, kind: str) -> str:
    """Why there are no targets for one of these tasks, or ''."""
    if missing := no_model(subject):
        return missing
    if "y" not in subject.batch:
        return f"the batch has no {targets}"
    return "" if _task(subject) in ("", "other", *tasks) else f"the target is '{_task(subject)}', not {kind}"


def spread_evenly(items: Sequence[Any], max_items: int) -> list[Any]:
    """At most `max_items`, evenly spaced from the first to the last."""
    n = min(max_items, len(items))
    return [items[round(i * (len(items) - 1) / max(n - 1, 1))] for i in range(n)]


def target_mask(batch: Any, y: Any) -> Any:
    """True where a target is real and not padding, shaped like the targets."""
    mask = batch.get("mask")
    if mask is None:
        return torch.ones_like(y, dtype=torch.bool)
    return mask.bool().reshape(*mask.shape, *[1] * (y.dim() - mask.dim())).expand_as(y)


class Predictions(NamedTuple):
    """True and predicted labels, confidence of the prediction, index of each among all labels, and class names."""

    true: Any
    predicted: Any
    confidence: Any
    where: Any
    names: list[str]


def predict_labels(subject: Subject) -> Predictions:
    """Predictions of a classifier for every label that is not padding.

    The last axis holds class scores, or a single probability, which means class 1 above one half.
    """
    y, guess = subject.batch.y.long(), predictions(subject)
    if guess.dim() > y.dim() and guess.shape[-1] == 1:
        guess = guess.squeeze(-1)
    if y.dim() > guess.dim() and y.shape[-1] == 1:
        y = y.squeeze(-1)
    if guess.shape == y.shape:
        guess = torch.stack([1 - guess, guess], -1)
    if guess.shape[:-1] != y.shape:
        raise BadInput(
            f"the model outputs {tuple(guess.shape)} for labels {tuple(y.shape)}",
            where="lens",
            fix="give one score per class on the last axis",
        )
    confidence, y_pred = guess.max(-1)
    keep = target_mask(subject.batch, y) & (y >= 0)
    known = list(getattr(subject.data, "classes", ()))
    highest = max(int(guess.shape[-1]), int(y.max()) + 1 if y.numel() else 0)
    names = known + [str(label) for label in range(len(known), highest)]
    return Predictions(y[keep], y_pred[keep], confidence[keep], keep.flatten().nonzero().flatten(), names)
