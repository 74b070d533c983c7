"""The language model: cached decoding equals one pass for every mixer, and a Llama of the same weights agrees."""

from __future__ import annotations

import pytest
import torch

from sonde.core import registry
from sonde.core.errors import BadInput
from sonde.models.language_model import LanguageModel, begin_small, mixer_of
from sonde.nn.block import style_of
from sonde.nn.spans import Spans
from sonde.nn.stack import Stack

MIXERS = registry.names("nn.mixers")
CAUSAL = [name for name in MIXERS if mixer_of(name, 24).causal]


def model(mixer: str = "gla", **options) -> LanguageModel:
    torch.manual_seed(0)
    return LanguageModel(vocabulary=17, width=24, depth=2, mixer=mixer, ffn=2.0, **options).eval()


def tokens(rows: int, length: int) -> torch.Tensor:
    return torch.randint(17, (rows, length), generator=torch.Generator().manual_seed(5))


@torch.no_grad()
@pytest.mark.parametrize("name", CAUSAL)
def test_cached_decoding_equals_one_pass(name):
    one, x = model(name), tokens(3, 21)
    log_probs = one(x).log_softmax(-1)
    state, pieces = None, []
    for part in x.split([1, 1, 7, 1, 11], 1):
        logits, state = one.advance(part, state)
        pieces.append(logits.log_softmax(-1))
    torch.testing.assert_close(torch.cat(pieces, 1), log_probs, rtol=0, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("name", CAUSAL)
def test_rows_of_different_lengths_equal_each_alone(name):
    one, x, lengths = model(name), tokens(3, 11), torch.tensor([4, 11, 1])
    logits, state = one.advance(x, spans=Spans.of_lengths(lengths))
    after, _ = one.advance(x[:, :2], state)
    for row, n in enumerate(lengths):
        alone, its = one.advance(x[row : row + 1, :n])
        torch.testing.assert_close(logits[row, :n], alone[0], rtol=0, atol=1e-5)
        torch.testing.assert_close(after[row], one.advance(x[row : row + 1, :2], its)[0][0], rtol=0, atol=1e-5)


@torch.no_grad()
def test_a_llama_of_the_same_weights_agrees():
    from transformers import LlamaConfig, LlamaForCausalLM

    ours = LanguageModel(vocabulary=19, width=24, depth=2, mixer="attention heads=3", ffn=3.0).eval()
    for p in ours.parameters():
        torch.nn.init.normal_(p, std=0.3)
    theirs = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=19, hidden_size=24, intermediate_size=48, num_hidden_layers=2, num_attention_heads=3, rms_norm_eps=1e-5,
            tie_word_embeddings=False, max_position_embeddings=64,
        )
    ).eval()  # fmt: skip
    theirs.model.embed_tokens.weight.copy_(ours.embedding.weight * 24**0.5)
    theirs.lm_head.weight.copy_(ours.head.weight)
    theirs.model.norm.weight.copy_(ours.stack.norm.weight)
    for mine, other in zip(ours.stack.blocks, theirs.model.layers, strict=True):
        pairs = [(mine.norm, other.input_layernorm), (mine.ffn_norm, other.post_attention_layernorm)]
        pairs += [(mine.mixer.out, other.self_attn.o_proj)]
        pairs += [(getattr(mine.ffn, name), getattr(other.mlp, f"{name}_proj")) for name in ("gate", "up", "down")]
        for from_, to in pairs:
            to.weight.copy_(from_.weight)
        for name, rows in zip("qkv", mine.mixer.qkv.weight.chunk(3), strict=True):
            getattr(other.self_attn, f"{name}_proj").weight.copy_(rows)
    x = torch.randint(19, (2, 13))
    torch.testing.assert_close(ours(x), theirs(x).logits, rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_tied_weights_serve_both_ends():
    one = model(tied=True)
    assert one.head is None and sum(p.numel() for p in model().parameters()) - sum(p.numel() for p in one.parameters()) == 17 * 24
    hidden = []
    one.stack.norm.register_forward_hook(lambda module, inputs, output: hidden.append(output))
    logits = one(tokens(2, 5))
    torch.testing.assert_close(logits, hidden[0] @ one.embedding.weight.T)


@torch.no_grad()
def test_positions_are_counted_from_the_start_of_each_sequence():
    one, x = model("linear", positions="learned", max_positions=12), tokens(2, 12)
    swapped = x.clone()
    swapped[:, [0, 1]] = x[:, [1, 0]]
    assert not torch.allclose(one(x)[:, -1], one(swapped)[:, -1], atol=1e-3)
    packed = one(x.view(1, -1), spans=Spans.of_bounds(torch.tensor([0, 12, 24])))
    torch.testing.assert_close(packed.view(2, 12, 17), one(x), rtol=0, atol=1e-5)
    _, state = one.advance(x[:, :9])
    torch.testing.assert_close(one.advance(x[:, 9:], state)[0], one(x)[:, 9:], rtol=0, atol=1e-5)
    with pytest.raises(BadInput, match="13 tokens, the model takes at most 12"):
        one.advance(tokens(2, 4), state)
    with pytest.raises(BadInput, match="takes at most 12"):
        one(tokens(2, 13))


def test_mixers_that_look_ahead_are_refused_unless_asked_for():
    with pytest.raises(BadInput, match="would see the token it has to predict"):
        model("attention causal=false")
    one = model("attention causal=false", noncausal=True)
    assert not one.causal
    with pytest.raises(BadInput, match="cannot be advanced token by token"):
        one.advance(tokens(1, 3))


def test_options_follow_the_name_of_a_mixer():
    layer = mixer_of("gla heads=2 rank=3", 24)
    assert layer.heads == 2 and layer.forget[0].out_features == 3
    for text, message in {
        "gla heads": "'heads' after mixer 'gla' is not an option",
        "gla head=2": "did you mean 'heads'",
        "atention": "did you mean 'attention'",
        "": "no mixer ''",
        "gla heads=two": "must be a whole number",
    }.items():
        with pytest.raises(BadInput, match=message):
            mixer_of(text, 24)


def test_tokens_must_be_rows_of_whole_numbers():
    with pytest.raises(BadInput, match="whole numbers"):
        model()(torch.rand(2, 5))
    with pytest.raises(BadInput, match="batch, time"):
        model()(tokens(2, 5)[0])
    for wrong in (tokens(2, 5) > 3, tokens(2, 5).to(torch.uint8), tokens(2, 0)):
        with pytest.raises(BadInput, match="whole numbers"):
            model()(wrong)
    for token in (17, -1):
        with pytest.raises(BadInput, match=f"token out of range: {token} .*; give numbers from 0 to 16"):
            model()(torch.tensor([[3, token, 5]]))


@torch.no_grad()
def test_the_state_of_another_model_is_refused_by_name():
    one = model(positions="learned", max_positions=9)
    _, state = one.advance(tokens(2, 3))
    for wrong_state, message in {
        "one block": (
            {key: s for key, s in state.items() if not key.startswith("1.")},
            "the state does not match the model: it lacks '1' ",
        ),
        "no positions": ({key: s for key, s in state.items() if key != "positions.seen"}, "it lacks 'positions' "),
        "three blocks": (state | {"2.S0": state["1.S0"]}, "it has unknown '2' "),
        "bogus": ({"bogus": tokens(2, 3)}, "it lacks '0', '1', 'positions' and has unknown 'bogus' "),
        "other mixers": (
            {"positions.seen": state["positions.seen"], "0.k": state["0.S0"], "1.k": state["1.S0"]},
            "state holds 'k'; GLA keeps 'S0'",
        ),
    }.values():
        with pytest.raises(BadInput, match=message):
            one.advance(tokens(2, 1), wrong_state)


def test_compiled_it_is_one_graph():
    one, x = model(), tokens(2, 7)
    torch.testing.assert_close(torch.compile(one, fullgraph=True, backend="aot_eager")(x), one(x))


@pytest.mark.parametrize("style", ["modern", "gpt2"])
def test_mixers_with_first_weights_of_their_own_keep_them(style):
    """A style says how attention and networks begin; a forget gate that remembers and a rotation stay what they are."""
    torch.manual_seed(0)
    forget = LanguageModel(17, 24, 1, "lstm memory=50", style=style).stack.blocks[0].mixer.x.bias[24:48]
    assert float(forget.detach().min()) >= 0 and float(forget.detach().mean()) > 2
    turn = LanguageModel(17, 24, 1, "rnn", style=style).stack.blocks[0].mixer.h.weight
    torch.testing.assert_close(turn @ turn.mT, torch.eye(24), atol=1e-5, rtol=0)
    for name in ("gla heads=2", "mamba2 heads=2"):
        torch.manual_seed(1)
        alone = mixer_of(name, 24).state_dict()
        torch.manual_seed(1)
        layer = mixer_of(name, 24)
        begin_small(Stack.of([layer], 2.0, style_of(style)))
        assert all(torch.equal(value, alone[key]) for key, value in layer.state_dict().items())


def test_small_first_weights_are_those_of_gpt2():
    torch.manual_seed(0)
    stack = LanguageModel(17, 64, 3, "attention bias=true", style="gpt2").stack
    for block in stack.blocks:
        for part in (block.mixer.qkv, block.ffn.up):
            assert abs(float(part.weight.detach().std()) - 0.02) < 0.001 and not part.bias.any()
        for part in (block.mixer.out, block.ffn.down):
            assert abs(float(part.weight.detach().std()) - 0.02 / 6**0.5) < 0.001 and not part.bias.any()


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("style", ["t5", "llama"])
def test_logits_of_tied_embeddings_are_divided_where_the_style_says_so(style, tied):
    one, y = model("attention heads=2", style=style, tied=tied), torch.randn(2, 3, 24)
    table = one.embedding.weight if tied else one.head.weight
    torch.testing.assert_close(one.logits(y), y @ table.mT / (24**0.5 if tied and style == "t5" else 1))
