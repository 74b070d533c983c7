"""Recurrent cells beside torch's own layers, taking turns in one process with the same threads.

    python benchmarks/recurrent.py [cells] [decode]   --threads 2 --length 128 --rounds 5

cells    one training step (forward, and gradients of inputs and weights): RNN, GRU and LSTM in all their conventions; those
         that torch does not have beside the nearest of its own.  Goals: not slower, and at most 1.2 times where torch has none
decode   one token of one sequence: the step that generation takes
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from sonde import kernels
from sonde.nn.mixers import mixer

SIZES = [(hidden, batch) for hidden in (64, 128, 256) for batch in (8, 32)]
CELLS: dict[str, tuple[str, dict[str, Any], float]] = {
    "RNN": ("rnn", {}, 1.0),
    "GRU, reset after": ("gru", {"reset_after": True}, 1.0),
    "GRU, reset before": ("gru", {}, 1.2),
    "LSTM": ("lstm", {}, 1.0),
    "LSTM, peephole": ("lstm", {"output_gate": "peephole"}, 1.2),
    "LSTM, cell only": ("lstm", {"output_gate": "cell_only"}, 1.2),
}
"""what is timed -> mixer, options, and the most time it may take, in times of torch's layer of that name"""


def best(calls: dict[str, Callable[[], None]], rounds: int) -> dict[str, float]:
    """Least seconds of each call over rounds in which they take turns."""
    seconds = dict.fromkeys(calls, float("inf"))
    for call in calls.values():
        call()
    for _ in range(rounds):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            seconds[name] = min(seconds[name], time.perf_counter() - start)
    return seconds


def training(layer: nn.Module, x: torch.Tensor) -> Callable[[], None]:
    slope = torch.randn_like(x)
    leaves = [x, *layer.parameters()]

    def call() -> None:
        torch.autograd.grad(layer(x)[0], leaves, slope)

    return call


def decoding(layer: nn.Module, x: torch.Tensor, tokens: int = 200) -> Callable[[], None]:
    def call() -> None:
        state = None
        with torch.inference_mode():
            for _ in range(tokens):
                _, state = layer(x, state)

    return call


def cells(length: int, rounds: int) -> bool:
    print(f"training step of one layer, {length} steps: milliseconds of torch, and ours in times of it")
    print(f"  {'hidden':>6} {'batch':>6}  " + "  ".join(f"{name:>18}" for name in CELLS))
    met = True
    for hidden, batch in SIZES:
        x = torch.randn(batch, length, hidden, requires_grad=True)
        calls = {name: training(getattr(nn, name)(hidden, hidden, batch_first=True), x) for name in ("RNN", "GRU", "LSTM")}
        calls |= {f"our {label}": training(mixer(name, hidden, **options), x) for label, (name, options, _) in CELLS.items()}
        seconds, columns = best(calls, rounds), []
        for label, (name, _, most) in CELLS.items():
            theirs = seconds[name.upper()]
            ratio = seconds[f"our {label}"] / theirs
            met &= ratio <= most
            columns.append(f"{theirs * 1e3:9.2f} {ratio:5.2f}{' ' if ratio <= most else '!'} ")
        print(f"  {hidden:6} {batch:6}  " + "  ".join(f"{text:>18}" for text in columns), flush=True)
    print("every goal met" if met else "! a goal missed")
    return met


def decode(rounds: int) -> bool:
    print("one token of one sequence: microseconds of torch, and ours in times of it")
    for hidden in (64, 256):
        x = torch.randn(1, 1, hidden)
        calls = {name: decoding(getattr(nn, name)(hidden, hidden, batch_first=True), x) for name in ("RNN", "GRU", "LSTM")}
        calls |= {f"our {label}": decoding(mixer(name, hidden, **options), x) for label, (name, options, _) in CELLS.items()}
        seconds = best(calls, rounds)
        for label, (name, _, _) in CELLS.items():
            theirs = seconds[name.upper()]
            print(f"  {hidden:6} {label:20} {theirs / 200 * 1e6:8.1f}  {seconds[f'our {label}'] / theirs:5.2f}", flush=True)
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", choices=["cells", "decode", []], default=[])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    if not kernels.available():
        raise SystemExit(kernels.why_not())
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    print(f"torch {torch.__version__}, {args.threads} threads, load average {os.getloadavg()[0]:.2f}")
    met = [cells(args.length, args.rounds) if what == "cells" else decode(args.rounds) for what in args.what or ("cells", "decode")]
    raise SystemExit(0 if all(met) else 1)


if __name__ == "__main__":
    main()
