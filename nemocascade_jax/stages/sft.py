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
from nemocascade_jax.sampler.scoring import make_scorer
from nemocascade_jax.stages.handles import StageIO
from nemocascade_jax.stages.updates import run_updates
from nemocascade_jax.state import Batch, TrainState
from nemocascade_jax.train import Collected, load_metrics, put_batch


def sft(state: TrainState, config: SFTConfig, io: StageIO) -> TrainState:
    """Returns the state after `config.steps` updates on packed rows of `io.stream`."""
    return run_updates(
        state,
        config,
        io,
        collect=make_collect(config, io),
        loss_sum=make_loss_sum(io),
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


def make_loss_sum(io: StageIO) -> Callable[[Any, Batch], tuple[jax.Array, Any]]:
    """Returns the summed cross-entropy with its metrics."""
    scorer = make_scorer(io.model, io.shard, None, io.model.vocab_size)

    def loss_sum(params: Any, batch: Batch) -> tuple[jax.Array, Any]:
        scored = scorer(params, batch)
        total, sums = losses.cross_entropy_sum(scored.logprobs, batch)
        return total, (sums, load_metrics(scored.expert_load))

    return loss_sum
