"""Instruction-following prompts over a small closed vocabulary, and answers to them (paper 2.5).

A prompt is "Write about the rain. Use no commas. Include the word cloud.": a topic and one to three
constraints of the published registry that a short text can meet. `generate` gives rows in the
published file schema; `demonstrations` gives the same prompts with a written answer.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from nemocascade_jax.rows.generators import drawing, short_texts
from nemocascade_jax.rows.records import Conversation, Message, Row
from nemocascade_jax.rows.schema import parse_row

AGENT = "instruction_following_simple_agent"
WANTED = (1, 2, 2, 3)  # the number of a prompt's tasks is drawn from these


class Task(NamedTuple):
    """One constraint of a prompt: its registry id, arguments, and the sentence that asks for it."""

    kind: str
    id: str
    kwargs: Mapping[str, Any]
    text: str


def prompts(
    split: str, count: int, seed: int, wanted: Sequence[int] = WANTED
) -> Iterator[tuple[str, str, list[Task]]]:
    """Yields `count` distinct (prompt, topic, tasks) of one split, the same on every machine.

    `wanted` is what the number of tasks of a prompt is drawn from.
    """
    yield from drawing.distinct("instruction", lambda rng: _prompt(rng, wanted), split, count, seed)


def _prompt(rng: random.Random, wanted: Sequence[int]) -> tuple[str, str, list[Task]]:
    topic, tasks = _draw(rng, wanted)
    opening = rng.choice(("Write about the", "Tell me about the"))
    prompt = " ".join([f"{opening} {topic}.", *(task.text for task in tasks)])
    return prompt, topic, tasks


def file_object(prompt: str, tasks: list[Task], index: int) -> dict[str, Any]:
    """Returns one line of the published instruction-following file (paper 6.1)."""
    return drawing.file_object(
        index,
        prompt,
        AGENT,
        "generated_instruction_following",
        prompt=prompt,
        instruction_id_list=[task.id for task in tasks],
        kwargs=[dict(task.kwargs) or None for task in tasks],
    )


def generate(split: str, count: int, seed: int, wanted: Sequence[int] = WANTED) -> Iterator[Row]:
    """Yields `count` rows of distinct prompts."""
    for index, (prompt, _, tasks) in enumerate(prompts(split, count, seed, wanted)):
        yield parse_row(file_object(prompt, tasks, index), f"instruction:{split}:{index}")


def demonstrations(
    split: str, count: int, seed: int, slip: float, wanted: Sequence[int] = WANTED
) -> Iterator[Conversation]:
    """Yields the prompts of `generate`, answered by one who forgets constraints at rate `slip`."""
    drawing.check_slip("instruction", slip)
    rng = random.Random(f"instruction answers {split} {seed}")
    for index, (prompt, topic, tasks) in enumerate(prompts(split, count, seed, wanted)):
        kept = {task.kind: task.kwargs for task in tasks if rng.random() >= slip}
        turns = (Message("user", prompt), Message("assistant", short_texts.write(rng, topic, kept)))
        yield Conversation(turns, "instruction_following", f"instruction:{split}:{index}")


def _draw(rng: random.Random, numbers: Sequence[int]) -> tuple[str, list[Task]]:
    """Draws a topic and as many tasks as one of `numbers`, which one answer can meet together."""
    topic = rng.choice(short_texts.TOPICS)
    words = iter(rng.sample(short_texts.KEYWORDS, 6))
    wanted = rng.choice(numbers)
    tasks: list[Task] = []
    claimed: set[str] = set()
    for kind in rng.sample(sorted(KINDS), len(KINDS)):
        claims, make = KINDS[kind]
        if claims.isdisjoint(claimed) and len(tasks) < wanted:
            claimed |= claims
            name, kwargs, text = make(rng, words)
            tasks.append(Task(kind, name, kwargs, text))
    return topic, tasks


Made = tuple[str, dict[str, Any], str]


def _fixed(name: str, text: str) -> Callable[..., Made]:
    return lambda rng, words: (name, {}, text)


def _include(rng: random.Random, words: Iterator[str]) -> Made:
    word = next(words)
    return "keywords:existence", {"keywords": [word]}, f"Include the word {word}."


def _include_two(rng: random.Random, words: Iterator[str]) -> Made:
    pair = [next(words), next(words)]
    return "keywords:existence", {"keywords": pair}, f"Include the words {pair[0]} and {pair[1]}."


def _often(rng: random.Random, words: Iterator[str]) -> Made:
    word = next(words)
    kwargs = {"keyword": word, "frequency": 2, "relation": "at least"}
    return "keywords:frequency", kwargs, f"Use the word {word} at least 2 times."


def _once(rng: random.Random, words: Iterator[str]) -> Made:
    word = next(words)
    return "keywords:word_once", {"keyword": word}, f"Use the word {word} once."


def _forbid(rng: random.Random, words: Iterator[str]) -> Made:
    word = rng.choice(sorted(short_texts.INSTEAD))
    kwargs = {"forbidden_words": [word]}
    return "keywords:forbidden_words", kwargs, f"Do not use the word {word}."


def _end(rng: random.Random, words: Iterator[str]) -> Made:
    phrase = rng.choice(short_texts.ENDINGS)
    return "startend:end_checker", {"end_phrase": phrase}, f"End with: {phrase}"


def _bullets(rng: random.Random, words: Iterator[str]) -> Made:
    count = rng.choice((2, 3))
    kwargs = {"num_bullets": count}
    return "detectable_format:number_bullet_lists", kwargs, f"Use {count} bullets with *."


def _short(rng: random.Random, words: Iterator[str]) -> Made:
    limit = rng.choice((8, 9, 10, 12))
    kwargs = {"num_words": limit, "relation": "less than"}
    return "length_constraints:number_words", kwargs, f"Use less than {limit} words."


def _long(rng: random.Random, words: Iterator[str]) -> Made:
    limit = rng.choice((18, 19, 20))
    kwargs = {"num_words": limit, "relation": "at least"}
    return "length_constraints:number_words", kwargs, f"Use at least {limit} words."


def _one(rng: random.Random, words: Iterator[str]) -> Made:
    kwargs = {"num_sentences": 2, "relation": "less than"}
    return "length_constraints:number_sentences", kwargs, "Use less than 2 sentences."


def _three(rng: random.Random, words: Iterator[str]) -> Made:
    kwargs = {"num_sentences": 3, "relation": "at least"}
    return "length_constraints:number_sentences", kwargs, "Use at least 3 sentences."


def _places(rng: random.Random, words: Iterator[str]) -> Made:
    count = rng.choice((1, 2))
    text = f"Use at least {count} {'places' if count > 1 else 'place'} like [name]."
    return "detectable_content:number_placeholders", {"num_placeholders": count}, text


def _highlight(rng: random.Random, words: Iterator[str]) -> Made:
    kwargs = {"num_highlights": 1}
    return "detectable_format:number_highlighted_sections", kwargs, "Mark a word *like this*."


def _capitals(rng: random.Random, words: Iterator[str]) -> Made:
    kwargs = {"capital_frequency": 1, "capital_relation": "at least"}
    return "change_case:capital_word_frequency", kwargs, "Write at least 1 word in all capitals."


def _postscript(rng: random.Random, words: Iterator[str]) -> Made:
    kwargs = {"postscript_marker": "P.S."}
    return "detectable_content:postscript", kwargs, "Add a note with P.S."


def _first(rng: random.Random, words: Iterator[str]) -> Made:
    word = rng.choice(short_texts.FIRST)
    return "first_word:first_word_answer", {"first_word": word}, f"The first word is {word}."


def _first_each(rng: random.Random, words: Iterator[str]) -> Made:
    word = rng.choice(short_texts.PRONOUNS)
    text = f"Start each sentence with {word}."
    return "first_word:first_word_sent", {"first_word": word}, text


def _last(rng: random.Random, words: Iterator[str]) -> Made:
    word = rng.choice(short_texts.LAST)
    return "last_word:last_word_answer", {"last_word": word}, f"The last word is {word}."


# Kind -> (what it claims, how it is drawn). Two kinds go together only if their claims do not meet.
KINDS: dict[str, tuple[frozenset[str], Callable[[random.Random, Iterator[str]], Made]]] = {
    kind: (frozenset(claims.split()), make)
    for kind, claims, make in (
        ("bullets", "shape start star", _bullets),
        ("capitals", "case", _capitals),
        ("end", "end dot words one", _end),
        ("first", "start", _first),
        ("first_each", "shape start words note", _first_each),
        ("forbid", "words", _forbid),
        ("highlight", "star", _highlight),
        ("include", "include", _include),
        ("include_two", "include length", _include_two),
        ("last", "end", _last),
        ("long", "shape", _long),
        ("lower", "case", _fixed("change_case:english_lowercase", "Use no capital letters.")),
        ("no_comma", "comma", _fixed("punctuation:no_comma", "Use no commas.")),
        ("no_dot", "mark dot", _fixed("punctuation:punctuation_dot", "Use no dots.")),
        ("no_shout", "mark", _fixed("punctuation:punctuation_exclamation", "Do not use !")),
        ("often", "often length", _often),
        ("once", "often length", _once),
        ("one", "shape one", _one),
        ("paragraphs", "shape", _fixed("paragraphs:paragraphs2", "Write two paragraphs.")),
        ("places", "length", _places),
        ("postscript", "end dot one note", _postscript),
        ("quote", "start", _fixed("startend:quotation", "Put it all in quotes.")),
        ("same", "shape start end", _fixed("keywords:start_end", "Start and end with one word.")),
        ("short", "shape start end length", _short),
        ("three", "shape", _three),
        ("title", "start", _fixed("detectable_format:title", "Give it a <<title>>.")),
        (
            "two",
            "shape star",
            _fixed("combination:two_responses", "Give two answers with ****** between."),
        ),
        ("upper", "case", _fixed("change_case:english_capital", "Use all capital letters.")),
    )
}
