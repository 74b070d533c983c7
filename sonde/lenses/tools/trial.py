"""A copy of a subject's model for lenses that train it for a few steps."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, final

import torch
from torch import Tensor, nn
from torch.func import functional_call

from ...core.reading import Subject
from ...core.seeds import key
from ...data.order import Order
from .readonly import preserve_state

Start = Literal["fresh", "here"]
EVALUATED = 128
"""number of training examples on which a trial is evaluated"""


@final
class Trial:
    """Loss as a function of weights and step, on the training data of a subject.  The subject's own model is not changed.

    Batch norm uses the statistics of each batch, so that no trial inherits running means from the one before.
    """

    def __init__(self, subject: Subject, start: Start, batch_size: int, seed: int = 0) -> None:
        model = copy.deepcopy(subject.model)
        torch.manual_seed(key(seed, "trial"))
        self.not_reset = _reset(model) if start == "fresh" else []
        """trainable parameters without a `reset_parameters`, which keep their values"""
        for module in model.modules():
            if isinstance(module, nn.modules.batchnorm._NormBase) and module.track_running_stats:
                module.track_running_stats, module.running_mean, module.running_var = False, None, None
        self.whole = _Loss(model, subject.objective)
        named = [(name, parameter) for name, parameter in self.whole.named_parameters() if parameter.requires_grad]
        self.names, self.weights = [name for name, _ in named], [parameter.detach() for _, parameter in named]
        train = getattr(subject.data, "train", None)
        self.source = train if train is not None and len(train) else subject.batch
        self.order = Order(len(self.source), min(batch_size, len(self.source)), seed, sizes=getattr(self.source, "sizes", None))
        self.examples = self.source[torch.arange(min(EVALUATED, len(self.source)))]
        self.seed = seed

    @property
    def count(self) -> int:
        """Number of trainable weights."""
        return sum(weight.numel() for weight in self.weights)

    def loss(self, weights: Sequence[Tensor], step: int) -> Tensor:
        """Mean loss of the training batch of a step; with the same dropout mask at every call."""
        self.whole.train()
        torch.manual_seed(key(self.seed, "forward", step))
        return functional_call(self.whole, dict(zip(self.names, weights, strict=True)), (self.source[self.order.at(step)],))

    def evaluate(self, weights: Sequence[Tensor]) -> float:
        """Mean loss of the same examples every time, in evaluation mode."""
        self.whole.eval()
        with torch.no_grad():
            return float(functional_call(self.whole, dict(zip(self.names, weights, strict=True)), (self.examples,)))

    def note(self) -> str:
        """What the note of a reading must say about the start."""
        return f"{', '.join(self.not_reset[:4])} cannot be reset and kept the trained values." if self.not_reset else ""


class _Loss(nn.Module):
    """Model and objective as one module, so that one functional call gives a loss."""

    def __init__(self, model: nn.Module, objective: Any) -> None:
        super().__init__()
        self.model, self.objective = model, objective

    def forward(self, batch: Any) -> Tensor:
        return self.objective(self.model, batch).loss()


def _reset(model: nn.Module) -> list[str]:
    """Reset every layer that has `reset_parameters`; returns the names of trainable parameters of other layers."""
    reset: set[int] = set()
    for module in model.modules():
        for rule in ("reset_parameters", "_reset_parameters"):
            if hasattr(module, rule):
                getattr(module, rule)()
                reset |= {id(parameter) for parameter in module.parameters(recurse=False)}
                break
    return [name for name, parameter in model.named_parameters() if parameter.requires_grad and id(parameter) not in reset]


@contextmanager
def on_a_copy() -> Iterator[None]:
    """Enable gradients and preserve random states."""
    with preserve_state(), torch.inference_mode(False), torch.enable_grad():
        yield
