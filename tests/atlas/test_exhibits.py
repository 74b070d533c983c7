"""Every exhibit passes; and each chapter has mistakes, made on purpose, that turn it red."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from sonde.atlas import _margins, convolutional_networks, multilayer_perceptrons, parallel_training, regularization
from sonde.atlas.exhibit import exhibits, run
from sonde.core.terms import Terms
from sonde.data.order import Order
from sonde.engine import job, loop
from sonde.engine.replica import Replica
from sonde.gradients import mean
from sonde.lenses.cost import _Walk
from sonde.models.mlp import MLP
from tests.atlas.mistakes import any_of, wrong

MEASURED = _margins.read()
LONG = {
    *("OPT-14", "OPT-15", "REG-06", "LIN-16", "LIN-25", "RNN-02", "RNN-12", "ATT-15"),
    *("S2S-01", "S2S-02", "S2S-03", "S2S-06", "S2S-09", "CNN-18", "RES-03", "RES-08", "VIT-02", "VIT-03"),
    *("AE-01", "AE-03", "AE-05", "AE-07", "AE-08", "AE-09", "AE-10"),
    *("LM-03", "LM-08", "LM-10", "LM-11", "LM-12", "LM-13", "LM-15", "LM-16", "LM-17", "LM-18"),
    *("APP-01", "APP-02", "APP-03", "APP-04", "APP-05", "APP-06"),
}
"""rows that train for five seconds or more; `make test-all` and `sonde atlas --check` run them too"""


@pytest.mark.parametrize("row", [pytest.param(row, marks=pytest.mark.slow) if row in LONG else row for row in exhibits()])
def test_passes(row):
    result = run(row)
    assert result.passed, result.why
    assert _margins.stale(result, MEASURED) == [], "run make margins"


def test_the_first_exhibits_are_there():
    first = {"PAR-01", "PAR-02", "PAR-03", "MISC-01", "CNN-12", "CNN-16", "MLP-03", "OPT-05", "OPT-06", "REG-05", "REG-07"}
    assert first <= set(exhibits())


def test_every_chapter_has_a_mistake_of_its_own():
    chapters = {row.split("-")[0].lower(): path.stem for row, path in exhibits().items()}
    here = {name.split("_")[1] for name in globals() if name.startswith("mistake_")}
    own_files = {path.stem.removeprefix("test_") for path in Path(__file__).parent.glob("test_*.py")}
    assert {prefix for prefix, file in chapters.items() if file not in own_files} <= here


# A shard that divides by its own count: the sum of means, K times too big.


@pytest.fixture
def mistake_par_own_counts(monkeypatch):
    right = Terms.factors
    monkeypatch.setattr(Terms, "factors", lambda self, counts=None: right(self, None))


def test_par_01_notices_shards_that_divide_by_their_own_count(mistake_par_own_counts):
    names = wrong("PAR-01")
    assert any_of(names, "shards of 3 and 5") and any_of(names, "K=2, against a plain loop")


def test_par_01_notices_replicas_that_drift(monkeypatch):
    right = Replica.update

    def drift(self, factor, phase=0):
        self.flat.values.add_(1e-7 * self.world.rank)
        return right(self, factor, phase)

    monkeypatch.setattr(Replica, "update", drift)
    assert any_of(wrong("PAR-01"), "between replicas, K=2")


def test_par_02_notices_a_bad_line(monkeypatch):
    right = parallel_training.distributed.send
    monkeypatch.setattr(parallel_training.distributed, "send", lambda tensor, to: right(tensor * (1 + 1e-9), to))
    assert any_of(wrong("PAR-02"), "outputs of step 0")


def test_par_02_notices_more_bytes_than_needed(monkeypatch):
    right = parallel_training._send
    monkeypatch.setattr(parallel_training, "_send", lambda tensor, to: 2 * right(tensor, to))
    assert any_of(wrong("PAR-02"), "bytes forward")


def test_par_03_notices_parts_that_divide_by_their_own_count(mistake_par_own_counts):
    assert any_of(wrong("PAR-03"), "4 parts of 8")


def test_par_03_notices_a_silent_fall_back(monkeypatch):
    monkeypatch.setattr(job, "pick_device", lambda name: torch.device("cpu"))
    assert any_of(wrong("PAR-03"), "notice")


def test_par_03_notices_a_batched_product_that_is_a_loop(monkeypatch):
    monkeypatch.setattr(parallel_training.torch, "bmm", lambda a, b: torch.stack([one @ other for one, other in zip(a, b, strict=True)]))
    assert wrong("PAR-03") == ["matrix products called by the batched one"]


@pytest.fixture(params=["gradient", "update"])
def mistake_misc_step(request, monkeypatch):
    if request.param == "gradient":
        right = mean.full_batch

        def summed(model, objective, flat, batch):
            terms = right(model, objective, flat, batch)
            flat.grad.mul_(len(batch))
            return terms

        monkeypatch.setattr(mean, "full_batch", summed)
        return "5 backward"
    right_update = Replica.update
    monkeypatch.setattr(Replica, "update", lambda self, factor, phase=0: right_update(self, 1.01 * factor, phase))
    return "6 update"


def test_misc_01_notices_a_wrong_step(mistake_misc_step):
    assert any_of(wrong("MISC-01"), mistake_misc_step)


@pytest.fixture
def mistake_cnn_biases(monkeypatch):
    right = _Walk.parameters
    monkeypatch.setattr(_Walk, "parameters", lambda self, module, whole: (sum(right(self, module, whole)), 0))


def test_cnn_12_notices_biases_counted_as_weights(mistake_cnn_biases):
    assert wrong("CNN-12") == ["weights", "biases"]


def test_cnn_12_notices_another_network(monkeypatch):
    convolutions = nn.Conv2d(1, 5, 3), nn.MaxPool2d(2), nn.Conv2d(5, 10, 5), nn.MaxPool2d(2), nn.Conv2d(10, 20, 2, 2)
    unpadded = nn.Sequential(*convolutions, nn.MaxPool2d(5, 2), nn.Flatten(), nn.Linear(20 * 9 * 13, 6))
    monkeypatch.setattr(convolutional_networks, "example_network", lambda: unpadded)
    names = wrong("CNN-12")
    assert any_of(names, "output sizes") and any_of(names, "parameters in all")


def test_cnn_16_notices_forgotten_biases(monkeypatch):
    def no_biases(widths):
        return nn.Sequential(nn.Flatten(), *(nn.Linear(a, b, bias=False) for a, b in zip(widths, widths[1:], strict=False)))

    monkeypatch.setattr(convolutional_networks, "MLP", no_biases)
    assert len(wrong("CNN-16")) == 3


@pytest.fixture
def mistake_mlp_linear(monkeypatch):
    monkeypatch.setattr(multilayer_perceptrons, "MLP", lambda widths: MLP(widths, activation="identity"))


def test_mlp_03_notices_a_net_without_joints(mistake_mlp_linear):
    assert any_of(wrong("MLP-03"), "joints of the first output")


def test_mlp_03_notices_other_counts(monkeypatch):
    monkeypatch.setattr(multilayer_perceptrons, "MLP", lambda widths: MLP(widths, norm="layer"))
    assert any_of(wrong("MLP-03"), "parameters of (2, 3, 1)")


@pytest.fixture
def mistake_opt_replacement(monkeypatch):
    right = Order.at

    def drawn(self, step):
        generator = torch.Generator().manual_seed(step)
        return torch.randint(self.n, (len(right(self, step)),), generator=generator)

    monkeypatch.setattr(Order, "at", drawn)


def test_opt_06_notices_drawing_with_replacement(mistake_opt_replacement):
    names = wrong("OPT-06")
    assert any_of(names, "draws of each index") and any_of(names, "most draws")


def test_opt_05_notices_drawing_with_replacement(mistake_opt_replacement):
    assert any_of(wrong("OPT-05"), "mean of the batch gradients")


def test_opt_05_notices_sums_in_place_of_means_and_a_log_without_words(monkeypatch):
    monkeypatch.setattr(Terms, "factors", lambda self, counts=None: [(self["nll"], 1.0)])
    monkeypatch.setattr(job.Job, "regime", "training")
    names = wrong("OPT-05")
    assert any_of(names, "variance at B=8") and any_of(names, "slope") and any_of(names, "the run log at B=1")


@pytest.fixture
def mistake_reg_patience(monkeypatch):
    right = loop.Best.see

    def generous(self, step, row):
        better = right(self, step, row)
        self.since -= self.since == 1  # the first check without progress is not counted
        return better

    monkeypatch.setattr(loop.Best, "see", generous)


def test_reg_05_notices_patience_off_by_one(mistake_reg_patience):
    assert any_of(wrong("REG-05"), "patience 3, checked every step: last step")


def test_reg_05_notices_weights_that_are_not_restored(monkeypatch):
    right = regularization._rising
    monkeypatch.setattr(regularization, "_rising", lambda *args: right(*args).replace(restore_best=False))
    names = wrong("REG-05")
    assert any_of(names, "weight that is kept") and not any_of(names, "last step")


@pytest.fixture
def quick_reg_07(monkeypatch):
    """The sweep over wrong labels takes most of the time and is not what these mistakes are about."""
    monkeypatch.setattr(regularization, "_accuracy", lambda exhibit, share, seed: 1 - share + 0.001 * seed)


def test_reg_07_notices_classes_that_are_not_weighed(monkeypatch, quick_reg_07):
    monkeypatch.setattr(regularization, "class_weights", lambda labels, classes: torch.ones(classes))
    assert wrong("REG-07") == ["loss: weighted against re-balanced", "gradient: weighted against re-balanced"]


def test_reg_07_notices_parts_that_overlap(monkeypatch, quick_reg_07):
    right = regularization.split

    def leaky(*args, **kwargs):
        train, valid, test = right(*args, **kwargs)
        return train, torch.cat([valid[:-1], train[:1]]), test

    monkeypatch.setattr(regularization, "split", leaky)
    names = wrong("REG-07")
    assert any_of(names, "most parts") and any_of(names, "all parts together")


def test_reg_07_notices_rows_cleaned_without_a_word(monkeypatch, quick_reg_07):
    monkeypatch.setattr(regularization, "SPOILT", regularization.SPOILT.replace("x7", "7"))
    assert wrong("REG-07") == ["corrupt cells", "rows with gaps dropped", "rows kept"]


def test_reg_07_notices_labels_that_do_not_matter(monkeypatch):
    monkeypatch.setattr(regularization, "_accuracy", lambda exhibit, share, seed: 0.9 + 0.01 * seed)
    assert len(wrong("REG-07")) == 2
