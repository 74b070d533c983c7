"""Logit lens: what the model would predict if it stopped after each block.

nostalgebraist, interpreting GPT: the logit lens, 2020: the final norm and output layer, which turn the last block's output
into logits, are applied to the output of every block.
"""

from __future__ import annotations

import math
from typing import Annotated, Any

import torch

from ..core.options import Range
from ..core.reading import Heat, Lines, Reading, Subject
from ..nn.stack import Stack
from .tools.readonly import check_index, guard, hook_outputs, preserve_state, target_mask
from .tools.tiny import letters
from .tools.tokens import logits, no_logits, select_row, spell_tokens, token_names


def why_not(subject: Subject) -> str:
    """Why the lens does not apply to a subject, or ''; `guard` turns it into an error."""
    if missing := no_logits(subject):
        return missing
    return "" if _stack(subject.model) is not None else "the model has no stack of blocks before its output layer"


@guard
def read(
    subject: Subject,
    example: Annotated[int, Range(0)] = 0,
    tokens: Annotated[int, Range(1, 256)] = 20,
    examples: Annotated[int, Range(1, 4096)] = 32,
) -> list[Reading]:
    """The most likely token after each block with its probability; the bits of the correct token after each block.

    Args:
        example: index of the example to show
        tokens: how many of its first tokens to show
        examples: how many examples the bits are averaged over
    """
    check_index("example", example, len(subject.batch))
    names, row = spell_tokens(subject), select_row(subject.batch, example)
    rows, scores = by_block(subject.model, row)
    probabilities, best = scores[:, 0, :tokens].softmax(-1).max(-1)
    mask = target_mask(row, row.y)[0, :tokens]
    correct = [word if counts else "" for word, counts in zip(token_names(row.y[0, :tokens], names), mask.tolist(), strict=True)]
    many = subject.batch[:examples]
    targets, cost = target_mask(many, many.y), _bits(subject.model, many)
    return [
        Heat(
            "Prediction after each block",
            {"probability": [*probabilities.tolist(), [math.nan] * len(correct)]},
            axes=["after", "input token"],
            note=f"The most likely token at the first {len(correct)} positions of example {example}; darker is more likely: "
            f"no color is 0, the darkest is {float(probabilities.max()):.2g}.",
            rows=[*rows, "correct"],
            columns=token_names(row.x[0, :tokens], names),
            words=[*(token_names(each, names) for each in best), correct],
        ),
        Lines(
            "Bits of the correct token after each block",
            {"bits": cost},
            axes=["blocks", "bits"],
            note=f"Mean over {int(targets.sum()):,} tokens of {len(many)} examples; 0 blocks is the embedding alone.",
            ticks=list(range(len(cost))),
        ),
    ]


def by_block(model: Any, batch: Any) -> tuple[list[str], Any]:
    """Names, and logits (1 + blocks, B, T, V) of the input of the first block and of the output of each block."""
    stack = _stack(model)
    states: list[Any] = []

    def note(name: str, module: Any, inputs: tuple[Any, ...], output: Any) -> None:
        states.extend([inputs[0], output[0]] if not states else [output[0]])

    with preserve_state(model), torch.no_grad(), hook_outputs({str(i): block for i, block in enumerate(stack.blocks)}, note):
        logits(model, batch)
        scores = torch.stack([model.logits(stack.norm(x)) for x in states]).double()
    return ["embedding", *(f"block {i + 1}" for i in range(len(states) - 1))], scores


def _bits(model: Any, batch: Any) -> list[float]:
    """Mean of log2 1/p of the correct tokens after each block."""
    mask = target_mask(batch, batch.y)
    y = torch.where(mask, batch.y.long(), 0)
    _, scores = by_block(model, batch)
    costs = -scores.log_softmax(-1).gather(-1, y.expand(len(scores), *y.shape).unsqueeze(-1)).squeeze(-1)
    return (costs[:, mask].mean(1) / math.log(2)).tolist()


def _stack(model: Any) -> Any:
    """The blocks whose output the model's `logits` reads; None without them."""
    if not hasattr(model, "logits"):
        return None
    return next((part for name in ("stack", "decoder") if isinstance(part := getattr(model, name, None), Stack)), None)


def tiny() -> Subject:
    """A small subject for the contract tests."""
    return letters("gla heads=2")
