"""Saliency: which pixels a classifier's answer rests on, by gradient, integrated gradients or Grad-CAM, as heat over the image.

gradient     the largest size over the channels of the slope of the score by a pixel (Simonyan et al., Deep Inside
             Convolutional Networks, 2014)
integrated   (x - x0) times the mean slope on the way from a baseline x0 to x; the pixels' shares sum to f(x) - f(x0)
             (Sundararajan et al., Axiomatic Attribution for Deep Networks, 2017)
grad-cam     positive part of the sum over channels of a layer's maps, each times the mean of the score's slope by it
             (Selvaraju et al., Grad-CAM, 2017)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import torch
from torch.nn.functional import interpolate

from ..core.batch import ask
from ..core.errors import BadInput
from ..core.options import Range
from ..core.reading import Images, Reading, Subject
from .tools.pictures import chosen, enable_gradients, gathering, last_convolution, no_images, picture
from .tools.readonly import guard, preserve_state
from .tools.tiny import images

if TYPE_CHECKING:
    from torch import Tensor

TITLES = {"gradient": "gradient", "integrated": "integrated gradients", "grad-cam": "Grad-CAM"}


STRONG = 0.01
"""share of the pixels of a picture that get the full color: a few far beyond the others would leave these without any"""


def why_not(subject: Subject) -> str:
    if missing := no_images(subject):
        return missing
    try:
        with preserve_state(subject.model), torch.no_grad():
            out = ask(subject.model, subject.batch[:1])
    except Exception as error:  # whatever stops it here would stop the lens too
        return f"the model cannot be asked: {' '.join(str(error).split())[:120]}"
    return "" if torch.is_tensor(out) and out.dim() == 2 else "the model does not give one score for each class"


@guard
def read(
    subject: Subject,
    method: Literal["gradient", "integrated", "grad-cam"] = "integrated",
    n: Annotated[int, Range(1, 64)] = 8,
    of: Literal["answer", "label"] = "answer",
    layer: str = "",
    baseline: float = 0.0,
    steps: Annotated[int, Range(1, 4096)] = 64,
) -> Reading:
    """Images of the batch with the heat of one method over them, each stretched to its own strongest pixels.

    Args:
        method: how pixels are scored
        n: how many images, the first of the batch
        of: whose score, that of the class the model says or of the true one
        layer: layer for Grad-CAM; default: the last convolution
        baseline: value of all pixels of the image from which gradients are integrated
        steps: interpolation steps of integrated gradients
    """
    model, batch = subject.model, subject.batch[:n]
    with preserve_state(model), torch.no_grad():
        out = ask(model, batch)
    predicted = out.argmax(1)
    classes = predicted if of == "answer" else _labels(batch, out.shape[1])
    legend, details = "", []
    if method == "gradient":
        heat = gradient(model, batch, classes).abs().amax(1)
        legend = "Heat is the size of the slope of the score by a pixel."
    elif method == "integrated":
        share = integrated_gradients(model, batch, classes, baseline, steps)
        heat, shift = share.sum(1), _scores(model, batch, classes) - _scores(model, batch.replace(x=batch.x * 0 + baseline), classes)
        off = float((share.flatten(1).sum(1) - shift).abs().max() / shift.abs().max().clamp_min(1e-12))
        details = [f"sum {value:+.2f}" for value in shift.tolist()]
        legend = (
            f"Heat is a pixel's share of the score over that of an image of {baseline:g}: orange speaks for the class, blue against it; "
            f"below is their sum, exact to {off:.1%} with {steps} steps."
        )
    else:
        heat, layer = grad_cam(model, batch, classes, layer)
        details = ["" if float(each.max()) > 0 else "none" for each in heat]
        legend = f"Heat is where the maps of '{layer}' that raise the score outweigh those that lower it"
        legend += "; 'none' is nowhere." if any(details) else "."
    legend += f" The strongest pixels of each picture, 1 in {round(1 / STRONG)}, have the full color."
    names = list(getattr(subject.data, "classes", ())) + [str(i) for i in range(out.shape[1])]
    return Images(
        f"Saliency: {TITLES[method]}",
        {"images": [picture(image) for image in batch.x]},
        axes=["example", "row", "column"],
        note=(f"The first {n} of {len(subject.batch):,} images. " if n < len(subject.batch) else "")
        + f"Score: what the model gives for {'the class it says' if of == 'answer' else 'the true class'}. {legend}",
        labels=[names[i] for i in classes.tolist()],
        details=details,
        heat=heat.tolist(),
        strong=STRONG,
        size=1.05,
    )


def _labels(batch: Any, count: int) -> Tensor:
    y = batch.get("y")
    if y is None or y.numel() != len(batch) or y.is_floating_point() or int(y.min()) < 0 or int(y.max()) >= count:
        raise BadInput("the batch has no label for each image", where="lens 'saliency'", fix="use of=answer")
    return y.flatten()


def _chosen_scores(out: Tensor, classes: Tensor) -> Tensor:
    return out.gather(1, classes.clone().unsqueeze(1)).squeeze(1)  # a copy, for labels made in inference mode


def _scores(model: Any, batch: Any, classes: Tensor) -> Tensor:
    with preserve_state(model), torch.no_grad():
        return _chosen_scores(ask(model, batch), classes).double()


def gradient(model: Any, batch: Any, classes: Tensor) -> Tensor:
    """(B, C, H, W) slope of the score of each example's class by its pixels."""
    with preserve_state(model), enable_gradients():
        x = batch.x.detach().clone().requires_grad_()
        out = ask(model, batch.replace(x=x))
        return torch.autograd.grad(_chosen_scores(out, classes).sum(), x)[0]


def integrated_gradients(model: Any, batch: Any, classes: Tensor, baseline: float = 0.0, steps: int = 64) -> Tensor:
    """(B, C, H, W) integrated gradients along the straight way from a flat image, by the midpoint rule, summed in double precision."""
    way = batch.x.double() - baseline
    total = torch.zeros_like(way)
    for step in range(steps):
        here = baseline + way * ((step + 0.5) / steps)
        total += gradient(model, batch.replace(x=here.to(batch.x)), classes).double() / steps
    return way * total


def grad_cam(model: Any, batch: Any, classes: Tensor, layer: str = "") -> tuple[Tensor, str]:
    """(B, H, W) heat of a layer's maps, smoothly enlarged to the image, and the name of the layer."""
    with preserve_state(model), enable_gradients():
        fmaps: dict[str, Any] = {}
        x = batch.x.detach().clone().requires_grad_()
        with gathering(model, x, fmaps):
            out = ask(model, batch.replace(x=x))
        if not fmaps:
            raise BadInput("the model makes no maps for Grad-CAM", where="lens 'saliency'", fix="use method=integrated")
        layer = chosen(layer, fmaps, last_convolution(model, fmaps))
        (slope,) = torch.autograd.grad(_chosen_scores(out, classes).sum(), fmaps[layer])
        heat = (slope.mean((2, 3), keepdim=True) * fmaps[layer].detach()).sum(1, keepdim=True).relu()
    return interpolate(heat, size=batch.x.shape[-2:], mode="bilinear", align_corners=False).squeeze(1), layer


def tiny() -> Subject:
    return images()
