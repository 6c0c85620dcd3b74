"""The frozen records of arrays that the loop passes around."""

from __future__ import annotations

import dataclasses
from typing import Any

import flax.struct
import jax
from jaxtyping import Array, Bool, Float, Int


@flax.struct.dataclass
class TrainState:
    """All arrays a stage's future depends on; reference policy and teachers are inputs, not state."""

    step: Int[Array, ""]  # updates done in this stage
    cursor: Int[Array, ""]  # examples drawn in this stage
    params: Any
    opt_state: Any


@flax.struct.dataclass
class Batch:
    """Rows for one update. Entry t of every per-token array speaks of predicting `targets[t]`.

    `weights` multiplies each token's loss term: 1 on counted tokens for token means, 1/|V(y)| where a
    sequence is averaged first. `denominator` is the count that the summed loss is divided by, over
    the whole global batch. `drawn` is how many examples the batch took from the stage's stream.
    """

    tokens: Int[Array, "B T"]
    targets: Int[Array, "B T"]
    completion_mask: Bool[Array, "B T"]
    segment_ids: Int[Array, "B T"]
    positions: Int[Array, "B T"]
    weights: Float[Array, "B T"]
    denominator: Float[Array, ""]
    drawn: Int[Array, ""]
    advantages: Float[Array, "B T"] | None = None
    sampler_logprobs: Float[Array, "B T"] | None = None
    ref_logprobs: Float[Array, "B T"] | None = None
    teacher_logprobs: Float[Array, "B T"] | None = None


@dataclasses.dataclass(frozen=True)
class HostState:
    """What a future depends on beside the arrays; stored in the same checkpoint as they are."""

    stage: str
    step: int
    log_bytes: dict[str, int]  # length of each log when this state was saved
    counters: dict[str, int]  # sums a run reports: skipped updates, dropped prompts, ...
    version: int = 1


def fresh_state(params: Any, opt_state: Any) -> TrainState:
    """Returns the state a stage starts from."""
    step, cursor = (
        jax.numpy.zeros((), jax.numpy.int32) for _ in range(2)
    )  # two buffers: both are donated
    return TrainState(step=step, cursor=cursor, params=params, opt_state=opt_state)
