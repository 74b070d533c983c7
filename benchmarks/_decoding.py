"""The decoding parts of `mixers.py`: the state update of one token, growing context, a whole model, the cost model."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import torch
from mixers import CHANNELS, B, D, H, N, best_of, gate, normal, unit, verdict
from torch import Tensor
from torch.nn import functional as F

from sonde.kernels.delta import DeltaStep
from sonde.kernels.hadamard import HadamardStep
from sonde.kernels.separable import SeparableStep
from sonde.models.language_model import LanguageModel
from sonde.nn.recurrence import Steps, compute
from sonde.nn.recurrence.choose import estimate


def decode() -> bool:
    """Microseconds of one state update, one thread: ours on held buffers, that of transformers, and plain torch."""
    from transformers.models.mamba.modeling_mamba import mamba_selective_state_update
    from transformers.models.mamba2.modeling_mamba2 import mamba2_selective_state_update
    from transformers.models.qwen3_next.modeling_qwen3_next import torch_recurrent_gated_delta_rule

    torch.set_num_threads(1)
    met = True
    q, k, v, out = (normal(B, H, D) for _ in range(4))
    S, a, beta = torch.zeros(B, H, D, D), gate(B, H), torch.sigmoid(normal(B, H))
    x, dt, state = normal(B, H, D), F.softplus(normal(B, H) - 3), torch.zeros(B, H, D, D)
    A = -torch.ones(H)
    wide = dt[..., None].expand(B, H, D)
    met &= compare("Mamba-2", SeparableStep(q, k, v, state=S, out=out, log_head=a), {
        "transformers": lambda: mamba2_selective_state_update(state, x, wide, A[:, None, None].expand(H, D, D), k, q),
        "torch, the same formula": lambda: scalar(S, q, k, v, a),
    })  # fmt: skip
    keys, rows = unit(B, 1, H, D), [normal(B, 1, H, D) for _ in range(2)]
    g1, b1 = gate(B, 1, H), torch.sigmoid(normal(B, 1, H))
    met &= compare("gated delta rule", DeltaStep(q, keys[:, 0].contiguous(), v, beta, log_head=a, state=S, out=out), {
        "transformers": lambda: torch_recurrent_gated_delta_rule(rows[0], keys, rows[1], g1, b1, S, True),
    })  # fmt: skip
    x, dt, state = normal(B, CHANNELS), F.softplus(normal(B, CHANNELS) - 3), torch.zeros(B, CHANNELS, N)
    A, k, q = -torch.arange(1, N + 1).float().repeat(CHANNELS, 1), normal(B, N), normal(B, N)
    rate, held, read = (-A).T[None].contiguous(), torch.zeros(B, 1, N, CHANNELS), torch.zeros(B, 1, CHANNELS)
    ours = HadamardStep(q[:, None], k[:, None], normal(B, 1, CHANNELS), -dt[:, None], rate, None, held, read)
    met &= compare("Mamba", ours, {"transformers": lambda: mamba_selective_state_update(state, x, dt, A, k, q)})
    return met


def scalar(S: Tensor, q: Tensor, k: Tensor, v: Tensor, a: Tensor) -> Tensor:
    S.mul_(a.exp()[..., None, None]).addcmul_(k[..., None], v[..., None, :])
    return (S.mT @ q[..., None])[..., 0]


def compare(title: str, ours: Callable[[], object], peers: dict[str, Callable[[], object]], calls: int = 2000) -> bool:
    def many(call: Callable[[], object]) -> Callable[[], None]:
        def repeat() -> None:
            with torch.no_grad():
                for _ in range(calls):
                    call()

        return repeat

    best = best_of({"ours": many(ours), **{name: many(call) for name, call in peers.items()}}, 5)
    print(f"\n{title}, one token: {1e6 * best['ours'] / calls:.1f} us")
    return all([
        verdict(f"{name:28} {1e6 * best[name] / calls:7.1f} us", best[name] / best["ours"], 10 if name == "transformers" else None)
        for name in peers
    ])  # fmt: skip


def context(width: int = 128, depth: int = 4, tokens: int = 64) -> bool:
    """Time per token after contexts of 64 to 65,536 tokens, and the bytes a sequence remembers."""
    torch.set_num_threads(1)
    met = True
    for name in ("mamba2", "gla", "gated_deltanet", "mamba", "attention"):
        torch.manual_seed(0)
        model = LanguageModel(vocabulary=65, width=width, depth=depth, mixer=name).eval()
        times, kept = {}, {}
        for length in (64, 1024, 16384, 65536):
            if name == "attention" and length > 16384:
                continue  # quadratic: the prompt alone would take a minute
            with torch.no_grad():
                logits, state = model.advance(torch.randint(65, (1, length)))
                best = float("inf")
                for _ in range(5):
                    token, going = logits[:, -1:].argmax(-1), state
                    started = time.perf_counter()
                    for _ in range(tokens):
                        logits, going = model.advance(token, going)
                        token = logits[:, -1:].argmax(-1)
                    best = min(best, (time.perf_counter() - started) / tokens)
            times[length] = best
            kept[length] = sum(t.numel() * t.element_size() for t in torch.utils._pytree.tree_leaves(state))
        summary = ", ".join(f"{n:,}: {1e6 * t:.0f} us, {kept[n] / 1024:.0f} KB" for n, t in times.items())
        print(f"\n{name}: {summary}")
        if name != "attention":
            met &= len(set(kept.values())) == 1
            met &= verdict("longest context against shortest", min(times.values()) / max(times.values()), 0.8)
    return met


def model(width: int = 256, depth: int = 4, tokens: int = 64) -> bool:
    """Greedy decoding of a Mamba-2 model with its cache, same sizes, one thread."""
    from transformers import Mamba2Config, Mamba2ForCausalLM

    torch.set_num_threads(1)
    sizes = dict(
        vocab_size=256, hidden_size=width, num_hidden_layers=depth, num_heads=2 * width // 64, head_dim=64, state_size=64, n_groups=1
    )
    theirs = Mamba2ForCausalLM(Mamba2Config(**sizes)).eval()
    ours = LanguageModel(vocabulary=256, width=width, depth=depth, mixer="mamba2", ffn=0).eval()
    count = {name: sum(p.numel() for p in m.parameters()) for name, m in (("ours", ours), ("transformers", theirs))}
    print(f"\nMamba-2 model decoding: parameters {count['ours']:,} (ours), {count['transformers']:,} (transformers)")
    prompt = torch.randint(256, (1, 32))

    @torch.no_grad()
    def our_tokens() -> None:
        logits, state = ours.advance(prompt)
        for _ in range(tokens):
            logits, state = ours.advance(logits[:, -1:].argmax(-1), state)

    @torch.no_grad()
    def their_tokens() -> None:
        step = theirs(prompt, use_cache=True)
        for _ in range(tokens):
            step = theirs(step.logits[:, -1:].argmax(-1), cache_params=step.cache_params, use_cache=True)

    best = best_of({"ours": our_tokens, "transformers": their_tokens}, 5)
    return verdict(f"ours {1e6 * best['ours'] / tokens:.0f} us, transformers {1e6 * best['transformers'] / tokens:.0f} us a token",
                   best["transformers"] / best["ours"], 5)  # fmt: skip


def forms() -> bool:
    """What `auto` expects beside what it takes; it is right where it picks the fastest, or one within a quarter of it."""
    torch.set_num_threads(1)
    right = total = 0
    for L in (1, 16, 64, 256, 1024):
        base = Steps(normal(B, H, L, D), unit(B, H, L, D), normal(B, H, L, D))
        rate, small = torch.rand(1, N, CHANNELS) + 0.5, Steps(normal(B, 1, L, N), normal(B, 1, L, N), normal(B, 1, L, CHANNELS))
        kinds = {
            "head": replace(base, log_head=gate(B, H, L)),
            "key": replace(base, log_key=gate(B, H, L, D)),
            "delta": replace(base, log_head=gate(B, H, L), beta=torch.sigmoid(normal(B, H, L))),
            "hadamard": replace(small, log_value=gate(B, 1, L, CHANNELS), rate=rate),
        }
        for name, steps in kinds.items():
            with torch.no_grad():
                took = best_of({form: lambda s=steps, form=form: compute(s, None, form) for form in steps.forms}, 5)
            summary = "  ".join(f"{form} {1e3 * t:.2f} ({1e3 * estimate(steps, form):.2f})" for form, t in took.items())
            print(f"  {name:9} {L:5} steps, ms taken (expected): {summary}")
            for skip in ((), ("fused",)):
                left = [form for form in steps.forms if form not in skip]
                pick = min(left, key=lambda form, s=steps: estimate(s, form))
                total += 1
                right += took[pick] <= 1.25 * min(took[form] for form in left)
    return verdict(f"choices that were the fastest or near it: {right} of {total}", right / total, 0.9)
