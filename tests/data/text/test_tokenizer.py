"""Tokenizers: exact round trips, the same tokens as the `tokenizers` package, the same tokenizer every time it is trained."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from sonde.core.errors import BadInput, DataUnusable, SondeError
from sonde.data.text import tokenizer as t

ROOT = Path(__file__).parents[3]
TEXTS = [
    f"The {a} {b} sat on the {c}, and purred.\nIt was {a}; it wasn't {b}!  Two  spaces."
    for a in ("small", "large", "red")
    for b in ("cat", "catfish", "dog")
    for c in ("mat", "matter", "roof")
]
SPECIALS = ("pad", "unknown", "start", "end", "mask", "sep", "cls", "sentinel 0", "sentinel 1")
SIZES = {"byte": 0, "char": 0, "words": 60, "bpe": 320, "wordpiece": 120, "unigram": 90}
TRAINED = {kind: t.train(kind, TEXTS, size, SPECIALS) for kind, size in SIZES.items()}
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)


@pytest.mark.parametrize("kind", ["byte", "bpe"])
@settings(max_examples=60, deadline=None)
@given(text=texts)
def test_any_text_comes_back_from_bytes_and_byte_level_bpe(kind: str, text: str) -> None:
    assert TRAINED[kind].decode(TRAINED[kind].encode(text)) == text


@pytest.mark.parametrize("kind", ["char", "byte", "bpe", "unigram"])
def test_the_text_learned_from_comes_back(kind: str) -> None:
    whole = "\n".join(TEXTS)
    assert TRAINED[kind].decode(TRAINED[kind].encode(whole)) == whole


@pytest.mark.parametrize("kind", SIZES)
@settings(max_examples=40, deadline=None)
@given(many=st.lists(st.one_of(texts, st.sampled_from(TEXTS)), max_size=5))
def test_many_at_once_equal_one_by_one(kind: str, many: list[str]) -> None:
    values, bounds = TRAINED[kind].encode_all(many)
    assert len(bounds) == len(many) + 1 and int(bounds[-1]) == len(values)
    for i, text in enumerate(many):
        assert torch.equal(values[bounds[i] : bounds[i + 1]], TRAINED[kind].encode(text))


@pytest.mark.parametrize("kind", ["words", "bpe", "wordpiece", "unigram"])
@settings(max_examples=60, deadline=None)
@given(
    parts=st.lists(st.sampled_from(["cat", " ", "  ", "\n", "wasn't", "é", ",", "12", "\t", " a b", "<pad>", "\u00a0", "▁"]), max_size=40)
)
def test_a_text_cut_into_pieces_has_the_same_tokens(kind: str, parts: list[str]) -> None:
    text, tokenizer = "".join(parts), TRAINED[kind]
    theirs = Tokenizer.from_str(tokenizer.to_json())
    theirs.encode_special_tokens = True
    assert tokenizer._cuts
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(t, "PIECE", 3)
        assert tokenizer.encode(text).tolist() == theirs.encode(text, add_special_tokens=False).ids


def test_a_tokenizer_that_may_not_be_cut_is_not() -> None:
    for normal, split in (
        (None, pre_tokenizers.Metaspace()),
        (None, pre_tokenizers.ByteLevel(add_prefix_space=True)),
        (normalizers.Prepend("_"), pre_tokenizers.Whitespace()),
        (None, pre_tokenizers.Split("\n", "isolated")),
        (None, None),
    ):
        theirs = Tokenizer(models.BPE())
        theirs.normalizer, theirs.pre_tokenizer = normal, split
        assert not t.Subwords(theirs)._cuts


@pytest.mark.parametrize("kind", SIZES)
def test_saved_and_loaded_it_is_the_same(kind: str, tmp_path: Path) -> None:
    tokenizer = TRAINED[kind]
    t.save(tokenizer, tmp_path / "tokenizer.json")
    again = t.load(tmp_path / "tokenizer.json")
    assert type(again) is type(tokenizer) and again.level == tokenizer.level == (kind if kind != "wordlevel" else "words")
    assert again.tokens == tokenizer.tokens and again.specials == tokenizer.specials and again.to_json() == tokenizer.to_json()
    assert torch.equal(again.encode(TEXTS[5]), tokenizer.encode(TEXTS[5]))
    assert torch.equal(pickle.loads(pickle.dumps(tokenizer)).encode(TEXTS[5]), tokenizer.encode(TEXTS[5]))
    theirs = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert theirs.encode(TEXTS[5], add_special_tokens=False).ids == tokenizer.encode(TEXTS[5]).tolist()
    assert theirs.decode(theirs.encode(TEXTS[5], add_special_tokens=False).ids) == tokenizer.decode(tokenizer.encode(TEXTS[5]))
    assert theirs.get_vocab_size() == tokenizer.size


def test_training_gives_the_same_numbers_in_every_process() -> None:
    code = "from tests.data.text.test_tokenizer import TRAINED; print([one.to_json() for one in TRAINED.values()])"
    other = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert other == f"{[one.to_json() for one in TRAINED.values()]}\n"


@pytest.mark.parametrize("kind", SIZES)
def test_special_tokens_have_names_and_never_come_from_text(kind: str) -> None:
    trained = TRAINED[kind]
    wanted = set(SPECIALS) - ({"unknown"} if kind in ("bpe",) else set())
    assert set(trained.specials) == wanted and len(set(trained.specials.values())) == len(wanted)
    mask_token = trained.tokens[trained.specials["mask"]]
    assert trained.specials["mask"] not in trained.encode(f"a {mask_token} b").tolist()
    row = t.encode_marked(trained, f"cat {mask_token} dog")
    assert int((row == trained.specials["mask"]).sum()) == 1 and mask_token in trained.decode(row)
    ends = torch.tensor([trained.specials["start"], *trained.encode("cat").tolist(), trained.specials["end"], trained.specials["pad"]])
    assert trained.decode(ends) == "cat"
    assert t.sentinels(trained).tolist() == [trained.specials["sentinel 0"], trained.specials["sentinel 1"]]


def test_words_and_wordpieces_are_those_of_the_formula() -> None:
    words, pieces = TRAINED["words"], TRAINED["wordpiece"]
    assert words.decode(words.encode("the cat wasn't there")) == "the cat wasn ' t <unk>"
    vocabulary = {token: i for i, token in enumerate(pieces.tokens)}

    def greedy(word: str) -> list[int]:  # longest match first, from the left
        tokens, at = [], 0
        while at < len(word):
            stop = next((s for s in range(len(word), at, -1) if ("##" if at else "") + word[at:s] in vocabulary), None)
            if stop is None:
                return [vocabulary["[UNK]"]]
            tokens.append(vocabulary[("##" if at else "") + word[at:stop]])
            at = stop
        return tokens

    for word in ("catfish", "matters", "purring", "zebra", "smalldog"):
        assert pieces.encode(word.upper()).tolist() == greedy(word)


@pytest.mark.parametrize("kind", SIZES)
def test_nothing_and_one_token(kind: str) -> None:
    tokenizer = TRAINED[kind]
    assert len(tokenizer.encode("")) == 0 and tokenizer.decode(tokenizer.encode("")) == ""
    values, bounds = tokenizer.encode_all([])
    assert len(values) == 0 and bounds.tolist() == [0]
    assert tokenizer.encode_all(["", "a", ""])[1].tolist() == [0, 0, 1, 1]
    with pytest.raises(BadInput, match=f"token {tokenizer.size} is not one of the {tokenizer.size}"):
        tokenizer.decode(torch.tensor([tokenizer.size]))


@pytest.mark.parametrize("kind", SIZES)
def test_what_is_no_character_is_refused(kind: str) -> None:
    """Python reads the byte 0xff of a command line as half of a surrogate pair, which UTF-8 has no place for."""
    trained = TRAINED[kind]
    calls = [
        lambda: trained.encode("the \udcff"),
        lambda: trained.encode_all(["the", "\ud800"]),
        lambda: t.encode_marked(trained, "<pad>\udcff"),
    ]
    if kind != "byte":  # which learns nothing from text
        calls.append(lambda: t.train(kind, [*TEXTS, "a \udcff"], SIZES[kind], SPECIALS))
    for call in calls:
        with pytest.raises(BadInput, match=r"the text holds '\\ud(cff|800)', which is not a character"):
            call()


def test_bytes_without_special_tokens_know_their_own() -> None:
    tokenizer = t.train("byte", [], specials=())
    assert tokenizer.decode(tokenizer.encode("naïve")) == "naïve" and tokenizer.decode(torch.zeros(0, dtype=torch.long)) == ""
    for token in (300, -1):
        with pytest.raises(BadInput, match=f"token {token} is not one of the 256"):
            tokenizer.decode(torch.tensor([token]))


def test_wrong_asks_are_answered() -> None:
    for call, message in (
        (lambda: t.train("bep", TEXTS), "not 'bep'; did you mean 'bpe'"),
        (lambda: t.train("bpe", TEXTS, 10), "needs 260 tokens or more, not 10"),
        (lambda: t.train("wordpiece", TEXTS, 20), "different letters need"),
        (lambda: t.train("char", TEXTS, specials=("begin",)), "no special token 'begin'"),
        (lambda: t.special(t.Vocabulary.of("ab", "char"), "mask"), "no special token 'mask'; it has unknown"),
        (lambda: t.sentinels(t.Vocabulary.of("ab", "byte")), "it has none"),
        (lambda: t.check_fits(TRAINED["bpe"], 300, "model.embedding"), "has 320 tokens, the model knows 300 .model.embedding."),
    ):
        with pytest.raises(BadInput, match=message):
            call()


GOOD = TRAINED["bpe"].to_json().encode()


@settings(max_examples=40, deadline=None)
@given(where=st.integers(0, len(GOOD) - 1), what=st.binary(max_size=5), cut=st.booleans())
def test_a_file_that_is_no_tokenizer_is_an_error_of_ours(
    tmp_path_factory: pytest.TempPathFactory, where: int, what: bytes, cut: bool
) -> None:
    path = tmp_path_factory.mktemp("json") / "tokenizer.json"
    path.write_bytes(GOOD[:where] + what + (b"" if cut else GOOD[where + len(what) :]))
    try:
        tokenizer = t.load(path)
    except SondeError as error:
        assert isinstance(error, DataUnusable) and "tokenizer.json" in str(error)
    else:
        assert isinstance(tokenizer.encode("cat"), torch.Tensor)


@pytest.mark.parametrize("text", ["", "[]", "{}", "null", '{"model": {}}', "[" * 5000, json.dumps({"model": {"type": "BPE"}})])
def test_other_json_is_no_tokenizer(tmp_path: Path, text: str) -> None:
    (tmp_path / "tokenizer.json").write_text(text)
    with pytest.raises(DataUnusable, match="'tokenizer.json' is not a tokenizer.json"):
        t.load(tmp_path / "tokenizer.json")
    with pytest.raises(DataUnusable, match="'none.json' is not a tokenizer.json: No such file"):
        t.load(tmp_path / "none.json")
