"""Sentences, words and language of a text, as the published instruction checkers see them.

Three notions of a sentence exist in the registry and give different counts: `count_sentences` and
`tokens` go through NLTK's punkt model, `rule_sentences` is a fixed list of rules. NLTK and
its data are optional: without them plain rules take over, and `splitter_name` says which it was.
"""

from __future__ import annotations

import functools
import importlib.util
import re
from collections.abc import Callable
from typing import NamedTuple

DOT, STOP = "\ue000", "\ue001"  # a dot that ends nothing, and a border between sentences
_OPENERS = (
    r"(Mr|Mrs|Ms|Dr|Prof|Capt|Cpt|Lt|He\s|She\s|It\s|They\s|Their\s|Our\s|We\s|But\s|However\s|That\s"
    r"|This\s|Wherever)"
)
# Applied in this order; every rule either protects a dot or sets a border.
_RULES: tuple[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]], ...] = tuple(
    (re.compile(pattern), into)
    for pattern, into in (
        (r"(Mr|St|Mrs|Ms|Dr)[.]", rf"\1{DOT}"),
        (r"[.](com|net|org|io|gov|edu|me)", rf"{DOT}\1"),
        (r"([0-9])[.]([0-9])", rf"\1{DOT}\2"),
        (r"[.]{2,}", lambda found: DOT * len(found.group()) + STOP),
        (r"Ph[.]D[.]", f"Ph{DOT}D{DOT}"),
        (r"\s([A-Za-z])[.] ", rf" \1{DOT} "),
        (rf"([A-Z][.][A-Z][.](?:[A-Z][.])?) {_OPENERS}", rf"\1{STOP} \2"),
        (r"([A-Za-z])[.]([A-Za-z])[.]([A-Za-z])[.]", rf"\1{DOT}\2{DOT}\3{DOT}"),
        (r"([A-Za-z])[.]([A-Za-z])[.]", rf"\1{DOT}\2{DOT}"),
        (rf" (Inc|Ltd|Jr|Sr|Co)[.] {_OPENERS}", rf" \1{STOP} \2"),
        (r" (Inc|Ltd|Jr|Sr|Co)[.]", rf" \1{DOT}"),
        (r" ([A-Za-z])[.]", rf" \1{DOT}"),
        (r"[.]”", "”."),
        (r'([.!?])"', r'"\1'),
        (r"([.!?])", rf"\1{STOP}"),
    )
)


def rule_sentences(text: str) -> list[str]:
    """Returns the sentences by the registry's rules; a closing quote moves before its mark."""
    text = f" {text}  ".replace("\n", " ")
    for pattern, into in _RULES:
        text = pattern.sub(into, text)
    pieces = [piece.strip() for piece in text.replace(DOT, ".").split(STOP)]
    return pieces if pieces[-1] else pieces[:-1]


class Splitter(NamedTuple):
    """Sentences and word tokens by one named method."""

    name: str
    sentences: Callable[[str], list[str]]
    tokens: Callable[[str], list[str]]


def splitter_name() -> str:
    """Returns which splitter grades here, for the record of a run: counts depend on it."""
    return _splitter().name


def count_sentences(text: str) -> int:
    """Returns the number of sentences by `splitter_name()`'s method."""
    return len(_splitter().sentences(text))


def tokens(text: str) -> list[str]:
    """Returns words and marks; a dot is its own token only at the end of a sentence."""
    return _splitter().tokens(text)


def count_words(text: str) -> int:
    """Returns the number of runs of word characters."""
    return len(re.findall(r"\w+", text))


@functools.cache
def _splitter() -> Splitter:
    return _punkt() or Splitter("rules", _plain_sentences, _plain_tokens)


def _punkt() -> Splitter | None:
    """Returns the splitter of NLTK's English punkt model, None where it is not installed."""
    if importlib.util.find_spec("nltk") is None:
        return None
    import nltk

    try:  # a wheel that carries NLTK's data, where it is installed
        carrier = importlib.util.find_spec("llama_index.core")
    except ModuleNotFoundError:
        carrier = None
    if carrier is not None:
        for folder in carrier.submodule_search_locations or ():
            nltk.data.path.append(f"{folder}/_static/nltk_cache")
    try:
        model = nltk.tokenize.PunktTokenizer("english")
    except LookupError:
        return None
    words = nltk.tokenize.NLTKWordTokenizer()
    return Splitter(
        "nltk-punkt",
        lambda text: list(model.tokenize(text)),
        lambda text: [word for line in model.tokenize(text) for word in words.tokenize(line)],
    )


_BORDER = re.compile(r"[.!?][\"')\]]*+(\s++)(?=[\"'(\[]*+\w)")
_SHORT = re.compile(
    r"(?:\b(?:Mr|Mrs|Ms|Dr|Prof|St|Inc|Ltd|Jr|Sr|Co|vs|etc|e\.g|i\.e)|\b[A-Za-z])\.$"
)
_TOKEN = re.compile(r"\.{2,}|\w+(?:[-'./:]\w+)*|[^\w\s]")


def _plain_sentences(text: str) -> list[str]:
    """Returns sentences cut at white space after . ! ? (and closing quotes) before a word.

    A dot after a known abbreviation, or three dots before a small letter, cut nothing.
    """
    found: list[str] = []
    start = 0
    for border in _BORDER.finditer(text):
        piece = text[start : border.start(1)]
        runs_on = piece.endswith("...") and text[border.end() : border.end() + 1].islower()
        if not runs_on and not _SHORT.search(piece[-8:]):
            found.append(piece)
            start = border.end()
    found.append(text[start:])
    return [piece for piece in found if piece.strip()]


def _plain_tokens(text: str) -> list[str]:
    return [token for line in _plain_sentences(text) for token in _TOKEN.findall(line)]


# --- which language -------------------------------------------------------------------------------

_CODES = """
af ar bg bn ca cs cy da de el en es et fa fi fr gu he hi hr hu id it ja kn ko lt lv mk ml mr ne nl
no pa pl pt ro ru sk sl so sq sv sw ta te th tl tr uk ur vi zh-cn zh-tw
"""
LANGUAGES = frozenset(_CODES.split())
MIN_LETTERS = 20  # below this the detector guesses


def detect(text: str) -> str | None:
    """Returns the code of the text's language, one of LANGUAGES, or None when it cannot be told.

    The detector samples; its seed is fixed, so the same text always gets the same answer. It passes
    over words in capitals; a text with no other words is asked again in small letters.
    """
    import langdetect

    langdetect.DetectorFactory.seed = 0
    for form in (text, text.lower()):
        try:
            return langdetect.detect(form)
        except langdetect.LangDetectException:
            continue
    return None


def reads_as_english(text: str) -> bool:
    """Returns whether the text, in small letters, is English, or too short to ask the detector."""
    letters = sum(letter.isalpha() for letter in text)
    return letters < MIN_LETTERS or detect(text.lower()) == "en"


def warm() -> None:
    """Loads the splitter and the detector's profiles."""
    tokens("One. Two.")
    detect("one two three")
