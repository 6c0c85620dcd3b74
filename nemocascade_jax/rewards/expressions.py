"""Simple expressions of cleaned LaTeX as trees: sums, products, powers, fractions, roots, letters.

What could be read in more than one way (1/2x, 2\\frac{1}{2}, \\sin x) is not read at all.
"""

from __future__ import annotations

import functools
import re
from fractions import Fraction
from typing import NamedTuple

LONGEST = 300  # characters, which bounds the depth too
OPERATORS = {"\\cdot": "*", "\\times": "*", "\\div": "/"}
CLOSING = {"(": ")", "[": "]", "{": "}"}
TOKEN = re.compile(
    r" *(?:([0-9]+(?:\.[0-9]+)?|\.[0-9]+)|(\\[A-Za-z]+|[A-Za-z])((?:_[A-Za-z0-9]|_\{[A-Za-z0-9]+\})?)"
    r"|([-+*/^(){}\[\]]))"
)
LETTERS = re.compile(
    "(?:alpha|beta|gamma|delta|(?:var)?epsilon|zeta|eta|(?:var)?theta|iota|kappa|lambda|mu|nu|xi|rho"
    "|pi|sigma|tau|(?:var)?phi|chi|psi|omega|Gamma|Delta|Theta|Lambda|Xi|Sigma|Phi|Psi|Omega)(?:_.*)?"
)
WORD = re.compile(r"(?<![\\A-Za-z])(?:[A-Za-z]{3,}|ln|lg|tg)")


class Unread(Exception):
    """An expression that is not read."""


class Tree(NamedTuple):
    """An operation (+ - * / ^ sqrt) on `parts`, a number or a name."""

    kind: str
    parts: tuple[Tree, ...] = ()
    number: Fraction = Fraction(0)
    name: str = ""


class Token(NamedTuple):
    kind: str  # "number", "name", "mark" or "end"
    text: str


@functools.lru_cache(maxsize=2_048)
def read(text: str) -> Tree | None:
    """Returns the tree of a cleaned text, None for one that is not read."""
    if len(text) > LONGEST or WORD.search(text):
        return None
    try:
        tokens = _tokens(text.rstrip())
        tree, place = _sum(tokens, 0)
    except Unread:
        return None
    return tree if tokens[place].kind == "end" else None


def _tokens(text: str) -> list[Token]:
    found, place = [], 0
    while place < len(text):
        match = TOKEN.match(text, place)
        if match is None:
            raise Unread
        number, name, index, mark = match.groups()
        if number or name in OPERATORS or mark:
            kind = "number" if number else "mark"
            found.append(Token(kind, number or OPERATORS.get(name, mark)))
        else:
            found.append(Token("name", name + index))
        place = match.end()
    return [*found, Token("end", "")]


def _sum(tokens: list[Token], place: int) -> tuple[Tree, int]:
    sign = tokens[place].text if tokens[place].text in ("+", "-") else ""
    tree, place = _product(tokens, place + len(sign))
    if sign == "-":
        tree = Tree("-", (Tree("number"), tree))
    while tokens[place].text in ("+", "-"):
        sign = tokens[place].text
        term, place = _product(tokens, place + 1)
        tree = Tree(sign, (tree, term))
    return tree, place


def _product(tokens: list[Token], place: int) -> tuple[Tree, int]:
    """Side by side means times; after a / that could be read in two ways."""
    tree, place = _power(tokens, place)
    divided = False
    while True:
        token = tokens[place]
        if token.text in ("*", "/"):
            divided = token.text == "/"
            factor, place = _power(tokens, place + 1)
            tree = Tree(token.text, (tree, factor))
        elif token.kind in ("number", "name") or token.text in CLOSING:
            mixed = token.text == "\\frac" and tokens[place - 1].kind == "number"
            if divided or mixed or token.kind == "number":
                raise Unread
            factor, place = _power(tokens, place)
            tree = Tree("*", (tree, factor))
        else:
            return tree, place


def _power(tokens: list[Token], place: int) -> tuple[Tree, int]:
    tree, place = _atom(tokens, place)
    if tokens[place].text != "^":
        return tree, place
    exponent, place = _atom(tokens, place + 1)
    if tokens[place].text == "^":
        raise Unread
    return Tree("^", (tree, exponent)), place


def _atom(tokens: list[Token], place: int) -> tuple[Tree, int]:
    token = tokens[place]
    if token.kind == "number":
        return Tree("number", number=Fraction(token.text)), place + 1
    if token.kind == "name":
        return _named(tokens, place)
    if token.text not in CLOSING:
        raise Unread
    tree, place = _sum(tokens, place + 1)
    if tokens[place].text != CLOSING[token.text]:
        raise Unread
    return tree, place + 1


def _named(tokens: list[Token], place: int) -> tuple[Tree, int]:
    """Returns a fraction, a root or a letter."""
    name = tokens[place].text
    if name == "\\frac":
        top, place = _braced(tokens, place + 1)
        bottom, place = _braced(tokens, place)
        return Tree("/", (top, bottom)), place
    if name == "\\sqrt":
        inner, place = _braced(tokens, place + 1)
        return Tree("sqrt", (inner,)), place
    if name.startswith("\\") and not LETTERS.fullmatch(name[1:]):
        raise Unread
    return Tree("name", name=name), place + 1


def _braced(tokens: list[Token], place: int) -> tuple[Tree, int]:
    if tokens[place].text != "{":
        raise Unread
    return _atom(tokens, place)
