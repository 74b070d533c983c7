"""Chapter 17, attention, positions, transformers.

The attention of the library is compared with an implementation in NumPy, with loops where the notes give scalar formulas,
or with torch's layer with the same weights.
"""

from __future__ import annotations

import math
import time
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..core.batch import Batch, Data
from ..core.live import Live
from ..core.reading import Heat, Lines, Table
from ..core.recipe import Recipe
from ..core.seeds import generator
from ..data.tensors import TensorSource
from ..generate import generate
from ..lenses.tools.mixers import measure, mixing_flops
from ..models.encoder_decoder import EncoderDecoder
from ..models.seq2seq import SourceAttention
from ..nn.block import style_of
from ..nn.mixers.attention import Attention, CrossAttention, attend, scores
from ..nn.mixers.rnn import RNN
from ..nn.positions import Positions, binary, sinusoidal
from ..nn.stack import Stack
from ..objectives.categorical import Categorical
from ..optim.build import optimizer
from ..optim.schedules import warmup_cosine
from .exhibit import Exhibit, spread

Array = np.ndarray


def _draw(exhibit: Exhibit, *shape: int, part: int = 0) -> Tensor:
    """Normal numbers; each of up to ten parts has its own, with every seed."""
    return torch.randn(*shape, generator=generator(10 * exhibit.seed + part, "attention"), dtype=torch.float64)


def _softmax(z: Array) -> Array:
    """Over the last axis."""
    weights = np.exp(z - z.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


@torch.no_grad()
def _layer(exhibit: Exhibit, width: int, heads: int = 1, **options: Any) -> Attention:
    """An attention layer without positions whose biases, if any, are not zero."""
    torch.manual_seed(exhibit.seed)
    layer = Attention(width, heads, positions=options.pop("positions", "none"), **options).double()
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.5)
    return layer


def _relative_distance(one: Tensor, other: Tensor) -> float:
    """Distance of two tensors over the size of the second."""
    return float((one - other).detach().norm() / other.detach().norm())


def _rows(layer: Attention, x: Array) -> tuple[Array, Array, Array]:
    """Queries, keys and values of tokens x (N, D), in NumPy."""
    weight = layer.qkv.weight.detach().numpy()
    bias = 0 if layer.qkv.bias is None else layer.qkv.bias.detach().numpy()
    q, k, v = np.split(x @ weight.T + bias, 3, -1)
    return q, k, v


# Attention --------------------------------------------------------------------------------------------------------


def att_01(exhibit: Exhibit) -> str:
    """The weights of a linear layer are fixed; those of attention are computed from the input by another branch."""
    layer, N, D = _layer(exhibit, 6, causal=False), 4, 6
    one, two = _draw(exhibit, 1, N, D, part=1), _draw(exhibit, 1, N, D, part=2)
    first, second = (layer.weights(x)[0, 0].detach() for x in (one, two))
    exhibit.above("difference of the weight matrices of two inputs, over the size of one", _relative_distance(second, first), 0.1)
    v = _rows(layer, one[0].numpy())[2]
    expected = layer.out(torch.from_numpy(first.numpy() @ v)).detach()
    exhibit.expect("the output is that matrix times the values", layer(one)[0][0].detach(), expected.numpy(), 1e-12)
    q, k, _ = _rows(layer, one[0].numpy())
    values = _draw(exhibit, 1, 1, N, D, part=3)
    q_, k_ = (torch.from_numpy(part)[None, None] for part in (q, k))
    exhibit.expect("values times 3: output times 3", attend(q_, k_, 3 * values)[0, 0], 3 * attend(q_, k_, values)[0, 0].numpy(), 1e-12)
    some = _draw(exhibit, 16, N, D, part=4)
    exhibit.above(
        "tokens times 3: distance from output times 3, over its size (E-29)",
        _relative_distance(layer(3 * some)[0], 3 * layer(some)[0]),
        0.1,
    )
    exhibit.show(Heat("Weights of attention for two inputs", {"first": first, "second": second}, axes=["token", "token it looks at"]))
    return f"two inputs, two weight matrices, {float((first - second).abs().max()):.2f} apart; linear in V, not in X"


def att_02(exhibit: Exhibit) -> str:
    """Three tokens of four numbers through self-attention with biases, traced."""
    N, D = 3, 4
    layer, x = _layer(exhibit, D, causal=False, bias=True, scale=1.0), _draw(exhibit, 1, N, D)
    q, k, v = _rows(layer, x[0].numpy())
    out = np.zeros((N, D))
    weights = np.zeros((N, N))
    for n in range(N):  # as the notes have it: sa_n = sum_m softmax_m(k_m^T q_n) v_m
        e = np.array([math.exp(sum(k[m, i] * q[n, i] for i in range(D))) for m in range(N)])
        weights[n] = e / e.sum()
        for m in range(N):
            out[n] += weights[n, m] * v[m]
    attention_weights = layer.weights(x)[0, 0].detach()
    exhibit.expect("3 x 3 weights against the sum written out", attention_weights, weights, 1e-12)
    exhibit.expect("each row of weights adds up to", attention_weights.sum(1), np.ones(N), 1e-12)
    exhibit.exceeds("every weight is positive: the smallest", attention_weights.min(), 0.0)
    expected = out @ layer.out.weight.detach().numpy().T + layer.out.bias.detach().numpy()
    gap = exhibit.expect("outputs against the loops", layer(x)[0][0].detach(), expected, 1e-12)
    whole = _softmax(q @ k.T) @ v
    exhibit.expect("the matrix form gives the same", out, whole, 1e-12)
    for name, rows in {"queries": q, "keys": k, "values": v, "weights": weights, "outputs": out}.items():
        exhibit.show(Table(f"Trace: {name}", {f"{i + 1}": [f"{number:.4f}" for number in rows[:, i]] for i in range(rows.shape[1])}))
    return f"N=3, D=4: weights positive, rows sum to 1; layer, loops and matrix form agree to {gap:.1e}"


def att_03(exhibit: Exhibit) -> str:
    """softmax(Q K^T / sqrt(d)) V: three equal forms, and why the root."""
    N, d, p = 5, 7, 3
    q, k, v = (_draw(exhibit, 1, 1, n, w, part=i) for i, (n, w) in enumerate([(N, d), (6, d), (6, p)]))
    Q, K, V = (part[0, 0].numpy() for part in (q, k, v))
    whole = _softmax(Q @ K.T / math.sqrt(d)) @ V
    scalar = np.zeros((N, p))
    for i in range(N):
        e = [sum(Q[i, c] * K[j, c] for c in range(d)) / math.sqrt(d) for j in range(6)]
        alpha = [math.exp(z) / sum(map(math.exp, e)) for z in e]
        for j in range(6):
            scalar[i] += alpha[j] * V[j]
    gap = max(
        exhibit.expect(f"form '{form}' against the matrix form", attend(q, k, v, form=form)[0, 0], whole, 1e-12)
        for form in ("parallel", "chunk", "step")
    )
    exhibit.expect("scalar form e_ij, alpha_ij, z_i", scalar, whole, 1e-12)
    exhibit.expect("unscaled with queries over sqrt(d) (C-15)", attend(q / math.sqrt(d), k, v, scale=1.0)[0, 0], whole, 1e-12)
    a, b = _draw(exhibit, 200_000, 64, part=4), _draw(exhibit, 200_000, 64, part=5)
    raw = float((a * b).sum(1).var())
    # The variance of a sample variance of 200,000 draws: about sqrt(2 / n) of it, times the kurtosis of a sum of products.
    exhibit.expect("variance of q.k, unit normals, d = 64", raw, 64.0, 1.5)
    variance = scores(a[:2000].view(1, 1, 2000, 64), b[:500].view(1, 1, 500, 64), torch.full((1, 2000), 499)).var()
    exhibit.expect("variance of the library's scores", variance, 1.0, 0.1)  # a million dependent scores
    return f"three forms agree to {gap:.1e}; Var(q.k) = {raw:.1f} at d = 64, {float(variance):.2f} scaled"


def att_04(exhibit: Exhibit) -> str:
    """A soft dictionary: the answer is a convex combination of values; a sharp score returns the matching one."""
    N, d = 6, 5
    keys, values = _draw(exhibit, 1, 1, N, d, part=1), _draw(exhibit, 1, 1, N, 3, part=2)
    keys = keys / keys.norm(dim=-1, keepdim=True)
    queries = keys[:, :, [2]]
    last = torch.full((1, 1), N - 1)
    weights = scores(queries, keys, last).softmax(-1)[0, 0, 0]
    exhibit.expect("weights add up to", weights.sum(), 1.0, 1e-12)
    exhibit.exceeds("every weight is positive: the smallest", weights.min(), 0.0)
    error = exhibit.expect(
        "value returned by an exact match, scale 1000", attend(queries, keys, values, scale=1000.0)[0, 0, 0], values[0, 0, 2].numpy(), 1e-9
    )
    # One-hot values give the weights themselves back; as 1 - cosine <= 2, none of them is lost in rounding at scale 16.
    names = torch.eye(N, dtype=torch.float64)[None, None]
    others = [float(attend(queries, keys, names, scale=scale)[0, 0, 0, torch.arange(N) != 2].sum()) for scale in (1.0, 4.0, 16.0)]
    exhibit.exceeds("the weight of the other keys falls with the sharpness", min(others[0] - others[1], others[1] - others[2]), 0.0)
    X, query = keys[0, 0].numpy(), queries[0, 0, 0].numpy()
    alpha = _softmax(X @ query / math.sqrt(d))
    outputs = attend(queries, keys, keys)[0, 0, 0]
    exhibit.expect("without projections: z = X q / sqrt(d), c = X^T alpha", outputs, X.T @ alpha, 1e-12)
    table: dict[str, list[Any]] = {"score": [], **{f"key {i + 1}": [] for i in range(N)}}
    torch.manual_seed(exhibit.seed + 3)
    for scoring in ("dot", "general", "additive"):
        look = SourceAttention(d, scoring).double()
        memory = keys[0]
        _, outputs = look(queries[0], look.keys(memory), memory, torch.tensor([N]))
        exhibit.expect(f"weights of the {scoring} score add up to", outputs.detach().sum(), 1.0, 1e-12)
        expected = _softmax(_score_by_hand(look, scoring, query, X))
        exhibit.expect(f"{scoring} score against its formula", outputs[0, 0].detach(), expected, 1e-12)
        for name, value in zip(table, [scoring, *(f"{w:.3f}" for w in outputs[0, 0].tolist())]):
            table[name].append(value)
    cosine = scores(queries / queries.norm(dim=-1, keepdim=True), keys, last, scale=1.0)[0, 0, 0]
    exhibit.expect("cosine score of the match", cosine.max(), 1.0, 1e-12)
    exhibit.show(Table("Weights by the kind of score", table, note="the query equals key 3"))
    return f"an exact match returns its value to {error:.1e} at scale 1000; dot, cosine, general and additive scores"


def _score_by_hand(look: SourceAttention, scoring: str, query: Array, keys: Array) -> Array:
    """Scores of one query with all keys, as the formulas have them."""
    weights = {name: parameter.detach().numpy() for name, parameter in look.named_parameters()}
    if scoring == "dot":
        return keys @ query
    if scoring == "general":
        return (keys @ weights["key.weight"].T) @ query
    inner = keys @ weights["key.weight"].T + query @ weights["query.weight"].T + weights["query.bias"]
    return np.tanh(inner) @ weights["score.weight"][0]


def att_05(exhibit: Exhibit) -> str:
    """What is hidden has a score of minus infinity before the softmax; a score of zero would leak."""
    N, D = 7, 6
    layer, x = _layer(exhibit, D, 2), _draw(exhibit, 16, N, D)
    lengths = torch.tensor([N, 4] * 8)
    both = _layer(exhibit, D, 2, causal=False)
    padded = both.weights(x, lengths)
    exhibit.expect("weights of padded keys", padded[1::2, :, :, 4:].abs().max().detach(), 0.0)
    changed = x.clone()
    changed[:, 4] = _draw(exhibit, 16, D, part=1)
    before, after = layer(x)[0], layer(changed)[0]
    exhibit.expect("outputs before a changed token are the same bits", bool(torch.equal(before[:, :4], after[:, :4])), True)
    exhibit.above("outputs from it on differ, over their size, by", _relative_distance(after[:, 4:], before[:, 4:]), 0.1)
    exhibit.expect("weights on later keys (E-06: row = query, lower triangular)", layer.weights(x).detach().triu(1).abs().max(), 0.0)
    right = scores(
        torch.tensor([[[[1.0]]]]).double(), torch.tensor([[[[2.0], [0.0]]]]).double(), torch.zeros(1, 1, dtype=torch.long), scale=1.0
    )
    leak = float(torch.tensor([2.0, 0.0]).double().softmax(0)[1])  # the masked score set to 0, as printed
    exhibit.expect("weight that leaks where the score is set to 0 (E-08)", leak, 0.119203, 1e-6)
    exhibit.expect("weight of the same key behind the mask", right.softmax(-1)[0, 0, 0, 1], 0.0)
    exhibit.show(Heat("Causal weights", {f"head {h + 1}": layer.weights(x)[0, h].detach() for h in range(2)}, axes=["query", "key"]))
    return f"padding and future weigh exactly 0; 'score = 0' leaks {leak:.3f}"


def att_06(exhibit: Exhibit) -> str:
    """Without positions attention does not see order: shuffled tokens give shuffled outputs (equivariant, E-30)."""
    N, D = 16, 12
    x, order = _draw(exhibit, 16, N, D), torch.randperm(N, generator=exhibit.generator("order"))
    blind = _layer(exhibit, D, 2, causal=False)
    gap = exhibit.expect(
        "outputs of shuffled tokens, shuffled back", blind(x[:, order])[0][:, order.argsort()].detach(), blind(x)[0].detach().numpy(), 1e-12
    )
    exhibit.expect("their mean does not change at all", blind(x[:, order])[0].mean(1).detach(), blind(x)[0].mean(1).detach().numpy(), 1e-12)
    code = Positions("sinusoidal", D)
    seen = {"sinusoidal, added": _relative_distance(blind(code(x[:, order])[0])[0], blind(code(x)[0])[0][:, order])}
    for kind in ("rotary", "alibi"):
        layer = _layer(exhibit, D, 3, causal=False, positions=kind)
        seen[kind] = _relative_distance(layer(x[:, order])[0], layer(x)[0][:, order])
    for kind, difference in seen.items():
        exhibit.above(f"broken by positions, over the size of the outputs: {kind}", difference, 0.05)
    return f"equivariant to {gap:.1e} without positions, broken by {', '.join(seen)}"


def att_07(exhibit: Exhibit) -> str:
    """Several heads side by side, each a small attention of its own, joined by one matrix."""
    D, H, N = 12, 3, 5
    layer, x = _layer(exhibit, D, H, causal=False), _draw(exhibit, 1, N, D)
    q, k, v = _rows(layer, x[0].numpy())
    d = D // H
    parts = [_softmax(q[:, h * d : h * d + d] @ k[:, h * d : h * d + d].T / math.sqrt(d)) @ v[:, h * d : h * d + d] for h in range(H)]
    looped = np.concatenate(parts, 1) @ layer.out.weight.detach().numpy().T
    gap = exhibit.expect("all heads at once against one after the other", layer(x)[0][0].detach(), looped, 1e-12)
    theirs = nn.MultiheadAttention(D, H, bias=False, batch_first=True).double()
    theirs.in_proj_weight.data, theirs.out_proj.weight.data = layer.qkv.weight.data, layer.out.weight.data
    exhibit.expect("torch's layer with the same weights", layer(x)[0].detach(), theirs(x, x, x)[0].detach().numpy(), 1e-12)
    single = _layer(exhibit, D, 1, causal=False)
    single.out.weight.data = torch.eye(D).double()
    q, k, v = _rows(single, x[0].numpy())
    exhibit.expect("one head and W_o = 1", single(x)[0][0].detach(), _softmax(q @ k.T / math.sqrt(D)) @ v, 1e-12)
    torch.manual_seed(exhibit.seed + 1)
    look = CrossAttention(D, H, keys=7, values=4).double()
    other = nn.MultiheadAttention(D, H, bias=False, batch_first=True, kdim=7, vdim=4).double()
    for name in "qkv":
        getattr(other, f"{name}_proj_weight").data = getattr(look, name).weight.data
    other.out_proj.weight.data = look.out.weight.data
    keys, values = _draw(exhibit, 1, 8, 7, part=1), _draw(exhibit, 1, 8, 4, part=2)
    output = look(x, look.read(keys, values=values)).detach()
    exhibit.expect(
        "queries of 12, keys of 7, values of 4 numbers, against torch", output, other(x, keys, values)[0].detach().numpy(), 1e-12
    )
    return f"{H} heads at once = {H} loops = torch's layer to {gap:.1e}; widths of queries, keys and values are free"


def att_08(exhibit: Exhibit) -> str:
    """Queries from the target, keys and values from the source."""
    torch.manual_seed(exhibit.seed)
    D, T, S = 24, 4, 6
    block = Stack.of([Attention(D, 2, positions="none")], 2.0, style_of("notes"), heads=2).double()
    x, source = _draw(exhibit, 16, T, D, part=1), _draw(exhibit, 16, S, D, part=2)

    def run(x: Tensor, source: Tensor) -> Tensor:
        return block(x, block.read(source))[0].detach()

    look: Any = block.blocks[0].cross
    weights = look.weights(x, look.read(source))[0].detach()
    exhibit.expect("shape of the weights: heads, target, source", list(weights.shape), [2, T, S])
    exhibit.expect("each row adds up to", weights.sum(-1), np.ones((2, T)), 1e-12)
    other, later = source.clone(), x.clone()
    other[:, -1] += 1
    later[:, -1] += 1
    moved = _relative_distance(run(x, other)[:, 0], run(x, source)[:, 0])
    exhibit.above("change of the first output with the last source token, over its size", moved, 0.005)
    exhibit.expect(
        "outputs before a changed target token are the same bits",
        bool(torch.equal(run(later, source)[:, :-1], run(x, source)[:, :-1])),
        True,
    )
    exhibit.show(Heat("Cross-attention", {f"head {h + 1}": weights[h] for h in range(2)}, axes=["target", "source"]))
    return f"weights {T} x {S}; the source is seen, the target's future is not"


# Positions --------------------------------------------------------------------------------------------------------


def att_09(exhibit: Exhibit) -> str:
    """Eight positions in three bits; the lowest changes fastest."""
    bits = binary(torch.arange(8), 3).int()
    words = ["".join(map(str, row)) for row in bits.flip(1).tolist()]  # as written: highest bit first
    exhibit.expect("rows 0 to 7", words, ["000", "001", "010", "011", "100", "101", "110", "111"])
    exhibit.expect("110, which the printed list lacks (E-05), is there", "110" in words, True)
    changes = (bits.diff(dim=0) != 0).sum(0)
    exhibit.expect("changes of each bit, the lowest first", changes, [7, 3, 1])
    exhibit.show(Heat("Binary positions", {"bit": bits.flip(1).T}, axes=["bit", "position"]))
    return f"all of 000 .. 111; bits change {', '.join(map(str, changes.tolist()))} times"


def att_10(exhibit: Exhibit) -> str:
    """Sines and cosines of ever longer waves."""
    one = sinusoidal(torch.tensor([1]), 4)[0]
    gap = exhibit.expect("d = 4, i = 1", one, [0.841471, 0.540302, 0.010000, 0.999950], 5e-7)
    n, d = 60, 32
    code = sinusoidal(torch.arange(n), d)
    expected = np.array([[(math.cos if j % 2 else math.sin)(i / 10000 ** (2 * (j // 2) / d)) for j in range(d)] for i in range(n)])
    exhibit.expect("n = 60, d = 32 against the formula", code, expected, 1e-12)
    turns = [int((code[:, j].diff().sign().diff() != 0).sum()) for j in range(0, d, 2)]
    exhibit.expect("turning points never grow from left to right", all(a >= b for a, b in zip(turns, turns[1:])), True)
    exhibit.above("turning points of the first wave less those of the last", turns[0] - turns[-1], 10)
    far = sinusoidal(torch.tensor([20000, 20001]), d)
    exhibit.above("positions 20000 and 20001 differ (E-37) by", (far[0] - far[1]).abs().max(), 0.1)
    exhibit.show(Heat("Sinusoidal positions", {"code": code.T}, axes=["channel", "position"]))
    exhibit.show(Lines("Channels 6 to 9", {f"channel {j}": code[:, j] for j in range(6, 10)}, axes=["position", "value"]))
    summary = ", ".join(f"{value:.6f}" for value in one.tolist())
    return f"d=4, i=1: {summary} (off by {gap:.0e}); {turns[0]} turns on the left, {turns[-1]} on the right"


def att_11(exhibit: Exhibit) -> str:
    """A shift by f is one rotation of every pair of channels, the same at every position."""
    d, f = 16, 7
    t = torch.arange(50)
    here, there = sinusoidal(t, d), sinusoidal(t + f, d)
    turn = np.zeros((d, d))
    for j in range(0, d, 2):
        angle = f / 10000 ** (j / d)
        turn[j : j + 2, j : j + 2] = [[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]]
    gap = exhibit.expect("R(f) P_t for every t", here.numpy() @ turn.T, there.numpy(), 1e-12)
    exhibit.expect("norm^2 of every row", here.square().sum(1), np.full(50, d / 2), 1e-12)
    products = here @ here.T
    exhibit.expect("P_s . P_t depends on s - t only", products[1:, 1:], products[:-1, :-1].numpy(), 1e-12)
    exhibit.show(Heat("P_s . P_t", {"product": products}, axes=["s", "t"]))
    return f"one {d} x {d} rotation moves every P_t by {f} places, to {gap:.1e}"


def att_12(exhibit: Exhibit) -> str:
    """Positional encodings are added to tokens or concatenated; a learned table has a maximum length, sinusoids do not."""
    x = _draw(exhibit, 2, 9, 6)
    added, beside = (Positions("sinusoidal", 6, combine=how)(x)[0] for how in ("add", "concat"))
    exhibit.expect("added: width", added.shape[-1], 6)
    exhibit.expect("side by side: width (C-16)", beside.shape[-1], 12)
    gap = exhibit.expect("X + P", added, (x + sinusoidal(torch.arange(9), 6)).numpy(), 1e-12)
    exhibit.expect("X beside P", beside[1, :, 6:], sinusoidal(torch.arange(9), 6).numpy(), 1e-12)
    table = Positions("learned", 6, max_positions=8).double()
    exhibit.expect("a table of 8 takes 8", list(table(x[:, :8])[0].shape), [2, 8, 6])
    exhibit.refuses("a table of 8 refuses 9", lambda: table(x))
    exhibit.expect("waves at place 100,000 are finite", bool(sinusoidal(torch.tensor([100_000]), 6).isfinite().all()), True)
    return f"add: width 6 (to {gap:.0e}), concat: 12; a learned table refuses position 9 of 8, sinusoids continue"


# Transformers -----------------------------------------------------------------------------------------------------


def _count(decoder: bool) -> int:
    with torch.device("meta"):
        block = _block(512, 8, 4.0, decoder)
    return sum(parameter.numel() for parameter in block.parameters())


def _block(width: int, heads: int, ffn: float, decoder: bool, style: str = "notes") -> Stack:
    mixer = Attention(width, heads, causal=decoder, positions="none", bias=True)
    return Stack.of([mixer], ffn, style_of(style), **({"heads": heads, "bias": True} if decoder else {}))


@torch.no_grad()
def _copy_weights(stack: Stack, layer: Any, decoder: bool) -> None:
    """torch's layer gets our weights."""
    block: Any = stack.blocks[0]
    for parameter in stack.parameters():
        nn.init.normal_(parameter, std=0.3)
    pairs = [(layer.self_attn.out_proj, block.mixer.out), (layer.linear1, block.ffn.up), (layer.linear2, block.ffn.down)]
    pairs += [(layer.norm1, block.norm), (layer.norm3 if decoder else layer.norm2, block.ffn_norm)]
    inner = [(layer.self_attn, block.mixer.qkv.weight, block.mixer.qkv.bias)]
    if decoder:
        look = block.cross
        inner += [
            (
                layer.multihead_attn,
                torch.cat([look.q.weight, look.k.weight, look.v.weight]),
                torch.cat([look.q.bias, look.k.bias, look.v.bias]),
            )
        ]
        pairs += [(layer.multihead_attn.out_proj, look.out), (layer.norm2, block.cross_norm)]
    for theirs, ours in pairs:
        theirs.load_state_dict(ours.state_dict())
    for theirs, weight, bias in inner:
        theirs.in_proj_weight.copy_(weight)
        theirs.in_proj_bias.copy_(bias)


def att_13(exhibit: Exhibit) -> str:
    """Z = LN(MHA(X) + X), E = LN(FF(Z) + Z): torch's encoder layer, weight for weight."""
    D, H, N = 12, 3, 5
    x, gaps = _draw(exhibit, 2, N, D), []
    for style, first in (("notes", False), ("gpt2", True)):
        activation: Any = "relu" if style == "notes" else partial(nn.functional.gelu, approximate="tanh")
        theirs = nn.TransformerEncoderLayer(D, H, 2 * D, 0.0, activation, batch_first=True, norm_first=first).double()
        ours = _block(D, H, 2.0, False, style).double()
        _copy_weights(ours, theirs, False)
        ours.norm = nn.Identity()  # the norm at the end of a stack is no part of a layer
        position = "before each branch (C-11)" if first else "after each sum"
        gaps.append(exhibit.expect(f"norms {position}", ours(x)[0].detach(), theirs(x).detach().numpy(), 1e-10))
    number = _count(False)
    exhibit.expect("parameters at width 512, hidden 2048", number, 3_152_384)
    layer = _block(D, H, 2.0, False).double()
    alone = torch.cat([layer.blocks[0].ffn(token) for token in x.unbind(1)]).view(N, 2, D).transpose(0, 1)  # type: ignore[operator]
    exhibit.expect("the network works on each token for itself", layer.blocks[0].ffn(x).detach(), alone.detach().numpy(), 1e-12)  # type: ignore[operator]
    return f"torch's encoder layer to {max(gaps):.1e}, post- and pre-norm; {number:,} parameters at width 512"


def att_14(exhibit: Exhibit) -> str:
    """Masked self-attention, attention to the source, network: torch's decoder layer, weight for weight."""
    D, H, T, S = 12, 3, 5, 7
    x, source, gaps = _draw(exhibit, 2, T, D), _draw(exhibit, 2, S, D, part=1), []
    later = torch.full((T, T), -math.inf, dtype=torch.float64).triu(1)
    for style, first in (("notes", False), ("gpt2", True)):
        activation: Any = "relu" if style == "notes" else partial(nn.functional.gelu, approximate="tanh")
        theirs = nn.TransformerDecoderLayer(D, H, 2 * D, 0.0, activation, batch_first=True, norm_first=first).double()
        ours = _block(D, H, 2.0, True, style).double()
        _copy_weights(ours, theirs, True)
        ours.norm = nn.Identity()
        output, expected = ours(x, ours.read(source))[0], theirs(x, source, tgt_mask=later)
        gaps.append(exhibit.expect(f"norms {'before' if first else 'after'}", output.detach(), expected.detach().numpy(), 1e-10))
    number = _count(True)
    exhibit.expect("parameters at width 512, hidden 2048", number, 4_204_032)
    changed = x.clone()
    changed[:, -1] += 1
    same = torch.equal(ours(changed, ours.read(source))[0][:, :-1], ours(x, ours.read(source))[0][:, :-1])
    exhibit.expect("a later target token changes nothing before it (E-44)", bool(same), True)
    batch = _copy_or_reverse(exhibit, 1, 3)
    exhibit.expect("targets are the decoder's input moved on by one", batch.x[0, 1:], batch.y[0, :-1].numpy())
    return f"torch's decoder layer to {max(gaps):.1e}; {number:,} parameters at width 512; no leak"


LONGEST, SYMBOLS, STEPS = 5, 6, 480
START, PAD, COPY, REVERSE = range(SYMBOLS, SYMBOLS + 4)
TASKS = {"copy": COPY, "reverse": REVERSE}


def _copy_or_reverse(exhibit: Exhibit, part: int, n: int) -> Batch:
    """Rows of 3 to 5 symbols after a token that means copy or reverse; padded."""
    rng = generator(3 * exhibit.seed + part, "turned")
    count = torch.randint(3, LONGEST + 1, (n, 1), generator=rng)
    symbols, task = torch.randint(SYMBOLS, (n, LONGEST), generator=rng), torch.randint(COPY, REVERSE + 1, (n, 1), generator=rng)
    index = torch.arange(LONGEST)
    y = torch.where(task == COPY, symbols, symbols.gather(1, (count - 1 - index).clamp_min(0)))
    x = torch.cat([torch.full((n, 1), START), y[:, :-1]], 1)
    source = torch.cat([task, symbols.masked_fill(index >= count, PAD)], 1)
    return Batch(x=x, y=y, source=source, lengths=count.squeeze(1) + 1, mask=index < count, ids=torch.arange(n))


def _source(batch: Batch) -> TensorSource:
    return TensorSource(**batch.fields)  # type: ignore[arg-type]


def _tasks(exhibit: Exhibit) -> Recipe:
    blind = "attention positions=none"
    return Recipe(
        model=partial(EncoderDecoder, SYMBOLS + 4, 32, 1, 4, 2.0, positions="sinusoidal", encoder=f"{blind} causal=false", decoder=blind),
        data=Data(_source(_copy_or_reverse(exhibit, 0, 10_000)), _source(_copy_or_reverse(exhibit, 1, 128)), name="copy and reverse"),
        objective=Categorical(classes=SYMBOLS + 4),
        optimizer=optimizer("adamw", lr=8e-3),
        schedule=warmup_cosine(warmup=0.1, floor=0.02),
        clip_norm=1.0,
        batch_size=48,
        steps=STEPS,
        evaluate_every=STEPS,
    )


@torch.no_grad()
def att_15(exhibit: Exhibit) -> str:
    """Training sees all targets at once; decoding feeds each output back, with keys and values kept."""
    with torch.enable_grad():
        models: list[Any] = [exhibit.train(_tasks(exhibit), f"tasks-{seed}", seed=seed).model().eval() for seed in exhibit.seeds()]
    test, parts = _copy_or_reverse(exhibit, 2, 400), []
    starts = torch.full((len(test), 1), START)
    outputs = [generate(one, starts, LONGEST, temperature=0, state=one.begin(test.source, test.lengths)) for one in models]
    for task, word in TASKS.items():
        these = test.source[:, 0] == word
        fraction = [float(((one == test.y) | ~test.mask).all(1)[these].float().mean()) for one in outputs]
        exhibit.above(f"{task}: share of rows right to the last symbol, written one by one", fraction, 0.99)
        parts.append(f"{task} {spread(fraction, '.1%')}")
    model = models[0].double()
    some = test[:32]
    whole = model(some.source, some.x, some.lengths).log_softmax(-1)
    state, pieces = model.begin(some.source, some.lengths), []
    for step in some.x.unbind(1):
        logits, state = model.advance(step.unsqueeze(1), state)
        pieces.append(logits.log_softmax(-1))
    gap = exhibit.expect("log-probabilities in one pass and step by step", torch.cat(pieces, 1), whole.numpy(), 1e-10)
    row = int(((test.lengths == LONGEST + 1) & (test.source[:, 0] == REVERSE)).int().argmax())
    looks = _cross_weights(model, test[row : row + 1])
    exhibit.show(Heat("Where the decoder looks, reverse", looks, axes=["target", "source"], note="last block"))
    return f"{', '.join(parts)} of whole rows; cached decoding within {gap:.0e} of one pass"


def _cross_weights(model: Any, batch: Batch) -> dict[str, Tensor]:
    """Cross-attention of the last block for one pair."""
    block = model.decoder.blocks[-1]
    seen: list[Tensor] = []
    handle = block.cross.register_forward_pre_hook(lambda module, inputs: seen.append(module.weights(*inputs)))
    try:
        model(batch.source, batch.x, batch.lengths)
    finally:
        handle.remove()
    return {f"head {h + 1}": seen[0][0, h] for h in range(seen[0].shape[1])}


def att_16(exhibit: Exhibit) -> str:
    """Any pair of tokens one step apart and all positions at once, for work and memory that grow as N^2."""
    D = 8
    attention, recurrent = _layer(exhibit, D, 2), RNN(D).double().use("step")
    depths = {
        "attention": [_depth(exhibit, attention, n) for n in (8, 16, 32)],
        "RNN": [_depth(exhibit, recurrent, n) for n in (8, 16, 32)],
    }
    exhibit.expect("longest chain of operations in attention, 8, 16 and 32 tokens", depths["attention"], [depths["attention"][0]] * 3)
    growth = (depths["RNN"][2] - depths["RNN"][1]) / 16
    exhibit.above("operations that each further token adds to the chain of an RNN", growth, 0.99)
    lengths, attention = [128, 256, 512, 1024], attention.float()
    flops = [mixing_flops(attention, torch.zeros(1, n, D)) for n in lengths]
    memory, seconds = zip(*(_cost(exhibit, attention, n) for n in lengths))
    fused = [measure("attention", attention, "parallel", n, budget=0.0).peak for n in lengths]
    power = {
        name: float(np.polyfit(np.log(lengths), np.log(values), 1)[0])
        for name, values in {"FLOPs": flops, "memory": memory, "time": seconds, "fused": fused}.items()
    }
    exhibit.expect("power of N in the FLOPs between pairs", power["FLOPs"], 2.0, 0.05)
    exhibit.expect("power of N in the most bytes alive at once, weights written out", power["memory"], 2.0, 0.1)
    exhibit.show(Lines("Longest chain of operations", depths, axes=["tokens", "operations"], x=[8, 16, 32]))
    bytes_ = {"weights written out": list(memory), "fused kernel, which keeps no weights": fused}
    for name, lines in (("FLOPs", {"between pairs": flops}), ("bytes", bytes_), ("seconds", {"weights written out": list(seconds)})):
        exhibit.show(Lines(f"Attention: {name}", lines, axes=["tokens", name], x=lengths, log=["x", "y"]))
    summary = ", ".join(f"{name} N^{power[name]:.2f}" for name in ("FLOPs", "memory", "time"))
    chain = f"chain of {depths['attention'][0]} operations at any length; an RNN adds {growth:.0f} a token"
    return f"{chain}; {summary} (memory of the fused kernel N^{power['fused']:.2f})"


@torch.no_grad()
def _cost(exhibit: Exhibit, layer: Attention, n: int) -> tuple[int, float]:
    """Most bytes alive at once while the weights of n tokens are made, and the processor's seconds, the least of five times."""
    x, seconds = _draw(exhibit, 1, n, layer.width).float(), []
    with Live() as live:
        layer.weights(x)
    for _ in range(5):
        started = time.process_time()
        layer.weights(x)
        seconds.append(time.process_time() - started)
    return live.peak, min(seconds)


def _depth(exhibit: Exhibit, layer: nn.Module, n: int) -> int:
    """Longest chain of recorded operations from the output back to the input."""
    x = _draw(exhibit, 1, n, layer.width).requires_grad_()  # type: ignore[arg-type]
    last = layer(x)[0].sum().grad_fn
    depth: dict[Any, int] = {}
    stack = [last]
    while stack:
        node = stack[-1]
        below = [one for one, _ in node.next_functions if one is not None]
        waiting = [one for one in below if one not in depth]
        if waiting:
            stack += waiting
        else:
            depth[node] = 1 + max((depth[one] for one in below), default=0)
            stack.pop()
    return depth[last]
