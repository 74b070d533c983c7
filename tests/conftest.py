"""What every test starts from: one torch thread, fixed seeds, property tests without a clock.  And which tests are numeric."""

from __future__ import annotations

import os
import random
import re
from collections import defaultdict
from pathlib import Path

import hypothesis
import numpy as np
import pytest
import torch

from tests import sensitive

# Timings differ between machines and a red test must be red again: no deadline, and the same examples every time.
hypothesis.settings.register_profile("sonde", deadline=None, derandomize=True, print_blob=True)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "sonde"))

# Sums may be cut otherwise with two threads: `make matrix` has a row for that.
torch.set_num_threads(int(os.environ.get("SONDE_TEST_THREADS", "1")))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the tests whose verdict could hang on the processor, where `-m` asks for them."""
    if not {"numeric", "edge"} & set(re.findall(r"\w+", config.option.markexpr or "")):
        return
    cases = defaultdict(list)
    for item in items:
        if item.get_closest_marker("slow") is None:
            test, case = sensitive.split(item.nodeid)
            cases[test].append(case)
    numeric, edge, _ = sensitive.parts(sensitive.read(), cases)
    for item in items:
        if item.nodeid in numeric:
            item.add_marker("numeric")
        if item.nodeid in edge:
            item.add_marker("edge")


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
