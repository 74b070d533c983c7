"""Beam search finds the best text of a small model, and the texts that transformers finds."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch import Tensor

from sonde.generate import Stop, beam, generate
from sonde.models import hf
from sonde.models.language_model import LanguageModel

END = 3


def model(mixer: str = "attention", seed: int = 0, vocabulary: int = 4) -> LanguageModel:
    torch.manual_seed(seed)
    network = LanguageModel(vocabulary=vocabulary, width=16, depth=2, mixer=mixer, ffn=2.0)
    torch.nn.init.normal_(network.head.weight, std=0.5)
    return network.eval()


def prompts() -> list[Tensor]:
    return [torch.tensor([0, 1, 2, 1]), torch.tensor([2])]


@torch.no_grad()
def every(one: LanguageModel, prompt: Tensor, new: int, power: float) -> list[tuple[float, list[int]]]:
    """All texts of at most `new` tokens, best first."""
    candidates = []
    for n in range(1, new + 1):
        for text in product(range(4), repeat=n):
            if END in text[:-1] or (n < new and text[-1] != END):
                continue
            logits = one(torch.cat([prompt, torch.tensor(text)]).unsqueeze(0))[0].log_softmax(-1)
            total = sum(float(logits[len(prompt) - 1 + i, token]) for i, token in enumerate(text))
            candidates.append((total / n**power, list(text)))
    return sorted(candidates, reverse=True)


@pytest.mark.parametrize("mixer", ["attention", "mamba2"])
@pytest.mark.parametrize("power", [0.0, 1.0, 2.0, -0.5])
def test_enough_beams_find_the_best_of_all_texts(mixer, power):
    one = model(mixer)
    hypotheses = beam(one, prompts(), 3, beams=40, power=power, stop=Stop(end=END, pad=9))
    for i, prompt in enumerate(prompts()):
        want = every(one, prompt, 3, power)[:40]
        assert hypotheses.scores[i].tolist() == pytest.approx([score for score, _ in want], abs=1e-5)
        for tokens, n, (_, text) in zip(hypotheses.tokens[i].tolist(), hypotheses.lengths[i].tolist(), want, strict=True):
            assert tokens == text + [9] * (3 - len(text)) and n == len(text)


class Table:
    """Next-token probabilities by the text so far; token 0 begins, 3 ends."""

    training = False
    chances = {
        (0,): [0, 0.6, 0.4, 0],
        (0, 1): [0, 0.3, 0.3, 0.4],
        (0, 2): [0, 0.9, 0.05, 0.05],
        (0, 1, 1): [0, 0.2, 0.3, 0.5],
        (0, 1, 2): [0, 0.5, 0.2, 0.3],
        (0, 2, 1): [0, 0.04, 0.01, 0.95],
        (0, 2, 2): [0, 0.3, 0.3, 0.4],
    }

    def train(self, mode=True):
        return self

    def advance(self, tokens, state=None, *, spans=None):
        text = tokens if state is None else torch.cat([state["text"], tokens], 1)
        rows = [self.chances.get(tuple(row), [0.25] * 4) for row in text.tolist()]
        return torch.tensor(rows).log().clamp_min(-1e9).unsqueeze(1), {"text": text}


def test_two_beams_find_what_greedy_misses():
    start, stop = torch.zeros(1, 1, dtype=torch.long), Stop(end=END)
    greedy = generate(Table(), start, 3, temperature=0, stop=stop)
    one, two = (beam(Table(), start, 3, beams=n, power=0, stop=stop) for n in (1, 2))
    assert greedy.tolist() == one.tokens[:, 0].tolist() == [[1, 3]] and float(one.scores[0, 0].exp()) == pytest.approx(0.24)
    assert two.tokens[0, 0].tolist() == [2, 1, 3] and float(two.scores[0, 0].exp()) == pytest.approx(0.4 * 0.9 * 0.95)


@pytest.mark.parametrize("mixer", ["attention", "gla", "window"])
def test_one_beam_is_greedy(mixer):
    one = model(mixer)
    for stop in (Stop(), Stop(end=END)):
        for power in (0.0, 1.0):
            hypotheses = beam(one, prompts(), 9, beams=1, stop=stop, power=power)
            assert torch.equal(hypotheses.tokens[:, 0], generate(one, prompts(), 9, temperature=0, stop=stop))


@pytest.fixture(scope="module", params=["gpt2", "t5"])
def twins(request, tmp_path_factory):
    """The same random model as transformers and as ours have it."""
    import transformers as T

    if request.param == "gpt2":
        torch.manual_seed(1)
        config = T.GPT2Config(vocab_size=11, n_positions=40, n_embd=16, n_layer=2, n_head=2, initializer_range=0.6)
        theirs = T.GPT2LMHeadModel(config).eval()
    else:
        theirs = T.T5ForConditionalGeneration(T.T5Config(vocab_size=11, d_model=16, d_kv=8, d_ff=24, num_layers=2, num_heads=2)).eval()
        torch.manual_seed(2)
        with torch.no_grad():
            for weight in theirs.parameters():
                weight.normal_()
    folder = tmp_path_factory.mktemp(request.param)
    theirs.save_pretrained(folder)
    return theirs, hf.load(folder)[0].eval()


@pytest.mark.parametrize("power", [0.0, 1.0, 1.7])
@pytest.mark.parametrize("beams", [2, 3, 5])
def test_the_texts_that_transformers_finds(twins, beams, power):
    theirs, ours = twins
    rows = torch.randint(3, 11, (4, 5), generator=torch.Generator().manual_seed(0))
    pairs = theirs.config.is_encoder_decoder
    with torch.no_grad():
        starts, state = (torch.zeros(4, 1, dtype=torch.long), ours.begin(rows)) if pairs else (rows, None)
    ends = (7, 2) if pairs else (8, 4)  # tokens these models like, so that texts end at different lengths
    want = theirs.generate(
        rows,
        attention_mask=torch.ones_like(rows),
        max_new_tokens=12,
        num_beams=beams,
        num_return_sequences=beams,
        do_sample=False,
        early_stopping="never",
        length_penalty=power,
        eos_token_id=list(ends),
        pad_token_id=1,
        return_dict_in_generate=True,
        output_scores=True,
        **({"decoder_start_token_id": 0} if pairs else {}),
    )
    hypotheses = beam(ours, starts, 12, beams=beams, power=power, stop=Stop(end=ends, pad=1), state=state)
    torch.testing.assert_close(hypotheses.scores.float().flatten(), want.sequences_scores, atol=1e-4, rtol=1e-5)
    assert torch.equal(hypotheses.tokens.flatten(0, 1), want.sequences[:, starts.shape[1] :])
    assert power > 1 or len(set(hypotheses.lengths.flatten().tolist())) > 1  # some ended early, so the rule matters


def test_states_are_copied_only_where_the_order_changes(monkeypatch):
    copies = []
    pick = torch.Tensor.index_select
    monkeypatch.setattr(torch.Tensor, "index_select", lambda *words: copies.append(1) or pick(*words))
    one = model()
    beam(one, prompts()[:1], 6, beams=1)
    tensors = len(one.advance(prompts()[0].unsqueeze(0))[1])
    assert len(copies) == tensors  # the prompt's state is laid out for its beams, once
