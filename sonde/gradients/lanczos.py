"""Lanczos: the spectrum of a symmetric operator that is known only by its products with vectors (Lanczos 1950).

    b_j q_{j+1} = A q_j - a_j q_j - b_{j-1} q_{j-1},    q_1 = start / norm(start)

k products turn A, of any size n, into a tridiagonal T (k, k) with the a on its diagonal and the b beside it.  The
eigenvalues of T ("Ritz values") come close to the ends of the spectrum of A first: k is tens where n is millions.  With
T = S diag(theta) S^T, each theta_i has an eigenvalue of A within |b_k S_ki|, which is measured and returned, and
S_1i^2 is the squared overlap of the start vector with the i-th Ritz vector: for a random start, the density of the spectrum.

    n size of the operator, k steps
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from ..core.errors import BadInput, NumericalStop
from ..core.options import Count, Range, checked

Product = Callable[[Tensor], Tensor]
"""vector (n) -> vector (n), linear"""
CHECK_EVERY = 5


class Spectrum(NamedTuple):
    """The spectrum estimated from k products; float64, values ascending."""

    values: Tensor
    """(k) Ritz values"""
    errors: Tensor
    """(k) how far the nearest eigenvalue can be from each of them"""
    weights: Tensor
    """(k) squared overlap of the start vector with each Ritz vector; they sum to 1"""
    vectors: Tensor | None
    """(k, n) Ritz vectors as rows, where the basis was kept"""
    products: int

    @property
    def low(self) -> float:
        return float(self.values[0])

    @property
    def high(self) -> float:
        return float(self.values[-1])


@checked
@torch.no_grad()
def lanczos(product: Product, start: Tensor, steps: Count, tolerance: Annotated[float, Range(0)] = 0.0, keep: bool = True) -> Spectrum:
    """Ritz values of a symmetric operator after at most `steps` products.

    It stops sooner once both ends are known to `tolerance` times the largest value, or once the vectors seen span all
    that the operator makes of `start`: then every value is exact.

    Args:
        keep: store all vectors (k times n numbers) and keep them orthogonal.  Without it memory is three vectors; the ends of
            the spectrum are found as well, but inner values may appear several times and no vectors are returned
    """
    n = start.numel()
    if start.dim() != 1:
        raise BadInput(f"the start must be a flat vector, not {tuple(start.shape)}", where="lanczos")
    length = float(torch.linalg.vector_norm(start))
    if not 0 < length < float("inf"):
        raise BadInput(f"the start vector has length {length}", where="lanczos", fix="give a finite vector that is not zero")
    steps = min(steps, n)
    rounding = float(torch.finfo(start.dtype).eps)
    current, previous = start / length, torch.zeros_like(start)
    basis = start.new_empty(steps if keep else 0, n)
    diagonal: list[float] = []
    beside: list[float] = []
    largest = 0.0
    for step in range(steps):
        if keep:
            basis[step] = current
        image = product(current)
        if image.shape != start.shape:
            raise BadInput(f"the operator turns {n} numbers into shape {tuple(image.shape)}", where="lanczos", fix="give a square operator")
        size = float(torch.linalg.vector_norm(image))
        if size != size or size == float("inf"):
            raise NumericalStop(f"product {step + 1} of the operator is not finite", where="lanczos", fix="lower the scale of the operator")
        largest = max(largest, size)
        diagonal.append(float(current @ image))
        rest = image - diagonal[-1] * current
        if beside:
            rest -= beside[-1] * previous
        if keep:
            known = basis[: step + 1]
            overlap = known @ rest
            if float(overlap.abs().max()) > rounding**0.25 * largest:
                raise BadInput("the operator is not symmetric", where="lanczos", fix="give A with A = A^T, such as a Hessian or B^T B")
            rest -= overlap @ known
            rest -= (known @ rest) @ known  # twice is enough (Kahan, Parlett)
        beside.append(float(torch.linalg.vector_norm(rest)))
        closed = beside[-1] <= 10 * rounding * largest * (step + 1) ** 0.5
        if closed or ((step + 1) % CHECK_EVERY == 0 and _has_converged(diagonal, beside, tolerance)):
            break
        previous, current = current, rest / beside[-1]
    values, columns = _solve(diagonal, beside)
    k = len(diagonal)
    vectors = columns.T.to(start.dtype) @ basis[:k] if keep else None
    return Spectrum(values, columns[-1].abs() * beside[-1], columns[0].square(), vectors, k)


def spectral_norm(forward: Product, backward: Product, start: Tensor, steps: int = 100, tolerance: float = 1e-6) -> float:
    """Largest singular value of a linear map from its product and that of its transpose: sqrt of the end of A^T A."""
    return max(lanczos(lambda v: backward(forward(v)), start, steps, tolerance).high, 0.0) ** 0.5


def _solve(diagonal: list[float], beside: list[float]) -> tuple[Tensor, Tensor]:
    """Eigenvalues and eigenvectors (as columns) of the tridiagonal matrix."""
    t = torch.diag(torch.tensor(diagonal, dtype=torch.float64))
    inner = torch.tensor(beside[: len(diagonal) - 1], dtype=torch.float64)
    values, columns = torch.linalg.eigh(t + torch.diag(inner, 1) + torch.diag(inner, -1))
    return values, columns


def _has_converged(diagonal: list[float], beside: list[float], tolerance: float) -> bool:
    if not tolerance:
        return False
    values, columns = _solve(diagonal, beside)
    errors = columns[-1, [0, -1]].abs() * beside[-1]
    return float(errors.max()) <= tolerance * float(values.abs().max())
