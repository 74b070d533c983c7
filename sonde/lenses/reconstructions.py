"""Reconstructions of an auto-encoder below the originals, with the error of each."""

from __future__ import annotations

from typing import Annotated, Literal

import torch

from ..core.numbers import number
from ..core.options import Range
from ..core.reading import Images, Reading, Subject
from .tools.codes import codes, decode_codes, no_codes, to_pictures
from .tools.readonly import CHUNK, guard, preserve_state
from .tools.tiny import autoencoder


def why_not(subject: Subject) -> str:
    """Why the lens does not apply to a subject, or ''; `guard` turns it into an error."""
    return no_codes(subject)


@guard
def read(subject: Subject, n: Annotated[int, Range(1, 64)] = 10, order: Literal["first", "worst"] = "first") -> Reading:
    """Rows of originals, reconstructions and their difference; errors are mean squared errors over an example's values.

    Args:
        n: how many images
        order: the first of the batch, or those with the largest error
    """
    x = subject.batch.x
    with preserve_state(subject.model), torch.no_grad():
        reconstructions = torch.cat([decode_codes(subject, codes(subject, part)).reshape(part.shape) for part in x.split(CHUNK)])
    residuals = (reconstructions - x).double()
    errors = residuals.flatten(1).square().mean(1)
    mean = float((x.double() - x.double().mean(0)).square().mean())
    which = errors.argsort(descending=True, stable=True)[:n] if order == "worst" else torch.arange(min(n, len(x)))
    above, below = to_pictures(subject, x[which]), to_pictures(subject, reconstructions[which])
    signed = [gap.mean(0) if gap.dim() == 3 else gap.reshape(len(above[0]), -1) for gap in residuals[which]]
    blank = [each * 0 + 1 for each in above]
    error, baseline = float(errors.mean()), f"the mean image has {number(round(mean, 6))}"
    return Images(
        "Reconstructions",
        {"images": [*above, *below, *blank]},
        axes=["picture", "row", "column"],
        note=f"Mean squared error over {len(x):,} examples {number(round(error, 6))}; {baseline}, so {1 - error / mean:.1%} of the "
        f"variance is explained. {'The largest errors come first. ' if order == 'worst' else ''}"
        "Last row: reconstruction minus image, positive in orange, negative in blue."
        if mean > 0
        else f"Mean squared error over {len(x):,} examples {number(round(error, 6))}.",
        across=len(which),
        rows=["image", "reconstruction", "difference"],
        details=[""] * 2 * len(which) + [number(round(error, 5)) for error in errors[which].tolist()],
        heat=[None] * 2 * len(which) + [gap.tolist() for gap in signed],
        top=float(torch.stack(signed).abs().max()),
        results={"errors": errors[which]},
    )


def tiny() -> Subject:
    """A small subject for the contract tests."""
    return autoencoder()
