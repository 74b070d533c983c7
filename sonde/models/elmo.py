"""ELMo (Peters and others 2018): a language model in both directions, frozen; a task learns how to mix its layers.

    h_0 = [e; e]      h_j = [forward_j; backward_j]       features = gamma sum_j softmax(s)_j h_j

The forward half of h_j at a position has read the tokens up to it, the backward half those after it.  Both directions share
the embedding and the map to logits.  Layers after the first are added to their input.

B batch, T time, D width of one direction, J = depth + 1 layers.
"""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..core.batch import Batch
from ..core.errors import BadInput
from ..core.options import Count, checked
from ..nn.directions import reverse
from ..nn.recurrence import State
from ..nn.spans import Spans
from .language_model import embed, mixer_of, require_causal


@final
class Elmo(nn.Module):
    """Two language models over one text, one from its beginning and one from its end.

    Args:
        vocabulary: vocabulary size
        width: hidden size of each direction
        depth: number of layers in each direction
        mixer: sequence mixer, by name; its options may follow
    """

    reads = ("x", "lengths")

    @checked
    def __init__(self, vocabulary: Count = 256, width: Count = 64, depth: Count = 2, mixer: str = "lstm") -> None:
        super().__init__()
        self.width, self.vocabulary = width, vocabulary
        self.embedding = nn.Embedding(vocabulary, width)
        self.forward_layers, self.backward_layers = (nn.ModuleList(mixer_of(mixer, width) for _ in range(depth)) for _ in range(2))
        self.head = nn.Linear(width, vocabulary)
        require_causal(all(layer.causal for layer in self.forward_layers), mixer, "Elmo")

    def forward(self, tokens: Tensor, lengths: Tensor | None = None) -> Tensor:
        """tokens (B, T) -> logits (B, 2, T, vocabulary): of the token after each position, and of the one before it."""
        last = self.layers(tokens, spans=None if lengths is None else Spans.of_lengths(lengths))[-1]
        return self.head(torch.stack(last.chunk(2, -1), 1))

    def layers(self, tokens: Tensor, *, spans: Spans | None = None) -> Tensor:
        """Outputs of every layer: (J, B, T, 2 D), the embedding first."""
        x = embed(self.embedding, tokens)
        forwards = _outputs(self.forward_layers, x, spans)
        backwards = [reverse(y, spans) for y in _outputs(self.backward_layers, reverse(x, spans), spans)]
        return torch.stack([torch.cat(both, -1) for both in zip(forwards, backwards, strict=True)])


@final
class LayerMix(nn.Module):
    """gamma sum_j softmax(s)_j h_j: as many parameters as layers, and one more."""

    @checked
    def __init__(self, layers: Count) -> None:
        super().__init__()
        self.s, self.gamma = nn.Parameter(torch.zeros(layers)), nn.Parameter(torch.ones(()))

    @property
    def weights(self) -> Tensor:
        """Softmax weights of the layers."""
        return self.s.softmax(0)

    def forward(self, layers: Tensor) -> Tensor:
        """layers (J, ...) -> (...)."""
        return self.gamma * torch.tensordot(self.weights, layers, 1)


@final
class ElmoFeatures(nn.Module):
    """A frozen ELMo as the body of another model: only the weights of its layers are trained."""

    def __init__(self, elmo: Elmo) -> None:
        super().__init__()
        self.elmo, self.width = elmo.requires_grad_(False), 2 * elmo.width
        self.mix = LayerMix(len(elmo.forward_layers) + 1)

    def features(self, tokens: Tensor, state: State | None = None, *, spans: Spans | None = None) -> tuple[Tensor, State]:
        """tokens (B, T) -> (B, T, 2 D); it reads whole sequences, so there is no state to continue from."""
        if state:
            raise BadInput(
                "a model that looks at later tokens cannot continue from earlier ones", where="ElmoFeatures", fix="leave the state out"
            )
        return self.mix(self.elmo.layers(tokens, spans=spans)), {}

    def forward(self, tokens: Tensor, *, spans: Spans | None = None) -> Tensor:
        return self.features(tokens, spans=spans)[0]


def neighbors(tokens: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Targets and mask (B, 2, T) for tokens (B, T): the token after each position and the one before it, where there is one."""
    position = torch.arange(tokens.shape[1], device=tokens.device)
    ends = torch.full((len(tokens), 1), tokens.shape[1], device=tokens.device) if lengths is None else lengths.unsqueeze(1)
    after, before = F.pad(tokens[:, 1:], (0, 1)), F.pad(tokens[:, :-1], (1, 0))
    mask = torch.stack([position < ends - 1, (position > 0) & (position < ends)], 1)
    return torch.stack([after, before], 1), mask


def _outputs(layers: nn.ModuleList, x: Tensor, spans: Spans | None) -> list[Tensor]:
    """The input of the first layer and the output of each."""
    outputs = [x]
    for j, layer in enumerate(layers):
        y, _ = layer(outputs[-1], spans=spans)
        outputs.append(y + outputs[-1] if j else y)
    return outputs


def tiny() -> tuple[Elmo, Batch]:
    """A small working instance with input."""
    rng = torch.Generator().manual_seed(0)
    return Elmo(11, 6, 1), Batch(x=torch.randint(11, (5, 7), generator=rng))
