"""Routed experts with a sigmoid router, a correction bias for selection only, and a shared expert."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from nemocascade_jax import dispatch
from nemocascade_jax.config import ModelConfig, MoEConfig
from nemocascade_jax.models.layers import linear, project, relu2
from nemocascade_jax.sharding import Params, ParamSpec, Shard, constant, normal


class Routing(NamedTuple):
    """What the router decided; the choice is the same for any neighbour of a token."""

    expert_ids: Int[Array, "B T K"]
    weights: Float[Array, "B T K"]
    margin: Float[Array, "B T"]  # gap between the last chosen and the first unchosen score
    load: Int[Array, "E"]  # real tokens sent to each expert


def moe_specs(cfg: ModelConfig) -> dict[str, ParamSpec]:
    m = cfg.moe
    assert m is not None
    width, shared = (cfg.width, "embed"), (m.shared_inner, "mlp")
    inside = m.latent or cfg.width
    init = normal(cfg.init_std)
    specs = {
        "router": ParamSpec((cfg.width, m.experts), ("embed", None), init),
        "correction_bias": ParamSpec((m.experts,), (None,), constant(0.0)),
        "w_up": ParamSpec((m.experts, inside, m.inner), ("expert", "embed", "mlp"), init),
        "w_down": ParamSpec((m.experts, m.inner, inside), ("expert", "mlp", "embed"), init),
    }
    if m.latent:
        latent = ParamSpec((cfg.width, m.latent), ("embed", None), init)
        specs |= {"latent_in": latent}
        specs |= {"latent_out": ParamSpec((m.latent, cfg.width), (None, "embed"), init)}
    if m.shared_inner:
        specs |= {
            "shared_up": linear(cfg, width, shared),
            "shared_down": linear(cfg, shared, width),
        }
    return specs


def moe(
    params: Params,
    x: Float[Array, "B T D"],
    segment_ids: Int[Array, "B T"],
    cfg: ModelConfig,
    shard: Shard,
    *,
    grouped_impl: dispatch.GroupedImpl = "blocks",
) -> tuple[Float[Array, "B T D"], Routing]:
    """Returns routed plus shared experts, and the routing. Padding reaches no routed expert."""
    m = cfg.moe
    assert m is not None
    routing = route(params, x, segment_ids, m)
    real = (segment_ids > 0)[..., None]
    sent = jnp.where(real, routing.expert_ids, m.experts)
    inside = project(x, params["latent_in"]) if m.latent else x

    def routed_here(x: Array, sent: Array, weights: Array, w_up: Array, w_down: Array) -> Array:
        rows, ids, shares = (entry.reshape(-1, entry.shape[2]) for entry in (x, sent, weights))
        out = dispatch.routed_experts(rows, ids, shares, w_up, w_down, grouped_impl=grouped_impl)
        return out.reshape(x.shape)

    # Each device sorts and multiplies its own tokens, with the whole of the experts at hand.
    tokens, whole = ("batch", "seq", None), (None, None, None)
    local = shard.local(routed_here, (tokens, tokens, tokens, whole, whole), tokens)
    out = local(inside, sent, routing.weights, params["w_up"], params["w_down"])
    if m.latent:
        out = project(out, params["latent_out"])
    if m.shared_inner:
        hidden = shard(relu2(project(x, params["shared_up"])), "batch", "seq", "mlp")
        out = out + project(hidden, params["shared_down"])
    return out, routing


def route(
    params: Params, x: Float[Array, "B T D"], segment_ids: Int[Array, "B T"], m: MoEConfig
) -> Routing:
    """Returns the top-k experts of sigmoid(x router) + correction_bias, in float32.

    The weights are the scores without the bias, divided by their sum + 1e-20 if `normalise`, times
    `scale`: gradients reach the router through them and never the bias.
    """
    raw = project(x.astype(jnp.float32), params["router"].astype(jnp.float32))
    scores = jax.nn.sigmoid(raw)
    bias = params["correction_bias"].astype(jnp.float32)
    choice = jax.lax.stop_gradient(scores + bias[None, None])
    if m.groups > 1:
        choice = _limit_groups(choice, m)
    ids, margin = _choose(choice, m.top_k)
    weights = jnp.take_along_axis(scores, ids, axis=-1)
    if m.normalise:
        weights = weights / (weights.sum(-1, keepdims=True) + 1e-20)
    member = ids[..., None] == jnp.arange(m.experts)[None, None, None]
    real = (segment_ids > 0)[..., None, None]
    load = jnp.sum(member & real, axis=(0, 1, 2), dtype=jnp.int32)
    return Routing(ids, weights * m.scale, margin, load)


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
