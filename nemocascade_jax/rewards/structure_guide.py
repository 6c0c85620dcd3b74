"""What a schema says of a place in a document, for formats whose texts carry no types of their own.

A table cell or the text of an element is read as what the schema of its place asks for: the first
of null, a truth value, a number, and text that fits. Numbers and truth values are spelled as in JSON.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator
from typing import Any

from nemocascade_jax.rewards.schemas import Maker
from nemocascade_jax.rewards.structure_formats import Unreadable, finite, whole

Place = tuple[Any, ...]  # the schemas of one value; () where nothing is said


@dataclasses.dataclass
class Guide:
    """Follows a strict schema's validator down; `text_first` prefers text where several kinds fit."""

    validator: Any
    text_first: bool = False
    _applied: dict[int, Place] = dataclasses.field(default_factory=dict)

    def root(self) -> Place:
        return (self.validator.schema,)

    def applied(self, place: Place) -> Iterator[dict[str, Any]]:
        """Yields the schemas of a value with those that they bring in for the same value."""
        for schema in place:
            if id(schema) not in self._applied:
                self._applied[id(schema)] = tuple(self._brought(schema))
            yield from self._applied[id(schema)]

    def _brought(self, schema: Any) -> Iterator[dict[str, Any]]:
        if not isinstance(schema, dict):
            return
        yield schema
        if "$ref" in schema:
            yield from self._brought(Maker(self.validator.schema).target(schema["$ref"]))
        for key in BRANCHES:
            inner = schema.get(key, ())
            for one in inner if isinstance(inner, list) else (inner,):
                yield from self._brought(one)

    def kinds(self, place: Place) -> set[str]:
        """Returns the JSON types that a place names or implies, empty for any."""
        found: set[str] = set()
        for schema in self.applied(place):
            named = schema.get("type", ())
            if not named:
                named = [
                    kind for kind, keys in IMPLIED.items() if any(key in schema for key in keys)
                ]
            found.update([named] if isinstance(named, str) else named)
        return found

    def names(self, place: Place) -> set[str]:
        """Returns the property names that a place knows."""
        return {name for schema in self.applied(place) for name in schema.get("properties", ())}

    def at_name(self, place: Place, name: str) -> Place:
        """Returns the place of a property."""
        found: list[Any] = []
        for schema in self.applied(place):
            patterns = schema.get("patternProperties", {})
            here = [schema["properties"][name]] if name in schema.get("properties", ()) else []
            here += [entry for pattern, entry in patterns.items() if re.search(pattern, name)]
            found += here or [schema.get("additionalProperties")]
        return tuple(entry for entry in found if isinstance(entry, dict))

    def at_index(self, place: Place, index: int) -> Place:
        """Returns the place of a list's entry."""
        found: list[Any] = []
        for schema in self.applied(place):
            items = schema.get("items")
            first = items if isinstance(items, list) else schema.get("prefixItems", [])
            rest = schema.get("additionalItems") if isinstance(items, list) else items
            found.append(first[index] if index < len(first) else rest)
        return tuple(entry for entry in found if isinstance(entry, dict))

    def chosen(self, values: Iterable[Any], place: Place) -> Any:
        """Returns the first value that fits the place, else the last; text is the last one."""
        kinds = self.kinds(place)
        ordered = [*values]
        fitting = [one for one in ordered if not kinds or kinds & kinds_of(one)]
        if not place or not fitting:
            return ordered[-1]
        if self.text_first:
            fitting.reverse()
        if len(fitting) > 1:
            checks = [self.validator.evolve(schema=schema) for schema in place]
            fitting = [one for one in fitting if any(check.is_valid(one) for check in checks)]
        return fitting[0] if fitting else ordered[-1]


def scalars(text: str) -> Iterator[Any]:
    """Yields what a text may stand for besides itself: a truth value or a number as in JSON."""
    if text in WORDS:
        yield WORDS[text]
    elif NUMBER.fullmatch(text):
        try:
            yield whole(text) if text.lstrip("-").isdigit() else finite(text)
        except Unreadable:
            return  # then it is a text like any other


def kinds_of(value: Any) -> set[str]:
    """Returns the JSON types of a value."""
    if isinstance(value, float) and value.is_integer():
        return {"number", "integer"}
    return KINDS[type(value)]


# Keywords whose schemas are about the same value; `if` and `not` do not say what a value is.
BRANCHES = ("allOf", "anyOf", "oneOf", "then", "else")
IMPLIED = {
    "object": ("properties", "patternProperties", "additionalProperties"),
    "array": ("items", "prefixItems"),
}
WORDS = {"true": True, "false": False}
NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
KINDS: dict[type, set[str]] = {
    type(None): {"null"},
    bool: {"boolean"},
    int: {"integer", "number"},
    float: {"number"},
    str: {"string"},
    list: {"array"},
    dict: {"object"},
}
