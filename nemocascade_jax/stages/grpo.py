"""GRPO: groups of samples from the policy, standardised rewards, one update a batch (paper 2.2)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from nemocascade_jax import losses, rollout
from nemocascade_jax.config import GRPOConfig
from nemocascade_jax.digest import weights_digest
from nemocascade_jax.errors import InputError
from nemocascade_jax.rollout import Graded, Group
from nemocascade_jax.sampler.sampling import sample_key
from nemocascade_jax.sampler.scoring import make_scorer
from nemocascade_jax.stages.draw import dropped_records, group_metrics, make_draw
from nemocascade_jax.stages.handles import StageIO
from nemocascade_jax.stages.updates import make_sampled_loss, run_updates
from nemocascade_jax.state import Batch, TrainState
from nemocascade_jax.train import Collected, LossSum, put_batch


def grpo(state: TrainState, config: GRPOConfig, io: StageIO) -> TrainState:
    """Returns the state after `config.steps` updates, or earlier when every group is solved."""
    return run_updates(
        state,
        config,
        io,
        collect=make_collect(config, io),
        loss_sum=make_loss_sum(config, io),
    )


def make_loss_sum(config: GRPOConfig, io: StageIO) -> LossSum:
    """Returns the summed policy-gradient loss with its metrics."""
    return make_sampled_loss(
        config,
        io,
        lambda logprobs, batch: losses.policy_gradient_sum(logprobs, batch, config.kl_coef),
    )


def make_collect(config: GRPOConfig, io: StageIO) -> Callable[[TrainState], Collected]:
    """Returns the function that draws, samples and grades until the update has its groups."""
    draw = make_draw(config, io)
    score_ref = _make_reference(config, io)

    def collect(state: TrainState) -> Collected:
        step, digest = int(state.step), weights_digest(state.params)
        key = sample_key(io.seed, io.name, step)
        groups: list[Group] = []
        dropped: list[dict[str, Any]] = []
        seconds = {"time/rollout_s": 0.0, "time/reward_s": 0.0}
        cursor, batches = int(state.cursor), 0
        while True:
            found, lost, cursor = draw(state.params, cursor, key, seconds)
            groups, dropped, batches = groups + found, dropped + lost, batches + 1
            failed = rollout.refuse_failed(groups, config.max_failed_share, io.name)
            graded = rollout.to_arrays(groups, config.overlong)
            fates = rollout.choose_groups(graded, config.prompts_per_step, config.dynamic_filtering)
            enough = fates.count("update") == config.prompts_per_step
            if enough or not config.dynamic_filtering or batches == config.refill_batches:
                break
        used = [index for index, fate in enumerate(fates) if fate == "update"]
        metrics = group_metrics(groups, graded, fates, batches, failed, len(dropped))
        advantages: list[np.ndarray | None] = [None] * len(groups)
        batch = None
        if used:
            kept = Graded(graded.rewards[used], graded.keep[used], graded.truncated[used])
            batch, given = rollout.policy_batch(
                [groups[index] for index in used], kept, config, drawn=cursor - int(state.cursor)
            )
            for index, values in zip(used, given, strict=True):
                advantages[index] = values
            batch = score_ref(put_batch(batch, io.mesh, io.rules))
        else:
            metrics["progress/ended"] = _why_over(graded, io.name, batches)
        records = rollout.records(
            step + 1, groups, graded, fates, advantages=advantages, digest=digest
        )
        return Collected(batch, metrics, dropped_records(step + 1, dropped) + records, seconds)

    return collect


def _make_reference(config: GRPOConfig, io: StageIO) -> Callable[[Batch], Batch]:
    """Returns the function that adds `ref_logprobs` of the stage's starting policy, if KL is asked for."""
    if config.kl_coef == 0:
        return lambda batch: batch
    reference = io.start_params()
    scorer = make_scorer(io.model, io.shard, config.sampling, io.tokenizer.size)
    score = jax.jit(lambda params, batch: scorer(params, batch).logprobs)
    return lambda batch: dataclasses.replace(batch, ref_logprobs=score(reference, batch))


def _why_over(graded: Graded, stage: str, batches: int) -> str:
    """Returns "solved" when every group is at the maximum; raises when there is no signal otherwise."""
    rewards = graded.rewards[graded.keep]
    if rewards.size and rewards.min() == rewards.max() and rewards.max() >= 1.0:
        return "solved"
    values, counts = np.unique(rewards, return_counts=True)
    said = ", ".join(f"{value:g} x {count}" for value, count in zip(values, counts, strict=True))
    raise InputError(
        f"stage {stage}: no group with differing rewards in {batches} generation batches; rewards were "
        f"{said or 'none'}; use easier rows, a larger group_size, or a better starting checkpoint"
    )
