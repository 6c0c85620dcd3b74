import jax
import jax.numpy as jnp
import numpy as np
import pytest

import golden
from nemocascade_jax import losses
from nemocascade_jax.state import Batch
from tolerances import SAME_F32


def make_batch(mask, **fields):
    mask = jnp.asarray(mask, bool)
    zeros = jnp.zeros(mask.shape, jnp.int32)
    weights = fields.pop("weights", mask.astype(jnp.float32))
    return Batch(
        tokens=zeros,
        targets=zeros,
        completion_mask=mask,
        segment_ids=zeros + 1,
        positions=zeros,
        weights=weights,
        denominator=weights.sum(),
        drawn=jnp.int32(1),
        **{name: jnp.asarray(value, jnp.float32) for name, value in fields.items()},
    )


@pytest.mark.parametrize("difference", golden.K3)
def test_k3_has_its_golden_value(difference):
    found = losses.k3(jnp.float32(difference))
    np.testing.assert_allclose(found, golden.K3[difference], atol=1e-5)


def test_k3_is_finite_with_finite_gradient_far_out():
    value, slope = jax.value_and_grad(losses.k3)(jnp.float32(100.0))
    assert jnp.isfinite(value)
    assert jnp.isfinite(slope)
    assert value > losses.k3(jnp.float32(50.0)) > losses.k3(jnp.float32(20.0))


def test_k3_gradient_is_exact_below_the_tangent():
    slope = jax.grad(losses.k3)(jnp.float32(3.0))
    np.testing.assert_allclose(slope, np.exp(3.0) - 1, rtol=SAME_F32.rtol)


def test_masked_minus_infinity_adds_nothing():
    logprobs = jnp.array([[-0.5, -jnp.inf, -1.0, jnp.nan]])
    batch = make_batch(
        [[True, False, True, False]],
        advantages=[[1.0, jnp.nan, -1.0, 5.0]],
        ref_logprobs=[[-0.5, 200.0, -1.0, -jnp.inf]],
    )

    def loss(logprobs):
        return losses.policy_gradient_sum(logprobs, batch, kl_coef=0.1)[0]

    value, grad = jax.value_and_grad(loss)(logprobs)
    np.testing.assert_allclose(value, 0.0, atol=SAME_F32.atol)
    np.testing.assert_allclose(grad, [[-1.0, 0.0, 1.0, 0.0]], atol=SAME_F32.atol)
    nll, grad = jax.value_and_grad(lambda x: losses.cross_entropy_sum(x, batch)[0])(logprobs)
    np.testing.assert_allclose(nll, 1.5, rtol=SAME_F32.rtol)
    np.testing.assert_array_equal(grad, [[-1.0, 0.0, -1.0, 0.0]])


def test_sampled_token_impossible_under_the_reference_stays_finite():
    # Policy and reference 200 nats apart both ways: k3(-200) = 199 counts, d = +200 is masked away.
    logprobs = jnp.array([[-200.0, -1.0]])
    batch = make_batch([[False, True]], advantages=[[0.0, 0.0]], ref_logprobs=[[0.0, -201.0]])

    def loss(logprobs):
        total, sums = losses.policy_gradient_sum(logprobs, batch, kl_coef=1.0)
        return total, sums

    (value, sums), grad = jax.value_and_grad(loss, has_aux=True)(logprobs)
    np.testing.assert_allclose(sums["policy/kl_ref"][0], 199.0, rtol=SAME_F32.rtol)
    assert jnp.isfinite(value)
    assert jnp.isfinite(grad).all()
    np.testing.assert_allclose(grad, [[0.0, 1.0]], atol=SAME_F32.atol)


def test_policy_gradient_is_reinforce(rng):
    """The ratio form has the gradient of -sum A log pi, worked out by hand for a softmax."""
    theta = jnp.asarray(rng.normal(size=5), jnp.float32)
    actions, advantages = jnp.array([1, 3, 1]), jnp.array([[0.5, -1.0, 2.0]])
    batch = make_batch([[True] * 3], advantages=advantages)

    def loss(theta):
        logprobs = jax.nn.log_softmax(theta)[actions][None]
        return losses.policy_gradient_sum(logprobs, batch, kl_coef=0.0)[0]

    value, grad = jax.value_and_grad(loss)(theta)
    np.testing.assert_allclose(value, -1.5, rtol=SAME_F32.rtol)
    onehot = np.eye(5)[np.asarray(actions)]
    by_hand = -(
        np.asarray(advantages)[0][:, None] * (onehot - np.asarray(jax.nn.softmax(theta)))
    ).sum(0)
    np.testing.assert_allclose(grad, by_hand, rtol=SAME_F32.rtol, atol=SAME_F32.atol)


def test_expected_policy_gradient_is_that_of_the_expected_reward(rng):
    """Sum over actions of pi(a) x the estimator's gradient = gradient of sum pi(a) r(a)."""
    theta = jnp.asarray(rng.normal(size=4), jnp.float32)
    rewards = jnp.asarray(rng.normal(size=4), jnp.float32)
    probs = jax.nn.softmax(theta)
    baseline = (probs * rewards).sum()

    def estimator(theta, action):
        batch = make_batch([[True]], advantages=[[rewards[action] - baseline]])
        logprobs = jax.nn.log_softmax(theta)[action][None, None]
        return losses.policy_gradient_sum(logprobs, batch, kl_coef=0.0)[0]

    mean = sum(probs[a] * jax.grad(estimator)(theta, a) for a in range(4))
    exact = jax.grad(lambda theta: -(jax.nn.softmax(theta) * rewards).sum())(theta)
    np.testing.assert_allclose(mean, exact, rtol=1e-4, atol=SAME_F32.atol)


def test_kl_reference_equal_to_policy_costs_nothing():
    logprobs = jnp.array([[-1.0, -2.0]])
    batch = make_batch([[True, True]], advantages=[[0.0, 0.0]], ref_logprobs=logprobs)
    value, grad = jax.value_and_grad(lambda x: losses.policy_gradient_sum(x, batch, 0.03)[0])(
        logprobs
    )
    assert value == 0
    np.testing.assert_array_equal(grad, [[0.0, 0.0]])


def test_sampler_gap_counts_near_ties_apart():
    batch = make_batch([[True, True, False]], sampler_logprobs=[[-1.0, -2.0, -jnp.inf]])
    found = losses.sampler_gap(
        jnp.array([[-1.5, -5.0, -1.0]]), batch, jnp.array([[False, True, False]])
    )
    assert found["policy/sampler_gap"] == 0.5
    assert found["policy/sampler_gap_near_ties"] == 3.0
