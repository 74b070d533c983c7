"""Chapter 19, language models.

Rows that train use languages made up here, so small that the right answer is known, or the text that comes with Python.

B batch, T time, V vocabulary.
"""

from __future__ import annotations

import math
from collections import Counter
from functools import partial
from itertools import product
from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from ..core import registry
from ..core.batch import Batch, Data, call_model
from ..core.reading import Heat, Lines, Subject, Table
from ..core.seeds import generator
from ..data.corrupt import hide, join_pair, masking, restore_spans, span_corruption, span_numbers
from ..data.sequences import in_context
from ..data.tensors import TensorSource, WindowSource
from ..data.text.pairs import pairs
from ..data.text.tokenizer import encode_marked, special, train
from ..generate import exact, few_shot, generate, score, translate
from ..generate.prompts import CORRECTION
from ..lenses import alignment
from ..models.bert import Bert
from ..models.elmo import Elmo, ElmoFeatures, neighbors
from ..models.encoder_decoder import EncoderDecoder
from ..models.fine_tune import SequenceHead, TokenHead
from ..models.language_model import LanguageModel
from ..models.ngram import Ngram, Smoothing
from ..models.nnlm import FeedForwardLM
from ..models.published import PUBLISHED, published_model, size
from ..models.seq2seq import Seq2Seq
from ..nn.adapters import Bottleneck, Prompted, add_bottlenecks, add_lora, freeze, trainable_names
from ..nn.mixers import mixer_class
from ..objectives.categorical import Categorical
from ..objectives.joint import Joint, Part
from ..recipes import translate as translation
from . import _language_model_parts as toy
from .exhibit import Exhibit, spread

SMOOTHINGS: tuple[Smoothing, ...] = ("none", "add", "backoff", "kneser-ney")
CAUSAL = [name for name in registry.names("nn.mixers") if mixer_class(name).causal]
"""mixers that see no later token"""


# What a language model is -----------------------------------------------------------------------------------------


def lm_01(exhibit: Exhibit) -> str:
    """Pr(t1 t2 t3) = Pr(t1) Pr(t2; t1) Pr(t3; t1 t2): a distribution over all strings, whichever way the factors are made."""
    V, n = 4, 3
    strings = torch.tensor(list(product(range(V), repeat=n)))
    starts = torch.zeros(len(strings), 1, dtype=torch.long)  # token 0 stands before the text
    models: dict[str, Any] = {f"blocks of {name}": toy.perturb(exhibit.seed, LanguageModel(V, 8, 1, name)) for name in CAUSAL}
    models["window of 2 tokens"] = toy.perturb(exhibit.seed, FeedForwardLM(V, 3, 5, 7))
    text = torch.randint(V, (60,), generator=exhibit.generator("text"))
    models |= {f"trigram, {how}": Ngram(text, V, 3, how) for how in SMOOTHINGS}
    sums = {}
    for name, model in models.items():
        sums[name] = float(score(model, starts, strings).double().exp().sum())
        exhibit.expect(f"{name}: all {V**n} strings", sums[name], 1.0, within=1e-5)
    source = torch.tensor([[1, 3, 2]]).expand(len(strings), -1)
    readers: dict[str, Any] = {"encoder-decoder": EncoderDecoder(V, 8, 1, 2), "seq2seq": Seq2Seq(V, 8, mixer="gru", attention="dot")}
    for name, reader in readers.items():
        state = toy.perturb(exhibit.seed, reader).begin(source)
        sums[name] = float(score(reader, starts, strings, state=state).double().exp().sum())
        exhibit.expect(f"{name}, given a source: all {V**n} strings", sums[name], 1.0, within=1e-5)
    x, elmo = torch.cat([starts, strings[:, :-1]], 1), toy.perturb(exhibit.seed, Elmo(V, 6, 2))
    turned = torch.cat([strings[:, 1:], starts], 1)  # read from the end, token 0 stands behind the text
    for name, direction, tokens in (("ELMo forwards", 0, x), ("ELMo backwards", 1, turned)):
        sums[name] = float(_joint(elmo(tokens)[:, direction], strings).exp().sum())
        exhibit.expect(f"{name}: all {V**n} strings", sums[name], 1.0, within=1e-5)
    blocks = [LanguageModel(V, 8, 1, "attention causal=false", noncausal=True) for _ in range(48)]
    seeing = [toy.perturb(48 * exhibit.seed + i, block) for i, block in enumerate(blocks)]
    wrong = float(np.mean([abs(_joint(one(x), strings).exp().sum().item() - 1) for one in seeing]))
    exhibit.above("48 models that see later tokens: their sums are off, on average, by", wrong, 0.03)

    model = models["blocks of attention"]
    batch = Batch(x=x, y=strings)
    loss = Categorical()(model, batch).loss().detach()
    exhibit.expect(
        "next-token loss, against -log Pr of the strings per token", loss, -score(model, starts, strings).mean() / n, within=1e-5
    )
    gram = models["trigram, kneser-ney"]
    held = torch.randint(V, (50,), generator=generator(exhibit.seed + 1, "text"))
    mean = sum(-float(gram.log_probs(held[:i].unsqueeze(0))[0, held[i]]) for i in range(50)) / 50
    exhibit.expect("perplexity, against exp(mean NLL)", gram.perplexity(held), math.exp(mean), within=1e-9)
    known = Ngram(torch.arange(V), V, 1, "none").perplexity(held)
    exhibit.expect("perplexity where every token is as likely", known, float(V), within=1e-9)
    gap = max(abs(value - 1) for value in sums.values())
    return f"{len(sums)} causal models: all {V**n} strings add up to 1 within {gap:.0e}; of those that look ahead, {wrong:.2f} off"


def _joint(logits: Tensor, strings: Tensor) -> Tensor:
    """(B,) log-probability of strings (B, T) from logits (B, T, V) of each token."""
    return logits.detach().double().log_softmax(-1).gather(2, strings.unsqueeze(-1)).sum((1, 2))


def lm_02(exhibit: Exhibit) -> str:
    """P(w; the n-1 words before) is a ratio of counts; what never occurred needs a rule."""
    words = ["the", "cat", "sat", "on", "the", "mat", "the", "cat", "ran"]
    names = sorted(set(words))  # cat mat on ran sat the
    text = torch.tensor([names.index(word) for word in words])
    V = len(names)

    def after(model: Ngram, context: str) -> dict[str, float]:
        row = model.log_probs(torch.tensor([[names.index(word) for word in context.split()]])).exp()[0]
        return dict(zip(names, row.tolist()))

    bigram, trigram = Ngram(text, V, 2, "none"), Ngram(text, V, 3, "none")
    by_hand = {("the", "cat"): 2 / 3, ("the", "mat"): 1 / 3, ("cat", "sat"): 1 / 2, ("cat", "ran"): 1 / 2, ("on", "the"): 1.0}
    probabilities = [after(bigram, context)[word] for context, word in by_hand]
    exhibit.expect("bigrams, counted by hand", probabilities, list(by_hand.values()), within=1e-12)
    three = [after(trigram, "the cat")["sat"], after(trigram, "the mat")["the"], after(trigram, "on the")["mat"]]
    exhibit.expect("trigrams, counted by hand", three, [1 / 2, 1.0, 1.0], within=1e-12)

    long = torch.randint(7, (400,), generator=exhibit.generator("counts"))
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
        distribution = after(model, "mat ran")  # never occurred
        table[how] = [f"{value:.3f}" for value in distribution.values()]
        if how != "none":
            exhibit.above(f"{how}: smallest probability anywhere", rows.min(), 0.0)
    exhibit.expect(
        "added counts after what never occurred", list(after(Ngram(text, V, 3, "add"), "mat ran").values()), np.full(V, 1 / V), 1e-12
    )
    contexts = torch.tensor(list(product(range(7), repeat=3)))  # the oldest word first: 7 of them before each of 49 recent pairs
    grams = {n: Ngram(long, 7, n, "kneser-ney").log_probs(contexts).view(7, 49, 7) for n in (3, 4)}
    exhibit.expect("a trigram model ignores older words (E-46): spread", (grams[3] - grams[3][:1]).abs().max(), 0.0)
    exhibit.above("a 4-gram model does not: spread, mean of 49 pairs", (grams[4] - grams[4][:1]).abs().amax((0, 2)).mean(), 0.3)
    exhibit.show(Table("After two words that never stood together", table))
    return "P(cat; the) = 2/3, P(sat; the cat) = 1/2 as by hand; every row of 4 smoothings adds up to 1"


def lm_03(exhibit: Exhibit) -> str:
    """n-1 words -> one shared embedding -> hidden layer -> softmax: it sees further than a bigram and shares what it learns."""
    V, n, d, h = toy.PAIRS * toy.SECOND, 4, 8, 32
    model = FeedForwardLM(V, n, d, h)
    exhibit.expect("|V| d + ((n-1) d + 1) h + (h + 1) |V|", size(model), V * d + ((n - 1) * d + 1) * h + (h + 1) * V)
    x = torch.randint(V, (1, 6), generator=exhibit.generator("window"))
    onehot = F.one_hot(x[0, 3:6], V).float() @ model.embedding.weight
    logits = model.head(torch.tanh(model.hidden(onehot.flatten()))).detach()
    exhibit.expect("logits against one-hot words times one matrix", model(x)[0, -1].detach(), logits.numpy(), within=1e-6)
    text, held = toy.second_order(exhibit.seed, 20_000, "train"), toy.second_order(exhibit.seed, 4000, "held")
    data = Data(WindowSource(text, 32), name="second order")
    models = toy.of_each_seed(exhibit, toy.recipe(partial(FeedForwardLM, V, n, d, h), data, Categorical(V), 200, 2e-2))
    neural = [math.exp(toy.nats(one, WindowSource(held, 32))) for one in models]
    bigram, trigram = (Ngram(text, V, order, "none").perplexity(held) for order in (2, 3))
    exhibit.below("held-out perplexity of the FF-NNLM over that of the unsmoothed bigram", [one / bigram for one in neural], 0.5)
    little = Ngram(text[:200], V, 2, "none").perplexity(held)
    exhibit.expect("of 200 words an unsmoothed bigram finds new text impossible", math.isinf(little), True)
    floor = math.exp(0.925 * -math.log(0.925) + 0.075 * -math.log(0.025)) * toy.PAIRS
    exhibit.above("perplexity of the FF-NNLM less that of the language itself", [one - floor for one in neural], -0.1)
    perplexities = {"FF-NNLM": spread(neural), "bigram, unsmoothed": f"{bigram:.2f}", "trigram, unsmoothed": f"{trigram:.2f}"}
    perplexities["the language itself"] = f"{floor:.2f}"
    exhibit.show(Table("Held-out perplexity", {"model": list(perplexities), "perplexity": list(perplexities.values())}))
    return f"{size(model):,} parameters as counted; perplexity {spread(neural)}, unsmoothed bigram {bigram:.1f}"


def lm_04(exhibit: Exhibit) -> str:
    """The state of a recurrent model carries what lies beyond any window."""
    V, inside = 2 * toy.BRACKETS + 4, toy.INSIDE
    each, near, far = inside + 2, "FF-NNLM, window 3", f"FF-NNLM, window {inside + 1}"
    data, held = Data(toy.brackets(exhibit.seed, 4000, "train"), name="brackets"), toy.brackets(exhibit.seed, 500, "test")
    makes: dict[str, Any] = {
        near: partial(FeedForwardLM, V, 4, 16, 48),
        far: partial(FeedForwardLM, V, inside + 2, 16, 48),
        "RNN": partial(LanguageModel, V, 48, 1, "rnn", 0.0),
    }
    models = {name: toy.of_each_seed(exhibit, toy.recipe(make, data, Categorical(V), 160, 1e-2)) for name, make in makes.items()}
    opened = held[:].x[:, : each - 1]
    changed = opened.clone()
    changed[:, 0] = (changed[:, 0] + 1) % toy.BRACKETS
    closing, perplexity, moved = {}, {}, {}
    with torch.no_grad():
        for name, some in models.items():
            closing[name] = [float((one(held[:].x).argmax(-1) == held[:].y)[:, each - 2 :: each].float().mean()) for one in some]
            perplexity[name] = [math.exp(toy.nats(one, held)) for one in some]
            moved[name] = [float((one(changed)[:, -1] - one(opened)[:, -1]).abs().max()) for one in some]
    exhibit.above("closing words right, RNN", closing["RNN"], 0.98)
    exhibit.below(f"closing words right, window of 3 before {inside} fillers", closing[near], 1 / toy.BRACKETS + 0.08)
    exhibit.above(f"closing words right, window of {inside + 1}", closing[far], 0.98)
    ratio = [ours / theirs for ours, theirs in zip(perplexity["RNN"], perplexity[near])]
    exhibit.below("perplexity of the RNN over that of the window of 3", ratio, 0.7)
    exhibit.expect("another opening word moves the logits of the window of 3 by", max(moved[near]), 0.0)
    exhibit.above("and those of the RNN by", moved["RNN"], 1.0)
    shown = {"closing words right": [spread(some, ".1%") for some in closing.values()], "perplexity": [*map(spread, perplexity.values())]}
    exhibit.show(Table("Words that close what was opened", {"model": list(makes), **shown}))
    summary = f"RNN {spread(closing['RNN'], '.1%')}, window of 3 {spread(closing[near], '.1%')}"
    return f"closing words: {summary} (chance {1 / toy.BRACKETS:.1%})"


def lm_05(exhibit: Exhibit) -> str:
    """Two directions, frozen; a task learns gamma sum_j softmax(s)_j h_j and its head."""
    V, C, depth = 8, 2, 2
    x = torch.randint(V, (600, 9), generator=exhibit.generator("elmo"))
    y, mask = (x.roll(-1, 1) >= V // 2).long(), (torch.arange(9) < 8).expand_as(x)  # the next token alone decides: the own one says nothing
    targets, there = neighbors(x)
    pre = Data(TensorSource(x, targets, mask=there), name="both neighbors")
    data = Data(TensorSource(x, y, mask=mask), name="the next one is large")
    elmos = toy.of_each_seed(exhibit, toy.recipe(partial(Elmo, V, 16, depth), pre, Categorical(V), 30, 1e-2), n=5)
    models = [TokenHead(ElmoFeatures(elmo), C) for elmo in elmos]
    names, before = ["body.mix.gamma", "body.mix.s", "head.bias", "head.weight"], [toy.weights(elmo) for elmo in elmos]
    exhibit.expect("what may learn", sorted(trainable_names(models[0])), names)
    models[0].zero_grad()
    Categorical()(models[0], Batch(x=x, y=y, mask=mask)).backward()
    exhibit.expect("what receives a gradient", sorted(name for name, p in models[0].named_parameters() if p.grad is not None), names)
    fit = [
        toy.train_model(toy.recipe(lambda: model, data, Categorical(C), 100, 4e-2), seed)  # noqa: B023
        for seed, model in zip(exhibit.seeds(5), models)
    ]
    exhibit.expect("the language models are the same, bit for bit", [toy.weights(model.body.elmo) for model in fit], before)
    mix, layers = fit[0].body.mix, fit[0].body.elmo.layers(x[:5]).detach().double()
    exhibit.expect("scalars of the mix: one for each layer, and gamma", sum(p.numel() for p in mix.parameters()), depth + 2)
    fractions = torch.stack([model.body.mix.weights.detach() for model in fit])
    exhibit.expect("mixing weights add up to", fractions.double().sum(1), np.ones(len(fit)), within=1e-6)
    exhibit.above("they have learned: largest less smallest", (fractions.amax(1) - fractions.amin(1)).tolist(), 0.01)
    e = [math.exp(s) for s in mix.s.tolist()]
    expected = mix.gamma.item() * sum(part / sum(e) * layer for part, layer in zip(e, layers))
    exhibit.expect("features against the sum written out", fit[0].body(x[:5]).detach(), expected.numpy(), within=1e-5)
    new = torch.randint(V, (200, 9), generator=generator(exhibit.seed + 1, "elmo"))
    hit = [(model(new).argmax(-1) == (new.roll(-1, 1) >= V // 2))[mask[:200]] for model in fit]
    right = [float(each.float().mean()) for each in hit]
    exhibit.above("tags right on new rows, where a reader of the past alone gets half", right, 0.72, mean=True)
    summary = ", ".join(spread(fraction, ".2f") for fraction in fractions.T.tolist())
    return f"{depth + 2} scalars and the head learn; weights of the {depth + 1} layers {summary}; {spread(right, '.1%')} of tags right"


@torch.no_grad()
def lm_06(exhibit: Exhibit) -> str:
    """What sees both sides represents; what sees the past alone can also go on."""
    V, T = 11, 7
    models: dict[str, Any] = {
        "BERT": Bert(V, 16, 2, "attention heads=2", 2.0, max_positions=16),
        "GPT": LanguageModel(V, 16, 2, "attention heads=2", style="gpt2", positions="learned", max_positions=16),
        "LSTM": LanguageModel(V, 16, 1, "lstm"),
    }
    x = torch.randint(V, (1, T), generator=exhibit.generator("seen"))
    seen: dict[str, Tensor] = {}
    for name, model in models.items():
        model = toy.perturb(exhibit.seed, model).double()
        rows = x.repeat(T, 1)
        positions = torch.arange(T)
        rows[positions, positions] = (rows[positions, positions] + 1) % V  # row i has another token at position i
        seen[name] = ((model.features(rows)[0] - model.features(x)[0]).abs().amax(-1) > 1e-9).T.int()  # (output, token)
    exhibit.expect("BERT: outputs that change with a later token", int(seen["BERT"].triu(1).sum()), T * (T - 1) // 2)
    for name in ("GPT", "LSTM"):
        exhibit.expect(f"{name}: outputs that change with a later token", int(seen[name].triu(1).sum()), 0)
    for name, one in seen.items():
        exhibit.expect(f"{name}: outputs that change with the token itself or an earlier one", int(one.tril().sum()), T * (T + 1) // 2)
    exhibit.refuses("generate() with BERT", lambda: generate(models["BERT"], x, 4))
    exhibit.refuses(
        "generate() with blocks that see both sides",
        lambda: generate(LanguageModel(V, 16, 1, "attention causal=false", noncausal=True), x, 4),
    )
    exhibit.refuses("a causal model of such blocks", lambda: LanguageModel(V, 16, 1, "linformer"))
    exhibit.expect("tokens that GPT goes on with", generate(models["GPT"].float(), x, 4).shape[1], 4)
    exhibit.show(Heat("Does output t change with token s?", seen, axes=["output t", "token s"]))
    return f"of {T * (T - 1) // 2} later positions BERT sees {int(seen['BERT'].triu(1).sum())}, GPT and LSTM none; generate() refuses BERT"


# BERT ---------------------------------------------------------------------------------------------------------------


def _bert_by_hand(d: int, layers: int, V: int = 30522, positions: int = 512) -> int:
    """Embeddings and their norm, blocks, pooler."""
    attention, network, norms = 4 * (d * d + d), 2 * d * 4 * d + 4 * d + d, 4 * d
    return (V + positions + 2) * d + 2 * d + layers * (attention + network + norms) + d * d + d


def lm_07(exhibit: Exhibit) -> str:
    """BERT-large: 30522 tokens, 1024 numbers, 24 layers, 16 heads; counted without memory for one number."""
    heads = ("token_", "pair_head")
    large: Any = published_model("bert_large")
    base, blocks = published_model("bert_base"), large.stack.blocks
    config = [large.vocabulary, large.width, len(blocks), blocks[0].mixer.heads]
    exhibit.expect("tokens, width, layers, heads", config, [30522, 1024, 24, 16])
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
    exhibit.show(Table("BERT-large", {"part": list(parts), "parameters": [f"{n:,}" for n in parts.values()]}))
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
    model, batch = toy.pretrained_bert(exhibit.seed, exhibit.seeds()[0]), toy.make_questions(exhibit.seed)[:64]
    out = model(batch.x, batch.kinds, batch.lengths)["tokens"]
    out.retain_grad()
    Categorical()(type("Given", (), {"__call__": lambda self, x: out})(), batch).backward()
    count = int(batch.mask.sum())
    assert out.grad is not None
    exhibit.expect("gradient to logits at places not asked", out.grad[~batch.mask].abs().max(), 0.0)
    expected = (out.detach().softmax(-1) - F.one_hot(batch.y, out.shape[-1])) / count
    exhibit.expect("at places asked: (p - onehot) / places", out.grad[batch.mask], expected[batch.mask].numpy(), within=1e-7)
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

    tokenizer, long = toy.tokenizer(), toy.sentences(exhibit.seed, 40_000, "rates")
    rates = {}
    for rate, fractions in ((0.15, (0.8, 0.1, 0.1)), (0.4, (1.0, 0.0, 0.0))):
        masked_batch = masking(tokenizer, rate, fractions)(long, exhibit.generator("rates"))
        hidden = masked_batch.x[masked_batch.mask] == special(tokenizer, "mask")
        left = masked_batch.x[masked_batch.mask] == masked_batch.y[masked_batch.mask]
        fraction = float(masked_batch.mask[:, 1:].float().mean())
        parts = [float(hidden.float().mean()), float((~hidden & ~left).float().mean()), float(left.float().mean())]
        # 160,000 words and 24,000 asked: four standard deviations; another word is the same one once in 192
        exhibit.expect(f"rate {rate}: share of words asked", fraction, rate, within=0.006)
        exhibit.expect(f"rate {rate}: of them masked, replaced, left", parts, list(fractions), within=0.011)
        exhibit.expect(f"rate {rate}: [CLS] asked", int(masked_batch.mask[:, 0].sum()), 0)
        rates[rate] = fraction
    words, held = len(toy.TOPICS) * toy.WORDS, toy.make_questions(exhibit.seed)[:]
    logits = [toy.bert_answers(exhibit.seed, seed)["tokens"][held.mask] for seed in exhibit.seeds()]
    perplexities = [F.cross_entropy(one, held.y[held.mask]).exp().item() for one in logits]
    exhibit.below(f"perplexity of hidden words, {words} without a context", perplexities, words / 3)
    return f"{count} places carry the loss; one table for in and out, rate {rates[0.15]:.3f}; perplexity {spread(perplexities)} of {words}"


def lm_09(exhibit: Exhibit) -> str:
    """Two sentences with two words hidden make two terms of loss; a causal model gets one from nearly every token."""
    first, second = "Let's make some chicken!", "It tastes great with orange sauce."
    tokenizer = train("words", [first, second], 100, ("pad", "unknown", "cls", "sep", "mask"))
    sides = [(tokenizer.encode(text).long().unsqueeze(0), torch.tensor([len(tokenizer.encode(text))])) for text in (first, second)]
    x, kinds, _ = join_pair(sides[0], sides[1], (special(tokenizer, "cls"), special(tokenizer, "sep"), special(tokenizer, "pad")))
    expected = [tokenizer.tokens.index(word) for word in ("some", "tastes")]
    batch = hide(Batch(x=x, kinds=kinds), torch.isin(x, torch.tensor(expected)), special(tokenizer, "mask"))
    words = " ".join(tokenizer.tokens[token] for token in batch.x[0].tolist())
    exhibit.expect("what the model reads", words, "<cls> Let ' s make <mask> chicken ! <sep> It <mask> great with orange sauce . <sep>")
    exhibit.expect("what it is asked", [tokenizer.tokens[token] for token in batch.y[batch.mask].tolist()], ["some", "tastes"])
    exhibit.expect(
        "the same from text with its marks",
        batch.x[0],
        encode_marked(tokenizer, f"<cls>{first}<sep>{second}<sep>".replace("some", "<mask>").replace("tastes", "<mask>")),
    )
    exhibit.expect("terms of the loss", Categorical().counts(batch)["nll"], 2.0)
    model = Bert(tokenizer.size, 16, 1, "attention heads=2", 2.0, max_positions=32)
    logits = model(batch.x, batch.kinds)["tokens"].log_softmax(-1).detach()
    by_hand = -sum(float(logits[0, position, token]) for position, token in zip(batch.mask[0].nonzero().flatten().tolist(), expected)) / 2
    exhibit.expect(
        "loss, against the mean of the two",
        Categorical().terms(model(batch.x, batch.kinds)["tokens"], batch).loss().detach(),
        by_hand,
        1e-5,
    )
    exhibit.expect("second sentence in kinds", int(batch.kinds.sum()), 8)
    seven = torch.randint(9, (1, 7), generator=exhibit.generator("seven"))
    positions = torch.tensor([[False, True, False, False, True, False, False]])
    masked = Categorical().counts(hide(Batch(x=seven), positions, 9))["nll"]
    causal = Categorical().counts(WindowSource(seven[0], 6)[:])["nll"]
    exhibit.expect("terms from 7 tokens: masked, causal", [masked, causal], [2.0, 6.0])
    efficiency = {"task": ["masked, 2 of 7", "causal"], "terms": [masked, causal], "per token": [f"{masked / 7:.2f}", f"{causal / 7:.2f}"]}
    exhibit.show(Table("Terms of loss from 7 tokens", efficiency))
    return f"two targets: some, tastes; from 7 tokens {masked:.0f} terms masked ({masked / 7:.0%}), {causal:.0f} causal ({causal / 7:.0%})"


def lm_10(exhibit: Exhibit) -> str:
    """Is it the next sentence?  And what was learned without labels serves where labels are few."""
    follows = toy.make_questions(exhibit.seed)[:].follows
    fraction = [float((toy.bert_answers(exhibit.seed, seed)["pair"].argmax(1) == follows).float().mean()) for seed in exhibit.seeds()]
    exhibit.above("next-sentence questions right, chance is a half", fraction, 0.8)
    topics, few, test = len(toy.TOPICS), toy.few_labels(exhibit.seed), toy.sentences(exhibit.seed, 1000, "test")
    answers: dict[str, tuple[Any, Any]] = {
        "sequence, linear": (lambda body: SequenceHead(body, topics, "mean"), False),
        "sequence at [CLS], hidden layer": (lambda body: SequenceHead(body, topics, "first", 32), False),
        "tokens, linear": (lambda body: TokenHead(body, topics), True),
    }
    table: dict[str, list[str]] = {"head": list(answers), "pre-trained": [], "from scratch": []}
    for name, (head, each) in answers.items():
        y, expected = (batch.y.unsqueeze(1).expand_as(batch.x) if each else batch.y for batch in (few, test))
        data = Data(TensorSource(few.x, y), name="few topics")

        def fit(body: Any, seed: int) -> Any:
            return toy.train_model(toy.recipe(lambda: head(body(seed)), data, Categorical(topics), 40, 3e-3), seed)  # noqa: B023

        bodies = partial(toy.pretrained_bert, exhibit.seed), lambda seed: toy.bert()
        known, blank = (toy.right([fit(body, seed) for seed in exhibit.seeds()], test.x, expected) for body in bodies)
        exhibit.above(f"{name}: pre-trained, {len(few)} labeled sentences", known, 0.85)
        # One text for all seeds, so their mean scatters like one of them: each is compared with the bound.
        exhibit.above(f"{name}: better than from scratch by", [ours - theirs for ours, theirs in zip(known, blank)], 0.03)
        table["pre-trained"].append(spread(known, ".0%"))
        table["from scratch"].append(spread(blank, ".0%"))
    exhibit.show(Table(f"Topics of 1000 sentences from {len(few)} labels", table))
    summary = ", ".join(f"{ours} against {theirs}" for ours, theirs in zip(table["pre-trained"], table["from scratch"]))
    return f"NSP {spread(fraction, '.1%')}; pre-trained against scratch: {summary}"


# GPT ----------------------------------------------------------------------------------------------------------------


def lm_11(exhibit: Exhibit) -> str:
    """One pass trains every position, because no position sees the next; without the mask the model copies and learns nothing."""
    gpt = partial(LanguageModel, toy.TOKENS, 32, 2, ffn=2.0, positions="learned", max_positions=32, style="gpt2")
    one = gpt(mixer="attention heads=4 positions=none").double().eval()
    rows = toy.chain(exhibit.seed, 3, 9, "prefixes")
    whole = Categorical()(one, Batch(x=rows[:, :-1], y=rows[:, 1:])).loss().detach()
    with torch.no_grad():
        each = [float(F.cross_entropy(one(rows[:, :n])[:, -1], rows[:, n])) for n in range(1, 9)]
    gap = exhibit.expect("loss of one pass, against the mean over prefixes", whole, sum(each) / 8, within=1e-12)
    logits = F.linear(one.features(rows)[0], one.head.weight)  # type: ignore[union-attr]
    exhibit.expect("a linear map to |V|", one(rows).detach(), logits.detach().numpy(), within=1e-12)
    giants: list[Any] = [published_model(name) for name in ("gpt2", "gpt3")]
    exhibit.expect("attention heads of GPT-2 and GPT-3 (E-09)", [model.stack.blocks[0].mixer.heads for model in giants], [12, 96])

    sequences, n = toy.chain(exhibit.seed, 4000, 9, "train"), 8
    copied = (torch.arange(n) < n - 1).expand(4000, n)  # the last position of a row has nothing to copy: it is not asked
    data = Data(TensorSource(sequences[:, :-1], sequences[:, 1:], mask=copied), name="chain")
    loss, fraction, starts = {}, {}, toy.chain(exhibit.seed, 400, 1, "begun")
    for name, mixer in (("masked", "attention heads=4 positions=none"), ("no mask", "attention heads=4 positions=none causal=false")):
        models = toy.of_each_seed(exhibit, toy.recipe(partial(gpt, mixer=mixer, noncausal=True), data, Categorical(toy.TOKENS), 150, 1e-2))
        loss[name] = [toy.nats(model, data.train, 500) for model in models]
        fraction[name] = [toy.possible(exhibit.seed, _greedy(model, starts, n - 1)) for model in models]
    exhibit.below("training loss with the mask: distance from ln 3", [abs(one - math.log(toy.NEXT)) for one in loss["masked"]], 0.03)
    exhibit.below("training loss without it, copied", loss["no mask"], 0.01)
    exhibit.refuses("generate() without the mask", lambda: generate(models[0], rows[:, :1], 4))
    exhibit.above("possible neighbors in text it goes on with, with the mask", fraction["masked"], 0.98)
    exhibit.below("without it", fraction["no mask"], 0.7)
    shown = {"training loss": [*map(spread, loss.values())], "possible": [spread(some, ".0%") for some in fraction.values()]}
    exhibit.show(Table("With and without the mask", {"model": list(loss), **shown}))
    parts = [f"{name}: loss {spread(loss[name])}, {spread(fraction[name], '.0%')} possible text" for name in loss]
    return f"one pass = prefixes to {gap:.0e}; {'; '.join(parts)}"


@torch.no_grad()
def _greedy(model: Any, text: Tensor, new: int) -> Tensor:
    """Predict, append, repeat."""
    for _ in range(new):
        text = torch.cat([text, model(text)[:, -1].argmax(-1, keepdim=True)], 1)
    return text


def lm_12(exhibit: Exhibit) -> str:
    """A start token; predict, append, repeat."""
    text = toy.manual()
    tokenizer = train("char", [text], 100, ("start",))
    rows = torch.cat([torch.tensor([special(tokenizer, "start")]), tokenizer.encode(text).long()])
    data, small = Data(WindowSource(rows, 64, 32), name="manual pages"), partial(LanguageModel, tokenizer.size, 64, 1, "gru", 2.0)
    models = toy.of_each_seed(exhibit, toy.recipe(small, data, Categorical(tokenizer.size), 120, 2e-2, batch_size=32))
    model, starts = models[0], torch.tensor([[special(tokenizer, "start")]]).repeat(8, 1)
    greedy = [generate(model, starts[:1], 40, temperature=0) for _ in range(2)]
    exhibit.expect("greedy twice", greedy[0], greedy[1].numpy())
    exhibit.expect("greedy, against predict, append, repeat", greedy[0], _greedy(model, starts[:1], 40)[:, 1:].numpy())
    exhibit.expect(
        "the likeliest of one token is greedy", generate(model, starts[:1], 40, top_k=1, seed=exhibit.seed + 5), greedy[0].numpy()
    )
    drawn = [generate(model, starts, 100, temperature=0.5, seed=exhibit.seed + more) for more in (1, 1, 2)]
    exhibit.expect("the same seed twice", drawn[0], drawn[1].numpy())
    exhibit.above("tokens that another seed changes", (drawn[0] != drawn[2]).float().mean(), 0.8)
    with torch.no_grad():
        next_logits = model(starts[:1])[:, -1]
    firsts = generate(model, starts[:1].repeat(4000, 1), 1, temperature=0.5, seed=exhibit.seed).flatten()
    expected = (next_logits[0].double() / 0.5).softmax(-1)
    fraction = firsts.bincount(minlength=tokenizer.size) / len(firsts)
    # four standard deviations of a fraction of 4000 draws are below 0.032
    exhibit.expect("first letters of 4000 texts at temperature 0.5", fraction, expected.numpy(), within=0.032)
    few = set(generate(model, starts[:1].repeat(500, 1), 1, top_k=3, seed=exhibit.seed).flatten().tolist())
    exhibit.expect("letters drawn among the 3 likeliest", few <= set(next_logits[0].topk(3).indices.tolist()) and len(few) > 1, True)
    known = set(text.split())

    def real(lines: list[str]) -> float:
        words = [word for line in lines for word in line.split()[:-1] if len(word) > 2]
        return sum(word in known for word in words) / len(words)

    samples = [[tokenizer.decode(row) for row in generate(one, starts, 200, temperature=0.5, seed=exhibit.seed + 1)] for one in models]
    fractions = [real(lines) for lines in samples]
    letters = tokenizer.encode(text).long()[torch.randint(len(text), (4000,), generator=exhibit.generator("letters"))]
    baseline = real([tokenizer.decode(letters)])
    exhibit.above("words of three letters or more that exist", fractions, 0.6)
    exhibit.below("the same of letters drawn by their frequency", baseline, 0.05)
    exhibit.show(Table("What it writes", {f"seed {seed}": lines[:4] for seed, lines in zip(exhibit.seeds(), samples)}))
    return f"{spread(fractions, '.0%')} of words exist, {baseline:.0%} of random letters: '{samples[0][0][:40]}'"


def lm_13(exhibit: Exhibit) -> str:
    """L = L_cls + lambda L_LM: the text itself teaches where labels are few."""
    labeled, free, test = toy.few_labels(exhibit.seed), toy.sentences(exhibit.seed, 4000, "free"), toy.sentences(exhibit.seed, 1000, "test")
    topics = len(toy.TOPICS)

    def joint(weight: float) -> Joint:
        return Joint({"label": Part("y", "labeled"), "tokens": Part("next", "inside", weight=weight)})

    def make(body: LanguageModel) -> SequenceHead:
        return SequenceHead(body, topics, language=True)

    one, batch = make(toy.gpt()), toy.joint_batch(labeled)
    grads = []
    for objective in (joint(0.0), None, joint(0.5)):
        one.zero_grad()
        out = call_model(one, batch)
        (F.cross_entropy(out["label"], batch.y) if objective is None else objective(one, batch).loss()).backward()
        grads.append(torch.cat([p.grad.flatten() for p in one.parameters() if p.grad is not None and p is not one.body.head.weight]))
    exhibit.expect("lambda 0: gradient, against a pure classifier", grads[0], grads[1].numpy(), within=1e-7)
    exhibit.above("lambda 0.5: another gradient, by", (grads[2] - grads[1]).abs().max(), 1e-4)
    parts = {name: term.sum.item() / float(term.count) for name, term in joint(0.5)(one, batch).items()}
    total = parts["label_nll"] + 0.5 * parts["tokens_nll"]
    exhibit.expect("lambda 0.5: loss, against L_cls + L_LM / 2", joint(0.5)(one, batch).loss().detach(), total, within=1e-5)

    few, mixed = toy.source(batch), toy.mix_labeled(batch, toy.joint_batch(free, labeled=False))
    methods: dict[str, tuple[Any, float, TensorSource, int]] = {
        "labels alone, lambda 0": (lambda seed: toy.gpt(), 0.0, few, 30),
        "labeled text, lambda 0.5": (lambda seed: toy.gpt(), 0.5, few, 30),
        "jointly with unlabeled text, lambda 0.5": (lambda seed: toy.gpt(), 0.5, mixed, 160),
        "pre-trained, then labeled text, lambda 0.5": (partial(toy.pretrained_gpt, exhibit.seed), 0.5, few, 30),
    }
    right: dict[str, list[float]] = {name: [] for name in methods}
    logged: dict[str, list[bool]] = {name: [] for name in methods}
    for (name, (body, weight, source, steps)), seed in product(methods.items(), exhibit.seeds()):
        recipe = toy.recipe(lambda: make(body(seed)), Data(source, toy.source(toy.joint_batch(test))), joint(weight), steps, 5e-3)  # noqa: B023
        run = exhibit.train(recipe, f"{name} {seed}", seed=seed)
        logged[name].append({"valid/label_nll", "valid/tokens_nll"} <= {key for row in run.metrics for key in row})
        with torch.no_grad():
            right[name].append(float((run.model()(test.x)["label"].argmax(-1) == test.y).float().mean()))
    for name, both in logged.items():
        exhibit.expect(f"{name}: both terms logged", all(both), True)
    alone, _, jointly, first = right.values()
    exhibit.above("unlabeled text added, better than labels alone by (E-40)", [a - b for a, b in zip(jointly, alone)], 0.15)
    exhibit.above("pre-trained first, better than labels alone by (E-40)", [a - b for a, b in zip(first, alone)], 0.2)
    fractions = {name: spread(some, ".0%") for name, some in right.items()}
    exhibit.show(Table(f"Topics from {len(labeled)} labels", {"way": list(fractions), "right": list(fractions.values())}))
    return f"{len(labeled)} labels: " + "; ".join(f"{name}: {fraction}" for name, fraction in fractions.items())


def lm_14(exhibit: Exhibit) -> str:
    """One design, ever larger: counted from configurations, without memory for a single number."""
    expected = {
        "gpt2": 124_439_808,
        "gpt2_medium": 354_823_168,
        "gpt2_large": 774_030_080,
        "gpt2_xl": 1_557_611_200,
        "gpt3": 174_604_259_328,
    }
    table: dict[str, list[Any]] = {"model": [], "layers": [], "width": [], "heads": [], "places": [], "parameters": []}
    kinds = set()
    for name, number in expected.items():
        model: Any = published_model(name)
        config = PUBLISHED[name]
        d, layers, positions = config["n_embd"], config["n_layer"], config["n_positions"]
        exhibit.expect(f"{name}: parameters", size(model), number)
        exhibit.expect(
            f"{name}: by hand, (V + P) d + L (12 d^2 + 13 d) + 2 d",
            (50257 + positions) * d + layers * (12 * d * d + 13 * d) + 2 * d,
            number,
        )
        exhibit.expect(f"{name}: numbers in memory", sum(p.device.type != "meta" for p in model.parameters()), 0)
        exhibit.above(f"{name}: heads (E-09)", model.stack.blocks[0].mixer.heads, 1)
        exhibit.expect(f"{name}: no head for a task, logits are inner products with the embeddings", model.head is None, True)
        kinds.add(type(model).__name__)
        for column, value in zip(table.values(), (name, layers, d, model.stack.blocks[0].mixer.heads, positions, f"{number:,}")):
            column.append(value)
    exhibit.expect("kinds of model among them", sorted(kinds), ["LanguageModel"])
    exhibit.below("GPT-3: distance from 175 billion", abs(expected["gpt3"] / 175e9 - 1), 0.005)
    exhibit.show(Table("GPT-2 and GPT-3", table, note="GPT-4's size was not published."))
    return "GPT-2 124,439,808 to 1,557,611,200, GPT-3 174,604,259,328, all one class, none of it allocated"


POOR = (
    ("I eated the purple berries.", "I ate the purple berries."),
    (
        "Thank you for picking me as your designer. I'd appreciate it.",
        "Thank you for choosing me as your designer. I appreciate it.",
    ),
    (
        "The mentioned changes have done. or I did the alteration that you requested. or "
        "I changed things you wanted and did the modifications.",
        "The requested changes have been made. or I made the alteration that you requested. or "
        "I changed things you wanted and made the modifications.",
    ),
)


def lm_15(exhibit: Exhibit) -> str:
    """Demonstrations, then a question; the weights stay as they are."""
    query = "I'd be more than happy to work with you in another project."
    prompt = few_shot(POOR, query, CORRECTION)
    lines = prompt.split("\n")
    exhibit.expect("lines", len(lines), 8)
    exhibit.expect("how they begin", [line.split(":")[0] for line in lines], ["Poor English input", "Good English output"] * 4)
    exhibit.expect("demonstrations", [line.split(": ", 1)[1] for line in lines[:6]], [text for pair in POOR for text in pair])
    exhibit.expect("the question", lines[6], f"Poor English input: {query}")
    exhibit.expect("it stops before the answer", lines[7], "Good English output:")
    exhibit.expect("the answer is not in it", "on another project" in prompt, False)

    V = 2 * toy.RULES
    data = in_context(exhibit.seed, n=20_000, shots=8, keys=toy.RULES, values=toy.RULES)
    models = toy.of_each_seed(
        exhibit, toy.recipe(partial(LanguageModel, V, 32, 2, "deltanet heads=2", 2.0), data, Categorical(V), 100, 1e-2)
    )
    before, shots = [toy.weights(model) for model in models], [0, 1, 2, 4, 8, 16]
    right = []  # of each model, of each count of shots
    for model in models:
        prompts = [toy.demonstrations(exhibit.seed, count) for count in shots]
        right.append([float((generate(model, x, 1, temperature=0)[:, 0] == y).float().mean()) for x, y in prompts])
    expected = [1 - (1 - 1 / toy.RULES) ** (count + 1) for count in shots]  # the key was shown, or a guess
    exhibit.expect("hash of the weights after all prompts (E-41)", [toy.weights(model) for model in models], before)
    exhibit.above("least that accuracy rises with the next count of shots", [min(np.diff(one)) for one in right], 0.0)
    exhibit.above("16 shots better than none by", [one[-1] - one[0] for one in right], 0.65)
    gaps = [max(abs(fraction - probability) for fraction, probability in zip(one, expected)) for one in right]
    exhibit.below("accuracy, furthest from the chance that the key was shown", gaps, 0.08)
    curves = {"models": np.mean(right, 0), "key shown, or a guess": expected}
    exhibit.show(Lines("Accuracy by shots", curves, axes=["shots", "right"], x=shots))
    summary = ", ".join(f"{count}: {spread(fraction, '.0%')}" for count, fraction in zip(shots, zip(*right)))
    return f"prompt as in the notes; right after shots {summary}, within {max(gaps):.2f} of what was shown; weights unchanged"


# Encoder and decoder ------------------------------------------------------------------------------------------------


def lm_16(exhibit: Exhibit) -> str:
    """Spans are removed and predicted; any task is text in, text out."""
    prompts, answers = toy.tasks(exhibit.seed, 6000, "train")
    tokenizer = train("words", [*prompts, *answers], 200, ("pad", "unknown", "start", "end", *(f"sentinel {i}" for i in range(8))))
    rows = torch.randint(20, tokenizer.size, (500, 40), generator=exhibit.generator("spans"))
    lost = {}
    for rate, mean in ((0.15, 3.0), (0.5, 4.0)):
        batch = span_corruption(tokenizer, rate, mean)(Batch(x=rows), generator(exhibit.seed + 1, "spans"))
        back = torch.stack([restore_spans(source, target, tokenizer) for source, target in zip(batch.source, batch.y)])
        exhibit.expect(f"rate {rate}: rows restored from what is left and what is told", back, rows.numpy())
        cut = span_numbers(40, rate, mean)
        exhibit.expect(f"rate {rate}: tokens of both sides", batch.source.shape[1] + batch.y.shape[1], 40 + 2 * cut[1] + 2)
        lost[rate] = cut
    shown = span_corruption(tokenizer)(
        Batch(x=tokenizer.encode(prompts[0] + " " + prompts[1]).long().unsqueeze(0)), exhibit.generator("shown")
    )
    texts = {name: " ".join(tokenizer.tokens[token] for token in shown.fields[name][0].tolist()) for name in ("source", "y")}
    exhibit.show(Table("A corrupted span", {"input": [texts["source"]], "target": [texts["y"]]}))

    data = Data(pairs(prompts, answers, tokenizer, tokenizer), name="tasks by prefix")
    models = toy.of_each_seed(
        exhibit, toy.recipe(partial(EncoderDecoder, tokenizer.size, 48, 1, 4, 2.0), data, Categorical(tokenizer.size), 280, 5e-3)
    )
    tests, expected = toy.tasks(exhibit.seed, 300, "test")
    outputs = [translate(model, tests, (tokenizer, tokenizer), 6) for model in models]
    fraction = {}
    for task in ("classify", "reverse"):
        these = [i for i, text in enumerate(tests) if text.startswith(task)]
        fraction[task] = [exact([output[i].split() for i in these], [expected[i].split() for i in these]) for output in outputs]
        exhibit.above(f"{task}: answers right", fraction[task], 0.95)
    same = [f"{task} : film very good play" for task in fraction]
    both = translate(models[0], same, (tokenizer, tokenizer), 6)
    exhibit.expect("one text, two prefixes", both, ["positive", "play good very film"])
    exhibit.show(Table("One model, two tasks", {"asked": [*same, *tests[:4]], "answered": [*both, *outputs[0][:4]]}))
    return "500 rows restored at two rates; one model: " + ", ".join(f"{task} {spread(some, '.1%')}" for task, some in fraction.items())


def lm_17(exhibit: Exhibit) -> str:
    """An encoder, a causal decoder with cross-attention, and the loss of the next word."""
    recipe = translation.recipe(pairs="toy", model="transformer", width=48, depth=1, dropout=0.0, lr=8e-3, steps=150, seed=exhibit.seed)
    data = recipe.build_data()
    models = toy.of_each_seed(exhibit, recipe.replace(callbacks=(), evaluate_every=recipe.steps))
    results = [translation.translate_test(model, data) for model in models]
    fraction = [exact(translations, expected) for translations, expected, _ in results]
    exhibit.above("sentences translated without a mistake", fraction, 0.95)
    model, (translations, expected, sources) = models[0], results[0]
    assert data.test is not None
    batch = data.test[torch.arange(40)]
    with torch.no_grad():
        logits = model(batch.source, batch.x, batch.lengths).double()
        loop = -sum(float(logits[i, t].log_softmax(-1)[batch.y[i, t]]) for i, t in batch.mask.nonzero().tolist())
        loss = float(Categorical()(model, batch)["nll"].sum)
        exhibit.expect("loss: nats of the next word", loss, loop, within=1e-3)
        later = batch.x.clone()
        later[:, -1] = (later[:, -1] + 1) % len(data.classes)
        gap = (model(batch.source, later, batch.lengths)[:, :-1] - logits[:, :-1]).abs().max()
    exhibit.below("a later target word changes nothing before it: logits", gap, 1e-4)
    readings = alignment.read(Subject(model, batch), 1)
    rows = torch.tensor(next(iter(readings[0].values.values())))
    exhibit.expect("cross-attention: rows add up to", rows.sum(-1), np.ones(rows.shape[:-1]), within=1e-2)
    for reading in readings:
        exhibit.show(reading)
    exhibit.show(Table("Translations", {"English": sources[:5], "translated": translations[:5], "reference": expected[:5]}))
    return f"{spread(fraction, '.1%')} of {len(expected)} new sentences translated without an error"


# Fewer weights ------------------------------------------------------------------------------------------------------


def lm_18(exhibit: Exhibit) -> str:
    """A trained model stays; small parts plugged in, or a prompt, learn the task."""
    few, test = toy.few_labels(exhibit.seed, 4), toy.sentences(exhibit.seed, 1000, "test")
    fitted, d, m = toy.pretrained_bert(exhibit.seed, exhibit.seeds()[0]), 48, 6
    before = fitted(test.x)["tokens"].detach()
    fitted.zero_grad()
    names = add_bottlenecks(fitted, m)
    exhibit.expect("a new adapter changes no output, bit for bit", torch.equal(fitted(test.x)["tokens"], before), True)
    adapters = [part for part in fitted.modules() if isinstance(part, Bottleneck)]
    exhibit.expect("adapters: two in each of two blocks", len(adapters), 4)
    number = sum(fitted.get_parameter(name).numel() for name in names)
    exhibit.expect("what learns in them: 2 d m + m + d each", number, 4 * (2 * d * m + m + d))
    F.cross_entropy(fitted(test.x)["tokens"][:, 0], test.y).backward()
    got = sum(p.grad is not None for p in fitted.parameters())
    exhibit.expect("tensors with a gradient, all of adapters", got, len(names))

    def prompt(body: Bert) -> Prompted:
        return Prompted(body, tokens=toy.label_words()[:PROMPT])

    methods: dict[str, tuple[Any, int, float]] = {
        "as it is": (freeze, 0, 0.0),
        "full fine-tuning": (lambda body: None, 60, 3e-3),
        "adapters": (partial(add_bottlenecks, middle=m), 100, 3e-2),
        "LoRA": (partial(add_lora, rank=4), 130, 3e-2),
        "prompt before training": (prompt, 0, 0.0),
        "prompt": (prompt, 100, 0.1),
    }
    counts, right, nats = {}, {}, {}
    data, held = Data(toy.with_mask(few), name="few topics"), toy.with_mask(test)[:]
    for name, (method, steps, rate) in methods.items():
        builds = {seed: partial(_adapt, method, exhibit.seed, seed) for seed in exhibit.seeds()}
        models = [
            toy.train_model(toy.recipe(build, data, Categorical(), steps, rate), seed) if steps else build()
            for seed, build in builds.items()
        ]
        counts[name] = sum(p.numel() for p in models[0].parameters() if p.requires_grad)
        with torch.no_grad():
            outputs = [model(held.x)[:, 0] for model in models]
        right[name] = [float((logits.argmax(-1) == held.y[:, 0]).float().mean()) for logits in outputs]
        nats[name] = [float(F.cross_entropy(logits, held.y[:, 0])) for logits in outputs]
    # The words of a topic are all alike to it: that it says the right one is chance.
    exhibit.below(f"as it is: it does not know which of {toy.WORDS} words to say", right["as it is"], 0.5)
    exhibit.expect("prompt: vectors times width learn", counts["prompt"], PROMPT * d)
    for name in ("full fine-tuning", "adapters", "LoRA"):
        exhibit.above(f"{name}: topics named right from {len(few)} examples", right[name], 0.8)
    # It is the topic that a prompt brings out; no prompt can tell apart what the model cannot.  It takes a large one for more.
    exhibit.exceeds("prompt: nats of the right word, before training more than after", nats["prompt before training"], nats["prompt"])
    known = math.log(toy.WORDS)
    exhibit.below("prompt: nats of the right word, more than where the topic is known by", [one - known for one in nats["prompt"]], 0.8)
    for name in ("adapters", "LoRA", "prompt"):
        exhibit.below(f"{name}: share of the weights of full fine-tuning", counts[name] / counts["full fine-tuning"], 0.1)
    fractions = {name: spread(some, ".0%") for name, some in right.items()}
    table = {"way": list(methods), "trainable": [f"{n:,}" for n in counts.values()], "right": list(fractions.values())}
    exhibit.show(Table(f"Topics named from {len(few)} examples", table))
    return "; ".join(f"{name} {counts[name]:,}: {fraction}" for name, fraction in fractions.items())


PROMPT = 6
"""vectors, as many as the positions that the sentence leaves"""


@final
class _Words(nn.Module):
    """Logits of the token at each position, from a BERT with or without a prompt."""

    def __init__(self, body: Any) -> None:
        super().__init__()
        self.body = body

    def forward(self, tokens: Tensor) -> Tensor:
        owner = self.body.body if isinstance(self.body, Prompted) else self.body
        return owner.logits(self.body.features(tokens)[0])


def _adapt(method: Any, text: int, seed: int) -> Any:
    """The trained model with one way to go on learning; those that change it in place return no model."""
    body = toy.pretrained_bert(text, seed)
    result = method(body)
    return _Words(result if isinstance(result, Prompted) else body)
