"""LaTeX answers in one spelling: wrappers, spacing and synonyms gone, words in double quotes."""

from __future__ import annotations

import re
from collections.abc import Iterator

from nemocascade_jax.rewards.boxes import BOX, last_box

OPENING, CLOSING = "([{", ")]}"


def clean(text: str) -> str:
    """Returns the text in the one spelling that the readers of values know."""
    text = _unwrapped(text)
    for pattern, plain in SPELLINGS:
        text = pattern.sub(plain, text)
    text = TEXT.sub(_quoted, text)
    text = " ".join(text.split())
    return text[:-1].rstrip() if text.endswith(".") else text


def squeezed(text: str) -> str:
    """Returns a cleaned text without spaces, quotes and needless braces, to compare as a string.

    A space between two letters or two digits stays, and so does all of an ellipsis but its last dot.
    """
    text = SPACE.sub("", " ".join(text.replace('"', "").split()))
    return SINGLE.sub(r"\1\2", text).removesuffix(".")


def balanced(text: str) -> bool:
    """Returns whether the braces that group are balanced."""
    depth = 0
    for token in re.finditer(r"\\.|[{}]", text, re.DOTALL):
        depth += {"{": 1, "}": -1}.get(token.group(), 0)
        if depth < 0:
            return False
    return depth == 0


def split(text: str, separator: re.Pattern[str]) -> list[str]:
    """Returns the pieces between separators that stand in no brackets and no quotes."""
    pieces, start, skip = [], 0, 0
    for place in outside(text):
        if place < skip:
            continue
        match = separator.match(text, place)
        if match and match.end() > place:
            pieces.append(text[start:place])
            start = skip = match.end()
    return [*pieces, text[start:]]


def outside(text: str) -> Iterator[int]:
    """Yields the places of a text that stand in no brackets and no quotes."""
    depth, quoted = 0, False
    for place, char in enumerate(text):
        if char == '"':
            if not quoted and depth == 0:
                yield place
            quoted = not quoted
        elif quoted:
            continue
        elif char in OPENING:
            depth += 1
        elif char in CLOSING:
            depth = max(0, depth - 1)
        elif depth == 0:
            yield place


def enclosed(text: str) -> bool:
    """Returns whether the bracket that opens a text closes at its end, of whatever kind."""
    depth = 0
    for place, char in enumerate(text):
        depth += (char in OPENING) - (char in CLOSING)
        if depth <= 0:
            return place == len(text) - 1
    return False


def deepest(text: str) -> int:
    """Returns how many brackets stand in one another, of whatever kind."""
    depth = most = 0
    for char in text:
        depth += (char in OPENING) - (char in CLOSING)
        most = max(most, depth)
    return most


def _unwrapped(text: str) -> str:
    """Returns the text without box and dollar signs around it."""
    for _ in range(4):
        text = text.strip()
        inner = last_box(text) if text.startswith(BOX) and text.count(BOX) == 1 else None
        if inner is not None and text.endswith("}"):
            text = inner
        for left, right in WRAPPERS:
            middle = text[len(left) : -len(right)]
            inside = middle.replace("\\$", "")
            whole = len(text) >= len(left) + len(right) and "$" not in inside
            if whole and text.startswith(left) and text.endswith(right):
                text = middle
    return text


def _quoted(match: re.Match[str]) -> str:
    """Returns words in quotes; one letter of a font, or a number in words' clothes, as it is."""
    font, content = match.group(1), match.group(2)
    if not any(char.isalpha() for char in content) or (font in FONTS and len(content.strip()) < 2):
        return content
    return f'"{content}"' if font not in ("mathbf", "boldsymbol", "bm", "mathit") else content


FONTS = ("mathrm", "mathbf", "mathit", "boldsymbol", "bm")
WRAPPERS = (("$$", "$$"), ("$", "$"), ("\\(", "\\)"), ("\\[", "\\]"))
TEXT = re.compile(
    r"\\(text|textbf|textit|textrm|textnormal|mbox|mathrm|mathbf|mathit|boldsymbol|bm)"
    r"\s{0,4}\{([^{}]*)\}"
)
SPACE = re.compile(r"(?<![^\W_]) | (?![^\W_])|(?<=[0-9]) (?=[A-Za-z])|(?<=[A-Za-z]) (?=[0-9])")
SINGLE = re.compile(r"([\^_])\{([A-Za-z0-9])\}")
SPELLINGS = tuple(
    (re.compile(pattern), plain)
    for pattern, plain in (
        (r'"|\x00', ""),
        (r"\\\\", r"\\cr "),  # the end of a matrix's row
        (r"[\u2212\u2013\u2014\u2010\u2011]", "-"),
        (r"\u00d7", r"\\times "),
        (r"[\u00b7\u22c5]", r"\\cdot "),
        (r"\u03c0", r"\\pi "),
        (r"\u221e", r"\\infty "),
        (r"\u00b1", r"\\pm "),
        (r"\u222a", r"\\cup "),
        (r"\u2264|<=", r"\\le "),
        (r"\u2265|>=", r"\\ge "),
        (r"\u2260", r"\\ne "),
        (r"\u221a", r"\\sqrt"),
        (r"\u00bd", r"\\frac{1}{2}"),
        (r"\u00bc", r"\\frac{1}{4}"),
        (r"\u00be", r"\\frac{3}{4}"),
        (r"\\(?:left|right|[Bb]igg?[lrm]?|displaystyle|textstyle|limits)(?![A-Za-z])\s?", ""),
        (r"\\[,!]|\\thinspace(?![A-Za-z])", ""),
        (r"\\[;:> ]|~|\\q?quad(?![A-Za-z])", " "),
        (r"\{,\}", ","),
        (r"\\[dtc]frac(?![A-Za-z])", r"\\frac"),
        (r"\\([%$])", r"\1"),
        (r"\\lbrace(?![A-Za-z])", r"\\{"),
        (r"\\rbrace(?![A-Za-z])", r"\\}"),
        (r"\\(le|ge|ne)q(?![A-Za-z])", r"\\\1"),
        (r"\\lt(?![A-Za-z])", "<"),
        (r"\\gt(?![A-Za-z])", ">"),
        (r"\^\s?\{\s?\\circ\s?\}|\^\s?\\circ(?![A-Za-z])|\\degrees?(?![A-Za-z])|\u00b0", "\u00b0"),
        (r"\\(?:varnothing|emptyset)(?![A-Za-z])", r"\\{\\}"),
        (r"\\frac\s?([0-9a-z])\s?([0-9a-z])", r"\\frac{\1}{\2}"),
        (r"\\frac\s?([0-9a-z])\s?\{", r"\\frac{\1}{"),
        (r"\\frac\s?\{([^{}]*)\}\s?([0-9a-z])", r"\\frac{\1}{\2}"),
        (r"\\sqrt\s?([0-9a-z])", r"\\sqrt{\1}"),
    )
)
