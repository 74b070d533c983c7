"""The memory lens against numbers worked out by hand and by loops."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from sonde.core.batch import Batch
from sonde.core.errors import BadInput
from sonde.core.reading import Subject
from sonde.lenses import memory
from sonde.nn.mixers import Recurrent
from sonde.nn.recurrence import State, Steps, normalize, with_ones

B, H, L, K, V = 2, 3, 40, 4, 5


def steps(**gates: Tensor) -> Steps:
    draw = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(B, H, L, width, generator=draw, dtype=torch.float64) for width in (K, K, V))
    return Steps(q, k, v, **gates)


def test_memory_of_a_constant_decay() -> None:
    """exp(-1/n) to the power n is 1/e."""
    lengths = memory.memory_lengths(steps(log_head=-1 / torch.tensor([1.0, 7.0, 20.0], dtype=torch.float64)))
    torch.testing.assert_close(lengths, torch.tensor([[1.0], [7.0], [20.0]], dtype=torch.float64).expand_as(lengths))


def test_memory_beyond_the_end_of_the_sequence_is_that_of_the_mean_decay() -> None:
    lengths = memory.memory_lengths(steps(log_head=torch.tensor([-1e-3, -1e-2, -0.1], dtype=torch.float64)))
    torch.testing.assert_close(lengths.median(1).values, torch.tensor([1000.0, 100.0, 10.0], dtype=torch.float64))


def test_memory_ends_where_the_gate_closes() -> None:
    """Nothing is lost but at step 25: what was written at step t is kept for 25 - t steps."""
    gate = torch.zeros(B, H, L)
    gate[:, :, 25] = float("-inf")
    lengths = memory.memory_lengths(steps(log_head=gate))
    starts = range(0, L, L // memory.STARTS)
    assert lengths[0, : len(starts)].tolist()[:12] == [25.0 - t for t in starts][:12]
    assert torch.isinf(memory.memory_lengths(steps())).all()


def test_gates_of_two_axes_add_up() -> None:
    key, value = -torch.rand(B, H, L, K), -torch.rand(B, H, L, V)
    both = memory.memory_lengths(steps(log_key=key, log_value=value))
    assert both.shape == (H, B * K * V * len(range(0, L, L // memory.STARTS)))
    length = both.view(H, B, K * V, -1)[1, 0, 2 * V + 3, 4]
    start, total, n = 4 * (L // memory.STARTS), 0.0, 0
    while total > -1:
        n += 1
        total += float(key[0, 1, start + n, 2] + value[0, 1, start + n, 3])
    assert int(length) == n


def test_norms_equal_a_loop() -> None:
    s = steps(log_key=-torch.rand(B, H, L, K, dtype=torch.float64))
    times, norms = memory.state_norms(s)
    assert times == list(range(1, L + 1)) and norms.shape == (L, H)
    S = torch.zeros(B, H, K, V, dtype=torch.float64)
    for t in range(L):
        S = S * s.log_key[:, :, t].exp().unsqueeze(-1) + s.k[:, :, t].unsqueeze(-1) * s.v[:, :, t].unsqueeze(-2)
        torch.testing.assert_close(norms[t], S.square().sum((2, 3)).sqrt().mean(0))


def test_norms_of_a_long_sequence_are_taken_at_few_times() -> None:
    long = torch.ones(1, 1, 1000, 2)
    times, norms = memory.state_norms(Steps(long, long, long))
    assert len(times) == memory.POINTS and times[-1] == 1000
    torch.testing.assert_close(norms[:, 0], torch.tensor(times).double() * 2)  # each step adds a matrix of four ones


def test_rates_of_a_hadamard_recurrence() -> None:
    rate = torch.complex(torch.tensor([[[1.0, 2.0]]]), torch.tensor([[[5.0, 6.0]]]))
    s = Steps(None, None, torch.ones(1, 1, 6, 2), log_value=torch.tensor([[-0.1, -0.2]]), rate=rate)
    torch.testing.assert_close(memory.log_gates(s)["entry"][0, 0, 0], torch.tensor([-0.1, -0.4]))


class Fixed(Recurrent):
    """A mixer with one gate for all and a normalizer that is never positive."""

    def __init__(self, lost: float) -> None:
        super().__init__()
        self.width, self.lost = 3, nn.Parameter(torch.tensor(lost))

    def rule(self, x: Tensor):
        gate = torch.log1p(-self.lost).expand(2)
        out = yield Steps(torch.zeros_like(x), x, with_ones(x), log_head=gate)
        return normalize(out)

    def mix(self, x: Tensor, state: State | None, lengths: Tensor | None) -> tuple[Tensor, State]:
        heads = x.unsqueeze(1).expand(-1, 2, -1, -1)
        y, state = self.recur(self.rule(heads), state, lengths)
        return y.mean(1), state


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = Fixed(0.002), Fixed(0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.two(self.one(x)[0] + x)[0]


def test_what_is_shown() -> None:
    subject = Subject(Two(), Batch(x=torch.randn(5, 20, 3)))
    table, decays, left, norms = memory.read(subject, examples=4)
    assert table.values["layer"] == ["one", "one", "two", "two"] and table.values["head"] == [0, 1, 0, 1]
    assert table.values["50 %"] == ["499", "499", "2", "2"] and table.values["decay"][::2] == ["0.998 head", "0.5 head"]
    assert table.values["guarded"] == ["160 of 160"] * 4 and "4 sequences of 20 steps" in table.note
    shares = dict(zip(decays.labels, decays.values["% of the head decays"], strict=True))
    assert {label: share for label, share in shares.items() if share} == {"0.1 to 0.3 %": 50, "30 to 60 %": 50}
    assert left.x["two"] == list(range(11)) and left.values["two"][:3] == pytest.approx([100, 50, 25])
    assert norms.x["one"] == list(range(1, 21)) and "at every step" in norms.note
    assert norms.values["two"][-1] == pytest.approx(sum(table.values["norm"][2:]) / 2)


def test_what_is_left_equals_a_loop() -> None:
    s = steps(log_key=-torch.rand(B, H, L, K, dtype=torch.float64), log_head=-torch.rand(B, H, L, dtype=torch.float64))
    back, left = memory.retention(s)
    assert back == list(range(L // 2 + 1)) and left[0] == 1
    log = s.log_key + s.log_head.unsqueeze(-1)
    for n in (1, 5, L // 2):
        shares = [log[:, :, t + 1 : t + n + 1].sum(2).exp() for t in range(L - n)]
        torch.testing.assert_close(left[n], torch.stack(shares).mean())
    assert memory.retention(steps())[1].tolist() == [1.0] * (L // 2 + 1)
    assert memory.retention(Steps(*(torch.ones(1, 1, 1, 2) for _ in range(3)), log_head=torch.tensor([-1.0])))[0] == [0]


def test_many_layers_are_thinned_out() -> None:
    wide = torch.ones(1, 2, 1000, 2)
    seen = [memory._RecordedSteps(f"layer {i}", Steps(wide, wide, wide), "step", (0, 0)) for i in range(20)]
    reading = memory._retention_reading(seen)
    assert list(reading.values)[0] == "layer 0" and list(reading.values)[-1] == "layer 19" and len(reading.values) == memory.LINES
    assert "7 of 20 layers" in reading.note and "65 time steps, about every 7.8 steps" in reading.note
    assert "guarded" not in memory._table(seen[:1], [torch.ones(2)]).values


def test_models_without_a_mixer_are_refused() -> None:
    plain = replace(memory.tiny(), model=nn.Linear(4, 2))
    assert memory.why_not(plain) == "the model has no recurrent mixer"
    with pytest.raises(BadInput, match="no recurrent mixer; try "):
        memory.read(plain)
