"""Contrastive likelihood: the transformers package's loss, sums written out, groups, repeated texts, and errors."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from sonde.core.batch import Batch
from sonde.core.errors import BadInput
from sonde.objectives.contrastive import Contrastive, tiny


class FixedVectors(nn.Module):
    """Vectors and a factor as they are."""

    def __init__(self, n: int = 6, size: int = 5) -> None:
        super().__init__()
        rng = torch.Generator().manual_seed(0)
        self.vectors = nn.ParameterDict(
            {name: nn.Parameter(torch.randn(n, size, generator=rng, dtype=torch.float64)) for name in ("image", "text")}
        )
        self.scale = nn.Parameter(torch.tensor(2.5, dtype=torch.float64))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        ids = x.long()
        unit = {name: v[ids] / v[ids].norm(dim=1, keepdim=True) for name, v in self.vectors.items()}
        return {**unit, "scale": self.scale}


def by_loops(output: dict[str, Tensor], compared) -> Tensor:
    """1/2 sum over pairs of both directions, the wrong answers of i being all j with compared(i, j)."""
    total = torch.zeros((), dtype=torch.float64)
    n = len(output["image"])
    for first, second in (("image", "text"), ("text", "image")):
        for i in range(n):
            own = output["scale"] * (output[first][i] * output[second][i]).sum()
            rest = [output["scale"] * (output[first][i] * output[second][j]).sum() for j in range(n) if j != i and compared(i, j)]
            total = total - 0.5 * (own - torch.stack([own, *rest]).exp().sum().log())
    return total


def same(actual: Tensor, expected: Tensor, model: nn.Module) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)
    grads = [torch.autograd.grad(value, list(model.parameters()), retain_graph=True) for value in (actual, expected)]
    for ours, theirs in zip(*grads, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


def test_the_loss_of_the_transformers_package():
    clip = pytest.importorskip("transformers.models.clip.modeling_clip")
    model, batch = FixedVectors(), Batch(x=torch.arange(6))
    output = model(batch.x)
    term = Contrastive()(model, batch)["nll"]
    scores = output["scale"] * output["text"] @ output["image"].mT
    same(term.sum / term.count, clip.image_text_contrastive_loss(scores), model)


def test_against_loops():
    model, batch = FixedVectors(), Batch(x=torch.arange(6), text=torch.tensor([[1, 2], [3, 4], [1, 2], [5, 2], [1, 4], [1, 2]]))
    output, alike = model(batch.x), [(0, 2), (0, 5), (2, 5)]
    same(Contrastive()(model, batch)["nll"].sum, by_loops(output, lambda i, j: True), model)
    same(Contrastive(group=4)(model, batch)["nll"].sum, by_loops(output, lambda i, j: i // 4 == j // 4), model)
    loss = Contrastive(same="text")(model, batch)["nll"].sum
    same(loss, by_loops(output, lambda i, j: (min(i, j), max(i, j)) not in alike), model)
    both = Contrastive(group=3, same="text")(model, batch)["nll"].sum
    same(both, by_loops(output, lambda i, j: i // 3 == j // 3 and (min(i, j), max(i, j)) not in alike), model)
    names = torch.tensor([7, 8, 7, 9, 7, 8])
    grouped = Contrastive()(model, batch.replace(group=names))["nll"].sum
    same(grouped, by_loops(output, lambda i, j: bool(names[i] == names[j])), model)


def test_a_batch_cut_at_multiples_of_a_group_keeps_its_loss():
    model, batch = FixedVectors(12), Batch(x=torch.arange(12))
    objective = Contrastive(group=4)
    whole, parts = objective(model, batch), objective(model, batch[:8]) + objective(model, batch[8:])
    torch.testing.assert_close(parts["nll"].sum, whole["nll"].sum, rtol=1e-12, atol=1e-12)
    assert parts.counts() == whole.counts() == {"nll": 12.0}
    cut = Contrastive()(model, batch[:8]) + Contrastive()(model, batch[8:])
    assert float((cut["nll"].sum - Contrastive()(model, batch)["nll"].sum).detach().abs()) > 0.1  # and without groups it does not


def test_begins_at_log_n_and_ends_at_0():
    model, batch = FixedVectors(6, 6), Batch(x=torch.arange(6))
    with torch.no_grad():
        model.scale.zero_()
        assert float(Contrastive()(model, batch).loss()) == pytest.approx(math.log(6), rel=1e-12)
        for vectors in model.vectors.values():
            vectors.copy_(torch.eye(6))
        model.scale.fill_(100)
        assert float(Contrastive()(model, batch).loss()) < 1e-12
        assert Contrastive().measures(model(batch.x), batch).means() == {"texts_found": 1.0, "images_found": 1.0}


def test_measures_count_what_is_found_in_each_direction():
    vectors = torch.eye(3, dtype=torch.float64)
    output = {"image": vectors[[0, 1, 1]], "text": vectors, "scale": torch.tensor(1.0, dtype=torch.float64)}
    measures = Contrastive().measures(output, Batch(x=torch.arange(3))).means()
    assert measures["texts_found"] == pytest.approx(2 / 3) and measures["images_found"] == pytest.approx(2 / 3)
    chances = Contrastive().predict(output)
    torch.testing.assert_close(chances.sum(1), torch.ones(3, dtype=torch.float64))
    assert chances[2].argmax() == 1


def test_errors():
    objective, model, batch = tiny()
    with pytest.raises(BadInput, match="no field 'txt'"):
        Contrastive(same="txt").check(batch)
    with pytest.raises(BadInput, match="gives 'image', 'text' and 'scale'"):
        objective(nn.Linear(6, 2), batch)
    with pytest.raises(BadInput, match=r"images become \(2, 3\) and texts \(2, 4\)"):
        objective.terms({"image": torch.ones(2, 3), "text": torch.ones(2, 4), "scale": torch.ones(())}, batch[:2])
