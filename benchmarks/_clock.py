"""Timing: the candidates run alternately in one process, and the best time of each counts."""

from __future__ import annotations

import os
import time
from collections.abc import Callable


def turns(candidates: dict[str, Callable[[], float]], rounds: int = 5) -> dict[str, float]:
    """Best rate (units per second) of each candidate over several rounds in which they take turns."""
    best = dict.fromkeys(candidates, 0.0)
    for round_ in range(rounds):
        for name, measure in candidates.items():
            best[name] = max(best[name], measure())
        summary = "  ".join(f"{name} {rate:,.0f}" for name, rate in best.items())
        print(f"  round {round_ + 1}/{rounds}, best so far: {summary}", flush=True)
    return best


def table(title: str, best: dict[str, float], unit: str, ours: str, goals: dict[str, float]) -> bool:
    """Print rates and ratios; True where every goal (peer -> least ratio) is met."""
    print(f"\n{title}\n  {'':38} {unit:>12}   ours is")
    met = True
    for name, rate in best.items():
        ratio = best[ours] / rate
        goal = goals.get(name)
        verdict = "" if goal is None else f"  goal {goal:g}: {'met' if ratio >= goal else 'MISSED'}"
        met &= goal is None or ratio >= goal
        print(f"  {name:38} {rate:12,.0f}   {'' if name == ours else f'{ratio:.2f}x'}{verdict}")
    load = os.getloadavg()[0]
    print(f"  load average {load:.2f}" + ("  (something else is running: do not trust this)" if load > 3.5 else ""))
    return met


class Half:
    """Rate over the second half of a loop: marks the time in the middle and at the end, so starting up is not counted."""

    def __init__(self, steps: int) -> None:
        self.steps, self.marks = steps, {}

    def __call__(self, step: int) -> None:
        if step == self.steps // 2 or step >= self.steps - 1:
            self.marks[step] = time.perf_counter()

    def schedule(self, step: int, steps: int) -> float:
        """A constant learning-rate schedule that looks at the clock: it is asked once a step and may not touch the model."""
        self(step)
        return 1.0

    def rate(self, per_step: float = 1.0) -> float:
        first, last = min(self.marks), max(self.marks)
        return (last - first) * per_step / (self.marks[last] - self.marks[first])
