"""A report at the end of a run: samples, baselines and scores on the test part."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, final

from torch import nn

from ...core.recipe import Callback


@final
class FinalReport(Callback):
    """Calls `show(model, folder of the run)` with the trained model.

    `show` returns short texts by name; the terminal and the report show them under "What was learned".
    """

    def __init__(self, show: Callable[[Any, Path], Mapping[str, str]]) -> None:
        self.show = show

    def finish(self, run: Any, step: int, model: nn.Module) -> None:
        run.say("looking at what was learned ...")
        for name, text in self.show(model, run.path).items():
            run.event(name, step, text=text, learned=True)
            run.say(f"{name}: {text}")
