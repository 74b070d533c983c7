"""The reservoir: its recurrence, its radius, its readout against scikit-learn, and forecasts."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse
from sklearn.linear_model import Ridge

from sonde.core.errors import BadInput
from sonde.estimators import Reservoir


def narma(steps: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """NARMA-10 (Atiya & Parlos, 2000): y_{t+1} = 0.3 y_t + 0.05 y_t sum_{i<10} y_{t-i} + 1.5 u_{t-9} u_t + 0.1."""
    u, y = np.random.default_rng(seed).uniform(0, 0.5, steps), np.zeros(steps)
    for t in range(9, steps - 1):
        y[t + 1] = 0.3 * y[t] + 0.05 * y[t] * y[t - 9 : t + 1].sum() + 1.5 * u[t - 9] * u[t] + 0.1
    return u[:-1, None], y[1:]


def nrmse(predicted: np.ndarray, expected: np.ndarray) -> float:
    return float(np.sqrt(np.mean((predicted - expected) ** 2)) / expected.std())


def test_narma() -> None:
    u, y = narma(4200)
    model = Reservoir(units=200, radius=0.95, scale=0.2, washout=100).fit(u[:3000], y[:3000])
    assert nrmse(model.predict(u)[3000:], y[3000:]) < 0.2
    assert nrmse(Ridge(1e-6).fit(u[:3000], y[:3000]).predict(u[3000:]), y[3000:]) > 0.8  # it takes a memory


def test_a_sine_goes_on_by_itself() -> None:
    wave = np.sin(0.2 * np.arange(900))[:, None]
    model = Reservoir(units=100, scale=1.0).fit(wave[:599], wave[1:600])
    forecast = model.forecast(wave[:600], 300)
    assert forecast.shape == (300, 1) and nrmse(forecast, wave[600:]) < 0.2


@pytest.mark.parametrize("density", [1.0, 0.1])
def test_the_recurrence_and_its_radius(density: float) -> None:
    X = np.random.default_rng(1).normal(size=(30, 3))
    model = Reservoir(units=40, radius=0.7, leak=0.3, density=density).fit(X, X[:, 0])
    W = model.W_.toarray() if sparse.issparse(model.W_) else model.W_
    assert sparse.issparse(model.W_) == (density < 0.5)
    assert np.abs(np.linalg.eigvals(W)).max() == pytest.approx(0.7)
    assert (W != 0).mean() == pytest.approx(density, abs=0.03)
    h, states = np.zeros(40), []
    for x in X:
        h = 0.7 * h + 0.3 * np.tanh(model.W_in_ @ x + W @ h + model.bias_)
        states.append(h)
    np.testing.assert_allclose(model.states(X), states, atol=1e-12)


@pytest.mark.parametrize("targets", [1, 2])
def test_the_readout_is_ridge_regression(targets: int) -> None:
    X = np.random.default_rng(1).normal(size=(200, 3))
    y = np.cumsum(X[:, :targets], 0) * 0.1
    y = y[:, 0] if targets == 1 else y
    model = Reservoir(units=30, alpha=0.5, washout=20).fit(X, y)
    expected = Ridge(0.5).fit(np.column_stack([X, model.states(X)])[20:], y[20:])
    np.testing.assert_allclose(model.coef_, expected.coef_, atol=1e-8)
    np.testing.assert_allclose(model.predict(X), expected.predict(np.column_stack([X, model.states(X)])), atol=1e-8)


def test_the_same_seed_gives_the_same_bits() -> None:
    u, y = narma(300)
    first, second, other = (Reservoir(random_state=seed).fit(u, y).predict(u) for seed in (3, 3, 4))
    assert np.array_equal(first, second) and not np.array_equal(first, other)


def test_impossible_reservoirs_are_refused() -> None:
    X = np.random.default_rng(1).normal(size=(30, 3))
    for wrong, message in (({"leak": 2.0}, "must be > 0 and <= 1"), ({"units": 1, "density": 1e-9}, "have no cycle")):
        with pytest.raises(BadInput, match=message):
            Reservoir(**wrong).fit(X, X[:, 0])
    with pytest.raises(BadInput, match="outputs cannot be the next inputs"):
        Reservoir().fit(X, X[:, 0]).forecast(X, 3)
