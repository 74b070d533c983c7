"""The number of processes never changes a bit: shards, resumes with another number, lost workers."""

import os
import random
import signal

import pytest
import torch

import sonde
from sonde.engine import checkpoint
from sonde.runs import checkpoints
from tests.engine.small import tagger
from tests.engine.test_train import StopAt


def ending(run):
    """Everything a run ends with, as one comparable value; the random states of ranks are theirs alone."""
    snapshot = checkpoint.read(checkpoints.path_of(run.path / "checkpoints", run.result["steps"]))
    tensors = {f"{part}/{name}": t for part in ("model", "optim", "best") for name, t in snapshot.parts[part].items()}
    return tensors, (run.path / "metrics.jsonl").read_text()


def assert_same_bits(run, other):
    (tensors, rows), (others, other_rows) = ending(run), ending(other)
    assert rows == other_rows
    assert tensors.keys() == others.keys()
    for name, tensor in tensors.items():
        assert torch.equal(tensor, others[name]), name


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    """The reference: one process, four shards, with dropout, an uneven last batch and a masked objective."""
    return sonde.train(tagger, run=tmp_path_factory.mktemp("one") / "r", shards=4, quiet=True)


@pytest.mark.parametrize("processes", [2, 3, 4])
def test_one_two_and_four_processes_end_equal(tmp_path, one, processes):
    assert_same_bits(sonde.train(tagger, run=tmp_path / "r", processes=processes, shards=4, quiet=True), one)


def test_the_number_of_processes_may_change_at_every_resume(tmp_path, one):
    for processes, stop in ((2, 4), (4, 9), (1, 15), (2, 99)):
        recipe = tagger().replace(callbacks=[StopAtAny(stop)])
        try:
            run = sonde.train(recipe, run=tmp_path / "r", processes=processes, shards=4, quiet=True)
        except sonde.core.errors.Preempted:
            assert checkpoints.steps(tmp_path / "r" / "checkpoints")[-1] == stop
    assert_same_bits(run, one)


class StopAtAny(StopAt):
    """SIGTERM to one worker only: the others must agree to stop at the same step."""


def test_shards_without_dropout_are_the_undivided_run_up_to_rounding(tmp_path):
    whole = sonde.train(tagger(dropout=0.0), run=tmp_path / "a", threads=1, quiet=True)
    parts = sonde.train(tagger(dropout=0.0), run=tmp_path / "b", processes=2, shards=4, quiet=True)
    for name, tensor in ending(whole)[0].items():
        torch.testing.assert_close(ending(parts)[0][name], tensor, rtol=0, atol=1e-6)


def test_a_killed_worker_is_replaced_and_nothing_changes(tmp_path, one):
    rng = random.Random(5)
    for trial in range(3):
        recipe = tagger().replace(callbacks=[KillSelf(rng.randrange(2, 19), rng.randrange(2), tmp_path / f"killed-{trial}")])
        run = sonde.train(recipe, run=tmp_path / f"r{trial}", processes=2, shards=4, checkpoint_every=5, quiet=True)
        assert (tmp_path / f"killed-{trial}").exists()
        assert_same_bits(run, one)


class KillSelf(sonde.Callback):
    """SIGKILL to one rank at a step, once."""

    def __init__(self, at, rank, mark):
        self.at, self.rank, self.mark = at, rank, mark

    def step(self, run, step, row):
        if step == self.at and run.world.rank == self.rank and not self.mark.exists():
            self.mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)


class Freeze(sonde.Callback):
    """SIGSTOP to one rank at a step, once."""

    def __init__(self, at, mark):
        self.at, self.mark = at, mark

    def step(self, run, step, row):
        if step == self.at and run.world.rank == 1 and not self.mark.exists():
            self.mark.touch()
            os.kill(os.getpid(), signal.SIGSTOP)


def test_a_stopped_worker_is_named_and_the_run_still_ends_right(tmp_path, one, capfd):
    recipe = tagger().replace(callbacks=[Freeze(7, tmp_path / "mark")])
    run = sonde.train(recipe, run=tmp_path / "r", processes=2, shards=4, checkpoint_every=5, hang_timeout=2.0, quiet=True)
    assert_same_bits(run, one)
    stderr = capfd.readouterr().err
    assert "rank 1" in stderr and "stopped" in stderr


class Poison(torch.nn.Module):
    """NaN for one example, which only one rank sees."""

    def __init__(self, inner, poison):
        super().__init__()
        self.inner, self.poison = inner, poison

    def forward(self, tokens):
        return torch.where((tokens == self.poison).all(1)[:, None, None], torch.nan, self.inner(tokens))


def test_bad_numbers_on_one_rank_stop_all_and_name_the_rank(tmp_path):
    recipe = tagger(dropout=0.0)
    poison = recipe.data.train[torch.tensor([20])].x[0]
    recipe = recipe.replace(model=lambda: Poison(tagger(dropout=0.0).build_model(), poison))
    with pytest.raises(sonde.core.errors.NumericalStop) as caught:
        sonde.train(recipe, run=tmp_path / "r", processes=2, shards=2, quiet=True)
    assert "rank " in caught.value.where and "examples [20]" in caught.value.where


def test_fsdp_is_the_same_training_up_to_rounding_and_shares_checkpoints(tmp_path):
    recipe = tagger(dropout=0.0)
    whole = sonde.train(recipe, run=tmp_path / "a", threads=1, quiet=True)
    with pytest.raises(sonde.core.errors.Preempted):
        sonde.train(recipe.replace(callbacks=[StopAtAny(8)]), run=tmp_path / "b", processes=2, parallel="fsdp", quiet=True)
    spread = sonde.train(recipe.replace(callbacks=[StopAtAny(99)]), run=tmp_path / "b", processes=2, parallel="fsdp", quiet=True)
    for name, tensor in ending(whole)[0].items():
        torch.testing.assert_close(ending(spread)[0][name], tensor, rtol=0, atol=2e-6, msg=name)


def children() -> set[str]:
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        return set(file.read().split())


@pytest.mark.skipif(not os.path.exists("/proc/self/task"), reason="needs /proc")
def test_no_process_is_left(tmp_path):
    before = children()
    sonde.train(tagger, run=tmp_path / "r", processes=2, shards=4, quiet=True, steps=3)
    assert children() <= before
