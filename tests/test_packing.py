"""The shift to targets and the packing of rows."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemocascade_jax.data.packing import Example, pack_rows, shift
from nemocascade_jax.errors import InputError

EXAMPLES = st.lists(
    st.lists(st.tuples(st.integers(0, 50), st.booleans()), max_size=9).map(
        lambda pairs: Example([t for t, _ in pairs], [p for _, p in pairs])
    ),
    max_size=12,
)


def full(*documents: list[int]) -> list[Example]:
    return [Example(tokens, [True] * len(tokens)) for tokens in documents]


def test_shift_aligns_masks_with_targets():
    """Token 3 was produced, so the entry that predicts it counts; the last token has no target."""
    shifted = shift([5, 6, 3], [True, False, True])
    assert shifted.tokens.tolist() == [5, 6]
    assert shifted.targets.tolist() == [6, 3]
    assert shifted.completion_mask.tolist() == [False, True]
    assert shifted.positions.tolist() == [0, 1]


def test_shift_of_one_token_or_none_is_empty():
    for tokens in ([], [4]):
        assert [len(part) for part in shift(tokens, [True] * len(tokens))] == [0, 0, 0, 0]


def test_no_target_crosses_a_document_border():
    """Documents [0,1,2] and [0,3] give exactly the targets 1, 2 and 3 (T10)."""
    packed = pack_rows(full([0, 1, 2], [0, 3]), 8, 1)
    assert packed.targets[packed.completion_mask].tolist() == [1, 2, 3]
    assert packed.tokens[0].tolist() == [0, 1, 0, 0, 0, 0, 0, 0]
    assert packed.segment_ids[0].tolist() == [1, 1, 2, 0, 0, 0, 0, 0]
    assert packed.positions[0].tolist() == [0, 1, 0, 0, 0, 0, 0, 0]
    assert (packed.drawn, packed.dropped, packed.empty) == (2, 0, 0)


def test_packing_is_first_fit_and_stops_before_what_fits_nowhere():
    """Rows of 4 with documents of 3, 3, 1, 2 and 1 targets: the fourth ends the batch."""
    documents = full([1] * 4, [2] * 4, [3] * 2, [4] * 3, [5] * 2)
    packed = pack_rows(documents, 4, 2)
    assert packed.tokens.tolist() == [[1, 1, 1, 3], [2, 2, 2, 0]]
    assert packed.drawn == 3


def test_example_that_just_fills_a_row_fits():
    packed = pack_rows(full([1, 2, 3, 4, 5]), 4, 1)
    assert packed.targets.tolist() == [[2, 3, 4, 5]]


def test_overlong_example_is_refused_or_dropped():
    documents = [*full([1, 2], [0] * 9001), *full([3, 4])]
    said = (
        r"^pack_rows: example 1 has 9,001 tokens, row_length is 8,192; raise "
        r"data\.packing\.row_length or set data\.packing\.overlong='drop'$"
    )
    with pytest.raises(InputError, match=said):
        pack_rows(documents, 8192, 2)
    packed = pack_rows(documents, 8192, 2, overlong="drop")
    assert (packed.drawn, packed.dropped) == (3, 1)
    assert packed.targets[packed.completion_mask].tolist() == [2, 4]


def test_examples_without_a_supervised_target_are_counted():
    """A produced first token is no target, so such an example is empty too (T05)."""
    nothing = Example([1, 2, 3], [True, False, False])
    packed = pack_rows([nothing, *full([4, 5], [6])], 8, 1)
    assert (packed.drawn, packed.empty) == (3, 2)
    assert packed.completion_mask.sum() == 1


@given(EXAMPLES, st.integers(1, 8), st.integers(1, 3))
@settings(derandomize=True, deadline=None, max_examples=200)
def test_packed_rows_hold_each_drawn_example_once(examples, row_length, rows):
    """Cut apart by segment, the rows give back the shifted examples and nothing else."""
    packed = pack_rows(examples, row_length, rows, overlong="drop")
    found = []
    for row in range(rows):
        segments = packed.segment_ids[row]
        used = int((segments > 0).sum())
        assert not segments[used:].any()
        assert not packed.completion_mask[row, used:].any()
        assert set(np.diff(segments[:used], prepend=0).tolist()) <= {0, 1}
        for number in range(1, segments.max(initial=0) + 1):
            place = segments == number
            assert packed.positions[row, place].tolist() == list(range(place.sum()))
            parts = (packed.tokens, packed.targets, packed.completion_mask)
            found.append(tuple(tuple(part[row, place].tolist()) for part in parts))
    kept = [shift(*example[:2]) for example in examples[: packed.drawn]]
    fitting = [one for one in kept if 0 < len(one.targets) <= row_length]
    expected = [tuple(tuple(part.tolist()) for part in one[:3]) for one in fitting]
    assert sorted(found) == sorted(expected)
    assert packed.dropped == sum(len(one.targets) > row_length for one in kept)


@given(EXAMPLES, st.integers(1, 8))
@settings(derandomize=True, deadline=None, max_examples=50)
def test_packing_stops_only_when_nothing_fits(examples, row_length):
    packed = pack_rows(examples, row_length, 2, overlong="drop")
    if packed.drawn < len(examples):
        room = (packed.segment_ids == 0).sum(axis=1).max()
        assert len(examples[packed.drawn].tokens) - 1 > room


def test_mismatched_mask_is_refused():
    with pytest.raises(ValueError, match="3 tokens but 2 entries"):
        shift([1, 2, 3], [True, True])
