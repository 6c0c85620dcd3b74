"""The typed arguments of constraints, and the counting that several checkers share."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from nemocascade_jax.rewards.language import LANGUAGES

RELATIONS = ("less than", "at least")


class Argument(NamedTuple):
    """What an argument must be, in words, and its reader, which returns None for anything else."""

    expected: str
    read: Callable[[Any], Any]


class Constraint(NamedTuple):
    """A checker and its arguments; every argument is required, and there are no others."""

    follows: Callable[..., bool]
    arguments: Mapping[str, Argument]
    relate: Callable[..., str] | None = None  # what is wrong between the arguments, "" if nothing


def _whole(value: Any, least: int) -> int | None:
    """Whole numbers come out of some file formats as 3.0, and those are taken."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if type(value) is int and value >= least else None


def _word(value: Any) -> str | None:
    """Some rows wrap a single word in a list, and those are taken."""
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    return value.strip() or None if isinstance(value, str) else None


def _words(value: Any) -> list[str] | None:
    good = (
        isinstance(value, list) and value and all(isinstance(w, str) and w.strip() for w in value)
    )
    return list(value) if good else None


def _choice(options: Any) -> Callable[[Any], str | None]:
    return lambda value: value if isinstance(value, str) and value in options else None


BLANK = "\u115f\u1160\u2800\u3164\uffa0"  # letters and signs that are drawn as nothing
LOOK_ALIKE = str.maketrans(  # Cyrillic, then Greek
    "аеорсухіѕјԁһԛԝАВЕКМНОРСТХονιΑΒΕΖΗΙΚΜΝΟΡΤΥΧ",
    "aeopcyxisjdhqwABEKMHOPCTXoviABEZHIKMNOPTYX",
)

NATURAL = Argument("a whole number, 0 or more", lambda value: _whole(value, 0))
COUNT = Argument("a whole number, 1 or more", lambda value: _whole(value, 1))
WORD = Argument("text that is not blank", _word)
WORDS = Argument("a list of texts, none blank, not empty", _words)
TEXT = Argument("text that is not blank", lambda v: v if isinstance(v, str) and v.strip() else None)
RELATION = Argument("'less than' or 'at least'", _choice(RELATIONS))
LETTER = Argument(
    "one character",
    lambda value: value if isinstance(value, str) and len(value) == 1 and value.strip() else None,
)
LANGUAGE = Argument(f"one of {' '.join(sorted(LANGUAGES))}", _choice(LANGUAGES))


def compare(count: int, relation: str, threshold: int) -> bool:
    """Returns count < threshold for "less than" (strict), count >= threshold for "at least"."""
    return count < threshold if relation == "less than" else count >= threshold


def count_of(keyword: str, answer: str) -> int:
    """Returns how often `keyword` is a part of the text, ignoring case, without overlaps."""
    return len(re.findall(re.escape(keyword), answer, re.IGNORECASE))


def shows(text: str) -> bool:
    """Returns whether a text has a character that can be seen."""
    return any(
        char.isprintable()
        and not char.isspace()
        and char not in BLANK
        and unicodedata.category(char) != "Mn"  # what is drawn on the character before it
        for char in text
    )


def as_seen(text: str) -> str:
    """Returns the text as a reader sees it: nothing invisible in it, foreign look-alikes as Latin.

    Only words that have Latin letters too are taken for disguised ones.
    """
    if text.isascii():
        return text
    kept = (char for char in text if char in "\n\t" or unicodedata.category(char) != "Cf")
    plain = unicodedata.normalize("NFKC", "".join(kept))
    return re.sub(r"\w+", _undisguised, plain)


def _undisguised(word: re.Match[str]) -> str:
    text = word.group()
    return text.translate(LOOK_ALIKE) if re.search("[A-Za-z]", text) else text


def lazy_spans(answer: str, opening: str, closing: str) -> list[str]:
    """Returns what lies between each opening and the next closing on its line, borders included.

    The same spans as the lazy expression `opening.*?closing`, which takes quadratic time on a line
    of openings alone.
    """
    spans = []
    for line in answer.split("\n"):
        start = line.find(opening)
        while start >= 0:
            end = line.find(closing, start + len(opening))
            if end < 0:
                break
            spans.append(line[start : end + len(closing)])
            start = line.find(opening, end + len(closing))
    return spans
