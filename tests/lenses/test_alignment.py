"""The alignment lens against the model's own weights, cut to the lengths of each pair."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from sonde.core.errors import BadInput
from sonde.lenses import alignment
from sonde.models.encoder_decoder import EncoderDecoder
from sonde.models.seq2seq import Seq2Seq


def test_it_shows_each_pair_without_its_padding() -> None:
    subject = alignment.tiny()
    readings = alignment.read(subject, n=3)
    assert len(readings) == 3
    for i, n in enumerate([6, 2, 4]):
        source, x = subject.batch.source[i : i + 1, :n], subject.batch.x[i : i + 1, : n + 1]
        shown = torch.tensor(readings[i].values["weight"])
        assert shown.shape == (n + 1, n)
        torch.testing.assert_close(shown, subject.model.align(source, x)[0].detach(), rtol=0, atol=6e-4)  # shown to three digits
        torch.testing.assert_close(shown.sum(1), torch.ones(n + 1), rtol=0, atol=4e-3)
    letters = ["end", "a", "b", "c", "d"]
    assert readings[1].columns == [letters[token] for token in subject.batch.source[1, :2].tolist()]
    assert readings[1].rows == [*reversed(readings[1].columns), "end"]


def test_a_model_without_attention_has_none() -> None:
    blind = Seq2Seq(5, 8, mixer="gla heads=2", attention="none")
    with pytest.raises(BadInput, match="lens 'alignment' does not apply: a model without attention has no alignment"):
        alignment.read(replace(alignment.tiny(), model=blind))


def test_it_reads_transformers_too() -> None:
    torch.manual_seed(0)
    subject = replace(alignment.tiny(), model=EncoderDecoder(5, 8, depth=2, heads=2))
    shown = torch.tensor(alignment.read(subject, n=2)[1].values["weight"])
    assert shown.shape == (3, 2)
    torch.testing.assert_close(
        shown, subject.model.align(subject.batch.source[1:2, :2], subject.batch.x[1:2, :3])[0].detach(), rtol=0, atol=6e-4
    )
