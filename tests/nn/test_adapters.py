"""Adapters change nothing at first, learn alone, are counted exactly, and LoRA merges and comes back bit for bit."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from sonde.core.errors import BadInput
from sonde.models.bert import Bert
from sonde.models.language_model import LanguageModel
from sonde.nn.adapters import Bottleneck, Lora, Prompted, add_bottlenecks, add_lora, freeze, merge, trainable_names, unmerge
from sonde.nn.spans import Spans

D = 12


def model(mixer: str = "attention heads=3", **more) -> LanguageModel:
    torch.manual_seed(0)
    return LanguageModel(17, D, 2, mixer, 2.0, **more).eval()


def x(rows: int = 3, length: int = 7) -> torch.Tensor:
    return torch.randint(17, (rows, length), generator=torch.Generator().manual_seed(1))


def count(net: nn.Module) -> int:
    return sum(p.numel() for p in net.parameters() if p.requires_grad)


def step(net: nn.Module) -> None:
    """One step of plain descent on what learns."""
    net(x()).square().sum().backward()
    with torch.no_grad():
        for p in net.parameters():
            assert (p.grad is not None) == p.requires_grad
            if p.grad is not None:
                p -= 0.05 * p.grad / (p.grad.norm() + 1e-9) * p.numel() ** 0.5
                p.grad = None


@pytest.mark.parametrize("mixer", ["attention heads=3", "gla heads=3", "mamba2 heads=4"])
def test_bottlenecks_begin_as_nothing_and_have_the_published_size(mixer):
    net = model(mixer)
    before, weights = net(x()).detach(), {name: p.clone() for name, p in net.named_parameters()}
    names = add_bottlenecks(net, 5)
    assert torch.equal(net(x()), before)
    assert count(net) == 4 * (2 * D * 5 + 5 + D) and len(names) == 4 * 4 and names == trainable_names(net)
    step(net)
    assert not torch.allclose(net(x()), before)
    after = {name.replace(".base.", "."): p for name, p in net.named_parameters()}
    assert all(torch.equal(after[name], p) for name, p in weights.items())


def test_a_bottleneck_is_its_formula():
    torch.manual_seed(1)
    part = Bottleneck(nn.Linear(7, 5), 3)
    for p in part.parameters():
        nn.init.normal_(p)
    v = torch.randn(2, 7)
    y = part.base(v)
    expected = y + nn.functional.gelu(y @ part.down.weight.mT + part.down.bias) @ part.up.weight.mT + part.up.bias
    torch.testing.assert_close(part(v), expected)


def test_lora_is_a_change_of_the_matrix():
    torch.manual_seed(1)
    base = nn.Linear(7, 5)
    part = Lora(base, 3, alpha=6.0)
    v = torch.randn(4, 7)
    assert torch.equal(part(v), base(v)) and part.a.std() > 0
    nn.init.normal_(part.b)
    expected = v @ (base.weight + 2.0 * part.b @ part.a).mT + base.bias
    torch.testing.assert_close(part(v), expected)
    torch.testing.assert_close(part.weight, base.weight + 2.0 * part.b @ part.a)
    with pytest.raises(BadInput, match="LoRA rank 6 is larger"):
        Lora(base, 6)


@pytest.mark.parametrize("mixer", ["attention heads=3", "gru", "mamba2 heads=4"])
def test_lora_merges_and_comes_back_bit_for_bit(mixer):
    net = model(mixer)
    plain, before = copy.deepcopy(net), net(x()).detach()
    names = add_lora(net, 2, alpha=4.0)
    assert torch.equal(net(x()), before) and all(name.endswith((".a", ".b")) for name in names)
    step(net), step(net)
    with torch.no_grad():
        adapted, state = net(x()), {name: value.clone() for name, value in net.state_dict().items()}
        assert not torch.allclose(adapted, before, atol=1e-3)
        merge(net)
        assert net.state_dict().keys() == plain.state_dict().keys()
        torch.testing.assert_close(net(x()), adapted)
        merged = net.state_dict()
        plain.load_state_dict(merged)
        assert torch.equal(plain(x()), net(x()))
        unmerge(net)
        assert all(torch.equal(value, state[name]) for name, value in net.state_dict().items()) and net.state_dict().keys() == state.keys()
        assert torch.equal(net(x()), adapted) and trainable_names(net) == names
    with pytest.raises(BadInput, match="nothing in this model was merged"):
        unmerge(plain)


def test_everything_is_saved_by_state_dict():
    def make() -> LanguageModel:
        net = model()
        add_lora(net, 2, "*qkv")
        return net

    first, second = make(), make()
    step(first), step(first)
    second.load_state_dict(first.state_dict())
    assert torch.equal(first(x()), second(x()))


def test_freezing_by_name():
    net = model()
    assert freeze(net, "embedding.*", "stack.blocks.0.*") == [
        n for n, _ in net.named_parameters() if n.startswith(("stack.blocks.1", "stack.norm", "head"))
    ]
    net = model()
    assert freeze(net, but=("head.*",)) == ["head.weight"]
    with pytest.raises(BadInput, match="no parameter is called 'embeding.weight'.*did you mean 'embedding.weight'"):
        freeze(net, "embeding.weight")
    with pytest.raises(BadInput, match="no nn.Linear has a name that matches '\\*.nothing'"):
        add_lora(net, 2, "*.nothing")


@pytest.mark.parametrize(
    "options", [{}, {"positions": "learned", "max_positions": 12, "mixer": "attention heads=3 positions=none"}, {"mixer": "gla heads=3"}]
)
def test_a_prompt_of_tokens_is_as_if_they_had_been_there(options):
    body = model(**options)
    first = torch.tensor([3, 1, 4, 1])
    prompted = Prompted(body, tokens=first)
    assert trainable_names(prompted) == ["prompt"] and count(prompted) == 4 * D
    long = torch.cat([first.expand(3, -1), x()], 1)
    expected = body(long)[:, 4:]
    torch.testing.assert_close(prompted(x()), expected)
    start, state = prompted.advance(x()[:, :3])
    rest, _ = prompted.advance(x()[:, 3:], state)
    torch.testing.assert_close(torch.cat([start, rest], 1), expected, rtol=1e-4, atol=1e-5)
    lengths = torch.tensor([7, 2, 5])
    padded = prompted.features(x(), spans=Spans.of_lengths(lengths))[0]
    torch.testing.assert_close(padded[1, :2], prompted.features(x()[1:2, :2])[0][0], rtol=1e-4, atol=1e-5)
    before = prompted(x()).detach()
    step(prompted)
    assert not torch.allclose(prompted(x()), before)
    with pytest.raises(BadInput, match="prompt tuning does not support packed rows"):
        prompted.features(x(1), spans=Spans.of_bounds(torch.tensor([0, 3, 7])))


def test_a_prompt_before_a_model_with_kinds():
    torch.manual_seed(0)
    body = Bert(17, D, 2, "attention heads=3", max_positions=12).eval()
    first = torch.tensor([3, 1])
    prompted, kinds = Prompted(body, tokens=first), x() % 2
    expected = body.features(torch.cat([first.expand(3, -1), x()], 1), kinds=nn.functional.pad(kinds, (2, 0)))[0][:, 2:]
    torch.testing.assert_close(prompted.features(x(), kinds=kinds)[0], expected)


def test_a_map_has_one_adapter_at_a_time():
    """Another one would change parts of the first, and freeze it."""
    net = model()
    names = add_lora(net, 2)
    for again in (add_lora, add_bottlenecks):
        with pytest.raises(BadInput, match=r"'stack.blocks.0.mixer.(qkv|out)' has an adapter already \(LanguageModel\); merge"):
            again(net, 2)
    assert trainable_names(net) == names
    add_bottlenecks(net, 2, "*ffn.down")
    with pytest.raises(BadInput, match="'stack.blocks.0.ffn.down' has an adapter already"):
        add_lora(net, 2, "*ffn.*")
    add_lora(net, 2, "head")
    assert trainable_names(net) == ["head.a", "head.b"]


def test_what_was_merged_can_learn_again_and_all_of_it_comes_back():
    net, states, outputs = model(), [], []
    for _ in range(2):
        add_lora(net, 2)
        step(net)
        states.append({name: value.clone() for name, value in net.state_dict().items()})
        outputs.append(net(x()).detach())
        merge(net)
        torch.testing.assert_close(net(x()), outputs[-1])
    names = net.state_dict().keys()
    for _ in range(2):
        unmerge(net)
        torch.testing.assert_close(net(x()), outputs[-1])
    merge(net)
    assert net.state_dict().keys() == names
    torch.testing.assert_close(net(x()), outputs[-1])
