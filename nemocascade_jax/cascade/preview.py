"""The batches that a stage would train on, as plain rows, without an update."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from nemocascade_jax.cascade.graph import House
from nemocascade_jax.cascade.inputs import Inputs
from nemocascade_jax.cascade.watcher import Console
from nemocascade_jax.config import RunConfig
from nemocascade_jax.errors import InputError
from nemocascade_jax.rows.records import Completion, Row, Score
from nemocascade_jax.stages import grpo, mopd, sft
from nemocascade_jax.stages.handles import Grade
from nemocascade_jax.state import fresh_state

COLLECTS: dict[str, Callable[..., Any]] = {
    "sft": sft.make_collect,
    "grpo": grpo.make_collect,
    "mopd": mopd.make_collect,
}
LISTED = ("tokens", "targets", "completion_mask", "segment_ids", "positions")
LISTED_RL = ("advantages", "teacher_logprobs", "sampler_logprobs", "weights")


def stage_batches(
    run: RunConfig,
    inputs: Inputs,
    stage: str,
    steps: int,
    *,
    grade: Grade,
    rewards: dict[tuple[int, int], dict[str, Any]] | None,
) -> Iterator[dict[str, Any]]:
    """Yields one record a batch row; RL rows say which group and sample each segment is.

    With `rewards`, the score of sample s of the g-th group drawn in a step is looked up there.
    """
    config: Any = run.stages[stage]
    quiet = Console(say=lambda line: None, progress=lambda *_: None, stop_signal=lambda: None)
    house = House(run, pathlib.Path(), inputs, grade, quiet)
    use = grade if rewards is None else _given(rewards, getattr(config, "group_size", 1))
    teachers = house.outside_teachers(stage)
    io = dataclasses.replace(house.io(stage, lambda: params, _no_effect, teachers), grade=use)
    params = house.starting_params()
    state = fresh_state(params, ())
    collect = COLLECTS[config.kind](config, io)
    for step in range(steps):
        collected = collect(state)
        if collected.batch is None:
            return
        batch = jax.device_get(collected.batch)
        yield from _rows(step + 1, batch, collected.records)
        state = dataclasses.replace(
            state, step=state.step + 1, cursor=state.cursor + jnp.int32(batch.drawn)
        )


def _no_effect(*_: Any) -> None:
    """A preview has no step after which anything is done."""


def _given(rewards: dict[tuple[int, int], dict[str, Any]], group_size: int) -> Grade:
    def grade(jobs: Sequence[tuple[Row, Completion]]) -> list[Score]:
        scores = []
        for index in range(len(jobs)):
            key = divmod(index, group_size)
            if key not in rewards:
                raise InputError(f"--rewards: no line for group {key[0]}, sample {key[1]}")
            entry = rewards[key]
            status = entry.get("status", "ok")
            reward = float(entry["reward"]) if status == "ok" else None
            scores.append(Score(reward, status, entry.get("reason", "given")))
        return scores

    return grade


def _rows(step: int, batch: Any, records: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    sampled = batch.sampler_logprobs is not None
    names = (*LISTED, *(name for name in LISTED_RL if sampled and getattr(batch, name) is not None))
    arrays = {name: np.asarray(getattr(batch, name)) for name in names}
    used = [record for record in records if record["used"] == "update"]
    for row in range(arrays["tokens"].shape[0]):
        line = {"step": step, "row": row, **{name: arrays[name][row].tolist() for name in names}}
        line["denominator"] = float(batch.denominator)
        if sampled:
            line["segments"] = _segments(arrays, row, used)
            for name in ("group", "sample", "reward", "status", "advantage", "finish_reason"):
                values = [segment[name] for segment in line["segments"]]
                line[name] = values[0] if len(values) == 1 else values
        yield line


def _segments(
    arrays: dict[str, np.ndarray], row: int, used: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Returns, for each segment of a row in order, which sample it is, found by its tokens."""
    out: list[dict[str, Any]] = []
    for number in range(1, int(arrays["segment_ids"][row].max()) + 1):
        here = arrays["segment_ids"][row] == number
        tokens = [*arrays["tokens"][row][here].tolist(), int(arrays["targets"][row][here][-1])]
        logprobs = arrays["sampler_logprobs"][row][here & arrays["completion_mask"][row]].tolist()
        match = next(
            r
            for r in used
            if r["prompt_tokens"] + r["completion_tokens"] == tokens
            and np.array_equal(np.float32(r["logprobs"]), np.float32(logprobs))
            and (r["group"], r["sample"]) not in [(s["group"], s["sample"]) for s in out]
        )
        keys = ("group", "sample", "reward", "status", "advantage", "finish_reason")
        out.append({"segment": number, **{key: match[key] for key in keys}})
    return out
