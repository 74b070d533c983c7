"""timm for tests that compare with it, and norms whose numbers are not those they begin with."""

from __future__ import annotations

import importlib.util
import warnings
from typing import Any

import pytest
import torch
from torch import nn

from benchmarks._timm import timm as imported


def timm() -> Any:
    """The package; the test is skipped where it is not installed, and fails where it is and does not load."""
    if importlib.util.find_spec("timm") is None:
        pytest.skip("timm is not there: pip install -c constraints.txt --no-deps timm")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return imported()


def lived(model: nn.Module, seed: int = 1) -> nn.Module:
    """The model with norms as after some training, so that a misplaced norm is detected."""
    rng = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for part in model.modules():
            if isinstance(part, nn.modules.batchnorm._BatchNorm):
                for values, least in ((part.weight, 0.5), (part.running_var, 0.5), (part.bias, -0.3), (part.running_mean, -0.3)):
                    if values is not None:
                        values.copy_(torch.rand(values.shape, generator=rng) * (1 if least > 0 else 0.6) + least)
    return model
