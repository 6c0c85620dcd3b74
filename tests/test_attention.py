"""Attention: grouped heads and rotary places by hand, cached places, and long rows in blocks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from crafted import random_params, tiny_config, variant_config

from nemocascade_jax.models import attention as room
from nemocascade_jax.sharding import no_shard
from tolerances import GRAD_F32, ORDER_F32, SAME_F32

near = np.testing.assert_allclose


@pytest.fixture
def layer():
    return layer_of(tiny_config("*"))


def layer_of(cfg):
    return cfg, jax.tree.map(lambda leaf: leaf[0], random_params(cfg)["units"][0][0])


def rotary_config():
    """Returns attention with positions; its wavelengths are short beside the tests' rows."""
    return tiny_config("*", attention=variant_config("rotary").attention)


BOTH = pytest.mark.parametrize("cfg", [tiny_config("*"), rotary_config()], ids=["plain", "rotary"])


def plain(layer, x, segments, cfg):
    """Returns attention in NumPy, query by query and head by head."""
    a = cfg.attention
    x = np.asarray(x, np.float64)
    q, k, v = (x @ np.asarray(layer[name], np.float64) for name in ("w_q", "w_k", "w_v"))
    rows, time, _ = x.shape
    q = q.reshape(rows, time, a.heads, a.head_dim)
    k, v = (entry.reshape(rows, time, a.kv_heads, a.head_dim) for entry in (k, v))
    if a.qk_norm:
        q, k = (
            entry / np.sqrt((entry**2).mean(-1, keepdims=True) + cfg.norm_eps) * np.float64(weight)
            for entry, weight in ((q, layer["q_norm"]), (k, layer["k_norm"]))
        )
    if a.rope_theta:
        q, k = (turned(entry, segments, a.rope_theta) for entry in (q, k))
    out = np.zeros_like(q)
    for row, t, head in np.ndindex(rows, time, a.heads):
        seen = [s for s in range(t + 1) if segments[row][s] == segments[row][t]]
        shared = head // (a.heads // a.kv_heads)
        scores = np.array([q[row, t, head] @ k[row, s, shared] for s in seen]) / np.sqrt(a.head_dim)
        probs = np.exp(scores - scores.max())
        probs /= probs.sum()
        out[row, t, head] = probs @ np.array([v[row, s, shared] for s in seen])
    return out.reshape(rows, time, -1) @ np.asarray(layer["w_o"], np.float64)


def turned(entry, segments, theta):
    """Returns heads with their pairs, as complex numbers, turned by each token's place in its segment."""
    half = entry.shape[-1] // 2
    pairs = entry[..., :half] + 1j * entry[..., half:]
    for row, t in np.ndindex(entry.shape[:2]):
        place = sum(segments[row][s] == segments[row][t] for s in range(t))
        pairs[row, t] *= np.exp(1j * place * theta ** (-np.arange(half) / half))
    return np.concatenate([pairs.real, pairs.imag], axis=-1)


@BOTH
def test_grouped_heads_and_segments_match_a_plain_loop(cfg, rng):
    cfg, weights = layer_of(cfg)
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


def test_places_restart_in_each_segment_and_padding_takes_none():
    segments = jnp.asarray([[1, 1, 2, 2, 2, 0], [0, 0, 3, 3, 3, 3]])
    places = room.segment_positions(segments, None)
    real = np.asarray(segments) > 0
    assert places[0].tolist()[:5] == [0, 1, 0, 1, 2]
    assert places[1].tolist()[2:] == [0, 1, 2, 3]
    later = room.segment_positions(segments, jnp.asarray([5, 2]))
    np.testing.assert_array_equal((later - places)[real], np.repeat([5, 2], real.sum(1)))


def test_scores_depend_on_the_distance_alone(rng):
    """Products of turned heads are the same wherever the row's first token stands."""
    heads = jnp.asarray(rng.normal(size=(1, 6, 8)), jnp.float32)
    seen = jnp.ones((1, 6), jnp.int32)

    def scores(start):
        places = room.segment_positions(seen, jnp.asarray([start]))
        turned = room.rotate(heads, places, 100.0)
        return jnp.einsum("bta,bsa->bts", turned, turned)

    near(scores(0), scores(100), *ORDER_F32)
    assert np.abs(scores(0) - jnp.einsum("bta,bsa->bts", heads, heads)).max() > 0.5


@BOTH
def test_cached_places_beyond_the_length_are_not_seen(cfg, rng):
    cfg, weights = layer_of(cfg)
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
