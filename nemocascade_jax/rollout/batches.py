"""Samples as the packed arrays of one update (paper 2.2, 3.1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from nemocascade_jax.advantages import ADVANTAGES
from nemocascade_jax.config import ROWS_MULTIPLE, GRPOConfig, MOPDConfig
from nemocascade_jax.rollout.groups import Graded, Group, produced
from nemocascade_jax.state import Batch


def policy_batch(
    groups: Sequence[Group], graded: Graded, config: GRPOConfig, *, drawn: int
) -> tuple[Batch, np.ndarray]:
    """Packs the groups' samples into one batch; returns it with the advantages Q G.

    A token is valid when it was sampled for a completion that was graded and not masked as truncated. The
    denominator is the count of valid tokens of the whole batch, or, per group, the number of groups
    with each token weighted by one over its group's count.
    """
    advantages = ADVANTAGES[config.advantage](graded.rewards, graded.keep)
    valid = graded.keep & (graded.keep.sum(axis=1, keepdims=True) >= 2)
    if config.overlong == "mask":
        valid &= ~graded.truncated
    counts = (_lengths(groups) * valid).sum(axis=1)
    per_group = config.denominator == "per_group"
    packed = pack_groups(groups, config, [list(range(len(groups)))])
    packed.arrays["advantages"] = np.zeros_like(packed.arrays["weights"])
    for (g, m), (row, answer) in packed.places.items():
        sampled = packed.arrays["completion_mask"][row, answer]
        packed.arrays["advantages"][row, answer] = np.where(sampled, advantages[g, m], 0.0)
        if valid[g, m]:
            weight = 1.0 / counts[g] if per_group else 1.0
            packed.arrays["weights"][row, answer] = np.where(sampled, weight, 0.0)
    total = (counts > 0).sum() if per_group else counts.sum()
    batch = Batch(**packed.arrays, denominator=np.float32(total), drawn=np.int32(drawn))  # type: ignore[arg-type]
    return batch, advantages


def distillation_batch(
    groups: Sequence[Group], config: MOPDConfig, *, drawn: int, blocks: Sequence[Sequence[int]]
) -> tuple[Batch, Packed]:
    """Packs the groups' samples for MOPD, those of each teacher (a block) in rows of their own.

    Every sequence weighs the same: a token has one over its completion's length, truncated ones
    included, and the denominator is the number of sequences (paper 3.1, open point O36).
    """
    packed = pack_groups(groups, config, blocks)
    for row, answer in packed.places.values():
        sampled = packed.arrays["completion_mask"][row, answer]
        packed.arrays["weights"][row, answer] = np.where(sampled, 1.0 / sampled.sum(), 0.0)
    total = np.float32(len(packed.places))
    return Batch(**packed.arrays, denominator=total, drawn=np.int32(drawn)), packed  # type: ignore[arg-type]


class Packed(NamedTuple):
    """Packed rows as arrays; where each (group, member)'s completion lies; the rows of each block."""

    arrays: dict[str, Any]
    places: dict[tuple[int, int], tuple[int, slice]]
    blocks: list[range]


def pack_groups(
    groups: Sequence[Group], config: GRPOConfig | MOPDConfig, blocks: Sequence[Sequence[int]]
) -> Packed:
    """Packs all samples of the groups, each as one segment; blocks never share a row.

    What the world answered between a sample's turns is context: outside the mask, without log-prob.
    `weights` are left at 0. The number of rows is rounded up so that few programs are compiled.
    """
    length = config.sampling.max_prompt_tokens + config.sampling.max_completion_tokens
    found: list[tuple[int, int, int, int, int]] = []  # group, member, row, start, segment
    rows, ranges = 0, []
    for block in blocks:
        pairs = [(g, m) for g in block for m in range(len(groups[g].samples))]
        places = assign_rows([_size(groups[g], m) for g, m in pairs], length)
        for (g, m), (row, start, segment) in zip(pairs, places, strict=True):
            found.append((g, m, rows + row, start, segment))
        used = max((row for row, _, _ in places), default=-1) + 1
        ranges.append(range(rows, rows + used))
        rows += used
    multiple = ROWS_MULTIPLE
    if isinstance(config, GRPOConfig):  # teachers score packed rows in slices of their own
        multiple = config.rows_multiple
    rows = -(-max(rows, 1) // multiple) * multiple
    rows = -(-rows // config.microbatches) * config.microbatches
    arrays = _empty(rows, length)
    answers = {}
    for g, m, row, start, segment in found:
        group, sample = groups[g], groups[g].samples[m]
        size = _size(group, m)
        here = slice(start, start + size)
        answer = slice(start + len(group.prompt_tokens) - 1, start + size)
        ids = np.array([*group.prompt_tokens, *sample.completion_tokens], np.int32)
        arrays["tokens"][row, here], arrays["targets"][row, here] = ids[:-1], ids[1:]
        arrays["segment_ids"][row, here] = segment
        arrays["positions"][row, here] = np.arange(size)
        arrays["completion_mask"][row, answer] = produced(sample)
        arrays["sampler_logprobs"][row, answer] = sample.logprobs
        answers[g, m] = row, answer
    return Packed(arrays, answers, ranges)


def _size(group: Group, member: int) -> int:
    """Returns the places a sample takes: the first token is no target."""
    return len(group.prompt_tokens) + len(group.samples[member].completion_tokens) - 1


def _lengths(groups: Sequence[Group]) -> np.ndarray:
    return np.array([[int(produced(sample).sum()) for sample in group.samples] for group in groups])


def _empty(rows: int, length: int) -> dict[str, Any]:
    whole = ("tokens", "targets", "segment_ids", "positions")
    return {
        **{name: np.zeros((rows, length), np.int32) for name in whole},
        **{name: np.zeros((rows, length), np.float32) for name in ("weights", "sampler_logprobs")},
        "completion_mask": np.zeros((rows, length), bool),
    }


def assign_rows(sizes: Sequence[int], length: int) -> list[tuple[int, int, int]]:
    """Returns (row, start, segment id) of each sequence, first fit in the order given."""
    filled: list[tuple[int, int]] = []  # tokens, segments of each open row
    places = []
    for size in sizes:
        assert size <= length, (size, length)
        row = next((i for i, (used, _) in enumerate(filled) if used + size <= length), len(filled))
        if row == len(filled):
            filled.append((0, 0))
        used, segments = filled[row]
        places.append((row, used, segments + 1))
        filled[row] = (used + size, segments + 1)
    return places
