"""What every stage kind does with its batches: the updates, and the loss of a sampled batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from nemocascade_jax import losses
from nemocascade_jax.config import GRPOConfig, MOPDConfig, SFTConfig
from nemocascade_jax.optim import make_optimizer, trained_leaves
from nemocascade_jax.sampler.scoring import make_scorer
from nemocascade_jax.stages.handles import StageIO
from nemocascade_jax.state import Batch, TrainState
from nemocascade_jax.train import (
    Collected,
    LossSum,
    Measured,
    Rebalance,
    fit,
    load_metrics,
    make_train_step,
)


def run_updates(
    state: TrainState,
    config: SFTConfig | GRPOConfig | MOPDConfig,
    io: StageIO,
    *,
    collect: Callable[[TrainState], Collected],
    loss_sum: LossSum,
    rebalance: Rebalance | None = None,
) -> TrainState:
    """Returns the state after `config.steps` updates, or earlier when `collect` says it is over."""
    step = make_train_step(
        loss_sum,
        make_optimizer(config.optim, io.specs, config.steps),
        config.microbatches,
        trained_leaves(config.optim, io.specs),
        rebalance,
    )
    return fit(state, collect, step, config.steps, io.after_step)


def make_sampled_loss(
    config: GRPOConfig | MOPDConfig,
    io: StageIO,
    loss: Callable[[jax.Array, Batch], tuple[jax.Array, losses.Sums]],
) -> LossSum:
    """Returns `loss` of the trainer's log-probs, with what every sampled batch is watched by.

    That is entropy, the gap between sampler and trainer, and the load of the experts.
    """
    scorer = make_scorer(io.model, io.shard, config.sampling, io.tokenizer.size)

    def loss_sum(params: Any, batch: Batch) -> tuple[jax.Array, Measured]:
        scored = scorer(params, batch)
        total, sums = loss(scored.logprobs, batch)
        answer = batch.completion_mask
        sums["policy/entropy"] = (losses.masked(scored.entropy, answer).sum(), answer.sum())
        sums["policy/near_tie_frac"] = ((scored.near_tie & answer).sum(), answer.sum())
        largest = losses.sampler_gap(scored.logprobs, batch, scored.near_tie)
        return total, Measured(sums, largest | load_metrics(scored.expert_load))

    return loss_sum
