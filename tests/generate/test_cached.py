"""Going on from a state gives the log-probabilities of one pass over the whole text, for every mixer in the registry."""

from __future__ import annotations

import pytest
import torch

from sonde.core import registry
from sonde.core.errors import BadInput
from sonde.generate import generate, logprobs, rank_answers, sample, score, steps
from sonde.models.language_model import LanguageModel

V, NEW = 13, 9


def model(mixer: str) -> LanguageModel:
    torch.manual_seed(3)
    network = LanguageModel(V, width=16, depth=2, mixer=mixer, ffn=2.0, positions="learned", max_positions=40, noncausal=True)
    with torch.no_grad():
        for weight in network.parameters():
            weight += 0.05 * torch.randn_like(weight)  # none is left at a special value
    torch.nn.init.normal_(network.head.weight, std=0.5)
    return network.eval()


def row(n: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(V, (n,), generator=torch.Generator().manual_seed(31 * n + seed))


@torch.no_grad()
@pytest.mark.parametrize("mixer", registry.names("nn.mixers"))
def test_cached_decoding_equals_one_pass(mixer, monkeypatch):
    one, prompts, answers = model(mixer), [row(n) for n in (5, 17, 1)], [row(n, 1) for n in (1, 6, 11)]
    if not one.causal:
        for attempt in (
            lambda: generate(one, prompts, NEW),
            lambda: score(one, prompts, answers),
            lambda: rank_answers(one, prompts, answers),
        ):
            with pytest.raises(BadInput, match="cannot continue one"):
                attempt()
        return
    monkeypatch.setattr(sample, "PIECE", 7)

    def forced(prompt: torch.Tensor, answer: torch.Tensor) -> torch.Tensor:
        every = one(torch.cat([prompt, answer]).unsqueeze(0))[0, len(prompt) - 1 : -1].log_softmax(-1)
        return every.gather(1, answer.unsqueeze(1)).squeeze(1)

    taken = list(steps(one, prompts, NEW, seed=2))
    log_probs = torch.stack([step.logprobs for step in taken], 1)
    for prompt, tokens, got in zip(prompts, torch.stack([step.tokens for step in taken], 1), log_probs, strict=True):
        torch.testing.assert_close(got, forced(prompt, tokens), atol=1e-5, rtol=0)
    log_probs = logprobs(one, prompts, answers)
    assert log_probs.shape == (3, 11)
    for prompt, answer, got in zip(prompts, answers, log_probs, strict=True):
        torch.testing.assert_close(got[: len(answer)], forced(prompt, answer), atol=1e-5, rtol=0)
        assert not got[len(answer) :].any()
    torch.testing.assert_close(score(one, prompts, answers), log_probs.sum(1))
    table = torch.stack([torch.stack([forced(prompt, answer).sum() for answer in answers]) for prompt in prompts])
    torch.testing.assert_close(rank_answers(one, prompts, answers), table, atol=5e-5, rtol=0)  # sums of up to 11 tokens
    torch.testing.assert_close(rank_answers(one, prompts, answers, mean=True), table / torch.tensor([1, 6, 11]), atol=1e-5, rtol=0)


def test_bad_input():
    one = model("gla")
    for message, attempt in {
        "2 prompts have 1 answers": lambda: score(one, [row(3), row(2)], [row(1)]),
        "an answer is empty": lambda: score(one, [row(3)], [row(0)]),
        "an answer must be a row": lambda: rank_answers(one, [row(3)], row(2)),
        "a prompt of 36 tokens and 6 new ones do not fit": lambda: score(one, [row(36)], [row(6)]),
    }.items():
        with pytest.raises(BadInput, match=message):
            attempt()
    assert score(one, [row(36)], [row(5)]).isfinite()
