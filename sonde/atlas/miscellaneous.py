"""Chapter 25, what fits nowhere else: first of all the training loop itself."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..core.batch import Data
from ..core.reading import Table
from ..core.recipe import Recipe
from ..data.order import Order
from ..data.tensors import TensorSource
from ..models.mlp import MLP
from ..objectives.bernoulli import Bernoulli
from ..optim.build import optimizer
from .exhibit import Exhibit

RATE = 0.5
XOR = torch.tensor([[0, 0], [0, 1], [1, 0], [1, 1]]).double(), torch.tensor([0, 1, 1, 0]).double()
FIRST = {
    "dense1.weight": [[0.5, -0.4], [0.3, 0.8]],
    "dense1.bias": [0.1, -0.2],
    "dense2.weight": [[0.7, -0.6]],
    "dense2.bias": [0.05],
}


def misc_01(exhibit: Exhibit) -> str:
    """One step of the engine's loop on a 2-2-1 net, every number compared with the formulas."""
    seen: dict[str, Tensor] = {}
    nets: list[MLP] = []

    def model() -> nn.Module:
        net = MLP((2, 2, 1), activation="sigmoid").double()
        net.layers.load_state_dict({name: _double(numbers) for name, numbers in FIRST.items()})
        for name, layer in net.layers.named_children():
            layer.register_forward_hook(_note(seen, name))
        nets.append(net)
        return net

    data, sgd = Data(TensorSource(*XOR)), optimizer("sgd", lr=RATE)
    run = exhibit.train(
        Recipe(model=model, data=data, objective=Bernoulli(), optimizer=sgd, batch_size=2, steps=1), "one-step", seed=exhibit.seed
    )
    after = {name: parameter.detach() for name, parameter in run.model().layers.named_parameters()}
    gradient = {name: parameter.grad for name, parameter in nets[0].layers.named_parameters()}

    indices = Order(len(XOR[0]), 2, seed=exhibit.seed).at(0)
    want = _by_hand(XOR[0][indices], XOR[1][indices])
    trace = [
        ("0 data", "x", run.data.train[torch.arange(4)].x, [[0, 0], [0, 1], [1, 0], [1, 1]]),
        *(("1 init", name, seen[name], FIRST[name]) for name in FIRST),
        ("2 batch", "x", seen["x"], want["x"]),
        ("3 forward", "z1 = W1 x + b1", seen["dense1"], want["z1"]),
        ("3 forward", "h = s(z1)", seen["sigmoid1"], want["h"]),
        ("3 forward", "z2 = W2 h + b2", seen["dense2"], want["z2"]),
        ("4 loss", "-mean log p(y)", run.metrics[0]["loss"], want["loss"]),
        *(("5 backward", f"d/d {name}", gradient[name], want[f"grad {name}"]) for name in FIRST),
        *(("6 update", name, after[name], want[f"new {name}"]) for name in FIRST),
    ]
    worst = max(exhibit.expect(f"{step}: {name}", measured, target, within=1e-10) for step, name, measured, target in trace)
    columns = {
        "step": [step for step, *_ in trace],
        "what": [name for _, name, *_ in trace],
        "numbers": [_format(measured) for *_, measured, _ in trace],
    }
    note = f"XOR, batch of 2, learning rate {RATE}, net 2-2-1 with sigmoids"
    exhibit.show(Table("One step of training, traced", columns, note=note))
    return f"{len(trace)} numbers and matrices of one step, largest difference to the formulas {worst:.1e}"


def _by_hand(x: Tensor, y: Tensor) -> dict[str, Any]:
    """Forward, loss, backward and update of the 2-2-1 net, from the formulas.  x (B, 2), y (B,)."""
    w1, b1, w2, b2 = (_double(FIRST[name]) for name in FIRST)
    z1 = x @ w1.T + b1
    h = 1 / (1 + (-z1).exp())
    z2 = h @ w2.T + b2
    p = 1 / (1 + (-z2[:, 0]).exp())
    loss = -(y * p.log() + (1 - y) * (1 - p).log()).mean()
    d2 = (p - y)[:, None] / len(y)
    d1 = (d2 @ w2) * h * (1 - h)
    gradients = dict(zip(FIRST, (d1.T @ x, d1.sum(0), d2.T @ h, d2.sum(0)), strict=True))
    moved = {f"new {name}": _double(FIRST[name]) - RATE * gradient for name, gradient in gradients.items()}
    return {"x": x, "z1": z1, "h": h, "z2": z2, "loss": float(loss), **{f"grad {name}": g for name, g in gradients.items()}, **moved}


def _note(seen: dict[str, Tensor], name: str):
    """A hook that keeps a layer's input, output and weights while gradients were being recorded, that is, in training."""

    def hook(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        if torch.is_grad_enabled():
            seen[name] = output.detach().clone()
            seen.update({f"{name}.{part}": parameter.detach().clone() for part, parameter in layer.named_parameters()})
            if name == "dense1":
                seen["x"] = inputs[0].clone()

    return hook


def _double(numbers: Any) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def _format(value: Any) -> str:
    numbers = torch.as_tensor(value)
    rows = numbers.reshape(-1, numbers.shape[-1] if numbers.ndim else 1).tolist()
    return "; ".join(" ".join(f"{number:.6g}" for number in row) for row in rows)
