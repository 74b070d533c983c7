"""Generation: what is drawn follows the model's own one-pass probabilities, and the memory of a recurrence does not grow."""

from __future__ import annotations

import pytest
import torch

from sonde.core.errors import BadInput
from sonde.core.seeds import generator
from sonde.generate import choose, generate
from sonde.generate import sample as module
from sonde.models.language_model import LanguageModel


def model(mixer: str = "gla", **options) -> LanguageModel:
    torch.manual_seed(0)
    made = LanguageModel(vocabulary=13, width=16, depth=2, mixer=mixer, ffn=2.0, **options)
    torch.nn.init.normal_(made.head.weight, std=0.5)  # so that some tokens are far likelier than others
    return made.eval()


def prompts() -> list[torch.Tensor]:
    return [torch.randint(13, (n,), generator=torch.Generator().manual_seed(n)) for n in (3, 9, 1)]


@torch.no_grad()
@pytest.mark.parametrize("mixer", ["gla", "mamba", "attention"])
def test_greedy_takes_the_likeliest_of_one_pass(mixer):
    one, start = model(mixer), prompts()[1]
    row = start
    for _ in range(8):
        row = torch.cat([row, one(row.unsqueeze(0))[:, -1].argmax(-1)])
    assert generate(one, start.unsqueeze(0), 8, temperature=0)[0].tolist() == row[9:].tolist()


@pytest.mark.parametrize("mixer", ["gla", "mamba", "attention", "linear"])
@pytest.mark.parametrize("piece", [2, 4, 512])
def test_prompts_of_different_lengths_equal_each_alone(mixer, piece, monkeypatch):
    monkeypatch.setattr(module, "PIECE", piece)
    one = model(mixer, places=20 if mixer == "linear" else None)
    together = generate(one, prompts(), 5, temperature=0)
    monkeypatch.setattr(module, "PIECE", 512)
    for row, start in zip(together, prompts(), strict=True):
        assert torch.equal(row, generate(one, start.unsqueeze(0), 5, temperature=0)[0])


def test_draws_follow_the_probabilities():
    logits = torch.tensor([[0.5, -1.0, 2.0, 0.0]])
    dice, n = generator(0, "test"), 20_000
    for temperature, top_k, scores in ((1.0, None, logits), (0.5, None, 2 * logits), (1.0, 2, torch.tensor([[0.5, -1e9, 2.0, -1e9]]))):
        drawn = choose(logits.expand(n, -1), dice, temperature, top_k)
        want = (scores.double().exp() / scores.double().exp().sum()).flatten()
        share = torch.bincount(drawn, minlength=4) / n
        assert (share - want).abs().max() < 4 * (0.25 / n) ** 0.5  # four deviations of a share
        assert share[want == 0].sum() == 0


def test_the_seed_decides_and_tokens_are_told_as_they_come():
    one, told = model(), []
    first = generate(one, prompts(), 12, seed=3, stream=lambda tokens: told.append(tokens.clone()))
    assert torch.equal(first, torch.stack(told, 1)) and first.shape == (3, 12)
    assert torch.equal(first, generate(one, prompts(), 12, seed=3)) and not torch.equal(first, generate(one, prompts(), 12, seed=4))


def test_the_mode_of_the_model_is_put_back():
    one = model(dropout=0.5).train()
    assert torch.equal(generate(one, prompts(), 4, temperature=0), generate(one, prompts(), 4, temperature=0))
    assert one.training
    with pytest.raises(BadInput):
        generate(one, [torch.zeros(0, dtype=torch.long)], 4)
    assert one.training


@pytest.mark.parametrize("mixer", ["gla", "mamba", "gated_deltanet"])
def test_a_recurrence_needs_no_memory_for_what_came_before(mixer, monkeypatch):
    """Ten thousand tokens of prompt in pieces and some more one by one: no state ever grows, no call sees more than a piece."""
    one, sizes, widest = LanguageModel(vocabulary=13, width=8, depth=1, mixer=mixer, ffn=0.0).eval(), set(), []
    advance = one.advance

    def watched(tokens, state=None, *, spans=None):
        logits, after = advance(tokens, state, spans=spans)
        sizes.add(tuple(sorted((name, tuple(s.shape), s.untyped_storage().nbytes()) for name, s in after.items() if name.endswith("S0"))))
        sizes.add(tuple(sorted((name, tuple(s.shape), 0) for name, s in after.items() if not name.endswith("S0"))))
        widest.append(tokens.shape[1])
        return logits, after

    monkeypatch.setattr(one, "advance", watched)
    generate(one, torch.randint(13, (1, 10_000)), 300)
    assert len(sizes) <= 2 and max(widest) == module.PIECE and len(widest) == 20 + 299


def test_bad_settings():
    for settings in ({"temperature": -1.0}, {"temperature": float("nan")}, {"temperature": float("inf")}, {"top_k": 0}):
        with pytest.raises(BadInput, match="temperature >= 0 and top_k >= 1"):
            generate(model(), prompts(), 2, **settings)
    for wrong in (prompts()[0], prompts()[0][0], [3, 1], [prompts()[0].unsqueeze(0)]):
        with pytest.raises(BadInput, match="a prompt is one row of tokens"):
            generate(model(), wrong, 2)
    with pytest.raises(BadInput, match="-1 new tokens cannot be"):
        generate(model(), prompts(), -1)
    with pytest.raises(BadInput, match="there is a token 13"):
        generate(model(), torch.tensor([[13]]), 2)
    with pytest.raises(BadInput, match="a prompt is empty"):
        generate(model(), torch.zeros(2, 0, dtype=torch.long), 2)
    with pytest.raises(BadInput, match="cannot go on"):
        generate(model("attention causal=false", ahead=True), prompts(), 2)
