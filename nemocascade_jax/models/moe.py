"""Routed experts and a shared one, by a softmax router or a sigmoid one with a bias for selection."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from nemocascade_jax import dispatch
from nemocascade_jax.config import ModelConfig, MoEConfig
from nemocascade_jax.models.layers import linear, mlp, project
from nemocascade_jax.models.mamba2 import segment_ordinals
from nemocascade_jax.sharding import Params, ParamSpec, Shard, constant, normal


class Routing(NamedTuple):
    """What the router decided; the choice is the same for any neighbour of a token."""

    expert_ids: Int[Array, "B T K"]
    weights: Float[Array, "B T K"]
    margin: Float[Array, "B T"]  # gap between the last chosen and the first unchosen score
    load: Int[Array, "E"]  # real tokens sent to each expert
    balance: Float[Array, ""]  # see `balance_sum`; 0 where none is asked for


def moe_specs(cfg: ModelConfig) -> dict[str, ParamSpec]:
    m = cfg.moe
    assert m is not None
    width, shared = (cfg.width, "embed"), (m.shared_inner, "mlp")
    inside = m.latent or cfg.width
    init = normal(cfg.init_std)
    up = ParamSpec((m.experts, inside, m.inner), ("expert", "embed", "mlp"), init)
    specs = {
        "router": ParamSpec((cfg.width, m.experts), ("embed", None), init),
        "w_up": up,
        "w_down": ParamSpec((m.experts, m.inner, inside), ("expert", "mlp", "embed"), init),
    }
    if m.router == "sigmoid":
        specs |= {"correction_bias": ParamSpec((m.experts,), (None,), constant(0.0))}
    if cfg.activation == "gated_silu":
        specs |= {"w_gate": up}
    if m.latent:
        latent = ParamSpec((cfg.width, m.latent), ("embed", None), init)
        specs |= {"latent_in": latent}
        specs |= {"latent_out": ParamSpec((m.latent, cfg.width), (None, "embed"), init)}
    if m.shared_inner:
        specs |= {
            "shared_up": linear(cfg, width, shared),
            "shared_down": linear(cfg, shared, width),
        }
        if cfg.activation == "gated_silu":
            specs |= {"shared_gate": linear(cfg, width, shared)}
    return specs


def moe(
    params: Params,
    x: Float[Array, "B T D"],
    segment_ids: Int[Array, "B T"],
    cfg: ModelConfig,
    shard: Shard,
    *,
    grouped_impl: dispatch.GroupedImpl = "blocks",
    balance_weights: Float[Array, "B T"] | None = None,
) -> tuple[Float[Array, "B T D"], Routing]:
    """Returns routed plus shared experts, and the routing. Padding reaches no routed expert."""
    m = cfg.moe
    assert m is not None
    routing = route(params, x, segment_ids, m, balance_weights)
    real = (segment_ids > 0)[..., None]
    sent = jnp.where(real, routing.expert_ids, m.experts)
    inside = project(x, params["latent_in"]) if m.latent else x

    def routed_here(x: Array, sent: Array, weights: Array, *experts: Array) -> Array:
        rows, ids, shares = (entry.reshape(-1, entry.shape[2]) for entry in (x, sent, weights))
        out = dispatch.routed_experts(rows, ids, shares, *experts, grouped_impl=grouped_impl)
        return out.reshape(x.shape)

    # Each device sorts and multiplies its own tokens, with the whole of the experts at hand.
    experts = [params[name] for name in ("w_up", "w_down", "w_gate") if name in params]
    tokens, whole = ("batch", "seq", None), (None, None, None)
    local = shard.local(routed_here, (tokens, tokens, tokens, *[whole] * len(experts)), tokens)
    out = local(inside, sent, routing.weights, *experts)
    if m.latent:
        out = project(out, params["latent_out"])
    if m.shared_inner:
        out = out + mlp(params, x, shard, "shared")
    return out, routing


def route(
    params: Params,
    x: Float[Array, "B T D"],
    segment_ids: Int[Array, "B T"],
    m: MoEConfig,
    balance_weights: Float[Array, "B T"] | None = None,
) -> Routing:
    """Returns the top-k experts of sigmoid(x router) + correction_bias, or of softmax(x router).

    The weights are the scores without the bias, divided by their sum + 1e-20 if `normalise`, times
    `scale`: gradients reach the router through them and never the bias. All in float32.
    """
    raw = project(x.astype(jnp.float32), params["router"].astype(jnp.float32))
    if m.router == "sigmoid":
        scores = jax.nn.sigmoid(raw)
        bias = params["correction_bias"].astype(jnp.float32)
        choice = jax.lax.stop_gradient(scores + bias[None, None])
    else:
        scores = jax.nn.softmax(raw, axis=-1)
        choice = jax.lax.stop_gradient(scores)
    if m.groups > 1:
        choice = _limit_groups(choice, m)
    ids, margin = _choose(choice, m.top_k)
    weights = jnp.take_along_axis(scores, ids, axis=-1)
    if m.normalise:
        weights = weights / (weights.sum(-1, keepdims=True) + 1e-20)
    member = ids[..., None] == jnp.arange(m.experts)[None, None, None]
    real = (segment_ids > 0)[..., None, None]
    load = jnp.sum(member & real, axis=(0, 1, 2), dtype=jnp.int32)
    balance = jnp.zeros((), jnp.float32)
    if balance_weights is not None:
        balance = balance_sum(scores, member.any(axis=2), segment_ids, balance_weights, m)
    return Routing(ids, weights * m.scale, margin, load, balance)


def balance_sum(
    scores: Float[Array, "B T E"],
    chosen: Bool[Array, "B T E"],
    segment_ids: Int[Array, "B T"],
    weights: Float[Array, "B T"],
    m: MoEConfig,
) -> Float[Array, ""]:
    """Returns sum_s C_s sum_e f_e P_e over segments: 1 a weight when balanced, E/K when one-sided.

    f_e = E / (K T_s) x tokens of segment s sent to expert e, P_e = mean of its scores as shares of the
    token's scores, C_s = the segment's `weights` (sequence-level balance loss, DeepSeek-V3 2.1.2). The
    gradient reaches the scores through P alone.
    """
    ordinal = segment_ordinals(segment_ids, carried=False)
    real = (segment_ids > 0)[..., None]
    shares = scores / (scores.sum(-1, keepdims=True) + 1e-20)
    joined = jnp.concatenate([shares, chosen, jnp.ones_like(real), weights[..., None]], axis=-1)
    per_segment = partial(jax.ops.segment_sum, num_segments=segment_ids.shape[1] + 1)
    sums = jax.vmap(per_segment)(jnp.where(real, joined, 0), ordinal)
    share, sent, length, weight = jnp.split(
        sums, (m.experts, 2 * m.experts, 2 * m.experts + 1), axis=-1
    )
    length = jnp.maximum(length, 1)
    unbalance = jnp.sum((sent / length) * (share / length), axis=-1, keepdims=True)
    return jnp.sum(weight * unbalance) * (m.experts / m.top_k)


def bias_steps(expert_load: Int[Array, "L E"]) -> Int[Array, "L E"]:
    """Returns sign(mean load - load) of each layer's experts, exactly: up where too few tokens came."""
    mean, rest = jnp.divmod(expert_load.sum(-1, keepdims=True), expert_load.shape[-1])
    return jnp.sign(2 * (mean - expert_load) + (rest > 0))


def _choose(
    choice: Float[Array, "B T E"], top_k: int
) -> tuple[Int[Array, "B T K"], Float[Array, "B T"]]:
    """Returns the best ids, best first, the lower id on a tie, and the gap to the next one."""
    best, ids = jax.lax.top_k(choice, min(top_k + 1, choice.shape[-1]))
    if choice.shape[-1] == top_k:
        return ids, jnp.full(choice.shape[:-1], jnp.inf, jnp.float32)
    return ids[..., :top_k], best[..., top_k - 1] - best[..., top_k]


def _limit_groups(choice: Float[Array, "B T E"], m: MoEConfig) -> Float[Array, "B T E"]:
    """Keeps the `top_groups` groups whose two best choices sum highest; -inf elsewhere."""
    split = choice.reshape(*choice.shape[:2], m.groups, -1)
    pair = jax.lax.top_k(split, min(2, split.shape[-1]))[0].sum(-1)
    kept = jax.lax.top_k(pair, m.top_groups)[1]
    member = jnp.any(kept[..., None] == jnp.arange(m.groups)[None, None, None], axis=-2)
    return jnp.where(member[..., None], split, -jnp.inf).reshape(choice.shape)
