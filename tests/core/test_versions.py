"""Changes of weights are noticed: those of matrices that torch counts by the counters, all others by memory and content."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn

from sonde.core.versions import SAMPLE, WeightVersions


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(6, 5))


def edit(model: nn.Module) -> None:
    with torch.no_grad():
        model[2].weight[1, 2] += 1


def load(model: nn.Module, assign: bool = False) -> None:
    model.load_state_dict({name: value + 1 for name, value in model.state_dict().items()}, assign=assign)


def optimize(model: nn.Module, **options: bool) -> None:
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    torch.optim.AdamW(model.parameters(), **options).step()


def move(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()


def replace_parameter(model: nn.Module) -> None:
    model[2].weight = nn.Parameter(model[2].weight.detach())  # the same memory


def write_data(model: nn.Module) -> None:
    model[0].weight.data.mul_(2)


def write_array(model: nn.Module) -> None:
    model[2].weight.detach().numpy()[:] = 0


COUNTED = {
    "in place": edit,
    "load_state_dict": load,
    "optimizer": partial(optimize, foreach=False),
    "foreach optimizer": partial(optimize, foreach=True),
}
UNCOUNTED = {
    "statistics": lambda model: model[1].running_mean.add_(1),
    "fused optimizer": partial(optimize, fused=True),
    "assigned": partial(load, assign=True),
    "moved": move,
    "double": lambda model: model.double(),
    "parameter": replace_parameter,
    "module": lambda model: model.__setitem__(2, nn.Linear(6, 5)),
    "one more module": lambda model: model.append(nn.ReLU()),
    "bias": lambda model: model[2].register_parameter("bias", None),
    "data": write_data,
    "NumPy": write_array,
}


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("name", [*COUNTED, *UNCOUNTED])
def test_a_change_is_noticed(name: str, exact: bool) -> None:
    model = network()
    versions = WeightVersions(model, exact)
    assert versions.has_counters and versions.same_counts() and versions.same_weights()
    (COUNTED | UNCOUNTED)[name](model)
    assert versions.same_counts() == (name in UNCOUNTED)
    assert not versions.same_weights()
    assert WeightVersions(model, exact).same_weights()


def test_exact_notices_every_number_and_every_order() -> None:
    model = nn.Linear(7, 5, bias=False)
    weight = model.weight.data
    weight.copy_(torch.arange(35.0).view(5, 7))
    versions = WeightVersions(model, exact=True)
    for i in range(weight.numel()):
        old = weight.view(-1)[i].clone()
        weight.view(-1)[i] = torch.nextafter(old, old + 1)  # the last bit
        assert not versions.same_weights()
        weight.view(-1)[i] = old
        assert versions.same_weights()
    for order in (weight.flip(0), weight.flip(1)):
        before = weight.clone()
        weight.copy_(order)
        assert not versions.same_weights()
        weight.copy_(before)
        assert versions.same_weights()


def test_a_sample_reaches_over_the_whole_matrix() -> None:
    model = nn.Linear(100, 50)
    versions = WeightVersions(model)
    for rows in (slice(0, 5), slice(22, 27), slice(45, 50)):
        model.weight.data[rows] += 1
        assert not versions.same_weights()
        model.weight.data[rows] -= 1
        versions = WeightVersions(model)
    assert len(versions._samples[1]) <= SAMPLE


@pytest.mark.parametrize("exact", [False, True])
def test_odd_weights(exact: bool) -> None:
    """Not a number, no numbers at all, numbers that share memory, channels last."""
    model = nn.Module()
    model.a = nn.Parameter(torch.full((3, 3), float("nan")))
    model.b = nn.Parameter(torch.empty(0, 4))
    model.c = nn.Parameter(torch.ones(1, 4).expand(5, 4))
    model.d = nn.Parameter(torch.randn(4, 3, 2, 2).to(memory_format=torch.channels_last))
    model.register_buffer("e", torch.tensor(True))
    versions = WeightVersions(model, exact)
    assert versions.same_weights()
    model.d.data[3, 2, 1, 1] += 1
    assert not versions.same_weights()


def test_tensors_of_inference_mode_are_told() -> None:
    with torch.inference_mode():
        model = network()
        versions = WeightVersions(model)
        assert not versions.has_counters and versions.same_counts() and versions.same_weights()
        model[0].weight.mul_(2)
        assert not versions.same_weights()
