"""Training a GPT: tokens per second beside a plain PyTorch loop and the transformers Trainer.

    python benchmarks/gpt.py small    4 layers, 4 heads, 128 wide, context 64, batch 12
    python benchmarks/gpt.py exact    the same with the exact GELU
    python benchmarks/gpt.py medium   6 layers, 6 heads, 384 wide, context 128, batch 8
    python benchmarks/gpt.py all

All train one model (LayerNorm before each branch, GPT-2's GELU with a tanh, learned places, tied embeddings, no biases in the
plain loop's linear maps or in ours) with AdamW, weight decay on matrices and clipping at 1, on random windows of one text.  The
Trainer has the GPT-2 of transformers with the same sizes, whose linear maps have biases; its activation is torch's function, not
the slower one written out that it takes by itself.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import warnings
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from _clock import Half, table, turns
from torch import nn
from torch.nn import functional as F

import sonde
from sonde.core.batch import Data
from sonde.core.recipe import Recipe
from sonde.data.tensors import WindowSource
from sonde.models.language_model import LanguageModel
from sonde.nn.block import Style
from sonde.objectives.categorical import Categorical
from sonde.optim.build import optimizer

warnings.filterwarnings("ignore")
THREADS = 2


@dataclass(frozen=True)
class Size:
    depth: int
    heads: int
    width: int
    context: int
    batch: int
    steps: int
    tanh: bool = True
    vocabulary: int = 65


SIZES = {
    "small": Size(4, 4, 128, 64, 12, 160),
    "exact": Size(4, 4, 128, 64, 12, 160, tanh=False),
    "medium": Size(6, 6, 384, 128, 8, 16),
}


class Layer(nn.Module):
    """The block that everybody writes."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.heads, self.form = size.heads, "tanh" if size.tanh else "none"
        self.norm1, self.norm2 = (nn.LayerNorm(size.width, bias=False) for _ in range(2))
        self.qkv, self.out = nn.Linear(size.width, 3 * size.width, bias=False), nn.Linear(size.width, size.width, bias=False)
        self.up, self.down = nn.Linear(size.width, 4 * size.width, bias=False), nn.Linear(4 * size.width, size.width, bias=False)

    def forward(self, x):
        B, T, D = x.shape
        q, k, v = (part.view(B, T, self.heads, -1).transpose(1, 2) for part in self.qkv(self.norm1(x)).split(D, 2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).contiguous().view(B, T, D))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate=self.form))


class Plain(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(size.vocabulary, size.width), nn.Embedding(size.context, size.width)
        self.layers = nn.ModuleList(Layer(size) for _ in range(size.depth))
        self.norm = nn.LayerNorm(size.width, bias=False)
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02)

    def forward(self, x, y):
        h = self.tokens(x) + self.places(torch.arange(x.shape[1]))
        for layer in self.layers:
            h = layer(h)
        return F.cross_entropy(F.linear(self.norm(h), self.tokens.weight).flatten(0, 1), y.flatten())


def plain(size: Size, text: torch.Tensor, fused: bool) -> float:
    half, model = Half(size.steps), Plain(size)
    groups = [{"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": 0.1}]
    groups += [{"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0}]
    rule = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.99), fused=fused)
    for step in range(size.steps):
        starts = torch.randint(len(text) - size.context, (size.batch,))
        x = torch.stack([text[i : i + size.context] for i in starts])
        y = torch.stack([text[i + 1 : i + 1 + size.context] for i in starts])
        loss = model(x, y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        rule.step()
        rule.zero_grad(set_to_none=True)
        half(step + 1)
    return half.rate(size.batch * size.context)


def ours(size: Size, text: torch.Tensor) -> float:
    half, style = Half(size.steps), Style("layer", activation="gelu_tanh" if size.tanh else "gelu", scaled=False)
    mixer = f"attention heads={size.heads} positions=none"
    model = partial(
        LanguageModel,
        size.vocabulary,
        size.width,
        size.depth,
        mixer,
        positions="learned",
        max_positions=size.context,
        tied=True,
        style=style,
    )
    recipe = Recipe(
        model=model,
        data=Data(WindowSource(text, size.context, 1), name="text"),
        objective=Categorical(classes=size.vocabulary),
        optimizer=optimizer("adamw", lr=1e-3, weight_decay=0.1, betas=(0.9, 0.99)),
        clip_norm=1.0,
        batch_size=size.batch,
        steps=size.steps,
        schedule=half.schedule,
        log_every=size.steps // 2,
    )
    folder = Path(tempfile.mkdtemp(prefix="sonde-bench-"))
    try:
        sonde.train(recipe, run=folder / "run", threads=THREADS, quiet=True)
    finally:
        shutil.rmtree(folder)
    return half.rate(size.batch * size.context)


def trainer(size: Size, text: torch.Tensor) -> float:
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

    half = Half(size.steps)

    class Clock(TrainerCallback):
        def on_step_end(self, args, state, control, **_):
            half(state.global_step)

    class Windows(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return len(text) - size.context

        def __getitem__(self, i: int):
            row = text[i : i + size.context]
            return {"input_ids": row, "labels": row}

    config = GPT2Config(
        vocab_size=size.vocabulary, n_positions=size.context, n_embd=size.width, n_layer=size.depth, n_head=size.heads,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, activation_function="gelu_pytorch_tanh" if size.tanh else "gelu", use_cache=False,
        bos_token_id=0, eos_token_id=0, pad_token_id=0,
    )  # fmt: skip
    folder = tempfile.mkdtemp(prefix="sonde-bench-")
    try:
        settings = TrainingArguments(
            output_dir=folder, max_steps=size.steps, per_device_train_batch_size=size.batch, learning_rate=1e-3, use_cpu=True,
            report_to=[], save_strategy="no", logging_strategy="no", disable_tqdm=True, dataloader_pin_memory=False,
            weight_decay=0.1, max_grad_norm=1.0, lr_scheduler_type="constant",
        )  # fmt: skip
        Trainer(model=GPT2LMHeadModel(config), args=settings, train_dataset=Windows(), callbacks=[Clock()]).train()
    finally:
        shutil.rmtree(folder)
    return half.rate(size.batch * size.context)


def compare(name: str) -> bool:
    size = SIZES[name]
    text = torch.randint(size.vocabulary, (1_000_000,), generator=torch.Generator().manual_seed(0))
    best = turns(
        {
            "sonde": lambda: ours(size, text),
            "plain loop": lambda: plain(size, text, fused=False),
            "plain loop, fused AdamW": lambda: plain(size, text, fused=True),
            "transformers Trainer": lambda: trainer(size, text),
        }
    )
    kind = "tanh" if size.tanh else "exact"
    title = f"GPT {size.depth} layers, {size.width} wide, context {size.context}, batch {size.batch}, {kind} GELU, {THREADS} threads"
    return table(title, best, "tokens/s", "sonde", {"plain loop": 1.1, "transformers Trainer": 1.3})


if __name__ == "__main__":
    torch.set_num_threads(THREADS)
    selected = sys.argv[1:] or ["all"]
    names = list(SIZES) if selected == ["all"] else selected
    if any(name not in SIZES for name in names):
        sys.exit(f"choose from {', '.join(SIZES)}, all\n\n{__doc__}")
    sys.exit(0 if all([compare(name) for name in names]) else 1)
