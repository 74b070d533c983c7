"""What recipes over tokens share: a language model that suits its mixer, and the usual way to train one."""

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
    """Windows of a text or of a folder of tokens: overlapping ones to train on; to evaluate on, at most 500 that do not overlap.

    Args:
        text: None is tiny-Shakespeare, or where that is missing the standard library: nothing is downloaded for a default
        overlap: training windows that share a token; in a long text fewer, so that there are about as many as `windows`
        split: shares of a text for validation and test; the standard library has shares of its own
        share: how much of the standard library
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
    """A language model for sequences up to a length; a mixer that does not see the order of tokens is told their places."""
    kind: PositionKind = "none" if sees_order(mixer, width) else "learned"
    return partial(
        LanguageModel, tokens, width, depth, mixer, positions=kind, max_positions=length, dropout=dropout, tied=tied, noncausal=True
    )


def training(model: Callable[[], nn.Module], data: Data, batch_size: int, lr: float, steps: int) -> Recipe:
    """AdamW with decay and clipping; the learning rate rises, then falls along a cosine."""
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
    """Whether what a mixer says at a token changes when all tokens before it come in reverse."""
    with torch.random.fork_rng(devices=[]), torch.no_grad(), torch.device("cpu"):
        torch.manual_seed(0)
        one = mixer_of(mixer, width).double().eval()
        x = torch.randn(1, 32, width, dtype=torch.float64)
        reverse = torch.cat([x[:, :-1].flip(1), x[:, -1:]], 1)
        return not torch.allclose(one(x)[0][:, -1], one(reverse)[0][:, -1], rtol=1e-9, atol=1e-12)
