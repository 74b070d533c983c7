"""TensorBoard event files in addition to metrics.jsonl."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from ..core.errors import BadInput
from ..core.recipe import Callback


class TensorBoard(Callback):
    """Writes every number of a row as a scalar; on resume, rows after the checkpoint are purged."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def start(self, run: Any) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise BadInput("TensorBoard is not installed", fix="pip install sonde[track]") from error
        self.writer = SummaryWriter(str(self.folder), purge_step=(run.last_saved or 0) + 1)

    def step(self, run: Any, step: int, row: Mapping[str, float]) -> None:
        for name, value in row.items():
            if name != "step" and isinstance(value, (int, float)):
                self.writer.add_scalar(name, value, step)

    def evaluated(self, run: Any, step: int, row: Mapping[str, float]) -> None:
        self.step(run, step, row)

    def finish(self, run: Any, step: int, model: nn.Module) -> None:
        self.writer.close()
