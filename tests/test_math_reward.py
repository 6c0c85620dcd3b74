import itertools
import json
import os
import pathlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemocascade_jax.rewards import REWARDS, check_row, math, pool, symbols, values
from nemocascade_jax.rewards.boxes import last_box
from nemocascade_jax.rewards.latex import clean
from nemocascade_jax.rows.records import Completion, RowError
from nemocascade_jax.rows.schema import parse_row

AGENT = "math_with_judge_simple_agent"
needs_library = pytest.mark.skipif(symbols.library() is None, reason="extra [math] is absent")


def _row(gold):
    obj = {"question": "q", "expected_answer": gold, "agent_ref": {"name": AGENT}}
    return parse_row(obj, "t:1", known=REWARDS, prompt_needed=False)


def _score(gold, answer):
    return pool.grade_here(_row(gold), Completion(answer))


def _boxed(gold, content):
    return _score(gold, rf"so \boxed{{{content}}}.")


@pytest.mark.parametrize(
    ("answer", "gold", "reward"),
    [
        (r"\boxed{\frac{1}{2}}", "1/2", 1),
        (r"\boxed{840} and so \boxed{840}", "840", 1),
        (r"\boxed{840}\boxed{840}", "840840", 0),
        (r"\boxed{3} then \boxed{4}", "4", 1),
        (r"\boxed{3} then \boxed{4}", "3", 0),
        (r"\boxed{3}\boxed{4}", "4", 1),
        (r"\boxed{3}\boxed{4}", "34", 0),
        (r"\boxed{3}\boxed{4}", r"\{3,4\}", 0),
        (r"\boxed{\text{E}}", "E", 1),
        (r"\boxed{\left(1,2\right)}", "(1,2)", 1),
        (r"\boxed{42", "42", 0),
        (r"\boxed{41} \boxed{42", "41", 0),
        (r"\boxed{}", "42", 0),
        ("42", "42", 0),
        ("", "42", 0),
        (r"<think>\boxed{42}", "42", 0),
        (r"<think>\boxed{42}</think>", "42", 0),
        (r"<think>\boxed{41}</think>\boxed{42}", "42", 1),
        (" ".join(rf"\boxed{{{n}}}" for n in range(1, 101)), "100", 1),
        (" ".join(rf"\boxed{{{n}}}" for n in range(1, 101)), "42", 0),
        (r"\boxed{\boxed{42}}", "42", 1),
        (r"\boxed{\boxed{41} \boxed{42}}", "42", 0),
        (r"\boxed{\{1,2\}}", r"\{2,1\}", 1),
        (r"\boxed {42}", "42", 1),
        (r"$$\boxed{42}$$", "42", 1),
    ],
)
def test_last_closed_box_counts(answer, gold, reward):
    score = _score(gold, answer)
    assert (score.reward, score.status) == (reward, "ok")
    assert bool(score.reason) == (reward == 0)


@pytest.mark.parametrize(
    ("text", "box"),
    [
        (r"\boxed{a{b}c}", "a{b}c"),
        (r"\boxed{a\}b}", r"a\}b"),
        (r"\boxed{1} {", "1"),
        (r"\boxed{x \boxed{2}", "2"),
        (r"} \boxed{3}", "3"),
        (r"\boxed 5", None),
        (r"boxed{5}", None),
    ],
)
def test_box_has_balanced_braces(text, box):
    assert last_box(text) == box


EQUAL = {
    "1/2": [r"\frac{1}{2}", r"\dfrac12", r"\tfrac{1}2", "0.5", ".5", "50%", r"50\%", "1 / 2"],
    "0.1": [r"10\%", "10 percent", r"\frac{1}{10}", "1/10", "0.10", "1e-1"],
    r"10\%": ["0.1", "10%", "1/10"],
    r"$\$18$": ["18", r"\$18"],
    "5!": ["5!"],
    "1/6": [r"0.1\overline{6}", r"0.1\bar{6}"],
    "1234": ["1,234", "1{,}234", r"1,\!234", r"1\,234", "1234.0", "+1234", "1 234"],
    "1000000": ["1,000,000", "1e6", "10^6", r"1 \times 10^{6}", r"1.0\cdot10^6"],
    "-1.5": [r"-1\frac{1}{2}", "-1 1/2", r"-\frac{3}{2}", r"\frac{-3}{2}", r"\frac{3}{-2}", "−1.5"],
    "0.0015": [r"1.5\times 10^{-3}", "1.5e-3", "1.5E-03"],
    "1024": ["2^{10}", "1,024"],
    "2^{10}": ["1024"],
    "7": [
        "x=7",
        "x = 7",
        r"\text{Area} = 7",
        "f(2)=7",
        r"\theta=7",
        "7.",
        "(7)",
        "{7}",
        "14/2",
        "7=x",
    ],
    "x=7": ["7", "x=7.0"],
    "5": ["5 cm", r"5\text{ cm}", r"5\,\mathrm{cm}", r"5\text{ cm}^2", "5 miles per hour", "5km"],
    r"5\text{ cm}": ["5 cm", r"5.0\,\mathrm{cm}"],
    "18": [r"\$18", "$18.00$", "18 dollars", r"\$ 18"],
    "90": [r"90^\circ", r"90^{\circ}", "90°", r"90\text{ degrees}"],
    r"90^\circ": ["90", "90°"],
    r"\{1,2,3\}": [r"\{3, 1, 2\}", r"\left\{3,2,1\right\}", "3,2,1", r"\{1,1,2,3\}"],
    "1,2": ["2, 1", r"1 \text{ and } 2", "1 or 2", r"x=1 \text{ or } x=2", r"\{1,2\}"],
    "2, -2": [r"\pm 2", r"\pm2"],
    "(1,2)": ["(1, 2)", r"\left(1,2\right)", "(1.0, 4/2)", "(x,y)=(1,2)"],
    "[0, 1)": ["[0,1)", r"\left[0, 1\right)"],
    r"(-\infty, 3]": [r"(-\infty,3.0]", "(-∞, 3]"],
    r"[0,\infty)": [r"[0, +\infty)"],
    r"\begin{pmatrix}1\\2\end{pmatrix}": [r"\begin{bmatrix} 1 \\ 4/2 \end{bmatrix}"],
    "E": [r"\text{E}", r"\textbf{(E)}", "(E)", r"\mathrm{E}"],
    "Yes": [r"\text{yes}", "yes."],
    r"3\sqrt{2}": [r"3\sqrt2\text{ cm}", r"3 \sqrt{2}\text{ cm}^2"],
    r"3\sqrt{2}\text{ cm}": [r"3\sqrt2\,\mathrm{cm}"],
    r"\sqrt{2}": [r"\sqrt2", r"\sqrt {2}"],
    "x^2+1": ["x^{2} + 1"],
    "3:2": ["3 : 2"],
}
DIFFERENT = {
    "7": [
        *(
            "5=7",
            "7=7",
            "2+5=7",
            "x=5=7",
            "-7",
            "7x",
            r"7\pi",
            "7 pi",
            "7 or 8",
            "7,8",
            "7 7",
            "77",
        ),
        *("7 million", r"7\%", r"\{7\}", "(7,7)", "7 and not 8", r"5\text{ no }7", "seven", "7:00"),
        *(r"\approx 7", "7 ...", "7...", "7^2", "7!", "7_8", r"\text{7 or 8}", "7 x", "7'"),
    ],
    "10": [r"10\%", "0.1"],
    r"10\%": ["10", r"0.1\%"],
    "1234": ["12,34", "1,23,4", "1,2345", "1.234", "1, 234"],
    "123": ["0,123"],
    "42": [r"6 \cdot 7", "6*7", r"6 \times 7", "40+2", r"6 \cdot 7^1"],
    "1/3": [r"0.3\overline{4}", "0.333", "0.3333333333", "33%"],
    r"5\text{ cm}": [r"5\text{ m}", "5", r"5\text{ cm}^2"],
    r"3\sqrt{2}\text{ cm}": [r"3\sqrt{2}\text{ m}", r"3\sqrt{2}"],
    r"3\sqrt{2}": [r"3\sqrt{2}\text{ or }7", r"3\sqrt{2}x", r"3\sqrt{2}\text{ not}"],
    r"\$18": ["€18", r"\phantom{$\$18$}9"],
    "0": [r"987 %0", r"\color{white}{0}9", r"\cancel{9}0"],
    "1024": [r"2^{10}_{2}", r"2^{10}_{987}"],
    "x=7": ["y=7", "x=8"],
    r"\{1,2\}": [r"\{1,2,3\}", r"\{1\}", "(1,2)", "[1,2]"],
    "(1,2)": ["(2,1)", "[1,2]", "1,2", "(1,2,3)", r"\{1,2\}"],
    "[0,1)": ["[0,1]", "(0,1)"],
    "2,3": ["2,3,3", "2", "2,3,4"],
    "E": ["e", "D", "DE", "Е", "Ε"],
    "no": ["on", "yes"],
    r"\begin{pmatrix}1&2\end{pmatrix}": [r"\begin{pmatrix}1\\2\end{pmatrix}"],
    "1/2": [r"\int_0^1 x \, dx", r"\frac{1}{0}"],
}


@pytest.mark.parametrize(
    ("gold", "content"), [(gold, one) for gold, answers in EQUAL.items() for one in answers]
)
def test_same_value_in_other_words_is_paid(gold, content):
    score = _boxed(gold, content)
    assert (score.reward, score.status, score.reason) == (1.0, "ok", "")


@pytest.mark.parametrize("gold", [*EQUAL, *DIFFERENT])
def test_reference_itself_is_paid(gold):
    assert _boxed(gold, gold).reward == 1.0


@pytest.mark.parametrize(
    ("gold", "content"), [(gold, one) for gold, answers in DIFFERENT.items() for one in answers]
)
def test_other_value_is_not_paid(gold, content):
    score = _boxed(gold, content)
    assert (score.reward, score.status) == (0.0, "ok")
    assert score.reason


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("the prompt echoed", r"Compute 6*7. Put the answer in \boxed{}."),
        ("the question in the box", r"\boxed{6*7}"),
        ("every number", " ".join(rf"\boxed{{{n}}}" for n in range(43, -1, -1))),
        ("every number in one box", rf"\boxed{{{','.join(map(str, range(100)))}}}"),
        ("either side of a sign", r"\boxed{42=41}"),
        ("a fence without a box", "```\n42\n```"),
        ("an unclosed think", r"<think>\boxed{42}"),
        ("a nested think", r"<think>a</think>\boxed{42}<think>"),
        ("other scripts' digits", r"\boxed{٤٢}"),
        ("small digits", r"\boxed{⁴²}"),
        ("zero-width inside", "\\boxed{4\u200b2}"),
        ("a hidden box", r"\boxed{\phantom{42}41}"),
        ("a box of words", r"\boxed{\text{the answer is } 42 \text{ or } 41}"),
        ("a long number", rf"\boxed{{42.{'0' * 500}1}}"),
        ("a huge box", rf"\boxed{{{'4' * 3_000_000}}}"),
        ("many open boxes", r"\boxed{" * 100_000),
        ("boxes in boxes", r"\boxed{" * 3_000 + "42" + "}" * 3_000),
        ("many braces", r"\boxed{" + "{" * 900 + "}" * 900 + "}"),
        ("many brackets", r"\boxed{" + "(" * 900 + "42,1" + ")" * 900 + "}"),
        ("a power tower", r"\boxed{9^{9^{9^{9^{9}}}}}"),
        ("a huge power", r"\boxed{9^{9999}}"),
        ("a huge scientific number", r"\boxed{1e9999}"),
        ("nested powers", r"\boxed{(((9^{999})^{999})^{999})^{999}}"),
        ("a huge factorial", r"\boxed{99999999!}"),
        ("nested factorials", r"\boxed{((9!)!)!}"),
        ("a null character", "\\boxed{\x0042}x\\boxed{}"),
        ("a lone surrogate", "\\boxed{\ud800}"),
    ],
)
def test_attack_earns_nothing(name, answer):
    score = _score("42", answer)
    assert (score.reward, score.status) == (0.0, "ok"), name
    assert score.seconds < 2.0


@pytest.mark.parametrize(
    ("gold", "problem"),
    [
        (None, "missing"),
        ("", "is no answer: empty"),
        ("$ $", "is no answer: empty"),
        (r"\text{}", "is no answer: empty"),
        ("5=7", "values joined by ="),
        ("(", "neither a letter nor a digit"),
        ("1,,2", "is no answer: empty"),
        (r"\frac{1}{", "braces that do not match"),
        (r"\frac{1}{0}", "divides by zero"),
        (r"\boxed{1}\boxed{2}", "more than one box"),
        ("1" * 3000, "3000 characters, at most 2000"),
        (["1"], "expected text, got list"),
        (True, "expected text, got bool"),
    ],
)
def test_bad_reference_is_refused(gold, problem):
    row = _row(gold)
    with pytest.raises(RowError, match="^t:1: field expected_answer: ") as caught:
        check_row(row)
    assert problem in str(caught.value)
    assert "\n" not in str(caught.value)
    score = pool.grade_here(row, Completion(r"\boxed{1}"))
    assert (score.status, score.reward) == ("failed", None)


@pytest.mark.parametrize("gold", [42, 42.0, r"\boxed{42}", "$42$", r"\(42\)", " 42 "])
def test_reference_may_be_wrapped_or_a_number(gold):
    check_row(_row(gold))
    assert _boxed(gold, "42").reward == 1.0
    assert _boxed(gold, "41").reward == 0.0


SYMBOLIC = [
    (r"\sqrt{2}", r"\frac{2}{\sqrt{2}}", True),
    (r"2\pi", r"\pi \cdot 2", True),
    (r"(x-1)^2", "x^2-2x+1", True),
    ("1<x<2", "(1,2)", True),
    ("(1,2)", "1<x<2", True),
    ("y=2x+3", "y=3+2x", True),
    (r"(\sqrt{2},1)", r"(\frac{2}{\sqrt{2}},1)", True),
    (r"\frac{\pi}{2}", r"0.5\pi", True),
    (r"\sqrt{2}", r"\sqrt{3}", False),
    ("x^2+1", "x^2-1", False),
    (r"2\pi", "6.28", False),
]


@needs_library
@pytest.mark.parametrize(("gold", "content", "equal"), SYMBOLIC)
def test_library_decides_on_expressions(gold, content, equal):
    assert _boxed(gold, content).reward == float(equal)


@pytest.mark.parametrize(("gold", "content", "equal"), SYMBOLIC)
def test_without_library_expressions_are_compared_as_text(monkeypatch, gold, content, equal):
    monkeypatch.setattr(symbols, "library", lambda: None)
    score = _boxed(gold, content)
    if "<" not in gold + content:  # sums of powers and roots need no library
        assert score.reward == float(equal)
    else:
        assert (score.reward, score.reason) == (0.0, math.AS_TEXT)
    assert _boxed(gold, f" {gold} ").reward == 1.0


def test_unreadable_expressions_never_reach_the_library(monkeypatch):
    seen = []
    monkeypatch.setattr(symbols, "library", lambda: True)
    monkeypatch.setattr(symbols, "same", lambda *pair: seen.append(pair) or True)
    for content in (
        "9^{9^{9}}",
        "(9^{99})^{999}",
        "9^{9999}",
        r"\frac{1}{2}^99999",
        "1000!",
        "(9!)!",
        "5!!",
        "1+1",
    ):
        assert _boxed("3", content).reward == 0.0, content
        assert _boxed(r"3^{3^{3^{3}}}", content).reward == 0.0, content
    for content in (r"x=\sqrt{2}, 3", r"\sqrt{4} \approx 2", r"\text{about }\sqrt{4}", "2 3x"):
        assert _boxed("2", content).reward == 0.0, content
    assert seen == []
    assert _boxed("2", r"\sqrt[3]{8}").reward == 1.0
    assert seen == [("2", r"\sqrt[3]{8}")]


def test_verdict_of_a_slow_expression_comes_within_the_limit():
    rows = [_row(r"\sqrt{2}"), _row("7")]
    running = pool.start_pool(1, cpu_s=1.0, memory_mb=1024)
    slow = r"\boxed{\binom{999}{x} + \sin(x!) + x^{99}}"
    first, second = running.score(
        [(rows[0], Completion(slow)), (rows[1], Completion(r"\boxed{7}"))]
    )
    running.close()
    assert (first.reward, first.status, second.reward) == (0.0, "ok", 1.0)


PIECES = [
    *(
        r"\frac",
        r"\boxed{",
        r"\text{",
        r"\left(",
        r"\right)",
        r"\sqrt",
        r"\pm",
        r"\cup",
        r"\{",
        r"\}",
    ),
    *(
        "{",
        "}",
        "(",
        ")",
        "[",
        "]",
        ",",
        ";",
        "=",
        "^",
        "_",
        "/",
        "!",
        "%",
        "$",
        "\\",
        "\\\\",
        "&",
        '"',
    ),
    *("0", "1", "12", ".5", "1,000", "9" * 30, "x", "E", " and ", " or ", "cm", "°", "½", "∞", " "),
    *(r"\infty", r"\pi", r"\times", r"10^{", r"\circ", r"\begin{pmatrix}", r"\end{pmatrix}", "\n"),
    *("<think>", "</think>", "\ud800", "\u0665", "е"),
]


@settings(derandomize=True, deadline=None, max_examples=400)
@given(st.lists(st.sampled_from(PIECES), max_size=25).map("".join), st.sampled_from(list(EQUAL)))
def test_any_answer_gets_a_number(text, gold):
    for answer in (text, rf"\boxed{{{text}}}"):
        score = _score(gold, answer)
        assert score.status == "ok"
        assert score.reward in (0.0, 1.0)


@settings(derandomize=True, deadline=None, max_examples=200)
@given(st.lists(st.sampled_from(PIECES), min_size=1, max_size=12).map("".join))
def test_any_reference_is_refused_or_equals_itself(text):
    row = _row(text)
    try:
        check_row(row)
    except RowError:
        return
    assert not math.differs(math.reference(row), clean(text))


@settings(derandomize=True, deadline=None, max_examples=200)
@given(st.fractions(max_denominator=999), st.fractions(max_denominator=999))
def test_fractions_are_equal_exactly(one, other):
    def written(value):
        return rf"\frac{{{value.numerator}}}{{{value.denominator}}}"

    assert _boxed(str(one), written(one)).reward == 1.0
    assert _boxed(str(one), written(other)).reward == float(one == other)


def test_words_and_lists_are_no_numbers():
    assert values.read("1,000") == values.read("1000")
    assert isinstance(values.read("1,00"), values.Group)
    assert isinstance(values.read("5=7"), values.Nothing)
    assert isinstance(values.read("cm"), values.Word)


def _lines(name):
    where = os.environ.get("NEMOCASCADE_EXTRA")
    path = pathlib.Path(where or "/nowhere") / "data" / "gsm8k" / name
    if not path.exists():
        pytest.skip("NEMOCASCADE_EXTRA names no folder with data/gsm8k")
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_every_published_answer_equals_itself():
    golds = [line["answer"].rpartition("####")[2].strip() for line in _lines("test.jsonl")]
    assert len(golds) == 1319
    assert sum(_boxed(gold, gold).reward for gold in golds) == 1319
    following = itertools.pairwise(golds)
    assert all(
        _boxed(one, other).reward == float(one.replace(",", "") == other.replace(",", ""))
        for one, other in following
    )


def test_labels_of_published_solutions_are_met():
    same = count = 0
    for line in _lines("example_model_solutions.jsonl")[::3]:
        gold = line["ground_truth"].rpartition("A:")[2].strip()
        for found in line.values():
            if isinstance(found, dict):
                answer = found["solution"].rpartition("A:")[2].strip()
                same += _boxed(gold, answer).reward == float(found["is_correct"])
                count += 1
    assert count > 1000
    assert same / count >= 0.995
