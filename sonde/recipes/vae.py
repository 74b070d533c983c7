"""A variational auto-encoder of digits: bounds on their log-likelihood, and sheets of samples, reconstructions and codes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from torch import Generator

from ..core.batch import Batch, Data
from ..core.options import Range
from ..core.recipe import Recipe
from ..core.seeds import generator
from ..core.terms import Terms
from ..data.catalog import load_kind
from ..data.corrupt import freeze_held_out
from ..models.vae import convolutional, dense
from ..objectives.elbo import Elbo
from ..optim.build import optimizer
from ..optim.schedules import warmup_cosine
from .tools.sheets import ACROSS, sheet
from .tools.shown import FinalReport

MOST = 1000
"""test pictures for the importance-weighted bound, which decodes each of them many times"""
DRAWS = 20
"""codes of each test picture that the ELBO is the mean of"""


def recipe(
    data: str = "digits",
    code: Annotated[int, Range(1, 1024)] = 8,
    hidden: Annotated[tuple[int, ...], Range(1, 8192)] = (256,),
    network: Literal["dense", "convolutional"] = "dense",
    beta: Annotated[float, Range(least=0)] = 1.0,
    samples: Annotated[int, Range(1, 100_000)] = 500,
    batch_size: Annotated[int, Range(least=1)] = 64,
    lr: Annotated[float, Range(above=0)] = 2e-3,
    epochs: Annotated[float, Range(above=0)] = 150,
    seed: int = 0,
) -> Recipe:
    """Learn to draw pictures of black and white pixels; at the end the ELBO and a tighter bound on log p(x) of the test part.

    A gray pixel is black or white with its gray value as chance: drawn anew in each training batch, once for the test part, so that
    a likelihood of black and white pixels is one.

    Args:
        data: gray images by name, or your own (./mine.py, or a folder with a folder of images per class);
            digits come with scikit-learn; mnist and fashion_mnist need a data folder ($SONDE_DATA) or internet access
        code: numbers of a code
        hidden: widths of dense layers, or channels of convolutions, between a picture and its code
        network: dense layers or convolutions
        beta: factor of the KL; 1 is the ELBO
        samples: codes for each picture in the importance-weighted bound
        batch_size: pictures per update
        lr: peak learning rate: linear warm-up, then cosine decay to 0
        epochs: passes over the training data
    """
    parts = freeze_held_out(load_kind("images", data, seed, standardize=False), binarize, seed)
    shape = tuple(parts.train[:1].x.shape[1:])
    return Recipe(
        model=partial(dense if network == "dense" else convolutional, shape, hidden, code),
        data=parts,
        objective=Elbo(beta=beta),
        optimizer=optimizer("adam", lr=lr),
        schedule=warmup_cosine(),
        augment=binarize,
        batch_size=batch_size,
        epochs=epochs,
        callbacks=(FinalReport(partial(report, parts, samples)),),
    )


def binarize(batch: Batch, rng: Generator) -> Batch:
    """Pixels that are black or white with their gray value as chance."""
    drawn = torch.rand(batch.x.shape, generator=rng, device=rng.device).to(batch.x.device) < batch.x
    return batch.replace(x=drawn.to(batch.x.dtype))


@torch.no_grad()
def report(data: Data, samples: int, model: Any, folder: Path) -> Mapping[str, str]:
    """Bounds on the log-likelihood of the test part in nats per picture, and three sheets of pictures."""
    assert data.test is not None
    model.eval()
    objective, rng = Elbo(), generator(0, "report")
    x = data.test[:].x
    mean, log_variance = (torch.cat(parts) for parts in zip(*(model.encode(part) for part in x.split(512))))
    each = (  # one draw a picture would move the mean of a small test part by a tenth of a nat
        objective(model, Batch(x=part, noise=torch.randn(len(part), mean.shape[1], generator=rng)))
        for _ in range(DRAWS)
        for part in x.split(512)
    )
    terms = sum(each, start=Terms()).means()
    few = x[:MOST]
    weighted = torch.cat([objective.log_likelihood(model, part, samples, rng) for part in few.split(512)])
    used = int((mean.var(0) > 0.01).sum())
    drawn = model.mean(model.codes(8 * ACROSS, rng))
    sheet(folder, "samples", "Drawn from the prior", [("", drawn)], "Each pixel is its chance of being white; nothing is chosen by hand.")
    pairs = {"test pictures": x, "rebuilt": model.mean(mean[: 2 * ACROSS])}
    rows = [(name, part[start : start + ACROSS]) for start in (0, ACROSS) for name, part in pairs.items()]
    sheet(
        folder,
        "reconstructions",
        "Reconstructions",
        rows,
        "Black and white as the model read them, and each pixel's chance by the mean code.",
    )
    note = "From the code of one test picture one number goes from -3 on the left to 3 on the right; those that do most come first."
    sheet(folder, "codes", "What each number of the code does", _traversal(model, mean[:1]), note)
    shares = f"{-terms['nll']:.2f} rebuilt, less {terms['kl']:.2f} for the code"
    return {
        "ELBO": f"{-terms['nll'] - terms['kl']:.2f} nats a picture ({shares}; {len(x):,} test pictures)",
        "log p(x)": f"at least {float(weighted.mean()):.2f} nats by {samples} weighted codes each ({len(few):,} pictures)",
        "code": f"{used} of its {mean.shape[1]} numbers in use",
    }


def _traversal(model: Any, code: torch.Tensor, most: int = 8) -> list[tuple[str, torch.Tensor]]:
    """Rows of pictures: from the code of one, each of the numbers that move the picture most goes its way."""
    line = torch.linspace(-3, 3, ACROSS)
    ways = []
    for place in range(code.shape[1]):
        moved = code.repeat(ACROSS, 1)
        moved[:, place] = line
        ways.append((f"coordinate {place}", model.mean(moved)))
    return sorted(ways, key=lambda way: float(way[1].var(0).sum()), reverse=True)[:most]
