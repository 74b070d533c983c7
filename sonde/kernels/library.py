"""Finds and loads the compiled kernels, and says why when they cannot be used.

A kernel is a C function of one argument, a pointer to a struct; `function` gives it for a dtype.  The struct's fields
are mirrored by a `ctypes.Structure`, with a `View` for each tensor.

The requirements of every kernel on its tensors are checked here.  A layout names the axes of each tensor by letters: B batch,
H heads, G key groups (which divide the heads), L length, K key width, V value width.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import itertools
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..core.errors import BadInput, ResourceFault

SUFFIX = {torch.float32: "f32", torch.float64: "f64"}
"""How the name of a compiled function ends, by the dtype it computes in."""
STORED = {**SUFFIX, torch.bfloat16: "bf16"}
"""The same for kernels that also take tensors of bfloat16, which they compute in float32."""
KNOWN = {*SUFFIX, torch.bfloat16, torch.float16}
NEEDS: dict[str, tuple[str, ...]] = {
    "base": (),
    "avx2": ("avx2", "fma3"),
    "avx512": ("avx512_f", "avx512_vl", "avx512_bw", "avx512_dq"),
}
"""Instruction-set levels a library is built for, lowest first, and the CPU features that each adds (`setup.py`)."""
AXES = {"B": "batch", "G": "key groups", "H": "heads", "L": "length", "K": "key width", "V": "value width"}


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


def check(tensors: dict[str, Tensor | None], layout: dict[str, str]) -> None:
    """Check the dtype, device, axes and sizes of every tensor."""
    sizes: dict[str, int] = {}
    for name, x in tensors.items():
        if x is None:
            continue
        axes, shape = layout[name], x.shape
        if x.dtype not in KNOWN:
            raise BadInput(f"'{name}' has dtype {x.dtype}", fix="use float32, float64, bfloat16 or float16")
        if not (x.is_cpu or x.is_meta):
            raise BadInput(f"'{name}' is on {x.device}, and this kernel runs on the CPU", fix="move it with .cpu()")
        if len(shape) != len(axes):
            raise BadInput(f"'{name}' has {len(shape)} axes {tuple(shape)}", fix=f"give [{', '.join(axes)}]")
        for axis, size in zip(axes, shape):
            if sizes.setdefault(axis, size) != size:
                giver = next(other for other, y in tensors.items() if y is not None and axis in layout[other])
                raise BadInput(
                    f"'{name}' has {AXES[axis]} {size}, but '{giver}' has {sizes[axis]}",
                    fix=f"make axis {axis} of '{name}' [{', '.join(axes)}] {sizes[axis]}",
                )
    if "G" in sizes and sizes["H"] and (not sizes["G"] or sizes["H"] % sizes["G"]):
        raise BadInput(f"there are {sizes['H']} heads and {sizes['G']} key groups", fix="make the groups divide the heads")


def check_step(buffers: dict[str, Tensor | None], layout: dict[str, str]) -> None:
    """Check the buffers of a decode step against a layout without its time axis, and that they need no copy."""
    check(buffers, {name: axes.replace("L", "") for name, axes in layout.items()})
    kinds = {x.dtype for x in buffers.values() if x is not None}
    for name, x in buffers.items():
        if x is None:
            continue
        if len(kinds) > 1 or x.dtype not in SUFFIX:
            raise BadInput(f"'{name}' of a decode step is {x.dtype}", fix="make all buffers float32, or all float64")
        if layout[name][-1] in "KV" and rows(x) is not x:
            raise BadInput(f"the last axis of '{name}' is not contiguous", fix="pass a buffer whose last axis is")


def cast(inputs: Iterable[Tensor | None]) -> list[Tensor | None]:
    """The tensors in the dtype to compute in: float64 when any of them is, else float32."""
    tensors = list(inputs)
    kind = torch.float64 if any(x is not None and x.dtype == torch.float64 for x in tensors) else torch.float32
    return [x if x is None or x.dtype == kind else x.to(kind) for x in tensors]


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which a kernel computes with tensors of a dtype, and that of its weights and sums."""
    return torch.float32 if dtype is torch.bfloat16 else dtype


def autocast(x: Tensor) -> Tensor:
    """An input as autocast would give it to torch's own operation: float32 in autocast's dtype, all others unchanged."""
    if x.dtype is torch.float32 and x.is_cpu and torch.is_autocast_enabled("cpu"):
        return x.to(torch.get_autocast_dtype("cpu"))
    return x


def rows(x: Tensor | None) -> Tensor | None:
    """The tensor with its last axis contiguous, copied only when it is not."""
    return x if x is None or x.shape[-1] == 1 or x.stride(-1) == 1 else x.contiguous()


def channels_last(x: Tensor) -> Tensor:
    """Images in channels-last layout, copied only when they are not."""
    return x.contiguous(memory_format=torch.channels_last)


def records(tensors: Iterable[Tensor | None]) -> bool:
    """Whether autograd records a call on these tensors."""
    return torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors)


def is_observed(tensors: Iterable[Tensor | None]) -> bool:
    """Whether a compiler, a tracer, a dispatch mode (a FLOP counter) or a transform such as vmap observes a call on these tensors;
    or a tensor is not its plain memory, such as one with the negative bit."""
    return (
        torch.compiler.is_compiling()
        or bool(torch._C._len_torch_dispatch_stack())
        or torch._C._are_functorch_transforms_active()
        or torch.autograd.forward_ad._current_level >= 0
        or torch._C._get_tracing_state() is not None
        or any(x is not None and _is_special(x) for x in tensors)
    )


def _is_special(x: Tensor) -> bool:
    """Whether a tensor is not plain memory."""
    return type(x) not in (Tensor, torch.nn.Parameter) or x.is_meta or x.is_neg() or torch._C._functorch.is_legacy_batchedtensor(x)


def is_unobserved(tensors: Iterable[Tensor | None]) -> bool:
    """Whether nothing, autograd and the profiler included, observes a call on these tensors, which may then skip the torch op and
    its overhead of a hundred microseconds."""
    inputs = list(tensors)
    return not (is_observed(inputs) or torch.autograd.profiler._is_profiler_enabled or records(inputs))


def no_second_derivative(kernel: str) -> Callable[..., Any]:
    """The double backward of a kernel: an error."""

    def refuse(ctx: Any, *gradients: Any) -> tuple:
        raise BadInput(f"the {kernel} kernel has no second derivative", fix="use a torch form, such as form='chunk'")

    return refuse


def call(run: Callable[..., Any], op: Callable[..., Any], inputs: list[Tensor | None]) -> Any:
    """Call a kernel: by its plain function where nothing observes it, else by its torch op."""
    if is_unobserved(inputs):
        return run(*inputs, False)
    # Inside vmap no input seems to require a gradient, though one may.
    return op(*inputs, records(inputs) or torch._C._are_functorch_transforms_active())


def runnable() -> list[str]:
    """Levels this processor can run, lowest first, whatever ATEN_CPU_CAPABILITY is."""
    flags = torch.cpu.get_capabilities()
    levels = itertools.takewhile(lambda level: all(flags.get(flag) for flag in NEEDS[level]), NEEDS)
    return list(levels)


def _levels() -> list[str]:
    """Levels that may be loaded when none is named, best first: at most the level of torch and of the processor."""
    order = list(NEEDS)
    capability = torch.backends.cpu.get_cpu_capability().lower()
    usual = order[: order.index(capability) + 1] if capability in order else ["base"]
    return [level for level in usual if level in runnable()][::-1]


def _requested_level() -> str | None:
    """The value of SONDE_KERNELS: a level the processor can run, "0" for none, or None when unset."""
    name = os.environ.get("SONDE_KERNELS", "")
    if name in ("", "0"):
        return name or None
    fix = f"use {', '.join(runnable())}, or 0 for none; or unset it"
    if name not in NEEDS:
        raise BadInput(f"SONDE_KERNELS={name} is not a level of the kernels", fix=fix)
    if name not in runnable():
        missing = [flag.replace("_", "") for flag in NEEDS[name] if not torch.cpu.get_capabilities().get(flag)]
        raise BadInput(f"SONDE_KERNELS={name} needs a processor with {', '.join(missing)}, and this one has none", fix=fix)
    return name


@functools.cache
def _load() -> tuple[ctypes.CDLL | None, str]:
    """The library and an empty reason, or None and why.  A level set by SONDE_KERNELS that does not load is an error."""
    name = _requested_level()
    if name == "0":
        return None, "the compiled kernels are turned off by SONDE_KERNELS=0; unset it to use them"
    library, why = _open([name] if name else _levels())
    if name and library is None:
        raise BadInput(f"SONDE_KERNELS={name} cannot be used: {why}", fix="or unset SONDE_KERNELS")
    return library, why


def _open(levels: list[str]) -> tuple[ctypes.CDLL | None, str]:
    paths = [path for level in levels if (path := Path(__file__).parent / f"_kernels_{level}.so").exists()]
    if not paths:
        return None, (
            "the compiled kernels were not built: install a C compiler with OpenMP (gcc, or clang with libomp), "
            "then install Sonde again (in a copy of the source: pip install -e .)"
        )
    try:
        library = ctypes.CDLL(str(paths[0]))
    except OSError as error:
        return None, f"the compiled kernels do not load ({error}); install Sonde again on this machine to rebuild them"
    # A changed struct would crash, and changed arithmetic give wrong values.
    sources = b"".join(path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.[ch]")))
    mark = hashlib.sha256(sources).hexdigest().encode()
    if not hasattr(library, "mark_f32") or ctypes.string_at(library.mark_f32) != mark:
        return None, "the compiled kernels are not made from these sources; rebuild: pip install -e ."
    return library, ""


def level() -> str:
    """The level of the kernels in use, "base", "avx2" or "avx512"; "none" when they are not available."""
    library, _ = _load()
    return "none" if library is None else Path(library._name).stem.removeprefix("_kernels_")


@torch.compiler.assume_constant_result
def available() -> bool:
    """Whether the compiled kernels are available."""
    return _load()[0] is not None


@torch.compiler.assume_constant_result
def why_not() -> str:
    """Why the compiled kernels are not available and what to do; empty when they are."""
    return _load()[1]


def _check(failed: int, function: Callable, arguments: tuple) -> None:
    if failed:
        raise ResourceFault("a kernel could not get its working memory", fix="use a smaller batch or fewer threads")


@functools.cache
def function(name: str, dtype: torch.dtype) -> Callable[[Any], None]:
    """The compiled function `name` for a dtype.  It takes a pointer to its struct (`ctypes.byref`, or an address it holds).

    A C function returns 0, or 1 when it could not allocate scratch memory, which is raised here.
    """
    library, why = _load()
    if library is None:
        raise ResourceFault(f"kernel '{name}' cannot run", fix=why)
    symbol = f"{name}_{STORED[dtype]}"
    if dtype is torch.bfloat16 and torch.cpu.get_capabilities().get("avx512_bf16") and hasattr(library, f"{symbol}_pairs"):
        symbol = f"{symbol}_pairs"  # for processors that multiply pairs of bfloat16
    if not hasattr(library, symbol):
        raise ResourceFault(
            f"the compiled kernels have no '{symbol}': they are older than the source", fix="install Sonde again: pip install -e ."
        )
    compiled = getattr(library, symbol)
    compiled.argtypes, compiled.restype = [ctypes.c_void_p], ctypes.c_int
    compiled.errcheck = _check
    return compiled
