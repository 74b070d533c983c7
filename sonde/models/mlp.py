"""Multi-layer perceptron: dense layers with an activation between them."""

from __future__ import annotations

from collections import OrderedDict
from typing import Annotated, Literal, final

import torch
from torch import Tensor, nn

from ..core.batch import Batch
from ..core.errors import BadInput
from ..core.options import Range, checked
from ..nn.activations import activation as make_activation


@final
class MLP(nn.Module):
    """A multi-layer perceptron; inputs of any shape are flattened.

    Args:
        widths: sizes of the input, of each hidden layer, and of the output
        activation: activation function of the hidden layers
        dropout: dropout probability of hidden values
        norm: normalize hidden values before the activation, over the batch or over the layer
    """

    @checked
    def __init__(
        self,
        widths: Annotated[tuple[int, ...], Range(least=1)] = (64, 128, 10),
        activation: str = "relu",
        dropout: Annotated[float, Range(least=0, below=1)] = 0.0,
        norm: Literal["batch", "layer"] | None = None,
    ) -> None:
        super().__init__()
        if len(widths) < 2:
            raise BadInput(f"widths must be two or more numbers, not {widths}", where="MLP", fix="give input, hidden and output widths")
        self.inputs = widths[0]
        layers: OrderedDict[str, nn.Module] = OrderedDict()
        last = len(widths) - 1
        for i in range(1, last):
            layers[f"dense{i}"] = nn.Linear(widths[i - 1], widths[i])
            if norm is not None:
                layers[f"norm{i}"] = nn.BatchNorm1d(widths[i]) if norm == "batch" else nn.LayerNorm(widths[i])
            layers[f"{activation}{i}"] = make_activation(activation)
            if dropout:
                layers[f"dropout{i}"] = nn.Dropout(dropout)
        layers[f"dense{last}"] = nn.Linear(widths[-2], widths[-1])
        self.layers = nn.Sequential(layers)

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim != 2:
            x = x.flatten(1) if x.ndim > 2 else x.unsqueeze(-1)
        if x.shape[1] != self.inputs:
            raise BadInput(
                f"MLP takes {self.inputs} numbers per example, not {x.shape[1]}",
                where="dense1",
                fix=f"set widths to start with {x.shape[1]}",
            )
        return self.layers(x)


def tiny() -> tuple[MLP, Batch]:
    """A small working instance with input."""
    rng = torch.Generator().manual_seed(0)
    return MLP((4, 6, 3), "tanh"), Batch(x=torch.randn(5, 4, generator=rng))
