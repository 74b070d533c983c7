"""Digests of everything a revision of Sonde computes, as JSON lines; `identical.py` runs it once for each revision.

    python _digests.py KIND NAME [NAME ...]        KIND: recipes, recipes-2 (two processes), mixers, lenses, exhibits

Names of tensors, metrics and readings do not enter a digest: a refactor may rename them.  Numbers, their order in a list,
shapes and dtypes do.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import json
import struct
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

HOMES = {
    "registry": ("core.registry", "core.shelf"),
    "exhibit": ("atlas.exhibit", "atlas._exhibit"),
    "options": ("core.options", "core.dials"),
    "tensors": ("core.tensors",),
}
"""modules by what they hold, the present name first"""
FORMS = ("step", "fused", "parallel", "chunk", "scan")
RENAMED_OPTIONS = {"data": ("data", "file", "folder"), "pairs": ("data", "pairs"), "unlabeled": ("unlabeled", "unlabelled")}


def module(key: str) -> Any:
    """A module under the first of its names that this revision has."""
    for name in HOMES[key]:
        if importlib.util.find_spec(f"sonde.{name}") is not None:
            return importlib.import_module(f"sonde.{name}")
    raise ModuleNotFoundError(f"this revision has none of {', '.join(HOMES[key])}")


def names(kind: str) -> list[str]:
    """What there is of a kind in this revision."""
    if kind == "exhibits":
        exhibit = module("exhibit")
        return list((getattr(exhibit, "exhibits", None) or exhibit.found)())
    return module("registry").names({"recipes-2": "recipes", "mixers": "nn.mixers"}.get(kind, kind))


# -- digests


def digest(value: Any) -> str:
    """A hash of the numbers in a value; texts and names count for nothing."""
    return hashlib.sha256(_bytes(value)).hexdigest()[:16]


def _bytes(value: Any) -> bytes:
    if isinstance(value, (bool, np.bool_)):
        return b"b" + bytes([value])
    if isinstance(value, (int, np.integer)):
        return b"i" + str(int(value)).encode()
    if isinstance(value, (float, np.floating)):
        return b"f" + struct.pack("<d", float(value))
    if isinstance(value, torch.Tensor):
        array = value.detach().cpu().contiguous()
        return f"t{array.dtype}{tuple(array.shape)}".encode() + array.reshape(-1).view(torch.uint8).numpy().tobytes()
    if isinstance(value, np.ndarray):
        return f"a{value.dtype}{value.shape}".encode() + value.tobytes()
    if isinstance(value, Mapping):
        return b"{" + b",".join(sorted(hashlib.sha256(_bytes(item)).digest() for item in value.values())) + b"}"
    if isinstance(value, (list, tuple)):
        return b"[" + b",".join(_bytes(item) for item in value) + b"]"
    return b"-"


# -- what is compared


class FirstExamples:
    """The first hundred of a source: a few steps need no more to be evaluated."""

    def __init__(self, source: Any) -> None:
        self.source = source

    def __len__(self) -> int:
        return min(100, len(self.source))

    def __getitem__(self, indices: Any) -> Any:
        return self.source[indices]

    def fingerprint(self) -> str:
        return self.source.fingerprint()


def own_files(folder: Path) -> dict[str, dict[str, Any]]:
    """Options of recipes that need a user's file, or are slow without them."""
    from PIL import Image

    random = np.random.default_rng(0)
    rows = [f"{a:.3f},{b:.3f},{'yes' if a > b else 'no'}" for a, b in random.normal(size=(40, 2))]
    (folder / "table.csv").write_text("first,second,answer\n" + "\n".join(rows) + "\n", encoding="utf-8")
    for label, name in enumerate(("dark", "light")):
        (folder / "images" / name).mkdir(parents=True)
        for i in range(12):
            pixels = random.integers(100 * label, 100 * label + 100, (11, 13), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / "images" / name / f"{i}.png")
    return {
        "table": {"data": folder / "table.csv", "target": "answer"},
        "images": {"data": folder / "images", "size": 16},
        "sentiment": {"unlabeled": 0},
        "stacked": {"passes": 1},
        "translate": {"pairs": "toy", "width": 32},
    }


def present(function: Any, options: dict[str, Any]) -> dict[str, Any]:
    """Options under the names that this revision's function takes."""
    known = set(function.__code__.co_varnames[: function.__code__.co_argcount + function.__code__.co_kwonlyargcount])
    return {next(old for old in RENAMED_OPTIONS.get(name, (name,)) if old in known): value for name, value in options.items()}


def recipe_digests(name: str, processes: int) -> Iterator[tuple[str, str]]:
    """Four steps of a recipe: final weights, optimizer state, random states and metric rows."""
    import sonde

    tensors = module("tensors")
    with tempfile.TemporaryDirectory(prefix="sonde-identical-") as folder:
        function = module("registry").load("recipes", name).recipe
        options = present(function, own_files(Path(folder)).get(name, {}))
        recipe = function(**module("options").resolve(function, options, name)).replace(steps=4, epochs=None, log_every=1, evaluate_every=2)
        data = recipe.build_data()
        few = {part: FirstExamples(source) for part, source in data.splits.items() if part != "train"}
        recipe = recipe.replace(data=dataclasses.replace(data, **few))
        run = sonde.train(
            recipe, run=Path(folder, "run"), seed=3, threads=1, processes=processes, shards=processes, quiet=True, checkpoint_every=2
        )
        yield "metrics", digest([dict(row) for row in run.metrics])
        last = max(Path(folder, "run", "checkpoints").glob("step-*"))
        for path in sorted(last.glob("*.safetensors")):
            yield path.stem, digest(dict(tensors.decode(path.read_bytes())))


def mixer_digests(name: str) -> Iterator[tuple[str, str]]:
    """Outputs, end state and gradients of a tiny mixer in every form."""
    for form in FORMS:
        torch.manual_seed(1)
        layer = module("registry").load("nn.mixers", name).tiny()
        with torch.no_grad():
            for parameter in layer.parameters():
                parameter += 0.1 * torch.randn_like(parameter)
        x = torch.randn(2, 37, layer.width, requires_grad=True)
        try:
            y, state = layer.use(form)(x)
        except Exception as error:
            yield form, f"refused: {type(error).__name__}"
            continue
        y.square().sum().backward()
        gradients = {key: parameter.grad for key, parameter in layer.named_parameters() if parameter.grad is not None}
        yield form, digest([y, x.grad, dict(state) if state is not None else None, gradients])


def lens_digests(name: str) -> Iterator[tuple[str, str]]:
    """Numbers of the readings of a lens on its tiny subject."""
    lens = module("registry").load("lenses", name)
    readings = lens.read(lens.tiny())
    for number, reading in enumerate(readings if isinstance(readings, list) else [readings]):
        yield f"reading {number}", digest([reading.values])


def exhibit_digests(name: str) -> Iterator[tuple[str, str]]:
    """Numbers that the expectations of an exhibit compare, and those of its readings."""
    result = module("exhibit").run(name)
    yield "findings", digest([[finding.passed, finding.values, finding.bound] for finding in result.findings] or result.error)
    for number, reading in enumerate(result.readings):
        yield f"reading {number}", digest([reading.values])


KINDS = {
    "recipes": lambda name: recipe_digests(name, 1),
    "recipes-2": lambda name: recipe_digests(name, 2),
    "mixers": mixer_digests,
    "lenses": lens_digests,
    "exhibits": exhibit_digests,
}


def main(kind: str, selected: list[str]) -> None:
    torch.set_num_threads(1)
    if not selected:
        print(json.dumps(names(kind)))
        return
    for name in selected:
        torch.manual_seed(0)
        np.random.seed(0)
        try:
            digests = dict(KINDS[kind](name))
        except Exception as error:  # the other revision must fail in the same way
            digests = {"error": f"{type(error).__name__}: {error}"[:300]}
        print(json.dumps({"name": name, "digests": digests}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
