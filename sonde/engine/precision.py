"""The precision of a run: float32, bf16, or `auto` for the faster of the two.

bf16 runs the forward pass under autocast: products take bfloat16, while weights, sums, losses and the optimizer stay float32.  It pays
only where the processor multiplies bfloat16 (AVX-512 BF16, AMX, Arm's bf16); elsewhere the values are as good and the time is worse.

`auto` times the gradient of the run's own model and batch in both precisions: a small model has more to convert than to multiply.
The times are kept in the user's cache folder, so that a machine measures a model once.  The choice is written into run.json; a
resumed run keeps it, on any machine.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import nn

from ..core import files
from ..core.batch import Batch
from ..core.errors import DataUnusable
from ..core.terms import Terms
from ..data.fetch import cache
from .fingerprint import ONEDNN, fingerprint

if TYPE_CHECKING:
    from .job import Job

Precision = Literal["float32", "bf16"]
LEAST = 1.1
"""how many times as fast bf16 must be for `auto` to choose it; less is within the noise of a measurement"""
ROUNDS = 5
"""gradients timed in each precision, of which the fastest counts"""
SECONDS = 5.0
"""no further round begins after this time"""


@dataclass(frozen=True)
class PrecisionChoice:
    """The precision of a run, and why."""

    requested: str
    chosen: Precision
    speedup: float | None = None
    """time in float32 over time in bf16, where it was measured"""
    message: str = ""
    """a line for the user, where there is something to say"""


class Autocast:
    """An objective whose forward pass runs in bfloat16 where that is safe; weights and sums stay float32."""

    def __init__(self, objective: Any, device: torch.device) -> None:
        self.objective, self.device = objective, device

    def __call__(self, model: nn.Module, batch: Batch) -> Terms:
        with torch.autocast(self.device.type, dtype=torch.bfloat16):
            return self.objective(model, batch)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.objective, name)


def bf16_arithmetic(flags: Mapping[str, Any], onednn: str, enabled: bool = True) -> str:
    """The instructions by which torch multiplies bfloat16 on this CPU; '' where there are none.

    torch takes them by way of oneDNN alone, so a limit on oneDNN counts (ONEDNN_MAX_CPU_ISA) and one on torch's own loops
    (ATEN_CPU_CAPABILITY) does not.

    Args:
        flags: of the processor, as `torch.cpu.get_capabilities` gives them
        onednn: the instruction set of oneDNN, as the fingerprint has it
        enabled: whether torch uses oneDNN
    """
    names = list(ONEDNN)
    if not enabled:
        return ""
    if onednn not in names:  # not x86: there is no limit to set
        return next((name for name in ("sve_bf16", "bf16") if flags.get(name)), "")
    needs = {"amx_bf16": "avx512_core_amx", "avx512_bf16": "avx512_core_bf16"}
    return next((name for name, least in needs.items() if flags.get(name) and names.index(onednn) >= names.index(least)), "")


def describe_bf16(device: torch.device) -> tuple[str, str]:
    """The bf16 arithmetic of a device; or '' and why it has none."""
    if device.type == "cuda":
        return ("CUDA", "") if torch.cuda.is_bf16_supported() else ("", "this GPU has no bf16 arithmetic")
    if device.type != "cpu":
        return device.type, ""
    flags, marks, enabled = torch.cpu.get_capabilities(), fingerprint(), bool(torch.backends.mkldnn.enabled)
    if name := bf16_arithmetic(flags, str(marks.get("onednn", "")), enabled):
        return name, ""
    if bf16_arithmetic(flags, list(ONEDNN)[-1]):
        setting = "torch.backends.mkldnn.enabled is False" if not enabled else f"oneDNN is limited to {marks.get('onednn')}"
        return "", f"the bf16 arithmetic of this processor is turned off: {setting}"
    return "", "this processor has no bf16 arithmetic (AVX-512 BF16, AMX)"


def choose(job: Job) -> PrecisionChoice:
    """The precision of a job: its option, else its recipe's; `auto` is decided by rank 0 for all."""
    requested = job.options.precision or job.recipe.precision
    name, reason = describe_bf16(job.device)
    if requested == "float32":
        return PrecisionChoice(requested, "float32")
    if requested == "bf16":
        slow = f"notice: bf16 is slow here: {reason}; the results are valid, and --precision float32 is faster"
        return PrecisionChoice(requested, "bf16", message="" if name else slow)
    if not name:
        return PrecisionChoice(requested, "float32", message=f"precision: float32, because {reason}")
    # One process decides: others may be of another kind, or just be busier.
    data = files.dump_json(asdict(_measure(job))) if job.world.is_main else None
    return PrecisionChoice(**files.parse_json(job.world.broadcast_bytes(data)))


def _measure(job: Job) -> PrecisionChoice:
    """The choice by measuring, or by what was measured before."""
    path = cache() / "precision.json"
    try:
        batch = job.ready(job.stream.example(max(1, job.recipe.batch_size // job.shards)))
        key = _key(job, batch)
        before = _read(path).get(key)
        times = before if before is not None else time_precisions(job, batch)
    except Exception as error:  # where float32 fails too, the check before training says what is wrong, and where
        reason = str(error).strip().split("\n")[0]
        return PrecisionChoice("auto", "float32", message=f"precision: float32, because a step could not be timed: {reason}")
    if before is None:
        with suppress(OSError):  # a cache that cannot be written is measured again
            path.parent.mkdir(parents=True, exist_ok=True)
            files.replace_file(path, files.dump_json({**_read(path), key: times}))
    speedup = times["float32"] / times["bf16"]
    chosen: Precision = "bf16" if speedup >= LEAST else "float32"
    when = "measured just now" if before is None else "measured before"
    text = f"precision: {chosen}; bf16 is {speedup:.2f} times as fast as float32 for this model on this machine ({when})"
    return PrecisionChoice("auto", chosen, speedup, text)


def time_precisions(job: Job, batch: Batch) -> dict[str, float]:
    """Seconds of one gradient in each precision: the best of several that take turns.  Weights, buffers and mode of the model stay.

    Random states change; a run seeds its own before the first step.
    """
    forms: dict[str, Any] = {"float32": job.recipe.objective, "bf16": Autocast(job.recipe.objective, job.device)}
    parameters = [p for p in job.model.parameters() if p.requires_grad]
    buffers, mode = [(buffer, buffer.clone()) for buffer in job.model.buffers()], job.model.training
    times: dict[str, float] = {}
    job.model.train()
    job.begin_step(0)
    job.begin_update(job.phases.cycle[0][0])
    try:
        began = time.perf_counter()
        for turn in range(ROUNDS + 1):
            seconds = {name: _gradient_seconds(job.model, objective, batch, parameters) for name, objective in forms.items()}
            # The first turn prepares memory, caches and choices of kernels; it counts only where it is the only one.
            times = {name: min(times[name], new) if turn > 1 else new for name, new in seconds.items()}
            if time.perf_counter() - began > SECONDS:
                break
    finally:
        job.begin_update(None)
        job.model.train(mode)
        for buffer, value in buffers:
            buffer.copy_(value)
    return times


def _gradient_seconds(model: nn.Module, objective: Any, batch: Batch, parameters: list[nn.Parameter]) -> float:
    start = time.perf_counter()
    gradients = objective(model, batch).gradients(parameters)
    for gradient in gradients[:1]:
        if gradient is not None:
            gradient.flatten()[:1].tolist()  # waits for a GPU
    return time.perf_counter() - start


def _key(job: Job, batch: Batch) -> str:
    """What the times depend on: processor, libraries, threads, the layers and sizes of the model, the shapes of a batch."""
    layers = [type(module).__qualname__ for module in job.model.modules()]
    shapes = [list(p.shape) for p in job.model.parameters()]
    fields = {name: [list(field.shape), str(field.dtype)] for name, field in batch.fields.items()}
    parts = [fingerprint(threads=job.options.threads, device=str(job.device)), layers, shapes, fields]
    return hashlib.sha256(files.dump_json(parts)).hexdigest()


def _read(path: Path) -> dict[str, dict[str, float]]:
    """What was measured before; a damaged file counts as none."""
    try:
        known = files.read_json(path)
    except (OSError, DataUnusable, ValueError):
        return {}
    return {key: times for key, times in known.items() if _are_times(times)} if isinstance(known, dict) else {}


def _are_times(times: Any) -> bool:
    return isinstance(times, dict) and all(isinstance(times.get(name), float) and times[name] > 0 for name in ("float32", "bf16"))
