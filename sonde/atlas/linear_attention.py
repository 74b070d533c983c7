"""Chapter 18, efficient and linear attention, recurrences.

Every recurrence of the table is checked against a loop written here as the table prints it, with S of shape (V, K):
S_t = S_{t-1} <> A_t + v_t k_t^T, o_t = S_t q_t.  The library keeps S transposed and computes it in several forms.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from ..core import registry
from ..core.live import Live
from ..core.reading import Bars, Heat, Lines, Table
from ..core.seeds import generator
from ..lenses.tools.mixers import mixing_flops
from ..nn.features import feature
from ..nn.mixers import (
    abc,
    attention,
    deltanet,
    dfw,
    gated_deltanet,
    gated_rfa,
    gla,
    gsa,
    hgrn2,
    linear,
    linear_kernel,
    linear_norm,
    linformer,
    mamba,
    mamba2,
    mixer,
    mlstm,
    performer,
    reformer,
    retnet,
    rwkv6,
    s4,
    window,
)
from ..nn.recurrence import Rule, Steps, compute, record_recurrences, run, scan
from ..nn.recurrence.choose import flops
from ..nn.recurrence.fused import available_forms
from ..nn.recurrence.scan import combine_rule
from .exhibit import Exhibit

L, K, V, M = 37, 5, 7, 6
"""steps, key width, value width, slots: all different"""

Array = np.ndarray
StepFunction = Callable[[Array, int], tuple[Array, Array]]


class HeadInputs(NamedTuple):
    """Inputs of one head as (L, width) tensors of float64, and gates between 0 and 1."""

    q: Tensor
    k: Tensor
    v: Tensor
    a: Tensor
    """(L, K) gates of the key axis"""
    b: Tensor
    """(L, V) gates of the value axis"""
    g: Tensor
    """(L,) gates of the head"""
    beta: Tensor
    phi: Tensor
    """(L, M) slots"""


def draw(seed: int, steps: int = L) -> HeadInputs:
    source = generator(seed, "mixers")

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=source, dtype=torch.float64)

    def gate(*shape: int) -> Tensor:
        return torch.sigmoid(normal(*shape) + 1)

    q, k, v = normal(steps, K), normal(steps, K), normal(steps, V)
    return HeadInputs(q, k, v, gate(steps, K), gate(steps, V), gate(steps), gate(steps), normal(steps, M).exp())


def head(x: Tensor) -> Tensor:
    """(L, ..) of one head -> (1, 1, L, ..)."""
    return x[None, None]


def reference_loop(x: HeadInputs, step: StepFunction, shape: tuple[int, int] = (V, K)) -> Array:
    """Outputs (L, V) of a recurrence, one step after the other in NumPy."""
    S, outs = np.zeros(shape), []
    for t in range(len(x.v)):
        S, o = step(S, t)
        outs.append(o)
    return np.stack(outs)


def arrays(x: HeadInputs) -> list[Array]:
    return [part.numpy() for part in x]


def compare_forms(exhibit: Exhibit, rule: Callable[[], Rule], expected: Array, within: float = 1e-12) -> Array:
    """The rule in each form it has, beside the loop; shows a table of the differences and returns what 'auto' gives."""
    with record_recurrences() as watch:
        run(rule(), form="step")
    first, *others = [available_forms(steps) for steps, _ in watch.seen]
    both = [form for form in first if all(form in other for other in others)]
    table: dict[str, list[Any]] = {"form": [], "largest difference": []}
    size = np.abs(expected).max()  # the printed delta rule has keys of any length and may grow
    for form in both:
        out = run(rule(), form=form)[0][0, 0].numpy()
        gap = exhibit.expect(f"{form} form against the loop", out / size, expected / size, within)
        table["form"].append(form)
        table["largest difference"].append(gap)
    kinds = ", then ".join(steps.name for steps, _ in watch.seen)
    exhibit.show(Table(f"Forms of the recurrence ({kinds})", table, note=f"{len(expected)} steps, float64; of the largest output"))
    return output(rule())


def output(rule: Rule) -> Array:
    return run(rule)[0][0, 0].numpy()


# Efficient attention ----------------------------------------------------------------------------------------------


def lin_01(exhibit: Exhibit) -> str:
    """Fewer pairs: a window, a dilated one, global tokens, or buckets of a hash."""
    N, width = 48, 12
    torch.manual_seed(exhibit.seed)
    full = attention.Attention(width, heads=2, positions="none").double()
    x = torch.randn(2, N, width, generator=exhibit.generator("tokens"), dtype=torch.float64)

    def window_attention(**options: int) -> Array:
        some = window.Window(width, heads=2, rotary=False, **options).double()
        some.load_state_dict(_split_weights(full))
        return some(x)[0].detach().numpy()

    whole = full(x)[0].detach().numpy()
    gap = exhibit.expect("a window as long as the sequence is full attention", window_attention(window=N), whole, 1e-12)
    exhibit.expect("global tokens all along as well", window_attention(window=1, global_tokens=N), whole, 1e-12)
    exhibit.above("a window of 4 is something else", np.abs(window_attention(window=4) - whole).max(), 1e-3)
    for options in ({"window": 4}, {"window": 4, "dilation": 3}, {"window": 4, "global_tokens": 2}):
        pairs = _window_pairs(options, N)
        expected = _masked_attention(full, x, pairs)
        exhibit.expect(f"{options} against a mask written out", window_attention(**options), expected, 1e-12)
    lengths = [256, 512, 1024, 2048]
    counts = {
        "full attention": [mixing_flops(attention.Attention(width, heads=2), torch.zeros(1, n, width)) for n in lengths],
        "window of 64": [mixing_flops(window.Window(width, heads=2, window=64), torch.zeros(1, n, width)) for n in lengths],
    }
    slopes = {name: math.log2(row[-1] / row[0]) / math.log2(lengths[-1] / lengths[0]) for name, row in counts.items()}
    exhibit.expect("power of N in the FLOPs of full attention", slopes["full attention"], 2.0, 0.05)
    exhibit.expect("power of N in the FLOPs of a window", slopes["window of 64"], 1.0, 0.05)
    exhibit.show(Lines("FLOPs between tokens", counts, axes=["tokens", "FLOPs"], x=lengths, log=["x", "y"]))
    recall, base_rate = _hash_recall(exhibit.seed)
    exhibit.above("share of the largest-score pairs that meet in a bucket", recall, 0.9)
    exhibit.below("share of all pairs that do", base_rate, 0.5)
    summary = f"{recall:.0%} of the best pairs share a bucket, {base_rate:.0%} of all"
    return f"window >= N is full attention to {gap:.1e}; FLOPs as N^{slopes['window of 64']:.2f}; {summary}"


def _window_pairs(options: dict[str, int], N: int) -> Array:
    """(N, N) which pairs a window allows, by its definition."""
    i, j = np.arange(N)[:, None], np.arange(N)[None, :]
    step = options.get("dilation", 1)
    near = (i - j >= 0) & (i - j < options["window"] * step) & ((i - j) % step == 0)
    return near | ((j < options.get("global_tokens", 0)) & (j <= i))


def _split_weights(layer: attention.Attention) -> dict[str, Tensor]:
    """Weights of full attention under the names of layers that keep queries, keys and values apart."""
    q, k, v = layer.qkv.weight.detach().chunk(3)
    return {"q.weight": q, "k.weight": k, "v.weight": v, "out.weight": layer.out.weight.detach()}


def _masked_attention(layer: attention.Attention, x: Tensor, pairs: Array) -> Array:
    """Softmax attention over given pairs, with the layer's weights, in NumPy."""
    q, k, v, out = (weight.numpy() for weight in _split_weights(layer).values())
    tokens, d = x.numpy(), x.shape[-1] // layer.heads
    parts = []
    for h in range(layer.heads):
        rows = slice(h * d, (h + 1) * d)
        scores = np.where(pairs, (tokens @ q[rows].T) @ (tokens @ k[rows].T).transpose(0, 2, 1) / math.sqrt(d), -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        parts.append(weights / weights.sum(-1, keepdims=True) @ (tokens @ v[rows].T))
    return np.concatenate(parts, -1) @ out.T


def _hash_recall(seed: int, N: int = 256, width: int = 16, rounds: int = 4) -> tuple[float, float]:
    """Of vectors with one close partner each: how many partners share a bucket, and how many pairs do by chance."""
    source = generator(seed + 1, "hash")
    base = torch.randn(N // 2, width, generator=source, dtype=torch.float64)
    x = torch.cat([base, base + 0.15 * torch.randn(N // 2, width, generator=source, dtype=torch.float64)])[None, None]
    torch.manual_seed(seed)
    rotations = reformer.Reformer(width, heads=1, buckets=8, rounds=rounds, rotary=False).rotations
    buckets = reformer.hash_buckets(x, rotations)[0, 0]
    same = (buckets[:, None] == buckets[None]).any(-1)
    scores = F.normalize(x[0, 0], dim=-1) @ F.normalize(x[0, 0], dim=-1).T
    best = scores.fill_diagonal_(-2).argmax(1)
    pairs = same & ~torch.eye(N, dtype=torch.bool)
    return float(same[torch.arange(N), best].double().mean()), float(pairs.double().sum() / (N * (N - 1)))


def lin_02(exhibit: Exhibit) -> str:
    """phi(Q) (phi(K)^T V) is (phi(Q) phi(K)^T) V with the brackets moved: linear instead of quadratic, without a mask."""
    N, D = 64, 3
    source = exhibit.generator("brackets")
    q, k, v = (torch.randn(N, D, generator=source, dtype=torch.float64) for _ in range(3))
    phi = feature("polynomial", D).double()
    pairs = (phi(q) @ phi(k).T) @ v
    sums = phi(q) @ (phi(k).T @ v)
    gap = exhibit.expect("both bracketings", sums, pairs.numpy(), 1e-10)
    exhibit.expect("the polynomial map gives (q.k)^2", phi(q) @ phi(k).T, ((q @ k.T) ** 2).numpy(), 1e-10)
    width = phi(q).shape[-1]
    exhibit.above("features, beyond the width of q (M > D is allowed)", width, D)
    counts: dict[str, list[int]] = {"(phi(Q) phi(K)^T) V": [], "phi(Q) (phi(K)^T V)": []}
    lengths = [64, 128, 256, 512, 1024]
    for n in lengths:
        for name, count in zip(
            counts, (_flops(lambda a, b, c: (a @ b.T) @ c, n, width, D), _flops(lambda a, b, c: a @ (b.T @ c), n, width, D))
        ):
            counts[name].append(count)
    slopes = [math.log2(row[-1] / row[0]) / math.log2(lengths[-1] / lengths[0]) for row in counts.values()]
    exhibit.expect("power of N in the FLOPs of pairs", slopes[0], 2.0, 1e-9)
    exhibit.expect("power of N in the FLOPs of sums", slopes[1], 1.0, 1e-9)
    exhibit.show(Lines("FLOPs of both bracketings", counts, axes=["positions", "FLOPs"], x=lengths, log=["x", "y"]))
    pairs_last, sums_last = (row[-1] for row in counts.values())
    return (
        f"equal to {gap:.1e}; FLOPs grow as N^{slopes[0]:.0f} and N^{slopes[1]:.0f}, {pairs_last / sums_last:.0f} times fewer at N = 1024"
    )


def _flops(product: Callable[[Tensor, Tensor, Tensor], Tensor], n: int, features: int, width: int) -> int:
    """Counted by torch on tensors without memory."""
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        product(*(torch.empty(n, size, device="meta") for size in (features, features, width)))
    return counter.get_total_flops()


def lin_03(exhibit: Exhibit) -> str:
    """Linformer: keys and values mixed along time into a few rows; as many rows as tokens lose nothing."""
    N, width = 64, 16
    torch.manual_seed(exhibit.seed)
    full = attention.Attention(width, heads=2, causal=False, positions="none").double()
    x = torch.randn(1, N, width, generator=generator(exhibit.seed + 2, "tokens"), dtype=torch.float64)

    def project(E: Tensor) -> Tensor:
        layer = linformer.Linformer(width, heads=2, rows=E.shape[1], max_len=N, projection="random").double()
        layer.load_state_dict({**_split_weights(full), "E": E, "F": E})
        return layer(x)[0].detach()

    whole = full(x)[0].detach()
    same = project(torch.eye(N).double())
    gap = exhibit.expect("identity projection, as many rows as tokens: softmax attention", same, whole.numpy(), 1e-12)
    rows, errors = [4, 8, 16, 32, 64], []
    for n in rows:
        sources = [generator(seed, "projection", n) for seed in range(20 * exhibit.seed, 20 * (exhibit.seed + 1))]
        tables = [torch.randn(N, n, generator=source, dtype=torch.float64) * n**-0.5 for source in sources]
        errors.append(float(torch.stack([_product_error(E, x[0]) for E in tables]).mean()))
    slope = float(np.polyfit(np.log(rows), np.log(errors), 1)[0])
    exhibit.expect("power of the rows in the error of E E^T x, random Gaussian E", slope, -0.5, 0.1)
    exhibit.exceeds("the error falls with every doubling of the rows", min(a - b for a, b in zip(errors, errors[1:])), 0.0)
    exhibit.refuses("a sequence longer than the tables", lambda: linformer.Linformer(width, heads=2, max_len=8)(torch.zeros(1, 9, width)))
    exhibit.refuses("a causal form", lambda: linformer.Linformer(width, heads=2).use("step"))
    exhibit.show(
        Lines("Error of inner products kept by a random projection", {"error": errors}, axes=["rows", "error"], x=rows, log=["x", "y"])
    )
    return f"identity projection is softmax attention to {gap:.1e}; the error falls as rows^{slope:.2f}"


def _product_error(E: Tensor, x: Tensor) -> Tensor:
    """How far (E^T a) . (E^T b) is from a . b for the columns of x, relative to their lengths."""
    mixed = E.T @ x
    return ((mixed.T @ mixed - x.T @ x) / (x.norm(dim=0)[:, None] * x.norm(dim=0))).square().mean().sqrt()


def lin_04(exhibit: Exhibit) -> str:
    """Performer: positive random features whose inner product is exp(q.k) on average, with an error of 1/sqrt(M)."""
    width, N = 8, 24
    source = generator(exhibit.seed + 3, "performer")
    # Short vectors: the estimate has a long tail, e^|q + k|^2, and a mean of few draws says little about it.
    q, k = (torch.randn(N, width, generator=source, dtype=torch.float64) * 0.3 for _ in range(2))
    true = torch.exp(q @ k.T)
    torch.manual_seed(exhibit.seed)
    sizes, errors, lowest = [16, 64, 256, 1024], [], math.inf
    for M_, draws in zip(sizes, (320, 160, 80, 40), strict=True):  # few features err most and cost least
        estimates = []
        for _ in range(draws):
            W = performer.directions(M_, width).double()
            estimates.append(performer.log_features(q, W).exp() @ performer.log_features(k, W).exp().T)
        stack = torch.stack(estimates)
        lowest = min(lowest, float(stack.min()))
        errors.append(float(((stack - true) / true).square().mean(0).sqrt().median()))  # of a typical pair: long vectors err far more
    slope = float(np.polyfit(np.log(sizes), np.log(errors), 1)[0])
    exhibit.expect("power of M in the error", slope, -0.5, 0.1)
    exhibit.above("the smallest weight of all: never negative", lowest, 0.0)
    bias = ((stack.mean(0) - true).abs() / (stack.std(0) / math.sqrt(len(stack)))).max()
    exhibit.below("largest bias of 576 weights after 40 draws of 1024 features, in standard errors", bias, 7.0)
    # The whole layer against softmax attention, and no leak: only the last key is made larger.
    attend = attention.Attention(width, heads=1, positions="none").double()
    layer = performer.Performer(width, heads=1, features=4096, rotary=False).double()
    layer.load_state_dict({**_split_weights(attend), "W": performer.directions(4096, width).double()})
    x = 0.5 * torch.randn(1, N, width, generator=source, dtype=torch.float64)
    off = float(((layer(x)[0] - attend(x)[0]).abs().max() / attend(x)[0].abs().max()).detach())
    exhibit.below("distance of the layer from softmax attention, 4096 features", off, 0.05)
    louder = torch.cat([x[:, :-1], 8 * x[:, -1:]], 1)
    exhibit.expect(
        "earlier outputs when only the last token grows", layer(louder)[0][:, :-1].detach(), layer(x)[0][:, :-1].detach().numpy(), 1e-12
    )
    exhibit.show(Lines("Relative error of exp(q.k)", {"error": errors}, axes=["features", "error"], x=sizes, log=["x", "y"]))
    return f"the error falls as M^{slope:.2f}, no negative weight, no leak; within {off:.1%} of softmax attention with 4096 features"


# The table --------------------------------------------------------------------------------------------------------


def lin_05(exhibit: Exhibit) -> str:
    """Normalized linear attention is a weighted mean; with the identity as feature map its denominator may vanish."""
    x = draw(exhibit.seed)
    q, k, v, *_ = arrays(x)
    fq, fk = (np.where(z > 0, z + 1, np.exp(z)) for z in (q, k))  # elu + 1
    weights = np.tril(fq @ fk.T)
    weights /= weights.sum(1, keepdims=True)
    phi = feature("elu", K)
    gap = exhibit.expect("explicit weights", output(linear_norm.rule(head(x.q), head(x.k), head(x.v), phi)), weights @ v, 1e-10)
    # The identity: keys that cancel make the sum of the weights zero, while elu + 1 stays positive.
    keys = torch.cat([x.k[:1], -x.k[:1], x.k[2:]])
    with record_recurrences() as watch:
        outputs = output(linear_norm.rule(head(x.q), head(keys), head(x.v), feature("identity", K)))
    exhibit.expect("vanishing denominators counted with the identity", watch.guarded, 1)
    exhibit.expect("all outputs stay finite", bool(np.isfinite(outputs).all()), True)
    with record_recurrences() as elu_watch:
        run(linear_norm.rule(head(x.q), head(keys), head(x.v), phi))
    exhibit.expect("vanishing denominators with elu + 1", elu_watch.guarded, 0)
    exhibit.show(Heat("Weights of normalized linear attention", {"weight": weights}, axes=["query", "key"]))
    summary = f"{watch.guarded} of {watch.denominators} denominators guarded with the identity, {elu_watch.guarded} with elu + 1"
    return f"equal to explicit weights to {gap:.1e}; {summary}"


class TableRow(NamedTuple):
    """A row of the table: the rule of the library and the printed step."""

    rule: Callable[[HeadInputs], Rule]
    step: Callable[[HeadInputs], StepFunction]
    shape: tuple[int, int] = (V, K)


def _static(seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Fixed parameters: time step a and skip d (V,), A, B, C (V, K)."""
    source = generator(seed + 1, "fixed")
    a, d, A, B, C = (torch.randn(*shape, generator=source, dtype=torch.float64) for shape in ((V,), (V,), (V, K), (V, K), (V, K)))
    return a.exp() / 5, d, A, B, C


def table_rows(seed: int) -> dict[str, TableRow]:
    """The 17 rows, each with the step as it is printed (errata applied)."""
    a, d, A, B, C = _static(seed)
    gamma = 0.9
    key_first = (A.T.exp()[None], B.T[None], C.T[None])

    def simple(keep: Callable[[HeadInputs, Array, int], Array]) -> Callable[[HeadInputs], StepFunction]:
        """S = keep(S) + v k^T, o = S q."""

        def make(x: HeadInputs) -> StepFunction:
            q, k, v, *_ = arrays(x)

            def step(S: Array, t: int) -> tuple[Array, Array]:
                S = keep(x, S, t) + np.outer(v[t], k[t])
                return S, S @ q[t]

            return step

        return make

    def s4_step(x: HeadInputs) -> StepFunction:
        v = x.v.numpy()

        def step(S: Array, t: int) -> tuple[Array, Array]:
            S = S * np.exp(-a.numpy()[:, None] * np.exp(A.numpy())) + B.numpy() * v[t][:, None]
            return S, (S * C.numpy()) @ np.ones(K) + d.numpy() * v[t]

        return step

    def mamba_step(x: HeadInputs) -> StepFunction:
        q, k, v, *_ = arrays(x)
        times = x.b.numpy()

        def step(S: Array, t: int) -> tuple[Array, Array]:
            S = S * np.exp(-times[t][:, None] * np.exp(A.numpy())) + np.outer(times[t] * v[t], k[t])
            return S, S @ q[t] + d.numpy() * v[t]

        return step

    def delta_step(x: HeadInputs, decay: bool) -> StepFunction:
        q, k, v, *_ = arrays(x)

        def step(S: Array, t: int) -> tuple[Array, Array]:
            keep = np.eye(K) - float(x.beta[t]) * np.outer(k[t], k[t])
            S = S @ ((float(x.g[t]) if decay else 1.0) * keep) + float(x.beta[t]) * np.outer(v[t], k[t])
            return S, S @ q[t]

        return step

    def rwkv_step(x: HeadInputs) -> StepFunction:
        q, k, v, *_ = arrays(x)

        def step(S: Array, t: int) -> tuple[Array, Array]:
            o = (S + np.outer(d.numpy() * v[t], k[t])) @ q[t]
            return S @ np.diag(x.a[t].numpy()) + np.outer(v[t], k[t]), o

        return step

    def hgrn_step(x: HeadInputs) -> StepFunction:
        q, v = x.q.numpy(), x.v.numpy()

        def step(S: Array, t: int) -> tuple[Array, Array]:
            gate = x.a[t].numpy()
            S = S @ np.diag(gate) + np.outer(v[t], 1 - gate)
            return S, S @ q[t]

        return step

    def normalized_step(x: HeadInputs, keep: Array, write: Array, least: float, key: Array) -> StepFunction:
        """S and z side by side: z is one more row of the state, fed with ones."""
        q, v = x.q.numpy(), x.v.numpy()

        def step(S: Array, t: int) -> tuple[Array, Array]:
            S = keep[t] * S + write[t] * np.outer(np.append(v[t], 1.0), key[t])
            below = S[-1] @ q[t]
            return S, S[:-1] @ q[t] / (max(abs(below), least) if least else below)

        return step

    def slots(x: HeadInputs, gates: Array) -> StepFunction:
        """Both memories in one state: S_k above S_v, (K + V, M)."""
        q, k, v, *_ = arrays(x)
        phi = x.phi.numpy()

        def step(S: Array, t: int) -> tuple[Array, Array]:
            S = S * gates[t] + np.outer(np.concatenate([k[t], v[t]]), phi[t])
            scores = S[:K].T @ q[t]
            weights = np.exp(scores - scores.max())
            return S, S[K:] @ (weights / weights.sum())

        return step

    def positive(x: HeadInputs) -> HeadInputs:
        """Keys and queries above zero, as a denominator needs them."""
        return x._replace(q=x.q.exp(), k=x.k.exp())

    ones = np.ones(L)
    phi = feature("elu", K)

    def with_features(x: HeadInputs) -> HeadInputs:
        return x._replace(q=torch.where(x.q > 0, x.q + 1, x.q.exp()), k=torch.where(x.k > 0, x.k + 1, x.k.exp()))

    plus = (V + 1, K)
    return {
        "linear": TableRow(lambda x: linear.rule(head(x.q), head(x.k), head(x.v)), simple(lambda x, S, t: S)),
        "linear_kernel": TableRow(
            lambda x: linear_kernel.rule(head(x.q), head(x.k), head(x.v), phi), lambda x: simple(lambda _, S, t: S)(with_features(x))
        ),
        "linear_norm": TableRow(
            lambda x: linear_norm.rule(head(x.q), head(x.k), head(x.v), phi),
            lambda x: normalized_step(with_features(x), ones, ones, 0, with_features(x).k.numpy()),
            plus,
        ),
        "deltanet": TableRow(lambda x: deltanet.rule(head(x.q), head(x.k), head(x.v), head(x.beta)), lambda x: delta_step(x, decay=False)),
        "gated_rfa": TableRow(
            lambda x: gated_rfa.rule(head(x.q.exp()), head(x.k.exp()), head(x.v), head(x.g.log())),
            lambda x: normalized_step(positive(x), x.g.numpy(), 1 - x.g.numpy(), 0, x.k.exp().numpy()),
            plus,
        ),
        "s4": TableRow(lambda x: s4.rule(head(x.v), a[None], *key_first, d[None]), s4_step),
        "abc": TableRow(lambda x: abc.rule(head(x.q), head(x.k), head(x.v), head(x.phi)), lambda x: slots(x, np.ones((L, M))), (K + V, M)),
        "dfw": TableRow(
            lambda x: dfw.rule(head(x.q), head(x.k), head(x.v), head(x.a.log()), head(x.b.log())),
            simple(lambda x, S, t: S * np.outer(x.b[t].numpy(), x.a[t].numpy())),
        ),
        "retnet": TableRow(
            lambda x: retnet.rule(head(x.q), head(x.k), head(x.v), torch.tensor([gamma], dtype=torch.float64).log()),
            simple(lambda x, S, t: gamma * S),
        ),
        "mamba": TableRow(lambda x: mamba.rule(head(x.q), head(x.k), head(x.v), head(x.b), table_rows_rate(seed), d[None]), mamba_step),
        "gla": TableRow(
            lambda x: gla.rule(head(x.q), head(x.k), head(x.v), head(x.a.log())),
            simple(lambda x, S, t: S * np.outer(np.ones(V), x.a[t].numpy())),
        ),
        "rwkv6": TableRow(lambda x: rwkv6.rule(head(x.q), head(x.k), head(x.v), head(x.a.log()), d[None]), rwkv_step),
        "hgrn2": TableRow(lambda x: hgrn2.rule(head(x.q), head(x.v), head(x.a.log())), hgrn_step),
        "mlstm": TableRow(
            lambda x: mlstm.rule(head(x.q), head(x.k), head(x.v), head(x.phi[:, 0].log()), head(x.g.log())),
            lambda x: normalized_step(x, x.g.numpy(), x.phi[:, 0].numpy(), 1, x.k.numpy()),
            plus,
        ),
        "mamba2": TableRow(
            lambda x: mamba2.rule(head(x.q), head(x.k), head(x.v), head(x.g.log())), simple(lambda x, S, t: float(x.g[t]) * S)
        ),
        "gsa": TableRow(
            lambda x: gsa.rule(head(x.q), head(x.k), head(x.v), head(x.phi), head(torch.cat([x.a, x.b], 1)[:, :M].log())),
            lambda x: slots(x, np.concatenate([x.a.numpy(), x.b.numpy()], 1)[:, :M]),
            (K + V, M),
        ),
        "gated_deltanet": TableRow(
            lambda x: gated_deltanet.rule(head(x.q), unit(x.k), head(x.v), head(x.beta), head(x.g.log())),
            lambda x: delta_step(x._replace(k=unit(x.k)[0, 0]), decay=True),
        ),
    }


def unit(k: Tensor) -> Tensor:
    return head(F.normalize(k, dim=-1))


def check_row(exhibit: Exhibit, name: str) -> Array:
    """One row of the table in all its forms beside its loop."""
    row, x = table_rows(exhibit.seed)[name], draw(exhibit.seed)
    return compare_forms(exhibit, lambda: row.rule(x), reference_loop(x, row.step(x), row.shape))


def lin_06(exhibit: Exhibit) -> str:
    """One engine runs all recurrences: each rule defines a step, and the tensors it returns determine its class."""
    x, rows = draw(exhibit.seed), table_rows(exhibit.seed)
    table: dict[str, list[Any]] = {"row": [], "kind": [], "forms": [], "largest difference": []}
    for name, row in rows.items():
        with record_recurrences() as watch:
            out = output(row.rule(x))
        expected = reference_loop(x, row.step(x), row.shape)
        size = np.abs(expected).max()
        gap = exhibit.expect(f"{name} against its loop", out / size, expected / size, 1e-12)
        kinds = [steps.name for steps, _ in watch.seen]
        for key, value in zip(table, (name, ", then ".join(kinds), ", ".join(watch.seen[0][0].forms), gap)):
            table[key].append(value)
    exhibit.expect("rows of the table", len(rows), 17)
    exhibit.expect("classes among them", sorted({kind.split(":")[0] for kind in table["kind"]}), ["delta", "hadamard", "separable"])
    exhibit.show(
        Table(
            "One engine, seventeen recurrences",
            table,
            note=f"{L} steps, keys of {K}, values of {V}, float64; of the largest output",
        )
    )
    return f"{len(rows)} rows equal their loops, the worst to {max(table['largest difference']):.1e} of its largest output"


def lin_07(exhibit: Exhibit) -> str:
    """Linear attention is (Q K^T o M) V with M_tj = 1[j <= t]; the mask as printed, 1[i <= j], looks into the future."""
    out = check_row(exhibit, "linear")
    q, k, v, *_ = arrays(draw(exhibit.seed))
    exhibit.expect("(Q K^T o M) V with the lower triangle", np.tril(q @ k.T) @ v, out, 1e-10)
    printed = np.triu(q @ k.T) @ v
    exhibit.above("distance of the printed mask's result", np.abs(printed - out).max(), 1.0)
    # The printed mask is anti-causal: its first output depends on the last value.
    moved = v.copy()
    moved[-1] += 1
    change = (np.triu(q @ k.T) @ moved - printed)[0]
    exhibit.expect("change of its first output when the last value moves by 1: q_1 . k_L", change, np.full(V, q[0] @ k[-1]), 1e-12)
    x = draw(exhibit.seed)
    after = output(linear.rule(head(x.q), head(x.k), head(torch.from_numpy(moved))))
    exhibit.expect("change of ours before the last", after[:-1], out[:-1], 1e-12)
    exhibit.expect("change of our last output: q_L . k_L", after[-1] - out[-1], np.full(V, q[-1] @ k[-1]), 1e-12)
    return "recurrence and (Q K^T o M) V agree to 1e-10; the printed mask is anti-causal"


def lin_08(exhibit: Exhibit) -> str:
    """With features: the identity gives plain linear attention; elu + 1 and polynomials are there."""
    check_row(exhibit, "linear_kernel")
    x = draw(exhibit.seed)
    plain = output(linear.rule(head(x.q), head(x.k), head(x.v)))
    exhibit.expect("identity features", output(linear_kernel.rule(head(x.q), head(x.k), head(x.v), feature("identity", K))), plain, 1e-12)
    q, k, v, *_ = arrays(x)
    squared = output(linear_kernel.rule(head(x.q), head(x.k), head(x.v), feature("polynomial", K).double()))
    exhibit.expect("polynomial features: weights (q.k)^2", squared, np.tril((q @ k.T) ** 2) @ v, 1e-9)
    return f"identity equals linear attention; polynomial features of {feature('polynomial', K)(x.q).shape[-1]} numbers give (q.k)^2"


def lin_09(exhibit: Exhibit) -> str:
    """Normalized: a mean of the values, so values that are all the same come out as they went in."""
    check_row(exhibit, "linear_norm")
    x = draw(exhibit.seed)
    same = x.v[:1].expand(L, V)
    gap = exhibit.expect(
        "constant values", output(linear_norm.rule(head(x.q), head(x.k), head(same), feature("elu", K))), same.numpy(), 1e-12
    )
    return f"constant values come back to {gap:.1e}"


def lin_10(exhibit: Exhibit) -> str:
    """The delta rule is a gradient step on |S k - v|^2 / 2: it overwrites what is stored under a key instead of adding to it."""
    check_row(exhibit, "deltanet")
    x = draw(exhibit.seed)
    S = torch.randn(V, K, generator=generator(exhibit.seed + 2, "memory"), dtype=torch.float64).requires_grad_()
    k, v, beta = x.k[0], x.v[0], 0.3
    ((S @ k - v).square().sum() / 2).backward()
    assert S.grad is not None
    taken = S.detach() - beta * S.grad
    _, state = compute(
        Steps(head(x.q[:1]), head(k[None]), head(v[None]), beta=torch.full((1, 1, 1), beta, dtype=torch.float64)), S.detach().T[None, None]
    )
    exhibit.expect("one step of gradient descent on norm(S k - v)^2 / 2", state[0, 0].T, taken.numpy(), 1e-12)
    # The same unit key written twice, with beta = 1.
    key = F.normalize(x.k[:1], dim=-1)
    keys, ones = key.expand(2, K), torch.ones(1, 1, 2, dtype=torch.float64)
    latest = output(deltanet.rule(head(keys), head(keys), head(x.v[:2]), ones))[-1]
    summed = output(linear.rule(head(keys), head(keys), head(x.v[:2])))[-1]
    exhibit.expect("what the delta rule remembers of a key written twice: the latest value", latest, x.v[1].numpy(), 1e-12)
    exhibit.expect("what linear attention remembers: the sum", summed, (x.v[0] + x.v[1]).numpy(), 1e-12)
    # Orthonormal keys: all of them are recalled.
    axes = torch.linalg.qr(torch.randn(K, K, generator=generator(exhibit.seed + 3, "axes"), dtype=torch.float64))[0]
    keys, queries, values = torch.cat([axes, axes]), torch.cat([axes, axes]), torch.cat([x.v[:K], torch.zeros(K, V, dtype=torch.float64)])
    beta_once = torch.cat([torch.ones(K), torch.zeros(K)]).double()[None, None]
    recalled = output(deltanet.rule(head(queries), head(keys), head(values), beta_once))[K:]
    exhibit.expect("values under orthonormal keys, recalled later", recalled, x.v[:K].numpy(), 1e-12)
    # The triangular solve, written out: (I + M) U = beta (V), o = tril(Q K^T) U.
    # With keys of length one the system is well conditioned; with longer ones the state, and what is rounded in it, may grow.
    q, k_, v_ = (t.numpy() for t in (x.q, unit(x.k)[0, 0], x.v))
    b = x.beta.numpy()[:, None]
    U = np.linalg.solve(np.eye(L) + np.tril(b * (k_ @ k_.T), -1), b * v_)
    read = output(deltanet.rule(head(x.q), unit(x.k), head(x.v), head(x.beta)))
    gap = exhibit.expect("triangular-solve form", read, np.tril(q @ k_.T) @ U, 1e-12)
    return f"a gradient step exactly; overwrites where linear attention adds; the triangular solve agrees to {gap:.1e}"


def lin_11(exhibit: Exhibit) -> str:
    """Gated RFA: an exponentially weighted mean; a gate of zero remembers the present value alone."""
    check_row(exhibit, "gated_rfa")
    x = draw(exhibit.seed)
    q, k = x.q.exp(), x.k.exp()
    g = 0.8
    constant = torch.full((1, 1, L), math.log(g), dtype=torch.float64)
    lags = np.tril(g ** np.clip(np.arange(L)[:, None] - np.arange(L), 0, None) * (q @ k.T).numpy())
    lags /= lags.sum(1, keepdims=True)
    gap = exhibit.expect(
        "constant gate: weights g^(t-j) k_j.q_t, normalized",
        output(gated_rfa.rule(head(q), head(k), head(x.v), constant)),
        lags @ x.v.numpy(),
        1e-10,
    )
    none = torch.full((1, 1, L), -math.inf, dtype=torch.float64)
    exhibit.expect("a gate of zero returns v_t", output(gated_rfa.rule(head(q), head(k), head(x.v), none)), x.v.numpy(), 1e-12)
    exhibit.show(Heat("Weights of gated RFA with a constant gate of 0.8", {"weight": lags}, axes=["query", "key"]))
    return f"weights g^(t-j) to {gap:.1e}; g = 0 returns v_t"


def lin_12(exhibit: Exhibit) -> str:
    """S4 is the same at every step, so its recurrence is a causal convolution, by sums or by FFT."""
    out = check_row(exhibit, "s4")
    a, d, A, B, C = (t.numpy() for t in _static(exhibit.seed))
    v = draw(exhibit.seed).v.numpy()
    lags = np.arange(L)
    kernel = (C * B * np.exp(-a[:, None] * np.exp(A)) ** lags[:, None, None]).sum(-1)  # (L, V)
    convolved = np.stack([np.convolve(kernel[:, c], v[:, c])[:L] for c in range(V)], 1) + d * v
    gap = exhibit.expect("causal convolution with sum_n C exp(-a e^A)^lag B", convolved, out, 1e-10)
    exhibit.show(Lines("The kernel of each channel", {f"channel {c}": kernel[:, c] for c in range(V)}, axes=["lag", "weight"]))
    return f"recurrence, convolution and FFT agree to {gap:.1e}"


def lin_13(exhibit: Exhibit) -> str:
    """ABC: a memory of fixed slots; with one slot for each position it is softmax attention at the last step."""
    check_row(exhibit, "abc")
    x = draw(exhibit.seed)
    one_hot = torch.eye(L, dtype=torch.float64)
    last = output(abc.rule(head(x.q), head(x.k), head(x.v), head(one_hot)))[-1]
    weights = torch.softmax(x.k @ x.q[-1], 0)
    gap = exhibit.expect("one-hot slots at t = L: softmax attention", last, (weights @ x.v).numpy(), 1e-12)
    return f"with one slot a position it is softmax attention at the last step, to {gap:.1e}"


def lin_14(exhibit: Exhibit) -> str:
    """DFW: decays on both axes, S o (b a^T); cumulative products of a and b give the parallel form."""
    out = check_row(exhibit, "dfw")
    x = draw(exhibit.seed)
    q, k, v, a, b, *_ = arrays(x)
    A, Bv = np.cumprod(a, 0), np.cumprod(b, 0)
    parallel = Bv * (np.tril((q * A) @ (k / A).T) @ (v / Bv))
    gap = exhibit.expect("parallel form with cumulative products", parallel, out, 1e-7)
    zero_a, zero_b = torch.zeros(1, 1, L, K, dtype=torch.float64), torch.zeros(1, 1, L, V, dtype=torch.float64)
    free = output(dfw.rule(head(x.q), head(x.k), head(x.v), zero_a, zero_b))
    exhibit.expect("a = b = 1 is linear attention", free, np.tril(q @ k.T) @ v, 1e-10)
    return f"cumulative products agree to {gap:.1e}; a = b = 1 is linear attention"


def lin_15(exhibit: Exhibit) -> str:
    """RetNet: the whole state fades by gamma, so a pair weighs gamma to the power of its distance."""
    out = check_row(exhibit, "retnet")
    q, k, v, *_ = arrays(draw(exhibit.seed))
    D = np.tril(0.9 ** np.clip(np.arange(L)[:, None] - np.arange(L), 0, None))
    gap = exhibit.expect("(Q K^T o D) V with D_tj = gamma^(t-j)", (q @ k.T * D) @ v, out, 1e-10)
    exhibit.expect(
        "gammas of four heads as published", retnet.log_gammas(4).exp(), np.array([31 / 32, 63 / 64, 127 / 128, 255 / 256]), 1e-12
    )
    exhibit.show(Heat("The decay matrix of RetNet", {"gamma^(t-j)": D}, axes=["query", "key"]))
    return f"(Q K^T o D) V to {gap:.1e}"


def lin_16(exhibit: Exhibit) -> str:
    """Mamba chooses at each token how much time passes: none, and the token leaves no trace."""
    check_row(exhibit, "mamba")
    x = draw(exhibit.seed)
    start = torch.randn(1, 1, K, V, generator=generator(exhibit.seed + 8, "start"), dtype=torch.float64)
    still = torch.zeros(1, 1, L, V, dtype=torch.float64)
    rate = table_rows_rate(exhibit.seed)
    _, end = run(mamba.rule(head(x.q), head(x.k), head(x.v), still, rate), {"S0": start})
    exhibit.expect("a_t = 0 keeps S and writes nothing", end["S0"], start.numpy(), 0.0)
    options = {"length": 24, "items": 3, "symbols": 4, "width": 32, "depth": 1, "steps": 400, "batch_size": 32, "lr": 1e-2}
    scores = _accuracies(exhibit, "copying", ("mamba", "s4"), options)
    exhibit.above("selective copying: Mamba", scores["mamba"], 0.95)
    exhibit.below("selective copying: S4, which treats every token alike", scores["s4"], 0.9)
    return f"a_t = 0 keeps S; selective copying: Mamba {np.mean(scores['mamba']):.0%}, S4 {np.mean(scores['s4']):.0%} of the symbols"


def table_rows_rate(seed: int) -> Tensor:
    """(1, K, V) e^A of the rows with a full rate."""
    return _static(seed)[2].T.exp()[None]


def _accuracies(exhibit: Exhibit, recipe: str, mixers: tuple[str, ...], options: dict[str, Any]) -> dict[str, list[float]]:
    """Accuracy on new sequences of a recipe with each mixer, over seeds; shown as bars."""
    scores: dict[str, list[float]] = {}
    seeds = exhibit.seeds()
    for name in mixers:
        scores[name] = []
        for seed in seeds:
            # Judged once, at the end: new sequences are many and the net is small.
            variant = registry.load("recipes", recipe).recipe(mixer=name, seed=seed, **options).replace(evaluate_every=options["steps"])
            done = exhibit.train(variant, f"{recipe}-{name.replace(' ', '-')}-{seed}", seed=seed)
            scores[name].append([row for row in done.metrics if "valid/accuracy" in row][-1]["valid/accuracy"])
    bars = {f"seed {seed}": [scores[name][number] for name in mixers] for number, seed in enumerate(seeds)}
    exhibit.show(Bars(f"Accuracy after training: {recipe}", bars, axes=["mixer"], labels=list(mixers)))
    return scores


def lin_17(exhibit: Exhibit) -> str:
    """GLA: each column of the printed S fades by itself, which is S Diag(a) as well as S o (1 a^T)."""
    out = check_row(exhibit, "gla")
    x = draw(exhibit.seed)
    q, k, v, a, *_ = arrays(x)
    by_diag = reference_loop(x, lambda S, t: (S := S @ np.diag(a[t]) + np.outer(v[t], k[t]), S @ q[t]))
    exhibit.expect("Diag and Hadamard forms", by_diag, out, 1e-12)
    B = np.cumprod(a, 0)
    gap = exhibit.expect("((Q o B)(K / B)^T o M) V with B = cumprod a", np.tril((q * B) @ (k / B).T) @ v, out, 1e-8)
    return f"cumulative products agree to {gap:.1e}; Diag and Hadamard are the same"


def lin_18(exhibit: Exhibit) -> str:
    """RWKV-6 reads before it writes, and the present token enters with a bonus, on the value or on the key side."""
    out = check_row(exhibit, "rwkv6")
    x = draw(exhibit.seed)
    d = _static(exhibit.seed)[1]
    first = d * x.v[0] * (x.k[0] @ x.q[0])
    exhibit.expect("first output (d o v_1)(k_1 . q_1)", out[0], first.numpy(), 1e-12)
    free = torch.zeros(1, 1, L, K, dtype=torch.float64)
    plain = output(linear.rule(head(x.q), head(x.k), head(x.v)))
    ones = torch.ones(1, V, dtype=torch.float64)
    exhibit.expect("d = 1, a = 1 is linear attention", output(rwkv6.rule(head(x.q), head(x.k), head(x.v), free, ones)), plain, 1e-10)

    def on_side(bonus: Tensor, side: Any) -> Array:
        return output(rwkv6.rule(head(x.q), head(x.k), head(x.v), head(x.a.log()), bonus[None], side))

    same = exhibit.expect(
        "value and key side with a constant bonus",
        on_side(torch.full((K,), 0.7, dtype=torch.float64), "key"),
        on_side(torch.full((V,), 0.7, dtype=torch.float64), "value"),
        1e-12,
    )
    by_key, by_value = (on_side(torch.linspace(0, 1, n, dtype=torch.float64), side) for n, side in ((K, "key"), (V, "value")))
    apart = math.sqrt(np.square(by_key - by_value).mean() / np.square(by_value).mean())
    exhibit.above("difference of the sides with bonuses from 0 to 1, over the output, root mean squares", apart, 0.1)
    return f"first output exact; both sides equal ({same:.0e}) for a constant bonus, {apart:.0%} of the output apart otherwise"


def lin_19(exhibit: Exhibit) -> str:
    """HGRN-2 is GLA whose keys are what is forgotten, k = 1 - a."""
    out = check_row(exhibit, "hgrn2")
    x = draw(exhibit.seed)
    gap = exhibit.expect("GLA with k = 1 - a", output(gla.rule(head(x.q), head(1 - x.a), head(x.v), head(x.a.log()))), out, 1e-12)
    return f"GLA with k = 1 - a, to {gap:.1e}"


def lin_20(exhibit: Exhibit) -> str:
    """mLSTM: exponential gates kept in log space, a denominator that never falls below one."""
    check_row(exhibit, "mlstm")
    x = draw(exhibit.seed)
    zero = torch.zeros(1, 1, L, dtype=torch.float64)
    small = x._replace(q=x.q / 1000)
    q, k, v, *_ = arrays(small)
    z = np.cumsum(k, 0)
    exhibit.below("largest |z.q| of small queries", np.abs((z * q).sum(1)).max(), 1.0)
    linear = output(mlstm.rule(head(small.q), head(small.k), head(small.v), zero, zero))
    exhibit.expect("f = i = 1 and |z.q| < 1 is linear attention", linear, np.tril(q @ k.T) @ v, 1e-12)
    # Input gates up to e^600, beyond float64 once squared; only ratios count, and ratios are what is kept.
    source = generator(exhibit.seed + 5, "gates")
    wild = 300 * torch.randn(1, 1, L, generator=source, dtype=torch.float64)
    forget = F.logsigmoid(300 * torch.randn(1, 1, L, generator=source, dtype=torch.float64))
    outputs = output(mlstm.rule(head(x.q), head(x.k), head(x.v), wild, forget))
    exhibit.expect("outputs with gates of e^600 are finite", bool(np.isfinite(outputs).all()), True)
    exact = _log_space_mlstm(x, wild[0, 0].numpy(), forget[0, 0].numpy())
    gap = exhibit.expect("and equal weights summed in log space", outputs, exact, 1e-9)
    # With values of one the output is z.q over the denominator: below one in size, and z.q itself where |z.q| < 1.
    ones = torch.ones(L, V, dtype=torch.float64)
    middling = x.q / float(np.median(np.abs((z * x.q.numpy()).sum(1))))
    fraction = output(mlstm.rule(head(middling), head(x.k), head(ones), zero, zero))[:, 0]
    read = (z * middling.numpy()).sum(1)
    exhibit.expect(f"steps of {L} with |z.q| above 1 now, apart from one that is 1", int((np.abs(read) > 1 + 1e-9).sum()), L // 2)
    exhibit.expect("z.q over max(1, |z.q|)", fraction, read / np.maximum(1, np.abs(read)), 1e-12)
    return f"denominator never below 1; gates of e^600 agree with log-space sums to {gap:.1e}"


def _log_space_mlstm(x: HeadInputs, log_i: Array, log_f: Array) -> Array:
    """Each weight as sign and logarithm, summed relative to the largest."""
    q, k, v, *_ = arrays(x)
    outs = []
    for t in range(L):
        logs = np.array([log_i[j] + log_f[j + 1 : t + 1].sum() for j in range(t + 1)])
        top = max(logs.max(), 0.0)
        weights = np.exp(logs - top) * (k[: t + 1] @ q[t])
        outs.append(weights @ v[: t + 1] / max(abs(weights.sum()), math.exp(-top)))
    return np.stack(outs)


def lin_21(exhibit: Exhibit) -> str:
    """Mamba-2: the fading of RetNet with a rate chosen at each step."""
    out = check_row(exhibit, "mamba2")
    x = draw(exhibit.seed)
    q, k, v, _, _, g, *_ = arrays(x)
    D = np.array([[g[j + 1 : t + 1].prod() if j <= t else 0.0 for j in range(L)] for t in range(L)])
    gap = exhibit.expect("(Q K^T o D) V with D_tj = product of gamma_s, j < s <= t", (q @ k.T * D) @ v, out, 1e-10)
    constant = torch.full((1, 1, L), math.log(0.9), dtype=torch.float64)
    same = output(mamba2.rule(head(x.q), head(x.k), head(x.v), constant))
    exhibit.expect("constant gamma is RetNet", same, output(table_rows(exhibit.seed)["retnet"].rule(x)), 1e-12)
    exhibit.show(Heat("The decay matrix of Mamba-2", {"product of gammas": D}, axes=["query", "key"]))
    return f"(Q K^T o D) V to {gap:.1e}; constant gamma is RetNet"


def lin_22(exhibit: Exhibit) -> str:
    """GSA: the slots of ABC with a gate each."""
    check_row(exhibit, "gsa")
    x = draw(exhibit.seed)
    free = torch.zeros(1, 1, L, M, dtype=torch.float64)
    outputs = output(gsa.rule(head(x.q), head(x.k), head(x.v), head(x.phi), free))
    gap = exhibit.expect("a = 1 is ABC", outputs, output(abc.rule(head(x.q), head(x.k), head(x.v), head(x.phi))), 1e-12)
    return f"a = 1 is ABC, to {gap:.1e}"


def lin_23(exhibit: Exhibit) -> str:
    """Gated DeltaNet: the delta rule on a state that fades."""
    check_row(exhibit, "gated_deltanet")
    x = draw(exhibit.seed)
    k = unit(x.k)
    free = torch.zeros(1, 1, L, dtype=torch.float64)
    gated = output(gated_deltanet.rule(head(x.q), k, head(x.v), head(x.beta), free))
    gap = exhibit.expect("a = 1 is DeltaNet", gated, output(deltanet.rule(head(x.q), k, head(x.v), head(x.beta))), 1e-12)
    start = torch.randn(1, 1, K, V, generator=generator(exhibit.seed + 6, "start"), dtype=torch.float64)
    _, end = run(gated_deltanet.rule(head(x.q), k, head(x.v), 0 * head(x.beta), head(x.g.log())), {"S0": start})
    exhibit.expect("b = 0: the state only fades", end["S0"], (start * x.g.prod()).numpy(), 1e-12)
    return f"a = 1 is DeltaNet to {gap:.1e}; b = 0 is pure decay"


# Forms and what they cost -----------------------------------------------------------------------------------------


def lin_24(exhibit: Exhibit) -> str:
    """All pairs at once, one step after the other, or a scan of an associative operation: equal, in 1, L and log2 L rounds."""
    x, rows = draw(exhibit.seed, 100), table_rows(exhibit.seed)
    table: dict[str, list[Any]] = {"row": [], "kind": [], "forms": [], "largest difference between forms": []}
    for name, row in rows.items():
        with record_recurrences() as watch:
            first = run(row.rule(x), form="step")[0]
        both = [form for form in available_forms(watch.seen[0][0]) if all(form in available_forms(steps) for steps, _ in watch.seen)]
        size = float(first.abs().max())  # the printed delta rule has keys of any length and may grow
        gaps = {form: float((run(row.rule(x), form=form)[0] - first).abs().max()) / size for form in both if form != "step"}
        exhibit.below(f"{name}: largest difference of {', '.join(gaps)} from step by step", max(gaps.values()), 1e-10)
        for key, value in zip(table, (name, ", then ".join(s.name for s, _ in watch.seen), ", ".join(both), max(gaps.values()))):
            table[key].append(value)
    exhibit.show(Table("Which forms each recurrence has", table))
    exhibit.expect("matmul form of Mamba", "parallel" in mixer("mamba", 16).forms(), False)
    exhibit.expect("convolution of S4", "convolution" in mixer("s4", 16).forms(), True)
    exhibit.expect("passes of GSA and ABC", [len(_visible(rows[name], x)) for name in ("gsa", "abc", "gla")], [2, 2, 1])
    exhibit.refuses("a form that is not there", lambda: mixer("mamba", 16).use("parallel"))
    _associative(exhibit)
    rounds: dict[str, list[int]] = {"shallow": [], "tree": [], "ceil(log2 L)": []}
    lengths = [1, 2, 3, 7, 8, 9, 64, 100, 1000, 1024]
    for n in lengths:
        for method in ("shallow", "tree"):
            rounds[method].append(_rounds(n, method))
        rounds["ceil(log2 L)"].append(math.ceil(math.log2(n)))
    exhibit.expect("rounds of the shallow scan", rounds["shallow"], rounds["ceil(log2 L)"])
    over = [t - max(2 * d - 1, 0) for t, d in zip(rounds["tree"], rounds["ceil(log2 L)"])]
    exhibit.expect("rounds of the tree beyond twice that, less one", sum(one for one in over if one > 0), 0)
    exhibit.show(Lines("Rounds that wait for one another", rounds, axes=["steps", "rounds"], x=lengths, log=["x"]))
    worst = max(table["largest difference between forms"])
    return f"forms of {len(table['row'])} rows agree to {worst:.1e}; a scan of 1024 steps takes {rounds['shallow'][-1]} rounds"


def _visible(row: TableRow, x: HeadInputs) -> list[tuple[Steps, str]]:
    with record_recurrences() as watch:
        run(row.rule(x))
    return watch.seen


def _associative(exhibit: Exhibit) -> None:
    """(x o y) o z against x o (y o z) for transitions that are numbers and that are matrices."""
    source = generator(exhibit.seed + 7, "stretches")

    def stretch(shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        return (torch.randn(*shape, generator=source, dtype=torch.float64), torch.randn(K, V, generator=source, dtype=torch.float64))

    for name, combine, shape in (("numbers", combine_rule(torch.mul), (K, V)), ("matrices", combine_rule(torch.matmul), (K, K))):
        x, y, z = (stretch(shape) for _ in range(3))
        left, right = combine(combine(x, y), z), combine(x, combine(y, z))
        exhibit.expect(f"joining stretches is associative: {name}", torch.cat(left, -1), torch.cat(right, -1).numpy(), 1e-12)


def _rounds(n: int, method: Any) -> int:
    """Calls of the operation one after the other; each works on all its positions at once."""
    calls = 0

    def combine(first: Any, second: Any) -> Any:
        nonlocal calls
        calls += len(first[0]) > 0
        return combine_rule(torch.mul)(first, second)

    ones = torch.ones(n, 1, dtype=torch.float64)
    _, sums = scan(combine, (ones, ones), method)
    assert torch.equal(sums[:, 0], torch.arange(1, n + 1, dtype=torch.float64))
    return calls


def lin_25(exhibit: Exhibit) -> str:
    """What each form costs, what forgetting and the delta rule are good for."""
    lengths = [1024, 4096, 16384, 65536]
    steps = [_shape(n, heads=4, width=64) for n in lengths]
    work = {form: [flops(s, form) / 1e9 for s in steps] for form in ("parallel", "step", "chunk", "scan")}
    columns = {f"GFLOP, {n:,} steps": [row[i] for row in work.values()] for i, n in enumerate(lengths)}
    exhibit.show(Table("FLOPs of a layer with a head gate (4 heads of 64)", {"form": list(work), **columns}))
    # What torch counts when the forms run, without memory: products alone, so somewhat less than all arithmetic.
    for form, power in (("parallel", 2), ("chunk", 1), ("scan", 1)):
        few, more = (_count_flops(s, form) for s in steps[1:3])
        exhibit.expect(f"power of L in the products of the {form} form, counted as it runs", math.log(more / few, 4), power, 0.1)
        exhibit.expect(f"share of the table's FLOPs that are products, {form}", more / 1e9 / work[form][2], 1.0, 0.1)
    _memory(exhibit)
    streamed = _check_streaming(exhibit)
    small = {"width": 32, "batch_size": 32, "lr": 1e-2}
    recall = _accuracies(exhibit, "recall", ("deltanet", "linear"), {"pairs": 6, "keys": 12, "depth": 1, "steps": 320, **small})
    exhibit.above("recall: DeltaNet less linear attention", _lead(recall["deltanet"], recall["linear"]), 0.3)
    reset = _accuracies(exhibit, "reset", ("gla", "linear"), {"steps": 200, **small})
    exhibit.above("reset: a gated model less linear attention", _lead(reset["gla"], reset["linear"]), 0.1)
    means = [f"{np.mean(scores):.0%}" for scores in (*recall.values(), *reset.values())]
    summary = "recall {} by DeltaNet, {} by linear attention; reset {} by GLA, {} by linear attention".format(*means)
    return f"{streamed}; {summary}"


def _lead(first: list[float], second: list[float]) -> list[float]:
    """How far the first is ahead, seed by seed."""
    return [a - b for a, b in zip(first, second, strict=True)]


def _shape(n: int, heads: int, width: int) -> Steps:
    """Steps without memory, to be counted."""
    row = torch.empty(1, heads, n, width, device="meta")
    return Steps(row, row, row, log_head=row[..., 0])


def _count_flops(steps: Steps, form: str) -> int:
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        compute(steps, form=form)
    return counter.get_total_flops()


def _memory(exhibit: Exhibit) -> None:
    """Bytes alive at once in each form: a scan over every step keeps every state."""
    lengths, heads, width = [128, 256, 512], 2, 32
    peaks: dict[str, list[int]] = {"step": [], "chunk": [], "scan over every step": []}
    source = generator(exhibit.seed + 9, "memory")
    for n in lengths:
        q, k, v = (torch.randn(1, heads, n, width, generator=source) for _ in range(3))
        steps = Steps(q, k, v, log_head=F.logsigmoid(torch.randn(1, heads, n, generator=source)))
        for name in peaks:
            with torch.no_grad(), Live() as live:
                compute(steps, form=name) if name in steps.forms else scan(combine_rule(torch.mul), _per_step(steps))
            peaks[name].append(live.peak)
    states = 4 * heads * width * width
    exhibit.above("a scan over 512 steps, in bytes of all 512 states", peaks["scan over every step"][-1] / (512 * states), 1.0)
    exhibit.below("step by step, the same", peaks["step"][-1] / (512 * states), 0.2)
    exhibit.show(Lines("Memory of each form", peaks, axes=["steps", "bytes"], x=lengths, log=["x", "y"]))


def _per_step(steps: Steps) -> tuple[Tensor, Tensor]:
    """(n, H, K, V) what each step keeps and what it writes, for a scan without chunks."""
    assert steps.k is not None and steps.log_head is not None
    written = (steps.k[0, ..., None] * steps.v[0, ..., None, :]).transpose(0, 1)
    return steps.log_head[0].T.exp()[..., None, None].expand_as(written), written


def _check_streaming(exhibit: Exhibit) -> str:
    """A layer fed token by token: what it keeps does not grow, and attention's cache does."""
    torch.manual_seed(exhibit.seed)
    kept: dict[str, list[int]] = {}
    for name in ("gla", "attention"):
        layer, state, sizes = mixer(name, 16), None, []
        with torch.no_grad():
            for piece in torch.randn(1, 2048, 16, generator=generator(exhibit.seed + 10, "stream")).split(512, 1):
                state = layer(piece, state)[1]
                sizes.append(sum(t.numel() * t.element_size() for t in state.values()))
        kept[name] = sizes
    exhibit.expect("growth of the state of GLA from 512 to 2048 tokens", kept["gla"][-1] / kept["gla"][0], 1.0)
    exhibit.above("growth of the cache of attention", kept["attention"][-1] / kept["attention"][0], 3.5)
    return f"streaming keeps {kept['gla'][-1] / 1024:.1f} KB at any length"
