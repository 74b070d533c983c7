"""The scales of the squared error: mean or sum, with or without a half, against numpy and scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.metrics import mean_squared_error

from sonde.core.batch import Batch
from sonde.core.errors import BadInput
from sonde.objectives.gaussian import Gaussian, squared_error

OUTPUT = torch.tensor([[0.5, -1.0, 2.0], [3.0, 0.0, -2.5]], dtype=torch.float64)
Y = torch.tensor([[1.5, 1.0, 2.0], [0.0, 4.0, -2.0]], dtype=torch.float64)


@pytest.mark.parametrize(
    ("scale", "factor"), [({}, 1), ({"half": True}, 1 / 2), ({"reduction": "sum"}, 6), ({"reduction": "sum", "half": True}, 3)]
)
def test_every_scale_is_a_stated_multiple_of_the_mean(scale: dict, factor: float) -> None:
    output = OUTPUT.clone().requires_grad_()
    loss = squared_error(output, Y, **scale)
    loss.backward()
    assert loss.item() == pytest.approx(factor * mean_squared_error(Y, OUTPUT))
    np.testing.assert_allclose(output.grad, factor * 2 / 6 * (OUTPUT - Y).numpy())


def test_half_the_mean_is_the_gaussian_likelihood() -> None:
    assert squared_error(OUTPUT, Y, half=True).item() == pytest.approx(Gaussian().terms(OUTPUT, Batch(x=OUTPUT, y=Y)).loss().item())


def test_wrong_use_is_named() -> None:
    with pytest.raises(BadInput):
        squared_error(OUTPUT, Y[:, 0])
