"""Generate text with a trained language or translation model."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ...core.errors import BadInput
from ...core.options import Option, Range, options_of
from .._options import by_name, flag, option, parse, usable

if TYPE_CHECKING:
    from ...data.text.tokenizer import Tokenizer

POSITION = 120
USAGE = "RUN --prompt TEXT [--length N] [options]"
EXAMPLES = (
    'sonde generate char_lm-001 --prompt "ROMEO:" --length 400 --temperature 0.8',
    r'sonde generate char_lm-001 --prompt "ROMEO:" --beams 4 --stop "\n\n"',
)
LENGTH = 400


def options() -> list[Option]:
    from ...generate.sampling import Sampling

    return [
        option("prompt", str | None, None, "text to continue, or to translate"),
        option("length", int | None, None, f"maximum number of new tokens; default {LENGTH}, or as many as the model supports", Range(1)),
        *options_of(Sampling).values(),
        option("stop", tuple[str, ...], (), r"stop before one of these texts; \n is a newline"),
        option("samples", int, 1, "number of texts to generate", Range(1, 10_000)),
        option("beams", int | None, None, "beam search with this many beams instead of sampling", Range(1, 1000)),
        option("weights", Literal["int8"] | None, None, "int8 stores weights as 8-bit integers: faster, with slightly different outputs"),
    ]


def run(words: list[str]) -> int:
    from ...generate.sampling import Sampling
    from ...runs.layout import find

    known = by_name(options(), "sonde generate")
    args, flags = parse(words, known, "sonde generate", max_words=1)
    if not args:
        raise BadInput("sonde generate needs a run", fix=f"write: sonde generate {USAGE}")
    values = {name: flags.get(name, option.default) for name, option in known.items()}
    sampling = {name: value for name, value in flags.items() if name in options_of(Sampling)}
    beams, samples = values["beams"], values["samples"]
    if beams is not None and sampling:
        raise BadInput(f"{flag(next(iter(sampling)))} is for sampling and has no effect with --beams", fix="leave one of them out")
    if beams is not None and samples > beams:
        raise BadInput(f"--beams {beams} gives at most {beams} texts, not {samples}", where="--samples", fix=f"use --beams {samples}")
    folder = find(usable(Path(args[0]), "RUN"))
    from ...api.run import open_run

    trained = open_run(folder.path)
    tokenizer = getattr(trained.data.reader, "vocabulary", None)
    model: Any = trained.model()
    if tokenizer is None or not hasattr(model, "advance"):
        raise BadInput(f"run '{trained.name}' is not a language model", fix="train one, for example: sonde train char_lm")
    from ...data.text.tokenizer import check_fits

    check_fits(tokenizer, getattr(model, "vocabulary", tokenizer.size), f"run '{trained.name}'")
    print("\n---\n".join(_texts(model, trained.data.reader, values)))
    return 0


def _texts(model: Any, reader: Any, values: dict[str, Any]) -> list[str]:
    """The generated texts; a single one is printed as it is generated, and only its rest is returned."""
    from ...generate import Sampling, Stop, beam, steps
    from ...generate.sample import max_length
    from ...generate.stop import no_text
    from ...generate.text import decode_answer, read_prompt, start_decoding, write_texts

    tokenizer: Tokenizer = reader.vocabulary
    source: Tokenizer = getattr(reader, "source", tokenizer)
    text, beams = values["prompt"] or "", values["beams"]
    encoder_decoder = hasattr(model, "begin")
    rows = read_prompt(source if encoder_decoder else tokenizer, text, "--prompt").repeat(1 if beams else values["samples"], 1)
    state, shown = None, text
    if encoder_decoder:
        rows, state = start_decoding(model, [text] * len(rows), source, tokenizer)
        shown = ""
    ends = tuple(number for name, number in tokenizer.specials.items() if name == "end")
    texts = tuple(one.replace("\\n", "\n") for one in values["stop"])
    stop = Stop(end=ends, texts=texts, tokenizer=tokenizer, barred=no_text(tokenizer))
    limit = max_length(model)
    _warn_of_length(rows.shape[1], getattr(reader, "length", None), limit)
    new = values["length"] or (LENGTH if limit is None else max(min(LENGTH, limit - rows.shape[1] + 1), 1))
    if beams is not None:
        hypotheses = beam(model, rows, new, beams=beams, stop=stop, state=state, weights=values["weights"])
        return [shown + decode_answer(tokenizer, rows[0], best, stop) for best in hypotheses.tokens[0, : values["samples"]]]
    generated = steps(
        model, rows, new, state=state, stop=stop, weights=values["weights"], **{name: values[name] for name in options_of(Sampling)}
    )
    if len(rows) > 1:
        return [shown + continuation for continuation in write_texts(generated, rows, tokenizer, stop)]
    waiting = [shown]  # printed with the first new text, so that an error is printed alone

    def emit(row: int, piece: str) -> None:
        sys.stdout.write("".join(waiting) + piece)
        sys.stdout.flush()
        waiting.clear()

    write_texts(generated, rows, tokenizer, stop, emit)
    return ["".join(waiting)]


def _warn_of_length(tokens: int, context: int | None, limit: int | None) -> None:
    """Warn if a prompt is longer than the training context; one longer than the model supports is an error elsewhere."""
    if context is not None and context < tokens <= (limit or tokens):
        message = f"the prompt has {tokens} tokens and the run was trained on windows of {context}; the output may be poor"
        print(f"warning: {message}", file=sys.stderr)
