"""Small parts that learn while the model they are put into stays as it is.

    bottleneck  y = f(x);  y + W2 gelu(W1 y)          d -> m -> d, Houlsby and others 2019
    LoRA        y = W x + (alpha / r) B A x            A (r, in) random, B (out, r) zero, Hu and others 2022
    prompt      p learned vectors in front of the tokens, Lester and others 2021

The first two begin by changing nothing: W2 and B are zero.  `add_bottlenecks` and `add_lora` change a model in place, freeze the rest
and return the names of what learns; the new parts stand in its state_dict like any other.

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
"""the linear maps at which the branches of a block end"""


@final
class Bottleneck(nn.Module):
    """A linear map, and behind it a narrow network whose output is added: 2 d m + m + d numbers to learn.

    Args:
        base: the map as it was
        middle: width of the narrow part
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
    """A linear map whose matrix learns a change of low rank.  `weight` and `bias` are those of the map as it now acts.

    Args:
        base: the map as it was
        rank: of the change
        alpha: the change is multiplied by alpha / rank; none is 1
    """

    @checked
    def __init__(self, base: nn.Linear, rank: Count = 8, alpha: float | None = None) -> None:
        super().__init__()
        most = min(base.in_features, base.out_features)
        if rank > most:
            raise BadInput(
                f"LoRA rank {rank} is larger than a weight of shape {tuple(base.weight.shape)} allows",
                where="Lora",
                fix=f"use a rank of {most} or less",
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
        """One plain map that does the same; it remembers what it was made of, for `unmerge`."""
        plain = nn.Linear(self.base.in_features, self.base.out_features, self.base.bias is not None, device="meta")
        plain.weight = nn.Parameter(self.weight, requires_grad=False)
        plain.bias = self.base.bias
        plain.__dict__["unmerged"] = self  # not as a part of the model, which it no longer is
        return plain


def freeze(model: nn.Module, *patterns: str, but: tuple[str, ...] = ()) -> list[str]:
    """Stop parameters whose names match from learning, all without a pattern; return the names of those that still learn.

    Args:
        patterns: 'embedding.*', 'stack.blocks.[01].*'; one that matches nothing is an error
        but: patterns of parameters that learn all the same
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
    """Names of the parameters that learn."""
    return [name for name, parameter in model.named_parameters() if parameter.requires_grad]


def add_bottlenecks(model: nn.Module, middle: int = 16, *patterns: str) -> list[str]:
    """Put a bottleneck behind linear maps whose names match, by default at the end of every branch; all else is frozen."""
    layers = list(_linear(model, patterns or ENDS))
    freeze(model)
    for path, linear in layers:
        _replace_module(model, path, Bottleneck(linear, middle))
    return trainable_names(model)


def add_lora(model: nn.Module, rank: int = 8, *patterns: str, alpha: float | None = None) -> list[str]:
    """Let linear maps whose names match, by default all those of mixers, learn a change of low rank; all else is frozen."""
    adapters = [(path, Lora(linear, rank, alpha)) for path, linear in _linear(model, patterns or ("*mixer.*",))]
    freeze(model)
    for path, lora in adapters:
        _replace_module(model, path, lora)
    return trainable_names(model)


def merge(model: nn.Module) -> None:
    """Turn every LoRA into one plain map, so that the model has its old names, size and speed."""
    for path, part in reversed(_parts(model, Lora)):  # what lies inside another one first
        _replace_module(model, path, part.merge())


def unmerge(model: nn.Module) -> None:
    """Take every merge back: all matrices are bit for bit what they were before it."""
    layers = [(path, part) for path, part in _parts(model, nn.Linear) if hasattr(part, "unmerged")]
    if not layers:
        raise BadInput("nothing in this model was merged", where="unmerge", fix="merge first; a copy made from a state_dict cannot go back")
    for path, part in layers:
        _replace_module(model, path, part.unmerged)


@final
class Prompted(nn.Module):
    """A frozen model that always reads some learned vectors before the tokens; outputs are those of the tokens alone.

    Args:
        body: with `embed`, `through` and `logits`, such as LanguageModel or Bert
        length: vectors of the prompt; they take up places, where the body has a largest number of these
        tokens: numbers of tokens whose vectors the prompt begins with; none is vectors at random, as large as those of tokens
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
        """The same, going on from the state that a call before this one returned."""
        x, state = self.features(tokens, state, spans=spans)
        return self.body.logits(x), state

    def features(self, tokens: Tensor, state: State | None = None, *, spans: Spans | None = None, **more: Any) -> tuple[Tensor, State]:
        """tokens (B, T) -> (B, T, D), and the state after them; a state has read the prompt already."""
        x = self.body.embed(tokens)
        if state is not None:
            return self.body.through(x, state, spans=spans, **more)
        P = len(self.prompt)
        x = torch.cat([self.prompt.expand(len(x), -1, -1), x], 1)
        more = {name: F.pad(value, (P, 0)) for name, value in more.items() if value is not None}
        y, state = self.body.through(x, spans=None if spans is None else self._extend_spans(spans), **more)
        return y[:, P:], state

    def _extend_spans(self, spans: Spans) -> Spans:
        """Rows that are as much longer as the prompt."""
        if bool((spans.start != 0).any()) or len(spans) != spans.rows:
            raise BadInput("prompt tuning does not support packed rows", where="Prompted", fix="give one text per row")
        return Spans(spans.row, spans.start, spans.stop + len(self.prompt), spans.rows)


def _matches_any(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _parts(model: nn.Module, kind: type | tuple[type, ...]) -> list[tuple[str, Any]]:
    return [(path, part) for path, part in model.named_modules() if isinstance(part, kind)]


def _linear(model: nn.Module, patterns: tuple[str, ...]) -> Iterator[tuple[str, nn.Linear]]:
    """Linear maps whose names match, each once; a pattern without any is an error, and so is a map that has an adapter."""
    there, taken = _parts(model, nn.Linear), [path for path, _ in _parts(model, (Bottleneck, Lora))]
    for path in (*taken, *(path for path, _ in there)):
        for adapter in taken:
            if _matches_any(path, patterns) and f"{path}.".startswith(f"{adapter}."):
                fix = "merge what is LoRA, or name other maps"
                raise BadInput(f"'{adapter}' has an adapter already", where=type(model).__name__, fix=fix)
    for pattern in patterns:
        if not any(fnmatchcase(path, pattern) for path, _ in there):
            raise BadInput(
                f"no nn.Linear has a name that matches '{pattern}'",
                where=type(model).__name__,
                fix=nearest(pattern, [path for path, _ in there]),
            )
    yield from ((path, linear) for path, linear in there if _matches_any(path, patterns))


def _replace_module(model: nn.Module, path: str, part: nn.Module) -> None:
    """Swap a part of a model for another."""
    above, _, leaf = path.rpartition(".")
    setattr(model.get_submodule(above), leaf, part)
