"""Flat buffers: the model computes as before, and one buffer holds what torch keeps in many."""

import pytest
import torch
from torch import nn

from sonde.core.errors import BadInput
from sonde.gradients.flat import Flat
from sonde.gradients.mean import clip, long_norm, norm


def network(seed: int = 0, norm: bool = True) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5) if norm else nn.Tanh(), nn.ReLU(), nn.Flatten(), nn.Linear(5 * 4 * 6, 7))


def test_values_and_gradients_equal_those_of_a_plain_model():
    plain, flattened = network(), network()
    flat = Flat(flattened, lambda name, p, owner: p.ndim >= 2)
    x, y = torch.randn(11, 3, 6, 8), torch.randint(7, (11,))
    for model in (plain, flattened):
        nn.functional.cross_entropy(model(x), y).backward()
    for (name, a), (_, b) in zip(plain.named_parameters(), flattened.named_parameters(), strict=True):
        torch.testing.assert_close(b, a, msg=name)
        torch.testing.assert_close(b.grad, a.grad, rtol=1e-5, atol=1e-7, msg=name)
    assert norm(flat).item() == pytest.approx(torch.nn.utils.get_total_norm([p.grad for p in plain.parameters()]).item(), rel=1e-6)


def test_one_update_of_the_buffer_is_the_update_of_every_parameter():
    # Without a norm: a bias in front of one has a gradient of pure rounding, which Adam would blow up.
    plain, flattened = network(1, norm=False), network(1, norm=False)
    flat = Flat(flattened, lambda name, p, owner: p.ndim >= 2)
    settings = {"lr": 0.03, "betas": (0.8, 0.95)}
    decay = [p for p in plain.parameters() if p.ndim >= 2], [p for p in plain.parameters() if p.ndim < 2]
    reference = torch.optim.AdamW([{"params": decay[0], "weight_decay": 0.1}, {"params": decay[1], "weight_decay": 0.0}], **settings)
    ours = torch.optim.AdamW([{"params": [p], "weight_decay": 0.1 if g == 0 else 0.0} for g, p in flat.groups()], **settings, fused=True)
    x, y = torch.randn(9, 3, 6, 8), torch.randint(7, (9,))
    for _ in range(5):
        reference.zero_grad()
        nn.functional.cross_entropy(plain(x), y).backward()
        reference.step()
        flat.grad.zero_()
        nn.functional.cross_entropy(flattened(x), y).backward()
        ours.step()
    for (name, a), (_, b) in zip(plain.named_parameters(), flattened.named_parameters(), strict=True):
        torch.testing.assert_close(b, a, rtol=1e-5, atol=1e-6, msg=name)


def test_channels_last_weights_stay_channels_last():
    model = network().to(memory_format=torch.channels_last)
    before = model[0].weight.clone()
    flat = Flat(model)
    weight = model[0].weight
    assert weight.is_contiguous(memory_format=torch.channels_last) and not weight.is_contiguous()
    assert torch.equal(weight, before)
    model(torch.randn(2, 3, 6, 8)).sum().backward()
    assert weight.grad is not None and weight.grad.untyped_storage().data_ptr() == flat.grad.untyped_storage().data_ptr()


def test_strides_are_kept_even_where_one_channel_hides_them():
    """With one input channel both layouts hold; torch picks the layout of the output by the stride of that channel."""
    model = nn.Conv2d(1, 4, 3).to(memory_format=torch.channels_last)
    strides = model.weight.stride()
    Flat(model)
    assert model.weight.stride() == strides == model.weight.grad.stride()
    out = model(torch.randn(2, 1, 8, 9).contiguous(memory_format=torch.channels_last))
    assert out.is_contiguous(memory_format=torch.channels_last)


def test_split_names_every_part_of_a_group():
    model = network()
    flat = Flat(model, lambda name, p, owner: p.ndim >= 2)
    for group, (begin, end) in enumerate(flat.bounds):
        for name, part in flat.split(group, flat.values[begin:end]):
            assert torch.equal(part, model.get_parameter(name))


@pytest.mark.parametrize("largest, expected", [(1.0, (0.6, 0.8)), (10.0, (3.0, 4.0))])
def test_clipping_by_the_global_norm(largest, expected):
    model = nn.Linear(2, 1, bias=False)
    flat = Flat(model)
    model.weight.grad.copy_(torch.tensor([[3.0, 4.0]]))
    clip(flat, norm(flat), largest)
    torch.testing.assert_close(model.weight.grad, torch.tensor([expected]))


def test_a_tied_weight_is_stored_once():
    model = nn.Module()
    model.a, model.b = nn.Linear(5, 4, bias=False), nn.Linear(5, 4, bias=False)
    model.b.weight = model.a.weight
    flat = Flat(model)
    assert [slot.name for slot in flat.slots] == ["a.weight"]
    assert model.a.weight is model.b.weight


def test_what_cannot_be_flattened_is_named():
    with pytest.raises(BadInput, match="no trainable parameters"):
        Flat(nn.ReLU())
    with pytest.raises(BadInput, match="'weight' has no shape yet"):
        Flat(nn.LazyLinear(3))
    mixed = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double())
    with pytest.raises(BadInput, match="several kinds"):
        Flat(mixed)


@pytest.mark.parametrize("size", [1, 1000, (1 << 16) + 1, (1 << 21) + 777])
def test_the_norm_of_a_long_vector_has_the_rounding_of_float32(size):
    vector = torch.randn(size, generator=torch.Generator().manual_seed(0))
    assert long_norm(vector).item() == pytest.approx(vector.double().norm().item(), rel=1e-6)
