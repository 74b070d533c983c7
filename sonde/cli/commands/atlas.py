"""Show or check the atlas: the lecture notes as running exhibits."""

from __future__ import annotations

from pathlib import Path

from ...core.errors import BadInput
from ...core.options import Option, Range
from .._options import by_name, option, parse

POSITION = 140
USAGE = "[ID | CHAPTER ...] [--check | --seeds N]"
EXAMPLES = ("sonde atlas", "sonde atlas CNN-12", "sonde atlas PAR CNN --check", "sonde atlas LM-16 --seeds 20")


def options() -> list[Option]:
    return [
        option("check", bool, False, "run the exhibits and compare the measured values with the expected ones; exit code 1 if one fails"),
        option(
            "seeds",
            int | None,
            None,
            "run each exhibit with this many seeds and show how far its numbers stay from their thresholds",
            Range(2, 1000),
        ),
        option("table", str, "", "with --seeds: write the margins to this file, replacing older ones of the same exhibits"),
        option("jobs", int, 2, "exhibits checked at the same time", Range(1, 256)),
    ]


def run(words: list[str]) -> int:
    from ...atlas import runner
    from ...atlas.index import chapters, select

    names, chosen = parse(words, by_name(options(), "sonde atlas"), "sonde atlas", max_words=300)
    select(names)  # refuse a wrong name before anything runs
    jobs = chosen.get("jobs", 2)
    if chosen.get("check") and "seeds" in chosen:
        raise BadInput("sonde atlas accepts --check or --seeds, not both", fix="leave one out")
    if "table" in chosen and "seeds" not in chosen:
        raise BadInput("--table of sonde atlas needs --seeds", fix="add --seeds 20")
    if chosen.get("check"):
        return runner.check(names or None, jobs=jobs)
    if "seeds" in chosen:
        return runner.distribution(names or None, chosen["seeds"], jobs, Path(chosen["table"]) if "table" in chosen else None)
    if "jobs" in chosen:
        raise BadInput("--jobs of sonde atlas needs --check or --seeds", fix="add one of them")
    if not names:
        runner.listing()
    codes = [_show(word.upper(), word.upper() in chapters()) for word in names]
    return max(codes, default=0)


def _show(word: str, chapter: bool) -> int:
    from ...atlas import runner

    if chapter:
        runner.listing(word)
        return 0
    return runner.show(word)
