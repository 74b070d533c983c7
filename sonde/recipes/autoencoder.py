"""An auto-encoder of small grey pictures, plain, sparse, contractive or denoising; its error beside that of PCA."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from ..core.batch import Data
from ..core.dials import Range
from ..core.errors import BadInput
from ..core.recipe import Recipe
from ..data import augment
from ..data.catalogue import load
from ..data.corrupt import fixed
from ..models.autoencoder import convolutional, dense
from ..objectives.contractive import Contractive
from ..objectives.reconstruction import Reconstruction
from ..objectives.sparse import Sparse
from ..optim.build import optimiser
from ..optim.schedules import warmup_cosine
from ._sheets import ACROSS, sheet
from ._shown import Shown
from ._stacked import denoising


def recipe(
    kind: Literal["plain", "sparse", "contractive", "denoising"] = "plain",
    data: Literal["digits", "mnist", "fashion_mnist"] = "digits",
    code: Annotated[int, Range(1, 8192)] = 16,
    hidden: Annotated[tuple[int, ...], Range(1, 8192)] = (),
    network: Literal["dense", "tied", "convolutional"] = "dense",
    price: Annotated[float, Range(least=0)] = 0.1,
    noise: Annotated[float, Range(above=0)] = 0.3,
    batch: Annotated[int, Range(least=1)] = 64,
    lr: Annotated[float, Range(above=0)] = 3e-3,
    epochs: Annotated[float, Range(above=0)] = 60,
    seed: int = 0,
) -> Recipe:
    """Squeeze pictures into a few numbers and rebuild them; at the end the test pictures, against PCA of as many numbers.

    kind: sparse puts a price on what the code uses (L1), contractive on how much it moves with x; denoising reads pictures with
        noise and is judged by the clean ones
    data: digits come with scikit-learn; the others need a data folder or a connection
    code: numbers of the code; with a price they may be more than there are pixels
    hidden: widths of dense layers before the code, or channels of convolutions; the decoder goes back the same way
    network: tied uses the weights of the encoder, transposed, in the decoder
    price: lambda of the sparse and of the contractive penalty
    noise: deviation of the noise that denoising takes off; white is 1
    batch: pictures per update
    lr: learning rate at the top of its warm-up; falls to 0 along a cosine
    epochs: passes over the training data
    """
    parts = load(data, seed=seed, standardise=False)
    shape = tuple(parts.train[:1].x.shape[1:])
    if network == "convolutional":
        if kind == "sparse":
            raise BadInput(
                "a sparse code ends in ReLU, which the convolutional network has not", where="--network", fix="use dense or tied"
            )
        build = partial(convolutional, shape, hidden or (16, 32), code)
    else:
        last = {"sparse": "relu", "contractive": "sigmoid"}.get(kind, "identity")
        build = partial(dense, shape, (*hidden, code), "relu", last, network == "tied")
    change = denoising(augment.noise(noise)) if kind == "denoising" else None
    if change is not None:  # a part that is judged asks the same every time
        judged: dict[str, Any] = {name: fixed(part, change, seed) for name, part in parts.splits.items() if name != "train"}
        parts = replace(parts, **judged)
    objective: Any = {"sparse": Sparse(l1=price), "contractive": Contractive(price)}.get(kind, Reconstruction())
    return Recipe(
        model=build,
        data=parts,
        objective=objective,
        optimiser=optimiser("adam", lr=lr),
        schedule=warmup_cosine(),
        augment=change,
        batch=batch,
        epochs=epochs,
        callbacks=(Shown(partial(report, parts, code)),),
    )


@torch.no_grad()
def report(data: Data, code: int, model: Any, folder: Path) -> Mapping[str, str]:
    """Errors on the test part, and a sheet of its first pictures with what came back of them."""
    from ..estimators.pca import PCA

    assert data.test is not None
    model.eval()
    test, train = data.test[:], data.train[torch.arange(min(len(data.train), 10_000))].x
    clean = test.get("clean", test.x)
    back = torch.cat([model(part) for part in test.x.split(512)])
    most = min(code, clean[0].numel(), len(train))
    pca = PCA(most).fit(train.flatten(1).numpy())
    flat = torch.from_numpy(pca.inverse_transform(pca.transform(test.x.flatten(1).numpy()))).float().reshape(clean.shape)
    found = {"auto-encoder": _error(back, clean), f"PCA of {most}": _error(flat, clean), "mean picture": _error(train.mean(0), clean)}
    rows = {"pictures": clean, **({"with noise": test.x} if "clean" in test else {}), "rebuilt": back, f"by PCA of {most} numbers": flat}
    if "clean" in test:
        found["the noise itself"] = _error(test.x, clean)
    shown = [row[start : start + ACROSS] for start in (0, ACROSS) for row in rows.values()]
    sheet(folder / "figures" / "reconstructions.png", "Reconstructions", shown, f"Rows, twice: {', '.join(rows)}.")
    used = torch.cat([model.encode(part) for part in test.x.split(512)])
    told = {"squared error": ", ".join(f"{name} {error:.5f}" for name, error in found.items()) + " per pixel of the test part"}
    return {**told, "code": f"{float((used > 0).float().mean()):.0%} of its {used.shape[1]} numbers above 0"}


def _error(found: Tensor, wanted: Tensor) -> float:
    return float((found - wanted).square().mean())
