"""Language model: tokens -> blocks of any mixer -> logits of the next token at every position.

`forward` is for training; `advance` continues from a state, in pieces of any length, and gives the same logits.

B batch, T time, D width.
"""

from __future__ import annotations

from typing import Annotated, Any, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..core import registry
from ..core.batch import Batch
from ..core.errors import BadInput
from ..core.options import Count, Range, checked
from ..nn.block import Style, style_of
from ..nn.mixers import Mixer, mixer
from ..nn.positions import PositionKind, Positions
from ..nn.recurrence import State
from ..nn.spans import Spans
from ..nn.stack import Stack, prefix_state, split_state

Probability = Annotated[float, Range(least=0, below=1)]


@final
class LanguageModel(nn.Module):
    """A stack of blocks between an embedding and a linear map to logits.

    Args:
        vocabulary: vocabulary size
        width: model dimension
        depth: blocks
        mixer: sequence mixer, by name; its options may follow: 'gla heads=8 rank=4'
        ffn: hidden width of each block's network as a multiple of the width; 0 leaves the network out
        positions: position codes added to tokens, needed by a mixer that does not see their order
        max_positions: longest sequence; sinusoidal positions need no limit
        dropout: dropout probability in each block
        tied: share the embedding matrix with the output layer
        noncausal: allow a mixer that looks at later tokens; only valid where the input does not contain the targets
        style: norms, activation and biases: modern, notes, gpt2, bert, t5 or llama; or a Style
    """

    @checked
    def __init__(  # noqa: PLR0913  an option for each way in which models of one size differ
        self,
        vocabulary: Count = 256,
        width: Count = 128,
        depth: Count = 4,
        mixer: str = "attention",
        ffn: Annotated[float, Range(least=0)] = 4.0,
        positions: PositionKind = "none",
        max_positions: Count | None = None,
        dropout: Probability = 0.0,
        tied: bool = False,
        noncausal: bool = False,
        style: str | Style = "modern",
    ) -> None:
        super().__init__()
        self.vocabulary, self.width, self.style = vocabulary, width, style_of(style)
        # Embeddings start with a standard deviation near 1, logits near 0.  With tied weights a token's own vector is still in
        # the last block's output, so it has to start smaller.
        std = (0.3 if tied else 1.0) * width**-0.5 if self.style.scaled else 1.0 if self.style.shrunk else 0.02
        scale = width**0.5 if self.style.scaled else 1.0
        self.embedding = nn.Embedding(vocabulary, width)
        self.positions = None if positions == "none" else Positions(positions, width, max_positions, scale=scale, std=std)
        self.head = None if tied else nn.Linear(width, vocabulary, bias=False)
        nn.init.normal_(self.embedding.weight, std=std)
        if self.head is not None:
            nn.init.normal_(self.head.weight, std=0.02)
        self.dropout, self.scale = nn.Dropout(dropout), scale
        self.stack = Stack.of((mixer_of(mixer, width) for _ in range(depth)), ffn, self.style, dropout)
        if not self.style.scaled:
            begin_small(self.stack)
        require_causal(self.causal or noncausal, mixer, "LanguageModel", "hide tokens and predict these instead, with noncausal=True")

    @property
    def causal(self) -> bool:
        """No logit depends on a later token."""
        return self.stack.causal

    def forward(self, tokens: Tensor, *, spans: Spans | None = None) -> Tensor:
        """tokens (B, T) -> logits (B, T, vocabulary)."""
        return self.logits(self.features(tokens, spans=spans)[0])

    def advance(self, tokens: Tensor, state: State | None = None, *, spans: Spans | None = None) -> tuple[Tensor, State]:
        """The same, continuing from the state that an earlier call returned."""
        if not self.causal:
            raise BadInput("a bidirectional model cannot be advanced token by token", where="LanguageModel", fix="use forward")
        x, state = self.features(tokens, state, spans=spans)
        return self.logits(x), state

    def features(self, tokens: Tensor, state: State | None = None, *, spans: Spans | None = None) -> tuple[Tensor, State]:
        """tokens (B, T) -> the last hidden states (B, T, D), and the state after them."""
        return self.through(self.embed(tokens), state, spans=spans)

    def embed(self, tokens: Tensor) -> Tensor:
        """tokens (B, T) -> their vectors (B, T, D), which `through` reads."""
        return embed(self.embedding, tokens, self.scale)

    def through(self, x: Tensor, state: State | None = None, *, spans: Spans | None = None) -> tuple[Tensor, State]:
        """The same from vectors (B, T, D) instead of tokens."""
        after: State = {}
        if self.positions is not None:
            whole = split_state(state, ["positions", *map(str, range(len(self.stack.blocks)))], "LanguageModel")
            old = whole.pop("positions", None)
            state = None if state is None else {key: value for key, value in state.items() if not key.startswith("positions.")}
            x, new = self.positions(x, old) if spans is None else spans.apply(self.positions, x, old)
            after |= prefix_state("positions", new)
        x, new = self.stack(self.dropout(x), state, spans=spans)
        return x, after | new

    def logits(self, x: Tensor) -> Tensor:
        """Features (B, T, D) -> (B, T, vocabulary)."""
        return logits_of(x, self.embedding, self.head, self.style)


def embed(table: nn.Embedding, tokens: Tensor, scale: float = 1.0) -> Tensor:
    """tokens (B, T) -> scale times their rows of the table (B, T, D), or an error that names a token out of range."""
    if tokens.dim() != 2 or not tokens.shape[1] or tokens.dtype not in (torch.long, torch.int):
        raise BadInput(
            f"tokens are whole numbers (batch, time), not {tuple(tokens.shape)} {str(tokens.dtype).removeprefix('torch.')}",
            where="the model's tokens",
            fix="give one row of token numbers, int64 or int32, for each sequence",
        )
    try:
        x = table(tokens)
    except IndexError:
        low, high = (int(end) for end in tokens.aminmax())
        raise BadInput(
            f"token out of range: {low if low < 0 else high}",
            where="the model's tokens",
            fix=f"give numbers from 0 to {table.num_embeddings - 1}; a tokenizer must be the one the model was trained with",
        ) from None
    return x if scale == 1 else x * scale


def logits_of(x: Tensor, table: nn.Embedding, head: nn.Linear | None, style: Style) -> Tensor:
    """Features (B, T, D) -> (B, T, vocabulary): through the head, or with tied weights inner products with the embeddings."""
    if head is not None:
        return head(x)
    shrink = style.shrink(table.embedding_dim, tied=True)
    return F.linear(x if shrink == 1 else x * shrink, table.weight)


@torch.no_grad()
def begin_small(stack: Stack) -> None:
    """Initialize as in GPT-2: a standard deviation of 0.02, divided by the root of the number of branches where a branch ends.

    Applies to modules that declare `small_start`: attention and feed-forward networks.  Other mixers have an initialization of
    their own, such as a forget gate that starts near one.
    """
    branches = sum(1 + (block.cross is not None) + (block.ffn is not None) for block in stack.blocks)
    for branch in stack.modules():
        if getattr(branch, "small_start", False):
            for name, part in branch.named_children():
                if isinstance(part, nn.Linear):
                    nn.init.normal_(part.weight, std=0.02 * branches**-0.5 if name in ("out", "down") else 0.02)
                    if part.bias is not None:
                        nn.init.zeros_(part.bias)


def require_causal(causal: bool, mixer: str, where: str, fix: str = "choose one that does not") -> None:
    """Refuse a mixer that is not causal where a model has to predict the next token."""
    if not causal:
        raise BadInput(f"mixer '{mixer}' looks at later tokens, so it would see the token it has to predict", where=where, fix=fix)


def mixer_of(text: str, width: int, **more: Any) -> Mixer:
    """A mixer from its name or file and any options after it: 'gla', 'gla heads=8 rank=4', './fade.py heads=8'.

    Args:
        more: defaults for options that the text leaves out
    """
    name, options = registry.parse(text, "mixer")
    return mixer(name, width, **{**more, **options})


def tiny() -> tuple[LanguageModel, Batch]:
    """A small working instance with input."""
    rng = torch.Generator().manual_seed(0)
    return LanguageModel(11, 8, 2, "attention heads=2", 2.0), Batch(x=torch.randint(11, (5, 7), generator=rng))
