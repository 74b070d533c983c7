"""The same character model with every mixer: validation loss, tokens a second, memory.

    python benchmarks/mixers_train.py train --out FILE [--steps 250] [--seeds 3]     losses; continues where it stopped
    python benchmarks/mixers_train.py speed --out FILE                               tokens/s and memory, alternating
    python benchmarks/mixers_train.py table --out FILE                               both as one table

About a million weights each (`sonde train char_lm --mixer NAME`), the same text, steps, batch and learning rate.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from sonde.api.training import train
from sonde.core import registry
from sonde.core.live import Live
from sonde.recipes import char_lm

BATCH, CONTEXT, RATE = 8, 128, 2e-3


def recipe(name: str, steps: int, seed: int = 0):
    mixer = f"linformer max_len={CONTEXT}" if name == "linformer" else name
    return char_lm.recipe(mixer=mixer, steps=steps, batch_size=BATCH, context=CONTEXT, lr=RATE, seed=seed)


def one(name: str, seed: int, steps: int) -> dict[str, float]:
    """Train once and look at the whole validation part at the end."""
    with tempfile.TemporaryDirectory() as folder:
        run = train(recipe(name, steps, seed).replace(evaluate_every=steps), run=Path(folder, "run"), seed=seed, threads=1, quiet=True)
        losses = [row["valid/loss"] for row in run.metrics if "valid/loss" in row]
        finite = all(value == value for row in run.metrics for value in row.values() if isinstance(value, float))
    return {"loss": losses[-1], "finite": finite}


def train_all(out: Path, steps: int, seeds: int) -> None:
    results = json.loads(out.read_text()) if out.exists() else {}
    for seed in range(seeds):
        for name in registry.names("nn.mixers"):
            if f"{name} {seed}" in results:
                continue
            command = [sys.executable, __file__, "one", "--name", name, "--seed", str(seed), "--steps", str(steps)]
            done = subprocess.run(command, capture_output=True, text=True)
            results[f"{name} {seed}"] = json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else {"error": done.stderr[-300:]}
            out.write_text(json.dumps(results, indent=1))
            print(name, seed, results[f"{name} {seed}"], flush=True)


def speed(out: Path, rounds: int = 3) -> None:
    """Steps of every member in turn; the best of each counts."""
    torch.manual_seed(0)
    char_lm._windows = functools.cache(char_lm._windows)  # the same text for all
    calls, figures = {}, {}
    for name in registry.names("nn.mixers"):
        variant = recipe(name, 10)
        model, data = variant.build_model(), variant.build_data()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
        batch = data.train[torch.arange(BATCH)]

        def step(model=model, optimizer=optimizer, batch=batch, objective=variant.objective) -> None:
            optimizer.zero_grad()
            objective(model, batch).backward()
            optimizer.step()

        step()
        with Live() as live:
            step()
        calls[name] = step
        figures[name] = {"weights": sum(p.numel() for p in model.parameters()), "peak": live.peak, "seconds": float("inf")}
    for _ in range(rounds):
        for name, call in calls.items():
            for _ in range(2):
                started = time.perf_counter()
                call()
                figures[name]["seconds"] = min(figures[name]["seconds"], time.perf_counter() - started)
    out.with_suffix(".speed.json").write_text(json.dumps(figures, indent=1))


def table(out: Path) -> None:
    losses, figures = json.loads(out.read_text()), json.loads(out.with_suffix(".speed.json").read_text())
    print("| mixer | weights | validation loss, mean of seeds (spread) | tokens/s | memory of a step |\n|---|---|---|---|---|")

    def mean(name: str) -> float:
        return statistics.mean(row.get("loss", float("inf")) for key, row in losses.items() if key.split()[0] == name)

    for name in sorted(figures, key=mean):
        runs = [row.get("loss", float("nan")) for key, row in losses.items() if key.split()[0] == name]
        row = figures[name]
        spread = f"{statistics.mean(runs):.3f} ({max(runs) - min(runs):.3f})"
        print(f"| {name} | {row['weights']:,} | {spread} | {BATCH * CONTEXT / row['seconds']:,.0f} | {row['peak'] / 2**20:.0f} MiB |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("train", "speed", "table", "one"))
    parser.add_argument("--out", type=Path, default=Path("mixers-train.json"))
    parser.add_argument("--steps", type=int, default=250)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--name", default="gla")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if args.part == "one":
        print(json.dumps(one(args.name, args.seed, args.steps)))
    elif args.part == "train":
        train_all(args.out, args.steps, args.seeds)
    else:
        {"speed": speed, "table": table}[args.part](args.out)


if __name__ == "__main__":
    main()
