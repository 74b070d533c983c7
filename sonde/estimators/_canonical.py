"""Linear models with a canonical link, fitted by maximum likelihood: the convex problem under logistic and softmax regression.

    f(W, b) = 1/n sum_i s_i [A(z_i) - t_i . z_i] + alpha/(2n) norm(W)^2,     z_i = W x_i + b,   n = sum_i s_i

    two classes      z one number,  A(z) = log(1 + e^z),      A' = sigmoid(z),  A'' = p (1 - p)
    K classes        z K numbers,   A(z) = log sum_k e^(z_k), A' = softmax(z),  A'' = diag(p) - p p^T

t_i is 1 at the row's class.  The data meet their labels only in sum_i s_i t_i x_i^T, which is taken once; every later
pass is z, A, A' and one product back, on pieces of rows that stay in the cache.

The problem is solved in whitened coordinates, in which the curvature is about the identity:  W = V T^T, b = c - W m.
There a gradient of size g means f lies about g^2/2 above its minimum, whatever the units of the features, and both
methods need few steps.  X itself is never copied.

Rows far from all others are the exception to all of this.  Their A and t.z are huge and nearly equal, so the difference of
the two sums would drown every other row in rounding: such rows keep their label, and their loss is that of a margin,
log sum_k e^(z_k - z_t).  They do not take part in the whitening, so the curvature along them is that of no other direction
and changes by orders of magnitude on the way; where L-BFGS gets stuck, Newton's method, which does not mind, finishes.

N rows, D features, M outputs (1 or K)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from scipy.linalg import cho_solve, lapack, orth, qr
from torch import Tensor

from ._base import check_magnitudes
from ._moments import EPS, ROWS, MomentTable

SAMPLE = 16_384
"""rows that are enough to estimate the covariance; it only sets the coordinates"""
WIDE = 1024
"""from this many features on, coordinates are scaled but not rotated"""
LARGE = 2_000_000
"""from this many numbers on, the first steps of L-BFGS read them in float32"""
ROUGH = 3e-4
"""gradient down to which float32 can be trusted: rounding of the mean loss lies far below its square"""
FAR = 100.0
"""rows further out than this many typical deviations have less weight in the choice of coordinates"""
LEAN = 1e-8
"""smallest relative curvature of a coordinate that is scaled to 1; flatter coordinates are scaled no further"""
NEWTON = 1e9
"""products of numbers that a step of Newton may cost; few such steps do what many cheap ones do not"""
FINISH = 1e11
"""the same for steps without which there would be no minimum at all"""
FLAT = 1e-5
"""a larger gradient cannot be what rounding leaves of one"""
PATIENCE = 200
"""steps of L-BFGS beside rows that are far, before Newton finishes"""
LEVEL = 1e-10
"""two values of f nearer than this may differ by rounding alone"""
SHORTEST = 1e-30
"""smallest fraction of a Newton step that is tried: with a row of 1e12 a step may be 1e24 times too long"""


@final
@dataclass(frozen=True)
class Fit:
    """Weights (M, D), biases (M,), and how they were found."""

    W: np.ndarray
    b: np.ndarray
    solver: str
    steps: int
    gradient: float
    """size of the gradient in whitened coordinates: its largest entry (L-BFGS), or its length where the curvature is exactly 1 (Newton)"""


@final
class Problem:
    """f and its derivatives at theta = (V, c), flattened (M, D + 1)."""

    def __init__(self, X: np.ndarray, codes: np.ndarray, outputs: int, s: np.ndarray | None, alpha: float, bias: bool) -> None:
        weights = _outlier_weights(X, check_magnitudes("X", X), bias)
        self.X = torch.from_numpy(X if X.flags.writeable else X.copy())
        self.s = torch.ones(len(X), dtype=torch.float64) if s is None else torch.tensor(s)
        self.n = float(self.s.sum())
        self.outputs, self.alpha, self.bias = outputs, alpha / self.n, bias
        labels = torch.from_numpy(codes.astype(np.int64))
        self.far = torch.from_numpy(np.flatnonzero(weights < 1))
        self.far_X, self.far_s, self.far_labels = self.X[self.far], self.s[self.far], labels[self.far]
        self.m, self.T = self._coordinates(weights)
        if len(self.far) and X.shape[1] < WIDE:
            self._turn()
        self.near_s = self.s.index_fill(0, self.far, 0.0)
        self.even = s is None and not len(self.far)
        t = torch.zeros(max(outputs, 2), len(X), dtype=torch.float64)
        t.scatter_(0, labels[None], self.near_s[None] / self.n)
        self.seen, self.count = t[-outputs:] @ self.X, t[-outputs:].sum(1)

    def _coordinates(self, weights: np.ndarray) -> tuple[Tensor, Tensor]:
        """Middle of the cloud and T with T^T C T = I, where C is the curvature if every class were as likely as any other."""
        rows = _sample_rows(len(self.X), SAMPLE)
        X, s = self.X.numpy()[rows], self.s.numpy()[rows]
        table = MomentTable(X, None, weights[rows] * (s if s.any() else 1.0), center=self.bias)
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
        # Linearly dependent columns: the scatter matrix has lost too many digits, so the rows are decomposed.
        Z = np.vstack([table.design * np.sqrt(curvature / table.n), np.sqrt(self.alpha) * np.eye(D)]) / scale
        _, values, Ut = np.linalg.svd(np.linalg.qr(Z, mode="r"))
        real = values > EPS * len(Z) * values[0] if len(rows) == len(self.X) else values >= 0
        U = Ut[real].T
        T = np.zeros((D, D))
        T[:, : U.shape[1]] = U / scale[:, None] / np.maximum(values[real], np.sqrt(LEAN) * values[0])
        shown = orth(scale[:, None] * U)  # what the rows show of weights; the rest of them is left at 0
        return mean, torch.from_numpy(shown @ (shown.T @ T) * ~still[:, None])

    def _turn(self) -> None:
        """Turn the coordinates so that the farthest rows lie along the first of them.

        The Hessian then holds the curvature along these rows, however large, in rows and columns of its own; spread over
        all of them it would leave no digits to the others.
        """
        Z = (self.far_X - self.m) @ self.T
        farthest = Z.norm(dim=1).topk(min(Z.shape)).indices
        self.T = self.T @ torch.from_numpy(qr(Z[farthest].T.numpy(), pivoting=True)[0])

    def rough(self) -> Problem:
        """The same problem with rows in float32: half the time, and exact enough for all but the last steps."""
        other = copy(self)
        other.X, other.near_s = self.X.float().index_fill_(0, self.far, 0.0), self.near_s.float()  # rows that are far stay exact
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
        for X, s, z in self._pieces(W, b, self.near_s):
            A, p = log_partition(z)
            if not self.even:
                A, p = A * s, p * s
            total += float(A.sum())
            dW += p @ X
            db += p.sum(1)
        total -= self.n * float((W * self.seen).sum() + b @ self.count)
        dW, db = dW - self.n * self.seen, db - self.n * self.count
        if len(self.far):
            loss, slope = margin_terms(torch.addmm(b[:, None], W, self.far_X.T), self.far_labels)
            total += float(loss @ self.far_s)
            slope *= self.far_s
            dW, db = dW + slope @ self.far_X, db + slope.sum(1)
        db /= self.n
        dV = (dW / self.n + self.alpha * W - torch.outer(db, self.m)) @ self.T
        return total / self.n + self.alpha / 2 * float(W.square().sum()), torch.cat([dV, db[:, None] * self.bias], 1).flatten().numpy()

    def hessian(self, theta: np.ndarray) -> np.ndarray:
        """(P, P).  It has no curvature along a common shift of all classes, and none along a bias that is not fitted."""
        W, b = self.affine(theta)
        M, D = W.shape
        H = torch.zeros(M, M, D + 1, D + 1, dtype=torch.float64)
        for X, s, z in self._pieces(W, b, self.s):
            Z = torch.cat([(X - self.m) @ self.T, torch.full((len(X), 1), float(self.bias), dtype=torch.float64)], 1)
            if M == 1:  # p (1 - p), but 1 - p has no digits left where p is nearly 1
                H[0, 0] += Z.T @ ((torch.sigmoid(z[0]) * torch.sigmoid(-z[0]) * s)[:, None] * Z)
                continue
            _, p = log_partition(z)
            for k in range(M):
                for j in range(k):  # p_k (1 - p_k) is the sum of p_k p_j over the other classes: each block also joins two on the diagonal
                    block = Z.T @ ((p[k] * p[j] * s)[:, None] * Z)
                    H[k, j] -= block
                    H[k, k] += block
                    H[j, j] += block
        H /= self.n
        for k in range(M):
            H[k, k, :D, :D] += self.alpha * self.T.T @ self.T
            for j in range(k):
                H[j, k] = H[k, j]
        return H.permute(0, 2, 1, 3).reshape(M * (D + 1), M * (D + 1)).numpy()

    def reach(self, move: np.ndarray) -> float:
        """By how much a step moves z of a row that is far, at most."""
        W, b = self.affine(move)
        return float((W @ self.far_X.T + b[:, None]).abs().max()) if len(self.far) else 0.0

    @property
    def newton_cost(self) -> float:
        """Products of numbers that a step of Newton takes."""
        size = self.outputs * (self.X.shape[1] + 1)
        return len(self.X) * size**2 / 2 + size**3 / 3

    def _pieces(self, W: Tensor, b: Tensor, s: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Rows, their weights and their z (M, rows), piece by piece.  Outputs come first: sums over them then run along memory."""
        for start in range(0, len(self.X), ROWS):
            X = self.X[start : start + ROWS]
            yield X, s[start : start + ROWS], torch.addmm(b[:, None].to(X), W.to(X), X.T)


def _sample_rows(rows: int, count: int) -> np.ndarray:
    """Sorted indices of `count` random rows, the same each time; of all rows where there are fewer."""
    if rows <= count:
        return np.arange(rows)
    return np.sort(np.random.default_rng(0).choice(rows, count, replace=False))


def _outlier_weights(X: np.ndarray, peak: np.ndarray, center: bool) -> np.ndarray:
    """A weight for each row: 1, and less for one so far out that it would hide how all others lie.  `peak` is the largest |x| by column."""
    some = X[:: max(1, len(X) // 512)]  # enough for a median
    middle = np.median(some, 0) if center else np.zeros(X.shape[1])
    typical = np.median(np.abs(some - middle), 0)
    typical = np.where(typical > 0, typical, np.maximum(peak + np.abs(middle), 1.0))
    weights = np.ones(len(X))
    if (peak + np.abs(middle) > FAR * typical).any():
        for start in range(0, len(X), ROWS):
            away = (np.abs(X[start : start + ROWS] - middle) / typical).max(1)
            weights[start : start + ROWS] = np.square(FAR / np.maximum(away, FAR))
    return weights


def log_partition(z: Tensor) -> tuple[Tensor, Tensor]:
    """A (rows,) and A' (M, rows) at z (M, rows); z is overwritten."""
    if len(z) == 1:  # torch's own threshold of 20 would make a jump of 2e-9 in f
        return torch.nn.functional.softplus(z[0], threshold=40), torch.sigmoid(z)
    top = z.amax(0)
    p = z.sub_(top).exp_()
    total = p.sum(0)
    return total.log() + top, p.div_(total)


def margin_terms(z: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """A - t.z (rows,) and A' - t (M, rows) at z (M, rows), to full precision however large z is; z is overwritten."""
    if len(z) == 1:
        sign = 2.0 * labels - 1.0
        return -torch.nn.functional.logsigmoid(sign * z[0]), -sign * torch.sigmoid(-sign * z)
    own, top = z.gather(0, labels[None])[0], z.amax(0)
    p = z.sub_(top).exp_().scatter_(0, labels[None], 0.0)
    wrong = p.sum(0)
    total = wrong + (own - top).exp()
    p = p.div_(total).scatter_(0, labels[None], -(wrong / total)[None])
    return total.log() + (top - own), p


def minimize(problem: Problem, solver: str, tol: float, steps: int) -> Fit:
    """The fit at the minimum, or after `steps` steps.  'auto' takes Newton where the Hessian is small."""
    if solver == "auto":
        solver = "newton" if problem.newton_cost <= NEWTON else "lbfgs"
    method = _newton if solver == "newton" else _lbfgs
    theta, taken, gradient = method(problem, np.zeros(problem.outputs * (problem.X.shape[1] + 1)), tol, steps)
    if problem.outputs > 1:  # a common shift of all classes changes no probability; the sum of 0 is the one shift a penalty allows
        theta = (theta.reshape(problem.outputs, -1) - theta.reshape(problem.outputs, -1).mean(0)).ravel()
    W, b = problem.affine(theta)
    return Fit(W.numpy(), b.numpy(), solver, max(taken, 1), gradient)


def _newton(problem: Problem, theta: np.ndarray, tol: float, steps: int) -> tuple[np.ndarray, int, float]:
    """Newton's method, halving a step that does not go down far enough; the last step is taken from inside the tolerance."""
    value, gradient = problem.value(theta)
    length = np.inf
    for step in range(1, steps + 1):
        solve = _inverse(problem.hessian(theta), problem.outputs)
        move = -solve(gradient)
        slope, size = float(gradient @ move), 1.0
        # -slope / 2 is how far f lies above its minimum, in any coordinates; a small gradient alone may mean a long flat valley.
        # This takes the curvature to stay as it is, and it does not where a row moves along its bend.
        steady, largest = problem.reach(move) < 0.1, float(np.abs(gradient).max())
        before, length = length, float(np.sqrt(max(-slope, 0.0)))
        close = length <= tol and (steady or largest <= tol)
        flat = steady and -slope <= EPS * (1 + abs(value)) and length > before / 2  # f and its gradient are rounding
        while size > SHORTEST:
            there, bent = problem.value(theta + size * move)
            # Near the minimum rounding hides whether f falls, and the slope along the step decides.
            level = there <= value + LEVEL * (1 + abs(value)) and abs(float(bent @ move)) <= -slope / 2
            if level or there <= value + 1e-4 * size * slope:
                theta, value, gradient = theta + size * move, there, bent
                break
            size /= 2
        if close or flat or size <= SHORTEST:
            return theta, step, length if steady else max(length, largest)
    return theta, steps, max(float(np.sqrt(max(gradient @ solve(gradient), 0.0))), 0.0 if steady else float(np.abs(gradient).max()))


def _inverse(H: np.ndarray, outputs: int) -> Callable[[np.ndarray], np.ndarray]:
    """v -> H^-1 v, without a step along a common shift of all classes.  H is overwritten."""
    if outputs > 1:  # a common shift of all classes, of which no gradient has any part: it may have any curvature
        each = np.arange(len(H) // outputs)
        H.reshape(outputs, len(each), outputs, len(each))[:, each, :, each] += H.diagonal().reshape(outputs, -1).mean(0)[:, None, None]
    unit = np.sqrt(np.where(H.diagonal() > 0, H.diagonal(), 1.0))
    H /= np.outer(unit, unit)
    for ridge in 4 * EPS * len(H) * 10.0 ** np.arange(16):  # more than the first where columns follow from others but for rounding
        H.flat[:: len(H) + 1] = 1 + ridge
        root, failed = lapack.dpotrf(H, lower=1)
        if not failed:
            break
    return lambda v: cho_solve((root, True), v / unit) / unit


def _lbfgs(problem: Problem, theta: np.ndarray, tol: float, steps: int) -> tuple[np.ndarray, int, float]:
    """L-BFGS until the gradient is small or f is flat to rounding; what is missing then is left to Newton if that is affordable."""
    taken, max_steps = 0, PATIENCE if len(problem.far) and problem.newton_cost <= FINISH else steps
    if problem.X.numel() >= LARGE and steps > 1:
        theta, taken, _ = _descend(problem.rough(), theta, max(tol, ROUGH), min(steps - 1, max_steps))
    theta, more, gradient = _descend(problem, theta, tol, min(steps - taken, max_steps))
    taken += more
    if gradient > tol and taken < steps and problem.newton_cost <= (FINISH if gradient > FLAT else NEWTON):
        theta, more, gradient = _newton(problem, theta, tol, steps - taken)
        taken += more
    return theta, taken, gradient


def _descend(problem: Problem, theta: np.ndarray, tol: float, steps: int) -> tuple[np.ndarray, int, float]:
    """SciPy's L-BFGS."""
    from scipy.optimize import minimize

    options = {"maxiter": steps, "maxfun": 5 * steps, "maxls": 50, "gtol": tol, "ftol": 8 * EPS}
    end = minimize(problem.value, theta, jac=True, method="L-BFGS-B", options=options)
    return end.x, int(end.nit), float(np.abs(end.jac).max())
