"""Supervised fine-tuning: packed conversations, cross-entropy on what the assistant produced."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jax

from nemocascade_jax import losses
from nemocascade_jax.config import SFTConfig
from nemocascade_jax.data import chat
from nemocascade_jax.data.batches import make_sft_batches
from nemocascade_jax.models import hybrid
from nemocascade_jax.sampler.sampling import token_logprobs
from nemocascade_jax.stages.handles import StageIO
from nemocascade_jax.stages.updates import run_updates
from nemocascade_jax.state import Batch, TrainState
from nemocascade_jax.train import (
    Collected,
    LossSum,
    Measured,
    Rebalance,
    load_metrics,
    put_batch,
)

PLAIN: dict[str, Any] = {"temperature": 1.0, "top_k": None, "top_p": 1.0}


def sft(state: TrainState, config: SFTConfig, io: StageIO) -> TrainState:
    """Returns the state after `config.steps` updates on packed rows of `io.stream`."""
    return run_updates(
        state,
        config,
        io,
        collect=make_collect(config, io),
        loss_sum=make_loss_sum(config, io),
        rebalance=make_rebalance(config, io),
    )


def make_collect(config: SFTConfig, io: StageIO) -> Callable[[TrainState], Collected]:
    """Returns the function that packs the next examples of the stream."""
    next_batch = make_sft_batches(
        io.stream, lambda row: chat.render_example(row, io.tokenizer), config.packing
    )

    def collect(state: TrainState) -> Collected:
        began = time.perf_counter()
        found = next_batch(int(state.cursor))
        arrays: dict[str, Any] = found.arrays
        batch = Batch(**arrays)
        metrics: dict[str, float | int | str] = {
            f"data/{name}": value for name, value in found.counters.items()
        }
        metrics |= {
            "data/examples": int(batch.drawn) - found.counters["dropped"],
            "data/fill": float((batch.segment_ids > 0).mean()),
        }
        batch = put_batch(batch, io.mesh, io.rules)
        return Collected(batch, metrics, [], {"time/data_s": time.perf_counter() - began})

    return collect


def make_loss_sum(config: SFTConfig, io: StageIO) -> LossSum:
    """Returns the summed cross-entropy, plus the routers' balance loss when it is asked for.

    The balance loss weighs each segment by its supervised tokens, so both are divided by one count
    and neither packing, micro-batches nor meshes change them.
    """
    cfg = io.model

    def loss_sum(params: Any, batch: Batch) -> tuple[jax.Array, Measured]:
        weights = batch.weights if config.balance_coef else None
        hidden, aux = hybrid.forward(
            params, batch.tokens, batch.segment_ids, cfg, io.shard, balance_weights=weights
        )
        logprobs = token_logprobs(
            hybrid.logits(params, hidden, cfg), batch.targets, vocab_limit=cfg.vocab_size, **PLAIN
        )
        total, sums = losses.cross_entropy_sum(logprobs, batch)
        if weights is not None:
            total = total + config.balance_coef * aux.balance
            sums["moe/balance_loss"] = (aux.balance, weights.sum())
        return total, Measured(sums, load_metrics(aux.expert_load), aux.expert_load)

    return loss_sum


def make_rebalance(config: SFTConfig, io: StageIO) -> Rebalance | None:
    """Returns the rule that moves the selection biases after an update, None when it is off."""
    if not config.bias_update_rate:
        return None

    def rebalance(params: Any, expert_load: jax.Array) -> Any:
        return hybrid.balanced_biases(params, expert_load, io.model, config.bias_update_rate)

    return rebalance
