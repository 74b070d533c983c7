"""The rows of the matrix: sets of environment variables, each of which selects the arithmetic of another processor."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

OUTSIDE = {
    *("MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "SONDE_DATA"),
    *("DNNL_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS", "NPY_ENABLE_CPU_FEATURES", "ONEDNN_DEFAULT_FPMATH_MODE"),
}
"""variables that no row sets and that would change one"""


@dataclass(frozen=True)
class Row:
    """One arithmetic: what to set, and what the processor must have for it."""

    name: str
    environment: dict[str, str]
    level: str = "base"
    x86: bool = True

    @property
    def own_kernels(self) -> str:
        """The level of our kernels it names, if it does."""
        return self.environment.get("SONDE_KERNELS", "")


def _rows(variable: str, **levels: str) -> list[Row]:
    """A row for each value of one variable, with the level of processor it stands for."""
    short = variable.split("_")[0].lower()
    return [Row(f"{short}-{value.lower()}", {variable: value}, level) for value, level in levels.items()]


NUMPY = {"NPY_DISABLE_CPU_FEATURES": "X86_V3 X86_V4 AVX512_ICL AVX512_SPR"}
"""NumPy's own loops (exp, sin, sums) without what they choose by the processor"""
LIBM = {"GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX2,-FMA,-FMA4"}
"""the C library's functions without fused multiply-add, as on a processor that has none"""
FOREIGN = {
    "ATEN_CPU_CAPABILITY": "default",
    "OPENBLAS_CORETYPE": "Nehalem",
    "ONEDNN_MAX_CPU_ISA": "SSE41",
    "MKL_CBWR": "COMPATIBLE",
    "SONDE_KERNELS": "base",
    **NUMPY,
    **LIBM,
}
"""every library at the lowest level that any x86-64 processor runs"""

ROWS = [
    Row("own", {}, x86=False),
    *_rows("ATEN_CPU_CAPABILITY", default="base", avx2="avx2", avx512="avx512"),
    *_rows("OPENBLAS_CORETYPE", Haswell="avx2", Zen="avx2", SkylakeX="avx512"),
    *_rows("ONEDNN_MAX_CPU_ISA", SSE41="base", AVX2="avx2", AVX512_CORE="avx512"),
    *_rows("MKL_CBWR", COMPATIBLE="base", AVX2="avx2"),
    *(Row(f"kernels-{level}", {"SONDE_KERNELS": level}, level, x86=False) for level in ("base", "avx2", "avx512")),
    Row("kernels-0", {"SONDE_KERNELS": "0"}, x86=False),
    Row("numpy-base", NUMPY),
    Row("libm-base", LIBM),
    Row("threads-2", {"OMP_NUM_THREADS": "2", "SONDE_TEST_THREADS": "2", "OMP_WAIT_POLICY": "passive"}, x86=False),
    Row("foreign", FOREIGN),
]


def clean(environment: dict[str, str]) -> dict[str, str]:
    """This process's environment without anything that decides the arithmetic, and with what the row sets."""
    variables = {name for row in ROWS for name in row.environment} | OUTSIDE
    kept = {name: value for name, value in os.environ.items() if name not in variables}
    return {**kept, "OMP_NUM_THREADS": "1", **environment}


@contextmanager
def inside(environment: dict[str, str]) -> Iterator[None]:
    """This process's own environment replaced for a while, for children that inherit it."""
    before = dict(os.environ)
    os.environ.clear()
    os.environ.update(environment)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
