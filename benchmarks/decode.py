"""Greedy decoding, one sequence: tokens per second beside `generate` of transformers, and how much of the memory's speed that is.

    python benchmarks/decode.py                 # all, about 3 minutes
    python benchmarks/decode.py gpt_11m --tokens 100

Random weights are made by transformers, written to a folder and loaded from it, so both have the same ones and must choose
the same tokens.  Candidates run alternately, the best run of each counts, and memory is measured in the same runs.
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
import time
from collections.abc import Callable

import torch
from _clock import turns
from torch import Tensor

from sonde.generate import generate
from sonde.kernels.decode import Program
from sonde.models import hf

PROMPT = 32
MODELS = {
    "gpt_11m": {"vocab_size": 65, "n_layer": 6, "n_head": 6, "n_embd": 384, "n_positions": 1024},
    "gpt2_124m": {"vocab_size": 50257, "n_layer": 12, "n_head": 12, "n_embd": 768, "n_positions": 1024},
    "mamba2_130m": {"vocab_size": 50288, "num_hidden_layers": 24, "hidden_size": 768, "num_heads": 24, "n_groups": 1},
}
# beside transformers, int8 beside float32, share of the memory's speed; none is no claim
GOALS: dict[str, tuple[float, float | None, float | None]] = {
    "gpt_11m": (3.5, None, None),
    "gpt2_124m": (1.9, 2.0, 0.8),
    "mamba2_130m": (5.0, None, None),
}


def peer(name: str) -> torch.nn.Module:
    """A transformers model with random weights, large enough that logits do not tie."""
    from transformers import GPT2Config, GPT2LMHeadModel, Mamba2Config, Mamba2ForCausalLM

    torch.manual_seed(0)
    if name.startswith("mamba2"):
        return Mamba2ForCausalLM(Mamba2Config(**MODELS[name], tie_word_embeddings=True)).eval()
    return GPT2LMHeadModel(GPT2Config(**MODELS[name], initializer_range=0.05, eos_token_id=None, bos_token_id=None)).eval()


def reading(megabytes: int = 512) -> float:
    """Bytes per second at which all threads together read memory, by the fastest way known: torch's, or one large product of ours."""
    x = torch.ones(megabytes << 18).view(-1, 1024)
    program, one, best = Program(1, torch.float32), torch.ones(1024), float("inf")
    program.linear(program.add_shared("x", 1024), program.add_shared("y", len(x)), x)
    seen = torch.zeros(1, dtype=torch.long)
    for way in (lambda: x.sum(), lambda: x.amax(), lambda: x @ one, lambda: program.run(seen)):
        for _ in range(3):
            started = time.perf_counter()
            way()
            best = min(best, time.perf_counter() - started)
    return x.numel() * 4 / best


class Marks:
    """Times of the first and the last token, from the streaming interface of either library."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def put(self, tokens: Tensor) -> None:
        self.times.append(time.perf_counter())

    def end(self) -> None:
        pass

    def rate(self, tokens: int) -> float:
        """Tokens per second between them: without prompt and setup."""
        return (tokens - 1) / (self.times[-1] - self.times[-tokens])


def compare(name: str, tokens: int, rounds: int) -> bool:
    """One model, three ways; True where the goals are met and the texts are equal."""
    theirs = peer(name)
    with tempfile.TemporaryDirectory() as folder:
        theirs.save_pretrained(folder)
        ours = hf.load(folder)[0].eval()
    prompt = torch.randint(65, (1, PROMPT), generator=torch.Generator().manual_seed(1))
    texts: dict[str, Tensor] = {}

    def rate(key: str, decode: Callable[[Marks], Tensor]) -> Callable[[], float]:
        def measure() -> float:
            marks = Marks()
            texts[key] = decode(marks)
            return marks.rate(tokens)

        return measure

    def transformers(marks: Marks) -> Tensor:
        options = {"max_new_tokens": tokens, "min_new_tokens": tokens, "do_sample": False, "pad_token_id": 0}
        with torch.no_grad():
            return theirs.generate(prompt, streamer=marks, **options)[:, PROMPT:]  # type: ignore[operator]

    best = turns({
        "transformers": rate("transformers", transformers),
        "float32": rate("float32", lambda marks: generate(ours, prompt, tokens, temperature=0, stream=marks.put)),
        "int8": rate("int8", lambda marks: generate(ours, prompt, tokens, temperature=0, stream=marks.put, weights="int8")),
        "memory": reading,
    }, rounds)  # fmt: skip
    held = sum(p.numel() * p.element_size() for part, p in ours.named_parameters() if not part.startswith("positions"))
    ratio, smaller, share = best["float32"] / best["transformers"], best["int8"] / best["float32"], best["float32"] * held / best["memory"]
    same = torch.equal(texts["transformers"], texts["float32"])
    alike = int((texts["int8"] != texts["float32"]).long().cumsum(1).eq(0).sum())
    print(f"\n{name}: {held / 4e6:.1f} M weights, {torch.get_num_threads()} threads, {tokens} tokens after {PROMPT}")
    print(f"  transformers {best['transformers']:8.1f} tokens/s")
    print(f"  float32      {best['float32']:8.1f} tokens/s  {ratio:.2f}x  {best['float32'] * held / 1e9:.1f} GB/s of weights,"
          f" {100 * share:.0f} % of {best['memory'] / 1e9:.1f} GB/s; text {'the same' if same else 'DIFFERS'}")  # fmt: skip
    print(f"  int8         {best['int8']:8.1f} tokens/s  {smaller:.2f}x float32; the first {alike} of {tokens} tokens are the same")
    met = same
    claims = {"beside transformers": ratio, "int8 beside float32": smaller, "share of the memory's speed": share}
    for (what, value), goal in zip(claims.items(), GOALS[name]):
        if goal is not None:
            print(f"  {what}: {value:.2f}, goal {goal:g}: {'met' if value >= goal else 'MISSED'}")
            met &= value >= goal
    return met


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("parts", nargs="*", default=[], help=", ".join(MODELS))
    options.add_argument("--tokens", type=int, default=64)
    options.add_argument("--rounds", type=int, default=3)
    args = options.parse_args()
    logging.getLogger("transformers").setLevel(logging.ERROR)
    met = [compare(name, args.tokens, args.rounds) for name in args.parts or MODELS]
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
