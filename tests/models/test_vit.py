"""Vision transformer: patches and back, torch's own encoder layer, sizes as published, and the transformers package both ways."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sonde.core.errors import BadInput, DataUnusable
from sonde.core.tensors import decode, encode
from sonde.models import hf
from sonde.models.vit import ViT, patchify, unpatchify
from sonde.nn.block import Style

SIZES = dict(image=(12, 8), patch=4, width=24, depth=2, heads=3, classes=7, channels=2, ffn=1.5)


def make(**options) -> ViT:
    """With random numbers everywhere."""
    torch.manual_seed(0)
    model = ViT(**{**SIZES, **options}).double().eval()
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn_like(p) * 0.3)
    return model


def images(*size: int) -> torch.Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def test_patches_one_by_one_and_back():
    x = images(3, 2, 6, 15)
    patches = patchify(x, 3)
    assert patches.shape == (3, 2 * 5, 2 * 9)
    for row in range(2):
        for column in range(5):
            piece = x[:, :, 3 * row : 3 * row + 3, 3 * column : 3 * column + 3]
            assert torch.equal(patches[:, 5 * row + column], piece.reshape(3, -1))
    assert torch.equal(unpatchify(patches, 3, (6, 15)), x)
    assert torch.equal(patchify(unpatchify(patches, 3, (15, 6)), 3), patches)
    assert torch.equal(patches.mT, F.unfold(x, 3, stride=3))  # torch cuts the same


def test_patches_that_do_not_fit():
    with pytest.raises(BadInput, match=r"do not fall into patches of 4x4.*multiples of 4"):
        patchify(images(1, 1, 8, 6), 4)
    for image in ((6, 12), (6, 14), (12, 12)):
        with pytest.raises(BadInput, match="are no images of"):
            unpatchify(images(2, 10, 18), 3, image)


@pytest.mark.parametrize("pool", ["token", "mean"])
@pytest.mark.parametrize("positions", ["learned", "sinusoidal"])
def test_equals_a_linear_map_of_patches_and_torchs_encoder(pool, positions):
    model, x = make(pool=pool, positions=positions), images(5, 2, 12, 8)
    tokens = F.linear(patchify(x, 4), model.patches.weight.flatten(1), model.patches.bias)
    if pool == "token":
        tokens = torch.cat([model.class_token.expand(5, 1, 24), tokens], 1)
    if positions == "learned":
        tokens = tokens + model.positions.weight
    else:
        for place in range(tokens.shape[1]):
            for i in range(12):
                angle = torch.tensor(place / 10000 ** (2 * i / 24), dtype=torch.float64)
                tokens[:, place, 2 * i] += angle.sin()
                tokens[:, place, 2 * i + 1] += angle.cos()
    torch.testing.assert_close(model.embed(x), tokens, rtol=1e-12, atol=1e-12)
    for block in model.stack.blocks:
        layer = nn.TransformerEncoderLayer(24, 3, 36, 0.0, "gelu", 1e-6, batch_first=True, norm_first=True).double()
        theirs = {
            "self_attn.in_proj_weight": block.mixer.qkv.weight,
            "self_attn.in_proj_bias": block.mixer.qkv.bias,
            **{f"self_attn.out_proj.{leaf}": getattr(block.mixer.out, leaf) for leaf in ("weight", "bias")},
            **{f"linear1.{leaf}": getattr(block.ffn.up, leaf) for leaf in ("weight", "bias")},
            **{f"linear2.{leaf}": getattr(block.ffn.down, leaf) for leaf in ("weight", "bias")},
            **{f"norm1.{leaf}": getattr(block.norm, leaf) for leaf in ("weight", "bias")},
            **{f"norm2.{leaf}": getattr(block.ffn_norm, leaf) for leaf in ("weight", "bias")},
        }
        tokens = torch.func.functional_call(layer, theirs, (tokens,))
    tokens = F.layer_norm(tokens, (24,), model.stack.norm.weight, model.stack.norm.bias, 1e-6)
    pooled = tokens[:, 0] if pool == "token" else tokens.mean(1)
    expected, logits = F.linear(pooled, model.head.weight, model.head.bias), model(x)
    torch.testing.assert_close(logits, expected, rtol=1e-10, atol=1e-10)
    own = [p for p in model.parameters() if p.requires_grad]
    grads = [torch.autograd.grad(value.square().sum(), own, retain_graph=True) for value in (logits, expected)]
    for ours, wanted in zip(*grads, strict=True):
        torch.testing.assert_close(ours, wanted, rtol=1e-8, atol=1e-8)


def test_the_size_published():
    with torch.device("meta"):
        model = ViT()
        features = model.features(torch.zeros(2, 3, 224, 224))
    by_hand = 768 * (3 * 256 + 1) + 768 + 197 * 768 + 12 * (4 * 768 * 769 + 2 * 4 * 768 * 768 + 5 * 768 + 4 * 768) + 2 * 768 + 1000 * 769
    assert sum(p.numel() for p in model.parameters()) == by_hand == 86_567_656
    assert features.shape == (2, 197, 768) and model.tokens == 197
    assert ViT(**{**SIZES, "pool": "mean"}).tokens == 6


@torch.no_grad()
def test_begins_with_tokens_near_1_and_all_classes_nearly_alike():
    torch.manual_seed(0)
    model = ViT(**SIZES)
    x = images(4, 2, 12, 8).float()
    assert 0.5 < float(model.patches(x).std()) < 1.5
    assert 0 < float(model(x).std()) < 0.3


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: ViT(image=(30, 32), patch=4), "an image of 30x32 does not fall into patches of 4x4"),
        (lambda: ViT(image=(32,), patch=4), "height and width"),
        (lambda: ViT(image=(8, 8), patch=4, width=20, heads=3), "heads"),
        (lambda: ViT(**SIZES)(torch.zeros(1, 3, 12, 8)), "'patches' takes images with 2 channels, not 3"),
        (lambda: ViT(**SIZES)(torch.zeros(1, 2, 8, 12)), "'positions' takes images of 12x8, not 8x12"),
        (lambda: ViT(**SIZES)(torch.zeros(2, 12, 8)), "four axes"),
    ],
)
def test_errors_name_the_layer(call, message):
    with pytest.raises(BadInput, match=message):
        call()


CONFIGS = {
    "usual": dict(hidden_size=24, num_hidden_layers=2, num_attention_heads=3, intermediate_size=40, image_size=12, patch_size=4),
    "other": dict(
        hidden_size=16, num_hidden_layers=3, num_attention_heads=4, intermediate_size=20, image_size=(9, 15), patch_size=3, num_channels=2,
        num_labels=5, hidden_act="gelu_new", layer_norm_eps=1e-3,
    ),
}  # fmt: skip


@pytest.fixture
def read_tensors(tmp_path: Path):
    """A model of the transformers package with random numbers in every tensor, and the folder it is saved in."""
    transformers = pytest.importorskip("transformers")
    logging.getLogger("transformers").setLevel(logging.ERROR)

    def make(name: str):
        torch.manual_seed(2)
        theirs = transformers.ViTForImageClassification(transformers.ViTConfig(**CONFIGS[name])).eval()
        with torch.no_grad():
            for key, p in theirs.named_parameters():
                p.copy_(torch.randn_like(p) * 0.3 + (1 if "norm" in key and key.endswith("weight") else 0))
        theirs.save_pretrained(tmp_path / "theirs")
        return theirs, tmp_path / "theirs"

    return make


@pytest.mark.parametrize("name", CONFIGS)
def test_transformers_loads_and_saves_the_same_model(name, read_tensors, tmp_path):
    theirs, folder = read_tensors(name)
    ours, _ = hf.load(folder)
    assert isinstance(ours, ViT)
    x = images(3, ours.channels, *ours.image).float()
    slope = torch.randn(3, theirs.config.num_labels, generator=torch.Generator().manual_seed(4))
    wanted = theirs(pixel_values=x).logits
    torch.testing.assert_close(ours(x), wanted, rtol=1e-5, atol=1e-5)
    wanted.backward(slope)
    ours(x).backward(slope)
    embeddings, norm = theirs.vit.embeddings, theirs.vit.layernorm
    for own, other in (
        (ours.patches.weight.grad, embeddings.patch_embeddings.projection.weight.grad),
        (ours.class_token.grad, embeddings.cls_token.grad),
        (ours.positions.weight.grad, embeddings.position_embeddings.grad.squeeze(0)),
        (ours.stack.norm.bias.grad, norm.bias.grad),
    ):
        torch.testing.assert_close(own, other, rtol=1e-4, atol=1e-4)
    hf.save(ours, tmp_path / "ours")
    back, report = type(theirs).from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(report[fault] for fault in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    torch.testing.assert_close(back.eval()(pixel_values=x).logits, wanted, rtol=1e-6, atol=1e-6)
    again, _ = hf.load(tmp_path / "ours")
    assert all(torch.equal(value, ours.state_dict()[key]) for key, value in again.state_dict().items())


def test_a_body_with_its_unused_layer_and_a_fresh_head(read_tensors, tmp_path):
    theirs, _ = read_tensors("usual")
    theirs.vit.save_pretrained(tmp_path / "body")
    path = tmp_path / "body" / "model.safetensors"
    tensors = {**decode(path.read_bytes()), "pooler.dense.weight": torch.zeros(24, 24), "pooler.dense.bias": torch.zeros(24)}
    path.write_bytes(b"".join(encode(tensors, {"format": "pt"})))
    with pytest.raises(DataUnusable, match=r"lacks 'classifier.weight'"):
        hf.load(tmp_path / "body")
    ours, _ = hf.load(tmp_path / "body", fresh=["head.*"])
    x = images(2, 3, 12, 12).float()
    torch.testing.assert_close(ours.features(x), theirs.vit(pixel_values=x).last_hidden_state, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "field, value, message",
    [
        ("patch_size", [4, 2], "patch_size"),
        ("image_size", [12, "x"], "'image_size' of config.json must be one or two whole numbers"),
        ("image_size", 13, "does not fall into patches"),
        ("qkv_bias", False, "qkv_bias = False, which is not supported"),
        ("num_channels", 0, "num_channels"),
        ("hidden_act", "swish", "hidden_act"),
    ],
)
def test_a_config_that_describes_no_such_model(field, value, message, read_tensors):
    _, folder = read_tensors("usual")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, field: value}))
    with pytest.raises((BadInput, DataUnusable), match=message):
        hf.load(folder)


@pytest.mark.parametrize(
    "options, message",
    [
        (dict(pool="mean"), "the mean of all patches"),
        (dict(positions="sinusoidal"), "'sinusoidal' positions"),
        (dict(style=Style(bias=True)), "norms without a mean"),
        (dict(style=Style("layer", activation="gelu")), "without bias"),
    ],
)
def test_what_a_checkpoint_has_no_place_for(options, message, tmp_path):
    with pytest.raises(BadInput, match=message):
        hf.save(ViT(**{**SIZES, **options}), tmp_path / "ours")
