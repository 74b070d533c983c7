"""Multi-layer perceptrons with the interface of scikit-learn, trained by Sonde's engine.

The network works in float32 while it learns and in float64 when it predicts, so that a prediction does not depend
on the other rows.  A fit is an ordinary run in a temporary folder: same loop, same checks, same bits for a seed.
"""

from __future__ import annotations

import tempfile
import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, final

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from torch import Tensor

from ..core.batch import Data
from ..core.errors import BadInput, NumericalStop
from ..core.options import Count, Range
from ..core.recipe import Recipe
from ..data.split import split
from ..data.tensors import TensorSource
from ..engine.execute import train_quietly
from ..engine.saved import open_model
from ..models.heads import Head, head
from ..models.mlp import MLP
from ..optim.build import optimizer
from ._base import NonNegative, Positive, checked_arguments, column_sizes, features, with_labels, with_targets


class Network(ABC, BaseEstimator):
    """The base class of both networks: settings and training.

    Args:
        hidden: widths of the hidden layers
        activation: function between the layers, any name of `sonde.nn.activations`
        optimizer: any name of `sonde.optim`
        lr: learning rate
        weight_decay: of the weights; biases are not decayed
        dropout: fraction of hidden values set to 0 while training
        batch_size: rows per update
        epochs: passes over the training rows at most
        patience: epochs without a better validation loss before it stops and restores the best weights; 0 never stops early
        valid: fraction of the rows for validation if patience is set
        random_state: seed of weights, order, dropout and validation rows
    """

    def __init__(  # noqa: PLR0913  (settings of an estimator are flat, so that a grid can name them)
        self,
        hidden: Annotated[Sequence[int], Range(1)] = (100,),
        activation: str = "relu",
        optimizer: str = "adamw",
        lr: Positive = 1e-3,
        weight_decay: NonNegative = 0.0,
        dropout: float = 0.0,
        batch_size: Count = 64,
        epochs: Positive = 100,
        patience: Annotated[int, Range(0)] = 0,
        valid: float = 0.1,
        random_state: Any = 0,
    ) -> None:
        self.hidden = hidden
        self.activation = activation
        self.optimizer = optimizer
        self.lr = lr
        self.weight_decay = weight_decay
        self.dropout = dropout
        self.batch_size = batch_size
        self.epochs = epochs
        self.patience = patience
        self.valid = valid
        self.random_state = random_state

    @abstractmethod
    def predict(self, X: Any) -> np.ndarray:
        """The prediction for each row."""

    def _learn(self, X: np.ndarray, y: Tensor, end: Head) -> None:
        """Train a network for float rows X and targets y; sets model_, n_iter_, loss_curve_ and valid_curve_."""
        x = torch.as_tensor(X, dtype=torch.float32)
        if not bool(x.isfinite().all()):
            raise BadInput("X has values out of the range of float32", fix="scale the features, e.g. with StandardScaler")
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        try:
            recipe = self._recipe(TensorSource(x, y), end, seed)
            with tempfile.TemporaryDirectory(prefix="sonde-fit-") as folder:
                run = train_quietly(recipe, folder, seed=seed, threads=torch.get_num_threads(), checkpoint_every=10**12)
                model, rows, steps = open_model(folder, recipe), list(run.rows("metrics.jsonl")), run.result()["steps"]
        except NumericalStop as error:
            raise NumericalStop(error.what, where=type(self).__name__, fix=self._reduce_rate) from None
        except BadInput as error:
            raise BadInput(error.what, where=error.where, fix=error.fix) from error
        self._warn_skipped(sum("skipped" in row for row in rows), steps)
        self.model_ = model.double()
        self.n_iter_ = -(-steps // recipe.evaluate_every)
        self.loss_curve_ = [row["loss"] for row in rows if "loss" in row]
        self.valid_curve_ = [row["valid/loss"] for row in rows if "valid/loss" in row]

    @property
    def _reduce_rate(self) -> str:
        return f"use a smaller lr than {self.lr:g}, or scale the features"

    def _warn_skipped(self, skipped: int, steps: int) -> None:
        """Warn about skipped steps; raise NumericalStop where more than one in ten was skipped."""
        what = f"{type(self).__name__} skipped {skipped} of {steps} steps whose loss exploded"
        if 10 * skipped > steps:
            raise NumericalStop(what, fix=self._reduce_rate)
        if skipped:
            warnings.warn(f"{what}; {self._reduce_rate}", ConvergenceWarning, stacklevel=4)

    def _recipe(self, whole: TensorSource, end: Head, seed: int) -> Recipe:
        arguments = checked_arguments(self)
        data = Data(whole)
        if arguments.patience:
            labels = None if whole.y.is_floating_point() else whole.y
            train_rows, valid_rows, _ = split(len(whole), valid=self.valid, test=0, seed=seed, labels=labels)
            data = Data(whole.subset(train_rows), valid=whole.subset(valid_rows))
        return Recipe(
            model=partial(MLP, (whole[:1].x.shape[1], *arguments.hidden, end.outputs), self.activation, self.dropout),
            data=data,
            objective=end.likelihood(),
            optimizer=optimizer(self.optimizer, lr=arguments.lr, weight_decay=arguments.weight_decay),
            batch_size=arguments.batch_size,
            epochs=arguments.epochs,
            patience=arguments.patience,
            evaluate_every=-(-len(data.train) // arguments.batch_size),  # once an epoch
            on_bad="skip",  # a network that memorizes its rows has losses near 0, and a hard batch may look like an explosion
        )

    @torch.no_grad()
    def _output(self, X: Any) -> Tensor:
        x = torch.as_tensor(features(self, X))
        return self.model_(x)


@final
class MLPClassifier(ClassifierMixin, Network):
    """A multi-layer perceptron for labels; its settings are described under `Network`.

    After `fit`: model_ (a torch module), classes_, n_iter_ epochs, loss_curve_, valid_curve_.
    """

    def fit(self, X: Any, y: Any) -> MLPClassifier:
        """Learn from rows X (N, D) and labels y (N,)."""
        X, codes = with_labels(self, X, y)
        self._learn(X, torch.as_tensor(codes, dtype=torch.int64), head("classes", len(self.classes_)))
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        """The probability of each class (N, C), in the order of `classes_`."""
        return self._output(X).softmax(1).numpy()

    def predict(self, X: Any) -> np.ndarray:
        """The most probable class of each row."""
        best = self._output(X).argmax(1).numpy()
        return self.classes_[best]


@final
class MLPRegressor(RegressorMixin, Network):
    """A multi-layer perceptron for values, one or several per row; its settings are described under `Network`.

    After `fit`: model_ (a torch module), n_iter_ epochs, loss_curve_, valid_curve_.
    """

    def fit(self, X: Any, y: Any) -> MLPRegressor:
        """Learn from rows X (N, D) and values y (N,) or (N, K)."""
        X, y = with_targets(self, X, y, several=True)
        # Targets are standardized: a learning rate then means the same in all units.
        column_sizes("y", y.reshape(len(y), -1))
        self.middle_, self.scale_ = y.mean(0), np.where(y.std(0) > 0, y.std(0), 1.0)
        standard = torch.as_tensor((y - self.middle_) / self.scale_, dtype=torch.float32)
        self._learn(X, standard, head("real", 1 if y.ndim == 1 else y.shape[1]))
        return self

    def predict(self, X: Any) -> np.ndarray:
        """The expected value of each row, in the units of y."""
        output = self._output(X).numpy()
        return (output[:, 0] if np.ndim(self.middle_) == 0 else output) * self.scale_ + self.middle_

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags
