"""Streams of examples, and SFT batches as a pure function of one integer.

The position of a stage in its data is `cursor`, the number of examples drawn. Nothing is looked
ahead or kept open between batches, so a resumed run draws what the uninterrupted one would have.
"""

from __future__ import annotations

import dataclasses
import itertools
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import grain
import numpy as np

from nemocascade_jax.config import PackingConfig
from nemocascade_jax.data.packing import Example, pack_rows
from nemocascade_jax.errors import InputError


@dataclasses.dataclass(frozen=True)
class Stream:
    """Endless draws: `dataset[i]` depends on i and the seed alone; `epoch` is the number of rows."""

    dataset: grain.MapDataset
    epoch: int

    def __getitem__(self, index: int) -> Any:
        return self.dataset[int(index)]


class SFTBatch(NamedTuple):
    """The fields of `state.Batch` that SFT fills, as NumPy arrays, and what was left out.

    `counters`: `dropped` examples longer than a row, `empty` ones without a supervised target.
    """

    arrays: dict[str, np.ndarray]
    counters: dict[str, int]


def make_stream(sources: Sequence[tuple[Sequence[Any], float]], seed: int) -> Stream:
    """Returns the mixture of (rows, weight) sources, each shuffled anew in every epoch of its own.

    Every row of a source is drawn exactly once in an epoch of that source.
    """
    if not sources:
        raise InputError("make_stream: no source of rows; name at least one under `data`")
    mixed = []
    for index, (rows, _) in enumerate(sources):
        if not len(rows):
            raise InputError(
                f"make_stream: source {index} of {len(sources)} has no rows; remove it"
            )
        # Grain adds the epoch to the seed: a digest keeps neighbouring seeds from sharing epochs.
        own = zlib.crc32(f"{seed}/{index}".encode())
        mixed.append(grain.MapDataset.source(rows).shuffle(seed=own).repeat(reseed_each_epoch=True))
    weights = [float(weight) for _, weight in sources]
    dataset = mixed[0] if len(mixed) == 1 else grain.MapDataset.mix(mixed, weights)
    return Stream(dataset, sum(len(rows) for rows, _ in sources))


def make_sft_batches(
    stream: Stream, render: Callable[[Any], Example], packing: PackingConfig
) -> Callable[[int], SFTBatch]:
    """Returns the function from a cursor to the batch that starts there.

    A batch takes examples in order until the next one fits into no row, and never more than one
    epoch of them, so that few rows are not repeated to fill the space. `drawn` is what to add to the
    cursor. Without a supervised token the denominator is 0, and the update is to be skipped.
    """
    cache: dict[int, tuple[Any, Example]] = {}

    def example(index: int) -> Example:
        row = stream[index]
        if id(row) not in cache:
            cache[id(row)] = row, render(row)  # holding the row keeps its id from being reused
        return cache[id(row)][1]

    def examples(cursor: int) -> Iterator[Example]:
        return map(example, itertools.count(cursor))

    def batch(cursor: int) -> SFTBatch:
        packed = pack_rows(
            itertools.islice(examples(int(cursor)), stream.epoch),
            packing.row_length,
            packing.rows_per_step,
            overlong=packing.overlong,
        )
        if packed.dropped == stream.epoch:
            raise InputError(
                f"make_sft_batches: all {stream.epoch:,} examples of an epoch are longer than row_length "
                f"{packing.row_length:,}; raise data.packing.row_length"
            )
        weights = packed.completion_mask.astype(np.float32)
        names = ("tokens", "targets", "completion_mask", "segment_ids", "positions")
        arrays = {name: getattr(packed, name) for name in names}
        arrays |= {"weights": weights, "denominator": weights.sum(dtype=np.float32)}
        arrays |= {"drawn": np.asarray(packed.drawn, np.int32)}
        return SFTBatch(arrays, {"dropped": packed.dropped, "empty": packed.empty})

    return batch
