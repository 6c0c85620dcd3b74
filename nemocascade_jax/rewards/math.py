"""The math verifier: pays 1 when the last box of the answer equals the row's reference (paper 2.6).

Numbers, words, sets, tuples and intervals are compared exactly, and so are sums of powers and roots.
What that cannot decide goes to the math-verify package where it is installed; without it such
answers are compared as text, and the reason says so.
"""

from __future__ import annotations

import functools
import re

from nemocascade_jax.rewards import estimates, symbols, values
from nemocascade_jax.rewards.boxes import BOX, last_box
from nemocascade_jax.rewards.latex import balanced, clean, split, squeezed
from nemocascade_jax.rows.messages import split_reasoning
from nemocascade_jax.rows.records import Completion, Row, RowError, Score

LONGEST = 2_000  # characters of a boxed answer, and of a reference
MOST = 60  # pairs of expressions compared for one answer
AS_TEXT = "not equal as text; math-verify, which compares expressions, is not installed"
OVER_ZERO = re.compile(r"/ ?0(?![0-9.])|\\frac\{[^{}]*\}\{ ?0 ?\}")
GOOD = '{"question": "Compute 6*7.", "expected_answer": "42"}'


def check(row: Row) -> None:
    """Raises RowError for a reference that no answer can be held against."""
    text = reference(row)
    if isinstance(values.read(text), values.Symbolic) and symbols.readable(text):
        _parsed(text)


def score(row: Row, completion: Completion) -> Score:
    """Grades the last box after the reasoning; `parts` says whether there was one, and right."""
    gold = reference(row)
    box = last_box(split_reasoning(completion.text)[1])
    if not box:
        return _verdict("no boxed answer" if box is None else "empty box", form=0.0)
    if len(box) > LONGEST:
        return _verdict(f"{len(box)} characters in the box, at most {LONGEST} are read", form=0.0)
    if BOX in box:
        return _verdict("more than one box in the box", form=0.0)
    return _verdict(differs(gold, clean(box)))


def differs(gold: str, answer: str) -> str:
    """Returns why a cleaned answer is not the cleaned reference, "" where it is."""
    value = values.read(answer)
    if isinstance(value, values.Nothing):
        return f"no answer: {value.reason}"
    if squeezed(gold) == squeezed(answer):
        return ""
    asked: list[str] = []

    def decide(left: str, right: str) -> bool:
        asked.append(_refused(left, right) if len(asked) < MOST else "too many to compare")
        if asked[-1]:
            return False
        if estimates.surely_equal(left, right):
            return True
        asked[-1] = _not_compared(left, right)
        if asked[-1]:
            return False
        try:
            return symbols.same(left, right)
        except symbols.Undecided as problem:
            asked[-1] = f"not equal: {problem}"
            return False

    if values.same(_read(gold), value, decide):
        return ""
    return next((reason for reason in asked if reason), "not equal")


def _refused(gold: str, answer: str) -> str:
    """Returns why two expressions are not equal however they read, "" where that is open."""
    if not (symbols.readable(gold) and symbols.readable(answer)):
        return "not equal as text; not an expression to be worked out"
    if len(split(gold, values.EQUALS)) != len(split(answer, values.EQUALS)):
        return "not equal: an equation is no value"
    if symbols.unfinished(gold, answer):
        return "not equal: the answer is not worked out"
    return ""


def _not_compared(gold: str, answer: str) -> str:
    """Returns why two expressions are not given to math-verify, "" where they are."""
    if estimates.far_apart(gold, answer):
        return "not equal"
    return AS_TEXT if symbols.library() is None else ""


def reference(row: Row) -> str:
    """Returns the row's reference, cleaned; RowError says what is wrong with it."""
    given = row.fields.get("expected_answer")
    if isinstance(given, int | float) and not isinstance(given, bool):
        given = str(given)
    if not isinstance(given, str):
        problem = "missing" if given is None else f"expected text, got {type(given).__name__}"
    else:
        gold, problem = _reference(given)
        if not problem:
            return gold
    field = "field expected_answer"
    raise RowError(f"{row.where}: {field}: {problem}; a good row: {GOOD}")


@functools.lru_cache(maxsize=4096)
def _reference(given: str) -> tuple[str, str]:
    """Returns (the reference cleaned, what is wrong with it)."""
    if len(given) > LONGEST:
        return "", f"{len(given)} characters, at most {LONGEST} are read"
    gold = clean(given)
    problem = values.lacks(values.read(gold))
    if problem:
        return "", f"{given[:80]!r} is no answer: {problem}"
    if not any(char.isalnum() for char in gold) and gold != "\\{\\}":
        return "", f"{given[:80]!r} is no answer: neither a letter nor a digit"
    if OVER_ZERO.search(gold):
        return "", f"{given[:80]!r} is no answer: it divides by zero"
    if not balanced(gold):
        return "", f"{given[:80]!r} has braces that do not match"
    if BOX in gold:
        return "", f"{given[:80]!r} holds more than one box"
    return gold, ""


@functools.lru_cache(maxsize=4096)
def _read(gold: str) -> values.Value:
    return values.read(gold)


@functools.lru_cache(maxsize=4096)
def _parsed(text: str) -> bool:
    return symbols.library() is None or bool(symbols.parse(text))


def _verdict(problem: str, form: float = 1.0) -> Score:
    right = float(not problem)
    return Score(right, "ok", problem, {"format": form, "correct": right})


def warm() -> None:
    """Loads what compares expressions."""
    symbols.warm()
