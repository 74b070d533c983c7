"""Mistakes about parallel training, made on purpose, that turn chapter 10 red."""

from __future__ import annotations

import torch

from sonde.atlas import parallel_training
from sonde.core.terms import Terms
from sonde.engine import job
from sonde.engine.strategies.ordered import Ordered
from tests.atlas.mistakes import Mistakes

mistakes = Mistakes()

mistakes.add("PAR-02", "a bad line", red="outputs of step 0").replace(
    parallel_training.distributed, "send", lambda right, tensor, to: right(tensor * (1 + 1e-9), to)
)
mistakes.add("PAR-02", "more bytes than needed", red="bytes forward").replace(
    parallel_training, "_send", lambda right, tensor, to: 2 * right(tensor, to)
)
mistakes.add("PAR-03", "a silent fall back", red="notice").replace(job, "pick_device", lambda name: torch.device("cpu"))
mistakes.add("PAR-03", "a batched product that is a loop", only="matrix products called by the batched one").replace(
    parallel_training.torch, "bmm", lambda a, b: torch.stack([one @ other for one, other in zip(a, b, strict=True)])
)


# A shard that divides by its own count: the sum of means, K times too big.
@mistakes.add("PAR-01", "shards that divide by their own count", red=("shards of 3 and 5", "K=2, against a plain loop")).replace(
    Terms, "factors"
)
@mistakes.add("PAR-03", "parts that divide by their own count", red="4 parts of 8").replace(Terms, "factors")
def count_own(right, self, counts=None):
    return right(self, None)


@mistakes.add("PAR-01", "replicas that drift", red="between replicas, K=2").replace(Ordered, "gradient")
def drift(right, self, *args):
    self.weights.flat.values.add_(1e-7 * self.world.rank)
    return right(self, *args)


@mistakes.each
def test_notices(mistake, monkeypatch):
    mistake.assert_noticed(monkeypatch)
