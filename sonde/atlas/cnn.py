"""Chapter 11, convolutional networks."""

from __future__ import annotations

import resource
from collections import OrderedDict

import torch
from torch import nn

from ..core.reading import Reading
from ..lenses.cost import by, cost
from ..models.mlp import MLP
from ._exhibit import Exhibit

BILLION = 10**9


def worked_network() -> nn.Module:
    """Conv, ReLU, pool three times, flatten, linear: an image of 192 x 256 grey pixels into 6 scores."""
    return nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(1, 5, kernel_size=3, stride=1, padding=1),
            relu1=nn.ReLU(),
            pool1=nn.MaxPool2d(kernel_size=2, stride=2),
            conv2=nn.Conv2d(5, 10, kernel_size=5, stride=1, padding=0),
            relu2=nn.ReLU(),
            pool2=nn.MaxPool2d(kernel_size=2, stride=2),
            conv3=nn.Conv2d(10, 20, kernel_size=2, stride=2, padding=0),
            relu3=nn.ReLU(),
            pool3=nn.MaxPool2d(kernel_size=5, stride=2),
            flat=nn.Flatten(),
            linear=nn.Linear(2800, 6),
        )
    )


def cnn_12(exhibit: Exhibit) -> str:
    """Sizes, weights and biases of the worked network, layer by layer, against the table worked by hand."""
    model = worked_network()
    rows = [row for row in cost(model, (1, 192, 256)).rows if row.kind not in ("ReLU", "Flatten")]
    # channels x height x width, as torch orders them
    sizes = [[5, 192, 256], [5, 96, 128], [10, 92, 124], [10, 46, 62], [20, 23, 31], [20, 10, 14], [6]]
    exhibit.expect("output sizes", [row.output for row in rows], sizes)
    exhibit.expect("weights", [row.weights for row in rows], [45, 0, 1250, 0, 800, 0, 16800])
    exhibit.expect("biases", [row.biases for row in rows], [5, 0, 10, 0, 20, 0, 6])
    total = sum(row.weights + row.biases for row in rows)
    exhibit.expect("parameters in all", total, 18936)
    exhibit.expect("numbers the module really holds", sum(p.numel() for p in model.parameters()), 18936)
    exhibit.expect("outputs of a real image", list(model(torch.zeros(2, 1, 192, 256)).shape), [2, 6])
    exhibit.expect("output of 6 pixels, window 3, stride 2 (the division is rounded down)", _windows(6, 3, 2), 2)
    exhibit.show(
        Reading(
            "The worked 192 x 256 network",
            "table",
            {
                "layer": [row.name for row in rows],
                "channels x height x width": [by(row.output) for row in rows],
                "weights": [row.weights for row in rows],
                "biases": [row.biases for row in rows],
            },
        )
    )
    return f"{total} parameters, sizes down to {by(rows[-2].output)}"


def _windows(pixels: int, window: int, stride: int) -> int:
    """How many outputs a convolution without padding has along one axis, as counted by the cost lens."""
    return cost(nn.Conv1d(1, 1, window, stride), (1, pixels)).rows[0].output[-1]


def cnn_16(exhibit: Exhibit) -> str:
    """Dense layers as wide as an image: counted on the meta device, where a tensor has a size and no memory."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    colour, grey = 256 * 256 * 3, 256 * 256
    counted = {
        "MLP on grey images": cost(lambda: MLP((grey, grey, grey)), (grey,)).parameters,
        "MLP on colour images": cost(lambda: MLP((colour, colour, colour)), (colour,)).parameters,
        "the same with three classes": cost(lambda: MLP((colour, colour, colour, 3)), (3, 256, 256)).parameters,
    }
    taken = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 2**20  # ru_maxrss counts KiB
    small, large, whole = counted.values()
    exhibit.expect("two dense layers, 256 x 256 grey", small, 8590065664)
    exhibit.expect("two dense layers, 256 x 256 colour", large, 77309804544)
    exhibit.expect("with a layer of three outputs", whole, 77310394371)
    exhibit.below(f"GiB of memory taken to count {4 * whole / 2**30:.0f} GiB of weights", taken, 0.5)
    exhibit.above("parameters, in language models of 7 billion", whole / (7 * BILLION), 1)
    exhibit.above("parameters, in language models of 70 billion", whole / (70 * BILLION), 1)
    lines = {"language model, small": 7 * BILLION, **counted, "language model, large": 70 * BILLION}
    bars = {"parameters": list(lines.values())}
    exhibit.show(Reading("Dense layers on an image, and language models", "bars", bars, axes=["network"], extra={"labels": list(lines)}))
    return f"{large:,} parameters; {large / (7 * BILLION):.1f} language models of 7B, {large / (70 * BILLION):.1f} of 70B"
