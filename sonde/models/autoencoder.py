"""Auto-encoders: an encoder to a code h and a decoder, dense (tied or not) or convolutional.

    h = g(W x + b),  xhat = W^T h + c      one tied layer: K D + K + D parameters for K code values and D inputs

With g the identity this is a linear auto-encoder, whose best W spans the first K principal components.

B batch, C channels, H height, W width of an image; D values of an example, K of its code.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..core.batch import Batch
from ..core.errors import BadInput
from ..nn.activations import activation as make_activation


@final
class AutoEncoder(nn.Module):
    """x -> code -> x.  What the output means (a mean, a logit) is up to the likelihood it is trained with.

    Args:
        encoder: module from an example to its code
        decoder: module from a code to an example
    """

    def __init__(self, encoder: nn.Module, decoder: nn.Module) -> None:
        super().__init__()
        self.encoder, self.decoder = encoder, decoder

    def encode(self, x: Tensor) -> Tensor:
        """The code h of x."""
        return self.encoder(x)

    def decode(self, h: Tensor) -> Tensor:
        """The reconstruction from the code h, shaped like x."""
        return self.decoder(h)

    def forward(self, x: Tensor) -> Tensor:
        return self.decode(self.encode(x))

    @property
    def sigmoid_weights(self) -> Tensor | None:
        """W (K, D) where the encoder is one sigmoid layer over D inputs, whose Jacobian has a closed form; else None."""
        layers = [part for part in self.encoder.children() if not isinstance(part, Flatten)]
        if [type(part) for part in layers] == [nn.Linear, nn.Sigmoid]:
            return layers[0].weight  # type: ignore[return-value]
        return None


@final
class Flatten(nn.Module):
    """Flatten examples of one shape to (B, D); another shape is an error that names the layer."""

    def __init__(self, shape: Sequence[int], layer: str) -> None:
        super().__init__()
        self.shape, self.layer = tuple(shape), layer

    def forward(self, x: Tensor) -> Tensor:
        if tuple(x.shape[1:]) != self.shape:
            message = f"{self.layer} takes examples of {_shape_text(self.shape)}, not {_shape_text(x.shape[1:])}"
            raise BadInput(message, where="auto-encoder", fix="build it for that shape, or bring the examples to it")
        return x.flatten(1)


@final
class Tied(nn.Module):
    """xhat = W^T h + c with the W of another layer, so only c is its own."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.layer = (layer,)
        """inside a tuple, so that its parameters are not registered twice"""
        self.bias = nn.Parameter(torch.zeros(layer.in_features))

    def forward(self, h: Tensor) -> Tensor:
        return F.linear(h, self.layer[0].weight.t(), self.bias)


def dense(
    shape: Sequence[int], widths: Sequence[int], activation: str = "sigmoid", code: str | None = None, tied: bool = False
) -> AutoEncoder:
    """An auto-encoder of dense layers; its output has no activation.

    Args:
        shape: of one example, such as (64,) or (1, 8, 8)
        widths: output size of each encoder layer; the last is the size of the code; the decoder mirrors them
        activation: function after each layer
        code: activation of the code, where it differs; 'identity' with one layer makes a linear auto-encoder
        tied: the decoder's weights are the encoder's, transposed
    """
    encoder = dense_encoder(shape, widths, activation, code or activation)
    if not tied:
        return AutoEncoder(encoder, dense_decoder(shape, widths, activation))
    mirrored = [Tied(layer) for layer in encoder.children() if isinstance(layer, nn.Linear)][::-1]
    return AutoEncoder(encoder, _back(shape, mirrored, activation))


def dense_encoder(shape: Sequence[int], widths: Sequence[int], activation: str = "relu", last: str = "identity") -> nn.Sequential:
    """Dense layers from examples of a shape to the last of the widths, with `last` after it."""
    sizes = _check_widths(shape, widths)
    layers: OrderedDict[str, nn.Module] = OrderedDict(flat=Flatten(shape, "dense1"))
    for i in range(1, len(sizes)):
        name = activation if i < len(sizes) - 1 else last
        layers[f"dense{i}"] = nn.Linear(sizes[i - 1], sizes[i])
        if name != "identity":
            layers[f"{name}{i}"] = make_activation(name)
    return nn.Sequential(layers)


def dense_decoder(shape: Sequence[int], widths: Sequence[int], activation: str = "relu") -> nn.Sequential:
    """Dense layers back from the last of the widths to examples of a shape."""
    sizes = _check_widths(shape, widths)[::-1]
    return _back(shape, [nn.Linear(a, b) for a, b in zip(sizes, sizes[1:])], activation)


def _back(shape: Sequence[int], dense: Sequence[nn.Module], activation: str) -> nn.Sequential:
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for i, layer in enumerate(dense, 1):
        layers[f"dense{i}"] = layer
        if i < len(dense) and activation != "identity":
            layers[f"{activation}{i}"] = make_activation(activation)
    if len(shape) > 1:
        layers["shape"] = nn.Unflatten(1, tuple(shape))
    return nn.Sequential(layers)


def convolutional(image: Sequence[int], channels: Sequence[int] = (16, 32), code: int = 16) -> AutoEncoder:
    """An auto-encoder of convolutions that halve the image, and of transposed ones that double it again.

    Args:
        image: channels, height and width
        channels: channels of each convolution
        code: size of the code
    """
    return AutoEncoder(conv_encoder(image, channels, code), conv_decoder(image, channels, code))


def conv_encoder(image: Sequence[int], channels: Sequence[int], outputs: int) -> nn.Sequential:
    """Convolutions of stride 2 with ReLU, then one dense layer without; images (B, C, H, W) -> (B, outputs)."""
    sizes = _halved_sizes(image, channels)
    layers: OrderedDict[str, nn.Module] = OrderedDict(image=_Image(image))
    for i, (before, after) in enumerate(zip((image[0], *channels), channels), 1):
        layers[f"conv{i}"] = nn.Conv2d(before, after, 3, stride=2, padding=1)
        layers[f"relu{i}"] = nn.ReLU()
    layers["flat"] = nn.Flatten()
    layers["dense"] = nn.Linear(channels[-1] * math.prod(sizes[-1]), outputs)
    return nn.Sequential(layers)


def conv_decoder(image: Sequence[int], channels: Sequence[int], inputs: int) -> nn.Sequential:
    """The decoder: a dense layer, then transposed convolutions through the same sizes; (B, inputs) -> (B, C, H, W)."""
    sizes = _halved_sizes(image, channels)[::-1]
    layers: OrderedDict[str, nn.Module] = OrderedDict(dense=nn.Linear(inputs, channels[-1] * math.prod(sizes[0])))
    layers["shape"] = nn.Unflatten(1, (channels[-1], *sizes[0]))
    ways = zip(channels[::-1], (*channels[-2::-1], image[0]), sizes, sizes[1:])
    for i, (before, after, small, large) in enumerate(ways, 1):
        layers[f"relu{i}"] = nn.ReLU()
        # 2 n - 1 pixels come out of n; an image of even side needs one more
        more = (large[0] - 2 * small[0] + 1, large[1] - 2 * small[1] + 1)
        layers[f"conv{i}"] = nn.ConvTranspose2d(before, after, 3, stride=2, padding=1, output_padding=more)
    return nn.Sequential(layers)


@final
class _Image(nn.Module):
    """Checks the channels and the size of images."""

    def __init__(self, image: Sequence[int]) -> None:
        super().__init__()
        self.image = tuple(image)

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim != 4:
            raise _error(f"conv1 takes (batch, channels, height, width), not {tuple(x.shape)}", "give x four axes")
        if x.shape[1] != self.image[0]:
            raise _error(f"conv1 takes images with {self.image[0]} channels, not {x.shape[1]}", f"build it for {x.shape[1]} channels")
        if tuple(x.shape[2:]) != self.image[1:]:
            raise _error(f"dense takes images of {_shape_text(self.image[1:])}, not {_shape_text(x.shape[2:])}", "build it for that size")
        return x


def _halved_sizes(image: Sequence[int], channels: Sequence[int]) -> list[tuple[int, int]]:
    """Height and width of the image and after each convolution."""
    if len(image) != 3 or min(image) < 1:
        raise _error(f"image must be channels, height and width, not {tuple(image)}", "write image=(1, 28, 28)")
    if not channels or min(channels) < 1:
        raise _error(f"channels must be one or more numbers >= 1, not {tuple(channels)}")
    if min(image[1:]) < 2 ** len(channels):
        first = next(i for i in range(1, len(channels) + 1) if min(image[1:]) < 2**i)
        raise _error(f"an image of {_shape_text(image[1:])} is too small for conv{first}", "use fewer convolutions")
    sizes = [(image[1], image[2])]
    for _ in channels:
        height, width = sizes[-1]
        sizes.append(((height + 1) // 2, (width + 1) // 2))
    return sizes


def _check_widths(shape: Sequence[int], widths: Sequence[int]) -> list[int]:
    """Size of an example, then of the output of each layer."""
    if not shape or min(shape) < 1:
        raise _error(f"shape must be that of one example, not {tuple(shape)}", "write shape=(64,) or (1, 8, 8)")
    if not widths or min(widths) < 1:
        raise _error(f"widths must be one or more numbers >= 1, not {tuple(widths)}", "give that of the code last")
    return [math.prod(shape), *widths]


def _error(what: str, fix: str = "") -> BadInput:
    return BadInput(what, where="auto-encoder", fix=fix)


def _shape_text(shape: Any) -> str:
    return "x".join(map(str, shape))


def tiny() -> tuple[AutoEncoder, Batch]:
    """A small working instance with input."""
    rng = torch.Generator().manual_seed(0)
    return dense((1, 4, 4), (6, 3)), Batch(x=torch.rand(5, 1, 4, 4, generator=rng))
