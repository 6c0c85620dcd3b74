"""The 54 verifiable constraints: id -> (arguments, checker), as the published registry has them.

A checker takes the answer and the constraint's arguments and returns whether the answer follows it.
Every checker runs in time linear in the answer. Differences from the registry are listed in
docs/instruction_following.md. The 25 ids of IFEval are here, the other 29 in more_constraints.py.
"""

from __future__ import annotations

import json
import re
from collections import Counter

from nemocascade_jax.rewards import language, more_constraints
from nemocascade_jax.rewards.arguments import (
    COUNT,
    LANGUAGE,
    LETTER,
    NATURAL,
    RELATION,
    TEXT,
    WORD,
    WORDS,
    Constraint,
    as_seen,
    compare,
    count_of,
    lazy_spans,
)


def existence(answer: str, keywords: list[str]) -> bool:
    """Each keyword is a part of the text, ignoring case; inside a longer word counts."""
    return all(count_of(word, answer) for word in keywords)


def frequency(answer: str, keyword: str, frequency: int, relation: str) -> bool:
    return compare(count_of(keyword, answer), relation, frequency)


def forbidden_words(answer: str, forbidden_words: list[str]) -> bool:
    """No word is there as a whole word, ignoring case, not in disguise either."""
    texts = {answer, as_seen(answer)}
    found = [rf"\b{re.escape(word)}\b" for word in forbidden_words]
    return not any(re.search(one, text, re.IGNORECASE) for one in found for text in texts)


def letter_frequency(answer: str, letter: str, let_frequency: int, let_relation: str) -> bool:
    return compare(Counter(answer.lower())[letter.lower()], let_relation, let_frequency)


def response_language(answer: str, language: str) -> bool:
    """The detector names this language; a text it cannot place does not pass."""
    return _detect(answer) == language


_detect = language.detect


def number_sentences(answer: str, num_sentences: int, relation: str) -> bool:
    return compare(language.count_sentences(answer), relation, num_sentences)


def number_paragraphs(answer: str, num_paragraphs: int) -> bool:
    return more_constraints.paragraph_count(re.split(r"\s?\*\*\*\s?", answer)) == num_paragraphs


def number_words(answer: str, num_words: int, relation: str) -> bool:
    return compare(language.count_words(answer), relation, num_words)


def nth_paragraph_first_word(
    answer: str, num_paragraphs: int, nth_paragraph: int, first_word: str
) -> bool:
    """Paragraphs are set apart by a blank line; the word ends at the first mark."""
    paragraphs = answer.split("\n\n")
    filled = sum(1 for paragraph in paragraphs if paragraph.strip())
    if nth_paragraph > filled or not paragraphs[nth_paragraph - 1].strip():
        return False
    word = paragraphs[nth_paragraph - 1].split()[0].lstrip("'").lstrip('"')
    word = re.split(r"[.,?!'\"]", word, maxsplit=1)[0].lower()
    return filled == num_paragraphs and word == first_word.lower()


def number_placeholders(answer: str, num_placeholders: int) -> bool:
    return len(lazy_spans(answer, "[", "]")) >= num_placeholders


def postscript(answer: str, postscript_marker: str) -> bool:
    """The marker is there, ignoring case; P.S. and P.P.S may have spaces between their letters."""
    patterns = {"P.P.S": r"p\.\s?p\.\s?s", "P.S.": r"p\.\s?s\."}
    pattern = patterns.get(postscript_marker, re.escape(postscript_marker.lower()))
    return re.search(pattern, answer.lower()) is not None


def number_bullet_lists(answer: str, num_bullets: int) -> bool:
    """Counts lines that begin with one `*` or with `-`; the number must be exact.

    The character after `*` may be the line's end, and then the next line belongs to the bullet.
    """
    stars = re.findall(r"^[^\S\n]*+\*[^*].*$", answer, re.MULTILINE)
    dashes = re.findall(r"^[^\S\n]*+-.*$", answer, re.MULTILINE)
    return len(stars) + len(dashes) == num_bullets


def constrained_response(answer: str) -> bool:
    options = ("My answer is yes.", "My answer is no.", "My answer is maybe.")
    return any(option in answer for option in options)


def number_highlighted_sections(answer: str, num_highlights: int) -> bool:
    """Counts `*part*` and, once more, `**part**`, where the part is not blank."""
    single = re.findall(r"\*([^\n*]*)\*", answer)
    double = re.findall(r"\*\*([^\n*]*)\*\*", answer)
    return sum(1 for part in single + double if part.strip()) >= num_highlights


def multiple_sections(answer: str, section_spliter: str, num_sections: int) -> bool:
    """Counts the splitter followed by a number."""
    return len(re.findall(rf"{re.escape(section_spliter)}\s?\d+", answer)) >= num_sections


def json_format(answer: str) -> bool:
    """The whole answer is JSON, without NaN; one Markdown fence around it is taken off."""
    text = answer.strip()
    for fence in ("```json", "```Json", "```JSON", "```"):
        text = text.removeprefix(fence)
    try:
        json.loads(text.removesuffix("```").strip(), parse_constant=int)  # which refuses NaN
    except (ValueError, RecursionError):
        return False
    return True


def title(answer: str) -> bool:
    """A line has something between `<<` and `>>`."""
    for line in answer.split("\n"):
        start, end = line.find("<<"), line.rfind(">>")
        if 0 <= start <= end - 3 and line[start : end + 2].lstrip("<").rstrip(">").strip():
            return True
    return False


def two_responses(answer: str) -> bool:
    """Two different texts with `******` between; only the ends may be blank."""
    pieces = [piece.strip() for piece in answer.split("******")]
    filled = [piece for piece in pieces if piece]
    return all(pieces[1:-1]) and len(filled) == 2 and filled[0] != filled[1]


def repeat_prompt(answer: str, prompt_to_repeat: str) -> bool:
    return answer.strip().lower().startswith(prompt_to_repeat.strip().lower())


def end_checker(answer: str, end_phrase: str) -> bool:
    return answer.strip().strip('"').lower().endswith(end_phrase.strip().lower())


def quotation(answer: str) -> bool:
    text = answer.strip()
    return len(text) > 1 and text[0] == text[-1] == '"'


def capital_word_frequency(answer: str, capital_frequency: int, capital_relation: str) -> bool:
    capitals = sum(1 for word in language.tokens(answer) if word.isupper())
    return compare(capitals, capital_relation, capital_frequency)


def english_capital(answer: str) -> bool:
    return answer.isupper() and language.reads_as_english(answer)


def english_lowercase(answer: str) -> bool:
    return answer.islower() and language.reads_as_english(answer)


def no_comma(answer: str) -> bool:
    return "," not in answer


def _paragraph_is_there(num_paragraphs: int, nth_paragraph: int, first_word: str) -> str:
    if nth_paragraph <= num_paragraphs:
        return ""
    return f"nth_paragraph {nth_paragraph} is more than num_paragraphs {num_paragraphs}"


IFEVAL: dict[str, Constraint] = {
    "keywords:existence": Constraint(existence, {"keywords": WORDS}),
    "keywords:frequency": Constraint(
        frequency, {"keyword": WORD, "frequency": NATURAL, "relation": RELATION}
    ),
    "keywords:forbidden_words": Constraint(forbidden_words, {"forbidden_words": WORDS}),
    "keywords:letter_frequency": Constraint(
        letter_frequency, {"letter": LETTER, "let_frequency": NATURAL, "let_relation": RELATION}
    ),
    "language:response_language": Constraint(response_language, {"language": LANGUAGE}),
    "length_constraints:number_sentences": Constraint(
        number_sentences, {"num_sentences": NATURAL, "relation": RELATION}
    ),
    "length_constraints:number_paragraphs": Constraint(
        number_paragraphs, {"num_paragraphs": COUNT}
    ),
    "length_constraints:number_words": Constraint(
        number_words, {"num_words": NATURAL, "relation": RELATION}
    ),
    "length_constraints:nth_paragraph_first_word": Constraint(
        nth_paragraph_first_word,
        {"num_paragraphs": COUNT, "nth_paragraph": COUNT, "first_word": WORD},
        _paragraph_is_there,
    ),
    "detectable_content:number_placeholders": Constraint(
        number_placeholders, {"num_placeholders": NATURAL}
    ),
    "detectable_content:postscript": Constraint(postscript, {"postscript_marker": WORD}),
    "detectable_format:number_bullet_lists": Constraint(
        number_bullet_lists, {"num_bullets": NATURAL}
    ),
    "detectable_format:constrained_response": Constraint(constrained_response, {}),
    "detectable_format:number_highlighted_sections": Constraint(
        number_highlighted_sections, {"num_highlights": NATURAL}
    ),
    "detectable_format:multiple_sections": Constraint(
        multiple_sections, {"section_spliter": WORD, "num_sections": NATURAL}
    ),
    "detectable_format:json_format": Constraint(json_format, {}),
    "detectable_format:title": Constraint(title, {}),
    "combination:two_responses": Constraint(two_responses, {}),
    "combination:repeat_prompt": Constraint(repeat_prompt, {"prompt_to_repeat": TEXT}),
    "startend:end_checker": Constraint(end_checker, {"end_phrase": WORD}),
    "startend:quotation": Constraint(quotation, {}),
    "change_case:capital_word_frequency": Constraint(
        capital_word_frequency, {"capital_frequency": NATURAL, "capital_relation": RELATION}
    ),
    "change_case:english_capital": Constraint(english_capital, {}),
    "change_case:english_lowercase": Constraint(english_lowercase, {}),
    "punctuation:no_comma": Constraint(no_comma, {}),
}

CONSTRAINTS: dict[str, Constraint] = {**IFEVAL, **more_constraints.IFEVALG}
