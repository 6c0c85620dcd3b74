"""The last \\boxed{} of a text, its braces balanced."""

from __future__ import annotations

import re

BOX = "\\boxed"
MOST = 4  # boxes in boxes that are opened
TOKEN = re.compile(r"\\boxed\s{0,8}\{|\\.|[{}]", re.DOTALL)


def last_box(text: str) -> str | None:
    """Returns what stands in the last box, None without one; a box in a box counts as the outer.

    A box that opens after the last closed one and never closes leaves the text without an answer.
    """
    content = _last(text)
    for _ in range(MOST):
        if content is None or not content.startswith(BOX) or not _whole(content):
            break
        content = _last(content)
    return content


def _last(text: str) -> str | None:
    opened: list[tuple[bool, int, int]] = []  # whether a box, where it starts, where its content
    found: tuple[int, int] | None = None
    for token in TOKEN.finditer(text):
        what = token.group()
        if what == "{" or what.startswith(BOX):
            opened.append((what != "{", token.start(), token.end()))
        elif what == "}" and opened:
            is_box, _, start = opened.pop()
            if is_box:
                found = (start, token.start())
    if found is None or any(is_box and start >= found[1] for is_box, start, _ in opened):
        return None
    return text[found[0] : found[1]].strip()


def _whole(text: str) -> bool:
    """Returns whether the first brace of a text closes at its end."""
    depth = 0
    for token in TOKEN.finditer(text):
        what = token.group()
        if what == "{" or what.startswith(BOX):
            depth += 1
        elif what == "}":
            depth -= 1
            if depth <= 0:
                return token.end() == len(text)
    return False
