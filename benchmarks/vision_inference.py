"""Images a second of a ResNet beside timm's in eager PyTorch, taking turns in one process with the same threads and weights.

    python benchmarks/vision_inference.py [--depth 18] [--batches 1 32] [--threads 2] [--rounds 20] [--side 224]

eager     the layers as they are, ours with images laid out channels last.  Goal: not slower than timm's
folded    sonde.nn.fold: norms folded into convolutions, these joined with sums and ReLU.  Goal: at least 1.2 times timm's

timm comes with `pip install -c constraints.txt --no-deps timm`.
"""

from __future__ import annotations

import argparse
import copy
import os
import time
from collections.abc import Callable

import torch
from _clock import table, turns
from _timm import timm
from torch import Tensor, nn

from sonde.models.resnet import imagenet
from sonde.nn.fold import fold

TIMM, LAST = "timm, eager", "timm, channels last"
EAGER, FOLDED, THEIRS = "ours, channels last", "ours, folded", "timm's network, folded by us"


def networks(depth: int, x: Tensor) -> dict[str, Callable[[Tensor], Tensor]]:
    """Each way to run one network, with equal weights."""
    theirs: nn.Module = timm().create_model(f"resnet{depth}").eval()
    with torch.no_grad():
        for part in theirs.modules():
            if isinstance(part, nn.BatchNorm2d):  # as after some training: a new one has nothing to fold
                part.running_mean.uniform_(-0.3, 0.3)  # type: ignore[union-attr]
                part.running_var.uniform_(0.5, 1.5)  # type: ignore[union-attr]
    ours = imagenet(depth).eval()
    ours.load_state_dict(theirs.state_dict())

    def channels_last(model: nn.Module) -> Callable[[Tensor], Tensor]:
        model = copy.deepcopy(model).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return lambda x: model(x.contiguous(memory_format=torch.channels_last))

    models = {TIMM: theirs, LAST: channels_last(theirs), EAGER: channels_last(ours), FOLDED: fold(ours, x[:1]), THEIRS: fold(theirs, x[:1])}
    with torch.inference_mode():
        expected = theirs(x)
        for name, run in models.items():
            for _ in range(2):
                off = float((run(x) - expected).abs().max() / expected.abs().max())
                if not off <= 1e-5:
                    raise SystemExit(f"{name} gives other numbers: {off:.1e} of the largest output")
    return models


def rate(run: Callable[[Tensor], Tensor], x: Tensor, seconds: float = 1.0) -> Callable[[], float]:
    """A measurement: images a second of the best of the calls that fit into some time."""

    def measure() -> float:
        best, started = float("inf"), time.perf_counter()
        with torch.inference_mode():
            while (start := time.perf_counter()) < started + seconds:
                run(x)
                best = min(best, time.perf_counter() - start)
        return len(x) / best

    return measure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--depth", type=int, default=18, choices=[18, 34, 50])
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 32])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--side", type=int, default=224)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    print(f"torch {torch.__version__}, timm {timm().__version__}, {args.threads} threads, load average {os.getloadavg()[0]:.2f}")
    met = True
    for batch in args.batches:
        x = torch.randn(batch, 3, args.side, args.side)
        ways = networks(args.depth, x)
        best = turns({name: rate(run, x) for name, run in ways.items()}, args.rounds)
        title = f"ResNet-{args.depth}, batch {batch}, {args.side} x {args.side}"
        met &= table(f"{title}, layers as they are", {name: best[name] for name in (TIMM, LAST, EAGER)}, "images/s", EAGER, {TIMM: 1.0})
        met &= table(f"{title}, folded", best, "images/s", FOLDED, {TIMM: 1.2})
    raise SystemExit(0 if met else 1)


if __name__ == "__main__":
    main()
