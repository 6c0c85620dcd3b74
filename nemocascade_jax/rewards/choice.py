"""The multiple-choice verifier: pays 1 for the row's letter, else 0 (paper 2.6).

The row's own `template_metadata.output_regex` is tried first, without regard to case; its last
match counts. Where it matches nothing, or the row has none, `grading_mode` says where the letter
stands: in the last box (strict_single_letter_boxed, the default, and lenient_boxed) or behind the
last "Answer:" (lenient_answer_colon, and lenient_answer_colon_md where it may be set in Markdown).
A letter that begins a word, the article "a", and an option that stands beside another ("A or B")
are no answers.
"""

from __future__ import annotations

import collections
import functools
import re
import unicodedata
from collections.abc import Mapping
from typing import Any, NamedTuple

from nemocascade_jax.rewards.boxes import last_box
from nemocascade_jax.rows.messages import split_reasoning
from nemocascade_jax.rows.records import Completion, Row, RowError, Score

MODES = (
    "strict_single_letter_boxed",
    "lenient_boxed",
    "lenient_answer_colon",
    "lenient_answer_colon_md",
)
LONGEST = 20_000  # characters from the end of an answer that are looked at: the last match counts
NEAR = 200  # characters before and after a captured answer in which another option is looked for
LONGEST_PATTERN = 2_000  # characters of a row's regular expression
GOOD = (
    '{"options": [{"A": "3"}, {"B": "4"}], "expected_answer": "B", '
    '"grading_mode": "strict_single_letter_boxed"}'
)


class Question(NamedTuple):
    """What a row asks for: its options by letter, the right letter, where the answer stands."""

    options: Mapping[str, str]
    letter: str
    mode: str
    patterns: tuple[re.Pattern[str], ...]


class Found(NamedTuple):
    """The letter of an answer, or "" and why there is none."""

    letter: str
    reason: str = ""


def check(row: Row) -> None:
    """Raises RowError for options, a letter, a mode or a pattern that no answer can be held to."""
    read(row)


def score(row: Row, completion: Completion) -> Score:
    """Grades the text after the reasoning; `parts` says whether a letter was found, and right."""
    question = read(row)
    answer = split_reasoning(completion.text)[1].strip()
    if not answer:
        return Score(0.0, "ok", "empty answer", {"format": 0.0, "correct": 0.0})
    found = find(question, unicodedata.normalize("NFKC", answer[-LONGEST:]))
    right = float(found.letter == question.letter)
    reason = found.reason if right or not found.letter else f"answered {found.letter}"
    return Score(right, "ok", reason, {"format": float(bool(found.letter)), "correct": right})


def find(question: Question, text: str) -> Found:
    """Returns the letter that the text answers with; it is one of the options."""
    for pattern in question.patterns:
        last = collections.deque(filter(_says_something, pattern.finditer(text)), maxlen=1)
        if last:
            return _of_match(last[0], question)
    if question.mode.endswith("boxed"):
        box = last_box(text)
        if box is None:
            return Found("", "no box")
        return _of_text(box, question, strictly=question.mode.startswith("strict"))
    payloads = COLON[question.mode].findall(text)
    if not payloads:
        return Found("", "no line with Answer:")
    payload = payloads[-1]
    if question.mode.endswith("_md"):
        payload = MARKS.sub("", payload)
    return _of_text(payload, question, strictly=False)


def _of_match(match: re.Match[str], question: Question) -> Found:
    """Returns the letter that a row's pattern captured."""
    text, group = match.string, _group(match)
    start, end = match.span(group)
    captured = match.group(group)
    if len(captured.strip()) == 1:
        word = text[max(0, start - 1) : start] + text[end : end + 1]
        if any(char.isalnum() for char in word):
            return Found("", f"{_shown(captured)} is part of a word")
        if captured.strip() == "a" and ARTICLE.match(text, end):
            return Found("", "'a' is an article")
    before = text[:start].rpartition("\n")[2][-NEAR:]
    after = text[end : end + NEAR].partition("\n")[0]
    if _beside_another(before, captured, after, question):
        return Found("", "more than one option")
    for pair in PAIR.finditer(before + captured + after):
        near = pair.start(1) < len(before) + len(captured) and pair.end(2) > len(before)
        if near and _several(pair, question):
            return Found("", "more than one letter")
    return _of_text(MARKS.sub("", captured), question, strictly=False)


def _beside_another(before: str, captured: str, after: str, question: Question) -> bool:
    """Returns whether the text of another option is joined to the captured one's."""
    texts = [text.casefold() for text in question.options.values()]
    if not any(_same(text, captured) for text in texts):
        return False
    next_to = JOINED.match(after)
    right = after[next_to.end() :].casefold() if next_to else ""
    # After a comma another word may go on with it: "yes, no doubt".
    border = r"(?![^\W_])" if next_to and next_to.group().strip(", ") else r"(?!\s*[^\W_])"
    before_it = JOINS.search(before)
    left = before[: before_it.start()].casefold() if before_it else ""
    for text in (re.escape(text) for text in texts if text and not _same(text, captured)):
        if re.match(text + border, right) or re.search(rf"(?<![^\W_]){text}\Z", left):
            return True
    return False


def _group(match: re.Match[str]) -> int:
    """Returns the first group that took part, 0 (the whole match) without groups."""
    return next((n for n in range(1, match.re.groups + 1) if match.group(n) is not None), 0)


def _says_something(match: re.Match[str]) -> bool:
    return bool(match.group(_group(match)).strip())


def _of_text(text: str, question: Question, strictly: bool) -> Found:
    """Returns the letter of a text that is only the answer: a letter, perhaps with its text.

    Unless `strictly`, a small letter counts, and so does the text of exactly one option.
    """
    bare = _unwrapped(text)
    match = LONE.fullmatch(bare)
    if match is None and not strictly:
        fits = [letter for letter, option in question.options.items() if _same(option, bare)]
        if len(fits) == 1:
            return Found(fits[0])
    match = match or LABELLED.fullmatch(bare)
    if match is None:
        return Found("", f"no letter but {_shown(bare)}")
    letter = match.group(1) if strictly else match.group(1).upper()
    if letter not in question.options:
        return Found("", f"{letter} is not an option")
    if "rest" in match.re.groupindex and not _plain(match["rest"], question, letter):
        return Found("", "more than one letter")
    return Found(letter)


def _plain(rest: str, question: Question, letter: str) -> bool:
    """Returns whether what follows a letter is its text, and names no other option."""
    if _same(rest, question.options[letter]):
        return True
    labels = {label.group(1) for label in LABEL.finditer(rest)}
    only = LETTERS.fullmatch(rest) and set(re.findall(r"\b[A-Z]\b", rest))
    return not ((labels | (only or set())) & question.options.keys() - {letter})


def _several(pair: re.Match[str], question: Question) -> bool:
    """Returns whether two letters that stand side by side are two of the options."""
    left, right = pair.group(1), pair.group(2)
    return left != right and left in question.options and right in question.options


def _unwrapped(text: str) -> str:
    """Returns the text without box, \\text{} and brackets around it."""
    bare = text.strip()
    for _ in range(4):
        whole = last_box(bare) if bare.startswith("\\boxed") and bare.endswith("}") else None
        bare = WRAPPER.sub(r"\1", bare if whole is None else whole).strip(" \t\n$")
    return bare


def _same(one: str, other: str) -> bool:
    """Returns whether two texts are one but for case, spaces, wrapping and a full stop."""
    left, right = (
        " ".join(_unwrapped(unicodedata.normalize("NFKC", text)).casefold().split()).rstrip(". ")
        for text in (one, other)
    )
    return left == right and bool(left)


def read(row: Row) -> Question:
    """Returns what the row asks for; RowError names the field that is wrong."""
    options = _options(row)
    letter = row.fields.get("expected_answer")
    letter = letter.strip().upper() if isinstance(letter, str) else letter
    if not isinstance(letter, str) or letter not in options:
        problem = "missing" if letter is None else f"{letter!r} is none of {', '.join(options)}"
        raise _bad(row, "expected_answer", problem)
    mode = row.fields.get("grading_mode", MODES[0])
    if mode not in MODES:
        raise _bad(row, "grading_mode", f"{mode!r} is none of {', '.join(MODES)}")
    return Question(options, letter, mode, _patterns(row))


def _options(row: Row) -> dict[str, str]:
    given = row.fields.get("options")
    if not isinstance(given, list):
        problem = "missing" if given is None else "expected a list of {letter: text}"
        raise _bad(row, "options", problem)
    options: dict[str, str] = {}
    for index, option in enumerate(given):
        field = f"options[{index}]"
        if not isinstance(option, Mapping) or len(option) > 1:
            raise _bad(row, field, f"expected one letter with its text, got {str(option)[:60]!r}")
        for letter, text in option.items():  # none where a null was stripped
            if not re.fullmatch("[A-Z]", letter):
                raise _bad(row, field, f"{letter!r} is no letter from A to Z")
            if letter in options:
                raise _bad(row, field, f"{letter!r} is there twice")
            if not isinstance(text, str):
                raise _bad(row, field, f"expected text, got {text!r}")
            options[letter] = text
    if not options:
        raise _bad(row, "options", "there is none")
    return options


def _patterns(row: Row) -> tuple[re.Pattern[str], ...]:
    metadata = row.fields.get("template_metadata", {})
    if not isinstance(metadata, Mapping):
        raise _bad(row, "template_metadata", f"expected an object, got {metadata!r}")
    field = "template_metadata.output_regex"
    given = metadata.get("output_regex")
    texts = [given] if isinstance(given, str) else given
    if texts is None:
        return ()
    if not isinstance(texts, list) or not all(isinstance(text, str) and text for text in texts):
        raise _bad(row, field, f"expected text or a list of texts, not empty, got {given!r}")
    patterns = []
    for text in texts:
        if len(text) > LONGEST_PATTERN:
            problem = f"{len(text)} characters, at most {LONGEST_PATTERN} are compiled"
            raise _bad(row, field, problem)
        found = _compiled(text)
        if isinstance(found, str):
            raise _bad(row, field, f"{text!r} is no regular expression: {found}")
        patterns.append(found)
    return tuple(patterns)


@functools.lru_cache(maxsize=1024)
def _compiled(text: str) -> Any:
    """Returns the compiled pattern, or why it is none."""
    try:
        return re.compile(text, re.IGNORECASE)
    except (re.error, OverflowError, RecursionError) as error:
        return str(error) or type(error).__name__


def _shown(text: str) -> str:
    return ascii(text if len(text) <= 40 else f"{text[:40]}...")


def _bad(row: Row, field: str, problem: str) -> RowError:
    return RowError(f"{row.where}: field {field}: {problem}; a good row: {GOOD}")


WRAPPER = re.compile(r"\\(?:text|textbf|mathrm|mathbf|textrm|mbox)\s{0,8}\{([^{}]*)\}")
MARKS = re.compile(r"[*_`#]")
# A lone letter, perhaps in brackets; a letter with a separator and what follows it.
LONE = re.compile(r"[(\[]?\s?([A-Za-z])\s?[)\]]?[.:]?")
LABELLED = re.compile(r"[(\[]?([A-Za-z])\s?(?:[)\]][:.\-]?|[:.\-])(?P<rest>.*)", re.DOTALL)
LABEL = re.compile(r"(?<![A-Za-z0-9])([A-Z])\s?[:)\]]")
LETTERS = re.compile(r"[^A-Za-z]*(?:(?:(?i:or|and)|[A-Z])\b[^A-Za-z]*)+")
PAIR = re.compile(
    r"(?<![A-Za-z0-9])([A-Z])[)\]*.]{0,2}(?:\s?[/|&,;+]\s?|,?\s(?i:or|and)\s)"
    r"(?=[(\[*]{0,2}([A-Z])(?![A-Za-z0-9']))"
)
_JOIN = r"(?:\s?[/|&,;+]\s?|,?\s(?:or|and)\s)"
JOINED = re.compile(_JOIN, re.IGNORECASE)
JOINS = re.compile(rf"{_JOIN}\Z", re.IGNORECASE)
ARTICLE = re.compile(r"\s+[A-Za-z]{2,}")
COLON = {
    "lenient_answer_colon": re.compile(r"\banswer\s{0,8}:[ \t]*\n?[ \t]*(.*)", re.IGNORECASE),
    "lenient_answer_colon_md": re.compile(
        r"(?<![^\W_])answer[*_]{0,3}\s{0,8}:[*_ \t]*\n?[ \t]*(.*)", re.IGNORECASE
    ),
}
