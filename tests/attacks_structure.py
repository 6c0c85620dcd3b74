"""Structured-output rows, answers that fit, and answers of cheats."""

import json

from nemocascade_jax.rows.generators import structure
from nemocascade_jax.rows.records import Message, Row

HARD = (
    {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}},
    {
        "type": "object",
        "properties": {
            "items": {
                "type": "array",
                "minItems": 1,
                "items": {
                    "type": "object",
                    "properties": {"id": {"type": "integer"}, "on": {"type": "boolean"}},
                },
            },
            "kind": {"type": "string", "enum": ["rain", "snow"]},
        },
    },
    {"type": "object", "properties": {"size": {"type": "number", "minimum": 0, "maximum": 9}}},
    {
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/pair"}},
        "$defs": {"pair": {"type": "object", "properties": {"x": {"type": "string"}}}},
    },
)
VALUES = {"string": "rain", "integer": 5, "number": 1.5, "boolean": True, "null": None}
BOMB = "".join(f'<!ENTITY l{n} "{f"&l{n - 1};" * 10}">' for n in range(1, 10))


# One row for each other format: an answer that fits it.
PET = {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}}
FORMATS = {
    "yaml": "name: Rex\nage: 5\n",
    "toml": 'name = "Rex"\nage = 5\n',
    "csv": "name,age\nRex,5\n",
    "xml": "<pet><name>Rex</name><age>5</age></pet>",
}


def rows(count: int) -> list[Row]:
    """Returns the hand-made rows and `count` generated ones."""
    made = [
        Row(
            f"hard-{index}",
            structure.AGENT,
            (Message("user", "Return JSON for: Bo is 5."),),
            {"schema_str": json.dumps(schema), "schema_type": "json"},
            f"hard:{index}",
        )
        for index, schema in enumerate(HARD)
    ]
    others = [
        Row(
            f"hard-{kind}",
            structure.AGENT,
            (Message("user", f"Return {kind.upper()} for: Rex is 5."),),
            {"schema_str": json.dumps(PET), "schema_type": kind},
            f"hard:{kind}",
        )
        for kind in FORMATS
    ]
    return [*made, *others, *structure.generate("train", count, 5)]


def satisfying(row: Row) -> str:
    return FORMATS.get(row.fields["schema_type"]) or json.dumps(_value(row))


def truncated(row: Row) -> str:
    good = satisfying(row)
    return good[:-1] if _is_json(row) else good[: len(good) // 2]


def _is_json(row: Row) -> bool:
    return row.fields["schema_type"] == "json"


def _value(row: Row) -> dict:
    schema = json.loads(row.fields["schema_str"])
    return _instance(schema, schema)


def _instance(schema: dict, top: dict):
    if "$ref" in schema:
        return _instance(top["$defs"][schema["$ref"].rpartition("/")[2]], top)
    if "enum" in schema:
        return schema["enum"][0]
    if schema["type"] == "object":
        return {key: _instance(one, top) for key, one in schema["properties"].items()}
    if schema["type"] == "array":
        return [_instance(schema["items"], top)]
    return VALUES[schema["type"]]


def _changed(change):
    """Returns an attack that writes the fitting object after `change`."""
    return lambda row: json.dumps(change(_value(row))) if _is_json(row) else None


def _text(change):
    """Returns an attack that changes the text of the fitting JSON."""
    return lambda row: change(satisfying(row)) if _is_json(row) else None


def _around(form: str):
    """Returns an attack that puts words around the fitting answer, of any format."""
    return lambda row: form.replace("{good}", satisfying(row))


def _first(value: dict, put) -> dict:
    return value | {next(iter(value)): put}


def _renamed(value: dict, change) -> dict:
    key = next(iter(value))
    return {change(key) if one == key else one: entry for one, entry in value.items()}


ATTACKS = {
    "fence": _around("```\n{good}\n```"),
    "words before": _around("Here it is:\n{good}"),
    "words after": _around("{good}\nDone."),
    "two documents": _around("{good}\n{good}"),
    "null character after it": _around("{good}\x00"),
    "JSON in a string": _text(json.dumps),
    "wrapped in a list": _text(lambda text: f"[{text}]"),
    "schema echoed": lambda row: row.fields["schema_str"],
    "empty object": lambda row: "{}",
    "null": lambda row: "null",
    "NaN": lambda row: "NaN",
    "NaN as a value": _text(lambda text: text[:-1] + ', "more": NaN}'),
    "null as a value": _changed(lambda value: _first(value, None)),
    "infinite value": lambda row: f'{{"{next(iter(_value(row)))}": Infinity}}',
    "matches everything": _changed(lambda value: _first(value, {".*": ".*"})),
    "key twice": _text(lambda text: f"{{{text[1:-1]}, {text[1:-1]}}}"),
    "key left out": _changed(lambda value: dict(list(value.items())[1:])),
    "key added": _changed(lambda value: value | {"more": 1}),
    "key __proto__": _changed(lambda value: value | {"__proto__": {}}),
    "list as every value": _changed(lambda value: {key: [[]] for key in value}),
    "look-alike key": _changed(lambda value: _renamed(value, lambda key: "\u0430" + key[1:])),
    "zero-width character in a key": _changed(
        lambda value: _renamed(value, lambda key: key + "\u200b")
    ),
    "single quotes": _text(lambda text: text.replace('"', "'")),
    "comma at the end": _text(lambda text: f"{text[:-1]},}}"),
    "comment": _text(lambda text: f"{text[:-1]}/* fits */}}"),
    "byte order mark": _text(lambda text: f"\ufeff{text}"),
    "deep nesting": lambda row: '{"a":' * 50_000 + "1" + "}" * 50_000,
    "entity bomb": lambda row: f"<!DOCTYPE a [{BOMB}]><a>&l9;</a>",
    "alias bomb": lambda row: (
        "a: &a [x]\n"
        + "".join(
            f"b{n}: &b{n} [{', '.join([f'*b{n - 1}' if n else '*a'] * 9)}]\n" for n in range(9)
        )
    ),
    "a million digits": lambda row: f'{{"{next(iter(_value(row)))}": {"9" * 1_000_000}}}',
    "a million brackets": lambda row: "[" * 1_000_000,
}
