"""How a pattern string is cut into repeated units, and where each published layer then lies."""

from __future__ import annotations

from functools import cache as memo


@memo
def cut_pattern(pattern: str) -> tuple[tuple[str, int], ...]:
    """Cuts a pattern into (unit, repeats) with the fewest layer bodies, then the fewest units."""
    best: list[tuple[int, int, tuple[tuple[str, int], ...]]] = [(0, 0, ())]
    for end in range(1, len(pattern) + 1):
        found = None
        for start in range(end):
            unit, repeats = _shortest_period(pattern[start:end])
            bodies, units, cuts = best[start]
            option = (bodies + len(unit), units + 1, (*cuts, (unit, repeats)))
            if found is None or option[:2] < found[:2]:
                found = option
        assert found is not None
        best.append(found)
    return best[-1][2]


def _shortest_period(text: str) -> tuple[str, int]:
    size = (text + text).index(text, 1)
    return text[:size], len(text) // size


def layer_places(pattern: str) -> list[tuple[int, int, int]]:
    """Returns (unit, letter, repeat) of each published layer, in order."""
    return [
        (u, j, r)
        for u, (unit, repeats) in enumerate(cut_pattern(pattern))
        for r in range(repeats)
        for j in range(len(unit))
    ]
