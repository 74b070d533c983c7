"""Run a rule: each `Steps` it yields is computed in the requested form, and the output sent back to it.

A rule is a generator.  It turns its inputs into `Steps`, yields them, receives the output (B, H, L, V), and returns the
final output; it does not depend on the form, the lengths of the sequences, or the origin of the state:

    def gla(q, k, v, log_a):
        return (yield Steps(q, k, v, log_key=log_a))

A rule may yield twice (ABC, GSA), and may have state of its own (a running maximum): it then
takes `state` and returns (output, {"m": m}) with m (B, H, L), of which the last step is saved.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from typing import final

import torch
from torch import Tensor

from ...core.errors import BadInput, nearest
from ..precision import full_precision
from ..spans import State
from . import forms
from .choose import fastest
from .fused import run_kernel, why_not
from .steps import Steps

Rule = Generator[Steps, Tensor, "Tensor | tuple[Tensor, State]"]

FORMS: dict[str, Callable[[Steps, Tensor], tuple[Tensor, Tensor]]] = {
    "step": forms.step,
    "fused": run_kernel,
    "parallel": forms.parallel,
    "chunk": forms.chunk,
    "scan": forms.scan_form,
    "convolution": forms.convolution,
}


def run(rule: Rule, state: State | None = None, *, form: str = "auto", lengths: Tensor | None = None) -> tuple[Tensor, State]:
    """Run a rule: its output, and the state after the last step.

    Args:
        form: one of FORMS, or 'auto' for the fastest that can run
        lengths: (B,) length of each sequence; later steps do not change the state
    """
    old: State = state or {}
    new: State = {}
    try:
        steps = next(rule)
        while True:
            name = f"S{len(new)}"
            out, new[name] = compute(steps, old.get(name), form, lengths)
            steps = rule.send(out)
    except StopIteration as end:
        result = end.args[0]  # and not end.value, which a compiler cannot read
    if isinstance(result, tuple):
        out, carried = result
        new.update({name: _last(x, old.get(name), lengths) for name, x in carried.items()})
        return out, new
    return result, new


def compute(s: Steps, state: Tensor | None = None, form: str = "auto", lengths: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """One recurrence: (out (B, H, L, V), state (B, H, K, V)).  The state is float32 or float64, whatever the inputs are."""
    state = _check_state(s, state)
    chosen = fastest(s) if form == "auto" else form
    if chosen not in s.forms:
        if chosen not in FORMS:
            raise BadInput(f"no form '{chosen}'", fix=nearest(chosen, FORMS))
        raise BadInput(f"a recurrence of kind '{s.name}' has no form '{chosen}'", fix="it has " + ", ".join(s.forms))
    if form == "fused" and (problem := why_not(s)):
        raise BadInput(f"the form 'fused' cannot run: {problem}", fix="use form='auto', or 'chunk'")
    for watch in _WATCHING:
        watch.seen.append((s, chosen))
    if chosen == "fused":
        out, state = run_kernel(s if lengths is None else s.end_at(lengths), state)
    else:
        wide = _widen(s)
        # Autocast would round products to half precision, and long sums need full precision.
        with full_precision(s.v):
            if chosen == "convolution":
                out, state = forms.convolution(wide, state, lengths)
            else:
                out, state = FORMS[chosen](wide if lengths is None else wide.end_at(lengths), state)
    bonus = s.bonus()
    out = out if bonus is None else out + bonus
    return out if out.dtype is s.v.dtype else out.to(s.v.dtype), state


def _check_state(s: Steps, state: Tensor | None) -> Tensor:
    """The initial state; a wrong size is an error that names the axis."""
    B, H, _, K, V = s.sizes
    if state is None:
        return s.empty_state()
    for i, (axis, actual, expected) in enumerate(zip(("batch", "heads", "key width", "value width"), state.shape, (B, H, K, V))):
        if actual != expected:
            raise BadInput(
                f"the state is {tuple(state.shape)}, axis {i} ({axis}) must be {expected}",
                where="state",
                fix="pass state=None to start a new sequence",
            )
    if state.dim() != 4:
        raise BadInput(f"the state has {state.dim()} axes instead of 4", where="state", fix="pass state=None to start a new sequence")
    return state if state.dtype is s.state_dtype else state.to(s.state_dtype)


def _widen(s: Steps) -> Steps:
    """Half-precision inputs as float32, in which they are summed; a time of -inf as a large finite one."""
    real = torch.float64 if s.v.dtype == torch.float64 else torch.float32
    tensors = {f.name: x for f in fields(s) if isinstance(x := getattr(s, f.name), Tensor) and x.is_floating_point()}
    changed = {name: x.to(real) for name, x in tensors.items() if x.dtype != real}
    if s.rate is not None:
        changed["log_value"] = changed.get("log_value", tensors["log_value"]).clamp_min(-1e30)  # 0 * inf is no decay
    return replace(s, **changed) if changed else s  # type: ignore[arg-type]


def _last(x: Tensor, old: Tensor | None, lengths: Tensor | None) -> Tensor:
    """The entry of (B, H, L) that belongs to the last step of each sequence."""
    if lengths is None:
        return x[:, :, -1]
    last = x.gather(2, (lengths - 1).clamp_min(0)[:, None, None].expand(-1, x.shape[1], 1)).squeeze(2)
    nonempty = (lengths > 0).unsqueeze(1)
    return torch.where(nonempty, last, x.new_full((), float("-inf")) if old is None else old)


@final
@dataclass(eq=False)
class Watch:
    """A record of recurrences: their steps and forms, and how often a denominator was clamped."""

    seen: list[tuple[Steps, str]] = field(default_factory=list)
    denominators: int = 0
    guarded: int = 0


_WATCHING: list[Watch] = []


@contextmanager
def record_recurrences() -> Iterator[Watch]:
    """Record every recurrence that runs inside the `with`."""
    watch = Watch()
    _WATCHING.append(watch)
    try:
        yield watch
    finally:
        _WATCHING.remove(watch)


def divide(top: Tensor, bottom: Tensor, floor: float | Tensor = 1e-6) -> Tensor:
    """top / bottom with |bottom| clamped to at least `floor`, sign preserved; `record_recurrences` counts the clamps."""
    minimum = torch.as_tensor(floor, dtype=bottom.dtype, device=bottom.device)
    small = bottom.abs() < minimum
    for watch in _WATCHING if not small.is_meta else ():
        watch.denominators += small.numel()
        watch.guarded += int(small.sum())
    return top / torch.where(small, torch.where(bottom < 0, -minimum, minimum), bottom)


def with_ones(v: Tensor) -> Tensor:
    """v with an extra column of ones, whose output is the sum of the weights: the normalizer."""
    return torch.cat([v, v.new_ones(*v.shape[:-1], 1)], -1)


def normalize(out: Tensor, floor: float | Tensor = 1e-6) -> Tensor:
    """The output of `with_ones` values divided by its last column."""
    return divide(out[..., :-1], out[..., -1:], floor)
