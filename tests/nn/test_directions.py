"""Two directions and layers one above the other: against torch, padded and packed, and with one set of weights."""

from __future__ import annotations

import pytest
import torch

from sonde.core.errors import BadInput
from sonde.nn.directions import Bidirectional, Stacked, reverse
from sonde.nn.mixers import mixer
from sonde.nn.spans import Spans


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


def test_turned() -> None:
    x = torch.arange(10).view(2, 5, 1)
    assert reverse(x)[..., 0].tolist() == [[4, 3, 2, 1, 0], [9, 8, 7, 6, 5]]
    assert reverse(x, Spans.of_lengths(torch.tensor([3, 0])))[..., 0].tolist() == [[2, 1, 0, 3, 4], [5, 6, 7, 8, 9]]
    assert reverse(x[:1], Spans.of_bounds(torch.tensor([0, 2, 5])))[..., 0].tolist() == [[1, 0, 4, 3, 2]]
    spans = Spans.of_mask(torch.tensor([[0, 0, 1, 1, 1], [0, 1, 1, 1, 1]]))
    assert reverse(x, spans)[..., 0].tolist() == [[0, 1, 4, 3, 2], [5, 9, 8, 7, 6]]


def test_equals_torch() -> None:
    torch.manual_seed(0)
    theirs = torch.nn.LSTM(6, 6, batch_first=True, bidirectional=True).double()
    both = Bidirectional(mixer("lstm", 6), mixer("lstm", 6)).double()
    with torch.no_grad():
        for mine, end in ((both.forward_mixer, ""), (both.backward_mixer, "_reverse")):
            for tensor, name in ((mine.x.weight, "weight_ih"), (mine.h.weight, "weight_hh"), (mine.x.bias, "bias_ih")):
                tensor.copy_(getattr(theirs, f"{name}_l0{end}"))
            getattr(theirs, f"bias_hh_l0{end}").zero_()
    x, lengths = draw(3, 7, 6), torch.tensor([7, 2, 5])
    y, state = both(x)
    expected, (h, c) = theirs(x)
    torch.testing.assert_close(y, expected)
    torch.testing.assert_close(torch.stack([state["forward.h"], state["backward.h"]]), h)
    torch.testing.assert_close(torch.stack([state["forward.c"], state["backward.c"]]), c)
    packed = torch.nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
    expected, _ = torch.nn.utils.rnn.pad_packed_sequence(theirs(packed)[0], batch_first=True)
    torch.testing.assert_close(both(x, spans=Spans.of_lengths(lengths))[0], expected)


@pytest.mark.parametrize("name", ["rnn", "lstm", "gla"])
def test_with_one_set_of_weights_reversing_swaps_the_halves(name: str) -> None:
    torch.manual_seed(0)
    both = Bidirectional(mixer(name, 8)).double()
    x = draw(2, 9, 8)
    y, back = both(x)[0], both(x.flip(1))[0].flip(1)
    torch.testing.assert_close(torch.cat([back[..., 8:], back[..., :8]], -1), y)
    assert len(list(both.parameters())) == len(list(both.forward_mixer.parameters()))


def test_every_output_sees_every_input() -> None:
    torch.manual_seed(0)
    both, x = Bidirectional(mixer("gru", 4), mixer("gru", 4)).double(), draw(1, 5, 4).requires_grad_()
    for t in range(5):
        (dx,) = torch.autograd.grad(both(x)[0][0, t].sum(), x)
        assert (dx.abs().sum(-1) > 0).all()


def test_stacked_carries_each_layer_s_state() -> None:
    torch.manual_seed(0)
    layers = Stacked([mixer("lstm", 6), mixer("gru", 6)]).double()
    x = draw(2, 9, 6)
    y, end = layers(x)
    first, state = layers(x[:, :4])
    rest, after = layers(x[:, 4:], state)
    torch.testing.assert_close(torch.cat([first, rest], 1), y)
    assert after.keys() == end.keys() == {"0.h", "0.c", "1.h"} and layers.causal
    torch.testing.assert_close(y, layers.layers[1](layers.layers[0](x)[0])[0])


def test_stacked_pairs_come_back_to_the_width() -> None:
    layers = Stacked([Bidirectional(mixer("rnn", 6), mixer("rnn", 6)), Bidirectional(mixer("rnn", 6), mixer("rnn", 6))])
    y, state = layers(draw(2, 5, 6).float())
    assert y.shape == (2, 5, 12) == (2, 5, layers.out_width) and not layers.causal
    assert set(state) == {"0.forward.h", "0.backward.h", "1.forward.h", "1.backward.h"}


def test_mistakes_are_told() -> None:
    both = Bidirectional(mixer("rnn", 6))
    with pytest.raises(BadInput, match="cannot continue from a state"):
        both(torch.zeros(1, 2, 6), both(torch.zeros(1, 2, 6))[1])
    with pytest.raises(BadInput, match="same width, not 6 and 4"):
        Bidirectional(mixer("rnn", 6), mixer("rnn", 4))
    with pytest.raises(BadInput, match="the same width, not"):
        Stacked([mixer("rnn", 6), mixer("rnn", 4)])
