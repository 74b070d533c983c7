"""Tokenizers: text <-> token ids.  Characters, bytes, words and sub-words with one interface.

    tokenizer = train("bpe", texts, size=8000, specials=("pad", "start", "end"))
    tokenizer.decode(tokenizer.encode("some text")) == "some text"

All of them are saved as a tokenizer.json of the `tokenizers` package, which other programs read.  Text is never encoded as a
special token: `<pad>` in a text is five characters; `encode_marked` encodes it as the token.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, Literal, Protocol, final, get_args

import numpy as np
import torch
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as Backend
from torch import Tensor

from ...core.errors import BadInput, DataUnusable
from ...core.files import JSON_LIMIT, read_file, replace_file
from ...core.options import checked

UNKNOWN = "\ufffd"
Level = Literal["byte", "char"]
TokenKind = Literal["byte", "char", "words", "bpe", "wordpiece", "unigram"]
KINDS: tuple[str, ...] = get_args(TokenKind)

SPELLINGS = {
    "pad": ("<pad>", "[PAD]"),
    "unknown": ("<unk>", "[UNK]"),
    "start": ("<s>", "[BOS]", "<bos>", "<|begin_of_text|>"),
    "end": ("</s>", "[EOS]", "<eos>", "<|endoftext|>", "<|end_of_text|>"),
    "mask": ("<mask>", "[MASK]"),
    "sep": ("<sep>", "[SEP]"),
    "cls": ("<cls>", "[CLS]"),
}
"""spellings of each special token in a tokenizer.json; ours is the first, that of WordPiece the one in brackets"""
SENTINEL = "<extra_id_{}>"
SILENT = ("pad", "start", "end", "sep", "cls")
"""special tokens that decoding leaves out"""
PIECE = 1 << 14
"""characters encoded at a time: the package is faster on pieces than on a long text, and encodes them in parallel"""
GROUP = 512


class Tokenizer(Protocol):
    """The interface of every tokenizer."""

    @property
    def level(self) -> str:
        """'char', 'byte', or the kind of sub-words."""
        ...

    @property
    def tokens(self) -> tuple[str, ...]:
        """Every token as text, in the order of the ids."""
        ...

    @property
    def size(self) -> int: ...

    @property
    def specials(self) -> Mapping[str, int]:
        """Id of each special token by name: pad, unknown, start, end, mask, sep, cls, 'sentinel 0', ..."""
        ...

    def encode(self, text: str) -> Tensor: ...

    def encode_all(self, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Concatenated tokens of all texts, and the bounds 0, n1, n1 + n2, ... between them."""
        ...

    def decode(self, tokens: Tensor) -> str: ...

    def to_json(self) -> str:
        """The content of a tokenizer.json."""
        ...


@final
@dataclass(frozen=True)
class Vocabulary:
    """Bytes or characters as tokens, the latter with one more token for characters not seen in training.

    Special tokens, if any, come last; `named` are their names.
    """

    tokens: tuple[str, ...]
    level: Level
    named: tuple[str, ...] = ()

    @classmethod
    def of(cls, text: str, level: Level, specials: Sequence[str] = ()) -> Vocabulary:
        last = tuple(map(_spell, specials))
        if level == "byte":
            return cls((*(chr(i) if 32 <= i < 127 else f"0x{i:02x}" for i in range(256)), *last), level, tuple(specials))
        return cls((UNKNOWN, *sorted(set(text) - {UNKNOWN}), *last), level, tuple(specials))

    @property
    def size(self) -> int:
        return len(self.tokens)

    @cached_property
    def specials(self) -> Mapping[str, int]:
        first = self.size - len(self.named)
        return {**({"unknown": 0} if self.level == "char" else {}), **{name: first + i for i, name in enumerate(self.named)}}

    @cached_property
    def _table(self) -> np.ndarray:
        """Code point -> token, 0 if unknown."""
        table = np.zeros(0x110000, np.uint8 if self.size <= 256 else np.int32)
        plain = self.tokens[: self.size - len(self.named)]
        table[[ord(char) for char in plain]] = np.arange(len(plain))
        return table

    def encode(self, text: str) -> Tensor:
        with _characters():
            if self.level == "byte":
                return torch.from_numpy(np.frombuffer(text.encode(), np.uint8).copy())
            return torch.from_numpy(self._table[np.frombuffer(text.encode("utf-32-le"), np.uint32)])

    def encode_all(self, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        with _characters():
            lengths = [len(text) if self.level == "char" else len(text.encode()) for text in texts]
        return self.encode("".join(texts)), _bounds(lengths)

    def decode(self, tokens: Tensor) -> str:
        """Text of a row of tokens; bytes that are not UTF-8 become the replacement character."""
        tokens = _drop_specials(self, tokens)
        if self.level == "byte" and not self.named:
            return bytes(tokens.tolist()).decode("utf-8", "replace")
        if self.level == "byte":
            parts = (self.tokens[i].encode() if i > 255 else bytes([i]) for i in tokens.tolist())
            return b"".join(parts).decode("utf-8", "replace")
        return "".join(self.tokens[token] for token in tokens.tolist())

    def to_json(self) -> str:
        plain, last = self.tokens[: self.size - len(self.named)], self.tokens[self.size - len(self.named) :]
        if self.level == "byte":
            tokenizer = Backend(models.BPE({char: i for i, char in enumerate(_byte_letters())}, []))
            tokenizer.pre_tokenizer, tokenizer.decoder = (
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
                decoders.ByteLevel(),
            )
        else:
            tokenizer = Backend(models.WordLevel({char: i for i, char in enumerate(plain)}, unk_token=UNKNOWN))
            tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Split(Regex(ANY), "isolated"), decoders.Fuse()
        tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in last])
        return tokenizer.to_str(pretty=True)


ANY = r"[\s\S]"


@final
class Subwords:
    """A tokenizer of the `tokenizers` package: BPE, WordPiece, Unigram, whole words, or any other tokenizer.json."""

    def __init__(self, tokenizer: Backend) -> None:
        self.tokenizer = tokenizer
        tokenizer.encode_special_tokens = True  # special tokens in a text are text
        tokenizer.no_padding()
        tokenizer.no_truncation()
        self._cuts = _may_cut(json.loads(tokenizer.to_str()))

    def __getstate__(self) -> str:
        return self.tokenizer.to_str()

    def __setstate__(self, state: str) -> None:
        self.__init__(Backend.from_str(state))

    @cached_property
    def level(self) -> str:
        kind = type(self.tokenizer.model).__name__.lower()
        return "words" if kind == "wordlevel" else kind

    @cached_property
    def tokens(self) -> tuple[str, ...]:
        id_to_token = {number: token for token, number in self.tokenizer.get_vocab().items()}
        return tuple(id_to_token.get(number, f"<unused {number}>") for number in range(max(id_to_token, default=-1) + 1))

    @property
    def size(self) -> int:
        return len(self.tokens)

    @cached_property
    def specials(self) -> Mapping[str, int]:
        number = self.tokenizer.token_to_id
        ids = {name: next((n for n in map(number, spellings) if n is not None), None) for name, spellings in SPELLINGS.items()}
        sentinels = {f"sentinel {i}": number(SENTINEL.format(i)) for i in range(100)}
        return {name: n for name, n in (ids | sentinels).items() if n is not None}

    def encode(self, text: str) -> Tensor:
        return self.encode_all([text])[0]

    def encode_all(self, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        rows: list[np.ndarray] = [np.zeros(0, np.int32)]
        bounds, at = [np.zeros(1, np.int64)], 0
        for group, last in self._groups(texts):
            try:
                id_lists = [one.ids for one in self.tokenizer.encode_batch_fast(group, add_special_tokens=False)]
            except TypeError:  # raised by the package for text that cannot be UTF-8
                with _characters():
                    "".join(group).encode()
                raise
            stops = at + np.fromiter(map(len, id_lists), np.int64, len(id_lists)).cumsum()
            rows.append(np.fromiter(chain.from_iterable(id_lists), np.int32, int(stops[-1]) - at))
            bounds.append(stops[last])
            at = int(stops[-1])
        return torch.from_numpy(np.concatenate(rows)), torch.from_numpy(np.concatenate(bounds))

    def _groups(self, texts: Sequence[str]) -> Iterator[tuple[list[str], list[bool]]]:
        """Pieces of the texts, some hundred at a time, each with a flag for the last piece of a text."""
        group: list[str] = []
        ends: list[bool] = []
        for text in texts:
            pieces = list(_pieces(text)) if self._cuts else [text]
            group += pieces
            ends += [False] * (len(pieces) - 1) + [True]
            if len(group) >= GROUP:
                yield group, ends
                group, ends = [], []
        if group:
            yield group, ends

    def decode(self, tokens: Tensor) -> str:
        return self.tokenizer.decode(_drop_specials(self, tokens).tolist(), skip_special_tokens=False)

    def to_json(self) -> str:
        return self.tokenizer.to_str(pretty=True)


@checked
def train(
    kind: TokenKind, texts: Iterable[str], size: int = 8000, specials: Sequence[str] = ("pad", "unknown", "start", "end")
) -> Tokenizer:
    """Train a tokenizer on texts, which are read once; the same texts give the same token ids.

    Args:
        kind: byte, char, words, bpe (over bytes: every text comes back exactly), wordpiece (lower case) or unigram
        size: largest vocabulary, special tokens included
        specials: names of special tokens; 'sentinel 0' and so on are those of span corruption
    """
    if kind == "byte":
        return Vocabulary.of("", "byte", specials)
    if kind == "char":
        seen: set[str] = set()
        for text in texts:
            seen.update(text)
        with _characters():
            "".join(seen).encode()
        return Vocabulary.of("".join(seen), "char", [name for name in specials if name != "unknown"])
    least = 256 + len(specials) if kind == "bpe" else len(specials) + 1
    if size < least:
        raise BadInput(f"a {kind} tokenizer needs {least} tokens or more, not {size}", fix=f"set its size to {least} or more")
    with _one_thread(), _characters():  # with threads the order of sums, and so the result, would vary
        return Subwords(_TRAIN[kind](texts, size, specials))


def _words(texts: Iterable[str], size: int, specials: Sequence[str]) -> Backend:
    marks = [_spell(name) for name in {"unknown": 0, **dict.fromkeys(specials)}]
    tokenizer = Backend(models.WordLevel(unk_token=_spell("unknown")))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.train_from_iterator(texts, trainers.WordLevelTrainer(vocab_size=size, special_tokens=marks, show_progress=False))
    return tokenizer


def _bpe(texts: Iterable[str], size: int, specials: Sequence[str]) -> Backend:
    tokenizer = Backend(models.BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    marks = [_spell(name) for name in specials if name != "unknown"]  # every byte is a token: nothing is unknown
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=sorted(_byte_letters()), special_tokens=marks, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def _wordpiece(texts: Iterable[str], size: int, specials: Sequence[str]) -> Backend:
    marks = [_spell(name, brackets=True) for name in {"unknown": 0, **dict.fromkeys(specials)}]
    normal, split = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    words: dict[str, int] = {}
    for text in texts:
        for word, _ in split.pre_tokenize_str(normal.normalize_str(text)):
            words[word] = words.get(word, 0) + 1
    letters = sorted(set(chain.from_iterable(words)))
    # The trainer numbers the letters inside words in the order of a hash table, which differs between processes, and breaks ties by
    # these numbers.  As special tokens they have a fixed order; the final model is built from the vocabulary without them.
    first = [*marks, *letters, *(f"##{letter}" for letter in letters)]
    if len(first) > size:
        raise BadInput(
            f"{len(letters)} different letters need {len(first)} tokens, not {size}", fix=f"set its size to {len(first)} or more"
        )
    tokenizer = Backend(models.WordPiece(unk_token=marks[0]))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = trainers.WordPieceTrainer(vocab_size=size, special_tokens=first, show_progress=False)
    tokenizer.train_from_iterator((" ".join([word] * many) for word, many in words.items()), trainer)
    return _with_marks(
        models.WordPiece(tokenizer.get_vocab(with_added_tokens=True), unk_token=marks[0]),
        marks,
        normalizer=normal,
        pre_tokenizer=split,
        decoder=decoders.WordPiece(),
    )


def _unigram(texts: Iterable[str], size: int, specials: Sequence[str]) -> Backend:
    marks = [_spell(name) for name in {"unknown": 0, **dict.fromkeys(specials)}]
    space = pre_tokenizers.Metaspace(prepend_scheme="never")
    tokenizer = Backend(models.Unigram())
    tokenizer.pre_tokenizer = split = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(r"\n"), "isolated"), space])
    trainer = trainers.UnigramTrainer(vocab_size=size, special_tokens=marks, unk_token=marks[0], show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    vocab = json.loads(tokenizer.to_str())["model"]["vocab"]
    pieces = {piece: score for piece, score in vocab if piece not in marks}
    # The trainer gives rare letters scores 0.0001 apart in the order of a hash table; here in that of the alphabet.
    floor = min(pieces.values(), default=0.0)
    rare = sorted(piece for piece, score in pieces.items() if len(piece) == 1 and score - floor < 1e-4 * len(pieces))
    pieces |= dict(zip(rare, sorted((pieces[piece] for piece in rare), reverse=True)))
    ranked = sorted(((piece, round(score, 4)) for piece, score in pieces.items()), key=lambda one: (-one[1], one[0]))
    model = models.Unigram([(marks[0], 0.0), *ranked], 0, False)  # the other marks are added later: as pieces they would match text
    return _with_marks(model, marks, pre_tokenizer=split, decoder=decoders.Metaspace(prepend_scheme="never"))


_TRAIN: dict[str, Callable[[Iterable[str], int, Sequence[str]], Any]] = {
    "words": _words,
    "bpe": _bpe,
    "wordpiece": _wordpiece,
    "unigram": _unigram,
}


def _with_marks(model: Any, marks: Sequence[str], **parts: Any) -> Backend:
    tokenizer = Backend(model)
    for name, part in parts.items():
        setattr(tokenizer, name, part)
    tokenizer.add_special_tokens(list(marks))
    return tokenizer


def save(tokenizer: Tokenizer, path: str | Path) -> None:
    """Write a tokenizer.json, which `load` and other programs read."""
    replace_file(Path(path), tokenizer.to_json().encode())


def load(path: str | Path) -> Tokenizer:
    """The tokenizer of a tokenizer.json."""
    try:
        return from_json(read_file(Path(path), 8 * JSON_LIMIT).decode("utf-8"))
    except (OSError, ValueError) as error:
        message = f"'{Path(path).name}' is not a tokenizer.json: {getattr(error, 'strerror', None) or error}"
        raise DataUnusable(
            message, where=str(path), fix="give the tokenizer.json of a model, or one that `sonde data tokens` wrote"
        ) from error


def from_json(text: str) -> Tokenizer:
    """The tokenizer written in a tokenizer.json; ValueError for anything else."""
    try:
        config, tokenizer = json.loads(text), Backend.from_str(text)
        model, split = config["model"], config["pre_tokenizer"] or {}
        added = {token["content"]: token["id"] for token in config["added_tokens"]}
    except ValueError:
        raise
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    except Exception as error:  # the package raises a bare Exception, and a JSON of another shape anything
        raise ValueError(str(error).split("\n")[0][:120] or type(error).__name__) from error
    names = tuple(_special_name(token) for token in sorted(added, key=lambda token: added[token]))
    if split.get("type") == "Split" and split.get("pattern") == {"Regex": ANY} and model["type"] == "WordLevel":
        return Vocabulary((*sorted(model["vocab"], key=lambda token: model["vocab"][token]), *map(_spell, names)), "char", names)
    if model["type"] == "BPE" and not model["merges"] and list(model["vocab"]) == _byte_letters():
        return Vocabulary.of("", "byte", names)
    return Subwords(tokenizer)


def check_fits(tokenizer: Tokenizer, known: int, where: str) -> None:
    """Refuse a tokenizer with more tokens than a model has embeddings for."""
    if tokenizer.size > known:
        raise BadInput(
            f"the tokenizer has {tokenizer.size} tokens, the model knows {known}",
            where=where,
            fix="use the model's tokenizer",
        )


def special(tokenizer: Tokenizer, name: str) -> int:
    """Id of a special token, or an error that lists those there are."""
    if name not in tokenizer.specials:
        there = ", ".join(tokenizer.specials) or "none"
        raise BadInput(f"this tokenizer has no special token '{name}'; it has {there}", fix=f"train one with '{name}' among its specials")
    return tokenizer.specials[name]


def sentinels(tokenizer: Tokenizer) -> Tensor:
    """Ids of the sentinels, in their order."""
    ids = [number for name, number in tokenizer.specials.items() if name.startswith("sentinel ")]
    if not ids:
        special(tokenizer, "sentinel 0")
    return torch.tensor(ids)


def encode_marked(tokenizer: Tokenizer, text: str) -> Tensor:
    """Tokens of a text in which special tokens are spelled out, as in 'Paris is the [MASK] of France'."""
    special_ids = {tokenizer.tokens[number]: number for name, number in tokenizer.specials.items() if name != "unknown"}
    if not special_ids:
        return tokenizer.encode(text).long()
    parts = re.split("(" + "|".join(map(re.escape, special_ids)) + ")", text)
    rows = [torch.tensor([special_ids[part]]) if part in special_ids else tokenizer.encode(part).long() for part in parts if part]
    return torch.cat(rows) if rows else torch.zeros(0, dtype=torch.long)


def _drop_specials(tokenizer: Tokenizer, tokens: Tensor) -> Tensor:
    """A row without the special tokens that decoding leaves out."""
    tokens = tokens.flatten()
    silent = [tokenizer.specials[name] for name in SILENT if name in tokenizer.specials]
    if len(tokens) and (int(tokens.max()) >= tokenizer.size or int(tokens.min()) < 0):
        wrong = int(tokens.max()) if int(tokens.max()) >= tokenizer.size else int(tokens.min())
        raise BadInput(
            f"token {wrong} is not one of the {tokenizer.size} of this tokenizer", fix="use the tokenizer the model was trained with"
        )
    return tokens[~torch.isin(tokens.long(), torch.tensor(silent))] if silent else tokens


def _spell(name: str, brackets: bool = False) -> str:
    if name.startswith("sentinel ") and name[9:].isdigit():
        return SENTINEL.format(int(name[9:]))
    if name not in SPELLINGS:
        raise BadInput(f"no special token '{name}'", fix="choose from " + ", ".join(SPELLINGS) + ", 'sentinel 0', ...")
    return SPELLINGS[name][1 if brackets else 0]


def _special_name(token: str) -> str:
    """Name of a special token by its spelling; ValueError where it has none."""
    match = re.fullmatch(r"<extra_id_(\d+)>", token)
    if match:
        return f"sentinel {match.group(1)}"
    return next((name for name, spellings in SPELLINGS.items() if token in spellings), token)


def _byte_letters() -> list[str]:
    """The printable letter that byte-level tokenizers write for each byte [radford2019]."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte if byte in plain else next(others)) for byte in range(256)]


def _may_cut(config: Mapping[str, Any]) -> bool:
    """Whether a text may be split before a space without changing its tokens."""
    split, normal = config["pre_tokenizer"], config["normalizer"]
    steps = [] if split is None else split.get("pretokenizers", [split])
    harmless = normal is None or normal["type"] in ("BertNormalizer", "Lowercase")
    return harmless and all(map(_at_spaces, steps)) and bool(steps) and steps[-1]["type"] != "Split"


def _at_spaces(step: Mapping[str, Any]) -> bool:
    """Whether a pre-tokenizer starts a new word at a single space between two letters, or ignores spaces."""
    if step["type"] == "ByteLevel":
        return step["use_regex"] and not step["add_prefix_space"]
    if step["type"] == "Metaspace":
        return step["split"] and step["prepend_scheme"] == "never"
    return step["type"] in ("Whitespace", "WhitespaceSplit", "BertPreTokenizer") or step.get("pattern") == {"Regex": r"\n"}


def _pieces(text: str) -> Iterator[str]:
    """Parts of a text of about `PIECE` characters, split before a single space between two words."""
    start = 0
    while len(text) - start > PIECE:
        match = _CUT.search(text, start + PIECE)
        if match is None:
            break
        yield text[start : match.start() + 1]
        start = match.start() + 1
    yield text[start:]


_CUT = re.compile(r"\S(?= \S)")


def _bounds(lengths: Sequence[int]) -> Tensor:
    return torch.tensor([0, *np.cumsum(lengths).tolist()])


@contextmanager
def _characters() -> Iterator[None]:
    """Refuse unpaired surrogates, which Python makes of command-line bytes that are not UTF-8."""
    try:
        yield
    except UnicodeEncodeError as error:
        raise BadInput(f"the text holds {error.object[error.start]!r}, which is not a character", fix="give text in UTF-8") from error


@contextmanager
def _one_thread() -> Iterator[None]:
    """Run the package on one thread."""
    before = os.environ.get("TOKENIZERS_PARALLELISM")
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    try:
        yield
    finally:
        os.environ.pop("TOKENIZERS_PARALLELISM")
        if before is not None:
            os.environ["TOKENIZERS_PARALLELISM"] = before
