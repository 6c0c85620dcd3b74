"""The distribution sampled from: golden values, brute-force nuclei, keys and draws."""

import math
import zlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nemocascade_jax.sampler import sampling
from tolerances import SAME_F32

CUTS = [(1.0, 5, 1.0), (0.7, None, 0.9), (1.3, 7, 0.5), (1.0, 40, 0.99)]
STATIC = ("temperature", "top_k", "top_p", "vocab_limit")
process_logits, token_logprobs, nucleus_margin = (
    jax.jit(function, static_argnames=STATIC)
    for function in (sampling.process_logits, sampling.token_logprobs, sampling.nucleus_margin)
)
PLAIN = {"temperature": 1.0, "top_k": None, "top_p": 1.0, "vocab_limit": 6}
G_LOGITS = jnp.log(jnp.array([[1 / 2, 1 / 4, 1 / 8, 1 / 8, 1e-17, 1e-17]]))


def brute_force(logits, temperature, top_k, top_p, vocab_limit):
    """Log-probs by a stable sort in float64, a row at a time."""
    scaled = np.asarray(logits, np.float64) / temperature
    scaled[vocab_limit:] = -np.inf
    order = np.argsort(-scaled, kind="stable")
    if top_k is not None:
        order = order[:top_k]
    probs = np.exp(scaled[order] - scaled[order].max())
    probs /= probs.sum()
    before = np.cumsum(probs) - probs
    order = order[before < top_p]
    out = np.full_like(scaled, -np.inf)
    out[order] = scaled[order] - np.log(np.exp(scaled[order]).sum())
    return out


@pytest.mark.parametrize(
    ("temperature", "golden"), [(1.0, -0.6931), (0.5, -0.3185), (2.0, -0.9959), (0.0, -0.6931)]
)
def test_temperature_gives_the_golden_logprob(temperature, golden):
    """p = [1/2, 1/4, 1/8, 1/8]: p0 at T=0.5 is (1/4)/(1/4 + 1/16 + 2/64) = 8/11."""
    settings = PLAIN | {"temperature": temperature, "vocab_limit": 4}
    whole = process_logits(G_LOGITS, **settings)
    one = token_logprobs(G_LOGITS, jnp.array([0]), **settings)
    np.testing.assert_allclose(whole[0, 0], golden, atol=5e-5)
    np.testing.assert_allclose(one[0], golden, atol=5e-5)


@pytest.mark.parametrize(
    ("top_k", "top_p", "golden"),
    [
        (1, 1.0, [1, 0, 0, 0]),
        (3, 1.0, [4 / 7, 2 / 7, 1 / 7, 0]),  # of equal tokens the lower id stays
        (None, 0.5, [1, 0, 0, 0]),
        (None, 0.6, [2 / 3, 1 / 3, 0, 0]),
        (None, 0.8, [4 / 7, 2 / 7, 1 / 7, 0]),
        (2, 0.7, [2 / 3, 1 / 3, 0, 0]),  # top-p of the renormalised two: 2/3 < 0.7
        (2, 0.6, [1, 0, 0, 0]),
    ],
)
def test_filters_renormalise_over_the_kept_set(top_k, top_p, golden):
    """The shortest prefix whose mass reaches top-p, after top-k, renormalised."""
    settings = PLAIN | {"top_k": top_k, "top_p": top_p, "vocab_limit": 4}
    probs = jnp.exp(process_logits(G_LOGITS, **settings))[0, :4]
    np.testing.assert_allclose(probs, golden, rtol=SAME_F32.rtol, atol=SAME_F32.atol)


def test_filters_equal_a_sort(rng):
    """Bisection keeps the set that a stable sort keeps, ties and masked columns included."""
    logits = rng.normal(size=(8, 33)).astype(np.float32) * 2
    logits[4:] = np.round(logits[4:])  # many equal logits
    for temperature, top_k, top_p in CUTS:
        settings = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "vocab_limit": 29}
        got = process_logits(logits, **settings)
        want = np.stack([brute_force(row, **settings) for row in logits])
        np.testing.assert_array_equal(np.isfinite(got), np.isfinite(want))
        np.testing.assert_allclose(got, want, rtol=SAME_F32.rtol, atol=1e-5)


def test_sampled_token_stays_in_the_nucleus():
    """A token outside the nucleus is kept for its own row only and shares the mass."""
    settings = PLAIN | {"top_p": 0.5, "vocab_limit": 4}
    logits = jnp.tile(G_LOGITS, (2, 1))
    keep = jnp.array([2, 0])
    whole = process_logits(logits, keep, **settings)
    # 1/8 / (1/2 + 1/8) = 0.2
    np.testing.assert_allclose(whole[0, 2], math.log(0.2), rtol=1e-5)
    np.testing.assert_allclose(whole[1, 0], 0.0, atol=1e-6)
    one = token_logprobs(logits, keep, **settings)
    np.testing.assert_allclose(one, [math.log(0.2), 0.0], rtol=1e-5, atol=1e-6)
    beyond = process_logits(logits, jnp.array([5, 5]), **settings)
    assert np.isneginf(beyond[:, 5]).all(), "keep does not lift the vocabulary limit"


def test_token_logprobs_equal_the_processed_distribution(rng):
    """The trainer's short form and the sampler's whole distribution are the same numbers."""
    logits = jnp.asarray(rng.normal(size=(3, 4, 17)), jnp.float32)
    targets = jnp.asarray(rng.integers(0, 13, size=(3, 4)))
    for top_k, top_p, temperature in [(None, 1.0, 0.8), (4, 0.6, 1.5)]:
        settings = PLAIN | {"temperature": temperature, "top_k": top_k, "top_p": top_p}
        settings["vocab_limit"] = 13
        whole = process_logits(logits, targets, **settings)
        want = jnp.take_along_axis(whole, targets[..., None], axis=-1)[..., 0]
        got = token_logprobs(logits, targets, **settings)
        np.testing.assert_allclose(got, want, rtol=SAME_F32.rtol, atol=SAME_F32.atol)


def test_gradients_stay_finite_beside_masked_columns():
    """Columns at -inf and tokens at -200 give finite gradients, zero where masked."""
    logits = jnp.array([[0.0, -200.0, 3.0, 1.0], [200.0, 0.0, -200.0, 5.0]])
    targets = jnp.array([1, 2])
    for top_k, top_p in [(None, 1.0), (2, 0.5)]:
        settings = {"temperature": 0.7, "top_k": top_k, "top_p": top_p, "vocab_limit": 3}
        grads = jax.grad(lambda z, s=settings: token_logprobs(z, targets, **s).sum())(logits)
        assert np.isfinite(grads).all()
        np.testing.assert_array_equal(grads[:, 3], 0.0)


def test_nucleus_margin_measures_the_nearest_border():
    """Kept mass 0.75 lies 0.05 above top-p 0.7; id 0 leads the first token left out by 3/8."""
    settings = PLAIN | {"top_p": 0.7, "vocab_limit": 4}
    logits = jnp.tile(G_LOGITS, (3, 1))
    margin = nucleus_margin(logits, jnp.array([0, 1, 3]), **settings)
    np.testing.assert_allclose(margin, [0.05, 0.05, 0.0], atol=1e-6)
    tie = nucleus_margin(logits, jnp.array([0, 1, 2]), **(settings | {"top_p": 0.8}))
    # mass 0.875: top-p lies 0.05 above 0.75; token 2 equals token 3, which is left out
    np.testing.assert_allclose(tie, [0.05, 0.05, 0.0], atol=1e-6)
    free = nucleus_margin(logits, jnp.array([0, 1, 2]), **(settings | {"top_p": 1.0}))
    np.testing.assert_array_equal(free, 1.0)


def test_draws_follow_the_distribution_and_never_take_a_masked_column():
    """20,000 draws: frequencies within four standard errors, none outside the nucleus."""
    settings = PLAIN | {"top_p": 0.8, "vocab_limit": 4}
    logprobs = jnp.tile(process_logits(G_LOGITS, **settings), (20000, 1))
    base = sampling.sample_key(3, "sample", 0)
    rows = jnp.arange(20000)
    drawn = np.asarray(
        jax.jit(sampling.draw)(logprobs, sampling.row_keys(base, rows, jnp.zeros_like(rows)))
    )
    shares = np.bincount(drawn, minlength=6) / drawn.size
    for share, p in zip(shares[:3], [4 / 7, 2 / 7, 1 / 7], strict=True):
        assert abs(share - p) < 4 * math.sqrt(p * (1 - p) / drawn.size)
    assert (shares[3:] == 0).all()


def test_keys_are_folded_one_after_another():
    """Seed, stage, step, draw and sample each change the key; crc32 names the stage."""
    by_hand = jax.random.key(5)
    for part in (zlib.crc32(b"if_rl"), 7, 3, 1):
        by_hand = jax.random.fold_in(by_hand, part)
    base = sampling.sample_key(5, "if_rl", 7)
    got = sampling.row_keys(base, jnp.array([3, 1]), jnp.array([1, 3]))
    assert (jax.random.key_data(got[0]) == jax.random.key_data(by_hand)).all()
    others = [
        sampling.sample_key(*path) for path in [(6, "if_rl", 7), (5, "rl", 7), (5, "if_rl", 8)]
    ]
    distinct = {
        tuple(np.asarray(jax.random.key_data(key))) for key in [base, got[0], got[1], *others]
    }
    assert len(distinct) == 6


def test_greedy_takes_the_lowest_id_among_equals():
    """Temperature 0 takes the argmax; ids 2 and 3 of G without 0 and 1 are equal."""
    logprobs = jnp.array([[-9.0, -9.0, -1.0, -1.0], [0.0, -1.0, -2.0, -3.0]])
    np.testing.assert_array_equal(sampling.greedy(logprobs), [2, 0])
