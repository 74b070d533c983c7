"""Texts come in pieces that are never cut inside a character or a stop string, whatever the tokenizer."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sonde.core.errors import BadInput
from sonde.data.text.tokenizer import Vocabulary, train
from sonde.generate import Stop, Writer, beam, complete, generate
from sonde.generate.stop import no_text
from sonde.generate.text import decode_answer
from sonde.models.language_model import LanguageModel

BYTES = Vocabulary.of("", "byte")
NONE = torch.zeros(0, dtype=torch.long)


def pieces(writer: Writer, tokens: list[int]) -> list[str]:
    return [writer.add(token) for token in tokens] + [writer.finish()]


@given(st.text(max_size=20))
def test_pieces_of_bytes_are_whole_characters_and_make_up_the_text(text):
    parts = pieces(Writer(BYTES, NONE), list(text.encode()))
    assert "".join(parts) == text
    assert "\ufffd" in text or all("\ufffd" not in piece for piece in parts)


def test_a_character_comes_with_its_last_byte():
    assert pieces(Writer(BYTES, NONE), list("aé€😀".encode())) == ["a", "", "é", "", "", "€", "", "", "", "😀", ""]
    assert pieces(Writer(BYTES, NONE), [0xE2, 0x82]) == ["", "", "\ufffd"]  # the text ends inside one
    assert pieces(Writer(BYTES, NONE), [0xE2, 65]) == ["", "\ufffdA", ""]


@settings(max_examples=200)
@given(st.text("ab", max_size=30), st.lists(st.text("ab", min_size=1, max_size=4), max_size=3))
def test_no_part_of_a_stop_string_is_shown(text, stops):
    writer = Writer(BYTES, NONE, Stop(texts=tuple(stops), tokenizer=BYTES))
    ends = [end for end in range(len(text) + 1) if any(text[:end].endswith(stop) for stop in stops)]
    # the row ends with the first token that completes a stop string; of those it completes the longest begins first
    want = text if not ends else text[: min(text[: ends[0]].find(stop) for stop in stops if stop in text[: ends[0]])]
    parts = pieces(writer, list(text.encode()))
    assert "".join(parts) == want and writer.ended == bool(ends)
    shown = ""
    for piece in parts:
        shown += piece
        assert want.startswith(shown)


def test_what_could_be_a_stop_string_waits():
    writer = Writer(BYTES, NONE, Stop(texts="\n\n", tokenizer=BYTES))
    assert pieces(writer, list(b"a\nb\n\nc")) == ["a", "", "\nb", "", "", "", ""]
    assert pieces(Writer(BYTES, NONE, Stop(texts="\n\n", tokenizer=BYTES)), list(b"a\n")) == ["a", "", "\n"]


def test_an_end_token_is_not_shown():
    writer = Writer(BYTES, NONE, Stop(end=0))
    assert pieces(writer, [65, 0xE2, 0, 66]) == ["A", "", "\ufffd", "", ""] and writer.ended


@pytest.mark.parametrize("kind", ["char", "byte", "bpe", "unigram"])
def test_every_tokenizer_makes_up_the_same_text(kind):
    text = "the cat sat on the naïve café mat 😀 日本語"
    tokenizer = train(kind, [text, "a cat ate the hat"] * 4, size=300)
    tokens = tokenizer.encode(text).long()
    for cut in (0, 1, 4):
        parts = pieces(Writer(tokenizer, tokens[:cut]), tokens[cut:].tolist())
        assert tokenizer.decode(tokens[:cut]) + "".join(parts) == text
        assert all("\ufffd" not in piece for piece in parts)
    stop = Stop(texts="on the n", tokenizer=tokenizer)
    assert decode_answer(tokenizer, tokens[:1], tokens[1:], stop) == text[len(tokenizer.decode(tokens[:1])) :].split("on the n")[0]


def test_word_pieces_are_joined_as_in_the_whole_text():
    text = "the cat sat on the mat , a cat ate the hat"
    tokenizer = train("wordpiece", [text] * 4, size=60)
    tokens = tokenizer.encode(text).long()
    for cut in (1, 5):
        parts = pieces(Writer(tokenizer, tokens[:cut]), tokens[cut:].tolist())
        assert tokenizer.decode(tokens[:cut]) + "".join(parts) == tokenizer.decode(tokens)


def test_texts_go_on_as_their_tokens_do():
    torch.manual_seed(0)
    model = LanguageModel(vocabulary=256, width=16, depth=1, mixer="gla", ffn=0.0)
    prompts, streamed = ["héllo", "a", "the end"], []
    texts = complete(model, BYTES, prompts, 30, seed=2, stream=lambda row, piece: streamed.append((row, piece)))
    rows = generate(model, [BYTES.encode(prompt).long() for prompt in prompts], 30, seed=2)
    assert texts == [BYTES.decode(row) for row in rows]
    assert ["".join(piece for row, piece in streamed if row == i) for i in range(3)] == texts
    stop = Stop(texts=texts[1][7:9], tokenizer=BYTES)
    stopped = complete(model, BYTES, prompts, 30, seed=2, stop=stop)
    assert stopped == [text.split(texts[1][7:9])[0] for text in texts]


def test_what_the_model_never_saw_is_named():
    tokenizer = train("char", ["the cat sat"], size=99)
    model = LanguageModel(tokenizer.size, width=8, depth=1, mixer="gla")
    for prompt, message in (("the dog", "never saw 'd' of the prompt"), ("", "the prompt is empty")):
        with pytest.raises(BadInput, match=message):
            complete(model, tokenizer, ["the cat", prompt], 3)


def test_tokens_that_are_no_text_never_come():
    """A model that expects nothing but the unknown token and padding writes characters all the same."""
    tokenizer = train("char", ["the cat sat"], size=99, specials=("pad", "end"))
    barred = [tokenizer.specials[name] for name in ("unknown", "pad")]
    model = LanguageModel(tokenizer.size, width=8, depth=1, mixer="gla", tied=False)
    model.head.weight.data.zero_()
    with torch.no_grad():
        model.head.bias = torch.nn.Parameter(torch.zeros(tokenizer.size).index_fill(0, torch.tensor(barred), 9.0))
    row = tokenizer.encode("the").long()
    assert set(generate(model, [row], 20, seed=1).flatten().tolist()) <= set(barred)
    stop = Stop(barred=no_text(tokenizer))
    for how in ({"temperature": 0}, {"seed": 1}, {"seed": 1, "top_k": 2}, {"seed": 2, "top_p": 0.5}):
        tokens = generate(model, [row], 20, stop=stop, **how).flatten()
        assert len(tokens) == 20 and not torch.isin(tokens, torch.tensor(barred)).any(), how
        assert "\ufffd" not in complete(model, tokenizer, ["the", "c"], 20, **how)[0]
    hypotheses = beam(model, [row], 5, beams=3, stop=stop)
    assert not torch.isin(hypotheses.tokens, torch.tensor(barred)).any()
    # scores stay those of the model: the rest of the probability is not shared out again
    one = torch.zeros(tokenizer.size).index_fill(0, torch.tensor(barred), 9.0).log_softmax(0).min()
    torch.testing.assert_close(hypotheses.scores, one.double().expand(1, 3), rtol=1e-5, atol=1e-5)
