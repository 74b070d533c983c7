"""Text to a tensor of tokens, against `tokenizers` called directly: the same tokens, the ratio of the times.

    python benchmarks/tokenization.py [FILE] [--rounds 5]

Direct means what one writes without us: `encode` of the whole text, or `encode_batch` of its lines, and a tensor of the ids.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

from sonde.data import fetch
from sonde.data.text.tokenizer import Subwords, train
from sonde.data.text.windows import SHAKESPEARE, library


def seconds(work: Callable[[], torch.Tensor]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def main() -> None:
    ask = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ask.add_argument("file", nargs="?", type=Path, default=fetch.find(*SHAKESPEARE))
    ask.add_argument("--rounds", type=int, default=5)
    args = ask.parse_args()
    text = args.file.read_text(encoding="utf-8") if args.file else "\n".join(one for _, one in library())[: 1 << 21]
    tokenizer = train("bpe", [text], 8000)
    assert isinstance(tokenizer, Subwords)
    theirs, lines = tokenizer.tokenizer, text.splitlines(keepends=True)

    def one_by_one() -> torch.Tensor:
        return torch.tensor(theirs.encode(text, add_special_tokens=False).ids)

    def in_lines() -> torch.Tensor:
        return torch.cat([torch.tensor(one.ids) for one in theirs.encode_batch(lines, add_special_tokens=False)])

    ways = {
        "whole text": (lambda: tokenizer.encode(text), one_by_one),
        "many lines": (lambda: tokenizer.encode_all(lines)[0], in_lines),
    }
    print(f"{len(text):,} characters, {len(one_by_one()):,} tokens")
    for name, (ours, direct) in ways.items():
        assert torch.equal(ours().long(), direct())
        times = [(seconds(ours), seconds(direct)) for _ in range(args.rounds)]
        a, b = (statistics.median(column) for column in zip(*times))
        print(f"{name}: sonde {len(text) / a / 1e6:.2f} MB/s, tokenizers {len(text) / b / 1e6:.2f} MB/s, ratio {b / a:.2f}")


if __name__ == "__main__":
    main()
