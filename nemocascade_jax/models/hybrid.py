"""The hybrid model: a pattern string gives its weights, its forward pass, its prefill and its decoding.

Each layer is x <- x + mixer(RMSNorm(x)); after the last one a final norm (Nemotron-H).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from nemocascade_jax.config import ModelConfig
from nemocascade_jax.dispatch import GroupedImpl
from nemocascade_jax.models import layers
from nemocascade_jax.models.attention import attention, attention_specs
from nemocascade_jax.models.cache import (
    Cache,
    Layers,
    advanced,
    filled,
    fork_cache,
    init_layers,
)
from nemocascade_jax.models.layers import logits
from nemocascade_jax.models.mamba2 import mamba2, mamba2_specs
from nemocascade_jax.models.moe import Routing, bias_steps, moe, moe_specs
from nemocascade_jax.models.pattern import cut_pattern, layer_places
from nemocascade_jax.sharding import Params, ParamSpec, Shard, map_specs, param_count, stack_spec

__all__ = [
    "Aux",
    "Cache",
    "active_param_count",
    "balanced_biases",
    "cut_pattern",
    "decode_step",
    "fork_cache",
    "forward",
    "init_cache",
    "layer_places",
    "logits",
    "model_specs",
    "prefill",
    "published_layers",
    "residual_stream",
    "total_param_count",
]

UNROLLED_LAYERS = 8  # up to here a scan's copies of weights and states cost more than it saves

SPECS: dict[str, Callable[[ModelConfig], dict[str, ParamSpec]]] = {
    "M": mamba2_specs,
    "*": attention_specs,
    "E": moe_specs,
    "-": layers.mlp_specs,
}


class Aux(NamedTuple):
    """What the routers did; MoE layers in published order."""

    expert_load: Int[Array, "L E"]  # real tokens an expert got
    router_margin: Float[Array, "B T"]  # smallest gap between the last chosen and the next expert
    expert_ids: Int[Array, "L B T K"] | None  # None without MoE layers
    balance: Float[Array, ""]  # the sum of `moe.balance_sum` over layers, 0 where none is asked for


def model_specs(cfg: ModelConfig) -> dict:
    """Declares every weight: {"embed", "units": [unit: [letter: {name: spec}]], "norm", "head"}.

    A unit's weights have a leading axis of its repeats. "head" is absent when tied.
    """

    def layer(letter: str, repeats: int) -> dict[str, ParamSpec]:
        specs = {"pre_norm": layers.norm_spec(cfg.width)} | SPECS[letter](cfg)
        return {name: stack_spec(spec, repeats) for name, spec in specs.items()}

    units = [[layer(letter, n) for letter in unit] for unit, n in cut_pattern(cfg.pattern)]
    return layers.embed_specs(cfg) | {"units": units}


def total_param_count(cfg: ModelConfig) -> int:
    """Counts the weights of a model without allocating any."""
    return param_count(model_specs(cfg))


def active_param_count(cfg: ModelConfig) -> int:
    """Counts the weights a token meets: all but the experts it is not sent to; both embeddings count."""
    idle = 0

    def add(path: str, spec: ParamSpec) -> None:
        nonlocal idle
        if cfg.moe is not None and "expert" in spec.axes:
            idle += math.prod(spec.shape) * (cfg.moe.experts - cfg.moe.top_k) // cfg.moe.experts

    map_specs(add, model_specs(cfg))
    return total_param_count(cfg) - idle


class _Mode(NamedTuple):
    """How a pass over the layers runs; hashable, beside the arrays."""

    cfg: ModelConfig
    shard: Shard
    keep_state: bool
    remat: Literal["none", "full"] = "none"
    grouped_impl: GroupedImpl = "blocks"


def forward(
    params: Params,
    tokens: Int[Array, "B T"],
    segment_ids: Int[Array, "B T"],
    cfg: ModelConfig,
    shard: Shard,
    *,
    remat: Literal["none", "full"] = "none",
    grouped_impl: GroupedImpl = "blocks",
    balance_weights: Float[Array, "B T"] | None = None,
) -> tuple[Float[Array, "B T D"], Aux]:
    """Returns hidden states after the final norm; segments do not see each other, 0 is padding.

    `balance_weights` asks for the routers' balance loss, each segment weighted by its sum of them.
    """
    mode = _Mode(cfg, shard, keep_state=False, remat=remat, grouped_impl=grouped_impl)
    x = layers.embed(params, tokens, cfg, shard)
    x, _, aux = _run_layers(params, x, segment_ids, mode, balance_weights=balance_weights)
    return layers.rms_norm(x, params["norm"], cfg.norm_eps), aux


def residual_stream(
    params: Params,
    tokens: Int[Array, "B T"],
    segment_ids: Int[Array, "B T"],
    cfg: ModelConfig,
    shard: Shard,
) -> Float[Array, "L1 B T D"]:
    """Returns the embedding and the stream after each published layer: for looking inside a model."""
    mode = _Mode(cfg, shard, keep_state=False)
    stream = [layers.embed(params, tokens, cfg, shard)]
    for letter, weights in published_layers(params, cfg):
        x, _ = _run_unit(letter, ([weights], None), stream[-1], segment_ids, mode, length=None)
        stream.append(x)
    return jnp.stack(stream)


def published_layers(params: Params, cfg: ModelConfig) -> list[tuple[str, Params]]:
    """Returns each published layer's letter and weights, in order."""
    return [
        (letter, _pick(params["units"][unit][place], repeat))
        for letter, (unit, place, repeat) in zip(
            cfg.pattern, layer_places(cfg.pattern), strict=True
        )
    ]


def balanced_biases(
    params: Params, expert_load: Int[Array, "L E"], cfg: ModelConfig, rate: float
) -> Params:
    """Returns the weights with each selection bias moved by rate x sign(mean load - load)."""
    units = [[dict(layer) for layer in unit] for unit in params["units"]]
    steps = rate * bias_steps(expert_load).astype(jnp.float32)
    places = [p for p, e in zip(layer_places(cfg.pattern), cfg.pattern, strict=True) if e == "E"]
    for step, (unit, place, repeat) in zip(steps, places, strict=True):
        layer = units[unit][place]
        layer["correction_bias"] = layer["correction_bias"].at[repeat].add(step)
    return params | {"units": units}


def init_cache(cfg: ModelConfig, batch: int, max_len: int) -> Cache:
    """Returns an empty cache with room for `max_len` tokens a row."""
    units = ((cfg.pattern, 1),) if _unrolled(cfg.pattern) else cut_pattern(cfg.pattern)
    empty = init_layers(cfg, units, batch, max_len)
    return Cache(layers=empty, length=jnp.zeros((batch,), jnp.int32))


def prefill(
    params: Params,
    tokens: Int[Array, "B T"],
    lengths: Int[Array, "B"],
    cfg: ModelConfig,
    shard: Shard,
    *,
    max_len: int,
) -> tuple[Float[Array, "B D"], Cache, Aux]:
    """Returns the final hidden state of each row's last real token and the cache behind it.

    Rows are padded on the right, at least one token each; T may not pass `max_len`.
    """
    assert tokens.shape[1] <= max_len, (tokens.shape, max_len)
    segment_ids = (jnp.arange(tokens.shape[1])[None, :] < lengths[:, None]).astype(jnp.int32)
    mode = _Mode(cfg, shard, keep_state=True)
    x = layers.embed(params, tokens, cfg, shard)
    x, states, aux = _run_layers(params, x, segment_ids, mode)
    last = jnp.take_along_axis(x, jnp.maximum(lengths - 1, 0)[:, None, None], axis=1)[:, 0]
    hidden = layers.rms_norm(last, params["norm"], cfg.norm_eps)
    return hidden, filled(states, lengths, max_len), aux


def decode_step(
    params: Params,
    token: Int[Array, "B"],
    cache: Cache,
    cfg: ModelConfig,
    shard: Shard,
    *,
    active: Bool[Array, "B"] | None = None,
) -> tuple[Float[Array, "B D"], Cache, Aux]:
    """Returns the final hidden state after one more token a row; inactive rows keep their cache.

    An active row must have `cache.length` below the cache's end: nothing checks it here.
    """
    if active is None:
        active = jnp.ones(token.shape, bool)
    mode = _Mode(cfg, shard, keep_state=True)
    x = layers.embed(params, token[:, None], cfg, shard)
    x, updates, aux = _run_layers(params, x, active[:, None].astype(jnp.int32), mode, cache)
    hidden = layers.rms_norm(x[:, 0], params["norm"], cfg.norm_eps)
    return hidden, advanced(cache, updates, active), aux


def _run_layers(
    params: Params,
    x: Float[Array, "B T D"],
    segment_ids: Int[Array, "B T"],
    mode: _Mode,
    cache: Cache | None = None,
    balance_weights: Float[Array, "B T"] | None = None,
) -> tuple[Float[Array, "B T D"], Layers, Aux]:
    """Runs every unit over its repeats; returns the stream, each layer's state, and the routing."""
    states: Layers = []
    routed: list[Routing] = []

    def run(x: Array, entry: tuple, unit: str) -> tuple[Array, tuple]:
        length = None if cache is None else cache.length
        return _run_unit(
            unit, entry, x, segment_ids, mode, length=length, balance_weights=balance_weights
        )

    if mode.remat == "full":
        run = jax.checkpoint(run, static_argnums=2)
    if _unrolled(mode.cfg.pattern):
        flat: list[dict[str, Array]] = []
        for u, (unit, repeats) in enumerate(cut_pattern(mode.cfg.pattern)):
            for repeat in range(repeats):
                here = slice(len(flat), len(flat) + len(unit))
                caches = None if cache is None else _pick(cache.layers[0][here], 0)
                x, out = run(x, (_pick(params["units"][u], repeat), caches), unit)
                new, routing = jax.tree.map(lambda leaf: leaf[None], out)
                flat += new
                routed += [routing] if routing is not None else []
        return x, [flat], _aux(routed, segment_ids, mode.cfg)
    for u, (unit, _) in enumerate(cut_pattern(mode.cfg.pattern)):

        def body(x: Array, entry: tuple, unit: str = unit) -> tuple[Array, tuple]:
            return run(x, entry, unit)

        entry = (params["units"][u], None if cache is None else cache.layers[u])
        x, (new, routing) = jax.lax.scan(body, x, entry)
        states.append(new)
        routed += [routing] if routing is not None else []
    return x, states, _aux(routed, segment_ids, mode.cfg)


def _pick(tree: Any, index: int) -> Any:
    return jax.tree.map(lambda leaf: leaf[index], tree)


def _unrolled(pattern: str) -> bool:
    return len(pattern) <= UNROLLED_LAYERS


def _run_unit(
    unit: str,
    entry: tuple,
    x: Float[Array, "B T D"],
    segment_ids: Int[Array, "B T"],
    mode: _Mode,
    *,
    length: Int[Array, "B"] | None,
    balance_weights: Float[Array, "B T"] | None = None,
) -> tuple[Float[Array, "B T D"], tuple]:
    weights, caches = entry
    states: list[dict[str, Array]] = []
    routed: list[Routing] = []
    cfg, shard = mode.cfg, mode.shard
    for j, letter in enumerate(unit):
        params = weights[j]
        normed = layers.rms_norm(x, params["pre_norm"], cfg.norm_eps)
        state = None if caches is None else caches[j]
        new: dict[str, Array] = {}
        if letter == "M":
            out, new = mamba2(params, normed, segment_ids, cfg, shard, state)
        elif letter == "*":
            past = None if state is None else state | {"length": length}
            out, new = attention(params, normed, segment_ids, cfg, shard, past)
        elif letter == "E":
            out, routing = moe(
                params,
                normed,
                segment_ids,
                cfg,
                shard,
                grouped_impl=mode.grouped_impl,
                balance_weights=balance_weights,
            )
            routed.append(routing)
        else:
            out = layers.mlp(params, normed, shard)
        x = shard(x + out, "batch", "seq", None)
        states.append(new if mode.keep_state else {})
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *routed) if routed else None
    return x, (states, stacked)


def _aux(routed: list[Routing], segment_ids: Int[Array, "B T"], cfg: ModelConfig) -> Aux:
    """Joins the routing of all units, [repeats, MoE letters, ...] each, in published order."""
    if not routed:
        margin = jnp.full(segment_ids.shape, jnp.inf, jnp.float32)
        return Aux(jnp.zeros((0, 0), jnp.int32), margin, None, jnp.zeros((), jnp.float32))

    def per_layer(leaves: list[Array]) -> Array:
        return jnp.concatenate([leaf.reshape(-1, *leaf.shape[2:]) for leaf in leaves])

    load, ids = (per_layer([getattr(r, name) for r in routed]) for name in ("load", "expert_ids"))
    margin = per_layer([r.margin for r in routed]).min(axis=0)
    return Aux(load, margin, ids, jnp.stack([r.balance.sum() for r in routed]).sum())
