"""Terms: named sums, each with its count.  They are divided once, at the end.

Sums and counts add exactly over micro-batches, padded batches and uneven shards; means do not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

_ENGINE = torch.autograd.Variable._execution_engine


@lru_cache(maxsize=1024)
def _scalar(value: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A number as a tensor; factors repeat from step to step, so they are made once."""
    return torch.tensor(value, dtype=dtype, device=device)


class Term(NamedTuple):
    """One quantity: `weight * sum / count` is its contribution to the loss, with `sum = scale * raw`.

    A fixed scale, such as the 1/2 of a squared error, kept apart from the raw sum costs the graph no node.
    """

    raw: Tensor
    count: float | Tensor  # type: ignore[assignment]
    weight: float = 1.0
    scale: float = 1.0

    @property
    def sum(self) -> Tensor:
        return self.raw if self.scale == 1.0 else self.raw * self.scale


class Terms(Mapping[str, Term]):
    """`Terms(nll=(sum, count), penalty=(sum, count, weight))`; add them with `+`.

    `notes` are tensors with a row for each example, such as its error: a stream that observes the steps gets them.
    """

    __slots__ = ("notes", "terms")

    def __init__(self, **terms: Term | tuple) -> None:
        self.terms = {name: term if isinstance(term, Term) else Term(*term) for name, term in terms.items()}
        self.notes: dict[str, Tensor] = {}

    def note(self, **notes: Tensor) -> Terms:
        """These terms with notes about the examples."""
        self.notes |= {name: tensor.detach() for name, tensor in notes.items()}
        return self

    def __getitem__(self, name: str) -> Term:
        return self.terms[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.terms)

    def __len__(self) -> int:
        return len(self.terms)

    def __add__(self, other: Terms) -> Terms:
        """Sums and counts of the same name add; other names stand side by side.  Notes are of the examples of both, in order."""
        out = dict(self.terms)
        for name, term in other.terms.items():
            mine = out.get(name)
            out[name] = term if mine is None else Term(mine.sum + term.sum, mine.count + term.count, term.weight)
        notes = dict(self.notes)
        for name, rows in other.notes.items():
            notes[name] = torch.cat([notes[name], rows]) if name in notes else rows
        return Terms(**out).note(**notes)

    def counts(self) -> dict[str, float]:
        return {name: float(term.count) for name, term in self.terms.items()}

    def means(self) -> dict[str, float]:
        """Name -> mean, as plain numbers; a term without examples is NaN."""
        return {name: _number(t.sum) / float(t.count) if float(t.count) else float("nan") for name, t in self.terms.items()}

    def loss(self, counts: Mapping[str, float] | None = None) -> Tensor:
        """sum over terms of weight * sum / count, with the counts of the whole batch if given."""
        shares = [term.raw * factor for term, factor in self.factors(counts)]
        return sum(shares[1:], shares[0]) if shares else torch.zeros(())

    def backward(self, counts: Mapping[str, float] | None = None) -> float:
        """Gradient of the loss into every parameter's `.grad`, and the loss as a number."""
        pairs = [(term.raw, factor) for term, factor in self.factors(counts)]
        _run_backward(pairs)
        return sum(value.item() * factor for value, factor in pairs)

    def gradients(self, parameters: Sequence[Tensor]) -> tuple[Tensor | None, ...]:
        """Gradient of the loss with respect to each parameter, whose `.grad` is not touched; None where the loss does not depend on it."""
        return _run_backward([(term.raw, factor) for term, factor in self.factors()], tuple(parameters))

    def factors(self, counts: Mapping[str, float] | None = None) -> list[tuple[Term, float]]:
        """Each term with weight * scale / count."""
        pairs = []
        for name, term in self.terms.items():
            count = float(term.count if counts is None else counts[name])
            pairs.append((term, term.weight * term.scale / max(count, 1e-30)))
        return pairs

    def detach(self) -> Terms:
        return Terms(**{name: Term(t.sum.detach(), t.count, t.weight) for name, t in self.terms.items()})

    def __repr__(self) -> str:
        return "Terms(" + ", ".join(f"{name}={_number(t.sum):.6g}/{float(t.count):g}" for name, t in self.terms.items()) + ")"


def _run_backward(pairs: Sequence[tuple[Tensor, float]], inputs: tuple[Tensor, ...] = ()) -> tuple[Tensor | None, ...]:
    """The gradient of sum factor * value: by the inputs, or into `.grad` where none are named.

    The factor of each value enters as the gradient of its sum, so the graph holds no node for it.  This is
    torch.autograd.backward without its checks of arguments, which cost a small model a tenth of its step.
    """
    live = [(value, factor) for value, factor in pairs if value.requires_grad]
    slopes = tuple(_scalar(factor, value.dtype, value.device) for value, factor in live)
    if not live:
        return (None,) * len(inputs)
    values = tuple(value for value, _ in live)
    return _ENGINE.run_backward(values, slopes, False, False, inputs, allow_unreachable=True, accumulate_grad=not inputs)


def _number(value: float | Tensor) -> float:
    return float(value.detach()) if isinstance(value, Tensor) else float(value)
