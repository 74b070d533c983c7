"""Auto-encoders: the formulas written out, exact numbers of parameters, sizes that come back, clear errors."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sonde.core.errors import BadInput
from sonde.core.tensors import decode, encode
from sonde.models.autoencoder import AutoEncoder, convolutional, dense

D, K = 11, 4


def count(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def test_tied_is_the_formula_and_so_is_its_gradient():
    torch.manual_seed(0)
    model, x = dense((D,), (K,), tied=True).double(), torch.randn(5, D, dtype=torch.float64)
    with torch.no_grad():
        model.decoder.dense1.bias.normal_()
    W, b, c = (
        p.detach().clone().requires_grad_() for p in (model.encoder.dense1.weight, model.encoder.dense1.bias, model.decoder.dense1.bias)
    )
    h = 1 / (1 + torch.exp(-(x @ W.T + b)))
    torch.testing.assert_close(model.encode(x), h, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(model(x), h @ W + c, rtol=1e-12, atol=1e-12)
    ours = torch.autograd.grad((model(x) - x).square().sum(), list(model.parameters()))
    theirs = torch.autograd.grad((h @ W + c - x).square().sum(), (W, b, c))
    for grad, expected in zip(ours, theirs, strict=True):
        torch.testing.assert_close(grad, expected, rtol=1e-10, atol=1e-10)


def test_parameters_are_counted_once():
    assert count(dense((D,), (K,), tied=True)) == K * D + K + D
    assert count(dense((D,), (K,))) == 2 * K * D + K + D
    assert count(dense((D,), (7, K), tied=True)) == 7 * D + 7 + 7 * K + K + 7 + D
    assert sorted(dense((D,), (K,), tied=True).state_dict()) == ["decoder.dense1.bias", "encoder.dense1.bias", "encoder.dense1.weight"]


def test_untied_deep_equals_its_layers():
    torch.manual_seed(1)
    model, x = dense((3, 2, 2), (9, 5), "tanh", code="relu"), torch.randn(6, 3, 2, 2)
    e, d = model.encoder, model.decoder
    h = F.relu(e.dense2(torch.tanh(e.dense1(x.flatten(1)))))
    assert torch.equal(model.encode(x), h)
    assert torch.equal(model(x), d.dense2(torch.tanh(d.dense1(h))).reshape(6, 3, 2, 2))
    linear = dense((D,), (K,), "identity")
    assert [type(part).__name__ for part in linear.modules()] == ["AutoEncoder", "Sequential", "Flatten", "Linear", "Sequential", "Linear"]


def test_a_tied_copy_is_tied_to_itself():
    torch.manual_seed(2)
    model = dense((D,), (K,), tied=True)
    other, x = copy.deepcopy(model), torch.randn(2, D)
    with torch.no_grad():
        other.encoder.dense1.weight.zero_()
    assert torch.equal(other.decode(torch.ones(2, K)), other.decoder.dense1.bias.expand(2, D))
    again = dense((D,), (K,), tied=True)
    again.load_state_dict(decode(b"".join(encode(model.state_dict()))))
    assert torch.equal(again(x), model(x)) and not torch.equal(other(x), model(x))


def test_which_encoder_is_one_sigmoid_layer():
    model = dense((1, 3, 3), (K,), tied=True)
    assert model.sigmoid_weights is model.encoder.dense1.weight
    assert dense((9,), (5, K)).sigmoid_weights is None and dense((9,), (K,), "tanh").sigmoid_weights is None
    assert AutoEncoder(nn.Linear(3, 2), nn.Linear(2, 3)).sigmoid_weights is None


@pytest.mark.parametrize("image", [(1, 8, 8), (3, 9, 12), (2, 7, 5), (1, 28, 28)])
def test_convolutional_gives_the_image_back_in_its_size(image):
    model = convolutional(image, (4, 6), code=5)
    assert model.encode(torch.zeros(2, *image)).shape == (2, 5) and model(torch.zeros(2, *image)).shape == (2, *image)


def test_errors_name_the_layer():
    with pytest.raises(BadInput, match=r"dense1 takes examples of 1x8x8, not 1x9x8"):
        dense((1, 8, 8), (K,))(torch.zeros(2, 1, 9, 8))
    model = convolutional((1, 8, 8), (4, 6))
    for x, words in (
        (torch.zeros(2, 3, 8, 8), "1 channels, not 3"),
        (torch.zeros(2, 1, 9, 8), "8x8, not 9x8"),
        (torch.zeros(2, 64), "conv1 takes"),
    ):
        with pytest.raises(BadInput, match=words):
            model(x)
    with pytest.raises(BadInput, match="too small for conv3"):
        convolutional((1, 7, 9), (4, 4, 4, 4))
    with pytest.raises(BadInput, match="channels, height and width"):
        convolutional((28, 28), (4,))
    for shape, widths in (((), (2,)), ((3,), ()), ((3,), (0,))):
        with pytest.raises(BadInput):
            dense(shape, widths)
