"""The order of examples: which of them make up the batch of step t, as a pure function of (seed, t).

Every epoch is a new permutation.  The only state is a cache of the current permutation: a resumed run gets the batch it would
have had.

Where examples have sizes, such as sentences, those of a batch are of similar size, so that little is padded: the shuffled
examples are sorted by size within pools of many batches, and the batches of all pools come in random order.
"""

from __future__ import annotations

from typing import Annotated, final

import torch
from torch import Tensor

from ..core.errors import BadInput, DataUnusable
from ..core.options import Range, checked
from ..core.seeds import generator

POOL = 64
"""batches sorted together: fewer mean more padding, more mean that the same examples share a batch again"""


@final
class Order:
    """Indices of `n` examples, `batch_size` at a time.

    Args:
        drop_last: leave out the last short batch of an epoch
        sizes: (n,) a batch holds examples of similar size; each still comes once an epoch
    """

    @checked
    def __init__(
        self,
        n: int,
        batch_size: Annotated[int, Range(1)],
        seed: int,
        shuffle: bool = True,
        drop_last: bool = False,
        sizes: Tensor | None = None,
    ) -> None:
        if n < 1:
            raise DataUnusable(
                "there are no examples to train on",
                where="data order",
                fix="read the report of the data: cleaning may have dropped every row",
            )
        if drop_last and n < batch_size:
            raise BadInput(
                f"no whole batch of {batch_size} fits into {n} examples and drop_last leaves out the rest",
                fix=f"set batch_size={n} or less, or drop_last=False",
            )
        if sizes is not None and len(sizes) != n:
            raise BadInput(f"there are {len(sizes)} sizes for {n} examples", fix="give one size for each")
        self.sizes = sizes
        self.n, self.batch_size, self.seed, self.shuffle, self.drop_last = n, batch_size, seed, shuffle, drop_last
        self.steps_per_epoch = n // batch_size if drop_last else -(-n // batch_size)
        self._cached: int | None = None
        self._indices = torch.arange(n)

    def permutation(self, epoch: int) -> Tensor:
        """All indices in the order of an epoch."""
        if epoch != self._cached:
            if self.shuffle:
                self._indices = torch.randperm(self.n, generator=generator(self.seed, "order", epoch))
                if self.sizes is not None:
                    self._indices = self._group_by_size(self._indices, self.sizes, epoch)
            self._cached = epoch
        return self._indices

    def at(self, step: int) -> Tensor:
        """Indices of the batch of a step; any step, in any order, at the same cost within one epoch."""
        epoch, position = divmod(step, self.steps_per_epoch)
        start = position * self.batch_size
        return self.permutation(epoch)[start : start + self.batch_size]

    def _group_by_size(self, indices: Tensor, sizes: Tensor, epoch: int) -> Tensor:
        """The same indices in batches of similar size; the last short batch stays last, with examples of any pool."""
        whole = len(indices) // self.batch_size * self.batch_size
        sorted_pools = [pool[sizes[pool].argsort(stable=True)] for pool in indices[:whole].split(POOL * self.batch_size)]
        batches = torch.cat(sorted_pools).view(-1, self.batch_size)
        rng = generator(self.seed, "order of batches", epoch)
        return torch.cat([batches[torch.randperm(len(batches), generator=rng)].flatten(), indices[whole:]])
