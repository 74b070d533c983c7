"""Chapter 16, sequence to sequence.

Most rows look at one task: a word of up to eight letters is read and written backwards.  Token 0 begins and ends a target.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from itertools import product
from typing import Any, final, get_args

import torch
from torch import Tensor
from torch.nn import functional as F

from ..core.batch import Batch, Data
from ..core.reading import Bars, Lines, Subject, Table
from ..core.recipe import Recipe
from ..core.seeds import generator
from ..data.order import Order
from ..data.tensors import TensorSource
from ..data.text.documents import Ragged
from ..data.text.pairs import PairSource
from ..generate import Stop, beam, bleu, exact, generate
from ..lenses import alignment, exposure
from ..models.seq2seq import Scoring, Seq2Seq
from ..models.topologies import Tagger
from ..nn.recurrence import State
from ..objectives.categorical import Categorical
from ..objectives.scheduled import Scheduled, exponential, inverse_sigmoid, linear, mix_inputs
from ..optim.build import optimizer
from ..optim.schedules import warmup_cosine
from ..recipes import translate
from .exhibit import Exhibit, spread

LETTERS, SHORT, LONG = 4, 4, 8
KINDS = (("none", False), ("dot", False), ("general", False), ("additive", False), ("additive", True))
"""attention, and whether what it finds is fed into the recurrence"""


def words(seed: int, n: int, longest: int, part: str) -> TensorSource:
    """Pairs of a word of 2 letters or more and the word backwards."""
    rng, positions = generator(seed, "words", part), torch.arange(longest)
    lengths = torch.randint(2, longest + 1, (n,), generator=rng)
    there = positions < lengths.unsqueeze(1)
    source = torch.where(there, torch.randint(1, LETTERS + 1, (n, longest), generator=rng), 0)
    back = source.gather(1, (lengths.unsqueeze(1) - 1 - positions).clamp_min(0))
    y = F.pad(torch.where(there, back, 0), (0, 1))
    mask = torch.arange(longest + 1) <= lengths.unsqueeze(1)
    return TensorSource(F.pad(y[:, :-1], (1, 0)), y, source=source, lengths=lengths, mask=mask)


_TRAINED: dict[tuple[str, int, int, int], Seq2Seq] = {}
"""networks that several rows look at, by attention, longest word, seed of the words and seed of the training"""


def backwards(exhibit: Exhibit, attention: str, longest: int = LONG, width: int = 32, steps: int = 220) -> list[Seq2Seq]:
    """Networks trained to write words backwards, one for each seed."""
    recipe = Recipe(
        model=lambda: Seq2Seq(LETTERS + 1, width, mixer="gru", attention=attention),  # type: ignore[arg-type]
        data=Data(train=words(exhibit.seed, 20_000, longest, "train")),
        objective=Categorical(LETTERS + 1),
        optimizer=optimizer("adamw", lr=1e-2, weight_decay=0.0),
        schedule=warmup_cosine(warmup=0.1, floor=0.05),
        clip_norm=1.0,
        batch_size=32,
        steps=steps,
    )
    for seed in exhibit.seeds():
        if (attention, longest, exhibit.seed, seed) not in _TRAINED:
            run = exhibit.train(recipe, f"{attention}-{longest}-{seed}", seed=seed)
            _TRAINED[attention, longest, exhibit.seed, seed] = run.model().eval()
    return [_TRAINED[attention, longest, exhibit.seed, seed] for seed in exhibit.seeds()]


def decode(model: Any, batch: Batch) -> Tensor:
    """What a model writes, token after token, (B, T) like the targets."""
    state = model.begin(batch.source, batch.lengths)
    tokens = generate(model, batch.x[:, :1], batch.y.shape[1], state=state, stop=Stop(end=0), temperature=0)
    return F.pad(tokens, (0, batch.y.shape[1] - tokens.shape[1]))


def right(model: Any, batch: Batch) -> Tensor:
    """(B,) whether each target is written without an error."""
    return ((decode(model, batch) == batch.y) | ~batch.mask).all(1)


def s2s_01(exhibit: Exhibit) -> str:
    """Two units worked out on paper, then a network that reads a word and writes it backwards, one token longer."""
    net: Any = Tagger(2, 3, "numbers", width=2, mixer="rnn activation=relu")
    (cell,) = net.trunk.layers
    with torch.no_grad():
        for parameter, numbers in (
            (net.entry.weight, [[1, 0], [0, 1]]),
            (net.entry.bias, [0, 0]),
            (cell.x.weight, [[1, 0], [-1, 1]]),  # W_hx
            (cell.h.weight, [[0.5, 0], [0, -1]]),  # W_hh
            (cell.x.bias, [0, -0.5]),
            (net.head.weight, [[1, -1], [0, 2], [-1, 0]]),  # W_yh
            (net.head.bias, [0, 0.25, 0]),
        ):
            parameter.copy_(torch.tensor(numbers, dtype=parameter.dtype))
        x = torch.tensor([[[1.0, 2.0], [0.0, 1.0]]])
        h, y = net.trunk(net.entry(x))[0][0], net(x)[0]
    # h1 = relu(W_hx (1,2) + b) = relu(1, 1/2); h2 = relu(W_hx (0,1) + W_hh h1 + b) = relu(1/2, 1 - 1/2 - 1/2)
    exhibit.expect("states on paper", h, [[1, 0.5], [0.5, 0]])
    exhibit.expect("W_yh h + b_y on paper", y, [[0.5, 1.25, -1], [0.5, 0.25, -0.5]])
    exhibit.expect("their largest", y.argmax(-1), [1, 0])

    models, batch = backwards(exhibit, "none", SHORT, width=48, steps=200), words(exhibit.seed, 1000, SHORT, "test")[:]
    exact = [float(right(model, batch).float().mean()) for model in models]
    exhibit.above(f"words of 2 to {SHORT} letters written backwards without a mistake", exact, 0.95)
    ends = [(decode(model, batch) == 0).long().argmax(1) for model in models]  # the end token is 0
    longer = [float((end == batch.lengths).float().mean()) for end in ends]
    exhibit.above("rows with one token written for each token read, and the end", longer, 0.95)
    state = models[0].begin(batch.source, batch.lengths)
    exhibit.expect("all that the decoder is told", {name: tuple(part.shape) for name, part in state.items()}, {"summary": (1000, 48)})
    fraction = f"{spread(exact, '.1%')} of words come out backwards over {len(models)} seeds"
    return f"{fraction}, from one vector of {state['summary'].shape[1]} numbers"


def s2s_02(exhibit: Exhibit) -> str:
    """A vector of fixed size has fewer bits for each token of a longer sentence; attention looks at all of them again."""
    bits = {tokens: 1000 / tokens for tokens in (10, 20, 40)}
    exhibit.expect("bits for each of 10 tokens", bits[10], 100)
    exhibit.expect("bits for each of 40 tokens", bits[40], 25)
    table = {"tokens": list(bits), "bits each": list(bits.values())}
    exhibit.show(Table("A vector of 1000 bits", table))
    batch, lengths = words(exhibit.seed, 1500, LONG, "test")[:], list(range(2, LONG + 1))
    fractions, ends = {}, {}
    for name, attention in (("fixed vector", "none"), ("attention", "additive")):
        hits = [right(model, batch).float() for model in backwards(exhibit, attention)]
        fractions[name] = [[float(seed[batch.lengths == n].mean()) for seed in hits] for n in lengths]
        ends[name] = f"{spread(fractions[name][0], '.0%')} -> {spread(fractions[name][-1], '.0%')}"
    exhibit.above("fixed vector, words of 2 letters", fractions["fixed vector"][0], 0.95)
    exhibit.below(f"fixed vector, words of {LONG} letters", fractions["fixed vector"][-1], 0.3)
    exhibit.above("attention, words of 2 letters", fractions["attention"][0], 0.95)
    exhibit.above(f"attention, words of {LONG} letters", fractions["attention"][-1], 0.9)
    n = len(exhibit.seeds())
    note = f"Fraction of words written backwards without an error, mean of {n} seeds; all networks are equally wide and trained alike."
    lines = {name: [sum(seeds) / n for seeds in line] for name, line in fractions.items()}
    exhibit.show(Lines("Right words by length", lines, axes=["letters", "share right"], note=note, x=lengths))
    summary = ", ".join(f"{name} {line}" for name, line in ends.items())
    return f"100 and 25 bits a token; from 2 to {LONG} letters, {n} seeds: {summary}"


def s2s_03(exhibit: Exhibit) -> str:
    """Scores between decoder and encoder states: compared with explicit sums, and where they attend when words are reversed."""
    torch.manual_seed(exhibit.seed)
    source, x, lengths = torch.tensor([[3, 1, 2, 5]]), torch.tensor([[0, 2, 1]]), torch.tensor([3])
    for kind in get_args(Scoring):
        model = Seq2Seq(7, 6, mixer="gru", attention=kind).double()
        with torch.no_grad():
            state = model.begin(source, lengths)
            h = model.decoder(model.embedding(x) + state["summary"].unsqueeze(1))[0][0]
            weights = model.align(source, x, lengths)[0]
            look: Any = model.attention
            states = state["memory"][0, :3]
            scores = torch.zeros(3, 3, dtype=torch.float64)
            for t, j in product(range(3), range(3)):
                if kind == "dot":
                    scores[t, j] = h[t] @ states[j]
                elif kind == "general":
                    scores[t, j] = h[t] @ look.key.weight @ states[j]
                else:
                    inner = look.query.weight @ h[t] + look.query.bias + look.key.weight @ states[j]
                    scores[t, j] = look.score.weight[0] @ torch.tanh(inner)
            probabilities = scores.exp() / scores.exp().sum(1, keepdim=True)
        exhibit.expect(f"{kind}: weights of a softmax of the scores", weights[:, :3], probabilities, within=1e-12)
        exhibit.expect(f"{kind}: weight of padding", weights[:, 3], torch.zeros(3))
    batch = words(exhibit.seed, 400, LONG, "test")[:]
    letters = torch.arange(LONG + 1) < batch.lengths.unsqueeze(1)
    mirror = batch.lengths.unsqueeze(1) - 1 - torch.arange(LONG + 1)
    longest, hits = int(batch.lengths.argmax()), {}
    for kind in ("additive", "dot"):
        models = backwards(exhibit, kind)
        with torch.no_grad():
            peaks = [model.align(batch.source, batch.x, batch.lengths).argmax(-1) for model in models]
        hits[kind] = [float((seed == mirror)[letters].float().mean()) for seed in peaks]
        exhibit.above(f"{kind}: share of letters that look most at their mirror place", hits[kind], 0.7)
        one = Subject(models[0], batch[longest : longest + 1])
        exhibit.show(replace(alignment.read(one, n=1)[0], title=f"Alignment, {kind} scores"))
    mean = ", ".join(f"{kind} {spread(fractions, '.1%')}" for kind, fractions in hits.items())
    return f"letters that look at their mirror position, {len(models)} seeds: {mean}"


@final
class ParseTree:
    """A model of texts of up to three tokens over A, B and end, given by a table: what comes next after each beginning."""

    training = False
    NEXT = {
        (): (0.6, 0.4, 0.0),
        (1,): (0.55, 0.45, 0.0),
        (2,): (0.1, 0.9, 0.0),
        (1, 1): (0.35, 0.25, 0.4),
        (1, 2): (0.25, 0.25, 0.5),
        (2, 1): (0.25, 0.25, 0.5),
        (2, 2): (0.05, 0.05, 0.9),
    }

    def train(self, mode: bool = True) -> ParseTree:
        return self

    def advance(self, tokens: Tensor, state: State | None = None, *, spans: Any = None) -> tuple[Tensor, State]:
        read = tokens[:, :0] if state is None else torch.cat([state["read"], tokens], 1)
        probabilities = [(0.0, *self.NEXT.get(tuple(row), (0.0, 0.0, 1.0))) for row in read.tolist()]
        return torch.tensor(probabilities, dtype=torch.float64).log().unsqueeze(1), {"read": read}

    def probability(self, text: tuple[int, ...]) -> float:
        return math.prod(self.NEXT[text[:i]][token - 1] for i, token in enumerate(text))


def s2s_04(exhibit: Exhibit) -> str:
    """The likeliest token at every step need not make the likeliest text; two beams find it."""
    model, start, stop = ParseTree(), torch.zeros(1, 1, dtype=torch.long), Stop(end=3)
    every = {text: model.probability(text) for text in product((1, 2), (1, 2), (1, 2, 3))}
    best = max(every, key=lambda text: every[text])
    exhibit.expect("probabilities of all texts sum to", sum(every.values()), 1.0, within=1e-12)
    greedy = tuple(generate(model, start, 3, stop=stop, temperature=0)[0].tolist())
    searches = {k: beam(model, start, 3, beams=k, power=0.0, stop=stop) for k in (1, 2)}
    texts = {k: tuple(beams.tokens[0, 0].tolist()) for k, beams in searches.items()}
    exhibit.expect("greedy writes", greedy, (1, 1, 3))
    exhibit.expect("its probability, 0.6 * 0.55 * 0.4", every[greedy], 0.132, within=1e-12)
    exhibit.expect("the best of all texts", best, (2, 2, 3))
    exhibit.expect("two beams find it", texts[2], best)
    exhibit.expect("its probability, 0.4 * 0.9 * 0.9", math.exp(float(searches[2].scores[0, 0])), 0.324, within=1e-6)
    exhibit.expect("one beam is greedy", texts[1], greedy)
    longer = generate(model, start, 9, stop=stop, temperature=0)
    exhibit.expect("tokens written where nine are allowed: it stops at the end token", longer.shape[1], 3)
    n = 4000
    drawn = Counter(tuple(row) for row in generate(model, start.expand(n, 1), 3, seed=exhibit.seed).tolist())
    fractions = torch.tensor([drawn[text] / n for text in every], dtype=torch.float64)
    p = torch.tensor(list(every.values()), dtype=torch.float64)
    worst = float(((fractions - p).abs() / (p * (1 - p) / n).sqrt()).max())
    exhibit.below(f"{n} draws: largest distance from a text's probability, in standard errors", worst, 4.0)
    names = ["".join(" AB."[token] for token in text) for text in every]
    bars = {"probability": list(every.values()), f"share of {n} draws": fractions}
    exhibit.show(Bars("All texts of three tokens", bars, labels=names))
    return f"greedy {every[greedy]:.3f}, two beams {every[texts[2]]:.3f}, the best of all {every[best]:.3f}"


def s2s_05(exhibit: Exhibit) -> str:
    """With true prefixes all positions of a target are evaluated in one pass, and the sum is that of a loop over them."""
    batch, worst = words(exhibit.seed, 5, LONG, "test")[:], 0.0
    for attention, feeding in KINDS:
        torch.manual_seed(exhibit.seed)
        model = Seq2Seq(LETTERS + 1, 10, mixer="lstm", attention=attention, feeding=feeding).double()  # type: ignore[arg-type]
        with torch.no_grad():
            at_once = Categorical()(model, batch)["nll"].sum
            loop = torch.zeros((), dtype=torch.float64)
            for i in range(len(batch)):
                n = int(batch.lengths[i])
                state, last = model.begin(batch.source[i : i + 1, :n]), 0
                for token in batch.y[i, : n + 1].tolist():
                    logits, state = model.advance(torch.tensor([[last]]), state)
                    loop -= torch.log(logits[0, 0].exp()[token] / logits[0, 0].exp().sum())
                    last = token  # the truth, whatever the model would have said
        name = f"attention {attention}" + ", fed into the step" * feeding
        worst = max(worst, exhibit.expect(f"{name}: nats of 5 words in one pass, against a loop", at_once, loop, within=1e-9))
        shapes = model(batch.source, batch.x, batch.lengths).shape
        exhibit.expect(f"{name}: places judged in the pass", tuple(shapes[:2]), tuple(batch.y.shape))
    return f"one pass and a loop over true prefixes differ by {worst:.0e} nats, with {len(KINDS)} kinds of decoder"


def s2s_06(exhibit: Exhibit) -> str:
    """Trained on true prefixes only, a model that has to read its own makes more mistakes the further it gets."""
    batch = words(exhibit.seed, 3000, LONG, "test")[:]
    batch = batch[batch.lengths == LONG]
    readings = [exposure.read(Subject(model, batch)) for model in backwards(exhibit, "none")]
    gaps = torch.stack([torch.tensor(r.values["forced"]) - torch.tensor(r.values["free running"]) for r in readings])
    exhibit.expect("gap at the first place, where both have read nothing", gaps[:, 0], torch.zeros(len(gaps)))
    parts = [gaps[:, i : i + 3].mean(1) for i in (0, LONG - 5, LONG - 3)]
    for i, part, bound in ((LONG - 4, parts[1], 0.05), (LONG - 2, parts[2], 0.1)):
        exhibit.above(f"gap in places {i} to {i + 2}, more than in 1 to 3 by", (part - parts[0]).tolist(), bound)
    exhibit.show(readings[0])
    summary = ", ".join(spread(part.tolist(), ".1%") for part in parts)
    return f"gap in positions 1-3, {LONG - 4}-{LONG - 2}, {LONG - 2}-{LONG}, {len(gaps)} seeds: {summary}"


def s2s_07(exhibit: Exhibit) -> str:
    """Some inputs are the model's own tokens: none is teacher forcing, all is free running, and the fraction grows."""
    torch.manual_seed(exhibit.seed)
    model = Seq2Seq(LETTERS + 1, 16, mixer="gru").train()
    batch = words(exhibit.seed, 3000, LONG, "test")[:]
    plain = Categorical()(model, batch).loss()
    exhibit.expect("fraction 0: loss, against teacher forcing", Scheduled(Categorical(), linear(100))(model, batch).loss(), plain)
    free = generate(model, batch.x[:, :1], LONG, state=model.begin(batch.source, batch.lengths), temperature=0)
    own = mix_inputs(model, batch, 1.0, likeliest=True)
    exhibit.expect("fraction 1: inputs, against what it writes by itself", own[:, 1:], free)
    steps = range(0, 1001, 10)
    fractions = {"linear": linear(800, 0.9), "exponential": exponential(0.995), "inverse sigmoid": inverse_sigmoid(90)}
    lines = {name: [fraction(step) for step in steps] for name, fraction in fractions.items()}
    for name, line in lines.items():
        exhibit.expect(f"{name}: at the first step", line[0], 0.0)
        exhibit.above(f"{name}: smallest rise", min(b - a for a, b in zip(line, line[1:])), -1e-12)
        exhibit.above(f"{name}: at the last step", line[-1], 0.85)
    worst = 0.0
    never = batch.replace(
        x=torch.full_like(batch.x, LETTERS + 1)
    )  # a token the model never predicts, so that its own tokens can be recognized
    echo = _Deaf(LETTERS + 1)
    for step in (100, 400, 700):
        fraction = fractions["linear"](step)
        torch.manual_seed(exhibit.seed + step)
        measured = float((mix_inputs(echo, never, fraction)[:, 1:] != LETTERS + 1).float().mean())
        worst = max(worst, abs(measured - fraction))
        exhibit.expect(f"step {step}: measured share of its own tokens", measured, fraction, within=0.02)  # the row asks for 2 %
    exhibit.show(Lines("Fraction of its own tokens", lines, axes=["step", "fraction"], x=list(steps)))
    return f"0 is teacher forcing, 1 is free running; measured shares within {worst:.1%}"


@final
class _Deaf:
    """Predicts all tokens with equal probability, whatever the input."""

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens

    def advance(self, tokens: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        return torch.zeros(*tokens.shape, self.tokens), {}


def s2s_08(exhibit: Exhibit) -> str:
    """Rows are padded to the longest of their batch; rows of similar length waste less, and padding changes no number."""
    lengths = torch.tensor([1, 9, 2, 8])
    rows = Ragged.of(torch.randint(1, LETTERS + 1, (int(n),), generator=exhibit.generator("rows", int(n))) for n in lengths)
    pads = {}
    for name, order in (
        ("as they come", Order(4, 2, exhibit.seed, shuffle=False)),
        ("by length", Order(4, 2, exhibit.seed, sizes=lengths)),
    ):
        pads[name] = sum(int((rows.pad(order.at(step), fill=0) == 0).sum()) for step in range(2))
    exhibit.expect("pads of lengths 1, 9, 2, 8 in batches of 2, as they come", pads["as they come"], 14)
    exhibit.expect("sorted by length", pads["by length"], 2)
    table = {"batches": ["1 9 | 2 8", "1 2 | 8 9"], "pads": list(pads.values())}
    exhibit.show(Table("Padding of two batches", table))

    torch.manual_seed(exhibit.seed)
    model = Seq2Seq(LETTERS + 1, 12, mixer="lstm", attention="additive").double()
    target = Ragged.of(torch.cat([row.flip(0), row[:1]]) for row in (rows[i] for i in range(4))).wrap(0, 0)
    source = PairSource(rows, target, pad=0)
    whole = source[torch.arange(4)]
    with torch.no_grad():
        together, sums = Categorical()(model, whole)["nll"], []
        padded = model.begin(whole.source, whole.lengths)
        far = 0.0
        for i in range(4):
            alone = source[torch.tensor([i])]
            sums.append(Categorical()(model, alone)["nll"])
            own = model.begin(alone.source)
            far = max(far, float((padded["memory"][i, : lengths[i]] - own["memory"][0]).abs().max()))
            far = max(far, float((padded["summary"][i] - own["summary"][0]).abs().max()))
    exhibit.expect("masked sum of a padded batch, against its rows one by one", together.sum, sum(s.sum for s in sums), within=1e-10)
    exhibit.expect("and the tokens counted", together.count, sum(float(s.count) for s in sums))
    exhibit.below("encoder states, padded against alone: largest difference", far, 1e-12)
    return f"{pads['as they come']} pads unsorted, {pads['by length']} sorted; states differ by {far:.0e}"


def s2s_09(exhibit: Exhibit) -> str:
    """Sentences of a toy grammar into another one, with other words, another order and agreement; none of the test was seen."""
    recipe = translate.recipe(pairs="toy", width=48, dropout=0.0, lr=1e-2, steps=120, seed=exhibit.seed)
    data = recipe.build_data()
    seen = {row.tobytes() for row in _rows(data.train)}
    exhibit.expect("sentences of the test that were trained on", sum(row.tobytes() in seen for row in _rows(data.test)), 0)
    fractions, scores = [], []
    for seed in exhibit.seeds():
        model = exhibit.train(recipe.replace(callbacks=()), f"toy-{seed}", seed=seed).model().eval()
        translations, expected, sources = translate.translate_test(model, data)
        fractions.append(exact(translations, expected))
        scores.append(bleu([text.split() for text in translations], [text.split() for text in expected]))
    exhibit.above("sentences translated without a mistake", fractions, 0.97)
    exhibit.above("BLEU", scores, 98.0)
    word_by_word = translate.word_for_word(data, sources)
    simple = exact(word_by_word, expected)
    exhibit.below("sentences right where each word is translated by itself", simple, 0.05)
    table = {"English": sources[:6], "translated": translations[:6], "reference": expected[:6], "word for word": word_by_word[:6]}
    exhibit.show(Table("Translations", table, note=f"The first sentences of the test part, seed {seed}."))
    summary = f"{spread(fractions, '.1%')} exact and BLEU {spread(scores, '.1f')} over {len(fractions)} seeds"
    return f"{summary} on {len(expected)} new sentences; word for word {simple:.1%} exact"


def _rows(source: Any) -> list[Any]:
    return [source.source[i].numpy() for i in range(len(source))]
