"""Tensors on disk: the safetensors package reads what we write and writes what we read; damage is always seen."""

from __future__ import annotations

import json
import random

import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st

from sonde.core.tensors import CODES, decode, encode, encoded_size


def example() -> dict[str, torch.Tensor]:
    """Every dtype, odd shapes: a scalar, nothing, a transposed view, a slice."""
    torch.manual_seed(3)
    samples = {str(dtype): (torch.randn(3, 5) * 9).to(dtype) for dtype in CODES}
    base = torch.randn(4, 7)
    return {**samples, "scalar": torch.tensor(2.5), "empty": torch.empty(0, 3), "turned": base.T, "slice": base[1:3, ::2]}


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> None:
    assert set(a) == set(b)
    for name, tensor in a.items():
        assert tensor.dtype == b[name].dtype and tensor.shape == b[name].shape, name
        assert torch.equal(tensor, b[name]), name


def joined(tensors: dict[str, torch.Tensor]) -> bytes:
    return b"".join(encode(tensors))


def test_the_safetensors_package_reads_what_we_write() -> None:
    same(safetensors.torch.load(joined(example())), example())


def test_we_read_what_the_safetensors_package_writes() -> None:
    contiguous = {name: tensor.contiguous() for name, tensor in example().items()}
    same(decode(safetensors.torch.save(contiguous, metadata={"format": "pt"})), example())


def test_round_trip_keeps_bits_that_are_no_numbers() -> None:
    odd = torch.tensor([float("nan"), float("inf"), -0.0, 1e-45])
    again = decode(joined({"odd": odd}))["odd"]
    assert again.view(torch.int32).tolist() == odd.view(torch.int32).tolist()


def test_tied_weights_are_stored_once_and_come_back_tied() -> None:
    weight = torch.randn(100, 3)
    tied = joined({"a": weight, "b": weight, "c": weight.clone()})
    assert len(tied) < 2 * 1200 + 500
    again = decode(tied)
    same(again, {"a": weight, "b": weight, "c": weight})
    assert again["a"].data_ptr() == again["b"].data_ptr() != again["c"].data_ptr()


def test_a_view_of_another_shape_is_not_taken_for_tied() -> None:
    base = torch.arange(6.0)
    same(
        decode(joined({"flat": base, "square": base.reshape(2, 3), "part": base[:3]})),
        {"flat": base, "square": base.reshape(2, 3), "part": base[:3]},
    )


def test_what_is_read_belongs_to_the_reader() -> None:
    data = bytearray(joined({"a": torch.ones(3)}))
    again = decode(data)
    data[-12:] = bytes(12)
    assert again["a"].tolist() == [1, 1, 1]


def test_no_tensors_at_all() -> None:
    assert decode(joined({})) == {}


def test_the_size_is_told_in_advance_and_not_too_small() -> None:
    assert len(joined(example())) <= encoded_size(example())


@given(st.binary(max_size=200))
def test_any_bytes_are_tensors_or_value_error(data: bytes) -> None:
    with pytest.raises(ValueError):
        decode(data)


@given(st.data())
def test_a_damaged_header_is_tensors_or_value_error(data: st.DataObject) -> None:
    whole = bytearray(joined(example()))
    end = 8 + int.from_bytes(whole[:8], "little")
    for _ in range(data.draw(st.integers(1, 3))):
        whole[data.draw(st.integers(0, end - 1))] = data.draw(st.integers(0, 255))
    try:
        decode(bytes(whole))
    except ValueError:
        pass


def test_every_cut_is_seen() -> None:
    whole = joined(example())
    for cut in [*range(0, 600, 7), *random.Random(0).sample(range(len(whole)), 50)]:
        with pytest.raises(ValueError):
            decode(whole[:cut])
    with pytest.raises(ValueError):
        decode(whole + b"\0")


def entry(**changes: object) -> dict:
    return {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **changes}}


@pytest.mark.parametrize(
    "header",
    [
        [],
        {"a": 3},
        {"a": {"dtype": "F32", "shape": [2]}},
        entry(dtype="F99"),
        entry(dtype=["F32"]),
        entry(dtype=None),
        entry(shape=[3]),
        entry(shape=[-2]),
        entry(shape=[2.0]),
        entry(shape=[True, 2]),
        entry(shape=[2**60, 2**60]),
        entry(shape=[1] * 17 + [2]),
        entry(shape="2"),
        entry(data_offsets=[0, 16]),
        entry(data_offsets=[8, 0]),
        entry(data_offsets=[0]),
        entry(data_offsets=[4, 12]),
        entry(extra=1),
        {**entry(), "b": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}},
        {**entry(), "__metadata__": 3},
        {**entry(), "__metadata__": {"x": 3}},
        {**entry(), "__metadata__": {"same-as:b": "c"}},
        {**entry(), "__metadata__": {"same-as:a": "a"}},
    ],
    ids=repr,
)
def test_a_header_that_lies_is_refused(header: object) -> None:
    text = json.dumps(header).encode()
    with pytest.raises(ValueError):
        decode(len(text).to_bytes(8, "little") + text + bytes(8))
