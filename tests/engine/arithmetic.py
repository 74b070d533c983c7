"""A short run that computes with every library there is, so that whatever changes the bits of one of them changes its weights.

    python -m tests.engine.arithmetic FOLDER THREADS

trains it there and prints a hash of the weights with the fingerprint of the run.  All that goes in is exact, so that two
machines differ in what they compute and in nothing else.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, scaled_dot_product_attention, silu

import sonde
from sonde.core.batch import Batch, Data
from sonde.core.recipe import Recipe
from sonde.data.tensors import TensorSource
from sonde.engine import checkpoint
from sonde.nn.mixers import mixer
from sonde.objectives.categorical import Categorical
from sonde.optim import schedules
from sonde.optim.build import optimizer
from sonde.runs import checkpoints
from tests.engine.harness import tensors_digest

STEPS = 3


def exact(*shape: int) -> Tensor:
    """Multiples of 1/1024 between -1 and 1, the same on every machine."""
    return torch.arange(math.prod(shape)).reshape(shape) * 7919 % 2003 / 1024 - 0.978515625


class Everything(nn.Module):
    """Convolutions, recurrences, attention, products in float32 and bfloat16."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1)
        self.third = nn.Conv2d(16, 1, 3, padding=1)
        self.gated, self.delta = mixer("gla", width=16), mixer("gated_deltanet", width=16)
        self.wide, self.narrow, self.head = nn.Linear(16, 512), nn.Linear(512, 256), nn.Linear(256, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.third(self.second(silu(self.first(x[:, None]))))[:, 0]
        x = x + self.gated(x)[0] + self.delta(x)[0]
        x = x + scaled_dot_product_attention(x, x, x)
        wide = gelu(self.wide(x).flatten(0, 1))
        with torch.autocast("cpu", torch.bfloat16):
            narrow = self.narrow(wide)
        return self.head(torch.sigmoid(narrow.float())).unflatten(0, x.shape[:2]).mean(1)


def set_weights(model: nn.Module) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(exact(*parameter.shape) / 8)


def last_digits(values: np.ndarray, bits: int) -> float:
    """A number that the last places of the values decide."""
    return float(np.abs(np.modf(values.astype(np.float64) * 2.0**bits)[0]).mean())


def by_numpy(batch: Batch, rng: torch.Generator) -> Batch:
    """What a user's augmentation may do: compute with NumPy, and with Python's own functions."""
    double = exact(400, 400).double().numpy() + 40 * np.eye(400)
    single = exact(300, 300).numpy()
    sines = np.array([math.sin(x) for x in double[:5].flatten().tolist()])
    digits = [(np.linalg.solve(double, double[0]), 48), (single @ single, 14), (np.exp(double[:20]), 45), (sines, 48)]
    return batch.replace(x=batch.x * (1 + sum(last_digits(*pair) for pair in digits) / 64))


def everything() -> Recipe:
    source = TensorSource(exact(24, 16, 16), torch.arange(24) % 4)
    return Recipe(
        model=Everything,
        initialize=set_weights,
        data=Data(source, name="exact", task="classes"),
        objective=Categorical(classes=4),
        optimizer=optimizer("adamw", lr=0.01),
        schedule=schedules.cosine(),
        augment=by_numpy,
        steps=STEPS,
        batch_size=8,
    )


def main(folder: str, threads: str) -> None:
    run = sonde.train(everything(), run=Path(folder), threads=int(threads), checkpoint_every=STEPS, quiet=True)
    last = checkpoint.read(checkpoints.path_of(run.directory.checkpoints, STEPS))
    print("report", json.dumps({"bits": tensors_digest(last.parts["model"]), "fingerprint": last.manifest["fingerprint"]}))


if __name__ == "__main__":
    main(*sys.argv[1:])
