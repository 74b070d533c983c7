"""Entropy, cross-entropy and Kullback-Leibler divergence of tables of probabilities and of torch distributions.

H(p) = -sum p log p      H(p, q) = -sum p log q      KL(p, q) = sum p log(p / q) = H(p, q) - H(p) >= 0, and 0 only if p = q

The expectation is over the first argument, p.  Tables have one probability per outcome on their last axis.  An outcome with
p = 0 contributes 0; with q = 0 and p > 0 the result is infinite.  BadInput is a ValueError with a hint how to fix the input.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

import torch
from torch import Tensor
from torch import distributions as D

from ...core.errors import BadInput
from ...core.options import Range, checked

Base = Literal["nats", "bits"] | Annotated[float, Range(above=1)]
ProbabilityTable = Any
"""numbers >= 0 whose sum over the last axis is 1: a tensor, an array, or nested lists"""


@checked
def entropy(p: ProbabilityTable | D.Distribution, base: Base = "nats") -> Tensor:
    """H(p): the expected surprisal, which is the mean codeword length of the best code for p."""
    if isinstance(p, D.Distribution):
        return _closed_form(lambda: p.entropy(), f"the entropy of {type(p).__name__}") / nats_per_unit(base)
    return cross_entropy(p, p, base)


@checked
def cross_entropy(p: ProbabilityTable | D.Distribution, q: ProbabilityTable | D.Distribution, base: Base = "nats") -> Tensor:
    """H(p, q): the expectation of -log q under p; the mean codeword length if outcomes follow p and the code is the best for q."""
    if isinstance(p, D.Distribution) or isinstance(q, D.Distribution):
        return entropy(p, base) + kl(p, q, base)
    unit, p, q = nats_per_unit(base), *_check_pair(p, q)
    # Where p is 0 the term is 0 for any q.  log(0) is replaced before it is computed: multiplied by 0 its gradient would be NaN.
    return -torch.where(p > 0, p * torch.where(p > 0, q, 1.0).log(), 0.0).sum(-1) / unit


@checked
def kl(
    p: ProbabilityTable | D.Distribution,
    q: ProbabilityTable | D.Distribution,
    base: Base = "nats",
    direction: Literal["forward", "reverse"] = "forward",
) -> Tensor:
    """KL(p, q), the expectation of log(p / q) under p; 'reverse' is KL(q, p)."""
    if direction == "reverse":
        p, q = q, p
    if isinstance(p, D.Distribution) != isinstance(q, D.Distribution):
        raise BadInput(
            "one argument is a table of probabilities, the other a torch distribution",
            where="kl",
            fix="give two tables or two distributions",
        )
    if isinstance(p, D.Distribution):
        return _closed_form(lambda: D.kl_divergence(p, q), f"KL({type(p).__name__}, {type(q).__name__})") / nats_per_unit(base)
    p, q = _check_pair(p, q)
    # Both sum to 1, so -p + q may be added: no term of p log(p / q) - p + q is negative.  Where p and q are close, rounding could
    # change that; with q = p (1 + t) the term is p (t - log(1 + t)), which is never negative in floating point either.
    positive, close = p > 0, (q - p).abs() < p / 2
    safe_p = torch.where(positive, p, 1.0)  # log(0) would make the gradient NaN
    t = torch.where(close, q - p, 0.0) / safe_p
    direct = torch.where(positive, p * (safe_p.log() - torch.where(positive, q, 1.0).log()), 0.0) - p + q
    return torch.where(close, p * (t - t.log1p()), direct).sum(-1) / nats_per_unit(base)


@checked
def surprise(p: ProbabilityTable, base: Base = "nats") -> Tensor:
    """The surprisal -log p of every outcome: the length of its codeword in the best code."""
    return -probabilities(p, positive=True).log() / nats_per_unit(base)


def empirical(outcomes: Any, size: int | None = None) -> Tensor:
    """The relative frequency of each outcome 0, 1, ..., size - 1 among N observed integers; by default size is the largest + 1."""
    observed = torch.as_tensor(outcomes)
    integer = not (observed.is_floating_point() or observed.is_complex() or observed.dtype == torch.bool)
    if observed.ndim != 1 or not len(observed) or not integer or int(observed.min()) < 0:
        raise BadInput("outcomes must be a row of integers >= 0", where="empirical", fix="number the outcomes from 0")
    size = int(observed.max()) + 1 if size is None else size
    if int(observed.max()) >= size:
        raise BadInput(f"outcome {int(observed.max())} is not one of {size}", where="empirical", fix="give a larger size")
    return torch.bincount(observed, minlength=size).double() / len(observed)


def probabilities(table: ProbabilityTable, positive: bool = False) -> Tensor:
    """Check a table of probabilities and return it as a tensor.

    Args:
        table: finite numbers >= 0 that sum to 1 over the last axis, up to the rounding error of the dtype
        positive: refuse 0 as well
    """
    p = _floats(table)
    if p.ndim == 0 or not p.shape[-1]:
        raise BadInput("probabilities need an axis of outcomes", fix="give at least one number per table")
    bound = "> 0" if positive else ">= 0"
    for rule, bad in (("finite", ~p.isfinite()), (bound, (p <= 0) if positive else (p < 0))):
        if bool(bad.any()):
            index = tuple(bad.nonzero()[0].tolist())
            raise BadInput(f"probabilities must be {rule}, not {float(p[index]):g} at {_index_text(index)}", fix="fix the table")
    total = p.detach().double().sum(-1)
    tolerance = 4 * p.shape[-1] * torch.finfo(p.dtype).eps
    bad = (total - 1).abs() > tolerance
    if bool(bad.any()):
        index = tuple(bad.nonzero()[0].tolist())
        where = f" at {_index_text(index)}" if index else ""
        raise BadInput(f"probabilities must sum to 1, not {float(total[index]):.6g}{where}", fix="divide them by their sum")
    return p


@checked
def nats_per_unit(base: Base) -> float:
    """Nats in one unit of information: 1 for 'nats', log 2 for 'bits', log b for logarithms to base b."""
    return {"nats": 1.0, "bits": math.log(2)}[base] if isinstance(base, str) else math.log(base)


def _floats(table: Any) -> Tensor:
    try:
        p = table if isinstance(table, Tensor) else torch.as_tensor(table, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError) as error:
        raise BadInput(f"these are not probabilities: {error}", fix="give numbers in a regular table") from error
    return p if p.is_floating_point() else p.double()


def _check_pair(p: ProbabilityTable, q: ProbabilityTable) -> tuple[Tensor, Tensor]:
    """Both tables, checked and in one dtype."""
    p, q = probabilities(p), probabilities(q)
    if p.shape[-1] != q.shape[-1]:
        raise BadInput(f"{p.shape[-1]} outcomes against {q.shape[-1]}", fix="give both tables the same outcomes")
    dtype = torch.promote_types(p.dtype, q.dtype)
    return p.to(dtype), q.to(dtype)


def _closed_form(compute: Any, what: str) -> Tensor:
    """compute(), or an error if torch.distributions has no formula for it."""
    try:
        return compute()
    except NotImplementedError as error:
        raise BadInput(f"torch has no formula for {what}", fix="estimate it from samples") from error


def _index_text(index: tuple[int, ...]) -> str:
    return ", ".join(map(str, index))
