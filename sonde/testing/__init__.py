"""Contract checks for plug-ins, ours and yours: each raises an AssertionError that says which requirement is violated, and where.

    from sonde.testing import check_mixer
    check_mixer("./fade.py")

A check takes a name in the registry, the path of a file, or the module itself.  The file ends with a function `tiny()`, which
returns a small working instance, as each check describes.  `tests/contracts` runs the checks on every plug-in of Sonde.
"""

from .lenses import check_lens
from .mixers import check_mixer
from .models import check_model
from .objectives import check_objective
from .recipes import check_recipe

__all__ = ["check_lens", "check_mixer", "check_model", "check_objective", "check_recipe"]
