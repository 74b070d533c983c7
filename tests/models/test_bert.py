"""BERT is a sum of its published parts, as large as published, and looks both ways."""

from __future__ import annotations

import torch

from sonde.models.bert import Bert


def count(**options) -> int:
    with torch.device("meta"):
        return sum(p.numel() for p in Bert(**options).parameters())


def test_published_sizes():
    heads = lambda d, v: d * d + d + 2 * d + v + 2 * d + 2  # noqa: E731  the two heads, without the tied embeddings
    assert count() - heads(768, 30522) == 109_482_240
    large = count(width=1024, depth=24, mixer="attention heads=16")
    assert large == 336_226_108 and large - heads(1024, 30522) == 335_141_888


def test_every_output_sees_later_tokens_and_never_padding():
    torch.manual_seed(0)
    model = Bert(31, 24, 2, "attention heads=3", max_positions=11).eval()
    x = torch.randint(31, (2, 9))
    out, lengths = model(x), torch.tensor([9, 5])
    other = x.clone()
    other[:, 8] = (other[:, 8] + 1) % 31
    assert (model(other)["tokens"][:, 0] != out["tokens"][:, 0]).any()
    padded, alone = model(x, None, lengths), model(x[1:, :5])
    torch.testing.assert_close(padded["tokens"][1, :5], alone["tokens"][0])
    torch.testing.assert_close(padded["pair"][1], alone["pair"][0])
    kinds = torch.zeros_like(x)
    torch.testing.assert_close(model(x, kinds)["pair"], out["pair"])
    kinds[:, 4:] = 1
    assert not torch.allclose(model(x, kinds)["pair"], out["pair"])
