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


BAND = (0.5, 2.0)


def golden_mopd(**changes):
    fields = {
        "teacher_logprobs": [golden.MOPD_TEACHER],
        "sampler_logprobs": [golden.MOPD_SAMPLER],
        "weights": jnp.full((1, 4), 0.25),
    }
    return make_batch([[True] * 4], **fields | changes)


def test_distillation_has_its_golden_value_and_gradient():
    """Two of four tokens lie outside the band: they add nothing, and the mean is still over four."""
    logprobs = jnp.array([golden.MOPD_TRAINER])

    def loss(logprobs):
        return losses.distillation_sum(logprobs, golden_mopd(), BAND)

    (value, sums), grad = jax.value_and_grad(loss, has_aux=True)(logprobs)
    np.testing.assert_allclose(value, golden.MOPD_LOSS, atol=1e-6)
    np.testing.assert_allclose(grad, [[-w / 4 for w in golden.MOPD_WEIGHTED]], atol=1e-5)
    assert sums["mopd/dropped_frac"] == (golden.MOPD_DROPPED, 4)
    mean = -sum(golden.MOPD_ADVANTAGE) / 4
    np.testing.assert_allclose(sums["mopd/reverse_kl"][0], mean, rtol=SAME_F32.rtol)


def test_distillation_from_oneself_has_no_gradient():
    logprobs = jnp.array([golden.MOPD_TRAINER])
    batch = golden_mopd(teacher_logprobs=logprobs, sampler_logprobs=logprobs)
    grad = jax.grad(lambda x: losses.distillation_sum(x, batch, BAND)[0])(logprobs)
    np.testing.assert_array_equal(grad, 0.0)


def test_the_band_keeps_its_two_ends():
    trainer = jnp.log(jnp.array([[0.5, 0.25, 0.5, 0.25]]))
    sampler = jnp.log(jnp.array([[0.25, 0.5, 0.2499, 0.5001]]))  # ratios 2, 0.5, above, below
    batch = golden_mopd(teacher_logprobs=trainer - 1.0, sampler_logprobs=sampler)
    grad = jax.grad(lambda x: losses.distillation_sum(x, batch, BAND)[0])(trainer)
    np.testing.assert_allclose(grad, [[2 / 4, 0.5 / 4, 0.0, 0.0]], rtol=SAME_F32.rtol)


def test_distillation_ignores_what_is_masked():
    """Neither -inf of a teacher nor NaN at a masked place reaches value or gradient."""
    batch = make_batch(
        [[True, False, True]],
        teacher_logprobs=[[-1.0, -jnp.inf, -0.2]],
        sampler_logprobs=[[-0.5, jnp.nan, -0.3]],
        weights=jnp.array([[0.5, 0.0, 0.5]]),
    )
    logprobs = jnp.array([[-0.5, jnp.nan, -0.3]])
    value, grad = jax.value_and_grad(lambda x: losses.distillation_sum(x, batch, BAND)[0])(logprobs)
    np.testing.assert_allclose(value, 0.5 * (0.5 * -0.5 - 0.1 * -0.3), rtol=SAME_F32.rtol)
    np.testing.assert_allclose(grad, [[0.25, 0.0, -0.05]], rtol=SAME_F32.rtol)


def test_expected_distillation_gradient_is_that_of_the_reverse_kl():
    """One softmax of five: the expectation over sampled tokens equals grad KL(student || teacher).

    The sampler's distribution differs from the trainer's, and the ratio makes up for it.
    """
    student, teacher, sampler = (
        jax.random.normal(jax.random.key(seed), (5,)) * 0.3 for seed in (1, 2, 3)
    )

    def reverse_kl(logits):
        logp = jax.nn.log_softmax(logits)
        return (jnp.exp(logp) * (logp - jax.nn.log_softmax(teacher))).sum()

    def expected(logits):
        """Each token is a sequence of its own, weighted by how often the sampler draws it."""
        drawn = jax.nn.log_softmax(sampler)
        batch = make_batch(
            [[True] * 5],
            teacher_logprobs=jax.nn.log_softmax(teacher)[None],
            sampler_logprobs=drawn[None],
            weights=jnp.exp(drawn)[None],
        )
        return losses.distillation_sum(jax.nn.log_softmax(logits)[None], batch, BAND)[0]

    np.testing.assert_allclose(
        jax.grad(expected)(student), jax.grad(reverse_kl)(student), atol=SAME_F32.atol
    )
