"""Fused CPU kernels in C behind torch custom ops.  Without them only speed changes, and rounding in the last digits.

Each is one file of C and one of Python.  Recurrences over a matrix state: `separable` (decay on the head, key and value
axes), `hadamard` (a decay of its own for every state entry) and `delta` (the delta rule).  Sequences otherwise: `attend`
(softmax attention of short sequences) and `gates` (RNN, GRU and LSTM).  Element by element: `activate` (SiLU and the tanh
form of GELU, with a gate).  Images: `normalize` (batch norm in training with what follows it).  Whole jobs: `decode` (one
token through a whole model) and `words` (passes of word2vec and GloVe over a text).
"""

from __future__ import annotations

from .library import available, level, runnable, why_not

__all__ = ["available", "level", "runnable", "why_not"]
