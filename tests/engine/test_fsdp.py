"""FSDP: gradients of data parallel for every model, one block whole at a time, and all that a run survives."""

from __future__ import annotations

import copy
import os
import signal
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import sonde
from sonde.core import registry
from sonde.core.batch import Batch, Data, call_model
from sonde.core.errors import BadInput, NumericalStop, Preempted, SondeError
from sonde.core.recipe import Recipe
from sonde.core.terms import Terms
from sonde.data.tensors import TensorSource
from sonde.engine.launch import launch
from sonde.engine.phases import Phases
from sonde.engine.strategies import sharded as sharded_module
from sonde.engine.strategies import units
from sonde.engine.strategies.ordered import Ordered
from sonde.engine.strategies.sharded import Sharded
from sonde.engine.strategies.units import choose_units, replicated_parameters
from sonde.engine.weights import Weights
from sonde.engine.world import World, shards_of
from sonde.models.encoder_decoder import EncoderDecoder
from sonde.models.language_model import LanguageModel
from sonde.nn.block import style_of
from sonde.objectives.categorical import Categorical
from sonde.objectives.gaussian import Gaussian
from sonde.optim.build import optimizer
from tests.engine import harness
from tests.engine.harness import attempt, differences, digest, finished
from tests.engine.small import tagger
from tests.engine.test_processes import KillSelf, Poison, StopAtAny, ending


class Squares:
    """The mean square of all that a model returns; it has no `counts`, so a pass of its own finds them out."""

    def __call__(self, model: Any, batch: Batch) -> Terms:
        outputs = call_model(model, batch)
        values = outputs if isinstance(outputs, tuple) else outputs.values() if isinstance(outputs, dict) else (outputs,)
        return Terms(squares=(sum(value.square().sum() for value in values if isinstance(value, Tensor)), float(len(batch))))


def vectors(many: int = 6, width: int = 4) -> Batch:
    return Batch(x=torch.randn(many, width, generator=torch.Generator().manual_seed(1)))


def largest_differences(
    world: World, model: nn.Module, objective: Any, batch: Batch, shards: int = 2, steps: int = 2, rule: str = "adamw", decay: float = 0.1
) -> tuple[float, float]:
    """The largest difference of a gradient and of a weight between FSDP and data parallel over some steps."""
    settings = optimizer(rule, lr=0.01, weight_decay=decay)
    model.train()
    twin = copy.deepcopy(model)
    cuts = [-(-part * len(batch) // shards) for part in range(shards + 1)]
    parts = {shard: batch[cuts[shard] : cuts[shard + 1]] for shard in shards_of(world.rank, world.size, shards)}
    ordered = Ordered(twin, Weights(twin, settings), world, shards)
    sharded = Sharded(model, settings, objective, world, shards, batch[:2])
    gradient = 0.0
    for step in range(steps):

        def seed(shard: int, step: int = step) -> None:
            torch.manual_seed(10 * step + shard)

        losses = [strategy.gradient(objective, parts, seed) for strategy in (ordered, sharded)]
        assert losses[0] == pytest.approx(losses[1], rel=1e-5)
        norms = [strategy.weights.norm() for strategy in (ordered, sharded)]
        assert float(norms[0]) == pytest.approx(float(norms[1]), rel=1e-5)
        parameters = dict(model.named_parameters())
        for slot in ordered.weights.flat.slots:
            mine: Any = parameters[slot.name].grad
            mine = mine.full_tensor() if hasattr(mine, "full_tensor") else mine
            gradient = max(gradient, float((mine - slot.parameter.grad).abs().max()) / max(float(norms[0]), 1.0))  # type: ignore[operator]
        for strategy, norm in zip((ordered, sharded), norms, strict=True):
            strategy.weights.clip(norm, 0.5)
            strategy.weights.update(1.0)
    whole, other = sharded.weights.tensors()["model"], ordered.weights.tensors()["model"]
    assert whole.keys() == (other.keys() if world.is_main else set())
    return gradient, max((float((whole[name].double() - other[name].double()).abs().max()) for name in whole), default=0.0)


def on_two(check: Callable[[World], None]) -> None:
    """Run a check on two processes; what fails there is raised here."""
    launch(check, 2, restarts=0, hang_timeout=20.0)


def agrees(model: nn.Module, objective: Any, batch: Batch, gradient: float = 1e-6, weight: float = 1e-5, **more: Any) -> None:
    def check(world: World) -> None:
        errors = largest_differences(world, model, objective, batch, **more)
        assert errors[0] < gradient and errors[1] < weight, errors

    on_two(check)


@pytest.fixture
def smallest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever can be a unit is one, however small."""
    monkeypatch.setattr(units, "LEAST", 1)


# ---------------------------------------------------------------- every model and objective


def tiny_cases() -> Iterator[tuple[str, nn.Module, Any, Batch]]:
    """Every objective with its model, and every model that trains."""
    for name in registry.names("objectives"):
        torch.manual_seed(0)
        objective, model, batch = registry.load("objectives", name).tiny()
        if not Phases(objective).declared:
            yield f"objective {name}", model, objective, batch
    for name in registry.names("models"):
        torch.manual_seed(0)
        model, batch = registry.load("models", name).tiny()
        if any(p.requires_grad for p in model.parameters()):
            yield f"model {name}", model, Squares(), batch


@pytest.mark.usefixtures("smallest")
def test_every_model_and_objective_trains_as_in_data_parallel():
    def check(world: World) -> None:
        cases = 0
        for name, model, objective, batch in tiny_cases():
            gradient, weight = largest_differences(world, model, objective, batch)
            assert gradient < 1e-6 and weight < 2e-6, f"{name}: {gradient}, {weight}"
            cases += 1
        assert cases > 30

    on_two(check)


# ---------------------------------------------------------------- units


def unit_names(model: nn.Module, batch: Batch, objective: Any = None) -> set[str]:
    objective = objective or Squares()
    names = {module: name for name, module in model.named_modules()}
    chosen = choose_units(model, lambda: objective(model, batch), replicated_parameters(model), lambda flags: flags)
    assert [module for module in reversed(list(model.modules())) if module in chosen] == chosen, "a part comes before what contains it"
    return {names[unit] for unit in chosen}


def tokens(many: int = 4) -> Batch:
    return Batch(x=torch.randint(90, (many, 5), generator=torch.Generator().manual_seed(2)))


def test_each_block_of_a_language_model_is_a_unit():
    blocks = {f"stack.blocks.{i}" for i in range(6)}
    wide = LanguageModel(300, 64, 6, "attention heads=4")
    assert unit_names(wide, tokens()) == {*blocks, "embedding", "head"}
    assert unit_names(LanguageModel(300, 64, 6, "attention heads=4", tied=True), tokens()) == blocks  # read by the head as well
    assert unit_names(LanguageModel(90, 64, 6, "attention heads=4"), tokens()) == blocks  # the embedding is too small
    assert unit_names(LanguageModel(300, 16, 6, "attention heads=4"), tokens()) == {"stack"}  # so are the blocks, one by one


def test_what_a_decoder_reads_before_its_blocks_run_has_mesh_further():
    model = EncoderDecoder(90, 64, 2, 4, style=style_of("t5"), encoder="attention causal=false", tied=False)
    batch = Batch(source=tokens().x, x=tokens().x)
    chosen = unit_names(model, batch)
    assert {"encoder.blocks.0", "encoder.blocks.1"} < chosen
    assert {"decoder.blocks.0.mixer", "decoder.blocks.0.ffn", "decoder.blocks.1.mixer", "decoder.blocks.1.ffn"} < chosen
    assert not {"decoder.blocks.0", "decoder.blocks.0.cross", "decoder"} & chosen


class Odd(nn.Module):
    """Two linear layers, the second used in an odd way."""

    def __init__(self, second: nn.Module) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(4, 4), second, nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.use(torch.tanh(self.first(x))))

    def use(self, x: Tensor) -> Tensor:
        return self.second(x)


class ReadOutside(Odd):
    """The weight is read by the module above, after its own forward pass."""

    def use(self, x: Tensor) -> Tensor:
        return F.linear(self.second(x), self.second.weight)  # type: ignore[arg-type]


class OtherMethod(nn.Linear):
    def twice(self, x: Tensor) -> Tensor:
        return 2 * F.linear(x, self.weight, self.bias)


class CalledOtherwise(Odd):
    """A method other than `forward` is called."""

    def use(self, x: Tensor) -> Tensor:
        return self.second.twice(x)  # type: ignore[operator]


class GivesWeight(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return self.weight[:2]


class WeightOutlives(Odd):
    """What is returned is a view of the weight."""

    def use(self, x: Tensor) -> Tensor:
        return x[:, :2] @ self.second(x)


class Box:
    def __init__(self, value: Tensor) -> None:
        self.value = value


class GivesBox(nn.Linear):
    def forward(self, x: Tensor) -> Any:
        return Box(F.linear(x, self.weight, self.bias).tanh())


class OutputHidden(Odd):
    """torch cannot see the tensor that is returned."""

    def use(self, x: Tensor) -> Tensor:
        return self.second(x).value


class GivesView(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias).view(len(x), -1)


class ViewChanged(Odd):
    """What is returned is a view, and is changed in place."""

    def use(self, x: Tensor) -> Tensor:
        return self.second(x).mul_(2.0)


class Tied(Odd):
    """Two layers have the same parameter."""

    def __init__(self, second: nn.Linear) -> None:
        super().__init__(second)
        self.last.weight = second.weight


class Slopes:
    """Penalizes the slope of the model's output: it differentiates inside the forward pass."""

    def __call__(self, model: Any, batch: Batch) -> Terms:
        x = batch.x.detach().requires_grad_()
        with torch.enable_grad():
            y = model(x)
            (slope,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
        return Terms(square=(y.square().sum(), float(len(batch))), slope=(slope.square().sum(), float(len(batch))))


def odd_cases() -> list[tuple[str, nn.Module, Any, set[str]]]:
    torch.manual_seed(3)
    block = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    models: dict[str, nn.Module] = {
        "read outside": ReadOutside(nn.Linear(4, 4)),
        "other method": CalledOtherwise(OtherMethod(4, 4)),
        "weight returned": WeightOutlives(GivesWeight(4, 4)),
        "output hidden": OutputHidden(GivesBox(4, 4)),
        "view changed": ViewChanged(GivesView(4, 4)),
    }
    cases = [(name, model, Squares(), {"first", "last"}) for name, model in models.items()]
    cases.append(("tied", Tied(nn.Linear(4, 4)), Squares(), {"first"}))
    cases.append(("slopes inside", Odd(nn.Linear(4, 4)), Slopes(), set()))
    cases.append(("one block three times", nn.Sequential(*[block] * 3, nn.Linear(4, 2)), Squares(), {"0", "3"}))
    return cases


@pytest.mark.usefixtures("smallest")
@pytest.mark.parametrize("case", range(8))
def test_odd_models_have_safe_units_and_train_as_in_data_parallel(case: int, monkeypatch: pytest.MonkeyPatch) -> None:
    name, model, objective, expected = odd_cases()[case]
    if name == "tied":  # a weight so small would be held whole by every process
        monkeypatch.setattr(units, "replicated_parameters", lambda model: set())
        monkeypatch.setattr(sharded_module, "replicated_parameters", lambda model: set())
        chosen = choose_units(model, lambda: objective(model, vectors()), set(), lambda flags: flags)
        assert {model.get_submodule(part) for part in expected} == set(chosen)
    else:
        assert unit_names(model, vectors(), objective) == expected
    agrees(model, objective, vectors())


@pytest.mark.usefixtures("smallest")
@pytest.mark.parametrize("case", range(7))
def test_without_the_trial_the_odd_models_fail(case: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: whatever looks like a unit is taken for one."""
    monkeypatch.setattr(units, "_is_tied", lambda *_: False)
    monkeypatch.setattr(units, "replicated_parameters", lambda model: set())
    monkeypatch.setattr(sharded_module, "replicated_parameters", lambda model: set())
    monkeypatch.setattr(units._Watch, "leave", lambda *_: None)
    monkeypatch.setattr(units._Watch, "__torch_dispatch__", lambda self, func, types, args=(), kwargs=None: func(*args, **(kwargs or {})))
    _, model, objective, _ = odd_cases()[case]
    agrees(Odd(nn.Linear(4, 4)), Squares(), vectors())  # what is planted harms only them
    with pytest.raises(SondeError):
        agrees(model, objective, vectors())


# ---------------------------------------------------------------- memory


def bytes_behind(tensors: Any) -> int:
    """Memory of this process behind some tensors, padding included, each piece once."""
    local = [t.to_local() if hasattr(t, "to_local") else t for t in tensors]
    return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in local}.values())


@pytest.mark.parametrize("tied", [False, True])
def test_a_process_holds_half_of_the_state_and_one_block_at_a_time(tied: bool) -> None:
    def check(world: World) -> None:
        model = LanguageModel(300, 64, 6, "attention heads=4", tied=tied)
        block, rest = (sum(4 * p.numel() for p in part.parameters()) for part in (model.stack.blocks[0], model.embedding))
        whole = sum(4 * p.numel() for p in model.parameters())
        batch = tokens()
        sharded = Sharded(model, optimizer("adamw", lr=0.01), Squares(), world, 2, batch[:2])
        seen = [0]
        warnings.filterwarnings("ignore", message="Full backward hook is firing")

        def look(*_: Any) -> None:
            seen[0] = max(seen[0], bytes_behind(p for p in model.parameters() if not hasattr(p, "to_local")))

        for module in model.modules():
            if not list(module.children()):  # a leaf runs after the hooks of what contains it
                module.register_forward_pre_hook(look)
                module.register_full_backward_pre_hook(look)
        sharded.gradient(Squares(), {world.rank: batch[2 * world.rank : 2 * world.rank + 2]}, lambda shard: None)
        sharded.weights.update(1.0)
        parameters = list(model.parameters())
        moments = [value for state in sharded.weights.optimizer.state.values() for value in state.values()]
        state = [*parameters, *(p.grad for p in parameters), *moments]
        assert bytes_behind(state) < 0.51 * 4 * whole
        expected = block + 4 * 64 + (rest if tied else 0)  # the last norm belongs to no unit
        assert expected <= seen[0] < 1.01 * expected  # an odd number of rows is padded

    on_two(check)


def test_nothing_keeps_the_whole_weights():
    """Neither the trial, whose graph holds them, nor torch."""

    def check(world: World) -> None:
        model = LanguageModel(300, 64, 6, "attention heads=4")
        whole = [weakref.ref(p) for p in model.parameters()]
        strategy = Sharded(model, optimizer("adamw", lr=0.01), Squares(), world, 2, tokens()[:2])
        assert strategy.parts and [ref for ref in whole if ref() is not None] == []

    on_two(check)


# ---------------------------------------------------------------- what torch alone does not do


class Uneven(nn.Module):
    """A single number, an unused layer, a frozen one, a norm with running means, and a weight in channels-last memory."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.scale, self.conv, self.norm = nn.Parameter(torch.tensor(0.7)), nn.Conv2d(2, 3, 3, padding=1, bias=False), nn.BatchNorm2d(3)
        self.unused, self.frozen, self.last = nn.Linear(3, 3), nn.Linear(3, 3).requires_grad_(False), nn.Linear(3, 1)
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.scale * self.frozen(self.norm(self.conv(x)).relu().mean((2, 3))))


def images(many: int) -> Batch:
    return Batch(x=torch.randn(many, 2, 4, 4, generator=torch.Generator().manual_seed(6)))


@pytest.mark.usefixtures("smallest")
@pytest.mark.parametrize("many, shards", [(8, 2), (9, 3), (2, 3), (4, 4), (1, 2)], ids=str)
def test_uneven_shards_and_odd_parameters(many: int, shards: int) -> None:
    """Also shards without examples, and processes with fewer shards than others; every buffer ends as in data parallel."""
    agrees(Uneven(), Squares(), images(many), shards=shards, rule="sgd")


@pytest.mark.parametrize("rule", ["sgd", "adam", "lion", "rmsprop", "adagrad"])
def test_optimizers(rule: str) -> None:
    model = LanguageModel(30, 16, 1, "attention heads=2")
    batch = Batch(x=torch.randint(30, (4, 5), generator=torch.Generator().manual_seed(2)))
    agrees(model, Squares(), batch, rule=rule, decay=0.0, weight=1e-4)


@pytest.mark.parametrize("rule", ["adafactor", "muon"])
def test_a_rule_for_whole_matrices_is_refused(rule: str, tmp_path) -> None:
    with pytest.raises(BadInput, match=f"'{rule}' updates a matrix as a whole.*leave --parallel fsdp out"):
        sonde.train(count_tokens().replace(optimizer=optimizer(rule, lr=0.01)), run=tmp_path / "r", **FSDP)


class Counting(torch.optim.SGD):
    """Halves its step at every update, by a count that is a plain number."""

    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                state["count"] = state.get("count", 0) + 1
                parameter.data.add_(parameter.grad, alpha=-group["lr"] * 0.5 ** state["count"])


def test_a_count_of_an_optimizer_that_is_a_plain_number_survives(tmp_path):
    recipe = count_tokens(dropout=0.0).replace(optimizer=lambda groups: Counting(groups, lr=0.5))
    whole = sonde.train(recipe, run=tmp_path / "whole", **FSDP)
    with pytest.raises(Preempted):
        sonde.train(recipe.replace(callbacks=[StopAtAny(6)]), run=tmp_path / "r", **FSDP)
    again = sonde.train(recipe.replace(callbacks=[StopAtAny(99)]), run=tmp_path / "r", **FSDP)
    assert_close(again, whole, most=0.0)


# ---------------------------------------------------------------- runs


def count_tokens(steps: int = 14, dropout: float = 0.1, **more: Any) -> Recipe:
    """A language model of three blocks with dropout."""
    rng = torch.Generator().manual_seed(4)
    rows = (torch.arange(9) * 3 + torch.randint(40, (46, 1), generator=rng)) % 40
    source = TensorSource(rows[:, :-1], rows[:, 1:])
    return Recipe(
        model=lambda: LanguageModel(40, 48, 3, "attention heads=2", tied=True, dropout=dropout),
        data=Data(source.subset(torch.arange(37)), source.subset(torch.arange(37, 46)), name="counting", task="classes"),
        objective=Categorical(),
        optimizer=optimizer("adamw", lr=0.003, weight_decay=0.01),
        steps=steps,
        batch_size=10,
        clip_norm=1.0,
        log_every=1,
        evaluate_every=4,
        restore_best=True,
        **more,
    )


FSDP: dict[str, Any] = {"processes": 2, "parallel": "fsdp", "quiet": True}


def assert_close(run: Any, other: Any, most: float = 2e-6) -> None:
    tensors, others = ending(run)[0], ending(other)[0]
    assert tensors.keys() == others.keys()
    for name, tensor in tensors.items():
        torch.testing.assert_close(tensor, others[name], rtol=0, atol=most, msg=name)


def test_a_run_is_that_of_data_parallel_and_either_continues_the_other(tmp_path):
    recipe = count_tokens()
    whole = sonde.train(recipe, run=tmp_path / "ddp", processes=2, quiet=True)
    assert_close(sonde.train(recipe, run=tmp_path / "fsdp", **FSDP), whole)
    for name, first, second in (("a", "fsdp", "ddp"), ("b", "ddp", "fsdp")):
        with pytest.raises(Preempted):
            sonde.train(
                recipe.replace(callbacks=[StopAtAny(6)]), run=tmp_path / name, processes=2, parallel=first, quiet=True, checkpoint_every=3
            )
        again = sonde.train(recipe.replace(callbacks=[StopAtAny(99)]), run=tmp_path / name, processes=2, parallel=second, quiet=True)
        assert_close(again, whole)


@pytest.mark.parametrize("recipe", [count_tokens, tagger], ids=["language model", "tagger"])
def test_killed_and_resumed_bit_for_bit(memory, recipe):
    options = {**FSDP, "checkpoint_every": 4}
    expected = digest(finished(memory / "whole", recipe=recipe(), **options))
    for number, (at, rank) in enumerate(((3, 0), (9, 1), (11, 0))):
        mark = memory / f"killed-{number}"
        dying = recipe().replace(callbacks=[KillSelf(at, rank, mark)])
        path = finished(memory / f"run-{number}", recipe=dying, **options)
        assert mark.exists()
        assert differences(digest(path), expected) == ["state"]  # which lists the callback
    running = attempt(memory / "all", recipe=recipe(), **options)
    while not list((memory / "all").glob("checkpoints/step-*")):
        assert not running.ends_within(0.002)
    for pid in (running.pid, *running.workers()):
        os.kill(pid, signal.SIGKILL)
    assert running.wait().killed
    assert differences(digest(finished(memory / "all", recipe=recipe(), **options)), expected) == []


def test_everything_that_a_resume_must_bring_back(memory):
    """The trial of tests/engine/harness: batch norm, buffers that are not saved, draws from all global generators."""
    expected = digest(finished(memory / "whole", **FSDP))
    running = attempt(memory / "run", **FSDP)
    while not list((memory / "run").glob("checkpoints/step-*")):
        assert not running.ends_within(0.002)
    running.send(signal.SIGKILL)
    assert running.wait().killed
    assert differences(digest(finished(memory / "run", **FSDP)), expected) == []


def test_bad_numbers_on_one_rank_stop_all_and_name_the_rank(tmp_path):
    recipe = tagger(dropout=0.0)
    poison = recipe.data.train[torch.tensor([20])].x[0]
    recipe = recipe.replace(model=lambda: Poison(tagger(dropout=0.0).build_model(), poison))
    with pytest.raises(NumericalStop) as caught:
        sonde.train(recipe, run=tmp_path / "r", **FSDP)
    assert "rank " in caught.value.where and "examples [20]" in caught.value.where


def test_a_bad_field_of_one_rank_does_not_keep_the_other_waiting(tmp_path):
    """The rank that sees it needs no pass of the model to name it."""
    x = torch.linspace(-1, 1, 40).view(-1, 2)
    x[13, 1] = torch.nan
    recipe = Recipe(
        model=lambda: nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1)),
        data=Data(TensorSource(x, x[:, :1].nan_to_num()), name="line", task="values"),
        objective=Gaussian(),
        optimizer=optimizer("sgd", lr=0.01),
        steps=6,
        batch_size=6,
    )
    with pytest.raises(NumericalStop, match=r"field 'x' of the batch is not finite in examples \[13\]"):
        sonde.train(recipe, run=tmp_path / "r", hang_timeout=10.0, **FSDP)


class UseModel(sonde.Callback):
    """Uses the trained model at the end, on rank 0 alone."""

    def finish(self, run: Any, step: int, model: nn.Module) -> None:
        logits = model(torch.arange(8).view(1, 8))
        run.event("used", step, shape=list(logits.shape), size=sum(p.numel() for p in model.parameters()))


def test_a_callback_has_the_whole_model_at_the_end(tmp_path):
    run = sonde.train(count_tokens(callbacks=[UseModel()]), run=tmp_path / "r", **FSDP)
    (used,) = [event for event in run.events if event["event"] == "used"]
    assert used["shape"] == [1, 8, 40] and used["size"] == sum(p.numel() for p in count_tokens().build_model().parameters())


def test_a_checkpoint_of_another_optimizer_is_refused(tmp_path):
    with pytest.raises(Preempted):
        sonde.train(count_tokens(callbacks=[StopAtAny(6)]), run=tmp_path / "r", **FSDP)
    other = count_tokens(callbacks=[StopAtAny(99)]).replace(optimizer=optimizer("sgd", lr=0.1, momentum=0.9))
    with pytest.raises(SondeError, match="moment '"):
        sonde.train(other, run=tmp_path / "r", **FSDP)


def test_an_optimizer_that_cannot_work_on_shards_is_refused(tmp_path):
    class Whole(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:
            raise NotImplementedError("needs all rows")

    recipe = count_tokens().replace(optimizer=lambda groups: Whole(groups, lr=0.1))
    with pytest.raises(BadInput, match="Whole cannot update weights that are spread over processes: NotImplementedError: needs all rows"):
        sonde.train(recipe, run=tmp_path / "r", **FSDP)


def test_averaged_weights_are_those_of_data_parallel_and_survive_a_kill(memory):
    options = {**FSDP, "checkpoint_every": 4, "ema": 0.7}
    whole = finished(memory / "whole", recipe=count_tokens(), **options)
    dying = count_tokens().replace(callbacks=[KillSelf(9, 1, memory / "killed")])
    path = finished(memory / "run", recipe=dying, **options)
    assert (memory / "killed").exists() and "average" in digest(whole)
    assert differences(digest(path), digest(whole)) == ["state"]  # which lists the callback
    other = finished(memory / "other", recipe=count_tokens(), **{**options, "parallel": "ddp"})
    ours, theirs = (sonde.open_run(one, recipe=count_tokens()).model() for one in (whole, other))
    for mine, yours in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine, yours, rtol=0, atol=2e-6)
    raw = harness.checkpoint.read(max((whole / "checkpoints").glob("step-*"))).parts
    assert any(not torch.equal(raw["model"][name], raw["average"][name]) for name in raw["model"])
