"""Finds and loads the compiled kernels, and says why when they cannot serve.

A kernel is a C function of one argument, a pointer to a struct; `function` gives it for a dtype.  The struct's fields
are mirrored by a `ctypes.Structure`, with a `View` for each tensor.
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..core.errors import ResourceFault

SUFFIX = {torch.float32: "f32", torch.float64: "f64"}
"""How the name of a compiled function ends, by the dtype it computes in."""


class View(ctypes.Structure):
    """A tensor [row, head, time, width] as the kernels see it: strides count elements, a null pointer means absent."""

    _fields_ = [("data", ctypes.c_void_p)] + [(axis, ctypes.c_int64) for axis in ("row", "head", "time")]


def view(tensor: Tensor | None, *, width: bool = True) -> View:
    """The view of [B, H, L, D] (contiguous in D) or, with `width=False`, of [B, H, L]; fewer axes leave the later strides 0.

    The caller keeps the tensor alive.
    """
    if tensor is None:
        return View()
    strides = tensor.stride()
    return View(tensor.data_ptr(), *(strides[:-1] if width else strides))


def _levels() -> list[str]:
    """Builds this CPU can run, best first; torch names what it has."""
    order = ["base", "avx2", "avx512"]
    capability = torch.backends.cpu.get_cpu_capability().lower()
    return order[: order.index(capability) + 1][::-1] if capability in order else ["base"]


@functools.cache
def _load() -> tuple[ctypes.CDLL | None, str]:
    """The library and an empty reason, or none and why."""
    if os.environ.get("SONDE_KERNELS") == "0":
        return None, "the compiled kernels are turned off by SONDE_KERNELS=0; unset it to use them"
    found = [path for level in _levels() if (path := Path(__file__).parent / f"_kernels_{level}.so").exists()]
    if not found:
        return None, (
            "the compiled kernels were not built: install a C compiler with OpenMP (gcc, or clang with libomp), "
            "then install Sonde again (in a copy of the source: pip install -e .)"
        )
    try:
        return ctypes.CDLL(str(found[0])), ""
    except OSError as error:
        return None, f"the compiled kernels do not load ({error}); install Sonde again on this machine to rebuild them"


def available() -> bool:
    """Whether the compiled kernels can serve."""
    return _load()[0] is not None


def why_not() -> str:
    """Why the compiled kernels cannot serve and what to do about it; empty when they can."""
    return _load()[1]


def _check(failed: int, function: Callable, arguments: tuple) -> None:
    if failed:
        raise ResourceFault("a kernel could not get its working memory", fix="use a smaller batch or fewer threads")


@functools.cache
def function(name: str, dtype: torch.dtype) -> Callable[[Any], None]:
    """The compiled function `name` for a dtype.  It takes a pointer to its struct (`ctypes.byref`, or an address it holds).

    A C function returns 0, or 1 when it found no memory for its scratch, which is raised here.
    """
    library, why = _load()
    if library is None:
        raise ResourceFault(f"kernel '{name}' cannot run", fix=why)
    symbol = f"{name}_{SUFFIX[dtype]}"
    if not hasattr(library, symbol):
        raise ResourceFault(
            f"the compiled kernels have no '{symbol}': they are older than the source", fix="install Sonde again: pip install -e ."
        )
    compiled = getattr(library, symbol)
    compiled.argtypes, compiled.restype = [ctypes.c_void_p], ctypes.c_int
    compiled.errcheck = _check
    return compiled
