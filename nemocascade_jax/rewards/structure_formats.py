"""Texts that stand for one JSON value whatever the schema says: strict JSON, YAML 1.2, TOML 1.0.

Each reader takes what every reader of its format would take in the same way and refuses the rest:
a key that is there twice, numbers that JSON does not have, values nested deeper than DEEPEST. A
refusal is quick: sizes are counted before or while a text is read, never after.
"""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Iterator
from typing import Any

import yaml
from yaml import events as seen

LONGEST = 200_000  # characters of an answer, and of a schema
DIGITS = 300  # of a whole number: more do not fit a float
DEEPEST = 100  # values inside values, in every format but JSON
# The reader in C, which PyYAML's wheels hold. The one in Python takes 15 times as long and refuses
# tabs that YAML allows: a verdict must not depend on which of the two a machine has.
YAML_READER = getattr(yaml, "CSafeLoader", None)


class Unreadable(ValueError):
    """Text that is not one value of its format; says why."""


def read_json(text: str) -> Any:
    """Returns the value of one JSON text; what not every reader of JSON would take is Unreadable."""
    check_size(text)
    try:
        return json.loads(
            text,
            object_pairs_hook=unique,
            parse_constant=_no_constant,
            parse_int=whole,
            parse_float=finite,
        )
    except RecursionError:
        raise Unreadable("JSON nested too deep") from None
    except json.JSONDecodeError as error:
        raise Unreadable(f"not JSON: {error.msg} at character {error.pos}") from None


def read_yaml(text: str) -> Any:
    """Returns the value of one YAML document, plain scalars typed by the core schema of YAML 1.2.

    So `NO`, `yes`, `12:30` and `2020-01-01` are texts. Anchors, aliases and tags are not read.
    """
    check_size(text)
    stream = yaml.parse(text, Loader=YAML_READER)
    try:
        started = [next(stream), next(stream)]
        if not isinstance(started[1], seen.DocumentStartEvent):
            raise Unreadable("no YAML document")
        value = _yaml_value(next(stream), stream, 0)
        ended = [next(stream), next(stream)]
    except yaml.YAMLError as error:
        problem = getattr(error, "problem", None) or "a character that YAML does not have"
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}" if mark else ""
        raise Unreadable(f"not YAML: {problem}{where}") from None
    except UnicodeError:
        raise Unreadable("not YAML: a character that YAML does not have") from None
    if not isinstance(ended[1], seen.StreamEndEvent):
        raise Unreadable("more than one YAML document")
    return value


def read_toml(text: str) -> Any:
    """Returns the table that a TOML document is; dates, nan and inf are no JSON values."""
    check_size(text)
    try:
        value = tomllib.loads(text, parse_float=finite)
    except RecursionError:
        raise Unreadable("TOML nested too deep") from None
    except Unreadable:
        raise
    except ValueError as error:  # syntax, or a number with more digits than Python converts
        raise Unreadable(f"not TOML: {error}") from None
    _check_toml(value)
    return value


def check_size(text: str) -> None:
    """Raises Unreadable for a text that is empty or too long to be read."""
    if not text:
        raise Unreadable("empty answer")
    if len(text) > LONGEST:
        raise Unreadable(f"{len(text)} characters, at most {LONGEST} are read")


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Returns pairs as an object; a key that is there twice is Unreadable."""
    table = dict(pairs)
    if len(table) < len(pairs):
        raise Unreadable("not strict: a key is there twice")
    return table


def whole(digits: str) -> int:
    """Returns a whole number that fits a float."""
    if len(digits) > DIGITS:
        raise Unreadable(f"a number of {len(digits)} digits, at most {DIGITS} are read")
    return int(digits, 0) if digits[:2] in ("0o", "0x") else int(digits)


def finite(digits: str) -> float:
    """Returns a number that JSON has."""
    value = float(digits)
    if not math.isfinite(value):
        raise Unreadable(f"{digits[:20]} is no number that can be read")
    return value


def deeper(depth: int) -> int:
    """Returns the next depth; too deep is Unreadable."""
    if depth >= DEEPEST:
        raise Unreadable(f"nested deeper than {DEEPEST} values")
    return depth + 1


def _no_constant(word: str) -> Any:
    raise Unreadable(f"not JSON: {word}")


def _yaml_value(event: Any, stream: Iterator[Any], depth: int) -> Any:
    """Returns the value that begins with an event, and takes its other events off the stream."""
    if isinstance(event, seen.AliasEvent) or event.anchor is not None:
        raise Unreadable("YAML anchors and aliases are not read")
    if event.tag is not None:
        raise Unreadable("YAML tags are not read")
    if isinstance(event, seen.ScalarEvent):
        return _yaml_scalar(event.value) if event.implicit[0] else event.value
    depth = deeper(depth)
    if isinstance(event, seen.SequenceStartEvent):
        entries = []
        while not isinstance(part := next(stream), seen.SequenceEndEvent):
            entries.append(_yaml_value(part, stream, depth))
        return entries
    pairs = []
    while not isinstance(part := next(stream), seen.MappingEndEvent):
        key = _yaml_value(part, stream, depth)
        if not isinstance(key, str):
            raise Unreadable("a YAML key that is no text")
        pairs.append((key, _yaml_value(next(stream), stream, depth)))
    return unique(pairs)


def _yaml_scalar(text: str) -> Any:
    for pattern, value in YAML_CORE:
        if pattern.fullmatch(text):
            return value(text) if callable(value) else value
    return text


def _check_toml(value: Any) -> None:
    """Raises Unreadable for what TOML has and JSON has not, and for deep nesting."""
    left = [(value, 0)]
    while left:
        one, depth = left.pop()
        if isinstance(one, dict | list):
            inner = one.values() if isinstance(one, dict) else one
            depth = deeper(depth)
            left.extend((entry, depth) for entry in inner)
        elif isinstance(one, int):
            if abs(one) >= 10**DIGITS:
                raise Unreadable(f"a number of more than {DIGITS} digits")
        elif not isinstance(one, str | float):
            raise Unreadable("a TOML date or time is no JSON value; as a text it stands in quotes")


# Plain scalars of the core schema (YAML 1.2, 10.3.2); everything else is text.
YAML_CORE: tuple[tuple[re.Pattern[str], Any], ...] = (
    (re.compile("null|Null|NULL|~|"), None),
    (re.compile("true|True|TRUE"), True),
    (re.compile("false|False|FALSE"), False),
    (re.compile("[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+"), whole),
    (re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?"), finite),
    (
        re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"),
        lambda word: finite(word.replace(".", "")),
    ),
)
