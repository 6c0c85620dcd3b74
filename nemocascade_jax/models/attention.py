"""Grouped-query attention, causal within a segment, without any position encoding."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from nemocascade_jax.config import ModelConfig
from nemocascade_jax.models.layers import linear, project
from nemocascade_jax.sharding import Params, ParamSpec, Shard

BLOCK_T = 512  # queries scored at once where a row is longer than two such blocks
NEGATIVE = -1e30  # finite, so that a row of masked scores stays finite too


def attention_specs(cfg: ModelConfig) -> dict[str, ParamSpec]:
    a = cfg.attention
    assert a is not None
    width = (cfg.width, "embed")
    queries, keys = (a.heads * a.head_dim, "heads"), (a.kv_heads * a.head_dim, "kv_heads")
    return {
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
    k = jnp.where(real, project(x, params["w_k"]).reshape(rows, time, a.kv_heads, a.head_dim), 0)
    v = jnp.where(real, project(x, params["w_v"]).reshape(rows, time, a.kv_heads, a.head_dim), 0)
    k, v = (shard(entry, "batch", "seq", "kv_heads", None) for entry in (k, v))
    if cache is not None:
        mixed = _attend_cached(q, k, v, segment_ids, cache)
    elif time > 2 * BLOCK_T:
        mixed = _attend_in_blocks(q, k, v, segment_ids)
    else:
        mixed = _attend(q, k, v, _visible(segment_ids, segment_ids, 0))
    out = project(mixed.reshape(rows, time, -1), params["w_o"])
    return out, {"k": k.swapaxes(1, 2), "v": v.swapaxes(1, 2)}


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
    q = jnp.moveaxis(q, 1, 3).reshape(rows, heads, group * time, width) / math.sqrt(width)
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
    return jax.lax.dot_general(k, q, both, preferred_element_type=jnp.float32).swapaxes(2, 3)


def _mix(probs: Float[Array, "B J X S"], v: Float[Array, "B J S A"]) -> Float[Array, "B J X A"]:
    # In this order neither operand is transposed; an einsum swaps them and copies every value.
    return jax.lax.dot_general(probs, v, (((3,), (2,)), ((0, 1), (0, 1))))


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
