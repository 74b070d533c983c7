"""Published models are as large as published, counted by hand from the papers and by the transformers package."""

from __future__ import annotations

import pytest
import torch

from sonde.core.errors import BadInput
from sonde.lenses.cost import cost
from sonde.models.published import PUBLISHED, published_model, size
from tests.models.timm_peer import timm

SIZES = {
    "gpt2": 124_439_808,
    "gpt2_medium": 354_823_168,
    "gpt2_large": 774_030_080,
    "gpt2_xl": 1_557_611_200,
    "gpt3": 174_604_259_328,
    "bert_large": 336_226_108,
    "t5_small": 60_506_624,
    "t5_base": 222_903_552,
    "llama2_7b": 6_738_415_616,
    "llama2_13b": 13_015_864_320,
    "vit_b16": 86_567_656,
    "vit_b32": 88_224_232,
    "vit_l16": 304_326_632,
    "resnet18": 11_689_512,
    "resnet20": 269_722,
    "resnet34": 21_797_672,
    "resnet50": 25_557_032,
    "vgg19": 143_667_240,
}
CLASSES = {"gpt2": ("GPT2", "LMHeadModel"), "bert": ("Bert", "ForPreTraining"), "t5": ("T5", "ForConditionalGeneration")}
CLASSES |= {"llama": ("Llama", "ForCausalLM"), "mamba2": ("Mamba2", "ForCausalLM"), "vit": ("ViT", "ForImageClassification")}


@pytest.mark.parametrize("name", SIZES)
def test_sizes_are_those_published(name):
    model = published_model(name)
    assert size(model) == SIZES[name] and {p.device.type for p in model.parameters()} == {"meta"}


def test_berts_without_their_heads():
    heads = ("token_", "pair_head")
    assert size(published_model("bert_base"), *heads) == 109_482_240
    assert size(published_model("bert_large"), *heads) == 335_141_888


@pytest.mark.parametrize("name", [name for name, fields in PUBLISHED.items() if "model_type" in fields])
def test_transformers_counts_the_same(name):
    transformers = pytest.importorskip("transformers")
    config = dict(PUBLISHED[name])
    kind, head = CLASSES[config.pop("model_type")]
    with torch.device("meta"):
        theirs = getattr(transformers, kind + head)(getattr(transformers, f"{kind}Config")(**config))
    assert size(published_model(name)) == sum(p.numel() for p in theirs.parameters())


@pytest.mark.parametrize("name", [name for name, fields in PUBLISHED.items() if fields.get("made_by") in ("resnet.imagenet", "vgg.VGG")])
def test_timm_counts_the_same(name):
    peer = timm()
    with torch.device("meta"):
        assert size(published_model(name)) == size(peer.create_model(name))


@pytest.mark.parametrize(
    "name, pixels, products", [("resnet20", 32, 40_551_040), ("resnet18", 224, 1_814_073_344), ("resnet50", 224, 4_089_184_256)]
)
def test_costs_of_one_image(name, pixels, products):
    """Multiply-adds of the convolutions and the last layer, counted by hand: pixels x side^2 x channels in x channels out."""
    costs = cost(published_model(name), (3, pixels, pixels))
    assert sum(row.flops for row in costs.rows if row.kind in ("Conv2d", "Linear")) - costs.rows[-1].biases == 2 * products
    assert costs.unknown == () and costs.parameters == SIZES[name]


def test_a_wrong_name():
    with pytest.raises(BadInput, match="no published model 'gpt5'.*did you mean 'gpt"):
        published_model("gpt5")
