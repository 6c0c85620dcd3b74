"""Graded groups of rows of every kind: of one turn, and of an environment of several."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax

from nemocascade_jax.config import SamplingConfig, TurnsConfig
from nemocascade_jax.data.tokenizer import Tokenizer
from nemocascade_jax.environments import has_environment
from nemocascade_jax.errors import InputError
from nemocascade_jax.rollout.groups import Grade, Group, grade_groups
from nemocascade_jax.rollout.turns import Limits, chat_play, make_play, turn_sampling
from nemocascade_jax.rows.records import Row
from nemocascade_jax.sampler.engine import Sampler

Drawn = tuple[int, Row, tuple[int, ...]]  # draw index, row, prompt ids


class Rolled(NamedTuple):
    """Groups in the order drawn, and what they took; an environment's part counts as sampling."""

    groups: list[Group]
    sampling_s: float
    grading_s: float


def make_rollout(
    make: Callable[[SamplingConfig], Sampler],
    sampling: SamplingConfig,
    turns: TurnsConfig | None,
    *,
    tokenizer: Tokenizer,
    grade: Grade,
) -> Callable[..., Rolled]:
    """Returns the function (params, drawn, group_size, key) -> graded groups.

    `make` gives the sampler of some settings. Rows of one turn are sampled and graded as if there were
    no others. A trajectory has at most `turns.max_turns` turns of `turns.turn_tokens` and is no longer
    than `max_prompt_tokens` + `max_completion_tokens`; with None, rows of an environment are refused.
    """
    sampler = make(sampling)
    play = None
    if turns is not None:
        whole = sampling.max_prompt_tokens + sampling.max_completion_tokens
        play = make_play(
            make(turn_sampling(sampling, turns.turn_tokens)),
            chat_play(tokenizer, thinking=sampling.thinking),
            Limits(turns.max_turns, turns.turn_tokens, whole),
        )
    graded = functools.partial(
        grade_groups, tokenizer=tokenizer, thinking=sampling.thinking, grade=grade
    )

    def roll(params: Any, drawn: Sequence[Drawn], group_size: int, key: jax.Array) -> Rolled:
        began = time.perf_counter()
        once = [one for one in drawn if not has_environment(one[1])]
        often = [one for one in drawn if has_environment(one[1])]
        if often and play is None:
            row = often[0][1]
            raise InputError(
                f"{row.where}: {row.agent} answers in several turns; say how many and how long they "
                "may be (turns.max_turns, turns.turn_tokens), or leave its rows out"
            )
        played = play(params, often, group_size, key) if often and play is not None else []
        samples = []
        if once:
            prompts, draws = [prompt for _, _, prompt in once], [draw for draw, _, _ in once]
            samples = sampler(params, prompts, draws, group_size, key)
        sampled = time.perf_counter()
        groups = iter(graded(once, samples)) if once else iter(())
        worlds = iter(played)
        merged = [next(worlds if has_environment(row) else groups) for _, row, _ in drawn]
        return Rolled(merged, sampled - began, time.perf_counter() - sampled)

    return roll
