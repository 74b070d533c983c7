"""Checkpoints in Hugging Face layout: config.json, model.safetensors and tokenizer.json; one file for each family.

model, tokeniser = load("gpt2-folder")
save(model, "other-folder", tokeniser)
"""

from ._folder import load, save

__all__ = ["load", "save"]
