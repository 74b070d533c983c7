"""The encoder-decoder: blocks as torch has them, sizes as published, decoding token by token equal to one pass."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from sonde.core.errors import BadInput
from sonde.models.encoder_decoder import EncoderDecoder
from sonde.nn.block import style_of
from sonde.nn.mixers.attention import Attention
from sonde.nn.stack import Stack

STYLES = [
    {},
    {"style": "notes", "positions": "sinusoidal"},
    {"style": "t5", "encoder": "attention causal=false positions=relative scale=1", "decoder": "attention positions=relative scale=1"},
    {"decoder": "gla", "sources": 13, "positions": "learned", "max_positions": 12, "tied": False},
]


def model(**options) -> EncoderDecoder:
    torch.manual_seed(0)
    net = EncoderDecoder(vocabulary=19, width=24, depth=2, heads=4, ffn=2.0, **options).double().eval()
    for p in net.parameters():
        nn.init.normal_(p, std=0.3)
    return net


def test_t5_base_is_as_large_as_published():
    attend = "attention heads=12 positions=relative scale=1 each=64"
    with torch.device("meta"):
        net = EncoderDecoder(32128, 768, 12, 12, 4.0, f"{attend} causal=false", attend, style="t5")
    assert sum(p.numel() for p in net.parameters()) == 222_903_552


@torch.no_grad()
@pytest.mark.parametrize("options", STYLES)
def test_decoding_equals_one_pass_and_padding_changes_nothing(options):
    net = model(**options)
    source, x = torch.randint(13, (3, 7)), torch.randint(19, (3, 9))
    lengths = torch.tensor([7, 3, 1])
    whole = net(source, x, lengths)
    state, pieces = net.begin(source, lengths), []
    for part in x.split([1, 1, 4, 3], 1):
        logits, state = net.advance(part, state)
        pieces.append(logits)
    torch.testing.assert_close(torch.cat(pieces, 1), whole, rtol=1e-9, atol=1e-9)
    for row, n in enumerate(lengths):
        torch.testing.assert_close(net(source[row : row + 1, :n], x[row : row + 1])[0], whole[row], rtol=1e-9, atol=1e-9)


@torch.no_grad()
@pytest.mark.parametrize("options", STYLES)
def test_the_future_is_hidden_and_the_source_seen(options):
    net = model(**options)
    source, x = torch.randint(13, (2, 7)), torch.randint(19, (2, 9))
    whole, other = net(source, x), x.clone()
    other[:, 5] = (other[:, 5] + 1) % 19
    logits = net(source, other)
    torch.testing.assert_close(logits[:, :5], whole[:, :5], rtol=1e-12, atol=1e-12)
    assert (logits[:, 5:] != whole[:, 5:]).any()
    source[:, -1] = (source[:, -1] + 1) % 13
    assert (net(source, x)[:, 0] != whole[:, 0]).any()


@pytest.mark.parametrize("post", [True, False])
@pytest.mark.parametrize("kind", ["encoder", "decoder"])
def test_a_block_is_torchs_layer(kind, post):
    """Outputs and the gradient of the input, with copied weights; and the published number of weights at 512 wide."""
    torch.manual_seed(1)
    style = style_of("notes") if post else style_of("gpt2")
    decoder, activation = kind == "decoder", "relu" if post else lambda x: nn.functional.gelu(x, approximate="tanh")
    layer = nn.TransformerDecoderLayer if decoder else nn.TransformerEncoderLayer
    theirs = layer(24, 4, 48, 0.0, activation, batch_first=True, norm_first=not post).double()
    for p in theirs.parameters():
        nn.init.normal_(p, std=0.4)

    def make(width: int, heads: int, ffn: float) -> Stack:
        mixer = Attention(width, heads, causal=decoder, positions="none", bias=True)
        return Stack.of([mixer], ffn, style, **({"heads": heads, "bias": True} if decoder else {}))

    mine = make(24, 4, 2.0).double()
    block = mine.blocks[0]
    block.mixer.qkv.load_state_dict({"weight": theirs.self_attn.in_proj_weight, "bias": theirs.self_attn.in_proj_bias})
    pairs = [(block.mixer.out, theirs.self_attn.out_proj), (block.norm, theirs.norm1)]
    pairs += [(block.ffn.up, theirs.linear1), (block.ffn.down, theirs.linear2), (block.ffn_norm, theirs.norm3 if decoder else theirs.norm2)]
    if decoder:
        other = theirs.multihead_attn
        for one, weight, bias in zip(
            (block.cross.q, block.cross.k, block.cross.v), other.in_proj_weight.chunk(3), other.in_proj_bias.chunk(3)
        ):
            one.load_state_dict({"weight": weight, "bias": bias})
        pairs += [(block.cross.out, other.out_proj), (block.cross_norm, theirs.norm2)]
    for one, from_ in pairs:
        one.load_state_dict(from_.state_dict())
    mine.norm = nn.Identity()
    x, context = torch.randn(2, 5, 24, dtype=torch.float64, requires_grad=True), torch.randn(2, 7, 24, dtype=torch.float64)
    output = mine(x, mine.read(context) if decoder else None)[0]
    later = torch.full((5, 5), -torch.inf, dtype=torch.float64).triu(1)
    expected = theirs(x, context, tgt_mask=later) if decoder else theirs(x)
    torch.testing.assert_close(output, expected, rtol=1e-9, atol=1e-9)
    slope = torch.randn_like(output)
    torch.testing.assert_close(*(torch.autograd.grad(y, x, slope)[0] for y in (output, expected)), rtol=1e-9, atol=1e-9)
    with torch.device("meta"):
        large = make(512, 8, 4.0)
    extra = sum(p.numel() for p in large.norm.parameters())
    assert sum(p.numel() for p in large.parameters()) - extra == (4_204_032 if decoder else 3_152_384)


def test_what_it_cannot_do_it_says():
    with pytest.raises(BadInput, match="no source to look at"):
        model().advance(torch.zeros(1, 1, dtype=torch.long), None)
    with pytest.raises(BadInput, match="mixer 'attention causal=false' looks at later tokens"):
        model(decoder="attention causal=false")
    with pytest.raises(BadInput, match="token out of range: 19"):
        model()(torch.full((1, 2), 19), torch.zeros(1, 1, dtype=torch.long))


@torch.no_grad()
def test_its_alignment_is_the_last_look_at_the_source():
    """Rows sum to 1 and are 0 on padding; on the values of the last block they give what its cross-attention gave."""
    net, lengths = model(), torch.tensor([7, 3])
    source, x = torch.randint(19, (2, 7)), torch.randint(19, (2, 5))
    alignment = net.align(source, x, lengths)
    assert alignment.shape == (2, 5, 7) and not alignment[1, :, 3:].any()
    torch.testing.assert_close(alignment.sum(-1), torch.ones(2, 5, dtype=torch.float64))
    seen, cross = [], net.decoder.blocks[-1].cross
    hook = cross.register_forward_hook(lambda _, args, out: seen.append((*args, out)))
    net(source, x, lengths)
    hook.remove()
    query, context, out = seen[0]
    q = cross.q(query).unflatten(-1, (4, 6)).transpose(1, 2)
    weights = (q @ context["k"].mT * 6**-0.5).masked_fill((torch.arange(7) >= lengths[:, None])[:, None, None], -torch.inf).softmax(-1)
    torch.testing.assert_close(cross.out((weights @ context["v"]).transpose(1, 2).flatten(2)), out)
    torch.testing.assert_close(alignment, weights.mean(1))
