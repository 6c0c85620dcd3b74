"""Balancing the experts: the sequence-level loss and the sign rule, however a batch is cut; off in RL."""

import dataclasses
import types

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from crafted import random_params, tiny_config
from jax.sharding import NamedSharding, PartitionSpec
from test_hybrid import rules
from test_optim import optim

from nemocascade_jax import config_file, losses, train
from nemocascade_jax.config import MeshConfig
from nemocascade_jax.models import hybrid, moe
from nemocascade_jax.optim import make_optimizer, trained_leaves
from nemocascade_jax.sharding import make_mesh, make_shard, no_shard
from nemocascade_jax.stages import sft
from nemocascade_jax.state import Batch, fresh_state
from tolerances import MESH_SCALAR, ORDER_F32, SAME_F32

near = np.testing.assert_allclose
M = dataclasses.replace(tiny_config().moe, shared_inner=0)
CFG = tiny_config("EE", moe=M)  # no token sees another, so only the counting depends on segments
balance_sum = jax.jit(moe.balance_sum, static_argnames="m")


# --- the loss ------------------------------------------------------------------------------------


def by_hand(scores, ids, segments, weights):
    """Returns the sum over segments, one by one, of C sum_e f_e P_e."""
    total = 0.0
    for row in range(len(segments)):
        for segment in set(segments[row][segments[row] > 0]):
            here = segments[row] == segment
            counts = np.bincount(ids[row][here].ravel(), minlength=M.experts)
            f = counts * M.experts / (M.top_k * here.sum())
            p = (scores[row][here] / scores[row][here].sum(-1, keepdims=True)).mean(0)
            total += weights[row][here].sum() * (f * p).sum()
    return total


def test_balance_loss_matches_a_loop_over_segments(rng):
    segments = np.array([[1] * 4 + [2] * 3 + [0] * 2, [0, 0] + [5] * 7])
    scores = rng.uniform(0.1, 1, (2, 9, 4)).astype(np.float32)
    ids = np.stack([rng.permutation(4)[:2] for _ in range(18)]).reshape(2, 9, 2)
    weights = (rng.uniform(size=(2, 9)) < 0.6) * (segments > 0).astype(np.float32)
    chosen = (ids[..., None] == np.arange(4)).any(2)
    args = [jnp.asarray(x) for x in (scores, chosen, segments, weights.astype(np.float32))]
    near(balance_sum(*args, m=M), by_hand(scores, ids, segments, weights), *SAME_F32)


def test_balance_loss_is_one_when_even_and_experts_over_k_when_one_sided():
    """A segment of 4 tokens, 3 of them supervised; two of four experts a token."""
    seen, weights = jnp.ones((1, 4), jnp.int32), jnp.asarray([[0.0, 1.0, 1.0, 1.0]])
    even = jnp.asarray([[[1, 1, 0, 0], [0, 0, 1, 1], [1, 0, 1, 0], [0, 1, 0, 1]]], bool)
    near(balance_sum(jnp.full((1, 4, 4), 0.3), even, seen, weights, m=M), 3.0, *SAME_F32)
    two = jnp.broadcast_to(jnp.asarray([True, True, False, False]), (1, 4, 4))
    near(balance_sum(two * 0.5, two, seen, weights, m=M), 3.0 * 4 / 2, *SAME_F32)


# --- the rule ------------------------------------------------------------------------------------


def test_bias_steps_are_exact_signs():
    """Means 2, 1.25, 0 and one beyond what float32 counts exactly."""
    large = 2**25
    load = [[3, 1, 2, 2], [1, 1, 1, 2], [0, 0, 0, 0], [large + 1, large, large, large]]
    steps = moe.bias_steps(jnp.asarray(load, jnp.int32))
    assert steps.tolist() == [[-1, 1, 0, 0], [1, 1, 1, -1], [0, 0, 0, 0], [-1, 1, 1, 1]]


def test_the_rule_evens_the_load(rng):
    cfg = tiny_config("E")
    params = random_params(cfg)
    layer = params["units"][0][0]
    layer["correction_bias"] += jnp.asarray([[0.3, 0.0, 0.0, -0.2]])
    tokens = jnp.asarray(rng.integers(0, 64, (8, 32)), jnp.int32)

    @jax.jit
    def turn(params):
        _, aux = hybrid.forward(params, tokens, jnp.ones_like(tokens), cfg, no_shard)
        return hybrid.balanced_biases(params, aux.expert_load, cfg, 0.01), aux.expert_load

    loads = []
    for _ in range(60):
        params, load = turn(params)
        loads.append(np.asarray(load[0]))
    assert np.ptp(loads[0]) > 100
    assert np.ptp(loads[-1]) < 20


# --- the update ----------------------------------------------------------------------------------


def stage_config(**changes):
    run = config_file.load_config("configs/sft.py:micro", []).run
    return dataclasses.replace(run.stages["sft"], **changes)


LENGTHS, COUNTED = (7, 5, 9, 3), (4, 5, 0, 2)  # supervised tokens of each example, its last ones


def make_batch(rng, packed):
    """Returns four examples in two packed rows of four, or in a row each."""
    rows = [[0, 1], [2, 3], [], []] if packed else [[0], [1], [2], [3]]
    examples = [rng.integers(0, 64, (2, length)) for length in LENGTHS]
    arrays = {name: np.zeros((4, 16), np.int32) for name in ("tokens", "targets", "segment_ids")}
    weights = np.zeros((4, 16), np.float32)
    for row, members in enumerate(rows):
        start = 0
        for segment, index in enumerate(members, 1):
            here = slice(start, start + LENGTHS[index])
            arrays["tokens"][row, here], arrays["targets"][row, here] = examples[index]
            arrays["segment_ids"][row, here] = segment
            start += LENGTHS[index]
            weights[row, start - COUNTED[index] : start] = 1
    return Batch(
        **arrays,
        completion_mask=weights > 0,
        positions=np.zeros((4, 16), np.int32),
        weights=weights,
        denominator=np.float32(weights.sum()),
        drawn=np.int32(4),
    )


def update(batch, params, *, microbatches=1, shards=1, **changes):
    """Returns state and metrics after one SGD step of an SFT stage."""
    config = stage_config(**{"balance_coef": 0.3, "bias_update_rate": 0.01} | changes)
    io = types.SimpleNamespace(model=CFG, shard=no_shard)
    if shards > 1:
        sizes = {"data": shards, "fsdp": 1, "expert": 1, "tensor": 1, "context": 1}
        mesh = make_mesh(MeshConfig(**sizes, rules=rules()))
        batch = train.put_batch(batch, mesh, rules())
        params = jax.device_put(params, NamedSharding(mesh, PartitionSpec()))
        io.shard = make_shard(mesh, rules())
    tx = optax.sgd(1.0)
    trained = trained_leaves(optim(), hybrid.model_specs(CFG))
    step = train.make_train_step(
        sft.make_loss_sum(config, io), tx, microbatches, trained, sft.make_rebalance(config, io)
    )
    params = jax.tree.map(jnp.copy, params)
    return step(train.put_state(fresh_state(params, tx.init(params)), params), batch)


def biases(params):
    layers = hybrid.published_layers(params, CFG)
    return np.stack([layer["correction_bias"] for _, layer in layers])


@pytest.fixture(scope="module")
def whole():
    """One update of the packed batch at once, on one device."""
    params = random_params(CFG)
    return params, *update(make_batch(np.random.default_rng(0), packed=True), params)


def stream_and_logprobs(params, tokens, segments):
    stream = hybrid.residual_stream(params, tokens, segments, CFG, no_shard)
    hidden, _ = hybrid.forward(params, tokens, segments, CFG, no_shard)
    return stream, jax.nn.log_softmax(hybrid.logits(params, hidden, CFG))


def test_update_adds_the_balance_loss_and_moves_the_biases(whole):
    params, state, metrics = whole
    batch = make_batch(np.random.default_rng(0), packed=True)
    tokens, segments = jnp.asarray(batch.tokens), jnp.asarray(batch.segment_ids)
    found = jax.jit(stream_and_logprobs)(params, tokens, segments)
    stream, logprobs = (np.asarray(entry) for entry in found)
    expected, loads = 0.0, []
    for x, (_, layer) in zip(stream, hybrid.published_layers(params, CFG), strict=False):
        layer = {name: np.asarray(leaf) for name, leaf in layer.items()}
        x = x / np.sqrt(np.square(x).mean(-1, keepdims=True) + CFG.norm_eps)
        scores = 1 / (1 + np.exp(-(x * layer["pre_norm"]) @ layer["router"]))
        ids = np.argsort(-(scores + layer["correction_bias"]), axis=-1)[..., : M.top_k]
        expected += by_hand(scores, ids, batch.segment_ids, batch.weights)
        loads.append(np.bincount(ids[batch.segment_ids > 0].ravel(), minlength=M.experts))
    near(metrics["moe/balance_loss"], expected / batch.weights.sum(), *ORDER_F32)
    signs = np.sign(np.mean(loads, axis=1, keepdims=True) - loads).astype(np.float32)
    np.testing.assert_array_equal(biases(state.params), biases(params) + np.float32(0.01) * signs)
    chosen = np.take_along_axis(logprobs, batch.targets[..., None], axis=2)[..., 0]
    plain = -(chosen * batch.weights).sum() / batch.weights.sum()
    near(metrics["loss"], plain + 0.3 * metrics["moe/balance_loss"], *ORDER_F32)


@pytest.mark.parametrize(
    ("packed", "microbatches", "shards"),
    [(False, 1, 1), pytest.param(True, 2, 1, marks=pytest.mark.slow), (False, 2, 2)],
)
def test_balancing_is_the_same_however_the_batch_is_cut(packed, microbatches, shards, whole):
    params, state, metrics = whole
    batch = make_batch(np.random.default_rng(0), packed=packed)
    other, others = update(batch, params, microbatches=microbatches, shards=shards)
    for name in ("loss", "moe/balance_loss", "optim/grad_norm"):
        near(others[name], metrics[name], MESH_SCALAR.rtol)
    np.testing.assert_array_equal(biases(other.params), biases(state.params))
    jax.tree.map(lambda a, b: near(a, b, *ORDER_F32), other.params, state.params)


def test_a_skipped_update_moves_no_bias(whole):
    batch = make_batch(np.random.default_rng(0), packed=True)
    nothing = np.zeros_like(batch.weights)
    empty = batch.replace(weights=nothing, completion_mask=nothing > 0, denominator=np.float32(0))
    state, metrics = update(empty, whole[0])
    assert metrics["progress/skipped"] == 1
    np.testing.assert_array_equal(biases(state.params), biases(whole[0]))


def test_off_means_that_the_programs_have_no_trace_of_it():
    """With both at 0 nothing is logged and the biases stay byte-equal."""
    config = stage_config()
    assert (config.balance_coef, config.bias_update_rate) == (0, 0)
    io = types.SimpleNamespace(model=CFG, shard=no_shard)
    assert sft.make_rebalance(config, io) is None
    batch = make_batch(np.random.default_rng(0), packed=True)
    params = random_params(CFG)
    shapes = jax.eval_shape(sft.make_loss_sum(config, io), params, batch)
    assert "moe/balance_loss" not in shapes[1].sums


def test_rl_leaves_router_and_bias_byte_equal(whole):
    """The recipe of the RL stages, with decay that would pull them, on a policy-gradient loss (T12)."""
    params = whole[0]
    stage = config_file.load_config("configs/grpo.py:micro", []).run.stages["grpo"]
    assert not hasattr(stage, "bias_update_rate")
    specs = hybrid.model_specs(CFG)
    config = dataclasses.replace(stage.optim, weight_decay=0.5, lr=0.1, warmup_steps=0)
    batch = make_batch(np.random.default_rng(0), packed=True)
    batch = batch.replace(advantages=np.where(batch.completion_mask, 1.5, 0).astype(np.float32))

    def loss_sum(params, batch):
        hidden, aux = hybrid.forward(params, batch.tokens, batch.segment_ids, CFG, no_shard)
        logprobs = jax.nn.log_softmax(hybrid.logits(params, hidden, CFG))
        logprobs = jnp.take_along_axis(logprobs, batch.targets[..., None], axis=2)[..., 0]
        total, sums = losses.policy_gradient_sum(logprobs, batch, 0.0)
        return total, train.Measured(sums, {}, aux.expert_load)

    tx = make_optimizer(config, specs, 10)
    step = train.make_train_step(loss_sum, tx, 1, trained_leaves(config, specs))
    start = jax.tree.map(jnp.copy, params)
    state, metrics = step(fresh_state(start, tx.init(start)), batch)
    assert metrics["optim/grad_norm"] > 0
    before, after = params["units"][0][0], state.params["units"][0][0]
    for name in ("router", "correction_bias"):
        assert np.asarray(before[name]).tobytes() == np.asarray(after[name]).tobytes()
    assert not np.allclose(before["w_up"], after["w_up"])
