"""An auto-encoder of small gray pictures, plain, sparse, contractive or denoising; its error beside that of PCA."""

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
from .tools.sheets import ACROSS, sheet
from .tools.shown import FinalReport
from .tools.stacked import denoising

IN_USE = 0.1
"""a number of a sparse code above this is in use"""


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
    """Squeeze pictures into a few numbers and rebuild them; at the end the test pictures, against PCA of as many numbers.

    Of a sparse code PCA gets as many numbers as a picture uses of it on average.

    Args:
        kind: sparse puts a price on what the code uses, contractive on how much it moves with x; denoising reads pictures with
            noise and is compared with the clean ones
        data: gray images by name, or your own (./mine.py, or a folder with a folder of images per class);
            digits come with scikit-learn; mnist and fashion_mnist need a data folder ($SONDE_DATA) or internet access
        code: numbers of the code, by default 16; a sparse one may have more than there are pixels, by default 128
        hidden: widths of dense layers before the code, or channels of convolutions; the decoder goes back the same way
        network: tied uses the weights of the encoder, transposed, in the decoder
        penalty: of a sparse code: the sum of its values, of their squares, or how far the mean of each is from the rate
        price: weight of the sparse or contractive penalty; by default 0.1, 0.05 for kl and 0.02 for contractive
        rate: mean that kl asks of each number of the code, which lies between 0 and 1
        noise: standard deviation of the noise that denoising removes (pixels are 0 to 1)
        batch_size: pictures per update
        lr: peak learning rate: linear warm-up, then cosine decay to 0; default: 3e-3, and 2e-2 for kl and contractive,
            whose codes end in a sigmoid
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
                "a sparse code has no negative numbers; that of the convolutional network has", where="--network", fix="use dense or tied"
            )
        build = partial(convolutional, shape, hidden or (16, 32), width)
    else:
        last = "sigmoid" if sigmoid else "relu" if kind == "sparse" else "identity"
        build = partial(dense, shape, (*hidden, width), "relu", last, network == "tied")
    change = denoising(augment.noise(noise)) if kind == "denoising" else None
    if change is not None:  # held-out parts are the same at every evaluation
        parts = freeze_held_out(parts, change, seed)
    own: Any = {"sparse": Sparse(**{penalty: factor}, rate=rate), "contractive": Contractive(factor)}
    return Recipe(
        model=build,
        data=parts,
        objective=own.get(kind, Reconstruction()),
        optimizer=optimizer("adam", lr=lr or (2e-2 if sigmoid else 3e-3)),
        schedule=warmup_cosine(),
        augment=change,
        batch_size=batch_size,
        epochs=epochs,
        callbacks=(FinalReport(partial(report, parts, kind)),),
    )


@torch.no_grad()
def report(data: Data, kind: str, model: Any, folder: Path) -> Mapping[str, str]:
    """Errors on the test part, and a sheet of its first pictures with what came back of them."""
    from ..estimators.pca import PCA

    assert data.test is not None
    model.eval()
    test, train = data.test[:], data.train[torch.arange(min(len(data.train), 10_000))].x
    clean = test.get("clean", test.x)
    code = torch.cat([model.encode(part) for part in test.x.split(512)])
    back = torch.cat([model.decode(part) for part in code.split(512)])
    in_use = float((code > IN_USE).sum(1).double().mean()) if kind == "sparse" else float(code.shape[1])
    most = min(max(round(in_use), 1), clean[0].numel(), len(train))
    pca = PCA(most).fit(train.flatten(1).numpy())
    flat = torch.from_numpy(pca.inverse_transform(pca.transform(test.x.flatten(1).numpy()))).float().reshape(clean.shape)
    errors = {"auto-encoder": _error(back, clean), f"PCA of {most}": _error(flat, clean), "mean picture": _error(train.mean(0), clean)}
    rows = {"pictures": clean, **({"with noise": test.x} if "clean" in test else {}), "rebuilt": back, f"PCA of {most} numbers": flat}
    if "clean" in test:
        errors["the noise itself"] = _error(test.x, clean)
    shown = [(name, row[start : start + ACROSS]) for start in (0, ACROSS) for name, row in rows.items()]
    sheet(folder, "reconstructions", "Reconstructions", shown, "The first pictures of the test part.")
    summary = {"squared error": ", ".join(f"{name} {error:.5f}" for name, error in errors.items()) + " per pixel of the test part"}
    if kind == "sparse":
        summary["code"] = f"{in_use:.1f} of its {code.shape[1]} numbers above {IN_USE:g} in a picture"
    return summary


def _error(estimate: Tensor, wanted: Tensor) -> float:
    return float((estimate - wanted).square().mean())
