"""Any distribution as a likelihood: choose Pr(y; theta), let the model give theta, minimize -sum log Pr.

The model gives raw numbers, in the order of the parameters: all of the first, then all of the second.  A link takes
each into the domain its distribution allows, read off `arg_constraints`:

    any real number     identity          between two bounds       sigmoid, stretched
    above a bound       softplus          probabilities, sum 1     softmax
    Cholesky factor     lower triangle with softplus on the diagonal, or with 'diagonal' the diagonal alone
"""

from __future__ import annotations

import inspect
import math
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch import distributions as D
from torch.distributions import constraints

from ..core.batch import Batch
from ..core.errors import BadInput, nearest
from ._likelihood import Likelihood, align, errors, expand_like, misfit

Link = Callable[[Tensor], Tensor]
Constraint = constraints.Constraint

# Equivalent parameters; the model outputs the first that a distribution has.
_EQUIVALENT = (("logits", "probs"), ("scale_tril", "covariance_matrix", "precision_matrix"))


def _positive(raw: Tensor) -> Tensor:
    return F.softplus(raw) + torch.finfo(raw.dtype).tiny  # never 0, however far below the raw number is


def _triangle(raw: Tensor) -> Tensor:
    """n(n+1)/2 numbers as a lower triangle, row by row, with a positive diagonal."""
    row = torch.arange(math.isqrt(2 * raw.shape[-1]), device=raw.device).unsqueeze(1)
    indices = row * (row + 1) // 2 + row.mT  # entries above the diagonal are arbitrary, and are cut off
    full = raw[..., indices.clamp(max=raw.shape[-1] - 1)]
    return full.tril(-1) + torch.diag_embed(_positive(full.diagonal(dim1=-2, dim2=-1)))


LINKS: dict[str, Link] = {
    "identity": lambda raw: raw,
    "softplus": _positive,
    "exp": torch.exp,
    "sigmoid": torch.sigmoid,
    "softmax": partial(torch.softmax, dim=-1),
    "cholesky": _triangle,
    "diagonal": lambda raw: torch.diag_embed(_positive(raw)),
}


@final
class Distribution(Likelihood):
    """y lies in the support of the distribution, and costs infinity outside it; links as above.  Drops nothing.

    A target of several values, such as that of a multivariate normal, shares its cost evenly among them, so that they
    count like the values of any other likelihood; it can be masked as a whole only.

    Args:
        family: a class of torch.distributions, a user's own, or a function from parameters to a distribution
        links: parameter -> a name in LINKS or a function of the raw numbers, where the one that follows from its domain will not do
        fixed: parameter -> a number that the model does not give
        domains: parameter -> its constraint, for a family without `arg_constraints`
        size: how many numbers a vector of parameters has (classes, parts of a mixture), so that labels can be checked before training
    """

    def __init__(
        self,
        family: Callable[..., D.Distribution],
        *,
        links: Mapping[str, str | Link] | None = None,
        fixed: Mapping[str, Any] | None = None,
        domains: Mapping[str, Constraint] | None = None,
        size: int | None = None,
    ) -> None:
        family_name = getattr(family, "__name__", type(family).__name__)
        self.name = family_name.strip("<>")
        self.fixed, self.size = dict(fixed or {}), size
        known = domains or getattr(family, "arg_constraints", None)
        if not isinstance(known, Mapping) or not known:
            raise BadInput(
                f"the parameters of '{self.name}' are unknown: it has no arg_constraints", fix="give domains={'loc': constraints.real, ...}"
            )
        links = dict(links or {})
        for name in {**self.fixed, **links}:
            if name not in known:
                raise BadInput(f"'{self.name}' has no parameter '{name}'", fix=nearest(name, known))
        self.domains = {name: known[name] for name in _choose_parameters(known, {*self.fixed, *links}) if name not in self.fixed}
        if not self.domains:
            raise BadInput(f"every parameter of '{self.name}' is fixed", fix="leave one to the model")
        self.links = {name: _link(self.name, name, domain, links.get(name)) for name, domain in self.domains.items()}
        self.diagonal = {name for name, link_choice in links.items() if link_choice == "diagonal"}
        self.vector = any(domain.event_dim for domain in self.domains.values())
        """whether the last axis of the output belongs to one target, because some parameter is a vector or a matrix"""
        # Bad targets are found by `check`; a model that gives NaN must show up in the loss, where the engine looks for it.
        no_checks = {"validate_args": False} if _takes(family, "validate_args") else {}
        self.make = partial(family, **no_checks)
        try:
            self.event_axes = len(self.law(torch.zeros(sum(self._widths(2)))).event_shape)
        except TypeError as error:
            names = ", ".join({**self.fixed, **self.domains})
            fix = f"give a function of {names}, and their domains, instead of the class"
            raise BadInput(f"'{self.name}' cannot be made from {names} alone: {' '.join(str(error).split())}", fix=fix) from error

    def law(self, output: Tensor, y: Tensor | None = None) -> D.Distribution:
        """The distribution that a raw output stands for, in the shape of the targets where these are given."""
        width = output.shape[-1]
        n = bisect_left(range(width + 1), width, key=lambda n: sum(self._widths(n)))
        if n == 0 or sum(self._widths(n)) != width:
            raise self._misfit(output, output if y is None else y)
        raw = dict(zip(self.domains, output.split(self._widths(n), -1), strict=True))
        if self.vector:
            raw = {name: part.squeeze(-1) if self.domains[name].event_dim == 0 else part for name, part in raw.items()}
        elif y is not None:
            raw = {name: align(part, y, self.name)[0] for name, part in raw.items()}
        constants = {name: torch.as_tensor(value, dtype=output.dtype, device=output.device) for name, value in self.fixed.items()}
        return self.make(**constants, **{name: self.links[name](part) for name, part in raw.items()})

    def each(self, output: Tensor, y: Tensor, reduction: str = "none") -> Tensor:
        if self.vector and y.shape == (*output.shape[:-1], 1):
            output = output.unsqueeze(-2)
        law, y = self.law(output, y), y.to(output.dtype)
        if y.shape != law.batch_shape + law.event_shape:
            raise self._misfit(output, y)
        # A target without density may be padding: another point replaces it, so that the gradient of log 0 does not occur.
        usable = _usable(law, y)
        cost = -law.log_prob(torch.where(_expand(usable, y), y, _inner(_support(law), y)))
        cost = torch.where(usable | cost.isnan(), cost, torch.inf)
        if reduction == "sum":
            return cost.sum()
        return _expand(cost / law.event_shape.numel(), y)

    def constant(self, y: Tensor) -> Tensor:
        return expand_like(y, 0.0)

    def predict(self, output: Tensor) -> Tensor:
        """The mean; where there is none, the mode."""
        return self._center(self.law(output))[0]

    def metrics(self, output: Tensor, y: Tensor) -> dict[str, Tensor]:
        if self.vector and y.shape == (*output.shape[:-1], 1):
            output = output.unsqueeze(-2)
        law = self.law(output, y)
        center, label = self._center(law)
        center, y = align(center, y, self.name)
        return {"accuracy": (center == y).to(output.dtype)} if label else errors(center, y)

    def target_rule(self, y: Tensor) -> tuple[str, Tensor, str]:
        values = y if y.is_floating_point() else y.double()
        law, other = (self._law_of_one(y, raw) for raw in (0.0, 1.0))
        support, inside = _support(law), _usable(law, values)
        words = _words(support)
        if self.size is None and self.vector and isinstance(support, constraints.integer_interval):
            words, inside = "whole numbers >= 0", constraints.nonnegative_integer.check(values)  # the number of classes is not known yet
        elif words != _words(_support(other)):
            words, inside = "finite", torch.isfinite(values)  # the support depends on the output of the model
        elif bool((_expand(support.check(values) & ~inside, y) & torch.isfinite(values)).any()):
            words += ", with a finite density"
        bad = ~(_expand(inside, y) & torch.isfinite(values))
        return f"targets must be {words}", bad, "clean the data, or choose a distribution that allows them"

    def _law_of_one(self, y: Tensor, raw: float) -> D.Distribution:
        """The distribution of one target where all raw numbers are the same: what is known before there is a model."""
        n = self.size or (y.shape[-1] if self.vector and y.ndim > 1 else 1)
        return self.law(torch.full((sum(self._widths(n)),), raw, dtype=torch.float64, device=y.device))

    def _widths(self, n: int) -> list[int]:
        """How many raw numbers each parameter takes where a vector has n: values of a target, classes, parts."""
        triangle = n * (n + 1) // 2
        by_axes = {0: 1 if self.vector else n, 1: n, 2: triangle}
        return [n if name in self.diagonal else by_axes[domain.event_dim] for name, domain in self.domains.items()]

    def _misfit(self, output: Tensor, y: Tensor) -> BadInput:
        return misfit(output, y, self.name, f"for each target first {', then '.join(self.domains)}")

    def _center(self, law: D.Distribution) -> tuple[Tensor, bool]:
        """Mean, or mode where there is no mean; and whether it is a class label, for which a distance has no meaning."""
        centers = []
        for name in ("mean", "mode"):
            try:
                centers.append(getattr(law, name))
            except NotImplementedError:
                continue
            if not bool(centers[-1].isnan().any()):
                break
        if not centers:
            raise BadInput(f"'{self.name}' has neither mean nor mode", fix="define one of them as a property")
        best = centers[0] if len(centers) == 1 else torch.where(centers[0].isnan(), centers[1], centers[0])
        return best, bool(_support(law).is_discrete) and bool(centers[0].isnan().all())


def mixture(component: Callable[..., D.Distribution], **options: Any) -> Distribution:
    """Likelihood of a mixture of one family over single numbers; the model gives the logits of the parts, then their parameters."""
    known: Mapping[str, Constraint] = getattr(component, "arg_constraints", {})
    chosen = {name: constraints.independent(known[name], 1) for name in _choose_parameters(known, set(options.get("links") or ()))}

    def mix(parts: Tensor, **parameters: Tensor) -> D.Distribution:
        inner = component(**parameters, validate_args=False)
        return D.MixtureSameFamily(D.Categorical(logits=parts, validate_args=False), inner, validate_args=False)

    mix.__name__ = f"mixture of {getattr(component, '__name__', 'parts')}"
    return Distribution(mix, domains={"parts": constraints.real_vector, **chosen}, **options)


def _choose_parameters(known: Mapping[str, Constraint], named: set[str]) -> list[str]:
    """Names of a full set of parameters: of equivalent ones, the one a user named, else the first."""
    left_out = set()
    for same in _EQUIVALENT:
        usable = sorted((name for name in same if name in known), key=lambda name: name not in named)
        left_out |= set(usable[1:])
    return [name for name in known if name not in left_out]


def _link(family: str, name: str, domain: Constraint, link_choice: str | Link | None) -> Link:
    """The user's link, or the one that follows from the domain."""
    if callable(link_choice):
        return link_choice
    if link_choice is not None:
        if link_choice not in LINKS:
            raise BadInput(f"no link '{link_choice}'", where=f"{family}, parameter '{name}'", fix=nearest(link_choice, LINKS))
        return LINKS[link_choice]
    base = _base_constraint(domain)
    for known, link in ((constraints.real, "identity"), (constraints.simplex, "softmax"), (constraints.lower_cholesky, "cholesky")):
        if base is known and (domain.event_dim < 2 or link == "cholesky"):
            return LINKS[link]
    low, high = getattr(base, "lower_bound", None), getattr(base, "upper_bound", None)
    if low is not None and not base.is_discrete and domain.event_dim < 2:
        if high is None:
            return LINKS["softplus"] if low == 0 else lambda raw: low + _positive(raw)
        return LINKS["sigmoid"] if (low, high) == (0, 1) else lambda raw: low + (high - low) * torch.sigmoid(raw)
    raise BadInput(
        f"no link leads to {domain}", where=f"{family}, parameter '{name}'", fix=f"give links={{'{name}': ...}} or fixed={{'{name}': ...}}"
    )


def _takes(function: Callable[..., Any], name: str) -> bool:
    try:
        return name in inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False


def _expand(values: Tensor, y: Tensor) -> Tensor:
    """One entry per target, repeated for each value of the target."""
    return values.reshape(values.shape + (1,) * (y.ndim - values.ndim)).expand_as(y)


def _usable(law: D.Distribution, y: Tensor) -> Tensor:
    """Which targets have a finite density: those in the support, but not its very edge where the density is 0 or infinite."""
    support = _support(law)
    inside = support.check(y)
    if support.is_discrete:
        return inside
    with torch.no_grad():
        return inside & law.log_prob(torch.where(_expand(inside, y), y, _inner(support, y))).isfinite()


def _support(law: D.Distribution) -> Constraint:
    if law.support is None:
        raise BadInput(f"'{type(law).__name__}' does not define its support", fix="give it a `support`")
    return law.support


def _inner(support: Constraint, y: Tensor) -> Tensor:
    """Some point inside a support, for every target."""
    base = _base_constraint(support)
    if base is constraints.one_hot:
        return F.one_hot(torch.zeros(y.shape[:-1], dtype=torch.int64, device=y.device), y.shape[-1]).to(y.dtype)
    if base.is_discrete:
        return torch.zeros_like(y) + getattr(base, "lower_bound", 0)
    return D.transform_to(base)(torch.zeros_like(y))


def _base_constraint(constraint: Constraint) -> Constraint:
    """A constraint on one number, freed of the axes around it."""
    while hasattr(constraint, "base_constraint"):
        constraint = constraint.base_constraint
    return constraint


_WORDS: Sequence[tuple[Any, str]] = (
    (constraints.real, "real numbers"),
    (constraints.boolean, "0 or 1"),
    (constraints.simplex, "probabilities that sum to 1"),
    (constraints.one_hot, "all 0 but one 1"),
)


def _words(support: Constraint) -> str:
    """A support in words a user can check a number by."""
    base = _base_constraint(support)
    for known, words in _WORDS:
        if base is known:
            return words
    low, high = getattr(base, "lower_bound", None), getattr(base, "upper_bound", None)
    kind = "whole numbers" if base.is_discrete else "numbers"
    if low is not None and high is not None:
        return f"{kind} from {float(low):g} to {float(high):g}"
    if low is not None:
        open_end = isinstance(base, constraints.greater_than)
        return f"{kind} {'>' if open_end else '>='} {float(low):g}"
    return f"in {base}"


def tiny() -> tuple[Distribution, nn.Module, Batch]:
    """A small working instance with input."""
    x = torch.linspace(-1, 1, 21).reshape(7, 3)
    return Distribution(D.Gamma), nn.Linear(3, 2), Batch(x=x, y=torch.exp(x[:, 0]))
