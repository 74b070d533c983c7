"""Optimizers by name: all of torch.optim, and the rules of `sonde.optim.rules` that torch lacks."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, final

import torch
from torch import Tensor

from ..core import registry
from ..core.errors import BadInput, nearest
from ..core.options import Range
from ._mixed import MuonAdamW

_REFUSED = {
    "lbfgs": "it evaluates the loss several times per step, and a step here is one evaluation",
    "sparseadam": "it takes sparse gradients only",
    "newton": "it needs the loss as a function of the weights; in Python see sonde.optim.newton",
    "descent": "a line search evaluates the loss several times per step; in Python see sonde.optim.line_search",
}
_SWITCHES = {"sgd": ("ema", True, "emasgd"), "adam": ("bias_correction", False, "rawadam")}
"""options that torch lacks: the name, the setting that differs from torch, and the rule of ours that has it"""
_FUSED = ("adam", "adamw", "sgd", "adagrad")
"""torch has a one-pass kernel for these on a CPU"""
_WHOLE = ("muon", "adafactor")
"""rules in which entries of a tensor look at each other"""
_SPARED = ("skip", "turn", "share", "now", "sigma")
"""parameters of mixers that weigh or turn each channel by itself: like the gain of a norm, they are at home elsewhere than at 0"""
_SHARE = Range(least=0, below=1)
_RANGES = {"betas": _SHARE, "momentum": _SHARE, "alpha": _SHARE, "rho": _SHARE, "eps": Range(least=0), "dampening": Range(least=0, most=1)}


@final
@dataclass(frozen=True)
class Optimizer:
    """A rule with its settings, ready to be given parameters."""

    name: str
    lr: float
    weight_decay: float = 0.0
    decay_all: bool = False
    """let weight decay act on biases, norms, logarithms and channel weights too"""
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def elementwise(self) -> bool:
        """True if no entry of a tensor looks at another, so parameters may share one flat buffer."""
        return self.name not in _WHOLE and getattr(_rule(self.name), "elementwise", True)

    def decays(self, name: str, parameter: Tensor) -> bool:
        """Whether weight decay acts on a parameter: on weights of linear maps and embeddings.

        Not on biases and norms, which have fewer than two axes; nor, whatever their axes, on what is a logarithm by its
        name (`log_rate`: 0 is a rate of one, not of none) or a weight of each channel by itself (`skip`).
        """
        own = name.rpartition(".")[2]
        spared = parameter.ndim < 2 or own.startswith("log_") or own in _SPARED
        return self.weight_decay > 0 and (self.decay_all or not spared)

    def build(self, groups: Sequence[dict[str, Any]]) -> torch.optim.Optimizer:
        """The torch optimizer for groups `{"params": [...], "weight_decay": ..., "names": [...]}`."""
        rule = _rule(self.name)
        options = dict(self.options)
        if self.name in _FUSED and all(p.is_floating_point() for group in groups for p in group["params"]):
            options.setdefault("fused", not options.get("foreach"))
        return rule(groups, lr=self.lr, **options)


def optimizer(name: str, lr: float, weight_decay: float = 0.0, decay_all: bool = False, **options: Any) -> Optimizer:
    """An optimizer by name, with checked settings: `optimizer("adamw", lr=1e-3, weight_decay=0.01, betas=(0.9, 0.95))`.

    Weight decay is 0 unless given, also where torch has another default, and leaves biases and norms alone, and the rates
    and channel weights of mixers (see `Optimizer.decays`).
    """
    if str(name) in _REFUSED:
        raise BadInput(f"optimizer '{name}' cannot be used: {_REFUSED[name]}", fix="'adamw' is a good start")
    name, options = _switched(name, options)
    known = _options(_rule(name)) + [switch for rule, (switch, _, _) in _SWITCHES.items() if rule == name]
    for option in options:
        if option not in known:
            raise BadInput(f"optimizer '{name}' has no option '{option}'", fix=nearest(option, known))
    _number("lr", lr, Range(above=0), name)
    _number("weight_decay", weight_decay, Range(least=0), name)
    if weight_decay and "weight_decay" not in inspect.signature(_torch_rule(name)).parameters:
        raise BadInput(f"optimizer '{name}' has no weight decay", fix="leave weight_decay at 0")
    for option, value in options.items():
        if option == "betas" and not (isinstance(value, (tuple, list)) and len(value) == 2):
            raise BadInput(f"'betas' of optimizer '{name}' must be two numbers, not {value!r}")
        if option in _RANGES:
            for number in value if isinstance(value, (tuple, list)) else (value,):
                if number is not None:  # Adafactor's way to say "by the dtype"
                    _number(option, number, _RANGES[option], name)
    settings = Optimizer(name, float(lr), float(weight_decay), bool(decay_all), options)
    try:  # torch checks what is left, such as a Nesterov step without momentum, when it is given parameters
        settings.build([{"params": [torch.zeros(2, 2, requires_grad=True)], "weight_decay": settings.weight_decay, "names": ["trial"]}])
    except BadInput:
        raise
    except (ValueError, TypeError, RuntimeError, AttributeError) as error:
        raise BadInput(f"optimizer '{name}' refuses its settings: {error}", fix=f"its options are {', '.join(known)}") from error
    return settings


def _switched(name: str, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The rule a switch stands for: 'emasgd' for 'sgd' with ema=True, 'rawadam' for 'adam' with bias_correction=False."""
    switch, setting, other = _SWITCHES.get(str(name), ("", None, ""))
    if switch not in options:
        return name, options
    if not isinstance(options[switch], bool):
        raise BadInput(f"'{switch}' of optimizer '{name}' must be True or False, not {options[switch]!r}")
    rest = {option: value for option, value in options.items() if option != switch}
    return other if options[switch] is setting else name, rest


def names() -> list[str]:
    """Names that `optimizer` takes."""
    return sorted({*_torch_rules(), *registry.names("optim.rules")} - set(_REFUSED))


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
    kinds = vars(registry.load("optim.rules", name)).values()
    return next(kind for kind in kinds if inspect.isclass(kind) and kind.__module__ == f"sonde.optim.rules.{name}")


def _rule(name: str) -> Callable[..., torch.optim.Optimizer]:
    return MuonAdamW if name == "muon" else _torch_rule(name)


def _options(rule: Callable) -> list[str]:
    own = list(inspect.signature(rule).parameters)
    if rule is MuonAdamW:
        own += list(inspect.signature(torch.optim.Muon).parameters)
    return sorted(set(own) - {"params", "groups", "options", "lr", "weight_decay", "differentiable", "capturable"})


def _number(what: str, value: Any, bounds: Range, name: str) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or not bounds.holds(value):
        raise BadInput(f"'{what}' of optimizer '{name}' must be a number {bounds}, not {value!r}")
