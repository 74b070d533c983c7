"""Parameter-efficient fine-tuning: small trainable modules inside a frozen model.

    bottleneck  y = f(x);  y + W2 gelu(W1 y)          d -> m -> d, Houlsby and others 2019
    LoRA        y = W x + (alpha / r) B A x            A (r, in) random, B (out, r) zero, Hu and others 2022
    prompt      p learned vectors before the tokens, Lester and others 2021

The first two start as the identity: W2 and B are zero.  `add_bottlenecks` and `add_lora` change a model in place, freeze the rest
and return the names of the trainable parameters; the new modules are in its state_dict like any other.

B batch, T time, D width, P vectors of a prompt.
"""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..core.errors import BadInput, nearest
from ..core.options import Count, checked
from .spans import Spans, State

ENDS = ("*mixer.out", "*ffn.down")
"""the last linear layers of the branches of a block"""


@final
class Bottleneck(nn.Module):
    """A linear layer followed by a residual bottleneck: 2 d m + m + d parameters.

    Args:
        base: the original layer
        middle: width of the bottleneck
    """

    @checked
    def __init__(self, base: nn.Linear, middle: Count = 16) -> None:
        super().__init__()
        self.base = base
        self.down = nn.Linear(base.out_features, middle, device=base.weight.device, dtype=base.weight.dtype)
        self.up = nn.Linear(middle, base.out_features, device=base.weight.device, dtype=base.weight.dtype)
        nn.init.normal_(self.down.weight, std=0.02)
        for zero in (self.down.bias, self.up.weight, self.up.bias):
            nn.init.zeros_(zero)

    def forward(self, x: Tensor) -> Tensor:
        y = self.base(x)
        return y + self.up(F.gelu(self.down(y)))


@final
class Lora(nn.Module):
    """A linear layer with a trainable low-rank update.  `weight` and `bias` are the effective ones.

    Args:
        base: the original layer
        rank: rank of the update
        alpha: the update is multiplied by alpha / rank; None is a factor of 1
    """

    @checked
    def __init__(self, base: nn.Linear, rank: Count = 8, alpha: float | None = None) -> None:
        super().__init__()
        max_rank = min(base.in_features, base.out_features)
        if rank > max_rank:
            raise BadInput(
                f"LoRA rank {rank} is larger than a weight of shape {tuple(base.weight.shape)} allows",
                where="Lora",
                fix=f"use a rank of {max_rank} or less",
            )
        self.base, self.scale = base, 1.0 if alpha is None else alpha / rank
        self.a = nn.Parameter(torch.randn_like(base.weight[:rank]) * base.in_features**-0.5)
        self.b = nn.Parameter(torch.zeros_like(base.weight[:, :rank]))

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + F.linear(F.linear(x, self.a), self.b) * self.scale

    @property
    def weight(self) -> Tensor:
        return self.base.weight + self.scale * self.b @ self.a

    @property
    def bias(self) -> Tensor | None:
        return self.base.bias

    @torch.no_grad()
    def merge(self) -> nn.Linear:
        """An equivalent nn.Linear; it keeps a reference to this module for `unmerge`."""
        plain = nn.Linear(self.base.in_features, self.base.out_features, self.base.bias is not None, device="meta")
        plain.weight = nn.Parameter(self.weight, requires_grad=False)
        plain.bias = self.base.bias
        plain.__dict__["unmerged"] = self  # not registered as a submodule
        return plain


def freeze(model: nn.Module, *patterns: str, but: tuple[str, ...] = ()) -> list[str]:
    """Freeze parameters whose names match, all without a pattern; return the names of the trainable ones.

    Args:
        patterns: 'embedding.*', 'stack.blocks.[01].*'; one that matches nothing is an error
        but: patterns of parameters that stay trainable
    """
    names = [name for name, _ in model.named_parameters()]
    for pattern in (*patterns, *but):
        if not any(fnmatchcase(name, pattern) for name in names):
            raise BadInput(f"no parameter is called '{pattern}'", where="freeze", fix=nearest(pattern, names))
    for name, parameter in model.named_parameters():
        if not patterns or _matches_any(name, patterns):
            parameter.requires_grad_(_matches_any(name, but))
    return trainable_names(model)


def trainable_names(model: nn.Module) -> list[str]:
    """Names of the trainable parameters."""
    return [name for name, parameter in model.named_parameters() if parameter.requires_grad]


def add_bottlenecks(model: nn.Module, middle: int = 16, *patterns: str) -> list[str]:
    """Add a bottleneck after linear layers whose names match, by default at the end of every branch; freeze the rest."""
    layers = list(_linear(model, patterns or ENDS))
    freeze(model)
    for path, linear in layers:
        _replace_module(model, path, Bottleneck(linear, middle))
    return trainable_names(model)


def add_lora(model: nn.Module, rank: int = 8, *patterns: str, alpha: float | None = None) -> list[str]:
    """Add LoRA to linear layers whose names match, by default all those of mixers; freeze the rest."""
    adapters = [(path, Lora(linear, rank, alpha)) for path, linear in _linear(model, patterns or ("*mixer.*",))]
    freeze(model)
    for path, lora in adapters:
        _replace_module(model, path, lora)
    return trainable_names(model)


def merge(model: nn.Module) -> None:
    """Merge every LoRA into a plain linear layer, so that the model has its old names, size and speed."""
    for path, part in reversed(_parts(model, Lora)):  # inner ones first
        _replace_module(model, path, part.merge())


def unmerge(model: nn.Module) -> None:
    """Undo every merge: all matrices are bit for bit what they were before."""
    layers = [(path, part) for path, part in _parts(model, nn.Linear) if hasattr(part, "unmerged")]
    if not layers:
        raise BadInput("nothing in this model was merged", where="unmerge", fix="merge first; a copy made from a state_dict cannot go back")
    for path, part in layers:
        _replace_module(model, path, part.unmerged)


@final
class Prompted(nn.Module):
    """Prompt tuning: a frozen model with learned vectors before the tokens; outputs are those of the tokens alone.

    Args:
        body: with `embed`, `through` and `logits`, such as LanguageModel or Bert
        length: vectors of the prompt; they use up positions where the body has a maximum
        tokens: token ids whose embeddings initialize the prompt; None takes random tokens
    """

    @checked
    def __init__(self, body: Any, length: Count = 20, tokens: Tensor | None = None) -> None:
        super().__init__()
        freeze(body)
        self.body, self.width, self.vocabulary, self.causal = body, body.width, body.vocabulary, body.causal
        with torch.no_grad():
            first = torch.randint(body.vocabulary, (1, length)) if tokens is None else tokens.view(1, -1)
            self.prompt = nn.Parameter(body.embed(first.to(body.embedding.weight.device))[0].clone())

    def forward(self, tokens: Tensor, *, spans: Spans | None = None) -> Tensor:
        """tokens (B, T) -> logits (B, T, vocabulary)."""
        return self.body.logits(self.features(tokens, spans=spans)[0])

    def advance(self, tokens: Tensor, state: State | None = None, *, spans: Spans | None = None) -> tuple[Tensor, State]:
        """The same, continuing from the state that an earlier call returned."""
        x, state = self.features(tokens, state, spans=spans)
        return self.body.logits(x), state

    def features(self, tokens: Tensor, state: State | None = None, *, spans: Spans | None = None, **more: Any) -> tuple[Tensor, State]:
        """tokens (B, T) -> (B, T, D), and the state after them; a state already contains the prompt."""
        x = self.body.embed(tokens)
        if state is not None:
            return self.body.through(x, state, spans=spans, **more)
        P = len(self.prompt)
        x = torch.cat([self.prompt.expand(len(x), -1, -1), x], 1)
        more = {name: F.pad(value, (P, 0)) for name, value in more.items() if value is not None}
        y, state = self.body.through(x, spans=None if spans is None else self._extend_spans(spans), **more)
        return y[:, P:], state

    def _extend_spans(self, spans: Spans) -> Spans:
        """Spans that include the prompt."""
        if bool((spans.start != 0).any()) or len(spans) != spans.rows:
            raise BadInput("prompt tuning does not support packed rows", where="Prompted", fix="give one text per row")
        return Spans(spans.row, spans.start, spans.stop + len(self.prompt), spans.rows)


def _matches_any(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _parts(model: nn.Module, kind: type | tuple[type, ...]) -> list[tuple[str, Any]]:
    return [(path, part) for path, part in model.named_modules() if isinstance(part, kind)]


def _linear(model: nn.Module, patterns: tuple[str, ...]) -> Iterator[tuple[str, nn.Linear]]:
    """Linear layers whose names match, each once; a pattern without a match is an error, and so is a layer with an adapter."""
    layers, adapted = _parts(model, nn.Linear), [path for path, _ in _parts(model, (Bottleneck, Lora))]
    for path in (*adapted, *(path for path, _ in layers)):
        for adapter in adapted:
            if _matches_any(path, patterns) and f"{path}.".startswith(f"{adapter}."):
                fix = "merge what is LoRA, or name other maps"
                raise BadInput(f"'{adapter}' has an adapter already", where=type(model).__name__, fix=fix)
    for pattern in patterns:
        if not any(fnmatchcase(path, pattern) for path, _ in layers):
            raise BadInput(
                f"no nn.Linear has a name that matches '{pattern}'",
                where=type(model).__name__,
                fix=nearest(pattern, [path for path, _ in layers]),
            )
    yield from ((path, linear) for path, linear in layers if _matches_any(path, patterns))


def _replace_module(model: nn.Module, path: str, part: nn.Module) -> None:
    """Swap a part of a model for another."""
    above, _, leaf = path.rpartition(".")
    setattr(model.get_submodule(above), leaf, part)
