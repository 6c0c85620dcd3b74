"""Log-probs of given tokens under the distribution that the sampler draws from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from nemocascade_jax.config import ModelConfig, SamplingConfig
from nemocascade_jax.models import hybrid
from nemocascade_jax.sampler import sampling as distribution
from nemocascade_jax.sharding import Shard
from nemocascade_jax.state import Batch

# A k-th and a (k+1)-th choice closer than this may swap between two equally right programs in
# float32; in bfloat16 nearly every choice could, and the count says nothing.
NEAR_TIE = 1e-6


class Scored(NamedTuple):
    """Per-token results for one batch, aligned with `batch.targets`."""

    logprobs: Float[Array, "B T"]
    entropy: Float[Array, "B T"]  # nats, of the full distribution; carries no gradient
    near_tie: Bool[Array, "B T"]
    expert_load: Float[Array, "L E"]  # tokens each expert of each MoE layer took


def make_scorer(
    cfg: ModelConfig,
    shard: Shard,
    sampling: SamplingConfig | None,
    vocab_limit: int,
    remat: bool = False,
) -> Callable[[Any, Batch], Scored]:
    """Returns the function (params, batch) -> Scored; `sampling` None scores the plain softmax."""
    top_k, top_p = (sampling.top_k, sampling.top_p) if sampling else (None, 1.0)
    settings: dict[str, Any] = {
        "temperature": sampling.temperature if sampling else 1.0,
        "top_k": top_k,
        "top_p": top_p,
        "vocab_limit": vocab_limit,
    }

    def score(params: Any, batch: Batch) -> Scored:
        hidden, aux = hybrid.forward(
            params, batch.tokens, batch.segment_ids, cfg, shard, remat="full" if remat else "none"
        )
        logits = hybrid.logits(params, hidden, cfg)
        logprobs = distribution.token_logprobs(logits, batch.targets, **settings)
        near_tie = _from_there_on(aux.router_margin < NEAR_TIE, batch)
        if top_p < 1 or top_k is not None:  # a border of the nucleus touches its own token only
            near_tie |= distribution.nucleus_margin(logits, batch.targets, **settings) < NEAR_TIE
        return Scored(
            logprobs,
            _entropy(jax.lax.stop_gradient(logits)),
            near_tie,
            aux.expert_load,
        )

    return score


def _entropy(logits: Float[Array, "B T V"]) -> Float[Array, "B T"]:
    logprobs = jax.nn.log_softmax(logits, axis=-1)
    return -(jnp.exp(logprobs) * logprobs).sum(axis=-1)


def _from_there_on(near: Bool[Array, "B T"], batch: Batch) -> Bool[Array, "B T"]:
    """Marks a near tie and what follows it in its segment: the state carries the choice on."""
    seen = jnp.cumsum(near, axis=1)
    starts = batch.positions == 0
    before = jax.lax.cummax(jnp.where(starts, seen - near, -1), axis=1)
    return seen > jnp.maximum(before, 0)
