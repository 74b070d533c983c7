"""A network's tensors <-> one safetensors file under their own names: the layout of torchvision and timm for their networks."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from ...core import files
from ...core.errors import BadInput, ResourceFault
from ...core.tensors import encode
from ._folder import _Files

COUNTER = "num_batches_tracked"
"""missing from older files"""


def load_weights(model: nn.Module, path: str | Path, fresh: tuple[str, ...] = ()) -> nn.Module:
    """Load the tensors of a file into a model; all are checked before the first is changed.

    Args:
        fresh: prefixes of names whose tensors keep their values, whatever the file holds, such as 'fc.' for other classes
    """
    path = Path(path)
    if path.suffix != ".safetensors":
        raise BadInput(
            f"'{path.name}' is not a safetensors file", where=str(path.parent), fix="other formats can run code when they are read"
        )
    stored = _Files._open(path)
    own = {name: part for name, part in model.state_dict().items() if not name.startswith(fresh)}
    tensors: dict[str, Tensor] = {}
    for name in stored:
        if name not in own and not name.startswith(fresh):
            raise _unfit(f"holds '{name}', which the model does not have", path)
    for name, part in own.items():
        if name not in stored:
            if name.endswith(COUNTER):
                continue
            raise _unfit(f"lacks '{name}'", path)
        if stored.shape(name) != tuple(part.shape):
            raise _unfit(f"has '{name}' as {list(stored.shape(name))}, the model as {list(part.shape)}", path)
        if stored.dtype(name).is_floating_point != part.is_floating_point():
            raise _unfit(f"has '{name}' as {str(stored.dtype(name)).removeprefix('torch.')}", path)
        values = stored[name].to(part.dtype)
        if values.is_floating_point() and not bool(values.isfinite().all()):
            raise _unfit(f"has numbers in '{name}' that are not finite", path)
        tensors[name] = values
    with torch.no_grad():
        for name, values in tensors.items():
            own[name].copy_(values)
    return model


def save_weights(model: nn.Module, path: str | Path) -> None:
    """Write a file that `load_weights` and other programs read, atomically."""
    path = Path(path)
    if path.suffix != ".safetensors":
        raise BadInput(f"'{path.name}' does not end with .safetensors", where="save_weights", fix=f"write {path.name}.safetensors")
    try:
        files.make_folder(path.parent)
        files.replace_file(path, b"".join(encode(model.state_dict(), {"format": "pt"})))
    except OSError as error:
        raise ResourceFault(
            f"the weights could not be written: {error.strerror or error}", where=str(path), fix="free disk space"
        ) from error


def _unfit(what: str, path: Path) -> BadInput:
    return BadInput(f"the file {what}", where=str(path), fix="build the model that the file was written for")
