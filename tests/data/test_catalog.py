"""The catalog: every set loads, is seeded, is told in one line; wrong names and options are answered with the right ones."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from sklearn import datasets

from sonde.core.errors import BadInput
from sonde.core.options import checked, options_of
from sonde.data import augment, catalog, corrupt, melody, order
from sonde.data.text import documents

TABLES = ["iris", "wine", "breast_cancer", "diabetes"]
SEQUENCES = ["recall", "copying", "reset", "parity", "in_context", "tagging"]
PUZZLES = ["xor", "rings", "moons", "spirals", "blobs", "swiss_roll", "sine", "bowl"]


def everything(name: str, **options: object) -> tuple[np.ndarray, np.ndarray]:
    """x and y of all parts in the order of the set."""
    batches = [source[:] for source in catalog.load(name, **options).splits.values()]
    x, y, ids = (torch.cat([batch.fields[field] for batch in batches]) for field in ("x", "y", "ids"))
    assert sorted(ids.tolist()) == list(range(len(ids)))
    return x[ids.argsort()].numpy(), y[ids.argsort()].numpy()


def test_names_and_summaries_need_no_torch() -> None:
    code = "import sys; from sonde.data import catalog as c; print([c.summary(n) for n in c.names()]); assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2], timeout=60).returncode == 0
    assert all(10 < len(catalog.summary(name)) < 120 for name in catalog.names())
    assert len(catalog.names()) == len(set(catalog.names())) == 40


@pytest.mark.parametrize("name", catalog.names())
def test_every_option_is_explained(name: str) -> None:
    options = options_of(catalog.function(name), skip=("seed",))
    assert all(option.help for option in options.values())


@pytest.mark.parametrize("module", [augment, corrupt, documents, melody, order], ids=lambda module: module.__name__)
def test_declared_ranges_are_checked(module: ModuleType) -> None:
    own = [one for one in vars(module).values() if getattr(one, "__module__", "") == module.__name__]
    functions = [one.__init__ if inspect.isclass(one) else one for one in own if callable(one)]
    declaring = [one for one in functions if inspect.isfunction(one) and any(o.range for o in options_of(inspect.unwrap(one)).values())]
    assert declaring and all(one.__code__ is checked(lambda: None).__code__ for one in declaring)


@pytest.mark.parametrize("name", [*TABLES, *PUZZLES, "digits"])
def test_the_seed_alone_decides(name: str) -> None:
    first, again, other = (catalog.load(name, seed=seed) for seed in (3, 3, 4))
    assert first.train.fingerprint() == again.train.fingerprint() != other.train.fingerprint()
    ids = [source[:].ids for source in first.splits.values()]
    assert len(ids) == 3 and len(torch.cat(ids).unique()) == sum(map(len, ids))


@pytest.mark.parametrize("name", SEQUENCES)
def test_sequences_are_drawn_from_the_seed_and_name_their_tokens(name: str) -> None:
    first, again, other = (catalog.load(name, seed=seed, n=30) for seed in (3, 3, 4))
    assert first.train.fingerprint() == again.train.fingerprint() != other.train.fingerprint()
    assert {part: len(source) for part, source in first.splits.items()} == {"train": 30, "valid": 3, "test": 3}
    batch = first.train[:]
    assert batch.x.shape == batch.y.shape == batch.mask.shape and batch.mask.any(1).all()
    assert int(batch.x.min()) >= 0 and int(torch.max(batch.x.max(), batch.y.max())) < len(first.classes)


@pytest.mark.parametrize("name", TABLES)
def test_tables_equal_scikit_learn(name: str) -> None:
    theirs = getattr(datasets, f"load_{name}")()
    x, y = everything(name, standardize=False)
    np.testing.assert_allclose(x, theirs.data, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(y.reshape(-1), theirs.target)
    data = catalog.load(name)
    assert data.features == tuple(theirs.feature_names)
    assert data.classes == tuple(getattr(theirs, "target_names", ())) and data.task == ("values" if name == "diabetes" else "classes")
    train = data.train[:].x.double()
    assert train.mean(0).abs().max() < 1e-5 and (train.std(0, correction=0) - 1).abs().max() < 1e-5


def test_digits_equal_scikit_learn() -> None:
    theirs = datasets.load_digits()
    x, y = everything("digits", standardize=False)
    np.testing.assert_allclose(x[:, 0] * 16, theirs.images, atol=1e-5)
    assert np.array_equal(y, theirs.target)
    train = catalog.load("digits").train[:].x
    assert train.shape == (1258, 1, 8, 8) and abs(train.mean()) < 1e-5 and abs(train.std() - 1) < 1e-3


def test_a_table_of_the_catalog_reads_new_rows(tmp_path: Path) -> None:
    data = catalog.load("iris")
    frame = datasets.load_iris(as_frame=True).frame.drop(columns="target")
    frame.to_csv(tmp_path / "new.csv", index=False)
    seen = data.train[:]
    np.testing.assert_allclose(data.reader(tmp_path / "new.csv").x[seen.ids], seen.x, atol=1e-5)


@pytest.mark.parametrize("name", PUZZLES)
def test_n_and_noise_are_options(name: str) -> None:
    x, y = everything(name, n=60, noise=0.0)
    noisy = everything(name, n=60, noise=0.5)
    assert len(x) == len(y) == 60 and not (np.allclose(x, noisy[0]) and np.allclose(y, noisy[1]))
    assert not np.allclose(noisy[0], everything(name, n=60, noise=0.5, seed=1)[0])  # the seed draws the points, not only the split


def test_puzzles_without_noise_have_their_known_answer() -> None:
    x, y = everything("xor", n=40, noise=0.0)
    assert np.array_equal(y, (x[:, 0] * x[:, 1] < 0)) and set(np.abs(x).flatten()) == {1.0}
    x, y = everything("rings", n=60, noise=0.0, classes=3)
    np.testing.assert_allclose(np.hypot(x[:, 0], x[:, 1]), y + 1, rtol=1e-6)
    x, y = everything("moons", n=60, noise=0.0)
    upper, lower = x[y == 0], x[y == 1]
    np.testing.assert_allclose(np.hypot(upper[:, 0], upper[:, 1]), 1, rtol=1e-6)
    np.testing.assert_allclose(np.hypot(1 - lower[:, 0], 0.5 - lower[:, 1]), 1, rtol=1e-6)
    assert (upper[:, 1] >= 0).all() and (lower[:, 1] <= 0.5).all()
    x, y = everything("spirals", n=60, noise=0.0, classes=3, turns=0.5)
    radius = np.hypot(x[:, 0], x[:, 1]) / 2
    angle = np.arctan2(x[:, 1], x[:, 0]) - 2 * np.pi * (0.5 * radius + y / 3)
    np.testing.assert_allclose(np.cos(angle), 1, atol=1e-5)
    x, y = everything("blobs", n=60, noise=0.0, classes=4, features=5)
    assert len(np.unique(x, axis=0)) == 4 and x.shape == (60, 5)
    x, y = everything("swiss_roll", n=60, noise=0.0)
    np.testing.assert_allclose(x[:, [0, 2]], np.column_stack([y[:, 0] * np.cos(y[:, 0]), y[:, 0] * np.sin(y[:, 0])]), atol=1e-4)
    x, y = everything("sine", n=60, noise=0.0, periods=3)
    np.testing.assert_allclose(y, np.sin(3 * np.pi * x), atol=1e-5)
    x, y = everything("bowl", n=60, noise=0.0, features=3, condition=100)
    np.testing.assert_allclose(y[:, 0], x.astype(float) ** 2 @ [0.5, 5, 50], rtol=1e-5)


def test_moons_and_swiss_roll_look_like_those_of_scikit_learn() -> None:
    ours, _ = everything("moons", n=4000, noise=0.1)
    theirs, _ = datasets.make_moons(4000, noise=0.1, random_state=0)
    np.testing.assert_allclose(ours.mean(0), theirs.mean(0), atol=0.05)  # two samples of 4000 differ by about 0.02
    np.testing.assert_allclose(np.cov(ours.T), np.cov(theirs.T), atol=0.05)
    ours, along = everything("swiss_roll", n=4000, noise=0.0)
    theirs, place = datasets.make_swiss_roll(4000, random_state=0)
    np.testing.assert_allclose(ours.std(0), theirs.std(0), rtol=0.05)
    assert abs(along.mean() - place.mean()) < 0.2


@pytest.mark.parametrize(
    "name, options, message",
    [
        ("moon", {}, "no data set 'moon'; did you mean 'moons'"),
        ("zzzz", {}, "choose from"),
        ("xor", {"nosie": 1.0}, "data set 'xor' has no option 'nosie'; did you mean 'noise'"),
        ("xor", {"noise": -1.0}, "must be >= 0"),
        ("xor", {"n": "many"}, "must be a whole number"),
        ("xor", {"n": 2}, "must be >= 10"),
        ("iris", {"valid": 0.9, "test": 0.9}, "leave any for training"),
        ("./no/such.csv", {}, "no file or folder"),
        ("nul\0byte/", {}, "no file or folder"),
    ],
)
def test_wrong_names_and_options(name: str, options: dict, message: str) -> None:
    with pytest.raises(BadInput, match=message) as caught:
        catalog.load(name, **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind, name", [(kind, name) for kind in ("points", "texts") for name in catalog.names(kind)])
def test_a_declared_kind_is_the_shape_of_the_examples(kind: str, name: str) -> None:
    if catalog.function(name).__module__ == "sonde.data.text.corpora":
        pytest.skip("needs a data folder")
    assert catalog.load_kind(kind, name, n=20, nonsense=3).train[:1].x.dim() == 2


def test_only_sets_of_a_kind_or_the_users_own_are_taken(tmp_path: Path) -> None:
    assert catalog.names("images") == ["cifar10", "digits", "fashion_mnist", "mnist", "shapes"]
    source = "from sonde.data.bundled import Data, digits\n\ndef mine(seed: int) -> Data:\n    return digits(seed)\n"
    (tmp_path / "mine.py").write_text(source)
    np.save(tmp_path / "rows.npy", np.random.default_rng(0).random((20, 5)))
    assert catalog.load_kind("images", str(tmp_path / "mine.py"), 3, standardize=False).train[:1].x.shape == (1, 1, 8, 8)
    for name, message in (
        ("moons", "data set 'moons' does not hold images; choose from cifar10, digits"),
        ("digit", "no data set 'digit'; did you mean 'digits'"),
        (str(tmp_path / "rows.npy"), r"x of '.*rows.npy' has the shape \(N, 4\); give images \(N, C, H, W\)"),
    ):
        with pytest.raises(BadInput, match=message):
            catalog.load_kind("images", name)


def test_a_path_is_a_data_set_too(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a,b\n" + "".join(f"{i},{i % 2}\n" for i in range(20)))
    for path in (tmp_path / "a.csv", str(tmp_path / "a.csv")):
        assert catalog.load(path, seed=2, target="b").name == "a.csv"
