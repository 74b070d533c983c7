"""How far apart two right answers may lie.  A bound follows from the case and the precision, not from what came out once.

    rounding   of two answers to one problem of linear algebra, by its condition
    distance   of a point from the minimum of a convex function, by how much higher it lies there
    near       asserts it, measured by the largest number: rounding is no smaller where an entry happens to be small

A bound is only as good as what it catches: break the code by a little more than it allows and see the test go red.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch


def rounding(condition: float = 1.0, operations: int = 1, dtype: Any = np.float64) -> float:
    """Bound the relative difference of two answers that are both right.

    A stable method gives the exact answer to a problem whose numbers are off by `operations` roundings (Higham, Accuracy and
    Stability of Numerical Algorithms, 2002, 1.5 and 3.1); the condition number says how far that moves the answer.

    Args:
        condition: of the problem as it is solved: that of the matrix, its square where a method forms X^T X.
        operations: roundings that one number collects: for a sum or a product of matrices, the length of the sum.
        dtype: of NumPy or torch, in which the coarser of the two answers was computed.
    """
    eps = torch.finfo(dtype).eps if isinstance(dtype, torch.dtype) else float(np.finfo(dtype).eps)
    return operations * float(condition) * eps  # half of eps for each answer


def distance(excess: float, curvature: Any) -> Any:
    """Bound how far a point lies from the minimum of a convex function, whose value there is `excess` above it.

    Args:
        excess: of the value.
        curvature: on the way, at least; along a direction a, that of the best place on each plane across it, 1 / (a^T H^-1 a).
    """
    return np.sqrt(2 * excess / curvature)


def near(actual: Any, expected: Any, bound: float, scale: float | None = None) -> None:
    """Assert that no entry is off by more than `bound` times the largest entry expected, or times `scale`."""
    expected = np.asarray(expected)
    scale = float(np.abs(expected).max(initial=0.0)) if scale is None else float(scale)
    np.testing.assert_allclose(actual, expected, rtol=0, atol=bound * scale)
