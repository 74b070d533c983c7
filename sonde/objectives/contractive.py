"""Contractive penalty: reconstruction plus lambda * sum_i norm(grad_x h_i)^2, so that the code changes little with x.

    one sigmoid layer:  sum_i (h_i (1 - h_i))^2 norm(W_i)^2          any other encoder: by automatic differentiation

Rifai and others, Contractive Auto-Encoders, 2011.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

import torch
from torch import Tensor, nn

from ..core.batch import Batch
from ..core.options import checked
from ..core.terms import Term, Terms
from . import _weight
from ._coder import Coder, examples
from ._wrapper import PenaltyFactor, Wrapper
from .reconstruction import Reconstruction


@final
class Contractive(Wrapper):
    """The objective's own terms and 'contraction', the bare penalty.

    The model has `encode` and `decode`; one with `sigmoid_weights` (K, D) that are not None has one sigmoid layer for encoder,
    and the closed form is used.  Each code may depend on its own example alone.

    Args:
        factor: lambda
        objective: the objective of the output
    """

    @checked
    def __init__(self, factor: PenaltyFactor, objective: Any = None) -> None:
        self.factor = factor
        self.objective = Reconstruction() if objective is None else objective

    def __call__(self, model: Any, batch: Batch) -> Terms:
        code = model.encode(batch.x)
        terms = self.objective.terms(model.decode(code), batch)
        weights = getattr(model, "sigmoid_weights", None)
        each = slope(model.encode, batch.x) if weights is None else sigmoid_slope(code, weights)
        return terms + Terms(contraction=Term(_weight.total(each, batch), _weight.count(batch), self.factor))

    def counts(self, batch: Batch) -> dict[str, float]:
        return {**self.objective.counts(batch), "contraction": float(_weight.count(batch))}


def sigmoid_slope(code_BK: Tensor, weights_KD: Tensor) -> Tensor:
    """sum_i norm(grad_x h_i)^2 of h = sigmoid(W x + b), for each example (B,)."""
    return (code_BK * (1 - code_BK)).square() @ weights_KD.square().sum(1)


def slope(encode: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """sum_i norm(grad_x h_i)^2 of any encoder, for each example (B,); one backward pass for each number of the code."""
    with_graph = torch.is_grad_enabled()
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        code = encode(x).flatten(1)
        total = x.new_zeros(len(x))
        for i in range(code.shape[1]):
            (gradient,) = torch.autograd.grad(code[:, i].sum(), x, create_graph=with_graph, retain_graph=True)
            total = total + gradient.flatten(1).square().sum(1)
    return total if with_graph else total.detach()


def tiny() -> tuple[Contractive, nn.Module, Batch]:
    """A small working instance with input."""
    return Contractive(0.1), Coder(), examples()
