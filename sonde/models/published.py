"""Published models by name, with their exact sizes: built on the meta device, so that the largest needs no memory.

sonde explain gpt3          175 billion weights, counted layer by layer
sonde explain resnet50      25,557,032, of an image of 224 x 224
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..core import registry
from ..core.errors import BadInput, nearest

if TYPE_CHECKING:
    from torch import nn


def _gpt(width: int, depth: int, heads: int, max_positions: int = 1024) -> dict[str, Any]:
    sizes = {"n_embd": width, "n_layer": depth, "n_head": heads, "n_positions": max_positions}
    return {"model_type": "gpt2", "vocab_size": 50257, **sizes}


def _bert(width: int, depth: int, heads: int) -> dict[str, Any]:
    sizes = {"hidden_size": width, "num_hidden_layers": depth, "num_attention_heads": heads, "intermediate_size": 4 * width}
    return {"model_type": "bert", "vocab_size": 30522, "max_position_embeddings": 512, "type_vocab_size": 2, **sizes}


def _t5(width: int, depth: int, heads: int) -> dict[str, Any]:
    sizes = {"d_model": width, "d_kv": 64, "d_ff": 4 * width, "num_layers": depth, "num_heads": heads}
    return {"model_type": "t5", "vocab_size": 32128, **sizes}


def _llama(width: int, depth: int, heads: int, hidden: int) -> dict[str, Any]:
    sizes = {"hidden_size": width, "num_hidden_layers": depth, "num_attention_heads": heads, "intermediate_size": hidden}
    return {"model_type": "llama", "vocab_size": 32000, "rms_norm_eps": 1e-5, **sizes}


def _mamba2(width: int, depth: int, tokens: int = 50288) -> dict[str, Any]:
    sizes = {"hidden_size": width, "num_hidden_layers": depth, "num_heads": 2 * width // 64, "head_dim": 64}
    return {"model_type": "mamba2", "vocab_size": tokens, "state_size": 128, "n_groups": 1, "tie_word_embeddings": True, **sizes}


def _vit(patch: int, width: int, depth: int, heads: int) -> dict[str, Any]:
    sizes = {"hidden_size": width, "num_hidden_layers": depth, "num_attention_heads": heads, "intermediate_size": 4 * width}
    return {"model_type": "vit", "image_size": 224, "patch_size": patch, "num_labels": 1000, **sizes}


PUBLISHED: dict[str, dict[str, Any]] = {
    "gpt2": _gpt(768, 12, 12),
    "gpt2_medium": _gpt(1024, 24, 16),
    "gpt2_large": _gpt(1280, 36, 20),
    "gpt2_xl": _gpt(1600, 48, 25),
    "gpt3": _gpt(12288, 96, 96, 2048),
    "bert_base": _bert(768, 12, 12),
    "bert_large": _bert(1024, 24, 16),
    "t5_small": _t5(512, 6, 8),
    "t5_base": _t5(768, 12, 12),
    "llama2_7b": _llama(4096, 32, 32, 11008),
    "llama2_13b": _llama(5120, 40, 40, 13824),
    "mamba2_130m": _mamba2(768, 24),
    "mamba2_2_7b": _mamba2(2560, 64),
    "vit_b16": _vit(16, 768, 12, 12),
    "vit_b32": _vit(32, 768, 12, 12),
    "vit_l16": _vit(16, 1024, 24, 16),
    **{f"resnet{depth}": {"made_by": "resnet.cifar", "depth": depth} for depth in (20, 32, 44, 56, 110)},
    **{f"resnet{depth}": {"made_by": "resnet.imagenet", "depth": depth} for depth in (18, 34, 50, 101, 152)},
    **{f"vgg{depth}": {"made_by": "vgg.VGG", "depth": depth} for depth in (11, 13, 16, 19)},
    **{f"vgg{depth}_bn": {"made_by": "vgg.VGG", "depth": depth, "norm": True} for depth in (11, 13, 16, 19)},
}
"""fields of config.json, defaults of the family left out; or a function and its arguments"""


def published_model(name: str, device: str = "meta") -> nn.Module:
    """A published model, randomly initialized, or on the meta device without weights."""
    if name not in PUBLISHED:
        raise BadInput(f"no published model '{name}'", fix=nearest(name, PUBLISHED))
    fields = dict(PUBLISHED[name])
    if maker := fields.pop("made_by", None):
        import torch

        file, _, function = maker.partition(".")
        with torch.device(device):
            return getattr(registry.load("models", file), function)(**fields)
    from .hf._folder import build, families
    from .hf._layout import Fields

    return build(families()[fields["model_type"]], Fields(fields, f"published model '{name}'"), device)


def size(model: nn.Module, *without: str) -> int:
    """Number of parameters of a model, without those of the modules named, such as heads."""
    return sum(p.numel() for name, p in model.named_parameters() if not name.startswith(without))
