"""Every mixer with heads refuses a width that they do not divide."""

from __future__ import annotations

import pytest

from sonde.core import registry
from sonde.core.errors import BadInput
from sonde.core.options import options_of
from sonde.nn.mixers import mixer, mixer_class

NAMES = [name for name in registry.names("nn.mixers") if "heads" in options_of(mixer_class(name))]


@pytest.mark.parametrize("name", [name for name in NAMES if name != "gated_deltanet"])  # its heads have a width of their own
def test_heads_that_do_not_divide_the_width_are_named(name: str) -> None:
    with pytest.raises(BadInput, match=r"a width of \d+ cannot be divided into 7 heads.*use one of 1, 2, 4, 5"):
        mixer(name, 40, heads=7)
