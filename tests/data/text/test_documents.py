"""Documents: padding, packing and pairs against loops over rows; batches of similar length."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sonde.core.errors import BadInput, DataUnusable
from sonde.data.order import POOL, Order
from sonde.data.text.documents import DocumentSource, LineSource, Ragged, pack, stretches
from sonde.data.text.pairs import PairSource, pairs
from sonde.data.text.tokenizer import train
from sonde.nn.spans import Spans

PAD, START, END = 90, 91, 92
rows = st.lists(st.lists(st.integers(0, 9), max_size=7), min_size=1, max_size=12)
filled = st.lists(st.lists(st.integers(0, 9), min_size=2, max_size=19), min_size=1, max_size=12)


@given(rows=rows, data=st.data())
def test_ragged_rows_are_the_rows(rows: list[list[int]], data: st.DataObject) -> None:
    ragged = Ragged.of(rows)
    assert len(ragged) == len(rows) and ragged.lengths.tolist() == list(map(len, rows))
    which = data.draw(st.lists(st.integers(0, len(rows) - 1), min_size=1, max_size=5))
    widest = max(len(rows[i]) for i in which)
    assert ragged.pad(torch.tensor(which), PAD).tolist() == [rows[i] + [PAD] * (widest - len(rows[i])) for i in which]
    chosen, short = ragged.select(torch.tensor(which)), ragged.truncate(3)
    assert [chosen[i].tolist() for i in range(len(which))] == [rows[i] for i in which]
    assert [short[i].tolist() for i in range(len(rows))] == [row[:3] for row in rows]
    for start, end in ((None, None), (START, None), (None, END), (START, END)):
        wrapped = ragged.wrap(start, end)
        want = [[START] * (start is not None) + row + [END] * (end is not None) for row in rows]
        assert [wrapped[i].tolist() for i in range(len(rows))] == want


def test_documents_with_labels_and_with_tags() -> None:
    texts, labels = [[1, 2, 3], [4], [5, 6]], torch.tensor([1, 0, 1])
    source = DocumentSource(Ragged.of(texts), PAD, labels)
    batch = source[torch.tensor([2, 1])]
    assert batch.x.tolist() == [[5, 6], [4, PAD]] and batch.lengths.tolist() == [2, 1] and batch.y.tolist() == [1, 0]
    assert source.sizes.tolist() == [3, 1, 2] and source.subset(torch.tensor([2]))[:].ids.tolist() == [2]
    tagged = DocumentSource(Ragged.of(texts), PAD, Ragged.of([[7, 8, 9], [7], [8, 8]]))
    batch = tagged[:]
    assert batch.y.tolist() == [[7, 8, 9], [7, 0, 0], [8, 8, 0]] and batch.mask.tolist() == [
        [True] * 3,
        [True] + [False] * 2,
        [True, True, False],
    ]
    assert tagged.fingerprint() != source.fingerprint() != source.subset(torch.tensor([0, 1])).fingerprint()


def test_lines_predict_their_next_token_and_no_padding() -> None:
    source = LineSource(Ragged.of([[1, 2, 3], [4]]).wrap(START, END), PAD)
    batch = source[:]
    assert batch.x.tolist() == [[START, 1, 2, 3], [START, 4, PAD, PAD]]
    assert batch.y.tolist() == [[1, 2, 3, END], [4, END, PAD, PAD]]
    assert batch.mask.tolist() == [[True] * 4, [True, True, False, False]] and batch.lengths.tolist() == [4, 2]


@given(rows=filled, length=st.integers(1, 24))
def test_packed_rows_hold_every_target_once_and_never_cross_documents(rows: list[list[int]], length: int) -> None:
    batch = pack(Ragged.of(rows), length, PAD)[:]
    assert batch.x.shape == batch.y.shape == batch.mask.shape == batch.documents.shape and batch.x.shape[1] == length
    pieces = []
    for x, y, mask, documents in zip(batch.x, batch.y, batch.mask, batch.documents, strict=True):
        assert torch.equal(mask, documents >= 0) and (x[~mask] == PAD).all() and (documents[1:][mask[1:]].diff() >= 0).all()
        for document in range(int(documents.max()) + 1):
            inside = documents == document
            assert torch.equal(x[inside][1:], y[inside][:-1])
            pieces.append([*x[inside].tolist(), int(y[inside][-1])])
    want = [row[i : i + length + 1] for row in rows for i in range(0, len(row) - 1, length)]  # a long document is cut
    assert sorted(pieces) == sorted(want)
    spans = Spans(*stretches(batch.documents), rows=len(batch))
    assert sorted(batch.x[row, a:b].tolist() for row, a, b in zip(spans.row, spans.start, spans.stop, strict=True)) == sorted(
        w[:-1] for w in want
    )


def test_packing_leaves_less_room_than_padding() -> None:
    lengths = torch.randint(2, 60, (400,), generator=torch.Generator().manual_seed(0))
    batch = pack(Ragged.of([torch.ones(int(n), dtype=torch.long) for n in lengths]), 64, 0)[:]
    assert batch.mask.float().mean() > 0.98 and int(batch.mask.sum()) == int((lengths - 1).sum())


def test_pairs_are_shifted_padded_and_counted() -> None:
    source = PairSource(Ragged.of([[1, 2], [3], [4, 5, 6]]), Ragged.of([[7], [8, 9, 9], []]).wrap(START, END), PAD)
    batch = source[torch.tensor([1, 0])]
    assert batch.source.tolist() == [[3, PAD], [1, 2]] and batch.lengths.tolist() == [1, 2]
    assert batch.x.tolist() == [[START, 8, 9, 9], [START, 7, PAD, PAD]] and batch.y.tolist() == [[8, 9, 9, END], [7, END, PAD, PAD]]
    assert batch.mask.tolist() == [[True] * 4, [True, True, False, False]] and batch.ids.tolist() == [1, 0]
    assert source.sort_by_size()[:].ids.tolist() == [0, 2, 1] and source.sort_by_size().fingerprint() != source.fingerprint()
    with pytest.raises(BadInput, match="do not pair up"):
        PairSource(Ragged.of([[1]]), Ragged.of([[1, 2], [1, 2]]), PAD)


def test_pairs_of_texts_end_where_they_should() -> None:
    tokenizer = train("char", ["abc xyz"], specials=("pad", "start", "end"))
    source = pairs(["ab", "c"], ["xyz", ""], tokenizer, tokenizer, most=2)
    batch, at = source[:], tokenizer.specials
    assert tokenizer.decode(batch.source[0]) == "ab" and int(batch.source[0, -1]) == at["end"] == int(batch.source[1, 1])
    assert tokenizer.decode(batch.y[0]) == "xy" and batch.y[1].tolist() == [at["end"], at["pad"], at["pad"]]
    with pytest.raises(BadInput, match="no special token 'start'"):
        pairs(["a"], ["b"], tokenizer, train("char", ["ab"], specials=("pad", "end")))


def test_sorting_by_length_saves_padding() -> None:
    lengths = torch.tensor([1, 9, 2, 8])
    batches = [Order(4, 2, seed=seed, sizes=lengths).at(step) for seed in range(5) for step in range(2)]
    assert {tuple(sorted(lengths[b].tolist())) for b in batches} == {(1, 2), (8, 9)}


@settings(max_examples=50)
@given(n=st.integers(1, 97), batch_size=st.integers(1, 20), seed=st.integers(0, 99), drop=st.booleans())
def test_batches_by_size_hold_each_example_once(n: int, batch_size: int, seed: int, drop: bool) -> None:
    if drop and n < batch_size:
        return
    sizes = torch.randint(1, 30, (n,), generator=torch.Generator().manual_seed(seed))
    order = Order(n, batch_size, seed, drop_last=drop, sizes=sizes)
    steps = order.steps_per_epoch
    batches = [order.at(step) for step in range(2 * steps)]
    for epoch in (batches[:steps], batches[steps:]):
        seen = torch.cat(epoch)
        assert len(seen) == len(seen.unique()) == (n // batch_size * batch_size if drop else n)
        assert [len(b) for b in epoch[:-1]] == [batch_size] * (steps - 1)
    again = Order(n, batch_size, seed, drop_last=drop, sizes=sizes)
    assert all(torch.equal(again.at(step), batches[step]) for step in (2 * steps - 1, 0, steps // 2))


def test_within_a_pool_batches_are_sorted_and_their_order_is_not() -> None:
    sizes = torch.randperm(POOL * 8, generator=torch.Generator().manual_seed(1))
    order = Order(len(sizes), 8, 3, sizes=sizes)
    batches = [sizes[order.at(step)] for step in range(POOL)]
    assert all(int(b.max() - b.min()) == 7 for b in batches)  # one pool: sorted through and through
    firsts = [int(b.min()) for b in batches]
    assert firsts != sorted(firsts)
    with pytest.raises(BadInput, match="3 sizes for 4 examples"):
        Order(4, 2, 0, sizes=sizes[:3])


def test_documents_without_tokens_are_said() -> None:
    for make in (
        lambda: DocumentSource(Ragged.of([[1], []]), PAD),
        lambda: LineSource(Ragged.of([[1]]), PAD),
        lambda: pack(Ragged.of([[1, 2], [1]]), 4, PAD),
    ):
        with pytest.raises(DataUnusable, match="documents have"):
            make()
    with pytest.raises(DataUnusable, match="no documents"):
        LineSource(Ragged.of([]), PAD)
    with pytest.raises(BadInput, match="one target for each"):
        DocumentSource(Ragged.of([[1]]), PAD, torch.tensor([1, 2]))
    with pytest.raises(BadInput, match="one tag for each"):
        DocumentSource(Ragged.of([[1]]), PAD, Ragged.of([[1, 2]]))
    for bounds in ([0, 2, 1, 3], [1, 3], [0, 2], []):
        with pytest.raises(BadInput, match="bounds"):
            Ragged(torch.arange(3), torch.tensor(bounds, dtype=torch.long))
