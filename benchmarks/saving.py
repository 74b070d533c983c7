"""What a checkpoint costs: a language model of 100 MB saved every 20 steps, at once and in the background.

    python benchmarks/saving.py            three rounds: no checkpoints, in the background, at once; the best of each counts
    python benchmarks/saving.py --rounds 1

The goal: in the background at most 3 % of the run.  Time is that of the training loop and of the save at its end, which all have.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

from sonde import train
from sonde.engine.trainer import Trainer
from sonde.recipes.char_lm import recipe as char_lm

GOAL = 1.03
STEPS, EVERY = 80, 20
KINDS: dict[str, dict[str, Any]] = {
    "no checkpoints": {"checkpoint_every": 10**9},
    "in the background": {"checkpoint_every": EVERY, "async_save": True},
    "at once": {"checkpoint_every": EVERY},
}


def seconds(text: Path, folder: Path, threads: int, **how: Any) -> tuple[float, int]:
    """Time of the training loop, and bytes of the weights."""
    spent = []
    real = Trainer.run

    def watched(self: Trainer) -> None:
        start = time.perf_counter()
        real(self)
        spent.append(time.perf_counter() - start)

    Trainer.run = watched  # type: ignore[method-assign]
    try:
        sizes: dict[str, Any] = {"mixer": "attention", "depth": 8, "width": 512, "context": 128, "batch_size": 8}
        run = train(char_lm, run=folder, quiet=True, threads=threads, steps=STEPS, valid=0, test=0, data=text, **sizes, **how)
    finally:
        Trainer.run = real  # type: ignore[method-assign]
    return spent[0], 4 * run.info["parameters"]["trainable"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    args = parser.parse_args()
    best: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="sonde-saving-", dir=".") as home:
        text = Path(home, "text.txt")
        text.write_text("What is written here does not matter for the time it takes.\n" * 500)
        for number in range(args.rounds):
            for kind, how in KINDS.items():
                spent, size = seconds(text, Path(home, f"{kind}-{number}"), args.threads, **how)
                best[kind] = min(spent, best.get(kind, spent))
                print(f"round {number + 1}, {kind}: {spent:.2f} s", flush=True)
    print(f"weights of {size / 1e6:.0f} MB, AdamW, {STEPS} steps, a checkpoint every {EVERY}, {args.threads} threads")
    for kind, spent in best.items():
        print(f"{kind:20} {spent:7.2f} s   {spent / best['no checkpoints']:.3f} of a run without")
    return 0 if best["in the background"] <= GOAL * best["no checkpoints"] else 1


if __name__ == "__main__":
    raise SystemExit(main())
