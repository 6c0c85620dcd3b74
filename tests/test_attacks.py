import collections

import attacks
import pytest

from nemocascade_jax.rewards import pool
from nemocascade_jax.rows.records import Completion

DOMAINS = attacks.domains()


@pytest.fixture(scope="module")
def running():
    running = pool.start_pool(1, cpu_s=0.5, memory_mb=1024)
    yield running
    running.close()


def _rows(domain: attacks.Domain) -> list:
    """Returns every fourth hand-made row and three generated ones."""
    hard = domain.rows(0)
    return [*hard[::4], *domain.rows(3)[len(hard) :]]


@pytest.mark.parametrize("name", DOMAINS)
def test_no_attack_is_paid_and_none_escapes_its_zero(name, running):
    domain = DOMAINS[name]
    rows = _rows(domain)
    tried = [
        (kind, row, text)
        for kind, build in domain.attacks.items()
        for row in rows
        if (text := build(row)) is not None
    ]
    scores = running.score([(row, Completion(text)) for _, row, text in tried])
    odd = [
        (kind, row.where, text[:60], score)
        for (kind, row, text), score in zip(tried, scores, strict=True)
        if score.reward != 0.0
    ]
    assert not odd
    assert all(score.reason for score in scores)
    kinds = collections.Counter(kind for kind, _, _ in tried)
    assert len(kinds) >= 6


@pytest.mark.parametrize("name", DOMAINS)
def test_satisfying_answers_are_paid_and_empty_or_truncated_ones_not(name, running):
    domain = DOMAINS[name]
    rows = domain.rows(20)
    for build, reward in (
        (domain.satisfying, 1.0),
        (lambda row: "", 0.0),
        (domain.truncated, 0.0),
    ):
        scores = running.score([(row, Completion(build(row))) for row in rows])
        odd = [
            (row.where, build(row)[:80], score)
            for row, score in zip(rows, scores, strict=True)
            if score.reward != reward
        ]
        assert not odd


def test_attacks_are_of_many_kinds():
    assert len(set().union(*(domain.attacks for domain in DOMAINS.values()))) >= 12
