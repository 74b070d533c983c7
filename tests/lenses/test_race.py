"""The race lens: quadratics against the contraction factor, real steps against a plain loop, and who cannot enter."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn

from sonde.core.batch import Batch, Data
from sonde.core.errors import BadInput
from sonde.core.reading import Subject
from sonde.core.terms import Terms
from sonde.data.surfaces import SURFACES, gabor_model, surface
from sonde.lenses import race
from sonde.lenses.tools.tiny import images, values
from sonde.optim.race import EVERYONE, entrant, follow, standard_rules
from sonde.optim.race import race as run


class Squares:
    def __call__(self, model: nn.Module, batch: Batch) -> Terms:
        return Terms(nll=(0.5 * (model(batch.x) - batch.y).square().sum(), len(batch)))


def linear() -> Subject:
    torch.manual_seed(2)
    x = torch.randn(40, 3)
    batch = Batch(x=x, y=x @ torch.tensor([[1.0], [-2.0], [0.5]]))
    return Subject(nn.Linear(3, 1), batch, Squares(), Data(train=_Whole(batch), task="values"))


class _Whole:
    def __init__(self, batch: Batch) -> None:
        self.batch = batch

    def __len__(self) -> int:
        return len(self.batch)

    def __getitem__(self, indices: torch.Tensor) -> Batch:
        return self.batch[indices]

    def fingerprint(self) -> str:
        return "0" * 64


def by_name(reading, column):
    return dict(zip(reading.values["optimizer"], reading.values[column], strict=True))


def test_gradient_descent_on_the_model_is_a_plain_loop() -> None:
    """All examples in one batch, so that shuffling does not matter."""
    subject = linear()
    table, curves, plane = race.read(subject, rules=("sgd",), rates=(0.1,), steps=12, start="here")
    w, b = subject.model.weight.detach().double().clone(), subject.model.bias.detach().double().clone()
    x, y = subject.batch.x.double(), subject.batch.y.double()
    losses = []
    for _ in range(13):
        rest = x @ w.T + b - y
        losses.append(float(0.5 * rest.square().mean()))
        w, b = w - 0.1 * rest.T @ x / 40, b - 0.1 * rest.mean()
    assert curves.values["sgd"] == pytest.approx(losses, rel=1e-4)
    assert plane.kind == "plane" and len(plane.paths["sgd"]) == 13
    target = losses[0] - 0.9 * (losses[0] - losses[-1])
    assert by_name(table, "steps to target")["sgd"] == next(i for i, loss in enumerate(losses) if loss <= target)


def test_the_plane_goes_through_the_start_and_shows_its_loss() -> None:
    _, curves, plane = race.read(linear(), rules=("sgd", "adam", "lion"), steps=10)
    starts = [path[0] for path in plane.paths.values()]
    assert starts == [pytest.approx([0, 0], abs=1e-6)] * 3
    assert len({round(line[0], 6) for line in curves.values.values()}) == 1


def test_who_reached_the_target_is_said_to_have_reached_it() -> None:
    table, *_ = race.read(linear(), rules=("sgd", "adam", "lion"), rates=(1e-6, 0.1), steps=30)
    arrived = by_name(table, "steps to target")
    assert by_name(table, "end") == {name: "ran out" if steps is None else "reached" for name, steps in arrived.items()}
    assert {"reached"} <= set(table.values["end"])
    slow = race.read(linear(), rules=("sgd", "momentum"), rates=(1e-6,), steps=20)[0]
    assert set(slow.values["end"]) == {"ran out", "reached"}


def test_a_plane_of_losses_over_decades_has_a_logarithmic_scale() -> None:
    plane = race.read(linear(), rules=("sgd", "adam", "lion"), steps=40)[2]
    losses = [loss for row in plane.values["loss"] for loss in row]
    assert max(losses) > 50 * min(losses) > 0 and plane.log == ["value"]


@pytest.mark.parametrize("condition", [3.0, 10.0, 40.0])
def test_exact_line_search_contracts_by_the_formula(condition) -> None:
    table, *_ = race.read(values(), rules=("exact", "sgd"), on="quadratic", condition=condition, steps=12)
    bound = ((condition - 1) / (condition + 1)) ** 2
    assert by_name(table, "contraction per step")["exact"] == pytest.approx(bound, rel=1e-9)
    assert f"{bound:.4g}" in table.note


def test_on_a_fresh_start_trained_weights_do_not_matter() -> None:
    subject = linear()
    first = race.read(subject, rules=("adam",), steps=5)
    with torch.no_grad():
        subject.model.weight.fill_(50.0)
    assert [each.to_json() for each in race.read(subject, rules=("adam",), steps=5)] == [each.to_json() for each in first]
    here = race.read(subject, rules=("adam",), steps=5, start="here")[1]
    assert here.values["adam"][0] > 100 * first[1].values["adam"][0]


def test_weights_without_a_first_rule_are_named() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale, self.inner = nn.Parameter(torch.ones(1)), nn.Linear(3, 1)

        def forward(self, x):
            return self.scale * self.inner(x)

    subject = linear()
    subject.model = Scaled()
    assert "scale cannot be reset" in race.read(subject, rules=("sgd",), steps=3)[0].note


def test_batch_norm_and_dropout_are_raced_without_a_trace_of_each_other() -> None:
    subject = images()
    alone = race.read(subject, rules=("adam",), rates=(0.01,), steps=6)[1].values["adam"]
    among = race.read(subject, rules=("lion", "sgd", "adam"), rates=(0.01,), steps=6)[1].values["adam"]
    assert alone == among


def test_rates_beyond_stability_are_named_not_endless() -> None:
    """Half of x^2 + 10 y^2 diverges for rates above 2/10."""
    table, *rest = race.read(values(), rules=("sgd",), rates=(0.21,), on="quadratic", steps=2000)
    assert by_name(table, "end")["sgd"].startswith("diverged: loss") and by_name(table, "steps to target")["sgd"] is None
    assert [reading.kind for reading in rest] == ["plane"]
    assert by_name(race.read(values(), rules=("sgd",), rates=(0.19,), on="quadratic", steps=2000)[0], "end")["sgd"] == "reached"


@pytest.mark.parametrize("name", SURFACES)
def test_everyone_runs_on_every_surface(name) -> None:
    ground = surface(name)
    start = [torch.tensor(ground.start, dtype=torch.float64)]
    tracks = run(start, lambda w, step: ground.loss(w[0]), standard_rules(rates=(0.1, 0.01)), 5, ground.target)
    assert {track.name for track in tracks} == set(EVERYONE) and start[0].tolist() == list(ground.start)
    assert all(math.isfinite(track.losses[0]) and len(track.losses) <= 6 for track in tracks)


def test_surfaces_by_hand() -> None:
    at = torch.tensor([0.5, -2.0], dtype=torch.float64)
    assert float(surface("quadratic").loss(at)) == 0.5 * (0.25 + 40)
    assert float(surface("rosenbrock").loss(at)) == 0.25 + 100 * (-2.25) ** 2
    assert float(surface("saddle").loss(at)) == 0.5 * (0.25 - 4) + 4
    x, y, loss = surface("rosenbrock").grid(5)
    assert float(loss[3, 1]) == float((1 - x[1]) ** 2 + 100 * (y[3] - x[1] ** 2) ** 2)
    notes = gabor_model(torch.tensor([0.3, 2.0, -1.0]), torch.tensor([[0.5, 0.25], [1.0, 1.0]]), "notes")
    angles = [0.3 + 2 * 0.5 - 0.25, 0.3 + 2 - 1]
    bells = [math.exp(-(1.0 + 0.0625)), math.exp(-5)]
    assert notes.tolist() == pytest.approx([math.sin(a) * b for a, b in zip(angles, bells, strict=True)], rel=1e-6)
    with pytest.raises(BadInput, match="did you mean 'rosenbrock'"):
        surface("rosenbrok")
    with pytest.raises(BadInput, match="one input"):
        gabor_model(torch.ones(3), torch.ones(4, 2))


def test_follow_stops_at_bad_numbers() -> None:
    w = torch.ones(2, dtype=torch.float64, requires_grad=True)
    track = follow([w], lambda step: w.square().sum() / (step < 3), torch.optim.SGD([w], lr=0.1), 10)
    assert track.fate == "diverged" and len(track.losses) <= 5
    w = torch.zeros(2, requires_grad=True)
    track = follow([w], lambda step: w.square().sum(), torch.optim.SGD([w], lr=0.1), 10)
    assert track.fate == "stalled" and "step 1" in track.why


def test_a_model_too_large_for_a_hessian_is_raced_without_newton() -> None:
    subject = linear()
    subject.model = nn.Sequential(nn.Linear(3, 1200), nn.Tanh(), nn.Linear(1200, 1))
    table, *_ = race.read(subject, rules=("sgd", "damped_newton"), rates=(0.01,), steps=2)
    assert table.values["optimizer"] == ["sgd"] and "damped_newton left out" in table.note


def test_bad_options_in_one_line() -> None:
    with pytest.raises(BadInput, match="did you mean 'adam'"):
        race.read(values(), rules=("adm",))
    with pytest.raises(BadInput, match="at least one"):
        race.read(values(), rules=())
    with pytest.raises(BadInput, match="no objective"):
        race.read(Subject(nn.Linear(3, 1), copy.copy(linear().batch)))
    assert entrant("newton").rates == ()
