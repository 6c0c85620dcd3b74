"""Routed experts: choice, weights, every backing against the dense one, values and gradients."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from crafted import tiny_hybrid_config

from nemocascade_jax import dispatch
from nemocascade_jax.models import moe as room
from nemocascade_jax.sharding import no_shard
from tolerances import GRAD_F32, ORDER_F32, SAME_F32

near = np.testing.assert_allclose


def layer_of(activation="relu2", **changes):
    """Returns the config and the one MoE layer of a tiny model."""
    cfg, _ = tiny_hybrid_config("E")
    moe = dataclasses.replace(cfg.moe, **changes)
    cfg, params = tiny_hybrid_config("E", moe=moe, activation=activation)
    return cfg, jax.tree.map(lambda leaf: leaf[0], params["units"][0][0])


def routing_of(scores, m, bias=None):
    """Routes one row of tokens whose router logits give these scores."""
    scores = jnp.asarray(scores, jnp.float32)
    params = {
        "router": jnp.eye(scores.shape[1]),
        "correction_bias": jnp.zeros(scores.shape[1]) if bias is None else jnp.asarray(bias),
    }
    logits = jnp.log(scores) - jnp.log1p(-scores)
    return room.route(params, logits[None], jnp.ones((1, scores.shape[0]), jnp.int32), m)


def test_correction_bias_is_held_in_float32():
    """In bfloat16 the last two biases tie and expert 2 wins (T12)."""
    m = dataclasses.replace(layer_of()[0].moe, top_k=1)
    routing = routing_of([[0.5] * 4], m, bias=[7.000, 7.010, 7.020, 7.030])
    assert routing.expert_ids.tolist() == [[[3]]]
    near(routing.margin, 0.01, atol=1e-6)


def test_bias_chooses_and_never_weighs():
    m = layer_of()[0].moe
    scores = [[0.8, 0.6, 0.4, 0.2]]
    plain = routing_of(scores, m)
    assert plain.expert_ids[0, 0].tolist() == [0, 1]
    near(plain.weights[0, 0], 2.5 * np.array([0.8, 0.6]) / 1.4, *SAME_F32)
    near(plain.margin, 0.2, *SAME_F32)
    moved = routing_of(scores, m, bias=[0.0, 0.0, 0.0, 1.0])
    assert moved.expert_ids[0, 0].tolist() == [3, 0]
    near(moved.weights[0, 0], 2.5 * np.array([0.2, 0.8]) / 1.0, *SAME_F32)
    same = routing_of(scores, m, bias=[5.0] * 4)
    assert same.expert_ids[0, 0].tolist() == [0, 1]
    near(same.weights, plain.weights, *SAME_F32)
    free = routing_of(scores, dataclasses.replace(m, normalise=False))
    near(free.weights[0, 0], 2.5 * np.array([0.8, 0.6]), *SAME_F32)
    assert routing_of(scores, dataclasses.replace(m, top_k=4)).margin.tolist() == [[np.inf]]


def test_groups_limit_the_choice_even_when_choices_are_negative():
    """Groups (0.9, 0.1), (0.6, 0.5): the second has the better pair. All choices are below zero."""
    m = dataclasses.replace(layer_of()[0].moe, groups=2, top_groups=1, top_k=2)
    routing = routing_of([[0.9, 0.1, 0.6, 0.5]], m, bias=[-2.0] * 4)
    assert routing.expert_ids[0, 0].tolist() == [2, 3]
    both = routing_of([[0.9, 0.1, 0.6, 0.5]], dataclasses.replace(m, top_groups=2))
    assert both.expert_ids[0, 0].tolist() == [0, 2]


def test_softmax_weights_are_shares_of_all_experts():
    """Scores 0.5, 0.3, 0.15, 0.05: the best two weigh 5/8 and 3/8, or their own shares."""
    cfg, layer = layer_of(router="softmax", scale=1.0)
    assert "correction_bias" not in layer
    logits = jnp.log(jnp.asarray([[0.05, 0.5, 0.15, 0.3]])) + 7.0
    for m, expected in (
        (cfg.moe, [0.625, 0.375]),
        (dataclasses.replace(cfg.moe, normalise=False), [0.5, 0.3]),
    ):
        routing = room.route({"router": jnp.eye(4)}, logits[None], jnp.ones((1, 1), jnp.int32), m)
        assert routing.expert_ids.tolist() == [[[1, 3]]]
        near(routing.weights[0, 0], expected, *SAME_F32)
        near(routing.margin, 0.15, *ORDER_F32)


# --- the backings --------------------------------------------------------------------------------


@functools.partial(jax.jit, static_argnames=("impl",))
def experts_grad(x, ids, weights, w_up, w_down, cotangent, impl, w_gate=None):
    """Returns the output and the gradients of x, weights, and each expert matrix."""
    gate = [] if w_gate is None else [w_gate]

    def run(x, weights, *experts):
        return dispatch.routed_experts(x, ids, weights, *experts, grouped_impl=impl)

    out, back = jax.vjp(run, x, weights, w_up, w_down, *gate)
    return out, back(cotangent)


def case(rng, kind, tokens=23, experts=4, top_k=2):
    """Returns random inputs without a gate; `kind` says how the tokens fall on the experts."""
    ids = np.stack([rng.permutation(experts)[:top_k] for _ in range(tokens)])
    if kind == "one expert":
        ids[:, 0], ids[:, 1] = 1, experts
    elif kind == "an empty expert":
        ids = np.stack([rng.permutation([0, 1, 3])[:top_k] for _ in range(tokens)])
    elif kind == "dropped tokens":
        ids[::3] = experts
    elif kind == "nothing":
        ids[:] = experts
    floats = [(tokens, 6), (tokens, top_k), (experts, 6, 5), (experts, 5, 6), (tokens, 6)]
    x, weights, w_up, w_down, cotangent = (
        jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in floats
    )
    return x, jnp.asarray(ids, jnp.int32), weights, w_up, w_down, cotangent


KINDS = ["even", "one expert", "an empty expert", "dropped tokens", "nothing"]


@pytest.mark.parametrize(
    ("gathered", "gated"), [(True, False), (False, False), (True, True), (False, True)]
)
@pytest.mark.parametrize("kind", KINDS)
def test_blocks_match_dense_in_value_and_gradient(kind, gathered, gated, rng, monkeypatch):
    """Of experts and router weights; an expert without tokens gets exactly zero (T13)."""
    if not gathered:
        monkeypatch.setattr(dispatch, "GATHER_LIMIT", 0)
    entries = case(rng, kind, tokens=23 if gathered else 22)  # another shape: compiled anew
    gate = jnp.asarray(rng.normal(size=(4, 6, 5)), jnp.float32) if gated else None
    grads = backings_match("blocks", entries, gate)
    for expert in set(range(4)) - set(np.asarray(entries[1]).ravel()):
        assert not any(grad[expert].any() for grad in grads[2:])


def backings_match(impl, entries, gate=None):
    out, grads = experts_grad(*entries, impl, gate)
    expected, dense_grads = experts_grad(*entries, "dense", gate)
    near(out, expected, *ORDER_F32)
    for got, want in zip(grads, dense_grads, strict=True):
        near(got, want, *GRAD_F32)
    return grads


@pytest.mark.parametrize(
    ("kind", "gated"), [("even", False), ("dropped tokens", False), ("dropped tokens", True)]
)
def test_ragged_dot_matches_dense_in_value_and_gradient(kind, gated, rng):
    gate = jnp.asarray(rng.normal(size=(4, 6, 5)), jnp.float32) if gated else None
    backings_match("ragged_dot", case(rng, kind), gate)


def test_gated_experts_by_hand(rng):
    """All tokens on expert 1: w down(silu(gate x) up x), in NumPy."""
    entries = x, _, weights, w_up, w_down, _ = case(rng, "one expert")
    gate = jnp.asarray(rng.normal(size=(4, 6, 5)), jnp.float32)
    opened = np.asarray(x @ gate[1], np.float64)
    hidden = opened / (1 + np.exp(-opened)) * np.asarray(x @ w_up[1])
    out, _ = experts_grad(*entries, "blocks", gate)
    near(out, np.asarray(weights[:, :1]) * (hidden @ w_down[1]), *ORDER_F32)


@pytest.mark.parametrize("limit", [0, dispatch.GATHER_LIMIT])
def test_block_product_gradient_by_hand(limit, monkeypatch):
    """Tokens 1..5 in groups of 2, 0, 3, 0; the loss sums the outputs: dW = [3, 0, 12, 0] (T13)."""
    monkeypatch.setattr(dispatch, "GATHER_LIMIT", limit)
    rows = jnp.asarray([[1.0, 2.0, 0.0], [3.0, 4.0, 5.0]])[..., None]
    weight = jnp.asarray([2.0, 3.0, 5.0, 7.0])[:, None, None]

    def total(rows, weight):
        return dispatch.block_product(rows, weight, jnp.asarray([0, 2])).sum()

    value, (d_rows, d_weight) = jax.value_and_grad(total, argnums=(0, 1))(rows, weight)
    assert float(value) == 2 * 3 + 5 * 12
    assert d_weight.ravel().tolist() == [3.0, 0.0, 12.0, 0.0]
    assert d_rows[..., 0].tolist() == [[2.0] * 3, [5.0] * 3]


@pytest.mark.parametrize("impl", ["blocks", "dense", "ragged_dot"])
def test_weights_learn_from_their_experts_output(impl):
    """One token, experts with outputs 2 and 5, loss w0 2 + w1 5: dL/dw = [2, 5] (T13)."""
    x, ids = jnp.ones((1, 1)), jnp.asarray([[2, 0]])
    w_up = jnp.ones((3, 1, 1))
    w_down = jnp.asarray([5.0, 9.0, 2.0])[:, None, None]
    weights = jnp.asarray([[0.3, 0.7]])
    _, (_, grad, _, d_down) = experts_grad(x, ids, weights, w_up, w_down, jnp.ones((1, 1)), impl)
    near(grad, [[2.0, 5.0]], *SAME_F32)
    near(d_down.ravel(), [0.7, 0.0, 0.3], *SAME_F32)


@pytest.mark.parametrize(("tokens", "tile"), [(23, 8), (1, 8), (40, 16)])
def test_layout_puts_every_assignment_in_a_tile_of_its_expert(tokens, tile, rng):
    ids = case(rng, "dropped tokens", tokens=tokens)[1]
    layout = dispatch.block_layout(ids, 4, tile)
    slots = np.asarray(layout.slot)
    real = np.asarray(ids) < 4
    assert len(set(slots[real])) == real.sum(), "no slot is shared"
    assert (slots[~real] == len(layout.token)).all()
    for token, k in np.argwhere(real):
        assert layout.token[slots[token, k]] == token
        assert layout.expert[slots[token, k] // tile] == ids[token, k]
    assert (np.asarray(layout.token) < tokens).sum() == real.sum()


# --- the layer -----------------------------------------------------------------------------------


@functools.partial(jax.jit, static_argnames=("cfg", "impl"))
def layer_grad(layer, x, segments, cfg, impl):
    def total(layer):
        out, routing = room.moe(layer, x, segments, cfg, no_shard, grouped_impl=impl)
        return jnp.sum(jnp.sin(out) * (segments > 0)[..., None]), (out, routing)

    return jax.value_and_grad(total, has_aux=True)(layer)


@pytest.mark.parametrize("router", ["sigmoid", "softmax"])
def test_router_learns_alike_by_blocks_and_dense(router, rng):
    gated = "gated_silu" if router == "softmax" else "relu2"
    cfg, layer = layer_of(activation=gated, router=router)
    x = jnp.asarray(rng.normal(size=(2, 9, 32)), jnp.float32)
    segments = jnp.asarray([[1] * 9, [1] * 5 + [0] * 4])
    (_, (out, routing)), grad = layer_grad(layer, x, segments, cfg, "blocks")
    (_, (dense, _)), dense_grad = layer_grad(layer, x, segments, cfg, "dense")
    real = np.asarray(segments) > 0
    near(out[real], dense[real], *ORDER_F32)
    scale = float(jnp.abs(dense_grad["w_up"]).max())
    for name in layer:
        if name != "pre_norm":
            near(grad[name], dense_grad[name], GRAD_F32.rtol, GRAD_F32.atol * max(scale, 1))
    assert np.abs(grad["router"]).max() > 1e-3
    assert "correction_bias" not in grad or not grad["correction_bias"].any()
    assert int(routing.load.sum()) == 14 * 2


def test_padding_reaches_no_expert(rng):
    cfg, layer = layer_of(shared_inner=0)
    x = jnp.asarray(rng.normal(size=(1, 6, 32)), jnp.float32)
    segments = jnp.asarray([[1, 1, 0, 1, 0, 0]])
    (_, (out, routing)), _ = layer_grad(layer, x, segments, cfg, "blocks")
    assert not out[0, jnp.asarray([2, 4, 5])].any()
    assert int(routing.load.sum()) == 6
    counted = np.bincount(np.asarray(routing.expert_ids)[0, [0, 1, 3]].ravel(), minlength=4)
    np.testing.assert_array_equal(routing.load, counted)


def test_latent_experts_work_in_the_latent_width(rng):
    cfg, layer = layer_of(latent=12)
    assert layer["w_up"].shape == (4, 12, 24)
    x = jnp.asarray(rng.normal(size=(1, 4, 32)), jnp.float32)
    (_, (out, routing)), _ = layer_grad(layer, x, jnp.ones((1, 4), jnp.int32), cfg, "blocks")
    inside = x[0] @ layer["latent_in"]
    expected = []
    for token in range(4):
        mixed = sum(
            weight
            * (
                jnp.square(jax.nn.relu(inside[token] @ layer["w_up"][expert]))
                @ layer["w_down"][expert]
            )
            for weight, expert in zip(
                routing.weights[0, token], routing.expert_ids[0, token], strict=True
            )
        )
        expected.append(mixed @ layer["latent_out"])
    shared = jnp.square(jax.nn.relu(x[0] @ layer["shared_up"])) @ layer["shared_down"]
    near(out[0], jnp.stack(expected) + shared, *ORDER_F32)
