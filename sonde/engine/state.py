"""What a bit-exact resume needs besides weights: optimizer moments by parameter name, random states."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import torch
from torch import Tensor, nn

from ..core.errors import BadInput, DataUnusable
from ..core.seeds import key
from ..gradients.flat import Flat


def model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and all buffers by name, also buffers that `state_dict` leaves out but a forward pass may change."""
    tensors = dict(model.state_dict())
    tensors.update({name: buffer for name, buffer in model.named_buffers() if name not in tensors})
    return {name: tensor.detach() for name, tensor in tensors.items() if isinstance(tensor, Tensor)}


def load_model_(model: nn.Module, saved: Mapping[str, Tensor]) -> None:
    """Copy saved values into the model in place."""
    with torch.no_grad():
        for name, tensor in model_tensors(model).items():
            tensor.copy_(saved[name])


def misfit(wanted: Mapping[str, Tensor], saved: Mapping[str, Tensor], what: str) -> None:
    """Raise DataUnusable unless names, shapes and dtypes are the same."""
    for name in sorted({*wanted, *saved}):
        if name not in saved or name not in wanted:
            raise DataUnusable(f"{what} '{name}' is {'missing from' if name in wanted else 'not in the model, only in'} the checkpoint")
        ours, theirs = wanted[name], saved[name]
        if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
            mismatch = f"{tuple(theirs.shape)} {theirs.dtype} in the checkpoint, {tuple(ours.shape)} {ours.dtype} in the model"
            raise DataUnusable(f"{what} '{name}' is {mismatch}")


def misfit_model(wanted: Mapping[str, Tensor], parts: Mapping[str, Mapping[str, Tensor]]) -> None:
    """Raise DataUnusable unless the weights of a checkpoint, and the best and averaged ones where it has them, are of this model."""
    misfit(wanted, parts["model"], "tensor")
    for name in ("best", "average"):
        if parts.get(name):
            misfit(wanted, parts[name], f"{name} tensor")


class Moments:
    """The state of an optimizer under parameter names, so that it does not depend on how parameters are laid out.

    A flat optimizer keeps one long tensor per moment; here it is cut into the views of its parameters.
    Scalars that every parameter of a group shares (the step count) are stored once per parameter all the same:
    the file then reads the same whichever layout wrote it.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, flat: Flat, elementwise: bool) -> None:
        self.optimizer, self.flat, self.elementwise = optimizer, flat, elementwise

    def _views(self) -> dict[str, Tensor]:
        views: dict[str, Tensor] = {}
        for group, parameter, names in self._owners():
            for moment, value in self.optimizer.state.get(parameter, {}).items():
                if isinstance(value, (int, float)):  # a plain counter becomes a tensor in its place, so it can be copied into
                    value = torch.tensor(float(value), dtype=torch.float64)
                if value is None:
                    continue
                if not isinstance(value, Tensor):
                    raise BadInput(
                        f"state '{moment}' of the optimizer is a {type(value).__name__}, which cannot be saved",
                        fix="use tensors or numbers",
                    )
                if self.elementwise and value.dim() and value.numel() == parameter.numel():
                    views.update({f"{name}.{moment}": part for name, part in self.flat.split(group, value)})
                else:
                    views.update({f"{name}.{moment}": value for name in names})
        return views

    def _owners(self) -> Iterator[tuple[int, Tensor, list[str]]]:
        """(group, what the optimizer holds, names of the model's parameters in it)."""
        for group in self.optimizer.param_groups:
            for position, parameter in enumerate(group["params"]):
                yield group["group"], parameter, group["names"] if self.elementwise else [group["names"][position]]

    def tensors(self) -> dict[str, Tensor]:
        """Every moment by `<parameter>.<moment>`, as views of the live state."""
        return {name: value.detach() for name, value in self._views().items()}

    def _prime(self) -> None:
        """Create the state that the optimizer makes at its first update, without a change of the weights."""
        values = self.flat.values.clone()
        self.flat.grad.zero_()
        self.optimizer.step()
        with torch.no_grad():
            self.flat.values.copy_(values)

    def fits(self, saved: Mapping[str, Tensor]) -> None:
        """Raise DataUnusable unless these are moments of this optimizer."""
        if saved:
            self._prime()
            misfit(self.tensors(), saved, "moment")

    def load_(self, saved: Mapping[str, Tensor]) -> None:
        """Load saved moments; none are those of an optimizer before its first update."""
        if not saved:
            self.optimizer.state.clear()
            return
        self._prime()
        with torch.no_grad():
            for name, value in self._views().items():
                value.copy_(saved[name])
        for _, parameter, names in self._owners():
            for moment, value in self.optimizer.state.get(parameter, {}).items():
                if isinstance(value, (int, float)):
                    self.optimizer.state[parameter][moment] = type(value)(saved[f"{names[0]}.{moment}"].item())


def random_states() -> dict[str, Tensor]:
    """States of the global generators of torch, Python and NumPy, for code that draws from them."""
    version, words, gauss = random.getstate()
    name, keys, position, has_gauss, cached = np.random.get_state()
    return {
        "torch": torch.get_rng_state(),
        "python": torch.tensor([version, *words], dtype=torch.int64),
        "python.gauss": torch.tensor([] if gauss is None else [gauss], dtype=torch.float64),
        "numpy": torch.tensor([*map(int, keys), int(position), int(has_gauss)], dtype=torch.int64),
        "numpy.gauss": torch.tensor([cached], dtype=torch.float64),
    }


def restore_random_states(saved: Mapping[str, Tensor]) -> None:
    _restore(saved, torch.set_rng_state, random.setstate, np.random.set_state)


def misfit_random_states(saved: Mapping[str, Tensor]) -> None:
    """Raise DataUnusable unless `restore_random_states` can take these: they are tried on temporary generators."""
    gauss = saved.get("python.gauss", torch.empty(0))
    misfit({**random_states(), "python.gauss": torch.empty(len(gauss[:1]), dtype=torch.float64)}, saved, "random state")
    try:
        _restore(saved, torch.Generator().set_state, random.Random().setstate, np.random.RandomState().set_state)
    except (ValueError, TypeError, RuntimeError, OverflowError) as error:
        raise DataUnusable(f"a random state cannot be restored: {error}") from error


def _restore(saved: Mapping[str, Tensor], set_torch: Callable, set_python: Callable, set_numpy: Callable) -> None:
    set_torch(saved["torch"])
    words = saved["python"].tolist()
    gauss = saved["python.gauss"].tolist()
    set_python((words[0], tuple(words[1:]), gauss[0] if gauss else None))
    *keys, position, has_gauss = saved["numpy"].tolist()
    if not 0 <= position <= len(keys):  # NumPy does not look, and would read memory that is not its own
        raise ValueError(f"position {position} lies outside the state")
    set_numpy(("MT19937", np.array(keys, dtype=np.uint32), position, has_gauss, float(saved["numpy.gauss"][0])))


def seed_everything(seed: int, *parts: int | str) -> None:
    """Seed the global generators from a key."""
    number = key(seed, *parts)
    torch.manual_seed(number)
    random.seed(number)
    np.random.seed(number % 2**32)
