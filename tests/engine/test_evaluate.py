"""Metrics on held-out data: measures of every objective are told, also of one that never calls the model itself."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import sonde
from sonde.core.batch import Batch, Data
from sonde.core.recipe import Recipe
from sonde.data.tensors import TensorSource
from sonde.engine.evaluate import record_outputs, sums
from sonde.objectives._coder import Coder
from sonde.objectives.contractive import Contractive
from sonde.objectives.elbo import Elbo
from sonde.objectives.gaussian import Gaussian
from sonde.objectives.reconstruction import Reconstruction
from sonde.objectives.sparse import Sparse
from sonde.optim.build import optimizer

X = torch.rand(53, 3, generator=torch.Generator().manual_seed(0))
WEIGHT = torch.rand(53, generator=torch.Generator().manual_seed(1))

OBJECTIVES = {
    "elbo": (Elbo(Gaussian(0.5)), True, {"nll", "kl"}),
    "sparse": (Sparse(l1=0.1), False, {"nll", "l1", "active"}),
    "contractive": (Contractive(0.1), False, {"nll", "contraction"}),
    "reconstruction": (Reconstruction(), False, set()),
}


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_run_tells_how_far_reconstructions_are(name, weighted, tmp_path):
    objective, drawn, terms = OBJECTIVES[name]
    source = TensorSource(X, **({"weight": WEIGHT} if weighted else {}))
    recipe = Recipe(
        model=lambda: Coder(drawn),
        data=Data(source.subset(torch.arange(30)), source.subset(torch.arange(30, 53)), name="points"),
        objective=objective,
        optimizer=optimizer("adam", lr=0.01),
        steps=4,
        evaluate_every=2,
        evaluate_batch_size=10,
        batch_size=15,
    )
    run = sonde.train(recipe, run=tmp_path / "run", threads=1, quiet=True)
    rows = [row for row in run.metrics if "valid/loss" in row]
    expected = {f"valid/{figure}" for figure in {"loss", "squared_error", "absolute_error", *terms}}
    assert len(rows) == 2 and all({key for key in row if key.startswith("valid/")} == expected for row in rows)
    with torch.no_grad():
        each = F.mse_loss(run.model().eval()(X[30:]), X[30:], reduction="none").mean(1)
    share = WEIGHT[30:] if weighted else torch.ones(23)
    assert rows[-1]["valid/squared_error"] == pytest.approx(float((each * share).sum() / share.sum()), rel=1e-5)


def test_the_model_runs_once_more_only_where_its_output_was_not_seen():
    for name, (objective, drawn, _) in OBJECTIVES.items():
        model = Coder(drawn).eval()
        with torch.no_grad(), record_outputs(model) as outputs:
            for _ in range(2):  # the second batch must not be judged by the output of the first
                terms = sums(model, objective, Batch(x=X), outputs)
        assert len(outputs) == 1 and "measure:squared_error" in terms, name
