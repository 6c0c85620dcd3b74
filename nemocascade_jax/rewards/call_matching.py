"""Tool calls held against the calls of a reference: argument by argument, then set against set."""

from __future__ import annotations

import collections
import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from nemocascade_jax.rows.records import ToolCall


class Comparison(NamedTuple):
    """How alike is alike enough.

    `similarity` is the least value of (common words) / (words of both), at most 0.5, for two texts of
    at least two words each; None compares texts exactly.
    """

    similarity: float | None
    tolerance: float  # of a number whose reference is no whole number
    mode: str  # "binary", "fraction" or "f1": what a part of the calls is worth
    fewer: bool  # may calls be missing, at all
    more: bool  # may there be others beside them, at all
    counted: bool  # does the number of calls count; if not, others beside the expected are free
    extra_arguments: bool  # may a call have arguments that the reference does not name


class Matched(NamedTuple):
    """What the calls are worth, and what is wrong with the first that is not as it should be."""

    reward: float
    reason: str = ""


def match_calls(wanted: Sequence[ToolCall], made: Sequence[ToolCall], how: Comparison) -> Matched:
    """Compares two sets of calls without regard to their order.

    One call may be like several of the reference, so pairs are found by a maximum matching.
    """
    if len(made) < len(wanted) and not how.fewer:
        return Matched(0.0, f"{len(made)} calls, {len(wanted)} were expected")
    if len(made) > len(wanted) and not how.more:
        return Matched(0.0, f"{len(made)} calls, {len(wanted)} were expected")
    faults = [[call_difference(want, call, how) for call in made] for want in wanted]
    pairs = _maximum_matching([[i for i, fault in enumerate(row) if not fault] for row in faults])
    reward = _worth(len(pairs), len(wanted), len(made), how)
    if reward == 1.0:
        return Matched(1.0)
    missed = [index for index in range(len(wanted)) if index not in pairs.values()]
    if not missed or len(pairs) == len(made):
        return Matched(reward, f"{len(made)} calls, {len(wanted)} were expected")
    near = [fault for fault in faults[missed[0]] if not fault.startswith("tool")]
    return Matched(reward, (near or faults[missed[0]])[0])


def call_difference(want: ToolCall, call: ToolCall, how: Comparison) -> str:
    """Returns in what a call differs from the one that was expected, "" if in nothing that counts."""
    if call.name != want.name:
        return f"tool {call.name[:60]!r} where {want.name!r} was expected"
    arguments = call.arguments
    if how.extra_arguments:
        arguments = {key: arguments[key] for key in want.arguments if key in arguments}
    return value_difference(want.arguments, arguments, how, "arguments")


def value_difference(want: Any, value: Any, how: Comparison, where: str) -> str:
    """Returns where and in what a JSON value differs from its reference, "" if it does not."""
    if isinstance(want, Mapping):
        return _object_difference(want, value, how, where)
    if isinstance(want, list):
        if not isinstance(value, list):
            return f"{where} is no list"
        if len(want) != len(value):
            return f"{where} has {len(value)} entries, {len(want)} were expected"
        pairs = enumerate(zip(want, value, strict=True))
        found = (value_difference(w, v, how, f"{where}[{i}]") for i, (w, v) in pairs)
        return next(filter(None, found), "")
    same = _same_text(want, value, how) if isinstance(want, str) else _same_scalar(want, value, how)
    return "" if same else f"{where} is not as expected"


def _object_difference(want: Mapping[str, Any], value: Any, how: Comparison, where: str) -> str:
    if not isinstance(value, Mapping):
        return f"{where} is no object"
    if want.keys() != value.keys():
        odd = sorted(want.keys() ^ value.keys())[0]
        return f"{where} {'lacks' if odd in want else 'has'} {odd[:60]!r}"
    found = (value_difference(want[key], value[key], how, f"{where}.{key}") for key in want)
    return next(filter(None, found), "")


def _same_scalar(want: Any, value: Any, how: Comparison) -> bool:
    """Compares booleans, null and numbers; true is no 1, and 3.0 is the number 3."""
    if isinstance(want, bool) or want is None:
        return type(value) is type(want) and value == want
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    if isinstance(want, int):
        return value == want
    try:
        return value == want or abs(value - want) < how.tolerance
    except OverflowError:  # a whole number beyond every float
        return False


def _same_text(want: str, value: Any, how: Comparison) -> bool:
    if not isinstance(value, str):
        return False
    if want == value:
        return True
    if how.similarity is None:
        return False
    words, said = _words(want), _words(value)
    if min(words.total(), said.total()) < 2:
        return False
    common = (words & said).total()
    return common / (words.total() + said.total()) >= how.similarity


@functools.lru_cache(maxsize=128)
def _words(text: str) -> collections.Counter[str]:
    """Returns how often each word is there; kept, since many calls are held against many."""
    return collections.Counter(text.lower().split())


def _worth(matched: int, wanted: int, made: int, how: Comparison) -> float:
    if how.mode == "f1":
        return 2 * matched / (wanted + made)
    needed = min(wanted, made) if how.fewer else wanted
    return matched / needed if how.mode == "fraction" else float(matched == needed)


def _maximum_matching(candidates: Sequence[Sequence[int]]) -> dict[int, int]:
    """Returns {call: expected call} with as many pairs as there can be, by augmenting paths."""
    pairs: dict[int, int] = {}

    def place(want: int, seen: set[int]) -> bool:
        for call in candidates[want]:
            if call in seen:
                continue
            seen.add(call)
            if call not in pairs or place(pairs[call], seen):
                pairs[call] = want
                return True
        return False

    for want in range(len(candidates)):
        place(want, set())
    return pairs
