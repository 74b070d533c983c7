"""How mixers are computed, told without computing them; FLOPs of the fused ops."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from sonde.core.batch import Batch
from sonde.kernels.delta import delta
from sonde.kernels.separable import separable
from sonde.lenses.cost import _operation_flops, cost
from sonde.nn.mixers import mixer
from sonde.nn.recurrence import Steps, choose
from sonde.nn.recurrence.choose import flops
from sonde.report.explain import _fold_forms, _fold_rows, _split_name, chosen_forms, explain_model

B, H, L, K, V = 2, 3, 50, 5, 7


class Stack(nn.Module):
    def __init__(self, *mixers: nn.Module) -> None:
        super().__init__()
        self.mixers = nn.ModuleList(mixers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for each in self.mixers:
            x = x + each(x)[0]
        return x


def test_the_form_is_the_one_that_would_run() -> None:
    """`choose` on real tensors of the same sizes says the same, whatever the length."""
    for length in (1, 40, 300):
        (taken,) = chosen_forms(mixer("gla", 24, heads=2), (length, 24))
        q, v = torch.zeros(1, 2, length, 6), torch.zeros(1, 2, length, 12)
        real = choose(Steps(q, q, v, log_key=q))
        assert (taken.form, taken.steps, taken.layer) == (real.form, length, "model")
        assert taken.why.startswith(real.why) and f"{real.form} " in taken.why and taken.kind == "GLA, separable: key decay"


def test_every_mixer_of_a_model_in_the_order_they_run() -> None:
    model = Stack(mixer("gsa", 16, heads=2), mixer("attention", 16, heads=2), mixer("gla", 16, heads=2, form="scan"))
    rows = chosen_forms(model, Batch(x=torch.zeros(2, 30, 16), ids=torch.arange(2)))
    assert [row.layer for row in rows] == ["mixers.0", "mixers.0", "mixers.1", "mixers.2"]
    assert [row.kind for row in rows[:2]] == ["GSA, separable: value decay", "GSA, separable: key decay"]
    assert rows[2].kind == "Attention" and rows[2].steps == 30
    assert (rows[3].form, rows[3].why) == ("scan", "requested")
    assert chosen_forms(nn.Linear(3, 2), (3,)) == []


def test_told_under_the_table() -> None:
    from rich.console import Console

    console = Console(width=200, file=None, record=True)
    with console.capture() as text:
        console.print(explain_model(mixer("gla", 24, heads=2), (40, 24), "[b]mine[/]"))
    assert "How the mixers are computed" in text.get() and "separable: key decay" in text.get()


def meta(*shape: int) -> torch.Tensor:
    return torch.zeros(*shape, device="meta")


def counted(run) -> int:
    with FlopCounterMode(display=False, custom_mapping=_operation_flops()) as counter:
        run()
    return counter.get_total_flops()


@pytest.mark.parametrize("key, value", [(False, False), (True, False), (True, True)])
def test_flops_of_the_separable_op(key: bool, value: bool) -> None:
    """Decay, write and read of every entry: 5 operations, one less without a decay."""
    q, v = meta(B, H, L, K), meta(B, H, L, V)
    count = counted(lambda: separable(q, q, v, None, q if key else None, v if value else None))
    assert count == B * H * L * K * V * (5 if key or value else 4)


def test_flops_of_the_other_ops() -> None:
    q, v, head = meta(B, H, L, K), meta(B, H, L, V), meta(B, H, L)
    assert counted(lambda: delta(q, q, v, head, head)) == B * H * L * K * V * 7
    assert counted(lambda: delta(q, q, v, head, None)) == B * H * L * K * V * 6
    rate = meta(H, K, V)
    count = counted(lambda: torch.ops.sonde.hadamard(q, q, v, v, rate, None, None, False))
    assert count == flops(Steps(q, q, v, log_value=v, rate=rate), "fused")


def test_a_mixer_has_its_own_row() -> None:
    costs = cost(mixer("gla", 24, heads=2), (40, 24))
    own = next(row for row in costs.rows if row.kind == "GLA itself")
    assert own.flops and own.flops >= 40 * 2 * 6 * 12 * 4 and not costs.unknown


CELLS = [
    *(("rnn", {}), ("rnn", {"activation": "relu"}), ("gru", {}), ("gru", {"reset_after": True})),
    *(("lstm", {}), ("lstm", {"output_gate": "peephole"}), ("lstm", {"output_gate": "cell_only"})),
]


@pytest.mark.parametrize("name, options", CELLS)
def test_flops_of_a_cell_are_those_of_its_steps(name: str, options: dict) -> None:
    """The fused op counts what the definition does, written out with torch."""
    with torch.device("meta"):
        cell = mixer(name, 6, hidden=5, **options)
    fused = counted(lambda: cell.use("fused")(meta(2, 7, 6)))
    assert fused == counted(lambda: cell.use("step")(meta(2, 7, 6))) > 0


def test_equal_blocks_are_folded() -> None:
    """The first in full, the others as one row with their sums; blocks that differ, and two of a kind, stay."""
    sizes = [4, 4, 4, 4, 8, 8, 4]
    model = Stack(*(mixer("attention", 4, heads=2, each=each, positions="none") for each in sizes))
    costs = cost(model, (10, 4))
    rows = _fold_rows(costs.rows)
    names = [row.name for row in rows]
    assert names.count("mixers.1–3") == 1 and not any(name.startswith(("mixers.1.", "mixers.2.", "mixers.3.")) for name in names)
    for kept in (0, 4, 5, 6):
        assert [n for n in names if n.startswith(f"mixers.{kept}.")] == [r.name for r in costs.rows if r.name.startswith(f"mixers.{kept}.")]
    (folded,) = (row for row in rows if row.name == "mixers.1–3")
    assert folded.kind == "3 × block 0" and folded.output == (10, 4)
    assert folded.weights == 3 * sum(row.weights for row in costs.rows if row.name.startswith("mixers.0"))
    for what in ("weights", "biases", "flops", "memory"):
        assert sum(getattr(row, what) for row in rows) == getattr(costs, what)
    forms = _fold_forms(chosen_forms(model, (10, 4)))
    assert [row.layer for row in forms] == ["mixers.0–6"]  # sizes are no part of it
    twice = Stack(*(mixer("gsa", 16, heads=2) for _ in range(3)))
    assert [row.layer for row in _fold_forms(chosen_forms(twice, (30, 16)))] == ["mixers.0–2"] * 2


@pytest.mark.parametrize(
    "name, place",
    [
        ("stack.blocks.11.ffn.up", ("stack.blocks.", "11", ".ffn.up")),
        ("3", ("", "3", "")),
        ("a.0.b.1", ("a.", "0", ".b.1")),
        ("blocks.conv1", ("blocks.conv1", "", "")),
        ("conv2d.0", ("conv2d.", "0", "")),
    ],
)
def test_the_number_of_a_block(name: str, place: tuple[str, str, str]) -> None:
    assert _split_name(name) == place
