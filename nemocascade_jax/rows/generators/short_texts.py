"""A writer of short English texts that meet a set of instructions, from a closed vocabulary."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


# Words that a language detector takes for English in any of the sentences below.
TOPICS = _words(
    "rain snow wind city road tree church bird child cat weather fish house mountain train ship song "
    "story country game bread tea fire winter summer morning forest beach bridge kitchen chair clock"
)
KEYWORDS = _words(
    "cloud stone light water friend color window paper sugar table flower butter candle music dream "
    "hill field market dinner pencil letter village mirror basket orange yellow purple silver hammer "
    "ladder pocket button carpet engine island jacket lemon"
)
ADJECTIVES = _words(
    "cold soft quiet bright small pretty old new slow quick fresh lovely clean high white strange"
)
VERBS = _words("falls waits rests grows changes comes shines turns stops shakes")
ENDINGS = ("that is all.", "this is the end.", "good night to you.", "see you soon.")
FIRST = ("today", "maybe", "perhaps", "here", "yes")
LAST = _words("again always forever together tomorrow outside")
PRONOUNS = _words("we they you")
PLACES = _words("[name] [place] [day]")
INSTEAD = {"the": "this", "and": "but", "is": "feels", "like": "enjoy", "we": "you"}
NEAR = _words("near with by")

Sentence = dict[str, Any]  # "clauses": list of word lists, "mark": "." or "!" or ""


def write(rng: random.Random, topic: str, wanted: Mapping[str, Mapping[str, Any]]) -> str:
    """Returns a text on `topic` that meets every wanted kind (kind -> the constraint's arguments).

    With nothing wanted it is two sentences with commas, capitals, a dot and a shout: a text that
    breaks most of the constraints it does not think of.
    """
    swap = {word: word for word in INSTEAD}
    for word in wanted.get("forbid", {}).get("forbidden_words", ()):
        swap[word] = INSTEAD[word]
    sentences = _sentences(rng, topic, wanted, swap)
    _add_phrases(rng, sentences, wanted, swap)
    _set_marks(sentences, wanted)
    comma = "" if "no_comma" in wanted else ","
    lines = [_line(sentence, comma, swap) for sentence in sentences]
    text = _lay_out(lines, wanted, topic, rng, swap)
    if "lower" in wanted:
        return text.lower()
    return text.upper() if "upper" in wanted else text


def _sentences(
    rng: random.Random, topic: str, wanted: Mapping[str, Any], swap: Mapping[str, str]
) -> list[Sentence]:
    """Draws the bare sentences; their number and openings follow the shape that is wanted."""
    first, second, third = rng.sample(ADJECTIVES, 3)
    verb, other = rng.sample(VERBS, 2)
    if "highlight" in wanted:
        first = f"*{first}*"
    if "capitals" in wanted:
        first = first.upper()
    the, is_, we, like = swap["the"], swap["is"], swap["we"], swap["like"]
    if "same" in wanted:
        return [{"clauses": [[topic, is_, first], [we, like, "everything", "about", the, topic]]}]
    opening: list[str] = []
    if "first_each" in wanted:
        we = wanted["first_each"]["first_word"]
        opening = [we, "think", "that"]
    if "first" in wanted:
        opening = [wanted["first"]["first_word"]]
    about = [*opening, the, topic, is_, first]
    mood = [we, like, the, topic]
    if "short" in wanted:
        return [{"clauses": [about]}]
    if "one" in wanted:
        return [{"clauses": [about, ["it", verb]]}]
    if wanted.get("bullets", {}).get("num_bullets") == 3 or "three" in wanted:
        last = [we, "watch", "it", "with", "them"]
        return [{"clauses": [about, ["it", verb]]}, {"clauses": [mood]}, {"clauses": [last]}]
    pair = [{"clauses": [about, ["it", verb]]}, {"clauses": [mood, ["it", is_, second]]}]
    if "long" in wanted:
        pair[1]["clauses"].append(["it", other, "when", "it", is_, third])
    return pair


def _add_phrases(
    rng: random.Random,
    sentences: list[Sentence],
    wanted: Mapping[str, Any],
    swap: Mapping[str, str],
) -> None:
    """Puts keywords and placeholders into the sentences, in turn."""
    words = [*wanted.get("include", {}).get("keywords", ())]
    words += wanted.get("include_two", {}).get("keywords", ())
    words += [wanted["often"]["keyword"]] * 2 if "often" in wanted else []
    words += [wanted["once"]["keyword"]] if "once" in wanted else []
    phrases = [[rng.choice(NEAR), swap["the"], word] for word in words]
    count = wanted.get("places", {}).get("num_placeholders", 0)
    phrases += [["for", place] for place in rng.sample(PLACES, count)]
    for index, phrase in enumerate(phrases):
        sentence = sentences[index % len(sentences)]
        sentence["clauses"][0].extend(phrase)
    if "last" in wanted:
        sentences[-1]["clauses"][-1].append(wanted["last"]["last_word"])


def _set_marks(sentences: list[Sentence], wanted: Mapping[str, Any]) -> None:
    for sentence in sentences:
        sentence["mark"] = "!" if "no_dot" in wanted else "."
    if "no_shout" not in wanted:
        sentences[-1]["mark"] = "!"
    if "same" in wanted:
        sentences[-1]["mark"] = ""


def _line(sentence: Sentence, comma: str, swap: Mapping[str, str]) -> str:
    clauses = [" ".join(words) for words in sentence["clauses"]]
    text = f"{comma} {swap['and']} ".join(clauses)
    return text[0].upper() + text[1:] + sentence["mark"]


def _lay_out(
    lines: list[str],
    wanted: Mapping[str, Any],
    topic: str,
    rng: random.Random,
    swap: Mapping[str, str],
) -> str:
    if "end" in wanted:
        phrase = wanted["end"]["end_phrase"]
        lines[-1] += " " + phrase[0].upper() + phrase[1:]
    if "bullets" in wanted:
        text = "\n".join("* " + line for line in lines)
    elif "two" in wanted:
        text = " ****** ".join(lines)
    else:
        text = ("\n\n" if "paragraphs" in wanted else " ").join(lines)
    if "title" in wanted:
        text = f"<<{rng.choice(ADJECTIVES)} {topic}>>\n{text}"
    if "postscript" in wanted:
        text += f"\nP.S. {swap['we'].capitalize()} {swap['like']} everything."
    return f'"{text}"' if "quote" in wanted else text
