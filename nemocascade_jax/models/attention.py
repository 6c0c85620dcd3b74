"""Grouped-query attention, causal within a segment; rotary positions and q/k norms are options."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from nemocascade_jax.config import ModelConfig
from nemocascade_jax.models.layers import linear, norm_spec, project, rms_norm
from nemocascade_jax.sharding import Params, ParamSpec, Shard

BLOCK_T = 512  # queries scored at once where a row is longer than two such blocks
NEGATIVE = -1e30  # finite, so that a row of masked scores stays finite too


def attention_specs(cfg: ModelConfig) -> dict[str, ParamSpec]:
    a = cfg.attention
    assert a is not None
    width = (cfg.width, "embed")
    queries, keys = (a.heads * a.head_dim, "heads"), (a.kv_heads * a.head_dim, "kv_heads")
    norms = {"q_norm": norm_spec(a.head_dim), "k_norm": norm_spec(a.head_dim)} if a.qk_norm else {}
    return norms | {
        "w_q": linear(cfg, width, queries),
        "w_k": linear(cfg, width, keys),
        "w_v": linear(cfg, width, keys),
        "w_o": linear(cfg, queries, width),
    }


def attention(
    params: Params,
    x: Float[Array, "B T D"],
    segment_ids: Int[Array, "B T"],
    cfg: ModelConfig,
    shard: Shard,
    cache: dict[str, Array] | None = None,
) -> tuple[Float[Array, "B T D"], dict[str, Array]]:
    """Returns the mixed tokens and the keys and values [B, J, T, A] of these tokens, zero on padding.

    With a cache {"k", "v": [B, J, S, A], "length": [B]} each token also sees the first `length`
    cached places of its row, as if they were of its own segment.
    """
    a = cfg.attention
    assert a is not None
    rows, time, _ = x.shape
    real = (segment_ids > 0)[:, :, None, None]
    q = project(x, params["w_q"]).reshape(rows, time, a.kv_heads, a.heads // a.kv_heads, a.head_dim)
    k = project(x, params["w_k"]).reshape(rows, time, a.kv_heads, a.head_dim)
    v = project(x, params["w_v"]).reshape(rows, time, a.kv_heads, a.head_dim)
    if a.qk_norm:
        q, k = (rms_norm(x, params[n], cfg.norm_eps) for n, x in (("q_norm", q), ("k_norm", k)))
    if a.rope_theta is not None:
        places = segment_positions(segment_ids, None if cache is None else cache["length"])
        q, k = (rotate(entry, places, a.rope_theta) for entry in (q, k))
    k, v = (jnp.where(real, entry, 0) for entry in (k, v))
    k, v = (shard(entry, "batch", "seq", "kv_heads", None) for entry in (k, v))
    if cache is not None:
        mixed = _attend_cached(q, k, v, segment_ids, cache)
    elif time > 2 * BLOCK_T:
        mixed = _attend_in_blocks(q, k, v, segment_ids)
    else:
        mixed = _attend(q, k, v, _visible(segment_ids, segment_ids, 0))
    out = project(mixed.reshape(rows, time, -1), params["w_o"])
    return out, {"k": k.swapaxes(1, 2), "v": v.swapaxes(1, 2)}


def segment_positions(
    segment_ids: Int[Array, "B T"], length: Int[Array, "B"] | None
) -> Int[Array, "B T"]:
    """Returns each token's place in its own run of equal ids, counted on from `length` cached ones."""
    places = jnp.arange(segment_ids.shape[1])[None]
    before = jnp.pad(segment_ids[:, :-1], ((0, 0), (1, 0)))
    starts = jax.lax.cummax(jnp.where(segment_ids != before, places, 0), axis=1)
    return places - starts + (0 if length is None else length[:, None])


def rotate(
    x: Float[Array, "B T *heads A"], places: Int[Array, "B T"], theta: float
) -> Float[Array, "B T *heads A"]:
    """Turns the pairs (i, i + A/2) of each head by place x theta^(-2i/A), in float32 (RoFormer 3.2)."""
    rates = theta ** -(np.arange(0, x.shape[-1], 2) / x.shape[-1])
    angles = places[..., None].astype(jnp.float32) * rates.astype(np.float32)[None, None]
    angles = jnp.expand_dims(angles, tuple(range(2, x.ndim - 1)))
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    turned = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return turned.astype(x.dtype)


def _visible(
    segment_ids: Int[Array, "B T"], key_segments: Int[Array, "B S"], start: Int[Array, ""] | int
) -> Bool[Array, "B T S"]:
    """Marks the keys of the same segment at or before each query; `start` is the first query's place."""
    time, keys = segment_ids.shape[1], key_segments.shape[1]
    causal = start + jnp.arange(time)[:, None] >= jnp.arange(keys)[None, :]
    return causal[None] & (segment_ids[:, :, None] == key_segments[:, None, :])


def _attend(
    q: Float[Array, "B T J G A"],
    k: Float[Array, "B S J A"],
    v: Float[Array, "B S J A"],
    visible: Bool[Array, "B T S"],
) -> Float[Array, "B T J G A"]:
    """Returns softmax(q k / sqrt A) v over the visible keys; scores and softmax in float32."""
    scores = jnp.einsum("btjga,bsja->bjgts", q, k, preferred_element_type=jnp.float32)
    scores = jnp.where(visible[:, None, None], scores / math.sqrt(q.shape[-1]), NEGATIVE)
    probs = jax.nn.softmax(scores, axis=-1).astype(v.dtype)
    return jnp.einsum("bjgts,bsja->btjga", probs, v)


def _attend_cached(
    q: Float[Array, "B T J G A"],
    k: Float[Array, "B T J A"],
    v: Float[Array, "B T J A"],
    segment_ids: Int[Array, "B T"],
    cache: dict[str, Array],
) -> Float[Array, "B T J G A"]:
    """Attends to the cached places and to the new tokens under one softmax, joining neither."""
    rows, time, heads, group, width = q.shape
    q = jnp.moveaxis(q, 1, 3).reshape(rows, heads, group * time, width)
    k, v = k.swapaxes(1, 2), v.swapaxes(1, 2)
    old = jnp.arange(cache["k"].shape[2])[None, :] < cache["length"][:, None]  # [B, S]
    new = jnp.tile(_visible(segment_ids, segment_ids, 0), (1, group, 1))
    past = jnp.where(old[:, None, None], _scores(q, cache["k"]), NEGATIVE)
    here = jnp.where(new[:, None], _scores(q, k), NEGATIVE)
    top = jnp.maximum(past.max(-1, keepdims=True), here.max(-1, keepdims=True))
    past, here = jnp.exp(past - top), jnp.exp(here - top)
    total = past.sum(-1, keepdims=True) + here.sum(-1, keepdims=True)
    mixed = _mix(past.astype(v.dtype), cache["v"]) + _mix(here.astype(v.dtype), v)
    mixed = (mixed / total).astype(v.dtype).reshape(rows, heads, group, time, width)
    return jnp.moveaxis(mixed, 3, 1)


def _scores(q: Float[Array, "B J X A"], k: Float[Array, "B J S A"]) -> Float[Array, "B J X S"]:
    both = (((3,), (3,)), ((0, 1), (0, 1)))  # the many keys first: the faster order on CPU
    scores = jax.lax.dot_general(k, q, both, preferred_element_type=jnp.float32).swapaxes(2, 3)
    return scores / math.sqrt(q.shape[3])


def _mix(probs: Float[Array, "B J X S"], v: Float[Array, "B J S A"]) -> Float[Array, "B J X A"]:
    # In this order neither operand is transposed; an einsum swaps them and copies every value.
    over_places = (((3,), (2,)), ((0, 1), (0, 1)))
    return jax.lax.dot_general(probs, v, over_places, preferred_element_type=jnp.float32)


def _attend_in_blocks(
    q: Float[Array, "B T J G A"],
    k: Float[Array, "B T J A"],
    v: Float[Array, "B T J A"],
    segment_ids: Int[Array, "B T"],
) -> Float[Array, "B T J G A"]:
    """Scores BLOCK_T queries at a time and again in the backward pass, so no [T, T] array is held."""
    time = q.shape[1]
    pad = -time % BLOCK_T
    blocks = (time + pad) // BLOCK_T

    def split(entry: Array) -> Array:
        padded = jnp.pad(entry, ((0, 0), (0, pad)) + ((0, 0),) * (entry.ndim - 2))
        cut = padded.reshape(entry.shape[0], blocks, BLOCK_T, *entry.shape[2:])
        return jnp.moveaxis(cut, 1, 0)

    @jax.checkpoint
    def one(block: tuple[Array, Array, Array]) -> Array:
        queries, segments, start = block
        return _attend(queries, k, v, _visible(segments, segment_ids, start))

    starts = jnp.arange(blocks) * BLOCK_T
    out = jax.lax.map(one, (split(q), split(segment_ids), starts))
    return jnp.moveaxis(out, 0, 1).reshape(q.shape[0], time + pad, *q.shape[2:])[:, :time]
