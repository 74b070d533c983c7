"""Linear models with a canonical link, fitted by maximum likelihood: the convex problem under logistic and softmax regression.

    f(W, b) = 1/n sum_i s_i [A(z_i) - t_i . z_i] + alpha/(2n) norm(W)^2,     z_i = W x_i + b,   n = sum_i s_i

    two classes      z one number,  A(z) = log(1 + e^z),      A' = sigmoid(z),  A'' = p (1 - p)
    K classes        z K numbers,   A(z) = log sum_k e^(z_k), A' = softmax(z),  A'' = diag(p) - p p^T

t_i is 1 at the row's class.  The data meet their labels only in sum_i s_i t_i x_i^T, which is taken once; every later
pass is z, A, A' and one product back, on pieces of rows that stay in the cache.

The problem is solved in whitened coordinates, in which the curvature is about the identity:  W = V T^T, b = c - W m.
There a gradient of size g means f lies about g^2/2 above its minimum, whatever the units of the features, and both
methods need few steps.  X itself is never copied.

N rows, D features, M outputs (1 or K)
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from scipy.linalg import cho_factor, cho_solve, lapack, orth
from torch import Tensor

from ._base import sized
from ._moments import EPS, ROWS, Table

SAMPLE = 16_384
"""rows that are enough to know the shape of the cloud; it only sets the coordinates"""
WIDE = 1024
"""from this many features on, coordinates are scaled but not rotated"""
LARGE = 2_000_000
"""from this many numbers on, the first steps of L-BFGS read them in float32"""
ROUGH = 3e-4
"""gradient down to which float32 can be trusted: rounding of the mean loss lies far below its square"""
FAR = 100.0
"""rows further out than so many times the usual deviation count less when coordinates are chosen"""
LEAN = 1e-8
"""least curvature of a coordinate beside the others that is stretched to 1; what is leaner is stretched no further"""
NEWTON = 1e9
"""products of numbers that a step of Newton may cost; few such steps do what many cheap ones do not"""


@final
@dataclass(frozen=True)
class Fit:
    """Weights (M, D), biases (M,), and how they were found."""

    W: np.ndarray
    b: np.ndarray
    solver: str
    steps: int
    gradient: float
    """largest entry of the gradient in whitened coordinates"""


@final
class Problem:
    """f and its derivatives at theta = (V, c), flattened (M, D + 1)."""

    def __init__(self, X: np.ndarray, codes: np.ndarray, outputs: int, s: np.ndarray | None, alpha: float, bias: bool) -> None:
        sized("X", X)
        self.X = torch.from_numpy(X if X.flags.writeable else X.copy())
        self.s = torch.ones(len(X), dtype=torch.float64) if s is None else torch.tensor(s)
        self.n, self.even = float(self.s.sum()), s is None
        self.outputs, self.alpha, self.bias = outputs, alpha / self.n, bias
        self.m, self.T = self._coordinates()
        t = torch.zeros(max(outputs, 2), len(X), dtype=torch.float64)
        t.scatter_(0, torch.from_numpy(codes.astype(np.int64))[None], self.s[None] / self.n)
        self.seen, self.count = t[-outputs:] @ self.X, t[-outputs:].sum(1)

    def _coordinates(self) -> tuple[Tensor, Tensor]:
        """Middle of the cloud and T with T^T C T = I, where C is the curvature if every class were as likely as any other."""
        rows = _some(len(self.X), SAMPLE)
        X, s = self.X.numpy()[rows], self.s.numpy()[rows]
        table = Table(X, None, _near(X, self.bias) * (s if s.any() else 1.0), centre=self.bias)
        curvature = 0.25 if self.outputs == 1 else 1 / self.outputs
        D, mean = self.X.shape[1], torch.from_numpy(table.mean)
        wide = D >= WIDE
        C = curvature * (np.square(table.design).sum(0) if wide else table.scatter.diagonal()) / table.n + self.alpha
        # A column that never moves gets no coordinate, and so no weight; rows that were not looked at may move it.
        still = (C == 0) & (len(rows) == len(self.X))
        scale = np.sqrt(np.where(C > 0, C, 1.0))
        if wide:
            return mean, torch.from_numpy(np.diag(~still / scale))
        unit = (curvature * table.scatter / table.n + np.diag(np.where(C > 0, self.alpha, 1.0))) / np.outer(scale, scale)
        root, failed = lapack.dpotrf(unit, lower=1)
        if not failed and lapack.dpocon(root, 1.0, uplo="L")[0] > LEAN:
            return mean, torch.from_numpy(np.linalg.inv(root).T / scale[:, None] * ~still)
        # Columns that follow from others: squares cannot tell how closely, so the rows themselves are decomposed.
        Z = np.vstack([table.design * np.sqrt(curvature / table.n), np.sqrt(self.alpha) * np.eye(D)]) / scale
        _, values, Ut = np.linalg.svd(np.linalg.qr(Z, mode="r"))
        real = values > EPS * len(Z) * values[0] if len(rows) == len(self.X) else values >= 0
        U = Ut[real].T
        T = np.zeros((D, D))
        T[:, : U.shape[1]] = U / scale[:, None] / np.maximum(values[real], np.sqrt(LEAN) * values[0])
        shown = orth(scale[:, None] * U)  # what the rows show of weights; the rest of them is left at 0
        return mean, torch.from_numpy(shown @ (shown.T @ T))

    def rough(self) -> Problem:
        """The same problem with rows in float32: half the time, and exact enough for all but the last steps."""
        other = copy(self)
        other.X = self.X.float()
        return other

    def affine(self, theta: np.ndarray) -> tuple[Tensor, Tensor]:
        """W (M, D) and b (M,) at theta."""
        V, c = torch.from_numpy(theta.reshape(self.outputs, -1)).split([self.X.shape[1], 1], dim=1)
        W = V @ self.T.T
        return W, (c[:, 0] if self.bias else torch.zeros(self.outputs, dtype=torch.float64)) - W @ self.m

    def value(self, theta: np.ndarray) -> tuple[float, np.ndarray]:
        """f and its gradient."""
        W, b = self.affine(theta)
        total, dW, db = 0.0, torch.zeros_like(W), torch.zeros_like(b)
        for X, s, z in self._pieces(W, b):
            A, p = log_partition(z)
            if not self.even:
                A, p = A * s, p * s
            total += float(A.sum())
            dW += p @ X
            db += p.sum(1)
        value = total / self.n - float((W * self.seen).sum() + b @ self.count) + self.alpha / 2 * float(W.square().sum())
        db = db / self.n - self.count
        dV = (dW / self.n - self.seen + self.alpha * W - torch.outer(db, self.m)) @ self.T
        return value, torch.cat([dV, db[:, None] * self.bias], 1).flatten().numpy()

    def hessian(self, theta: np.ndarray) -> np.ndarray:
        """(P, P).  It has no curvature along a common shift of all classes, nor along a bias that is not there."""
        W, b = self.affine(theta)
        M, D = W.shape
        H = torch.zeros(M, M, D + 1, D + 1, dtype=torch.float64)
        for X, s, z in self._pieces(W, b):
            _, p = log_partition(z)
            Z = torch.cat([(X - self.m) @ self.T, torch.full((len(X), 1), float(self.bias), dtype=torch.float64)], 1)
            for k in range(M):
                for j in range(k + 1):
                    curvature = p[k] * (float(k == j) - p[j]) * s
                    H[k, j] += Z.T @ (curvature[:, None] * Z)
        H /= self.n
        for k in range(M):
            H[k, k, :D, :D] += self.alpha * self.T.T @ self.T
            for j in range(k):
                H[j, k] = H[k, j]
        return H.permute(0, 2, 1, 3).reshape(M * (D + 1), M * (D + 1)).numpy()

    def scores(self, theta: np.ndarray) -> np.ndarray:
        """z of every row, (M, N)."""
        W, b = self.affine(theta)
        return torch.cat([z for _, _, z in self._pieces(W, b)], 1).numpy()

    def _pieces(self, W: Tensor, b: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Rows, their weights and their z (M, rows), piece by piece.  Outputs come first: sums over them then run along memory."""
        for start in range(0, len(self.X), ROWS):
            X = self.X[start : start + ROWS]
            yield X, self.s[start : start + ROWS], torch.addmm(b[:, None].to(X), W.to(X), X.T)


def _some(rows: int, wanted: int) -> np.ndarray:
    """Numbers of so many rows, drawn at random but the same each time, in order; all of them where there are fewer."""
    if rows <= wanted:
        return np.arange(rows)
    return np.sort(np.random.default_rng(0).choice(rows, wanted, replace=False))


def _near(X: np.ndarray, centre: bool) -> np.ndarray:
    """A weight for each row: 1, and less for one so far out that it would hide how all others lie."""
    some = slice(None, None, max(1, len(X) // 512))  # enough for a median
    away = np.abs(X - np.median(X[some], 0)) if centre else np.abs(X)
    usual = np.median(away[some], 0)
    usual = np.where(usual > 0, usual, np.maximum(away.max(0), 1.0))
    return np.square(np.minimum(1.0, FAR / np.maximum((away / usual).max(1), FAR)))


def log_partition(z: Tensor) -> tuple[Tensor, Tensor]:
    """A (rows,) and A' (M, rows) at z (M, rows); z is used up."""
    if len(z) == 1:
        return torch.nn.functional.softplus(z[0]), torch.sigmoid(z)
    top = z.amax(0)
    p = z.sub_(top).exp_()
    total = p.sum(0)
    return total.log() + top, p.div_(total)


def minimise(problem: Problem, solver: str, tol: float, steps: int) -> tuple[np.ndarray, Fit]:
    """theta and the fit at the minimum, or after so many steps.  'auto' takes Newton where the Hessian is small."""
    size = problem.outputs * (problem.X.shape[1] + 1)
    if solver == "auto":
        cost = len(problem.X) * size**2 / 2 + size**3 / 3
        solver = "newton" if cost <= NEWTON else "lbfgs"
    method = _newton if solver == "newton" else _lbfgs
    theta, taken, gradient = method(problem, np.zeros(size), tol, steps)
    if problem.outputs > 1:  # a common shift of all classes changes no probability; the sum of 0 is the one shift a penalty allows
        theta = (theta.reshape(problem.outputs, -1) - theta.reshape(problem.outputs, -1).mean(0)).ravel()
    W, b = problem.affine(theta)
    return theta, Fit(W.numpy(), b.numpy(), solver, max(taken, 1), gradient)


def _newton(problem: Problem, theta: np.ndarray, tol: float, steps: int) -> tuple[np.ndarray, int, float]:
    """Newton's method, halving a step that does not go down far enough; the last step is taken from inside the tolerance."""
    value, gradient = problem.value(theta)
    for step in range(1, steps + 1):
        H = problem.hessian(theta)
        unit = np.sqrt(np.where(H.diagonal() > 0, H.diagonal(), 1.0))
        H /= np.outer(unit, unit)
        H.flat[:: len(H) + 1] += 1e-10  # so that no step is taken along what the classes cannot feel
        move = -cho_solve(cho_factor(H), gradient / unit) / unit
        slope, size = float(gradient @ move), 1.0
        # -slope / 2 is how far f lies above its minimum, in any coordinates; a small gradient alone may mean a long flat way.
        close = np.abs(gradient).max() <= tol and -slope <= len(theta) * tol
        before = value
        while size > 1e-10:
            there, bent = problem.value(theta + size * move)
            if there <= value + 1e-4 * size * slope:
                theta, value, gradient = theta + size * move, there, bent
                break
            size /= 2
        if close or value == before:  # the second: f is flat to rounding, no step can be seen to go down
            return theta, step, float(np.abs(gradient).max())
    return theta, steps, float(np.abs(gradient).max())


def _lbfgs(problem: Problem, theta: np.ndarray, tol: float, steps: int) -> tuple[np.ndarray, int, float]:
    """SciPy's L-BFGS until the gradient is small or f is flat to rounding."""
    from scipy.optimize import minimize

    if problem.X.dtype == torch.float64 and problem.X.numel() >= LARGE and steps > 1:
        theta, taken, _ = _lbfgs(problem.rough(), theta, max(tol, ROUGH), steps - 1)
    else:
        taken = 0
    options = {"maxiter": steps - taken, "maxfun": 20 * steps, "maxls": 50, "gtol": tol, "ftol": 8 * float(np.finfo(np.float64).eps)}
    found = minimize(problem.value, theta, jac=True, method="L-BFGS-B", options=options)
    return found.x, taken + int(found.nit), float(np.abs(found.jac).max())
