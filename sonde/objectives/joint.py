"""Joint loss: a sum of objectives, each over an output of its own of one model, reported under their own names.

    loss = sum over parts of weight * mean cost of its output

    L_cls + lambda L_LM     {'label': Part(), 'tokens': Part('next', 'mask', weight=0.5)}         Radford and others 2018
    BERT                    {'tokens': Part('y', 'mask'), 'pair': Part('follows')}                Devlin and others 2019

A mask with one flag per example selects the examples that have a target, so a batch may mix labeled and unlabeled ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

import torch
from torch import Tensor, nn

from ..core.batch import Batch, call_model
from ..core.errors import BadInput, nearest
from ..core.terms import Term, Terms
from ._part import Part

__all__ = ["Joint", "Part", "tiny"]


@final
class Joint:
    """Terms '<output>_<term>' of every part; a weight of 0 reports a term and learns nothing from it.

    Args:
        parts: the objective of each output of the model, by name; predictions are those of the first
    """

    def __init__(self, parts: Mapping[str, Part]) -> None:
        if not parts:
            raise BadInput("a joint loss has no parts", where="joint", fix="give one for each output: {'label': Part()}")
        self.parts = dict(parts)

    def __call__(self, model: nn.Module, batch: Batch) -> Terms:
        outputs = call_model(model, batch)
        all_terms: dict[str, Term] = {}
        for name, part in self.parts.items():
            output = self._output(outputs, name)
            terms = part.objective.terms(output if part.weight else output.detach(), self._part_batch(name, batch))
            all_terms |= {f"{name}_{key}": Term(term.raw, term.count, term.weight * part.weight, term.scale) for key, term in terms.items()}
        return Terms(**all_terms)

    def counts(self, batch: Batch) -> dict[str, float]:
        return {
            f"{name}_{key}": n
            for name, part in self.parts.items()
            for key, n in part.objective.counts(self._part_batch(name, batch)).items()
        }

    def measures(self, output: Mapping[str, Tensor], batch: Batch) -> Terms:
        all_terms: dict[str, Term] = {}
        for name, part in self.parts.items():
            terms = part.objective.measures(self._output(output, name), self._part_batch(name, batch))
            all_terms |= {f"{name}_{key}": term for key, term in terms.items()}
        return Terms(**all_terms)

    def check(self, batch: Batch) -> None:
        for name, part in self.parts.items():
            part.objective.check(self._part_batch(name, batch))

    def predict(self, output: Mapping[str, Tensor]) -> Tensor:
        name, part = next(iter(self.parts.items()))
        return part.objective.predict(self._output(output, name))

    def _output(self, outputs: Any, name: str) -> Tensor:
        if not isinstance(outputs, Mapping):
            raise BadInput("a joint loss needs a model whose outputs have names", where="joint", fix="return a dict of tensors")
        if name not in outputs:
            raise BadInput(f"the model has no output '{name}'", where="joint", fix=nearest(name, outputs))
        return outputs[name]

    def _part_batch(self, name: str, batch: Batch) -> Batch:
        """The batch as the objective of one part sees it."""
        part = self.parts[name]
        for one in (part.y, part.mask):
            if one is not None and one not in batch:
                raise BadInput(f"part '{name}' needs a field '{one}'", where="joint", fix=nearest(one, batch))
        fields = {"y": batch.fields[part.y], **({} if part.mask is None else {"mask": batch.fields[part.mask]})}
        return Batch(**fields, **{one: batch.fields[one] for one in ("weight", "ids") if one in batch})


def tiny() -> tuple[Joint, nn.Module, Batch]:
    """A small working instance with input."""

    class Two(nn.Module):
        """A class for each example, and one for each of its three numbers."""

        def __init__(self) -> None:
            super().__init__()
            self.label, self.tokens = nn.Linear(3, 2), nn.Linear(1, 4)

        def forward(self, x: Tensor) -> dict[str, Tensor]:
            return {"label": self.label(x), "tokens": self.tokens(x.unsqueeze(-1))}

    x = torch.linspace(-1, 1, 21).reshape(7, 3)
    batch = Batch(x=x, y=torch.arange(7) % 2, next=torch.arange(21).reshape(7, 3) % 4, mask=x < 0.8)
    return Joint({"label": Part(), "tokens": Part("next", "mask", weight=0.5)}), Two(), batch
