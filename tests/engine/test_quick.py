"""The short way round torch's step gives torch's own numbers."""

import pytest
import torch
from torch import nn

from sonde.engine.accelerate.quick import quick_step


@pytest.mark.parametrize("rule", [torch.optim.Adam, torch.optim.AdamW])
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_equal_to_torch_bit_for_bit(rule, decay):
    def make():
        rng = torch.Generator().manual_seed(1)
        parameters = [nn.Parameter(torch.randn(size, generator=rng)) for size in (37, 5)]
        for parameter in parameters:
            parameter.grad = torch.zeros_like(parameter)
        groups = [{"params": parameters[:1], "weight_decay": decay}, {"params": parameters[1:], "weight_decay": 0.0}]
        return parameters, rule(groups, lr=0.02, betas=(0.8, 0.97), fused=True), rng

    (ours, mine, rng), (theirs, reference, again) = make(), make()
    step = None
    for turn in range(6):
        for parameters, source in ((ours, rng), (theirs, again)):
            for parameter in parameters:
                parameter.grad.copy_(torch.randn(parameter.shape, generator=source))
        for optimizer in (mine, reference):
            for group in optimizer.param_groups:
                group["lr"] = 0.02 / (turn + 1)
        reference.step()
        if step is None:
            mine.step()
            step = quick_step(mine)
            assert step is not None
        else:
            step()
        for a, b in zip(ours, theirs, strict=True):
            assert torch.equal(a, b)
            for name in ("exp_avg", "exp_avg_sq", "step"):
                assert torch.equal(mine.state[a][name], reference.state[b][name])


def test_where_there_is_no_shorter_way_it_says_so():
    parameter = nn.Parameter(torch.ones(3))
    parameter.grad = torch.ones(3)
    for optimizer in (
        torch.optim.SGD([parameter], lr=0.1, fused=True),
        torch.optim.Adam([parameter], fused=False),
        torch.optim.Adam([parameter], fused=True, amsgrad=True),
        torch.optim.NAdam([parameter]),
    ):
        optimizer.step()
        assert quick_step(optimizer) is None
    assert quick_step(torch.optim.Adam([parameter], fused=True)) is None  # no step made yet
