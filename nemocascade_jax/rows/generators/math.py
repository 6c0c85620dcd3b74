"""Small sums as prompts: "Ann: What is 7 + 2? Put the answer in \\boxed{}." (rows as in paper 6.1).

A demonstrator writes the sum and boxes its result; at rate `slip` the result is off by one or two.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import NamedTuple

from nemocascade_jax.rows.generators import drawing
from nemocascade_jax.rows.records import Conversation, Message, Row
from nemocascade_jax.rows.schema import parse_row

AGENT = "math_with_judge_simple_agent"
LARGEST = 9
NAMES = (
    "Ann",
    "Ben",
    "Tom",
    "Mia",
    "Eva",
    "Leo",
    "Kim",
    "Max",
    "Amy",
    "Sam",
    "Ida",
    "Jon",
    "Eli",
    "Zoe",
    "Tim",
    "Liv",
    "Roy",
    "May",
    "Pam",
    "Lou",
    "Dan",
    "Joy",
    "Ray",
    "Una",
)
ADD = ("What is {a} + {b}?", "Compute {a} plus {b}.", "Add {b} to {a}.")
SUBTRACT = ("What is {a} - {b}?", "Compute {a} minus {b}.", "Take {b} from {a}.")
ASK = "Put the answer in \\boxed{}."


class Sum(NamedTuple):
    """One drawn prompt: the question without the request for a box, the sum, its result."""

    prompt: str
    question: str
    written: str
    result: int


def generate(split: str, count: int, seed: int) -> Iterator[Row]:
    """Yields `count` rows of distinct prompts."""
    for index, drawn in enumerate(drawing.distinct("math", _draw, split, count, seed)):
        obj = drawing.file_object(
            index,
            drawn.prompt,
            AGENT,
            "generated_math",
            question=drawn.question,
            expected_answer=str(drawn.result),
        )
        yield parse_row(obj, f"math:{split}:{index}")


def demonstrations(split: str, count: int, seed: int, slip: float) -> Iterator[Conversation]:
    """Yields the prompts of `generate`, answered by one who errs at rate `slip`."""
    drawing.check_slip("math", slip)
    rng = random.Random(f"math answers {split} {seed}")
    for index, drawn in enumerate(drawing.distinct("math", _draw, split, count, seed)):
        wrong = rng.choice((-2, -1, 1, 2)) if rng.random() < slip else 0
        answer = f"{drawn.written} = \\boxed{{{drawn.result + wrong}}}"
        turns = (Message("user", drawn.prompt), Message("assistant", answer))
        yield Conversation(turns, "math", f"math:{split}:{index}")


def _draw(rng: random.Random) -> Sum:
    a, b = rng.randint(0, LARGEST), rng.randint(0, LARGEST)
    adds = rng.random() < 0.5
    if not adds:
        a, b = max(a, b), min(a, b)
    question = rng.choice(ADD if adds else SUBTRACT).format(a=a, b=b)
    written, result = (f"{a} + {b}", a + b) if adds else (f"{a} - {b}", a - b)
    return Sum(f"{rng.choice(NAMES)}: {question} {ASK}", question, written, result)
