"""Intrinsic dimension of the data, before the network and after each of its layers.

The estimate ("TwoNN") uses two neighbors of each point: on a manifold of dimension d the ratio mu of the distances to the
second and the first neighbor has P(mu > m) = m^-d whatever the density, so d is the inverse mean of log mu.
"""

from __future__ import annotations

import math
from typing import Annotated, Any

import numpy as np
import torch

from ..core.batch import Batch, call_model
from ..core.errors import BadInput
from ..core.options import Range
from ..core.reading import Bars, Reading, Subject
from .tools.readonly import guard, hook_outputs, leaf_modules, no_model, preserve_state
from .tools.tiny import values

MIN_POINTS = 10


def why_not(subject: Subject) -> str:
    """Why the lens does not apply to a subject, or ''; `guard` turns it into an error."""
    missing = no_model(subject)
    if missing:
        return missing
    return "" if len(subject.batch) >= MIN_POINTS else f"{len(subject.batch)} examples are too few for neighbors; {MIN_POINTS} are needed"


@guard
def read(subject: Subject, n: Annotated[int, Range(least=MIN_POINTS)] = 2000) -> Reading:
    """Intrinsic dimension of the inputs and of every layer's output.

    Args:
        n: maximum number of examples
    """
    batch = subject.batch[:n]
    x = batch.x
    clouds = {"input": x} if x.is_floating_point() else {}
    dimensions: dict[str, float | None] = {}
    with preserve_state(subject.model):  # the estimate too: importing scikit-learn draws a random number
        clouds |= _outputs(subject.model, batch)
        for name, cloud in clouds.items():
            try:
                dimensions[name] = two_nn(cloud)
            except BadInput:  # a layer whose output is the same for all examples has no dimension
                dimensions[name] = None
    numbers = [cloud[0].numel() for cloud in clouds.values()]
    undefined = [name for name, value in dimensions.items() if value is None]
    note = f"Estimated from the two nearest neighbors of each of {len(x)} examples." + (
        f" Too few distinct points: {', '.join(undefined)}." if undefined else ""
    )
    values = {"intrinsic dimension": list(dimensions.values()), "numbers per example": numbers}
    return Bars("Intrinsic dimension", values, axes=["layer"], note=note, labels=list(dimensions))


def two_nn(x: Any) -> float:
    """Intrinsic dimension of the rows of x, by maximum likelihood from the two nearest neighbors; repeated rows count once."""
    from sklearn.neighbors import NearestNeighbors

    rows = np.asarray(x.detach().cpu() if hasattr(x, "detach") else x, dtype=float)
    rows = np.unique(rows.reshape(len(rows), math.prod(rows.shape[1:])), axis=0)
    if not np.isfinite(rows).all():
        raise BadInput("the points have entries that are not finite", where="two_nn", fix="drop those rows first")
    if len(rows) < MIN_POINTS:
        raise BadInput(f"{len(rows)} distinct points are too few", where="two_nn", fix=f"give {MIN_POINTS} or more")
    near = NearestNeighbors(n_neighbors=2).fit(rows).kneighbors(return_distance=False)
    # From differences: scikit-learn computes distances as x^2 - 2 x y + y^2, which cancels to 0 for points that are close.
    distance = np.sort(np.linalg.norm(rows[:, None] - rows[near], axis=-1), axis=1)
    logs = np.log(distance[:, 1] / distance[:, 0])
    return float((len(rows) - 1) / logs.sum()) if logs.sum() > 0 else math.inf


def _outputs(model: Any, batch: Batch) -> dict[str, Any]:
    """Outputs of every layer for a batch, in the order the layers run; of a layer that runs twice, the last output."""
    outputs: dict[str, Any] = {}

    def keep(name: str, module: Any, inputs: Any, output: Any) -> None:
        if isinstance(output, torch.Tensor) and output.dim() > 1 and len(output) == len(batch):
            outputs[f"{name} {type(module).__name__}".strip()] = output.detach()

    with hook_outputs(leaf_modules(model), keep), torch.no_grad():
        call_model(model, batch)
    return outputs


def tiny() -> Subject:
    """A small subject for the contract tests."""
    return values()
