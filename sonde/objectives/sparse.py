"""Sparse auto-encoder: reconstruction plus lambda * Omega(h), a penalty on the code of each example.

    l1   sum_i |h_i|            l2   sum_i h_i^2
    kl   sum_i rate log(rate / r_i) + (1 - rate) log((1 - rate) / (1 - r_i)),   r_i = mean of h_i over the batch, h in (0, 1)

With a penalty a code may be wider than the example: few of its units are active at a time.
"""

from __future__ import annotations

from typing import Annotated, Any, final

from torch import Tensor, nn

from ..core.batch import Batch
from ..core.errors import BadInput
from ..core.options import Range, checked
from ..core.terms import Term, Terms
from . import _weight
from ._coder import Coder, examples
from ._wrapper import PenaltyFactor, Wrapper
from .reconstruction import Reconstruction


@final
class Sparse(Wrapper):
    """The objective's own terms, those of 'l1', 'l2' and 'kl' whose factors are not 0, and 'active', the fraction of values in use.

    The model has `encode` and `decode`.  The kl depends on the mean code over a batch; so, unlike the other penalties, that of
    a batch split into parts is the mean over the parts.

    Args:
        objective: the objective of the output
        l1: factor of the mean absolute value of the code
        l2: factor of its mean square
        kl: factor of the divergence of the activation rates from `rate`
        rate: fraction of the examples in which a unit of the code should be active, for kl
        above: a value of the code larger than this is active
    """

    @checked
    def __init__(  # noqa: PLR0913  one factor for each penalty of the formula
        self,
        objective: Any = None,
        l1: PenaltyFactor = 0.0,
        l2: PenaltyFactor = 0.0,
        kl: PenaltyFactor = 0.0,
        rate: Annotated[float, Range(above=0, below=1)] = 0.05,
        above: float = 0.0,
    ) -> None:
        self.objective = Reconstruction() if objective is None else objective
        self.factors = {name: value for name, value in (("l1", l1), ("l2", l2), ("kl", kl)) if value}
        self.rate, self.above = rate, above

    def __call__(self, model: Any, batch: Batch) -> Terms:
        code = model.encode(batch.x)
        terms = self.objective.terms(model.decode(code), batch)
        if not self.factors:
            return terms
        code = code.flatten(1)
        count, used = _weight.count(batch), (code.detach() > self.above).to(code.dtype).mean(1)
        penalties = {name: Term(self._omega(name, code, batch), count, price) for name, price in self.factors.items()}
        return terms + Terms(**penalties, active=Term(_weight.total(used, batch), count, 0.0))

    def counts(self, batch: Batch) -> dict[str, float]:
        more = dict.fromkeys((*self.factors, "active"), float(_weight.count(batch))) if self.factors else {}
        return {**self.objective.counts(batch), **more}

    def _omega(self, name: str, code_BK: Tensor, batch: Batch) -> Tensor:
        """A penalty, summed over the examples."""
        if name != "kl":
            return _weight.total((code_BK.abs() if name == "l1" else code_BK.square()).sum(1), batch)
        if bool(((code_BK < 0) | (code_BK > 1)).any()):
            raise BadInput("the kl penalty needs codes between 0 and 1", where="sparse", fix="use a sigmoid code, or l1 instead of kl")
        count = float(_weight.count(batch))
        mean_K = _weight.total(code_BK, batch) / max(count, 1e-30)
        mean_K = mean_K.clamp(1e-6, 1 - 1e-6)  # a unit that is always or never active has a large cost, not an infinite one
        rate = mean_K.new_tensor(self.rate)
        return count * (rate * (rate / mean_K).log() + (1 - rate) * ((1 - rate) / (1 - mean_K)).log()).sum()


def tiny() -> tuple[Sparse, nn.Module, Batch]:
    """A small working instance with input."""
    return Sparse(l1=0.1, l2=0.2, above=0.5), Coder(), examples()
