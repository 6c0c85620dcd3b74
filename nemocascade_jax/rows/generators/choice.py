"""Multiple-choice prompts: which of three words is of a kind, in the published row schema (paper 6.1).

Two templates, each with the regular expression that finds the option's text in the answer. A
demonstrator names any of the three words at rate `slip`.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import NamedTuple

from nemocascade_jax.rows.generators import drawing
from nemocascade_jax.rows.records import Conversation, Message, Row
from nemocascade_jax.rows.schema import parse_row

AGENT = "mcqa_simple_agent"
LETTERS = "ABC"
KINDS = {
    "an animal": ("bird", "cat", "dog", "fish"),
    "a color": ("yellow", "purple", "silver", "orange"),
    "a food": ("bread", "sugar", "lemon", "tea"),
    "a metal": ("iron", "gold", "tin", "lead"),
    "a number": ("one", "two", "three", "five"),
    "a place": ("beach", "forest", "city", "village"),
}
# How the answer is asked for, how it looks, and the pattern that finds it (the row's own).
FORMS = {
    "line": ("End with Answer: and the word.", "The {kind}. Answer: {word}", r"Answer:\s*(\w+)"),
    "sentence": ("Answer in a sentence.", "The {kind} is {word}.", r"\bis (\w+)"),
}


class Question(NamedTuple):
    """One drawn prompt with its options, the right letter, the form of the answer, and the kind."""

    prompt: str
    options: tuple[str, ...]
    letter: str
    form: str
    kind: str


def generate(split: str, count: int, seed: int) -> Iterator[Row]:
    """Yields `count` rows of distinct prompts."""
    for index, drawn in enumerate(drawing.distinct("choice", _draw, split, count, seed)):
        options = [{letter: word} for letter, word in zip(LETTERS, drawn.options, strict=True)]
        obj = drawing.file_object(
            index,
            drawn.prompt,
            AGENT,
            "generated_stem_mcqa",
            options=options,
            expected_answer=drawn.letter,
            grading_mode="lenient_answer_colon",
            template_metadata={"template_id": drawn.form, "output_regex": FORMS[drawn.form][2]},
        )
        yield parse_row(obj, f"choice:{split}:{index}")


def demonstrations(split: str, count: int, seed: int, slip: float) -> Iterator[Conversation]:
    """Yields the prompts of `generate`, answered by one who guesses at rate `slip`."""
    drawing.check_slip("choice", slip)
    rng = random.Random(f"choice answers {split} {seed}")
    for index, drawn in enumerate(drawing.distinct("choice", _draw, split, count, seed)):
        word = drawn.options[LETTERS.index(drawn.letter)]
        word = rng.choice(drawn.options) if rng.random() < slip else word
        answer = FORMS[drawn.form][1].format(kind=drawn.kind, word=word)
        turns = (Message("user", drawn.prompt), Message("assistant", answer))
        yield Conversation(turns, "multiple_choice", f"choice:{split}:{index}")


def _draw(rng: random.Random) -> Question:
    kinds = rng.sample(sorted(KINDS), len(LETTERS))
    words = [rng.choice(KINDS[kind]) for kind in kinds]
    right = rng.randrange(len(LETTERS))
    form = rng.choice(sorted(FORMS))
    listed = "\n".join(f"{letter}: {word}" for letter, word in zip(LETTERS, words, strict=True))
    prompt = f"Which one is {kinds[right]}?\n{listed}\n{FORMS[form][0]}"
    return Question(prompt, tuple(words), LETTERS[right], form, kinds[right].split()[1])
