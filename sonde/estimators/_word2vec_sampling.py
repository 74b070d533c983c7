"""Alternatives to the full softmax of word2vec: negative sampling and hierarchical softmax."""

from __future__ import annotations

import numpy as np

from ..kernels.words import Noise, Tree

TOP = 0xFFFFFFFF
"""the largest number of 32 bits"""


def build_noise(counts: np.ndarray, negatives: int, power: float = 0.75) -> Noise:
    """Negative samples in proportion to count^power, drawn by the alias method: one column, one comparison."""
    level = counts.astype(np.float64) ** power
    level *= len(counts) / level.sum()
    probability, alias = np.ones(len(counts)), np.arange(len(counts), dtype=np.int32)
    poor, rich = [list(np.flatnonzero(side)[::-1]) for side in (level < 1, level >= 1)]
    while poor and rich:
        small, large = poor.pop(), rich[-1]
        probability[small], alias[small] = level[small], large
        level[large] -= 1 - level[small]
        if level[large] < 1:
            poor.append(rich.pop())
    return Noise(np.minimum(probability * (TOP + 1), TOP).astype(np.uint32), alias, negatives)


def build_tree(counts: np.ndarray) -> Tree:
    """The Huffman tree of words sorted by falling count: frequent words have short paths."""
    V = len(counts)
    weight = np.concatenate([counts, np.zeros(V - 1, counts.dtype)]).tolist()
    parent, left = np.zeros(2 * V - 1, np.int64), np.zeros(2 * V - 1, bool)
    leaf, inner = V - 1, V  # the lightest leaf, and the lightest node, that have no parent yet
    for node in range(V, 2 * V - 1):
        for side in (True, False):
            if leaf >= 0 and (inner >= node or weight[leaf] <= weight[inner]):
                child, leaf = leaf, leaf - 1
            else:
                child, inner = inner, inner + 1
            parent[child], left[child] = node, side
            weight[node] += weight[child]
    word, at = np.arange(V), np.arange(V)
    steps = []
    while len(word):  # all words climb at once, and leave at the root
        steps.append((word, parent[at] - V, left[at]))
        at = parent[at]
        word, at = word[at < 2 * V - 2], at[at < 2 * V - 2]
    words, nodes, labels = (np.concatenate(part) for part in zip(*steps, strict=True))
    order = np.argsort(words, kind="stable")
    first = np.concatenate([[0], np.cumsum(np.bincount(words, minlength=V))]).astype(np.int64)
    return Tree(first, nodes[order].astype(np.int32), labels[order].astype(np.uint8))


def keep_probabilities(counts: np.ndarray, sample: float) -> np.ndarray:
    """Subsampling of frequent words: the probability to keep a word of frequency f, (sqrt(f / sample) + 1) sample / f, times 2^32.

    A sample of 0 keeps all words.
    """
    if not sample:
        return np.full(len(counts), TOP, np.uint32)
    ratio = counts / (sample * counts.sum())
    return (np.minimum((np.sqrt(ratio) + 1) / ratio, 1) * TOP).astype(np.uint32)
