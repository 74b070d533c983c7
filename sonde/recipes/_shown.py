"""What recipes over texts share: they end by showing what was learnt."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, final

from torch import nn

from ..core.errors import BadInput
from ..core.recipe import Callback
from ..models.language_model import mixer_of


@final
class Shown(Callback):
    """Builds the model of a run, and says what `show(model, folder of the run)` finds in it once it is trained.

    `show` returns short texts by name; they stand on the terminal and in the report, under "What happened".  Give this to a
    recipe twice, as its `model` and among its `callbacks`: that is how it knows the model that was trained.
    """

    def __init__(self, build: Callable[[], Any], show: Callable[[Any, Any], Mapping[str, str]]) -> None:
        self.build, self.show = build, show
        self.model: nn.Module | None = None
        self.last = 0

    def __call__(self) -> Any:
        self.model = self.build()
        return self.model

    def step(self, run: Any, step: int, row: Mapping[str, float]) -> None:
        self.last = step

    def finish(self, run: Any) -> None:
        assert self.model is not None
        for name, text in self.show(self.model, run.path).items():
            run.event(name, self.last, text=text)
            run.say(f"{name}: {text}")


def causal(mixer: str, width: int) -> None:
    """Refuse a mixer that looks at later tokens."""
    if not mixer_of(mixer, width).causal:
        told = f"'{mixer}' looks at later tokens, so it would see the one it has to predict"
        raise BadInput(told, where="--mixer", fix="choose one that does not; char_lm can hide tokens instead")
