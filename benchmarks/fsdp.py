"""FSDP on two processes with a 6-layer language model: memory of each, agreement with data parallel, kills.

    python benchmarks/fsdp.py memory    bytes of weights, gradients and optimizer beside one process; weights gathered at a time
    python benchmarks/fsdp.py equal     weights after 50 steps beside those of data parallel
    python benchmarks/fsdp.py kills     runs killed by SIGKILL, one process of them or all, and resumed: bit for bit the same?
    python benchmarks/fsdp.py all

Goals: 0.6 of the bytes of one process; weights as near to those of data parallel as these are to the same batches undivided on one
process, whose sums are rounded in another order; every killed run ends like the one that was not.

--times N: kills (10).
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import random
import shutil
import signal
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

torch.set_num_threads(1)

from torch import Tensor, nn  # noqa: E402

import sonde  # noqa: E402
from sonde.core.batch import Data  # noqa: E402
from sonde.core.recipe import Recipe  # noqa: E402
from sonde.data.tensors import WindowSource  # noqa: E402
from sonde.engine import checkpoint  # noqa: E402
from sonde.engine.job import Job  # noqa: E402
from sonde.engine.launch import launch  # noqa: E402
from sonde.engine.options import Options  # noqa: E402
from sonde.engine.world import World  # noqa: E402
from sonde.models.language_model import LanguageModel  # noqa: E402
from sonde.objectives.categorical import Categorical  # noqa: E402
from sonde.optim.build import optimizer  # noqa: E402
from sonde.runs import checkpoints  # noqa: E402
from tests.engine.harness import attempt, differences, digest, finished  # noqa: E402

GOAL = 0.6
DEPTH = 6


def language_model(width: int = 512, batch_size: int = 8, steps: int = 50, tied: bool = False, dropout: float = 0.0) -> Recipe:
    """Six blocks, trained to continue a noisy counting rule; AdamW, clipping, an evaluation now and then."""
    rng = torch.Generator().manual_seed(0)
    noise = torch.randint(0, 4, (6000,), generator=rng)
    tokens = (torch.arange(6000) * 7 + noise.cumsum(0)) % 500
    train, valid = WindowSource(tokens[:5000], 32), WindowSource(tokens[5000:], 32, stride=32)
    return Recipe(
        model=lambda: LanguageModel(500, width, DEPTH, "attention heads=4", tied=tied, dropout=dropout),
        data=Data(train, valid, name="counting", task="classes"),
        objective=Categorical(),
        optimizer=optimizer("adamw", lr=1e-3, weight_decay=0.01),
        steps=steps,
        batch_size=batch_size,
        clip_norm=1.0,
        log_every=5,
        evaluate_every=20,
    )


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    """In memory where there is such a place, so that a slow disk does not set the pace."""
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shared if shared.is_dir() else None, prefix="sonde-fsdp-") as path:
        yield Path(path)


# ---------------------------------------------------------------- memory


def local(tensor: Any) -> Tensor:
    """The part of a tensor that this process holds."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def stored(tensors: Iterable[Any]) -> int:
    """Bytes of memory behind these tensors in this process, padding included and each piece once."""
    pieces = {part.untyped_storage().data_ptr(): part.untyped_storage().nbytes() for part in map(local, tensors)}
    return sum(pieces.values())


def resident(field: str) -> int:
    """VmRSS, the memory of this process now, or VmHWM, its peak, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(field))


class Gathered:
    """The most bytes of whole weights at any module call of a step, forward or backward."""

    def __init__(self, model: nn.Module) -> None:
        self.model, self.most = model, 0
        warnings.filterwarnings("ignore", message="Full backward hook is firing")
        for module in model.modules():
            if not list(module.children()):  # a leaf runs after the hooks of what contains it
                module.register_forward_pre_hook(self.look)
                module.register_full_backward_pre_hook(self.look)

    def look(self, *_: Any) -> None:
        self.most = max(self.most, stored(p for p in self.model.parameters() if not hasattr(p, "to_local")))


NAMES = ("weights", "gradients", "optimizer", "gathered", "peak")


def measure(parallel: str, processes: int, tied: bool) -> dict[str, float]:
    """Bytes in the process that has most of each; a process computes the same number of examples either way.

    The libraries are loaded before, so that the peak of a process is that of its tensors.
    """
    import torch._dynamo
    import torch.distributed.fsdp
    import torch.distributed.tensor

    table = torch.zeros(processes, len(NAMES), dtype=torch.float64).share_memory_()

    def worker(world: World) -> None:
        before = resident("VmRSS")
        options = Options(processes=processes, shards=processes, threads=1, parallel=parallel, quiet=True)  # type: ignore[arg-type]
        job = Job(lambda: language_model(batch_size=4 * processes, tied=tied), options, world)
        job.prepare_training()
        for step in range(3):
            if step == 2:  # the state of the optimizer is there, and memory has settled
                Path("/proc/self/clear_refs").write_text("5")
                gathered = Gathered(job.model)
            take_step(job, step)
        weights: Any = job.weights
        optimizers = [weights.optimizer] if parallel == "fsdp" else [mover.optimizer for mover in weights.movers.values()]
        moments = [value for each in optimizers for state in each.state.values() for value in state.values() if isinstance(value, Tensor)]
        parameters = list(job.model.parameters())
        numbers = (stored(parameters), stored(p.grad for p in parameters), stored(moments), gathered.most, resident("VmHWM") - before)
        table[world.rank] = torch.tensor(numbers, dtype=torch.float64)

    launch(worker, processes, restarts=0)
    return dict(zip(NAMES, table.max(0).values.tolist(), strict=True))


def take_step(job: Job, step: int) -> None:
    """The step of the engine without its records."""
    job.strategy.gradient(job.objective, job.batch(step), lambda shard: job.seed(step, shard), job.begin_step(step))
    job.weights.clip(job.weights.norm(), job.recipe.clip_norm or 1.0)
    job.weights.update(job.factor(step))


def memory() -> bool:
    met = True
    for tied in (False, True):
        one, two = measure("ddp", 1, tied), measure("fsdp", 2, tied)
        state = [sum(each[name] for name in ("weights", "gradients", "optimizer")) for each in (one, two)]
        ratio = state[1] / state[0]
        met &= ratio <= GOAL
        print(f"\n{DEPTH} blocks, {'tied' if tied else 'separate'} embedding and head, AdamW; MB a process")
        print(f"  {'':44} {'one process':>12} {'FSDP on two':>12}   ratio")
        for name in ("weights", "gradients", "optimizer"):
            print(f"  {name:44} {one[name] / 1e6:12.2f} {two[name] / 1e6:12.2f}   {two[name] / one[name]:.3f}")
        print(f"  {'together':44} {state[0] / 1e6:12.2f} {state[1] / 1e6:12.2f}   {ratio:.3f}   goal {GOAL}: {verdict(ratio <= GOAL)}")
        share = two["gathered"] / one["weights"]
        print(f"  {'whole weights at a time, at most':44} {one['weights'] / 1e6:12.2f} {two['gathered'] / 1e6:12.2f}   {share:.3f}")
        print(
            f"  {'process: peak of a step above its start':44} {one['peak'] / 1e6:12.2f} {two['peak'] / 1e6:12.2f}"
            f"   {two['peak'] / one['peak']:.3f}"
        )
    return met


def verdict(met: bool) -> str:
    return "met" if met else "MISSED"


# ---------------------------------------------------------------- agreement


def final_weights(path: Path, recipe: Recipe, **options: Any) -> dict[str, Tensor]:
    """The weights at the end of a run."""
    run = sonde.train(recipe, run=path, threads=1, quiet=True, **options)
    return dict(checkpoint.read(checkpoints.path_of(run.path / "checkpoints", run.result["steps"])).parts["model"])


def roundings(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    """The largest difference of two weights, in spacings of float32 at the largest weight of their tensor."""
    largest = 0.0
    for name, tensor in one.items():
        spacing = 2.0 ** (math.floor(math.log2(float(tensor.abs().max()))) - 23)
        largest = max(largest, float((tensor.double() - other[name].double()).abs().max()) / spacing)
    return largest


def equal() -> bool:
    met = True
    for tied in (False, True):
        with folder() as home:
            recipe = language_model(width=128, tied=tied)
            parallel = final_weights(home / "ddp", recipe, processes=2)
            sharded = final_weights(home / "fsdp", recipe, processes=2, parallel="fsdp")
            undivided = final_weights(home / "one", recipe)
        ours, theirs = roundings(parallel, sharded), roundings(parallel, undivided)
        same = sum(int((tensor == sharded[name]).sum()) for name, tensor in parallel.items()) / sum(t.numel() for t in parallel.values())
        fine = ours <= max(theirs, 1.0)
        met &= fine
        print(
            f"\n{recipe.steps} steps, {'tied' if tied else 'separate'} embedding and head; largest difference of a weight to data parallel"
        )
        print(f"  FSDP on two processes      {ours:12.1f} float32 roundings; {same:.2%} of the weights bit for bit   {verdict(fine)}")
        print(f"  one process, undivided     {theirs:12.1f} float32 roundings")
    return met


# ---------------------------------------------------------------- kills


def kills(times: int) -> bool:
    """SIGKILL at random instants to the supervisor, one worker or all; what is left is resumed by the same command."""
    rng, done, good, runs = random.Random(0), 0, 0, 0
    recipe = language_model(width=64, steps=60, dropout=0.1)
    options: dict[str, Any] = {"recipe": recipe, "processes": 2, "parallel": "fsdp", "checkpoint_every": 7}
    with folder() as home:
        expected = digest(finished(home / "whole", **options))
        while done < times:
            path, killed = home / f"run-{runs}", 0
            while True:
                running = attempt(path, before=silence, **options)
                aim = rng.randint(1, 55)
                late = killed < 3 and wait_for(lambda aim=aim, path=path: last_step(path) >= aim, running)  # type: ignore[misc]
                workers = running.workers() if late else []
                targets = rng.choice([[running.pid], *([worker] for worker in workers), [running.pid, *workers]])
                for pid in targets if late else ():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                outcome = running.wait()
                wait_for(lambda workers=workers: not any(Path(f"/proc/{pid}").exists() for pid in workers))  # type: ignore[misc]
                killed, done = killed + late, done + late
                if not outcome.killed:
                    outcome.done()
                    break
            runs += 1
            wrong = differences(digest(path), expected)
            good += not wrong
            if wrong:
                print(f"  {path.name}: {', '.join(wrong)} differ")
            shutil.rmtree(path)
    print(f"\nFSDP runs equal to an undisturbed one, bit for bit, after {done} kills: {good} of {runs}   {verdict(good == runs)}")
    return good == runs


def last_step(path: Path) -> int:
    """Steps in the rows of a run so far."""
    rows = path / "metrics.jsonl"
    text = rows.read_text() if rows.exists() else ""
    return 5 * text.count('"loss"')


def wait_for(condition: Callable[[], bool], running: Any = None) -> bool:
    """True as soon as the condition holds; False where the process ended before."""
    while not condition():
        if running is not None and running.ends_within(0.002):
            return False
    return True


def silence() -> None:
    """What a killed process has to say is not of interest here."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", nargs="?", default="all", choices=("memory", "equal", "kills", "all"))
    parser.add_argument("--times", type=int, default=10)
    arguments = parser.parse_args()
    parts: dict[str, Callable[[], bool]] = {"memory": memory, "equal": equal, "kills": lambda: kills(arguments.times)}
    chosen = list(parts) if arguments.part == "all" else [arguments.part]
    raise SystemExit(not all([parts[name]() for name in chosen]))
