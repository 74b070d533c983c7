"""Text continuation: prompts as strings, new text in pieces that can be streamed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, final

import torch
from torch import Tensor

from ..core.errors import BadInput
from ..data.text.tokenizer import UNKNOWN, Tokenizer, special
from ..nn.recurrence import State
from .sample import Advances, GenerationStep, Rows, Weights, at_rest, pad_prompts, steps
from .search import beam
from .stop import Stop, no_text

CONTEXT = 16
"""last tokens of a prompt that decide how the next one is decoded"""


@final
class Writer:
    """Streams the text of one row: never part of a character, never part of a stop string.

    Args:
        prompt: tokens before the first; some tokenizers decode a token differently at the beginning of a text
        stop: what ends the text; it is not part of it
    """

    def __init__(self, tokenizer: Tokenizer, prompt: Tensor, stop: Stop | None = None) -> None:
        self._tokenizer, self._stop = tokenizer, stop or Stop()
        self._tokens: list[int] = prompt[-CONTEXT:].tolist()
        self._emitted = len(self._tokens)
        self._held = ""
        self.ended = False
        """an end token or a stop string has come"""

    def add(self, token: int) -> str:
        """Take one more token; return the text that can be shown now."""
        if token in self._stop.ends:
            text = self.finish()
            self.ended = True
            return text
        self._tokens.append(token)
        return self._next(whole=False)

    def finish(self) -> str:
        """The text that was held back, when there are no more tokens."""
        return self._next(whole=True)

    def _next(self, whole: bool) -> str:
        """Text up to a stop string; unless this is the whole, without an end that could become one."""
        if self.ended:
            return ""
        self._held += self._pending_text(whole)
        starts = [start for start in map(self._held.find, self._stop.strings) if start >= 0]
        self.ended = bool(starts)
        overlap = 0 if whole else max(map(self._partial_stop, self._stop.strings), default=0)
        count = min(starts) if starts else len(self._held) - overlap
        text, self._held = self._held[:count], self._held[count:]
        return text

    def _pending_text(self, whole: bool) -> str:
        """Text of the tokens not shown yet; None while it may end inside a character."""
        before, now = self._decode(self._emitted), self._decode(len(self._tokens))
        if len(now) <= len(before) or (now.endswith(UNKNOWN) and not whole):
            return ""
        # the tokens shown last stay, as the context of the next
        self._tokens, self._emitted = self._tokens[self._emitted :], len(self._tokens) - self._emitted
        return now[len(before) :]

    def _decode(self, count: int) -> str:
        return self._tokenizer.decode(torch.tensor(self._tokens[:count], dtype=torch.long)) if count else ""

    def _partial_stop(self, stop: str) -> int:
        """Length of the longest end of the held text with which a stop string begins."""
        return next((n for n in range(min(len(stop) - 1, len(self._held)), 0, -1) if self._held.endswith(stop[:n])), 0)


def complete(
    model: Advances,
    tokenizer: Tokenizer,
    prompts: Sequence[str],
    new: int,
    *,
    stop: Stop | None = None,
    stream: Callable[[int, str], Any] | None = None,
    weights: Weights = None,
    **sampling: Any,
) -> list[str]:
    """Continue each prompt by at most `new` tokens; end token and stop string are left out.

    Tokens that are not text (`no_text`) are never generated.

    Args:
        stop: end tokens and stop strings
        stream: called with (row, piece of text) as it is generated
        weights: as in `generate`
        sampling: options of `generate`
    """
    rows = [read_prompt(tokenizer, prompt) for prompt in prompts]
    stop = stop or Stop()
    stop = replace(stop, barred=(*stop.barred, *no_text(tokenizer)))
    return write_texts(steps(model, rows, new, stop=stop, weights=weights, **sampling), rows, tokenizer, stop, stream)


def read_prompt(tokenizer: Tokenizer, text: str, where: str = "complete") -> Tensor:
    """Tokens of a prompt, or an error that names the part the model never saw."""
    tokens = tokenizer.encode(text).long()
    if not len(tokens):
        raise BadInput("the prompt is empty", where=where, fix="give at least one character")
    unknown = tokenizer.specials.get("unknown")
    if unknown in tokens.tolist():
        parts = list(text) if tokenizer.level == "char" else text.split()
        strange = next((part for part in parts if unknown in tokenizer.encode(part).tolist()), text)
        raise BadInput(
            f"the model never saw {strange!r} of the prompt", where=where, fix="use only characters or words from its training text"
        )
    return tokens


def write_texts(
    taken: Iterable[GenerationStep],
    prompts: Rows,
    tokenizer: Tokenizer,
    stop: Stop | None = None,
    stream: Callable[[int, str], Any] | None = None,
) -> list[str]:
    """Texts of steps that follow the prompts."""
    writers = [Writer(tokenizer, row, stop) for row in prompts]
    texts = [""] * len(writers)

    def emit(row: int, piece: str) -> None:
        texts[row] += piece
        if piece and stream is not None:
            stream(row, piece)

    for step in taken:
        for row, token in enumerate(step.tokens.tolist()):
            emit(row, writers[row].add(token))
    for row, writer in enumerate(writers):
        emit(row, writer.finish())
    return texts


def decode_answer(tokenizer: Tokenizer, prompt: Tensor, tokens: Tensor, stop: Stop | None = None) -> str:
    """Text of new tokens (N,) after a prompt, up to what ends it."""
    writer = Writer(tokenizer, prompt, stop)
    return "".join([writer.add(token) for token in tokens.tolist()]) + writer.finish()


def translate(
    model: Any, texts: Sequence[str], tokenizers: tuple[Tokenizer, Tokenizer], new: int, *, beams: int = 1, power: float = 1.0
) -> list[str]:
    """Outputs of an encoder-decoder for each text, at most `new` tokens: the best of a beam search.

    Args:
        tokenizers: of the source and of the target, with special tokens as in `data.text.pairs`
        beams: as in `beam`; 1 is greedy
        power: as in `beam`
    """
    source, target = tokenizers
    starts, state = start_decoding(model, texts, source, target)
    stop = Stop(end=special(target, "end"), barred=no_text(target))
    hypotheses = beam(model, starts, new, beams=beams, power=power, stop=stop, state=state)
    return [decode_answer(target, first, best[0], stop) for first, best in zip(starts, hypotheses.tokens)]


@torch.no_grad()
def start_decoding(model: Any, texts: Sequence[str], source: Tokenizer, target: Tokenizer) -> tuple[Tensor, State]:
    """Start tokens (B, 1) for an encoder-decoder, and its state once it has read the texts, each with its end token."""
    end = torch.tensor([special(source, "end")])
    rows, lengths = pad_prompts([torch.cat([source.encode(text).long(), end]) for text in texts])
    start = target.specials["start"] if "start" in target.specials else special(target, "pad")
    with at_rest(model):
        return torch.full((len(rows), 1), start), model.begin(rows, lengths)
