import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import golden
from nemocascade_jax import losses, train
from nemocascade_jax.config import MeshConfig, RulesConfig
from nemocascade_jax.errors import InputError
from nemocascade_jax.sharding import make_mesh
from nemocascade_jax.state import Batch, fresh_state
from tolerances import SAME_F32

# A model of one row of logits: its log-probs do not depend on the input, so losses are known by hand.
LOGITS = jnp.log(jnp.array(golden.UNIGRAM))
TRAINED = {"logits": True, "frozen": False}


def make_params():
    return {"logits": jnp.array(LOGITS), "frozen": jnp.arange(3.0)}


def loss_sum(params, batch):
    logprobs = jax.nn.log_softmax(params["logits"])[batch.targets]
    total, sums = losses.cross_entropy_sum(logprobs + 0 * params["frozen"].sum(), batch)
    return total, train.Measured(sums, {"moe/load_max": logprobs.max()})


def make_batch(rows):
    """rows: lists of supervised target ids, padded with 0."""
    length = max(len(row) for row in rows)
    targets = np.array([[*row, *[0] * (length - len(row))] for row in rows], np.int32)
    mask = np.array([[True] * len(row) + [False] * (length - len(row)) for row in rows])
    weights = mask.astype(np.float32)
    return Batch(
        tokens=targets,
        targets=targets,
        completion_mask=mask,
        segment_ids=mask.astype(np.int32),
        positions=np.zeros_like(targets),
        weights=weights,
        denominator=np.float32(weights.sum()),
        drawn=np.int32(len(rows)),
    )


def one_step(batch, microbatches=1, tx=None, shards=1):
    tx = tx or optax.sgd(1.0)
    params = make_params()
    if shards > 1:
        rules = RulesConfig(
            **{f.name: () for f in dataclasses.fields(RulesConfig)} | {"batch": ("data",)}
        )
        sizes = {"data": shards, "fsdp": 1, "expert": 1, "tensor": 1, "context": 1}
        mesh = make_mesh(MeshConfig(**sizes, rules=rules))
        batch = train.put_batch(batch, mesh, rules)
        params = jax.device_put(params, NamedSharding(mesh, PartitionSpec()))
    step = train.make_train_step(loss_sum, tx, microbatches, TRAINED)
    return step(train.put_state(fresh_state(params, tx.init(params)), params), batch)


FOUR_TOKENS = [[2], [0, 0, 0]]  # losses 3 ln2 and three times ln2


@pytest.mark.parametrize("microbatches", [1, 2])
def test_tokens_count_once_however_the_batch_is_cut(microbatches):
    state, metrics = one_step(make_batch(FOUR_TOKENS), microbatches)
    np.testing.assert_allclose(metrics["loss"], 1.5 * golden.LN2, rtol=SAME_F32.rtol)
    whole, _ = one_step(make_batch(FOUR_TOKENS))
    np.testing.assert_allclose(state.params["logits"], whole.params["logits"], atol=SAME_F32.atol)


@pytest.mark.parametrize(("shards", "microbatches"), [(2, 1), (4, 1), (2, 2)])
def test_tokens_count_once_however_the_batch_is_sharded(shards, microbatches):
    rows = FOUR_TOKENS + [[], []]  # two of four devices have nothing to do
    state, metrics = one_step(make_batch(rows), microbatches, shards=shards)
    whole, alone = one_step(make_batch(FOUR_TOKENS))
    np.testing.assert_allclose(metrics["loss"], 1.5 * golden.LN2, rtol=SAME_F32.rtol)
    np.testing.assert_allclose(
        metrics["optim/grad_norm"], alone["optim/grad_norm"], rtol=SAME_F32.rtol
    )
    np.testing.assert_allclose(state.params["logits"], whole.params["logits"], atol=SAME_F32.atol)


def test_an_empty_row_is_no_token():
    _, metrics = one_step(make_batch([[0, 2], []]))
    np.testing.assert_allclose(metrics["loss"], 2 * golden.LN2, rtol=SAME_F32.rtol)


def test_a_batch_without_tokens_changes_nothing():
    tx = optax.adamw(0.1, weight_decay=0.5)
    state, metrics = one_step(empty_batch(), tx=tx)
    assert metrics["progress/skipped"] == 1
    assert metrics["loss"] == 0
    for name, value in make_params().items():
        assert np.asarray(state.params[name]).tobytes() == np.asarray(value).tobytes()
    fresh = tx.init(make_params())
    assert jax.tree.all(jax.tree.map(lambda a, b: (a == b).all(), state.opt_state, fresh))
    assert int(state.step) == 1
    assert int(state.cursor) == 2


def empty_batch():
    batch = make_batch([[0], [0]])
    nothing = np.zeros_like(batch.weights)
    return batch.replace(
        completion_mask=nothing.astype(bool), weights=nothing, denominator=np.float32(0)
    )


def test_untrained_leaves_stay_byte_equal():
    state, metrics = one_step(make_batch(FOUR_TOKENS), tx=optax.sgd(0.5))
    assert (
        np.asarray(state.params["frozen"]).tobytes() == np.arange(3.0, dtype=np.float32).tobytes()
    )
    assert metrics["optim/grad_norm"] > 0


def test_largest_metrics_are_maxima_over_microbatches():
    _, metrics = one_step(make_batch([[2, 2, 2], [0, 3, 1]]), microbatches=2)
    np.testing.assert_allclose(metrics["moe/load_max"], -golden.LN2, rtol=SAME_F32.rtol)


def test_fit_stops_when_collect_says_so():
    seen = []
    params = make_params()
    tx = optax.sgd(0.1)
    step = train.make_train_step(loss_sum, tx, 1, TRAINED)

    def collect(state):
        over = int(state.step) == 2
        return train.Collected(None if over else make_batch(FOUR_TOKENS), {}, [], {})

    def after_step(number, state, collected, metrics):
        seen.append((number, collected.batch is None, int(state.cursor)))

    state = train.fit(fresh_state(params, tx.init(params)), collect, step, 5, after_step)
    assert int(state.step) == 2
    assert seen == [(1, False, 2), (2, False, 4), (2, True, 4)]


def test_non_finite_metrics_are_refused_by_name():
    with pytest.raises(InputError, match="step 7: loss, optim/grad_norm is not finite"):
        train.refuse_non_finite(
            7, {"loss": float("nan"), "optim/grad_norm": float("inf"), "x": 1.0}
        )
