"""MLP and CNN: the same numbers as the formulas written out, right sizes, clear errors, counted on the meta device."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sonde.core.errors import BadInput
from sonde.core.options import options_of, resolve
from sonde.models.cnn import CNN
from sonde.models.mlp import MLP
from sonde.nn.activations import activation


def count(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def test_mlp_equals_the_formula():
    torch.manual_seed(0)
    model = MLP(widths=(6, 9, 5, 2), activation="tanh").double()
    x = torch.randn(4, 2, 3, dtype=torch.float64)
    (w1, b1), (w2, b2), (w3, b3) = [(layer.weight, layer.bias) for layer in model.layers if isinstance(layer, nn.Linear)]
    h = torch.tanh(x.reshape(4, 6) @ w1.T + b1)
    h = torch.tanh(h @ w2.T + b2)
    torch.testing.assert_close(model(x), h @ w3.T + b3, rtol=1e-12, atol=1e-12)
    assert count(model) == (6 + 1) * 9 + (9 + 1) * 5 + (5 + 1) * 2


def test_mlp_options():
    names = [name for name, _ in MLP(widths=(3, 4, 5, 2), dropout=0.5, norm="layer", activation="gelu").layers.named_children()]
    assert names == ["dense1", "norm1", "gelu1", "dropout1", "dense2", "norm2", "gelu2", "dropout2", "dense3"]
    assert MLP(widths=(1, 3))(torch.zeros(7)).shape == (7, 3)
    model = MLP(widths=(3, 400, 2), dropout=0.5)
    x = torch.ones(5, 3)
    assert not torch.equal(model(x), model(x)) and torch.equal(model.eval()(x), model(x))


def test_cnn_equals_the_formula_with_relu_before_the_pooling():
    torch.manual_seed(0)
    model = CNN(channels=(2, 3, 4), classes=5, hidden=6, image=(9, 13), kernel=5).double()
    x = torch.randn(7, 2, 9, 13, dtype=torch.float64)
    h = x
    for conv in (model.blocks.conv1, model.blocks.conv2):
        h = F.max_pool2d(F.relu(F.conv2d(h, conv.weight, conv.bias, padding=2)), 2)
    h = F.relu(F.linear(h.reshape(7, -1), model.dense.hidden.weight, model.dense.hidden.bias))
    expected = F.linear(h, model.dense.output.weight, model.dense.output.bias)
    torch.testing.assert_close(model(x), expected, rtol=1e-12, atol=1e-12)
    grads = [torch.autograd.grad(value.square().sum(), model.parameters()) for value in (model(x), expected)]
    for ours, theirs in zip(*grads, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)
    assert count(model) == (2 * 25 + 1) * 3 + (3 * 25 + 1) * 4 + (4 * 2 * 3 + 1) * 6 + (6 + 1) * 5


def test_cnn_of_the_benchmark_has_its_known_size():
    assert count(CNN()) == 320 + 18496 + (64 * 49 + 1) * 128 + 1290


def test_cnn_of_any_size_averages():
    torch.manual_seed(0)
    model = CNN(channels=(1, 4, 8), image=None, hidden=0, classes=3, norm=True).eval()
    for size in ((4, 4), (9, 31)):
        assert model(torch.zeros(2, 1, *size)).shape == (2, 3)
    x = torch.randn(2, 1, 12, 20)
    torch.testing.assert_close(model(x), model.dense.output(model.blocks(x).mean((2, 3))))
    with pytest.raises(BadInput, match="image of 3x9 is too small for pool2.*sides of at least 4"):
        model(torch.zeros(1, 1, 3, 9))


def test_residual_cnn_equals_the_formula():
    torch.manual_seed(0)
    model = CNN(channels=(2, 3, 5), classes=4, hidden=0, image=(9, 13), residual=True).double()
    x = torch.randn(3, 2, 9, 13, dtype=torch.float64)
    h = x
    for conv in (model.blocks.conv1, model.blocks.conv2):
        h = F.max_pool2d(F.conv2d(h, conv.weight, conv.bias, padding=1), 2).relu()
    one, two = (part for part in model.blocks.residual2.branch if isinstance(part, nn.Conv2d))
    more = F.conv2d(F.conv2d(h, one.weight, one.bias, padding=1).relu(), two.weight, two.bias, padding=1).relu()
    torch.testing.assert_close(model(x), model.dense.output(F.max_pool2d(h + more, 2).flatten(1)))
    assert not hasattr(model.blocks, "residual1")
    with pytest.raises(BadInput, match="image of 7x9 is too small for pool3.*sides of at least 8"):
        CNN(channels=(2, 3, 5), image=(7, 9), residual=True)
    assert CNN(channels=(2, 3, 5), image=(4, 6), residual=True, pool=1)(torch.zeros(1, 2, 4, 6)).shape == (1, 10)


def test_cnn_of_series_equals_the_formula():
    torch.manual_seed(0)
    model = CNN(channels=(2, 3, 4), classes=5, hidden=6, image=(13,), kernel=5, axes=1).double()
    x = torch.randn(7, 2, 13, dtype=torch.float64)
    h = x
    for conv in (model.blocks.conv1, model.blocks.conv2):
        wide = F.pad(h, (2, 2)).unfold(2, 5, 1)  # windows (B, C, T, 5)
        h = torch.einsum("bctk,dck->bdt", wide, conv.weight) + conv.bias[:, None]
        h = h[:, :, : h.shape[2] // 2 * 2].unflatten(2, (-1, 2)).amax(3).clamp(min=0)
    h = F.relu(h.reshape(7, -1) @ model.dense.hidden.weight.T + model.dense.hidden.bias)
    expected = h @ model.dense.output.weight.T + model.dense.output.bias
    torch.testing.assert_close(model(x), expected, rtol=1e-12, atol=1e-12)
    grads = [torch.autograd.grad(value.square().sum(), model.parameters()) for value in (model(x), expected)]
    for ours, theirs in zip(*grads, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


def test_cnn_of_series_of_any_length_averages():
    model = CNN(channels=(2, 4, 8), image=None, hidden=0, classes=3, norm=True, axes=1).eval()
    for length in (4, 37):
        x = torch.randn(5, 2, length)
        torch.testing.assert_close(model(x), model.dense.output(model.blocks(x).mean(2)))
    with pytest.raises(BadInput, match="series of 3 is too small for pool2.*sides of at least 4"):
        model(torch.zeros(1, 2, 3))


def test_channels_last_gives_the_same_values():
    torch.manual_seed(0)
    model, x = CNN(image=(12, 8)), torch.randn(3, 1, 12, 8)
    expected = model(x)
    model = model.to(memory_format=torch.channels_last)
    torch.testing.assert_close(model(x.to(memory_format=torch.channels_last)), expected, rtol=1e-5, atol=1e-6)


BAD = {
    "one width": (lambda: MLP(widths=(3,)), "two or more"),
    "activation": (lambda: MLP(activation="rellu"), "did you mean 'relu'?"),
    "width of x": (lambda: MLP()(torch.zeros(2, 65)), "MLP takes 64 numbers per example, not 65 (dense1)"),
    "channels": (lambda: CNN(channels=(1,)), "two or more"),
    "even kernel": (lambda: CNN(kernel=4), "set kernel=5"),
    "small image": (lambda: CNN(image=(28, 3)), "28x3 is too small for pool2"),
    "three sides": (lambda: CNN(image=(1, 28, 28)), "height and width"),
    "channels of x": (lambda: CNN()(torch.zeros(2, 3, 28, 28)), "conv1 takes images with 1 channels, not 3"),
    "size of x": (lambda: CNN()(torch.zeros(2, 1, 28, 27)), "layer 'hidden' takes images of 28x28, not 28x27"),
    "an image for series": (lambda: CNN(axes=1), "image must be a length, not (28, 28) (CNN); for example image=(28,)"),
    "short series": (lambda: CNN(axes=1, image=(3,)), "a series of 3 is too small for pool2"),
    "axes of series": (lambda: CNN(axes=1, image=(9,))(torch.zeros(2, 9)), "conv1 takes (batch, channels, time), not (2, 9)"),
    "length of series": (lambda: CNN(axes=1, image=(9,))(torch.zeros(2, 1, 8)), "layer 'hidden' takes series of 9, not 8"),
    "axes of x": (lambda: CNN()(torch.zeros(2, 28, 28)), "conv1 takes (batch, channels, height, width), not (2, 28, 28)"),
}


@pytest.mark.parametrize("case", BAD)
def test_errors_name_the_layer(case):
    call, words = BAD[case]
    with pytest.raises(BadInput) as caught:
        call()
    assert words in str(caught.value)


@pytest.mark.parametrize("kind", [MLP, CNN])
def test_options_have_types_and_help(kind):
    for option in options_of(kind).values():
        assert option.help and option.type is not None and not option.is_required
    kind(**resolve(kind, {}, kind.__name__))
    with pytest.raises(BadInput, match="must be"):
        resolve(kind, {"dropout": 1.5}, kind.__name__)


def test_77_billion_parameters_on_the_meta_device():
    with torch.device("meta"):
        model = MLP(widths=(196_000, 196_000, 196_000, 10))
        assert model(torch.zeros(3, 196_000)).shape == (3, 10)
        assert CNN()(torch.zeros(3, 1, 28, 28)).shape == (3, 10)
    assert count(model) == 2 * 196_001 * 196_000 + 1_960_010


@pytest.mark.parametrize(
    "name, expected",
    [
        ("relu", [0, 0.5]),
        ("leaky_relu", [-0.01, 0.5]),
        ("silu", [-0.268941, 0.311230]),
        ("tanh", [-0.761594, 0.462117]),
        ("identity", [-1, 0.5]),
    ],
)
def test_activations_by_hand(name, expected):
    torch.testing.assert_close(
        activation(name)(torch.tensor([-1.0, 0.5])), torch.tensor(expected, dtype=torch.float32), rtol=1e-5, atol=1e-6
    )
