"""ResNet: sizes as published, the numbers of timm both ways through safetensors files, formulas written out, clear errors."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from sonde.core.errors import BadInput, DataUnusable
from sonde.core.options import options_of, resolve
from sonde.models.hf._weights import load_weights, save_weights
from sonde.models.resnet import ResidualBlock, ResNet, cifar, imagenet, subsample_and_pad
from tests.models.timm_peer import lived, timm


def count(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("depth, size", [(18, 11_689_512), (34, 21_797_672), (50, 25_557_032), (101, 44_549_160), (152, 60_192_808)])
def test_sizes_for_imagenet(depth, size):
    with torch.device("meta"):
        assert count(imagenet(depth)) == size


@pytest.mark.parametrize("depth", [20, 32, 44, 56, 110])
def test_sizes_for_cifar(depth):
    n = (depth - 2) // 6
    convolutions = 27 * 16 + 9 * (2 * n * 16**2 + 16 * 32 + (2 * n - 1) * 32**2 + 32 * 64 + (2 * n - 1) * 64**2)
    norms = 2 * (16 + 2 * n * (16 + 32 + 64))
    with torch.device("meta"):
        assert count(cifar(depth)) == convolutions + norms + 65 * 10
        assert count(cifar(depth, shortcut="projection")) - count(cifar(depth)) == 16 * 32 + 32 * 64 + 2 * (32 + 64)
    assert depth != 20 or convolutions + norms + 650 == 269_722


@pytest.mark.parametrize("name, depth", [("resnet18", 18), ("resnet34", 34), ("resnet50", 50)])
def test_equal_to_timm_both_ways(name, depth, tmp_path):
    peer = timm()
    from safetensors.torch import load_file, save_file

    ours, theirs = lived(imagenet(depth, classes=7)).eval(), peer.create_model(name, num_classes=7).eval()
    x = torch.randn(2, 3, 50, 41)
    with torch.no_grad():
        save_weights(ours, tmp_path / "ours.safetensors")
        theirs.load_state_dict(load_file(tmp_path / "ours.safetensors"), strict=True)
        torch.testing.assert_close(ours(x), theirs(x), rtol=1e-5, atol=1e-5)
        other = lived(peer.create_model(name, num_classes=7), seed=2).eval()
        save_file(other.state_dict(), tmp_path / "theirs.safetensors")
        torch.testing.assert_close(load_weights(ours, tmp_path / "theirs.safetensors")(x), other(x), rtol=1e-5, atol=1e-5)


def test_training_is_equal_to_timm():
    ours, theirs = lived(imagenet(18, classes=5)).double(), timm().create_model("resnet18", num_classes=5).double()
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(3, 3, 35, 42, dtype=torch.float64)
    grads = [torch.autograd.grad(model(x).square().sum(), list(model.parameters())) for model in (ours, theirs)]
    names = [[name for name, _ in model.named_parameters()] for model in (ours, theirs)]
    named_grads = [dict(zip(*pair, strict=True)) for pair in zip(names, grads, strict=True)]
    assert named_grads[0].keys() == named_grads[1].keys()
    for name, slope in named_grads[0].items():
        torch.testing.assert_close(slope, named_grads[1][name], rtol=1e-9, atol=1e-11)


def v2(name: str) -> str:
    """A tensor's name in timm's networks with norms in front."""
    if name.startswith(("conv1", "bn1", "fc")):
        return name.replace("conv1", "stem.conv").replace("bn1", "norm").replace("fc", "head.fc")
    name = re.sub(r"layer(\d)\.(\d+)", lambda m: f"stages.{int(m[1]) - 1}.blocks.{m[2]}", name)
    return name.replace(".bn", ".norm").replace("downsample.0", "downsample.conv")


@pytest.mark.parametrize("depth", [18, 50])
def test_norms_in_front_equal_timms_second_version(depth):
    ours, theirs = (
        lived(imagenet(depth, classes=6, activation="pre")).eval(),
        timm().create_model(f"resnetv2_{depth}", num_classes=6).eval(),
    )
    state = {v2(name): part for name, part in ours.state_dict().items()}
    state["head.fc.weight"] = state["head.fc.weight"][:, :, None, None]
    theirs.load_state_dict(state, strict=True)
    x = torch.randn(2, 3, 40, 51)
    with torch.no_grad():
        torch.testing.assert_close(ours(x), theirs(x), rtol=1e-5, atol=1e-5)


def normed(x, norm):
    """Batch norm from its formula, over the batch and the pixels."""
    mean, variance = x.mean((0, 2, 3), keepdim=True), x.var((0, 2, 3), unbiased=False, keepdim=True)
    return (x - mean) / (variance + norm.eps).sqrt() * norm.weight[:, None, None] + norm.bias[:, None, None]


def test_a_shortcut_without_weights_equals_the_formula():
    torch.manual_seed(0)
    model = lived(cifar(8, classes=5, channels=2, skip=0.7)).double()
    x = torch.randn(3, 2, 11, 9, dtype=torch.float64)
    h = normed(F.conv2d(x, model.conv1.weight, padding=1), model.bn1).clamp(min=0)
    for stride, stage in ((1, model.layer1), (2, model.layer2), (2, model.layer3)):
        (block,) = stage
        f = normed(F.conv2d(h, block.conv1.weight, stride=stride, padding=1), block.bn1).clamp(min=0)
        f = normed(F.conv2d(f, block.conv2.weight, padding=1), block.bn2)
        shortcut = torch.zeros_like(f)
        shortcut[:, : h.shape[1]] = h[:, :, ::stride, ::stride]
        h = (f + 0.7 * shortcut).clamp(min=0)
    expected = h.mean((2, 3)) @ model.fc.weight.T + model.fc.bias
    torch.testing.assert_close(model(x), expected, rtol=1e-10, atol=1e-11)
    wanted = list(model.parameters())
    for ours, theirs in zip(*(torch.autograd.grad(y.square().sum(), wanted) for y in (model(x), expected)), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("bottleneck", [False, True])
@pytest.mark.parametrize("activation", ["post", "pre"])
def test_blocks_that_begin_with_nothing_to_add(activation, bottleneck):
    model = ResNet((1, 3), classes=4, width=8, bottleneck=bottleneck, large=False, activation=activation, zero=True)
    x = torch.rand(2, 32 if not bottleneck else 64, 6, 5)[:, : (16 if not bottleneck else 64)]
    for block in model.layer2[1:]:
        torch.testing.assert_close(block(x), x, rtol=0, atol=0)
    slopes = torch.autograd.grad(model.layer2[1](x).square().sum(), model.layer2[1].last.weight)[0]
    assert slopes.abs().max() > 0  # so they do not stay like that


def test_fifty_scaled_skips_scale_the_gradient():
    model = ResNet((51,), classes=2, width=3, large=False, activation="pre", skip=0.9, zero=True).double().eval()
    x = torch.randn(2, 3, 4, 5, dtype=torch.float64, requires_grad=True)
    slope = torch.randn(2, 3, 4, 5, dtype=torch.float64)
    (grad,) = torch.autograd.grad(model.layer1[:50](x), x, slope)
    torch.testing.assert_close(grad, 0.9**50 * slope, rtol=1e-12, atol=0)


def test_shortcut_of_a_block_where_sizes_change():
    assert ResidualBlock(4, 4, 1, False, False, "projection", 1.0).downsample is None
    assert [part.weight.shape[0] for part in ResidualBlock(4, 8, 2, False, False, "projection", 1.0).downsample] == [8, 8]
    x = torch.arange(18.0).reshape(1, 2, 3, 3)
    expected = torch.tensor([[[0, 2], [6, 8]], [[9, 11], [15, 17]], [[0, 0], [0, 0]]], dtype=torch.float32)
    assert torch.equal(subsample_and_pad(x, 2, 1)[0], expected) and subsample_and_pad(x, 1, 0) is x


def test_any_size_of_image():
    model = cifar(20).eval()
    for size in ((3, 64), (33, 5), (32, 32)):
        assert model(torch.zeros(2, 3, *size)).shape == (2, 10) and model.features(torch.zeros(2, 3, *size)).shape == (2, 64)
    with torch.device("meta"):
        assert imagenet(34).eval()(torch.zeros(2, 3, 17, 300)).shape == (2, 1000)


BAD = {
    "depth for CIFAR": (lambda: cifar(21), "6n + 2 layers, not 21"),
    "no blocks": (lambda: ResNet(()), "there are no blocks"),
    "axes of x": (lambda: cifar(8)(torch.zeros(3, 32, 32)), "conv1 takes (batch, channels, height, width), not (3, 32, 32)"),
    "channels of x": (lambda: cifar(8)(torch.zeros(2, 1, 32, 32)), "conv1 takes images with 3 channels, not 1"),
    "small image": (lambda: imagenet(18)(torch.zeros(2, 3, 16, 40)), "layer4 cannot halve what is left of an image of 16x40"),
    "tiny image": (lambda: imagenet(18)(torch.zeros(2, 3, 9, 2)), "maxpool cannot halve what is left of an image of 9x2"),
    "smallest size": (lambda: cifar(8)(torch.zeros(2, 3, 2, 2)), "layer3 cannot halve what is left of an image of 2x2"),
}


@pytest.mark.parametrize("case", BAD)
def test_errors_name_the_layer(case):
    call, words = BAD[case]
    with pytest.raises(BadInput) as caught:
        call()
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_options_have_types_and_help():
    assert all(option.help and option.type is not None for option in options_of(ResNet).values())
    ResNet(**resolve(ResNet, {"width": 2}, "ResNet"))


def test_a_file_that_does_not_fit_changes_nothing(tmp_path):
    from safetensors.torch import save_file

    model, path = cifar(8, classes=4), tmp_path / "net.safetensors"
    before = {name: part.clone() for name, part in model.state_dict().items()}
    state = {name: torch.rand_like(part.double()).to(part.dtype) for name, part in before.items()}
    nan = state["bn1.weight"].clone()
    nan[3] = float("nan")
    faults = {
        "lacks 'fc.bias'": {name: part for name, part in state.items() if name != "fc.bias"},
        r"has 'fc.weight' as \[3, 64\], the model as \[4, 64\]": state | {"fc.weight": torch.zeros(3, 64)},
        "holds 'layer4.0.bn1.weight', which the model does not have": state | {"layer4.0.bn1.weight": torch.zeros(2)},
        "has 'bn1.bias' as int32": state | {"bn1.bias": torch.zeros(16, dtype=torch.int32)},
        "numbers in 'bn1.weight' that are not finite": state | {"bn1.weight": nan},
    }
    for words, tensors in faults.items():
        save_file(tensors, path)
        with pytest.raises(BadInput, match=words) as caught:
            load_weights(model, path)
        assert "\n" not in str(caught.value)
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(DataUnusable, match="net.safetensors cannot be read"):
        load_weights(model, path)
    for call in (load_weights, save_weights):
        with pytest.raises(BadInput, match="safetensors"):
            call(model, tmp_path / "net.pth")
    assert all(torch.equal(part, before[name]) for name, part in model.state_dict().items())


def test_other_classes_and_older_files(tmp_path):
    from safetensors.torch import save_file

    old, new = lived(cifar(8, classes=4)), cifar(8, classes=3)
    fc = new.fc.weight.clone()
    kept = {name: part for name, part in old.state_dict().items() if not name.endswith("num_batches_tracked")}
    save_file({name: part.half() for name, part in kept.items()}, tmp_path / "old.safetensors")
    load_weights(new, tmp_path / "old.safetensors", fresh=("fc.",))
    assert torch.equal(new.fc.weight, fc) and torch.equal(new.conv1.weight, old.conv1.weight.half().float())
