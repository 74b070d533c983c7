"""Optimizers by name: the same walk as torch's own, decay where it belongs, one-line errors."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from sonde.core import registry
from sonde.core.errors import BadInput
from sonde.gradients.flat import owner
from sonde.optim.build import names, optimizer

THEIRS = {
    "adadelta": torch.optim.Adadelta,
    "adafactor": torch.optim.Adafactor,
    "adagrad": torch.optim.Adagrad,
    "adam": torch.optim.Adam,
    "adamax": torch.optim.Adamax,
    "adamw": torch.optim.AdamW,
    "asgd": torch.optim.ASGD,
    "nadam": torch.optim.NAdam,
    "radam": torch.optim.RAdam,
    "rmsprop": torch.optim.RMSprop,
    "rprop": torch.optim.Rprop,
    "sgd": torch.optim.SGD,
}


def network() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(5, 7), nn.LayerNorm(7), nn.Tanh(), nn.Linear(7, 2))


def groups(model, rule):
    decayed = [(n, p) for n, p in model.named_parameters() if rule.decays(n, p)]
    rest = [(n, p) for n, p in model.named_parameters() if not rule.decays(n, p)]
    pairs = [(decayed, rule.weight_decay), (rest, 0.0)]
    return [{"params": [p for _, p in g], "names": [n for n, _ in g], "weight_decay": decay} for g, decay in pairs if g]


def walk(model, optimizer, steps=20):
    x = torch.randn(13, 5, generator=torch.Generator().manual_seed(7))
    for _ in range(steps):
        optimizer.zero_grad()
        model(x).sin().square().sum().backward()
        optimizer.step()
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def test_all_of_torch_is_there():
    assert set(names()) == {*THEIRS, "muon", *registry.names("optim.rules")}


@pytest.mark.parametrize("name", THEIRS)
def test_walks_like_torch(name):
    ours, theirs = network(), network()
    options = {"foreach": False} if name != "rprop" else {}
    mine = walk(ours, optimizer(name, lr=1e-3).build(groups(ours, optimizer(name, lr=1e-3))))
    reference = THEIRS[name](theirs.parameters(), lr=1e-3, **options, **({} if name == "rprop" else {"weight_decay": 0.0}))
    # a fused kernel adds in another order, nothing else differs
    torch.testing.assert_close(mine, walk(theirs, reference), rtol=1e-5, atol=1e-6)


def test_fused_where_torch_has_it_and_off_on_request():
    model = network()
    for name in ("adam", "adamw", "sgd", "adagrad"):
        rule = optimizer(name, lr=1e-3)
        assert rule.build(groups(model, rule)).param_groups[0]["fused"] is True
        rule = optimizer(name, lr=1e-3, fused=False)
        assert rule.build(groups(model, rule)).param_groups[0]["fused"] is False


def test_decay_leaves_biases_and_norms_alone():
    model, rule = network(), optimizer("sgd", lr=0.5, weight_decay=0.1)
    assert [n for n, p in model.named_parameters() if rule.decays(n, p)] == ["0.weight", "3.weight"]
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    opt = rule.build(groups(model, rule))
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    opt.step()
    for n, p in model.named_parameters():
        torch.testing.assert_close(p.detach(), before[n] * (0.95 if p.ndim == 2 else 1.0), rtol=1e-6, atol=0)
    everything = optimizer("sgd", lr=0.5, weight_decay=0.1, decay_all=True)
    assert all(everything.decays(n, p) for n, p in model.named_parameters())
    assert not any(optimizer("adamw", lr=0.5).decays(n, p) for n, p in model.named_parameters())


def test_decay_leaves_rates_and_channel_weights_of_mixers_alone():
    """The published Mamba, S4 and RWKV-6 exempt these, however many axes they are kept in."""
    rule = optimizer("adamw", lr=1e-3, weight_decay=0.1)
    spared = {}
    for name in registry.names("nn.mixers"):
        model = nn.ModuleDict({"mixer": registry.load("nn.mixers", name).tiny()})
        wide = {n.removeprefix("mixer."): rule.decays(n, p, owner(model, n)) for n, p in model.named_parameters() if p.ndim >= 2}
        assert all(decays for n, decays in wide.items() if n.endswith("weight")), name
        spared[name] = {n for n, decays in wide.items() if not decays}
    assert spared.pop("mamba") == {"log_rate", "D"}
    assert spared.pop("s4") == {"log_step", "log_rate", "A_imag", "D"}
    assert spared.pop("rwkv6") == {"time_mix", "time_first"}
    assert spared.pop("gated_rfa") == {"phi.sigma"}
    everything = optimizer("adamw", lr=1e-3, weight_decay=0.1, decay_all=True)
    mamba = registry.load("nn.mixers", "mamba").tiny()
    assert everything.decays("mixer.log_rate", mamba.log_rate, mamba) and not rule.decays("mixer.log_rate", mamba.log_rate, mamba)


def test_decay_acts_on_weights_by_other_names():
    rule = optimizer("adamw", lr=1e-3, weight_decay=0.1)
    parts = {
        "lstm": nn.LSTM(3, 4), "attention": nn.MultiheadAttention(4, 2), "embedding": nn.Embedding(5, 3), "row": nn.Linear(5, 1)
    }  # fmt: skip
    model = nn.ModuleDict(parts)
    assert {n for n, p in model.named_parameters() if not rule.decays(n, p)} == {n for n, p in model.named_parameters() if p.ndim < 2}
    assert rule.decays("W", torch.zeros(3, 4)) and rule.decays("logits.weight", torch.zeros(3, 4))


def test_elementwise():
    assert {name for name in names() if not optimizer(name, lr=1e-3).elementwise} == {"muon", "adafactor"}


def test_muon_takes_matrices_and_adamw_the_rest():
    model, twin = network(), network()
    rule = optimizer("muon", lr=1e-2, weight_decay=0.1, betas=(0.8, 0.95))
    opt = rule.build(groups(model, rule))
    matrices, rest = [p for p in twin.parameters() if p.ndim == 2], [p for p in twin.parameters() if p.ndim != 2]
    muon = torch.optim.Muon(matrices, lr=1e-2, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    adamw = torch.optim.AdamW(rest, lr=1e-2, weight_decay=0.0, betas=(0.8, 0.95))

    class Both:
        def zero_grad(self):
            muon.zero_grad()
            adamw.zero_grad()

        def step(self):
            muon.step()
            adamw.step()

    torch.testing.assert_close(walk(model, opt), walk(twin, Both()), rtol=0, atol=0)
    # Saved and loaded in the middle, and with another learning rate, it still walks alike.
    saved = copy.deepcopy(opt.state_dict())
    opt = rule.build(groups(model, rule))
    opt.load_state_dict(saved)
    for group in [*opt.param_groups, *muon.param_groups, *adamw.param_groups]:
        group["lr"] = 3e-3
    torch.testing.assert_close(walk(model, opt), walk(twin, Both()), rtol=0, atol=0)


BAD = {
    "unknown name": (dict(name="adamm", lr=1e-3), "did you mean 'adam'?"),
    "not a name": (dict(name=None, lr=1e-3), "no optimizer 'None'"),
    "closure": (dict(name="lbfgs", lr=1e-3), "evaluates the loss several times"),
    "sparse": (dict(name="sparseadam", lr=1e-3), "sparse"),
    "unknown option": (dict(name="adam", lr=1e-3, beta=(0.9, 0.99)), "did you mean 'betas'?"),
    "rate 0": (dict(name="adam", lr=0.0), "argument 'lr' of optimizer must be > 0, not 0.0"),
    "rate nan": (dict(name="adam", lr=float("nan")), "not nan"),
    "rate text": (dict(name="adam", lr="1e-3"), "not '1e-3'"),
    "decay below 0": (dict(name="adam", lr=1e-3, weight_decay=-1), ">= 0, not -1"),
    "no decay in rprop": (dict(name="rprop", lr=1e-3, weight_decay=0.1), "no weight decay"),
    "beta 1": (dict(name="adamw", lr=1e-3, betas=(0.9, 1.0)), ">= 0 and < 1, not 1.0"),
    "one beta": (dict(name="lion", lr=1e-3, betas=0.9), "takes 2 values"),
    "momentum": (dict(name="sgd", lr=1e-3, momentum=1.5), "not 1.5"),
    "nesterov alone": (dict(name="sgd", lr=1e-3, nesterov=True), "requires a momentum"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_settings_get_one_line(case):
    given_settings, words = BAD[case]
    with pytest.raises(BadInput) as caught:
        optimizer(**given_settings)
    assert words in str(caught.value) and "\n" not in str(caught.value)


anything = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.lists(st.floats(), max_size=3))


@settings(max_examples=150, deadline=None)
@given(
    name=st.sampled_from(names()),
    lr=anything,
    decay=anything,
    option=st.sampled_from(["betas", "momentum", "eps", "alpha", "zz"]),
    value=anything,
)
def test_any_setting_works_or_is_bad_input(name, lr, decay, option, value):
    try:
        rule = optimizer(name, lr, decay, **{option: value})
    except BadInput:
        return
    model = network()
    walk(model, rule.build(groups(model, rule)), steps=1)
