"""Encoder-decoders are generated from by the same functions: greedy and beam follow the logits of one pass."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from sonde.core.errors import BadInput
from sonde.generate import Stop, beam, generate, logprobs
from sonde.models.encoder_decoder import EncoderDecoder
from sonde.models.seq2seq import Seq2Seq

SOURCE = torch.tensor([[4, 2, 3, 5, 1], [3, 3, 1, 0, 0]])
LENGTHS = torch.tensor([5, 3])
START = torch.zeros(2, 1, dtype=torch.long)
V, END = 6, 5


@pytest.fixture(params=["modern", "t5", "recurrent", "feeding"])
def model(request) -> EncoderDecoder | Seq2Seq:
    torch.manual_seed(0)
    if request.param in ("modern", "t5"):
        network = EncoderDecoder(vocabulary=V, width=16, depth=2, heads=2, ffn=2.0, style=request.param).eval()
    else:
        network = Seq2Seq(vocabulary=V, width=16, depth=2, feeding=request.param == "feeding").eval()
    with torch.no_grad():
        for weight in network.parameters():
            weight += 0.3 * torch.randn_like(weight)
    return network


@torch.no_grad()
def test_greedy_and_logprobs_equal_one_pass(model):
    state = model.begin(SOURCE, LENGTHS)
    text = generate(model, START, 7, temperature=0, state=state)
    rows = START
    for _ in range(7):
        rows = torch.cat([rows, model(SOURCE, rows, LENGTHS)[:, -1:].argmax(-1)], 1)
    assert torch.equal(text, rows[:, 1:])
    want = model(SOURCE, rows[:, :-1], LENGTHS).log_softmax(-1).gather(2, text.unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(logprobs(model, START, text, state=model.begin(SOURCE, LENGTHS)), want, atol=1e-5, rtol=0)
    alone = generate(model, START[:1], 7, temperature=0, state=model.begin(SOURCE[1:, :3]))
    assert torch.equal(alone[0], text[1])


@torch.no_grad()
def test_enough_beams_find_the_best_of_all_texts(model):
    hypotheses = beam(model, START, 3, beams=V**2, state=model.begin(SOURCE, LENGTHS), stop=Stop(end=END))
    texts = [text for n in (1, 2, 3) for text in product(range(V), repeat=n) if END not in text[:-1] and (n == 3 or text[-1] == END)]
    for i in range(2):
        best = []
        for text in texts:
            row = torch.tensor([[0, *text]])
            chances = model(SOURCE[i : i + 1], row[:, :-1], LENGTHS[i : i + 1]).log_softmax(-1)[0]
            best.append((float(sum(chances[j, token] for j, token in enumerate(text))) / len(text), list(text)))
        score, text = max(best)
        assert hypotheses.tokens[i, 0, : len(text)].tolist() == text and float(hypotheses.scores[i, 0]) == pytest.approx(score, abs=1e-5)


def test_a_model_that_has_read_nothing_says_so(model):
    with pytest.raises(BadInput, match="is an encoder-decoder and needs a source.*model.begin"):
        generate(model, START, 3)
