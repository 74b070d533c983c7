"""Texts that go on: prompts in words, new text in pieces that can be shown as they come."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, final

import torch
from torch import Tensor

from ..data.tokeniser import UNKNOWN, Tokeniser
from .sample import Advances, Weights, steps
from .stop import Stop

CONTEXT = 16
"""tokens of a prompt that decide how the next one is spelt"""


@final
class Writer:
    """The text of one row as its tokens come: never a part of a character, never a part of a stop string.

    prompt: tokens before the first; some tokenisers spell a token differently at the beginning of a text
    stop: what ends the text; it is not part of it
    """

    def __init__(self, tokeniser: Tokeniser, prompt: Tensor, stop: Stop | None = None) -> None:
        self._tokeniser, self._stop = tokeniser, stop or Stop()
        self._tokens: list[int] = prompt[-CONTEXT:].tolist()
        self._told = len(self._tokens)
        self._held = ""
        self.ended = False
        """an end token or a stop string has come"""

    def add(self, token: int) -> str:
        """The text that can be shown now that this token has come."""
        if self.ended:
            return ""
        if token in self._stop.ends:
            text = self.finish()
            self.ended = True
            return text
        self._tokens.append(token)
        self._held += self._spelt(whole=False)
        places = [place for place in map(self._held.find, self._stop.strings) if place >= 0]
        if places:
            self.ended = True
            return self._shown(min(places))
        return self._shown(len(self._held) - max(map(self._begun, self._stop.strings), default=0))

    def finish(self) -> str:
        """What was held back, when no more tokens come."""
        if not self.ended:
            self._held += self._spelt(whole=True)
        return "" if self.ended else self._shown(len(self._held))

    def _spelt(self, whole: bool) -> str:
        """Text of the tokens not told yet; none while it may end inside a character."""
        before, now = self._decoded(self._told), self._decoded(len(self._tokens))
        if len(now) <= len(before) or (now.endswith(UNKNOWN) and not whole):
            return ""
        # the tokens told last stay, as the context of the next
        self._tokens, self._told = self._tokens[self._told :], len(self._tokens) - self._told
        return now[len(before) :]

    def _decoded(self, count: int) -> str:
        return self._tokeniser.decode(torch.tensor(self._tokens[:count], dtype=torch.long)) if count else ""

    def _begun(self, stop: str) -> int:
        """Length of the longest end of the held text with which a stop string begins."""
        return next((n for n in range(min(len(stop) - 1, len(self._held)), 0, -1) if self._held.endswith(stop[:n])), 0)

    def _shown(self, count: int) -> str:
        text, self._held = self._held[:count], self._held[count:]
        return text


def complete(
    model: Advances,
    tokeniser: Tokeniser,
    prompts: Sequence[str],
    new: int,
    *,
    stop: Stop | None = None,
    stream: Callable[[int, str], Any] | None = None,
    weights: Weights = None,
    **sampling: Any,
) -> list[str]:
    """How the model goes on with each prompt, by at most `new` tokens; without end token and stop string.

    stop: end tokens and stop strings
    stream: given (row, piece of text) as it comes
    weights, sampling: as in `generate`
    """
    rows = [tokeniser.encode(prompt).long() for prompt in prompts]
    writers = [Writer(tokeniser, row, stop) for row in rows]
    texts = [""] * len(rows)

    def tell(row: int, piece: str) -> None:
        texts[row] += piece
        if piece and stream is not None:
            stream(row, piece)

    for step in steps(model, rows, new, stop=stop, weights=weights, **sampling):
        for row, token in enumerate(step.tokens.tolist()):
            tell(row, writers[row].add(token))
    for row, writer in enumerate(writers):
        tell(row, writer.finish())
    return texts


def spelt(tokeniser: Tokeniser, prompt: Tensor, tokens: Tensor, stop: Stop | None = None) -> str:
    """Text of new tokens (N,) after a prompt, up to what ends it."""
    writer = Writer(tokeniser, prompt, stop)
    return "".join([writer.add(token) for token in tokens.tolist()]) + writer.finish()
