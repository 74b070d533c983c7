"""Lenses on models that read several fields of a batch, and on mixers that run as compiled kernels."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from sonde.core import registry
from sonde.core.batch import Batch, Data
from sonde.core.reading import Subject
from sonde.lenses import backprop
from sonde.lenses.cost import cost
from sonde.lenses.tools.readonly import without_kernels
from sonde.lenses.tools.tiny import METRICS, _Rows, reverse
from sonde.lenses.tools.trial import Trial
from sonde.models.bert import Bert
from sonde.models.encoder_decoder import EncoderDecoder
from sonde.models.language_model import LanguageModel
from sonde.objectives.categorical import Categorical


def pairs() -> Subject:
    """Two fives of words to be written backwards: enough of them for neighbors."""
    subject = reverse()
    batch = Batch(**{name: torch.cat([field, field.flip(0)]) for name, field in subject.batch.fields.items()})
    return replace(subject, batch=batch, objective=Categorical())


@pytest.mark.parametrize(
    "name, options", [("cost", {}), ("memory", {}), ("intrinsic", {}), ("spectrum", {"steps": 3}), ("graph", {"examples": 2})]
)
def test_a_model_of_pairs_is_asked_for_what_it_reads(name: str, options: dict[str, Any]) -> None:
    assert registry.load("lenses", name).read(pairs(), **options)


def test_a_chain_has_one_input() -> None:
    assert backprop.why_not(pairs()) == "the model reads several inputs, and this lens needs a single one"


def test_the_cost_of_an_encoder_decoder_is_that_of_its_parts() -> None:
    """Every linear map by hand: of S source and T target tokens, 2 FLOPs for each weight."""
    S, T, D, V = 7, 5, 8, 11
    model = EncoderDecoder(V, D, depth=1, heads=2)
    rows = {row.name: row for row in cost(model, Batch(source=torch.zeros(3, S).long(), x=torch.zeros(3, T).long())).rows}
    assert rows["encoder.blocks.0.mixer.qkv"].flops == 2 * S * D * 3 * D and rows["decoder.blocks.0.mixer.qkv"].flops == 2 * T * D * 3 * D
    assert rows["decoder.blocks.0.cross.q"].flops == 2 * T * D * D and rows["decoder.blocks.0.cross.k"].flops == 2 * S * D * D
    assert sum(row.weights + row.biases for row in rows.values()) == sum(p.numel() for p in model.parameters())


def test_the_cost_of_a_model_with_several_outputs() -> None:
    model = Bert(11, 8, 2, mixer="attention heads=2", max_positions=9)
    costs = cost(model, Batch(x=torch.zeros(2, 9).long(), lengths=torch.tensor([9, 3])))
    assert costs.parameters == sum(p.numel() for p in model.parameters()) and not costs.unknown


@pytest.mark.parametrize("mixer", ["gla heads=2", "mamba2 heads=2", "gru", "lstm"])
def test_mixers_with_a_kernel_are_written_out_while_one_looks(mixer: str) -> None:
    """The graph's adjoints are autograd's through the kernel, and the Hessian's ends are found."""
    torch.manual_seed(0)
    x = torch.randint(11, (6, 9))
    batch = Batch(x=x, y=x.roll(-1, 1), ids=torch.arange(6))
    model = LanguageModel(11, 16, 1, mixer=mixer)
    subject = Subject(model, batch, Categorical(), Data(train=_Rows(batch), name="tiny", task="other"), METRICS, "tiny")
    assert registry.load("lenses", "graph").read(subject)[-1].results["gap"] < 1e-6
    assert registry.load("lenses", "rate_range").read(subject, steps=10, batch_size=4).results["limit"] > 0
    layer, plain = model.stack.blocks[0].mixer, model(x)
    with without_kernels(model):
        assert layer.form in ("chunk", "step")
        torch.testing.assert_close(model(x), plain)
    assert layer.form == "auto"


def test_a_trial_keeps_examples_of_similar_size_together() -> None:
    subject = pairs()
    rows = _Rows(subject.batch)
    rows.sizes = subject.batch.lengths  # type: ignore[attr-defined]
    order = Trial(replace(subject, data=replace(subject.data, train=rows)), "here", batch_size=2).order
    assert all(len(set(rows.sizes[order.at(step)].tolist())) == 1 for step in range(5))  # type: ignore[attr-defined]
