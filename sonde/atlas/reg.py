"""Chapter 9, regularisation and overfitting."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector

from ..core.batch import Batch, Data
from ..core.reading import Reading
from ..core.recipe import Recipe
from ..core.seeds import generator
from ..data.catalogue import load
from ..data.split import class_weights, split
from ..data.tensors import TensorSource
from ..models.mlp import MLP
from ..objectives.categorical import Categorical
from ..objectives.gaussian import Gaussian
from ..optim.build import optimiser
from ._exhibit import Exhibit

SPOILT = """length,width,site,kind
5.1,3.5,1,a
4.9,3.0,1,a
4.9,3.0,1,a
4.7,,1,a
x7,3.1,1,a
5.0,3.6,1,b
5.4,3.9,1,b
4.6,inf,1,b
5.0,3.4,1,
4.4,2.9,1,b
,3.7,1,b
4.8,3.4,1,a
"""


def reg_05(exhibit: Exhibit) -> str:
    """Training pulls one weight from 0 to 1 along w_t = 1 - 0.9^t; validation likes 1/2 best, which step 7 is nearest to."""
    stops, kept, traces = [], [], []
    for patience, every, best, stopped in ((1, 1, 7, 8), (3, 1, 7, 10), (5, 1, 7, 12), (3, 2, 6, 12)):
        run = exhibit.train(_rising(patience, every), f"patience-{patience}-{every}", checkpoint_every=1000)
        told = f"patience {patience}, checked every {'step' if every == 1 else f'{every} steps'}"
        exhibit.expect(f"{told}: last step", run.result["steps"], stopped)
        exhibit.expect(f"{told}: weight that is kept", run.model().weight.item(), 1 - 0.9**best, within=1e-6)
        stops.append(run.result["steps"])
        kept.append(run.result["model_step"])
        traces.append([row["valid/loss"] for row in run.metrics if "valid/loss" in row])
    run = exhibit.train(_rising(0, 1), "no-patience")
    exhibit.expect("without patience: last step", run.result["steps"], 20)
    exhibit.expect("without patience: weight that is kept", run.model().weight.item(), 1 - 0.9**20, within=1e-6)
    exhibit.expect("validation loss at each check", traces[2], [0.5 * (0.5 - 0.9**step) ** 2 for step in range(1, 13)], within=1e-6)
    note = f"stopped at step {stops[2]}, the weights of step {kept[2]} are kept"
    drawn = {"loss": traces[2], "step": list(range(1, 13))}
    exhibit.show(Reading("Validation loss, patience 5", "lines", drawn, axes=["step"], note=note))
    ends, nearest = (", ".join(map(str, steps[:3])) for steps in (stops, kept))
    return f"patience 1, 3, 5 stops at step {ends} and keeps the weights of step {nearest}"


def _rising(patience: int, every: int) -> Recipe:
    def model() -> nn.Module:
        line = nn.Linear(1, 1, bias=False)
        nn.init.zeros_(line.weight)
        return line

    one = torch.ones(1, 1)
    return Recipe(
        model=model,
        data=Data(TensorSource(one, one), valid=TensorSource(one, one / 2)),
        objective=Gaussian(),
        optimiser=optimiser("sgd", lr=0.1),
        batch=1,
        steps=20,
        evaluate_every=every,
        patience=patience,
    )


def reg_07(exhibit: Exhibit) -> str:
    """A spoilt table cleaned by counts, splits without overlap, classes weighed alike, and what wrong labels cost."""
    file = exhibit.folder / "flowers.csv"
    file.write_text(SPOILT, encoding="utf-8")
    report = load(file, missing="drop", drop_duplicates=True, valid=1, test=1).report
    counts = {
        "rows read": 12,
        "duplicate rows dropped": 1,
        "rows without usable target dropped": 1,
        "corrupt cells": 2,
        "missing cells": 2,
        "rows with gaps dropped": 4,
        "rows kept": 6,
        "constant columns left out": "site",
    }
    for name, count in counts.items():
        exhibit.expect(name, report.get(name), count)

    labels = torch.arange(100) % 4
    parts, again, other = (split(100, valid=0.2, test=12, seed=seed, labels=labels) for seed in (7, 7, 8))
    exhibit.expect("sizes of train, valid and test", [len(part) for part in parts], [68, 20, 12])
    exhibit.expect("most parts an index stands in", max(Counter(torch.cat(parts).tolist()).values()), 1)
    exhibit.expect("indices in all parts together", torch.cat(parts).sort().values, torch.arange(100))
    exhibit.expect("examples of each class in valid", labels[parts[1]].bincount(), [5, 5, 5, 5])
    exhibit.expect("the same seed splits alike", torch.cat(again), torch.cat(parts))
    exhibit.above("examples another seed puts elsewhere in test", len(set(other[2].tolist()) - set(parts[2].tolist())), 0)

    gap = max(exhibit.expect(f"{name}: weighted against re-balanced", *pair, within=1e-6) for name, pair in _weighted().items())

    shares, seeds = (0.0, 0.3, 0.6), (0, 1, 2)
    scores = torch.tensor([[_accuracy(exhibit, share, seed) for seed in seeds] for share in shares])
    centre, spread = scores.mean(1), scores.std(1)
    for low, high in ((1, 0), (2, 1)):
        told = f"test accuracy lost from {shares[high]:.0%} to {shares[low]:.0%} wrong labels, against the spread over seeds"
        exhibit.above(told, centre[high] - centre[low], float(spread[[low, high]].max()))
    lines = {f"seed {seed}": scores[:, seed] for seed in seeds}
    exhibit.show(Reading("Test accuracy and wrong training labels", "lines", lines, axes=["share of wrong labels"], extra={"x": shares}))
    exhibit.show(Reading("What cleaning did", "table", {"what": list(report), "count": list(report.values())}))
    told = ", ".join(f"{mean:.3f} +/- {std:.3f}" for mean, std in zip(centre.tolist(), spread.tolist(), strict=True))
    kept = f"{report['rows kept']} of {report['rows read']} rows kept"
    return f"{kept}; weighted loss off by {gap:.1e}; accuracy at 0, 30, 60 % wrong labels {told}"


def _weighted() -> dict[str, tuple[Tensor, Tensor]]:
    """Loss and gradient with class weights on 30, 10 and 5 examples, and without them on 30 of each class."""
    y = torch.tensor([0] * 30 + [1] * 10 + [2] * 5)
    x = torch.randn(45, 4, generator=generator(0, "x"))
    model = MLP((4, 6, 3), activation="tanh")
    copies = torch.tensor([1, 3, 6])[y]
    even = Batch(x=x.repeat_interleave(copies, 0), y=y.repeat_interleave(copies))
    found = []
    for objective, batch in ((Categorical(weights=class_weights(y, 3).tolist()), Batch(x=x, y=y)), (Categorical(3), even)):
        model.zero_grad()
        loss = objective(model, batch).loss()
        loss.backward()
        found.append((loss.detach(), parameters_to_vector([p.grad for p in model.parameters() if p.grad is not None]).clone()))
    return dict(zip(("loss", "gradient"), zip(*found, strict=True), strict=True))


def _accuracy(exhibit: Exhibit, share: float, seed: int) -> float:
    """Test accuracy on digits after training with a share of the training labels moved to another class."""
    data = load("digits", seed=seed)
    assert isinstance(data.train, TensorSource)
    fields = dict(data.train.fields)
    dice = generator(seed, "noise")
    wrong = torch.rand(len(data.train), generator=dice) < share
    moved = (fields["y"] + torch.randint(1, 10, fields["y"].shape, generator=dice)) % 10
    fields["y"] = torch.where(wrong, moved, fields["y"])
    recipe = Recipe(
        model=lambda: MLP((64, 48, 10)),
        data=replace(data, train=TensorSource(to_float=data.train.to_float, **fields), valid=None),
        objective=Categorical(classes=10),
        optimiser=optimiser("adam", lr=3e-3),
        batch=64,
        steps=200,
    )
    run = exhibit.train(recipe, f"noise-{share}-{seed}", seed=seed, checkpoint_every=200)
    return run.result["figures"]["test/accuracy"]
