"""The fused form: one compiled kernel over the whole sequence, the state in cache from the first step to the last.

On a CPU these are the kernels of `sonde.kernels`; on a GPU those of flash-linear-attention, where it is installed.
"""

from __future__ import annotations

from torch import Tensor

from ... import kernels
from ...kernels.delta import delta
from ...kernels.hadamard import hadamard
from ...kernels.separable import separable
from . import gpu
from .steps import Steps


def why_not(s: Steps) -> str:
    """Why there is no fused form here; '' if there is one."""
    if "fused" not in s.forms:
        return f"there is no fused kernel for '{s.name}'"
    if s.v.device.type in ("cpu", "meta"):  # meta tensors are counted as the kernel would run
        return "" if kernels.available() else kernels.why_not()
    if s.v.device.type == "cuda":
        return gpu.why_not(s)
    return f"there is no fused kernel for the device '{s.v.device.type}'"


def available_forms(s: Steps) -> tuple[str, ...]:
    """Forms of these steps that can run here."""
    problem = why_not(s)
    return tuple(form for form in s.forms if form != "fused" or not problem)


def run_kernel(s: Steps, state: Tensor) -> tuple[Tensor, Tensor]:
    """Run the kernel of this kind of recurrence; `why_not` must be ''."""
    if s.v.device.type == "cuda":
        return gpu.run(s, state)
    s = s.by_step()
    if s.rate is not None and s.log_value is not None:
        s = s.ungroup()
        assert s.rate is not None and s.log_value is not None
        return hadamard(s.q, s.k, s.v, s.log_value, s.rate, s.weight, state)
    assert s.q is not None and s.k is not None
    if s.beta is not None:
        return delta(s.q, s.k, s.v, s.beta, s.log_head, state)
    return separable(s.q, s.k, s.v, s.log_head, s.log_key, s.log_value, state, before=s.read == "before")
