"""Generation: what is drawn follows the model's own one-pass probabilities, and the memory of a recurrence does not grow."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from sonde.core.errors import BadInput, NumericalStop
from sonde.generate import Stop, generate, steps
from sonde.generate import sample as module
from sonde.models.language_model import LanguageModel


def model(mixer: str = "gla", **options) -> LanguageModel:
    torch.manual_seed(0)
    network = LanguageModel(vocabulary=13, width=16, depth=2, mixer=mixer, ffn=2.0, **options)
    torch.nn.init.normal_(network.head.weight, std=0.5)  # so that some tokens are far likelier than others
    return network.eval()


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
    one = model(mixer, **({"positions": "learned", "max_positions": 20} if mixer == "linear" else {}))
    together = generate(one, prompts(), 5, temperature=0)
    monkeypatch.setattr(module, "PIECE", 512)
    for row, start in zip(together, prompts(), strict=True):
        assert torch.equal(row, generate(one, start.unsqueeze(0), 5, temperature=0)[0])


def test_the_seed_decides_and_tokens_are_told_as_they_come():
    one, streamed = model(), []
    first = generate(one, prompts(), 12, seed=3, stream=lambda tokens: streamed.append(tokens.clone()))
    assert torch.equal(first, torch.stack(streamed, 1)) and first.shape == (3, 12)
    assert torch.equal(first, generate(one, prompts(), 12, seed=3)) and not torch.equal(first, generate(one, prompts(), 12, seed=4))
    assert generate(one, prompts(), 0).shape == (3, 0)


def test_a_row_draws_the_same_alone_and_among_others():
    one, rows = model(), prompts()
    together = generate(one, [*rows, rows[1]], 80, seed=5, top_p=0.95)
    for i, row in enumerate(rows):
        assert torch.equal(generate(one, [row], 80, seed=5, top_p=0.95)[0], together[i])
    assert not torch.equal(together[1], together[3])  # equal prompts draw different texts


def test_a_state_is_gone_on_from():
    one, row = model(), prompts()[1].unsqueeze(0)
    state = one.advance(row[:, :4])[1]
    assert torch.equal(generate(one, row[:, 4:], 6, temperature=0, state=state), generate(one, row, 6, temperature=0))


def test_rows_end_at_an_end_token_and_emit_pad_until_all_have():
    one = model()
    free = generate(one, prompts(), 60, seed=1)
    ends = [row.index(7) for row in free.tolist()]
    assert len(set(ends)) == 3
    stopped = generate(one, prompts(), 60, seed=1, stop=Stop(end=7, pad=12))
    assert stopped.shape == (3, max(ends) + 1)
    for row, want, end in zip(stopped.tolist(), free.tolist(), ends, strict=True):
        assert row == want[: end + 1] + [12] * (max(ends) - end)
    either = generate(one, prompts(), 60, seed=1, stop=Stop(end=(7, 3)))
    assert either.shape[1] == max(min(row.index(7), [*row, 3].index(3)) for row in free.tolist()) + 1


def test_stop_strings_end_a_row_with_the_token_that_completes_them():
    class Letters:
        def encode(self, text):
            return torch.tensor([ord(char) - 97 for char in text])

        def decode(self, tokens):
            return "".join(chr(97 + token) for token in tokens.tolist())

    one, letters = model(), Letters()
    text = letters.decode(generate(one, prompts(), 60, seed=1)[0])
    expected = text[20:23]
    stopped = generate(one, prompts()[:1], 60, seed=1, stop=Stop(texts=(expected, "zz"), tokenizer=letters))
    assert letters.decode(stopped[0]) == text[: text.index(expected) + 3]


@torch.no_grad()
def test_logprobs_are_the_models_own_whatever_the_filters():
    one, rows = model(), prompts()
    stop = Stop(end=7)
    taken = list(steps(one, rows, 20, seed=1, temperature=0.7, top_k=5, repetition=1.3, stop=stop))
    tokens, log_probs = torch.stack([s.tokens for s in taken], 1), torch.stack([s.logprobs for s in taken], 1)
    assert torch.equal(tokens, generate(one, rows, 20, seed=1, temperature=0.7, top_k=5, repetition=1.3, stop=stop))
    for row, new, got in zip(rows, tokens, log_probs, strict=True):
        n = [*new.tolist(), 7].index(7) + 1
        n = min(n, len(new))
        every = one(torch.cat([row, new]).unsqueeze(0))[0].log_softmax(-1)
        want = [float(every[len(row) - 1 + i, new[i]]) for i in range(n)]
        assert got[:n].tolist() == pytest.approx(want, abs=1e-5) and not got[n:].any()


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
    features = one.features  # what every way into the model goes through

    def watched(tokens, state=None, *, spans=None):
        logits, after = features(tokens, state, spans=spans)
        sizes.add(tuple(sorted((name, tuple(s.shape), s.untyped_storage().nbytes()) for name, s in after.items() if name.endswith("S0"))))
        sizes.add(tuple(sorted((name, tuple(s.shape), 0) for name, s in after.items() if not name.endswith("S0"))))
        widest.append(tokens.shape[1])
        return logits, after

    monkeypatch.setattr(one, "features", watched)
    generate(one, torch.randint(13, (1, 10_000)), 300)
    assert len(sizes) <= 2 and max(widest) == module.PIECE and len(widest) == 20 + 299


def test_bad_settings():
    for settings, message in (
        ({"temperature": -1.0}, "'temperature' of generate must be >= 0"),
        ({"temperature": float("nan")}, "finite"),
        ({"top_k": 0}, "must be >= 1"),
        ({"top_p": 0.0}, "> 0"),
        ({"min_p": 1.5}, "<= 1"),
        ({"repetition": 0.0}, "> 0"),
        ({"temprature": 1.0}, "did you mean 'temperature'"),
    ):
        with pytest.raises(BadInput, match=message):
            generate(model(), prompts(), 2, **settings)
    for wrong in (prompts()[0], prompts()[0][0].view(1), [3, 1], [prompts()[0].unsqueeze(0)]):
        with pytest.raises(BadInput, match="a prompt must be a row of tokens"):
            generate(model(), wrong, 2)
    with pytest.raises(BadInput, match="'new' of generate must be >= 0, not -1"):
        generate(model(), prompts(), -1)
    with pytest.raises(BadInput, match="token out of range: 13"):
        generate(model(), torch.tensor([[13]]), 2)
    with pytest.raises(BadInput, match="a prompt is empty"):
        generate(model(), torch.zeros(2, 0, dtype=torch.long), 2)
    with pytest.raises(BadInput, match="a prompt is empty"):
        generate(model(), [], 2)
    with pytest.raises(BadInput, match="stop strings need a tokenizer"):
        Stop(texts="a")
    with pytest.raises(BadInput, match="a stop string is empty"):
        Stop(texts=("",))


def test_models_that_cannot_go_on_say_so():
    for encoder in (model("attention causal=false", noncausal=True), nn.Linear(3, 3)):
        with pytest.raises(BadInput, match="can read a text but cannot continue one"):
            generate(encoder, prompts(), 2)


def test_a_context_that_is_too_short_is_told_before_anything_is_generated():
    one, streamed = model("attention", positions="learned", max_positions=10), []
    fits = generate(one, prompts(), 2, stream=streamed.append)  # 9 + 1: the last token is never read
    assert fits.shape == (3, 2)
    streamed.clear()
    with pytest.raises(BadInput, match="a prompt of 9 tokens and 3 new ones do not fit into the model's context of 10 tokens"):
        generate(one, prompts(), 3, stream=streamed.append)
    with pytest.raises(BadInput, match="a prompt of 11 tokens does not fit into the model's context of 10 tokens"):
        generate(one, torch.zeros(1, 11, dtype=torch.long), 3, stream=streamed.append)
    state = one.advance(prompts()[1].unsqueeze(0))[1]
    with pytest.raises(BadInput, match="a prompt of 11 tokens does not fit"):
        generate(one, torch.zeros(1, 2, dtype=torch.long), 3, state=state, stream=streamed.append)
    assert not streamed
    assert generate(model("attention", positions="sinusoidal", max_positions=10), prompts(), 30).shape == (3, 30)


def test_logits_that_are_no_numbers_stop_it():
    one = model()
    nn.init.constant_(one.head.weight, float("nan"))
    for temperature in (0, 1):
        with pytest.raises(NumericalStop, match="not numbers"):
            generate(one, prompts(), 2, temperature=temperature)
