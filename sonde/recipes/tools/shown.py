"""What many recipes share: they end by showing what was learned."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, final

from torch import nn

from ...core.recipe import Callback
from ...models.language_model import mixer_of, require_causal


@final
class FinalReport(Callback):
    """Says what `show(model, folder of the run)` finds in the trained model.

    `show` returns short texts by name; they stand on the terminal and in the report, under "What was learned".
    """

    def __init__(self, show: Callable[[Any, Path], Mapping[str, str]]) -> None:
        self.show = show

    def finish(self, run: Any, step: int, model: nn.Module) -> None:
        run.say("looking at what was learned ...")
        for name, text in self.show(model, run.path).items():
            run.event(name, step, text=text, learned=True)
            run.say(f"{name}: {text}")


def causal(mixer: str, width: int) -> None:
    """Refuse a mixer that looks at later tokens."""
    require_causal(mixer_of(mixer, width).causal, mixer, "--mixer", "choose one that does not; char_lm can hide tokens instead")
