import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from test_config import OPTIM

from nemocascade_jax.config import OptimConfig
from nemocascade_jax.errors import InputError
from nemocascade_jax.optim import decayed_leaves, learning_rate, make_optimizer, trained_leaves
from nemocascade_jax.sharding import ParamSpec, constant, init_params, normal, stack_spec
from tolerances import SAME_F32

SPECS = {
    "embed": ParamSpec((8, 4), ("vocab", "embed"), normal(1.0)),
    "units": [
        [
            {
                "pre_norm": stack_spec(ParamSpec((4,), ("embed",), constant(1.0)), 2),
                "w_up": stack_spec(ParamSpec((4, 6), ("embed", "mlp"), normal(1.0)), 2),
                "router": stack_spec(ParamSpec((4, 3), ("embed", None), normal(1.0)), 2),
                "correction_bias": stack_spec(ParamSpec((3,), (None,), constant(7.0)), 2),
                "A_log": stack_spec(ParamSpec((2,), (None,), constant(0.5)), 2),
                "dt_bias": stack_spec(ParamSpec((2,), (None,), constant(0.5)), 2),
            }
        ]
    ],
    "norm": ParamSpec((4,), ("embed",), constant(1.0)),
    "head": ParamSpec((4, 8), ("embed", "vocab"), normal(1.0)),
}


def optim(**changes):
    return OptimConfig(**(OPTIM | changes))


def test_learning_rate_warms_up_then_stays():
    rate = learning_rate(optim(lr=1e-3, warmup_steps=10, warmup_from=0.0), 100)
    np.testing.assert_allclose(
        [rate(0), rate(5), rate(10), rate(99)], [0, 5e-4, 1e-3, 1e-3], atol=1e-10
    )


def test_learning_rate_cosine_ends_at_its_minimum():
    rate = learning_rate(optim(lr=1e-3, schedule="cosine", min_lr=1e-4, warmup_steps=0), 50)
    np.testing.assert_allclose([rate(0), rate(25), rate(50)], [1e-3, 5.5e-4, 1e-4], rtol=1e-5)


def test_decay_is_for_matrices_only():
    found = {}
    decayed = decayed_leaves(SPECS)
    jax.tree_util.tree_map_with_path(lambda path, x: found.update({path[-1].key: x}), decayed)
    assert found == {
        "embed": False,
        "pre_norm": False,
        "w_up": True,
        "router": True,
        "correction_bias": False,
        "A_log": False,
        "dt_bias": False,
        "norm": False,
        "head": True,
    }


def test_frozen_leaves_are_byte_equal_after_updates_with_decay():
    config = optim(frozen=("router",), weight_decay=0.5, lr=0.1, warmup_steps=0)
    params = init_params(SPECS, jax.random.key(0))
    tx = make_optimizer(config, SPECS, 10)
    state, now = tx.init(params), params
    grads = jax.tree.map(jnp.ones_like, params)
    for _ in range(3):
        updates, state = tx.update(grads, state, now)
        now = optax.apply_updates(now, updates)
    before, after = params["units"][0][0], now["units"][0][0]
    for name in ("router", "correction_bias"):
        assert np.asarray(before[name]).tobytes() == np.asarray(after[name]).tobytes()
    for name in ("w_up", "A_log", "pre_norm"):
        assert not np.allclose(before[name], after[name])


def test_update_is_adamw_by_hand():
    """First step: m/(1-b1) = g, v/(1-b2) = g^2, so the update is -lr (g/(|g|+eps) + wd p)."""
    config = optim(lr=0.01, weight_decay=0.1, grad_clip=None, warmup_steps=0)
    params = init_params(SPECS, jax.random.key(0))
    tx = make_optimizer(config, SPECS, 10)
    updates, _ = tx.update(jax.tree.map(lambda x: x + 3.0, params), tx.init(params), params)
    grad = params["head"] + 3.0
    by_hand = -0.01 * (grad / (jnp.abs(grad) + 1e-8) + 0.1 * params["head"])
    np.testing.assert_allclose(updates["head"], by_hand, rtol=SAME_F32.rtol, atol=SAME_F32.atol)
    grad = params["embed"] + 3.0
    by_hand = -0.01 * grad / (jnp.abs(grad) + 1e-8)
    np.testing.assert_allclose(updates["embed"], by_hand, rtol=SAME_F32.rtol, atol=SAME_F32.atol)


def test_clip_sees_trained_leaves_only():
    """A huge gradient of a frozen leaf does not shrink the others' updates."""
    config = optim(frozen=("router",), grad_clip=1.0, warmup_steps=0, eps=1.0)
    params = init_params(SPECS, jax.random.key(0))
    tx = make_optimizer(config, SPECS, 10)
    grads = jax.tree.map(lambda x: jnp.full_like(x, 1e-3), params)
    small, _ = tx.update(grads, tx.init(params), params)
    grads["units"][0][0]["router"] = jnp.full_like(params["units"][0][0]["router"], 1e6)
    large, _ = tx.update(grads, tx.init(params), params)
    np.testing.assert_array_equal(small["head"], large["head"])


def test_router_and_bias_may_be_frozen_where_there_are_none():
    specs = {name: SPECS[name] for name in ("embed", "norm", "head")}
    trained = trained_leaves(optim(frozen=("router", "correction_bias")), specs)
    assert all(trained.values())


def test_a_pattern_without_a_match_is_refused():
    with pytest.raises(InputError, match="optim.frozen names 'ruoter', which matches no parameter"):
        trained_leaves(optim(frozen=("ruoter",)), SPECS)
