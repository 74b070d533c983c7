"""Every lens in the registry: works on its tiny subject, leaves no trace, gives a Reading that survives JSON and can be drawn."""

from __future__ import annotations

import inspect
import random
from dataclasses import replace

import numpy as np
import pytest
import torch

from sonde.api.run import Run
from sonde.cli.commands.look import options
from sonde.core import registry
from sonde.core.errors import BadInput
from sonde.core.reading import Reading, Subject
from sonde.lenses.tools.readonly import fitting
from sonde.report.draw import draw, svg

LENSES = registry.names("lenses")


def look(name: str, subject: Subject) -> list[Reading]:
    readings = registry.load("lenses", name).read(subject)
    return readings if isinstance(readings, list) else [readings]


def state(model: torch.nn.Module) -> dict:
    """Everything a lens could disturb, as plain values."""
    random_states = torch.get_rng_state().tolist(), str(np.random.get_state()), random.getstate()
    tensors = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    gradients = {name: None if p.grad is None else p.grad.clone() for name, p in model.named_parameters()}
    modes = {name: module.training for name, module in model.named_modules()}
    hooks = {name: (len(m._forward_hooks), len(m._forward_pre_hooks), len(m._backward_hooks)) for name, m in model.named_modules()}
    wanted = {name: p.requires_grad for name, p in model.named_parameters()}
    return {"random": random_states, "tensors": tensors, "gradients": gradients, "modes": modes, "hooks": hooks, "wanted": wanted}


def same(a: object, b: object) -> bool:
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    return a == b


@pytest.mark.parametrize("name", LENSES)
def test_options_and_options_of_looking_have_different_names(name: str) -> None:
    own = {option.name for option in options()} | set(inspect.signature(Run.look).parameters)
    assert not own & set(inspect.signature(registry.load("lenses", name).read).parameters)


@pytest.mark.parametrize("name", LENSES)
@pytest.mark.parametrize("training, gradients", [(True, True), (False, False), (True, False)])
def test_leaves_no_trace(name: str, training: bool, gradients: bool) -> None:
    subject = registry.load("lenses", name).tiny()
    subject.model.train(training)
    if training:
        next(subject.model.children()).eval()  # a module in a mode of its own must keep it
    if gradients:
        for parameter in subject.model.parameters():
            parameter.grad = torch.randn_like(parameter)
    grads = [p.grad for p in subject.model.parameters()]
    before, batch = state(subject.model), {field: subject.batch.get(field).clone() for field in subject.batch}
    look(name, subject)
    assert same(before, state(subject.model))
    assert all(old is p.grad for old, p in zip(grads, subject.model.parameters(), strict=True))
    assert same(batch, dict(subject.batch.fields))


@pytest.mark.parametrize("name", LENSES)
def test_tiny_touches_no_random_state(name: str) -> None:
    before = torch.get_rng_state(), str(np.random.get_state()), random.getstate()
    registry.load("lenses", name).tiny()
    assert torch.equal(before[0], torch.get_rng_state()) and before[1:] == (str(np.random.get_state()), random.getstate())


@pytest.mark.parametrize("name", LENSES)
def test_says_the_same_twice(name: str) -> None:
    subject = registry.load("lenses", name).tiny()
    subject.model.train()
    assert [each.to_json() for each in look(name, subject)] == [each.to_json() for each in look(name, subject)]


@pytest.mark.parametrize("name", LENSES)
def test_reading_survives_json_and_is_drawn(name: str, tmp_path) -> None:
    for index, reading in enumerate(look(name, registry.load("lenses", name).tiny())):
        again = Reading.from_json(reading.to_json())
        assert again.to_json() == reading.to_json()
        assert reading.title and reading.values
        path = draw(again, tmp_path / f"{index}.png")
        assert path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size > 1500
        light, dark = svg(reading)
        assert light.startswith(b"<?xml") and (light != dark or reading.kind == "images")
        assert [entry.name for entry in tmp_path.iterdir() if entry.name.startswith(".tmp")] == []


@pytest.mark.parametrize("name", LENSES)
def test_a_subject_without_anything_is_refused_in_one_line(name: str) -> None:
    with pytest.raises(BadInput, match=f"lens '{name}' does not apply: .*no lens fits") as caught:
        look(name, Subject(None, None))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", LENSES)
def test_refusal_names_lenses_that_do_apply(name: str) -> None:
    """Where a lens refuses one of the tiny subjects, it names those that do not."""
    for other in LENSES:
        subject = registry.load("lenses", other).tiny()
        if not registry.load("lenses", name).why_not(subject):
            continue
        with pytest.raises(BadInput, match="; try ") as caught:
            look(name, subject)
        named = str(caught.value).rsplit("; try ", 1)[1].split(", ")
        assert named == fitting(subject) and other in named


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.slow) if name == "race" else name for name in LENSES])
def test_a_lens_that_does_not_refuse_works(name: str) -> None:
    """On the tiny subjects of all lenses, each kind of them once."""
    kinds = {}
    for other in LENSES:
        subject = registry.load("lenses", other).tiny()
        kinds.setdefault(f"{subject.model} {subject.batch} {subject.objective is None} {len(subject.metrics)}", subject)
    fit = [subject for subject in kinds.values() if not registry.load("lenses", name).why_not(subject)]
    assert fit
    for subject in fit:
        look(name, replace(subject))
