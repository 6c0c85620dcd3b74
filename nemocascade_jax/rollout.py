"""From prompts to graded groups to the batch of one update."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from nemocascade_jax.advantages import ADVANTAGES, usable_groups
from nemocascade_jax.config import GRPOConfig, MOPDConfig, SamplingConfig
from nemocascade_jax.data import chat
from nemocascade_jax.data.tokenizer import Tokenizer
from nemocascade_jax.errors import InputError
from nemocascade_jax.rewards import reward_for
from nemocascade_jax.rows.records import Completion, Row, Score
from nemocascade_jax.sampler.engine import Sample
from nemocascade_jax.state import Batch

Grade = Callable[[Sequence[tuple[Row, Completion]]], list[Score]]
ROWS_MULTIPLE = (
    64  # the batch's number of packed rows is rounded up to this: few programs are compiled
)


@dataclasses.dataclass(frozen=True)
class Group:
    """One prompt with its graded samples."""

    draw: int  # index in the stage's stream
    row: Row
    prompt_tokens: tuple[int, ...]
    samples: tuple[Sample, ...]
    texts: tuple[str, ...]
    scores: tuple[Score, ...]


@dataclasses.dataclass(frozen=True)
class Graded:
    """Groups as arrays: `rewards` after the overlong rule, `keep` False for a member the grader failed."""

    rewards: np.ndarray  # Q G float32
    keep: np.ndarray  # Q G bool
    truncated: np.ndarray  # Q G bool


def render_row(row: Row, tokenizer: Tokenizer, sampling: SamplingConfig) -> tuple[int, ...]:
    """Returns the prompt ids of a row, generation prompt included."""
    return tuple(chat.render_row(row, tokenizer, thinking=sampling.thinking))


def grade_groups(
    drawn: Sequence[tuple[int, Row, tuple[int, ...]]],
    samples: Sequence[Sequence[Sample]],
    *,
    tokenizer: Tokenizer,
    thinking: bool,
    grade: Grade,
) -> list[Group]:
    """Returns the groups of (draw, row, prompt) with every sample graded, in the order given."""
    texts = [
        tuple(completion_text(sample, tokenizer, thinking=thinking) for sample in group)
        for group in samples
    ]
    jobs = [
        (row, Completion(text, sample.finish_reason))
        for (_, row, _), group, said in zip(drawn, samples, texts, strict=True)
        for sample, text in zip(group, said, strict=True)
    ]
    scores = iter(grade(jobs))
    return [
        Group(draw, row, prompt, tuple(group), said, tuple(next(scores) for _ in group))
        for (draw, row, prompt), group, said in zip(drawn, samples, texts, strict=True)
    ]


def completion_text(sample: Sample, tokenizer: Tokenizer, *, thinking: bool) -> str:
    """Returns the assistant message that a grader gets; a stop string cuts within tokens."""
    if isinstance(sample.stop, str):
        return chat.opened(tokenizer, thinking=thinking) + (sample.text or "")
    return chat.assistant_text(sample.completion_tokens, tokenizer, thinking=thinking)


def to_arrays(groups: Sequence[Group], overlong: str) -> Graded:
    """Applies the rules for truncated and failed members.

    "zero": a truncated answer has reward 0; "mask" and "keep" leave its reward (paper 2.2).
    """
    rewards = np.array(
        [[score.reward or 0.0 for score in group.scores] for group in groups], np.float32
    )
    keep = np.array([[score.status == "ok" for score in group.scores] for group in groups], bool)
    cut = [[sample.finish_reason == "length" for sample in group.samples] for group in groups]
    truncated = np.array(cut, bool)
    if overlong == "zero":
        rewards = np.where(truncated, np.float32(0), rewards)
    return Graded(rewards, keep, truncated)


def refuse_failed(groups: Sequence[Group], limit: float, stage: str) -> float:
    """Returns the share of members whose grader failed; raises when it passes `limit`."""
    failed = [score for group in groups for score in group.scores if score.status != "ok"]
    share = len(failed) / max(1, sum(len(group.scores) for group in groups))
    if share > limit:
        reasons = sorted({score.reason for score in failed})
        raise InputError(
            f"stage {stage}: {share:.0%} of samples could not be graded, max_failed_share is {limit:.0%}; "
            f"first reason: {reasons[0]}; mend the grader or raise max_failed_share"
        )
    return share


def policy_batch(
    groups: Sequence[Group], graded: Graded, config: GRPOConfig, *, drawn: int
) -> tuple[Batch, np.ndarray]:
    """Packs the groups' samples into one batch; returns it with the advantages Q G.

    A token is valid when it is part of a completion that was graded and not masked as truncated. The
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
        packed.arrays["advantages"][row, answer] = advantages[g, m]
        if valid[g, m]:
            packed.arrays["weights"][row, answer] = 1.0 / counts[g] if per_group else 1.0
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
    for (g, m), (row, answer) in packed.places.items():
        packed.arrays["weights"][row, answer] = 1.0 / len(groups[g].samples[m].completion_tokens)
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
    """Packs all samples of the groups; groups of different blocks never share a row.

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
    rows = -(-max(rows, 1) // ROWS_MULTIPLE) * ROWS_MULTIPLE
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
        arrays["completion_mask"][row, answer] = True
        arrays["sampler_logprobs"][row, answer] = sample.logprobs
        answers[g, m] = row, answer
    return Packed(arrays, answers, ranges)


def _size(group: Group, member: int) -> int:
    """Returns the places a sample takes: the first token is no target."""
    return len(group.prompt_tokens) + len(group.samples[member].completion_tokens) - 1


def _lengths(groups: Sequence[Group]) -> np.ndarray:
    return np.array(
        [[len(sample.completion_tokens) for sample in group.samples] for group in groups]
    )


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


def records(
    step: int,
    groups: Sequence[Group],
    graded: Graded,
    fates: Sequence[str],
    *,
    advantages: Sequence[np.ndarray | None],
    digest: str,
) -> list[dict[str, Any]]:
    """Returns one record a sample for rollouts/STEP.jsonl; `used` says what became of its group.

    used: "update", "filtered" (all rewards equal), "failed" (fewer than two graded members) or
    "surplus" (usable, not needed). `reward` is the one that was learned from, after the overlong rule.
    """
    out = []
    for index, (group, fate) in enumerate(zip(groups, fates, strict=True)):
        about = {
            "step": step,
            "group": index,
            "draw": group.draw,
            "used": fate,
            "id": group.row.id,
            "where": group.row.where,
            "agent": group.row.agent,
            "domain": reward_for(group.row).domain,
            "prompt": group.row.messages[-1].content,
            "prompt_tokens": list(group.prompt_tokens),
        }
        for member, (sample, score) in enumerate(zip(group.samples, group.scores, strict=True)):
            reward, reason = _verdict(graded, score, (index, member))
            given = advantages[index]
            out.append(
                about
                | {
                    "sample": member,
                    "completion": group.texts[member],
                    "completion_tokens": list(sample.completion_tokens),
                    "logprobs": [float(value) for value in sample.logprobs],
                    "finish_reason": sample.finish_reason,
                    "stop": sample.stop,
                    "reward": reward,
                    "status": score.status,
                    "reason": reason,
                    "parts": dict(score.parts),
                    "advantage": None if given is None else float(given[member]),
                    "weights": digest,
                }
            )
    return out


def _verdict(graded: Graded, score: Score, place: tuple[int, int]) -> tuple[float | None, str]:
    """Returns the reward that counts and why; a truncated answer may count as 0."""
    if score.reward is None:
        return None, score.reason
    counted = float(graded.rewards[place])
    if graded.truncated[place] and counted != score.reward:
        return counted, f"truncated; graded {score.reward:g}: {score.reason}"
    return score.reward, score.reason


def choose_groups(graded: Graded, wanted: int, dynamic_filtering: bool) -> list[str]:
    """Returns what becomes of each group, in draw order: update, filtered, failed or surplus."""
    enough, differ = usable_groups(graded.rewards, graded.keep)
    fates, taken = [], 0
    for has_members, has_signal in zip(enough, differ, strict=True):
        if not has_members:
            fates.append("failed")
        elif dynamic_filtering and not has_signal:
            fates.append("filtered")
        else:
            fates.append("update" if taken < wanted else "surplus")
            taken += 1
    return fates
