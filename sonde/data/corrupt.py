"""Self-supervised corruption of text: masked tokens, corrupted spans, next-sentence pairs.

Each function here returns an augmentation `(batch, generator) -> Batch` for `Recipe.augment`: whole batches at a time, drawing only
from the generator, which the engine makes from (seed, step).  `freeze_changes` fixes the corruption of a validation part.

B batch, T time, S spans of a row, N tokens of its spans.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, final

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from ..core.batch import Batch, Data, Source
from ..core.errors import BadInput, DataUnusable
from ..core.options import Range, checked
from ..core.seeds import generator
from .augment import Augmentation
from .tensors import TensorSource, fingerprint
from .text.documents import Ragged, as_indices, check_rows, length_mask
from .text.tokenizer import Tokenizer, sentinels, special


def hide(batch: Batch, chosen: Tensor, instead: Tensor | int) -> Batch:
    """Replace x at the chosen positions; y is the original, with the mask at these positions."""
    return batch.replace(x=torch.where(chosen, instead, batch.x), y=batch.x, mask=chosen)


@checked
def masking(
    tokenizer: Tokenizer, rate: Annotated[float, Range(above=0, most=1)] = 0.15, shares: tuple[float, float, float] = (0.8, 0.1, 0.1)
) -> Augmentation:
    """Masked language modeling: most of the chosen tokens are masked, some replaced by a random token, some unchanged [devlin2018].

    Special tokens, padding included, are never chosen, and never used as a replacement.

    Args:
        rate: fraction of the tokens chosen
        shares: fractions of the chosen tokens that are masked, replaced, unchanged
    """
    if min(shares) < 0 or abs(sum(shares) - 1) > 1e-6:
        raise BadInput(f"the fractions masked, replaced and unchanged must add up to 1, not {shares}", fix="try (0.8, 0.1, 0.1)")
    mask = special(tokenizer, "mask")
    special_ids = torch.tensor(sorted(tokenizer.specials.values()))
    plain = torch.arange(tokenizer.size)[~torch.isin(torch.arange(tokenizer.size), special_ids)]
    if not len(plain):
        raise BadInput("this tokenizer has special tokens only, so there is none to mask", fix="train it on text")

    def change(batch: Batch, rng: Generator) -> Batch:
        chosen, kind = torch.rand(2, *batch.x.shape, generator=rng)
        other = plain[torch.randint(len(plain), batch.x.shape, generator=rng)]
        instead = torch.where(kind < shares[0], mask, torch.where(kind < shares[0] + shares[1], other, batch.x))
        return hide(batch, (chosen < rate) & ~torch.isin(batch.x, special_ids), instead)

    return change


@checked
def span_corruption(
    tokenizer: Tokenizer, rate: Annotated[float, Range(above=0, below=1)] = 0.15, mean: Annotated[float, Range(1)] = 3.0
) -> Augmentation:
    """Span corruption: `source` has a sentinel in place of each span, y is the sentinels with their spans [raffel2020].

    Rows have no padding; all lose the same number of tokens and spans, so they have one shape.  Both sides end with the end
    token where there is one; the decoder's input x begins with the start token, or as in T5 with the pad token.

    Args:
        rate: fraction of the tokens cut out
        mean: mean number of tokens per span
    """
    marks, end = sentinels(tokenizer), tokenizer.specials.get("end")
    start = tokenizer.specials["start"] if "start" in tokenizer.specials else special(tokenizer, "pad")

    def change(batch: Batch, rng: Generator) -> Batch:
        x = batch.x
        lost, spans = span_numbers(x.shape[1], rate, mean)
        if spans > len(marks):
            raise BadInput(
                f"rows of {x.shape[1]} tokens have {spans} spans, the tokenizer has {len(marks)} sentinels",
                fix="train it with more of them",
            )
        if "lengths" in batch and int(batch.lengths.min()) < x.shape[1]:
            raise BadInput("span corruption needs rows without padding", fix="use windows of text, or packed rows")
        cut, first = _spans(len(x), x.shape[1], lost, spans, rng)
        mark = marks[(first.cumsum(1) - 1).clamp_min(0)]  # of the span at or before each position
        source = torch.where(first, mark, x)[~cut | first].view(len(x), -1)
        target = torch.stack([mark, x], 2)[torch.stack([first, cut], 2)].view(len(x), -1)  # a span's sentinel, then its tokens
        if end is not None:
            source, target = (F.pad(side, (0, 1), value=end) for side in (source, target))
        shifted = F.pad(target[:, :-1], (1, 0), value=start)
        lengths = torch.full((len(x),), source.shape[1])
        others = {name: field for name, field in batch.fields.items() if name == "ids"}
        return Batch(source=source, lengths=lengths, x=shifted, y=target, mask=torch.ones_like(target, dtype=torch.bool), **others)

    return change


def span_numbers(length: int, rate: float, mean: float) -> tuple[int, int]:
    """Number of tokens cut out of a row, and number of spans; at least one of each, with tokens left between."""
    if length < 2:
        raise BadInput(f"a row of {length} tokens is too short to mask a span", fix="use longer rows")
    lost = min(max(round(length * rate), 1), length - 1)
    return lost, min(max(round(lost / mean), 1), lost, length - lost)


def restore_spans(source: Tensor, target: Tensor, tokenizer: Tokenizer) -> Tensor:
    """The original row from one row of `source` and its spans."""
    marks, end = set(sentinels(tokenizer).tolist()), tokenizer.specials.get("end")
    spans: dict[int, list[int]] = {}
    for token in target.tolist():
        if token in marks:
            spans[token] = []
        elif token != end and spans:
            spans[next(reversed(spans))].append(token)
    return torch.tensor([token for left in source.tolist() if left != end for token in spans.get(left, [left])])


def _spans(rows: int, length: int, lost: int, spans: int, rng: Generator) -> tuple[Tensor, Tensor]:
    """Two masks (B, T): positions cut out, and the first position of each span; each row begins with a token that stays."""
    remaining = _parts(rows, length - lost, spans, rng)
    removed = _parts(rows, lost, spans, rng)
    stops = torch.stack([remaining, removed], 2).flatten(1).cumsum(1)  # (B, 2 S): ends of kept and cut spans in turn
    number = torch.zeros(rows, length + 1, dtype=torch.long).scatter_add_(1, stops, torch.ones_like(stops)).cumsum(1)[:, :-1]
    first = torch.zeros(rows, length, dtype=torch.bool).scatter_(1, stops[:, 0::2], torch.ones(rows, spans, dtype=torch.bool))
    return number % 2 == 1, first


def _parts(rows: int, total: int, parts: int, rng: Generator) -> Tensor:
    """(B, parts) positive integers that add up to the total, uniformly drawn."""
    cuts = 1 + torch.rand(rows, total - 1, generator=rng).argsort(1)[:, : parts - 1].sort(1).values
    return F.pad(F.pad(cuts, (1, 0)), (0, 1), value=total).diff(dim=1)


@final
class SentenceSource:
    """Every sentence with the next one: tokens `x` (B, A) and `next` (B, C), padded, with `lengths` and `next_lengths`.

    Sentences longer than `most` are truncated; a document with one sentence has no pair.
    """

    def __init__(self, documents: Sequence[Ragged], pad: int, most: int = 1 << 20) -> None:
        whole = Ragged.of([document[i] for document in documents for i in range(len(document))])
        check_rows(whole)
        self.rows, self.pad = whole.truncate(most), pad
        counts = torch.tensor([len(document) for document in documents])
        last = torch.zeros(len(whole), dtype=torch.bool)
        last[counts[counts > 0].cumsum(0) - 1] = True
        self.first = (~last).nonzero().flatten()
        if not len(self.first):
            raise DataUnusable("no document has two sentences", where="next-sentence pairs", fix="give documents of several sentences")

    def __len__(self) -> int:
        return len(self.first)

    def __getitem__(self, indices: Any) -> Batch:
        which = as_indices(indices, len(self))
        first = self.first[which]
        fields = {"x": first, "next": first + 1}
        tokens = {name: self.rows.pad(rows, self.pad) for name, rows in fields.items()}
        return Batch(**tokens, lengths=self.rows.lengths[first], next_lengths=self.rows.lengths[first + 1], ids=which)

    def fingerprint(self) -> str:
        return fingerprint({"values": self.rows.values, "bounds": self.rows.bounds, "first": self.first})


def next_sentence(tokenizer: Tokenizer, chance: float = 0.5) -> Augmentation:
    """Join sentences to `[CLS] first [SEP] second [SEP]`; the second is the next one, or with the given probability that of another row.

    The batch is one of a `SentenceSource`.  `kinds` (B, T) is 0 in the first sentence and 1 in the second, `follows` (B,) is 1
    where it is the next one.
    """
    cls, sep, pad = (special(tokenizer, name) for name in ("cls", "sep", "pad"))

    def change(batch: Batch, rng: Generator) -> Batch:
        rows = len(batch)
        offset = 1 + torch.randint(max(rows - 1, 1), (rows,), generator=rng)
        swapped = (torch.rand(rows, generator=rng) < chance) & (rows > 1)
        partner = torch.where(swapped, (torch.arange(rows) + offset) % rows, torch.arange(rows))
        second, lengths = batch.next[partner], batch.next_lengths[partner]
        x, kinds, whole = join_pair((batch.x, batch.lengths), (second, lengths), (cls, sep, pad))
        return Batch(x=x, kinds=kinds, lengths=whole, follows=(~swapped).long(), ids=batch.ids)

    return change


def join_pair(first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor], marks: tuple[int, int, int]) -> tuple[Tensor, Tensor, Tensor]:
    """`[CLS] first [SEP] second [SEP]` of padded rows with lengths: tokens (B, T), kinds (B, T) and lengths (B,); marks: cls, sep, pad."""
    (a, n), (b, m) = ((rows, lengths.unsqueeze(1)) for rows, lengths in (first, second))
    cls, sep, pad = marks
    position = torch.arange(int((n + m).max()) + 3).expand(len(a), -1)
    x = torch.where(position == 0, cls, a.gather(1, (position - 1).clamp(0, a.shape[1] - 1)))
    x = torch.where(position > n + 1, b.gather(1, (position - n - 2).clamp(0, b.shape[1] - 1)), x)
    x = torch.where((position == n + 1) | (position == n + m + 2), sep, x)
    whole = (n + m + 3).squeeze(1)
    valid = length_mask(whole, x.shape[1])
    return torch.where(valid, x, pad), ((position > n + 1) & valid).long(), whole


def freeze_changes(source: Source, change: Augmentation, seed: int) -> TensorSource:
    """A source with the augmentation applied once, so that every evaluation sees the same examples."""
    fields = dict(change(source[:], generator(seed, "fixed")).fields)
    return TensorSource(fields.pop("x"), **fields)  # type: ignore[arg-type]


def freeze_held_out(data: Data, change: Augmentation, seed: int) -> Data:
    """Data with the augmentation applied once to the validation and test parts."""
    parts: dict[str, Any] = {name: freeze_changes(source, change, seed) for name, source in data.splits.items() if name != "train"}
    return replace(data, **parts)
