"""Training on images beside Keras 3 (torch backend) and Lightning: images a second, data and augmentation included.

    python benchmarks/vision_train.py fashion     a CNN on Fashion-MNIST with shift and flip
    python benchmarks/vision_train.py resnet20    ResNet-20 on CIFAR-10 with shift and flip
    python benchmarks/vision_train.py all

The peers get the same model, batch, threads and augmentation: through torch's DataLoader one image at a time, as image sets
are usually written, and, to be fair to their engines, through our own augmentation of whole batches.  They keep torch's layout and
so torch's operations; the last row is a plain loop that lays images out channels last, without our kernels.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest.mock import patch

os.environ.setdefault("KERAS_BACKEND", "torch")

import torch
from _clock import Half, table, turns
from speed import THREADS, garments, lightning, ours, plain_loop
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from sonde.core.batch import Batch, Data
from sonde.core.errors import SondeError
from sonde.core.recipe import Recipe
from sonde.data import augment
from sonde.data.catalog import load
from sonde.data.order import Order
from sonde.data.tensors import TensorSource, ToFloat
from sonde.models import resnet
from sonde.models.cnn import CNN
from sonde.objectives.categorical import Categorical
from sonde.optim.build import optimizer

GOAL = 1.3


@dataclass(frozen=True)
class Case:
    """What is trained: images as bytes with labels, how they become floats, how far they are shifted, and the model twice."""

    title: str
    x: Tensor
    y: Tensor
    scale: ToFloat
    pixels: int
    ours: Callable[[], nn.Module]
    keras: Callable[[], Any]
    batch: int
    steps: int

    @property
    def change(self) -> augment.Augmentation:
        return augment.compose(augment.shift(self.pixels), augment.flip())


class OneByOne(Dataset):
    """Convert, shift, flip: one image at a time."""

    def __init__(self, case: Case) -> None:
        self.case = case

    def __len__(self) -> int:
        return len(self.case.x)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        case = self.case
        image = case.scale(case.x[index : index + 1])
        side, pixels = image.shape[-1], case.pixels
        top, left = torch.randint(2 * pixels + 1, (2,)).tolist()
        image = nn.functional.pad(image, (pixels,) * 4, mode="replicate")[0, :, top : top + side, left : left + side]
        return image.flip(-1) if torch.rand(()) < 0.5 else image, case.y[index]


class Whole(Dataset):
    """Numbers of examples; `collate` makes a whole batch of them at once."""

    def __init__(self, case: Case) -> None:
        self.case = case

    def __len__(self) -> int:
        return len(self.case.x)

    def __getitem__(self, index: int) -> int:
        return index

    def collate(self, indices: list[int]) -> tuple[Tensor, Tensor]:
        chosen = torch.tensor(indices)
        batch = Batch(x=self.case.scale(self.case.x[chosen]), y=self.case.y[chosen])
        batch = self.case.change(batch, torch.default_generator)
        return batch.x, batch.y


def keras(make: Callable[[], Any], loader: DataLoader, steps: int, per_step: float) -> float:
    import keras

    half, model = Half(steps), make()
    clock = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: half(batch))
    model.compile(keras.optimizers.AdamW(1e-3), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(loader, steps_per_epoch=steps, epochs=1, callbacks=[clock], verbose=0)
    return half.rate(per_step)


def keras_cnn() -> Any:
    from keras import Sequential, layers

    def conv(channels: int) -> list[Any]:
        same = {"padding": "same", "data_format": "channels_first"}
        return [layers.Conv2D(channels, 3, **same), layers.MaxPooling2D(data_format="channels_first"), layers.ReLU()]

    return Sequential([layers.Input((1, 28, 28)), *conv(32), *conv(64), layers.Flatten(), layers.Dense(128, "relu"), layers.Dense(10)])


def keras_resnet20() -> Any:
    """The same 20 layers; shortcuts between stages take every second pixel and pad the channels with zeros."""
    from keras import Input, Model, layers, ops

    first = {"data_format": "channels_first"}

    def conv(x: Any, channels: int, stride: int) -> Any:
        if stride == 2:  # Keras pads a strided convolution on one side only; torch on both
            x = layers.ZeroPadding2D(1, **first)(x)
        x = layers.Conv2D(channels, 3, stride, "valid" if stride == 2 else "same", use_bias=False, **first)(x)
        return layers.BatchNormalization(axis=1, momentum=0.9, epsilon=1e-5)(x)

    image = x = Input((3, 32, 32))
    x = layers.ReLU()(conv(x, 16, 1))
    for channels in (16, 32, 64):
        for block in range(3):
            stride = 2 if channels > 16 and block == 0 else 1
            short = x
            if stride == 2:
                short = ops.pad(x[:, :, ::2, ::2], ((0, 0), (channels // 4, channels // 4), (0, 0), (0, 0)))
            x = layers.ReLU()(conv(x, channels, stride))
            x = layers.ReLU()(layers.Add()([conv(x, channels, 1), short]))
    return Model(image, layers.Dense(10)(layers.GlobalAveragePooling2D(**first)(x)))


def fashion_case() -> Case:
    x, y = garments()
    small = partial(CNN, channels=(1, 32, 64), classes=10, hidden=128, image=(28, 28))
    return Case("Fashion-MNIST CNN, batch 64", x, y, ToFloat(1 / 255, 0.286, 0.353), 1, small, keras_cnn, 64, 240)


def resnet20_case() -> Case:
    try:
        fields = load("cifar10").train.fields
        x, y = fields["x"], fields["y"]
    except SondeError:  # the cost of a step is the same on noise
        rng = torch.Generator().manual_seed(0)
        x, y = torch.randint(256, (9000, 3, 32, 32), generator=rng, dtype=torch.uint8), torch.randint(10, (9000,), generator=rng)
    mean, std = (torch.tensor(values).reshape(3, 1, 1) for values in ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)))
    return Case("ResNet-20, batch 128", x, y, ToFloat(1 / 255, mean, std), 4, partial(resnet.cifar, 20), keras_resnet20, 128, 24)


def compare(case: Case) -> bool:
    source, change, loss = TensorSource(case.x, case.y, to_float=case.scale), case.change, nn.functional.cross_entropy
    order, rng = Order(len(source), case.batch, 0), torch.Generator().manual_seed(0)
    recipe = Recipe(
        model=case.ours,
        data=Data(source, name="images"),
        objective=Categorical(classes=10),
        optimizer=optimizer("adamw", lr=1e-3),
        steps=1,
        batch_size=case.batch,
        augment=change,
        channels_last=True,
    )

    def batches(step: int) -> tuple[Tensor, Tensor]:
        batch = change(source[order.at(step)], rng)
        return batch.x, batch.y

    def last(step: int) -> tuple[Tensor, Tensor]:
        x, y = batches(step)
        return x.contiguous(memory_format=torch.channels_last), y

    def torch_alone() -> float:
        with patch("sonde.kernels.convolve.can_run", return_value=False), patch("sonde.kernels.normalize._can_run", return_value=False):
            return plain_loop(
                lambda: case.ours().to(memory_format=torch.channels_last), last, loss, partial(torch.optim.AdamW, lr=1e-3), steps, per_step
            )

    whole = Whole(case)
    each = DataLoader(OneByOne(case), batch_size=case.batch, shuffle=True, drop_last=True)
    batched = DataLoader(whole, batch_size=case.batch, shuffle=True, drop_last=True, collate_fn=whole.collate)
    steps, per_step = case.steps, case.batch
    best = turns(
        {
            "sonde": lambda: ours(recipe, steps, per_step),
            "Lightning, DataLoader": lambda: lightning(case.ours, each, loss, 1e-3, steps, per_step),
            "Lightning, our batch augmentation": lambda: lightning(case.ours, batched, loss, 1e-3, steps, per_step),
            "Keras, DataLoader": lambda: keras(case.keras, each, steps, per_step),
            "Keras, our batch augmentation": lambda: keras(case.keras, batched, steps, per_step),
            "plain loop on tensors": lambda: plain_loop(case.ours, batches, loss, partial(torch.optim.AdamW, lr=1e-3), steps, per_step),
            "the same, channels last": torch_alone,
        }
    )
    goals = {"Lightning, DataLoader": GOAL, "Keras, DataLoader": GOAL}
    return table(f"{case.title}, with shift and flip", best, "images/s", "sonde", goals)


CASES = {"fashion": fashion_case, "resnet20": resnet20_case}

if __name__ == "__main__":
    torch.set_num_threads(THREADS)
    chosen = sys.argv[1:] or ["all"]
    if unknown := [name for name in chosen if name not in (*CASES, "all")]:
        sys.exit(f"no benchmark '{unknown[0]}'; choose from {', '.join(CASES)}, all")
    results = [compare(CASES[name]()) for name in (CASES if chosen == ["all"] else chosen)]
    sys.exit(0 if all(results) else 1)
