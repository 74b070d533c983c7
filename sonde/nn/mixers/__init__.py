"""Sequence mixers, one file each; `mixer("gla", width=256)` makes one by name."""

from ._mixer import Mixer, Recurrent, length_options, mixer, mixer_class

__all__ = ["Mixer", "Recurrent", "length_options", "mixer", "mixer_class"]
