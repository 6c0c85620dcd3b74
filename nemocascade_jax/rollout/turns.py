"""Rollouts over several turns: sample, let the world answer, sample on behind its answer.

Every turn is one call of the sampler with the whole of the ids so far as the prompt. Sampled ids are
kept as they were drawn and never made again from text; the world's answer is rendered once and put
behind them. A turn's key is the step's key folded with the turn, then (draw, sample), so a trajectory
depends on neither its neighbours nor on when they end.
"""

from __future__ import annotations

import dataclasses
import functools
import time
import zlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax

from nemocascade_jax.config import SamplingConfig
from nemocascade_jax.data import chat
from nemocascade_jax.data.tokenizer import Tokenizer
from nemocascade_jax.environments import start_environment
from nemocascade_jax.errors import InputError
from nemocascade_jax.rollout.groups import Group, Trajectory
from nemocascade_jax.rows.records import (
    Completion,
    Environment,
    FinishReason,
    Message,
    Row,
    RowError,
    Score,
)
from nemocascade_jax.sampler.engine import Sample, Sampler


class Limits(NamedTuple):
    """Where a trajectory ends at the latest."""

    turns: int  # of the assistant
    turn_tokens: int  # sampled in one turn
    tokens: int  # prompt and everything behind it


class Play(NamedTuple):
    """The world of a rollout: how one starts, how turns are read, how its answers are rendered."""

    start: Callable[[Row], Environment]
    read: Callable[[Sequence[int]], str]  # sampled ids -> the assistant message
    # (row, messages so far, the world's answer) -> its ids, up to the first of the next turn
    render: Callable[[Row, Sequence[Message], Sequence[Message]], list[int]]


@dataclasses.dataclass
class _Open:
    """A trajectory on its way."""

    draw: int
    row: Row
    prompt: tuple[int, ...]
    member: int
    world: Any  # an Environment
    messages: list[Message]
    tokens: list[int] = dataclasses.field(default_factory=list)
    logprobs: list[float] = dataclasses.field(default_factory=list)
    produced: list[bool] = dataclasses.field(default_factory=list)
    turns: list[FinishReason] = dataclasses.field(default_factory=list)
    stop: str | int | None = None
    answer: list[int] = dataclasses.field(default_factory=list)  # rendered, not yet in `tokens`
    over: bool = False
    fault: str = ""  # of the world, never of the policy


def chat_play(tokenizer: Tokenizer, *, thinking: bool) -> Play:
    """Returns the play of the rows' own environments in the chat format."""

    def render(row: Row, before: Sequence[Message], answers: Sequence[Message]) -> list[int]:
        return chat.render_continuation(
            before, answers, tokenizer, thinking=thinking, tools=row.tools
        )

    read = functools.partial(chat.assistant_text, tokenizer=tokenizer, thinking=thinking)
    return Play(start_environment, read, render)


def turn_sampling(sampling: SamplingConfig, turn_tokens: int) -> SamplingConfig:
    """Returns the sampler settings of one turn: its prompt may be all that comes before it.

    The length of the whole stays `max_prompt_tokens` + `max_completion_tokens`.
    """
    if sampling.stop or sampling.ignore_eos:
        raise InputError(
            "rollout: stop strings and ignore_eos do not go with several turns, which end with "
            "their own token; unset sampling.stop and sampling.ignore_eos"
        )
    if not 0 < turn_tokens <= sampling.max_completion_tokens:
        raise InputError(
            f"rollout: a turn of {turn_tokens} tokens does not fit in max_completion_tokens "
            f"{sampling.max_completion_tokens}, which all turns share; lower the one or raise the other"
        )
    before = sampling.max_prompt_tokens + sampling.max_completion_tokens - turn_tokens
    return dataclasses.replace(
        sampling, max_prompt_tokens=before, max_completion_tokens=turn_tokens
    )


def make_play(sampler: Sampler, play: Play, limits: Limits) -> Callable[..., list[Group]]:
    """Returns the function (params, drawn, group_size, key) -> graded groups, in the order drawn.

    `drawn` are (draw, row, prompt ids); the sampler was made with `turn_sampling`.
    """

    def run(
        params: Any,
        drawn: Sequence[tuple[int, Row, tuple[int, ...]]],
        group_size: int,
        key: jax.Array,
    ) -> list[Group]:
        groups = [[_begin(play, *one, member) for member in range(group_size)] for one in drawn]
        prompts, draws = [prompt for _, _, prompt in drawn], [draw for draw, _, _ in drawn]
        first = sampler(params, prompts, draws, group_size, key)
        for group, samples in zip(groups, first, strict=True):
            for one, sample in zip(group, samples, strict=True):
                _take(one, sample, play, limits)
        for turn in range(1, limits.turns):
            waiting = [one for group in groups for one in group if not one.over]
            if not waiting:
                break
            for one, sample in zip(
                waiting, _sample_on(sampler, params, waiting, group_size, key, turn), strict=False
            ):
                _take(one, sample, play, limits)
        return [
            _group(draw, row, prompt, group, play)
            for (draw, row, prompt), group in zip(drawn, groups, strict=True)
        ]

    return run


def _begin(play: Play, draw: int, row: Row, prompt: tuple[int, ...], member: int) -> _Open:
    world = play.start(row)
    return _Open(draw, row, prompt, member, world, list(world.reset(row)))


def _take(one: _Open, sample: Sample, play: Play, limits: Limits) -> None:
    """Puts a sampled turn behind the trajectory and asks the world for its answer."""
    one.tokens += [*one.answer, *sample.completion_tokens]
    one.logprobs += [0.0] * len(one.answer) + list(sample.logprobs)
    one.produced += [False] * len(one.answer) + [True] * len(sample.completion_tokens)
    one.stop, one.answer = sample.stop, []
    text = play.read(sample.completion_tokens)
    one.messages.append(Message("assistant", text))
    reason: FinishReason = sample.finish_reason
    if reason == "stop":
        try:
            answers = one.world.step(Completion(text))
        except InputError as error:
            answers, one.fault = (), f"the environment failed: {error}"
        if answers:
            one.answer = play.render(one.row, one.messages, answers)
            one.messages += answers
            reason = "tool"
            room = limits.tokens - len(one.prompt) - len(one.tokens) - len(one.answer)
            if len(one.turns) + 1 < limits.turns and room < limits.turn_tokens:
                reason = "length"
    one.turns.append(reason)
    one.over = reason != "tool" or len(one.turns) == limits.turns


def _sample_on(
    sampler: Sampler,
    params: Any,
    waiting: list[_Open],
    group_size: int,
    key: jax.Array,
    turn: int,
) -> list[Sample]:
    """Returns the next turn of each; rows are filled up to a power of two: few programs compile."""
    size = 1 << (len(waiting) - 1).bit_length()
    filled = [*waiting, *[waiting[0]] * (size - len(waiting))]
    # Each is a prompt of its own now, and its draw index tells the members of a group apart.
    prompts = [[*one.prompt, *one.tokens, *one.answer] for one in filled]
    draws = [one.draw * group_size + one.member for one in filled]
    turn_key = jax.random.fold_in(key, zlib.crc32(f"turn {turn}".encode()))
    return [samples[0] for samples in sampler(params, prompts, draws, 1, turn_key)]


def _group(
    draw: int, row: Row, prompt: tuple[int, ...], group: Sequence[_Open], play: Play
) -> Group:
    """Closes a prompt's trajectories and grades them."""
    return Group(
        draw,
        row,
        prompt,
        tuple(_close(one) for one in group),
        tuple(play.read(one.tokens) for one in group),
        tuple(_grade(one) for one in group),
    )


def _close(one: _Open) -> Trajectory:
    return Trajectory(
        tuple(one.tokens),
        tuple(one.logprobs),
        tuple(one.produced),
        tuple(one.turns),
        one.stop,
    )


def _grade(one: _Open) -> Score:
    """Returns the world's verdict; what the world cannot do is its own failure, never a zero."""
    if one.fault:
        return Score(None, "failed", one.fault)
    began = time.perf_counter()
    try:
        score = one.world.score(tuple(one.messages))
    except RowError as error:
        score = Score(None, "failed", str(error))
    return dataclasses.replace(score, seconds=time.perf_counter() - began)
