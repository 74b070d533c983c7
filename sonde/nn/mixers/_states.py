"""Whether a mixer can continue from a state."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from ...core.errors import BadInput
from ..recurrence import State

Marks = dict[str, tuple[bool, tuple[int | None, ...]]]
"""for each tensor whether it is complex, and its sizes from axis 1 on, None where they depend on the length"""


def marks(state: State, grows: Collection[str] = ()) -> Marks:
    """Signature of the states of one mixer; tensors in `grows` have an axis 2 of any length."""
    return {
        name: (s.is_complex(), (s.shape[1], None, *s.shape[3:]) if name in grows and s.dim() > 2 else s.shape[1:])
        for name, s in state.items()
    }


def state_error(actual: Marks, expected: Marks, owner: str) -> BadInput:
    """The error for a state that does not match a mixer: which tensor, which axis, which sizes."""
    if actual.keys() != expected.keys():
        message = f"state holds {list_names(actual)}; {owner} keeps {list_names(expected)}"
    else:
        name = next(name for name in expected if actual[name] != expected[name])
        (of_pairs, sizes), (wants_pairs, expected_sizes) = actual[name], expected[name]
        if of_pairs != wants_pairs:
            message = f"state '{name}' is {_kind(of_pairs)}; {owner} keeps a {_kind(wants_pairs)} one"
        elif len(sizes) != len(expected_sizes):
            message = f"state '{name}' has {len(sizes) + 1} axes; {owner} keeps {len(expected_sizes) + 1}"
        else:
            axis = next(i for i, pair in enumerate(zip(sizes, expected_sizes)) if pair[0] != pair[1])
            message = f"state '{name}' has {sizes[axis]} along axis {axis + 1}; {owner} keeps {expected_sizes[axis]}"
    return BadInput(message, where="state", fix="pass state=None to start a new sequence")


def list_names(names: Mapping[str, object]) -> str:
    return ", ".join(f"'{name}'" for name in names) or "nothing"


def _kind(is_complex: bool) -> str:
    return "complex" if is_complex else "real"
