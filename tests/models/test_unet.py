"""U-Net: the sizes and the count of the paper by hand, the formula written out, errors that say what fits, and per-pixel learning."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import sonde
from sonde.core.batch import Data
from sonde.core.errors import BadInput
from sonde.core.recipe import Recipe
from sonde.data.tensors import TensorSource
from sonde.models.unet import UNet, central
from sonde.objectives.categorical import Categorical
from sonde.optim.build import optimizer


def count(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def by_hand(channels: int, classes: int, width: int, depth: int) -> int:
    """Two 3 x 3 convolutions at each level of both ways, a 2 x 2 one upwards, a 1 x 1 one at the end, all with biases."""
    widths = [width * 2**i for i in range(depth + 1)]
    total, before = classes * (width + 1), channels
    for w in widths:
        total, before = total + w * (9 * before + 1) + w * (9 * w + 1), w
    return total + sum(w * (4 * 2 * w + 1) + w * (9 * 2 * w + 1) + w * (9 * w + 1) for w in widths[:-1])


def test_the_paper():
    with torch.device("meta"):
        model, image = UNet(), torch.zeros(1, 1, 572, 572)
        sides: list[int] = []
        for part in [*model.down, *model.up, *model.join]:
            part.register_forward_hook(lambda module, inputs, output: sides.append(output.shape[-1]))
        answers = model(image)
    assert answers.shape == (1, 388, 388, 2) and model.output_size((572, 572)) == (388, 388)
    # down 568, 280, 136, 64, 28 as printed in its figure; then up and joined in turn
    assert sides == [568, 280, 136, 64, 28, 56, 52, 104, 100, 200, 196, 392, 388]
    assert count(model) == by_hand(1, 2, 64, 4) == 31_030_658


@pytest.mark.parametrize("padded", [False, True])
def test_equals_the_formula(padded: bool):
    torch.manual_seed(0)
    model = UNet(2, 3, width=4, depth=2, padded=padded).double()
    for p in model.parameters():
        nn.init.normal_(p, std=0.2)
    assert count(model) == by_hand(2, 3, 4, 2)
    x = torch.randn(2, 2, *((16, 20) if padded else (44, 48)), dtype=torch.float64)

    def pair(part: nn.Sequential, x: Tensor) -> Tensor:
        for conv in (part.conv1, part.conv2):
            x = F.relu(F.conv2d(x, conv.weight, conv.bias, padding=1 if padded else 0))
        return x

    def middle(x: Tensor, like: Tensor) -> Tensor:
        rows, columns = ((x.shape[i] - like.shape[i]) // 2 for i in (2, 3))
        return x[:, :, rows : x.shape[2] - rows, columns : x.shape[3] - columns]

    one = pair(model.down[0], x)
    two = pair(model.down[1], F.max_pool2d(one, 2))
    low = pair(model.down[2], F.max_pool2d(two, 2))
    y = F.conv_transpose2d(low, model.up[1].weight, model.up[1].bias, stride=2)
    y = pair(model.join[1], torch.cat([middle(two, y), y], 1))
    y = F.conv_transpose2d(y, model.up[0].weight, model.up[0].bias, stride=2)
    y = pair(model.join[0], torch.cat([middle(one, y), y], 1))
    expected = F.conv2d(y, model.output.weight, model.output.bias).movedim(1, -1)
    output = model(x)
    assert tuple(output.shape[1:3]) == ((16, 20) if padded else (4, 8)) == model.output_size(tuple(x.shape[2:]))
    torch.testing.assert_close(output, expected, rtol=1e-12, atol=1e-12)
    grads = [torch.autograd.grad(value.square().sum(), list(model.parameters())) for value in (output, expected)]
    for ours, theirs in zip(*grads, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_just_the_sizes_that_work_are_taken(padded: bool, depth: int):
    """Whether a side works is found by halving it, level by level, without the formula."""

    def after(side: int) -> int:
        lost = 0 if padded else 4
        for _ in range(depth):
            side -= lost
            if side < 1 or side % 2:
                return 0
            side //= 2
        side -= lost
        for _ in range(depth):
            side = 2 * side - lost if side > 0 else 0
        return max(side, 0)

    with torch.device("meta"):
        model = UNet(1, 2, 2, depth, padded)
        for side in range(1, 130):
            if after(side):
                assert model.output_size((side, side)) == (after(side), after(side))
                assert model(torch.zeros(1, 1, side, side)).shape[1:3] == (after(side), after(side))
            else:
                with pytest.raises(BadInput, match="use sides of"):
                    model.output_size((side, side))


@pytest.mark.parametrize(
    "model, x, message",
    [
        (UNet(width=2), torch.zeros(1, 1, 570, 572), r"570x572 do not pass.* before layer 'down.2' \(279 pixels.*sides of 556 or 572"),
        (UNet(width=2, depth=1), torch.zeros(1, 1, 6, 20), r"6x20 do not pass layer 'down.1' of a U-Net of depth 1.*sides of 18 or"),
        (UNet(width=2, depth=1), torch.zeros(1, 1, 20, 16), r"20x16 do not pass layer 'join.0'.*sides of 18 or"),
        (UNet(width=2), torch.zeros(1, 1, 64, 64), r"use sides of 188 or 204 pixels, that is 188 \+ 16 k"),
        (UNet(width=2, padded=True), torch.zeros(1, 1, 32, 30), r"images of 32x30.*sides of 16 or 32"),
        (UNet(3, width=2, padded=True), torch.zeros(1, 1, 32, 32), "'down.0' takes images with 3 channels, not 1"),
        (UNet(width=2, padded=True), torch.zeros(1, 32, 32), "four axes"),
    ],
)
def test_errors_say_what_fits(model: UNet, x: Tensor, message: str):
    with pytest.raises(BadInput, match=message):
        model(x)


def test_the_middle_of_a_mask():
    y = torch.arange(2 * 7 * 8).reshape(2, 7, 8)
    assert torch.equal(central(y, (3, 4)), y[:, 2:5, 2:6])


def test_norm_takes_the_place_of_biases():
    model = UNet(1, 2, 4, 1, norm=True)
    assert model.down[0].conv1.bias is None and isinstance(model.down[0].norm2, nn.BatchNorm2d)
    assert list(dict(model.down[0].named_children())) == ["conv1", "norm1", "relu1", "conv2", "norm2", "relu2"]


@pytest.mark.parametrize("padded", [False, True])
def test_learns_pixel_by_pixel_through_the_engine(padded: bool, tmp_path):
    torch.manual_seed(0)
    side = 24
    x = (torch.rand(12, 1, side, side) > 0.5).float()
    y = (F.max_pool2d(x, 3, stride=1, padding=1)[:, 0] - 0.5 > 0).long()  # bright, or beside a bright pixel
    model = UNet(1, 2, 4, 1, padded)
    y = central(y, model.output_size((side, side))).contiguous()
    recipe = Recipe(
        model=model,
        data=Data(TensorSource(x[:9], y[:9]), TensorSource(x[9:], y[9:])),
        objective=Categorical(2),
        optimizer=optimizer("adamw", lr=1e-2),
        batch_size=9,
        steps=40,
    )
    run = sonde.train(recipe, run=tmp_path / "run", quiet=True, threads=1)
    losses = [row["loss"] for row in run.metrics if "loss" in row]
    assert losses[-1] < 0.5 * losses[0]
