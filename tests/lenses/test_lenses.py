"""What each lens says, against scikit-learn, numbers worked by hand, and networks made to fail in a known way."""

from __future__ import annotations

import math

import pytest
import torch
from sklearn import metrics
from torch import nn

from sonde.core.batch import Batch, Data
from sonde.core.errors import BadInput
from sonde.core.reading import Subject
from sonde.core.terms import Terms
from sonde.lenses import confusion, curves, filters, gradient_norms, mistakes, residuals, summary
from sonde.lenses.tools.tiny import images, values


class FixedAnswers(nn.Module):
    """A model that answers what it was told."""

    def __init__(self, output: torch.Tensor) -> None:
        super().__init__()
        self.output = nn.Parameter(output)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.output[x.long().flatten()]


class Squares:
    """Half the squared error."""

    def __call__(self, model: nn.Module, batch: Batch) -> Terms:
        return Terms(nll=(0.5 * (model(batch.x) - batch.y).square().sum(), len(batch)))


def classifier(n: int = 700, k: int = 6) -> Subject:
    """Random scores for more examples than one chunk; class 4 is never true, class 2 never predicted."""
    y = torch.randint(0, k, (n,))
    y[y == 4] = 1
    scores = torch.randn(n, k) + 2 * nn.functional.one_hot(y, k)
    scores[:, 2] = -9
    data = Data(train=[], task="classes", classes=("a", "b", "c"))
    return Subject(FixedAnswers(scores), Batch(x=torch.arange(n).float(), y=y), None, data)


def test_confusion_equals_scikit_learn() -> None:
    subject = classifier()
    y, predictions = subject.batch.y.numpy(), subject.model.output.detach().argmax(-1).numpy()
    matrix, table = confusion.read(subject)
    assert matrix.values["examples"] == metrics.confusion_matrix(y, predictions, labels=range(6)).tolist()
    precision, recall, f1, support = metrics.precision_recall_fscore_support(y, predictions, labels=range(6), zero_division=math.nan)
    for name, expected in (("precision", precision), ("recall", recall), ("F1", f1)):
        scores = [math.nan if value is None else value for value in table.values[name]]
        assert scores == pytest.approx(expected.tolist(), nan_ok=True, abs=1e-12)
    assert table.values["examples"] == support.tolist()
    assert table.values["class"] == ["a", "b", "c", "3", "4", "5"]
    assert f"{(y == predictions).sum()} of 700 correct" in matrix.note
    assert table.values["precision"][2] is None and table.values["recall"][4] is None


def test_confusion_of_one_probability_masks_and_sequences() -> None:
    two = Subject(
        FixedAnswers(torch.tensor([0.2, 0.6, 0.9])),
        Batch(x=torch.arange(3.0), y=torch.tensor([[0.0], [1.0], [0.0]])),
        None,
        Data([], task="classes"),
    )
    assert confusion.read(two)[0].values["examples"] == [[1, 1], [0, 1]]
    scores = torch.tensor([[[3.0, 0, 0], [0, 2, 0]], [[0, 0, 5], [1, 0, 0]]])
    batch = Batch(x=torch.arange(2.0), y=torch.tensor([[0, 2], [2, -100]]), mask=torch.tensor([[True, True], [True, True]]))
    assert confusion.read(Subject(FixedAnswers(scores), batch))[0].values["positions"] == [[1, 0, 0], [0, 0, 0], [0, 1, 1]]
    batch = batch.replace(mask=torch.tensor([True, False]))
    assert confusion.read(Subject(FixedAnswers(scores), batch))[0].values["positions"] == [[1, 0, 0], [0, 0, 0], [0, 1, 0]]


def test_a_model_of_the_examples_themselves_is_no_classifier_of_their_labels() -> None:
    from sonde.recipes.tools.samples import load_unlabeled

    data = load_unlabeled("digits", 0)
    subject = Subject(FixedAnswers(torch.rand(5)), data.train[:5], None, data)
    for lens in (confusion, mistakes):
        assert "the target is 'examples', not classes" in lens.why_not(subject)


def test_outputs_that_do_not_fit_the_labels_are_named() -> None:
    with pytest.raises(BadInput, match=r"outputs \(2, 2, 3\) for labels \(2,\)"):
        confusion.read(Subject(FixedAnswers(torch.zeros(2, 2, 3)), Batch(x=torch.arange(2.0), y=torch.tensor([0, 1]))))


def test_residuals_equal_scikit_learn() -> None:
    y = torch.randn(613, 2, dtype=torch.float64) * torch.tensor([1.0, 7.0])
    guess = y + torch.randn(613, 2)
    scatter, histogram = residuals.read(Subject(FixedAnswers(guess), Batch(x=torch.arange(613.0), y=y)), bins=17)
    assert scatter.results["r2"] == pytest.approx(metrics.r2_score(y.numpy(), guess.numpy()), abs=1e-9)
    assert scatter.results["rmse"] == pytest.approx(metrics.mean_squared_error(y.numpy(), guess.numpy()) ** 0.5, abs=1e-9)
    assert scatter.results["mae"] == pytest.approx(metrics.mean_absolute_error(y.numpy(), guess.numpy()), abs=1e-9)
    import numpy as np

    edges = np.array(histogram.edges)
    counts, _ = np.histogram((y.double() - guess.double()).numpy(), bins=edges)
    assert histogram.values["examples"] == counts.tolist() and sum(counts) == 1226
    assert edges[0] == -edges[-1]


def test_residuals_of_constant_targets_and_masks() -> None:
    flat = Subject(FixedAnswers(torch.zeros(4, 1)), Batch(x=torch.arange(4.0), y=torch.ones(4, 1)))
    assert residuals.read(flat)[0].results["r2"] is None and "undefined" in residuals.read(flat)[0].note
    batch = Batch(x=torch.arange(3.0), y=torch.tensor([[1.0], [3.0], [99.0]]), mask=torch.tensor([True, True, False]))
    reading = residuals.read(Subject(FixedAnswers(torch.tensor([[2.0], [3.0], [0.0]])), batch))[0]
    assert reading.results["mae"] == 0.5 and reading.results["r2"] == 0.5 and len(reading.values["true"]) == 2
    with pytest.raises(BadInput, match="outputs 2 numbers for 1 targets"):
        residuals.read(Subject(FixedAnswers(torch.zeros(4, 2)), Batch(x=torch.arange(4.0), y=torch.ones(4, 1))))


def test_gradient_norms_by_hand() -> None:
    """y = b a x with x = 3, a = 2, b = 5, target 0: dL/da = y b x = 30 * 15, dL/db = y a x = 30 * 6."""
    net = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False))
    net[0].weight.data.fill_(2.0)
    net[1].weight.data.fill_(5.0)
    reading = gradient_norms.read(Subject(net, Batch(x=torch.tensor([[3.0]]), y=torch.zeros(1, 1)), Squares()))
    assert reading.values["gradient norm"] == [450.0, 180.0]
    assert reading.values["weight norm"] == [2.0, 5.0]
    assert reading.values["gradient / weight"] == [225.0, 36.0]
    assert reading.labels == ["0 Linear", "1 Linear"] and reading.results["loss"] == 450.0
    assert "Neither" in reading.note


def test_gradient_norms_equal_a_backward_pass() -> None:
    subject = images()
    reading = gradient_norms.read(subject)
    subject.model.eval()
    subject.objective(subject.model, subject.batch).loss().backward()
    expected = [nn.utils.get_total_norm([p.grad for p in subject.model[i].parameters()]).item() for i in (0, 1, 6)]
    assert reading.values["gradient norm"] == pytest.approx(expected, rel=1e-6)


def deep(activation: type[nn.Module], gain: float, depth: int = 24) -> Subject:
    torch.manual_seed(0)
    layers = [module for _ in range(depth) for module in (nn.Linear(16, 16), activation())]
    for layer in layers[::2]:
        nn.init.normal_(layer.weight, std=gain / 4)
    return Subject(nn.Sequential(*layers, nn.Linear(16, 1)), Batch(x=torch.randn(8, 16), y=torch.randn(8, 1)), Squares())


class Sine(nn.Module):
    """Bounded forward, so that a gradient which grows backwards is not made up for by activations that grow forwards."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sin()


def test_vanishing_and_exploding_are_named() -> None:
    note = gradient_norms.read(deep(nn.Sigmoid, 1.0)).note
    assert note.startswith("Vanishing: in 0 Linear") and "Exploding" not in note
    note = gradient_norms.read(deep(Sine, 4.0)).note
    assert "Exploding: in 0 Linear" in note and "than in the last layer" in note and "Vanishing" not in note
    note = gradient_norms.read(deep(nn.Identity, 4.0)).note
    assert "Exploding: in 0 Linear" in note and "than the weights" in note
    assert gradient_norms.read(deep(nn.Identity, 1.0)).note.startswith("Neither")
    broken = deep(nn.Identity, 1.0)
    broken.model[4].weight.data[0, 0] = math.inf
    assert gradient_norms.read(broken).note.startswith("Exploding: the gradient is not finite")


def test_gradient_norms_name_silent_layers_and_refuse_frozen_models() -> None:
    subject = values()
    subject.model[2].weight.data.zero_()
    assert "No gradient reaches 0 Linear." in gradient_norms.read(subject).note
    with torch.inference_mode():
        gradient_norms.read(values())  # works wherever it is called from
    subject.model.requires_grad_(False)
    with pytest.raises(BadInput, match="no parameter is trainable; try "):
        gradient_norms.read(subject)


def test_mistakes_are_the_wrong_ones_most_confident_first() -> None:
    subject = images()
    reading = mistakes.read(subject, n=5)
    p = subject.model.eval()(subject.batch.x).softmax(-1)
    wrong = (p.argmax(-1) != subject.batch.y).nonzero().flatten()
    order = wrong[p.amax(-1)[wrong].argsort(descending=True)][:5]
    assert reading.results["ids"] == subject.batch.ids[order].tolist()
    names = subject.data.classes
    assert reading.labels[0] == f"predicted {names[p[order[0]].argmax()]}"
    assert reading.details[0] == f"true {names[subject.batch.y[order[0]]]} ({100 * p[order[0]].max():.0f} %)"
    first = torch.tensor(reading.values["images"][0])
    assert first.shape == (8, 6) and first.min() == 0 and first.max() == 1
    assert f"{len(wrong)} of 23" in reading.note


def test_no_mistakes_is_a_reading_too(tmp_path) -> None:
    from sonde.report.draw import draw

    subject = images()
    subject.batch = subject.batch.replace(y=subject.model.eval()(subject.batch.x).argmax(-1))
    reading = mistakes.read(subject)
    assert reading.note == "0 of 23 examples are misclassified." and draw(reading, tmp_path / "a.png").exists()


def test_filters_scale_zero_to_gray_and_keep_color() -> None:
    net = nn.Sequential(nn.Conv2d(3, 5, (2, 4)))
    reading = filters.read(Subject(net, None), n=4)
    pictures = torch.tensor(reading.values["images"])
    assert pictures.shape == (4, 2, 4, 3)
    weight = net[0].weight.detach()[:4].permute(0, 2, 3, 1)
    back = (pictures - 0.5) * 2 * weight.flatten(1).abs().amax(1).reshape(-1, 1, 1, 1)
    assert torch.allclose(back, weight, atol=1e-6)
    assert torch.tensor(filters.read(Subject(nn.Conv2d(7, 2, 3), None)).values["images"]).shape == (2, 3, 3)
    with pytest.raises(BadInput, match="1 × 1"):
        filters.read(Subject(nn.Conv2d(7, 2, 1), None))


@pytest.mark.parametrize(
    "lens, options",
    [
        (mistakes, {"n": 0}),
        (filters, {"n": -1}),
        (residuals, {"bins": 0}),
        (gradient_norms, {"factor": 1.0}),
        (gradient_norms, {"factor": math.nan}),
    ],
)
def test_options_out_of_range_are_refused(lens, options) -> None:
    with pytest.raises(BadInput, match=f"option '{next(iter(options))}' of lens"):
        lens.read(lens.tiny(), **options)


ROWS = [
    {"step": 1, "epoch": 0.1, "lr": 0.1, "loss": 40.0, "grad_norm": 2.0},
    {"step": 2, "epoch": 0.2, "valid/loss": 3.0, "valid/nll": 3.0, "valid/accuracy": 0.25},
    {"step": 3, "epoch": 0.3, "lr": 0.05, "loss": None, "grad_norm": 1.0, "junk": "text", "list": [1]},
    {"step": 4, "epoch": 0.4, "valid/loss": 5.0, "valid/nll": 5.0, "valid/accuracy": 0.75},
    {"step": 4, "epoch": 0.4, "test/loss": 4.0, "test/accuracy": 0.5, "model_step": 2},
]


def test_a_panel_keeps_the_colors_it_is_given() -> None:
    """Runs side by side: the third run has the third color also where it is the only one with a figure."""
    line = ([1.0, 2.0], [0.5, 0.4])
    own, custom = curves.panel("valid/loss", {"valid": line}), curves.panel("valid/f1", {"c": line}, {"a": 0, "b": 1, "c": 2})
    assert custom.colors["c"] == 2 and own.colors["valid"] == curves.COLORS["valid"]


def test_curves_share_a_panel_by_figure() -> None:
    panels = {each.axes[1]: each for each in curves.read(Subject(None, None, metrics=ROWS))}
    assert list(panels) == ["loss", "accuracy", "lr", "grad_norm"]
    assert panels["loss"].x == {"train": [1, 3], "valid": [2, 4]}
    assert panels["loss"].values["train"][0] == 40.0 and math.isnan(panels["loss"].values["train"][1])
    assert panels["loss"].note == "Lowest validation loss 3 at step 2."
    assert panels["accuracy"].values == {"valid": [0.25, 0.75]} and "0.75 at step 4" in panels["accuracy"].note


def test_a_running_mean_is_told_as_one() -> None:
    rows = [{"step": step, "loss": 1.0 + step % 2} for step in range(100)]
    reading = curves.read(Subject(None, None, metrics=rows))[0]
    assert reading.smooth == {"train": 5} and reading.note == "The thick line is a running mean over 5 rows."
    assert curves.read(Subject(None, None, metrics=rows[:50]))[0].smooth == {}


def test_summary_has_last_and_best() -> None:
    table = summary.read(Subject(None, None, metrics=ROWS)).values
    rows = {name: (table["last"][i], table["best"][i], table["at step"][i]) for i, name in enumerate(table["metric"])}
    assert rows["valid/loss"] == (5.0, 3.0, 2) and rows["valid/accuracy"] == (0.75, 0.75, 4)
    assert rows["test/loss"] == (4.0, None, None) and rows["lr"] == (0.05, None, None)
    assert "valid/nll" not in rows and "model_step" not in rows and "junk" not in rows


def test_a_matrix_of_thousands_of_classes_is_refused():
    from dataclasses import replace

    from sonde.lenses import confusion

    few = confusion.tiny()
    assert not confusion.why_not(few)
    many = replace(few, data=replace(few.data, classes=tuple(map(str, range(2000)))))
    assert confusion.why_not(many) == "2,000 classes are more than a matrix can show"


def test_what_has_no_better_side_has_no_best_value() -> None:
    line = ([1, 2, 3], [3.0, 1.0, 2.0])
    assert curves.best("nll", line) == (1.0, 2) and curves.best("accuracy", line) == (3.0, 1)
    assert curves.best("kl", line) is None and curves.best("discriminator", line) is None
    rows = [{"step": s, "valid/loss": v, "valid/kl": 4 * v} for s, v in zip(*line, strict=True)]
    loss, kl = curves.read(Subject(None, None, metrics=rows))
    assert loss.note.startswith("Lowest validation loss 1 at step 2") and kl.note == ""
