"""Recipes over tokens: windows of text, a language model around a mixer, and how it is trained."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
from torch import nn

from ...core.batch import Data
from ...core.errors import BadInput
from ...core.options import Range
from ...core.recipe import Recipe
from ...data import fetch
from ...data.catalog import load
from ...data.tensors import WindowSource
from ...data.text.windows import SHAKESPEARE
from ...models import language_model
from ...models.language_model import LanguageModel, mixer_of
from ...nn.positions import PositionKind
from ...objectives.categorical import Categorical
from ...optim.build import optimizer
from ...optim.schedules import warmup_cosine

ModelWidth = Annotated[int, Range(1, 8192)]
Depth = Annotated[int, Range(1, 256)]
BatchSize = Annotated[int, Range(least=1)]
LearningRate = Annotated[float, Range(above=0)]
StepCount = Annotated[int, Range(least=1)]


def window_data(
    text: Path | None,
    context: int,
    overlap: int,
    split: Mapping[str, Any] = {},
    windows: int = sys.maxsize,
    share: float = 1.0,
    **tokens: Any,
) -> Data:
    """Windows of a text or of a folder of token shards: overlapping ones for training; for evaluation at most 500 without overlap.

    Args:
        text: by default tiny-Shakespeare, or where that is missing the standard library: nothing is downloaded for a default
        overlap: training windows that contain a given token; fewer in a long text
        windows: about the largest number of training windows
        split: fractions of a text for validation and test; the standard library is split by file
        share: fraction of the standard library
        tokens: level, most and specials of the vocabulary
    """
    if text is not None and text.is_dir():
        if specials := tokens.get("specials", ()):
            raise BadInput(f"'{text}' holds tokens without {', '.join(specials[:3])}", where="text", fix="give a plain text file")
        return load(text, length=context, **split)
    if text is None and not fetch.find(*SHAKESPEARE):
        data = load("stdlib_text", length=context, share=share, **tokens)
    else:
        data = load(text or "tiny_shakespeare", length=context, **split, **tokens)

    def resample(source: Any, stride: int, count: int) -> Any:
        return None if source is None else WindowSource(source.tokens, context, max(stride, len(source.tokens) // count))

    train = resample(data.train, max(context // overlap, 1), windows)
    return replace(data, train=train, valid=resample(data.valid, context, 500), test=resample(data.test, context, 500))


def network(
    mixer: str, width: int, depth: int, tokens: int, length: int, *, dropout: float = 0.0, tied: bool = False
) -> Callable[[], LanguageModel]:
    """A language model for sequences up to a length, with learned positions if the mixer does not see the order of tokens."""
    kind: PositionKind = "none" if sees_order(mixer, width) else "learned"
    return partial(
        LanguageModel, tokens, width, depth, mixer, positions=kind, max_positions=length, dropout=dropout, tied=tied, noncausal=True
    )


def sequence_recipe(model: Callable[[], nn.Module], data: Data, batch_size: int, lr: float, steps: int) -> Recipe:
    """AdamW with weight decay and gradient clipping; linear warm-up, then cosine decay to a tenth."""
    return Recipe(
        model=model,
        data=data,
        objective=Categorical(classes=len(data.classes)),
        optimizer=optimizer("adamw", lr=lr, weight_decay=0.1, betas=(0.9, 0.95)),
        schedule=warmup_cosine(warmup=0.1, floor=0.1),
        clip_norm=1.0,
        batch_size=batch_size,
        steps=steps,
        evaluate_every=max(steps // 10, 1),
        evaluate_batch_size=max(4 * batch_size, 64),
    )


def sees_order(mixer: str, width: int) -> bool:
    """Whether the output of a mixer at the last token changes when all tokens before it are reversed."""
    with torch.random.fork_rng(devices=[]), torch.no_grad(), torch.device("cpu"):
        torch.manual_seed(0)
        module = mixer_of(mixer, width).double().eval()
        x = torch.randn(1, 32, width, dtype=torch.float64)
        reverse = torch.cat([x[:, :-1].flip(1), x[:, -1:]], 1)
        return not torch.allclose(module(x)[0][:, -1], module(reverse)[0][:, -1], rtol=1e-9, atol=1e-12)


def require_causal(mixer: str, width: int) -> None:
    """Refuse a mixer that looks at later tokens."""
    causal, fix = mixer_of(mixer, width).causal, "choose one that does not; char_lm can hide tokens instead"
    language_model.require_causal(causal, mixer, "--mixer", fix)
