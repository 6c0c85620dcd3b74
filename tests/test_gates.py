"""Verdicts from paired scores: fallen, held, recovered, short (four rows, by hand)."""

import pytest

from nemocascade_jax.cascade import gates
from nemocascade_jax.evaluate import Evaluation, in_second_set

BEST = {"stage": "sft", "step": 4}
TEACHER = {"stage": "sft", "step": 4, "path": None}


def scored(*rewards, rows="selection", mode="sampled"):
    return Evaluation("math", mode, rows, tuple({"reward": reward} for reward in rewards))


# Differences of 8 rows: five lost and three even: mean -5/8, deviation sqrt(15/56) = 0.5175,
# error 0.5175 / sqrt(8) = 0.1830: 3.4 errors below.
FULL = (1.0,) * 8
FIVE_LOST = (0.0,) * 5 + (1.0,) * 3
THREE_LOST = (0.0,) * 3 + (1.0,) * 5  # -3/8, error 0.1830: 2.05 errors below


def test_a_domain_has_fallen_beyond_its_errors():
    found = gates.gate("if_rl", 2, scored(*FIVE_LOST), BEST, scored(*FULL), 3.0)
    assert found["verdict"] == "fallen"
    assert found["difference"] == pytest.approx(-0.625)
    assert found["standard_error"] == pytest.approx(0.18298, abs=1e-5)
    assert found["best"] == BEST


@pytest.mark.parametrize("now", [THREE_LOST, FULL])
def test_a_domain_has_held_within_its_errors(now):
    assert gates.gate("if_rl", 2, scored(*now), BEST, scored(*FULL), 3.0)["verdict"] == "held"


def test_one_single_row_decides_nothing():
    assert gates.gate("a", 1, scored(0.0), BEST, scored(1.0), 3.0)["verdict"] == "held"


@pytest.mark.parametrize(
    ("after", "before", "fallen", "verdict"),
    [
        (FULL, FIVE_LOST, True, "recovered"),
        (THREE_LOST, FIVE_LOST, True, "short"),
        (FULL, FULL, False, "held"),
        (THREE_LOST, FULL, False, "fell"),
    ],
)
def test_what_distillation_did_to_a_domain(after, before, fallen, verdict):
    found = gates.recovery(
        "mopd",
        TEACHER,
        after=scored(*after),
        before=scored(*before),
        at_teacher=scored(*FULL),
        fallen=fallen,
    )
    assert found["verdict"] == verdict
    assert found["difference"] == pytest.approx(sum(after) / 8 - 1)
    assert found["change"] == pytest.approx((sum(after) - sum(before)) / 8)
    assert found["teacher"] == TEACHER


def test_differences_pair_what_both_have_and_skip_failed_rows():
    """A row that one of the two could not grade is left out of the pair."""
    after = [scored(1.0, None, 1.0), scored(1.0, mode="greedy")]
    found = gates.differences("if_rl", "sft", after, [scored(0.0, 0.0, 1.0)])
    assert [(entry["mode"], entry["difference"]) for entry in found] == [("sampled", 0.5)]


def test_the_second_set_is_spread_evenly():
    """A half is every other row, a third every third, none is none; the count is exact."""
    half = [in_second_set(index, 6, 3) for index in range(6)]
    assert half == [False, True] * 3
    assert [in_second_set(index, 6, 2) for index in range(6)] == [False, False, True] * 2
    for wanted in (0, 1, 5, 7):
        assert sum(in_second_set(index, 10, wanted) for index in range(10)) == wanted
