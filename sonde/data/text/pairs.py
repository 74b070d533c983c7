"""Pairs of texts, such as a sentence and its translation, padded to the longest of a batch."""

from __future__ import annotations

from typing import Any, final

import torch
from torch import Tensor

from ...core.batch import Batch
from ...core.errors import BadInput
from ..tensors import fingerprint
from .documents import Ragged, as_indices, check_rows, shift_targets
from .tokenizer import Tokenizer, special


@final
class PairSource:
    """`source` (B, S) with its `lengths`; the decoder's input x (B, T), its targets y, and the mask where they count.

    The rows of `target` begin with the start token and end with the end token; x lacks the last and y the first.  Rows are padded
    to the longest of the batch, so examples of similar `sizes` belong together.
    """

    def __init__(self, source: Ragged, target: Ragged, pad: int, ids: Tensor | None = None) -> None:
        check_rows(source)
        check_rows(target, least=2)
        if len(source) != len(target):
            raise BadInput(f"{len(source)} texts and {len(target)} targets do not pair up", fix="give one target for each text")
        self.source, self.target, self.pad = source, target, pad
        self.ids = torch.arange(len(source)) if ids is None else ids

    def __len__(self) -> int:
        return len(self.source)

    @property
    def sizes(self) -> Tensor:
        """Length of the longer side: it needs the least padding on real translations (8.5 % of positions; the sum of both 17 %)."""
        return torch.maximum(self.source.lengths, self.target.lengths)

    def __getitem__(self, indices: Any) -> Batch:
        which = as_indices(indices, len(self))
        decoder = shift_targets(self.target, which, self.pad)
        decoder["lengths"] = self.source.lengths[which]
        return Batch(source=self.source.pad(which, self.pad), **decoder, ids=self.ids[which])

    def subset(self, indices: Tensor) -> PairSource:
        """The chosen pairs; their ids stay those of the whole set."""
        return PairSource(self.source.select(indices), self.target.select(indices), self.pad, self.ids[indices])

    def sort_by_size(self) -> PairSource:
        """The same pairs from short to long: evaluation takes them in order and needs little padding."""
        return self.subset(self.sizes.argsort(stable=True))

    def fingerprint(self) -> str:
        sides = {"source": self.source, "target": self.target}
        fields = {f"{name}.{part}": getattr(side, part) for name, side in sides.items() for part in ("values", "bounds")}
        return fingerprint({**fields, "ids": self.ids})


def pairs(sources: list[str], targets: list[str], theirs: Tokenizer, ours: Tokenizer, most: int = 1 << 20) -> PairSource:
    """Tokenize pairs of texts; longer ones are truncated to `most` tokens, and both end with the end token."""
    start, end, pad = (special(ours, name) for name in ("start", "end", "pad"))
    source = Ragged(*theirs.encode_all(sources)).truncate(most).wrap(end=special(theirs, "end"))
    target = Ragged(*ours.encode_all(targets)).truncate(most).wrap(start, end)
    if special(theirs, "pad") != pad:
        raise BadInput("the two tokenizers have different numbers for the pad token", fix="train both with the same special tokens")
    return PairSource(source, target, pad)
