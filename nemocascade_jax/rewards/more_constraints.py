"""The 29 constraints that training adds to IFEval's 25 (paper 2.5)."""

from __future__ import annotations

import itertools
import re

from nemocascade_jax.rewards import language
from nemocascade_jax.rewards.arguments import (
    COUNT,
    LETTER,
    NATURAL,
    RELATION,
    TEXT,
    WORD,
    Constraint,
    as_seen,
    compare,
    count_of,
    lazy_spans,
)


def paragraph_count(pieces: list[str]) -> int:
    """Returns the number of paragraphs, blank ends left out; -1 when a middle one is blank."""
    if any(not piece.strip() for piece in pieces[1:-1]):
        return -1
    ends = {0, len(pieces) - 1}
    return len(pieces) - sum(1 for index in ends if not pieces[index].strip())


def repeat_phrase(answer: str, phrase: str, small_n: int) -> bool:
    """The phrase is there `small_n` times, each with at most one word changed, the last with one.

    A repetition runs from the phrase's first word to the next of its last word, on one line.
    """
    wanted = phrase.split()
    found = [span.split() for span in lazy_spans(answer, wanted[0] + " ", " " + wanted[-1])]
    if len(found) != small_n or any(len(words) > len(wanted) for words in found):
        return False
    changed = [sum(a != b for a, b in zip(words, wanted, strict=False)) for words in found]
    return max(changed) <= 1 and changed[-1] == 1


def copy(answer: str, prompt_to_repeat: str) -> bool:
    return answer.strip().lower() == prompt_to_repeat.strip().lower()


def copying_multiple(answer: str, prompt_to_repeat: str, N: int) -> bool:
    pieces = answer.split("******")
    return len(pieces) == N and all(copy(piece, prompt_to_repeat) for piece in pieces)


def copy_span_idx(answer: str, n_start: int, n_end: int, prompt_to_repeat: str) -> bool:
    """The answer is the prompt's characters from n_start up to, without, n_end."""
    return copy(answer, prompt_to_repeat[n_start:n_end])


def sentence_hyphens(answer: str) -> bool:
    """The parts between hyphens are the sentences, without blanks around them."""
    sentences = language.rule_sentences(answer.replace("-", " "))
    return all(
        part == sentence for part, sentence in zip(answer.split("-"), sentences, strict=False)
    )


def square_brackets(answer: str) -> bool:
    return all(word.startswith("[") and word.endswith("]") for word in answer.split())


def bigram_wrapping(answer: str) -> bool:
    """Words go in pairs `<<one two>>`; a word left over at the end is free."""
    words = answer.split()
    pairs = zip(words[::2], words[1::2], strict=False)
    return all(first.startswith("<<") and second.endswith(">>") for first, second in pairs)


def no_adjacent_consecutive(answer: str) -> bool:
    """No word starts with the letter that follows the first letter of the word before."""
    firsts = [word[0].lower() for word in answer.split()]
    if len(firsts) > 1 and any(len(letter) != 1 for letter in firsts):
        return False
    return all(ord(b) - ord(a) != 1 for a, b in itertools.pairwise(firsts))


def word_once(answer: str, keyword: str) -> bool:
    return count_of(keyword, answer) == 1


def word_count_different_numbers(answer: str, keyword: str, frequency: int, relation: str) -> bool:
    return compare(count_of(keyword, answer), relation, frequency)


def exclude_word_harder(answer: str, keyword: str) -> bool:
    """The word does not stand between two blanks; its case counts, a disguise does not."""
    return f" {keyword} " not in answer and f" {keyword} " not in as_seen(answer)


def palindrome(answer: str) -> bool:
    """A word reads the same backwards; one letter does."""
    return any(word == word[::-1] for word in answer.split())


def keyword_specific_position(answer: str, keyword: str, n: int, m: int) -> bool:
    """Word m of sentence n is the keyword; its case counts, and marks count as words."""
    sentences = language.rule_sentences(answer)
    words = language.tokens(sentences[n - 1]) if len(sentences) >= n else []
    return len(words) >= m and words[m - 1] == keyword


def start_end(answer: str) -> bool:
    """The first and the last token are one word; a mark at the end is a token."""
    words = language.tokens(answer)
    return len(words) > 1 and words[0].lower() == words[-1].lower()


def paragraphs(answer: str) -> bool:
    return paragraph_count(re.split(r"\s?\*\*\*\s?", answer)) == 2


def paragraphs2(answer: str) -> bool:
    return paragraph_count(answer.split("\n\n")) == 2


def first_word_sent(answer: str, first_word: str) -> bool:
    return all(
        sentence and sentence.split()[0].lower() == first_word.lower()
        for sentence in language.rule_sentences(answer)
    )


def first_word_answer(answer: str, first_word: str) -> bool:
    return answer.split()[0].lower() == first_word.lower()


def last_word_sent(answer: str, last_word: str) -> bool:
    return all(
        sentence and _bare(sentence.split()[-1]) == last_word.lower()
        for sentence in language.rule_sentences(answer)
    )


def last_word_answer(answer: str, last_word: str) -> bool:
    return _bare(answer.split()[-1]) == last_word.lower()


def _bare(word: str) -> str:
    """Returns the word in small letters without its marks."""
    return re.sub(r"[^\w\s]", "", word).lower()


def punctuation_dot(answer: str) -> bool:
    return "." not in answer


def punctuation_exclamation(answer: str) -> bool:
    return "!" not in answer


def lowercase_counting(answer: str, N: int) -> bool:
    """There are at most N words in small letters a-z, all words together."""
    return len(re.findall(r"\b[a-z]+\b", answer)) <= N


def counting_composition(answer: str, n_sent: int, n_words: int) -> bool:
    """Three paragraphs set apart by `***`, each of n_sent sentences of n_words tokens.

    Marks are tokens.
    """
    pieces = re.split(r"\s?\*\*\*\s?", answer)
    return len(pieces) == 3 and all(
        len(sentences) == n_sent and all(len(language.tokens(s)) == n_words for s in sentences)
        for sentences in map(language.rule_sentences, pieces)
    )


def count_unique(answer: str) -> bool:
    """No token is there twice; two dots are a token twice."""
    words = language.tokens(answer)
    return len(words) == len(set(words))


def count_increment_word(answer: str, keyword1: str, keyword2: str) -> bool:
    return count_of(keyword1, answer) == 1 and count_of(keyword2, answer) == 2


def letter_counting(answer: str, N: int, relation: str) -> bool:
    return compare(len(re.findall(r"[a-zA-Z]", answer)), relation, N)


def letter_counting2(answer: str, letter: str, let_frequency: int, let_relation: str) -> bool:
    return compare(answer.lower().count(letter.lower()), let_relation, let_frequency)


def _span_inside(n_start: int, n_end: int, prompt_to_repeat: str) -> str:
    if prompt_to_repeat[n_start:n_end].strip():
        return ""
    return f"characters {n_start} to {n_end} of a prompt of {len(prompt_to_repeat)} are blank"


FREQUENCY = {"keyword": WORD, "frequency": NATURAL, "relation": RELATION}

IFEVALG: dict[str, Constraint] = {
    "copy:repeat_phrase": Constraint(repeat_phrase, {"phrase": WORD, "small_n": COUNT}),
    "copy:copy": Constraint(copy, {"prompt_to_repeat": TEXT}),
    "copy:copying_simple": Constraint(copy, {"prompt_to_repeat": TEXT}),
    "copy:copying_multiple": Constraint(copying_multiple, {"prompt_to_repeat": TEXT, "N": COUNT}),
    "new:copy_span_idx": Constraint(
        copy_span_idx,
        {"n_start": NATURAL, "n_end": NATURAL, "prompt_to_repeat": TEXT},
        _span_inside,
    ),
    "detectable_format:sentence_hyphens": Constraint(sentence_hyphens, {}),
    "detectable_format:square_brackets": Constraint(square_brackets, {}),
    "detectable_format:bigram_wrapping": Constraint(bigram_wrapping, {}),
    "keywords:no_adjacent_consecutive": Constraint(no_adjacent_consecutive, {}),
    "keywords:word_once": Constraint(word_once, {"keyword": WORD}),
    "keywords:word_count_different_numbers": Constraint(word_count_different_numbers, FREQUENCY),
    "keywords:exclude_word_harder": Constraint(exclude_word_harder, {"keyword": WORD}),
    "keywords:palindrome": Constraint(palindrome, {}),
    "keywords:keyword_specific_position": Constraint(
        keyword_specific_position, {"keyword": WORD, "n": COUNT, "m": COUNT}
    ),
    "keywords:start_end": Constraint(start_end, {}),
    "paragraphs:paragraphs": Constraint(paragraphs, {}),
    "paragraphs:paragraphs2": Constraint(paragraphs2, {}),
    "first_word:first_word_sent": Constraint(first_word_sent, {"first_word": WORD}),
    "first_word:first_word_answer": Constraint(first_word_answer, {"first_word": WORD}),
    "last_word:last_word_sent": Constraint(last_word_sent, {"last_word": WORD}),
    "last_word:last_word_answer": Constraint(last_word_answer, {"last_word": WORD}),
    "punctuation:punctuation_dot": Constraint(punctuation_dot, {}),
    "punctuation:punctuation_exclamation": Constraint(punctuation_exclamation, {}),
    "count:lowercase_counting": Constraint(lowercase_counting, {"N": NATURAL}),
    "count:counting_composition": Constraint(
        counting_composition, {"n_sent": COUNT, "n_words": COUNT}
    ),
    "count:count_unique": Constraint(count_unique, {}),
    "count:count_increment_word": Constraint(
        count_increment_word, {"keyword1": WORD, "keyword2": WORD}
    ),
    "letters:letter_counting": Constraint(letter_counting, {"N": NATURAL, "relation": RELATION}),
    "letters:letter_counting2": Constraint(
        letter_counting2, {"letter": LETTER, "let_frequency": NATURAL, "let_relation": RELATION}
    ),
}
