"""Chapter 14, embeddings: from symbols to vectors, learned from which words stand near each other."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..core.reading import Heat, Lines, Table
from ..core.seeds import generator
from ..data.text import tokenizer
from ..nn.positions import Positions
from .exhibit import Exhibit, spread

TEXT = (
    "The cat sat on the mat and looked at the dog. The dog looked back at the cat; a car went by, and then another car.\n"
    "Later the dogs slept, the cats slept, and the cars stood in the street until the morning."
)
PASSES = 500
Word2VecMethod = tuple[Literal["skip-gram", "cbow"], Literal["negative", "hierarchical"]]
METHODS: tuple[Word2VecMethod, ...] = (
    ("skip-gram", "negative"),
    ("cbow", "negative"),
    ("skip-gram", "hierarchical"),
    ("cbow", "hierarchical"),
)
MIN_SCORES = {
    "skip-gram, negative": (0.3, 0.6),
    "cbow, negative": (0.7, 0.8),
    "skip-gram, hierarchical": (0.18, 0.2),
    "cbow, hierarchical": (0.2, 0.2),
    "full softmax": (0.7, 0.4),
}
"""fall of the loss, and how much nearer a cat is to a dog than to a car"""
BEASTS, CARS = ("cat", "dog"), ("car", "bus")


def emb_01(exhibit: Exhibit) -> str:
    """Text, DNA, a series and pixels become symbols; tokenizers bring text back; one-hot codes know no likeness."""
    tokenizers = {
        "characters": tokenizer.train("char", [TEXT]),
        "words": tokenizer.train("words", [TEXT]),
        "sub-words (BPE)": tokenizer.train("bpe", [TEXT], size=300),
    }
    sizes = {}
    for name, cut in tokenizers.items():
        # Whole words keep no record of the spaces between them: their text is the words, a space apart.
        sample = " ".join(TEXT.replace(".", " .").replace(";", " ;").replace(",", " ,").split()) if name == "words" else TEXT
        exhibit.expect(f"{name}: text there and back", cut.decode(cut.encode(sample)), sample)
        sizes[name] = len(cut.encode(TEXT))
    lengths = list(sizes.values())
    exhibit.exceeds("tokens: most for characters, then sub-words, then words", min(lengths[0] - lengths[2], lengths[2] - lengths[1]), 0)
    unseen = "A dogcart, 東京!"
    exhibit.expect(
        "BPE on bytes brings back a text it has not seen",
        tokenizers["sub-words (BPE)"].decode(tokenizers["sub-words (BPE)"].encode(unseen)),
        unseen,
    )

    dna = tokenizer.train("char", ["GATTACA"])
    series = torch.bucketize(torch.sin(torch.arange(50) / 4), torch.linspace(-0.9, 0.9, 7))
    pixels = torch.randint(0, 256, (5, 5), generator=exhibit.generator("pixels")) // 64
    symbols = {"DNA": dna.encode("GATTACA").long(), "series in 8 steps": series, "pixels in 4 grays": pixels.flatten()}
    for name, row in {**symbols, "words": tokenizers["words"].encode(TEXT).long()}.items():
        distance = torch.cdist(codes := F.one_hot(row.unique()).double(), codes)
        distances = distance[~torch.eye(len(codes), dtype=torch.bool)]
        exhibit.expect(f"{name}: distances of different one-hot codes", distances, torch.full_like(distances, math.sqrt(2)), 1e-12)
    cat, dog, car = (
        F.one_hot(tokenizers["words"].encode(word).long(), tokenizers["words"].size).double() for word in ("cat", "dog", "car")
    )
    exhibit.expect("distance(cat, dog) - distance(cat, car)", ((cat - dog).norm() - (cat - car).norm()).item(), 0.0)
    return f"{lengths[0]} characters = {lengths[2]} sub-words = {lengths[1]} words; every two one-hot codes are sqrt(2) apart"


def emb_02(exhibit: Exhibit) -> str:
    """Looking a row up is the product with a one-hot row, and only rows that were looked up learn."""
    from ..models.language_model import embed

    V, D, tokens = 11, 7, torch.tensor([[3, 5, 3], [9, 0, 5]])
    table = nn.Embedding(V, D, dtype=torch.float64)
    weight = torch.randn(2, 3, D, generator=generator(exhibit.seed + 1, "weight"), dtype=torch.float64)
    embeddings = embed(table, tokens)
    product = F.one_hot(tokens, V).double() @ table.weight
    exhibit.expect("lookup of 2 x 3 tokens and one-hot @ E", embeddings, product.detach(), 1e-15)
    (by_lookup,) = torch.autograd.grad((embeddings * weight).sum(), table.weight)
    (by_product,) = torch.autograd.grad((product * weight).sum(), table.weight)
    exhibit.expect("their gradients by E", by_lookup, by_product, 1e-14)
    exhibit.expect("rows with a gradient", by_lookup.any(1).nonzero().flatten(), [0, 3, 5, 9])
    exhibit.expect("a word met twice adds both gradients", by_lookup[3], weight[0, 0] + weight[0, 2], 1e-15)
    exhibit.show(Heat("Gradient by the embedding matrix", {"gradient": by_lookup}, axes=["word", "number"]))
    return "lookup = one-hot @ E; 4 of 11 rows have a gradient, the words that were there"


def emb_03(exhibit: Exhibit) -> str:
    """Pairs of a window, the full softmax and negative sampling, and a language in which cats are like dogs."""
    from ..estimators.word2vec import Word2Vec, window_pairs

    five = ["the", "cat", "eats", "red", "fish"]
    # By hand, two words to either side.
    near = {"the": "cat eats", "cat": "the eats red", "eats": "the cat red fish", "red": "cat eats fish", "fish": "eats red"}
    exhibit.expect("pairs of a 5-word sentence, window 2", window_pairs(five, 2), [(c, n) for c in five for n in near[c].split()])

    gaps: dict[str, list[float]] = {}
    falls: dict[str, list[float]] = {}
    for seed in exhibit.seeds():
        text = _language(seed)
        for model, loss in METHODS:
            fit = Word2Vec(12, model, loss, window=2, sample=0, min_count=1, epochs=12, lr=0.1, random_state=seed, quiet=True).fit(text)
            gaps.setdefault(f"{model}, {loss}", []).append(_gap(fit.vectors_.similarity))
            falls.setdefault(f"{model}, {loss}", []).append(fit.losses_[0] - fit.losses_[-1])
        vectors, losses, names = _full_softmax(text, seed)
        unit = F.normalize(vectors, dim=1)
        gaps.setdefault("full softmax", []).append(_gap(lambda a, b: float(unit[names.index(a)] @ unit[names.index(b)])))  # noqa: B023
        falls.setdefault("full softmax", []).append(losses[0] - losses[-1])
    for name, (fall, gap) in MIN_SCORES.items():
        exhibit.above(f"{name}: fall of the loss", falls[name], fall)
        exhibit.above(f"{name}: similarity(cat, dog) - similarity(cat, car)", gaps[name], gap)
    once = Word2Vec(4, window=1, sample=0, min_count=1, epochs=1, lr=1e-9, random_state=exhibit.seed, quiet=True).fit([five])
    # Outputs begin with zeros: each of the word and of those of its 5 noise words that are not the word itself costs log 2.
    terms = 8 * once.losses_[0] / math.log(2)
    exhibit.expect("8 predictions by vectors of zeros: loss over log 2, against a whole number", terms, float(round(terms)), within=1e-6)
    exhibit.below("terms beyond one to six for each of 8 predictions", max(8 - terms, terms - 48, 0.0), 0.5)
    table = {"model": list(gaps), "gap": [spread(some, ".2f") for some in gaps.values()]}
    exhibit.show(Table("How much nearer a cat is to a dog than to a car", table, note=f"{len(exhibit.seeds())} seeds each"))
    means = [spread(gaps[name], ".2f") for name in ("skip-gram, negative", "full softmax")]
    return f"14 pairs from 5 words; cat nearer to dog than to car by {means[0]} (negative sampling), {means[1]} (full softmax)"


def emb_04(exhibit: Exhibit) -> str:
    """Counts by hand, and a loss that goes to 0 where the logarithms of the counts have a low rank."""
    from ..estimators.glove import cooccurrence
    from ..estimators.words_corpus import Corpus, words
    from ..kernels.words import Counts, Side, Weighting, glove, rows

    corpus = Corpus.read(["a b c a", "b a"], 1, words)
    exhibit.expect("words by count", corpus.words, ("a", "b", "c"))
    matrix = np.zeros((3, 3))
    for part in cooccurrence(corpus.tokens, 3, window=3):
        matrix[part["row"], part["column"]] = matrix[part["column"], part["row"]] = part["count"]
    # 'a b c a': ab 1, ac 1/2, aa 1/3, bc 1, ba 1/2, ca 1; 'b a': ba 1.  Either a is the other's neighbor: aa counts twice.
    exhibit.expect("counts within 3 words, 1 / distance", matrix, [[2 / 3, 2.5, 1.5], [2.5, 0, 1], [1.5, 1, 0]], 1e-12)

    V, rank, ends, first, errors = 40, 3, [], [], []
    draw = np.random.default_rng(exhibit.seed)
    # Counts of one order of magnitude: a rare cell weighs little, and would be learned last.
    factors, bias = draw.normal(0, 0.5, size=(V, rank)), draw.normal(1, 0.5, size=V)
    row, column = np.triu_indices(V)
    logs = (factors @ factors.T + bias[:, None] + bias)[row, column]
    counts = Counts(row.astype(np.int32), column.astype(np.int32), np.exp(logs))
    for seed in exhibit.seeds():
        start = np.random.default_rng(seed)
        left, right = (Side(rows(V, 8, np.float64), np.zeros(V)) for _ in range(2))
        for side in (left, right):
            side.vectors[:, :8] = start.uniform(-0.5, 0.5, (V, 8))
        losses = [glove(counts, left, right, Weighting(), 0.3) / counts.cells() for _ in range(PASSES)]
        first.append(losses[0])
        ends.append(losses[-1])
        # Weights do not matter where every cell fits: the sums are the logarithms themselves, the rare cells included.
        guess = left.vectors @ right.vectors.T + left.bias[:, None] + right.bias
        errors.append(np.abs(guess[row, column] - logs).mean())
    exhibit.below(f"weighted square of a cell after {PASSES:,} passes", ends, 3e-7)
    exhibit.above("the same after the first pass", first, 0.06)
    exhibit.below("mean error of a log count", errors, 0.002)
    exhibit.show(Lines("GloVe on counts of rank 3", {"mean weighted square": losses}, axes=["pass", "loss"], log=["y"]))
    fall = f"weighted square {np.mean(first):.2g} -> {max(ends):.1g}"
    return f"9 counts as by hand; {fall} where log counts, {logs.min():.0f} to {logs.max():.0f}, have rank 3"


def emb_05(exhibit: Exhibit) -> str:
    """One word, two senses: its row in a table is one vector; the state of a network depends on its sentence."""
    from ..models.elmo import Elmo, neighbors

    money, river = ["cash", "loan", "coin"], ["water", "reed", "boat"]
    names = ["bank", *money, *river]
    sentences = [[a, "bank", b] for group in (money, river) for a in group for b in group]
    tokens = torch.tensor([[names.index(word) for word in sentence] for sentence in sentences])
    near, other, fixed = [], [], []
    for seed in exhibit.seeds():
        torch.manual_seed(seed)
        model = Elmo(len(names), 12, depth=1)
        optimizer = torch.optim.Adam(model.parameters(), 0.03)
        target, mask = neighbors(tokens)
        for _ in range(80):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(tokens)[mask], target[mask])
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            static, contextual = F.normalize(model.layers(tokens)[:, :, 1], dim=-1)
        fixed.append(static @ static.T)
        cosine = contextual @ contextual.T
        near.append(float((cosine[:9, :9].mean() + cosine[9:, 9:].mean()) / 2))
        other.append(float(cosine[:9, 9:].mean()))
    exhibit.expect("cosines of the 18 static vectors of 'bank'", torch.stack(fixed), torch.ones(len(fixed), 18, 18), 1e-6)
    exhibit.below("contextual cosine between the senses", other, 0.5)
    exhibit.above("nearer within a sense than between, by", [n - o for n, o in zip(near, other, strict=True)], 0.1)
    exhibit.show(Heat("'bank' in 18 sentences", {"cosine": cosine}, axes=["sentence", "sentence"], note="money first, then river"))
    return f"'bank': static cosine 1, contextual {spread(other, '.2f')} between its senses and {spread(near, '.2f')} within one"


def emb_06(exhibit: Exhibit) -> str:
    """A sum of token vectors is the same in any order; adding positions does not help it, a network that reads them does."""
    names = ["the", "dog", "chases", "cat"]
    texts = ["The dog chases the cat", "The cat chases the dog", "cat the the chases dog"]
    tokens = torch.tensor([[names.index(word) for word in text.lower().split()] for text in texts])
    source = exhibit.generator("bag")
    table, mix = (torch.randn(*shape, generator=source, dtype=torch.float64) for shape in ((4, 24), (24, 40)))
    counts = F.one_hot(tokens, 4).sum(1)
    exhibit.expect("counts of the three sentences", counts, [[2, 1, 1, 1]] * 3)
    bag = counts.double() @ table
    exhibit.expect("one vector", bag, bag[:1].expand(3, -1).clone())
    exhibit.expect("the same as adding one token after the other", F.embedding(tokens, table).sum(1), bag, 1e-14)
    encoding = Positions("sinusoidal", 24)
    embeddings = encoding(F.embedding(tokens, table))[0]

    def smallest_distance(x: Tensor) -> float:
        return float(torch.cdist(x, x)[~torch.eye(3, dtype=torch.bool)].min())

    exhibit.below("tokens plus places, summed: still apart by", smallest_distance(embeddings.sum(1)), 1e-12)
    exhibit.below(
        "each token through a network, summed, without places",
        smallest_distance(torch.tanh(F.embedding(tokens, table) @ mix).sum(1)),
        1e-12,
    )
    distance = smallest_distance(torch.tanh(embeddings @ mix).sum(1))
    exhibit.above("and with places", distance, 0.1)
    return f"3 orders of 5 words, one vector; with positions read by a network they are {distance:.2f} or more apart"


def _language(seed: int, sentences: int = 600) -> list[list[str]]:
    """Beasts eat and sleep, vehicles drive and honk; nothing else distinguishes them."""
    draw = np.random.default_rng(seed)
    acts = {BEASTS: ["eats", "sleeps", "plays"], CARS: ["drives", "honks", "brakes"]}
    groups = [(BEASTS, CARS)[i] for i in draw.integers(2, size=sentences)]
    return [["the", str(draw.choice(group)), str(draw.choice(acts[group])), "today"] for group in groups]


def _gap(similarity) -> float:
    """How much nearer a cat is to a dog than to a car."""
    return similarity("cat", "dog") - similarity("cat", "car")


def _full_softmax(text: list[list[str]], seed: int, width: int = 12, steps: int = 150) -> tuple[Tensor, list[float], list[str]]:
    """Skip-gram with a softmax over all words: p(center; near) = softmax(U w_near)."""
    from ..estimators.word2vec import window_pairs

    names = sorted({word for sentence in text for word in sentence})
    pairs = torch.tensor([[names.index(word) for word in pair] for sentence in text for pair in window_pairs(sentence, 2)])
    center, near = pairs.T
    source = generator(seed, "softmax")
    vectors = (torch.randn(len(names), width, generator=source) / width).requires_grad_()
    outputs = torch.zeros(len(names), width, requires_grad=True)
    optimizer, losses = torch.optim.Adam([vectors, outputs], 0.05), []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = F.cross_entropy(vectors[near] @ outputs.T, center)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return vectors.detach(), losses, names
