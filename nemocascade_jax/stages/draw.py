"""What every stage that samples does: prompts of the stream through the sampler and the grader."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from nemocascade_jax import rollout
from nemocascade_jax.config import GRPOConfig, MOPDConfig, SamplingConfig
from nemocascade_jax.errors import InputError
from nemocascade_jax.rewards import reward_for
from nemocascade_jax.rollout import Graded, Group
from nemocascade_jax.rows.records import Row
from nemocascade_jax.sampler.engine import Sampler, make_sampler
from nemocascade_jax.stages.handles import StageIO


def dropped_records(step: int, dropped: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the records of prompts that were drawn and found too long to sample from."""
    return [{"step": step, "used": "dropped", **entry} for entry in dropped]


def make_draw(config: GRPOConfig | MOPDConfig, io: StageIO) -> Callable[..., tuple]:
    """Returns the function that takes the next prompts of the stream through sampler and grader."""
    roll = rollout.make_rollout(
        make_sampler_of(io),
        config.sampling,
        config.turns,
        tokenizer=io.tokenizer,
        grade=io.grade,
    )

    def draw(params: Any, cursor: int, key: jax.Array, seconds: dict[str, float]) -> tuple:
        began = time.perf_counter()
        taken: list[tuple[int, Row, tuple[int, ...]]] = []
        dropped: list[dict[str, Any]] = []
        first = cursor
        while len(taken) < config.prompts_per_step:
            row = io.stream[cursor]
            prompt = rollout.render_row(row, io.tokenizer, config.sampling)
            if len(prompt) <= config.sampling.max_prompt_tokens:
                taken.append((cursor, row, prompt))
            else:
                dropped.append(
                    {"draw": cursor, "id": row.id, "where": row.where, "length": len(prompt)}
                )
            cursor += 1
            if not taken and cursor - first > 10 * config.prompts_per_step:
                raise InputError(
                    f"stage {io.name}: {len(dropped)} prompts in a row are longer than "
                    f"sampling.max_prompt_tokens {config.sampling.max_prompt_tokens} "
                    f"(the last has {len(prompt)}, {row.where}); raise it"
                )
        rendered = time.perf_counter()
        groups, sampling_s, grading_s = roll(params, taken, config.group_size, key)
        seconds["time/rollout_s"] += rendered - began + sampling_s
        seconds["time/reward_s"] += grading_s
        return groups, dropped, cursor

    return draw


def make_sampler_of(io: StageIO) -> Callable[[SamplingConfig], Sampler]:
    """Returns the function that makes the stage's sampler for some settings."""

    def make(sampling: SamplingConfig) -> Sampler:
        return make_sampler(
            io.model,
            sampling,
            io.shard,
            vocab_limit=io.tokenizer.size,
            stop_ids=io.tokenizer.stop_ids,
            decode=io.tokenizer.decode,
            max_len=sampling.max_prompt_tokens + sampling.max_completion_tokens,
        )

    return make


def group_metrics(
    groups: list[Group], graded: Graded, fates: list[str], batches: int, failed: float, dropped: int
) -> dict[str, float | int | str]:
    """Returns what a step's groups tell: rewards, lengths, and what became of them."""
    lengths = [int(rollout.produced(s).sum()) for group in groups for s in group.samples]
    kept = np.where(graded.keep, graded.rewards, np.nan)
    used = np.array([fate == "update" for fate in fates])
    metrics: dict[str, float | int | str] = {
        "reward/mean": _mean(kept),
        "reward/std": _mean(
            np.array([row[~np.isnan(row)].std() for row in kept if not np.isnan(row).all()])
        ),
        "reward/used_mean": _mean(kept[used]),
        "rollout/length_mean": _mean(np.array(lengths, np.float64)),
        "rollout/truncated_frac": _mean(graded.truncated.astype(np.float64)),
        "rollout/kept_groups": fates.count("update"),
        "rollout/filtered_groups": fates.count("filtered"),
        "rollout/surplus_groups": fates.count("surplus"),
        "rollout/dropped_prompts": dropped,
        "rollout/failed_frac": failed,
        "rollout/batches": batches,
        "rollout/samples": len(lengths),
    }
    domains = np.array([reward_for(group.row).domain for group in groups])
    for domain in sorted(set(domains)):
        metrics[f"reward/{domain}"] = _mean(kept[domains == domain])
    return metrics


def _mean(values: np.ndarray) -> float:
    found = values[~np.isnan(values)]
    return float(found.mean()) if found.size else 0.0
