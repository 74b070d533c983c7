"""A variational autoencoder of digits: bounds on their log-likelihood, and sheets of samples, reconstructions and codes."""

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
from .tools.final_report import FinalReport
from .tools.sheets import IMAGES_PER_ROW, save_image_rows

MAX_WEIGHTED = 1000
"""test images for the importance-weighted bound, which decodes each of them many times"""
DRAWS = 20
"""codes sampled per test image to estimate the ELBO"""


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
    """A generative model of black and white images; at the end the ELBO and a tighter bound on log p(x) of the test part.

    Pixels are binarized: a pixel is white with its gray value as probability, drawn anew in each training batch and once for the
    held-out parts, so that the Bernoulli likelihood is one of binary pixels.

    Args:
        data: gray images by name, or your own (./mine.py, or a folder with a folder of images per class);
            digits come with scikit-learn; mnist and fashion_mnist need a data folder ($SONDE_DATA) or internet access
        code: dimension of the code
        hidden: widths of dense layers, or channels of convolutions, between an image and its code
        network: dense layers or convolutions
        beta: weight of the KL divergence; 1 is the ELBO
        samples: codes per image in the importance-weighted bound
        batch_size: images per update
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
    """Draw binary pixels with their gray value as probability."""
    drawn = torch.rand(batch.x.shape, generator=rng, device=rng.device).to(batch.x.device) < batch.x
    return batch.replace(x=drawn.to(batch.x.dtype))


@torch.no_grad()
def report(data: Data, samples: int, model: Any, folder: Path) -> Mapping[str, str]:
    """Bounds on the log-likelihood of the test part in nats per image, and three sheets of images."""
    assert data.test is not None
    model.eval()
    objective, rng = Elbo(), generator(0, "report")
    x = data.test[:].x
    mean, log_variance = (torch.cat(parts) for parts in zip(*(model.encode(part) for part in x.split(512))))
    each = (  # one draw per image would move the mean of a small test part by a tenth of a nat
        objective(model, Batch(x=part, noise=torch.randn(len(part), mean.shape[1], generator=rng)))
        for _ in range(DRAWS)
        for part in x.split(512)
    )
    terms = sum(each, start=Terms()).means()
    few = x[:MAX_WEIGHTED]
    weighted = torch.cat([objective.log_likelihood(model, part, samples, rng) for part in few.split(512)])
    active = int((mean.var(0) > 0.01).sum())
    drawn = model.mean(model.codes(8 * IMAGES_PER_ROW, rng))
    note = "Each pixel is its probability of being white; nothing is chosen by hand."
    save_image_rows(folder, "samples", "Drawn from the prior", [("", drawn)], note)
    pairs = {"test images": x, "reconstructed": model.mean(mean[: 2 * IMAGES_PER_ROW])}
    rows = [(name, part[start : start + IMAGES_PER_ROW]) for start in (0, IMAGES_PER_ROW) for name, part in pairs.items()]
    save_image_rows(
        folder,
        "reconstructions",
        "Reconstructions",
        rows,
        "Binary images as the model read them, and the probability of each pixel by the mean code.",
    )
    note = "The code of one test image with one coordinate going from -3 on the left to 3 on the right, the most influential first."
    save_image_rows(folder, "codes", "What each coordinate of the code does", _traversal(model, mean[:1]), note)
    shares = f"{-terms['nll']:.2f} reconstruction, less {terms['kl']:.2f} for the code"
    return {
        "ELBO": f"{-terms['nll'] - terms['kl']:.2f} nats per image ({shares}; {len(x):,} test images)",
        "log p(x)": f"at least {float(weighted.mean()):.2f} nats by {samples} weighted codes each ({len(few):,} images)",
        "code": f"{active} of its {mean.shape[1]} coordinates active",
    }


def _traversal(model: Any, code: torch.Tensor) -> list[tuple[str, torch.Tensor]]:
    """Rows of images: from one code, each of the coordinates that change the image most goes from -3 to 3."""
    line = torch.linspace(-3, 3, IMAGES_PER_ROW)
    rows = []
    for i in range(code.shape[1]):
        moved = code.repeat(IMAGES_PER_ROW, 1)
        moved[:, i] = line
        rows.append((f"coordinate {i}", model.mean(moved)))
    return sorted(rows, key=lambda row: float(row[1].var(0).sum()), reverse=True)[:8]
