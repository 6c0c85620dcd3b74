"""Mamba-2: the chunked form against the recurrence, segment borders, padding and extreme decays."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from crafted import tiny_hybrid_config

from nemocascade_jax.models import layers
from nemocascade_jax.models import mamba2 as room
from nemocascade_jax.sharding import no_shard
from tolerances import GRAD_F32, ORDER_F32, SAME_F32

near = np.testing.assert_allclose
SEGMENTS = [[1] * 3 + [2] * 1 + [3] * 9 + [4] * 8, [0] * 2 + [1] * 12 + [2] * 5 + [0] * 2]


def draw(rng, rows=2, time=21, heads=4, groups=2):
    """Returns x, step sizes, log decays, B and C of a random scan."""
    x = rng.normal(size=(rows, time, heads, 3))
    delta = rng.uniform(0.01, 2.0, (rows, time, heads))
    decay = -delta * rng.uniform(0.1, 3.0, heads)
    b, c = rng.normal(size=(2, rows, time, groups, 5))
    return tuple(np.asarray(entry, np.float32) for entry in (x, delta, decay, b, c))


def recurrence(x, delta, decay, b, c, segments, state=None):
    """Returns y and the last state, one token at a time in float64; padding leaves the state alone."""
    rows, time, heads, width = x.shape
    per_group = heads // b.shape[2]
    y = np.zeros((rows, time, heads, width))
    last = np.zeros((rows, heads, width, b.shape[3])) if state is None else np.array(state, float)
    for row in range(rows):
        current = 0 if state is None else 1
        for t in range(time):
            if segments[row][t] == 0:
                continue
            if segments[row][t] != current:
                last[row], current = 0, segments[row][t]
            for head in range(heads):
                group = head // per_group
                push = delta[row, t, head] * np.outer(x[row, t, head], b[row, t, group])
                last[row, head] = np.exp(decay[row, t, head]) * last[row, head] + push
                y[row, t, head] = last[row, head] @ c[row, t, group]
    return y, last


@functools.partial(jax.jit, static_argnames=("chunk", "carried"))
def scan(x, delta, decay, b, c, segments, chunk, state=None, carried=False):
    real = (segments > 0)[..., None]
    ordinal = room.segment_ordinals(segments, carried=carried)
    delta, decay = jnp.where(real, delta, 0), jnp.where(real, decay, 0)
    return room.ssd(x, delta, decay, (b, c), ordinal, chunk=chunk, state=state)


@pytest.mark.parametrize("chunk", [4, 21, 64])
def test_chunks_match_the_recurrence_with_resets(chunk, rng):
    entries, segments = draw(rng), jnp.asarray(SEGMENTS)
    y, state = scan(*entries, segments, chunk)
    expected, last = recurrence(*entries, SEGMENTS)
    real = np.asarray(segments) > 0
    near(y[real], expected[real], *ORDER_F32)
    near(state, last, *ORDER_F32)


@pytest.mark.parametrize("chunk", [4, 8])
def test_a_given_state_is_carried_into_the_first_segment_only(chunk, rng):
    entries = draw(rng)
    start = rng.normal(size=(2, 4, 3, 5)).astype(np.float32)
    segments = [[1] * 10 + [2] * 11, [1] * 3 + [0] * 18]
    y, state = scan(*entries, jnp.asarray(segments), chunk, jnp.asarray(start), carried=True)
    expected, last = recurrence(*entries, segments, start)
    real = np.asarray(segments) > 0
    near(y[real], expected[real], *ORDER_F32)
    near(state, last, *ORDER_F32)


def test_padding_leaves_the_state_where_it_was():
    """h = 0.5 h + x over 1, 1 and two pads ends at 1.5; a state that decays over pads ends at 0.375."""
    ones = jnp.ones((1, 4, 1, 1))
    delta, decay = ones[..., 0], jnp.full((1, 4, 1), np.log(0.5))
    for segments in ([1, 1, 0, 0], [0, 0, 1, 1]):
        for chunk in (1, 2, 4):
            _, state = scan(ones, delta, decay, ones, ones, jnp.asarray([segments]), chunk)
            near(state, 1.5, *SAME_F32)


def test_one_token_step_matches_the_scan(rng):
    x, delta, decay, b, c = (jnp.asarray(entry[:, :1]) for entry in draw(rng))
    start = jnp.asarray(rng.normal(size=(2, 4, 3, 5)), jnp.float32)
    real = jnp.asarray([[True], [False]])
    y, state = jax.jit(room.ssd_step)(x, delta, decay, (b, c), real, start)
    segments = real.astype(jnp.int32)
    expected, last = scan(x, delta, decay, b, c, segments, 1, start, carried=True)
    near(y[0], expected[0], *SAME_F32)
    near(state, last, *SAME_F32)
    np.testing.assert_array_equal(state[1], start[1])


def test_gradients_stay_finite_where_decays_overflow(rng):
    x, delta, decay, b, c = draw(rng)
    segments = jnp.asarray(SEGMENTS)

    def total(decay):
        return jnp.sum(jnp.square(scan(x, delta, decay, b, c, segments, 8)[0]))

    for scale in (1.0, 200.0):  # exp of an unmasked difference passes the float32 range at 200
        grad = jax.grad(total)(jnp.asarray(decay) * scale)
        assert np.isfinite(grad).all(), scale


def test_chunk_length_changes_neither_value_nor_gradient(rng):
    entries, segments = draw(rng), jnp.asarray(SEGMENTS)

    def total(entries, chunk):
        y, state = scan(*entries, segments, chunk)
        return jnp.sum(jnp.sin(y) * (segments > 0)[..., None, None]) + jnp.sum(jnp.square(state))

    one = jax.value_and_grad(total)(entries, 5)
    other = jax.value_and_grad(total)(entries, 21)
    jax.tree.map(lambda a, b: near(a, b, GRAD_F32.rtol, 10 * GRAD_F32.atol), one, other)


def test_segment_ordinals_count_starts():
    segments = jnp.asarray([[0, 0, 7, 7, 3, 0, 3, 9, 0, 0]])
    # A gap ends a segment: a segment is one run of equal ids.
    assert room.segment_ordinals(segments, carried=False)[0].tolist() == [
        0,
        0,
        1,
        1,
        2,
        2,
        3,
        4,
        4,
        4,
    ]
    assert room.segment_ordinals(segments[:, 2:], carried=True)[0].tolist() == [
        0,
        0,
        1,
        1,
        2,
        3,
        3,
        3,
    ]
    long = jnp.asarray(np.repeat(np.arange(1, 131), 3)[None])
    assert room.segment_ordinals(long, carried=False)[0].tolist() == np.asarray(long)[0].tolist()


def test_mixer_continues_from_its_cache(rng):
    """Two pieces with the state between them equal one piece, conv window and padding included."""
    cfg, params = tiny_hybrid_config("M")
    layer = jax.tree.map(lambda leaf: leaf[0], params["units"][0][0])
    x = jnp.asarray(rng.normal(size=(2, 13, 32)), jnp.float32)

    @jax.jit
    def mix(x, segments, cache=None):
        return room.mamba2(layer, x, segments, cfg, no_shard, cache)

    whole, end = mix(x, jnp.ones((2, 13), jnp.int32))
    first, state = mix(x[:, :6], jnp.asarray([[1] * 6, [1] * 2 + [0] * 4]))
    near(first[0], whole[0, :6], *ORDER_F32)
    near(first[1, :2], whole[1, :2], *ORDER_F32)
    rest = jnp.stack([jnp.pad(x[0, 6:], ((0, 4), (0, 0))), x[1, 2:]])
    second, last = mix(rest, jnp.asarray([[1] * 7 + [0] * 4, [1] * 11]), state)
    near(second[0, :7], whole[0, 6:], *ORDER_F32)
    near(second[1], whole[1, 2:], *ORDER_F32)
    jax.tree.map(lambda a, b: near(a, b, *ORDER_F32), last, end)


def test_window_forgets_an_earlier_segment(rng):
    cfg, params = tiny_hybrid_config("M")
    layer = jax.tree.map(lambda leaf: leaf[0], params["units"][0][0])
    x = jnp.asarray(rng.normal(size=(1, 6, 32)), jnp.float32)
    segments = jnp.asarray([[1, 1, 1, 1, 2, 2]])
    mix = jax.jit(lambda x, segments: room.mamba2(layer, x, segments, cfg, no_shard)[1])
    state, alone = mix(x, segments), mix(x[:, 4:], segments[:, 4:])
    assert not state["conv"][0, 0].any()
    jax.tree.map(lambda a, b: near(a, b, *ORDER_F32), state, alone)


def test_gated_norm_gates_first_and_norms_each_group():
    y, gate = jnp.asarray([[[3.0, 4.0, 6.0, 8.0]]]), jnp.full((1, 1, 4), 1.0)
    out = room.gated_norm(y, gate, jnp.asarray([1.0, 2.0, 1.0, 1.0]), 2, 0.0)
    # Each pair has root mean square 5/sqrt 2 or 10/sqrt 2 times the gate, which cancels.
    near(out[0, 0], np.array([3, 8, 3, 4]) * np.sqrt(2) / 5, *SAME_F32)
    flipped = room.gated_norm(y, jnp.asarray([[[1.0, -1.0, 1.0, 1.0]]]), jnp.ones(4), 2, 0.0)
    assert flipped[0, 0, 1] < 0
    assert abs(float(flipped[0, 0, 0])) > abs(float(out[0, 0, 0]))


def plain_conv(inputs, owner, weight, bias):
    width, time = weight.shape[0], inputs.shape[1] - weight.shape[0] + 1
    total = jnp.broadcast_to(bias[None, None], (inputs.shape[0], time, bias.shape[0]))
    for i in range(width):
        same = (owner[:, i : i + time] == owner[:, width - 1 :])[..., None]
        total = total + jnp.where(same, inputs[:, i : i + time], 0) * weight[i][None, None]
    return jax.nn.silu(total)


def plain_norm(x, weight):
    halves = x.reshape(*x.shape[:-1], 2, -1)
    halves = halves / jnp.sqrt(jnp.mean(halves**2, axis=-1, keepdims=True) + 1e-5)
    return halves.reshape(x.shape) * jnp.broadcast_to(weight, x.shape)


def test_handwritten_gradients_match_derived_ones(rng):
    x, gate = jnp.asarray(rng.normal(size=(2, 2, 9, 6)), jnp.float32)
    gate = gate.at[0, 0].set(-200.0).at[0, 1].set(200.0)  # exp overflows, the gradient may not
    weight = jnp.asarray(rng.normal(size=(4, 6)), jnp.float32)
    owner = jnp.asarray([[0, 0, 0, 1, 1, 1, 2, 2, 2], [0] * 9])
    matrix = jnp.asarray(rng.normal(size=(6, 5)), jnp.float32)
    pairs = [
        (room.conv_silu, plain_conv, (x, owner, weight, weight[0])),
        (lambda x, w: layers.grouped_norm(x, w, 2, 1e-5), plain_norm, (x, weight[0])),
        (layers.silu_product, lambda x, g: x * jax.nn.silu(g), (x, gate)),
        (layers.project, lambda x, w: x @ w, (x, matrix)),
    ]
    for written, plain, entries in pairs:
        floats = tuple(i for i, entry in enumerate(entries) if entry.dtype == jnp.float32)
        results = []
        for function in (written, plain):
            total = jax.value_and_grad(lambda *e, f=function: jnp.sum(jnp.sin(f(*e))), floats)
            results.append(jax.jit(total)(*entries))
        jax.tree.map(lambda a, b: near(a, b, *GRAD_F32), *results)
