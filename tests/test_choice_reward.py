import pytest

from nemocascade_jax.rewards import REWARDS, check_row, choice, pool
from nemocascade_jax.rows.records import Completion, RowError
from nemocascade_jax.rows.schema import parse_row

AGENT = "mcqa_simple_agent"
OPTIONS = [{"A": "three"}, {"B": "four"}, {"C": "a cat"}, {"D": "E. coli"}]
STRICT, BOXED, COLON, MARKDOWN = choice.MODES
LINE = {"output_regex": r"Answer:\s*([A-Za-z])"}


def _row(**fields):
    base = {"options": OPTIONS, "expected_answer": "B", "agent_ref": {"name": AGENT}}
    return parse_row({**base, **fields}, "t:1", known=REWARDS, prompt_needed=False)


def _score(answer, **fields):
    return pool.grade_here(_row(**fields), Completion(answer))


@pytest.mark.parametrize(
    ("answer", "reward"),
    [
        (r"\boxed{B}", 1),
        (r"so \boxed{ B }.", 1),
        (r"\boxed{\text{B}}", 1),
        (r"\boxed{\textbf{(B)}}", 1),
        (r"\boxed{(B)}", 1),
        (r"\boxed{B.}", 1),
        (r"\boxed{B: four}", 1),
        (r"\boxed{B) four}", 1),
        (r"\boxed{B. four}", 1),
        (r"\boxed{B - four}", 1),
        (r"\boxed{\text{B: four}}", 1),
        (r"$\boxed{B}$", 1),
        (r"\boxed{A} no, \boxed{B}", 1),
        (r"\boxed{B} no, \boxed{A}", 0),
        (r"\boxed{A}", 0),
        (r"\boxed{b}", 0),
        (r"\boxed{four}", 0),
        (r"\boxed{Z}", 0),
        (r"\boxed{AB}", 0),
        (r"\boxed{Bad}", 0),
        (r"\boxed{}", 0),
        (r"\boxed{B", 0),
        ("B", 0),
        ("Answer: B", 0),
        ("", 0),
        ("   ", 0),
    ],
)
def test_strict_box_takes_one_capital_letter(answer, reward):
    score = _score(answer)
    assert (score.reward, score.status) == (reward, "ok")
    assert score.reason or reward == 1


@pytest.mark.parametrize(
    "content",
    ["A or B", "B or A", "A/B", "A, B", "A and B", "B, A", "B) or A)", "B - A", "B: x A: y"],
)
@pytest.mark.parametrize("mode", [STRICT, BOXED])
def test_two_letters_in_a_box_are_no_answer(content, mode):
    assert _score(rf"\boxed{{{content}}}", grading_mode=mode).reward == 0
    assert _score(rf"\boxed{{\text{{{content}}}}}", grading_mode=mode).reward == 0


@pytest.mark.parametrize(
    ("answer", "letter"),
    [
        (r"\boxed{b}", "B"),
        (r"\boxed{four}", "B"),
        (r"\boxed{\text{Four.}}", "B"),
        (r"\boxed{a cat}", "C"),
        (r"\boxed{E. coli}", "D"),
        (r"\boxed{A: three}", "A"),
        (r"\boxed{A or B}", ""),
        (r"\boxed{five}", ""),
        ("four", ""),
    ],
)
def test_lenient_box_takes_the_text_of_one_option(answer, letter):
    row = _row(grading_mode=BOXED)
    assert choice.find(choice.read(row), answer).letter == letter


def test_text_of_two_options_is_no_answer():
    same = [{"A": "four"}, {"B": "Four "}]
    for letter in "AB":
        score = _score(r"\boxed{four}", options=same, expected_answer=letter, grading_mode=BOXED)
        assert (score.reward, score.parts["format"]) == (0, 0)


def test_text_that_names_two_letters_may_be_an_option():
    both = [{"A": "x"}, {"B": "y"}, {"C": "A or B"}]
    fields = {"options": both, "expected_answer": "C"}
    assert _score(r"\boxed{A or B}", grading_mode=BOXED, **fields).reward == 1
    assert _score(r"\boxed{A or B}", grading_mode=STRICT, **fields).reward == 0
    assert _score(r"\boxed{C: A or B}", grading_mode=STRICT, **fields).reward == 1


@pytest.mark.parametrize(
    ("answer", "letter"),
    [
        ("Answer: B", "B"),
        ("answer : b", "B"),
        ("Answer: (B)", "B"),
        ("Answer: B. four", "B"),
        ("Answer: four", "B"),
        ("Answer: a cat", "C"),
        ("Answer:\nB", "B"),
        ("Answer: A\nAnswer: B", "B"),
        ("Answer: B\nAnswer: none", ""),
        (r"Answer: \boxed{B}", "B"),
        ("Answer: A or B", ""),
        ("Answer: A/B", ""),
        ("Answer: Bad", ""),
        ("Answer:", ""),
        ("**Answer:** B", ""),
        (r"\boxed{B}", ""),
    ],
)
def test_colon_mode_takes_the_last_line(answer, letter):
    row = _row(grading_mode=COLON)
    assert choice.find(choice.read(row), answer).letter == letter


@pytest.mark.parametrize(
    ("answer", "letter"),
    [
        ("Answer: B", "B"),
        ("**Answer:** B", "B"),
        ("**Answer: B**", "B"),
        ("**Answer**: **B**", "B"),
        ("__Answer__: `B`", "B"),
        ("### Answer: B", "B"),
        ("**Answer: A or B**", ""),
        ("**Answer: A**, **B**", ""),
        ("B", ""),
    ],
)
def test_colon_mode_reads_markdown_where_told(answer, letter):
    row = _row(grading_mode=MARKDOWN)
    assert choice.find(choice.read(row), answer).letter == letter


@pytest.mark.parametrize(
    ("regex", "answer", "reward"),
    [
        (LINE["output_regex"], "Answer: B", 1),
        (LINE["output_regex"], "ANSWER: b", 1),
        (LINE["output_regex"], "Answer: A\nAnswer: B", 1),
        (LINE["output_regex"], "Answer: B\nAnswer: A", 0),
        (LINE["output_regex"], "Answer: Bad luck", 0),
        (LINE["output_regex"], "Answer: B or A", 0),
        (LINE["output_regex"], "Answer: B/A", 0),
        (LINE["output_regex"], "Answer: B, because A is wrong", 1),
        (LINE["output_regex"], "Answer: B, or A", 0),
        (LINE["output_regex"], r"\boxed{B}", 1),  # no match: the mode decides
        (LINE["output_regex"], r"Answer: A \boxed{B}", 0),  # a match: it alone does
        (r"Answer:.*([A-D])", "Answer: A or B", 0),
        (r"Answer:\s*([A-D]?)", "Answer: B\nAnswer: ", 1),  # an empty match says nothing
        (r"Answer:\s*(.+)", "Answer: **B**", 1),
        (r"Answer:\s*(.+)", "Answer: four", 1),
        (r"Answer:\s*(\w+)", "Answer: four", 1),
        (r"Answer:\s*(\w+)", "Answer: four or three", 0),
        (r"Answer:\s*(\w+)", "Answer: Four/Three", 0),
        (r"(\w+)$", "So three, four", 0),
        (r"Answer:\s*(\w+)", "Answer: four or threefold", 1),
        (r"Answer:\s*(\w+)", "Answer: four, not three", 1),
        (r"Answer:\s*(\w+)", "Answer: four, three of them", 1),
        (r"Answer:\s*(\w+)", "Answer: four, three.", 0),
        (r"Answer:\s*(\w+)", "Answer: four or three of them", 0),
        (r"(\w+)$", "So twothree, four", 1),
        (r"pick [A-D]", "pick B", 0),
        (r"(?<=pick )[A-D]", "pick B", 1),
        (r"(?:x([A-D])|y ([A-D]))", "y B", 1),
        ([r"Final:\s*([A-D])", r"Answer:\s*([A-D])"], "Answer: B", 1),
        ([r"Final:\s*([A-D])", r"Answer:\s*([A-D])"], "Final: A\nAnswer: B", 0),
        (r"Answer:\s*([A-Z])", "Answer: Z", 0),
    ],
)
def test_regex_of_the_row_comes_first(regex, answer, reward):
    assert _score(answer, template_metadata={"output_regex": regex}).reward == reward


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("the prompt echoed", "Pick one. End with Answer: X\nA: three\nB: four\nC: a cat"),
        ("the template echoed", "Answer: A/B/C/D"),
        ("every letter in turn", "Answer: A\nAnswer: B\nAnswer: C"),
        ("every letter in one box", r"\boxed{A B C D}"),
        ("a Cyrillic letter", "Answer: В"),
        ("a Greek letter", "Answer: Β"),
        ("a Cherokee letter in a box", r"\boxed{Ᏼ}"),
        ("a mathematical other letter", "Answer: 𝐀"),
        ("only in an unclosed think", "<think>Answer: B"),
        ("only before the think ends", "<think>Answer: B</think>"),
        ("a nested think", "<think>a</think>Answer: B<think>"),
        ("a fence without the line", "```\nB\n```"),
        ("zero-width inside", "Answer: \u200bB"),
        ("a letter glued to others", "Answer: BBBB"),
        ("huge", "B" * 3_000_000),
        ("many boxes unclosed", r"\boxed{B" * 20_000),
        ("many lines", "Answer: B\n" * 100_000 + "Answer: A"),
        ("control characters", "Answer: \x00B"),
    ],
)
@pytest.mark.parametrize("mode", choice.MODES)
def test_attack_earns_nothing(name, answer, mode):
    for metadata in ({}, {"template_metadata": LINE}):
        score = _score(answer, grading_mode=mode, **metadata)
        assert (score.reward, score.status) == (0.0, "ok"), name
        assert score.reason.isascii()


@pytest.mark.parametrize(
    ("answer", "reward"), [("It is a cat", 0), ("It is a", 1), ("It is A cat", 1), ("It is a.", 1)]
)
def test_article_is_no_letter(answer, reward):
    metadata = {"output_regex": r"\bis (\w+)"}
    assert _score(answer, template_metadata=metadata, expected_answer="A").reward == reward


def test_wide_letters_are_the_same_letters():
    assert _score(r"\boxed{Ｂ}").reward == 1


def test_slow_pattern_is_a_zero_within_the_limit():
    row = _row(template_metadata={"output_regex": r"Answer:\s*(?:a+)+b"})
    running = pool.start_pool(1, cpu_s=0.3, memory_mb=1024)
    bad, good = running.score(
        [(row, Completion("Answer: " + "a" * 60)), (_row(), Completion(r"\boxed{B}"))]
    )
    running.close()
    assert (bad.reward, bad.status) == (0.0, "ok")
    assert bad.reason == "grader ran out of time on this answer"
    assert good.reward == 1.0


def test_parts_tell_form_from_right():
    assert _score(r"\boxed{A}").parts == {"format": 1.0, "correct": 0.0}
    assert _score(r"\boxed{B}").parts == {"format": 1.0, "correct": 1.0}
    assert _score("x").parts == {"format": 0.0, "correct": 0.0}


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"options": []}, "field options: there is none"),
        ({"options": [{"A": None}]}, "field options: there is none"),
        ({"options": {"A": "x"}}, "field options: expected a list"),
        ({"options": ["A"]}, "field options[0]"),
        ({"options": [{"A": "x"}, {"A": "y"}]}, "field options[1]: 'A' is there twice"),
        ({"options": [{"1": "x"}]}, "field options[0]: '1' is no letter"),
        ({"options": [{"A": 3}]}, "field options[0]: expected text, got 3"),
        ({"expected_answer": "E"}, "field expected_answer: 'E' is none of A, B, C, D"),
        ({"expected_answer": None}, "field expected_answer: missing"),
        ({"expected_answer": 2}, "field expected_answer"),
        ({"grading_mode": "soft"}, "field grading_mode: 'soft' is none of"),
        ({"template_metadata": "x"}, "field template_metadata"),
        ({"template_metadata": {"output_regex": "("}}, "is no regular expression"),
        ({"template_metadata": {"output_regex": ["a", 3]}}, "field template_metadata.output_regex"),
        ({"template_metadata": {"output_regex": "a" * 9999}}, "at most 2000"),
    ],
)
def test_bad_row_is_refused(fields, problem):
    row = _row(**fields)
    with pytest.raises(RowError, match="^t:1: field ") as caught:
        check_row(row)
    assert problem in str(caught.value)
    assert "\n" not in str(caught.value)
    assert pool.grade_here(row, Completion(r"\boxed{B}")).status == "failed"


def test_option_without_text_is_absent():
    row = _row(options=[{"A": "x", "B": None}, {"A": None, "B": "y"}, {"C": None}])
    assert list(choice.read(row).options) == ["A", "B"]
