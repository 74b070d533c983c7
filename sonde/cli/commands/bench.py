"""Measure what things cost on this machine: `sonde bench mixers` for every mixer and form against length."""

from __future__ import annotations

import sys
from pathlib import Path

from ...core import shelf
from ...core.dials import Dial, Range
from ...core.errors import BadInput, nearest
from .._options import by_name, option, parse

USAGE = "mixers [NAME ...] [--forms FORM ...] [--lengths N ...] [--out FILE.png]"
EXAMPLES = (
    "sonde bench mixers",
    "sonde bench mixers gla mamba2 attention --lengths 256 1024 4096 16384",
    "sonde bench mixers mamba --forms fused scan --backward",
)
LENGTHS = (128, 512, 2048)


def options() -> list[Dial]:
    return [
        option("forms", tuple[str, ...] | None, None, "forms to measure; default: all a mixer has"),
        option("lengths", tuple[int, ...], LENGTHS, "lengths of the sequence", Range(1, 2**20)),
        option("width", int, 256, "numbers per token", Range(8, 2**14)),
        option("batch", int, 1, "sequences at once", Range(1, 2**12)),
        option("backward", bool, False, "time the backward pass too"),
        option("threads", int, 0, "threads; 0: as many as torch takes by itself", Range(0, 4096)),
        option("limit", float, 2.0, "seconds; a form that takes longer is not tried at a greater length", Range(above=0)),
        option("out", Path | None, None, "picture to write; default: none"),
    ]


def run(words: list[str]) -> int:
    plain, given = parse(words, by_name(options(), "sonde bench"), "sonde bench", most=200)
    values = {one.name: given.get(one.name, one.default) for one in options()}
    if not plain or plain[0] != "mixers":
        raise BadInput(f"sonde bench cannot measure {plain[0][:40] if plain else 'nothing'}", fix="write: sonde bench mixers")
    names = [shelf.check("nn.mixers", name) for name in plain[1:]] or shelf.names("nn.mixers")
    for name, example in (("lengths", "--lengths 128 512 2048"), ("forms", "--forms fused chunk")):
        if values[name] == ():
            raise BadInput(f"--{name} of sonde bench is empty", fix=f"such as {example}, or leave it out")
    import torch

    from ...lenses._draw import draw
    from ...lenses._mixers import readings, sweep
    from ...nn.mixers import mixer
    from ...nn.recurrence import FORMS
    from .._readings import text

    for form in values["forms"] or ():
        if form not in FORMS:
            raise BadInput(f"no form '{form}'", where="--forms", fix=nearest(form, FORMS))
    if values["threads"]:
        torch.set_num_threads(values["threads"])
    lengths = sorted(values["lengths"])
    rows = []
    torch.manual_seed(0)
    made = {name: mixer(name, values["width"], **({"max_len": lengths[-1]} if name == "linformer" else {})) for name in names}
    for row in sweep(made, values["forms"] or (), lengths, values["batch"], values["backward"], values["limit"]):
        rows.append(row)
        if sys.stderr.isatty():
            done = names.index(row.mixer) + 1
            print(f"\r\x1b[K{done}/{len(names)}  {row.mixer} {row.form}, {row.length} steps", end="", file=sys.stderr, flush=True)
    if sys.stderr.isatty():
        print("\r\x1b[K", end="", file=sys.stderr)
    found = readings(rows, values["batch"])
    print(text(found[0]))
    if values["out"]:
        for reading, path in zip(found[1:], (values["out"], values["out"].with_stem(values["out"].stem + "-memory"))):
            draw(reading, path)
            print(path)
    return 0
