"""Encoder-decoder: one stack encodes the source, another decodes the target with cross-attention in every block.

Vaswani et al., Attention Is All You Need, 2017; Raffel et al., T5, 2020.

B batch, S source length, T target length, D width.
"""

from __future__ import annotations

from typing import Annotated, cast, final

import torch
from torch import Tensor, nn

from ..core.batch import Batch
from ..core.errors import BadInput
from ..core.options import Count, Range, checked
from ..nn.block import Block, Style, style_of
from ..nn.mixers.attention import Attention
from ..nn.positions import PositionKind, Positions, RelativeBias
from ..nn.recurrence import State
from ..nn.spans import Spans
from ..nn.stack import Stack, prefix_state
from .language_model import Probability, begin_small, embed, logits_of, mixer_of, require_causal


@final
class EncoderDecoder(nn.Module):
    """Source tokens -> context; target tokens so far and the context -> logits of the next one.

    Args:
        vocabulary: target vocabulary size
        width: model dimension
        depth: blocks of each of the two stacks
        heads: of the attention to the source
        ffn: hidden width of each block's network as a multiple of the width
        encoder: mixer of the encoder, by name; it should be bidirectional
        decoder: mixer of the decoder, by name
        sources: source vocabulary size; none is one vocabulary, and one embedding, for both
        positions: position codes added to tokens
        max_positions: longest sequence; sinusoidal positions need no limit
        dropout: dropout probability
        tied: logits are inner products with the target's embeddings
        style: norms, activation and biases: modern, notes, gpt2, bert, t5 or llama; or a Style
    """

    reads = ("source", "x", "lengths")
    causal = True

    @checked
    def __init__(  # noqa: PLR0913  an option for each way in which models of one size differ
        self,
        vocabulary: Count = 256,
        width: Count = 128,
        depth: Count = 3,
        heads: Count = 4,
        ffn: Annotated[float, Range(above=0)] = 4.0,
        encoder: str = "attention causal=false",
        decoder: str = "attention",
        sources: Count | None = None,
        positions: PositionKind = "none",
        max_positions: Count | None = None,
        dropout: Probability = 0.0,
        tied: bool = True,
        style: str | Style = "modern",
    ) -> None:
        super().__init__()
        self.vocabulary, self.width, self.style = vocabulary, width, style_of(style)
        self.scale = width**0.5 if self.style.scaled else 1.0
        std = 0.3 * width**-0.5 if self.style.scaled else 1.0 if self.style.shrunk else 0.02
        self.embedding = nn.Embedding(vocabulary, width)
        self.source_embedding = None if sources is None else nn.Embedding(sources, width)
        for table in (self.embedding, self.source_embedding):
            if table is not None:
                nn.init.normal_(table.weight, std=std)
        # Source and target share one position code.
        self.positions = None if positions == "none" else Positions(positions, width, max_positions, scale=self.scale, std=std)
        self.dropout = nn.Dropout(dropout)
        readers, writers = ([mixer_of(text, width) for _ in range(depth)] for text in (encoder, decoder))
        # Head width and scale as in the decoder's self-attention.
        like = writers[0] if isinstance(writers[0], Attention) else None
        cross = {
            "heads": heads,
            "bias": self.style.bias,
            "scale": like and like.scale,
            "each": like and like.each if like and like.heads == heads else None,
        }
        self.encoder = Stack.of(readers, ffn, self.style, dropout)
        self.decoder = Stack.of(writers, ffn, self.style, dropout, **cross)
        for stack in (self.encoder, self.decoder):
            _share_distances(stack)
            if not self.style.scaled:
                begin_small(stack)
        self.head = None if tied else nn.Linear(width, vocabulary, bias=False)
        require_causal(self.decoder.causal, decoder, "EncoderDecoder")

    def forward(self, source: Tensor, tokens: Tensor, lengths: Tensor | None = None) -> Tensor:
        """source (B, S), the first `lengths` tokens of each row; target so far (B, T) -> logits (B, T, vocabulary)."""
        return self.advance(tokens, self.begin(source, lengths))[0]

    def begin(self, source: Tensor, lengths: Tensor | None = None) -> State:
        """The state after encoding the source, before the first target token."""
        spans = None if lengths is None else Spans.of_lengths(lengths)
        return self.decoder.read(self.encode(source, spans=spans), lengths)

    def align(self, source: Tensor, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """(B, T, S) cross-attention weights of the last block, averaged over its heads."""
        last, weights = cast(Block, self.decoder.blocks[-1]).cross, []
        assert last is not None
        hook = last.register_forward_hook(lambda cross, args, _: weights.append(cross.weights(*args)))
        try:
            self(source, x, lengths)
        finally:
            hook.remove()
        return weights[0].mean(1)

    def encode(self, source: Tensor, *, spans: Spans | None = None) -> Tensor:
        """source (B, S) -> context (B, S, D)."""
        x = embed(self.source_embedding or self.embedding, source, self.scale)
        if self.positions is not None:
            x = (self.positions(x) if spans is None else spans.apply(self.positions, x))[0]
        return self.dropout(self.encoder(self.dropout(x), spans=spans)[0])

    def advance(self, tokens: Tensor, state: State | None, *, spans: Spans | None = None) -> tuple[Tensor, State]:
        """Target tokens (B, T) after those in the state -> logits, and the state after them."""
        if state is None:
            raise BadInput("the decoder has no source to look at", where="EncoderDecoder", fix="begin with state=model.begin(source)")
        x, after = embed(self.embedding, tokens, self.scale), cast(State, {})
        if self.positions is not None:
            old = {"seen": state["positions.seen"]} if "positions.seen" in state else None
            state = {key: value for key, value in state.items() if key != "positions.seen"}
            x, new = self.positions(x, old) if spans is None else spans.apply(self.positions, x, old)
            after |= prefix_state("positions", new)
        x, new = self.decoder(self.dropout(x), state, spans=spans)
        return self.logits(self.dropout(x)), after | new

    def logits(self, x: Tensor) -> Tensor:
        """(B, T, D) -> (B, T, vocabulary)."""
        return logits_of(x, self.embedding, self.head, self.style)


def _share_distances(stack: Stack) -> None:
    """All blocks of a stack share the relative position bias of the first."""
    tables = [block.mixer for block in stack.blocks if isinstance(getattr(block.mixer, "distance", None), RelativeBias)]
    for mixer in tables[1:]:
        mixer.distance = tables[0].distance  # type: ignore[union-attr]


def tiny() -> tuple[EncoderDecoder, Batch]:
    """A small working instance with input."""
    rng = torch.Generator().manual_seed(0)
    batch = Batch(source=torch.randint(11, (5, 4), generator=rng), x=torch.randint(11, (5, 7), generator=rng))
    return EncoderDecoder(11, 8, 1, 2, 2.0), batch
