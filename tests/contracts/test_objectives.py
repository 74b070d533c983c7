"""Every objective in the registry keeps the contract of `sonde.testing`, and has what the engine uses where it exists."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sonde.core import registry
from sonde.testing import objectives as checks

NAMES = registry.names("objectives")


def test_registry_is_not_empty() -> None:
    assert {"gaussian", "laplace", "bernoulli", "categorical", "poisson"} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_its_file_keeps_the_contract(name: str) -> None:
    checks.declares_what_it_is(registry.load("objectives", name))
    objective = checks.fresh(registry.load("objectives", name))().objective
    assert registry.summary("objectives", name)
    assert all(hasattr(objective, method) for method in ("check", "counts", "measures", "predict"))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("check", checks.CHECKS, ids=lambda check: check.__name__)
def test_keeps_the_contract(check: Callable[[checks.MakeObjective], None], name: str) -> None:
    check(checks.fresh(registry.load("objectives", name)))
