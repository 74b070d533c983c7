"""What every test starts from: one torch thread, fixed seeds, property tests without a clock."""

from __future__ import annotations

import os
import random
from pathlib import Path

import hypothesis
import numpy as np
import pytest
import torch

# Timings differ between machines and a red test must be red again: no deadline, and the same examples every time.
hypothesis.settings.register_profile("sonde", deadline=None, derandomize=True, print_blob=True)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "sonde"))

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def fixed_seeds() -> None:
    """The global generators stand at the same place before each test, whatever ran before it."""
    torch.manual_seed(0)
    np.random.seed(0)
    random.seed(0)


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """The folder of real data sets named by SONDE_DATA; without it the test is skipped."""
    folder = Path(os.environ.get("SONDE_DATA", ""))
    if not os.environ.get("SONDE_DATA") or not folder.is_dir():
        pytest.skip("SONDE_DATA names no folder of real data")
    return folder
