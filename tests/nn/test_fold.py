"""Folded models give the numbers of the models they were made of, layer by layer and as one list of operations."""

from __future__ import annotations

import copy
import random

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from sonde.core.errors import BadInput
from sonde.kernels import available, why_not
from sonde.kernels.convolve import PreparedConvolution
from sonde.models.cnn import CNN
from sonde.models.resnet import ResNet, cifar
from sonde.nn.fold import KEPT, Folded, fold
from tests.models.timm_peer import lived, timm


def programs(folded: Folded) -> list:
    return list(folded._programs.values())


def same(model: nn.Module, folded: Folded, *inputs: torch.Tensor) -> None:
    """Equal outputs: from the layers, while the list is written, and from the list."""
    with torch.no_grad():
        for x in inputs:
            expected = model(x)
            scale = max(1.0, float(expected.abs().max()))
            for output in (folded.model(x), folded(x), folded(x)):
                torch.testing.assert_close(output, expected, rtol=0, atol=1e-5 * scale)


def test_the_formula_by_hand():
    model = nn.Sequential(nn.Conv2d(1, 1, 1), nn.BatchNorm2d(1, eps=1.0)).eval()
    with torch.no_grad():
        for values, number in zip((*model[0].parameters(), *model[1].parameters()), (3, 1, 4, 5), strict=True):
            values.fill_(number)
        model[1].running_mean.fill_(2)
        model[1].running_var.fill_(3)
    folded = fold(model, torch.zeros(1, 1, 2, 3))
    assert folded.pairs == [("0", "1")] and not folded.training
    assert folded.model[0].weight.item() == 6 and folded.model[0].bias.item() == 3  # 4 / 2 * 3 and 4 / 2 * (1 - 2) + 5
    assert isinstance(folded.model[1], nn.Identity) and model[0].weight.item() == 3


NETS = {
    "resnet": (lambda: cifar(14, classes=7), (3, 17, 12), 13),
    "projection": (lambda: cifar(8, shortcut="projection"), (3, 17, 12), 9),
    "bottleneck": (lambda: ResNet((1, 1), classes=5, width=4, bottleneck=True), (3, 17, 22), 9),
    "norms in front": (lambda: ResNet((1, 2), classes=5, width=4, large=False, activation="pre"), (3, 11, 9), 3),
    "scaled skip": (lambda: cifar(8, skip=0.7), (3, 17, 12), 7),
    "cnn": (lambda: CNN((2, 5, 7), image=None, norm=True), (2, 12, 9), 2),
    "series": (lambda: CNN((2, 5, 7), image=None, norm=True, axes=1), (2, 12), 2),
    "no norms": (lambda: CNN((2, 5, 7), image=(12, 9)), (2, 12, 9), 0),
    "dense": (lambda: nn.Sequential(nn.Linear(6, 5, bias=False), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3)), (6,), 1),
    "transposed": (lambda: nn.Sequential(nn.ConvTranspose2d(4, 6, 3), nn.BatchNorm2d(6), nn.ReLU()), (4, 5, 7), 1),
    "groups": (lambda: nn.Sequential(nn.Conv2d(4, 6, 3, 2, 1, 2, groups=2), nn.BatchNorm2d(6, affine=False), nn.ReLU()), (4, 9, 7), 1),
}


@pytest.mark.parametrize("name", NETS)
def test_equal_for_all_kinds_of_networks(name):
    make, shape, count = NETS[name]
    model = lived(make()).eval()
    folded = fold(model, torch.randn(1, *shape))
    assert len(folded.pairs) == count
    same(model, folded, torch.randn(3, *shape), torch.randn(1, *shape))
    convolutions = sum(isinstance(part, nn.Conv2d) for part in model.modules())
    assert {program.joined for program in programs(folded) if program} == ({convolutions} if convolutions else set())


def test_what_follows_a_convolution_is_joined_with_it():
    model = lived(cifar(8, shortcut="projection")).eval()
    folded = fold(model, torch.randn(2, 3, 9, 7))
    same(model, folded, torch.randn(2, 3, 9, 7))
    calls = [str(step.call) for step, _ in programs(folded)[0].steps]
    assert sum("binary" in call for call in calls) == 3 and sum("pointwise.default" in call for call in calls) == 6
    assert not any("relu" in call or "add." in call or "add_." in call or "norm" in call for call in calls)


@pytest.mark.skipif(not available(), reason=why_not() or "kernels serve")
def test_convolutions_of_many_pixels_run_by_our_kernel():
    model = lived(cifar(8, shortcut="projection")).eval()
    x = torch.randn(5, 3, 31, 18)
    folded = fold(model, x)
    same(model, folded, x)
    ours = [len(step.args) for step, _ in programs(folded)[0].steps if isinstance(step.call, PreparedConvolution)]
    assert ours == [1, 2, 2] and programs(folded)[0].joined == 9  # the first block, and the second convolution of the second


def test_inference_mode_is_as_fast():
    model = lived(cifar(8)).eval()
    with torch.inference_mode():
        x = torch.randn(2, 3, 9, 7)
        folded = fold(model, x)
        same(model, folded, x)
    assert len(folded.pairs) == 7 and [program.joined for program in programs(folded)] == [7]


def test_timms_networks_fold_too():
    for name, pairs in (("resnet18", 20), ("resnet50", 53)):
        model = lived(timm().create_model(name, num_classes=9)).eval()
        folded = fold(model, torch.randn(1, 3, 40, 33))
        assert len(folded.pairs) == pairs
        same(model, folded, torch.randn(2, 3, 40, 33))


class Net(nn.Module):
    """Layers, and a function that uses them."""

    def __init__(self, use, **parts: nn.Module) -> None:
        super().__init__()
        self.use = use
        for name, part in parts.items():
            self.add_module(name, part)

    def forward(self, x):
        return self.use(self, x)


def conv(into: int = 3, out: int = 3) -> nn.Conv2d:
    return nn.Conv2d(into, out, 3, padding=1)


class NormAndMore(nn.BatchNorm2d):
    def forward(self, x):
        return super().forward(x).clamp(min=0)


def shared() -> nn.Module:
    layer, norm = conv(), nn.BatchNorm2d(3)
    return nn.Sequential(layer, norm, layer, nn.BatchNorm2d(3))


def between(net: Net, x):
    h = net.a(x)
    y = net.b(h)
    h.mul_(2)
    return F.relu(y + h)


LEFT = {
    "groups, transposed": lambda: nn.Sequential(nn.ConvTranspose2d(3, 6, 3, groups=3), nn.BatchNorm2d(6)),
    "a view of one layout": lambda: Net(lambda n, x: F.relu(n.a(x)).view(len(x), -1), a=conv()),
    "read twice": lambda: Net(lambda n, x: n.norm(y := n.a(x)) + y, a=conv(), norm=nn.BatchNorm2d(3)),
    "called twice": lambda: Net(lambda n, x: n.norm(n.a(n.norm(n.a(x)))), a=conv(), norm=nn.BatchNorm2d(3)),
    "there twice": shared,
    "statistics of the batch": lambda: nn.Sequential(conv(), nn.BatchNorm2d(3, track_running_stats=False)),
    "a class of its own": lambda: nn.Sequential(conv(), NormAndMore(3)),
    "a norm of a sum": lambda: Net(lambda n, x: n.norm(n.a(x) + x), a=conv(), norm=nn.BatchNorm2d(3)),
    "changed in between": lambda: Net(lambda n, x: n.norm(n.a(x).mul_(3)), a=conv(), norm=nn.BatchNorm2d(3)),
    "the input changes before the sum": lambda: Net(between, a=conv(), b=conv()),
    "read before ReLU": lambda: Net(lambda n, x: (y := n.a(x)) * 2 + y.relu_(), a=conv()),
    "read after ReLU": lambda: Net(lambda n, x: (y := n.a(x)).relu() + y, a=conv()),
    "a sum with itself": lambda: Net(lambda n, x: (y := n.a(x)) + y, a=conv()),
    "a sum of other sizes": lambda: Net(lambda n, x: F.relu(n.a(x) + x.mean((2, 3), keepdim=True)), a=conv()),
    "a number is added": lambda: Net(lambda n, x: F.relu(n.a(x) + 3.0), a=conv()),
    "written into another": lambda: Net(lambda n, x: (v := (y := x * 2).view(-1), y.add_(n.a(x)), v.view_as(y).relu())[2], a=conv()),
    "weights that are computed": lambda: Net(lambda n, x: F.relu(F.conv2d(x, n.a.weight * x.mean())), a=conv()),
    "parts": lambda: Net(lambda n, x: torch.cat([n.a(p).relu() for p in x.split(1)]), a=conv()),
}


SLOW = ("groups, transposed", "a view of one layout", "written into another", "weights that are computed")
"""of these no list is kept: there is nothing to join, or they want the other layout"""


@pytest.mark.parametrize("name", LEFT)
def test_what_may_not_be_joined_is_left(name):
    model = lived(LEFT[name]()).eval()
    folded = fold(model, torch.randn(1, 3, 6, 5))
    assert folded.pairs == []
    same(model, folded, torch.randn(2, 3, 6, 5), torch.randn(1, 3, 4, 9))
    assert all(program is not None for program in programs(folded)) == (name not in SLOW)


@pytest.mark.parametrize("seed", range(25))
def test_random_programs(seed):
    """Layers and operations, some in place, on values drawn at random."""
    rng = random.Random(seed)
    parts = [lived(part, seed) for part in (conv(), conv(), nn.BatchNorm2d(3), nn.BatchNorm2d(3))]
    moves = [(rng.randrange(10), rng.random(), rng.random()) for _ in range(14)]

    def use(net, x):
        held = [x * 1]
        for kind, a, b in moves:
            one, two = held[int(a * len(held))], held[int(b * len(held))]
            if kind < 4:
                held.append(getattr(net, f"p{kind}")(one))
            elif kind == 4:
                held.append(F.relu(one))
            elif kind == 5:
                one.relu_()
            elif kind == 6:
                held.append(torch.add(one, two, alpha=1 if a < 0.7 else 0.5))
            elif kind == 7 and one is not two:
                one.add_(two)
            elif kind == 8:
                held.append(one[:, :, ::1].transpose(2, 3).transpose(2, 3))
            else:
                held.append(one * 0.5)
        return held[-1] + held[len(held) // 2]

    model = Net(use, **{f"p{i}": part for i, part in enumerate(parts)}).eval()
    folded = fold(model, torch.randn(1, 3, 5, 4))
    same(model, folded, torch.randn(2, 3, 5, 4))
    # A recording with different outputs would not have been used.
    assert [bool(program) for program in programs(folded)] == [any(kind < 2 for kind, *_ in moves)]


def test_a_model_that_looks_at_values_is_right_for_other_values():
    model = Net(lambda n, x: F.relu(n.a(x)) if x.sum() > 0 else n.a(x), a=conv()).eval()
    folded = fold(model, torch.ones(1, 3, 5, 4))
    same(model, folded, torch.ones(1, 3, 5, 4), -torch.ones(1, 3, 5, 4))
    assert programs(folded) == [None]


def test_layers_can_be_watched_and_differentiated():
    model = lived(cifar(8)).eval()
    folded = fold(model, torch.randn(1, 3, 9, 8))
    x = torch.randn(2, 3, 9, 8)
    same(model, folded, x)
    seen = []
    hook = folded.model.layer2.register_forward_hook(lambda *grads: seen.append(grads[2]))
    folded(x)
    hook.remove()
    assert len(seen) == 1
    grads = [torch.autograd.grad(net(leaf).square().sum(), leaf)[0] for net in (model, folded) for leaf in [x.clone().requires_grad_()]]
    torch.testing.assert_close(*grads, rtol=1e-4, atol=1e-5)


def test_new_weights_are_seen():
    model = lived(cifar(8)).eval()
    x = torch.randn(2, 3, 9, 8)
    folded, other = fold(model, x), fold(lived(cifar(8), seed=5), x)
    same(model, folded, x)
    folded.load_state_dict(other.state_dict())
    same(other.model, folded, x)
    same(other.model, copy.deepcopy(folded), x)
    torch.testing.assert_close(folded.double()(x.double()).float(), other(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("side", [9, 32])  # prepacked for oneDNN, and for our kernel too
def test_weights_that_torch_does_not_count_are_seen(side):
    model = lived(cifar(8)).eval()
    x = torch.randn(2, 3, side, side)
    folded = fold(model, x)
    same(model, folded, x)
    folded.model.layer1[0].conv1.weight.data.mul_(-2)
    same(folded.model, folded, x)
    folded.model.layer1[0].conv2.weight.numpy()[:] *= -2
    same(folded.model, folded, x)


def test_weights_in_the_place_of_others_are_seen():
    """A new weight often gets the memory of the one it replaces."""
    torch.manual_seed(0)
    x = torch.randn(2, 16, 32, 32)
    folded = fold(nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.ReLU()), x)
    for _ in range(12):
        folded.model[0].weight = nn.Parameter(torch.randn(16, 16, 3, 3), requires_grad=False)
        torch.testing.assert_close(folded(x), folded.model(x), rtol=1e-4, atol=1e-4)


def test_changes_in_inference_mode_are_seen():
    torch.manual_seed(0)
    with torch.inference_mode():
        model, x = lived(cifar(8)).eval(), torch.randn(2, 3, 32, 32)
        folded, other = fold(model, x), fold(lived(cifar(8), seed=5), x)
        same(model, folded, x)
        folded.load_state_dict(other.state_dict())
        same(other.model, folded, x)
        folded.model.conv1.weight.mul_(3)
        same(folded.model, folded, x)
        folded.model.conv1.weight = nn.Parameter(torch.randn(16, 3, 3, 3), requires_grad=False)  # counts no changes
        same(folded.model, folded, x)
        folded.model.conv1.weight.mul_(3)
        same(folded.model, folded, x)


def test_transforms_see_the_layers():
    torch.manual_seed(0)
    folded, x, dx = fold(lived(cifar(8)), torch.randn(1, 3, 9, 8)), torch.randn(2, 3, 9, 8), torch.randn(2, 3, 9, 8)
    folded(x)
    for call in (lambda f: torch.func.jvp(f, (x,), (dx,))[1], lambda f: torch.vmap(f)(x[:, None])):
        torch.testing.assert_close(call(folded), call(folded.model), rtol=1e-4, atol=1e-5)


def test_few_lists_are_kept():
    folded = fold(lived(cifar(8)), torch.randn(1, 3, 8, 8))
    for side in range(8, 16):
        folded(torch.randn(1, 3, side, 8))
    assert len(programs(folded)) == KEPT


def test_the_model_itself_stays_as_it_was():
    model = lived(cifar(8)).train()
    before = copy.deepcopy(model.state_dict())
    fold(model, torch.randn(2, 3, 9, 8))
    assert model.training and all(p.requires_grad for p in model.parameters())
    assert all(torch.equal(part, before[name]) for name, part in model.state_dict().items())
    assert not any(part._forward_hooks for part in model.modules())


def broken(net, x):
    raise RuntimeError("no such thing\nand more")


BAD = {
    "no model": (lambda: fold(len, torch.zeros(1)), "fold takes a model and an example, not builtin_function_or_method and Tensor"),
    "no example": (lambda: fold(cifar(8), (1, 3, 9, 9)), "not ResNet and tuple"),
    "does not run": (lambda: fold(Net(broken), torch.zeros(1)), "does not run on the example: no such thing"),
    "wrong channels": (lambda: fold(cifar(8), torch.zeros(1, 2, 9, 9)), "conv1 takes images with 3 channels, not 2"),
    "several outputs": (lambda: fold(Net(lambda n, x: (x, x)), torch.zeros(1)), "gives tuple, not a tensor"),
    "random": (lambda: fold(Net(lambda n, x: torch.rand(3)), torch.zeros(1)), "different outputs"),
    "not finite": (lambda: fold(cifar(8), torch.full((1, 3, 9, 9), float("nan"))), "output must be finite"),
}


@pytest.mark.parametrize("case", BAD)
def test_refusals_are_one_line(case):
    call, words = BAD[case]
    with pytest.raises(BadInput) as caught:
        call()
    assert words in str(caught.value) and "\n" not in str(caught.value)
