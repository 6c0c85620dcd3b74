import numpy as np
import pytest

import golden
from nemocascade_jax.advantages import group_advantages, leave_one_out_advantages, usable_groups


def binary(successes, size=16):
    rewards = np.zeros((1, size), np.float32)
    rewards[0, :successes] = 1
    return rewards


def everyone(rewards):
    return np.ones(rewards.shape, bool)


@pytest.mark.parametrize("successes", golden.GROUP_ADVANTAGES)
def test_group_advantages_match_paper(successes):
    rewards = binary(successes)
    found = group_advantages(rewards, everyone(rewards))[0]
    success, failure = golden.GROUP_ADVANTAGES[successes]
    np.testing.assert_allclose(found[:successes], success, atol=golden.GOLDEN_ATOL)
    np.testing.assert_allclose(found[successes:], failure, atol=golden.GOLDEN_ATOL)


@pytest.mark.parametrize("successes", golden.LEAVE_ONE_OUT_ADVANTAGES)
def test_leave_one_out_matches_paper(successes):
    rewards = binary(successes)
    found = leave_one_out_advantages(rewards, everyone(rewards))[0]
    success, failure = golden.LEAVE_ONE_OUT_ADVANTAGES[successes]
    np.testing.assert_allclose(found[:successes], success, atol=golden.GOLDEN_ATOL)
    np.testing.assert_allclose(found[successes:], failure, atol=golden.GOLDEN_ATOL)


@pytest.mark.parametrize("advantages", [group_advantages, leave_one_out_advantages])
@pytest.mark.parametrize("value", [0.0, 0.1, 0.9, 1.0, 1 / 3])
def test_equal_rewards_give_exact_zeros(advantages, value):
    rewards = np.full((1, 16), value, np.float32)
    assert (advantages(rewards, everyone(rewards)) == 0).all()


@pytest.mark.parametrize("case", [golden.LONE_SUCCESS_OF_4, golden.LONE_FAILURE_OF_4])
def test_group_of_four_uses_population_spread(case):
    rewards = np.array([case[0]], np.float32)
    found = group_advantages(rewards, everyone(rewards))[0]
    np.testing.assert_allclose(found, case[1], atol=golden.GOLDEN_ATOL)


def test_leave_one_out_of_a_flat_rest_stays_undivided():
    # The others are 0.9, 0.9, 0.9: their spread is 0 in truth, 3e-4 in naive float32 (-2027 then).
    rewards = np.array([[0.2, 0.9, 0.9, 0.9]], np.float32)
    found = leave_one_out_advantages(rewards, everyone(rewards))[0]
    np.testing.assert_allclose(found[0], -0.7, atol=golden.GOLDEN_ATOL)


@pytest.mark.parametrize("advantages", [group_advantages, leave_one_out_advantages])
def test_failed_members_neither_vote_nor_learn(advantages):
    rewards = np.array([[1, 0, 1, 0, 0.5]], np.float32)
    keep = np.array([[True, True, True, True, False]])
    found = advantages(rewards, keep)
    alone = advantages(rewards[:, :4], keep[:, :4])
    np.testing.assert_array_equal(found[:, :4], alone)
    assert found[0, 4] == 0


def test_fewer_than_two_valid_members_give_zeros():
    rewards = np.array([[1, 0, 0, 0]], np.float32)
    assert (group_advantages(rewards, np.array([[True, False, False, False]])) == 0).all()


def test_usable_groups_need_two_members_and_a_difference():
    rewards = np.array([[1, 1, 0], [1, 1, 0], [1, 0, 0], [0, 0, 0]], np.float32)
    keep = np.array([[1, 1, 1], [1, 1, 0], [1, 0, 0], [1, 1, 1]], bool)
    enough, differ = usable_groups(rewards, keep)
    assert enough.tolist() == [True, True, False, True]
    assert differ.tolist() == [True, False, False, False]
