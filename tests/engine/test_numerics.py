"""Bad numbers never reach the weights: every NaN, infinity and explosion is stopped before the update, and named."""

from __future__ import annotations

import itertools
import math
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sonde.api.run import Run
from sonde.core import tensors
from sonde.core.batch import Batch
from sonde.core.errors import NumericalStop
from sonde.core.recipe import Recipe
from sonde.core.terms import Terms
from sonde.data.order import Order
from sonde.engine import checkpoint, weights
from sonde.engine.guard import Guard
from sonde.objectives.categorical import Categorical
from sonde.optim.build import optimizer
from sonde.runs import checkpoints
from tests.engine.harness import (
    EVERY,
    STEPS,
    attempt,
    differences,
    digest,
    finished,
    kill_in_save,
    leftovers,
    network,
    train,
    trial,
)

PLACES = ("input", "activation", "gradient", "loss")


class Poison:
    """Knows whether the batch at hand is one of those to be spoiled; a batch is known by its examples."""

    def __init__(self, steps: tuple[int, ...], value: float, row: int) -> None:
        self.batches = {tuple(Order(83, 16, 0).at(step).tolist()) for step in steps}
        self.value, self.row, self.armed = value, row, False

    def see(self, batch: Batch) -> None:
        """Also where the batch is cut in two for two processes: the row counts within the part."""
        own = set(batch.ids.tolist())
        self.armed = any(own <= set(ids) and ids[self.row] in own for ids in self.batches)
        self.bad_id = next((ids[self.row] for ids in self.batches if self.armed and ids[self.row] in own), None)
        self.at = batch.ids.tolist().index(self.bad_id) if self.armed else 0

    def into(self, x: Tensor) -> Tensor:
        """One value of the chosen example spoiled."""
        out = x.clone()
        out[self.at].view(-1)[0] = self.value
        return out


class SpoiltBackward(torch.autograd.Function):
    """The identity, with a gradient that is not finite."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, value: float) -> Tensor:
        ctx.value = value
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return grad * 0 + ctx.value, None


class Spoiled(nn.Module):
    """Where an activation or a gradient goes wrong."""

    def __init__(self, poison: Poison, place: str) -> None:
        super().__init__()
        self.poison, self.place = poison, place

    def forward(self, x: Tensor) -> Tensor:
        if self.training and self.poison.armed and self.place == "activation":
            return self.poison.into(x)
        if self.training and self.poison.armed and self.place == "gradient":
            return SpoiltBackward.apply(x, self.poison.value)
        return x


class SpoiltSum:
    """An objective whose sum is not finite."""

    def __init__(self, poison: Poison, real: Categorical) -> None:
        self.poison, self.real = poison, real

    def __call__(self, model: nn.Module, batch: Batch) -> Terms:
        terms = self.real(model, batch)
        return Terms(nll=(terms["nll"].sum * self.poison.value, terms["nll"].count)) if self.poison.armed and model.training else terms


def spoiled_recipe(
    place: str = "input", steps: str = "9", value: str = "nan", row: int = 2, on_bad: str = "stop", length: int = STEPS
) -> Recipe:
    """The trial, with bad numbers at one place in the batches of some steps, given as '9,14'."""
    poison = Poison(tuple(map(int, steps.split(","))), float(value), row)
    clean = trial(length, on_bad=on_bad)
    model = network()
    model.insert(3, Spoiled(poison, place))  # type: ignore[union-attr]

    def augment(batch: Batch, rng: torch.Generator) -> Batch:
        batch = clean.augment(batch, rng)  # type: ignore[misc]
        poison.see(batch)
        return batch.replace(x=poison.into(batch.x)) if poison.armed and place == "input" else batch

    changes: dict[str, Any] = {"model": model, "augment": augment}
    if place == "loss":
        changes["objective"] = SpoiltSum(poison, Categorical(classes=4))
    return clean.replace(**changes)


class Updates:
    """Counts updates, to see that none was made from bad numbers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count, real = 0, weights.Weights.update

        def update(weights: Any, factor: float, phase: int = 0) -> float:
            self.count += 1
            return real(weights, factor, phase)

        monkeypatch.setattr(weights.Weights, "update", update)


def newest(path: Path) -> checkpoint.Checkpoint | None:
    kept = checkpoints.steps(path / "checkpoints")
    return checkpoint.read(checkpoints.path_of(path / "checkpoints", kept[-1])) if kept else None


def is_finite(saved: checkpoint.Checkpoint) -> bool:
    return all(bool(t.isfinite().all()) for part in ("model", "optim", "best") for t in saved.parts[part].values() if t.is_floating_point())


@pytest.mark.parametrize("number, place, value", [(i, *pair) for i, pair in enumerate(itertools.product(PLACES, ("nan", "inf", "nan")))])
def test_stopped_before_the_update_and_named(number: int, place: str, value: str, memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step, updates = random.Random(number).randrange(STEPS), Updates(monkeypatch)
    with pytest.raises(NumericalStop) as caught:
        train(memory / "run", spoiled_recipe, place=place, steps=str(step), value=value)
    error, path = caught.value, memory / "run"
    assert error.exit_code == 5 and updates.count == step
    assert f"step {step}, rank 0: " in error.where
    saved = newest(path)
    assert (saved.step if saved else 0) == step // EVERY * EVERY and (saved is None or is_finite(saved))
    assert (f"checkpoint at step {saved.step}" if saved else "no checkpoint yet") == error.last_good
    example = int(Order(83, 16, 0).at(step)[2])
    message = {
        "input": f"field 'x' of the batch is not finite in examples [{example}]",
        "activation": f"first bad output: module '3' (Spoiled), examples [{example}]",
        "gradient": "the forward pass is finite; first bad gradient: parameter '",
        "loss": "every module's output is finite, but the sum 'nll' of the objective is not",
    }[place]
    assert message in error.where, error.where
    kept = tensors.decode((path / f"bad-batch-{step}-rank-0.safetensors").read_bytes())
    assert kept["0.ids"].tolist() == Order(83, 16, 0).at(step).tolist()
    assert leftovers(path) == [f"bad-batch-{step}-rank-0.safetensors"]


def test_the_same_stop_again_after_a_resume(memory: Path) -> None:
    texts = []
    for _ in range(2):
        with pytest.raises(NumericalStop) as caught:
            train(memory / "run", spoiled_recipe, steps="9")
        texts.append(caught.value.render())
    assert texts[0] == texts[1]
    rows = [row["step"] for row in Run(memory / "run").metrics]
    assert rows == sorted(rows) and len([row for row in rows if row == 6]) == 2  # a row of training and one of evaluation


@pytest.mark.parametrize("row, rank", [(1, 0), (11, 1)])
def test_two_processes_agree(row: int, rank: int, memory: Path, reference: dict[str, str]) -> None:
    """Both stop at the same step, and the one with the cause is named."""
    outcome = attempt(memory / "run", recipe=spoiled_recipe, processes=2, steps="13", row=row).wait()
    assert outcome.code == 5, outcome
    example = int(Order(83, 16, 0).at(13)[row])
    assert f"step 13, rank {rank}: field 'x' of the batch is not finite in examples [{example}]" in outcome.parts["where"]
    saved = newest(memory / "run")
    assert saved is not None and saved.step == 10 and is_finite(saved)


# ---------------------------------------------------------------- leaving steps out, going back


def ran_through(path: Path, steps: list[int]) -> None:
    """All done, with finite weights in the last checkpoint, and the bad steps left out."""
    run, last = Run(path), newest(path)
    assert run.result["status"] == "done" and last is not None and last.step == run.result["steps"] and is_finite(last)
    assert [row["step"] - 1 for row in run.metrics if row.get("skipped")] == steps
    assert all(bool(torch.isfinite(p).all()) for p in run_model(path))


def run_model(path: Path) -> list[Tensor]:
    last = newest(path)
    assert last is not None
    return [t for t in last.parts["model"].values() if t.is_floating_point()]


# A step in the middle, two in a row, the first, one at a checkpoint, one at an evaluation, the last.
WHEN = ("9", "7,8", "0", "4", "11", "22", "0,1,2,3,4,5")


@pytest.mark.parametrize("policy", ["skip", "rollback"])
@pytest.mark.parametrize("when", WHEN)
def test_a_run_without_its_bad_steps_is_reproducible(policy: str, when: str, memory: Path, reference: dict[str, str]) -> None:
    """Bit for bit: run again, and killed on the way.  Bad input also spoils running means, which must not stay so."""
    options = {"recipe": spoiled_recipe, "on_bad": policy, "steps": when}
    bad = [int(step) for step in when.split(",")]
    paths = [memory / name for name in ("first", "second", "killed")]
    finished(paths[0], **options)
    finished(paths[1], **options)
    for save in (1, 1):
        attempt(paths[2], kill_in_save(save, 12), **options).wait()
    finished(paths[2], **options)
    for path in paths:
        ran_through(path, bad)
        assert differences(digest(path), digest(paths[0])) == [], path.name
    messages = [event["text"] for event in Run(paths[0]).events if event["event"] == "warning"]
    assert len(messages) == len(bad) and all("left out" in text and "field 'x' of the batch" in text for text in messages)


@pytest.mark.parametrize("policy", ["skip", "rollback"])
def test_boundaries_are_kept_where_the_step_before_them_is_left_out(policy: str, memory: Path, reference: dict[str, str]) -> None:
    """Evaluations and checkpoints come when they are due, whatever became of the step."""
    train(memory / "run", spoiled_recipe, steps="4,11,22", on_bad=policy)
    rows = Run(memory / "run").metrics
    assert [row["step"] for row in rows if "valid/loss" in row] == [6, 12, 18, 23]
    saves = [event["step"] for event in Run(memory / "run").events if event["event"] == "checkpoint"]
    assert sorted({*saves, 0}) == [0, 5, 10, 15, 20, 23]


# ---------------------------------------------------------------- explosions, overflow


def shaken(factor: float = 100.0, first: int = 80, last: int = 10**6, steps: int = 120, on_bad: str = "stop", rule: str = "sgd") -> Recipe:
    """A plain network, which nothing holds together, with a learning rate that is wrong for some steps."""
    recipe = trial(steps, on_bad=on_bad).replace(
        schedule=lambda step, steps: factor if first <= step < last else 1.0, evaluate_every=1000, clip_norm=0.0, model=plain
    )
    return recipe.replace(optimizer=optimizer("sgd", lr=0.05, momentum=0.9) if rule == "sgd" else optimizer("adamw", lr=0.01))


def plain() -> nn.Module:
    body = (nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU())
    return nn.Sequential(*body, nn.Dropout(0.2), nn.Linear(32, 4))


def alarm(path: Path, seed: int, **options: Any) -> int | None:
    """The step at which a run was stopped, or None."""
    try:
        train(path, shaken, seed=seed, checkpoint_every=1000, **options)
    except NumericalStop as error:
        match = re.search(r"step (\d+)", error.where)
        assert match is not None
        return int(match.group(1))
    return None


@pytest.mark.parametrize("seed, rule", [(0, "sgd"), (1, "adamw"), (2, "sgd"), (3, "adamw")])
def test_an_explosion_is_seen_within_ten_steps(seed: int, rule: str, memory: Path) -> None:
    stopped = alarm(memory / "run", seed, rule=rule)
    assert stopped is not None and 80 <= stopped <= 90


@pytest.mark.parametrize("seed", range(4))
def test_a_healthy_run_raises_no_alarm(seed: int, memory: Path) -> None:
    assert alarm(memory / "run", seed, factor=1.0, rule=("sgd", "adamw")[seed % 2]) is None


def test_going_back_from_an_explosion(memory: Path, reference: dict[str, str]) -> None:
    options = {"recipe": shaken, "last": 85, "on_bad": "rollback", "checkpoint_every": 20}
    finished(memory / "one", **options)
    finished(memory / "two", **options)
    assert differences(digest(memory / "one"), digest(memory / "two")) == []
    last = newest(memory / "one")
    assert last is not None and is_finite(last) and last.step == 120
    assert any(row.get("skipped") for row in Run(memory / "one").metrics)


@pytest.mark.parametrize("first", [8, 9, 12])
def test_weights_that_an_update_made_infinite_are_never_saved(first: int, memory: Path) -> None:
    """Loss and gradient were finite, the update was not: seen at the next step, or before a checkpoint, whichever comes first."""
    with pytest.raises(NumericalStop, match="not finite|is nan") as caught:
        train(memory / "run", shaken, factor=1e45, first=first)
    saved = newest(memory / "run")
    assert saved is not None and is_finite(saved)
    assert caught.value.exit_code == 5 and re.search(r"parameter '\S+' is not finite", caught.value.where)


def test_skipping_cannot_repair_weights_that_are_not_finite(memory: Path) -> None:
    with pytest.raises(NumericalStop):
        train(memory / "run", shaken, factor=1e45, first=12, on_bad="skip")


@pytest.mark.parametrize("first", [8, 9, 12])
def test_going_back_leaves_out_the_step_that_overflowed(first: int, memory: Path) -> None:
    run = train(memory / "run", shaken, factor=1e45, first=first, last=first + 1, on_bad="rollback", steps=40)
    assert [row["step"] - 1 for row in run.metrics if row.get("skipped")] == [first]
    last = newest(memory / "run")
    assert last is not None and is_finite(last) and last.step == 40


# ---------------------------------------------------------------- the rule itself


def first_objection(guard: Guard, losses: list[float], norms: list[float] | None = None) -> int | None:
    """Number of the step at which the guard objects."""
    for index, loss in enumerate(losses):
        if guard.fault(loss, norms[index] if norms else 1.0):
            return index
    return None


def noise(many: int, seed: int = 0) -> list[float]:
    rng = random.Random(seed)
    return [1.0 + 0.1 * rng.gauss(0, 1) for _ in range(many)]


def test_a_hard_batch_after_a_perfect_fit_is_no_explosion() -> None:
    learned = [1.1] * 50 + [1.1 * 0.9**step for step in range(200)]  # the median falls to 1e-5 and less
    assert first_objection(Guard(), learned + [0.6] * 50) is None
    assert first_objection(Guard(), learned + [1.2] * 3) == 252
    assert first_objection(Guard(), [1000.0, *learned[1:], 900.0, 900.0, 900.0]) == 252  # one bad loss at the start does not blind it


def test_the_rule_by_hand() -> None:
    """Median 1 and deviation 0.1: the limit is about 2; three of ten steps above it are an explosion, two are not."""
    calm = noise(200)
    assert first_objection(Guard(), calm + [2.6, 2.6, *[1.0] * 9] * 20) is None
    assert first_objection(Guard(), calm + [2.6, 2.6, 2.6]) == 202
    assert first_objection(Guard(), calm + [2.6, 1.0, 1.0, 2.6, 1.0, 2.6]) == 205
    assert first_objection(Guard(), calm + [2.6, *[1.0] * 4, 2.6, *[1.0] * 3, 2.6, 2.6]) == 209
    assert first_objection(Guard(), calm + [2.6, *[1.0] * 4, 2.6, *[1.0] * 4, 2.6]) is None
    assert first_objection(Guard(), calm + [1.7] * 50) is None
    assert first_objection(Guard(), calm + [1.0] * 3, [1.0] * 200 + [1100.0] * 3) == 202
    assert first_objection(Guard(), calm + [1.0] * 3, [1.0] * 200 + [900.0] * 3) is None
    assert first_objection(Guard(), [math.nan]) == 0 and first_objection(Guard(), [1.0], [math.inf]) == 0
    assert first_objection(Guard(), [0.0] * 300) is None and first_objection(Guard(), [-3.0] * 300) is None


@pytest.mark.parametrize("curve", ["falls", "falls to nothing", "plateaus and drops", "noisy", "negative", "one spike"])
def test_ordinary_curves_raise_no_alarm(curve: str) -> None:
    makers: dict[str, Callable[[int], float]] = {
        "falls": lambda t: 5 * 0.99**t + 0.01,
        "falls to nothing": lambda t: 0.97**t,
        "plateaus and drops": lambda t: 2.3 if t < 300 else 0.2,
        "noisy": lambda t: random.Random(t).lognormvariate(0, 0.5),
        "negative": lambda t: -t / 50 + random.Random(t).gauss(0, 0.3),
        "one spike": lambda t: 100.0 if t == 400 else 1.0,
    }
    assert first_objection(Guard(), [makers[curve](t) for t in range(800)]) is None


def test_the_blame_goes_back_to_the_first_high_step() -> None:
    guard = Guard()
    faults = [guard.fault(loss, 1.0) for loss in noise(200) + [2.6, 1.0, 2.6, 1.0, 1.0, 2.6]]
    assert faults[-1] is not None and faults[-1].steps == 6 and faults[:-1] == [None] * 205


def test_the_guard_goes_on_where_it_was() -> None:
    losses = noise(180, seed=4) + [2.9, 2.9]
    one = Guard()
    for loss in losses:
        assert one.fault(loss, 1.0) is None
    other = Guard()
    other.load(one.state())
    assert other.state() == one.state()
    assert one.fault(2.9, 1.0) == other.fault(2.9, 1.0) is not None
