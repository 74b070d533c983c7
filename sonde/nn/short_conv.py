"""The short convolution before a mixer: each channel over the last few tokens.

B batch, T time, D width, W taps.
"""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@final
class ShortConv(nn.Module):
    """Each channel over the last few tokens, then SiLU; the state is the tail of W - 1 inputs.

    Args:
        width: channels
        taps: kernel size
        bias: add a bias to each channel
    """

    def __init__(self, width: int, taps: int = 4, bias: bool = False) -> None:
        super().__init__()
        self.taps = taps
        self.weight = nn.Parameter(torch.empty(taps, width).uniform_(-(taps**-0.5), taps**-0.5))
        self.bias = nn.Parameter(torch.zeros(width)) if bias else None

    def forward(self, x: Tensor, tail: Tensor | None = None, lengths: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """x (B, T, D), tail (B, W - 1, D) -> y like x, and the tail after it."""
        if tail is None:
            tail = x.new_zeros(len(x), self.taps - 1, x.shape[-1])
        whole = torch.cat([tail.to(x.dtype), x], 1)
        T = x.shape[1]
        if T == 1:  # decoding: as few calls as possible
            y = (whole * self.weight).sum(1, keepdim=True)
        else:
            y = whole[:, :T] * self.weight[0]
            for i in range(1, self.taps):
                y = torch.addcmul(y, whole[:, i : i + T], self.weight[i])
        return F.silu(y if self.bias is None else y + self.bias), tail_of(whole, self.taps - 1, lengths)


def tail_of(whole: Tensor, n: int, lengths: Tensor | None) -> Tensor:
    """The last n tokens of sequences that start with a tail of n: of all T, or of the first `lengths` of them."""
    T = whole.shape[1] - n
    if lengths is None:
        return whole[:, T:]
    index = lengths.unsqueeze(1) + torch.arange(n, device=whole.device)
    return whole.gather(1, index.unsqueeze(-1).expand(-1, -1, whole.shape[-1]))
