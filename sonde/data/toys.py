"""Generated texts with a known answer: sentences to classify, a small language to translate, and sequences to reverse."""

from __future__ import annotations

import itertools
from typing import Annotated

import torch

from ..core.batch import Data
from ..core.options import Range
from ..core.seeds import generator
from .split import split, subsets
from .text.corpora import SENTIMENTS, LinesReader
from .text.documents import DocumentSource, Ragged
from .text.pairs import PairSource, pairs
from .text.tokenizer import special, train

SymbolCount = Annotated[int, Range(2, 4096)]
ARTICLES = {"the": "la", "a": "", "this": "tiu"}
ADJECTIVES = {"": "", "small": "malgranda", "red": "ruga", "old": "malnova", "good": "bona"}
NOUNS = {"cat": "kato", "dog": "hundo", "house": "domo", "book": "libro", "woman": "virino", "tree": "arbo"}
VERBS = {"sees": "vidas", "wants": "volas", "finds": "trovas", "has": "havas", "does not see": "ne vidas"}
EXAMPLES = ("unfortunately it will rain", "all students were generously gifted five dollars for attending")
"""negative and positive, of 4 and 9 words; `toy_sentiment` does not contain them"""


def toy_sentiment(seed: int = 0) -> Annotated[Data, "texts"]:
    """Generated sentences, negative or positive by their adverb, verb or adjective; 'not' reverses the label."""
    clauses = ("it will rain", "it will snow", "the train left early", "we will stay at home", "they play tomorrow", "he told us the story")
    who, what = ("all students", "all children", "the guests", "my friends"), ("five dollars", "two tickets", "a meal")
    words = (
        (("sadly", "unfortunately", "regrettably"), ("cruelly", "unfairly", "rudely"), ("charged", "denied"), ("bad", "awful", "boring")),
        (("luckily", "happily", "fortunately"), ("generously", "kindly", "gladly"), ("gifted", "given"), ("good", "great", "lovely")),
    )
    pairs: list[tuple[str, int]] = []
    for label, (adverbs, manners, verbs, adjectives) in enumerate(words):
        pairs += [(f"{adverb} {clause}", label) for adverb, clause in itertools.product(adverbs, clauses)]
        combinations = itertools.product(who, manners, verbs, what, ("attending", "their work"))
        pairs += [(f"{one} were {manner} {verb} {thing} for {reason}", label) for one, manner, verb, thing, reason in combinations]
        for thing, adjective in itertools.product(("film", "food", "song", "day", "teacher", "house"), adjectives):
            pairs += [(f"the {thing} was {adjective}", label), (f"the {thing} was not {adjective}", 1 - label)]
    pairs = [one for one in pairs if one[0] not in EXAMPLES]
    texts, labels = [text for text, _ in pairs], torch.tensor([label for _, label in pairs])
    tokenizer = train("wordpiece", texts, 2000, ("pad", "unknown"))
    whole = DocumentSource(Ragged(*tokenizer.encode_all(texts)), special(tokenizer, "pad"), labels)
    parts, reader = subsets(whole, split(len(texts), seed=seed, labels=labels)), LinesReader(tokenizer, 64)
    return Data(*parts, name="made-up sentences", task="classes", classes=SENTIMENTS, report={"sentences": len(texts)}, reader=reader)


def bilingual(seed: int = 0, n: Annotated[int, Range(20, 40_500)] = 4000) -> Data:
    """Generated English sentences and their translation, with another word order and an ending for the object.

    Args:
        n: distinct sentences in all; a tenth of them is for validation, and a tenth for the test
    """
    phrases = list(itertools.product(ARTICLES, ADJECTIVES, NOUNS))
    chosen = torch.randperm(len(phrases) ** 2 * len(VERBS), generator=generator(seed, "bilingual"))[:n]
    translations = []
    for number in chosen.tolist():
        rest, verb = divmod(number, len(VERBS))
        translations.append(sentence_pair(phrases[rest // len(phrases)], list(VERBS)[verb], phrases[rest % len(phrases)]))
    sources, targets = map(list, zip(*translations))
    tokenizer = train("words", [*sources, *targets], 1000, ("pad", "unknown", "start", "end"))
    whole = pairs(sources, targets, tokenizer, tokenizer)
    parts, reader = subsets(whole, split(len(whole), seed=seed)), LinesReader(tokenizer, 64, "source")
    return Data(*parts, name="bilingual", task="other", classes=tokenizer.tokens, reader=reader)


def sentence_pair(subject: tuple[str, str, str], verb: str, object: tuple[str, str, str]) -> tuple[str, str]:
    """A sentence in both languages from (article, adjective, noun), verb, (article, adjective, noun)."""

    def foreign(phrase: tuple[str, str, str], ending: str) -> list[str]:
        article, adjective, noun = phrase
        return [ARTICLES[article], NOUNS[noun] + ending, ADJECTIVES[adjective] and ADJECTIVES[adjective] + ending]

    sides = [*subject, verb, *object], [*foreign(subject, ""), VERBS[verb], *foreign(object, "n")]
    return tuple(" ".join(filter(None, words)) for words in sides)  # type: ignore[return-value]


def reversal(
    seed: int = 0, n: Annotated[int, Range(10, 10_000_000)] = 4000, symbols: SymbolCount = 10, longest: SymbolCount = 10, twice: bool = True
) -> Data:
    """Sequences of symbols, and the same reversed with each symbol twice: the target is longer than the source.

    Args:
        n: pairs in all; a tenth of them is for validation, and a tenth for the test
        symbols: different symbols
        longest: symbols of the longest sequence; the shortest has 1
        twice: each symbol comes twice in the target
    """
    rng = generator(seed, "reversal")
    lengths = torch.randint(1, longest + 1, (n,), generator=rng)
    bounds = torch.cat([torch.zeros(1, dtype=torch.long), lengths.cumsum(0)])
    source = Ragged(torch.randint(symbols, (int(bounds[-1]),), generator=rng), bounds)
    copies = 2 if twice else 1
    # position in the values of each symbol counted from the end of its row
    reversed_positions = (bounds[:-1] + bounds[1:] - 1).repeat_interleave(lengths) - torch.arange(int(bounds[-1]))
    target = Ragged(source.values[reversed_positions].repeat_interleave(copies), bounds * copies)
    pad, start, end = symbols, symbols + 1, symbols + 2
    whole = PairSource(source.wrap(end=end), target.wrap(start, end), pad)
    classes = (*map(str, range(symbols)), "<pad>", "<s>", "</s>")
    return Data(*subsets(whole, split(n, seed=seed)), name="reversal", task="other", classes=classes)
