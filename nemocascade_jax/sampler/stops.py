"""Stop strings, found in the text and not in the tokens; no jax."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

SLACK = 8  # characters that decoding from the middle may distort at its start


class Found(NamedTuple):
    """Where a stop string was completed."""

    tokens: int  # how many tokens complete it
    before: int  # how many tokens' text lies wholly before it
    text: str  # the text before it
    stop: str


def find_stop(
    ids: list[int], seen: int, stops: Sequence[str], decode: Callable[[list[int]], str]
) -> Found | None:
    """Returns the first stop string completed by a token after the first `seen`, None where none is.

    The one whose last character comes first wins, as if the text were read a character at a time;
    of two that end together the longer, which cuts more.
    """
    back, longest = seen, max(map(len, stops)) + SLACK
    while back and len(decode(ids[back:seen])) < longest:
        back = max(0, back - longest)
    near = decode(ids[back:])
    if not any(stop in near for stop in stops):
        return None
    for count in range(seen + 1, len(ids) + 1):
        text = decode(ids[:count])
        ends = [(text.find(stop) + len(stop), -len(stop), stop) for stop in stops if stop in text]
        if ends:
            end, size, stop = min(ends)
            return Found(
                count, _tokens_before(ids[:count], end + size, decode), text[: end + size], stop
            )
    return None


def _tokens_before(ids: list[int], cut: int, decode: Callable[[list[int]], str]) -> int:
    """Returns how many leading tokens have a text that ends at or before the cut."""
    for count in range(len(ids) - 1, 0, -1):
        if len(decode(ids[:count])) <= cut:
            return count
    return 0
