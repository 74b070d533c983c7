"""Contrastive likelihood of pairs: which text belongs to an image, and which image to a text (InfoNCE).

    s_ij = scale * image_i . text_j
    cost of pair i = 1/2 (-log softmax_j(s_ij) at j = i) + 1/2 (-log softmax_j(s_ji) at j = i)

van den Oord, Li and Vinyals, 2018; in both directions: Radford and others (CLIP), 2021.  Before training it is about log N for
N pairs.

The other pairs of its group are the negatives of a pair, so splitting a group changes the loss.  Groups are the values of a
field `group` of the batch, if it has one; else `group` consecutive pairs, or the whole batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..core.batch import Batch, call_model
from ..core.errors import BadInput, nearest
from ..core.options import Range, checked
from ..core.terms import Terms


@final
class Contrastive:
    """The model gives 'image' and 'text', unit vectors (B, D), and 'scale', one number.  Drops nothing.

    Examples have no weights here: a pair is also a negative of the other pairs.

    Args:
        group: consecutive pairs that are compared with each other; a batch that is split at multiples of it, between
            processes or into micro-batches, keeps its loss.  0 is the whole batch
        same: a field of the batch; pairs that agree in it, such as those with the same text, are not negatives of each other
    """

    name = "contrastive"

    @checked
    def __init__(self, group: Annotated[int, Range(least=0)] = 0, same: str | None = None) -> None:
        self.group, self.same = group, same

    def __call__(self, model: nn.Module, batch: Batch) -> Terms:
        return self.terms(call_model(model, batch), batch)

    def terms(self, output: Mapping[str, Tensor], batch: Batch) -> Terms:
        """The same from a given output."""
        scores = self._scores(output, batch)
        own = torch.arange(len(scores), device=scores.device)
        cost = F.cross_entropy(scores, own, reduction="sum") + F.cross_entropy(scores.mT, own, reduction="sum")
        return Terms(nll=(cost, float(len(scores)), 1.0, 0.5))

    def counts(self, batch: Batch) -> dict[str, float]:
        """One for each pair."""
        return {"nll": float(len(batch))}

    def measures(self, output: Mapping[str, Tensor], batch: Batch) -> Terms:
        """Accuracy of retrieving the text of an image within its group, and the image of a text."""
        scores = self._scores(output, batch).detach()
        own = torch.arange(len(scores), device=scores.device)
        hits = {"texts_found": scores.argmax(1) == own, "images_found": scores.argmax(0) == own}
        return Terms(**{name: (right.to(scores.dtype).sum(), float(len(own))) for name, right in hits.items()})

    def check(self, batch: Batch) -> None:
        if "weight" in batch:
            message = "pairs cannot be weighted, because each is a negative of the others"
            raise BadInput(message, where=self.name, fix="leave out the field 'weight', and repeat or drop pairs")
        if self.same is not None and self.same not in batch:
            raise BadInput(
                f"the batch has no field '{self.same}', which says which pairs are equal", where=self.name, fix=nearest(self.same, batch)
            )

    def predict(self, output: Mapping[str, Tensor]) -> Tensor:
        """(B, B) the probability of each text for each image."""
        return (output["scale"] * output["image"] @ output["text"].mT).softmax(-1)

    def _scores(self, output: Any, batch: Batch) -> Tensor:
        """(B, B), -inf for pairs that are not compared."""
        self.check(batch)
        if not isinstance(output, Mapping) or not {"image", "text", "scale"} <= output.keys():
            raise BadInput("pairs need a model that gives 'image', 'text' and 'scale'", where=self.name, fix="use models.clip.Clip")
        image, text = output["image"], output["text"]
        if image.ndim != 2 or image.shape != text.shape:
            message = f"images become {tuple(image.shape)} and texts {tuple(text.shape)}"
            raise BadInput(message, where=self.name, fix="give both encoders the same output width")
        with torch.autocast(image.device.type, enabled=False):
            wide = torch.promote_types(image.dtype, torch.float32)
            scores = output["scale"].to(wide) * image.to(wide) @ text.to(wide).mT
        excluded = self._excluded_pairs(batch, len(image), image.device)
        return scores if excluded is None else scores.masked_fill(excluded, float("-inf"))

    def _excluded_pairs(self, batch: Batch, n: int, device: torch.device) -> Tensor | None:
        """(B, B) which pairs are not compared; None where all are."""
        group = batch.get("group")
        if group is None and 0 < self.group < n:
            group = torch.arange(n, device=device) // self.group
        excluded = None if group is None else group != group.unsqueeze(1)
        if self.same is not None:
            field = batch.fields[self.same].flatten(1) if batch.fields[self.same].ndim > 1 else batch.fields[self.same].unsqueeze(1)
            same_field = (field == field.unsqueeze(1)).all(-1).fill_diagonal_(False)
            excluded = same_field if excluded is None else excluded | same_field
        return excluded


def tiny() -> tuple[Contrastive, nn.Module, Batch]:
    """A small working instance with input."""

    class Two(nn.Module):
        """Half of the numbers of an example are its image, half its text."""

        def __init__(self) -> None:
            super().__init__()
            self.image, self.text, self.log_scale = nn.Linear(3, 4), nn.Linear(3, 4), nn.Parameter(torch.tensor(1.0))

        def forward(self, x: Tensor) -> dict[str, Tensor]:
            image, text = x.chunk(2, -1)
            vectors = {"image": self.image(image), "text": self.text(text)}
            return {name: F.normalize(vector, dim=-1) for name, vector in vectors.items()} | {"scale": self.log_scale.exp()}

    x = torch.linspace(0, 9, 42).reshape(7, 6).sin()
    # Groups of 1, 4 and 2 pairs; splitting between groups does not change the loss.
    return Contrastive(), Two(), Batch(x=x, group=torch.tensor([0, 1, 1, 1, 1, 2, 2]))
