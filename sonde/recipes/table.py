"""Your own table: a CSV, TSV or Parquet file and the column to predict, classes or numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from ..core.options import Range
from ..core.recipe import Recipe
from ..data.catalog import load
from ..models.heads import objective_of
from ..optim.schedules import warmup_cosine
from .tools.parts import table_predictor


def recipe(
    data: Path,
    target: str,
    task: Literal["auto", "classes", "values", "counts"] = "auto",
    objective: str = "auto",
    ignore: tuple[str, ...] = (),
    hidden: Annotated[tuple[int, ...], Range(1, 65536)] = (64, 64),
    dropout: Annotated[float, Range(least=0, below=1)] = 0.1,
    batch_size: Annotated[int, Range(least=1)] = 64,
    lr: Annotated[float, Range(above=0)] = 2e-3,
    epochs: Annotated[float, Range(above=0)] = 50,
    patience: Annotated[int, Range(least=0)] = 10,
) -> Recipe:
    """A multi-layer perceptron on your own table; a tenth of the rows is held out for validation, a tenth for the test.

    Args:
        data: CSV, TSV or Parquet file, one row per example
        target: column to predict
        task: what the target is; auto takes texts and few whole numbers as classes
        objective: by name or from a file of your own, with its options: "laplace", "./huber.py delta=2"; auto chooses by the target
        ignore: columns to leave out
        hidden: widths of the hidden layers
        dropout: dropout probability of hidden values
        batch_size: examples per update
        lr: peak learning rate: linear warm-up, then cosine decay to 0
        epochs: passes over the training data at most
        patience: evaluations without a better validation loss before it stops; 0 never stops early
    """
    dataset = load(data, target=target, task=task, ignore=ignore)
    own = {} if objective == "auto" else {"objective": objective_of(objective, classes=len(dataset.classes))}
    fields = {"schedule": warmup_cosine(), "batch_size": batch_size, "epochs": epochs, "patience": patience, **own}
    return table_predictor(dataset, hidden, dropout, lr, 0.05, **fields)
