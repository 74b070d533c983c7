"""Tables for training word2vec without a full softmax: negative samples, a Huffman tree, and subsampling of frequent words.

Mikolov et al., Distributed Representations of Words and Phrases and their Compositionality, 2013.
"""

from __future__ import annotations

import numpy as np

from ..kernels.words import Noise, Tree

MAX_UINT32 = 0xFFFFFFFF
"""probabilities are stored as fractions of it, to be compared with 32 random bits"""


def build_noise(counts: np.ndarray, negatives: int, power: float = 0.75) -> Noise:
    """The table from which negative samples are drawn in proportion to count^power.

    It is an alias table (Walker, 1977; Vose, 1991): pick a column i at random, then take i with probability[i], else alias[i].

    Args:
        counts: how often each word occurs (V,)
        negatives: negative samples for each true pair
        power: 0 draws all words equally often, 1 by their frequency
    """
    scaled = counts.astype(np.float64) ** power
    scaled *= len(counts) / scaled.sum()
    probability, alias = np.ones(len(counts)), np.arange(len(counts), dtype=np.int32)
    below_mean, above_mean = [list(np.flatnonzero(side)[::-1]) for side in (scaled < 1, scaled >= 1)]
    while below_mean and above_mean:
        small, large = below_mean.pop(), above_mean[-1]
        probability[small], alias[small] = scaled[small], large
        scaled[large] -= 1 - scaled[small]
        if scaled[large] < 1:
            below_mean.append(above_mean.pop())
    return Noise(np.minimum(probability * (MAX_UINT32 + 1), MAX_UINT32).astype(np.uint32), alias, negatives)


def build_tree(counts: np.ndarray) -> Tree:
    """The Huffman tree for hierarchical softmax: frequent words have short paths.

    Args:
        counts: how often each word occurs (V,), in descending order
    """
    V = len(counts)
    weight = np.concatenate([counts, np.zeros(V - 1, counts.dtype)]).tolist()
    parent, left = np.zeros(2 * V - 1, np.int64), np.zeros(2 * V - 1, bool)
    leaf, inner = V - 1, V  # the leaf and the inner node with the smallest weight among those without a parent
    for node in range(V, 2 * V - 1):
        for side in (True, False):
            if leaf >= 0 and (inner >= node or weight[leaf] <= weight[inner]):
                child, leaf = leaf, leaf - 1
            else:
                child, inner = inner, inner + 1
            parent[child], left[child] = node, side
            weight[node] += weight[child]
    word, node_of_word = np.arange(V), np.arange(V)
    steps = []
    while len(word):  # go up one level from all words at once; a word is done at the root, node 2 V - 2
        steps.append((word, parent[node_of_word] - V, left[node_of_word]))
        node_of_word = parent[node_of_word]
        unfinished = node_of_word < 2 * V - 2
        word, node_of_word = word[unfinished], node_of_word[unfinished]
    words, nodes, labels = (np.concatenate(part) for part in zip(*steps, strict=True))
    order = np.argsort(words, kind="stable")
    first = np.concatenate([[0], np.cumsum(np.bincount(words, minlength=V))]).astype(np.int64)
    return Tree(first, nodes[order].astype(np.int32), labels[order].astype(np.uint8))


def keep_probabilities(counts: np.ndarray, sample: float) -> np.ndarray:
    """Subsampling of frequent words: the probability of keeping each word, as a 32-bit integer.

    For a word with the relative frequency f it is (sqrt(f / sample) + 1) sample / f, at most 1.

    Args:
        counts: how often each word occurs (V,)
        sample: the threshold, `sample` in gensim; 0 keeps all words
    """
    if not sample:
        return np.full(len(counts), MAX_UINT32, np.uint32)
    ratio = counts / (sample * counts.sum())
    return (np.minimum((np.sqrt(ratio) + 1) / ratio, 1) * MAX_UINT32).astype(np.uint32)
