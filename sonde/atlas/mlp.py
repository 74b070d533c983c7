"""Chapter 4, multi-layer perceptrons and what they can express."""

from __future__ import annotations

import torch
from torch import Tensor

from ..core.reading import Reading
from ..models.mlp import MLP
from ._exhibit import Exhibit


def mlp_03(exhibit: Exhibit) -> str:
    """Parameter counts of shallow and deep nets, and two outputs that bend at the same places."""
    worked: dict[tuple[int, ...], int] = {(2, 3, 1): 13, (1, 3, 1): 10, (1, 3, 2): 14, (5, 11, 7): 150}
    counts = {widths: _count(widths) for widths in worked}
    for widths, count in counts.items():
        exhibit.expect(f"parameters of {widths}", count, worked[widths])
    formula = [hidden * (inputs + 1) + outputs * (hidden + 1) for inputs, hidden, outputs in worked]
    exhibit.expect("D(D_i+1) + D_o(D+1) for each", formula, list(counts.values()))
    deep = (5, 7, 4, 6, 2)
    counts[deep] = _count(deep)
    exhibit.expect(f"parameters of {deep}: 6*7 + 8*4 + 5*6 + 7*2", counts[deep], 118)

    model = MLP((1, 3, 2)).double()
    slopes, shifts = torch.tensor([1.0, -2.0, 0.5]), torch.tensor([1.25, 1.0, -0.875])
    model.load_state_dict({**model.state_dict(), "layers.dense1.weight": slopes[:, None], "layers.dense1.bias": shifts})
    x = torch.arange(-3 * 64, 3 * 64 + 1).double() / 64
    with torch.no_grad():
        y = model(x[:, None])
    joints = [_bends(x, y[:, output]) for output in (0, 1)]
    for output, measured in zip(("first", "second"), joints, strict=True):
        exhibit.expect(f"joints of the {output} output, at -th_d0/th_d1", measured, (-shifts / slopes).sort().values, within=1e-12)
    exhibit.above("the outputs themselves differ", (y[:, 0] - y[:, 1]).abs().max(), 0.1)
    lines = {"first output": y[:, 0], "second output": y[:, 1]}
    exhibit.show(Reading("Two outputs of one hidden layer bend together", "lines", lines, axes=["x"], extra={"x": x}))
    columns = {"widths": ["-".join(map(str, widths)) for widths in counts], "parameters": list(counts.values())}
    exhibit.show(Reading("Parameters", "table", columns))
    told = ", ".join(map(str, counts.values()))
    return f"{told} parameters; both outputs bend at {', '.join(f'{joint:g}' for joint in joints[1].tolist())}"


def _count(widths: tuple[int, ...]) -> int:
    return sum(parameter.numel() for parameter in MLP(widths).parameters())


def _bends(x: Tensor, y: Tensor) -> Tensor:
    """Where a piecewise linear curve changes its slope: the points with a second difference."""
    return x[1:-1][y.diff(n=2).abs() > 1e-9]
