"""A tape runs again on other values, in place operations and several results included."""

from __future__ import annotations

import pytest
import torch

from sonde.core.tape import Tape


def run_again(tape: Tape, output: torch.Tensor, *inputs: torch.Tensor) -> torch.Tensor:
    values = [*inputs, *[None] * (len(tape.values) - len(inputs))]
    for operation in tape.operations:
        operation.run(values)
    return values[tape.slots[id(output)]]


def compute(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    h = (x @ weight).relu_()
    low, high = h.split(2, 1)
    best, _ = torch.cat([high, low], 1).max(1, keepdim=True)
    h.add_(best)
    return torch.nn.functional.layer_norm(h, (4,)) + low.sum()


def test_other_values_give_their_own_result():
    torch.manual_seed(0)
    weight = torch.randn(3, 4)
    x, other = torch.randn(2, 5, 3).unbind()
    with Tape([x]) as tape:
        output = compute(x, weight)
    assert tape.fixed
    assert torch.equal(run_again(tape, output, other), compute(other, weight))
    weight.mul_(2.0)  # read where it is, not copied
    assert torch.equal(run_again(tape, output, other), compute(other, weight))


def test_slots_say_who_reads_and_writes():
    x, y = torch.ones(2), torch.ones(2)
    with Tape([x, y]) as tape:
        z = torch.stack([x, y])
        z.mul_(3.0)
    first, second = tape.operations
    assert (first.reads(), first.out, first.writes()) == ([0, 1], [2], False)
    assert (second.reads(), second.out, second.writes()) == ([2], [2], True)
    assert tape.bytes == 2 * z.nbytes


def test_a_number_taken_from_values_is_noticed():
    with Tape([x := torch.ones(2)]) as tape:
        x * float(x.sum())
    assert not tape.fixed


def test_a_check_stops_an_operation_before_it_runs():
    x = torch.ones(2)

    def check(tape: Tape, operation) -> None:
        if operation._schema.is_mutable:
            raise RuntimeError

    with pytest.raises(RuntimeError), Tape([x], check):
        x.add_(1.0)
    assert x.tolist() == [1.0, 1.0]
