"""Whether a state is one that a mixer with these options can go on from."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from ...core.errors import BadInput
from ..recurrence import State

Marks = dict[str, tuple[bool, tuple[int | None, ...]]]
"""of each tensor: whether it is complex, and its sizes from axis 1 on, None where they follow from what was read"""


def marks(state: State, grows: Collection[str] = ()) -> Marks:
    """What all states of one mixer have in common; tensors in `grows` have an axis 2 of any length."""
    return {
        name: (s.is_complex(), (s.shape[1], None, *s.shape[3:]) if name in grows and s.dim() > 2 else s.shape[1:])
        for name, s in state.items()
    }


def state_error(actual: Marks, kept: Marks, owner: str) -> BadInput:
    """The error for a state with other marks than those kept by its new owner: which tensor, which axis, which sizes."""
    if actual.keys() != kept.keys():
        message = f"state holds {list_names(actual)}; {owner} keeps {list_names(kept)}"
    else:
        name = next(name for name in kept if actual[name] != kept[name])
        (of_pairs, sizes), (wants_pairs, wanted) = actual[name], kept[name]
        if of_pairs != wants_pairs:
            message = f"state '{name}' is {_kind(of_pairs)}; {owner} keeps a {_kind(wants_pairs)} one"
        elif len(sizes) != len(wanted):
            message = f"state '{name}' has {len(sizes) + 1} axes; {owner} keeps {len(wanted) + 1}"
        else:
            axis = next(i for i, pair in enumerate(zip(sizes, wanted)) if pair[0] != pair[1])
            message = f"state '{name}' has {sizes[axis]} along axis {axis + 1}; {owner} keeps {wanted[axis]}"
    return BadInput(message, where="state", fix="pass state=None to start a new sequence")


def list_names(names: Mapping[str, object]) -> str:
    return ", ".join(f"'{name}'" for name in names) or "nothing"


def _kind(is_complex: bool) -> str:
    return "complex" if is_complex else "real"
