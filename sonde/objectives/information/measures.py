"""Entropy, cross-entropy and Kullback-Leibler divergence of tables of probabilities and of torch distributions.

H(p) = -sum p log p      H(p, q) = -sum p log q      KL(p, q) = sum p log(p / q) = H(p, q) - H(p) >= 0, and 0 only if p = q

The first argument is the one the mean is taken over.  Tables hold one probability per outcome on their last axis; what
has probability 0 adds nothing, and a q of 0 where p is not costs infinity.
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
    """H(p): the mean surprise of p, and the shortest mean code for it."""
    if isinstance(p, D.Distribution):
        return _or_refuse(lambda: p.entropy(), f"the entropy of {type(p).__name__}") / nats_per_unit(base)
    return cross_entropy(p, p, base)


@checked
def cross_entropy(p: ProbabilityTable | D.Distribution, q: ProbabilityTable | D.Distribution, base: Base = "nats") -> Tensor:
    """H(p, q): the mean of -log q over outcomes of p; the mean length of q's code under p."""
    if isinstance(p, D.Distribution) or isinstance(q, D.Distribution):
        return entropy(p, base) + kl(p, q, base)
    unit, p, q = nats_per_unit(base), *_pair(p, q)
    # Where p is 0 its term is 0 whatever q is; a logarithm of 0 must not even enter the gradient.
    return -torch.where(p > 0, p * torch.where(p > 0, q, 1.0).log(), 0.0).sum(-1) / unit


@checked
def kl(
    p: ProbabilityTable | D.Distribution,
    q: ProbabilityTable | D.Distribution,
    base: Base = "nats",
    direction: Literal["forward", "reverse"] = "forward",
) -> Tensor:
    """KL(p, q), the mean over p of log p/q; 'reverse' is KL(q, p), the mean over q of log q/p."""
    if direction == "reverse":
        p, q = q, p
    if isinstance(p, D.Distribution) != isinstance(q, D.Distribution):
        raise BadInput("one argument is a table, the other a distribution", where="kl", fix="give two of a kind")
    if isinstance(p, D.Distribution):
        return _or_refuse(lambda: D.kl_divergence(p, q), f"KL({type(p).__name__}, {type(q).__name__})") / nats_per_unit(base)
    p, q = _pair(p, q)
    # sum p log(p / q) - p + q: no term is below 0.  With q = p (1 + t) it is p (t - log(1 + t)), which stays so where p and q are close.
    there, close = p > 0, (q - p).abs() < p / 2
    below = torch.where(there, p, 1.0)  # where p is 0 no logarithm of it may enter the gradient
    t = torch.where(close, q - p, 0.0) / below
    apart = torch.where(there, p * (below.log() - torch.where(there, q, 1.0).log()), 0.0) - p + q
    return torch.where(close, p * (t - t.log1p()), apart).sum(-1) / nats_per_unit(base)


@checked
def surprise(p: ProbabilityTable, base: Base = "nats") -> Tensor:
    """-log p of every outcome: the length of its word in an ideal code."""
    return -probabilities(p, positive=True).log() / nats_per_unit(base)


def empirical(outcomes: Any, size: int | None = None) -> Tensor:
    """The relative frequency of each outcome 0, 1, ..., size - 1 among N observations."""
    observed = torch.as_tensor(outcomes)
    whole = not (observed.is_floating_point() or observed.is_complex() or observed.dtype == torch.bool)
    if observed.ndim != 1 or not len(observed) or not whole or int(observed.min()) < 0:
        raise BadInput("outcomes must be a row of whole numbers >= 0", where="empirical", fix="number the outcomes from 0")
    size = int(observed.max()) + 1 if size is None else size
    if int(observed.max()) >= size:
        raise BadInput(f"outcome {int(observed.max())} is not one of {size}", where="empirical", fix="give a larger size")
    return torch.bincount(observed, minlength=size).double() / len(observed)


def probabilities(table: ProbabilityTable, positive: bool = False, within: float | None = None) -> Tensor:
    """A table of probabilities as a tensor, checked: finite, not negative (or `positive`), with a sum of 1 along the last axis.

    Args:
        within: how far a sum may be from 1; by default the rounding error of the data type
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
    allowed = 4 * p.shape[-1] * torch.finfo(p.dtype).eps if within is None else within
    bad = (total - 1).abs() > allowed
    if bool(bad.any()):
        index = tuple(bad.nonzero()[0].tolist())
        where = f" at {_index_text(index)}" if index else ""
        raise BadInput(f"probabilities must sum to 1, not {float(total[index]):.6g}{where}", fix="divide them by their sum")
    return p


@checked
def nats_per_unit(base: Base) -> float:
    """Nats in one unit of the base: 1 for 'nats', log 2 for 'bits' or 2, log b for any other number b."""
    return {"nats": 1.0, "bits": math.log(2)}[base] if isinstance(base, str) else math.log(base)


def _floats(table: Any) -> Tensor:
    try:
        p = table if isinstance(table, Tensor) else torch.as_tensor(table, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError) as error:
        raise BadInput(f"these are not probabilities: {error}", fix="give numbers in a regular table") from error
    return p if p.is_floating_point() else p.double()


def _pair(p: ProbabilityTable, q: ProbabilityTable) -> tuple[Tensor, Tensor]:
    p, q = probabilities(p), probabilities(q)
    if p.shape[-1] != q.shape[-1]:
        raise BadInput(f"{p.shape[-1]} outcomes against {q.shape[-1]}", fix="give both tables the same outcomes")
    kind = torch.promote_types(p.dtype, q.dtype)
    return p.to(kind), q.to(kind)


def _or_refuse(compute: Any, what: str) -> Tensor:
    try:
        return compute()
    except NotImplementedError as error:
        raise BadInput(f"torch has no formula for {what}", fix="estimate it from samples") from error


def _index_text(index: tuple[int, ...]) -> str:
    return ", ".join(map(str, index))
