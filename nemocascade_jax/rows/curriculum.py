"""Which rows a stage trains on, and in which order, by how often they were solved in trials.

The filter drops what is always solved and most of what never is (paper 2.11); the order draws pass
rates from a Gaussian whose centre moves from easy to hard (paper 8.2). Choices depend on the seed
and the row's own key only, so a row stays in or out whatever else is in the file.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from nemocascade_jax.rows.records import RowError

Choice = Literal["kept", "always", "never", "unscored"]
GOOD_SCORE = '{"index": 0, "id": "a", "reward": 1.0, "status": "ok"}'


class Trials(NamedTuple):
    """The graded trials of one row: valid ones only count, `faults` are those without a reward."""

    rewards: tuple[float, ...] = ()
    faults: int = 0

    @property
    def rate(self) -> float | None:
        """The mean reward, None without a valid trial."""
        return math.fsum(self.rewards) / len(self.rewards) if self.rewards else None


def collect_trials(
    scores: Iterable[tuple[str, Mapping[str, Any]]], keys: Sequence[str], by: Literal["id", "index"]
) -> list[Trials]:
    """Returns the trials of each row; `scores` are (where, line of score.py) of all its files.

    `keys` holds the rows' ids in order (`row_key`). A trial that failed or timed out is the grader's
    fault: it is counted apart and never as unsolved.
    """
    places = {key: index for index, key in enumerate(keys)}
    if by == "id" and len(places) < len(keys):
        index = next(index for index, key in enumerate(keys) if places[key] != index)
        twice = f"rows {index} and {places[keys[index]]} have the id {keys[index]!r}"
        raise RowError(f"collect_trials: {twice}, so their scores look alike; join by index")
    rewards: list[list[float]] = [[] for _ in keys]
    faults = [0] * len(keys)
    for where, score in scores:
        place = _place(where, score, places, len(keys), by)
        reward = _reward(where, score)
        if reward is None:
            faults[place] += 1
        else:
            rewards[place].append(reward)
    return [Trials(tuple(some), count) for some, count in zip(rewards, faults, strict=True)]


def row_key(obj: Mapping[str, Any], index: int) -> str:
    """Returns the id that score.py gives a row: its own, else its number in the file."""
    return str(next((obj[k] for k in ("id", "uuid", "hash_id") if obj.get(k) is not None), index))


def choose(trials: Trials, key: str, *, keep_never: float, seed: int) -> Choice:
    """Returns whether a row is kept, else why not; of the never solved a share `keep_never` stays."""
    if not trials.rewards:
        return "unscored"
    if min(trials.rewards) >= 1:
        return "always"
    if max(trials.rewards) <= 0 and uniform("never", key, seed) >= keep_never:
        return "never"
    return "kept"


def curriculum_order(
    rates: Sequence[float],
    keys: Sequence[str],
    *,
    count: int,
    centres: tuple[float, float],
    width: float,
    seed: int,
) -> list[int]:
    """Returns `count` rows in the order of the curriculum, each at most once.

    Draw t of n takes a pass rate r, in hundredths, among those that are left with a chance in
    proportion to exp(-(r - m)^2 / (2 width^2)), where m moves evenly from the first centre to the
    last, and then a row of that pass rate. Chances are over pass rates, not rows: a rate that many
    rows share is not drawn more often for it. Where `count` is all rows, those that no centre was
    near to come last.
    """
    levels: dict[float, list[int]] = {}
    for index in sorted(range(len(rates)), key=lambda i: uniform("order", keys[i], seed)):
        levels.setdefault(round(rates[index], 2), []).append(index)
    rng = random.Random(f"{seed}/levels")
    order: list[int] = []
    first, last = centres
    count = min(count, len(rates))
    for draw in range(count):
        centre = first + (last - first) * draw / max(count - 1, 1)
        left = sorted(levels)
        level = rng.choices(left, gaussian_weights(left, centre, width))[0]
        order.append(levels[level].pop())
        if not levels[level]:
            del levels[level]
    return order


def gaussian_weights(rates: Sequence[float], centre: float, width: float) -> list[float]:
    """Returns exp(-(r - centre)^2 / (2 width^2)) of each rate over the largest of them."""
    exponents = [-((rate - centre) ** 2) / (2 * width**2) for rate in rates]
    return [math.exp(one - max(exponents)) for one in exponents]


def uniform(purpose: str, key: str, seed: int) -> float:
    """Returns a number in [0, 1) that depends on nothing but its arguments."""
    digest = hashlib.sha256(f"{seed}/{purpose}/{key}".encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64


def _place(
    where: str, score: Mapping[str, Any], places: Mapping[str, int], count: int, by: str
) -> int:
    value = score.get(by)
    if by == "index" and isinstance(value, int) and 0 <= value < count:
        return value
    if by == "id" and isinstance(value, str | int) and str(value) in places:
        return places[str(value)]
    problem = f"{value!r} is none of the {count} rows"
    raise RowError(f"{where}: field {by}: {problem}; a good line: {GOOD_SCORE}")


def _reward(where: str, score: Mapping[str, Any]) -> float | None:
    status, reward = score.get("status"), score.get("reward")
    if status in ("failed", "timeout"):
        return None
    if status != "ok" or isinstance(reward, bool) or not isinstance(reward, int | float):
        problem = f"status {status!r} with reward {reward!r}"
        raise RowError(f"{where}: field reward: {problem}; a good line: {GOOD_SCORE}")
    return float(reward)
