"""Chapter 11, convolutional networks."""

from __future__ import annotations

import itertools
import math
import resource
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..core.batch import Batch, Data
from ..core.reading import Bars, Heat, Images, Lines, Subject, Table
from ..core.recipe import Recipe
from ..core.seeds import generator
from ..data.catalog import load
from ..data.tensors import TensorSource
from ..lenses import equivariance, feature_maps, filters, patches, receptive_field
from ..lenses.cost import cost, size_text
from ..models.cnn import CNN
from ..models.mlp import MLP
from ..nn.convolution import convolve, correlate, matrix, output_size
from ..objectives.categorical import Categorical
from ..optim.build import optimizer
from ..recipes import digits_cnn
from .exhibit import Exhibit, spread

BILLION = 10**9
LINE = [1.0, 2.0, 3.0, 4.0]


# CNN-01, CNN-02: what convolution is


def cnn_01(exhibit: Exhibit) -> str:
    """The integral of f(u) g(z - u) as a fine sum: two bells make a wider one, and it does not matter which is turned."""
    step = 0.05
    z = np.arange(-12, 12 + step / 2, step)

    def gaussian(mean: float, variance: float) -> np.ndarray:
        return np.exp(-((z - mean) ** 2) / (2 * variance)) / math.sqrt(2 * math.pi * variance)

    first, second = gaussian(-1.0, 0.5), gaussian(2.0, 1.3)
    kernel = torch.tensor(second)[None, None]
    convolution = convolve(torch.tensor(first)[None, None], kernel, padding=len(z) // 2, flip=True).flatten().numpy() * step
    turned = convolve(kernel, torch.tensor(first)[None, None], padding=len(z) // 2, flip=True).flatten().numpy() * step
    exhibit.expect("N(-1, 0.5) * N(2, 1.3) is N(1, 1.8)", convolution, gaussian(1.0, 1.8), within=1e-9)
    exhibit.expect("g * f is f * g", turned, convolution, within=1e-12)
    mass = convolution.sum() * step
    mean = (z * convolution).sum() * step
    variance = ((z - mean) ** 2 * convolution).sum() * step
    exhibit.expect("mass, mean and variance of f * g", [mass, mean, variance], [1.0, 1.0, 1.8], within=1e-6)
    lines = {"f, variance 0.5": first[::2], "g, variance 1.3": second[::2], "f * g": convolution[::2]}
    exhibit.show(Lines("A Gaussian convolved with a Gaussian", lines, axes=["z"], x=z[::2]))
    return f"variance 0.5 + 1.3 = {variance:.6f}; commutative to {np.abs(turned - convolution).max():.0e}"


def cnn_02(exhibit: Exhibit) -> str:
    """With and without turning the kernel: three rows of numbers that the notes mix up (E-01)."""
    x = torch.tensor(LINE)[None, None]

    def row(kernel: list[float], padding: int = 2, flip: bool = False) -> list[float]:
        return convolve(x, torch.tensor(kernel)[None, None], padding=padding, flip=flip).flatten().tolist()

    plain, turned = row([7, 6, 5]), row([7, 6, 5], flip=True)
    exhibit.expect("cross-correlation with (7, 6, 5)", plain, [5, 16, 34, 52, 45, 28])
    exhibit.expect("convolution with (5, 6, 7) is the same", row([5, 6, 7], flip=True), plain)
    exhibit.expect("convolution with (7, 6, 5)", turned, [7, 20, 38, 56, 39, 20])
    exhibit.expect("convolution by NumPy", np.convolve(LINE, [7, 6, 5]), turned)
    exhibit.expect("cross-correlation, valid places alone", row([7, 6, 5], padding=0), [34, 52])
    exhibit.expect("torch's layer does not turn its kernel", F.conv1d(x, torch.tensor([[[7.0, 6, 5]]]), padding=2).flatten(), plain)
    table = {"kernel": ["7 6 5", "5 6 7", "7 6 5"], "turned": ["no", "yes", "yes"], "result": [_text(plain), _text(plain), _text(turned)]}
    exhibit.show(Table("(1 2 3 4) and a kernel, at every position they touch", table))
    return f"without turning {_text(plain)}, with it {_text(turned)}"


def _text(row: Sequence[float]) -> str:
    return " ".join(f"{value:g}" for value in row)


# CNN-03 to CNN-07: one axis


def cnn_03(exhibit: Exhibit) -> str:
    """z_i = w1 x_{i-1} + w2 x_i + w3 x_{i+1} written as a loop over positions, against the layer; and its four numbers."""
    rng = exhibit.generator("cnn-03")
    errors = []
    for width, length in ((3, 11), (5, 8), (7, 7)):
        x, w, b = (torch.randn(*size, dtype=torch.float64, generator=rng) for size in ((length,), (width,), (1,)))
        half = width // 2
        expected = [b + sum(w[j] * x[i + j - half] for j in range(width) if 0 <= i + j - half < length) for i in range(length)]
        output = F.conv1d(x[None, None], w[None, None], b, padding=half).flatten()
        errors.append(exhibit.expect(f"kernel of {width}: h before its activation", torch.cat(expected), output, within=1e-12))
        exhibit.expect(f"kernel of {width}: h = max(0, z)", torch.cat(expected).clamp_min(0), torch.relu(output), within=1e-12)
    counts = [cost(nn.Conv1d(1, 1, 3, padding=1), (1, length)).parameters for length in (6, 60, 6000)]
    exhibit.expect("numbers of a kernel of 3, for inputs of 6, 60 and 6000", counts, [4, 4, 4])
    return f"3 weights and 1 bias whatever the length; largest difference {max(errors):.0e}"


def cnn_04(exhibit: Exhibit) -> str:
    """Zeros at the border keep the length, a stride thins it out, and a dilated kernel is one with zeros inside."""
    x = torch.randn(1, 1, 6, dtype=torch.float64, generator=exhibit.generator("cnn-04"))
    w = torch.tensor([[[2.0, -1.0, 3.0]]], dtype=torch.float64)
    sizes = [output.shape[-1] for output in (correlate(x, w, padding=1), correlate(x, w), correlate(x, w, padding=1, stride=2))]
    exhibit.expect("outputs of 6: zero padding, valid, stride 2", sizes, [6, 4, 3])
    filled = torch.tensor([[[2.0, 0.0, -1.0, 0.0, 3.0]]], dtype=torch.float64)
    for pad in (0, 2, 3):
        wide = correlate(x, w, padding=pad, dilation=2)
        exhibit.expect(f"dilation 2 is a kernel of 5 with zeros, padding {pad}", wide, correlate(x, filled, padding=pad))
        exhibit.expect(f"and torch's dilated layer, padding {pad}", wide, F.conv1d(x, w, padding=pad, dilation=2), within=1e-12)
    every = correlate(x, w, padding=1)
    exhibit.expect("a stride of 2 leaves out every second output", correlate(x, w, padding=1, stride=2), every[..., ::2])
    return "6 inputs: 6 with padding, 4 without, 3 with stride 2; dilated equals zero-filled exactly"


def cnn_05(exhibit: Exhibit) -> str:
    """A convolution is a dense layer whose matrix is mostly zero and repeats three numbers."""
    w = torch.tensor([[[2.0, -1.0, 3.0]]])
    banded = matrix(w, (6,), padding=1)
    x = torch.randn(6, generator=exhibit.generator("cnn-05"))
    exhibit.expect("the matrix does what the layer does", banded @ x, F.conv1d(x[None, None], w, padding=1).flatten(), within=1e-6)
    exhibit.expect(
        "dense weights, those not zero, different ones", [banded.numel(), int((banded != 0).sum()), len(w.unique())], [36, 16, 3]
    )
    diagonals = [banded.diagonal(k).unique().tolist() for k in (-1, 0, 1)]
    exhibit.expect("each diagonal holds one number", diagonals, [[2.0], [-1.0], [3.0]])
    free = {length: [length**2, cost(nn.Conv1d(1, 1, 3, padding=1), (1, length)).parameters] for length in (6, 100, 1000)}
    exhibit.expect("numbers of a dense layer and of a convolution, for 1000", free[1000], [10**6, 4])
    dense = torch.randn(6, 6, generator=generator(exhibit.seed + 1, "cnn-05"))
    heat = {"dense": dense, "convolution": banded}
    for name, values in heat.items():
        exhibit.show(Heat(f"Weights: {name}", {"weight": values}, axes=["output", "input"]))
    return "36 dense weights, 16 not zero, 3 free"


def cnn_06(exhibit: Exhibit) -> str:
    """Two kernels over one channel make two channels; a kernel is as deep as its input has channels, or there is an error."""
    layer = nn.Conv1d(1, 2, 3, padding=1)
    exhibit.expect("hidden units of 6 inputs", layer(torch.zeros(1, 1, 6)).numel(), 12)
    exhibit.expect("numbers", sum(p.numel() for p in layer.parameters()), 8)
    rng = exhibit.generator("cnn-06")
    x, w, b = (torch.randn(*size, dtype=torch.float64, generator=rng) for size in ((2, 4, 9), (5, 4, 3), (5,)))
    ours = correlate(x, w, bias=b, padding=1)
    exhibit.expect("4 channels to 5, with a layer of torch", ours, F.conv1d(x, w, b, padding=1), within=1e-12)
    each = sum(correlate(x[:, c : c + 1], w[:, c : c + 1], padding=1) for c in range(4))
    exhibit.expect("channels are convolved alone and summed", each + b[:, None], ours, within=1e-12)
    exhibit.refuses("a kernel of 3 channels on an input of 4", lambda: correlate(x, w[:, :3]))
    exhibit.refuses("a model for 3 channels on an image with 1", lambda: CNN((3, 8), 10, image=None)(torch.zeros(2, 1, 8, 8)))
    return "6 inputs, 2 kernels: 12 hidden units, 8 numbers; a wrong depth is refused"


def cnn_07(exhibit: Exhibit) -> str:
    """1 + sum (k - 1) d prod s, by the cost lens, against the pixels whose gradient is not zero."""
    stacks = {
        "3, 3, 3": [(3, 1, 1), (3, 1, 1), (3, 1, 1)],
        "strides": [(3, 2, 1), (5, 2, 1), (3, 1, 1)],
        "dilations": [(3, 1, 1), (3, 1, 2), (3, 1, 4)],
        "both": [(5, 2, 1), (3, 1, 3), (3, 2, 2)],
    }
    table: dict[str, list[str]] = {"stack (kernel/stride/dilation)": [], "formula": [], "measured": []}
    for name, layers in stacks.items():
        net = nn.Sequential(*(nn.Conv2d(1, 1, k, s, dilation=d) for k, s, d in layers)).double()
        for p in net.parameters():
            nn.init.ones_(p)  # nothing cancels, so whatever is seen has a gradient
        formula = [row.field[0] for row in cost(net, (1, 101, 101)).rows if row.field]
        measured = []
        for depth in range(1, len(layers) + 1):
            x = torch.zeros(1, 1, 101, 101, dtype=torch.float64, requires_grad=True)
            y = net[:depth](x)
            (seen,) = torch.autograd.grad(y[0, 0, y.shape[2] // 2, y.shape[3] // 2], x)
            positions = (seen[0, 0] != 0).any(0).nonzero()
            measured.append(int(positions[-1] - positions[0] + 1))  # from edge to edge: a dilated kernel leaves holes
        exhibit.expect(f"{name}: pixels with a gradient, layer by layer", measured, formula)
        table["stack (kernel/stride/dilation)"].append(" ".join(f"{k}/{s}/{d}" for k, s, d in layers))
        table["formula"].append(_text(formula))
        table["measured"].append(_text(measured))
    exhibit.expect("kernel 3, stride 1", table["formula"][0], "3 5 7")
    exhibit.show(Table("Receptive fields", table))
    example = Subject(CNN((1, 4, 6, 8), 2, image=None, hidden=0), Batch(x=load("shapes", seed=exhibit.seed, n=10, size=48).train[:1].x))
    for reading in receptive_field.read(example):
        exhibit.show(reading)
    return f"3, 5, 7 for three kernels of 3; {len(stacks)} stacks measured as the formula says"


# CNN-08 to CNN-11: two axes, sizes and counts


def cnn_08(exhibit: Exhibit) -> str:
    """Nine numbers and a kernel of four, by hand, and the same with letters."""
    x, w = torch.arange(9.0).reshape(1, 1, 3, 3), torch.arange(4.0).reshape(1, 1, 2, 2)
    output = correlate(x, w)[0, 0]
    exhibit.expect("0..8 with (0 1; 2 3) (E-02)", output.tolist(), [[19.0, 25.0], [37.0, 43.0]])
    terms = [["+".join(f"w{u}{v}*x{i + u}{j + v}" for u in range(2) for v in range(2)) for j in range(2)] for i in range(2)]
    values = {
        f"{name}{i}{j}": value
        for name, grid in (("x", x), ("w", w))
        for i, row in enumerate(grid[0, 0].tolist())
        for j, value in enumerate(row)
    }
    worked = [[sum(math.prod(values[f] for f in term.split("*")) for term in cell.split("+")) for cell in row] for row in terms]
    exhibit.expect("the sums of letters, with numbers put in", worked, output.tolist())
    rng = exhibit.generator("cnn-08")
    a, b = (torch.randn(*size, dtype=torch.float64, generator=rng) for size in ((2, 3, 7, 5), (4, 3, 3, 2)))
    exhibit.expect("3 channels to 4, with a layer of torch", correlate(a, b), F.conv2d(a, b), within=1e-12)
    exhibit.show(Table("Each output, written out", {"column 0": [row[0] for row in terms], "column 1": [row[1] for row in terms]}))
    return "19 25 / 37 43"


def cnn_09(exhibit: Exhibit) -> str:
    """The same as one matrix of four rows and nine columns; its transpose brings gradients back."""
    w = torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]]], dtype=torch.float64)
    conv_matrix = matrix(w, (3, 3))
    first = [1, 2, 0, 3, 4, 0, 0, 0, 0]
    rows = [[0] * by_ + first[: 9 - by_] for by_ in (0, 1, 3, 4)]
    exhibit.expect("rows (w1 w2 0 w3 w4 0 0 0 0), moved by 0, 1, 3, 4", conv_matrix.tolist(), [[float(v) for v in row] for row in rows])
    x = torch.arange(9, dtype=torch.float64).requires_grad_()
    y = matrix(torch.arange(4.0, dtype=torch.float64).reshape(1, 1, 2, 2), (3, 3)) @ x
    exhibit.expect("C x", y.tolist(), [19.0, 25.0, 37.0, 43.0])
    back = torch.tensor([1.0, -2.0, 0.5, 3.0], dtype=torch.float64)
    image = torch.arange(9, dtype=torch.float64).reshape(1, 1, 3, 3).requires_grad_()
    (gradient,) = torch.autograd.grad(F.conv2d(image, w), image, back.reshape(1, 1, 2, 2))
    exhibit.expect("C^T g is the gradient of torch's layer", (conv_matrix.T @ back).reshape(1, 1, 3, 3), gradient, within=1e-12)
    exhibit.expect("and its transposed convolution", F.conv_transpose2d(back.reshape(1, 1, 2, 2), w), gradient, within=1e-12)
    exhibit.show(Heat("A convolution of 3 x 3 by 2 x 2 as a matrix", {"weight": conv_matrix}, axes=["output", "input"]))
    return "4 x 9 matrix, rows moved by 1, 3, 4; its transpose is the gradient"


def cnn_10(exhibit: Exhibit) -> str:
    """floor((x + 2p - f) / s) + 1 against what torch's layer gives, for every size that fits (E-03, E-04)."""
    exhibit.expect("3 x 3 by 2 x 2", [output_size(3, 2)] * 2, [2, 2])
    exhibit.expect("5 x 7, padding 1, kernel 3", [output_size(n, 3, 1, 1) for n in (5, 7)], [5, 7])
    exhibit.expect("the same with stride 2", [output_size(n, 3, 2, 1) for n in (5, 7)], [3, 4])
    exhibit.expect("6 by 3, stride 2: rounded down", output_size(6, 3, 2), 2)
    wrong = tried = 0
    for x, f, s, p in itertools.product(range(1, 13), range(1, 7), range(1, 5), range(4)):
        if x + 2 * p >= f:
            tried += 1
            size = F.conv1d(torch.zeros(1, 1, x), torch.zeros(1, 1, f), stride=s, padding=p).shape[-1]
            wrong += {size} != {output_size(x, f, s, p), (x + 2 * p - f + s) // s}
    exhibit.expect("sizes where torch and the two formulas differ", wrong, 0)
    keeps = [output_size(n, f, padding=(f - 1) // 2) - n for n in (5, 12) for f in (1, 3, 5, 7)]
    exhibit.expect("2p = f - 1 keeps the size", keeps, [0] * 8)
    return f"{tried} sizes agree with torch; 5 x 7 stays 5 x 7, or 3 x 4 with stride 2"


def cnn_11(exhibit: Exhibit) -> str:
    """K (F F D + 1) numbers, whatever the image; a dense layer has in * out + out."""
    counts = [cost(nn.Conv2d(d, k, f), (d, 20, 20)).parameters for d, k, f in ((1, 5, 3), (5, 10, 5), (10, 20, 2))]
    exhibit.expect("1 to 5 by 3, 5 to 10 by 5, 10 to 20 by 2", counts, [50, 1260, 820])
    exhibit.expect("the formula", [k * (f * f * d + 1) for d, k, f in ((1, 5, 3), (5, 10, 5), (10, 20, 2))], counts)
    exhibit.expect("dense 2800 to 6", cost(nn.Linear(2800, 6), (2800,)).parameters, 2800 * 6 + 6)
    return "50, 1260 and 820 numbers"


# CNN-12, CNN-16: networks counted


def example_network() -> nn.Module:
    """Conv, ReLU, pool three times, flatten, linear: an image of 192 x 256 gray pixels into 6 scores."""
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
    model = example_network()
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
        Table(
            "The worked 192 x 256 network",
            {
                "layer": [row.name for row in rows],
                "channels x height x width": [size_text(row.output) for row in rows],
                "weights": [row.weights for row in rows],
                "biases": [row.biases for row in rows],
            },
        )
    )
    return f"{total} parameters, sizes down to {size_text(rows[-2].output)}"


def _windows(pixels: int, window: int, stride: int) -> int:
    """How many outputs a convolution without padding has along one axis, as counted by the cost lens."""
    return cost(nn.Conv1d(1, 1, window, stride), (1, pixels)).rows[0].output[-1]


def cnn_16(exhibit: Exhibit) -> str:
    """Dense layers as wide as an image: counted on the meta device, where a tensor has a size and no memory."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    color, gray = 256 * 256 * 3, 256 * 256
    counted = {
        "MLP on gray images": cost(lambda: MLP((gray, gray, gray)), (gray,)).parameters,
        "MLP on color images": cost(lambda: MLP((color, color, color)), (color,)).parameters,
        "the same with three classes": cost(lambda: MLP((color, color, color, 3)), (3, 256, 256)).parameters,
    }
    taken = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 2**20  # ru_maxrss counts KiB
    small, large, whole = counted.values()
    exhibit.expect("two dense layers, 256 x 256 gray", small, 8590065664)
    exhibit.expect("two dense layers, 256 x 256 color", large, 77309804544)
    exhibit.expect("with a layer of three outputs", whole, 77310394371)
    exhibit.below(f"GiB of memory taken to count {4 * whole / 2**30:.0f} GiB of weights", taken, 0.5)
    exhibit.above("parameters, in language models of 7 billion", whole / (7 * BILLION), 1)
    exhibit.above("parameters, in language models of 70 billion", whole / (70 * BILLION), 1)
    lines = {"language model, small": 7 * BILLION, **counted, "language model, large": 70 * BILLION}
    bars = {"parameters": list(lines.values())}
    exhibit.show(Bars("Dense layers on an image, and language models", bars, axes=["network"], labels=list(lines)))
    return f"{large:,} parameters; {large / (7 * BILLION):.1f} language models of 7B, {large / (70 * BILLION):.1f} of 70B"


# CNN-13 to CNN-15: pooling, symmetry, sparsity


def cnn_13(exhibit: Exhibit) -> str:
    """Largest value and mean of every window, by a loop over windows; and a stride that shrinks a map as pooling does."""
    x = torch.randn(2, 3, 23, 31, dtype=torch.float64, generator=exhibit.generator("cnn-13"))

    def pool(function: Any, side: int, stride: int) -> Tensor:
        high, wide = (output_size(n, side, stride) for n in x.shape[2:])
        windows = [[x[:, :, i * stride : i * stride + side, j * stride : j * stride + side] for j in range(wide)] for i in range(high)]
        return torch.stack([torch.stack([function(window.flatten(2)) for window in row], -1) for row in windows], -2)

    largest, mean = pool(lambda v: v.amax(-1), 5, 2), pool(lambda v: v.mean(-1), 5, 2)
    exhibit.expect("pool 5/2 of 23 x 31", list(largest.shape[2:]), [10, 14])
    exhibit.expect("largest values, with torch's layer", largest, nn.MaxPool2d(5, 2)(x), within=1e-12)
    exhibit.expect("means, with torch's layer", mean, nn.AvgPool2d(5, 2)(x), within=1e-12)
    middle = pool(lambda v: v.median(-1).values, 3, 3)
    exhibit.expect("any function of a window: medians, first window", middle[0, 0, 0, 0], np.median(x[0, 0, :3, :3].numpy()), within=1e-12)
    even = torch.zeros(1, 3, 24, 30)
    sizes = [list(layer(even).shape[2:]) for layer in (nn.MaxPool2d(2), nn.Conv2d(3, 3, 3, stride=2, padding=1), nn.Conv2d(3, 3, 2, 2))]
    exhibit.expect("24 x 30: pool 2/2, convolutions 3/2 and 2/2", sizes, [[12, 15]] * 3)
    averages = nn.Conv2d(3, 3, 2, 2, groups=3, bias=False).double()
    nn.init.constant_(averages.weight, 0.25)
    exhibit.expect("a stride-2 convolution can be mean pooling", averages(x), F.avg_pool2d(x, 2), within=1e-12)
    return "pool 5/2 on 23 x 31 gives 10 x 14; stride-2 convolutions shrink as pool 2/2 does"


def cnn_14(exhibit: Exhibit) -> str:
    """Shifting before or after a layer: the same for a convolution, and not for turning or enlarging (E-31)."""
    torch.manual_seed(exhibit.seed)
    around = nn.Conv2d(1, 5, 3, padding=1, padding_mode="circular").double()
    pooled = nn.Sequential(around, nn.ReLU(), nn.MaxPool2d(2))
    whole = nn.Sequential(around, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    batch = Batch(x=load("shapes", seed=exhibit.seed, n=80, size=24).train[:32].x.double())
    with torch.no_grad():
        errors = {change: own["0"] for change, own in equivariance.errors(nn.Sequential(around), batch, 1).items()}
        invariant = [(whole(batch.x) - whole(batch.x.roll(by_, (2, 3)))).abs().max() for by_ in ((1, 2), (5, 0), (3, 11))]
        partly = _unchanged_fraction(pooled, batch.x)
        noise = torch.randn(200, 1, 24, 24, dtype=torch.float64, generator=exhibit.generator("cnn-14"))
        unlike = _unchanged_fraction(pooled, noise)
    exhibit.below("circular convolution: error of shifting by 1", errors["circular shift"], 1e-12)
    exhibit.below("global pooling after it: difference of outputs under any shift", max(invariant), 1e-12)
    exhibit.above("turning by 90 degrees: error", errors["rotation"], 0.05)
    exhibit.above("enlarging to twice the size: error", errors["enlargement"], 0.05)
    exhibit.exceeds("2 x 2 pooling: share of outputs that a shift by 1 leaves alone, smooth images over noise", partly, unlike)
    exhibit.below("the same of smooth images, at most", partly, 0.999)
    symmetric = nn.Conv2d(1, 5, 3, padding=1, padding_mode="circular").double()
    symmetric.weight.data[:] = (
        around.weight + around.weight.rot90(1, (2, 3)) + around.weight.rot90(2, (2, 3)) + around.weight.rot90(3, (2, 3))
    ).detach()
    with torch.no_grad():
        turned = equivariance.errors(nn.Sequential(symmetric), batch, 1)["rotation"]["0"]
    exhibit.below("a kernel that is itself the same when turned: error of turning", turned, 1e-12)
    bars = {"error": [*errors.values(), turned]}
    exhibit.show(Bars("Error of equivariance of one convolution", bars, axes=["change"], labels=[*errors, "turn, symmetric kernel"]))
    return (
        f"shift {errors['circular shift']:.0e}, turn {errors['rotation']:.2f}, enlarge {errors['enlargement']:.2f}; "
        f"2 x 2 pooling keeps {partly:.0%} of outputs under a shift by 1 ({unlike:.0%} on noise)"
    )


def _unchanged_fraction(net: nn.Module, x: Tensor) -> float:
    """Fraction of outputs that a shift of the image by one pixel changes by less than a twentieth of their deviation."""
    before, after = net(x), net(x.roll(1, 3))
    return float(((before - after).abs() < 0.05 * before.std()).double().mean())


def cnn_15(exhibit: Exhibit) -> str:
    """Locality as zeros of the Jacobian, sharing as equal rows: what a convolution believes before it has seen an image."""
    torch.manual_seed(exhibit.seed)
    depth, side = 3, 5
    layer = nn.Conv2d(depth, 2, side).double()
    x = torch.randn(depth, 9, 8, dtype=torch.float64)
    jacobian = torch.autograd.functional.jacobian(lambda image: layer(image[None])[0], x).flatten(3)
    per_output = (jacobian != 0).sum(-1)
    exhibit.expect("inputs that each output looks at: F F D", per_output.unique().tolist(), [side * side * depth])
    values = [jacobian[k][jacobian[k] != 0].reshape(-1, side * side * depth) for k in range(2)]
    exhibit.expect("rows of different places hold the same weights", max((v - v[0]).abs().max().item() for v in values), 0.0, within=1e-15)
    dense = x.numel() * layer(x[None]).numel() + layer(x[None]).numel()
    own = sum(p.numel() for p in layer.parameters())
    exhibit.expect("numbers of the dense layer with the same ends", dense, 216 * 40 + 40)
    exhibit.expect("numbers of the convolution", own, 2 * (25 * 3 + 1))
    exhibit.show(Heat("Which inputs each output sees", {"weight": jacobian.flatten(0, 2)}, axes=["output", "input"]))
    return f"{side * side * depth} non-zeros for each of 40 outputs; dense over convolution {dense / own:.0f} to 1"


# CNN-17, CNN-18: what kernels see


def cnn_17(exhibit: Exhibit) -> str:
    """Kernels set by hand: edges, smoothing, a line out of spots, and a corner out of lines."""
    across = torch.tensor([[-1.0, 0, 1], [-2, 0, 2], [-1, 0, 1]])
    stripe = torch.zeros(9, 9)
    stripe[:, 5:] = 1
    answers = {
        f"{kernel} on {image}": correlate(x[None, None], w[None, None]).abs().max()
        for kernel, w in (("vertical", across), ("horizontal", across.T))
        for image, x in (("vertical", stripe), ("horizontal", stripe.T))
    }
    exhibit.expect("Sobel kernels on edges: largest answer", [float(v) for v in answers.values()], [4.0, 0.0, 0.0, 4.0])
    shape = load("shapes", seed=exhibit.seed, n=10, size=32, noise=0).train[:1].x
    blurred = nn.functional.conv2d(nn.functional.pad(shape, (1,) * 4, mode="circular"), torch.full((1, 1, 3, 3), 1 / 9))
    exhibit.expect("a box blur keeps the mean", blurred.mean(), float(shape.mean()), within=1e-6)
    line, away = (_line_response(angle) for angle in (0.0, 90.0))
    exhibit.above("a row of center-surround kernels: aligned line over crossed line", line / away, 2)
    turns = torch.arange(0, 91, 15).tolist()
    tuned = [float(_line_response(angle)) for angle in turns]
    exhibit.below("from 30 degrees on: largest answer, of that to the aligned line", max(tuned[2:]) / tuned[0], 0.5)
    corners, fired = _corner_net()
    exhibit.expect("pictures at whose middle the two-layer net fires", fired, ["corner"])
    exhibit.expect("places of a square's outline where it fires", corners, [[4, 4]])
    exhibit.show(Lines("Answer of a row of spots to a turned line", {"answer": tuned}, axes=["degrees"], x=turns))
    edges = correlate(shape, torch.stack([across, across.T])[:, None], padding=1)[0].abs()
    sheet = {"images": [shape[0, 0].clamp(0, 1), *(edge / edge.max() for edge in edges), blurred[0, 0].clamp(0, 1)]}
    exhibit.show(Images("A shape, its edges and its blur", sheet, labels=["image", "vertical", "horizontal", "blur"]))
    return f"Sobel 4 and 0; spots in a row answer {line / away:.1f} times as much to their own line; corners found by two layers"


def _line_response(degrees: float, side: int = 21) -> Tensor:
    """What five center-surround kernels along the middle row add up to, on a line through the middle that is turned."""
    grid = torch.arange(side) - side // 2.0
    distance = grid[None, :].square() + grid[:, None].square()
    bells = [torch.exp(-distance / (2 * s * s)) / (2 * math.pi * s * s) for s in (1.0, 2.0)]
    spots = sum((bells[0] - bells[1]).roll(shift, 1) for shift in (-4, -2, 0, 2, 4))
    turn = math.radians(degrees)
    line = (math.cos(turn) * grid[:, None] - math.sin(turn) * grid[None, :]).abs() < 0.8
    return (spots * line).sum().relu()


def _corner_net() -> tuple[list[list[int]], list[str]]:
    """First layer: ends of a horizontal and of a vertical stroke; second: both at one place.  Fires at upper left corners alone."""
    right = torch.tensor([[0.0, -1, 0], [-1, 1, 1], [0, 0, 0]])  # ink here and to the right, none to the left and above
    down = torch.tensor([[0.0, -1, 0], [-1, 1, 0], [0, 1, 0]])

    def fire(image: Tensor) -> Tensor:
        first = torch.relu(correlate(image[None, None], torch.stack([right, down])[:, None], padding=1) - 1)
        return (correlate(first, torch.ones(1, 2, 1, 1)) - 1).relu()[0, 0]

    images = {name: torch.zeros(9, 9) for name in ("row", "column", "corner", "cross", "dot")}
    images["row"][4] = images["column"][:, 4] = images["dot"][4, 4] = 1
    images["corner"][4, 4:] = images["corner"][4:, 4] = 1
    images["cross"][4] = images["cross"][:, 4] = 1
    fired = [name for name, image in images.items() if fire(image)[4, 4] > 0]
    square = torch.zeros(12, 12)
    square[4, 4:9] = square[8, 4:9] = square[4:9, 4] = square[4:9, 8] = 1
    return fire(square).nonzero().tolist(), fired


def cnn_18(exhibit: Exhibit) -> str:
    """A trained network opened: filters, maps and the patches its units like; any size through pooling; and a series."""
    recipe = digits_cnn.recipe(width=16, lr=6e-3, epochs=8).replace(data=load("digits", seed=exhibit.seed))
    runs = [exhibit.train(recipe, f"digits-{seed}", seed=seed) for seed in exhibit.seeds(3)]
    accuracy = [run.result["metrics"]["test/accuracy"] for run in runs]
    exhibit.above("digits: test accuracy", accuracy, 0.95)
    model, data = runs[0].model(), runs[0].data
    subject = Subject(model, data.splits["test"][:64], data=data)
    for lens in (filters, feature_maps, patches):
        reading = lens.read(subject)
        exhibit.show(reading)
    sizes = [
        row.output
        for row in cost(model, tuple(subject.batch.x.shape[1:])).rows
        if len(row.output) == 3 and row.kind in ("Conv2d", "MaxPool2d")
    ]
    exhibit.expect("maps shrink from layer to layer", [r[1] for r in sizes], sorted((r[1] for r in sizes), reverse=True))
    exhibit.expect("channels grow", [r[0] for r in sizes], sorted(r[0] for r in sizes))
    free = CNN((1, 4, 8), 3, hidden=0, image=None)
    shapes = [list(free(torch.zeros(2, 1, *size)).shape) for size in ((8, 8), (13, 21), (64, 40))]
    exhibit.expect("one network, images of three sizes", shapes, [[2, 3]] * 3)
    series = [_series(exhibit, seed) for seed in exhibit.seeds(3)]
    exhibit.above("a series, its kind told by a 1-D network: test accuracy", series, 0.95)
    return f"digits {spread(accuracy, '.1%')}; three kinds of wave {spread(series, '.1%')}, {len(series)} seeds"


def _series(exhibit: Exhibit, seed: int) -> float:
    """Sines, squares and saw teeth of any pitch and phase with noise; accuracy on those held out, of another length as well."""
    rng = generator(seed, "cnn-18")

    def waves(n: int, length: int) -> TensorSource:
        kind = torch.arange(n) % 3
        pitch, start = (torch.rand(n, 1, generator=rng) for _ in range(2))
        turn = ((0.06 + 0.06 * pitch) * torch.arange(length) + start) % 1
        sine, square, saw = torch.sin(2 * math.pi * turn), (turn < 0.5) * 2.0 - 1, 2 * turn - 1
        wave = torch.where(kind[:, None] == 0, sine, torch.where(kind[:, None] == 1, square, saw))
        return TensorSource((wave + 0.3 * torch.randn(n, length, generator=rng)).unsqueeze(1), kind)

    data = Data(waves(600, 64), test=waves(150, 96), name="waves", task="classes", classes=("sine", "square", "saw"))
    recipe = Recipe(
        model=lambda: CNN((1, 16, 32), 3, hidden=0, kernel=5, image=None, axes=1),
        data=data,
        objective=Categorical(3),
        optimizer=optimizer("adamw", lr=1e-2),
        epochs=12,
        batch_size=50,
    )
    return exhibit.train(recipe, f"waves-{seed}", seed=seed).result["metrics"]["test/accuracy"]
