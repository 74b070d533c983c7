"""Turn text files into token shards that a model trains on."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Literal

from ...core.errors import BadInput, nearest
from ...core.options import Option, Range
from .._options import by_name, option, parse, usable

POSITION = 30
USAGE = "tokens FILE ... --out DIR [--tokenizer KIND] [--size N] [--documents WHAT]"
EXAMPLES = (
    "sonde data tokens novels/*.txt --out novels-bpe    sub-words learned from the text",
    "sonde data tokens log.txt.gz --out log --tokenizer byte --documents line",
    "sonde data tokens more.txt --out more --tokenizer novels-bpe/tokenizer.json",
)


def options() -> list[Option]:
    return [
        option("out", Path | None, None, "folder for the shards; give the same command again to continue"),
        option("tokenizer", str, "bpe", "byte, char, words, bpe, wordpiece, unigram, or the path of a tokenizer.json"),
        option("size", int, 8000, "vocabulary size of a new tokenizer", Range(2, 10**9)),
        option("documents", Literal["file", "line", "paragraph"], "file", "what counts as one document"),
        option("specials", tuple[str, ...], ("pad", "unknown", "end"), "special tokens by name; 'end' follows each document"),
        option("shard", int, 16, "megabytes of text in a shard", Range(1, 10**9)),
        option("processes", int | None, None, "shards made in parallel; default: one per core", Range(1, 4096)),
    ]


def run(words: list[str]) -> int:
    known = by_name(options(), "sonde data")
    args, flags = parse(words, known, "sonde data", max_words=1 << 20)
    if not args or args[0] != "tokens":
        fix = nearest(args[0], ["tokens"]) if args else f"sonde data {USAGE}"
        raise BadInput(f"sonde data cannot make '{args[0]}'" if args else "sonde data needs something to make", fix=fix)
    values = {name: flags.get(name, option.default) for name, option in known.items()}
    files = [usable(Path(word), "FILE") for word in args[1:]]
    if not files or values["out"] is None:
        raise BadInput("sonde data tokens needs text files and --out DIR", fix=f"write: sonde data {USAGE}")
    import os

    from ...data.text.shards import ShardOptions, prepare

    what = ShardOptions(values["tokenizer"], values["size"], values["documents"], values["shard"] << 20, values["specials"])
    processes = values["processes"] or len(os.sched_getaffinity(0))
    with _progress(values["out"].name) as show_progress:
        info = prepare(files, values["out"], what, processes, show_progress)
    print(f"{values['out']}: {info['tokens']:,} tokens, {info['documents']:,} documents, {len(info['shards'])} shards of {info['dtype']}")
    return 0


def _progress(name: str) -> Any:
    """A progress bar with rate and time left; nothing where the output is not a terminal."""
    from contextlib import contextmanager

    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    @contextmanager
    def show() -> Any:
        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
        with Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty()) as bar:
            task = bar.add_task(name, total=None)
            yield lambda done, total: bar.update(task, completed=done, total=total)

    return show()
