"""Principal components against scikit-learn's full decomposition."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_wine
from sklearn.decomposition import PCA as TheirPCA

from sonde.core.errors import BadInput
from sonde.estimators import PCA

SETS = {load.__name__: load().data for load in (load_iris, load_wine, load_digits, load_breast_cancer)}
X = SETS["load_wine"]


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("solver", ["covariance", "svd"])
@pytest.mark.parametrize("whiten", [False, True])
def test_real_data(name, solver, whiten):
    table = SETS[name]
    ours, theirs = PCA(3, whiten=whiten, solver=solver).fit(table), TheirPCA(3, whiten=whiten, svd_solver="full").fit(table)
    for field in ("components_", "explained_variance_", "explained_variance_ratio_", "mean_"):
        np.testing.assert_allclose(getattr(ours, field), getattr(theirs, field), rtol=1e-8, atol=1e-9)
    z = ours.transform(table)
    np.testing.assert_allclose(z, theirs.transform(table), rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(ours.inverse_transform(z), theirs.inverse_transform(z), rtol=1e-8, atol=1e-8)
    if whiten:
        np.testing.assert_allclose(z.std(0, ddof=1), 1, rtol=1e-9)


def test_the_shape_picks_the_way():
    assert PCA().fit(X).solver_ == "covariance" and PCA().fit(X[:20]).solver_ == "svd"
    wide, theirs = PCA().fit(X[:9]), TheirPCA(svd_solver="full").fit(X[:9])
    assert wide.components_.shape == (9, 13)
    np.testing.assert_allclose(wide.explained_variance_, theirs.explained_variance_, rtol=1e-9, atol=1e-9)


def test_nothing_dropped_is_nothing_lost():
    ours = PCA().fit(X)
    np.testing.assert_allclose(ours.inverse_transform(ours.transform(X)), X, rtol=1e-10)


def test_signs():
    parts = PCA().fit(X).components_
    assert (parts[np.arange(len(parts)), np.abs(parts).argmax(1)] > 0).all()


@pytest.mark.parametrize("fraction", [0.3, 0.9, 0.95, 0.9999999])
def test_a_share_of_the_variance(fraction):
    assert PCA(fraction).fit(SETS["load_digits"]).n_components_ == TheirPCA(fraction).fit(SETS["load_digits"]).n_components_


def test_without_centering_the_first_direction_follows_the_mean():
    mean = X.mean(0) / np.linalg.norm(X.mean(0))
    assert PCA(1, center=False).fit(X).components_[0] @ mean > 0.999
    spread = np.random.default_rng(0).normal(size=(500, 3)) * [1, 5, 1] + [30.0, 0, 0]
    assert abs(PCA(1, center=False).fit(spread).components_[0, 0]) > 0.99
    assert abs(PCA(1).fit(spread).components_[0, 1]) > 0.99


def test_a_far_mean_costs_no_digits():
    np.testing.assert_allclose(PCA().fit(X + 1e7).explained_variance_, PCA().fit((X + 1e7) - 1e7).explained_variance_, rtol=1e-6)


def test_names():
    frame = PCA(2).set_output(transform="pandas").fit_transform(pd.DataFrame(X[:, :3], columns=list("abc")))
    assert list(frame.columns) == ["pca0", "pca1"]


@pytest.mark.parametrize("model", [PCA(0), PCA(14), PCA(1.5), PCA("all"), PCA(True), PCA(-0.5)])
def test_wrong_settings(model):
    with pytest.raises(BadInput):
        model.fit(X)


def test_what_cannot_be_whitened():
    flat = np.column_stack([X, X[:, 0]])
    with pytest.raises(BadInput, match="13 of 14"):
        PCA(whiten=True).fit(flat / flat.std(0))
    with pytest.raises(BadInput):
        PCA(2).fit(X).inverse_transform(np.ones((4, 3)))


def test_rounding_of_a_long_sum_is_not_whitened():
    """A column of 64 times eps of the others' variance: 14 roundings would let it pass, the 1,000 of the sum do not."""
    rows = np.random.default_rng(0).normal(size=(1000, 3))
    rows[:, 2] *= np.sqrt(64 * np.finfo(float).eps)
    with pytest.raises(BadInput, match="2 of 3"):
        PCA(whiten=True, solver="covariance").fit(rows)
    # The singular values of the rows themselves tell it from rounding.
    assert PCA(whiten=True, solver="svd").fit(rows).explained_variance_[2] == pytest.approx(rows[:, 2].var(ddof=1), rel=1e-6)
