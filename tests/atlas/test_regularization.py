"""Chapter 9 made wrong on purpose: signs, scales and rules; each exhibit must notice."""

from __future__ import annotations

import torch

from sonde.atlas import regularization
from sonde.data import augment
from sonde.engine import trainer
from sonde.lenses import diagnosis
from sonde.nn import dropout
from sonde.objectives import penalized
from sonde.optim.rules import proximal
from tests.atlas.mistakes import Mistakes


def leave_out(monkeypatch, switch: str) -> None:
    """Descend without one of the remedies."""
    right = regularization._descend_all
    monkeypatch.setattr(
        regularization, "_descend_all", lambda *args, **options: right(*args, **{key: options[key] for key in options if key != switch})
    )


def quick_reg_06(monkeypatch) -> None:
    monkeypatch.setattr(
        regularization, "_few_images", lambda exhibit, name, seed: 0.9 + 0.01 * seed + (0.02 + 0.001 * seed if name == "augmented" else 0)
    )


def quick_reg_07(monkeypatch) -> None:
    """The sweep over wrong labels takes most of the time and is not what these mistakes are about."""
    monkeypatch.setattr(regularization, "_accuracy", lambda exhibit, share, seed: 1 - share + 0.001 * seed)


mistakes = Mistakes()

mistakes.add("REG-01", "a gap with the wrong sign", red="degree 15: regime").replace(
    diagnosis, "diagnose_losses", lambda right, train, valid, start, floor: right(valid, train, start, floor)
)
mistakes.add(
    "REG-01", "a remedy that does nothing", red="L2: validation error, over what it was", green="L1: validation error, over what it was"
).replace(regularization, "Ridge", lambda alpha: regularization.LeastSquares())
for remedy, switch in (("L1", "decay"), ("early stopping", "stop"), ("dropout", "drop")):
    mistakes.add(
        "REG-01",
        f"a descent without {remedy}",
        only=(f"{remedy}: training error rises by", f"{remedy}: validation error, over what it was"),
    ).call(leave_out, switch)
mistakes.add("REG-02", "a penalty without its half", red="gradient of the penalty, against lambda W").replace(
    regularization, "Penalized", lambda objective, l2, biases: penalized.Penalized(objective, 2 * l2, biases=biases)
)
mistakes.add(
    "REG-02",
    "a decay with the wrong sign",
    red="SGD: penalty in the loss, against W <- (1 - eta lambda) W - eta g",
    green="gradient of the penalty, against lambda W",
).replace(regularization, "_follow_steps", lambda right, *args, shrink=1.0: right(*args, shrink=2 - shrink))
mistakes.add("REG-02", "Adam that decays like AdamW", red="Adam: weight decay of the rule is the penalty in the loss").replace(
    regularization, "optimizer", lambda right, name, **settings: right("adamw" if name == "adam" else name, **settings)
)
# C-08: p is the chance of being dropped, not of being kept.
mistakes.add("REG-04", "chances that are mixed up", red="share of active units, 1 - p").replace(
    dropout.F, "dropout", lambda right, x, p, *rest: right(x, 1 - p, *rest)
)
mistakes.add(
    "REG-04",
    "a scale that is forgotten",
    red=("training mean, against evaluation", "without division in training, evaluation multiplies by 1 - p"),
).replace(regularization, "Dropout", lambda p=None, keep_prob=None, scale="train": dropout.Dropout(p, keep_prob, None))
mistakes.add("REG-05", "weights that are not restored", red="weight that is kept", green="last step").replace(
    regularization, "_one_weight_recipe", lambda right, *args: right(*args).replace(restore_best=False)
)
mistakes.add("REG-06", "a flip upside down", only="flip, against reversed columns", setup=quick_reg_06).replace(
    augment, "flip", lambda chance=0.5: lambda batch, generator: batch.replace(x=batch.x.flip(-2))
)
mistakes.add("REG-06", "a crop that repeats the border", only="crop: images that are one of the nine windows", setup=quick_reg_06).replace(
    augment, "crop", lambda size, padding: augment.shift(padding)
)
mistakes.add("REG-06", "labels that move", only=("noise: labels", "all: labels"), setup=quick_reg_06).replace(
    augment, "noise", lambda right, std: lambda batch, generator: right(std)(batch, generator).replace(y=batch.y.flip(0))
)
mistakes.add("REG-06", "augmentation that does not help", only="200 images: gain in validation accuracy, mean").replace(
    regularization, "_few_images", lambda exhibit, name, seed: 0.9 + 0.01 * seed
)
mistakes.add(
    "REG-07",
    "classes that are not weighed",
    only=("loss: weighted against re-balanced", "gradient: weighted against re-balanced"),
    setup=quick_reg_07,
).replace(regularization, "class_weights", lambda labels, classes: torch.ones(classes))
mistakes.add(
    "REG-07", "rows cleaned without a word", only=("corrupt cells", "rows with gaps dropped", "rows kept"), setup=quick_reg_07
).replace(regularization, "DIRTY_CSV", regularization.DIRTY_CSV.replace("x7", "7"))
mistakes.add("REG-07", "labels that do not matter", every="test accuracy", count=3).replace(
    regularization, "_accuracy", lambda exhibit, share, seed: 0.9 + 0.01 * seed
)
mistakes.add(
    "REG-08", "a start away from zero", red="gradient descent from 0, against the pseudo-inverse", green="its training error"
).replace(
    regularization, "_descend", lambda right, exhibit, x, y, starts, *args, **options: right(exhibit, x, y, starts + 0.1, *args, **options)
)


# A hard threshold: zeros as real, the other weights not shortened.
@mistakes.add(
    "REG-03",
    "a threshold that lets small weights through",
    red="proximal descent against the soft threshold, 29 strengths",
    green="exact zeros at each strength",
).replace(proximal.Proximal, "step")
def hard(self, closure=None):
    self.inner.param_groups = [{**group, "weight_decay": 0.0} for group in self.param_groups]
    self.inner.state = self.state
    self.inner.step()
    with torch.no_grad():
        for group in self.param_groups:
            for p in group["params"]:
                p.mul_(p.abs() > group["lr"] * group["weight_decay"])


@mistakes.add("REG-03", "a threshold that forgets the rate", red="diabetes data: weights against scikit-learn").replace(
    proximal.Proximal, "step"
)
def unscaled(right, self, closure=None):
    for group in self.param_groups:
        group["weight_decay"] /= 3 * group["lr"]
    right(self)
    for group in self.param_groups:
        group["weight_decay"] *= 3 * group["lr"]


@mistakes.add("REG-05", "patience off by one", red="patience 3, checked every step: last step").replace(trainer.Best, "see")
def generous(right, self, step, row):
    better = right(self, step, row)
    self.since -= self.since == 1  # the first check without progress is not counted
    return better


@mistakes.add("REG-07", "parts that overlap", red=("most parts", "all parts together"), setup=quick_reg_07).replace(regularization, "split")
def leaky(right, *args, **kwargs):
    train, valid, test = right(*args, **kwargs)
    return train, torch.cat([valid[:-1], train[:1]]), test


@mistakes.each
def test_notices(mistake, monkeypatch):
    mistake.assert_noticed(monkeypatch)
