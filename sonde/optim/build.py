"""Optimizers by name: all of torch.optim, and the rules of `sonde.optim.rules` that torch lacks."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, final

import torch
from torch import Tensor, nn

from ..core import registry
from ..core.errors import BadInput, nearest
from ..core.options import Option, Range, check_names, checked
from . import known
from ._mixed import MuonAdamW

_TORCH_OPTIONS = {
    "betas": (tuple[float, float], Range(0, below=1)),
    "momentum": (float, Range(0, below=1)),
    "alpha": (float, Range(0, below=1)),
    "rho": (float, Range(0, below=1)),
    "eps": (float | tuple | list, Range(0)),  # Adafactor has two, and None among them
    "dampening": (float, Range(0, 1)),
}
"""options of torch's optimizers: type and range"""


@final
@dataclass(frozen=True)
class Optimizer:
    """An update rule with its settings; `build` makes the torch optimizer of given parameters."""

    name: str
    lr: float
    weight_decay: float = 0.0
    decay_all: bool = False
    """let weight decay act on biases, norms, logarithms and channel weights too"""
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def elementwise(self) -> bool:
        """True if the update of an entry does not depend on other entries, so parameters may share one flat buffer."""
        return _rule_attribute(self.name, "elementwise", known.WHOLE, True)

    @property
    def linear_in_lr(self) -> bool:
        """True if a step is proportional to the learning rate."""
        return _rule_attribute(self.name, "linear_in_lr", known.LINEAR, False)

    def decays(self, name: str, parameter: Tensor, owner: nn.Module | None = None) -> bool:
        """Whether weight decay acts on a parameter of a module: on weights of linear maps and embeddings.

        Not on biases and norms, which have fewer than two axes; and not on parameters that their
        module declares in `no_decay`, such as the logarithm of a rate (0 is a rate of one, not of none).
        """
        exempt = parameter.ndim < 2 or name.rpartition(".")[2] in getattr(owner, "no_decay", ())
        return self.weight_decay > 0 and (self.decay_all or not exempt)

    def build(self, groups: Sequence[dict[str, Any]]) -> torch.optim.Optimizer:
        """The torch optimizer for groups `{"params": [...], "weight_decay": ..., "names": [...]}`."""
        rule = _rule(self.name)
        options = dict(self.options)
        if self.name in known.FUSED and all(p.is_floating_point() for group in groups for p in group["params"]):
            options.setdefault("fused", not options.get("foreach"))
        return rule(groups, lr=self.lr, **options)


@checked
def optimizer(
    name: str, lr: Annotated[float, Range(above=0)], weight_decay: Annotated[float, Range(0)] = 0.0, decay_all: bool = False, **options: Any
) -> Optimizer:
    """An optimizer by name, with checked settings: `optimizer("adamw", lr=1e-3, weight_decay=0.01, betas=(0.9, 0.95))`.

    Weight decay is 0 unless given, also where torch has another default, and leaves biases and norms alone, and the rates
    and channel weights of mixers (see `Optimizer.decays`).
    """
    if str(name) in known.REFUSED:
        raise BadInput(f"optimizer '{name}' cannot be used: {known.REFUSED[name]}", fix="use another, such as 'adamw'")
    name, options = _switch_rule(name, options)
    settable = _options(_rule(name)) + ([_switches()[name][0]] if name in _switches() else [])
    check_names(options, settable, f"optimizer '{name}'")
    if weight_decay and "weight_decay" not in inspect.signature(_torch_rule(name)).parameters:
        raise BadInput(f"optimizer '{name}' has no weight decay", fix="leave weight_decay at 0")
    if name in _torch_rules():  # ours check themselves
        for option, value in options.items():
            if option in _TORCH_OPTIONS:
                _check(option, value, *_TORCH_OPTIONS[option], name)
    settings = Optimizer(name, float(lr), float(weight_decay), bool(decay_all), options)
    try:  # torch checks the rest, such as Nesterov without momentum, when it gets parameters
        settings.build([{"params": [torch.zeros(2, 2, requires_grad=True)], "weight_decay": settings.weight_decay, "names": ["trial"]}])
    except BadInput:
        raise
    except (ValueError, TypeError, RuntimeError, AttributeError) as error:
        raise BadInput(f"invalid settings for optimizer '{name}': {error}", fix=f"its options are {', '.join(settable)}") from error
    return settings


@functools.cache
def _switches() -> dict[str, tuple[str, bool, str]]:
    """Options that a rule of torch lacks and one of ours has: rule of torch -> option, its setting for ours, and our rule."""
    declared = {name: getattr(_torch_rule(name), "also", None) for name in registry.names("optim.rules")}
    return {also[0]: (*also[1:], name) for name, also in declared.items() if also}


def _rule_attribute(name: str, what: str, exceptions: Sequence[str], default: bool) -> bool:
    """An attribute of the class of one of our rules; for torch's rules the default, negated for the exceptions."""
    if name in _torch_rules():
        return default != (name in exceptions)
    return bool(getattr(_rule(name), what, default))


def _switch_rule(name: str, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The rule a switch stands for: 'emasgd' for 'sgd' with ema=True, 'rawadam' for 'adam' with bias_correction=False."""
    switch, setting, other = _switches().get(str(name), ("", None, ""))
    if switch not in options:
        return name, options
    _check(switch, options[switch], bool, None, name)
    rest = {option: value for option, value in options.items() if option != switch}
    return other if options[switch] is setting else name, rest


def names() -> list[str]:
    """Names that `optimizer` takes."""
    return sorted({*_torch_rules(), *registry.names("optim.rules")} - set(known.REFUSED))


@functools.cache
def _torch_rules() -> dict[str, type]:
    kinds = (kind for kind in vars(torch.optim).values() if inspect.isclass(kind))
    return {kind.__name__.lower(): kind for kind in kinds if issubclass(kind, torch.optim.Optimizer) and kind is not torch.optim.Optimizer}


def _torch_rule(name: str) -> type:
    """The class whose signature lists the options."""
    if name not in names():
        raise BadInput(f"no optimizer '{name}'", fix=nearest(name, names()))
    if name in _torch_rules():
        return _torch_rules()[name]
    return registry.class_of("optim.rules", name, torch.optim.Optimizer)


def _rule(name: str) -> Callable[..., torch.optim.Optimizer]:
    return MuonAdamW if name == "muon" else _torch_rule(name)


def _options(rule: Callable) -> list[str]:
    own = list(inspect.signature(rule).parameters)
    if rule is MuonAdamW:
        own += list(inspect.signature(torch.optim.Muon).parameters)
    return sorted(set(own) - {"params", "groups", "options", "lr", "weight_decay", "differentiable", "capturable"})


def _check(option: str, value: Any, kind: Any, bounds: Range | None, name: str) -> None:
    Option(option, kind, None, bounds, owner=f"optimizer '{name}'", noun="argument").check(value)
