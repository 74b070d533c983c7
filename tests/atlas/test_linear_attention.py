"""Mistakes about recurrences, made on purpose, that turn chapter 18 red."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from sonde.atlas import linear_attention
from sonde.nn.mixers import abc, attention, deltanet, gated_rfa, gla, hgrn2, linear, mamba2, mlstm, performer, reformer, rwkv6, s4, window
from sonde.nn.recurrence import Steps, forms, run, scan
from tests.atlas.mistakes import Mistakes


def quick(monkeypatch):
    """Training takes most of the time and is not what these mistakes are about."""
    monkeypatch.setattr(
        linear_attention, "_accuracies", lambda exhibit, recipe, mixers, options: {mixers[0]: [0.99, 0.98], mixers[1]: [0.3, 0.31]}
    )


mistakes = Mistakes()

mistakes.add("LIN-01", "a window that is one too long", red="against a mask written out").replace(
    window.Window, "_visible_keys", lambda right, self, query, key, past, position: right(self, query + 1, key, past, position)
)
mistakes.add("LIN-01", "a hash that does not look", red="largest-score pairs").replace(
    reformer, "hash_buckets", lambda x, r: torch.arange(x.shape[2]).view(1, 1, -1, 1).expand(1, 1, -1, 4) % 7
)
mistakes.add("LIN-03", "values that are not mixed", red="identity projection").replace(
    linear_attention.linformer, "attend", lambda right, q, k, v: right(q, k, v.flip(2))
)
mistakes.add("LIN-04", "features without their norm", red="largest bias").replace(
    performer, "log_features", lambda x, W: x @ W.mT - torch.log(torch.tensor(len(W))) / 2
)
mistakes.add("LIN-04", "a key that comes too early", red="only the last token grows").replace(
    performer, "rule", lambda right, log_q, log_k, v, state=None: right(log_q, log_k.roll(-1, 2), v.roll(-1, 2), state)
)
mistakes.add("LIN-05", "a denominator that is not guarded", red="vanishing denominators counted").replace(
    linear_attention.linear_norm, "normalize", lambda out, floor: out[..., :-1] / out[..., -1:]
)
mistakes.add("LIN-10", "values that are half written", red="latest value").replace(
    deltanet, "rule", lambda right, q, k, v, b: right(q, k, v, b / 2)
)
mistakes.add("LIN-11", "other keys", red="constant gate").replace(
    gated_rfa, "rule", lambda right, q, k, v, g: right(q, k * 0.5 + 0.1, v, g)
)
mistakes.add("LIN-12", "a kernel that is late", red="convolution form against the loop").replace(
    s4, "rule", lambda right, v, *fixed: right(F.pad(v[:, :, :-1], (0, 0, 1, 0)), *fixed)
)
mistakes.add("LIN-13", "queries that are twice as long", red="softmax attention").replace(
    abc, "rule", lambda right, q, k, v, phi: right(2 * q, k, v, phi)
)
mistakes.add("LIN-16", "time that passes anyway", red="keeps S", setup=quick).replace(
    linear_attention.mamba, "rule", lambda right, q, k, v, a, rate, d=None: right(q, k, v, a + 0.01, rate, d)
)
mistakes.add("LIN-16", "models that do not differ", count=2).replace(
    linear_attention, "_accuracies", lambda exhibit, recipe, mixers, options: dict.fromkeys(mixers, [0.92, 0.93])
)
mistakes.add("LIN-17", "gates in another order", red="against the loop").replace(
    gla, "rule", lambda right, q, k, v, a: right(q, k, v, a.flip(-1))
)
mistakes.add("LIN-19", "gates of half the size", red="against the loop").replace(hgrn2, "rule", lambda right, q, v, a: right(q, v, 0.5 * a))
mistakes.add("LIN-20", "a denominator without its floor", red="linear attention").replace(
    mlstm, "divide", lambda right, top, bottom, floor: right(top, bottom, 1e-12)
)
mistakes.add("LIN-21", "gates that come one step early", red="against the loop").replace(
    mamba2, "rule", lambda right, q, k, v, g: right(q, k, v, F.pad(g[..., 1:], (0, 1)))
)
mistakes.add("LIN-24", "stretches joined in the wrong order", red="deltanet").replace(
    forms, "combine_rule", lambda right, apply: lambda first, second: right(apply)((second[0], first[1]), (first[0], second[1]))
)
mistakes.add("LIN-25", "a state that grows", red="growth of the state of GLA", setup=quick).replace(
    linear_attention, "mixer", lambda right, name, width: right("attention", width)
)
mistakes.add("LIN-25", "models that do not differ", red=("recall: DeltaNet less", "reset: a gated model less")).replace(
    linear_attention, "_accuracies", lambda exhibit, recipe, mixers, options: dict.fromkeys(mixers, [0.5, 0.6])
)


@(
    mistakes.add("LIN-06", "a transposed state", count=17)
    .replace(linear_attention, "output", lambda rule: run(rule, form="step")[0][0, 0].numpy())
    .replace(run.__globals__["FORMS"], "step")
)
def swapped(right, s, state):
    out, end = right(s, state)
    return out.flip(-1), end


@mistakes.add("LIN-07", "the printed mask", red=("step form", "parallel form")).replace(linear, "rule")
def printed(q, k, v):
    out = yield Steps(q.flip(2), k.flip(2), v.flip(2))
    return out.flip(2)


@mistakes.add("LIN-18", "a bonus on the wrong side", red=("first output", "d = 1, a = 1")).replace(rwkv6, "rule")
def no_bonus(q, k, v, log_a, d, bonus="value"):
    return (yield Steps(q, k, v, log_key=log_a, read="before"))


@mistakes.add("LIN-24", "a scan that goes step by step", red=("rounds of the shallow scan", "rounds of the tree")).replace(
    linear_attention, "scan"
)
def slow(combine, x, method="tree"):
    parts = [tuple(one[:1] for one in x)]
    for t in range(1, len(x[0])):
        parts.append(combine(parts[-1], tuple(one[t : t + 1] for one in x)))
    return tuple(torch.cat(column) for column in zip(*parts))


@mistakes.each
def test_notices(mistake, monkeypatch):
    mistake.assert_noticed(monkeypatch)


def test_the_imports_of_this_file_are_those_of_the_chapter():
    assert linear_attention.attention is attention and linear_attention.scan is scan
