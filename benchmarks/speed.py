"""Speed of a training step, beside the loops and trainers a user would pick instead.

    python benchmarks/speed.py overhead   the engine against the same loop written by hand
    python benchmarks/speed.py fashion    images/s of a CNN with shift and flip: Lightning, transformers Trainer, plain loop
    python benchmarks/speed.py tiny       steps/s of a tiny MLP: Lightning, transformers Trainer, plain loop
    python benchmarks/speed.py sweep      32 tiny MLPs at once against one after another
    python benchmarks/speed.py start      command line and import
    python benchmarks/speed.py all

Candidates take turns in one process with the same threads, batch, model and number of steps; the best of several
rounds counts.  Rates are taken over the second half of each run, so start-up times do not count.
"""

from __future__ import annotations

import logging
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from functools import partial
from pathlib import Path

import torch
from _clock import Half, table, turns
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import sonde
from sonde.core.batch import Data
from sonde.core.recipe import Recipe
from sonde.data import augment
from sonde.data.order import Order
from sonde.data.tensors import TensorSource, ToFloat
from sonde.models.cnn import CNN
from sonde.models.mlp import MLP
from sonde.objectives.categorical import Categorical
from sonde.objectives.gaussian import Gaussian
from sonde.optim.build import optimizer

warnings.filterwarnings("ignore")
for name in ("lightning.pytorch", "transformers", "lightning.fabric"):
    logging.getLogger(name).setLevel(logging.ERROR)
THREADS = 2


# ------------------------------------------------------------------------------------------------ what is trained


def garments() -> tuple[torch.Tensor, torch.Tensor]:
    """Fashion-MNIST where it is at hand, else noise of the same size: the cost of a step is the same."""
    try:
        from sonde.data.catalog import load

        source = load("fashion_mnist").train
        return source.fields["x"], source.fields["y"]
    except sonde.core.errors.SondeError:
        rng = torch.Generator().manual_seed(0)
        return torch.randint(256, (20_000, 1, 28, 28), generator=rng, dtype=torch.uint8), torch.randint(10, (20_000,), generator=rng)


def surface() -> tuple[torch.Tensor, torch.Tensor]:
    rng = torch.Generator().manual_seed(0)
    x = torch.rand(4096, 2, generator=rng) * 2 - 1
    return x, x.square().sum(1, keepdim=True)


def cnn() -> nn.Module:
    torch.manual_seed(0)
    return CNN(channels=(1, 32, 64), classes=10, hidden=128, image=(28, 28))


def mlp() -> nn.Module:
    torch.manual_seed(0)
    return MLP(widths=(2, 64, 64, 1))


SCALE = ToFloat(scale=1 / 255, mean=0.286, std=0.353)


def ours(recipe: Recipe, steps: int, per_step: float) -> float:
    half = Half(steps)
    folder = Path(tempfile.mkdtemp(prefix="sonde-bench-"))
    try:
        variant = recipe.replace(steps=steps, schedule=half.schedule, log_every=steps // 2)
        sonde.train(variant, run=folder / "run", threads=THREADS, quiet=True)
    finally:
        shutil.rmtree(folder)
    return half.rate(per_step)


class Images(Dataset):
    """One image at a time, as image data sets are usually written: convert, shift by up to one pixel, flip."""

    def __init__(self, x: torch.Tensor, y: torch.Tensor) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int):
        image = (self.x[index].float() / 255 - 0.286) / 0.353
        top, left = torch.randint(3, (2,)).tolist()
        image = nn.functional.pad(image, (1, 1, 1, 1))[:, top : top + 28, left : left + 28]
        if torch.rand(()) < 0.5:
            image = image.flip(-1)
        return image, self.y[index]


class Raw(Dataset):
    """Bare tensors; conversion and augmentation are done on the whole batch by `collate`."""

    def __init__(self, x: torch.Tensor, y: torch.Tensor) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int):
        return index

    def collate(self, indices: list[int]):
        from sonde.core.batch import Batch

        chosen = torch.tensor(indices)
        batch = Batch(x=SCALE(self.x[chosen]), y=self.y[chosen])
        batch = augment.compose(augment.shift(1), augment.flip())(batch, torch.default_generator)
        return batch.x, batch.y


# ------------------------------------------------------------------------------------------------ who trains it


def lightning(make, loader: DataLoader, loss, lr: float, steps: int, per_step: float) -> float:
    import lightning.pytorch as pl

    half = Half(steps)

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = make()

        def training_step(self, batch, index):
            x, y = batch
            return loss(self.model(x), y)

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=lr)

    class Clock(pl.Callback):
        def on_train_batch_end(self, trainer, *_) -> None:
            half(trainer.global_step)

    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
    pl.Trainer(max_steps=steps, accelerator="cpu", devices=1, callbacks=[Clock()], **quiet).fit(Module(), loader)
    return half.rate(per_step)


def trainer(make, data: Dataset, collate, loss, lr: float, steps: int, batch_size: int, per_step: float) -> float:
    from transformers import Trainer, TrainerCallback, TrainingArguments

    half = Half(steps)

    class Wrapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = make()

        def forward(self, x, y):
            out = self.model(x)
            return {"loss": loss(out, y), "logits": out}

    class Clock(TrainerCallback):
        def on_step_end(self, args, state, control, **_):
            half(state.global_step)

    folder = tempfile.mkdtemp(prefix="sonde-bench-")
    try:
        settings = TrainingArguments(
            output_dir=folder,
            max_steps=steps,
            per_device_train_batch_size=batch_size,
            learning_rate=lr,
            use_cpu=True,
            report_to=[],
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
            remove_unused_columns=False,
            dataloader_pin_memory=False,
            label_names=["y"],
        )
        Trainer(model=Wrapped(), args=settings, train_dataset=data, data_collator=collate, callbacks=[Clock()]).train()
    finally:
        shutil.rmtree(folder)
    return half.rate(per_step)


def plain_loop(make, batches, loss, optimizer, steps: int, per_step: float, channels_last: bool = False) -> float:
    """The loop everybody has written once."""
    half = Half(steps)
    model = make()
    if channels_last:
        model = model.to(memory_format=torch.channels_last)
    rule = optimizer(model.parameters())
    for step in range(steps):
        x, y = batches(step)
        if channels_last:
            x = x.contiguous(memory_format=torch.channels_last)
        rule.zero_grad()
        value = loss(model(x), y)
        value.backward()
        rule.step()
        half(step + 1)
    return half.rate(per_step)


# ------------------------------------------------------------------------------------------------ the comparisons


def overhead() -> bool:
    """The same CNN, data and fused update, with and without the engine around it."""
    x, y = garments()
    source = TensorSource(x, y, to_float=SCALE)
    order = Order(len(source), 64, 0)
    recipe = Recipe(
        model=cnn,
        data=Data(source, name="garments"),
        objective=Categorical(classes=10),
        optimizer=optimizer("adamw", lr=1e-3),
        steps=1,
        batch_size=64,
        channels_last=True,
    )

    def batches(step: int):
        batch = source[order.at(step)]
        return batch.x, batch.y

    steps = 300
    tuned = partial(torch.optim.AdamW, lr=1e-3, fused=True)
    best = turns(
        {
            "sonde": lambda: ours(recipe, steps, 64),
            "same loop by hand (fused, channels-last)": lambda: plain_loop(
                cnn, batches, nn.functional.cross_entropy, tuned, steps, 64, True
            ),
        },
        rounds=7,
    )
    return table("Engine overhead, CNN 32-64-128, batch 64", best, "images/s", "sonde", {"same loop by hand (fused, channels-last)": 0.97})


def fashion() -> bool:
    x, y = garments()
    source = TensorSource(x, y, to_float=SCALE)
    order = Order(len(source), 64, 0)
    change = augment.compose(augment.shift(1), augment.flip())
    recipe = Recipe(
        model=cnn,
        data=Data(source, name="garments"),
        objective=Categorical(classes=10),
        optimizer=optimizer("adamw", lr=1e-3),
        steps=1,
        batch_size=64,
        augment=change,
        channels_last=True,
    )
    rng = torch.Generator().manual_seed(0)

    def batches(step: int):
        batch = change(source[order.at(step)], rng)
        return batch.x, batch.y

    loss, raw, images = nn.functional.cross_entropy, Raw(x, y), Images(x, y)
    steps = 240

    def stack(rows):
        return {"x": torch.stack([row[0] for row in rows]), "y": torch.stack([row[1] for row in rows])}

    def whole(indices):
        return dict(zip(("x", "y"), raw.collate(indices), strict=True))

    each = DataLoader(images, batch_size=64, shuffle=True)
    batched = DataLoader(raw, batch_size=64, shuffle=True, collate_fn=raw.collate)
    best = turns(
        {
            "sonde": lambda: ours(recipe, steps, 64),
            "Lightning, one image at a time": lambda: lightning(cnn, each, loss, 1e-3, steps, 64),
            "Lightning, our batch augmentation": lambda: lightning(cnn, batched, loss, 1e-3, steps, 64),
            "Trainer, one image at a time": lambda: trainer(cnn, images, stack, loss, 1e-3, steps, 64, 64),
            "Trainer, our batch augmentation": lambda: trainer(cnn, raw, whole, loss, 1e-3, steps, 64, 64),
            "plain loop on tensors": lambda: plain_loop(cnn, batches, loss, partial(torch.optim.AdamW, lr=1e-3), steps, 64),
        }
    )
    goals = {"Lightning, one image at a time": 1.4, "Trainer, one image at a time": 1.4}
    return table("Fashion-MNIST CNN with shift and flip, batch 64", best, "images/s", "sonde", goals)


def tiny() -> bool:
    x, y = surface()
    source = TensorSource(x, y)
    recipe = Recipe(
        model=mlp, data=Data(source, name="bowl"), objective=Gaussian(), optimizer=optimizer("adam", lr=1e-3), steps=1, batch_size=32
    )
    order = Order(len(source), 32, 0)

    def batches(step: int):
        chosen = order.at(step)
        return x[chosen], y[chosen]

    loss = nn.functional.mse_loss
    loader = DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True)

    def stack(rows):
        return {"x": torch.stack([row[0] for row in rows]), "y": torch.stack([row[1] for row in rows])}

    steps = 3000
    best = turns(
        {
            "sonde": lambda: ours(recipe, steps, 1),
            "plain loop, default Adam": lambda: plain_loop(mlp, batches, loss, partial(torch.optim.Adam, lr=1e-3), steps, 1),
            "Lightning": lambda: lightning(mlp, loader, loss, 1e-3, steps // 2, 1),
            "transformers Trainer": lambda: trainer(mlp, TensorDataset(x, y), stack, loss, 1e-3, steps // 2, 32, 1),
        }
    )
    return table("Tiny MLP 2-64-64-1, batch 32", best, "steps/s", "sonde", {"plain loop, default Adam": 1.8, "Lightning": 4.0})


def tiny_recipe(lr: float = 1e-3, steps: int = 1000) -> Recipe:
    """The tiny MLP with a validation part, as a function of its options."""
    x, y = surface()
    parts = Data(TensorSource(x[:3072], y[:3072]), TensorSource(x[3072:], y[3072:]), name="bowl")
    return Recipe(model=mlp_unseeded, data=parts, objective=Gaussian(), optimizer=optimizer("adam", lr=lr), steps=steps, batch_size=32)


def mlp_unseeded() -> nn.Module:
    return MLP(widths=(2, 64, 64, 1))


def sweep() -> bool:
    from sonde.api.sweeps import sweep as run_sweep

    rates, seeds, steps = [5e-4, 1e-3, 2e-3, 4e-3], list(range(8)), 3000

    def measure() -> float:
        """Runs a second."""
        folder = Path(tempfile.mkdtemp(prefix="sonde-bench-"))
        try:
            start = time.perf_counter()
            run_sweep(tiny_recipe, {"lr": rates, "seed": seeds}, folder=folder, threads=THREADS, quiet=True, steps=steps)
            return 32 / (time.perf_counter() - start)
        finally:
            shutil.rmtree(folder)

    def by_hand() -> float:
        """Plain loops that keep nothing: no evaluation, no record, no checkpoint."""
        x, y = surface()
        start = time.perf_counter()
        for lr in rates:
            for seed in seeds:
                torch.manual_seed(seed)
                order = Order(3072, 32, seed)
                batches = lambda step, order=order: (x[order.at(step)], y[order.at(step)])  # noqa: E731
                plain_loop(mlp_unseeded, batches, nn.functional.mse_loss, partial(torch.optim.Adam, lr=lr), steps, 1)
        return 32 / (time.perf_counter() - start)

    candidates = {"sonde": measure, "plain loops": by_hand}
    best = turns({name: partial(lambda one: 60 * one(), one) for name, one in candidates.items()}, rounds=2)
    return table(f"Sweep of 32 tiny MLPs, {steps} steps each", best, "runs/min", "sonde", {"plain loops": 1.0})


def start() -> bool:
    def seconds(*words: str) -> float:
        begin = time.perf_counter()
        subprocess.run([sys.executable, *words], check=True, capture_output=True)
        return time.perf_counter() - begin

    nothing = min(seconds("-c", "pass") for _ in range(7))
    shown = min(seconds("-m", "sonde", "--help") for _ in range(7))
    imported = min(seconds("-c", "import sonde") for _ in range(7)) - nothing
    print(
        f"\nStart-up\n  sonde --help {shown:.3f} s (goal 0.3)\n  import sonde {imported:.3f} s over bare Python's {nothing:.3f} (goal 0.1)"
    )
    return shown < 0.3 and imported < 0.1


BENCHMARKS = {"overhead": overhead, "fashion": fashion, "tiny": tiny, "sweep": sweep, "start": start}

if __name__ == "__main__":
    torch.set_num_threads(THREADS)
    chosen = sys.argv[1:] or ["all"]
    if unknown := [name for name in chosen if name not in (*BENCHMARKS, "all")]:
        sys.exit(f"no benchmark '{unknown[0]}'; choose from {', '.join(BENCHMARKS)}, all")
    results = {name: BENCHMARKS[name]() for name in (BENCHMARKS if chosen == ["all"] else chosen)}
    sys.exit(0 if all(results.values()) else 1)
