"""JSON schemas made strict: every property required and no other one allowed, at every level.

What a schema says in several places at once is brought together first, or no object could fit: the
properties of an `allOf` join those beside it, and those beside an `anyOf` join each of its branches.
Conditions (`if`, `then`, `else`, `not`, `dependentSchemas`) stay as they are.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import json
import re
import urllib.parse
from collections.abc import Iterator, Mapping
from typing import Any

import jsonschema
from jsonschema.exceptions import SchemaError
from jsonschema.validators import validator_for
from referencing import Registry

MOST = 20_000  # schemas in a schema, those referred to counted each time
RESOLVED_ELSEWHERE = ("$dynamicRef", "$recursiveRef")


class BadSchema(ValueError):
    """A schema that no answer can be held against; says why."""


def validator(schema: Any) -> Any:
    """Returns the validator of a schema made strict; BadSchema says what is wrong with it."""
    if not isinstance(schema, dict):
        raise BadSchema(f"expected a JSON object, got a {type(schema).__name__}")
    kind = validator_for(schema, default=jsonschema.Draft202012Validator)
    try:
        if not _well_formed(kind, json.dumps(_nameless(schema), sort_keys=True)):
            schema = _without_replaced(schema)
            kind.check_schema(schema)  # says what is wrong
        maker = Maker(schema)
        maker.check()
        made = maker.strict(schema)
        Maker(made).check()  # joining may have moved what a reference named
    except SchemaError as error:
        raise BadSchema(f"not a JSON schema: {error.message[:200]}") from None
    except RecursionError:
        raise BadSchema("nested too deep") from None
    return kind(made, registry=Registry())  # an empty registry: nothing is ever fetched


@functools.lru_cache(maxsize=4096)
def _well_formed(kind: Any, text: str) -> bool:
    """Returns whether a schema is one; most of a verifier's start would go here without the memory."""
    try:
        kind.check_schema(json.loads(text))
    except SchemaError:
        return False
    return True


def _without_replaced(schema: dict[str, Any]) -> dict[str, Any]:
    """Returns a schema without the malformed keywords that strictness replaces in any case.

    Schemas that were written in another format and turned into JSON have "false" for false there.
    """
    new = copy.deepcopy(schema)
    for one in _inside(new):
        if _has_properties(one):
            required = one.get("required", [])
            if not isinstance(required, list) or not all(isinstance(x, str) for x in required):
                del one["required"]
            if not isinstance(one.get("additionalProperties", False), dict | bool):
                del one["additionalProperties"]
    return new


def _nameless(schema: Any) -> Any:
    """Returns a schema with its properties renamed in order: their names do not make it right or wrong."""
    if isinstance(schema, list):
        return [_nameless(entry) for entry in schema]
    if not isinstance(schema, dict):
        return schema
    out = {key: _nameless(value) for key, value in schema.items() if key != "properties"}
    properties = schema.get("properties")
    if isinstance(properties, dict):
        shapes = sorted(map(_nameless, properties.values()), key=json.dumps)
        out["properties"] = {str(index): shape for index, shape in enumerate(shapes)}
    elif "properties" in schema:
        out["properties"] = properties
    return out


@dataclasses.dataclass
class Maker:
    """Makes one schema strict; `root` is what its references start from."""

    root: dict[str, Any]
    left: int = MOST

    def check(self) -> None:
        """Raises BadSchema for patterns and references that cannot be followed, or lead round."""
        for schema in _inside(self.root):
            self._spend()
            if "$id" in schema and schema is not self.root:
                raise BadSchema("$id below the top: references would start elsewhere")
            for key in RESOLVED_ELSEWHERE:
                if key in schema:
                    raise BadSchema(f"{key} is not supported, $ref is")
            for pattern in (schema.get("pattern"), *schema.get("patternProperties", ())):
                try:
                    re.compile(pattern or "")
                except (re.error, OverflowError, RecursionError) as error:
                    raise BadSchema(f"pattern {pattern!r}: {error}") from None
            self._follow(schema, ())

    def _follow(self, schema: Any, path: tuple[int, ...]) -> None:
        """Raises BadSchema where a schema, applied to one value, comes back to itself."""
        if not isinstance(schema, dict):
            return
        self._spend()
        if id(schema) in path:
            raise BadSchema("a $ref leads back to itself")
        path = (*path, id(schema))
        if "$ref" in schema:
            self._follow(self.target(schema["$ref"]), path)
        for one in _children(schema, PLACES_HERE):
            self._follow(one, path)

    def target(self, reference: Any) -> Any:
        """Returns the schema that a reference inside this document names."""
        if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
            raise BadSchema(f"$ref {reference!r} leaves the schema, only #/... is followed")
        found: Any = self.root
        for step in reference.split("/")[1:]:
            name = urllib.parse.unquote(step).replace("~1", "/").replace("~0", "~")
            try:
                found = found[int(name)] if isinstance(found, list) else found[name]
            except (KeyError, IndexError, ValueError, TypeError):
                raise BadSchema(f"$ref {reference!r} names nothing") from None
        if not isinstance(found, dict | bool):
            raise BadSchema(f"$ref {reference!r} names no schema")
        return found

    def strict(self, schema: Any, closed: bool = True) -> Any:
        """Returns the schema with all properties required, and where `closed` no others allowed."""
        if not isinstance(schema, dict):
            return schema
        self._spend()
        schema, spread = self._spread(self._joined(schema))
        new = dict(schema)
        for key, value in schema.items():
            if key in TABLE and isinstance(value, dict):
                new[key] = {name: self.strict(entry) for name, entry in value.items()}
            elif key in LIST and isinstance(value, list):
                new[key] = [self.strict(entry) for entry in value]
            elif key in ONE:
                new[key] = self.strict(value)
        if isinstance(new.get("properties"), dict):
            new["required"] = list(new["properties"])
            if closed and not spread:
                new["additionalProperties"] = False
        return new

    def _joined(self, schema: dict[str, Any]) -> dict[str, Any]:
        """Returns the schema with the properties of its `allOf` among its own."""
        branches = [self._resolved(branch) for branch in _entries(schema.get("allOf"))]
        branches = [self._joined(one) if isinstance(one, dict) else one for one in branches]
        if not any(_has_properties(branch) for branch in branches):
            return schema
        self._spend(len(branches))
        table = {name: [entry] for name, entry in schema.get("properties", {}).items()}
        for branch in branches:
            if _has_properties(branch):
                for name, entry in branch["properties"].items():
                    table.setdefault(name, []).append(entry)
        rest = [
            {key: value for key, value in branch.items() if key not in JOINED}
            if isinstance(branch, dict)
            else branch
            for branch in branches
        ]
        properties = {
            name: entries[0] if len(entries) == 1 else {"allOf": entries}
            for name, entries in table.items()
        }
        return {**schema, "properties": properties, "allOf": rest or [True]}

    def _spread(self, schema: dict[str, Any]) -> tuple[dict[str, Any], bool]:
        """Returns the schema with its properties known to the branches of its unions too.

        The second value says whether there are such branches, which then do the closing.
        """
        own = schema.get("properties")
        if not isinstance(own, dict):
            return schema, False
        new, spread = dict(schema), False
        for key in ("anyOf", "oneOf"):
            branches = [self._resolved(branch) for branch in _entries(schema.get(key))]
            if any(_has_properties(branch) for branch in branches):
                spread = True
                known = dict.fromkeys(own, True)
                new[key] = [
                    {**branch, "properties": {**known, **branch.get("properties", {})}}
                    if isinstance(branch, dict)
                    else branch
                    for branch in branches
                ]
        return new, spread

    def _resolved(self, schema: Any) -> Any:
        """Returns what a schema that is only a reference names, else the schema."""
        while isinstance(schema, dict) and "$ref" in schema and not _has_properties(schema):
            self._spend()
            beside = {key: value for key, value in schema.items() if key != "$ref"}
            found = self.target(schema["$ref"])
            if not isinstance(found, dict):
                return found
            twice = {
                key: beside[key] for key in beside if beside[key] != found.get(key, beside[key])
            }
            schema = {**beside, **found}
            if twice:
                schema["allOf"] = [*_entries(found.get("allOf")), twice]
        return schema

    def _spend(self, count: int = 1) -> None:
        self.left -= count
        if self.left < 0:
            raise BadSchema(f"more than {MOST} schemas in it, references followed")


def _inside(schema: Any) -> Iterator[dict[str, Any]]:
    """Yields a schema and every schema inside it."""
    if isinstance(schema, dict):
        yield schema
        for one in _children(schema, (*PLACES_HERE, *ONE, *LIST, *TABLE)):
            yield from _inside(one)


def _children(schema: Mapping[str, Any], keys: tuple[str, ...]) -> Iterator[Any]:
    for key in dict.fromkeys(keys):
        value = schema.get(key)
        if isinstance(value, list):
            yield from value
        elif isinstance(value, dict):
            if key in TABLE or key == "dependentSchemas":
                yield from value.values()
            else:
                yield value


def _entries(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _has_properties(schema: Any) -> bool:
    return isinstance(schema, dict) and isinstance(schema.get("properties"), dict)


# Keywords whose schemas are made strict: one, several in a list, several by name.
ONE = ("items", "additionalItems", "additionalProperties", "contains", "unevaluatedItems")
LIST = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
TABLE = ("properties", "patternProperties", "$defs", "definitions")
# Keywords whose schemas apply to the same value as the schema they stand in.
PLACES_HERE = ("allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas")
JOINED = ("properties", "required", "additionalProperties")
