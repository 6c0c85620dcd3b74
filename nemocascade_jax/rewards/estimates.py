"""Two quick verdicts on simple expressions: surely equal, by exact sums of powers; surely not, by value.

Comparing expressions in general takes milliseconds; most pairs are decided here in a tenth of one.
"""

from __future__ import annotations

import functools
import math
import zlib
from collections.abc import Mapping
from fractions import Fraction

from nemocascade_jax.rewards.expressions import Tree, Unread, read

FAR = 1e-3  # relative difference that no rounding explains
LARGEST = 1e12  # beyond it, and below its inverse, nothing is estimated
CONSTANTS = {"\\pi": math.pi, "e": math.e, "i": 1j}
MOST_TERMS, HIGHEST, MOST_BITS = 64, 12, 512
LARGEST_ROOT = 1_000_000  # whose square factors are looked for

# What a term is made of: the whole number under its root, and its letters with their powers.
Powers = tuple[int, tuple[tuple[str, int], ...]]
Terms = Mapping[Powers, Fraction]
ONE: Powers = (1, ())


def surely_equal(one: str, other: str) -> bool:
    """Returns whether both texts are the same sum of terms, each a number times roots and letters."""
    left, right = _exact_text(one), _exact_text(other)
    return left is not None and left == right


def far_apart(one: str, other: str) -> bool:
    """Returns whether both texts have a value, letters having fixed ones, and these are far apart."""
    left, right = estimate(one), estimate(other)
    if left is None or right is None:
        return False
    return abs(left - right) > FAR * max(1e-6, abs(left), abs(right))


@functools.lru_cache(maxsize=2_048)
def estimate(text: str) -> complex | None:
    """Returns the value of a cleaned expression, None for one without."""
    tree = read(text)
    try:
        value = None if tree is None else _value(tree)
    except (Unread, ArithmeticError):
        return None
    moderate = value is not None and (value == 0 or 1 / LARGEST < abs(value) < LARGEST)
    return value if moderate else None


def _value(tree: Tree) -> complex:
    if tree.kind == "number":
        return complex(float(tree.number))
    if tree.kind == "name":
        known = CONSTANTS.get(tree.name)
        return complex(0.7 + zlib.crc32(tree.name.encode()) / 2**32 if known is None else known)
    values = [_value(part) for part in tree.parts]
    if tree.kind == "sqrt" or tree.kind == "^":
        exponent = 0.5 if tree.kind == "sqrt" else values[1]
        base, whole = values[0], exponent == round(complex(exponent).real)
        if not whole and (base.imag or base.real < 0):
            raise Unread  # whose root is meant is not said
        return base**exponent
    left, right = values
    if tree.kind == "/":
        return left / right
    return {"+": left + right, "-": left - right, "*": left * right}[tree.kind]


@functools.lru_cache(maxsize=2_048)
def _exact_text(text: str) -> Terms | None:
    tree = read(text)
    try:
        return None if tree is None else _terms(tree)
    except Unread:
        return None


def _terms(tree: Tree) -> Terms:
    """Returns the terms of an expression, those of size 0 left out; what is no such sum is Unread."""
    if tree.kind == "number":
        return {ONE: tree.number} if tree.number else {}
    if tree.kind == "name":
        if tree.name == "i":
            raise Unread
        return {(1, ((tree.name, 1),)): Fraction(1)}
    if tree.kind == "^":
        return _raised(_terms(tree.parts[0]), _terms(tree.parts[1]))
    parts = [_terms(part) for part in tree.parts]
    if tree.kind == "sqrt":
        return _root(_constant(parts[0]))
    left, right = parts
    if tree.kind == "*":
        return _times(left, right)
    if tree.kind == "/":
        return _times(left, _inverse(right))
    sign = -1 if tree.kind == "-" else 1
    return _kept({key: left.get(key, 0) + sign * right.get(key, 0) for key in {**left, **right}})


def _kept(terms: Mapping[Powers, Fraction | int]) -> Terms:
    kept = {key: Fraction(value) for key, value in terms.items() if value}
    sizes = (max(abs(v.numerator), v.denominator).bit_length() for v in kept.values())
    if len(kept) > MOST_TERMS or any(size > MOST_BITS for size in sizes):
        raise Unread
    return kept


def _times(left: Terms, right: Terms) -> Terms:
    """Returns the product; under the roots of square-free numbers, common factors come out."""
    total: dict[Powers, Fraction] = {}
    for (root, letters), value in left.items():
        for (other, more), factor in right.items():
            common = math.gcd(root, other)
            powers = dict(letters)
            for name, power in more:
                powers[name] = powers.get(name, 0) + power
            names = tuple(sorted((name, power) for name, power in powers.items() if power))
            key = (root * other // common**2, names)
            total[key] = total.get(key, Fraction(0)) + value * factor * common
    return _kept(total)


def _inverse(terms: Terms) -> Terms:
    if len(terms) != 1:
        raise Unread
    ((root, letters), value) = next(iter(terms.items()))
    return {(root, tuple((name, -power) for name, power in letters)): 1 / (value * root)}


def _constant(terms: Terms) -> Fraction:
    if not set(terms) <= {ONE}:
        raise Unread
    return terms.get(ONE, Fraction(0))


def _raised(base: Terms, exponent: Terms) -> Terms:
    power = _constant(exponent)
    if power == Fraction(1, 2):
        return _root(_constant(base))
    if power.denominator != 1 or abs(power) > HIGHEST:
        raise Unread
    factor = base if power > 0 else _inverse(base)
    result: Terms = {ONE: Fraction(1)}
    for _ in range(abs(power.numerator)):
        result = _times(result, factor)
    return result


def _root(value: Fraction) -> Terms:
    """Returns the square root of p/q, that is of p q over q, square factors taken out."""
    inside, outside = value.numerator * value.denominator, 1
    if not 0 <= inside <= LARGEST_ROOT:
        raise Unread
    factor = 2
    while factor**2 <= inside:
        while inside % factor**2 == 0:
            inside, outside = inside // factor**2, outside * factor
        factor += 1
    return {(inside, ()): Fraction(outside, value.denominator)} if inside else {}
