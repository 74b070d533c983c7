"""Contract checks for plug-ins, ours and yours: each raises an AssertionError that says which promise is broken, and where.

    from sonde.testing import check_mixer
    check_mixer("./fade.py")

A check takes a name in the registry, the path of a file, or the module itself.  The file ends with a function `tiny()`, which
makes a small working instance; what it returns is said at each check.  `tests/contracts` runs them on every plug-in there is.
"""

from .lenses import check_lens
from .mixers import check_mixer
from .models import check_model
from .objectives import check_objective
from .recipes import check_recipe

__all__ = ["check_lens", "check_mixer", "check_model", "check_objective", "check_recipe"]
