"""A small subject for lenses that look at pairs of sequences: an untrained model and words to be written backwards."""

from __future__ import annotations

import torch

from ...core.batch import Batch, Data
from ...core.reading import Subject
from ...models.seq2seq import Seq2Seq
from .readonly import preserve_state
from .tiny import METRICS, _Rows


def reverse() -> Subject:
    """Five words of up to six letters; token 0 begins and ends a target."""
    lengths = torch.tensor([6, 2, 4, 5, 3])
    with preserve_state():
        torch.manual_seed(0)
        model = Seq2Seq(5, width=8, mixer="gla heads=2", attention="additive")
        source = torch.randint(1, 5, (5, 6))
    y = torch.zeros(5, 7, dtype=torch.long)
    for i, n in enumerate(lengths.tolist()):
        source[i, n:] = 0
        y[i, :n] = source[i, :n].flip(0)
    x = torch.cat([torch.zeros(5, 1, dtype=torch.long), y[:, :-1]], 1)
    batch = Batch(source=source, lengths=lengths, x=x, y=y, mask=torch.arange(7) <= lengths.unsqueeze(1), ids=torch.arange(5))
    letters = ("end", "a", "b", "c", "d")
    data = Data(train=_Rows(batch), name="tiny", task="other", classes=letters, features=letters)
    return Subject(model, batch, None, data, METRICS, "tiny")
