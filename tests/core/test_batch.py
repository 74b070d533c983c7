"""Batch: named tensors with one first axis, cut and swapped without surprises."""

from __future__ import annotations

import copy

import pytest
import torch

from sonde.core.batch import Batch, Data, Source


def batch() -> Batch:
    return Batch(x=torch.arange(10.0).reshape(5, 2), y=torch.tensor([4, 3, 2, 1, 0]), ids=torch.arange(5))


def test_fields_are_attributes() -> None:
    b = batch()
    assert len(b) == 5 and list(b) == ["x", "y", "ids"] and "x" in b and "mask" not in b
    assert b.y.tolist() == [4, 3, 2, 1, 0] and b.get("mask") is None and b.get("mask", 1) == 1


def test_a_missing_field_is_named_with_those_there() -> None:
    with pytest.raises(AttributeError, match="no field 'weight'; it has x, y, ids"):
        batch().weight  # noqa: B018


def test_a_batch_is_not_changed_in_place() -> None:
    with pytest.raises(AttributeError):
        batch().x = torch.zeros(5)


@pytest.mark.parametrize("part", [slice(1, 4), torch.tensor([1, 2, 3]), torch.tensor([False, True, True, True, False])])
def test_cutting_takes_the_same_examples_from_every_field(part: slice | torch.Tensor) -> None:
    cut = batch()[part]
    assert cut.x.tolist() == [[2, 3], [4, 5], [6, 7]] and cut.y.tolist() == [3, 2, 1] and cut.ids.tolist() == [1, 2, 3]


def test_replace_swaps_and_adds_and_leaves_the_old_one_alone() -> None:
    old = batch()
    new = old.replace(x=torch.zeros(5, 3), mask=torch.ones(5))
    assert new.x.shape == (5, 3) and list(new) == ["x", "y", "ids", "mask"] and old.x.shape == (5, 2) and "mask" not in old


def test_to_moves_every_field() -> None:
    moved = batch().to("meta")
    assert {moved.fields[name].device.type for name in moved} == {"meta"}


def test_copies_carry_the_same_values() -> None:
    again = copy.deepcopy(batch())
    assert all(torch.equal(again.fields[name], batch().fields[name]) for name in batch())


def test_repr_tells_shapes_and_types() -> None:
    assert repr(batch()) == "Batch(x (5, 2) float32, y (5,) int64, ids (5,) int64)"


def test_data_lists_the_splits_it_has() -> None:
    class Rows:
        def __len__(self) -> int:
            return 5

        def __getitem__(self, indices: torch.Tensor) -> Batch:
            return batch()[indices]

        def fingerprint(self) -> str:
            return "0" * 64

    rows = Rows()
    assert isinstance(rows, Source) and not isinstance([1, 2], Source)
    assert list(Data(train=rows, test=rows).splits) == ["train", "test"]
