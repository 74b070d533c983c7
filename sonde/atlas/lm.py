"""Chapter 19, language models.

Rows that train use languages made up here, so small that the right answer is known, or the text that comes with Python.

B batch, T time, V vocabulary.
"""

from __future__ import annotations

import math
from collections import Counter
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from ..core import shelf
from ..core.batch import Batch, Data, ask
from ..core.reading import Reading
from ..core.seeds import generator
from ..data.corrupt import hide, joined, masking
from ..data.tensors import TensorSource, WindowSource
from ..data.tokeniser import marked, special, train
from ..generate import generate, score
from ..models.bert import Bert
from ..models.elmo import Elmo, ElmoFeatures, neighbours
from ..models.encoder_decoder import EncoderDecoder
from ..models.fine_tune import SequenceHead, TokenHead
from ..models.language_model import LanguageModel
from ..models.ngram import Ngram, Smoothing
from ..models.nnlm import FeedForwardLM
from ..models.published import PUBLISHED, published, size
from ..models.seq2seq import Seq2Seq
from ..nn.adapters import learning
from ..objectives.categorical import Categorical
from . import _lm_parts as toy
from ._exhibit import Exhibit

SMOOTHINGS: tuple[Smoothing, ...] = ("none", "add", "backoff", "kneser-ney")
CAUSAL = [name for name in shelf.names("nn.mixers") if name != "linformer"]
"""mixers that see no later token"""


def _spread(model: Any) -> Any:
    """Every weight away from special values such as 0."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=generator(0, "spread", name))
    return model.eval()


def _nats(model: Any, source: Any, n: int | None = None) -> float:
    """Mean of -log p over the targets of a source."""
    with torch.no_grad():
        return float(Categorical()(model.eval(), source[:n]).loss())


# What a language model is -----------------------------------------------------------------------------------------


def lm_01(exhibit: Exhibit) -> str:
    """Pr(t1 t2 t3) = Pr(t1) Pr(t2; t1) Pr(t3; t1 t2): a distribution over all strings, whichever way the factors are made."""
    V, n = 4, 3
    strings = torch.tensor(list(product(range(V), repeat=n)))
    starts = torch.zeros(len(strings), 1, dtype=torch.long)  # token 0 stands before the text
    models: dict[str, Any] = {f"blocks of {name}": _spread(LanguageModel(V, 8, 1, name)) for name in CAUSAL}
    models["window of 2 tokens"] = _spread(FeedForwardLM(V, 3, 5, 7))
    text = torch.randint(V, (60,), generator=generator(0, "text"))
    models |= {f"trigram, {how}": Ngram(text, V, 3, how) for how in SMOOTHINGS}
    sums = {}
    for name, model in models.items():
        sums[name] = float(score(model, starts, strings).double().exp().sum())
        exhibit.expect(f"{name}: all {V**n} strings", sums[name], 1.0, within=1e-5)
    source = torch.tensor([[1, 3, 2]]).expand(len(strings), -1)
    for name, reader in (("encoder-decoder", EncoderDecoder(V, 8, 1, 2)), ("seq2seq", Seq2Seq(V, 8, mixer="gru", attention="dot"))):
        begun = _spread(reader).begin(source)
        sums[name] = float(score(reader, starts, strings, state=begun).double().exp().sum())
        exhibit.expect(f"{name}, given a source: all {V**n} strings", sums[name], 1.0, within=1e-5)
    x, elmo = torch.cat([starts, strings[:, :-1]], 1), _spread(Elmo(V, 6, 2))
    turned = torch.cat([strings[:, 1:], starts], 1)  # read from the end, token 0 stands behind the text
    for name, way, given in (("ELMo forwards", 0, x), ("ELMo backwards", 1, turned)):
        sums[name] = float(_joint(elmo(given)[:, way], strings).exp().sum())
        exhibit.expect(f"{name}: all {V**n} strings", sums[name], 1.0, within=1e-5)
    seeing = _spread(LanguageModel(V, 8, 1, "attention causal=false", ahead=True))
    wrong = float(_joint(seeing(x), strings).exp().sum())
    exhibit.above("a model that sees later tokens: its sum is off by", abs(wrong - 1), 0.01)

    model = models["blocks of attention"]
    batch = Batch(x=x, y=strings)
    loss = Categorical()(model, batch).loss().detach()
    exhibit.expect(
        "next-token loss, against -log Pr of the strings per token", loss, -score(model, starts, strings).mean() / n, within=1e-5
    )
    gram = models["trigram, kneser-ney"]
    held = torch.randint(V, (50,), generator=generator(1, "text"))
    mean = sum(-float(gram.log_probs(held[:i].unsqueeze(0))[0, held[i]]) for i in range(50)) / 50
    exhibit.expect("perplexity, against exp(mean NLL)", gram.perplexity(held), math.exp(mean), within=1e-9)
    known = Ngram(torch.arange(V), V, 1, "none").perplexity(held)
    exhibit.expect("perplexity where every token is as likely", known, float(V), within=1e-9)
    gap = max(abs(value - 1) for value in sums.values())
    return f"{len(sums)} causal models: all {V**n} strings add up to 1 within {gap:.0e}; one that looks ahead: {wrong:.2f}"


def _joint(logits: Tensor, strings: Tensor) -> Tensor:
    """(B,) log-probability of strings (B, T) from logits (B, T, V) of each token."""
    return logits.detach().double().log_softmax(-1).gather(2, strings.unsqueeze(-1)).sum((1, 2))


def lm_02(exhibit: Exhibit) -> str:
    """P(w; the n-1 words before) is a ratio of counts; what never occurred needs a rule."""
    words = "the cat sat on the mat the cat ran".split()
    names = sorted(set(words))  # cat mat on ran sat the
    text = torch.tensor([names.index(word) for word in words])
    V = len(names)

    def after(model: Ngram, context: str) -> dict[str, float]:
        row = model.log_probs(torch.tensor([[names.index(word) for word in context.split()]])).exp()[0]
        return dict(zip(names, row.tolist()))

    bigram, trigram = Ngram(text, V, 2, "none"), Ngram(text, V, 3, "none")
    by_hand = {("the", "cat"): 2 / 3, ("the", "mat"): 1 / 3, ("cat", "sat"): 1 / 2, ("cat", "ran"): 1 / 2, ("on", "the"): 1.0}
    found = [after(bigram, context)[word] for context, word in by_hand]
    exhibit.expect("bigrams, counted by hand", found, list(by_hand.values()), within=1e-12)
    three = [after(trigram, "the cat")["sat"], after(trigram, "the mat")["the"], after(trigram, "on the")["mat"]]
    exhibit.expect("trigrams, counted by hand", three, [1 / 2, 1.0, 1.0], within=1e-12)

    long = torch.randint(7, (400,), generator=generator(0, "counts"))
    counts, row = Counter(zip(long[:-1].tolist(), long[1:].tolist())), long[:-1].bincount(minlength=7)
    ratio = np.array([[counts[i, j] / int(row[i]) for j in range(7)] for i in range(7)])
    exhibit.expect(
        "49 bigrams of 400 tokens, against a loop", Ngram(long, 7, 2, "none").log_probs(torch.arange(7).view(7, 1)).exp(), ratio, 1e-12
    )

    contexts = torch.tensor(list(product(range(V), repeat=2)))
    table: dict[str, list[str]] = {"after 'mat ran'": names}
    for how in SMOOTHINGS:
        model = Ngram(text, V, 3, how)
        rows = model.log_probs(contexts).exp()
        exhibit.expect(f"{how}: rows of all {V * V} contexts, seen or not, add up to", rows.sum(1), np.ones(V * V), within=1e-12)
        told = after(model, "mat ran")  # never occurred
        table[how] = [f"{value:.3f}" for value in told.values()]
        if how != "none":
            exhibit.above(f"{how}: smallest probability anywhere", rows.min(), 0.0)
    exhibit.expect(
        "added counts after what never occurred", list(after(Ngram(text, V, 3, "add"), "mat ran").values()), np.full(V, 1 / V), 1e-12
    )
    older = torch.randint(7, (20, 1), generator=generator(1, "counts"))
    recent = torch.tensor([[3, 5]]).expand(20, 2)
    grams = {n: Ngram(long, 7, n, "kneser-ney").log_probs(torch.cat([older, recent], 1)) for n in (3, 4)}
    exhibit.expect("a trigram model ignores older words (E-46): spread", (grams[3] - grams[3][:1]).abs().max(), 0.0)
    exhibit.above("a 4-gram model does not: spread", (grams[4] - grams[4][:1]).abs().max(), 0.01)
    exhibit.show(Reading("After two words that never stood together", "table", table))
    return "P(cat; the) = 2/3, P(sat; the cat) = 1/2 as by hand; every row of 4 smoothings adds up to 1"


PAIRS, SECOND, BIG = 5, 4, 20_000


def _second_order(n: int, *key: Any) -> Tensor:
    """A text of PAIRS * SECOND words in SECOND kinds: the kind of a word is the sum of the two before it, the word is any of the kind."""
    dice = generator(0, "second order", *key)
    word = torch.randint(PAIRS, (n,), generator=dice).tolist()
    kinds = [1, 2]
    jumps = (torch.rand(n, generator=dice) < 0.1).tolist()
    other = torch.randint(SECOND, (n,), generator=dice).tolist()
    for i in range(2, n):
        kinds.append(other[i] if jumps[i] else (kinds[-1] + kinds[-2]) % SECOND)
    return torch.tensor([kind * PAIRS + one for kind, one in zip(kinds, word)])


def lm_03(exhibit: Exhibit) -> str:
    """n-1 words -> one shared embedding -> hidden layer -> softmax: it sees further than a bigram and shares what it learns."""
    V, n, d, h = PAIRS * SECOND, 4, 8, 32
    model = FeedForwardLM(V, n, d, h)
    exhibit.expect("|V| d + ((n-1) d + 1) h + (h + 1) |V|", size(model), V * d + ((n - 1) * d + 1) * h + (h + 1) * V)
    x = torch.randint(V, (1, 6), generator=generator(0, "window"))
    onehot = F.one_hot(x[0, 3:6], V).float() @ model.embedding.weight
    logits = model.head(torch.tanh(model.hidden(onehot.flatten()))).detach()
    exhibit.expect("logits against one-hot words times one matrix", model(x)[0, -1].detach(), logits.numpy(), within=1e-6)
    text, held = _second_order(BIG, "train"), _second_order(4000, "held")
    data = Data(WindowSource(text, 32), name="second order")
    learnt = toy.trained(toy.recipe(partial(FeedForwardLM, V, n, d, h), data, Categorical(V), 600, 1e-2))
    found = {"FF-NNLM": math.exp(_nats(learnt, WindowSource(held, 32)))}
    found |= {f"{name}, unsmoothed": Ngram(text, V, order, "none").perplexity(held) for name, order in (("bigram", 2), ("trigram", 3))}
    bigram = found["bigram, unsmoothed"]
    exhibit.below("held-out perplexity of the FF-NNLM over that of the unsmoothed bigram", found["FF-NNLM"] / bigram, 0.75)
    little = Ngram(text[:200], V, 2, "none").perplexity(held)
    exhibit.expect("of 200 words an unsmoothed bigram finds new text impossible", math.isinf(little), True)
    floor = math.exp(0.925 * -math.log(0.925) + 0.075 * -math.log(0.025)) * PAIRS
    exhibit.above("perplexity of the FF-NNLM less that of the language itself", found["FF-NNLM"] - floor, -0.1)
    table = {"model": [*found, "the language itself"], "perplexity": [f"{value:.2f}" for value in (*found.values(), floor)]}
    exhibit.show(Reading("Held-out perplexity", "table", table))
    return f"{size(model):,} parameters as counted; perplexity {found['FF-NNLM']:.1f}, unsmoothed bigram {bigram:.1f}"


BRACKETS, INSIDE = 6, 4


def _brackets(n: int, *key: Any) -> Tensor:
    """Rows of an opening word, INSIDE fillers, and the closing word that belongs to the opening one; three such to a row."""
    dice = generator(0, "brackets", *key)
    kind = torch.randint(BRACKETS, (n, 3, 1), generator=dice)
    filler = 2 * BRACKETS + torch.randint(4, (n, 3, INSIDE), generator=dice)
    return torch.cat([kind, filler, kind + BRACKETS], 2).flatten(1)


def lm_04(exhibit: Exhibit) -> str:
    """The state of a recurrent model carries what lies beyond any window."""
    V, each = 2 * BRACKETS + 4, INSIDE + 2
    rows, test = _brackets(4000, "train"), _brackets(500, "test")
    data = Data(TensorSource(rows[:, :-1], rows[:, 1:]), name="brackets")
    held = TensorSource(test[:, :-1], test[:, 1:])
    makes: dict[str, Any] = {
        "FF-NNLM, window 3": partial(FeedForwardLM, V, 4, 16, 48),
        f"FF-NNLM, window {INSIDE + 1}": partial(FeedForwardLM, V, INSIDE + 2, 16, 48),
        "RNN": partial(LanguageModel, V, 48, 1, "rnn", 0.0),
    }
    closing, perplexity, models = {}, {}, {}
    for name, make in makes.items():
        models[name] = model = toy.trained(toy.recipe(make, data, Categorical(V), 300, 5e-3))
        with torch.no_grad():
            guess = model(held[:].x).argmax(-1)
        closing[name] = float((guess == held[:].y)[:, each - 2 :: each].float().mean())
        perplexity[name] = math.exp(_nats(model, held))
    exhibit.above("closing words right, RNN", closing["RNN"], 0.98)
    exhibit.below(f"closing words right, window of 3 before {INSIDE} fillers", closing["FF-NNLM, window 3"], 1 / BRACKETS + 0.08)
    exhibit.above(f"closing words right, window of {INSIDE + 1}", closing[f"FF-NNLM, window {INSIDE + 1}"], 0.98)
    exhibit.below("perplexity of the RNN over that of the window of 3", perplexity["RNN"] / perplexity["FF-NNLM, window 3"], 0.9)
    changed = test[:, : each - 1].clone()
    changed[:, 0] = (changed[:, 0] + 1) % BRACKETS
    with torch.no_grad():
        moved = {name: float((model(changed)[:, -1] - model(test[:, : each - 1])[:, -1]).abs().max()) for name, model in models.items()}
    exhibit.expect("another opening word moves the logits of the window of 3 by", moved["FF-NNLM, window 3"], 0.0)
    exhibit.above("and those of the RNN by", moved["RNN"], 1.0)
    shown = {"model": list(makes), "closing words right": [f"{value:.1%}" for value in closing.values()]}
    exhibit.show(Reading("Words that close what was opened", "table", shown | {"perplexity": [f"{p:.2f}" for p in perplexity.values()]}))
    return f"closing words: RNN {closing['RNN']:.1%}, window of 3 {closing['FF-NNLM, window 3']:.1%} (chance {1 / BRACKETS:.1%})"


def lm_05(exhibit: Exhibit) -> str:
    """Two directions, frozen; a task learns gamma sum_j softmax(s)_j h_j and its head."""
    torch.manual_seed(0)
    V, C, depth = 8, 2, 2
    dice = generator(0, "elmo")
    x = torch.randint(V, (600, 9), generator=dice)
    y, mask = (x < x.roll(-1, 1)).long(), (torch.arange(9) < 8).expand_as(x)  # only who sees the next token can tell
    elmo = Elmo(V, 16, depth)
    targets, there = neighbours(x)
    pre = Data(TensorSource(x, targets, mask=there), name="both neighbours")
    elmo = toy.trained(toy.recipe(lambda: elmo, pre, Categorical(V), 40, 1e-2))
    elmo.zero_grad()
    before = toy.weights(elmo)
    model = TokenHead(ElmoFeatures(elmo), C)
    names = ["body.mix.gamma", "body.mix.s", "head.bias", "head.weight"]
    exhibit.expect("what may learn", sorted(learning(model)), names)
    Categorical()(model, Batch(x=x, y=y, mask=mask)).backward()
    exhibit.expect("what receives a gradient", sorted(name for name, p in model.named_parameters() if p.grad is not None), names)
    data = Data(TensorSource(x, y, mask=mask), name="smaller than the next")
    model = toy.trained(toy.recipe(lambda: model, data, Categorical(C), 200, 3e-2))
    mix = model.body.mix
    exhibit.expect("scalars of the mix: one for each layer, and gamma", sum(p.numel() for p in mix.parameters()), depth + 2)
    shares = mix.shares.detach()
    exhibit.expect("mixing weights add up to", shares.double().sum(), 1.0, within=1e-6)
    exhibit.above("they have learnt: largest less smallest", shares.max() - shares.min(), 0.01)
    exhibit.expect("the language model is the same, bit for bit", toy.weights(model.body.elmo), before)
    layers = model.body.elmo.layers(x[:5]).detach().double()
    e = [math.exp(s) for s in mix.s.tolist()]
    wanted = mix.gamma.item() * sum(part / sum(e) * layer for part, layer in zip(e, layers))
    exhibit.expect("features against the sum written out", model.body(x[:5]).detach(), wanted.numpy(), within=1e-5)  # type: ignore[union-attr]
    right = float((model(x).argmax(-1) == y)[mask].float().mean())
    exhibit.above("tags right", right, 0.7)
    told = ", ".join(f"{share:.2f}" for share in shares.tolist())
    return f"{depth + 2} scalars and the head learn; weights of the {depth + 1} layers {told}; {right:.1%} of tags right"


@torch.no_grad()
def lm_06(exhibit: Exhibit) -> str:
    """What sees both sides represents; what sees the past alone can also go on."""
    V, T = 11, 7
    models: dict[str, Any] = {
        "BERT": Bert(V, 16, 2, "attention heads=2", 2.0, places=16),
        "GPT": LanguageModel(V, 16, 2, "attention heads=2", style="gpt2", positions="learned", places=16),
        "LSTM": LanguageModel(V, 16, 1, "lstm"),
    }
    x = torch.randint(V, (1, T), generator=generator(0, "seen"))
    seen: dict[str, Tensor] = {}
    for name, model in models.items():
        model = _spread(model).double()
        rows = x.repeat(T, 1)
        places = torch.arange(T)
        rows[places, places] = (rows[places, places] + 1) % V  # row i has another token at place i
        seen[name] = ((model.features(rows)[0] - model.features(x)[0]).abs().amax(-1) > 1e-9).T.int()  # (output, token)
    exhibit.expect("BERT: outputs that change with a later token", int(seen["BERT"].triu(1).sum()), T * (T - 1) // 2)
    for name in ("GPT", "LSTM"):
        exhibit.expect(f"{name}: outputs that change with a later token", int(seen[name].triu(1).sum()), 0)
    for name, one in seen.items():
        exhibit.expect(f"{name}: outputs that change with the token itself or an earlier one", int(one.tril().sum()), T * (T + 1) // 2)
    exhibit.refuses("generate() with BERT", lambda: generate(models["BERT"], x, 4))
    exhibit.refuses(
        "generate() with blocks that see both sides", lambda: generate(LanguageModel(V, 16, 1, "attention causal=false", ahead=True), x, 4)
    )
    exhibit.refuses("a causal model of such blocks", lambda: LanguageModel(V, 16, 1, "linformer"))
    exhibit.expect("tokens that GPT goes on with", generate(models["GPT"].float(), x, 4).shape[1], 4)
    exhibit.show(Reading("Does output t change with token s?", "heat", seen, axes=["output t", "token s"]))
    return f"of {T * (T - 1) // 2} later places BERT sees {int(seen['BERT'].triu(1).sum())}, GPT and LSTM none; generate() refuses BERT"


# BERT ---------------------------------------------------------------------------------------------------------------


def _bert_by_hand(d: int, layers: int, V: int = 30522, places: int = 512) -> int:
    """Embeddings and their norm, blocks, pooler."""
    attention, network, norms = 4 * (d * d + d), 2 * d * 4 * d + 4 * d + d, 4 * d
    return (V + places + 2) * d + 2 * d + layers * (attention + network + norms) + d * d + d


def lm_07(exhibit: Exhibit) -> str:
    """BERT-large: 30522 tokens, 1024 numbers, 24 layers, 16 heads; counted without memory for one number."""
    heads = ("token_", "pair_head")
    large, base = published("bert_large"), published("bert_base")
    told = {
        "vocabulary": large.vocabulary,
        "width": large.width,
        "layers": len(large.stack.blocks),
        "heads": large.stack.blocks[0].mixer.heads,
    }  # type: ignore
    exhibit.expect("configuration", list(told.values()), [30522, 1024, 24, 16])
    exhibit.expect("places of the numbers", {p.device.type for p in large.parameters()} == {"meta"}, True)
    number, whole = size(large, *heads), size(large)
    exhibit.expect("large, with pooler", number, 335_141_888)
    exhibit.expect("large, counted by hand", _bert_by_hand(1024, 24), 335_141_888)
    exhibit.expect("large, with both heads", whole, 336_226_108)
    exhibit.expect("base, with pooler", size(base, *heads), 109_482_240)
    exhibit.expect("base, counted by hand", _bert_by_hand(768, 12), 109_482_240)
    exhibit.below("distance from the nominal 340M (C-22)", abs(number / 340e6 - 1), 0.02)
    parts = {"embeddings": 0, "blocks": 0, "pooler": 0, "heads": 0}
    for name, p in large.named_parameters():
        part = (
            "blocks"
            if name.startswith("stack")
            else "pooler"
            if name.startswith("pooler")
            else "heads"
            if name.startswith(heads)
            else "embeddings"
        )
        parts[part] += p.numel()
    exhibit.show(Reading("BERT-large", "table", {"part": list(parts), "parameters": [f"{n:,}" for n in parts.values()]}))
    return f"large {number:,} ({number / 340e6 - 1:+.1%} of 340M), {whole:,} with heads; base {size(base, *heads):,}"


class _Maps(TorchFunctionMode):
    """Where the matrices of all linear maps lie that run inside it."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[int] = []

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is F.linear:
            self.seen.append(args[1].data_ptr())
        return function(*args, **(kwargs or {}))


def lm_08(exhibit: Exhibit) -> str:
    """-log p of the hidden tokens given the others; p = softmax(h e(x)) with the embeddings themselves."""
    model, batch = toy.pretrained_bert(), toy.asked()[:64]
    out = model(batch.x, batch.kinds, batch.lengths)["tokens"]
    out.retain_grad()
    Categorical()(type("Given", (), {"__call__": lambda self, x: out})(), batch).backward()
    asked = int(batch.mask.sum())
    assert out.grad is not None
    exhibit.expect("gradient to logits at places not asked", out.grad[~batch.mask].abs().max(), 0.0)
    wanted = (out.detach().softmax(-1) - F.one_hot(batch.y, out.shape[-1])) / asked
    exhibit.expect("at places asked: (p - onehot) / places", out.grad[batch.mask], wanted[batch.mask].numpy(), within=1e-7)
    tied = model.embedding.weight.grad
    assert tied is not None

    with _Maps() as maps:
        model.logits(torch.zeros(1, 1, model.width))
    exhibit.expect("the last map is the table of embeddings itself", maps.seen[-1] == model.embedding.weight.data_ptr(), True)
    exhibit.expect("matrices of the shape of the table", sum(p.shape == model.embedding.weight.shape for p in model.parameters()), 1)
    model.zero_grad()
    x, _ = model.features(batch.x, kinds=batch.kinds)
    h = model.token_norm(F.gelu(model.token_map(x)))
    apart = model.embedding.weight.detach().clone().requires_grad_()
    logits = h @ apart.T + model.token_bias
    exhibit.expect("logits are h e(x) + b", logits.detach(), out.detach().numpy(), within=1e-4)
    F.cross_entropy(logits[batch.mask], batch.y[batch.mask]).backward()
    assert apart.grad is not None and model.embedding.weight.grad is not None
    exhibit.expect(
        "one gradient: that of the tokens read plus that of the tokens told", tied, (apart.grad + model.embedding.weight.grad).numpy(), 1e-6
    )

    made, long = toy.tokeniser(), toy.sentences(40_000, "rates")
    rates = {}
    for rate, shares in ((0.15, (0.8, 0.1, 0.1)), (0.4, (1.0, 0.0, 0.0))):
        found = masking(made, rate, shares)(long, generator(0, "rates"))
        hidden = found.x[found.mask] == special(made, "mask")
        left = found.x[found.mask] == found.y[found.mask]
        share = float(found.mask[:, 1:].float().mean())
        parts = [float(hidden.float().mean()), float((~hidden & ~left).float().mean()), float(left.float().mean())]
        # 160,000 words and 24,000 asked: four standard deviations; another word is the same one once in 192
        exhibit.expect(f"rate {rate}: share of words asked", share, rate, within=0.005)
        exhibit.expect(f"rate {rate}: of them masked, replaced, left", parts, list(shares), within=0.011)
        exhibit.expect(f"rate {rate}: [CLS] asked", int(found.mask[:, 0].sum()), 0)
        rates[rate] = share
    held = toy.asked()[:]
    with torch.no_grad():
        nats = float(F.cross_entropy(model(held.x, held.kinds, held.lengths)["tokens"][held.mask], held.y[held.mask]))
    words = len(toy.TOPICS) * toy.WORDS
    exhibit.below(f"perplexity of hidden words, {words} without a context", math.exp(nats), words / 3)
    return f"{asked} places carry the loss; one table for in and out; rates {rates[0.15]:.3f}, {rates[0.4]:.3f}; perplexity {math.exp(nats):.0f} of {words}"


def lm_09(exhibit: Exhibit) -> str:
    """Two sentences with two words hidden make two terms of loss; a causal model gets one from nearly every token."""
    first, second = "Let's make some chicken!", "It tastes great with orange sauce."
    made = train("words", [first, second], 100, ("pad", "unknown", "cls", "sep", "mask"))
    sides = [(made.encode(text).long().unsqueeze(0), torch.tensor([len(made.encode(text))])) for text in (first, second)]
    x, kinds, _ = joined(*sides, (special(made, "cls"), special(made, "sep"), special(made, "pad")))  # type: ignore[arg-type]
    wanted = [made.tokens.index(word) for word in ("some", "tastes")]
    batch = hide(Batch(x=x, kinds=kinds), torch.isin(x, torch.tensor(wanted)), special(made, "mask"))
    told = " ".join(made.tokens[token] for token in batch.x[0].tolist())
    exhibit.expect("what the model reads", told, "<cls> Let ' s make <mask> chicken ! <sep> It <mask> great with orange sauce . <sep>")
    exhibit.expect("what it is asked", [made.tokens[token] for token in batch.y[batch.mask].tolist()], ["some", "tastes"])
    exhibit.expect(
        "the same from text with its marks",
        batch.x[0],
        marked(made, f"<cls>{first}<sep>{second}<sep>".replace("some", "<mask>").replace("tastes", "<mask>")),
    )
    exhibit.expect("terms of the loss", Categorical().counts(batch)["nll"], 2.0)
    model = Bert(made.size, 16, 1, "attention heads=2", 2.0, places=32)
    logits = model(batch.x, batch.kinds)["tokens"].log_softmax(-1).detach()
    by_hand = -sum(float(logits[0, place, token]) for place, token in zip(batch.mask[0].nonzero().flatten().tolist(), wanted)) / 2
    exhibit.expect(
        "loss, against the mean of the two",
        Categorical().terms(model(batch.x, batch.kinds)["tokens"], batch).loss().detach(),
        by_hand,
        1e-5,
    )
    exhibit.expect("second sentence in kinds", int(batch.kinds.sum()), 8)
    seven = torch.randint(9, (1, 7), generator=generator(0, "seven"))
    places = torch.tensor([[False, True, False, False, True, False, False]])
    masked = Categorical().counts(hide(Batch(x=seven), places, 9))["nll"]
    causal = Categorical().counts(WindowSource(seven[0], 6)[:])["nll"]
    exhibit.expect("terms from 7 tokens: masked, causal", [masked, causal], [2.0, 6.0])
    efficiency = {"task": ["masked, 2 of 7", "causal"], "terms": [masked, causal], "per token": [f"{masked / 7:.2f}", f"{causal / 7:.2f}"]}
    exhibit.show(Reading("Terms of loss from 7 tokens", "table", efficiency))
    return f"two targets: some, tastes; from 7 tokens {masked:.0f} terms masked ({masked / 7:.0%}), {causal:.0f} causal ({causal / 7:.0%})"


def lm_10(exhibit: Exhibit) -> str:
    """Is it the next sentence?  And what was learnt without labels serves where labels are few."""
    held = toy.asked()[:]
    with torch.no_grad():
        pair = toy.pretrained_bert().eval()(held.x, held.kinds, held.lengths)["pair"]
    share = float((pair.argmax(1) == held.follows).float().mean())
    exhibit.above("next-sentence questions right, chance is a half", share, 0.85)
    topics, few, test = len(toy.TOPICS), toy.few(), toy.sentences(1000, "test")
    answers: dict[str, tuple[Any, Any]] = {
        "sequence, linear": (lambda body: SequenceHead(body, topics, "mean"), False),
        "sequence at [CLS], hidden layer": (lambda body: SequenceHead(body, topics, "first", 32), False),
        "tokens, linear": (lambda body: TokenHead(body, topics), True),
    }
    table: dict[str, list[str]] = {"head": [], "pre-trained": [], "from scratch": []}
    figures = []
    for name, (head, each) in answers.items():
        y, wanted = (batch.y.unsqueeze(1).expand_as(batch.x) if each else batch.y for batch in (few, test))
        right = []
        for body in (toy.pretrained_bert, toy.bert):
            model = toy.trained(toy.recipe(partial(_with_head, head, body), Data(TensorSource(few.x, y)), Categorical(topics), 60, 2e-3))
            with torch.no_grad():
                right.append(float((model(test.x).argmax(-1) == wanted).float().mean()))
        exhibit.above(f"{name}: pre-trained, {len(few)} labelled sentences", right[0], 0.8)
        exhibit.above(f"{name}: better than from scratch by", right[0] - right[1], 0.2)
        for column, value in zip(table.values(), (name, *(f"{one:.1%}" for one in right))):
            column.append(value)
        figures.append(f"{right[0]:.0%} against {right[1]:.0%}")
    exhibit.show(Reading(f"Topics of 1000 sentences from {len(few)} labels", "table", table))
    return f"NSP {share:.1%}; pre-trained against scratch: {', '.join(figures)}"


def _with_head(head: Any, body: Any) -> Any:
    torch.manual_seed(0)
    return head(body())
