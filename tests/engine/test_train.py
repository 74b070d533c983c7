"""What a run does: the textbook loop, its record, early stopping, resuming, and its answers to mistakes."""

import json
from functools import partial

import pytest
import torch
from torch import nn

import sonde
from sonde.core.batch import Data
from sonde.core.errors import BadInput, DataUnusable
from sonde.core.recipe import Callback, Recipe
from sonde.data.order import Order
from sonde.data.tensors import TensorSource
from sonde.objectives.categorical import Categorical
from sonde.objectives.gaussian import Gaussian
from sonde.optim import schedules
from sonde.optim.build import optimizer
from sonde.runs import checkpoints
from tests.engine.small import line, tagger


def weights(run, which="last"):
    return run.model(which).state_dict()


def test_the_engine_does_what_a_hand_written_loop_does(tmp_path):
    recipe = line(steps=30)
    schedule = schedules.cosine()
    run = sonde.train(recipe.replace(schedule=schedule, clip_norm=0.5, model=recipe.model), run=tmp_path / "r", quiet=True, threads=1)
    from sonde.core.seeds import key

    torch.manual_seed(key(0, "model"))
    model = recipe.build_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    source, order = recipe.build_data().train, Order(50, 16, 0)
    for step in range(30):
        batch = source[order.at(step)]
        optimizer.zero_grad()
        loss = ((model(batch.x) - batch.y) ** 2).mean() / 2
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        for group in optimizer.param_groups:
            group["lr"] = 0.05 * schedule(step, 30)
        optimizer.step()
        row = next(row for row in run.metrics if row["step"] == step + 1 and "loss" in row)
        assert row["loss"] == pytest.approx(loss.item(), rel=1e-4)
        assert row["grad_norm"] == pytest.approx(norm.item(), rel=1e-4)
    for name, value in model.state_dict().items():
        torch.testing.assert_close(weights(run)[name], value, rtol=1e-4, atol=1e-5)


def test_a_run_directory_tells_the_whole_story(tmp_path):
    run = sonde.train(line, run=tmp_path / "r", quiet=True, steps=10, seed=5)
    assert run.info["options"]["steps"] == 10 and run.info["seed"] == 5
    assert run.info["data"]["train"]["n"] == 50 and len(run.info["data"]["train"]["sha256"]) == 64
    assert run.result["status"] == "done" and set(run.result["metrics"]) >= {"valid/loss", "test/loss", "test/squared_error"}
    assert [row["step"] for row in run.metrics if "loss" in row] == list(range(1, 11))
    assert [event["event"] for event in run.events][0] == "start" and run.events[-1]["event"] == "finish"
    assert run.events[0]["regime"] == "minibatches of 16"
    assert (run.path / "checkpoints" / "step-00000010" / "manifest.json").is_file()


def test_the_same_command_again_resumes_and_a_finished_run_stays_finished(tmp_path):
    first = sonde.train(line, run=tmp_path / "r", quiet=True, steps=10)
    rows = first.metrics
    again = sonde.train(line, run=tmp_path / "r", quiet=True, steps=10)
    assert again.metrics == rows
    with pytest.raises(BadInput, match="was started with steps=10, not 20"):
        sonde.train(line, run=tmp_path / "r", quiet=True, steps=20)
    with pytest.raises(BadInput, match="has seed 0, not 1"):
        sonde.train(line, run=tmp_path / "r", quiet=True, steps=10, seed=1)
    with pytest.raises(BadInput, match="was made with recipe"):
        sonde.train(tagger, run=tmp_path / "r", quiet=True)


class StopAt(Callback):
    """Pretends that SIGTERM comes at a step."""

    def __init__(self, step):
        self.at = step

    def step(self, run, step, row):
        if step == self.at:
            import os
            import signal

            os.kill(os.getpid(), signal.SIGTERM)


def test_a_stopped_run_loses_no_step_and_ends_as_if_nothing_had_happened(tmp_path):
    whole = sonde.train(line(dropout=0.2), run=tmp_path / "whole", quiet=True)
    with pytest.raises(sonde.core.errors.Preempted, match="after step 17 of 40"):
        sonde.train(line(dropout=0.2).replace(callbacks=[StopAt(17)]), run=tmp_path / "cut", quiet=True)
    assert checkpoints.steps(tmp_path / "cut" / "checkpoints")[-1] == 17
    resumed = sonde.train(line(dropout=0.2).replace(callbacks=[StopAt(99)]), run=tmp_path / "cut", quiet=True)
    assert resumed.metrics == whole.metrics
    for name, value in weights(whole).items():
        assert torch.equal(weights(resumed)[name], value)


def test_early_stopping_stops_after_patience_and_restores_the_best(tmp_path):
    """A model that starts at the best point and is then driven away by a wrong target in the training part."""
    x = torch.ones(8, 1)
    data = Data(TensorSource(x, 3 * x), TensorSource(x, 1 * x), name="pull")
    recipe = Recipe(
        model=lambda: _one_weight(0.0),
        data=data,
        objective=Gaussian(),
        optimizer=optimizer("sgd", lr=0.05),
        steps=200,
        batch_size=8,
        evaluate_every=1,
        log_every=1,
        patience=4,
    )
    run = sonde.train(recipe, run=tmp_path / "r", quiet=True)
    # w goes 0 -> 3 as 3(1 - 0.95^t); the validation optimum w = 1 is passed between steps 7 and 8.
    path = [3 * (1 - 0.95**t) for t in range(13)]
    best = min(range(1, 13), key=lambda t: (path[t] - 1) ** 2)
    assert run.result["model_step"] == best == 8 and run.result["steps"] == best + 4
    assert run.model("final").weight.item() == pytest.approx(path[best], abs=1e-6)
    assert run.model("best").weight.item() == pytest.approx(path[best], abs=1e-6)
    assert run.model("last").weight.item() == pytest.approx(path[best + 4], abs=1e-6)


def _one_weight(value):
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, value)
    return model


def test_accumulation_gives_the_gradient_of_the_whole_batch(tmp_path):
    whole = sonde.train(tagger(dropout=0.0), run=tmp_path / "a", quiet=True, threads=1)
    parts = sonde.train(tagger(dropout=0.0, accumulate=4), run=tmp_path / "b", quiet=True, threads=1)
    for name, value in weights(whole).items():
        torch.testing.assert_close(weights(parts)[name], value, rtol=0, atol=2e-6)


def test_bf16_and_channels_last_train(tmp_path):
    torch.manual_seed(0)
    x = torch.rand(40, 1, 6, 7)
    y = (x.mean((1, 2, 3)) > 0.5).long()
    recipe = Recipe(
        model=lambda: nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(80, 2)),
        data=Data(TensorSource(x, y), TensorSource(x, y), name="x"),
        objective=Categorical(),
        optimizer=optimizer("adamw", lr=0.01),
        steps=30,
        batch_size=16,
        channels_last=True,
        precision="bf16",
    )
    run = sonde.train(recipe, run=tmp_path / "r", quiet=True)
    assert run.metrics[-1]["step"] == 30 and run.result["metrics"]["valid/loss"] < run.metrics[0]["loss"]
    assert run.model().state_dict()["0.weight"].dtype == torch.float32


def test_any_torch_optimizer_is_accepted(tmp_path):
    recipe = line(steps=12).replace(optimizer=partial(torch.optim.SGD, lr=0.1, momentum=0.9))
    whole = sonde.train(recipe, run=tmp_path / "a", quiet=True)
    with pytest.raises(sonde.core.errors.Preempted):
        sonde.train(recipe.replace(callbacks=[StopAt(5)]), run=tmp_path / "b", quiet=True)
    again = sonde.train(recipe.replace(callbacks=[StopAt(99)]), run=tmp_path / "b", quiet=True)
    for name, value in weights(whole).items():
        assert torch.equal(weights(again)[name], value)


@pytest.mark.parametrize(
    "name", ["adam", "sgd", "rmsprop", "adagrad", "adadelta", "nadam", "radam", "adamax", "rprop", "asgd", "lion", "muon"]
)
def test_every_optimizer_resumes_bit_for_bit(tmp_path, name):
    recipe = line(steps=9).replace(optimizer=optimizer(name, lr=0.01, weight_decay=0.0), evaluate_every=9)
    whole = sonde.train(recipe, run=tmp_path / "a", quiet=True, threads=1)
    with pytest.raises(sonde.core.errors.Preempted):
        sonde.train(recipe.replace(callbacks=[StopAt(4)]), run=tmp_path / "b", quiet=True, threads=1)
    again = sonde.train(recipe.replace(callbacks=[StopAt(99)]), run=tmp_path / "b", quiet=True, threads=1)
    for key, value in weights(whole).items():
        assert torch.equal(weights(again)[key], value), key


@pytest.mark.parametrize("off", [torch.no_grad, torch.inference_mode])
def test_a_caller_without_gradients_still_trains(tmp_path, off):
    expected = weights(sonde.train(line(steps=5), run=tmp_path / "plain", quiet=True))
    with off():
        run = sonde.train(line(steps=5), run=tmp_path / "off", quiet=True)
        assert not torch.is_grad_enabled()
    for name, value in weights(run).items():
        assert torch.equal(value, expected[name])


def test_training_leaves_the_caller_alone(tmp_path):
    torch.manual_seed(123)
    before = torch.get_rng_state(), torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    sonde.train(line, run=tmp_path / "r", quiet=True, steps=3)
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1:] == (torch.get_num_threads(), torch.are_deterministic_algorithms_enabled())


class Last(Callback):
    """Keeps what it is given at the end."""

    def finish(self, run, step, model):
        self.step, self.weights = step, {name: tensor.clone() for name, tensor in model.state_dict().items()}


def test_a_callback_is_given_the_trained_model_also_after_a_resume(tmp_path):
    last = Last()
    with pytest.raises(sonde.core.errors.Preempted):
        sonde.train(line().replace(steps=6, log_every=1, callbacks=(StopAt(3), last)), run=tmp_path / "r", quiet=True)
    recipe = line().replace(steps=6, log_every=1, callbacks=(Callback(), last))
    run = sonde.train(recipe, run=tmp_path / "r", quiet=True)
    assert last.step == 6
    for name, tensor in sonde.open_run(run.path, recipe).model().state_dict().items():
        assert torch.equal(last.weights[name], tensor)


def test_quiet_reaches_whatever_a_recipe_does(tmp_path, capsys):
    """First weights from an estimator that shows its progress."""
    from sonde.engine.progress import Progress

    def begin(model):
        with Progress("vectors", 2) as progress:
            progress.say("half way")

    recipe = line().replace(steps=2, initialize=begin)
    sonde.train(recipe, run=tmp_path / "a", quiet=True)
    assert capsys.readouterr().err == ""
    sonde.train(recipe, run=tmp_path / "b")
    assert "half way" in capsys.readouterr().err


def test_tensorboard_writes_what_metrics_hold(tmp_path):
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    run = sonde.train(line, run=tmp_path / "r", quiet=True, steps=6, tensorboard=True)
    events = reader.EventAccumulator(str(run.path / "tensorboard"))
    events.Reload()
    ours = [(row["step"], row["loss"]) for row in run.metrics if "loss" in row]
    assert [(e.step, pytest.approx(e.value, rel=1e-6)) for e in events.Scalars("loss")] == ours


def test_a_user_file_is_copied_and_can_be_resumed_after_it_changed(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("from tests.engine.small import line\ndef recipe(steps: int = 6):\n    return line(steps=steps)\n")
    run = sonde.train(file, run=tmp_path / "r", quiet=True)
    assert (run.path / "recipe.py").read_text() == file.read_text()
    (run.path / "result.json").unlink()
    file.write_text(file.read_text() + "# changed\n")
    with pytest.raises(BadInput, match="another version of mine.py"):
        sonde.train(file, run=tmp_path / "r", quiet=True)
    assert sonde.train(resume=run.path, quiet=True).result["status"] == "done"
    assert sonde.open_run(run.path).model()(torch.zeros(1, 1)).shape == (1, 1)


def test_data_that_changed_are_noticed(tmp_path):
    with pytest.raises(sonde.core.errors.Preempted):
        sonde.train(line().replace(callbacks=[StopAt(5)]), run=tmp_path / "r", quiet=True)
    other = line()
    other.data.train.fields["x"][3] += 1
    other = other.replace(callbacks=[StopAt(99)])
    with pytest.raises(DataUnusable, match="train data changed") as caught:
        sonde.train(other, run=tmp_path / "r", quiet=True)
    assert caught.value.exit_code == 3
    run = sonde.train(other, run=tmp_path / "r", quiet=True, accept_data_change=True)
    assert any("as accepted" in event.get("text", "") for event in run.events)


def test_what_cannot_be_kept_exact_is_said_and_exact_refuses(tmp_path):
    with pytest.raises(sonde.core.errors.Preempted):
        sonde.train(line().replace(callbacks=[StopAt(5)]), run=tmp_path / "r", quiet=True, threads=1)
    other = line().replace(callbacks=[StopAt(99)])
    with pytest.raises(BadInput, match="threads 1 -> 2"):
        sonde.train(other, run=tmp_path / "r", quiet=True, threads=2, exact=True)
    run = sonde.train(other, run=tmp_path / "r", quiet=True, threads=2)
    assert any("threads 1 -> 2" in event.get("text", "") for event in run.events)


MISTAKES = {
    "unknown recipe": (lambda tmp: sonde.train("digit_cnn", run=tmp / "r"), "did you mean 'digits_cnn'"),
    "unknown option": (lambda tmp: sonde.train(line, run=tmp / "r", stepz=3), "did you mean 'steps'"),
    "wrong type": (lambda tmp: sonde.train(line, run=tmp / "r", steps="many"), "must be a whole number"),
    "bad option": (lambda tmp: sonde.train(line, run=tmp / "r", seed=-1), "'seed'.*>= 0"),
    "more processes than shards": (lambda tmp: sonde.train(line, run=tmp / "r", processes=3, shards=2), "use --shards 3"),
    "no device": (lambda tmp: sonde.train(line, run=tmp / "r", device="gpu", quiet=True), "use cpu, cuda"),
    "recipe that fails": (lambda tmp: sonde.train(line, run=tmp / "r", width=-3), "failed while being built|cannot|negative"),
    "no recipe": (lambda tmp: sonde.train(run=tmp / "r"), "choose from"),
    "no run": (lambda tmp: sonde.open_run(tmp / "nothing"), "no run"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_gets_one_line_and_leaves_nothing_behind(tmp_path, name):
    act, words = MISTAKES[name]
    with pytest.raises(BadInput, match=words) as caught:
        act(tmp_path)
    assert "\n" not in str(caught.value) and caught.value.exit_code == 2
    assert list(tmp_path.iterdir()) == []


def wrong(**changes):
    return Recipe(**{**{f: getattr(line(), f) for f in ("model", "data", "objective", "optimizer", "steps")}, **changes})


def test_shapes_that_do_not_fit_name_the_layer(tmp_path):
    recipe = wrong(model=lambda: nn.Sequential(nn.Linear(1, 4), nn.Linear(5, 1)))
    with pytest.raises(BadInput, match=r"layer '1' Linear\(in_features=5.*input of shape \(2, 4\)"):
        sonde.train(recipe, run=tmp_path / "r", quiet=True)
    with pytest.raises(BadInput, match="does not match targets"):
        sonde.train(wrong(model=lambda: nn.Linear(1, 3)), run=tmp_path / "r", quiet=True)
    labels = TensorSource(torch.rand(9, 4), torch.tensor([0, 1, 2, 3, 4, 5, 6, 7, 12]))
    with pytest.raises(BadInput, match="12 in example 8"):
        sonde.train(
            wrong(data=Data(labels, name="labels"), objective=Categorical(classes=10), model=lambda: nn.Linear(4, 10)), run=tmp_path / "r"
        )
    assert list(tmp_path.iterdir()) == []


def test_rows_are_plain_json_without_clock(tmp_path):
    run = sonde.train(line, run=tmp_path / "r", quiet=True, steps=5)
    for text in (run.path / "metrics.jsonl").read_text().splitlines():
        assert set(json.loads(text)) <= {"step", "epoch", "lr", "loss", "grad_norm", "model_step"} | set(
            f"{part}/{name}" for part in ("valid", "test") for name in ("loss", "nll", "squared_error", "absolute_error")
        )


def test_a_metric_that_nobody_gives_cannot_be_monitored(tmp_path):
    with pytest.raises(BadInput, match="did you mean 'valid/squared_error'"):
        sonde.train(line().replace(monitor="valid/squared_eror", mode="max"), run=tmp_path / "r", quiet=True)


def test_the_recipe_kept_in_a_run_is_code_and_only_the_recorded_one_is_run(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("from tests.engine.small import line\ndef recipe(steps: int = 6):\n    return line(steps=steps)\n")
    run = sonde.train(file, run=tmp_path / "r", quiet=True)
    canary = tmp_path / "canary"
    (run.path / "recipe.py").write_text(f"open({str(canary)!r}, 'w')\n" + file.read_text())
    with pytest.raises(DataUnusable, match="not the one it was started with"):
        sonde.open_run(run.path).model()
    info = json.loads((run.path / "run.json").read_text())
    info["recipe"] = {"name": str(run.path / "recipe.py")}
    (run.path / "run.json").write_text(json.dumps(info))
    with pytest.raises(BadInput, match="no recipe"):
        sonde.open_run(run.path).model()
    assert not canary.exists()


LATE = {
    "schedule": (lambda: line().replace(schedule=lambda step, steps: float("nan")), "schedule gives nan"),
    "too many epochs": (lambda: line().replace(steps=None, epochs=1e308), "more than any run can do"),
    "batch norm of one": (
        lambda: line().replace(batch_size=1, model=lambda: nn.Sequential(nn.Linear(1, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))),
        "layer '1' BatchNorm1d",
    ),
    "frozen": (lambda: line().replace(model=lambda: nn.Linear(1, 1).requires_grad_(False)), "no trainable parameters"),
    "augmentation": (lambda: line().replace(augment=lambda batch, rng: batch.x.flipp()), "a training batch failed"),
}


@pytest.mark.parametrize("name", LATE)
def test_what_only_training_would_show_is_seen_before_a_file_is_written(tmp_path, name):
    make, words = LATE[name]
    with pytest.raises(BadInput, match=words) as caught:
        sonde.train(make(), run=tmp_path / "r", quiet=True)
    assert "\n" not in str(caught.value) and not (tmp_path / "r").exists()
