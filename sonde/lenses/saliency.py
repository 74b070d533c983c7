"""Saliency: which pixels a classifier's prediction depends on, by gradient, integrated gradients or Grad-CAM, as heat over the image.

gradient     maximum over the channels of the absolute gradient of the score at a pixel (Simonyan et al., Deep Inside
             Convolutional Networks, 2014)
integrated   (x - x0) times the mean gradient on the line from a baseline x0 to x; attributions sum to f(x) - f(x0)
             (Sundararajan et al., Axiomatic Attribution for Deep Networks, 2017)
grad-cam     positive part of the sum of a layer's maps, each weighted by the mean gradient of the score at it
             (Selvaraju et al., Grad-CAM, 2017)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import torch
from torch.nn.functional import interpolate

from ..core.batch import call_model
from ..core.errors import BadInput
from ..core.options import Range
from ..core.reading import Images, Reading, Subject
from .tools.pictures import collect_maps, enable_gradients, last_convolution, no_images, picture, select_layer
from .tools.readonly import guard, preserve_state
from .tools.tiny import images

if TYPE_CHECKING:
    from torch import Tensor

TITLES = {"gradient": "gradient", "integrated": "integrated gradients", "grad-cam": "Grad-CAM"}


STRONG = 0.01
"""fraction of the pixels that get the full color, so that a few outliers do not make the others invisible"""


def why_not(subject: Subject) -> str:
    """Why the lens does not apply to a subject, or ''; `guard` turns it into an error."""
    if missing := no_images(subject):
        return missing
    try:
        with preserve_state(subject.model), torch.no_grad():
            out = call_model(subject.model, subject.batch[:1])
    except Exception as error:  # whatever fails here would fail in the lens too
        return f"the model cannot be run: {' '.join(str(error).split())[:120]}"
    return "" if torch.is_tensor(out) and out.dim() == 2 else "the model does not output one score per class"


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
    """Images of the batch with the heat of one method over them, each scaled by its own strongest pixels.

    Args:
        method: how pixels are attributed
        n: how many images, the first of the batch
        of: the score to explain: answer, that of the predicted class, or label, that of the true class
        layer: layer for Grad-CAM; default: the last convolution
        baseline: pixel value of the constant image at which the integration starts
        steps: interpolation steps of integrated gradients
    """
    model, batch = subject.model, subject.batch[:n]
    with preserve_state(model), torch.no_grad():
        out = call_model(model, batch)
    predicted = out.argmax(1)
    classes = predicted if of == "answer" else _labels(batch, out.shape[1])
    legend, details = "", []
    if method == "gradient":
        heat = gradient(model, batch, classes).abs().amax(1)
        legend = "Heat is the absolute gradient of the score at a pixel."
    elif method == "integrated":
        attribution = integrated_gradients(model, batch, classes, baseline, steps)
        heat, difference = (
            attribution.sum(1),
            _scores(model, batch, classes) - _scores(model, batch.replace(x=batch.x * 0 + baseline), classes),
        )
        off = float((attribution.flatten(1).sum(1) - difference).abs().max() / difference.abs().max().clamp_min(1e-12))
        details = [f"sum {value:+.2f}" for value in difference.tolist()]
        legend = (
            f"Heat is a pixel's contribution to the score minus that of a constant image of {baseline:g}: orange is positive, "
            f"blue negative; below is their sum, with an error of {off:.1%} at {steps} steps."
        )
    else:
        heat, layer = grad_cam(model, batch, classes, layer)
        details = ["" if float(each.max()) > 0 else "none" for each in heat]
        legend = f"Heat is where the weighted sum of the maps of '{layer}' is positive"
        legend += "; 'none' is nowhere." if any(details) else "."
    legend += f" The strongest 1 in {round(1 / STRONG)} pixels of each picture have the full color."
    names = list(getattr(subject.data, "classes", ())) + [str(i) for i in range(out.shape[1])]
    return Images(
        f"Saliency: {TITLES[method]}",
        {"images": [picture(image) for image in batch.x]},
        axes=["example", "row", "column"],
        note=(f"The first {n} of {len(subject.batch):,} images. " if n < len(subject.batch) else "")
        + f"Score: the model's output for {'the predicted class' if of == 'answer' else 'the true class'}. {legend}",
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
        return _chosen_scores(call_model(model, batch), classes).double()


def gradient(model: Any, batch: Any, classes: Tensor) -> Tensor:
    """(B, C, H, W) gradient of the score of each example's class with respect to its pixels."""
    with preserve_state(model), enable_gradients():
        x = batch.x.detach().clone().requires_grad_()
        out = call_model(model, batch.replace(x=x))
        return torch.autograd.grad(_chosen_scores(out, classes).sum(), x)[0]


def integrated_gradients(model: Any, batch: Any, classes: Tensor, baseline: float = 0.0, steps: int = 64) -> Tensor:
    """(B, C, H, W) integrated gradients on the line from a constant image, by the midpoint rule, summed in double precision."""
    line = batch.x.double() - baseline
    total = torch.zeros_like(line)
    for step in range(steps):
        here = baseline + line * ((step + 0.5) / steps)
        total += gradient(model, batch.replace(x=here.to(batch.x)), classes).double() / steps
    return line * total


def grad_cam(model: Any, batch: Any, classes: Tensor, layer: str = "") -> tuple[Tensor, str]:
    """(B, H, W) heat of a layer's maps, interpolated to the size of the image, and the name of the layer."""
    with preserve_state(model), enable_gradients():
        fmaps: dict[str, Any] = {}
        x = batch.x.detach().clone().requires_grad_()
        with collect_maps(model, x, fmaps):
            out = call_model(model, batch.replace(x=x))
        if not fmaps:
            raise BadInput("the model has no feature maps for Grad-CAM", where="lens 'saliency'", fix="use method=integrated")
        layer = select_layer(layer, fmaps, last_convolution(model, fmaps))
        (slope,) = torch.autograd.grad(_chosen_scores(out, classes).sum(), fmaps[layer])
        heat = (slope.mean((2, 3), keepdim=True) * fmaps[layer].detach()).sum(1, keepdim=True).relu()
    return interpolate(heat, size=batch.x.shape[-2:], mode="bilinear", align_corners=False).squeeze(1), layer


def tiny() -> Subject:
    """A small subject for the contract tests."""
    return images()
