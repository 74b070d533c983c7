"""From a model to new tokens and texts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

# Where each name lives.  No file has the name of something in it: an imported file would hide what it holds.
_HOMES = {
    "Beams": "search",
    "Layout": "prompts",
    "Sampling": "sampling",
    "GenerationStep": "sample",
    "Stop": "stop",
    "Writer": "text",
    "beam": "search",
    "bleu": "compare",
    "choose": "choice",
    "complete": "text",
    "exact": "compare",
    "few_shot": "prompts",
    "generate": "sample",
    "logprobs": "likelihood",
    "rank_answers": "likelihood",
    "score": "likelihood",
    "steps": "sample",
    "translate": "text",
}
__all__ = [
    "Beams",
    "GenerationStep",
    "Layout",
    "Sampling",
    "Stop",
    "Writer",
    "beam",
    "bleu",
    "choose",
    "complete",
    "exact",
    "few_shot",
    "generate",
    "logprobs",
    "rank_answers",
    "score",
    "steps",
    "translate",
]

if TYPE_CHECKING:
    from .choice import choose
    from .compare import bleu, exact
    from .likelihood import logprobs, rank_answers, score
    from .prompts import Layout, few_shot
    from .sample import GenerationStep, generate, steps
    from .sampling import Sampling
    from .search import Beams, beam
    from .stop import Stop
    from .text import Writer, complete, translate


def __getattr__(name: str) -> Any:
    """Parts load when they are asked for: the command line reads the options of `Sampling` without torch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'sonde.generate' has no attribute '{name}'")
    from ..core import registry

    return registry.attribute(f"{__name__}.{_HOMES[name]}", name)
