"""What every mixer is: x (B, T, D) and an optional state -> y (B, T, D) and the next state.

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
from ..recurrence import FORMS, Rule, State, Steps, choose, run, watching
from ..spans import Spans
from ._states import Marks, marks, state_error


class Mixer(nn.Module, ABC):
    """Moves information along a sequence.  A member writes `mix` and says which `forms` it has.

    The attributes below are what a mixer declares about itself for the rest of the system; a member sets those that differ.
    One more may be there, the method

        decode(program, part, x, y, add) -> Memory

    which adds the operations of one token to a program of the decoding kernel (see `kernels.states`); a mixer without it is
    decoded by its own `forward`.
    """

    width: int
    causal: bool = True
    """no output looks at a later input; then it can be fed in pieces, with a state"""
    form: str = "auto"
    """how it is computed; `use` sets it"""
    grows: tuple[str, ...] = ()
    """tensors of the state that hold something for each token read, along axis 2"""
    no_decay: tuple[str, ...] = ()
    """its own parameters on which weight decay does not act, such as rates kept as logarithms: 0 is not where they are at home;
    parameters of fewer than two axes need not be named.  Any other module may declare this too"""
    length_option: str = ""
    """the option that says how long a sequence may be, where a mixer has a limit"""
    small_start: bool = False
    """in models in the style of GPT-2 its linear maps begin small, like those of the feed-forward networks"""
    _kept: Marks | None = None

    def forward(self, x: Tensor, state: State | None = None, *, spans: Spans | None = None) -> tuple[Tensor, State]:
        """x (B, T, D) -> y (B, T, D) and the state after it; `spans` says which stretches of x are sequences of their own."""
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
        if self._kept is None and after and eager:
            self._kept = marks(after, self.grows)
        return y, after

    def _check(self, x: Tensor) -> None:
        """Refuse an x that this mixer cannot read."""
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
            actual, wanted = (str(dtype).removeprefix("torch.") for dtype in (x.dtype, weight.dtype))
            raise BadInput(f"x is {actual}, the weights are {wanted}", where=type(self).__name__, fix=f"give x.to(torch.{wanted})")

    def _check_state(self, state: State, x: Tensor) -> None:
        """Refuse the state of another mixer, or of one with other options."""
        if self._kept is None:
            with torch.no_grad():
                self._kept = marks(self.mix(torch.zeros_like(x[:1, :1]), None, None)[1], self.grows)
        actual = marks(state, self.grows)
        if actual != self._kept:
            raise state_error(actual, self._kept, type(self).__name__)

    @abstractmethod
    def mix(self, x: Tensor, state: State | None, lengths: Tensor | None) -> tuple[Tensor, State]:
        """The same for sequences that begin at the left edge; of each the first `lengths` (B,) tokens count."""

    @abstractmethod
    def forms(self) -> tuple[str, ...]:
        """Ways it can be computed, all of which give the same numbers."""

    @abstractmethod
    def auto(self, length: int) -> tuple[str, str]:
        """The form that 'auto' takes for sequences of this length, and why."""

    def use(self, form: str) -> Mixer:
        """Choose how it is computed: one of `forms`, or 'auto'."""
        if form != "auto" and form not in self.forms():
            if form not in FORMS:
                raise BadInput(f"no form '{form}'", fix=nearest(form, ["auto", *FORMS]))
            raise BadInput(f"{type(self).__name__} has no form '{form}'", fix="it has " + ", ".join(self.forms()))
        self.form = form
        return self


class Recurrent(Mixer, ABC):
    """A mixer whose work is one or two linear recurrences; its forms follow from the steps it takes."""

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
        """The recurrences that run over so many tokens."""
        like = next(self.parameters())
        kept, self.form = self.form, form
        try:
            with watching() as watch, torch.no_grad():
                self.mix(torch.zeros(1, length, self.width, dtype=like.dtype, device=like.device), None, None)
        finally:
            self.form = kept
        return [steps for steps, _ in watch.seen]


def _autocast_unifies(x: Tensor, weight: Tensor) -> bool:
    """Autocast is on and will give both one precision; it leaves float64 alone."""
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
    """Options with which a mixer of this class reads sequences of such a length; none where it has no limit."""
    return {kind.length_option: length} if kind.length_option else {}
