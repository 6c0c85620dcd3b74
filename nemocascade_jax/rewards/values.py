"""What a mathematical answer is, and when two are the same: numbers, words, sets, tuples, intervals."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from nemocascade_jax.rewards.latex import enclosed, split, squeezed
from nemocascade_jax.rewards.numbers import Number, read_number, read_unit, same_number

DEEPEST = 6  # brackets in brackets
MOST = 200  # items


class Word(NamedTuple):
    text: str


class Infinity(NamedTuple):
    sign: int


class Symbolic(NamedTuple):
    """An expression that is not read here, and the unit after it."""

    text: str
    unit: str = ""


class Group(NamedTuple):
    """Several values. `kind` is a pair of brackets where order counts, else "list" or "set"."""

    kind: str
    items: tuple[Value, ...]


class Named(NamedTuple):
    """A value behind a name: x = 7."""

    name: str
    value: Value


class Nothing(NamedTuple):
    """A text that is no answer, and why."""

    reason: str


Value = Number | Word | Infinity | Symbolic | Group | Named | Nothing
Decide = Callable[[str, str], bool]


def read(text: str, depth: int = 0) -> Value:
    """Returns what a cleaned text is."""
    text = _bare(text)
    if not text:
        return Nothing("empty")
    if depth > DEEPEST:
        return Symbolic(text)
    return (
        _equation(text, depth)
        or read_number(text)
        or _infinity(text)
        or _group(text, depth)
        or _listed(text, depth)
        or _word(text)
        or _symbolic(text)
    )


def same(gold: Value, answer: Value, decide: Decide) -> bool:
    """Returns whether the answer is the reference; `decide` compares expressions not read here."""
    if isinstance(gold, Nothing) or isinstance(answer, Nothing):
        return False
    if isinstance(gold, Named) and isinstance(answer, Named) and gold.name != answer.name:
        return False
    gold = gold.value if isinstance(gold, Named) else gold
    answer = answer.value if isinstance(answer, Named) else answer
    if isinstance(gold, Number) and isinstance(answer, Number):
        return same_number(gold, answer)
    if isinstance(gold, Group) and isinstance(answer, Group):
        return _same_group(gold, answer, decide)
    if isinstance(gold, Word) and isinstance(answer, Word):
        return _folded(gold.text) == _folded(answer.text)
    if isinstance(gold, Symbolic) or isinstance(answer, Symbolic):
        left, right = written(gold), written(answer)
        units = (_unit_of(gold), _unit_of(answer))
        if not left or not right or units[0] not in ("", units[1]):
            return False
        return squeezed(left) == squeezed(right) or decide(left, right)
    return type(gold) is type(answer) and gold == answer


def lacks(value: Value) -> str:
    """Returns why a value is no answer, or holds a part that is none; "" for one that is."""
    if isinstance(value, Nothing):
        return value.reason
    if isinstance(value, Named):
        return lacks(value.value)
    parts = value.items if isinstance(value, Group) else ()
    return next((reason for reason in map(lacks, parts) if reason), "")


def written(value: Value) -> str:
    """Returns a value as an expression, "" for one that is none."""
    if isinstance(value, Symbolic) or (isinstance(value, Word) and len(value.text) == 1):
        return value.text
    if isinstance(value, Number):
        top, bottom = value.value.numerator, value.value.denominator
        if max(abs(top), bottom) < 10**100:
            return str(top) if bottom == 1 else f"\\frac{{{top}}}{{{bottom}}}"
    if isinstance(value, Group) and len(value.items) <= 12:
        items = [written(item) for item in value.items]
        ordered = len(value.kind) == 2
        left, right = (value.kind[0], value.kind[1]) if ordered else ("\\{", "\\}")
        return f"{left}{','.join(items)}{right}" if all(items) else ""
    if isinstance(value, Infinity):
        return "-\\infty" if value.sign < 0 else "\\infty"
    return ""


def _same_group(gold: Group, answer: Group, decide: Decide) -> bool:
    if "list" in (gold.kind, answer.kind) or "set" in (gold.kind, answer.kind):
        if len(gold.kind) == 2 or len(answer.kind) == 2:
            return False
        if "list" in (gold.kind, answer.kind) and len(gold.items) != len(answer.items):
            return False
        return _within(gold, answer, decide) and _within(answer, gold, decide, turned=True)
    return (
        gold.kind == answer.kind
        and len(gold.items) == len(answer.items)
        and all(same(*pair, decide) for pair in zip(gold.items, answer.items, strict=True))
    )


def _within(some: Group, others: Group, decide: Decide, turned: bool = False) -> bool:
    """Returns whether each item of `some` is among `others`."""
    return all(
        any(same(*((other, item) if turned else (item, other)), decide) for other in others.items)
        for item in some.items
    )


def _bare(text: str) -> str:
    """Returns the text without braces, quotes, or round brackets around a single value."""
    for _ in range(8):
        text = text.strip()
        if len(text) > 1 and text[0] == text[-1] == '"' and text.count('"') == 2:
            text = text[1:-1].removesuffix(".")
        elif text.startswith("{") and text.endswith("}") and enclosed(text):
            text = text[1:-1]
        elif text.startswith("(") and text.endswith(")") and enclosed(text):
            if len(split(text[1:-1], COMMA)) > 1:
                break
            text = text[1:-1]
        else:
            break
    return text


def _equation(text: str, depth: int) -> Value | None:
    """Returns a named value, a list of them, or Nothing for literals joined by =.

    None where the text has no equals sign outside its brackets.
    """
    sides = split(text, EQUALS)
    if len(sides) == 1:
        return None
    listed = _listed(text, depth)
    if listed:
        return listed
    for name, value in (sides, sides[::-1]) if len(sides) == 2 else ():
        if NAME.fullmatch(name.strip()):
            return Named(squeezed(name.strip()), read(value, depth + 1))
    read_sides = [read(side, depth + 1) for side in sides]
    if sum(isinstance(side, Number | Nothing | Infinity) for side in read_sides) > 1:
        return Nothing("values joined by =")
    return Symbolic(text)


def _infinity(text: str) -> Infinity | None:
    match = INFINITY.fullmatch(text)
    return Infinity(-1 if match.group(1) == "-" else 1) if match else None


def _group(text: str, depth: int) -> Group | None:
    """Returns a set, a tuple, an interval or a matrix; None for a text that is in no brackets."""
    matrix = MATRIX.fullmatch(text)
    if matrix:
        rows = [row for row in split(matrix.group(2), ROW) if row.strip()]
        if len(rows) <= MOST:
            return Group("[]", tuple(Group("[]", _items(row, CELL, depth)) for row in rows))
    if text.startswith("\\{") and text.endswith("\\}") and enclosed(text[1:-2] + "}"):
        inner = text[2:-2].strip()
        if re.search(r"\||\\mid|:", inner):
            return None
        return Group("set", _items(inner, COMMA, depth)) if inner else Group("set", ())
    if text[0] in "([" and text[-1] in ")]" and enclosed(text):
        pieces = split(text[1:-1], COMMA)
        if 1 < len(pieces) <= MOST:
            return Group(text[0] + text[-1], _items(text[1:-1], COMMA, depth))
    return None


def _listed(text: str, depth: int) -> Group | None:
    """Returns values side by side: by commas, "and", "or", or a sign of two values."""
    match = PLUS_MINUS.fullmatch(text)
    number = read_number(match.group(1)) if match else None
    if number is not None:
        minus = number._replace(value=-number.value)
        return Group("list", (number, minus) if number.value else (number,))
    for separator in (AND, SEMICOLON, COMMA_SPACE, COMMA):
        if len(split(text, separator)) > 1:
            items: list[Value] = []
            for item in _items(text, separator, depth):
                items.extend(item.items if _is_list(item) else (item,))  # type: ignore[union-attr]
            return Group("list", tuple(items)) if len(items) > 1 else None
    return None


def _is_list(value: Value) -> bool:
    return isinstance(value, Group) and value.kind == "list"


def _items(text: str, separator: re.Pattern[str], depth: int) -> tuple[Value, ...]:
    pieces = [piece for piece in split(text, separator) if piece.strip() or separator is COMMA]
    if len(pieces) > MOST:
        return (Nothing("too many values"),)
    return tuple(read(piece, depth + 1) for piece in pieces)


def _word(text: str) -> Word | None:
    plain = text.replace('"', "")
    fits = all(char.isalpha() or char in " '-" for char in plain)
    return Word(plain) if fits and any(char.isalpha() for char in plain) else None


def _symbolic(text: str) -> Symbolic:
    match = WITH_UNIT.fullmatch(text)
    unit = read_unit(match.group(2)) if match else ""
    return Symbolic(match.group(1), unit) if match and unit else Symbolic(text)


def _unit_of(value: Value) -> str:
    return value.unit if isinstance(value, Symbolic | Number) else ""


def _folded(text: str) -> str:
    """Returns a word without regard to case; a lone letter keeps its own."""
    words = text.split()
    return text.strip() if len(text.strip()) == 1 else " ".join(words).casefold()


WITH_UNIT = re.compile(r'([^"]*[^" ]) ?("[^"]*"(?: ?\^ ?\{?-?[0-9]\}?)?)')
COMMA = re.compile(",")
COMMA_SPACE = re.compile(", ")
SEMICOLON = re.compile(";")
MATRIX = re.compile(r"\\begin\{([pb]matrix)\}(.*)\\end\{\1\}")
ROW = re.compile(r"\\cr(?![A-Za-z])")
CELL = re.compile("&")
AND = re.compile(r',? ?(?:"\s?(?:and|or)\s?"|(?<![A-Za-z])(?:and|or)(?![A-Za-z])) ?')
EQUALS = re.compile(r"=|\\in(?![A-Za-z])")
INFINITY = re.compile(r"([+-]?) ?\\infty")
PLUS_MINUS = re.compile(r"\\pm ?(.+)")
INDEX = r"(?:_(?:[A-Za-z0-9]|\{[A-Za-z0-9, ]{1,20}\}))?"
NAME = re.compile(
    rf"(?:\\[a-z]{{1,12}} ?)?(?:\"[A-Za-z ]{{1,40}}\"|[A-Za-z][A-Za-z ]{{0,30}}){INDEX}'{{0,3}}"
    rf"(?: ?\([A-Za-z0-9, ]{{1,20}}\))?|\\[A-Za-z]{{1,12}}{INDEX}"
    rf"|\( ?[A-Za-z]{INDEX}(?: ?, ?[A-Za-z]{INDEX}){{0,9}} ?\)"
)
