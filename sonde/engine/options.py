"""Options every run has besides the options of its recipe."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any, Literal

from ..core.errors import BadInput
from ..core.options import Range, check_values, options_of

PARALLEL = ("ddp", "fsdp")


@dataclass(frozen=True, kw_only=True)
class Options:
    """How to run, as opposed to what to learn.

    Args:
        seed: seed of all random numbers of the run
        processes: worker processes on this machine
        threads: CPU threads per process; default: all cores, or 1 with several processes or shards
        device: where to compute: cpu, cuda, cuda:1, mps
        precision: float32, bf16 (products in bfloat16) or auto (the faster one); default: the recipe's
        shards: parts of each batch, summed in a fixed order; default: one per process
        parallel: ddp: the whole model in every process; fsdp: spread over them; or a file of your own
        checkpoint_every: steps between checkpoints; default: about every 20 seconds
        async_save: write checkpoints in the background
        ema: decay of a moving average of the weights, such as 0.999, which the trained model then has
        exact: refuse to resume if results would not be bitwise identical
        accept_data_change: resume although the data have changed
        tensorboard: also write TensorBoard event files
        hang_timeout: seconds after which a silent worker counts as hung
        restarts: restarts without progress allowed after a worker dies
        quiet: print nothing while training
    """

    seed: Annotated[int, Range(0, 2**63 - 1)] = 0
    processes: Annotated[int, Range(1, 4096)] = 1
    threads: Annotated[int | None, Range(1, 4096)] = None
    device: str = "cpu"
    precision: Literal["float32", "bf16", "auto"] | None = None
    shards: Annotated[int | None, Range(1, 4096)] = None
    parallel: str = "ddp"
    checkpoint_every: Annotated[int | None, Range(1, 10**12)] = None
    async_save: bool = False
    ema: Annotated[float | None, Range(0, below=1)] = None
    exact: bool = False
    accept_data_change: bool = False
    tensorboard: bool = False
    hang_timeout: Annotated[float, Range(above=0)] = 60.0
    restarts: Annotated[int, Range(0, 1000)] = 3
    quiet: bool = False

    KEPT = ("seed", "processes", "threads", "shards", "device", "precision", "parallel", "checkpoint_every", "async_save", "ema")
    """options that run.json records and a resume restores"""

    @classmethod
    def of(cls, values: dict[str, Any]) -> Options:
        """Options from loose values, checked like options."""
        return cls(**check_values(options_of(cls, "train"), values, "train"))

    def record(self) -> dict[str, Any]:
        return {name: asdict(self)[name] for name in self.KEPT}

    def settle(self, cores: int, recorded: dict[str, Any] | None, explicit: set[str]) -> Options:
        """Fill missing values: from the record of the run being resumed, else from the defaults above."""
        if self.precision == "auto":
            explicit = explicit - {"precision"}  # a run that has chosen keeps its choice
        taken = {n: v for n, v in (recorded or {}).items() if n in self.KEPT and n not in explicit and v is not None}
        # a record may have been edited: its values are checked like a user's
        new = replace(self, **check_values(options_of(type(self), "run.json"), taken, "run.json"))
        if new.parallel not in PARALLEL and not new.parallel.endswith(".py"):
            fix = f"choose from {', '.join(PARALLEL)}, or give a file ending in .py"
            raise BadInput(f"no strategy '{new.parallel}'", where="parallel", fix=fix)
        if new.shards is None:
            new = replace(new, shards=new.processes)
        if new.threads is None:
            alone = new.processes == 1 and new.shards == 1
            new = replace(new, threads=cores if alone else 1)
        if new.processes > (new.shards or 1):
            raise BadInput(f"{new.processes} processes cannot share {new.shards} shards", fix=f"use --shards {new.processes} or more")
        return new
