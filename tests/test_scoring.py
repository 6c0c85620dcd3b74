"""Sampler and trainer speak of one distribution: every sampled token, scored again, packed."""

import dataclasses

import crafted
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_rollout import base, make_group  # noqa: F401 (base is a fixture)

from nemocascade_jax import losses, rollout
from nemocascade_jax.sampler.engine import make_sampler
from nemocascade_jax.sampler.sampling import sample_key
from nemocascade_jax.sampler.scoring import make_scorer
from nemocascade_jax.sharding import no_shard
from tolerances import SAMPLER_GAP

PROMPTS = [(3, 9, 4), (5, 5, 6, 7, 8, 9, 10, 11, 12), (1,), (40, 41, 42, 43, 44)]
SETTINGS = [
    {"temperature": 0.7, "top_p": 1.0, "top_k": None},
    {"temperature": 1.3, "top_p": 1.0, "top_k": None},
    {"temperature": 1.0, "top_p": 0.9, "top_k": None},
    pytest.param({"temperature": 1.0, "top_p": 1.0, "top_k": None}, marks=pytest.mark.slow),
    pytest.param({"temperature": 0.7, "top_p": 0.9, "top_k": 20}, marks=pytest.mark.slow),
]


@pytest.fixture(scope="module")
def model():
    return crafted.tiny_hybrid_config()


def sampled_batch(model, config):
    cfg, params = model
    sampler = make_sampler(
        cfg, config.sampling, no_shard, vocab_limit=60, stop_ids=(2,), decode=None, max_len=None
    )
    samples = sampler(params, PROMPTS, [0, 1, 2, 3], config.group_size, sample_key(0, "test", 0))
    groups = []
    for index, (prompt, group) in enumerate(zip(PROMPTS, samples, strict=True)):
        blank = make_group(index, [1, 0, 0, 1], prompt=prompt)
        groups.append(dataclasses.replace(blank, samples=tuple(group)))
    batch, _ = rollout.policy_batch(groups, rollout.to_arrays(groups, "keep"), config, drawn=4)
    return jax.tree.map(jnp.asarray, batch)


@pytest.mark.parametrize("settings", SETTINGS)
def test_every_sampled_token_is_scored_as_it_was_sampled(model, base, settings):  # noqa: F811
    cfg, params = model
    sampling = dataclasses.replace(base.sampling, max_completion_tokens=24, **settings)
    config = dataclasses.replace(base, sampling=sampling)
    batch = sampled_batch(model, config)
    scored = jax.jit(make_scorer(cfg, no_shard, sampling, 60))(params, batch)
    found = losses.sampler_gap(scored.logprobs, batch, scored.near_tie)
    assert found["policy/sampler_gap"] <= SAMPLER_GAP.atol
    apart = np.asarray(scored.near_tie)[batch.completion_mask].mean()
    assert apart < 0.02  # near ties are counted apart, not used to hide a gap
    assert (batch.targets[batch.completion_mask] < 60).all()


def test_a_missing_temperature_shows_as_a_gap(model, base):  # noqa: F811
    cfg, params = model
    sampling = dataclasses.replace(base.sampling, max_completion_tokens=24, temperature=0.7)
    batch = sampled_batch(model, dataclasses.replace(base, sampling=sampling))
    plain = jax.jit(make_scorer(cfg, no_shard, None, 60))(params, batch)
    found = losses.sampler_gap(plain.logprobs, batch, jnp.zeros_like(plain.near_tie))
    assert found["policy/sampler_gap"] > 0.1


def test_near_ties_mark_what_follows_in_their_segment(base):  # noqa: F811
    from nemocascade_jax.sampler.scoring import _from_there_on

    batch, _ = rollout.policy_batch(
        [make_group(1, [1, 0, 0, 0])],
        rollout.to_arrays([make_group(1, [1, 0, 0, 0])], "keep"),
        base,
        drawn=1,
    )
    segments = batch.segment_ids[0]
    near = np.zeros(batch.tokens.shape, bool)
    second = np.flatnonzero(segments == 2)
    near[0, second[1]] = True
    marked = np.asarray(_from_there_on(jnp.asarray(near), batch))
    expected = np.zeros_like(near)
    expected[0, second[1:]] = True
    # places beyond the last segment are padding, where marks mean nothing
    np.testing.assert_array_equal(marked[0][segments > 0], expected[0][segments > 0])
