"""Names that changed after version 0.1.0.  An old name is refused with the new one; records of old runs are translated.

`sonde upgrade FILE` rewrites a recipe file with these tables.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Container, Iterable
from typing import Any

FIELDS = {"batch": "batch_size", "clip": "clip_norm", "evaluate_batch": "evaluate_batch_size", "watch": "monitor"}
"""fields of a Recipe, and options of recipes, that mean something else elsewhere"""
OPTIONS = {"file": "data", "folder": "data", "text": "data"}
"""options of recipes by which a user's files came in"""
VALUES = {"sentiment": {"data": {"toy": "toy_sentiment"}}}
"""recipe -> option -> values that have another name"""
RUN_OPTIONS = ("precision",)
"""options of recipes that every run has now"""
NAMES = {
    "colour": "color",
    "initialise": "initialize",
    "initialiser": "initializer",
    "judging": "discriminator_steps",
    "neighbours": "neighbors",
    "optimiser": "optimizer",
    "penalised": "penalized",
    "standardise": "standardize",
    "standardise_target": "standardize_target",
    "unlabelled": "unlabeled",
}
"""options, arguments, plug-ins and functions"""
PYTHON = {
    "Dial": "Option",
    "Optimiser": "Optimizer",
    "Penalised": "Penalized",
    "Tokeniser": "Tokenizer",
    "dials": "options_of",
    "shelf": "registry",
    "tokeniser": "tokenizer",
}
"""further names of Python"""
MODULES = {
    "sonde.core.dials": "sonde.core.options",
    "sonde.core.shelf": "sonde.core.registry",
    "sonde.data.catalogue": "sonde.data.catalog",
    "sonde.data.corpora": "sonde.data.text.corpora",
    "sonde.data.corpus": "sonde.data.text.token_folder",
    "sonde.data.documents": "sonde.data.text.documents",
    "sonde.data.pairs": "sonde.data.text.pairs",
    "sonde.data.shards": "sonde.data.text.shards",
    "sonde.data.tokeniser": "sonde.data.text.tokenizer",
    "sonde.data.tokenizer": "sonde.data.text.tokenizer",
    "sonde.engine.api": "sonde",
    "sonde.engine.rundir": "sonde.runs.layout",
    "sonde.engine.sweep": "sonde.api.sweeps",
    "sonde.gradients._rules": "sonde.gradients.vjp",
    "sonde.kernels.normalise": "sonde.kernels.normalize",
    "sonde.lenses._draw": "sonde.report.draw",
    "sonde.lenses._tiny": "sonde.lenses.tools.tiny",
    "sonde.lenses._untouched": "sonde.lenses.tools.readonly",
    "sonde.objectives.penalised": "sonde.objectives.penalized",
    "sonde.optim.initialise": "sonde.optim.initialize",
}
IMPORTS = {
    "sonde.core.batch": {"ask": "call_model"},
    "sonde.data.corrupt": {"fixed": "freeze_changes", "joined": "join_pair", "restored": "restore_spans"},
    "sonde.data.documents": {"moved_on": "shift_targets", "packed": "pack"},
    "sonde.generate": {"Step": "GenerationStep", "ranked": "rank_answers"},
    "sonde.lenses._untouched": {
        "answers": "predict_labels",
        "fitting": "applicable",
        "hooked": "hook_outputs",
        "leaves": "leaf_modules",
        "untouched": "preserve_state",
        "written_out": "without_kernels",
    },
    "sonde.kernels.states": {"Renewed": "RecurrentState", "Rooms": "KVCache", "held_in": "get_tensor", "unfit": "cannot_decode"},
    "sonde.models.diffusion": {"signal_share": "alphas_cumprod"},
    "sonde.models.language_model": {"refuse_ahead": "require_causal"},
    "sonde.models.published": {"published": "published_model"},
    "sonde.models.seq2seq": {"Lookup": "SourceAttention"},
    "sonde.nn.adapters": {"learning": "trainable_names"},
    "sonde.nn.mixers._parts": {"advanced": "advance_position", "divides": "width_per_head", "rotated": "rotate"},
    "sonde.nn.threshold": {"Step": "StepActivation"},
    "sonde.optim.rules._rule": {"Rule": "OptimizerRule", "asked": "evaluate_closure"},
    "sonde.nn.recurrence": {"normalized": "normalize", "watching": "record_recurrences"},
}
"""common words that count as old names only where a file imports them from these modules"""

TENSORS = {
    "ahead": ("forward_mixer", "forward_layers"),
    "back": ("backward_mixer", "backward_layers"),
    "clock": ("time_embedding",),
    "into": ("in_proj",),
    "keep": ("mask",),
    "kept": ("alphas_cumprod",),
    "kinds": ("segments",),
    "lookup": ("attention",),
    "now": ("time_first",),
    "read": ("C",),
    "says": ("net",),
    "select": ("x_proj",),
    "share": ("time_mix",),
    "skip": ("D",),
    "straight": ("shortcut",),
    "token": ("class_token",),
    "turn": ("A_imag", "linear"),
}
"""modules, parameters and buffers of models: a part of a key in an old checkpoint, and what it may be now"""

GAN = {"forge": "generator", "judge": "discriminator"}
"""terms of a GAN: where a row has both and 'fake', 'valid/judge' is 'valid/discriminator'"""


def present(name: str, known: Iterable[str]) -> str | None:
    """The present name of something, where `name` is an old one and `known` has the new one; dashes are kept as they are typed."""
    bare = str(name).lstrip("-")
    new = {**FIELDS, **NAMES, **OPTIONS}.get(bare.replace("-", "_"))
    if new is None:
        return None
    spelled = {new, new.replace("_", "-"), f"--{new.replace('_', '-')}"}
    return next((one for one in known if one in spelled), None)


def in_text(text: str) -> bool:
    """Whether a source names something of Sonde's that has another name now."""
    # A module that was renamed in its folder is found by its own name; one that moved, by its full path, since its name is too common.
    modules = (
        old.rpartition(".")[2] if old.rpartition(".")[0] == new.rpartition(".")[0] else re.escape(old) for old, new in MODULES.items()
    )
    return re.search(rf"\b({'|'.join({*NAMES, *PYTHON, *modules})})\b", text) is not None or any(
        re.search(rf"from {re.escape(module)} import [^\n]*\b({'|'.join(names)})\b", text) for module, names in IMPORTS.items()
    )


def record(info: dict[str, Any]) -> dict[str, Any]:
    """run.json in its present format."""
    if info.get("format") != 1:
        return _move_options(info)
    recipe, dials = info.get("recipe"), info.get("dials")
    if isinstance(recipe, dict) and "name" in recipe and isinstance(dials, dict):  # a user's own file keeps the names of its options
        dials = {{**FIELDS, **NAMES, **OPTIONS}.get(name, name): value for name, value in dials.items()}
        values = VALUES.get(recipe["name"], {})
        dials = {name: values.get(name, {}).get(value, value) if isinstance(value, str) else value for name, value in dials.items()}
    unchanged = {name: value for name, value in info.items() if name not in ("dials", "options")}
    return _move_options({**unchanged, "format": 2, "options": dials, "run_options": info.get("options")})


def _move_options(info: dict[str, Any]) -> dict[str, Any]:
    """What was an option of one of our recipes and is now one of every run, under the options of the run."""
    recipe, options, run_options = (info.get(part) for part in ("recipe", "options", "run_options"))
    if not (isinstance(recipe, dict) and "name" in recipe and isinstance(options, dict) and isinstance(run_options, dict)):
        return info
    moved = {name: options[name] for name in RUN_OPTIONS if name in options}
    kept = {name: value for name, value in options.items() if name not in moved}
    return {**info, "options": kept, "run_options": {**run_options, **moved}} if moved else info


def result(body: Any) -> Any:
    """result.json with the present name of its metrics."""
    if not isinstance(body, dict) or "figures" not in body:
        return body
    body = {"metrics" if name == "figures" else name: value for name, value in body.items()}
    return {**body, "metrics": event(body["metrics"])} if isinstance(body["metrics"], dict) else body


def event(row: dict[str, Any]) -> dict[str, Any]:
    """A row of events.jsonl or metrics.jsonl with present names."""
    if "learnt" in row:
        return {"learned" if name == "learnt" else name: value for name, value in row.items()}
    parts = [name.removesuffix("judge") for name in row if name.endswith("/judge")]
    new = {f"{part}{old}": f"{part}{term}" for part in parts if {f"{part}forge", f"{part}fake"} <= row.keys() for old, term in GAN.items()}
    return {new.get(name, name): value for name, value in row.items()} if new else row


def tensor(name: str, known: Container[str]) -> str:
    """The present name of a tensor in a checkpoint, where `known` has the names of the model's tensors; else `name` as it is."""
    if name in known:
        return name
    choices = itertools.product(*((part, *TENSORS.get(part, ())) for part in name.split(".")))
    return next((new for choice in choices if (new := ".".join(choice)) in known), name)


def reading(body: dict[str, Any], fields: Container[str]) -> dict[str, Any]:
    """A saved reading with the fields of its kind; version 0.1.0 had them in `extra`, together with further results."""
    extra = body.get("extra")
    if not isinstance(extra, dict):
        return body
    body = {name: value for name, value in body.items() if name != "extra"}
    results = {name: value for name, value in extra.items() if name not in fields}
    extra = {name: list(value) if name == "log" else value for name, value in extra.items() if name in fields and value is not None}
    return {**body, **extra, "results": results}
