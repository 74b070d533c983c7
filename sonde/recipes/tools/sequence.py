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
from ...core.stream import Measured, Stream
from ...core.terms import Terms
from ...data import fetch
from ...data.catalog import load
from ...data.tensors import WindowSource
from ...data.text.contiguous import ContiguousStream
from ...data.text.windows import SHAKESPEARE
from ...models import language_model
from ...models.language_model import LanguageModel, mixer_of
from ...nn.positions import PositionKind
from ...objectives.carried import Carried
from ...objectives.categorical import Categorical
from ...optim.build import optimizer
from ...optim.schedules import warmup_cosine

ModelWidth = Annotated[int, Range(1, 8192)]
Depth = Annotated[int, Range(1, 256)]
BatchSize = Annotated[int, Range(least=1)]
LearningRate = Annotated[float, Range(above=0)]
StepCount = Annotated[int, Range(least=1)]
MOST_WINDOWS = 500
"""windows of a text that an evaluation reads"""


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
    mixer: str, width: int, depth: int, tokens: int, length: int, *, dropout: float = 0.0, tied: bool = False, endless: bool = False
) -> Callable[[], LanguageModel]:
    """A language model for sequences up to a length, with positions if the mixer does not see the order of tokens.

    Args:
        endless: for sequences of any length: positions are sinusoidal, not learned
    """
    kind: PositionKind = "none" if sees_order(mixer, width) else "sinusoidal" if endless else "learned"
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


def carry_state(recipe: Recipe, context: int, mixer: str, width: int, document_end: str = "") -> Recipe:
    """The recipe with the state of the model carried from update to update over contiguous text, in training and in validation.

    Args:
        document_end: text that ends a document; the state is empty after it
    """
    module = mixer_of(mixer, width)
    if not module.causal or not has_fixed_state(mixer, width):
        raise BadInput(
            f"the state of '{mixer}' cannot be carried from update to update",
            where="carry",
            fix="choose a recurrent mixer, such as gru, gla or mamba2",
        )
    data = recipe.build_data()
    if not isinstance(data.train, WindowSource):
        raise BadInput("carry needs one text, not a folder of token shards", where="data", fix="give a plain text file")
    train, valid = data.train, data.valid
    objective = Carried(recipe.objective)

    def stream(data: Data, seed: int) -> Stream:
        return ContiguousStream(train.tokens, context, recipe.batch_size, find_ends(train.tokens, data, document_end))

    evaluations = None
    if isinstance(valid, WindowSource):
        evaluations = {"valid": partial(read_through, objective, valid.tokens, context, find_ends(valid.tokens, data, document_end))}
    return recipe.replace(data=replace(data, valid=None, test=None), objective=objective, stream=stream, evaluations=evaluations)


def find_ends(tokens: torch.Tensor, data: Data, document_end: str) -> torch.Tensor:
    """Positions of the last tokens of the text that ends a document."""
    if not document_end:
        return torch.empty(0, dtype=torch.int64)
    mark = torch.as_tensor(data.reader.vocabulary.encode(document_end), dtype=tokens.dtype)
    if len(tokens) < len(mark) or not len(mark):
        return torch.empty(0, dtype=torch.int64)
    return (tokens.unfold(0, len(mark), 1) == mark).all(1).nonzero().flatten() + len(mark) - 1


def has_fixed_state(mixer: str, width: int) -> bool:
    """Whether the state of a mixer has the same size after any number of tokens."""
    with torch.random.fork_rng(devices=[]), torch.no_grad(), torch.device("cpu"):
        module = mixer_of(mixer, width).eval()
        shapes = [{name: value.shape for name, value in module(torch.zeros(1, length, width))[1].items()} for length in (70, 1000)]
    return shapes[0] == shapes[1]


def read_through(
    objective: Carried, tokens: torch.Tensor, context: int, ends: torch.Tensor, model: nn.Module, shard: int, shards: int
) -> Terms:
    """The loss of a shard of a text that is read in order, with the state carried along."""
    start, stop = (part * (len(tokens) - 1) // shards for part in (shard, shard + 1))
    inside = ends[(ends >= start) & (ends < stop)] - start
    stream = ContiguousStream(tokens[start : stop + 1], context, max(1, min(8, (stop - start) // context)), inside)
    stream.open(range(1), 1)
    total = Terms()
    for step in range(min(stream.steps_per_epoch, MOST_WINDOWS // stream.batch_size)):
        terms = objective(model, stream.batch(step, 0, 1, model))
        stream.observe(step, Measured(0.0, {}, {0: terms.notes}))
        total = total + Terms(loss=terms["nll"])
    return total


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
