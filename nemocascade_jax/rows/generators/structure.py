"""Structured-output prompts: an object with named, typed keys, in the published row schema (paper 6.1).

A demonstrator slips at rate `slip`: a key is left out or added, a value has another type, or the
object stands in a fence.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from nemocascade_jax.rows.generators import drawing
from nemocascade_jax.rows.records import Conversation, Message, Row
from nemocascade_jax.rows.schema import parse_row

AGENT = "structured_outputs_simple_agent"
KEYS = ("name", "color", "size", "count", "city", "kind", "price", "day", "old", "open")
THINGS = [
    "rain",
    "snow",
    "road",
    "tree",
    "church",
    "bird",
    "child",
    "cat",
    "fish",
    "house",
    "train",
    "ship",
    "song",
    "story",
    "game",
    "bread",
    "tea",
    "fire",
    "forest",
    "beach",
    "bridge",
    "kitchen",
    "chair",
    "clock",
]
WORDS = ("red", "blue", "new", "old", "small", "big", "good", "north")


class Request(NamedTuple):
    """One drawn prompt: what is described, and the wanted keys with their JSON types."""

    prompt: str
    thing: str
    types: dict[str, str]


def generate(split: str, count: int, seed: int) -> Iterator[Row]:
    """Yields `count` rows of distinct prompts."""
    for index, drawn in enumerate(drawing.distinct("structure", _draw, split, count, seed)):
        properties = {key: {"type": kind} for key, kind in drawn.types.items()}
        obj = drawing.file_object(
            index,
            drawn.prompt,
            AGENT,
            "generated_structured_outputs",
            schema_str=json.dumps({"type": "object", "properties": properties}),
            schema_type="json",
            schema_fields_count=len(properties),
        )
        yield parse_row(obj, f"structure:{split}:{index}")


def demonstrations(split: str, count: int, seed: int, slip: float) -> Iterator[Conversation]:
    """Yields the prompts of `generate`, answered by one who slips at rate `slip`."""
    drawing.check_slip("structure", slip)
    rng = random.Random(f"structure answers {split} {seed}")
    for index, drawn in enumerate(drawing.distinct("structure", _draw, split, count, seed)):
        values = {key: VALUES[kind](rng, drawn.thing) for key, kind in drawn.types.items()}
        answer = json.dumps(values)
        if rng.random() < slip:
            answer = rng.choice(SLIPS)(rng, values, drawn.types)
        turns = (Message("user", drawn.prompt), Message("assistant", answer))
        yield Conversation(turns, "structured_output", f"structure:{split}:{index}")


def _draw(rng: random.Random) -> Request:
    thing = rng.choice(THINGS)
    keys = rng.sample(KEYS, rng.choice((1, 2, 2, 3)))
    types = {key: rng.choice(sorted(VALUES)) for key in keys}
    listed = ", ".join(f"{key} ({kind})" for key, kind in types.items())
    return Request(f"Describe the {thing} as JSON with the keys {listed}.", thing, types)


def _leave_out(rng: random.Random, values: dict[str, Any], types: dict[str, str]) -> str:
    left = rng.choice(sorted(values))
    return json.dumps({key: value for key, value in values.items() if key != left})


def _add(rng: random.Random, values: dict[str, Any], types: dict[str, str]) -> str:
    more = rng.choice([key for key in KEYS if key not in values])
    return json.dumps(values | {more: rng.choice(WORDS)})


def _mistype(rng: random.Random, values: dict[str, Any], types: dict[str, str]) -> str:
    key = rng.choice(sorted(values))
    other = rng.choice(sorted(set(VALUES) - {types[key]}))
    return json.dumps(values | {key: VALUES[other](rng, "thing")})


def _fence(rng: random.Random, values: dict[str, Any], types: dict[str, str]) -> str:
    return f"```json\n{json.dumps(values)}\n```"


Slip = Callable[[random.Random, dict[str, Any], dict[str, str]], str]
SLIPS: tuple[Slip, ...] = (_leave_out, _add, _mistype, _fence)
VALUES: dict[str, Callable[[random.Random, str], Any]] = {
    "string": lambda rng, thing: rng.choice((thing, *WORDS)),
    "integer": lambda rng, thing: rng.randint(1, 20),
    "boolean": lambda rng, thing: rng.random() < 0.5,
}
