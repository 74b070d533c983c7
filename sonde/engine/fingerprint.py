"""The fingerprint of a run: everything that decides the last bits of its arithmetic, and how it differs at a resume.

Every entry is a name and a value a person can read.  An environment variable counts by what it does, so that one which
changes nothing here is not a difference.  `tests/engine/test_fingerprint.py` trains under every arithmetic that a machine
can pretend to have: wherever the weights differ, the fingerprint must.

    sonde, torch, numpy   versions
    machine, processor    architecture and model: oneDNN and MKL choose by vendor, model and caches, not by flags alone
    cpu                   level of torch's own loops                          ATEN_CPU_CAPABILITY
    kernels               level of our own kernels                            SONDE_KERNELS
    kernels_build         their sources and compiler
    onednn                instructions for convolutions and bfloat16          ONEDNN_MAX_CPU_ISA
    mkl                   torch's matrix products and linear algebra          MKL_CBWR, MKL_ENABLE_INSTRUCTIONS
    libc                  exp, cos, pow of Python and of our kernels          GLIBC_TUNABLES
    blas, numpy_simd      NumPy's products, and its exp and log               OPENBLAS_CORETYPE, NPY_DISABLE_CPU_FEATURES
    matmul_precision      torch.set_float32_matmul_precision: products of float32 in lower precision
    mkldnn                torch.backends.mkldnn.enabled: whether oneDNN is used at all

The engine adds what the run itself chose: threads, shards, precision, device, and how it is spread over processes.
"""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .. import __version__, kernels
from ..core.errors import clean

ONEDNN: dict[str, tuple[str, ...]] = {
    "sse41": ("sse4_1",),
    "avx": ("avx",),
    "avx2": ("avx2", "fma3"),
    "avx2_vnni": ("avx_vnni",),
    "avx2_vnni_2": ("avx_vnni_int8", "avx_ne_convert"),
    "avx512_core": ("avx512_f", "avx512_bw", "avx512_vl", "avx512_dq"),
    "avx512_core_vnni": ("avx512_vnni",),
    "avx512_core_bf16": ("avx512_bf16",),
    "avx512_core_fp16": ("avx512_fp16",),
    "avx512_core_amx": ("amx_tile", "amx_int8", "amx_bf16"),
    "avx512_core_amx_fp16": ("amx_fp16",),
}
"""oneDNN's names of instruction sets, lowest first, and the processor features that each adds to those before it"""


def fingerprint(**more: Any) -> dict[str, Any]:
    """What must be equal for two runs to agree bit for bit."""
    switches = {"matmul_precision": _matmul_precision(), "mkldnn": str(torch.backends.mkldnn.enabled)}
    return {**_this_process(), **switches, **more}


def _matmul_precision() -> str:
    """The precision of float32 products: the setting for all, or where that is mixed with newer ones, those of each library."""
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        mkldnn: Any = torch.backends.mkldnn
        return ", ".join(
            f"{name} {part.fp32_precision}" for name, part in (("all", mkldnn), ("matmul", mkldnn.matmul), ("conv", mkldnn.conv))
        )


def blas_threads(threads: int) -> Any:
    """Limit NumPy's BLAS, which otherwise uses all cores, to the threads of the run."""
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    return threadpool_limits(threads, user_api="blas")


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Entries with another value, as {name, before, now}.  Entries of one side only are ignored: older versions recorded fewer."""
    return [{"name": name, "before": before[name], "now": value} for name, value in now.items() if name in before and before[name] != value]


def list_changes(changes: Iterable[Mapping[str, Any]]) -> str:
    """Differences in one line."""
    return "; ".join(f"{change['name']} {clean(change['before'])} -> {clean(change['now'])}" for change in changes)


@functools.cache
def _this_process() -> dict[str, str]:
    """What this process computes with.  Libraries read their environment once, so it cannot change later."""
    return {
        "sonde": __version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "machine": platform.machine(),
        "processor": _processor(),
        "cpu": torch.backends.cpu.get_cpu_capability(),
        **_kernels(),
        "onednn": _onednn(torch.cpu.get_capabilities(), os.environ),
        "mkl": _mkl(torch.__config__.show(), os.environ),
        "libc": _libc(os.environ),
        "blas": _blas(),
        "numpy_simd": _simd(os.environ),
    }


def _processor() -> str:
    """The model.  Virtual machines often hide the name, so where the system gives them, family and model number follow."""
    name = str(torch.cpu.get_capabilities().get("cpu_name") or platform.processor() or platform.machine()).strip()
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").partition("\n\n")[0]
    except OSError:
        return name
    numbers = dict(re.findall(r"^(cpu family|model)\s*: (\d+)$", lines, re.MULTILINE))
    return f"{name} (family {numbers['cpu family']}, model {numbers['model']})" if len(numbers) == 2 else name


def _kernels() -> dict[str, str]:
    """Level of our kernels, and what they were built from and with: all of it decides the bits."""
    level = kernels.level()
    if level == "none":
        return {"kernels": level}
    folder = Path(kernels.__file__).parent
    sources = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(folder.glob("*.[ch]")))).hexdigest()
    return {"kernels": level, "kernels_build": f"{sources[:8]} {_compiler((folder / f'_kernels_{level}.so').read_bytes())}".strip()}


def _compiler(library: bytes) -> str:
    """The compiler a library names; the start code that clang links in names gcc too.  '' where it was stripped of that."""
    for name, pattern in (("clang", rb"clang version ([\d.]+)"), ("GCC", rb"GCC: \([^)]*\) ([\d.]+)")):
        if version := re.search(pattern, library):
            return f"{name} {version[1].decode()}"
    return ""


def _onednn(flags: Mapping[str, Any], environment: Mapping[str, str]) -> str:
    """The instruction set oneDNN computes with; elsewhere than on x86 the processor alone decides."""
    names = list(ONEDNN)
    limit = (environment.get("ONEDNN_MAX_CPU_ISA") or environment.get("DNNL_MAX_CPU_ISA") or "").lower()
    allowed = names[: names.index(limit) + 1] if limit in names else names  # a word oneDNN does not know limits nothing
    return next((name for name in reversed(allowed) if all(flags.get(flag) for flag in ONEDNN[name])), "default")


def _mkl(build: str, environment: Mapping[str, str]) -> str:
    """Version of torch's MKL, and the instruction set it is limited to, if any."""
    version = re.search(r"Math Kernel Library Version (\d[\d.]*)", build)
    limits = (environment.get(name, "").upper() for name in ("MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS"))
    return " ".join(limit for limit in (version[1], *limits) if limit not in ("", "AUTO")) if version else "none"


def _libc(environment: Mapping[str, str]) -> str:
    """The library of elementary functions, and the processor features it is configured not to use."""
    name = " ".join(filter(None, platform.libc_ver())) or f"{platform.system()} {platform.release()}"
    limit = re.search(r"glibc\.cpu\.hwcaps=([^:]+)", environment.get("GLIBC_TUNABLES", ""))
    return f"{name} {limit[1]}" if limit else name


def _blas() -> str:
    """The processor that NumPy's BLAS is written for, or its name where it has only one form."""
    from threadpoolctl import threadpool_info

    libraries = [library for library in threadpool_info() if library["user_api"] == "blas"]
    cores = sorted({str(library.get("architecture") or library["internal_api"]) for library in libraries})
    build: Any = np.show_config(mode="dicts")
    return " ".join(cores) or str(build.get("Build Dependencies", {}).get("blas", {}).get("name", "unknown"))


def _simd(environment: Mapping[str, str]) -> str:
    """The highest instruction set of NumPy's own loops, and the features they are configured not to use."""
    build: Any = np.show_config(mode="dicts")
    extensions = build.get("SIMD Extensions", {})
    highest = str(["baseline", *extensions.get("baseline", ()), *extensions.get("found", ())][-1])
    limits = sorted(re.split(r"[\s,]+", environment.get("NPY_DISABLE_CPU_FEATURES", "").strip()))
    return " ".join([highest, *(f"-{name}" for name in limits if name)])
