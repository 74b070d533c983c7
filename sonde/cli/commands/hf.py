"""Load or save a model in Hugging Face format."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ...core.errors import BadInput, nearest
from ...core.options import Option, Range
from .._options import by_name, option, parse, usable

POSITION = 130
USAGE = "load FOLDER [--prompt TEXT] | save RUN FOLDER"
EXAMPLES = (
    "sonde hf save char_lm-001 my-model                  a trained run for other programs",
    "sonde hf load my-model                              check every tensor and describe the model",
    'sonde hf load my-model --prompt "ROMEO:" --length 40',
)


def options() -> list[Option]:
    return [
        option("prompt", str | None, None, "text for a loaded model to continue by greedy decoding"),
        option("length", int, 40, "maximum number of new tokens", Range(1)),
    ]


def run(words: list[str]) -> int:
    args, flags = parse(words, by_name(options(), "sonde hf"), "sonde hf", max_words=3)
    actions = {"load": 2, "save": 3}
    if not args or args[0] not in actions:
        message = f"sonde hf cannot '{args[0][:60]}'" if args else "sonde hf needs an action"
        raise BadInput(message, fix=nearest(args[0] if args else "", actions))
    if len(args) != actions[args[0]]:
        raise BadInput(f"sonde hf {args[0]} takes {actions[args[0]] - 1} names, not {len(args) - 1}", fix=f"write: sonde hf {USAGE}")
    if args[0] == "load":
        return _load(usable(Path(args[1]), "FOLDER"), flags.get("prompt"), flags.get("length", 40))
    if flags:
        raise BadInput(f"sonde hf save has no option --{next(iter(flags))}", fix="leave it out")
    return _save(usable(Path(args[1]), "RUN"), usable(Path(args[2]), "FOLDER"))


def _load(folder: Path, prompt: str | None, length: int) -> int:
    from ...models import hf
    from ...models.published import size

    model: Any
    model, tokenizer = hf.load(folder)
    words = "no tokenizer" if tokenizer is None else f"a tokenizer of {tokenizer.size:,} tokens ({tokenizer.level})"
    about = f"{type(model).__name__} of {size(model):,} weights, {model.vocabulary:,} tokens, width {model.width}, {words}"
    if prompt is None:
        print(f"{folder.name}: {about}")
        return 0
    if tokenizer is None or not hasattr(model, "advance"):
        raise BadInput(f"this {type(model).__name__} with {words} cannot continue a text", where="--prompt", fix="leave --prompt out")
    from ...generate.text import complete, translate

    if hasattr(model, "begin"):
        print(translate(model, [prompt], (tokenizer, tokenizer), length)[0])
    else:
        print(prompt + complete(model, tokenizer, [prompt], length, temperature=0)[0])
    return 0


def _save(name: Path, folder: Path) -> int:
    from ...runs.layout import find

    path = find(name).path
    from ...api.run import open_run
    from ...models import hf

    trained = open_run(path)
    hf.save(trained.model(), folder, getattr(trained.data.reader, "vocabulary", None))
    print(f"{trained.name} -> {folder}: {', '.join(sorted(path.name for path in folder.iterdir()))}")
    return 0
