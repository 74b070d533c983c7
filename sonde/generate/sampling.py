"""How the next token is chosen: the options of sampling, also those of `sonde generate`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, final

from ..core.options import Range, resolve


@final
@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How the next token is sampled.

    Args:
        temperature: below 1 prefers likely tokens; 0 always takes the most likely
        top_k: sample from the N most likely tokens
        top_p: nucleus sampling: sample from the most likely tokens that make up this probability
        min_p: leave out tokens with less than this fraction of the most likely one's probability
        repetition: above 1 makes tokens that are already in the text less likely
        seed: seed of the sampling
    """

    temperature: Annotated[float, Range(0, 100)] = 1.0
    top_k: Annotated[int | None, Range(least=1)] = None
    top_p: Annotated[float, Range(above=0, most=1)] = 1.0
    min_p: Annotated[float, Range(0, 1)] = 0.0
    repetition: Annotated[float, Range(above=0)] = 1.0
    seed: int = 0

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Sampling:
        """From loose values, checked like all options."""
        return cls(**resolve(cls, values, "generate"))
