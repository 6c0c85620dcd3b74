"""Examples as rows of fixed length: the one shift from tokens to targets, then first-fit packing.

Each example is shifted by itself before it is packed, so the last token of one never predicts the
first of the next. No jax.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Bool, Int

from nemocascade_jax.errors import InputError


class Example(NamedTuple):
    """A conversation as ids; `produced[i]` says that the assistant produced token i."""

    tokens: Sequence[int]
    produced: Sequence[bool]
    where: str = ""  # for messages to people


class Shifted(NamedTuple):
    """One example, aligned with its targets: entry t speaks of predicting `targets[t]`."""

    tokens: Int[np.ndarray, "T"]
    targets: Int[np.ndarray, "T"]
    completion_mask: Bool[np.ndarray, "T"]
    positions: Int[np.ndarray, "T"]


class PackedRows(NamedTuple):
    """Rows of packed examples; `segment_ids` are 0 on padding and 1.. on a row's examples.

    `drawn` examples were taken: `dropped` of them did not fit any row, `empty` of them hold no
    supervised target (those of one token or none are not in the rows at all).
    """

    tokens: Int[np.ndarray, "B T"]
    targets: Int[np.ndarray, "B T"]
    completion_mask: Bool[np.ndarray, "B T"]
    segment_ids: Int[np.ndarray, "B T"]
    positions: Int[np.ndarray, "B T"]
    drawn: int
    dropped: int
    empty: int


def shift(tokens: Sequence[int], produced: Sequence[bool]) -> Shifted:
    """Returns n - 1 inputs with their targets; the last of n tokens has no target."""
    if len(tokens) != len(produced):
        raise ValueError(f"shift: {len(tokens)} tokens but {len(produced)} entries of `produced`")
    ids = np.asarray(tokens, np.int32)
    mask = np.asarray(produced, bool)
    return Shifted(ids[:-1], ids[1:], mask[1:], np.arange(max(len(ids) - 1, 0), dtype=np.int32))


def pack_rows(
    examples: Iterable[Example],
    row_length: int,
    rows: int,
    *,
    overlong: Literal["refuse", "drop"] = "refuse",
) -> PackedRows:
    """Packs examples in their order, each into the first row with room for it.

    Stops before the first example that fits into none of the `rows`. An example whose n - 1 targets
    exceed `row_length` is refused or dropped.
    """
    packed = _empty_rows(row_length, rows)
    used, segments = [0] * rows, [0] * rows
    drawn = dropped = empty = 0
    for index, example in enumerate(examples):
        shifted = shift(example.tokens, example.produced)
        size = len(shifted.targets)
        if size > row_length and overlong == "refuse":
            raise InputError(
                f"pack_rows: example {example.where or index} has {len(example.tokens):,} tokens, "
                f"row_length is {row_length:,}; raise data.packing.row_length or set "
                "data.packing.overlong='drop'"
            )
        if size > row_length:
            drawn, dropped = drawn + 1, dropped + 1
            continue
        row = next((row for row in range(rows) if used[row] + size <= row_length), None)
        if row is None:
            break
        drawn, empty = drawn + 1, empty + (not shifted.completion_mask.any())
        if size:
            segments[row] += 1
            place = slice(used[row], used[row] + size)
            used[row] += size
            packed["segment_ids"][row, place] = segments[row]
            for name, values in shifted._asdict().items():
                packed[name][row, place] = values
    return PackedRows(**packed, drawn=drawn, dropped=dropped, empty=empty)


def _empty_rows(row_length: int, rows: int) -> dict[str, np.ndarray]:
    names = ("tokens", "targets", "segment_ids", "positions")
    arrays = {name: np.zeros((rows, row_length), np.int32) for name in names}
    return arrays | {"completion_mask": np.zeros((rows, row_length), bool)}
