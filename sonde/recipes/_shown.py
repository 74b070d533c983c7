"""What recipes over texts share: they end by showing what was learnt, and read new lines as they read the old ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, final

from torch import nn

from ..core.batch import Batch
from ..core.errors import BadInput
from ..core.recipe import Callback
from ..data.documents import DocumentSource, Ragged
from ..data.formats import decode
from ..data.tokeniser import Tokeniser
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


@final
class Spelt:
    """A text file with one short document in each line -> Batch, with the tokeniser of the training data."""

    def __init__(self, vocabulary: Tokeniser, pad: int, most: int = 1 << 20, lower: bool = False) -> None:
        self.vocabulary, self.pad, self.most, self.lower = vocabulary, pad, most, lower

    def __call__(self, path: str | Path) -> Batch:
        return self.read(decode(Path(path)).splitlines())

    def read(self, lines: Sequence[str]) -> Batch:
        """The same for lines at hand."""
        lines = [line.lower() if self.lower else line for line in lines if line.strip()]
        return DocumentSource(Ragged(*self.vocabulary.encode_all(lines)).cut(self.most), self.pad)[:]
