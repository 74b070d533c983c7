"""Sequence mixers beside what a user would run on a CPU instead, in one run with the same threads.

    python benchmarks/mixers.py [speed] [memory] [decode] [context] [model] [forms]   --length 2048 --threads 1

speed    forward and backward of a recurrence against transformers, mamba.py, attention and plain loops; share of sgemm
memory   peak memory of the same, each in a process of its own
decode   one token: the state update alone
context  time per token of a whole model at growing context
model    a Mamba-2 model of transformers and one of ours, decoding with their caches
forms    what `form="auto"` expects of each form beside what it takes
"""

from __future__ import annotations

import argparse
import gc
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from sonde.nn.mixers import gated_deltanet, gla, mamba, mamba2, mlstm
from sonde.nn.recurrence import run

B, H, D, N, CHANNELS = 2, 4, 64, 16, 256
"""batch, heads, width of a head, states and channels of Mamba"""

Call = Callable[[], None]


@dataclass(frozen=True)
class Candidate:
    """Something to time: how it is set up, its goals (peer -> least ratio), its arithmetic per step and head in units of K V."""

    make: Callable[[int], Call]
    goals: dict[str, float]
    work: int = 0


def both(compute: Callable[..., Tensor], *inputs: Tensor) -> Call:
    """Forward and backward, gradients of all inputs."""
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    slope = torch.randn_like(compute(*leaves).detach())

    def call() -> None:
        torch.autograd.grad(compute(*leaves), leaves, slope, allow_unused=True)

    return call


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape)


def gate(*shape: int) -> Tensor:
    """Logs of gates between about 0.8 and 1, as trained models have them."""
    return F.logsigmoid(torch.randn(*shape) + 3)


def unit(*shape: int) -> Tensor:
    return F.normalize(torch.randn(*shape), dim=-1)


# Ours, each with everything its recurrence needs -------------------------------------------------------------------


def our_mamba2(L: int) -> Call:
    A_log, dt = torch.zeros(H), F.softplus(normal(B, H, L) - 3)
    return both(lambda q, k, x, dt: run(mamba2.rule(q, k, x, -dt * A_log.exp()[:, None], dt))[0], heads(L), heads(L), heads(L), dt)


def our_gla(L: int) -> Call:
    return both(lambda q, k, v, g: run(gla.rule(q, k, v, g))[0], heads(L), heads(L), heads(L), gate(B, H, L, D))


def our_mlstm(L: int) -> Call:
    return both(
        lambda q, k, v, i, f: run(mlstm.rule(q, k, v, i, F.logsigmoid(f)))[0],
        heads(L),
        heads(L),
        heads(L),
        normal(B, H, L),
        normal(B, H, L) + 3,
    )


def our_delta(L: int) -> Call:
    return both(
        lambda q, k, v, b, g: run(gated_deltanet.rule(q, k, v, torch.sigmoid(b), g))[0],
        heads(L), unit(B, L, H, D).transpose(1, 2), heads(L), normal(B, H, L), gate(B, H, L),
    )  # fmt: skip


def our_mamba(L: int) -> Call:
    x, dt, A, k, q = mamba_inputs(L)
    return both(lambda x, dt, A, k, q: run(mamba.rule(q[:, None], k[:, None], x[:, None], dt[:, None], A.T[None]))[0], x, dt, -A, k, q)


def heads(L: int) -> Tensor:
    """(B, H, L, D), in memory as a linear layer leaves it."""
    return normal(B, L, H, D).transpose(1, 2)


def mamba_inputs(L: int) -> tuple[Tensor, ...]:
    A = -torch.arange(1, N + 1).float().repeat(CHANNELS, 1)
    return normal(B, L, CHANNELS), F.softplus(normal(B, L, CHANNELS) - 3), A, normal(B, L, N), normal(B, L, N)


# Peers ------------------------------------------------------------------------------------------------------------


def attention(L: int) -> Call:
    return both(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), *(normal(B, H, L, D) for _ in range(3)))


def transformers_mamba2(L: int, chunk: int) -> Call:
    from transformers.models.mamba2.modeling_mamba2 import mamba2_chunk_scan

    A, dt = -torch.ones(H), F.softplus(normal(B, L, H) - 3)
    inputs = (normal(B, L, H, D), dt, normal(B, L, H, D), normal(B, L, H, D))
    return both(lambda x, dt, k, q: mamba2_chunk_scan(x, dt, A, k, q, chunk), *inputs)


def transformers_mlstm(L: int) -> Call:
    from transformers.models.xlstm.modeling_xlstm import mlstm_chunkwise_native_autograd

    def compute(q: Tensor, k: Tensor, v: Tensor, i: Tensor, f: Tensor) -> Tensor:
        return mlstm_chunkwise_native_autograd(q, k, v, i, f, chunk_size=64)

    return both(compute, *(normal(B, H, L, D) for _ in range(3)), normal(B, H, L), normal(B, H, L) + 3)


def transformers_delta(L: int) -> Call:
    from transformers.models.qwen3_next.modeling_qwen3_next import torch_chunk_gated_delta_rule

    def compute(q: Tensor, k: Tensor, v: Tensor, g: Tensor, b: Tensor) -> Tensor:
        return torch_chunk_gated_delta_rule(q, k, v, g, torch.sigmoid(b))[0]

    return both(compute, normal(B, L, H, D), unit(B, L, H, D), normal(B, L, H, D), gate(B, L, H), normal(B, L, H))


def transformers_mamba(L: int) -> Call:
    from transformers.models.mamba.modeling_mamba import mamba_selective_scan

    def compute(x: Tensor, dt: Tensor, A: Tensor, k: Tensor, q: Tensor) -> Tensor:
        channels_first = (t.transpose(1, 2) for t in (x, dt))
        return mamba_selective_scan(*channels_first, A, k.transpose(1, 2), q.transpose(1, 2), use_mambapy=True)

    return both(compute, *mamba_inputs(L))


def transformers_mamba_layer(L: int) -> Call:
    from transformers import MambaConfig
    from transformers.models.mamba.modeling_mamba import MambaMixer

    layer = MambaMixer(MambaConfig(hidden_size=CHANNELS // 2, state_size=N, expand=2, use_mambapy=True, num_hidden_layers=1), 0)
    return trained(lambda x: layer(x), layer, L)


def our_mamba_layer(L: int) -> Call:
    layer = mamba.Mamba(width=CHANNELS // 2, states=N)
    return trained(lambda x: layer(x)[0], layer, L)


def trained(compute: Callable[[Tensor], Tensor], layer: torch.nn.Module, L: int) -> Call:
    x, weights = normal(B, L, CHANNELS // 2), list(layer.parameters())
    slope = torch.randn_like(x)

    def call() -> None:
        torch.autograd.grad(compute(x), weights, slope, allow_unused=True)

    return call


def mambapy(L: int) -> Call:
    from mambapy.pscan import pscan

    def compute(x: Tensor, dt: Tensor, A: Tensor, k: Tensor, q: Tensor) -> Tensor:
        states = pscan(torch.exp(dt.unsqueeze(-1) * A), (dt * x).unsqueeze(-1) * k.unsqueeze(2))
        return (states @ q.unsqueeze(-1)).squeeze(-1)

    return both(compute, *mamba_inputs(L))


def loop(L: int, kind: str) -> Call:
    """The recurrence written down in torch, one step after the other; `unbind` once, so its backward is linear."""

    def compute(q: Tensor, k: Tensor, v: Tensor, g: Tensor, b: Tensor) -> Tensor:
        S, outs = torch.zeros(B, H, D, D), []
        decay = g.exp()
        for qt, kt, vt, at, bt in zip(*(x.unbind(2) for x in (q, k, v, decay, b))):
            S = S * (at[..., None, None] if at.dim() == 2 else at[..., None])
            if kind == "delta":
                vt = bt[..., None] * (vt - (S.mT @ kt[..., None])[..., 0])
            S = S + kt[..., None] * vt[..., None, :]
            outs.append((S.mT @ qt[..., None])[..., 0])
        return torch.stack(outs, 2)

    shape = (B, H, L, D) if kind == "key" else (B, H, L)
    return both(compute, normal(B, H, L, D), unit(B, H, L, D), normal(B, H, L, D), gate(*shape), torch.sigmoid(normal(B, H, L)))


def loop_mamba(L: int) -> Call:
    def compute(x: Tensor, dt: Tensor, A: Tensor, k: Tensor, q: Tensor) -> Tensor:
        S, outs = torch.zeros(B, CHANNELS, N), []
        for xt, dtt, kt, qt in zip(*(t.unbind(1) for t in (x, dt, k, q))):
            S = S * torch.exp(dtt[..., None] * A) + (dtt * xt)[..., None] * kt[:, None]
            outs.append((S @ qt[..., None])[..., 0])
        return torch.stack(outs, 1)

    return both(compute, *mamba_inputs(L))


GROUPS: dict[str, dict[str, Candidate]] = {
    "scalar decay (Mamba-2)": {
        "ours": Candidate(our_mamba2, {"transformers chunk 256": 10, "transformers chunk 64": 4, "attention": 12, "loop": 28}, 17),
        "transformers chunk 256": Candidate(lambda L: transformers_mamba2(L, 256), {}),
        "transformers chunk 64": Candidate(lambda L: transformers_mamba2(L, 64), {}),
        "attention": Candidate(attention, {}),
        "loop": Candidate(lambda L: loop(L, "scalar"), {}),
    },
    "key decay (GLA)": {
        "ours": Candidate(our_gla, {"transformers Mamba-2": 10, "transformers Mamba-2, chunk 64": 4, "attention": 12, "loop": 28}, 17),
        "transformers Mamba-2": Candidate(lambda L: transformers_mamba2(L, 256), {}),
        "transformers Mamba-2, chunk 64": Candidate(lambda L: transformers_mamba2(L, 64), {}),
        "attention": Candidate(attention, {}),
        "loop": Candidate(lambda L: loop(L, "key"), {}),
    },
    "mLSTM": {
        "ours": Candidate(our_mlstm, {"transformers chunk 64": 5, "attention": 12}),
        "transformers chunk 64": Candidate(transformers_mlstm, {}),
        "attention": Candidate(attention, {}),
    },
    "gated delta rule": {
        "ours": Candidate(our_delta, {"transformers chunk 64": 8, "loop": 28}, 25),
        "transformers chunk 64": Candidate(transformers_delta, {}),
        "attention": Candidate(attention, {}),
        "loop": Candidate(lambda L: loop(L, "delta"), {}),
    },
    "Mamba": {
        "ours": Candidate(our_mamba, {"mamba.py": 32, "transformers + mamba.py": 58, "loop": 28}),
        "mamba.py": Candidate(mambapy, {}),
        "transformers + mamba.py": Candidate(transformers_mamba, {}),
        "loop": Candidate(loop_mamba, {}),
        "attention": Candidate(attention, {}),
    },
    "Mamba layer": {
        "ours": Candidate(our_mamba_layer, {}),
        "transformers + mamba.py": Candidate(transformers_mamba_layer, {}),
    },
}  # fmt: skip


def best_of(calls: dict[str, Call], rounds: int = 7) -> dict[str, float]:
    """Best seconds of each, taking turns; what takes long takes fewer turns."""
    best: dict[str, float] = {}
    for call in calls.values():
        call()
    for turn in range(rounds):
        for name, call in calls.items():
            if turn >= 2 and best[name] > 1.0:
                continue
            started = time.perf_counter()
            call()
            best[name] = min(best.get(name, float("inf")), time.perf_counter() - started)
    return best


def sgemm() -> float:
    """The machine's matrix product in GFLOP/s, with the threads set."""
    a, b = torch.randn(1024, 1024), torch.randn(1024, 1024)
    seconds = best_of({"sgemm": lambda: torch.mm(a, b)}, 15)["sgemm"]
    return 2 * 1024**3 / seconds / 1e9


def speed(lengths: list[int], threads: list[int], only: str) -> bool:
    met = True
    seen: dict[tuple[str, int, int], float] = {}
    for n in threads:
        torch.set_num_threads(n)
        for L in lengths:
            for title, group in GROUPS.items():
                if only not in title:
                    continue
                peak = sgemm()
                best = best_of({name: c.make(L) for name, c in group.items()})
                ours = group["ours"]
                seen[title, L, n] = best["ours"]
                share = (
                    f", {ours.work * B * H * L * D * D / best['ours'] / 1e9 / peak:.0%} of sgemm ({peak:.0f} GFLOP/s)" if ours.work else ""
                )
                print(
                    f"\n{title}, {L} steps, {n} thread{'s' * (n > 1)}: {1e3 * best['ours']:.1f} ms forward and backward{share}", flush=True
                )
                for name, seconds in best.items():
                    if name != "ours":
                        met &= verdict(f"{name:32} {1e3 * seconds:9.1f} ms", seconds / best["ours"], goal(ours, name, L))
    for (title, L, n), seconds in seen.items():
        if n == 1 and (title, L, 2) in seen:
            met &= verdict(f"{title}, {L} steps, two threads", seconds / seen[title, L, 2], 1.8 if L >= 2048 else None)
    return met


def goal(ours: Candidate, peer: str, L: int) -> float | None:
    """Goals hold at 2048 steps; at 4096 every gated member is to be 12 times as fast as attention."""
    return 12.0 if peer == "attention" and L == 4096 else ours.goals.get(peer) if L == 2048 else None


def verdict(text: str, ratio: float, goal: float | None) -> bool:
    outcome = "" if goal is None else f"   goal {goal:g}: {'met' if ratio >= goal else 'MISSED'}"
    print(f"  {text}   {ratio:8.2f}x{outcome}", flush=True)
    return goal is None or ratio >= goal


# Memory -----------------------------------------------------------------------------------------------------------


def memory(L: int) -> bool:
    """Growth of the peak of a process by one forward and backward pass."""
    met = True
    for title, peer in (("scalar decay (Mamba-2)", "transformers chunk 256"), ("mLSTM", "transformers chunk 64"),
                        ("gated delta rule", "transformers chunk 64"), ("Mamba", "transformers + mamba.py")):  # fmt: skip
        peaks = {}
        for name in ("ours", peer):
            command = [sys.executable, __file__, "peak", "--only", title, "--candidate", name, "--length", str(L)]
            peaks[name] = float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        met &= verdict(f"{title}: {peaks['ours']:.0f} MB, {peer} {peaks[peer]:.0f} MB", peaks[peer] / peaks["ours"], 3)
    return met


def peak(title: str, name: str, L: int) -> None:
    candidate = GROUPS[title][name]
    candidate.make(64)()  # libraries load, pools start
    gc.collect()
    call = candidate.make(L)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    call()
    print(max(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, 1) / 1024)


def main() -> int:
    parts = ("speed", "memory", "decode", "context", "model", "forms")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=[], choices=(*parts, "peak", []))
    parser.add_argument("--length", type=int, nargs="*", default=[512, 2048, 4096])
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--only", default="")
    parser.add_argument("--candidate", default="ours")
    args = parser.parse_args()
    torch.manual_seed(0)
    if args.parts == ["peak"]:
        peak(args.only, args.candidate, args.length[0])
        return 0
    from _decoding import context, decode, forms, model

    ways: dict[str, Callable[[], bool]] = {
        "speed": lambda: speed(args.length, args.threads, args.only),
        "memory": lambda: memory(2048),
        "decode": decode,
        "context": context,
        "model": model,
        "forms": forms,
    }
    return 0 if all([ways[name]() for name in args.parts or parts]) else 1


if __name__ == "__main__":
    raise SystemExit(main())
