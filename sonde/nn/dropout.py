"""Dropout: units switched off at random while training, so that no unit can rely on another (Srivastava et al. 2014).

h = x * m / (1 - p),  m_i = 0 with probability p, else 1
"""

from __future__ import annotations

from typing import Literal, final

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.modules.dropout import _DropoutNd

from ..core.errors import BadInput


@final
class Dropout(_DropoutNd):
    """Drops with chance `p`, or keeps with chance `keep_prob`; `scale` says where the expectation is put right.

    Args:
        scale: "train" divides what is kept by 1 - p, and evaluation does nothing (torch.nn.Dropout); "test" leaves training

    as it is and multiplies by 1 - p in evaluation (the first form); None rescales nowhere, so the two disagree
    """

    def __init__(self, p: float | None = None, keep_prob: float | None = None, scale: Literal["train", "test"] | None = "train") -> None:
        if p is not None and keep_prob is not None:
            raise BadInput("dropout takes p or keep_prob, not both", where="Dropout", fix="they add up to 1")
        drop = 0.5 if p is None and keep_prob is None else p if keep_prob is None else 1 - keep_prob
        if drop is None or not 0 <= drop <= 1:
            raise BadInput(f"the dropout probability must be between 0 and 1, not {p if keep_prob is None else keep_prob}", where="Dropout")
        if scale not in ("train", "test", None):
            raise BadInput(f"scale must be 'train', 'test' or None, not {scale!r}", where="Dropout")
        super().__init__(p=drop)
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        if self.scale == "train":
            return F.dropout(x, self.p, self.training)
        if self.training:
            return x * (torch.rand_like(x) >= self.p)
        return x * (1 - self.p) if self.scale == "test" else x
