"""Ways of moving information along a sequence, one file each; `mixer("gla", width=256)` makes one by name."""

from ._mixer import Mixer, Recurrent, mixer

__all__ = ["Mixer", "Recurrent", "mixer"]
