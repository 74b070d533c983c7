"""From a model to new tokens."""

from .sample import choose, generate

__all__ = ["choose", "generate"]
