"""Checks that every lens must pass, for your own lens too: `check_lens("./my_lens.py")`.

A lens is a file with a function `read` that inspects a subject (model, batch, objective, metrics) and returns readings: tables and
pictures as data.  It must change nothing, be deterministic, and refuse subjects that it does not apply to.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch

from ..core import registry
from ..core.errors import BadInput
from ..core.options import options_of
from ..core.reading import Reading, Subject
from ..report.draw import draw, svg
from ._contract import Plugin, load, plugin_name, require, required_function, run

RESERVED = ("self", "lens", "split", "first")
"""arguments of `Run.look`, which are not allowed as options of a lens"""


def check_lens(plugin: Plugin) -> None:
    """Check a lens, given by name, by the path of its file or as a module; `tiny()` in it returns a small `Subject`."""
    module = load("lenses", plugin)
    run(plugin_name(module), CHECKS, module)


def look(module: ModuleType, subject: Subject) -> list[Reading]:
    """Apply a lens to a subject: its readings, always as a list."""
    readings = required_function(module, "read")(subject)
    readings = readings if isinstance(readings, list) else [readings]
    wrong = [type(reading).__name__ for reading in readings if not isinstance(reading, Reading)]
    require(not wrong, f"read returns {', '.join(wrong)}, not Reading")
    return readings


def tiny(module: ModuleType) -> Subject:
    """The small subject that a lens provides for these checks."""
    subject = required_function(module, "tiny")()
    require(isinstance(subject, Subject), f"tiny() returns {type(subject).__name__}, not Subject")
    return subject


def declares_what_it_is(module: ModuleType) -> None:
    """Its file has a docstring and the functions read(subject, ...), why_not(subject) and tiny(); options have help texts.

    A lens with a dict REPORT is part of the HTML report of a run: at this position, under this section, on this many examples.
    """
    require(bool(module.__doc__), "the file has no docstring")
    read = required_function(module, "read")
    required_function(module, "why_not")
    known = options_of(read, f"lens '{plugin_name(module)}'")
    require(next(iter(known), "") == "subject", "the first argument of read is not 'subject'")
    for name, option in list(known.items())[1:]:
        require(name not in RESERVED, f"its option '{name}' is an argument of `Run.look`; rename it")
        require(not option.is_required, f"its option '{name}' has no default")
        require(bool(option.help), f"its option '{name}' has no line 'name: text' in the docstring of read")
    report = getattr(module, "REPORT", {"position": 0})
    kinds = {"position": int, "section": str, "examples": int}
    is_valid = isinstance(report, dict) and "position" in report and all(isinstance(report[key], kinds.get(key, ())) for key in report)
    require(is_valid, f'REPORT must be like {{"position": 30}}, optionally with "section" (text) and "examples" (a number), not {report!r}')


def state_of(model: Any) -> dict[str, Any]:
    """Everything a lens could change, as plain values."""
    if model is None:
        return {"random states": random_states()}
    return {
        "random states": random_states(),
        "weights and buffers": {name: tensor.clone() for name, tensor in model.state_dict().items()},
        "gradients": {name: None if p.grad is None else p.grad.clone() for name, p in model.named_parameters()},
        "training modes": {name: module.training for name, module in model.named_modules()},
        "hooks": {name: (len(m._forward_hooks), len(m._forward_pre_hooks), len(m._backward_hooks)) for name, m in model.named_modules()},
        "requires_grad": {name: p.requires_grad for name, p in model.named_parameters()},
    }


def random_states() -> tuple[Any, ...]:
    """States of the global generators of torch, NumPy and Python."""
    return torch.get_rng_state().tolist(), str(np.random.get_state()), random.getstate()


def is_same(a: Any, b: Any) -> bool:
    """Whether two nested values are equal, tensors bit for bit."""
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(is_same(a[key], b[key]) for key in a)
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    return bool(a == b)


def changes_nothing(module: ModuleType) -> None:
    """It does not change the model, gradients, modes, hooks, batch or random states."""
    for training, gradients in ((True, True), (False, False), (True, False)):
        subject = tiny(module)
        model = subject.model
        if model is not None:
            model.train(training)
            if training and (first := next(model.children(), None)) is not None:
                first.eval()  # a module in another mode must keep it
            if gradients:
                for parameter in model.parameters():
                    parameter.grad = torch.ones_like(parameter)
        grads = [] if model is None else [p.grad for p in model.parameters()]
        fields = {} if subject.batch is None else {field: subject.batch.get(field).clone() for field in subject.batch}
        before = state_of(model)
        look(module, subject)
        after = state_of(model)
        changed = [name for name in before if not is_same(before[name], after[name])]
        require(not changed, f"it changes {', '.join(changed)} of the model")
        same_tensors = model is None or all(old is p.grad for old, p in zip(grads, model.parameters(), strict=True))
        require(same_tensors, "it replaces gradient tensors")
        require(subject.batch is None or is_same(fields, dict(subject.batch.fields)), "it changes the batch")


def tiny_touches_no_random_state(module: ModuleType) -> None:
    """Its tiny() does not use a global random generator."""
    before = random_states()
    tiny(module)
    require(before == random_states(), "a global random state changed; use `preserve_state`")


def is_deterministic(module: ModuleType) -> None:
    """Two readings of the same subject are equal, also of a model in training mode."""
    subject = tiny(module)
    if subject.model is not None:
        subject.model.train()
    first, second = ([reading.to_json() for reading in look(module, subject)] for _ in range(2))
    require(first == second, "two readings of one subject differ")


def readings_can_be_saved_and_drawn(module: ModuleType) -> None:
    """Its readings have a title and values, are the same after a round trip through JSON, and can be drawn."""
    with tempfile.TemporaryDirectory() as folder:
        for index, reading in enumerate(look(module, tiny(module))):
            restored = Reading.from_json(reading.to_json())
            require(restored.to_json() == reading.to_json(), f"'{reading.title}' differs after a round trip through JSON")
            require(bool(reading.title) and bool(reading.values), "a reading has no title or no values")
            path = draw(restored, Path(folder) / f"{index}.png")
            is_drawn = path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size > 1500  # an empty picture is smaller
            require(is_drawn, f"the picture of '{reading.title}' is empty")
            light, dark = svg(reading)  # one picture for each color theme
            require(light.startswith(b"<?xml"), f"'{reading.title}' has no SVG picture")
            require(light != dark or reading.kind == "images", f"'{reading.title}' looks the same in the light and the dark theme")


def refuses_in_one_line(module: ModuleType) -> None:
    """Where it does not apply it raises a one-line error: decorate `read` with `sonde.lenses.tools.readonly.guard`."""
    try:
        look(module, Subject(None, None))
    except BadInput as error:
        expected = f"lens '{plugin_name(module)}' does not apply: "
        require(str(error).startswith(expected) and "\n" not in str(error), f"the error is: {error}")
    else:
        raise AssertionError("it accepts a subject without model, batch and metrics")


def works_where_it_does_not_refuse(module: ModuleType) -> None:
    """It works on every subject for which `why_not` returns an empty string; tried on the tiny subjects of all lenses."""
    subjects: dict[str, Subject] = {}  # by architecture, fields of the batch and so on: each kind once
    for other in [module, *(registry.load("lenses", name) for name in registry.names("lenses"))]:
        subject = tiny(other)
        subjects.setdefault(f"{subject.model} {subject.batch} {subject.objective is None} {len(subject.metrics)}", subject)
    suitable = [subject for subject in subjects.values() if not required_function(module, "why_not")(subject)]
    require(bool(suitable), "it refuses even its tiny subject")
    for subject in suitable:
        look(module, replace(subject))


CHECKS: tuple[Callable[[ModuleType], None], ...] = (
    declares_what_it_is,
    changes_nothing,
    tiny_touches_no_random_state,
    is_deterministic,
    readings_can_be_saved_and_drawn,
    refuses_in_one_line,
    works_where_it_does_not_refuse,
)
