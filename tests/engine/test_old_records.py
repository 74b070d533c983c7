"""Runs of version 0.1.0, whose records have other names, are listed, opened and continued."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

import sonde
from sonde.core import registry, renamed
from sonde.engine import checkpoint
from sonde.engine.state import model_tensors
from sonde.models import diffusion
from sonde.nn.directions import Bidirectional
from sonde.nn.features import feature
from sonde.nn.mixers import mixer


def as_first_version(path: Path) -> None:
    """Rewrite the records of a run as version 0.1.0 wrote them."""
    info = json.loads((path / "run.json").read_text())
    info["format"] = 1
    info["dials"] = {{"batch_size": "batch"}.get(name, name): value for name, value in info.pop("options").items()}
    info["options"] = info.pop("run_options")
    (path / "run.json").write_text(json.dumps(info))
    if (path / "result.json").exists():
        result = json.loads((path / "result.json").read_text())
        result["figures"] = result.pop("metrics")
        (path / "result.json").write_text(json.dumps(result))
    with open(path / "events.jsonl", "a") as events:
        events.write('{"event": "IoU", "step": 2, "time": "2026-01-05T10:00:03+00:00", "learnt": true, "text": "0.9"}\n')


def test_a_finished_run_is_opened_and_listed(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    run = sonde.train("tiny_mlp", run=tmp_path / "r", batch_size=7, steps=4, quiet=True, threads=1)
    metrics = dict(run.result["metrics"])
    as_first_version(tmp_path / "r")
    old = sonde.open_run(tmp_path / "r")
    assert old.info["options"]["batch_size"] == 7 and old.info["run_options"]["threads"] == 1 and "dials" not in old.info
    assert old.result["metrics"] == metrics and old.recipe.batch_size == 7
    assert [event["text"] for event in old.events if event.get("learned")] == ["0.9"]
    from sonde.cli.main import main

    assert main(["runs", "--under", str(tmp_path)]) == 0
    assert "done" in capsys.readouterr().out


def test_a_stopped_run_continues_with_the_same_bits(tmp_path: Path) -> None:
    path = tmp_path / "r"
    whole = sonde.train("tiny_mlp", run=path, batch_size=7, steps=6, checkpoint_every=3, quiet=True, threads=1)
    expected = dict(whole.result["metrics"])
    shutil.rmtree(path / "checkpoints" / "step-00000006")  # as if it had been killed before its last save
    (path / "result.json").unlink()
    as_first_version(path)
    run = sonde.train(resume=path, quiet=True)
    assert run.result["metrics"] == expected and any(event["event"] == "resume" for event in run.events)


def with_old_keys(path: Path) -> int:
    """Rewrite a checkpoint with the keys that version 0.1.0 had; returns how many are others."""
    old = {new: name for name, present in renamed.TENSORS.items() for new in present}
    snapshot = checkpoint.read(path)

    def rename(name: str) -> str:
        return ".".join(old.get(part, part) for part in name.split("."))

    parts = {
        part: tensors if part == "rng" else {rename(name): value for name, value in tensors.items()}
        for part, tensors in snapshot.parts.items()
    }
    about = {name: value for name, value in snapshot.manifest.items() if name not in ("format", "step", "files")}
    shutil.rmtree(path)
    checkpoint.save(path.parent, snapshot.step, parts, snapshot.state, about)
    return sum(rename(name) != name for name in snapshot.parts["model"])


@pytest.mark.parametrize(
    ("recipe", "options"),
    [("flow", {"width": 4}), ("recall", {"mixer": "rwkv6", "width": 8}), ("recall", {"mixer": "s4", "width": 8})],
    ids=["flow", "rwkv6", "s4"],
)
def test_a_checkpoint_with_old_keys_is_opened_and_continued_with_the_same_bits(tmp_path: Path, recipe: str, options: dict) -> None:
    path = tmp_path / "r"
    whole = sonde.train(recipe, run=path, steps=4, checkpoint_every=2, quiet=True, threads=1, **options)
    metrics, weights = dict(whole.result["metrics"]), model_tensors(whole.model())
    assert with_old_keys(path / "checkpoints" / "step-00000004") > 0 and with_old_keys(path / "checkpoints" / "step-00000002") > 0
    opened = model_tensors(sonde.open_run(path).model())
    assert opened.keys() == weights.keys() and all(torch.equal(opened[name], value) for name, value in weights.items())
    shutil.rmtree(path / "checkpoints" / "step-00000004")
    (path / "result.json").unlink()
    run = sonde.train(resume=path, quiet=True)
    assert run.result["metrics"] == metrics and [event["step"] for event in run.events if event["event"] == "resume"] == [2]


def test_keys_are_renamed_only_where_the_model_has_the_new_one() -> None:
    assert renamed.tensor("blocks.0.mixer.share", {"blocks.0.mixer.time_mix"}) == "blocks.0.mixer.time_mix"
    assert renamed.tensor("0.back.turn", {"0.backward_mixer.A_imag"}) == "0.backward_mixer.A_imag"
    for known in ({"mixer.share", "mixer.time_mix"}, {"mixer.weight"}, set()):  # a model of the user's own, or another model
        assert renamed.tensor("mixer.share", known) == "mixer.share"


def test_every_present_key_of_the_table_exists() -> None:
    tiny = [registry.load("models", name).tiny()[0] for name in ("autoregressive", "bert", "diffusion", "elmo", "flow", "seq2seq", "vit")]
    layers = [registry.load("nn.mixers", name).tiny() for name in ("mamba", "mamba2", "rwkv6", "s4")]
    more = [diffusion.images(width=2), feature("hedgehog", 2), Bidirectional(mixer("rnn", 2), mixer("rnn", 2))]
    parts = {part for model in (*tiny, *layers, *more) for name in model_tensors(model) for part in name.split(".")}
    assert {new for present in renamed.TENSORS.values() for new in present} <= parts


@pytest.mark.parametrize(
    "body", [None, 3, [], {"format": 1}, {"format": 1, "recipe": 3, "dials": 4}, {"format": 1, "recipe": {"name": "x"}}]
)
def test_broken_records_are_left_to_the_check(body: object) -> None:
    if isinstance(body, dict):
        assert renamed.record(body)["format"] == 2
    assert renamed.result(body) is body


def test_options_of_a_users_own_file_keep_their_names() -> None:
    info = {"format": 1, "recipe": {"file": "mine.py"}, "dials": {"batch": 3}, "options": {}}
    assert renamed.record(info)["options"] == {"batch": 3}
    assert renamed.record({**info, "recipe": {"name": "tiny_mlp"}})["options"] == {"batch_size": 3}
    old = {**info, "recipe": {"name": "sentiment"}, "dials": {"data": "toy", "batch": 3}}
    assert renamed.record(old)["options"] == {"data": "toy_sentiment", "batch_size": 3}


def test_terms_of_a_gan_have_their_present_names() -> None:
    row = {"step": 2, "valid/judge": 1.4, "valid/forge": 0.7, "valid/fake": 0.5, "valid/loss": 2.1}
    assert list(renamed.event(row)) == ["step", "valid/discriminator", "valid/generator", "valid/fake", "valid/loss"]
    assert renamed.event({"valid/judge": 1.0}) == {"valid/judge": 1.0}  # a term of a user's own objective
    assert renamed.result({"figures": row})["metrics"] == renamed.event(row)
