"""Generated sequences with known targets, which test the memory of a sequence model.

Every set draws from the seed alone.  A batch has tokens x (B, T), targets y (B, T) and a mask (B, T) that is true where a target
counts; targets are never in x.  `n` counts training sequences; there are a tenth as many for validation, and for the test.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, final

import torch
from torch import Generator, Tensor

from ..core.batch import Batch, Data, Source
from ..core.errors import BadInput
from ..core.options import Range
from ..core.seeds import generator
from .corrupt import hide
from .tensors import TensorSource, fingerprint

ExampleCount = Annotated[int, Range(10, 10_000_000)]
SequenceLength = Annotated[int, Range(2, 65_536)]
SymbolCount = Annotated[int, Range(2, 4096)]

Drawn = tuple[Tensor, Tensor, Tensor]
"""x, y and mask"""


def recall(seed: int = 0, n: ExampleCount = 20_000, pairs: SymbolCount = 8, keys: SymbolCount = 32) -> Data:
    """Pairs of a key and a value, then the keys in another order: predict the value of each.

    Args:
        n: sequences to train on
        pairs: pairs to remember at once
        keys: different keys, and as many different values
    """
    if pairs > keys:
        raise BadInput(f"{pairs} pairs need as many different keys, not {keys}", where="data set 'recall'", fix=f"set keys={pairs} or more")

    def draw(n: int, rng: Generator) -> Drawn:
        key = torch.rand(n, keys, generator=rng).argsort(1)[:, :pairs]
        value = keys + torch.randint(keys, (n, pairs), generator=rng)
        order = torch.rand(n, pairs, generator=rng).argsort(1)
        context = torch.stack([key, value], 2).flatten(1)
        return _question_batch(context, key.gather(1, order), value.gather(1, order))

    return _data("recall", seed, n, draw, [f"key {i}" for i in range(keys)] + [f"value {i}" for i in range(keys)])


def copying(
    seed: int = 0,
    n: ExampleCount = 20_000,
    length: SequenceLength = 64,
    items: SymbolCount = 8,
    symbols: SymbolCount = 8,
    selective: bool = True,
) -> Data:
    """Symbols among blanks, then as many marks: repeat the symbols in order.

    Args:
        n: sequences to train on
        length: tokens before the marks
        items: symbols to remember
        symbols: different symbols
        selective: the symbols are at random positions; otherwise at the beginning, where a fixed delay is enough
    """
    if items > length:
        raise BadInput(f"{items} items do not fit into {length} positions", where="data set 'copying'", fix=f"set length={items} or more")

    def draw(n: int, rng: Generator) -> Drawn:
        symbol = 2 + torch.randint(symbols, (n, items), generator=rng)
        position = torch.arange(items).expand(n, -1)
        if selective:
            position = torch.rand(n, length, generator=rng).argsort(1)[:, :items].sort(1).values
        context = torch.zeros(n, length, dtype=torch.long).scatter(1, position, symbol)
        return _question_batch(context, torch.ones_like(symbol), symbol)

    return _data("copying", seed, n, draw, ["blank", "mark", *(f"symbol {i}" for i in range(symbols))])


def reset(
    seed: int = 0, n: ExampleCount = 20_000, length: SequenceLength = 64, top: SymbolCount = 8, chance: Annotated[float, Range(0, 1)] = 0.05
) -> Data:
    """Ones, other tokens and resets: at each position, the number of ones since the last reset (at most `top`).

    Args:
        n: sequences to train on
        length: tokens of a sequence
        top: largest count; further ones do not raise it
        chance: probability of a reset token
    """

    def draw(n: int, rng: Generator) -> Drawn:
        x = torch.randint(2, (n, length), generator=rng)
        x[torch.rand(n, length, generator=rng) < chance] = 2
        total = (x == 1).cumsum(1)
        before = torch.where(x == 2, total, 0).cummax(1).values  # ones up to the last reset
        return x, 3 + (total - before).clamp_max(top), torch.ones_like(x, dtype=torch.bool)

    return _data("reset", seed, n, draw, ["other", "one", "reset", *map(str, range(top + 1))])


def parity(
    seed: int = 0, n: ExampleCount = 20_000, length: SequenceLength = 32, modulus: SymbolCount = 2, longer: Annotated[int, Range(1, 64)] = 4
) -> Data:
    """Digits: at each position, the sum so far modulo a number; test sequences are longer than training sequences.

    Args:
        n: sequences to train on
        length: tokens of a sequence
        modulus: 2 is the parity of the ones
        longer: length of a test sequence, as a multiple of `length`
    """

    def of(length: int) -> Callable[[int, Generator], Drawn]:
        def draw(n: int, rng: Generator) -> Drawn:
            x = torch.randint(modulus, (n, length), generator=rng)
            return x, modulus + x.cumsum(1) % modulus, torch.ones_like(x, dtype=torch.bool)

        return draw

    tokens = [*map(str, range(modulus)), *(f"sum {i}" for i in range(modulus))]
    return _data("parity", seed, n, of(length), tokens, test=of(length * longer))


def in_context(seed: int = 0, n: ExampleCount = 20_000, shots: SymbolCount = 12, keys: SymbolCount = 6, values: SymbolCount = 6) -> Data:
    """Keys and values in turn, with a new mapping in every sequence: predict the value of each key that appeared before.

    The weights cannot memorize the mapping: the answer is in the sequence.

    Args:
        n: sequences to train on
        shots: pairs of a key and its value; the last key always appeared before
        keys: different keys
        values: different values
    """

    def draw(n: int, rng: Generator) -> Drawn:
        rule = keys + torch.randint(values, (n, keys), generator=rng)
        key = torch.randint(keys, (n, shots), generator=rng)
        key[:, -1] = key[:, :-1].gather(1, torch.randint(shots - 1, (n, 1), generator=rng)).squeeze(1)
        value = rule.gather(1, key)
        same = (key.unsqueeze(2) == key.unsqueeze(1)).tril(-1).any(2)  # (n, shots): the key appeared before
        mask = torch.stack([same, torch.zeros_like(same)], 2).flatten(1)
        return torch.stack([key, value], 2).flatten(1), torch.stack([value, torch.zeros_like(value)], 2).flatten(1), mask

    return _data("in_context", seed, n, draw, [f"key {i}" for i in range(keys)] + [f"value {i}" for i in range(values)])


def tagging(seed: int = 0, n: ExampleCount = 20_000, length: SequenceLength = 16, symbols: SymbolCount = 8) -> Data:
    """Symbols: is each one smaller than the next?  It depends on the next token.

    Args:
        n: sequences to train on
        length: tokens of a sequence
        symbols: different symbols
    """

    def draw(n: int, rng: Generator) -> Drawn:
        x = torch.randint(symbols, (n, length), generator=rng)
        y = symbols + (x < x.roll(-1, 1)).long()
        return x, y, (torch.arange(length) < length - 1).expand_as(x)

    return _data("tagging", seed, n, draw, [*map(str, range(symbols)), "not smaller", "smaller"])


def _question_batch(context: Tensor, questions: Tensor, answers: Tensor) -> Drawn:
    """A context, then questions; only the questions have targets."""
    x = torch.cat([context, questions], 1)
    return x, torch.cat([torch.zeros_like(context), answers], 1), (torch.arange(x.shape[1]) >= context.shape[1]).expand_as(x)


def _data(
    name: str,
    seed: int,
    n: int,
    draw: Callable[[int, Generator], Drawn],
    tokens: Sequence[str],
    test: Callable[[int, Generator], Drawn] | None = None,
) -> Data:
    def part(which: str, n: int, draw: Callable[[int, Generator], Drawn]) -> TensorSource:
        x, y, mask = draw(n, generator(seed, name, which))
        return TensorSource(x, y, mask=mask)

    few = max(n // 10, 1)
    parts = part("train", n, draw), part("valid", few, draw), part("test", few, test or draw)
    return Data(*parts, name=name, task="other", classes=tuple(tokens))


@final
class MaskedSource:
    """Windows of text with some tokens masked: x has the mask token there, y the original, and the mask is true there.

    Which tokens are masked depends on the seed and the window alone.
    """

    def __init__(self, windows: Source, token: int, rate: float = 0.15, seed: int = 0) -> None:
        self.windows, self.token = windows, token
        shape = (len(windows), windows[:1].x.shape[1])
        self.hidden = torch.rand(shape, generator=generator(seed, "hidden")) < rate

    def __len__(self) -> int:
        return len(self.windows)

    def __getitem__(self, indices: Any) -> Batch:
        batch = self.windows[indices]
        return hide(batch, self.hidden[batch.ids], self.token)

    def fingerprint(self) -> str:
        return fingerprint({"hidden": self.hidden, "token": torch.tensor(self.token)}) + self.windows.fingerprint()
