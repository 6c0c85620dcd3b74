"""Attention: grouped heads by hand, segments, cached places, and long rows in blocks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from crafted import tiny_hybrid_config

from nemocascade_jax.models import attention as room
from nemocascade_jax.sharding import no_shard
from tolerances import GRAD_F32, ORDER_F32, SAME_F32

near = np.testing.assert_allclose


@pytest.fixture
def layer():
    cfg, params = tiny_hybrid_config("*")
    return cfg, jax.tree.map(lambda leaf: leaf[0], params["units"][0][0])


def plain(layer, x, segments, cfg):
    """Returns attention in NumPy, query by query and head by head."""
    a = cfg.attention
    x = np.asarray(x, np.float64)
    q, k, v = (x @ np.asarray(layer[name], np.float64) for name in ("w_q", "w_k", "w_v"))
    rows, time, _ = x.shape
    q = q.reshape(rows, time, a.heads, a.head_dim)
    k, v = (entry.reshape(rows, time, a.kv_heads, a.head_dim) for entry in (k, v))
    out = np.zeros_like(q)
    for row, t, head in np.ndindex(rows, time, a.heads):
        seen = [s for s in range(t + 1) if segments[row][s] == segments[row][t]]
        shared = head // (a.heads // a.kv_heads)
        scores = np.array([q[row, t, head] @ k[row, s, shared] for s in seen]) / np.sqrt(a.head_dim)
        probs = np.exp(scores - scores.max())
        probs /= probs.sum()
        out[row, t, head] = probs @ np.array([v[row, s, shared] for s in seen])
    return out.reshape(rows, time, -1) @ np.asarray(layer["w_o"], np.float64)


def test_grouped_heads_and_segments_match_a_plain_loop(layer, rng):
    cfg, weights = layer
    x = jnp.asarray(rng.normal(size=(2, 7, 32)), jnp.float32)
    segments = [[1, 1, 1, 2, 2, 2, 2], [1, 1, 1, 1, 1, 0, 0]]
    out, kept = room.attention(weights, x, jnp.asarray(segments), cfg, no_shard)
    real = np.asarray(segments) > 0
    near(out[real], plain(weights, x, segments, cfg)[real], *ORDER_F32)
    assert not kept["k"].swapaxes(1, 2)[~real].any()


def test_no_position_is_encoded(layer, rng):
    """The last token sees the others as a set."""
    cfg, weights = layer
    x = jnp.asarray(rng.normal(size=(1, 6, 32)), jnp.float32)
    mixed = x[:, jnp.asarray([3, 0, 4, 2, 1, 5])]
    one, other = (
        room.attention(weights, rows, jnp.ones((1, 6), jnp.int32), cfg, no_shard)[0][:, -1]
        for rows in (x, mixed)
    )
    near(one, other, *ORDER_F32)


def test_cached_places_beyond_the_length_are_not_seen(layer, rng):
    cfg, weights = layer
    x = jnp.asarray(rng.normal(size=(2, 9, 32)), jnp.float32)
    seen = jnp.ones((2, 9), jnp.int32)
    whole, kept = room.attention(weights, x, seen, cfg, no_shard)
    length = jnp.asarray([4, 6])
    beyond = (jnp.arange(12)[None] >= length[:, None])[:, None, :, None]
    room_left = ((0, 0), (0, 0), (0, 3), (0, 0))
    cache = {name: jnp.where(beyond, 50.0, jnp.pad(kept[name], room_left)) for name in kept}
    rest = jnp.stack([x[0, 4:7], x[1, 6:9]])
    out, _ = room.attention(weights, rest, seen[:, :3], cfg, no_shard, cache | {"length": length})
    near(out[0], whole[0, 4:7], *ORDER_F32)
    near(out[1], whole[1, 6:9], *ORDER_F32)


def test_long_rows_in_blocks_match_one_block(layer, rng, monkeypatch):
    cfg, weights = layer
    x = jnp.asarray(rng.normal(size=(2, 19, 32)), jnp.float32)
    segments = jnp.asarray([[1] * 8 + [2] * 11, [1] * 15 + [0] * 4])

    def total(x):
        out, _ = room.attention(weights, x, segments, cfg, no_shard)
        return jnp.sum(jnp.sin(out) * (segments > 0)[..., None]), out

    (_, whole), grad = jax.jit(jax.value_and_grad(total, has_aux=True))(x)
    monkeypatch.setattr(room, "BLOCK_T", 4)
    (_, blocks), block_grad = jax.jit(jax.value_and_grad(lambda x: total(x), has_aux=True))(x)
    near(blocks, whole, *ORDER_F32)
    near(block_grad, grad, *GRAD_F32)


def test_large_scores_do_not_overflow(layer):
    cfg, weights = layer
    x = jnp.full((1, 5, 32), 1e4)
    out, _ = room.attention(weights, x, jnp.ones((1, 5), jnp.int32), cfg, no_shard)
    assert np.isfinite(out).all()
    near(out[0, 0], out[0, 4], *SAME_F32)  # equal keys: the mean of equal values
