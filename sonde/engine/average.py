"""Copies of weights that follow them slowly: the moving average of a whole model, and parts of a model that follow others.

    copy <- d copy + (1 - d) weights

Averaged weights often generalize better than the last ones (Polyak and Juditsky 1992); target networks keep the targets of
Q-learning from running after themselves (Lillicrap et al. 2016, arXiv:1509.02971).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ..core.errors import BadInput
from ..core.recipe import Follower


class Average:
    """The moving average of some tensors.  The decay grows from 0.1 to its value, so that the first weights are soon forgotten.

    Args:
        live: the tensors; they are changed in place by training.
        decay: d, from some hundred updates on.
    """

    def __init__(self, live: Sequence[Tensor], decay: float) -> None:
        self.live, self.decay = list(live), decay
        self.values = [tensor.detach().clone() for tensor in self.live]

    @torch.no_grad()
    def update(self, step: int) -> None:
        """After the update of a step: d = min(decay, (1 + step) / (10 + step))."""
        torch._foreach_lerp_(self.values, self.live, 1 - min(self.decay, (1 + step) / (10 + step)))

    @contextmanager
    def swap(self) -> Iterator[None]:
        """The average in the place of the live tensors for a while."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        for live, value in zip(self.live, self.values, strict=True):
            kept = live.clone()
            live.copy_(value)
            value.copy_(kept)

    @torch.no_grad()
    def restart(self) -> None:
        """Begin again at the live tensors."""
        for live, value in zip(self.live, self.values, strict=True):
            value.copy_(live)


class Followers:
    """The parts of a model that follow others.

    Args:
        model: has both.
        followers: see `core.recipe.Follower`.
    """

    def __init__(self, model: nn.Module, followers: Sequence[Follower]) -> None:
        self.followers = [(one, self._pairs(model, one)) for one in followers]

    @staticmethod
    def _pairs(model: nn.Module, follower: Follower) -> tuple[list[Tensor], list[Tensor]]:
        where = f"follower '{follower.copy}'"
        if not 0 <= follower.decay < 1 or follower.every < 1:
            raise BadInput(f"it has decay {follower.decay} and every {follower.every}", where=where, fix="0 <= decay < 1, every >= 1")
        try:
            copy, original = model.get_submodule(follower.copy), model.get_submodule(follower.original)
        except AttributeError as error:
            raise BadInput(f"the model has no such part: {error}", where=where, fix="name submodules of the model") from error
        if trains := [name for name, parameter in copy.named_parameters() if parameter.requires_grad]:
            raise BadInput(
                f"its weight '{trains[0]}' trains by itself", where=where, fix=f"call model.{follower.copy}.requires_grad_(False)"
            )
        pairs = []
        for kind in ("named_parameters", "named_buffers"):
            mine, theirs = dict(getattr(copy, kind)()), dict(getattr(original, kind)())
            if {name: one.shape for name, one in mine.items()} != {name: one.shape for name, one in theirs.items()}:
                raise BadInput(f"it is not built like '{follower.original}'", where=where, fix="make it by copy.deepcopy")
            pairs += [(mine[name], theirs[name]) for name in mine]
        return [copy for copy, _ in pairs], [original for _, original in pairs]

    @torch.no_grad()
    def update(self, step: int) -> None:
        """After the updates of a step."""
        for follower, (copies, originals) in self.followers:
            if (step + 1) % follower.every == 0:
                for copy, original in zip(copies, originals, strict=True):
                    if follower.decay and copy.is_floating_point():
                        copy.lerp_(original.detach(), 1 - follower.decay)
                    else:
                        copy.copy_(original)


def followers_of(objective: Any, model: nn.Module) -> Followers | None:
    """Those that an objective declares; None where it has none."""
    declared: Sequence[Follower] = getattr(objective, "followers", ())
    return Followers(model, declared) if declared else None
