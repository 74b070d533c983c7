"""What lenses over text share: one example without its padding, tokens as text, and the logits at each position.

B batch, T time, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ...core.batch import call_model
from ...core.reading import Subject
from .readonly import no_model, preserve_state, target_mask

BLANK, BREAK = "\u2423", "\u21b5"
"""how a space and a newline are shown"""


def no_tokens(subject: Subject) -> str:
    """Why the inputs are not tokens, or ''."""
    if missing := no_model(subject):
        return missing
    x = subject.batch.x
    return "" if x.dim() == 2 and not x.is_floating_point() and x.shape[1] else "the inputs are not tokens"


def ends(batch: Any) -> Any:
    """(B,) length of each row of x without padding."""
    x, whole = batch.x, torch.full((len(batch),), batch.x.shape[1])
    if "source" not in batch:
        return batch.get("lengths", whole)
    if "mask" not in batch:  # lengths are those of the source
        return whole
    return (batch.mask.bool() * torch.arange(1, x.shape[1] + 1)).amax(1)


def select_row(batch: Any, row: int, max_length: int | None = None) -> Any:
    """One row of a batch without its padding, of each sequence at most the first `max_length` tokens."""
    end = int(ends(batch)[row])
    one = batch[row : row + 1]
    n, fields = min(end, max_length or end), {}
    for name, field in one.fields.items():
        if name == "source":
            length = one.get("lengths")
            fields[name] = field[:, : min(field.shape[1] if length is None else int(length), max_length or field.shape[1])]
        else:
            fields[name] = field[:, :n] if field.dim() > 1 and field.shape[1] == batch.x.shape[1] else field
    if "lengths" in fields:
        fields["lengths"] = fields["lengths"].new_full((1,), fields.get("source", fields["x"]).shape[1])
    return type(batch)(**fields)


def spell_tokens(subject: Subject) -> list[str]:
    """Every token of the vocabulary as printable text; [] where tokens have no names."""
    tokenizer = getattr(getattr(subject.data, "reader", None), "vocabulary", None)
    if tokenizer is None:
        known = getattr(subject.data, "classes", ()) if getattr(subject.data, "task", "") != "classes" else ()
        return [_printable(token) for token in known]
    if tokenizer.level in ("char", "byte"):
        return [_printable(token) for token in tokenizer.tokens]
    return [_printable(token.replace("\u0120", " ").replace("\u2581", " ").replace("\u010a", "\n")) for token in tokenizer.tokens]


def _printable(token: str) -> str:
    return token.replace(" ", BLANK).replace("\n", BREAK) or "''"


def token_names(tokens: Any, names: list[str]) -> list[str]:
    """Names of tokens, or their ids where they have no names."""
    return [names[token] if 0 <= token < len(names) else str(token) for token in tokens.tolist()]


def is_next_token(batch: Any) -> bool:
    """Whether every target is the next token of the input."""
    x, y = batch.x, batch.get("y")
    if y is None or y.shape != x.shape:
        return False
    mask = target_mask(batch, y)
    counts = mask[:, 1:] & mask[:, :-1]  # after the last real token comes padding, or another document
    return bool(counts.any() and (x[:, 1:] == y[:, :-1])[counts].all())


def original(batch: Any) -> Any:
    """(B, T) the text of a batch: its tokens, with masked ones restored."""
    y = batch.get("y")
    if is_next_token(batch) or y is None or y.shape != batch.x.shape or y.is_floating_point():
        return batch.x
    return torch.where(target_mask(batch, y), y, batch.x)


def frequent(batch: Any, max_tokens: int) -> Any:
    """Ids of the most frequent tokens of the text, the most frequent first, at most `max_tokens`."""
    rows = [row[:end] for row, end in zip(original(batch), ends(batch).tolist())]
    counts = torch.bincount(torch.cat(rows))
    return counts.argsort(descending=True, stable=True)[: min(max_tokens, int((counts > 0).sum()))]


def logits(model: Any, batch: Any) -> Any:
    """(B, T, V) logits of the model at each position, or None where the output has another shape."""
    out: Any = call_model(model, batch)
    out = out.get("tokens") if isinstance(out, dict) else out
    fits = out is not None and hasattr(out, "dim") and out.dim() == 3 and out.shape[:2] == batch.x.shape
    return out if fits else None


def no_logits(subject: Subject) -> str:
    """Why the model does not predict a token at each position, or ''."""
    if missing := no_tokens(subject):
        return missing
    y = subject.batch.get("y")
    if y is None or y.shape != subject.batch.x.shape or y.is_floating_point():
        return "the batch has no target token at each position"
    if not getattr(subject.model, "causal", True) and is_next_token(subject.batch):
        return "the model is not causal and the batch masks no tokens"
    with preserve_state(subject.model), torch.no_grad():
        scores = logits(subject.model, select_row(subject.batch, 0))
    if scores is None or scores.shape[-1] <= int(y.max()):
        return "the model does not output a score per token at each position"
    return ""


def embedding(model: Any) -> Any:
    """The token embedding: the attribute `embedding`, else the first nn.Embedding; None without any."""
    own = getattr(model, "embedding", None)
    return own if isinstance(own, nn.Embedding) else next((part for part in model.modules() if isinstance(part, nn.Embedding)), None)


def no_embedding(subject: Subject) -> str:
    """Why there is no token embedding, or ''."""
    if missing := no_tokens(subject):
        return missing
    table = embedding(subject.model)
    if table is None:
        return "the model has no embedding"
    return "" if int(original(subject.batch).max()) < table.num_embeddings else "the embedding has fewer rows than there are tokens"


def layer_label(name: str) -> str:
    """A readable name of a module: 'block 1' for stack.blocks.0.mixer."""
    parts = [f"block {int(part) + 1}" if part.isdigit() else part for part in name.split(".")]
    return " ".join(part for part in parts if part not in ("stack", "blocks", "layers", "mixer")) or "model"
