"""What every optimizer rule of ours promises, whichever files are in the registry."""

from __future__ import annotations

import copy
import inspect

import pytest
import torch

from sonde.core import registry
from sonde.optim.build import names, optimizer

NAMES = registry.names("optim.rules")


@pytest.fixture(params=NAMES)
def tiny(request):
    return request.param, *registry.load("optim.rules", request.param).tiny()


def set_gradients(params, step):
    for i, p in enumerate(params):
        p.grad = torch.randn(p.shape, generator=torch.Generator().manual_seed(100 * step + i))


def walk(optimizer, params, steps):
    for step in steps:
        set_gradients(params, step)
        optimizer.step()
    return [p.detach().clone() for p in params]


def test_one_final_class_and_a_name(tiny):
    name, optimizer, _ = tiny
    module = registry.load("optim.rules", name)
    own = [kind for kind in vars(module).values() if inspect.isclass(kind) and kind.__module__ == module.__name__]
    assert len(own) == 1 and getattr(own[0], "__final__", False) and isinstance(optimizer, torch.optim.Optimizer)
    assert type(optimizer) is own[0] and name in names() and registry.summary("optim.rules", name)


def test_saved_and_loaded_it_goes_on_bit_for_bit(tiny):
    name, optimizer, params = tiny
    _, twin, copies = (None, *registry.load("optim.rules", name).tiny())
    walk(optimizer, params, range(3))
    with torch.no_grad():
        for p, q in zip(copies, params, strict=True):
            p.copy_(q)
    twin.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for a, b in zip(walk(optimizer, params, range(3, 6)), walk(twin, copies, range(3, 6)), strict=True):
        assert torch.equal(a, b)


def test_a_parameter_without_gradient_stays(tiny):
    _, optimizer, params = tiny
    before = params[0].detach().clone()
    set_gradients(params, 0)
    params[0].grad = None
    optimizer.step()
    assert torch.equal(params[0], before)


def test_elementwise_rules_give_the_same_bits_on_one_flat_buffer(tiny):
    name, _, params = tiny
    rule = optimizer(name, lr=0.03, weight_decay=0.1)
    if not rule.elementwise:
        pytest.skip("looks at whole tensors")
    flat = torch.cat([p.detach().flatten() for p in params]).requires_grad_()
    apart = rule.build([{"params": params, "weight_decay": 0.1, "names": ["a", "b"]}])
    together = rule.build([{"params": [flat], "weight_decay": 0.1, "names": ["flat"]}])
    for step in range(4):
        set_gradients(params, step)
        flat.grad = torch.cat([p.grad.flatten() for p in params])
        apart.step()
        together.step()
    assert torch.equal(torch.cat([p.detach().flatten() for p in params]), flat.detach())
