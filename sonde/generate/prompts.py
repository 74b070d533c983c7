"""Few-shot prompts: demonstrations, then the query, up to where the answer begins (Brown et al., GPT-3, 2020)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final


@final
@dataclass(frozen=True, kw_only=True)
class Layout:
    """How a demonstration is written.

    Args:
        ask: text before a question
        answer: text before an answer
        between: text between lines; generation may stop at it
        head: text before the first demonstration, such as an instruction
    """

    ask: str = "Input: "
    answer: str = "Output: "
    between: str = "\n"
    head: str = ""


PLAIN = Layout()
CORRECTION = Layout(ask="Poor English input: ", answer="Good English output: ")
"""the layout of the grammar-correction prompt of GPT-3"""


def few_shot(shots: Sequence[tuple[str, str]], query: str, layout: Layout = PLAIN) -> str:
    """A prompt of (question, answer) pairs and a question whose answer is missing.

    It ends without a space, which sub-word tokenizers take as the beginning of the next word: a good continuation begins
    with the space.
    """
    lines = [line for question, answer in shots for line in (layout.ask + question, layout.answer + answer)]
    return layout.head + layout.between.join([*lines, layout.ask + query, layout.answer.rstrip()])
