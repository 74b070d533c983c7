"""Huffman codes, the shortest prefix codes, and their mean length, which is within one letter of the entropy."""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Annotated, Any, TypeVar

from ...core.errors import BadInput
from ...core.options import Range, checked
from .measures import probabilities

Symbol = TypeVar("Symbol", bound=Hashable)
LETTERS = "0123456789"


@checked
def huffman(weights: Mapping[Symbol, float] | Sequence[float], letters: Annotated[int, Range(2, len(LETTERS))] = 2) -> dict[Any, str]:
    """Symbol -> its word, for symbols with these probabilities or counts: the rarest nodes are merged repeatedly (Huffman 1952).

    Args:
        letters: how many different letters words are made of, 2 to 10; a symbol that never occurs has no word
    """
    table = dict(weights) if isinstance(weights, Mapping) else dict(enumerate(weights))
    if not table:
        raise BadInput("there is nothing to code", where="huffman", fix="give at least one symbol")
    for symbol, weight in table.items():
        if not (isinstance(weight, (int, float)) and 0 < weight < float("inf")):
            raise BadInput(f"symbol {symbol!r} has the weight {weight!r}", where="huffman", fix="give every symbol a number > 0")
    # (weight, order of creation, symbols of the subtree with their words); the order breaks ties, so the code is always the same.
    heap: list[tuple[float, int, dict[Any, str]]] = [(weight, i, {symbol: ""}) for i, (symbol, weight) in enumerate(table.items())]
    heapq.heapify(heap)
    # The last merge must use all letters, so the first one takes the remainder.
    take, born = 2 + (len(heap) - 2) % (letters - 1), len(heap)
    while len(heap) > 1:
        joined = [heapq.heappop(heap) for _ in range(min(take, len(heap)))]
        words = {symbol: letter + word for letter, (_, _, below) in zip(LETTERS, joined, strict=False) for symbol, word in below.items()}
        heapq.heappush(heap, (sum(weight for weight, _, _ in joined), born, words))
        take, born = letters, born + 1
    words = heap[0][2]
    return {symbol: words[symbol] or LETTERS[0] for symbol in table}  # a lone symbol still needs a letter to be counted


def mean_length(p: Any, lengths: Iterable[float]) -> float:
    """Mean length of words under probabilities p; the lengths may be those of a code made for another distribution."""
    p, lengths = probabilities(p), list(lengths)
    if p.shape != (len(lengths),):
        raise BadInput(f"{len(lengths)} lengths for probabilities of shape {tuple(p.shape)}", fix="give one length per outcome")
    return sum(float(probability) * float(length) for probability, length in zip(p.tolist(), lengths, strict=True) if probability)


def encode(message: Iterable[Symbol], code: Mapping[Symbol, str]) -> str:
    """The words of a message, one after the other."""
    words = []
    for position, symbol in enumerate(message):
        if symbol not in code:
            raise BadInput(f"symbol {symbol!r} at {position} has no word", where="encode", fix="make the code from all symbols")
        words.append(code[symbol])
    return "".join(words)


def decode(text: str, code: Mapping[Symbol, str]) -> list[Symbol]:
    """The symbols of a text; no word begins another, so they are found from left to right without separators."""
    symbols = {word: symbol for symbol, word in code.items()}
    decoded: list[Symbol] = []
    word = ""
    for letter in text:
        word += letter
        if word in symbols:
            decoded.append(symbols[word])
            word = ""
    if word:
        raise BadInput(
            f"the text ends inside a word, at '{word[:20]}'", where="decode", fix="give the whole text, and the code it was made with"
        )
    return decoded
