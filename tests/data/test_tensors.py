"""Sources: batches by index, floats by the statistics given, windows over tokens, fingerprints of the content."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
import torch
from sklearn.preprocessing import StandardScaler

from sonde.core.batch import Source
from sonde.core.errors import BadInput
from sonde.data.tensors import TensorSource, ToFloat, WindowSource, fingerprint, split_source

INDICES = torch.tensor([4, 0, 4])


def source() -> TensorSource:
    x = torch.arange(6 * 1 * 2 * 3, dtype=torch.uint8).reshape(6, 1, 2, 3) * 7
    return TensorSource(x, torch.arange(6) % 2, to_float=ToFloat(1 / 255, 0.25, 0.5), weight=torch.linspace(0, 1, 6))


def test_a_batch_is_what_plain_indexing_gives() -> None:
    whole, batch = source(), source()[INDICES]
    x = np.arange(36, dtype=np.uint8).reshape(6, 1, 2, 3) * 7
    expected = (x[[4, 0, 4]].astype(np.float64) / 255 - 0.25) / 0.5
    np.testing.assert_allclose(batch.x.numpy(), expected, atol=1e-6)
    assert batch.x.dtype == torch.float32 and whole.fields["x"].dtype == torch.uint8
    assert batch.y.tolist() == [0, 0, 0] and batch.ids.tolist() == [4, 0, 4]
    np.testing.assert_allclose(batch.weight, [0.8, 0, 0.8], atol=1e-7)
    assert isinstance(whole, Source) and len(whole) == 6


@pytest.mark.parametrize("part", [slice(1, 4), [1, 2, 3], np.array([1, 2, 3]), torch.tensor([0, 1, 1, 1, 0, 0], dtype=torch.bool)])
def test_other_ways_to_index_agree(part: object) -> None:
    got, expected = source()[part], source()[torch.tensor([1, 2, 3])]
    assert all(torch.equal(got.fields[name], expected.fields[name]) for name in expected)


def test_taking_a_batch_leaves_the_source_alone() -> None:
    plain = TensorSource(torch.ones(3, 2), to_float=ToFloat(2.0))
    plain[:].x.add_(1)
    assert torch.equal(plain.fields["x"], torch.ones(3, 2))


def test_statistics_equal_numpy_and_scikit_learn() -> None:
    x = torch.randint(0, 256, (5000, 3, 4, 5), dtype=torch.uint8)
    fitted = ToFloat.fit(x, 1 / 255, channels=True)
    flat = x.numpy().astype(np.float64) / 255
    np.testing.assert_allclose(fitted.mean.flatten(), flat.mean((0, 2, 3)), rtol=1e-6)
    np.testing.assert_allclose(fitted.std.flatten(), flat.std((0, 2, 3)), rtol=1e-6)
    rows = np.random.default_rng(0).normal(3, 5, (200, 1))
    ours = ToFloat.fit(torch.from_numpy(rows))(torch.from_numpy(rows))
    np.testing.assert_allclose(ours, StandardScaler().fit_transform(rows), atol=1e-6)
    assert ToFloat.fit(torch.full((4, 2), 7.0)).std == 1.0  # constant data are moved, not divided by nothing


def test_fingerprint_is_the_hash_of_dtype_shape_and_bytes() -> None:
    x = torch.tensor([[1, 2], [3, 4]], dtype=torch.int16)
    expected = hashlib.sha256(b"x|torch.int16|(2, 2)|" + x.numpy().tobytes()).hexdigest()
    assert fingerprint({"x": x}) == expected


def test_any_change_changes_the_fingerprint() -> None:
    x, y = torch.arange(6.0).reshape(3, 2), torch.tensor([0, 1, 0])
    sources = [
        TensorSource(x, y),
        TensorSource(x.double(), y),
        TensorSource(x.reshape(3, 1, 2), y),
        TensorSource(x + torch.tensor([0, 0.001]), y),
        TensorSource(x, y.flip(0) + 1),
        TensorSource(x, y, to_float=ToFloat(2.0)),
        TensorSource(x, y, to_float=ToFloat(2.0, mean=0.1)),
        TensorSource(x, y, mask=torch.ones(3, dtype=torch.bool)),
        TensorSource(x, y).subset([0, 2]),
    ]
    assert len({one.fingerprint() for one in sources}) == len(sources)
    assert TensorSource(x.clone(), y.clone()).fingerprint() == sources[0].fingerprint()


def test_a_subset_keeps_ids_and_statistics() -> None:
    part = source().subset([5, 2])
    assert part[:].ids.tolist() == [5, 2] and torch.equal(part[:].x, source()[torch.tensor([5, 2])].x)


def test_parts_use_the_statistics_of_the_training_part() -> None:
    x = torch.tensor([[0.0], [2.0], [100.0], [200.0]])
    train, valid, test = split_source(
        TensorSource(x), (torch.tensor([0, 1]), torch.tensor([2]), torch.tensor([], dtype=torch.int64)), ToFloat.fit
    )
    assert train[:].x.flatten().tolist() == [-1, 1] and valid is not None and valid[:].x.item() == 99 and test is None


def test_uneven_fields_are_named() -> None:
    with pytest.raises(BadInput, match="'y' has 2 examples but 'x' has 3"):
        TensorSource(torch.ones(3, 1), torch.ones(2))


@pytest.mark.parametrize("stride", [None, 1, 3, 7])
def test_windows_equal_a_loop_over_the_text(stride: int | None) -> None:
    tokens, length = torch.randint(0, 250, (40,), dtype=torch.uint8), 5
    windows = WindowSource(tokens, length, stride)
    starts = [i for i in range(0, 40, stride or length) if i + length + 1 <= 40]
    assert len(windows) == len(starts)
    batch = windows[torch.arange(len(windows))]
    assert batch.x.tolist() == [tokens[i : i + length].tolist() for i in starts]
    assert batch.y.tolist() == [tokens[i + 1 : i + 1 + length].tolist() for i in starts]
    assert batch.x.dtype == torch.int64 and batch.x.is_contiguous() and batch.y.is_contiguous()
    assert torch.equal(windows[1:3].x, batch.x[1:3])


def test_too_few_tokens_for_a_window() -> None:
    with pytest.raises(BadInput, match="too few"):
        WindowSource(torch.arange(5), 5)
    assert WindowSource(torch.arange(6), 5).fingerprint() != WindowSource(torch.arange(6), 4).fingerprint()
