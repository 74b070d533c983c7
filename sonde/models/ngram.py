"""n-gram model: the next token from counts of the n-1 tokens before it (Shannon 1948).

    none        c(h w) / c(h)
    add         (c(h w) + k) / (c(h) + k V)
    backoff     (c(h w) - D) / c(h) for words seen after h, a(h) p(w; h') for the others   (Katz 1987, one discount D)
    kneser-ney  (c(h w) - D[c(h w)]) / c(h) + g(h) p(w; h')     (interpolated and modified: Chen and Goodman 1999, eq. 27)

h is the context, h' the same without its oldest token, c counts, V the size of the vocabulary; a(h), g(h) make the row sum
to 1, and the order below single tokens is uniform, 1/V.  In kneser-ney all orders but the highest count in how many contexts a gram
occurs.  All four are one form,  p(w; h) = own(h w) + rest(h) p(w; h'),  so one table serves them all.

Grams are stored as a trie in sorted arrays: the key of a gram of m tokens is (index of its first m-1 tokens) V + (last token),
an integer that stays small at any order; lookup is a binary search, counting is sorting.

B batch, T time, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..core.batch import Batch
from ..core.errors import BadInput
from ..core.options import Count, checked
from ..nn.recurrence import State
from ..nn.spans import Spans
from ._recent import NONE, check_tokens, continue_from

Smoothing = Literal["none", "add", "backoff", "kneser-ney"]


class Grams(NamedTuple):
    """All different grams of one length m, by increasing key."""

    keys: Tensor
    """(G,) index of the first m-1 tokens among the grams of that length, times V, plus the last token"""
    counts: Tensor
    """(G,) how often each occurs"""
    shorter: Tensor
    """(G,) index of the gram without its oldest token"""
    parent: Tensor
    """(G,) index of the gram without its last token, which is its context"""
    contexts: int
    """how many contexts there are"""


@final
class Ngram(nn.Module):
    """An n-gram language model: counts of a text.

    Args:
        tokens: the text (N,), or a list of documents; no gram reaches over the end of one
        vocabulary: vocabulary size
        order: n, the length of the longest grams; the model looks at n-1 tokens
        smoothing: how unseen grams get probability; with 'none' they have 0
        k: pseudo-count of 'add'

    Only 'add' uses no shorter contexts: it predicts 1/V after an unseen context, the others back off to a shorter one.
    """

    @checked
    def __init__(
        self, tokens: Tensor | Sequence[Tensor], vocabulary: Count, order: Count = 3, smoothing: Smoothing = "kneser-ney", k: float = 1.0
    ) -> None:
        super().__init__()
        if smoothing == "add" and not k > 0:
            raise BadInput(f"k must be above 0, not {k!r}", where="Ngram", fix="use smoothing='none' to add nothing")
        self.vocabulary, self.order, self.chained = vocabulary, order, smoothing != "add"
        text = check_tokens(_join_documents(tokens), vocabulary, "Ngram", lowest=NONE)
        if not bool((text >= 0).any()):
            raise BadInput("there is no text to count", where="Ngram", fix="give at least one token")
        levels = self._count_grams(text)
        chances = below = torch.full((1,), 1 / vocabulary, dtype=torch.float64)  # of any token, before one is counted
        for m, grams in enumerate(levels):
            if smoothing == "kneser-ney" and m + 1 < order:
                grams = grams._replace(counts=torch.bincount(levels[m + 1].shorter, minlength=len(grams.keys)))
            lower = chances[grams.shorter] if self.chained else below.expand(len(grams.keys))
            own, rest = _discount_counts(grams, lower, smoothing, k, vocabulary)
            chances = own + rest[grams.parent] * lower
            # One more entry, at index -1, for everything unseen: it has no probability of its own and passes all on.
            self.register_buffer(f"keys{m}", torch.cat([grams.keys, grams.keys.new_full((1,), torch.iinfo(torch.long).max)]))
            self.register_buffer(f"own{m}", F.pad(own, (0, 1), value=0))
            self.register_buffer(f"rest{m}", F.pad(rest, (0, 1), value=1))

    def forward(self, tokens: Tensor, *, spans: Spans | None = None) -> Tensor:
        """tokens (B, T) -> log-probabilities of the next token (B, T, V), float64."""
        return self.advance(tokens, spans=spans)[0]

    def advance(self, tokens: Tensor, state: State | None = None, *, spans: Spans | None = None) -> tuple[Tensor, State]:
        """The same, continuing from the state of an earlier call: the last n-1 tokens."""
        keep = self.order - 1
        return continue_from(lambda joined: self._rows(joined)[:, keep:].log(), keep, self._check(tokens, 2), state, spans)

    def log_probs(self, contexts: Tensor) -> Tensor:
        """contexts (B, L) of any length, 0 too -> log-probabilities of the next token (B, V)."""
        recent = F.pad(self._check(contexts, 2), (self.order, 0), value=NONE)
        return self._rows(recent[:, -self.order :])[:, -1].log()

    def scores(self, tokens: Tensor | Sequence[Tensor]) -> Tensor:
        """The log-probability of each token after those before it; documents follow each other in one row."""
        text = self._check(_join_documents(tokens), 1)
        grams, known, first = self._find_grams(text), _context_lengths(text), text.new_full((1,), NONE)
        chance = below = torch.full(text.shape, 1 / self.vocabulary, dtype=torch.float64, device=text.device)
        for m in range(self.order):
            context = torch.cat([first, grams[m][:-1]]) if m else grams[0]
            new = self._part("own", m)[grams[m + 1]] + self._part("rest", m)[context] * (chance if self.chained else below)
            chance = torch.where(known > m, new, chance)
        return chance[text >= 0].log()

    def perplexity(self, tokens: Tensor | Sequence[Tensor]) -> float:
        """exp of the mean of -log p over all tokens; infinite where one has the probability 0."""
        return float((-self.scores(tokens).mean()).exp())

    def match_lengths(self, tokens: Tensor) -> Tensor:
        """tokens (T,) -> at each position the length of the longest gram ending there that occurred in training, from 0 to n."""
        return torch.stack([grams >= 0 for grams in self._find_grams(self._check(tokens, 1))[1:]]).sum(0)

    def coverage(self, tokens: Tensor) -> list[float]:
        """Fraction of the grams of a row of tokens (T,) seen in training, for 1, 2, ... n tokens; NaN where the row is too short."""
        matched = self.match_lengths(tokens)
        return [float((matched[m:] > m).double().mean()) for m in range(self.order)]

    def _count_grams(self, text: Tensor) -> list[Grams]:
        """Grams of 1 ... n tokens."""
        grams, before, contexts = [], torch.zeros_like(text), 1
        for m in range(self.order):
            gram_keys = self._keys(before, text, m)
            there = gram_keys >= 0
            keys, which, counts = torch.unique(gram_keys[there], return_inverse=True, return_counts=True)
            shorter = torch.zeros_like(keys).scatter(0, which, before[there])  # every occurrence says the same
            grams.append(Grams(keys, counts, shorter, keys // self.vocabulary, contexts))
            before, contexts = torch.full_like(text, NONE).masked_scatter(there, which), len(keys)
        return grams

    def _find_grams(self, tokens: Tensor) -> list[Tensor]:
        """Indices (..., T) of the grams of 0, 1, ... n tokens that end at each position; -1 for unseen ones."""
        indices = [torch.zeros_like(tokens)]
        for m in range(self.order):
            gram_keys, keys = self._keys(indices[m], tokens, m), self._part("keys", m)
            position = torch.searchsorted(keys, gram_keys)
            indices.append(torch.where(keys[position] == gram_keys, position, NONE))
        return indices

    def _keys(self, before: Tensor, tokens: Tensor, m: int) -> Tensor:
        """Keys (..., T) of the grams of m+1 tokens that end at each position, from the indices of those of m tokens; or -1."""
        parent = F.pad(before[..., :-1], (1, 0), value=NONE) if m else before
        return torch.where((parent >= 0) & (tokens >= 0), parent * self.vocabulary + tokens, NONE)

    def _rows(self, tokens: Tensor) -> Tensor:
        """tokens (B, T) -> probabilities of the next token (B, T, V)."""
        grams, known = self._find_grams(tokens), _context_lengths(tokens)
        row = below = torch.full((*tokens.shape, self.vocabulary), 1 / self.vocabulary, dtype=torch.float64, device=tokens.device)
        for m in range(self.order):
            new = self._own_probabilities(grams[m], m) + self._part("rest", m)[grams[m]].unsqueeze(-1) * (row if self.chained else below)
            row = torch.where((known >= m).unsqueeze(-1), new, row)
        return row

    def _own_probabilities(self, contexts: Tensor, m: int) -> Tensor:
        """Probability that each context (..., T) gives directly to the tokens seen after it: (..., T, V)."""
        keys, flat = self._part("keys", m), contexts.flatten()
        # The grams of one context are contiguous.
        start, stop = (torch.searchsorted(keys, (flat + step) * self.vocabulary) for step in (0, 1))
        count = stop - start
        row = torch.arange(len(flat), device=flat.device).repeat_interleave(count)
        gram = torch.arange(len(row), device=flat.device) + (start - count.cumsum(0) + count)[row]
        own = self._part("own", m)
        return own.new_zeros(len(flat), self.vocabulary).index_put((row, keys[gram] % self.vocabulary), own[gram]).view(*contexts.shape, -1)

    def _part(self, name: str, m: int) -> Tensor:
        return self.get_buffer(f"{name}{m}")

    def _check(self, tokens: Tensor, axes: int) -> Tensor:
        if tokens.dim() != axes:
            expected = "(batch, time)" if axes == 2 else "one row (time,)"
            raise BadInput(f"tokens are {expected}, not {tuple(tokens.shape)}", where="Ngram", fix="give token numbers")
        return check_tokens(tokens, self.vocabulary, "Ngram", lowest=NONE)


def _discount_counts(grams: Grams, lower: Tensor, smoothing: Smoothing, k: float, vocabulary: int) -> tuple[Tensor, Tensor]:
    """own (G,) and rest (contexts,) of one length; `lower` (G,) is the probability of each gram's last token after the shorter context."""

    def total(numbers: Tensor) -> Tensor:
        return torch.zeros(grams.contexts, dtype=torch.float64).index_add(0, grams.parent, numbers.double())

    counts, parent = grams.counts.double(), grams.parent
    all_, seen = total(counts), total(counts > 0)
    some = all_.clamp_min(1)  # a context that only occurs at the start of the text has no counts of its own and passes all on
    if smoothing == "none":
        return counts / some[parent], (all_ == 0).double()
    if smoothing == "add":
        return counts / (all_ + k * vocabulary)[parent], k * vocabulary / (all_ + k * vocabulary)
    if smoothing == "kneser-ney":
        taken = _discounts(grams.counts)[grams.counts.clamp_max(3)]
        return (counts - taken) / some[parent], torch.where(all_ > 0, total(taken) / some, 1)
    # A context after which every token occurred needs no discount: there is no unseen token to give it to.
    taken = _discount(grams.counts) * (seen[parent] < vocabulary).double()
    others = torch.where(seen < vocabulary, 1 - total(lower), 1)
    rest = torch.where(all_ > 0, total(taken) / some / others, 1)
    return (counts - taken) / some[parent] - rest[parent] * lower, rest  # the backed-off mass reaches seen tokens too: subtracted here


def _times(counts: Tensor) -> list[float]:
    """How many grams occur 0, 1, 2, 3, 4 times."""
    return torch.bincount(counts.clamp_max(5), minlength=5)[:5].tolist()


def _discount(counts: Tensor) -> float:
    """The discount Y = n1 / (n1 + 2 n2); a half where the text is too small to estimate it."""
    _, once, twice, *_ = _times(counts)
    return once / (once + 2 * twice) if once and twice else 0.5


def _discounts(counts: Tensor) -> Tensor:
    """Discounts of counts of 0, 1, 2, and 3 or more: i - (i + 1) Y n[i+1] / n[i].

    Where a text is so small that one n is 0, Y from each; where this is not above 0, Y too: a context that gave nothing away
    would leave unseen tokens the probability 0.
    """
    times, one = _times(counts), _discount(counts)
    taken = [i - (i + 1) * one * times[i + 1] / times[i] if all(times[1:]) else one for i in (1, 2, 3)]
    return torch.tensor([0.0, *(discount if discount > 0 else one for discount in taken)], dtype=torch.float64)


def _context_lengths(tokens: Tensor) -> Tensor:
    """Number of tokens (..., T) of the same document up to each position, itself included."""
    position = torch.arange(1, tokens.shape[-1] + 1, device=tokens.device)
    return position - torch.where(tokens < 0, position, 0).cummax(-1).values


def _join_documents(tokens: Tensor | Sequence[Tensor]) -> Tensor:
    """One row of all documents, with a -1 between two."""
    if isinstance(tokens, Tensor):
        return tokens
    if not len(tokens):
        raise BadInput("there is no text", where="Ngram", fix="give at least one document")
    gap = tokens[0].new_full((1,), NONE, dtype=torch.long)
    return torch.cat([part for document in tokens for part in (document.long(), gap)][:-1])


def tiny() -> tuple[Ngram, Batch]:
    """A small working instance with input."""
    rng = torch.Generator().manual_seed(0)
    return Ngram(torch.randint(5, (60,), generator=rng), 5, 2), Batch(x=torch.randint(5, (5, 7), generator=rng))
