"""bf16 against float32: training speed, share of the processor's peak, and final loss over three seeds.

    python benchmarks/precision.py gpt      6 layers, 6 heads, 384 wide, context 128, batch 8
    python benchmarks/precision.py cnn      three convolutions of 32, 64 and 128 channels with batch norm, 28 x 28 pixels, batch 64
    python benchmarks/precision.py wide     the same with twice the channels
    python benchmarks/precision.py loss     both on learnable data, 3 seeds in each precision
    python benchmarks/precision.py all

Both precisions take turns in one process with the same threads, kernels and data; the fastest step of several rounds counts.  The peak is
the best product of 1024 x 1024 matrices in the same precision; products are counted as if all were computed directly, so that a
convolution by Winograd's algorithm may exceed it.  What a run does besides (optimizer, data, rows) is included.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path

import torch
from _clock import table, turns
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

import sonde
from sonde.core.batch import Data
from sonde.core.recipe import Recipe
from sonde.data.tensors import TensorSource, WindowSource
from sonde.engine.precision import describe_bf16
from sonde.models.cnn import CNN
from sonde.models.language_model import LanguageModel
from sonde.nn.block import Style
from sonde.objectives.categorical import Categorical
from sonde.optim.build import optimizer
from sonde.optim.schedules import warmup_cosine

THREADS = 1
GOAL = 1.5
PRECISIONS = {"bf16": torch.bfloat16, "float32": torch.float32}
CONTEXT = 128


def gpt(steps: int, text: Tensor | None = None, depth: int = 6, width: int = 384) -> Recipe:
    """A GPT on random characters, or on a text."""
    characters = 65
    text = torch.randint(characters, (100_000,), generator=torch.Generator().manual_seed(0)) if text is None else text
    style = Style("layer", activation="gelu_tanh", scaled=False)
    more = {"positions": "learned", "max_positions": CONTEXT, "tied": True, "style": style}
    return Recipe(
        model=partial(LanguageModel, characters, width, depth, "attention heads=6 positions=none", **more),
        data=Data(WindowSource(text, CONTEXT, 1), name="text"),
        objective=Categorical(classes=characters),
        optimizer=optimizer("adamw", lr=1e-3, weight_decay=0.1, betas=(0.9, 0.99)),
        clip_norm=1.0,
        batch_size=8,
        steps=steps,
    )


def cnn(steps: int, width: int = 32) -> Recipe:
    """A CNN on noisy images of ten patterns."""
    rng = torch.Generator().manual_seed(0)
    patterns, y = torch.randn(10, 1, 28, 28, generator=rng), torch.randint(10, (4096,), generator=rng)
    x = 0.4 * patterns[y] + torch.randn(4096, 1, 28, 28, generator=rng)
    return Recipe(
        model=partial(CNN, (1, width, 2 * width, 4 * width), 10, 128, image=(28, 28), dropout=0.25, norm=True),
        data=Data(TensorSource(x[:3072], y[:3072]), TensorSource(x[3072:], y[3072:]), name="patterns", task="classes"),
        objective=Categorical(classes=10),
        optimizer=optimizer("adamw", lr=2e-3, weight_decay=0.05),
        channels_last=True,
        batch_size=64,
        steps=steps,
    )


def train(recipe: Recipe, precision: str, **options: int) -> float:
    """Train, and give the final loss: that of validation, or where nothing is held out the mean of the last rows."""
    folder = Path(tempfile.mkdtemp(prefix="sonde-bench-"))
    try:
        run = sonde.train(recipe, run=folder / "run", threads=THREADS, quiet=True, precision=precision, **options)
        if "valid/loss" in run.result["metrics"]:
            return run.result["metrics"]["valid/loss"]
        rows = [row["loss"] for row in run.metrics if "loss" in row][-20:]
        return sum(rows) / len(rows)
    finally:
        shutil.rmtree(folder)


def rate(make: Callable[[int], Recipe], steps: int, precision: str, per_step: int) -> float:
    """Tokens or images per second in the fastest step of the second half of a run: other work on the machine slows the others."""
    marks: list[float] = []

    def look(step: int, steps: int) -> float:
        """A constant schedule that looks at the clock once a step."""
        marks.append(time.perf_counter())
        return 1.0

    train(make(steps).replace(schedule=look, log_every=steps), precision)
    second = marks[-(steps // 2) :]
    return per_step / min(after - before for before, after in pairwise(second))


def direct_products(recipe: Recipe) -> float:
    """Floating-point operations of the products of one step, each computed directly."""
    model, data = recipe.build_model().train(), recipe.build_data()
    batch = data.train[torch.arange(recipe.batch_size)]
    with FlopCounterMode(display=False) as counter:
        recipe.objective(model, batch).backward()
    return counter.get_total_flops()


def peak(dtype: torch.dtype) -> float:
    a, best = torch.randn(1024, 1024).to(dtype), 9e9
    for _ in range(20):
        start = time.perf_counter()
        a @ a
        best = min(best, time.perf_counter() - start)
    return 2 * 1024**3 / best


def compare(name: str, make: Callable[[int], Recipe], steps: int, unit: str, per_step: int) -> bool:
    best = turns({precision: partial(rate, make, steps, precision, per_step) for precision in PRECISIONS})
    met = table(f"{name}, {THREADS} thread", best, unit, "bf16", {"float32": GOAL} if describe_bf16(torch.device("cpu"))[0] else {})
    work, peaks = direct_products(make(1)), {precision: peak(dtype) for precision, dtype in PRECISIONS.items()}
    for precision, speed in best.items():
        reached = work * speed / per_step
        share = reached / peaks[precision]
        print(f"  {precision:8} {reached / 1e9:6.0f} of {peaks[precision] / 1e9:.0f} GFLOP/s, {share:.0%} of peak")
    return met


def losses() -> bool:
    """Final losses over three seeds; met where the means differ by less than the larger spread over the seeds."""
    from sonde.data.text import corpora

    text = "".join(Path(corpora.__file__).read_text(encoding="utf-8") for _ in range(4))
    letters = sorted({*text})[:64]
    tokens = torch.tensor([letters.index(c) + 1 if c in letters else 0 for c in text])
    small = partial(gpt, text=tokens, depth=2, width=96)
    met = True
    for name, recipe in (("GPT 2 x 96, 300 steps", small(300)), ("CNN, 150 steps", cnn(150))):
        recipe = recipe.replace(schedule=warmup_cosine())
        finals = {precision: torch.tensor([train(recipe, precision, seed=seed) for seed in range(3)]) for precision in PRECISIONS}
        spread = max(float(values.max() - values.min()) for values in finals.values())
        gap = float((finals["bf16"].mean() - finals["float32"].mean()).abs())
        met &= gap <= spread
        print(f"\n{name}")
        for precision, values in finals.items():
            print(f"  {precision:8} final loss {'  '.join(f'{value:.4f}' for value in values.tolist())}   mean {values.mean():.4f}")
        print(f"  means differ by {gap:.4f}, the seeds spread over {spread:.4f}: {'met' if gap <= spread else 'MISSED'}")
    return met


PARTS: dict[str, Callable[[], bool]] = {
    "gpt": lambda: compare("GPT, 6 layers, 384 wide, context 128, batch 8", gpt, 10, "tokens/s", 8 * CONTEXT),
    "cnn": lambda: compare("CNN 32-64-128 with batch norm, 28 x 28, batch 64", cnn, 80, "images/s", 64),
    "wide": lambda: compare("CNN 64-128-256 with batch norm, 28 x 28, batch 64", partial(cnn, width=64), 40, "images/s", 64),
    "loss": losses,
}

if __name__ == "__main__":
    torch.set_num_threads(THREADS)
    name, reason = describe_bf16(torch.device("cpu"))
    print(f"bf16 arithmetic: {name or reason}")
    selected = sys.argv[1:] or ["all"]
    names = list(PARTS) if selected == ["all"] else selected
    if any(name not in PARTS for name in names):
        sys.exit(f"choose from {', '.join(PARTS)}, all\n\n{__doc__}")
    sys.exit(0 if all([PARTS[name]() for name in names]) else 1)
