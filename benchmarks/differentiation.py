"""What differentiation costs: tracing a 12-layer transformer, and a Hessian-vector product beside a gradient.

    python benchmarks/differentiation.py [trace] [hvp]

Goals: the graph of a 12-layer transformer in under 2 s; H v at most 3 times the cost of a gradient, in one run.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import torch
from _clock import table, turns
from torch import nn

from sonde.gradients import modes
from sonde.gradients.graph import trace

GOAL_SECONDS = 2.0
GOAL_RATIO = 3.0


def transformer(layers: int, width: int) -> nn.Module:
    layer = nn.TransformerEncoderLayer(width, 8, 4 * width, dropout=0.0, batch_first=True, activation="gelu")
    return nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)


def tracing(rounds: int = 5) -> bool:
    """Seconds from a module to its graph with all values, and from there to all adjoints."""
    net, x = transformer(12, 256), torch.randn(2, 32, 256)
    started = time.perf_counter()
    trace(nn.Linear(2, 2), torch.randn(1, 2))
    first = time.perf_counter() - started
    best, back = float("inf"), float("inf")
    for _ in range(rounds):
        started = time.perf_counter()
        graph = trace(net, x)
        best = min(best, time.perf_counter() - started)
        started = time.perf_counter()
        graph.backward(seed=torch.ones_like(x))
        back = min(back, time.perf_counter() - started)
    met = best < GOAL_SECONDS
    print(f"\nTracing a 12-layer transformer: {len(graph)} nodes in {best:.2f} s (goal {GOAL_SECONDS:g} s: {'met' if met else 'MISSED'}),")
    print(f"  walked back in {back:.2f} s; the first trace of a process takes {first:.2f} s more, while torch loads")
    return met


def rate(call: Callable[[], object], seconds: float = 1.0) -> float:
    """Calls per minute."""
    count, started = 0, time.perf_counter()
    while time.perf_counter() - started < seconds:
        call()
        count += 1
    return 60 * count / (time.perf_counter() - started)


def products() -> bool:
    met = True
    image = nn.Sequential(
        nn.Conv2d(1, 16, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3), nn.ReLU(), nn.Flatten(), nn.Linear(3872, 10)
    )
    nets = {
        "MLP 784-512-512-10, 256 examples": (
            nn.Sequential(nn.Linear(784, 512), nn.Tanh(), nn.Linear(512, 512), nn.Tanh(), nn.Linear(512, 10)),
            (256, 784),
        ),
        "CNN on 64 images of 28 x 28": (image, (64, 1, 28, 28)),
        "2-layer transformer, 8 x 64 tokens": (transformer(2, 128), (8, 64, 128)),
    }
    for name, (net, size) in nets.items():
        x = torch.randn(size)
        f, theta = modes.of_parameters(net, lambda model, x=x: model(x).square().mean())
        v = {key: torch.randn_like(value) for key, value in theta.items()}
        candidates = {
            "Hessian-vector product": lambda f=f, theta=theta, v=v: rate(lambda: modes.hvp(f, theta, v)),
            "gradient, the same interface": lambda f=f, theta=theta: rate(lambda: modes.gradient(f, theta)),
            "gradient, plain autograd": lambda net=net, x=x: rate(lambda: plain(net, x)),
        }
        for measure in candidates.values():
            measure()  # warm up
        best = turns(candidates, rounds=4)
        met &= table(
            f"{name}, calls per minute", best, "per minute", "Hessian-vector product", {"gradient, the same interface": 1 / GOAL_RATIO}
        )
    return met


def plain(net: nn.Module, x: torch.Tensor) -> object:
    return torch.autograd.grad(net(x).square().mean(), list(net.parameters()))


if __name__ == "__main__":
    parts = {"trace": tracing, "hvp": products}
    chosen = sys.argv[1:] or list(parts)
    torch.manual_seed(0)
    raise SystemExit(not all([parts[name]() for name in chosen]))
