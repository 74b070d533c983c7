"""Checks of loss and gradient before every update, and the search for the cause of a number that is not finite."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from ..core.batch import Batch
from ..core.errors import BadInput, SondeError


class Fault(NamedTuple):
    """What is wrong with a step, and the number of last steps that caused it."""

    what: str
    steps: int = 1


class Guard:
    """Watches loss and gradient norm.  A step is bad when either is not finite, or when for three of ten steps the
    loss is above the median of the last 200 by ten robust deviations or the norm above a thousand medians.

    Not for three steps running: a loss that explodes swings, and is low by chance now and then.  A loss below
    what was usual in the first steps is never high: a network that fits its data exactly has a median near 0, and a hard
    batch is no explosion.

    Args:
        has_scale: whether a large loss means anything; the loss of a policy gradient has no such meaning
    """

    WINDOW, LEAST, DEVIATIONS, TIMES = 200, 50, 10.0, 1000.0
    PATIENCE, FRAME, EVERY = 3, 10, 20

    def __init__(self, has_scale: bool = True) -> None:
        self.has_scale = has_scale
        self.losses: deque[float] = deque(maxlen=self.WINDOW)
        self.norms: deque[float] = deque(maxlen=self.WINDOW)
        self.strikes: list[int] = []
        """how many steps ago the last few high ones were"""
        self.seen = 0
        self.first = math.inf
        self.limits = (math.inf, math.inf)

    def fault(self, loss: float, norm: float) -> Fault | None:
        """None for a good step."""
        if not math.isfinite(loss):
            return Fault(f"the loss is {loss}")
        if not math.isfinite(norm):
            return Fault(f"the gradient norm is {norm}")
        high = (self.has_scale and loss > self.limits[0]) or norm > self.limits[1]
        self.strikes = [*self._older(1), *[0] * high]
        if len(self.strikes) >= self.PATIENCE:
            oldest, self.strikes = self.strikes[0], []
            return Fault(f"the loss exploded to {loss:.4g} (limit {self.limits[0]:.4g}), gradient norm {norm:.4g}", oldest + 1)
        if not high:
            self._accept(loss, norm)
            if self.seen >= self.LEAST and self.seen % self.EVERY == 0:  # medians are dear beside a tiny step
                self.limits = self._limits()
        return None

    def _accept(self, loss: float, norm: float) -> None:
        """Record a good step."""
        self.losses.append(loss)
        self.norms.append(norm)
        self.seen += 1
        if self.seen == self.LEAST:
            self.first = float(np.median(self.losses))

    def _older(self, steps: int) -> list[int]:
        return [age + steps for age in self.strikes if age + steps < self.FRAME]

    def _limits(self) -> tuple[float, float]:
        """What loss and norm must not exceed, given those of the last good steps."""
        losses = np.array(self.losses)
        middle = np.median(losses)
        # 1.4826 makes the median absolute deviation a standard deviation for normal noise; the floor keeps a loss
        # that is nearly constant from calling ordinary noise an explosion.
        spread = max(1.4826 * np.median(np.abs(losses - middle)), 0.1 * abs(middle), 1e-3)
        largest = self.TIMES * max(np.median(self.norms), 1e-8)
        return max(float(middle + self.DEVIATIONS * spread), self.first), float(largest)

    def state(self) -> dict[str, Any]:
        limits = [None if math.isinf(limit) else limit.hex() for limit in self.limits]
        numbers = {"losses": [x.hex() for x in self.losses], "norms": [x.hex() for x in self.norms]}
        return {**numbers, "strikes": self.strikes, "seen": self.seen, "first": self.first.hex(), "limits": limits}

    def load(self, state: Mapping[str, Any]) -> None:
        self.losses = deque(map(float.fromhex, state["losses"]), maxlen=self.WINDOW)
        self.norms = deque(map(float.fromhex, state["norms"]), maxlen=self.WINDOW)
        self.strikes, self.seen = [int(age) for age in state["strikes"]], int(state["seen"])
        self.first = float.fromhex(state["first"])
        loss, norm = (math.inf if limit is None else float.fromhex(limit) for limit in state["limits"])
        self.limits = (loss, norm)


def diagnose(model: nn.Module, objective: Any, batch: Batch, before: Callable[[], None]) -> str:
    """Where a bad number came from: the first input or module output that is not finite, and the examples.

    '' where all is finite here: another process has the cause, it lies in the backward pass, or numbers are only too large.
    """
    for name, tensor in batch.fields.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            return f"field '{name}' of the batch is not finite in {_examples(tensor, batch)}"
    faults: list[str] = []

    def hook(name: str) -> Callable:
        def look(module: nn.Module, inputs: Any, output: Any) -> None:
            for tensor in _tensors(output):
                if not faults and tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
                    faults.append(f"first bad output: module '{name}' ({type(module).__name__}), {_examples(tensor, batch)}")

        return look

    handles = [module.register_forward_hook(hook(name)) for name, module in model.named_modules() if name]
    handles.append(model.register_forward_hook(hook("the whole model")))
    kept = [(buffer, buffer.clone()) for buffer in model.buffers()]
    try:
        before()
        with torch.no_grad():
            terms = objective(model, batch)
    finally:
        for handle in handles:
            handle.remove()
        for buffer, value in kept:
            buffer.copy_(value)
    if faults:
        return faults[0]
    for name, term in terms.items():
        if not bool(torch.isfinite(term.sum)):
            return f"every module's output is finite, but the sum '{name}' of the objective is not"
    return ""


def bad_weights(model: nn.Module) -> str:
    """The first parameter that is not finite, or ''."""
    bad = (name for name, parameter in model.named_parameters() if not bool(torch.isfinite(parameter).all()))
    return next((f"parameter '{name}' is not finite" for name in bad), "")


def bad_gradient(model: nn.Module) -> str:
    """The first gradient that is not finite, or ''.  It is that of all processes together."""
    for name, parameter in model.named_parameters():
        if parameter.grad is not None and not bool(torch.isfinite(parameter.grad).all()):
            return f"the forward pass is finite; first bad gradient: parameter '{name}'"
    return ""


def _examples(tensor: Tensor, batch: Batch) -> str:
    if tensor.dim() == 0 or len(tensor) != len(batch):
        return "all examples"
    rows = (~torch.isfinite(tensor)).reshape(len(tensor), -1).any(1).nonzero().flatten()
    ids = batch.ids[rows].tolist() if "ids" in batch else rows.tolist()
    return f"examples {ids[:5]}" + (f" and {len(ids) - 5} more" if len(ids) > 5 else "")


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [t for item in value for t in _tensors(item)] if isinstance(value, (list, tuple)) else []


@contextmanager
def named_failure(model: nn.Module):
    """Turn a crash inside the model into one line that names the module and the shapes it was given."""
    entered: list[tuple[str, nn.Module, Any]] = []

    def hook(name: str) -> Callable:
        def look(module: nn.Module, inputs: Any) -> None:
            entered.append((name, module, inputs))

        return look

    def left(module: nn.Module, inputs: Any, output: Any) -> None:
        if entered:
            entered.pop()

    handles = []
    for name, module in model.named_modules():
        handles += [module.register_forward_pre_hook(hook(name)), module.register_forward_hook(left)]
    try:
        yield
    except SondeError:
        raise
    except (RuntimeError, ValueError, TypeError, IndexError, AttributeError, KeyError) as error:
        reason = str(error).strip().split("\n")[0][:300]
        if not entered:
            raise BadInput(
                f"the objective failed on its first batch: {type(error).__name__}: {reason}", fix="check model output and target shapes"
            ) from error
        name, module, inputs = entered[-1]
        shapes = ", ".join(str(tuple(t.shape)) for t in _tensors(inputs))
        place = f"layer '{name}' {module}".split("\n")[0] if name else f"model {type(module).__name__}"
        raise BadInput(f"{place} cannot take input of shape {shapes}: {reason}", fix="match the model's sizes to the data") from error
    finally:
        for handle in handles:
            handle.remove()
