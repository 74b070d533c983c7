"""Multi-layer perceptrons with the interface of scikit-learn, trained by Sonde's engine.

The network is trained in float32 and predicts in float64, so that rounding does not make a prediction depend on the other rows.
`fit` is an ordinary training run in a temporary folder: the same training loop and checks, and the same bits for the same seed.
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
from ._base import NonNegative, Positive, check_magnitudes, checked_arguments, validate_features, validate_labels, validate_targets

NEVER = 10**12
"""steps between two checkpoints: more than any run has"""


class Network(ABC, BaseEstimator):
    """Base class of MLPClassifier and MLPRegressor: hyperparameters and training.

    Args:
        hidden: widths of the hidden layers
        activation: function between the layers, any name of `sonde.nn.activations`
        optimizer: any name of `sonde.optim`
        lr: learning rate
        weight_decay: weight decay of the weights; biases are not decayed
        dropout: dropout probability of hidden units
        batch_size: rows per update
        epochs: maximum number of passes over the training rows
        patience: early stopping after so many epochs without a better validation loss, with the best weights; 0 never stops early
        valid: fraction of the rows held out for validation; used only with patience
        random_state: seed of initial weights, order of the rows, dropout and choice of validation rows
    """

    def __init__(  # noqa: PLR0913  (scikit-learn wants flat hyperparameters, so that a grid search can name them)
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

    def _fit(self, X: np.ndarray, y: Tensor, output_head: Head) -> None:
        """Train a network on rows X (N, D) and targets y; sets model_, n_iter_, loss_curve_ and valid_curve_.

        Args:
            output_head: number of outputs and the likelihood that goes with the task
        """
        x = torch.as_tensor(X, dtype=torch.float32)
        if not bool(x.isfinite().all()):
            raise BadInput("X has values out of the range of float32", fix="scale the features, e.g. with StandardScaler")
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        try:
            recipe = self._recipe(TensorSource(x, y), output_head, seed)
            with tempfile.TemporaryDirectory(prefix="sonde-fit-") as folder:
                run = train_quietly(recipe, folder, seed=seed, threads=torch.get_num_threads(), checkpoint_every=NEVER)
                model, rows, steps = open_model(folder, recipe), list(run.rows("metrics.jsonl")), run.result()["steps"]
        except NumericalStop as error:
            raise NumericalStop(error.what, where=type(self).__name__, fix=self._lower_lr_hint) from None
        self._warn_skipped(sum("skipped" in row for row in rows), steps)
        self.model_ = model.double()
        self.n_iter_ = -(-steps // recipe.evaluate_every)  # epochs, rounded up
        self.loss_curve_ = [row["loss"] for row in rows if "loss" in row]
        self.valid_curve_ = [row["valid/loss"] for row in rows if "valid/loss" in row]

    @property
    def _lower_lr_hint(self) -> str:
        return f"use a smaller lr than {self.lr:g}, or scale the features"

    def _warn_skipped(self, skipped: int, steps: int) -> None:
        """Warn about skipped steps; raise NumericalStop where more than one in ten was skipped."""
        what = f"{type(self).__name__} skipped {skipped} of {steps} steps whose loss exploded"
        if 10 * skipped > steps:
            raise NumericalStop(what, fix=self._lower_lr_hint)
        if skipped:
            warnings.warn(f"{what}; {self._lower_lr_hint}", ConvergenceWarning, stacklevel=4)

    def _recipe(self, examples: TensorSource, output_head: Head, seed: int) -> Recipe:
        """What the engine needs for a run: model, data, objective and optimizer."""
        arguments = checked_arguments(self)
        data = Data(examples)
        if arguments.patience:
            labels = None if examples.y.is_floating_point() else examples.y  # labels: the split is stratified
            train_rows, valid_rows, _ = split(len(examples), valid=self.valid, test=0, seed=seed, labels=labels)
            data = Data(examples.subset(train_rows), valid=examples.subset(valid_rows))
        return Recipe(
            model=partial(MLP, (examples[:1].x.shape[1], *arguments.hidden, output_head.outputs), self.activation, self.dropout),
            data=data,
            objective=output_head.likelihood(),
            optimizer=optimizer(self.optimizer, lr=arguments.lr, weight_decay=arguments.weight_decay),
            batch_size=arguments.batch_size,
            epochs=arguments.epochs,
            patience=arguments.patience,
            evaluate_every=-(-len(data.train) // arguments.batch_size),  # once an epoch
            on_bad="skip",  # skip an exploding step: near a loss of 0 an ordinary hard batch may look like one
        )

    @torch.no_grad()
    def _output(self, X: Any) -> Tensor:
        """The raw output of the network: logits, or standardized targets."""
        x = torch.as_tensor(validate_features(self, X))
        return self.model_(x)


@final
class MLPClassifier(ClassifierMixin, Network):
    """A multi-layer perceptron for classification; its hyperparameters are described under `Network`.

    Attributes after `fit`: model_ (a torch module), classes_, n_iter_ (epochs), loss_curve_, valid_curve_.
    """

    def fit(self, X: Any, y: Any) -> MLPClassifier:
        """Train on rows X (N, D) and labels y (N,)."""
        X, codes = validate_labels(self, X, y)
        self._fit(X, torch.as_tensor(codes, dtype=torch.int64), head("classes", len(self.classes_)))
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
    """A multi-layer perceptron for regression, with one or several targets; its hyperparameters are described under `Network`.

    Attributes after `fit`: model_ (a torch module, for standardized targets), n_iter_ (epochs), loss_curve_, valid_curve_,
    target_mean_ and target_scale_.
    """

    def fit(self, X: Any, y: Any) -> MLPRegressor:
        """Train on rows X (N, D) and targets y (N,) or (N, K)."""
        X, y = validate_targets(self, X, y, multi_output=True)
        check_magnitudes("y", y.reshape(len(y), -1))
        # Targets are standardized, so that a learning rate is good in any units.
        self.target_mean_, self.target_scale_ = y.mean(0), np.where(y.std(0) > 0, y.std(0), 1.0)
        standard = torch.as_tensor((y - self.target_mean_) / self.target_scale_, dtype=torch.float32)
        self._fit(X, standard, head("real", 1 if y.ndim == 1 else y.shape[1]))
        return self

    def predict(self, X: Any) -> np.ndarray:
        """The expected value of each row, in the units of y."""
        output = self._output(X).numpy()
        return (output[:, 0] if np.ndim(self.target_mean_) == 0 else output) * self.target_scale_ + self.target_mean_

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags
