"""Let a trained language model go on with a text."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from ...core.dials import Dial, Range
from ...core.errors import BadInput
from .._options import by_name, option, parse, usable

USAGE = "RUN --prompt TEXT [--length N] [--temperature X] [--top-k N] [--seed N]"
EXAMPLES = ('sonde generate char_lm-001 --prompt "ROMEO:" --length 400 --temperature 0.8',)


def options() -> list[Dial]:
    return [
        option("prompt", str, "", "text to begin with"),
        option("length", int, 400, "tokens to add", Range(1, 10**9)),
        option("temperature", float, 1.0, "below 1 prefers likely tokens; 0 always takes the likeliest", Range(0, 100)),
        option("top_k", int | None, None, "draw among so many likeliest tokens", Range(least=1)),
        option("seed", int, 0, "of the draws"),
    ]


def run(words: list[str]) -> int:
    from ...engine.rundir import find

    known = by_name(options(), "sonde generate")
    found, given = parse(words, known, "sonde generate", most=1)
    if not found:
        raise BadInput("sonde generate needs a run", fix=f"sonde generate {USAGE}")
    asked = {name: given.get(name, dial.default) for name, dial in known.items()}
    folder = find(usable(Path(found[0]), "RUN"))
    from ...engine.api import open_run

    trained = open_run(folder.path)
    vocabulary = getattr(trained.data.reader, "vocabulary", None)
    model: Any = trained.model()
    if vocabulary is None or not hasattr(model, "advance"):
        raise BadInput(f"run '{trained.name}' did not learn to go on with a text", fix="train one: sonde train char_lm")
    from ...generate import generate

    prompt = vocabulary.encode(asked["prompt"]).long()
    strange = sorted({char for char, token in zip(asked["prompt"], prompt.tolist()) if token == 0 and vocabulary.level == "char"})
    if strange:
        raise BadInput(f"the run never saw {strange[0]!r} of the prompt", where="--prompt", fix="use characters of its text")
    if not len(prompt):
        raise BadInput("the prompt is empty", where="--prompt", fix="give at least one character: --prompt TEXT")
    print(asked["prompt"], end="", flush=True)
    settings = {name: asked[name] for name in ("temperature", "top_k", "seed")}
    generate(model, prompt.unsqueeze(0), asked["length"], stream=_teller(vocabulary), **settings)
    print()
    return 0


def _teller(vocabulary: Any) -> Any:
    """Prints each token as it comes; bytes wait until they make a character."""
    import codecs

    decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def tell(tokens: Any) -> None:
        token = tokens[0]
        sys.stdout.write(decoder.decode(bytes([int(token)])) if vocabulary.level == "byte" else vocabulary.decode(token.view(1)))
        sys.stdout.flush()

    return tell
