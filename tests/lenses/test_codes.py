"""Reconstructions against principal components by scikit-learn, and traversals against a decoder that is a matrix."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from torch import nn

from sonde.core.batch import Batch
from sonde.core.errors import BadInput
from sonde.core.reading import Subject
from sonde.lenses import reconstructions, traversal
from sonde.lenses.tools.tiny import autoencoder
from sonde.models.autoencoder import convolutional


class Principal(nn.Module):
    """The linear auto-encoder whose code is the first principal components."""

    def __init__(self, x: np.ndarray, k: int) -> None:
        super().__init__()
        pca = PCA(k).fit(x)
        self.kept = float(pca.explained_variance_ratio_.sum())
        self.middle, self.matrix = torch.tensor(pca.mean_).float(), torch.tensor(pca.components_).float()

    def encode(self, x: torch.Tensor) -> torch.Tensor:
        return (x - self.middle) @ self.matrix.T

    def decode(self, h: torch.Tensor) -> torch.Tensor:
        return self.middle + h @ self.matrix


def digits() -> Subject:
    x = load_digits().data[:400] / 16
    return Subject(Principal(x, 9), Batch(x=torch.tensor(x).float()))


def test_of_principal_components_the_share_that_is_kept_is_their_variance() -> None:
    subject = digits()
    reading = reconstructions.read(subject, n=7, order="worst")
    assert f"{subject.model.kept:.1%} of the variance is explained" in reading.note
    again = subject.model.decode(subject.model.encode(subject.batch.x))
    errors = (again - subject.batch.x).square().mean(1)
    assert reading.results["errors"] == pytest.approx(errors.sort(descending=True).values[:7].tolist(), rel=1e-5)
    worst = int(errors.argmax())
    shown = torch.tensor(reading.values["images"][7])
    assert shown.shape == (8, 8) and torch.allclose(shown, again[worst].reshape(8, 8).clamp(0, 1), atol=1e-6)
    gap = torch.tensor(reading.heat[14])
    assert torch.allclose(gap.double(), (again - subject.batch.x)[worst].reshape(8, 8).double(), atol=1e-6)
    assert reading.top >= float(gap.abs().max())


def test_moving_one_number_adds_its_row_of_the_decoder() -> None:
    subject = digits()
    reading = traversal.read(subject, example=3, coordinates=(4,), steps=5, reach=2.0)
    codes = subject.model.encode(subject.batch.x).double()
    for step, way in enumerate((-2.0, -1.0, 0.0, 1.0, 2.0)):
        code = codes[3].clone()
        code[4] = codes[:, 4].mean() + way * codes[:, 4].std(correction=0)
        expected = subject.model.decode(code.float()).reshape(8, 8).clamp(0, 1)
        assert torch.allclose(torch.tensor(reading.values["images"][step]), expected, atol=1e-5)
    assert reading.rows == ["coordinate 4"] and reading.labels == ["-2", "-1", "0", "1", "2"]


def test_without_names_the_numbers_that_differ_most_are_moved() -> None:
    reading = traversal.read(digits(), rows=3, steps=2)
    assert reading.results["coordinates"] == [0, 1, 2], "principal components come in this order"
    assert len(reading.values["images"]) == 6


def test_two_numbers_make_a_grid_on_the_scale_of_the_prior() -> None:
    subject = autoencoder()
    reading = traversal.read(subject, example=2, coordinates=(2, 0), steps=3, reach=1.5)
    mean, _ = subject.model.eval().encode(subject.batch.x[2:3])
    low, high = subject.batch.x.min(), subject.batch.x.max()
    for row, down in enumerate((-1.5, 0.0, 1.5)):
        for column, across in enumerate((-1.5, 0.0, 1.5)):
            code = mean.clone().detach()
            code[0, 2], code[0, 0] = down, across
            expected = ((subject.model.decode(code).sigmoid() - low) / (high - low)).clamp(0, 1)
            assert torch.allclose(torch.tensor(reading.values["images"][3 * row + column]), expected[0, 0], atol=1e-6)
    assert "Coordinate 0 in columns and 2 in rows" in reading.note and "prior" in reading.note


def test_the_objective_says_what_an_output_means() -> None:
    class Chances:
        def predict(self, output: torch.Tensor) -> torch.Tensor:
            return output.sigmoid()

    subject = replace(digits(), objective=Chances())
    plain, chances = reconstructions.read(digits(), n=1), reconstructions.read(subject, n=1)
    assert torch.allclose(torch.tensor(chances.values["images"][1]), torch.tensor(plain.values["images"][1]).sigmoid(), atol=0.2)
    again = subject.model.decode(subject.model.encode(subject.batch.x[:1])).sigmoid()
    assert chances.results["errors"] == pytest.approx([float((again - subject.batch.x[:1]).square().mean())], rel=1e-5)


def test_convolutional_codes_and_refusals() -> None:
    subject = Subject(convolutional((3, 9, 7), (4, 5), code=4), Batch(x=torch.rand(6, 3, 9, 7)))
    assert torch.tensor(reconstructions.read(subject).values["images"]).shape == (18, 9, 7, 3)
    assert torch.tensor(traversal.read(subject, steps=3).values["images"]).shape == (12, 9, 7, 3)
    with pytest.raises(BadInput, match="has no coordinate 4.*choose 0 to 3"):
        traversal.read(subject, coordinates=(1, 4))
    with pytest.raises(BadInput, match="given twice"):
        traversal.read(subject, coordinates=(1, 1))
    with pytest.raises(BadInput, match="there is no example 6"):
        traversal.read(subject, example=6)
    with pytest.raises(BadInput, match="no methods encode and decode"):
        reconstructions.read(Subject(nn.Flatten(), subject.batch))
    odd = digits()
    assert "not images" in traversal.why_not(replace(odd, batch=Batch(x=torch.rand(3, 63))))
