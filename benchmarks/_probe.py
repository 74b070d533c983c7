"""Digests of what this process computes, part by part: two processes that print the same have the same arithmetic.

Run as a child of matrix.py in the environment of a row; prints one line of JSON.  `digests` holds for each part of the arithmetic
what came out, `facts` what the libraries themselves say they use.  A part is a library that takes its own decision by the
processor: torch's vectorized loops, MKL, oneDNN, the OpenBLAS of NumPy and that of SciPy, the C library, our kernels.
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import scipy.linalg
import threadpoolctl
import torch
from torch import Tensor
from torch.nn import functional as F

from sonde import kernels
from sonde.kernels import activate, attend, convolve, delta, gates, hadamard, normalize, separable

SIZES = (3, 5, 7), (17, 33, 9), (64, 64, 64), (129, 257, 65), (1, 300, 40), (300, 1, 40), (250, 513, 300)
_draw = np.random.default_rng(0)


def numbers(*shape: int, dtype: type = np.float32) -> np.ndarray:
    """Between -4 and 4, the same everywhere: uniform numbers take no function of a library, and have digits enough to round."""
    return (_draw.random(shape) * 8 - 4).astype(dtype)


def tensor(*shape: int, dtype: torch.dtype = torch.float32, grad: bool = False) -> Tensor:
    return torch.from_numpy(numbers(*shape, dtype=np.float64)).to(dtype).requires_grad_(grad)


def double(*shape: int) -> Tensor:
    return tensor(*shape, dtype=torch.float64)


def with_gradients(result: Tensor, *inputs: Tensor) -> list[Tensor]:
    return [result, *torch.autograd.grad(result.square().sum(), inputs)]


def torch_matmul() -> Iterator[Tensor]:
    for make in (tensor, double):
        yield from (make(a, b) @ make(b, c) for a, b, c in SIZES)
        yield from (make(6, 19, 33) @ make(6, 33, 21), F.linear(make(37, 65), make(23, 65), make(23)), make(40, 300) @ make(300))
        yield torch.einsum("abc,cd->abd", make(5, 7, 33), make(33, 20))


def torch_linalg() -> Iterator[Tensor]:
    a = double(60, 40)
    square = a.T @ a
    yield from (*torch.linalg.svd(a), *torch.linalg.eigh(square), *torch.linalg.qr(tensor(60, 40)))
    yield from (torch.linalg.cholesky(square), torch.linalg.solve(square, double(40, 3)), torch.linalg.inv(square))


def torch_fft() -> Iterator[Tensor]:
    yield from (torch.view_as_real(torch.fft.fft(tensor(5, 120))), torch.view_as_real(torch.fft.rfft2(tensor(3, 33, 60))))


def torch_convolution() -> Iterator[Tensor]:
    for images, channels, out, side, window in ((8, 16, 24, 15, 3), (4, 7, 5, 9, 5), (2, 1, 6, 28, 5)):
        x, weight = tensor(images, channels, side, side, grad=True), tensor(out, channels, window, window, grad=True)
        yield from with_gradients(F.conv2d(x, weight, padding=1), x, weight)
    yield from (F.conv1d(tensor(3, 7, 50), tensor(5, 7, 4)), F.conv_transpose2d(tensor(3, 8, 7, 7), tensor(8, 4, 3, 3)))
    yield F.conv2d(double(4, 6, 15, 13), double(8, 6, 3, 3))


def torch_functions() -> Iterator[Tensor]:
    for x in (tensor(5003), double(5003)):
        yield from (f(x) for f in (torch.exp, torch.tanh, torch.erf, torch.sin, torch.sigmoid, torch.expm1, F.gelu, F.silu, F.softplus))
        yield from (f(x.abs() + 1) for f in (torch.log, torch.sqrt, torch.rsqrt, torch.log1p, torch.lgamma))
        yield x.abs().pow(1.3)


def torch_sums() -> Iterator[Tensor]:
    for make in (tensor, double):
        x = make(70, 333)
        yield from (x.sum(), x.sum(0), x.sum(1), x.mean(), x.var(1), x.norm(), x.cumsum(1), x.prod(1), x.logsumexp(1))
        yield from (x.softmax(1), x.log_softmax(0), F.layer_norm(x, (333,)), F.cross_entropy(x, torch.arange(70)))
        yield from with_gradients(F.batch_norm(x.requires_grad_(), None, None, training=True), x)


def numpy_matmul() -> Iterator[np.ndarray]:
    for dtype in (np.float32, np.float64):
        yield from (numbers(a, b, dtype=dtype) @ numbers(b, c, dtype=dtype) for a, b, c in SIZES)
        yield from (numbers(40, 300, dtype=dtype) @ numbers(300, dtype=dtype), np.dot(numbers(999, dtype=dtype), numbers(999, dtype=dtype)))


def numpy_linalg() -> Iterator[np.ndarray]:
    a = numbers(60, 40, dtype=np.float64)
    yield from (*np.linalg.svd(a), *np.linalg.eigh(a.T @ a), np.linalg.solve(a.T @ a, numbers(40, 2, dtype=np.float64)))
    yield from (*np.linalg.qr(a), np.linalg.inv(a.T @ a), np.linalg.lstsq(a, numbers(60, dtype=np.float64))[0])


def numpy_functions() -> Iterator[np.ndarray]:
    for dtype in (np.float32, np.float64):
        x = numbers(5003, dtype=dtype)
        yield from (f(x) for f in (np.exp, np.sin, np.tanh, np.expm1, np.sum, np.var))
        yield from (np.log(np.abs(x) + 1), np.sqrt(np.abs(x)), np.abs(x) ** dtype(1.3), numbers(70, 333, dtype=dtype).sum(1))


def scipy_linalg() -> Iterator[np.ndarray]:
    a = numbers(60, 40, dtype=np.float64)
    yield from (*scipy.linalg.svd(a), *scipy.linalg.eigh(a.T @ a), scipy.linalg.solve(a.T @ a, numbers(40, 2, dtype=np.float64)))
    yield from (scipy.linalg.blas.dgemm(1.0, a, a.T), scipy.linalg.blas.sgemm(1.0, a, a.T), scipy.linalg.blas.dgemv(1.0, a.T, a[:, 0]))


def c_library() -> Iterator[np.ndarray]:
    values = [step / 7.1 - 20.013 for step in range(400)]
    for f in (math.exp, math.sin, math.tanh, math.cosh, math.erf, lambda x: math.log(abs(x)), lambda x: math.pow(abs(x), 0.37)):
        yield np.array([f(value) for value in values])


def own_kernels() -> Iterator[Tensor]:
    for make in (tensor, double):
        x, weight = make(8, 32, 16, 16).contiguous(memory_format=torch.channels_last).requires_grad_(), make(40, 32, 3, 3).requires_grad_()
        yield from with_gradients(convolve.convolve(x, weight), x, weight)
        scale, shift = make(32).requires_grad_(), make(32).requires_grad_()
        running = normalize.Running(make(32), make(32).abs(), 0.1, 1e-5)
        yield from with_gradients(normalize.normalize(x, scale, shift, running, relu=True), x, scale, shift)
        x = make(activate.LEAST + 37).requires_grad_()
        yield from (y for kind in ("silu", "gelu_tanh") for y in with_gradients(activate.activate(x, kind), x))
        q, k, v = (make(2, 3, 57, 16).requires_grad_() for _ in range(3))
        yield from with_gradients(attend.attend(q, k, v, 0.25, True), q, k, v)
        if not kernels.available():
            continue
        key, gate = F.normalize(k, dim=-1), make(2, 3, 57, 16).abs().neg().div(8)
        yield from with_gradients(separable.separable(q, k, v, log_key=gate)[0], q, k, v)
        yield from with_gradients(separable.separable(q, k, v, log_head=gate[..., 0])[0], q, k, v)
        yield from with_gradients(delta.delta(q, key, v, gate[..., 1].exp(), gate[..., 0])[0], q, key, v)
        yield from with_gradients(hadamard.hadamard(q, k, v, gate, make(3, 16, 16).abs())[0], q, k, v)
        for gate_count, run in ((1, gates.rnn), (4, lambda p, w, h: gates.lstm(p, w, h, h)), (3, lambda p, w, h: gates.gru(p, w, None, h))):
            p, weight = make(3, 11, gate_count * 20).requires_grad_(), make(gate_count * 20, 20).div(8).requires_grad_()
            yield from with_gradients(run(p, weight, make(3, 20))[0], p, weight)


def torch_halves() -> Iterator[Tensor]:
    """Products and convolutions in half precision, for which processors have instructions of their own."""
    for dtype in (torch.bfloat16, torch.float16):
        yield from ((tensor(a, b, dtype=dtype) @ tensor(b, c, dtype=dtype)).float() for a, b, c in SIZES)
        yield F.conv2d(tensor(4, 16, 15, 15, dtype=dtype), tensor(24, 16, 3, 3, dtype=dtype)).float()


PARTS: dict[str, Callable[[], Iterator]] = {
    "torch matmul": torch_matmul,
    "torch halves": torch_halves,
    "torch linalg": torch_linalg,
    "torch FFT": torch_fft,
    "torch convolution": torch_convolution,
    "torch functions": torch_functions,
    "torch sums": torch_sums,
    "NumPy matmul": numpy_matmul,
    "NumPy linalg": numpy_linalg,
    "NumPy functions": numpy_functions,
    "SciPy linalg": scipy_linalg,
    "C library": c_library,
    "kernels": own_kernels,
}


def digest(values: Iterator) -> str:
    mark = hashlib.sha256()
    for value in values:
        mark.update(np.ascontiguousarray(value.detach().numpy() if isinstance(value, Tensor) else value).tobytes())
    return mark.hexdigest()[:16]


def facts() -> dict[str, str]:
    """What the libraries say of themselves."""
    known = {"torch": torch.backends.cpu.get_cpu_capability(), "kernels": kernels.level(), "threads": str(torch.get_num_threads())}
    built = [level for level in kernels.runnable() if Path(kernels.__file__).with_name(f"_kernels_{level}.so").exists()]
    known |= {"levels": " ".join(kernels.runnable()), "built": " ".join(built)}
    for library in threadpoolctl.threadpool_info():
        if library["internal_api"] == "openblas":
            known["OpenBLAS of " + ("SciPy" if "scipy.libs" in library["filepath"] else "NumPy")] = library["architecture"]
    return known


if __name__ == "__main__":
    print(json.dumps({"digests": {name: digest(part()) for name, part in PARTS.items()}, "facts": facts()}))
