"""VGG: sizes as published, the numbers of timm, clear errors."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from sonde.core.errors import BadInput
from sonde.core.options import options_of, resolve
from sonde.models.published import published_model, size
from sonde.models.vgg import VGG
from tests.models.timm_peer import lived, timm

SIZES = {"vgg11": 132_863_336, "vgg13": 133_047_848, "vgg16": 138_357_544, "vgg19": 143_667_240}
BN = {"vgg11_bn": 132_868_840, "vgg13_bn": 133_053_736, "vgg16_bn": 138_365_992, "vgg19_bn": 143_678_248}


@pytest.mark.parametrize("name", [*SIZES, *BN])
def test_sizes(name):
    assert size(published_model(name)) == (SIZES | BN)[name]


def test_where_the_weights_are():
    assert round(1 - size(published_model("vgg19"), "classifier") / 143_667_240, 2) == 0.86
    assert round(1 - size(published_model("resnet34"), "fc") / 21_797_672, 3) == 0.024


@pytest.mark.parametrize("norm", [False, True])
def test_equal_to_timm(norm):
    module = timm().models.vgg
    with torch.device("meta"):
        theirs = module.VGG(module.cfgs["vgg11"], norm_layer=nn.BatchNorm2d if norm else None)
    theirs.features.to_empty(device="cpu")
    theirs.pre_logits, theirs.head.fc = module.ConvMlp(512, 24), nn.Linear(24, 5)  # their code, in a size for a test
    ours = lived(VGG(11, classes=5, hidden=24, norm=norm)).eval()
    names = {"classifier.0": "pre_logits.fc1", "classifier.3": "pre_logits.fc2", "classifier.6": "head.fc"}
    state, shapes = ours.state_dict(), {name: part.shape for name, part in theirs.state_dict().items()}
    for mine, other in names.items():
        for kind in (".weight", ".bias"):
            state[other + kind] = state.pop(mine + kind).reshape(shapes[other + kind])
    theirs.eval().load_state_dict(state, strict=True)
    x = torch.randn(2, 3, 64, 70)
    with torch.no_grad():
        torch.testing.assert_close(ours(x), theirs(x), rtol=1e-5, atol=1e-6)


BAD = {
    "axes": (lambda: VGG(11, hidden=2)(torch.zeros(3, 64, 64)), "features.0 takes (batch, channels, height, width)"),
    "channels": (lambda: VGG(11, hidden=2)(torch.zeros(1, 1, 64, 64)), "features.0 takes images with 3 channels, not 1"),
    "small": (lambda: VGG(11, hidden=2)(torch.zeros(1, 3, 64, 31)), "features.20 cannot halve what is left of an image of 64x31"),
    "tiny": (lambda: VGG(11, hidden=2)(torch.zeros(1, 3, 3, 64)), "features.5 cannot halve what is left of an image of 3x64"),
}


@pytest.mark.parametrize("case", BAD)
def test_errors_name_the_layer(case):
    call, words = BAD[case]
    with pytest.raises(BadInput) as caught:
        call()
    assert words in str(caught.value)


def test_options_have_types_and_help():
    assert all(option.help and option.type is not None for option in options_of(VGG).values())
    with torch.device("meta"):
        VGG(**resolve(VGG, {}, "VGG"))
