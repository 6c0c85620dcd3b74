import cmath
import random

import pytest

from nemocascade_jax.rewards.estimates import estimate, far_apart, surely_equal
from nemocascade_jax.rewards.latex import clean

X, Y = estimate("x"), estimate("y")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (r"2\pi", 2 * cmath.pi),
        (r"\frac{1}{2}x", X / 2),
        (r"-x^2", -(X**2)),
        (r"(x+1)(y-1)", (X + 1) * (Y - 1)),
        (r"2 \cdot 3^{2}-\sqrt{16}/2", 16),
        (r"3xy^2", 3 * X * Y**2),
        (r"x^{\frac{1}{2}}", X**0.5),
        (r"[x+\{y\}]", None),
        (r"i^2", -1),
        (r"e^{2}", cmath.e**2),
        (r"\frac{1}{\sqrt{2}+1}", 1 / (2**0.5 + 1)),
    ],
)
def test_estimate_is_the_value(text, value):
    found = estimate(text)
    assert found is None if value is None else found == pytest.approx(value)


@pytest.mark.parametrize(
    "text",
    ["", "1/2x", r"2\frac{1}{2}", "x^2^3", "2 3", r"\sin x", "sin x", "ln 2", "(1", "x)", "1,2"]
    + ["x=1", r"(-8)^{\frac{1}{3}}", r"\sqrt{-1}", r"\frac{1}{0}", "9^{9999}", "3!", r"\sqrt[3]{8}"]
    + ["|x|", "1<2", "(" * 5000, "(" * 149 + "x" + ")" * 148, "-" * 9, "x'", "10^{13}", r"\frac12"],
)
def test_what_reads_in_two_ways_has_no_estimate(text):
    assert estimate(text) is None
    assert not far_apart(text, "1")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (r"\sqrt{2}", r"\frac{2}{\sqrt{2}}"),
        (r"\sqrt{8}+\sqrt{18}", r"5\sqrt{2}"),
        (r"\sqrt{2}\sqrt{3}", r"\sqrt{6}"),
        (r"\sqrt{\frac{1}{2}}", r"\frac{\sqrt{2}}{2}"),
        (r"(x-1)^2", "x^2-2x+1"),
        (r"(a+b)(a-b)", "a^2-b^2"),
        (r"\frac{x^2 y}{x}", "xy"),
        (r"0.5\pi", r"\frac{\pi}{2}"),
        (r"2^{-1}", "0.5"),
        (r"(1+\sqrt{2})^2", r"3+2\sqrt{2}"),
        ("x-x", "0"),
        (r"9^{\frac{1}{2}}", "3"),
    ],
)
def test_same_sums_are_surely_equal(one, other):
    assert surely_equal(one, other)
    assert not far_apart(one, other)
    assert not surely_equal(one, f"{other}+0.0000000001")


@pytest.mark.parametrize(
    "text",
    ["(x+1)^{99}", r"\sqrt{x}", r"\frac{1}{x+1}", "i^2", "x^y", r"\sqrt{-1}", r"\frac{1}{x-x}"],
)
def test_other_expressions_are_left_open(text):
    assert not surely_equal(text, text)


def test_only_far_values_are_apart():
    assert far_apart(r"\sqrt{2}", r"\sqrt{3}")
    assert far_apart("x^2+1", "x^2-1")
    assert not far_apart(r"2\pi", "6.283")
    assert not far_apart("x_1 x_2", "x_2 x_1")
    assert far_apart("x_1", "x_2")
    assert far_apart("x+0.01", "x")
    assert not far_apart("x+0.0001", "x")


def _tree(rng: random.Random, depth: int) -> tuple[str, complex]:
    """Returns a random expression as LaTeX, and its value worked out beside."""
    if depth == 0:
        number = rng.randint(1, 9)
        return rng.choice([(str(number), number), ("x", X), ("y", Y), (r"\pi", cmath.pi)])
    (left, a), (right, b) = _tree(rng, depth - 1), _tree(rng, depth - 1)
    return rng.choice(
        [
            (f"({left}+{right})", a + b),
            (f"({left}-({right}))", a - b),
            (rf"({left}) \cdot ({right})", a * b),
            (rf"\frac{{{left}}}{{{right}+12}}", a / (b + 12)),
            (f"({left})^{{2}}", a**2),
        ]
    )


def test_random_expressions_are_read_as_they_are_written():
    rng = random.Random(0)
    read = 0
    for _ in range(400):
        text, value = _tree(rng, rng.randint(0, 3))
        found = estimate(text)
        read += found is not None
        assert found is None or found == pytest.approx(value)
        other, worth = _tree(rng, 1)
        if surely_equal(text, other):
            assert value == pytest.approx(worth)
        assert surely_equal(text, f"({text})-x+x") or r"\frac" in text
    assert read > 300


def test_verdicts_agree_with_computer_algebra():
    """A sum written by another program, multiplied out by it, and made larger by a seventh."""
    sympy = pytest.importorskip("sympy")
    rng = random.Random(1)
    leaves = [*sympy.symbols("x y a"), sympy.pi, sympy.sqrt(8), sympy.Rational(2, 7)]

    def tree(depth: int):
        if depth == 0:
            return rng.choice([*leaves, sympy.Integer(rng.randint(1, 9))])
        left, right = tree(depth - 1), tree(depth - 1)
        return rng.choice([left + right, left - right, left * right, left**2, left / 3])

    equal = 0
    for _ in range(100):
        value = tree(rng.randint(1, 3))
        forms = (value, sympy.expand(value), value + sympy.Rational(1, 7))
        one, same, other = (clean(sympy.latex(form)) for form in forms)
        assert not far_apart(one, same)
        assert not surely_equal(one, other)
        equal += surely_equal(one, same)
    assert equal > 90
