"""Heads over trained bodies: the right token speaks for a sequence, padding never does, and what learns goes through the engine."""

from __future__ import annotations

import os
import signal

import pytest
import torch

import sonde
from sonde.core.batch import Batch, Data, call_model
from sonde.core.errors import BadInput, Preempted
from sonde.core.recipe import Callback, Recipe
from sonde.data.tensors import TensorSource
from sonde.models._trunk import pool
from sonde.models.bert import Bert
from sonde.models.elmo import Elmo, ElmoFeatures
from sonde.models.fine_tune import PairHead, SequenceHead, TokenHead
from sonde.models.language_model import LanguageModel
from sonde.nn.adapters import Prompted, add_bottlenecks, add_lora, freeze, trainable_names
from sonde.objectives.categorical import Categorical
from sonde.optim.build import optimizer

BODIES = {
    "gpt": lambda: LanguageModel(13, 12, 1, "attention heads=2"),
    "bert": lambda: Bert(13, 12, 1, "attention heads=2", max_positions=9),
    "elmo": lambda: ElmoFeatures(Elmo(13, 6)),
    "prompted": lambda: Prompted(LanguageModel(13, 12, 1, "gla heads=2"), 3),
}


@pytest.fixture(params=BODIES)
def body(request):
    torch.manual_seed(0)
    return BODIES[request.param]().eval()


def x(rows: int = 3, length: int = 7) -> torch.Tensor:
    return torch.randint(13, (rows, length), generator=torch.Generator().manual_seed(2))


LENGTHS = torch.tensor([7, 3, 5])


@pytest.mark.parametrize("take", ["last", "first", "mean"])
def test_a_summary_is_its_loop(take):
    y = torch.randn(3, 7, 4)
    y[1, 3:] = float("nan")
    for lengths in (LENGTHS, None):
        ends = [7] * 3 if lengths is None else lengths.tolist()
        rows = [row[:n] for row, n in zip(y, ends)]
        expected = torch.stack([{"last": row[-1], "first": row[0], "mean": row.mean(0)}[take] for row in rows])
        torch.testing.assert_close(pool(y, lengths, take), expected, equal_nan=True)


@torch.no_grad()
@pytest.mark.parametrize("hidden", [None, 9])
def test_padding_changes_no_answer(body, hidden):
    for take in ("last", "mean"):
        head = SequenceHead(body, 4, take, hidden).eval()
        logits = call_model(head, Batch(x=x(), lengths=LENGTHS))
        assert logits.shape == (3, 4)
        torch.testing.assert_close(logits[1], head(x()[1:2, :3])[0], rtol=1e-4, atol=1e-5)
    tags = TokenHead(body, 5, hidden).eval()
    logits = call_model(tags, Batch(x=x(), lengths=LENGTHS))
    assert logits.shape == (3, 7, 5)
    torch.testing.assert_close(logits[1, :3], tags(x()[1:2, :3])[0], rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_pairs_read_apart(body):
    head, other, n = PairHead(body, 3).eval(), x(3, 6).flip(0), torch.tensor([2, 6, 4])
    logits = call_model(head, Batch(x=x(), lengths=LENGTHS, other=other, other_lengths=n))
    u, v = (body.features(row)[0].mean(1) for row in (x()[1:2, :3], other[1:2, :6]))
    torch.testing.assert_close(logits[1:2], head.head(torch.cat([u, v, (u - v).abs(), u * v], 1)), rtol=1e-4, atol=1e-5)
    with pytest.raises(BadInput, match="no second sequence"):
        call_model(head, Batch(x=x(), lengths=LENGTHS))


def test_kinds_reach_the_body_that_knows_them():
    bert, gpt = BODIES["bert"](), BODIES["gpt"]()
    head, kinds = SequenceHead(bert, 2, "first"), x() % 2
    out = call_model(head, Batch(x=x(), kinds=kinds))
    torch.testing.assert_close(out, head.head(bert.features(x(), kinds=kinds)[0][:, 0]))
    with pytest.raises(BadInput, match="LanguageModel has no token-type embeddings"):
        call_model(SequenceHead(gpt, 2), Batch(x=x(), kinds=kinds))
    with pytest.raises(BadInput, match="does not work with a causal model"):
        SequenceHead(gpt, 2, "first")
    with pytest.raises(BadInput, match="no logits of its own"):
        SequenceHead(BODIES["elmo"](), 2, language=True)


def test_features_are_learned_through_or_left_alone():
    body = BODIES["gpt"]()
    head = SequenceHead(body, 2)
    assert freeze(head, "body.*") == ["head.weight", "head.bias"]
    head(x()).sum().backward()
    assert body.embedding.weight.grad is None and head.head.weight.grad is not None


def recipe(way: str = "lora", steps: int = 12) -> Recipe:
    """Is token 5 among seven?  A frozen body and a little that learns."""
    tokens = x(60)

    def model() -> SequenceHead:
        torch.manual_seed(0)
        net = SequenceHead(BODIES["gpt"](), 2, "mean")
        if way == "lora":
            add_lora(net, 2, "*qkv")
        else:
            add_bottlenecks(net, 3)
        net.head.requires_grad_(True)
        return net

    source = TensorSource(tokens, (tokens == 5).any(1).long())
    rule = optimizer("adamw", lr=0.02, weight_decay=0.5, decay_all=True)
    data = Data(source.subset(torch.arange(40)), source.subset(torch.arange(40, 60)), name="five", task="classes")
    return Recipe(model=model, data=data, objective=Categorical(2), optimizer=rule, steps=steps, batch_size=8, log_every=1)


@pytest.mark.parametrize("way", ["lora", "bottlenecks"])
def test_the_engine_leaves_alone_what_is_frozen_and_resumes_bit_for_bit(way, tmp_path):
    before = recipe(way).build_model().state_dict()
    whole = sonde.train(recipe, run=tmp_path / "whole", way=way, quiet=True, threads=1)
    after = whole.model()
    for name, parameter in after.named_parameters():
        assert torch.equal(parameter, before[name]) != parameter.requires_grad, name
    assert len(trainable_names(after)) == (4 if way == "lora" else 10)

    class Stop(Callback):
        def __init__(self, at):
            self.at = at

        def step(self, run, step, row):
            if step == self.at:
                os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Preempted):
        sonde.train(recipe(way).replace(callbacks=[Stop(5)]), run=tmp_path / "cut", quiet=True, threads=1)
    cut = sonde.train(recipe(way).replace(callbacks=[Stop(99)]), run=tmp_path / "cut", quiet=True, threads=1)
    assert all(torch.equal(value, after.state_dict()[name]) for name, value in cut.model().state_dict().items())
