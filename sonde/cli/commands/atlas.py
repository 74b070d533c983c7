"""Show or check the atlas: the lecture notes as running exhibits."""

from __future__ import annotations

from ...core.dials import Dial, Range
from ...core.errors import BadInput
from .._options import by_name, option, parse

USAGE = "[ID | CHAPTER ...] [--check]"
EXAMPLES = ("sonde atlas", "sonde atlas CNN-12", "sonde atlas PAR CNN --check")


def options() -> list[Dial]:
    return [
        option("check", bool, False, "run the exhibits and compare what they measure with what is claimed; exit 1 where one fails"),
        option("jobs", int, 2, "exhibits checked at the same time", Range(1, 256)),
    ]


def run(words: list[str]) -> int:
    from ...atlas import _runner
    from ...atlas._index import chapters, select

    wanted, given = parse(words, by_name(options(), "sonde atlas"), "sonde atlas", most=300)
    select(wanted)  # a wrong name is told before anything runs
    if given.get("check"):
        return _runner.check(wanted or None, jobs=given.get("jobs", 2))
    if "jobs" in given:
        raise BadInput("--jobs of sonde atlas goes with --check", fix="add --check")
    if not wanted:
        _runner.listing()
    codes = [_show(word.upper(), word.upper() in chapters()) for word in wanted]
    return max(codes, default=0)


def _show(word: str, chapter: bool) -> int:
    from ...atlas import _runner

    if chapter:
        _runner.listing(word)
        return 0
    return _runner.show(word)
