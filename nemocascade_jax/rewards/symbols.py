"""Equality of expressions by the math-verify package, where it is installed (extra [math]).

It is called without its own timeouts, in a grading process whose limits end it; what it would work
out for ever, or read in a way no reader would, never gets to it.
"""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import logging
import math
import re
import tokenize
from typing import Any

from nemocascade_jax.rewards.latex import deepest, split
from nemocascade_jax.rewards.numbers import read_number

LONGEST = 300  # characters of an expression
DIGITS = 3  # of a number in an exponent or under a factorial
DEEPEST = 8  # brackets in brackets
KEPT = 2_048  # expressions, and pairs of them, that are remembered
LARGEST_POWER = 200  # product of the exponents of brackets


# What computer algebra raises on a text that is no mathematics. Anything else is the grader's own
# fault and reaches the worker, which calls the row failed.
ALGEBRA_FAULTS = (
    ArithmeticError,
    AttributeError,
    LookupError,
    NotImplementedError,
    RecursionError,
    SyntaxError,
    TypeError,
    ValueError,
    tokenize.TokenError,
)


class Undecided(Exception):
    """An answer that the package can neither read nor compare: the answer's own fault."""


@functools.cache
def library() -> Any:
    """Returns the package, None where it is not installed."""
    try:
        import math_verify
    except ImportError:
        return None
    for name in ("math_verify", "latex2sympy2_extended"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # its messages write out expressions
    return math_verify


def method_name() -> str:
    """Returns what compares expressions here: the package with its version, or "text"."""
    if importlib.util.find_spec("math_verify") is None:
        return "text"
    return f"math-verify {importlib.metadata.version('math-verify')}"


def warm() -> None:
    """Loads the package and its grammar."""
    if library() is not None:
        same("\\sqrt{2}", "\\frac{2}{\\sqrt{2}}")


@functools.lru_cache(maxsize=KEPT)
def same(gold: str, answer: str) -> bool:
    """Returns whether two readable expressions are equal, taken in either order.

    Raises Undecided for an answer that cannot be read or compared, and why. The samples of a group
    often give the same answer: it is compared once.
    """
    left, right = parse(gold), parse(answer)
    if not left or not right:
        raise Undecided("not an expression that can be read")
    verify = library().verify
    try:
        return bool(
            verify(left, right, timeout_seconds=None) or verify(right, left, timeout_seconds=None)
        )
    except ALGEBRA_FAULTS as error:
        raise Undecided(f"cannot be compared ({type(error).__name__})") from None


@functools.lru_cache(maxsize=KEPT)
def parse(text: str) -> list[Any]:
    """Returns what the package reads in a text, nothing where it cannot be read."""
    package = library()
    try:
        return package.parse(
            f"${text}$",
            extraction_config=[package.LatexExtractionConfig()],
            fallback_mode="no_fallback",
            parsing_timeout=None,
        )
    except ALGEBRA_FAULTS:
        return []


def readable(text: str) -> bool:
    """Returns whether a cleaned text is an expression of bounded cost that reads in one way."""
    if len(text) > LONGEST or UNREADABLE.search(text) or text.count("^") > 12:
        return False
    if len(split(text, COMMA)) > 1 or text.count("!") > 1 or GROUP_FACTORIAL.search(text):
        return False
    if (GROWING.search(text) and LARGE.search(text)) or deepest(text) > DEEPEST:
        return False
    powers = [_exponent(text, match.end()) for match in re.finditer(r"\^", text)]
    return None not in powers and math.prod(power or 0 for power in powers) <= LARGEST_POWER


def unfinished(gold: str, answer: str) -> bool:
    """Returns whether an answer only says what is to be worked out: 6 \\cdot 7, or an integral."""
    if TO_DO.search(answer) and not TO_DO.search(gold):
        return True
    return bool(SUM.fullmatch(answer)) and not read_number(answer) and bool(read_number(gold))


def _exponent(text: str, place: int) -> int | None:
    """Returns how often the exponent at `place` multiplies the size of what is in brackets.

    1 for an exponent of a single number or letter; None for one that holds a power, a factorial or
    a large number.
    """
    depth, end = 0, place
    for end in range(place, len(text)):
        depth += (text[end] == "{") - (text[end] == "}")
        if depth <= 0 and text[end] != " " and not text[end : end + 2].isdigit():
            break  # digits without braces are taken as one number, as readers of LaTeX may
    exponent = text[place : end + 1]
    numbers = re.findall("[0-9]+", exponent)
    if re.search(r"\^|!", exponent) or re.match(r"[ }]*[\^!]", text[end + 1 :]):
        return None
    if any(len(number) > DIGITS for number in numbers):
        return None
    grouped = text[: place - 1].rstrip()[-1:] in (")", "}", "]", "|")
    return max(1, *(int(number) for number in numbers), 1) if grouped else 1


# Words, numbers side by side, other relations than the one compared, base subscripts, layout.
UNREADABLE = re.compile(
    r'"|(?<![\\A-Za-z])[A-Za-z]{4,}|[0-9]\s[0-9]|[0-9][eE][0-9+-]|[0-9)}]_|[;:?]|\''
    r"|\\boxed|\\begin|\\cr|\\approx|\\equiv|\\sim|\\ne(?![A-Za-z])|\\to|\\[Rr]ightarrow|\\implies"
    r"|[$%]|phantom|\\(?:color|cancel|tag|hspace|smash|[rl]lap|verb)"
    r"|\\text|\\pmod|\\bmod|\\mod|\\ldots|\\cdots|\.\."
)
COMMA = re.compile(",")
GROUP_FACTORIAL = re.compile(r"[^0-9A-Za-z]\s?!")
GROWING = re.compile(r"!|\\[dt]?binom|\\choose|\\Gamma")  # whose value is far larger than its text
LARGE = re.compile("[0-9]{4}")
TO_DO = re.compile(r"\\(?:i*int|oint|sum|prod|lim|det|frac\{d\}|partial)(?![A-Za-z])")
SUM = re.compile(r"(?:[0-9.,+*/()^ -]|\\times|\\cdot|\\div|\\frac|[{}])*")
