"""Checkpoints in other programs' layouts.

Hugging Face: config.json, model.safetensors and tokenizer.json; one file for each family.

    model, tokenizer = load("gpt2-folder")
    save(model, "other-folder", tokenizer)

torchvision and timm: one safetensors file with a network's tensors under their own names.

    load_weights(resnet.imagenet(18), "resnet18.safetensors")
"""

from ._folder import load, save
from ._weights import load_weights, save_weights

__all__ = ["load", "load_weights", "save", "save_weights"]
