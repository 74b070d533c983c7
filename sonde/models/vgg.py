"""VGG networks [simonyan2015]: convolutions of side 3, halved by pooling, and three wide dense layers that hold most parameters.

    VGG(19)      143,667,240 parameters, 86 % of them in the dense layers

Parameters have the names of torchvision: features.0, features.2, ..., classifier.0, classifier.3, classifier.6.

B batch, H height, W width
"""

from __future__ import annotations

from typing import Annotated, Literal, final

import torch
from torch import Tensor, nn

from ..core.batch import Batch
from ..core.errors import BadInput
from ..core.options import Count, Range, checked
from ..nn.images import run_layers

DEPTHS = {11: (1, 1, 2, 2, 2), 13: (2, 2, 2, 2, 2), 16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}
"""layers -> convolutions before each pooling; three more layers are dense"""
WIDTHS = (64, 128, 256, 512, 512)
LEAST = 1 << len(WIDTHS)
"""smallest side of an image that survives all pooling"""


@final
class VGG(nn.Module):
    """A plain deep network for images (B, channels, H, W); maps of any size are averaged to 7 x 7.

    Args:
        depth: layers with weights
        classes: number of outputs
        channels: of the image
        hidden: width of the two dense layers before the output
        norm: normalize over the batch after each convolution
        dropout: dropout probability after each of these two
    """

    @checked
    def __init__(
        self,
        depth: Literal[11, 13, 16, 19] = 19,
        classes: Count = 1000,
        channels: Count = 3,
        hidden: Count = 4096,
        norm: bool = False,
        dropout: Annotated[float, Range(least=0, below=1)] = 0.5,
    ) -> None:
        super().__init__()
        self.channels, self.image = channels, (224, 224)
        """channels of an image, and its usual size; other sizes work too"""
        self.features = nn.Sequential()
        into = channels
        for count, width in zip(DEPTHS[depth], WIDTHS, strict=True):
            for _ in range(count):
                self.features.append(nn.Conv2d(into, width, 3, padding=1))
                if norm:
                    self.features.append(nn.BatchNorm2d(width))
                self.features.append(nn.ReLU(inplace=True))
                into = width
            self.features.append(nn.MaxPool2d(2))
        self.avgpool = nn.AdaptiveAvgPool2d(7)
        self.classifier = nn.Sequential(
            *(nn.Linear(49 * into, hidden), nn.ReLU(inplace=True), nn.Dropout(dropout)),
            *(nn.Linear(hidden, hidden), nn.ReLU(inplace=True), nn.Dropout(dropout)),
            nn.Linear(hidden, classes),
        )
        for part in self.modules():
            if isinstance(part, nn.Conv2d):
                nn.init.kaiming_normal_(part.weight, mode="fan_out", nonlinearity="relu")
                nn.init.zeros_(part.bias)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim != 4:
            raise _error(f"features.0 takes (batch, channels, height, width), not {tuple(x.shape)}", "give x four axes")
        if x.shape[1] != self.channels:
            raise _error(f"features.0 takes images with {self.channels} channels, not {x.shape[1]}", f"set channels={x.shape[1]}")
        if (side := min(x.shape[2:])) < LEAST:
            pools = [f"features.{i}" for i, part in enumerate(self.features) if isinstance(part, nn.MaxPool2d)]
            first = next(name for i, name in enumerate(pools, 1) if side < 1 << i)
            message = f"{first} cannot halve what is left of an image of {x.shape[2]}x{x.shape[3]}, one pixel"
            raise _error(message, f"give images of at least {LEAST}x{LEAST}")
        return self.classifier(self.avgpool(run_layers(self.features, x)).flatten(1))


def _error(what: str, fix: str = "") -> BadInput:
    return BadInput(what, where="VGG", fix=fix)


def tiny() -> tuple[VGG, Batch]:
    """A small working instance with input."""
    rng = torch.Generator().manual_seed(0)
    return VGG(11, 3, 1, hidden=8), Batch(x=torch.rand(2, 1, 32, 32, generator=rng))
