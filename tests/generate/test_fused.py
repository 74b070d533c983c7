"""Decoding in one call gives the model's own logits, and states that either can continue from."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn

from sonde import kernels
from sonde.core.errors import BadInput
from sonde.engine.weights import Weights as EngineWeights
from sonde.generate import fused, generate
from sonde.models.language_model import LanguageModel
from sonde.nn.block import STYLES
from sonde.nn.spans import Spans
from sonde.optim import build

pytestmark = pytest.mark.skipif(not kernels.available(), reason="no compiled kernels here")

TOLERANCE = {torch.float32: 5e-6, torch.float64: 1e-13}
MODELS = {
    **{f"style {style}": {"style": style} for style in STYLES},
    "groups": {"mixer": "attention heads=6 groups=2"},
    "wide heads": {"mixer": "attention heads=2 each=10 base=500 scale=0.2"},
    "alibi": {"mixer": "attention heads=3 positions=alibi", "tied": True},
    "gpt2": {"mixer": "attention positions=none bias=true", "positions": "learned", "max_positions": 90, "style": "gpt2", "tied": True},
    "t5": {"style": "t5", "tied": True},
    "notes": {"mixer": "attention positions=none", "positions": "sinusoidal", "style": "notes"},
    "binary, no network": {"mixer": "attention positions=none", "positions": "binary", "max_positions": 90, "ffn": 0},
    "post, no network": {"style": "bert", "ffn": 0},
    "mamba2": {"mixer": "mamba2", "ffn": 0, "tied": True},
    "mamba2 with groups": {"mixer": "mamba2 groups=2 taps=3 least=0.01 most=0.1"},
}


def model(dtype=torch.float32, **options):
    torch.manual_seed(5)
    network = LanguageModel(vocabulary=37, width=24, depth=2, **options).to(dtype).eval()
    with torch.no_grad():
        for weight in network.parameters():  # biases and norms that are not 0 and 1
            weight += 0.1 * torch.randn_like(weight)
    return network


def tokens(rows, length):
    return torch.randint(37, (rows, length), generator=torch.Generator().manual_seed(rows * 100 + length))


def close(actual, expected, tolerance=None):
    assert actual.shape == expected.shape
    assert (actual - expected).abs().max() <= (tolerance or TOLERANCE[expected.dtype]) * expected.abs().max()


@pytest.fixture(autouse=True)
def no_grad():
    with torch.no_grad():
        yield


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("name", MODELS)
def test_logits_are_the_models(name, rows, dtype):
    own = model(dtype, **MODELS[name])
    fast = fused.prepare(own, rows)
    assert fast is not None, fused.why_not(own, rows)
    text = tokens(rows, 24)
    expected = own(text)
    logits, state = fast.advance(text[:, :7])
    close(logits, expected[:, :7])
    for i in range(7, 24):
        logits, state = fast.advance(text[:, i : i + 1], state)
        close(logits, expected[:, i : i + 1])


@pytest.mark.parametrize("name", ["groups", "gpt2", "mamba2"])
def test_program_and_torch_take_turns(name, two_threads):
    own = model(**MODELS[name])
    fast, text = fused.prepare(own, 2), tokens(2, 40)
    expected = own(text)
    state, at = None, 0
    for mine, length in ((0, 5), (1, 1), (1, 1), (0, 1), (1, 1), (0, 6), (1, 1), (0, 1), (0, 1), *[(1, 1)] * 15, (0, 3), (1, 1)):
        logits, state = (fast if mine else own).advance(text[:, at : at + length], state)
        close(logits, expected[:, at : at + length])
        at += length
    assert at == 37


@pytest.mark.parametrize("name", ["groups", "gpt2", "mamba2"])
def test_a_state_can_be_continued_twice(name):
    own = model(**MODELS[name])
    fast, text = fused.prepare(own, 1), tokens(1, 30)
    other = (text + 1) % 37
    _, state = own.advance(text[:, :5])
    _, state = fast.advance(text[:, 5:6], state)
    first = second = third = state
    for i in range(6, 12):  # three texts grow side by side from one state
        a, first = fast.advance(text[:, i : i + 1], first)
        b, second = fast.advance(other[:, i : i + 1], second)
        c, third = own.advance(other[:, i : i + 1], third)
        close(b, c)
        close(a, own(text[:, : i + 1])[:, -1:])


@pytest.mark.parametrize("name", ["style modern", "alibi", "notes", "gpt2", "mamba2"])
def test_sequences_of_different_lengths(name, two_threads):
    own, lengths = model(**MODELS[name]), torch.tensor([9, 1, 4])
    fast, text = fused.prepare(own, 3), tokens(3, 20)
    _, state = fast.advance(text[:, :9], None, spans=Spans.of_lengths(lengths))
    rest = tokens(3, 11)
    expected = [own(torch.cat([text[row, :n], rest[row]]).unsqueeze(0))[0, n:] for row, n in enumerate(lengths.tolist())]
    for i in range(11):
        logits, state = fast.advance(rest[:, i : i + 1], state)
        close(logits.squeeze(1), torch.stack([row[i] for row in expected]))


def test_fewer_sequences_go_on_when_some_have_ended():
    own, text = model(), tokens(3, 12)
    fast = fused.prepare(own, 3)
    _, state = fast.advance(text[:, :6])
    _, state = fast.advance(text[:, 6:7], state)
    state = {name: value[1:] for name, value in state.items()}
    for i in range(7, 12):
        logits, state = fast.advance(text[1:, i : i + 1], state)
        close(logits, own(text[1:, : i + 1])[:, -1:])


def test_long_text_moves_to_larger_rooms():
    own, text = model(mixer="attention heads=2"), tokens(1, 300)
    fast, expected = fused.prepare(own), own(text)
    _, state = own.advance(text[:, :1])
    rooms = set()
    for i in range(1, 300):
        logits, state = fast.advance(text[:, i : i + 1], state)
        close(logits, expected[:, i : i + 1])
        rooms.add(state["0.k"].data_ptr())
    assert len(rooms) < 10
    assert state["1.length"].tolist() == state["1.used"].tolist() == [300]


def train_by(optimizer):
    """One step by the engine, whose parameters are views of one buffer."""

    def change(own):
        weights = EngineWeights(own, optimizer)
        for _ in range(2):  # the second by the shortcut of a fused optimizer
            weights.flat.grad.fill_(0.5)
            weights.update(1.0)

    return change


def load_by_engine(own):
    weights = EngineWeights(own, SGD)
    saved = {part: {name: value + 0.1 for name, value in tensors.items()} for part, tensors in weights.tensors().items()}
    weights.load(saved)


def train_by_torch(own):
    for weight in own.parameters():
        weight.grad = torch.ones_like(weight)
    torch.optim.AdamW(own.parameters(), lr=0.1, fused=True).step()


def edit(own):
    own.stack.blocks[1].ffn.up.weight[3].mul_(-4.0)


def new_state(own):
    return {name: 0.9 * value for name, value in own.state_dict().items()}


SGD = partial(torch.optim.SGD, lr=0.1)
COUNTED = {
    "engine": train_by(SGD),
    "engine, fused": train_by(build.optimizer("adamw", lr=0.1)),
    "engine loads": load_by_engine,
    "load_state_dict": lambda own: own.load_state_dict(new_state(own)),
    "in place": edit,
    "a vector": lambda own: own.stack.blocks[0].norm.weight.mul_(2.0),
}
CHANGES = COUNTED | {
    "fused optimizer": train_by_torch,
    "assigned": lambda own: own.load_state_dict(new_state(own), assign=True),
    "data": lambda own: own.embedding.weight.data.copy_(2 * own.embedding.weight),
    "one number": lambda own: own.stack.blocks[0].mixer.qkv.weight.data[4, 5].add_(3.0),
    "moved": lambda own: [setattr(weight, "data", 0.9 * weight.data) for weight in own.parameters()],
}


def logits_after_prompt(fast, text):
    """Logits of tokens after a prompt of 5, by the program."""
    logits, state = fast.advance(text[:, :5])
    every = []
    for i in range(5, text.shape[1]):
        logits, state = fast.advance(text[:, i : i + 1], state)
        every.append(logits)
    return torch.cat(every, 1)


@pytest.mark.parametrize("weights", [None, "int8"])
@pytest.mark.parametrize("name", CHANGES)
def test_new_weights_are_used_after_the_next_prompt(name, weights):
    own, text = model(tied=True), tokens(2, 9)
    fast = fused.Fused(own, 2, weights)
    before = logits_after_prompt(fast, text)
    assert torch.equal(logits_after_prompt(fast, text), before)
    CHANGES[name](own)
    after = logits_after_prompt(fast, text)
    assert torch.equal(after, logits_after_prompt(fused.Fused(own, 2, weights), text))
    assert not torch.equal(after, before)
    assert torch.equal(logits_after_prompt(fast, text[:1]), logits_after_prompt(fused.Fused(own, 1, weights), text[:1]))


@pytest.mark.parametrize("weights", [None, "int8"])
@pytest.mark.parametrize("name", COUNTED)
def test_counted_changes_are_used_from_the_next_token(name, weights):
    own, text = model(tied=True), tokens(2, 9)
    fast = fused.Fused(own, 2, weights)
    _, state = fast.advance(text[:, :5])
    _, state = fast.advance(text[:, 5:6], state)
    old, _ = fast.advance(text[:, 6:7], state)
    COUNTED[name](own)
    expected, _ = fused.Fused(own, 2, weights).advance(text[:, 6:7], state)
    logits, _ = fast.advance(text[:, 6:7], state)
    assert torch.equal(logits, expected) and not torch.equal(logits, old)


def test_generated_texts_are_those_of_the_new_weights():
    own, prompt = model(), tokens(2, 4)
    fast = fused.prepare_quantized(own, 2)
    first = generate(fast, prompt, 12, temperature=0)
    assert torch.equal(first, generate(own, prompt, 12, temperature=0, weights="int8"))
    train_by(SGD)(own)
    second = generate(fast, prompt, 12, temperature=0)
    assert torch.equal(second, generate(own, prompt, 12, temperature=0, weights="int8")) and not torch.equal(first, second)


def test_weights_that_do_not_fit_any_more_are_told():
    own, text = model(), tokens(1, 8)
    fast = fused.prepare(own)
    logits_after_prompt(fast, text)
    own.stack.blocks[1].ffn.up = nn.Sequential(own.stack.blocks[1].ffn.up)
    for _ in range(2):
        with pytest.raises(BadInput, match="Sequential"):
            logits_after_prompt(fast, text)


def test_gradients_training_and_autocast_are_the_models_own():
    own, text = model(dropout=0.5), tokens(1, 8)
    fast = fused.prepare(own)
    _, state = fast.advance(text[:, :6])
    with torch.enable_grad():
        assert fast.advance(text[:, 6:7], state)[0].requires_grad
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert fast.advance(text[:, 6:7], state)[0].dtype == torch.bfloat16
    assert fast.train().training
    assert own.training
    assert not torch.equal(fast.advance(text[:, 6:7], state)[0], fast.advance(text[:, 6:7], state)[0])  # dropout


@pytest.mark.parametrize(("make", "why"), [
    (lambda: nn.Linear(3, 3), "Linear is not a LanguageModel"),
    (lambda: model(mixer="gla"), "mixer GLA has no operations"),
    (lambda: model(mixer="attention positions=relative"), "biases of distances"),
    (lambda: model(mixer="attention causal=false", noncausal=True), "later tokens"),
    (lambda: model(torch.bfloat16), "bfloat16"),
])  # fmt: skip
def test_what_does_not_fit_is_told(make, why):
    unfit = make()
    assert fused.prepare(unfit) is None
    assert why in fused.why_not(unfit)
    with pytest.raises(BadInput, match=why):
        fused.prepare_quantized(unfit)


def test_adapters_hooks_and_many_sequences_do_not_fit():
    own = model()
    assert fused.why_not(own, 8) == ""
    assert "1 to 8 sequences, not 9" in fused.why_not(own, 9)
    handle = own.stack.blocks[1].register_forward_hook(lambda *_: None)
    assert "hooks" in fused.why_not(own)
    handle.remove()
    own.stack.blocks[1].ffn.up = nn.Sequential(own.stack.blocks[1].ffn.up)
    assert "Sequential" in fused.why_not(own)


def test_wrong_states_are_told():
    own, text = model(**MODELS["gpt2"]), tokens(1, 3)
    fast = fused.prepare(own)
    _, state = fast.advance(text[:, :2])
    for wrong, message in (
        ({name: value for name, value in state.items() if name != "1.v"}, "lacks '1.v'"),
        ({**state, "2.k": state["1.k"]}, "unknown.*2.k"),
        ({**state, "0.k": state["0.k"][:, :2]}, "'0.k' is"),
        ({**state, "positions.seen": torch.zeros(2, dtype=torch.long)}, "positions.seen"),
        ({**state, "1.length": state["1.length"] - 1}, "have different sequence lengths"),
    ):
        with pytest.raises(BadInput, match=message):
            fast.advance(text[:, 2:], wrong)
    with pytest.raises(BadInput, match="token out of range: 37"):
        fast.advance(torch.tensor([[37]]), state)
    full = {name: torch.full_like(value, 90) if value.dtype == torch.long else value for name, value in state.items()}
    with pytest.raises(BadInput, match="91 tokens, the model takes at most 90"):
        fast.advance(text[:, 2:], full)


@pytest.mark.parametrize("name", ["groups", "gpt2", "mamba2"])
def test_bytes_are_near(name, two_threads):
    """Steps of 1/127 of the largest weight of a group: a percent or two in the logits of small layers (measured 0.5 to 2.0)."""
    own = model(**MODELS[name])
    fast, text = fused.prepare_quantized(own, 2), tokens(2, 20)
    expected = own(text)
    logits, state = fast.advance(text[:, :5])
    for i in range(5, 20):
        logits, state = fast.advance(text[:, i : i + 1], state)
        error = (logits - expected[:, i : i + 1]).square().mean().sqrt() / expected[:, i : i + 1].square().mean().sqrt()
        assert 1e-5 < error < 0.03
