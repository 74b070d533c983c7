"""An autoencoder of small gray images, plain, sparse, contractive or denoising; its error is compared with that of PCA."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from ..core.batch import Data
from ..core.errors import BadInput
from ..core.options import Range
from ..core.recipe import Recipe
from ..data import augment
from ..data.catalog import load_kind
from ..data.corrupt import freeze_held_out
from ..models.autoencoder import convolutional, dense
from ..objectives.contractive import Contractive
from ..objectives.reconstruction import Reconstruction
from ..objectives.sparse import Sparse
from ..optim.build import optimizer
from ..optim.schedules import warmup_cosine
from .tools.final_report import FinalReport
from .tools.sheets import IMAGES_PER_ROW, save_image_rows
from .tools.stacked import keep_clean

ACTIVE = 0.1
"""a unit of a sparse code is active above this"""


def recipe(
    kind: Literal["plain", "sparse", "contractive", "denoising"] = "plain",
    data: str = "digits",
    code: Annotated[int, Range(1, 8192)] | None = None,
    hidden: Annotated[tuple[int, ...], Range(1, 8192)] = (),
    network: Literal["dense", "tied", "convolutional"] = "dense",
    penalty: Literal["l1", "l2", "kl"] = "l1",
    price: Annotated[float, Range(least=0)] | None = None,
    rate: Annotated[float, Range(above=0, below=1)] = 0.05,
    noise: Annotated[float, Range(above=0)] = 0.3,
    batch_size: Annotated[int, Range(least=1)] = 64,
    lr: Annotated[float, Range(above=0)] | None = None,
    epochs: Annotated[float, Range(above=0)] = 60,
    seed: int = 0,
) -> Recipe:
    """Compress images to a small code and reconstruct them; at the end the error on the test part, next to PCA of the same size.

    For a sparse code PCA gets as many components as there are active units per image on average.

    Args:
        kind: sparse penalizes the activity of the code, contractive the Jacobian of the code; denoising reads noisy images
            and reconstructs the clean ones
        data: gray images by name, or your own (./mine.py, or a folder with a folder of images per class);
            digits come with scikit-learn; mnist and fashion_mnist need a data folder ($SONDE_DATA) or internet access
        code: dimension of the code, by default 16; a sparse one may have more than there are pixels, by default 128
        hidden: widths of dense layers before the code, or channels of convolutions; the decoder mirrors them
        network: tied uses the weights of the encoder, transposed, in the decoder
        penalty: on a sparse code: sum of its values (l1) or of their squares (l2), or KL divergence of each unit's mean from --rate (kl)
        price: weight of the sparse or contractive penalty; by default 0.1, 0.05 for kl and 0.02 for contractive
        rate: target mean activity of each code unit for kl
        noise: standard deviation of the noise that denoising removes (pixels are 0 to 1)
        batch_size: images per update
        lr: peak learning rate: linear warm-up, then cosine decay to 0; default: 3e-3, and 2e-2 for kl and contractive,
            which have a sigmoid code
        epochs: passes over the training data
    """
    parts = load_kind("images", data, seed, standardize=False)
    width = code or (128 if kind == "sparse" else 16)
    sigmoid = kind == "contractive" or (kind == "sparse" and penalty == "kl")
    usual = 0.02 if kind == "contractive" else 0.05 if sigmoid else 0.1
    factor = usual if price is None else price
    shape = tuple(parts.train[:1].x.shape[1:])
    if network == "convolutional":
        if kind == "sparse":
            raise BadInput(
                "a sparse code is never negative; that of the convolutional network can be", where="--network", fix="use dense or tied"
            )
        build = partial(convolutional, shape, hidden or (16, 32), width)
    else:
        last = "sigmoid" if sigmoid else "relu" if kind == "sparse" else "identity"
        build = partial(dense, shape, (*hidden, width), "relu", last, network == "tied")
    change = keep_clean(augment.noise(noise)) if kind == "denoising" else None
    if change is not None:  # held-out parts are the same at every evaluation
        parts = freeze_held_out(parts, change, seed)
    objectives: Any = {"sparse": Sparse(**{penalty: factor}, rate=rate), "contractive": Contractive(factor)}
    return Recipe(
        model=build,
        data=parts,
        objective=objectives.get(kind, Reconstruction()),
        optimizer=optimizer("adam", lr=lr or (2e-2 if sigmoid else 3e-3)),
        schedule=warmup_cosine(),
        augment=change,
        batch_size=batch_size,
        epochs=epochs,
        callbacks=(FinalReport(partial(report, parts, kind)),),
    )


@torch.no_grad()
def report(data: Data, kind: str, model: Any, folder: Path) -> Mapping[str, str]:
    """Errors on the test part, and a sheet of its first images with their reconstructions."""
    from ..estimators.pca import PCA

    assert data.test is not None
    model.eval()
    test, train = data.test[:], data.train[torch.arange(min(len(data.train), 10_000))].x
    clean = test.get("clean", test.x)
    code = torch.cat([model.encode(part) for part in test.x.split(512)])
    reconstructed = torch.cat([model.decode(part) for part in code.split(512)])
    active = float((code > ACTIVE).sum(1).double().mean()) if kind == "sparse" else float(code.shape[1])
    components = min(max(round(active), 1), clean[0].numel(), len(train))
    pca = PCA(components).fit(train.flatten(1).numpy())
    flat = torch.from_numpy(pca.inverse_transform(pca.transform(test.x.flatten(1).numpy()))).float().reshape(clean.shape)
    pca_name = f"PCA of {components}"
    errors = {"autoencoder": _error(reconstructed, clean), pca_name: _error(flat, clean), "mean image": _error(train.mean(0), clean)}
    rows = {"images": clean, **({"with noise": test.x} if "clean" in test else {}), "reconstructed": reconstructed, pca_name: flat}
    if "clean" in test:
        errors["the noise itself"] = _error(test.x, clean)
    shown = [(name, row[start : start + IMAGES_PER_ROW]) for start in (0, IMAGES_PER_ROW) for name, row in rows.items()]
    save_image_rows(folder, "reconstructions", "Reconstructions", shown, "The first images of the test part.")
    summary = {"squared error": ", ".join(f"{name} {error:.5f}" for name, error in errors.items()) + " per pixel of the test part"}
    if kind == "sparse":
        summary["code"] = f"{active:.1f} of its {code.shape[1]} units above {ACTIVE:g} per image"
    return summary


def _error(estimate: Tensor, target: Tensor) -> float:
    return float((estimate - target).square().mean())
