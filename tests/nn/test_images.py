"""Convolutions, and norms with what follows them: kernels where nothing looks, the modules where somebody does, with equal results."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sonde.kernels import available, why_not
from sonde.kernels.convolve import _Convolve
from sonde.kernels.normalize import _Normalize
from sonde.models.cnn import CNN
from sonde.models.resnet import ResNet
from sonde.models.unet import UNet
from sonde.models.vgg import VGG
from sonde.nn.fold import fold
from sonde.nn.images import apply_convolution, apply_norm, run_layers

pytestmark = pytest.mark.skipif(not available(), reason=why_not() or "kernels serve")

MODELS: dict[str, tuple[Callable[[], nn.Module], int, int]] = {
    "post": (lambda: ResNet((1, 2), 5, channels=2, width=16, large=False, shortcut="pad"), 12, 7),
    "projection": (lambda: ResNet((1, 1), 5, channels=2, width=16, bottleneck=True, zero=True, skip=0.5), 20, 9),
    "pre": (lambda: ResNet((1, 1), 5, channels=2, width=16, large=False, activation="pre"), 9, 5),
    "cnn": (lambda: CNN((2, 16, 17), 5, norm=True, image=None, pool=1), 7, 2),
    "pooled cnn": (lambda: CNN((2, 16, 17), 5, norm=True, image=None), 8, 2),
    "vgg": (lambda: VGG(11, 5, channels=2, hidden=8, norm=True, dropout=0.0), 32, 8),
    "unet": (lambda: UNet(2, 3, width=16, depth=1, padded=True, norm=True), 6, 6),
}
"""how to make it, the side of its images, and how many norms it has"""


@pytest.fixture(autouse=True)
def calls(monkeypatch) -> list[int]:
    """The kernel serves also where torch's is faster; counts its calls."""
    record, apply = [], _Normalize.apply
    monkeypatch.setattr("sonde.kernels.normalize.LEAST", 0)
    monkeypatch.setattr(_Normalize, "apply", lambda *args: record.append(1) or apply(*args))
    return record


@pytest.fixture(autouse=True)
def convolutions(monkeypatch) -> list[int]:
    """The same for the kernel of convolutions; gives their channels out."""
    channels, apply = [], _Convolve.apply
    for name in ("FEWEST", "NARROWEST", "TILE"):
        monkeypatch.setattr(f"sonde.kernels.convolve.{name}", 1)
    monkeypatch.setattr(_Convolve, "apply", lambda *args: channels.append(len(args[1])) or apply(*args))
    return channels


def served(model: nn.Module) -> int:
    """How many convolutions of a model the kernel can do."""
    return sum(
        type(part) is nn.Conv2d and (part.kernel_size, part.stride, part.padding) == ((3, 3), (1, 1), (1, 1)) for part in model.modules()
    )


def trained(model: nn.Module, side: int, steps: int = 2) -> list[Tensor]:
    """Losses of a few steps, then the whole state and the gradients of the last one."""
    model = copy.deepcopy(model).double().to(memory_format=torch.channels_last)
    rng, losses = torch.Generator().manual_seed(1), []
    for _ in range(steps):
        x = torch.randn(3, 2, side, side, generator=rng, dtype=torch.float64).contiguous(memory_format=torch.channels_last)
        y = model(x)
        model.zero_grad()
        loss = F.cross_entropy(y.flatten(0, -2), torch.arange(y[..., 0].numel()) % y.shape[-1])
        loss.backward()
        losses.append(loss.detach())
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.05 * parameter.grad
    return [*losses, *model.state_dict().values(), *(parameter.grad for parameter in model.parameters())]


@pytest.mark.parametrize("name", MODELS)
def test_models_train_as_with_torch(name, calls, convolutions, monkeypatch):
    monkeypatch.setattr("sonde.models.vgg.WIDTHS", (16, 17, 18, 19, 20))
    make, side, norms = MODELS[name]
    torch.manual_seed(0)
    model = make()
    ours = trained(model, side)
    assert len(calls) == 2 * norms and len(convolutions) == 2 * served(model) > 0
    monkeypatch.setattr("sonde.kernels.normalize.LEAST", 1 << 60)
    monkeypatch.setattr("sonde.kernels.convolve.FEWEST", 1 << 60)
    theirs = trained(model, side)
    assert len(calls) == 2 * norms and len(convolutions) == 2 * served(model)
    monkeypatch.setattr("sonde.models.resnet.apply_norm", module_by_module)
    monkeypatch.setattr("sonde.models.resnet.apply_convolution", lambda layer, x: layer(x))
    for folder in ("resnet", "cnn", "vgg", "unet"):
        monkeypatch.setattr(f"sonde.models.{folder}.run_layers", lambda layers, x: layers(x))
    plain = trained(model, side)
    for one, two, three in zip(ours, theirs, plain, strict=True):
        torch.testing.assert_close(one, three, rtol=1e-8, atol=1e-9)
        torch.testing.assert_close(two, three, rtol=1e-8, atol=1e-9)


def module_by_module(norm: nn.Module, x: Tensor, relu: nn.Module, other: Tensor | None = None) -> Tensor:
    y = norm(x)
    return relu(y if other is None else y + other)


def images(channels: int = 16) -> Tensor:
    return torch.randn(2, channels, 3, 4, generator=torch.Generator().manual_seed(3)).contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("which", ["norm", "relu"])
@pytest.mark.parametrize(
    "hook", ["register_forward_hook", "register_forward_pre_hook", "register_full_backward_hook", "register_full_backward_pre_hook"]
)
def test_a_hook_sees_the_module(which, hook, calls):
    norm, relu, seen = nn.BatchNorm2d(16), nn.ReLU(), []
    getattr({"norm": norm, "relu": relu}[which], hook)(lambda *args: seen.append(1))
    apply_norm(norm, images().requires_grad_(), relu, images()).sum().backward()
    assert seen == [1] and not calls and norm.num_batches_tracked == 1


def test_a_hook_on_all_modules_sees_them(calls):
    seen: list[nn.Module] = []
    handle = nn.modules.module.register_module_forward_hook(lambda module, *others: seen.append(module))
    try:
        layers = nn.Sequential(nn.Conv2d(16, 16, 1), nn.BatchNorm2d(16), nn.ReLU())
        run_layers(layers, images())
    finally:
        handle.remove()
    assert seen == [*layers, layers] and not calls


def test_a_hook_on_the_sequence_sees_it(calls):
    layers, seen = nn.Sequential(nn.BatchNorm2d(16), nn.ReLU()), []
    layers.register_forward_hook(lambda *args: seen.append(1))
    run_layers(layers, images())
    assert seen == [1] and not calls


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.BatchNorm2d(16).eval(),
        lambda: nn.BatchNorm2d(16, affine=False),
        lambda: nn.BatchNorm2d(16, momentum=None),
        lambda: nn.BatchNorm2d(16, track_running_stats=False),
        lambda: type("Own", (nn.BatchNorm2d,), {})(16),
        lambda: nn.InstanceNorm2d(16),
        nn.Identity,
    ],
)
def test_other_norms_are_called(make, calls):
    norm, x, other = make(), images(), images() + 1
    want = (copy.deepcopy(norm)(x) + other).relu()
    torch.testing.assert_close(apply_norm(norm, x.clone(), nn.ReLU(), other), want)
    assert not calls


def test_averages_as_the_module_keeps_them(calls):
    ours, theirs = nn.BatchNorm2d(21, momentum=0.2), nn.BatchNorm2d(21, momentum=0.2)
    for shift in range(3):
        apply_norm(ours, images(21) + shift)
        theirs(images(21) + shift)
    assert len(calls) == 3
    for name, one in ours.state_dict().items():
        torch.testing.assert_close(one, theirs.state_dict()[name])


def test_other_modules_after_the_norm(calls):
    layers = nn.Sequential(nn.BatchNorm2d(16), nn.MaxPool2d(2), nn.ReLU(), nn.BatchNorm2d(16), nn.ReLU6(), nn.BatchNorm2d(16))
    got, want = run_layers(copy.deepcopy(layers), images()), layers(images())
    torch.testing.assert_close(got, want)
    assert len(calls) == 3


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.Conv2d(16, 18, 3, padding=1),
        lambda: nn.Conv2d(16, 18, 3, padding="same", bias=False),
    ],
)
def test_convolutions_that_keep_the_size(make, convolutions):
    layer, x = make().double(), images().double()
    torch.testing.assert_close(apply_convolution(layer, x), layer(x))
    assert convolutions == [18]


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.Conv2d(16, 18, 3),
        lambda: nn.Conv2d(16, 18, 3, padding=(1, 0)),
        lambda: nn.Conv2d(16, 18, (3, 1), padding="same"),
        lambda: nn.Conv2d(16, 18, 3, padding=1, stride=(1, 2)),
        lambda: nn.Conv2d(16, 18, 3, padding="same", dilation=2),
        lambda: nn.Conv2d(16, 18, 3, padding=1, groups=2),
        lambda: nn.Conv2d(16, 18, 3, padding=1, padding_mode="circular"),
        lambda: type("Own", (nn.Conv2d,), {})(16, 18, 3, padding=1),
        lambda: nn.utils.parametrizations.weight_norm(nn.Conv2d(16, 18, 3, padding=1)),
        nn.Identity,
    ],
)
def test_other_layers_are_called(make, convolutions):
    layer, x = make(), images()
    assert torch.equal(apply_convolution(layer, x), layer(x)) and not convolutions


def test_a_hook_sees_the_convolution(convolutions):
    layer, seen = nn.Conv2d(16, 18, 3, padding=1), []
    layer.register_forward_hook(lambda *args: seen.append(1))
    apply_convolution(layer, images())
    assert seen == [1] and not convolutions


@pytest.mark.parametrize("model", [lambda: ResNet((1,), 5, channels=2, width=16, large=False, activation="pre"), lambda: folded_block()])
def test_what_a_hook_was_shown_stays_as_it_was(model):
    net, kept = model(), []
    net.layer1[0].conv2.register_forward_hook(lambda layer, inputs, y: kept.extend([y, y.clone()]))
    with torch.no_grad():
        net(torch.randn(2, 2, 8, 8))
    assert torch.equal(*kept)


def folded_block() -> nn.Module:
    return fold(ResNet((1,), 5, channels=2, width=16, large=False), torch.randn(1, 2, 8, 8)).model
