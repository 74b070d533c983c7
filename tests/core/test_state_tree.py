"""States of any shape, taken apart and put together; and large tensors of which only what changed is written."""

from __future__ import annotations

import json
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sonde.core.errors import BadInput, DataUnusable
from sonde.core.files import dump_json, parse_json
from sonde.core.segments import Segments, encode_block, name_of
from sonde.core.state_tree import join, segment_names, split


def equal(a, b) -> bool:
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, Segments):
        return torch.equal(a.values, b.values) and a.names() == b.names()
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[name], b[name]) for name in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(equal, a, b))
    return a == b or (a != a and b != b)


def there_and_back(state):
    parts = split(state, "a test")
    blocks = {name: b"".join(encode_block(block)) for one in parts.segments for name, block in one.blocks()}
    tensors = {name: tensor.clone() for name, tensor in parts.tensors.items()}
    return join(parse_json(dump_json(parts.json)), tensors, blocks.__getitem__)


leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**60), 2**60),
    st.floats(),
    st.text(max_size=5),
    st.sampled_from([torch.arange(3), torch.ones(2, 3, dtype=torch.float64), torch.zeros(0), torch.tensor(True)]),
)
names = st.text(st.characters(exclude_characters="$/", exclude_categories=["Cs"]), max_size=4)


@given(st.recursive(leaves, lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(names, inner, max_size=3)), max_leaves=12))
def test_any_state_comes_back(state):
    assert equal(there_and_back(state), state)


def test_tensors_keep_their_bits_and_segments_their_blocks():
    buffer = Segments((10, 3), rows=4)
    buffer.write(torch.tensor([1, 9]), torch.tensor([[math.pi] * 3, [-0.0] * 3]))
    state = {"a": {"b": [torch.tensor([math.nan, 1e-40]), 1.5]}, "buffer": buffer}
    back = there_and_back(state)
    assert torch.equal(back["a"]["b"][0].view(torch.int32), state["a"]["b"][0].view(torch.int32))
    assert torch.equal(back["buffer"].values, buffer.values) and back["buffer"].rows == 4
    assert segment_names(split(state, "x").json) == set(buffer.names()) and len(buffer.names()) == 3
    assert json.dumps(split(state, "x").json)


@pytest.mark.parametrize("state", [{1: 2}, {"$tensor": "x"}, {"a/b": 1}, {"a": {"b": object()}}, [b"bytes"]])
def test_what_cannot_be_saved_is_named(state):
    with pytest.raises(BadInput, match="the state of the replay buffer"):
        split(state, "the replay buffer")


def test_a_state_that_lost_something_is_refused():
    buffer = Segments((4, 2), rows=3)
    parts = split({"w": torch.ones(2), "buffer": buffer}, "x")
    blocks = {name: b"".join(encode_block(block)) for name, block in buffer.blocks()}
    name = buffer.names()[0]
    for tensors, some in (
        ({}, blocks),
        (parts.tensors, {}),
        (parts.tensors, {**blocks, name: b"".join(encode_block(torch.ones(5)))}),
        (parts.tensors, {**blocks, name: b"".join(encode_block(torch.zeros(3, 2, dtype=torch.int32)))}),
        (parts.tensors, {**blocks, name: blocks[name][:-1]}),
    ):
        with pytest.raises(DataUnusable, match="cannot be put together"):
            join(parts.json, tensors, some.__getitem__)


@given(st.lists(st.tuples(st.integers(0, 22), st.integers(1, 9), st.floats(-9, 9, width=32)), max_size=6))
def test_only_blocks_that_changed_get_another_name(writes):
    buffer, plain = Segments((23, 2), rows=5), torch.zeros(23, 2)
    before = buffer.names()
    assert before[0] == before[3] != before[4]  # the last block is shorter
    for start, length, value in writes:
        stop = min(start + length, 23)
        buffer.write(slice(start, stop), value)
        plain[start:stop] = value
    assert torch.equal(buffer.values, plain) and len(buffer) == 23
    assert buffer.names() == [name_of(part) for part in plain.split(5)]


def test_clean_blocks_are_not_hashed_again(monkeypatch):
    buffer = Segments((23, 2), rows=5)
    buffer.names()
    hashed = []
    monkeypatch.setattr("sonde.core.segments.name_of", lambda block: hashed.append(block) or name_of(block))
    buffer.write(torch.tensor([7, 8, 22]), 1.0)
    buffer.names()
    assert len(hashed) == 2
    buffer.write(-1, 2.0)
    buffer.names()
    assert len(hashed) == 3 and buffer[22].tolist() == [2.0, 2.0]
    part = buffer[7:9]
    part += 1
    assert buffer[7].tolist() == [1.0, 1.0]
