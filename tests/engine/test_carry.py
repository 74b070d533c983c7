"""Text that is read in order, with the state of the model carried from update to update."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from sonde import train
from sonde.core import registry
from sonde.core.batch import Batch
from sonde.core.errors import BadInput
from sonde.core.stream import STATE, Measured
from sonde.data.text.contiguous import ContiguousStream
from sonde.models.language_model import LanguageModel
from sonde.objectives.carried import Carried
from sonde.objectives.categorical import Categorical
from sonde.recipes.char_lm import recipe as char_lm
from sonde.recipes.tools.sequence import has_fixed_state
from tests.engine import harness

TEXT = "".join(f"{number} times {number} is {number * number}.\n" for number in range(160))


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    return path


def read_all(stream: ContiguousStream, steps: int, shards: int = 1) -> list[list[list[int]]]:
    """What each reader reads, step by step, without padding."""
    stream.open(range(shards), shards)
    read = []
    for step in range(steps):
        rows, notes = [], {}
        for shard in range(shards):
            batch = stream.batch(step, shard, shards, torch.nn.Identity())
            rows += [[*x[mask].tolist(), -1] if new else x[mask].tolist() for x, mask, new in zip(batch.x, batch.mask, batch.fresh)]
            notes[shard] = {f"{STATE}h": torch.full((len(batch), 1), float(step))}
        read.append(rows)
        stream.observe(step, Measured(0.0, {}, notes))
    return read


def test_readers_go_on_where_they_stopped_and_start_afresh_at_ends():
    """23 tokens in two tracks of 11; documents end at 4 and 15; -1 marks a fresh start."""
    stream = ContiguousStream(torch.arange(23), length=4, batch_size=2, ends=[4, 15])
    assert read_all(stream, 5) == [
        [[0, 1, 2, 3, -1], [11, 12, 13, 14, -1]],
        [[4], [15]],
        [[5, 6, 7, 8, -1], [16, 17, 18, 19, -1]],
        [[9, 10], [20, 21]],
        [[0, 1, 2, 3, -1], [11, 12, 13, 14, -1]],
    ]
    assert stream.steps_per_epoch == 3
    targets = stream.example(2)
    assert targets.y.tolist() == [[1, 2, 3, 4], [12, 13, 14, 15]] and targets.fresh.all()


def test_shards_read_what_one_would():
    make = partial(ContiguousStream, torch.arange(50), length=3, batch_size=5, ends=[7, 30])
    assert read_all(make(), 9, shards=1) == read_all(make(), 9, shards=3)


def test_too_little_text_is_refused():
    with pytest.raises(BadInput, match="30 tokens in 4 tracks are fewer than 8 for each"):
        ContiguousStream(torch.arange(30), 8, 4)


RECURRENT = [name for name in registry.names("nn.mixers") if name not in ("attention", "reformer", "linformer")]


@pytest.mark.parametrize("mixer", RECURRENT)
def test_windows_with_a_carried_state_are_one_long_pass(mixer):
    """Logits of three windows are those of the whole text; the gradient of each window is that with the state as a constant."""
    assert has_fixed_state(mixer, 24)
    torch.manual_seed(1)
    model = LanguageModel(11, 24, 2, mixer, positions="sinusoidal").double()
    tokens = torch.randint(11, (31,), generator=torch.Generator().manual_seed(2))
    stream, objective = ContiguousStream(tokens, 5, 2), Carried(Categorical(classes=11))
    stream.open(range(1), 1)
    whole = model(torch.stack([tokens[:15], tokens[15:30]])).log_softmax(-1)
    state: Any = None
    for step in range(3):
        batch = stream.batch(step, 0, 1, model)
        terms = objective(model, batch)
        part = whole[:, 5 * step : 5 * step + 5].gather(2, batch.y.unsqueeze(2))
        assert torch.allclose(terms["nll"].sum, -part.sum(), rtol=1e-8)
        logits, after = model.advance(batch.x, state)
        by_hand = torch.autograd.grad(Categorical(classes=11).terms(logits, Batch(x=batch.x, y=batch.y)).loss(), list(model.parameters()))
        ours = torch.autograd.grad(terms.loss(), list(model.parameters()))
        assert all(torch.allclose(a, b, rtol=1e-7, atol=1e-10) for a, b in zip(ours, by_hand, strict=True))
        state = {name: value.detach() for name, value in after.items()}
        stream.observe(step, Measured(0.0, {}, {0: terms.notes}))


def test_a_fresh_row_forgets_and_the_others_do_not():
    torch.manual_seed(0)
    model = LanguageModel(7, 16, 1, "gru").double()
    x = torch.randint(7, (3, 4))
    _, state = model.advance(x)
    fresh = torch.tensor([False, True, False])
    batch = Batch(x=x, y=x, fresh=fresh, **{STATE + name: value for name, value in state.items()})
    notes = Carried(Categorical(classes=7))(model, batch).notes
    _, with_state = model.advance(x, state)
    _, without = model.advance(x)
    for name in state:
        expected = torch.where(fresh.view(-1, *[1] * (without[name].ndim - 1)), without[name], with_state[name])
        assert torch.allclose(notes[STATE + name], expected) and not torch.allclose(without[name], with_state[name])


SMALL: dict[str, Any] = {"mixer": "gru", "depth": 1, "width": 16, "context": 8, "batch_size": 5, "steps": 23, "carry": True}


def test_a_run_resumes_on_any_number_of_processes_with_its_state(text, memory):
    kind = {"recipe": char_lm, **SMALL, "data": text, "document_end": "7.\n", "shards": 3}
    whole = harness.digest(harness.train(memory / "whole", **kind).path)
    assert "stream" in whole
    path = memory / "run"
    assert harness.attempt(path, harness.kill_in_save(2, 3), **kind).wait().killed
    harness.finished(path, **kind, processes=3)
    assert [name for name in harness.differences(harness.digest(path), whole) if name != "random states"] == []


def test_a_state_that_is_not_saved_is_noticed(text, memory):
    """Planted: the readers keep their places and forget the state of the model."""
    kind = {"recipe": char_lm, **SMALL, "data": text}
    whole = harness.digest(harness.train(memory / "whole", **kind).path)
    real = ContiguousStream.load_state_dict

    def forgetful(self: ContiguousStream, state: Any) -> None:
        real(self, {name: {**shard, "state": {key: value * 0 for key, value in shard["state"].items()}} for name, shard in state.items()})

    path = memory / "run"
    assert harness.attempt(path, harness.kill_in_save(2, 3), **kind).wait().killed
    harness.finished(path, before=lambda: setattr(ContiguousStream, "load_state_dict", forgetful), **kind)
    assert "parameters" in harness.differences(harness.digest(path), whole)


def test_the_state_reaches_further_than_a_window(tmp_path):
    """Windows of 4 of documents that are all alike: with the state since their start every letter is known, without it few are.

    Readers of the validation part may start in the middle of a document, which costs them its first letters.
    """
    path = tmp_path / "pattern.txt"
    path.write_text("aababbbabaab;" * 700)
    how: dict[str, Any] = {"mixer": "gru", "depth": 1, "width": 32, "context": 4, "batch_size": 16, "steps": 500, "lr": 2e-3, "data": path}
    how["valid"] = 0.4
    losses = {}
    for carry in ({"carry": True, "document_end": ";"}, {}):
        run = train("char_lm", run=tmp_path / f"run-{len(losses)}", quiet=True, threads=1, **carry, **how)
        losses[bool(carry)] = run.result["metrics"]["valid/loss"]
    assert losses[True] < 0.15 < 0.3 < losses[False], losses


@pytest.mark.parametrize("mixer", ["attention", "linformer"])
def test_a_mixer_whose_state_grows_is_refused(mixer, text, tmp_path):
    with pytest.raises(BadInput, match=f"the state of '{mixer}' cannot be carried"):
        train("char_lm", run=tmp_path / "run", quiet=True, mixer=mixer, width=16, depth=1, carry=True, data=text)
