"""Losses as sums over tokens; the one division, by a count over the whole batch, is in `train`.

Each takes the log-probs of `batch.targets` under the parameters being trained, and returns the summed
loss with metrics as (sum, count) pairs. Masked places are made safe before any exponential, so a
-inf or an overflow at a masked place adds exactly 0 to value and gradient.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from nemocascade_jax.state import Batch

Sums = dict[str, tuple[jax.Array, jax.Array]]
K3_LINEAR_FROM = 20.0  # exp(20) = 4.9e8; above it k3 goes on along its tangent and stays finite


def masked(x: Float[Array, "*S"], mask: Bool[Array, "*S"]) -> Float[Array, "*S"]:
    """Returns `x` with 0 where the mask is off, and no gradient from there even for inf or NaN."""
    return jnp.where(mask, x, 0.0)


def cross_entropy_sum(logprobs: Float[Array, "B T"], batch: Batch) -> tuple[Float[Array, ""], Sums]:
    """Returns the weighted negative log-likelihood of the counted targets."""
    nll = -masked(logprobs, batch.completion_mask) * batch.weights
    total = nll.sum()
    return total, {"loss": (total, batch.weights.sum())}


def policy_gradient_sum(
    logprobs: Float[Array, "B T"], batch: Batch, kl_coef: float
) -> tuple[Float[Array, ""], Sums]:
    """Returns minus the sum of weight x advantage x ratio, plus the KL penalty when there is one.

    The ratio is exp(logp - stop_gradient(logp)): 1 in value, since a batch gets one update, with the
    REINFORCE gradient A * grad log pi (paper 2.2). The penalty is k3 against `ref_logprobs`.
    """
    assert batch.advantages is not None
    mask = batch.completion_mask & (batch.weights > 0)
    safe = masked(logprobs, mask)
    ratio = jnp.exp(safe - jax.lax.stop_gradient(safe))
    total = -(batch.weights * masked(batch.advantages, mask) * ratio).sum()
    count = batch.weights.sum()
    sums: Sums = {"policy/advantage_abs": (jnp.abs(batch.weights * batch.advantages).sum(), count)}
    if batch.ref_logprobs is not None:
        penalty = (batch.weights * k3(masked(batch.ref_logprobs, mask) - safe)).sum()
        total = total + kl_coef * penalty
        sums["policy/kl_ref"] = (penalty, count)
    return total, sums | {"loss": (total, count)}


def distillation_sum(
    logprobs: Float[Array, "B T"], batch: Batch, band: tuple[float, float]
) -> tuple[Float[Array, ""], Sums]:
    """Returns the MOPD loss (paper 3.1): - sum of weight x w x sg[teacher - log pi] x log pi.

    w is the trainer/sampler ratio inside `band`, both ends included, and 0 outside: such a token is
    dropped, not clamped, and still counts in its sequence's length, which is in `weights`.
    """
    assert batch.teacher_logprobs is not None
    assert batch.sampler_logprobs is not None
    mask = batch.completion_mask & (batch.weights > 0)
    safe = masked(logprobs, mask)
    fixed = jax.lax.stop_gradient(safe)
    advantage = masked(batch.teacher_logprobs, mask) - fixed
    ratio = jnp.exp(fixed - masked(batch.sampler_logprobs, mask))
    inside = mask & (ratio >= band[0]) & (ratio <= band[1])
    total = -(batch.weights * masked(ratio, inside) * advantage * safe).sum()
    tokens = mask.sum()
    return total, {
        "loss": (total, batch.weights.sum()),
        "mopd/reverse_kl": (-(batch.weights * advantage).sum(), batch.weights.sum()),
        "mopd/advantage_abs": (jnp.abs(advantage).sum(), tokens),
        "mopd/dropped_frac": ((mask & ~inside).sum(), tokens),
    }


def k3(difference: Float[Array, "*S"]) -> Float[Array, "*S"]:
    """Returns exp(d) - d - 1 for d = reference minus policy log-prob: an estimate of KL, never negative.

    Beyond d = 20 the exponential is continued along its tangent, so value and gradient stay finite.
    """
    near = jnp.minimum(difference, K3_LINEAR_FROM)
    exponential = jnp.exp(near) * (1.0 + difference - near)
    return exponential - difference - 1.0


def sampler_gap(
    logprobs: Float[Array, "B T"],
    batch: Batch,
    near_tie: Bool[Array, "B T"],
) -> dict[str, jax.Array]:
    """Returns how far trainer and sampler log-probs part, near ties of the router counted apart.

    A token with a router choice (its own or an earlier one of its segment, since state carries it)
    closer than the threshold may route differently in two equally right programs.
    """
    assert batch.sampler_logprobs is not None
    gap = jnp.abs(
        masked(logprobs, batch.completion_mask)
        - masked(batch.sampler_logprobs, batch.completion_mask)
    )
    gap = jax.lax.stop_gradient(gap)
    compared = batch.completion_mask & ~near_tie
    return {
        "policy/sampler_gap": masked(gap, compared).max(),
        "policy/sampler_gap_near_ties": masked(gap, batch.completion_mask & near_tie).max(),
    }
