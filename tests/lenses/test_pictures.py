"""Maps of an image against the network cut off behind each layer, and patches against a pattern planted in noise."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from sonde.core.batch import Batch
from sonde.core.errors import BadInput
from sonde.core.reading import Subject
from sonde.lenses import feature_maps, patches, receptive_field
from sonde.lenses.overlay import tiny as seeing
from sonde.lenses.tools.pictures import jumps, maps, maps_of, picture
from sonde.lenses.tools.readonly import spread_evenly
from sonde.models.cnn import CNN
from sonde.models.resnet import cifar
from sonde.models.unet import UNet


def test_maps_are_what_the_network_gives_when_cut_off_behind_each_layer() -> None:
    net = nn.Sequential(
        *(nn.Conv2d(2, 5, 3), nn.ReLU(inplace=True), nn.Dropout(), nn.MaxPool2d(2), nn.Conv2d(5, 4, 1), nn.Flatten(), nn.Linear(24, 3))
    ).eval()
    x = torch.randn(3, 2, 9, 6)
    features = maps(net, Batch(x=x))
    assert list(features) == ["0", "1", "3", "4"], "dropout changes nothing and a vector is no map"
    for name, own in features.items():
        expected = x
        for layer in net[: int(name) + 1]:
            expected = nn.functional.relu(expected) if isinstance(layer, nn.ReLU) else layer(expected)
        assert torch.equal(own, expected), f"layer {name}"


class Twice(nn.Module):
    """One convolution that runs twice, with a sum around it."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = nn.Conv2d(1, 1, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.inside(self.inside(x))


def test_a_layer_that_runs_twice_and_a_sum_have_maps_of_their_own() -> None:
    net, x = nn.Sequential(Twice(), nn.Flatten()), torch.randn(2, 1, 5, 7)
    features = maps(net, Batch(x=x))
    assert list(features) == ["0.inside", "0.inside (2)", "0"]
    assert torch.equal(features["0"], x + features["0.inside (2)"])


def test_the_output_depends_on_x_through_the_maps() -> None:
    """d(out)/d(map) d(map)/dx = d(out)/dx, also past a layer that works in place, and through the blocks of a transformer."""
    net = nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(72, 2)).double()
    vit = seeing().model.double()
    for model, name in ((net, "0"), (vit, "stack.blocks.0")):
        x = torch.randn(2, 1, 8, 6, dtype=torch.float64, requires_grad=True)
        with torch.enable_grad():
            from sonde.lenses.tools.pictures import collect_maps

            features: dict = {}
            with collect_maps(model, x, features):
                out = model(x)[:, 0].sum()
            (upper,) = torch.autograd.grad(out, features[name], retain_graph=True)
            (whole,) = torch.autograd.grad(out, x, retain_graph=True)
            (through,) = torch.autograd.grad(features[name], x, upper, retain_graph=True)
            (plain,) = torch.autograd.grad(model(x)[:, 0].sum(), x)
        assert torch.allclose(whole, plain, atol=1e-12)
        if name == "0":
            assert torch.allclose(through, plain, atol=1e-12)
        assert upper.abs().max() > 0


def test_the_tokens_of_a_block_are_laid_out_as_patches() -> None:
    subject = seeing()
    model, x = subject.model.eval(), subject.batch.x[:3]
    features = maps(model, Batch(x=x))
    assert list(features) == ["patches", "stack.blocks.0", "stack.blocks.1"]
    tokens = model.stack.blocks[0](model.embed(x))[0]
    for row in range(4):
        for column in range(3):
            assert torch.equal(features["stack.blocks.0"][:, :, row, column], tokens[:, 1 + row * 3 + column])


@pytest.mark.parametrize(
    "layers, expected",
    [
        ([nn.Conv2d(1, 2, 5), nn.MaxPool2d(2), nn.Conv2d(2, 2, 5), nn.MaxPool2d(2)], [1, 2, 2, 4]),
        ([nn.Conv2d(1, 2, 3, padding=1, stride=2), nn.Conv2d(2, 2, 3, dilation=2), nn.AvgPool2d(3, 3)], [2, 2, 6]),
        ([nn.Conv2d(1, 2, 2, stride=3), nn.Conv2d(2, 2, 2, stride=3), nn.AvgPool2d(2, 2)], [3, 9, 18]),
    ],
)
def test_jumps_are_products_of_strides(layers, expected) -> None:
    net, batch = nn.Sequential(*layers), Batch(x=torch.randn(1, 1, 36, 24))
    assert list(jumps(net, batch, maps(net, batch)).values()) == [(step, step) for step in expected]


def test_a_network_for_one_size_is_asked_about_another_as_far_as_it_goes() -> None:
    net, batch = CNN(channels=(1, 2, 3), classes=4, hidden=5, image=(8, 8)).eval(), Batch(x=torch.randn(1, 1, 8, 8))
    larger = torch.randn(1, 1, 20, 12)
    features = maps_of(net, batch, larger)
    assert list(features) == list(maps(net, batch)) and torch.equal(features["blocks.conv2"], net.blocks[:4](larger))
    vit = seeing().model.eval()
    assert list(maps_of(vit, Batch(x=torch.randn(1, 1, 8, 6)), larger)) == ["patches"]


def test_feature_maps_show_the_channels_that_vary_most() -> None:
    net = nn.Sequential(nn.Conv2d(1, 4, 1, bias=False))
    net[0].weight.data = torch.tensor([0.1, -3.0, 0.0, 2.0]).reshape(4, 1, 1, 1)
    x = torch.rand(2, 1, 3, 5)
    reading = feature_maps.read(Subject(net, Batch(x=x)), example=1, channels=2)
    image, blank, first, second = reading.values["images"]
    assert blank is None and reading.labels == ["", "", "1", "3"] and reading.rows == ["image", "0"]
    scaled = (x[1, 0] - x[1].min()) / (x[1].max() - x[1].min())
    assert torch.allclose(torch.tensor(image), scaled) and torch.allclose(torch.tensor(second), scaled, atol=1e-6)
    assert torch.allclose(torch.tensor(first), 1 - scaled, atol=1e-6)
    with pytest.raises(BadInput, match="there is no example 2.*choose 0 to 1"):
        feature_maps.read(Subject(net, Batch(x=x)), example=2)


def test_patches_find_a_planted_pattern() -> None:
    """A kernel of 3 x 3 answers most where it stands itself; the strongest image comes first and is cut out there."""
    torch.manual_seed(0)
    pattern = torch.tensor([[1.0, -1, 1], [-1, 1, -1], [1, -1, 1]])
    net = nn.Sequential(nn.Conv2d(1, 2, 3, stride=2, padding=1, bias=False), nn.ReLU(), nn.Flatten())
    net[0].weight.data = torch.stack([pattern, torch.zeros(3, 3)]).unsqueeze(1)
    x = 0.1 * torch.randn(6, 1, 11, 9)
    for image, row, column, size in ((2, 3, 1, 1.0), (4, 5, 3, 2.0), (5, -1, 7, 0.8)):
        top, left = max(row, 0), column
        seen = pattern[top - row :, : 9 - left]
        x[image, 0, top : top + len(seen), left : left + 3] = size * seen
    reading = patches.read(Subject(net, Batch(x=x)), channels=1, patches=3)
    assert reading.rows == ["channel 0"] and reading.results["examples"] == [4, 2, 5]
    answers = nn.functional.conv2d(x, pattern[None, None], stride=2, padding=1).flatten(1).amax(1)
    assert [float(detail) for detail in reading.details] == pytest.approx([float(answers[i]) for i in (4, 2, 5)], abs=6e-3)
    shown = [torch.tensor(image) for image in reading.values["images"]]
    assert torch.allclose(shown[0], picture(x[4])[5:8, 3:6]) and torch.allclose(shown[1], picture(x[2])[3:6, 1:4])
    assert (shown[2][0] == 0.5).all() and (shown[2][1:, 2] == 0.5).all(), "gray outside the image"
    assert torch.allclose(shown[2][1:, :2], picture(x[5])[0:2, 7:9])
    with pytest.raises(BadInput, match="no layer 'conv9' with feature maps"):
        patches.read(Subject(net, Batch(x=x)), layer="conv9")


def test_a_residual_network_shows_its_sums() -> None:
    model, x = cifar(8, classes=10).eval(), torch.randn(2, 3, 16, 16)
    features = maps(model, Batch(x=x))
    with torch.no_grad():
        expected = model.layer1(model.relu(model.bn1(model.conv1(x))))
    assert any(own.shape == expected.shape and torch.equal(own, expected) for own in features.values())
    rows = feature_maps.read(Subject(model, Batch(x=x)), layers=5, channels=2).rows
    assert len(rows) == 6 and "avgpool" in features and "avgpool" not in rows, "one place is no picture"


def test_the_fields_of_a_residual_network_agree_with_the_formula() -> None:
    table, view = receptive_field.read(Subject(cifar(8, classes=10), Batch(x=torch.randn(3, 3, 16, 16))), layers=100, probes=3)
    fields = dict(zip(table.values["layer"], zip(table.values["formula"], table.values["measured"], strict=True), strict=True))
    assert fields["layer1.0.conv2"] == ("7 × 7", "7 × 7") and fields["layer3.0.conv2"] == ("25 × 25", "25 × 25")
    assert all(formula in (None, measured) for formula, measured in fields.values())
    assert fields["avgpool"][1].startswith("at least ") and "gradient of avgpool" not in view.labels


def test_images_of_many_channels_are_shown_by_their_mean() -> None:
    assert picture(torch.randn(3, 4, 5)).shape == (4, 5, 3) and picture(torch.randn(1, 4, 5)).shape == (4, 5)
    many = torch.arange(24.0).reshape(2, 3, 4)
    assert torch.allclose(picture(many), torch.arange(12.0).reshape(3, 4) / 11)
    assert picture(torch.ones(1, 2, 2)).sum() == 0
    assert spread_evenly(list(range(9)), 3) == [0, 4, 8] and spread_evenly([1, 2], 5) == [1, 2] and spread_evenly([7], 1) == [7]


def test_networks_without_maps_are_told_so() -> None:
    subject = Subject(nn.Sequential(nn.Flatten(), nn.Linear(4, 2)), Batch(x=torch.randn(3, 1, 2, 2)))
    assert feature_maps.why_not(subject) == "the model has neither a convolution nor patches"
    assert "not images" in feature_maps.why_not(replace(subject, batch=Batch(x=torch.randn(3, 4))))


def enlarging(first: nn.Module) -> nn.Sequential:
    """A decoder: what `first` makes of an image, then three, two and one and a half times as many places on a side."""
    return nn.Sequential(
        first,
        nn.ConvTranspose2d(3, 2, 3, stride=3),
        nn.Upsample(scale_factor=2),
        nn.Conv2d(2, 2, 3, padding=1),
        nn.AvgPool2d(4),
    )


def test_maps_that_are_larger_than_the_image_are_a_part_of_a_pixel_apart() -> None:
    """By hand: stride 1, over 3, over 2, the same, times 4; behind stride 7 each of them times 7."""
    x = Batch(x=torch.randn(1, 1, 28, 21))
    for first, times in ((nn.Conv2d(1, 3, 1), 1), (nn.Conv2d(1, 3, 7, stride=7), 7)):
        net = enlarging(first)
        with torch.no_grad():
            strides = jumps(net, x, maps(net, x))
        wanted = [times, times / 3, times / 6, times / 6, times * 2 / 3]
        assert [strides[str(i)] for i in range(5)] == [(pytest.approx(w, rel=0.02),) * 2 for w in wanted]


def test_the_places_of_a_unet_are_as_far_apart_on_the_way_up_as_down() -> None:
    for padded, side in ((True, 24), (False, 44)):
        net, batch = UNet(1, 2, width=2, depth=2, padded=padded), Batch(x=torch.randn(1, 1, side, side))
        with torch.no_grad():
            features = maps(net, batch)
            strides = jumps(net, batch, features)
        assert list(features)[-1] == "output" and features["output"].shape[1] == 2, "its answer with the channels last is no map of its own"
        wanted = {"down.0.conv1": 1, "down.1.conv2": 2, "down.2.conv1": 4, "up.1": 2, "join.1.conv1": 2, "up.0": 1, "output": 1}
        assert {name: strides[name] for name in wanted} == {name: (step, step) for name, step in wanted.items()}, f"padded {padded}"
