"""Images and captions in one embedding space (CLIP), trained on pairs; ends with retrieval of captions, also of unseen ones.

An unseen caption is a new combination of known words: a shape with a color, size and side it never had in training.  All its
images are left out of training too, so neither encoder has seen it.  At the end each test image retrieves its caption among all
36; accuracy is reported for seen and unseen captions.  Errors are nearly always about the kind of shape: the image encoder
decides, and with two convolutions and half the images one seed retrieved only half of the unseen captions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from ..core.batch import Batch, Data
from ..core.options import Range
from ..core.recipe import Recipe
from ..core.seeds import generator
from ..data.catalog import load
from ..data.tensors import TensorSource
from ..models.clip import Clip
from ..models.cnn import CNN
from ..models.topologies import Seq2Vec
from ..objectives.contrastive import Contrastive
from ..optim.build import optimizer
from ..optim.schedules import warmup_cosine
from .tools.final_report import FinalReport
from .tools.sheets import IMAGES_PER_ROW, save_image_rows

ROWS = 9
"""captions with images in the figure"""


def recipe(
    size: Annotated[int, Range(8, 256)] = 32,
    images: Annotated[int, Range(200, 1_000_000)] = 12_000,
    unseen: Annotated[int, Range(0, 18)] = 4,
    width: Annotated[int, Range(2, 1024)] = 32,
    channels: Annotated[tuple[int, ...], Range(1, 1024)] = (16, 32, 64, 64),
    mixer: str = "gru",
    batch_size: Annotated[int, Range(least=2)] = 64,
    lr: Annotated[float, Range(above=0)] = 3e-3,
    steps: Annotated[int, Range(least=1)] = 800,
    seed: int = 0,
) -> Recipe:
    """Match images of colored shapes with captions such as 'a large red disc on the left', by contrastive learning (CLIP).

    Args:
        size: height and width of an image
        images: examples in all, 15 % for validation and 15 % for the test
        unseen: captions, of 36, that are left out of training with their images
        width: dimension of the embeddings
        channels: channels of each convolution of the image encoder
        mixer: sequence mixer of the text encoder, by name
        batch_size: pairs per update, each compared with all others
        lr: peak learning rate: linear warm-up, then cosine decay to 0
        steps: updates
    """
    data = load("shapes", seed=seed, n=images, size=size, color=True, target="caption")
    captions, lengths = distinct_captions(data)
    seen_captions = torch.randperm(len(captions), generator=generator(seed, "unseen"))[unseen:]
    seen = (caption_number(data.train[:], captions).unsqueeze(1) == seen_captions).any(1)
    parts = {name: image_caption_pairs(source, seen if name == "train" else None) for name, source in data.splits.items()}
    data = replace(data, **parts, task="other", classes=())  # type: ignore[arg-type]
    build = partial(build_clip, (3, *channels), size, data.reader.vocabulary.size, width, mixer)
    return Recipe(
        model=build,
        data=data,
        objective=Contrastive(same="text"),
        optimizer=optimizer("adamw", lr=lr, weight_decay=0.05),
        schedule=warmup_cosine(),
        clip_norm=1.0,
        batch_size=batch_size,
        drop_last=True,  # the loss grows with the number of pairs
        steps=steps,
        evaluate_every=max(steps // 5, 1),
        evaluate_batch_size=batch_size,
        callbacks=(FinalReport(partial(report, data, captions, lengths, seen_captions)),),
    )


def build_clip(channels: tuple[int, ...], size: int, words: int, width: int, mixer: str) -> nn.Module:
    """An image encoder and a text encoder into one embedding space."""
    return Clip(
        CNN(channels, width, 128, image=(size, size), dropout=0.2, norm=True), Seq2Vec(words, width, width=64, mixer=mixer, pool="mean")
    )


def report(data: Data, captions: Tensor, lengths: Tensor, seen_captions: Tensor, model: Any, folder: Path) -> Mapping[str, str]:
    """Accuracy of retrieving the caption of each test image, and the images retrieved for some captions."""
    assert data.test is not None
    batch = data.test[torch.arange(len(data.test))]
    target = caption_number(batch, captions)
    scores = similarity(model, batch, captions, lengths)
    right = scores.argmax(1) == target
    seen = (target.unsqueeze(1) == seen_captions).any(1)
    new = sorted({*range(len(captions))} - {*seen_captions.tolist()})
    nearest = scores.topk(IMAGES_PER_ROW, 0).indices.mT
    rows = [(_short(data, captions[i], lengths[i]), batch.x[nearest[i]]) for i in (new or seen_captions.tolist())[:ROWS]]
    note = f"The nearest of {len(batch):,} test images to captions {'never ' if new else ''}seen in training, nearest first."
    save_image_rows(folder, "found", "Images found for captions", rows, note)
    summary = {"retrieval": _accuracy(right[seen], "captions seen in training", len(captions))}
    return summary if seen.all() else summary | {"unseen": _accuracy(right[~seen], "captions never seen", len(captions))}


@torch.no_grad()
def similarity(model: Any, batch: Batch, captions: Tensor, lengths: Tensor) -> Tensor:
    """(B, N) inner products of images and captions."""
    model.eval()
    return torch.cat([model.images(part) for part in batch.x.split(256)]) @ model.texts(captions, lengths).mT


def image_caption_pairs(source: Any, rows: Tensor | None) -> TensorSource:
    """Pairs of images and captions, those selected by `rows`, without the labels of the shapes."""
    fields = {name: tensor if rows is None else tensor[rows] for name, tensor in source.fields.items() if name != "y"}
    return TensorSource(**fields)


def distinct_captions(data: Data) -> tuple[Tensor, Tensor]:
    """All distinct captions (N, T) of a data set, and their lengths."""
    whole = [source[torch.arange(len(source))] for source in data.splits.values()]
    rows = torch.cat([torch.cat([part.lengths.unsqueeze(1), part.text], 1) for part in whole]).unique(dim=0)
    return rows[:, 1:], rows[:, 0]


def caption_number(batch: Batch, captions: Tensor) -> Tensor:
    """(B,) the index of each example's caption."""
    return (batch.text.unsqueeze(1) == captions).all(-1).int().argmax(1)


def _short(data: Data, caption: Tensor, length: Tensor) -> str:
    """The words of a caption that differ between captions, short enough for a label."""
    words = data.reader.vocabulary.decode(caption[: int(length)]).split()
    return " ".join({"left": "←", "right": "→"}.get(word, word) for word in words if word not in ("a", "on", "the"))


def _accuracy(right: Tensor, what: str, among: int) -> str:
    return f"{float(right.double().mean()):.1%} of {len(right)} test images retrieve theirs among {among} ({what}; chance {1 / among:.1%})"
