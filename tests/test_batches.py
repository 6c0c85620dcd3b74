"""Streams that are pure functions of an index, and batches that are pure functions of a cursor."""

import numpy as np
import pytest

from nemocascade_jax.config import PackingConfig
from nemocascade_jax.data.batches import make_sft_batches, make_stream
from nemocascade_jax.data.packing import Example
from nemocascade_jax.errors import InputError

PACKING = PackingConfig(row_length=8, rows_per_step=2, overlong="drop")


def document(size: int) -> Example:
    """Renders the number `size` as that many tokens, all of them produced."""
    return Example(list(range(size)), [True] * size)


def draws(stream, start: int, stop: int) -> list:
    return [stream[index] for index in range(start, stop)]


def test_every_row_comes_once_an_epoch_and_epochs_differ():
    rows = list(range(100, 117))
    stream = make_stream([(rows, 1.0)], seed=3)
    epochs = [draws(stream, 17 * epoch, 17 * epoch + 17) for epoch in range(4)]
    assert all(sorted(epoch) == rows for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 4


def test_mixed_sources_keep_their_epochs_and_weights():
    """Three draws of the first source to one of the second; each is a permutation by itself."""
    first, second = list(range(9)), list(range(50, 55))
    stream = make_stream([(first, 3.0), (second, 1.0)], seed=0)
    drawn = draws(stream, 0, 60)
    left = [row for row in drawn if row < 50]
    right = [row for row in drawn if row >= 50]
    assert (len(left), len(right)) == (45, 15)
    assert all(sorted(left[start : start + 9]) == first for start in range(0, 45, 9))
    assert all(sorted(right[start : start + 5]) == second for start in range(0, 15, 5))
    assert stream.epoch == 14


def test_stream_depends_on_seed_and_index_alone():
    rows = list(range(40))
    again = make_stream([(rows, 1.0)], seed=5)
    assert [again[index] for index in reversed(range(90))] == list(
        reversed(draws(make_stream([(rows, 1.0)], seed=5), 0, 90))
    )
    other = make_stream([(rows, 1.0)], seed=6)
    assert draws(other, 0, 40) != draws(again, 0, 40)
    assert draws(other, 0, 40) != draws(again, 40, 80)  # no shared order one epoch on


def run(batches, cursor: int, steps: int) -> tuple[int, list]:
    """Draws batches from `cursor` on; returns where it ends."""
    out = []
    for _ in range(steps):
        batch = batches(cursor)
        out.append(batch)
        cursor += int(batch.arrays["drawn"])
    return cursor, out


def test_resumed_batches_equal_uninterrupted_ones():
    """8 straight against 4 + 4, 1 + 7 and 7 + 1 over epoch borders, each with fresh objects (T21)."""
    sizes = [2, 3, 4, 5, 6, 7, 8, 9, 20]

    def fresh():
        return make_sft_batches(make_stream([(sizes, 1.0)], seed=1), document, PACKING)

    end, straight = run(fresh(), 0, 8)
    assert end > 2 * len(sizes)
    for first in (4, 1, 7):
        middle, head = run(fresh(), 0, first)
        stop, tail = run(fresh(), middle, 8 - first)
        assert stop == end
        for one, two in zip(straight, head + tail, strict=True):
            assert one.counters == two.counters
            for name, values in one.arrays.items():
                np.testing.assert_array_equal(values, two.arrays[name], err_msg=name)


def test_batches_hold_every_draw_of_the_stream_once():
    """Over two epochs, the documents in the rows are the stream's draws without the overlong."""
    stream = make_stream([([2, 3, 4, 5, 6, 7, 8, 9, 20], 1.0)], seed=1)
    batches = make_sft_batches(stream, document, PACKING)
    cursor, found, dropped = 0, [], 0
    while cursor < 18:
        batch = batches(cursor)
        dropped += batch.counters["dropped"]
        sizes = [np.bincount(segments)[1:] for segments in batch.arrays["segment_ids"]]
        found += [int(size) + 1 for row in sizes for size in row]
        cursor += int(batch.arrays["drawn"])
    expected = draws(stream, 0, cursor)
    assert sorted(found) == sorted(size for size in expected if size <= 9)
    assert dropped == expected.count(20) >= 2


def test_few_rows_are_not_repeated_to_fill_a_batch():
    """Two documents of 3 and 2 tokens: one batch holds 3 targets, however much room there is."""
    roomy = PackingConfig(row_length=64, rows_per_step=4, overlong="refuse")
    batches = make_sft_batches(make_stream([([3, 2], 1.0)], seed=0), document, roomy)
    for cursor in (0, 2, 4):
        arrays = batches(cursor).arrays
        assert (int(arrays["drawn"]), float(arrays["denominator"])) == (2, 3.0)


def test_arrays_have_the_types_of_a_batch():
    arrays = make_sft_batches(make_stream([([3, 2], 1.0)], seed=0), document, PACKING)(0).arrays
    assert {name: (value.dtype.name, value.shape) for name, value in arrays.items()} == {
        "tokens": ("int32", (2, 8)),
        "targets": ("int32", (2, 8)),
        "completion_mask": ("bool", (2, 8)),
        "segment_ids": ("int32", (2, 8)),
        "positions": ("int32", (2, 8)),
        "weights": ("float32", (2, 8)),
        "denominator": ("float32", ()),
        "drawn": ("int32", ()),
    }
    np.testing.assert_array_equal(arrays["weights"], arrays["completion_mask"])


def test_batch_without_supervision_has_denominator_zero():
    """Every row empty: the count says so and the denominator is 0, never NaN (T05)."""
    rows = make_stream([([3, 4], 1.0)], seed=0)
    batches = make_sft_batches(rows, lambda n: Example([1] * n, [False] * n), PACKING)
    batch = batches(0)
    assert float(batch.arrays["denominator"]) == 0.0
    assert batch.counters == {"dropped": 0, "empty": 2}


def test_dropped_and_supervised_examples_are_counted_apart():
    """Row 1 has two supervised targets, row 2 is longer than the limit (T05)."""
    batch = make_sft_batches(make_stream([([3, 20], 1.0)], seed=0), document, PACKING)(0)
    assert float(batch.arrays["denominator"]) == 2.0
    assert int(batch.arrays["drawn"]) == 2
    assert batch.counters == {"dropped": 1, "empty": 0}


def test_rows_are_rendered_once():
    calls = []
    stream = make_stream([([3, 4], 1.0)], seed=0)
    batches = make_sft_batches(stream, lambda n: calls.append(n) or document(n), PACKING)
    run(batches, 0, 4)
    assert sorted(calls) == [3, 4]


def test_streams_and_batches_that_cannot_be_are_refused():
    with pytest.raises(InputError, match="no source of rows"):
        make_stream([], seed=0)
    with pytest.raises(InputError, match="source 1 of 2 has no rows"):
        make_stream([([1], 1.0), ([], 1.0)], seed=0)
    stream = make_stream([([20, 30], 1.0)], seed=0)
    with pytest.raises(InputError, match="all 2 examples of an epoch are longer than row_length 8"):
        make_sft_batches(stream, document, PACKING)(0)
