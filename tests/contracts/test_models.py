"""What every model in the registry promises, and what every model of sequences does: no leak, padding that changes nothing, going on.

A model stands in MAKERS, whatever it reads; what it is asked follows from its `reads`, `causal` and `advance`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sonde.core import registry
from sonde.core.batch import Batch, call_model
from sonde.core.tensors import decode, encode
from sonde.models import bert, elmo, encoder_decoder, language_model, ngram, nnlm, seq2seq, topologies
from sonde.models.bert import Bert
from sonde.models.elmo import Elmo, ElmoFeatures
from sonde.models.encoder_decoder import EncoderDecoder
from sonde.models.language_model import LanguageModel
from sonde.models.ngram import Ngram
from sonde.models.nnlm import FeedForwardLM
from sonde.models.seq2seq import Seq2Seq, SourceAttention
from sonde.models.topologies import Seq2Vec, Tagger, Vec2Seq, Vec2Vec
from sonde.nn.block import STYLES
from sonde.nn.spans import Spans
from sonde.testing import models as checks

V, D, B, T, S, F = 11, 12, 3, 7, 5, 4
LENGTHS = {T: torch.tensor([7, 1, 4]), S: torch.tensor([2, 5, 3])}

LOOK = "attention heads=2"
TEXT = torch.randint(V, (900,), generator=torch.Generator().manual_seed(9))
MAKERS: dict[str, Callable[[], nn.Module]] = {
    **{f"lm {style}": lambda style=style: LanguageModel(V, D, 2, LOOK, 2.0, style=style, tied=True) for style in STYLES},
    **{f"lm {mixer}": lambda mixer=mixer: LanguageModel(V, D, 2, mixer, 2.0) for mixer in ("lstm", "gla heads=2", "mamba2 heads=2")},
    **{
        f"lm {kind}": lambda kind=kind: LanguageModel(V, D, 1, "attention heads=2 positions=none", positions=kind, max_positions=20)
        for kind in ("learned", "sinusoidal", "binary")
    },
    "lm that looks ahead": lambda: LanguageModel(V, D, 1, "attention heads=2 causal=false", noncausal=True),
    "bert": lambda: Bert(V, D, 2, LOOK, 2.0, max_positions=20),
    **{
        f"encoder-decoder {style}": lambda style=style: EncoderDecoder(V, D, 2, 2, 2.0, f"{LOOK} causal=false", LOOK, style=style)
        for style in STYLES
    },
    "encoder-decoder with places": lambda: EncoderDecoder(V, D, 1, 2, 2.0, "linformer heads=2", "gru", V, "learned", 20),
    **{
        f"seq2seq {kind}{' fed' if fed else ''}": lambda kind=kind, fed=fed: Seq2Seq(V, D, 2, attention=kind, feeding=fed)
        for kind, fed in (("none", False), ("dot", False), ("general", False), ("additive", False), ("additive", True))
    },
    "seq2seq one way": lambda: Seq2Seq(V, D, mixer="gla heads=2", bidirectional=False, sources=V),
    "vec2seq": lambda: Vec2Seq(F, V, width=D, depth=2),
    "vec2seq numbers": lambda: Vec2Seq(F, 2, "numbers", D, mixer="lstm"),
    **{f"seq2vec {pool}": lambda pool=pool: Seq2Vec(V, 3, width=D, bidirectional=True, pool=pool) for pool in ("last", "mean")},
    "tagger": lambda: Tagger(V, 3, width=D, depth=2, mixer="lstm"),
    "tagger both ways": lambda: Tagger(V, 3, width=D, depth=2, bidirectional=True),
    "nnlm": lambda: FeedForwardLM(V, 4, 5, 6),
    **{f"ngram {smoothing}": lambda smoothing=smoothing: Ngram(TEXT, V, 3, smoothing) for smoothing in ("add", "backoff", "kneser-ney")},
    "elmo": lambda: Elmo(V, 6),
}
ELSEWHERE = {SourceAttention, elmo.LayerMix, ElmoFeatures, Vec2Vec}
"""parts of models, and what reads no sequence"""
SEES_ALL = {Bert, Elmo, Seq2Vec}
"""what has no output that a later token does not reach"""


@pytest.fixture(params=MAKERS)
def model(request: pytest.FixtureRequest) -> nn.Module:
    return make(request.param)


@pytest.fixture(autouse=True)
def no_grad() -> Any:
    with torch.no_grad():
        yield


def make(name: str, seed: int = 0) -> nn.Module:
    """In float64 for close comparisons, with nothing left at 0."""
    torch.manual_seed(seed)
    network = MAKERS[name]().double().eval()
    for weight in network.parameters():
        weight += 0.1 * torch.randn_like(weight)
    return network


def reads(model: nn.Module) -> tuple[str, ...]:
    return getattr(model, "reads", ("x",))


def draw_batch(model: nn.Module, seed: int = 1) -> Batch:
    """A batch of everything the model reads but lengths."""
    rng = torch.Generator().manual_seed(seed)
    x = torch.randint(V, (B, T), generator=rng)
    if isinstance(model, Vec2Seq):
        vector = torch.randn(B, F, generator=rng, dtype=torch.float64)
        return Batch(source=vector, x=x if isinstance(model.entry, nn.Embedding) else torch.randn(B, T, 2, generator=rng).double())
    return Batch(x=x, source=torch.randint(V, (B, S), generator=rng)) if "source" in reads(model) else Batch(x=x)


def outputs(output: Tensor | dict[str, Tensor]) -> list[Tensor]:
    return list(output.values()) if isinstance(output, dict) else [output]


def is_causal(model: nn.Module) -> bool:
    """Whether its outputs may depend on no later token."""
    if type(model) in SEES_ALL:
        return False
    return model.trunk.causal if isinstance(model, Tagger) else getattr(model, "causal", True)


def close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, atol=1e-9, rtol=1e-9)


def test_every_model_is_here() -> None:
    classes = {
        part
        for module in (bert, elmo, encoder_decoder, language_model, ngram, nnlm, seq2seq, topologies)
        for _, part in inspect.getmembers(module, inspect.isclass)
        if issubclass(part, nn.Module) and part.__module__ == module.__name__
    }
    assert classes - ELSEWHERE == {type(make(name)) for name in MAKERS}


def test_no_output_depends_on_a_later_token(model: nn.Module) -> None:
    """And every one on its own token, so that the comparison means something; one that sees all does see the last."""
    batch = draw_batch(model)
    output = call_model(model, batch)
    for t in range(1, T):
        x = batch.x.clone()
        x[:, t:] = draw_batch(model, 2).x[:, t:] if x.is_floating_point() else (x[:, t:] + 1) % V
        other = call_model(model, batch.replace(x=x))
        if is_causal(model):
            assert (other[:, :t] - output[:, :t]).abs().max() < 1e-12, t
            assert not torch.equal(other[:, t], output[:, t]), t
        else:
            assert all(not torch.equal(y, z) for y, z in zip(outputs(other), outputs(output))), t


def test_padding_changes_nothing(model: nn.Module) -> None:
    """Each row of a padded batch is as if it were alone, whatever stands in the padding."""
    if isinstance(model, Vec2Seq):
        pytest.skip("it writes, and what it reads is one vector")
    batch, field = draw_batch(model), "source" if "source" in reads(model) else "x"
    whole = batch.get(field)
    lengths = LENGTHS[whole.shape[1]]
    there = torch.arange(whole.shape[1]) < lengths.unsqueeze(1)
    axis = 2 if isinstance(model, Elmo) else 1  # along it there is an output for each place
    for fill in (0, V - 1):
        padded = batch.replace(**{field: torch.where(there, whole, fill)})
        if "lengths" in reads(model):
            results = outputs(call_model(model, padded.replace(lengths=lengths)))
        else:
            results = [model(padded.x, spans=Spans.of_lengths(lengths))]
        for row, n in enumerate(lengths.tolist()):
            alone = batch[row : row + 1].replace(**{field: whole[row : row + 1, :n]})
            for actual, expected in zip(results, outputs(call_model(model, alone)), strict=True):
                close(actual[row : row + 1].narrow(axis, 0, expected.shape[axis]), expected)


def test_going_on_is_like_one_pass(model: nn.Module) -> None:
    if not (hasattr(model, "advance") and is_causal(model)):
        pytest.skip("it reads whole sequences")
    batch = draw_batch(model)
    for pieces in ([1] * T, [3, 1, 2, 1]):
        state = model.begin(batch.source) if hasattr(model, "begin") else None
        chunks = []
        for part in batch.x.split(pieces, 1):
            logits, state = model.advance(part, state)
            chunks.append(logits)
        close(torch.cat(chunks, 1), call_model(model, batch))


@pytest.mark.parametrize("name", MAKERS)
def test_saved_and_loaded_it_says_the_same(name: str) -> None:
    first, again = make(name), make(name, seed=1)
    if not name.startswith("ngram"):  # which has nothing but its counts, and those are the same
        assert not torch.equal(outputs(call_model(again, draw_batch(first)))[0], outputs(call_model(first, draw_batch(first)))[0])
    again.load_state_dict(decode(b"".join(encode(first.state_dict()))))
    for actual, expected in zip(outputs(call_model(again, draw_batch(first))), outputs(call_model(first, draw_batch(first))), strict=True):
        assert torch.equal(actual, expected)


# The registry ---------------------------------------------------------------------------------------------------------


def test_registry_holds_models_of_every_kind() -> None:
    assert {"mlp", "cnn", "resnet", "unet", "vit", "vgg", "language_model", "vae", "ngram"} <= set(registry.names("models"))
    assert not {"heads", "published", "fine_tune"} & set(registry.names("models"))


@pytest.mark.parametrize("name", registry.names("models"))
def test_the_file_of_a_model_keeps_the_contract(name: str) -> None:
    checks.declares_what_it_is(registry.load("models", name))


@pytest.mark.parametrize("name", registry.names("models"))
@pytest.mark.parametrize("check", checks.CHECKS, ids=lambda check: check.__name__)
def test_keeps_the_contract(check: Callable[[checks.MakeModel], None], name: str) -> None:
    with torch.enable_grad():
        check(checks.fresh(registry.load("models", name)))
