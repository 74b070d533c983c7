"""Our kernel for convolutions of 3 x 3 beside torch's (oneDNN), both channels last, taking turns: time and rounding.

    python benchmarks/convolve.py [--threads 2] [--rounds 7]

For each size it prints milliseconds of the result and of both gradients, the direct sum's operations a second that our time would
need (a quarter of them are done), and the error of both in the units of torch's.  Goal: not slower than torch at any of these sizes.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from sonde.kernels.convolve import can_run, convolve

SIZES = {
    "ResNet-20, stage 1": (128, 16, 16, 32),
    "ResNet-20, stage 2": (128, 32, 32, 16),
    "ResNet-20, stage 3": (128, 64, 64, 8),
    "Fashion-MNIST CNN": (64, 32, 64, 14),
    "CIFAR-10 CNN": (128, 64, 128, 8),
    "ResNet-18, stage 1": (32, 64, 64, 56),
    "ResNet-18, stage 2": (32, 128, 128, 28),
    "ResNet-18, stage 3": (32, 256, 256, 14),
    "the same, one image": (1, 64, 64, 56),
}
"""images, channels in and out, side"""


def torchs(x: Tensor, weight: Tensor) -> Tensor:
    return F.conv2d(x, weight, padding=1)


def alternately(calls: list[Callable[[], object]], rounds: int) -> list[float]:
    """Best seconds of each over rounds in which they take turns."""
    best = [float("inf")] * len(calls)
    for _ in range(rounds + 1):  # the first warms up, and may be the best for all we know
        for i, call in enumerate(calls):
            start = time.perf_counter()
            call()
            best[i] = min(best[i], time.perf_counter() - start)
    return best


def line(name: str, size: tuple[int, int, int, int], rounds: int) -> bool:
    """Measure one size and print the result; True where ours is not slower."""
    images, into, out, side = size
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(images, into, side, side, generator=rng).clamp_min(0).contiguous(memory_format=torch.channels_last)
    weight = (torch.randn(out, into, 3, 3, generator=rng) * (2 / 9 / into) ** 0.5).contiguous(memory_format=torch.channels_last)
    if not can_run(x, weight, None):
        raise SystemExit(f"the kernel does not serve '{name}': is it built?")
    with torch.no_grad():
        result = alternately([lambda: torchs(x, weight), lambda: convolve(x, weight)], rounds)
        exact = torchs(x.double(), weight.double())
        off = [float((call(x, weight) - exact).square().mean().sqrt()) for call in (torchs, convolve)]
    outputs = [call(x.requires_grad_(), weight.requires_grad_()) for call in (torchs, convolve)]
    dy = torch.randn(outputs[0].shape, generator=rng).contiguous(memory_format=torch.channels_last)
    back = alternately([lambda y=y: torch.autograd.grad(y, (x, weight), dy, retain_graph=True) for y in outputs], rounds)
    work = 2e-9 * 9 * images * into * out * side * side
    parts = []
    for (theirs, ours), many in ((result, 1), (back, 2)):
        parts.append(f"{1e3 * theirs:6.2f} {1e3 * ours:6.2f} {theirs / ours:5.2f}x {many * work / ours:5.0f}")
    print(f"{name:22}{str(size):>22}   {parts[0]}  {parts[1]}  {off[1] / off[0]:.1f}", flush=True)
    return all(ours <= theirs for theirs, ours in (result, back))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    print(f"torch {torch.__version__}, {args.threads} threads, load average {os.getloadavg()[0]:.2f}\n")
    print(f"{'':22}{'images, in, out, side':>22}   {'result':^27} {'both gradients':^27}  error")
    print(f"{'':22}{'':22}   {'torch':>6} {'ours':>6} {'ratio':>6} {'GF/s':>5}  {'torch':>6} {'ours':>6} {'ratio':>6} {'GF/s':>5}")
    met = [line(name, size, args.rounds) for name, size in SIZES.items()]
    raise SystemExit(0 if all(met) else 1)


if __name__ == "__main__":
    main()
