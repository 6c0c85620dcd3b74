"""Groups of graded samples: what the grader is shown, what its verdicts become, what is recorded."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nemocascade_jax.advantages import usable_groups
from nemocascade_jax.config import SamplingConfig
from nemocascade_jax.data import chat
from nemocascade_jax.data.tokenizer import Tokenizer
from nemocascade_jax.errors import InputError
from nemocascade_jax.rewards import reward_for
from nemocascade_jax.rows.records import Completion, FinishReason, Row, Score
from nemocascade_jax.sampler.engine import Sample

Grade = Callable[[Sequence[tuple[Row, Completion]]], list[Score]]


@dataclasses.dataclass(frozen=True)
class Trajectory:
    """A completion of several turns: what was sampled and, between it, what the world answered.

    `completion_tokens` are all ids behind the prompt, each as it was sampled or rendered once;
    `logprobs` are 0 where `produced` is False. It ends with a sampled token.
    """

    completion_tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    produced: tuple[bool, ...]
    turns: tuple[FinishReason, ...]  # why each turn ended, "tool" where the world was asked
    stop: str | int | None  # what ended the last turn

    @property
    def finish_reason(self) -> FinishReason:
        return self.turns[-1]


@dataclasses.dataclass(frozen=True)
class Group:
    """One prompt with its graded samples."""

    draw: int  # index in the stage's stream
    row: Row
    prompt_tokens: tuple[int, ...]
    samples: tuple[Sample | Trajectory, ...]
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


def produced(sample: Sample | Trajectory) -> np.ndarray:
    """Returns which tokens of a completion the policy sampled: all of a single turn's."""
    if isinstance(sample, Trajectory):
        return np.array(sample.produced, bool)
    return np.ones(len(sample.completion_tokens), bool)


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
                    **_turns(sample),
                    "reward": reward,
                    "status": score.status,
                    "reason": reason,
                    "parts": dict(score.parts),
                    "advantage": None if given is None else float(given[member]),
                    "weights": digest,
                }
            )
    return out


def _turns(sample: Sample | Trajectory) -> dict[str, Any]:
    """Returns what a record says of several turns: why each ended, and whose each token is."""
    if not isinstance(sample, Trajectory):
        return {}
    return {"turns": list(sample.turns), "produced": list(sample.produced)}


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
