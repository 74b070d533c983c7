"""World against sums done by hand on one process: the same bits for every number of processes."""

from __future__ import annotations

import os
import time

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sonde.core.errors import BadInput, PeerLost
from sonde.engine import world as world_module
from sonde.engine.launch import launch
from sonde.engine.world import PHASES, Pulse, World, shards_of


@given(size=st.integers(1, 9), extra=st.integers(0, 20))
def test_shards_are_contiguous_and_even(size: int, extra: int) -> None:
    shards = size + extra
    blocks = [shards_of(rank, size, shards) for rank in range(size)]
    assert [shard for block in blocks for shard in block] == list(range(shards))
    assert {len(block) for block in blocks} <= {shards // size, -(-shards // size)}


def test_more_processes_than_shards_is_refused() -> None:
    with pytest.raises(BadInput, match="--shards 3"):
        shards_of(0, 3, 2)


def parts_of(shards: int, length: int, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    """Numbers of very different size, so that another order of summing gives other bits."""
    rng = torch.Generator().manual_seed(shards * 1000 + length)
    return [(torch.randn(length, generator=rng) * 10.0 ** torch.randint(-4, 5, (length,), generator=rng)).to(dtype) for _ in range(shards)]


def by_hand(parts: list[torch.Tensor]) -> torch.Tensor:
    total = parts[0].clone()
    for part in parts[1:]:
        total = total + part
    return total


@pytest.mark.parametrize("size, shards", [(1, 4), (2, 4), (4, 4), (3, 4), (2, 5), (3, 5), (1, 1), (2, 2)])
def test_ordered_sum_is_the_sum_in_shard_order(size: int, shards: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world_module, "CHUNK", 64)  # so that short tensors take every path: one chunk, several, a rest
    monkeypatch.setattr(world_module, "SMALL", 16)
    cases = [(length, dtype) for length in (1, 5, 16, 17, 63, 64, 65, 203) for dtype in (torch.float32, torch.float64, torch.bfloat16)]
    sums = [torch.zeros(size, length, dtype=dtype).share_memory_() for length, dtype in cases]

    def worker(world: World) -> None:
        for (length, dtype), out in zip(cases, sums, strict=True):
            parts = parts_of(shards, length, dtype)
            out[world.rank] = world.ordered_sum({shard: parts[shard] for shard in shards_of(world.rank, size, shards)}, shards)

    launch(worker, size)
    different = 0
    for (length, dtype), out in zip(cases, sums, strict=True):
        parts = parts_of(shards, length, dtype)
        for rank in range(size):
            assert torch.equal(out[rank], by_hand(parts)), (length, dtype, rank)
        different += not torch.equal(by_hand(parts), by_hand(parts[::-1]))
    assert different or shards <= 2, "the numbers must be able to tell one order from another"


def test_ordered_sum_of_a_large_tensor() -> None:
    length = world_module.CHUNK + world_module.SMALL + 3
    sums = torch.zeros(2, length).share_memory_()

    def worker(world: World) -> None:
        parts = parts_of(3, length)
        sums[world.rank] = world.ordered_sum({shard: parts[shard] for shard in shards_of(world.rank, 2, 3)}, 3)

    launch(worker, 2)
    assert torch.equal(sums[0], by_hand(parts_of(3, length))) and torch.equal(sums[1], sums[0])


def test_one_shard_costs_nothing() -> None:
    gradient = torch.randn(7)
    assert World.single().ordered_sum({0: gradient}, 1) is gradient


def run_in(size: int, work) -> list:  # type: ignore[no-untyped-def]
    """What `work(world)` returned on each rank, as text."""
    buffer = torch.zeros(size, 1 << 14, dtype=torch.uint8).share_memory_()

    def worker(world: World) -> None:
        text = repr(work(world)).encode()
        buffer[world.rank, : len(text)] = torch.frombuffer(bytearray(text), dtype=torch.uint8)

    launch(worker, size)
    return [bytes(row.tolist()).rstrip(b"\0").decode() for row in buffer]


@pytest.mark.parametrize("size", [1, 2, 3])
def test_small_talk(size: int) -> None:
    def work(world: World) -> list:
        mine = [world.rank + 0.5, -float(world.rank), 2.0**53 - world.rank]
        world.barrier()
        return [
            world.gather_floats(mine),
            world.max_vector(mine),
            world.sum_vector([world.rank, 0.1]),
            world.any(world.rank == size - 1),
            world.any(False),
            world.gather_texts("é" * world.rank),
            world.broadcast_bytes(bytes([world.rank, 255]) * 1000 if world.is_main else None) == bytes([0, 255]) * 1000,
            world.broadcast_bytes(b"" if world.is_main else b"ignored"),
        ]

    rows = [[rank + 0.5, -float(rank), 2.0**53 - rank] for rank in range(size)]
    expected = [
        rows,
        [size - 0.5, 0.0, 2.0**53],
        [float(sum(range(size))), sum([0.1] * size)],
        True,
        False,
        ["é" * rank for rank in range(size)],
        True,
        b"",
    ]
    assert [text.replace("-0.0", "0.0") for text in run_in(size, work)] == [repr(expected).replace("-0.0", "0.0")] * size


def test_not_a_number_wins() -> None:
    assert run_in(2, lambda world: world.max_vector([float("nan") if world.rank == 0 else 1.0, 3.0])) == ["[nan, 3.0]"] * 2


def test_broadcast_of_any_type_and_layout() -> None:
    def work(world: World) -> bool:
        rng = torch.Generator().manual_seed(world.rank)
        image = torch.randn(2, 3, 4, 5, generator=rng).to(memory_format=torch.channels_last).requires_grad_()
        tensors = [
            image,
            torch.tensor(world.rank == 0),
            torch.full((), 7 - world.rank),
            torch.randn(6, 4, generator=rng).t(),
            torch.zeros(0),
        ]
        tensors += [torch.full((3,), 1.5 - world.rank, dtype=torch.bfloat16)]
        world.broadcast_(tensors)
        rng = torch.Generator().manual_seed(0)
        expected = [torch.randn(2, 3, 4, 5, generator=rng), torch.tensor(True), torch.tensor(7), torch.randn(6, 4, generator=rng).t()]
        expected += [torch.zeros(0), torch.full((3,), 1.5, dtype=torch.bfloat16)]
        return all(map(torch.equal, tensors, expected)) and image.is_contiguous(memory_format=torch.channels_last)

    assert run_in(2, work) == ["True"] * 2


def test_a_lost_peer_is_named_as_such() -> None:
    """Rank 1 leaves in the middle; rank 0 must say so in our words."""
    buffer = torch.zeros(1, 4096, dtype=torch.uint8).share_memory_()

    def worker(world: World) -> None:
        world.beat(17, "evaluate")
        if world.rank == 1:
            os._exit(0)
        try:
            world.barrier()
        except PeerLost as error:
            text = error.render().encode()
            buffer[0, : len(text)] = torch.frombuffer(bytearray(text), dtype=torch.uint8)

    launch(worker, 2)
    text = bytes(buffer[0].tolist()).rstrip(b"\0").decode()
    assert text.startswith("rank 0 lost the other processes") and "where: step 17, phase 'evaluate'" in text and "to do: " in text


def test_signs_of_life() -> None:
    pulse = Pulse(3)
    before = time.monotonic()
    World(1, 3, pulse=pulse).beat(12, "save")
    sign = pulse.read(1)
    assert before <= sign.time <= time.monotonic() and sign[1:] == (12, "save", False)
    assert [pulse.read(rank).time for rank in (0, 2)] == [0.0, 0.0] and set(PHASES) == {"start", "step", "batch", "evaluate", "save"}


def test_torchrun_environment_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR"):
        monkeypatch.delenv(name, raising=False)
    assert not World.under_torchrun()
    with pytest.raises(BadInput, match="--processes"):
        World.from_torchrun()
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "localhost"}.items():
        monkeypatch.setenv(name, value)
    assert World.under_torchrun() and World.from_torchrun().size == 1


def test_the_way_to_a_host_has_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    assert world_module._interface_toward("127.0.0.1") == "lo" and world_module._interface_toward("no such host") is None
    with pytest.raises(BadInput, match="GLOO_SOCKET_IFNAME"):
        world_module._choose_interface("127.0.0.1", alone=False)
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth7")
    world_module._choose_interface("127.0.0.1", alone=False)
    assert os.environ["GLOO_SOCKET_IFNAME"] == "eth7"


def test_alone_no_process_group_is_made() -> None:
    world = World.single()
    world.barrier()
    world.broadcast_([torch.ones(2)])
    assert world.any(True) and world.is_main and not torch.distributed.is_initialized()
    world.close()
