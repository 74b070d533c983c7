"""The base class of all mixers: x (B, T, D) and an optional state -> y (B, T, D) and the next state.

Feeding a sequence at once, in pieces of any length, or token by token gives the same outputs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn

from ...core import registry
from ...core.errors import BadInput, nearest
from ...core.options import resolve
from ..recurrence import FORMS, Rule, State, Steps, choose, record_recurrences, run
from ..spans import Spans
from ._states import Marks, marks, state_error


class Mixer(nn.Module, ABC):
    """Mixes information along a sequence.  A subclass defines `mix`, `forms` and `auto`.

    The attributes below declare properties of a mixer for the rest of the system; a subclass sets those that differ.  It may
    also have the method

        decode(program, part, x, y, add) -> Memory

    which adds the operations of one token to a program of the decoding kernel (see `kernels.states`); a mixer without it is
    decoded by its own `forward`.
    """

    width: int
    causal: bool = True
    """no output depends on a later input; then it can be fed in pieces, with a state"""
    form: str = "auto"
    """execution form; `use` sets it"""
    grows: tuple[str, ...] = ()
    """tensors of the state with one entry for each token, along axis 2"""
    no_decay: tuple[str, ...] = ()
    """its own parameters without weight decay, such as logarithms of rates, for which 0 is not neutral; parameters of fewer than
    two axes need not be listed.  Any other module may declare this too"""
    length_option: str = ""
    """name of the option for the longest sequence, where a mixer has a limit"""
    small_start: bool = False
    """GPT-2 style models initialize its linear layers with a small standard deviation, like those of feed-forward networks"""
    _state_marks: Marks | None = None

    def forward(self, x: Tensor, state: State | None = None, *, spans: Spans | None = None) -> tuple[Tensor, State]:
        """x (B, T, D) -> y (B, T, D) and the state after it; `spans` are the sequences in x."""
        self._check(x)
        eager = not torch.compiler.is_compiling()
        if state is not None and self.causal and eager:
            self._check_state(state, x)
        if spans is not None:
            y, after = spans.apply(self.mix, x, state)
        else:
            for name, s in (state or {}).items():
                if len(s) != len(x):
                    raise BadInput(
                        f"state '{name}' has batch size {len(s)}, x has {len(x)}",
                        where="axis 0 (batch)",
                        fix="pass state=None to start a new sequence",
                    )
            y, after = self.mix(x, state, None)
        if self._state_marks is None and after and eager:
            self._state_marks = marks(after, self.grows)
        return y, after

    def _check(self, x: Tensor) -> None:
        """Check the shape and dtype of x."""
        if x.dim() != 3 or x.shape[-1] != self.width:
            raise BadInput(
                f"x is {tuple(x.shape)}, {type(self).__name__} takes (batch, time, {self.width})",
                where="axis 2 (width)" if x.dim() == 3 else "axes",
                fix=f"make the last axis {self.width}",
            )
        if x.shape[1] == 0:
            raise BadInput("x has no tokens", where="axis 1 (time)", fix="give at least one")
        weight = next((part.weight for part in self._modules.values() if isinstance(part, nn.Linear)), x)
        if x.dtype != weight.dtype and not _autocast_unifies(x, weight):
            actual, expected = (str(dtype).removeprefix("torch.") for dtype in (x.dtype, weight.dtype))
            raise BadInput(f"x is {actual}, the weights are {expected}", where=type(self).__name__, fix=f"give x.to(torch.{expected})")

    def _check_state(self, state: State, x: Tensor) -> None:
        """Refuse the state of another mixer, or of one with other options."""
        if self._state_marks is None:
            with torch.no_grad():
                self._state_marks = marks(self.mix(torch.zeros_like(x[:1, :1]), None, None)[1], self.grows)
        actual = marks(state, self.grows)
        if actual != self._state_marks:
            raise state_error(actual, self._state_marks, type(self).__name__)

    @abstractmethod
    def mix(self, x: Tensor, state: State | None, lengths: Tensor | None) -> tuple[Tensor, State]:
        """The same for sequences that start at time 0; the first `lengths` (B,) tokens of each count."""

    @abstractmethod
    def forms(self) -> tuple[str, ...]:
        """Execution forms, all with the same outputs."""

    @abstractmethod
    def auto(self, length: int) -> tuple[str, str]:
        """The form that 'auto' takes for sequences of this length, and why."""

    def use(self, form: str) -> Mixer:
        """Choose the execution form: one of `forms`, or 'auto'."""
        if form != "auto" and form not in self.forms():
            if form not in FORMS:
                raise BadInput(f"no form '{form}'", fix=nearest(form, ["auto", *FORMS]))
            raise BadInput(f"{type(self).__name__} has no form '{form}'", fix="it has " + ", ".join(self.forms()))
        self.form = form
        return self


class Recurrent(Mixer, ABC):
    """A mixer made of one or two linear recurrences; its forms follow from their `Steps`."""

    def recur(self, rule: Rule, state: State | None, lengths: Tensor | None) -> tuple[Tensor, State]:
        """Run a rule in this mixer's form."""
        return run(rule, state, form=self.form, lengths=lengths)

    def forms(self) -> tuple[str, ...]:
        first, *others = [steps.forms for steps in self._probe("step", 2)]
        return tuple(form for form in first if all(form in other for other in others))

    def auto(self, length: int) -> tuple[str, str]:
        choice = choose(self._probe("auto", length)[0])
        return choice.form, choice.why

    def _probe(self, form: str, length: int) -> list[Steps]:
        """The recurrences that run over `length` tokens."""
        like = next(self.parameters())
        previous, self.form = self.form, form
        try:
            with record_recurrences() as watch, torch.no_grad():
                self.mix(torch.zeros(1, length, self.width, dtype=like.dtype, device=like.device), None, None)
        finally:
            self.form = previous
        return [steps for steps, _ in watch.seen]


def _autocast_unifies(x: Tensor, weight: Tensor) -> bool:
    """Whether autocast will cast both to one dtype; it does not touch float64."""
    floats = x.is_floating_point() and torch.float64 not in (x.dtype, weight.dtype)
    return floats and torch.is_autocast_enabled(x.device.type)


def mixer(name: str, width: int, *, form: str = "auto", **options: Any) -> Mixer:
    """A new mixer by name, or from a user's own file by its path; further options are those of its class."""
    make, owner = mixer_class(name), f"mixer '{registry.label(name)}'"
    new_mixer: Mixer = make(**resolve(make, {"width": width, **options}, owner))
    return new_mixer if form == "auto" else new_mixer.use(form)


def mixer_class(name: str) -> type[Mixer]:
    """The class of a mixer, by its name or the path of its file."""
    return registry.class_of("nn.mixers", name, Mixer)


def length_options(kind: type[Mixer], length: int) -> dict[str, int]:
    """Options for sequences of this length; empty where the mixer has no limit."""
    return {kind.length_option: length} if kind.length_option else {}
