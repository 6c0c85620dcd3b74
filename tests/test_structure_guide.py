"""One verdict in every format, and what a schema says of texts that carry no types."""

import json
import random

import pytest
from written import write_all

from nemocascade_jax.rewards import REWARDS, check_row, pool
from nemocascade_jax.rows.records import Completion, RowError
from nemocascade_jax.rows.schema import parse_row

FORMATS = ("json", "yaml", "toml", "csv", "xml")


def _score(kind, answer, schema):
    row = {"schema_str": json.dumps(schema), "schema_type": kind}
    row["agent_ref"] = {"name": "structured_outputs_simple_agent"}
    parsed = parse_row(row, "t:1", known=REWARDS, prompt_needed=False)
    check_row(parsed)
    return pool.grade_here(parsed, Completion(answer))


# --- random schemas and values: one verdict in every format ---------------------------------------

TEXTS = ["Bo", "x y", "NO", "a,b", 'say "hi"', "<b>", "é", "12:30", "", "2020-01-01", "#", "a: b"]


BAD = {"a": {"b": "c"}, "z": "y"}  # fits no generated schema


def _schema(rng, depth=0):
    kind = rng.choice(["string", "integer", "number", "boolean", "enum", "array", "object"])
    if kind == "object" and depth < 3:
        names = rng.sample(["a", "b", "c", "d-e"], rng.randint(1, 3))
        shapes = {name: _schema(rng, depth + 1) for name in names}
        return {"type": "object", "properties": shapes}
    if kind == "array" and depth < 3:
        return {"type": "array", "items": _schema(rng, depth + 1)}
    if kind == "enum":
        return {"type": "string", "enum": ["Bo", "NO"]}
    kind = kind if kind in ("integer", "number", "boolean") else "string"
    return {"type": [kind, "null"]} if rng.random() < 0.2 else {"type": kind}


def _fitting(rng, schema):
    kind = schema["type"] if isinstance(schema["type"], str) else rng.choice(schema["type"])
    if kind == "object":
        return {name: _fitting(rng, one) for name, one in schema["properties"].items()}
    if kind == "array":
        return [_fitting(rng, schema["items"]) for _ in range(rng.randint(0, 3))]
    plain = {
        "string": rng.choice(schema.get("enum", TEXTS)),
        "integer": rng.randint(-9, 99),
        "number": rng.choice([0.5, -1e-7, 3, 1e20]),
        "boolean": rng.random() < 0.5,
        "null": None,
    }
    return plain[kind]


def _spoiled(rng, value, schema):
    """Returns a value with one thing wrong that shows in every format, where it has such a place."""
    if isinstance(value, dict) and value:
        name = rng.choice(sorted(value))
        how = rng.choice(["drop", "more", "inside", "inside"])
        if how == "drop":
            return {key: entry for key, entry in value.items() if key != name}
        if how == "more":
            return {**value, "more": "Bo"}
        return {**value, name: _spoiled(rng, value[name], schema["properties"][name])}
    if isinstance(value, list) and value:
        return [*value[:-1], _spoiled(rng, value[-1], schema["items"])]
    if schema["type"] in ("integer", "number", "boolean"):
        return "word"
    return BAD


def test_every_format_gives_the_verdict_of_json():
    rng = random.Random(7)
    seen = {kind: [0, 0] for kind in FORMATS}
    for _ in range(160):
        schema = _schema(rng) if rng.random() < 0.3 else {"type": "object", "properties": {}}
        if not schema.get("properties", True):
            schema["properties"] = {name: _schema(rng, 1) for name in ("a", "b")}
        value = _fitting(rng, schema)
        for fits, one in ((True, value), (False, _spoiled(rng, value, schema))):
            for kind, text in write_all(one):
                if kind == "csv" and BAD in (one.values() if isinstance(one, dict) else one):
                    continue  # as a cell it would be a text
                try:
                    score = _score(kind, text, schema)
                except RowError:
                    assert kind in ("csv", "toml")
                    continue
                seen[kind][fits] += 1
                assert score.reward == float(fits), (kind, schema, one, text, score.reason)
    assert all(min(counts) > 40 for counts in seen.values()), seen


# --- tables and elements --------------------------------------------------------------------------

ROWS = {"type": "array", "items": {"properties": {"a": {"type": ["integer", "null"]}, "b": True}}}
CHOICE = {
    "properties": {"kind": {"type": "string"}},
    "anyOf": [
        {"properties": {"kind": {"const": "n"}, "v": {"type": "integer"}}},
        {"properties": {"kind": {"const": "t"}, "v": {"type": "string"}}},
    ],
}
EITHER = {  # one text, read as a text in one column and as a number in the other
    "properties": {
        "a": {"type": ["integer", "string"], "enum": ["5"]},
        "b": {"type": ["integer", "string"], "enum": [5]},
    }
}
LINKED = {
    "type": "object",
    "properties": {
        "next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]},
        "v": {"$ref": "#/$defs/v"},
    },
    "$defs": {"v": {"type": "integer"}},
}
NAMED = {"type": "object", "properties": {"name": {"type": "string"}}}
PEOPLE = {"type": "object", "properties": {"people": {"type": "array", "items": NAMED}}}
GUIDED = [  # format, schema, answers that fit, answers that do not
    (
        "csv",
        ROWS,
        ["a,b\n1,x\n,y", "b,a\r\nx,1\r\n", 'a,b\n"1",x', "a,b"],
        ["a\n1", "b", "a,b\nx,1"],
    ),
    (
        "csv",
        ROWS,
        ["a,b\n,"],
        ['a,b\n"",x', "a,b\n1.5,x", "a,b\ntrue,x", "a,b\n01,x", "a,b\nnull,x"],
    ),
    ("csv", EITHER, ["a,b\n5,5"], ["a,b\n5,6"]),
    ("csv", {"properties": {"f": {"type": "integer"}}}, ["f\n5.0", "f\n5e0"], ["f\n5.5", "f\n5."]),
    ("csv", CHOICE, ["kind,v\nn,5", "kind,v\nt,5", "kind,v\nt,x"], ["kind,v\nn,x", "kind,v\nz,5"]),
    (
        "csv",
        {"properties": {"ok": {"type": "boolean"}}},
        ["ok\ntrue"],
        ["ok\nTrue", "ok\n1", "ok\n"],
    ),
    (
        "csv",
        {"properties": {"f": {"type": "number"}}},
        ["f\n1e3", "f\n-0.5"],
        ["f\nNaN", "f\n1e999"],
    ),
    ("xml", CHOICE, ["<r><kind>t</kind><v>5</v></r>"], ["<r><kind>n</kind><v>x</v></r>"]),
    (
        "xml",
        LINKED,
        ["<r><next/><v>1</v></r>", "<r><next><next/><v> 2 </v></next><v>1</v></r>"],
        ["<r><v>1</v></r>", "<r><next><v>2</v></next><v>1</v></r>"],
    ),
    (
        "xml",
        PEOPLE,
        [
            "<r><people/></r>",
            "<r><people><name>Bo</name></people></r>",
            "<r><people><name>Bo</name></people><people><name>Al</name></people></r>",
            "<r><people><p><name>Bo</name></p></people></r>",
            "<r><people><p><name>Bo</name></p><p><name>Al</name></p></people></r>",
            "<people><p><name>Bo</name></p></people>",
            "<people>\n  <!-- nobody -->\n</people>",
            "<?xml version='1.0'?>\n<r><people><p><name><![CDATA[<Bo>]]></name></p></people></r>",
        ],
        [
            "<r/>",
            "<r><person><name>Bo</name></person></r>",
            "<r><people><p><name>Bo</name></p><q><name>Al</name></q></people></r>",
            "<r><people><p>Bo</p></people></r>",
            "<r><people>Bo</people></r>",
        ],
    ),
    (
        "xml",
        {"type": "array", "items": {"type": "integer"}},
        ["<r><n>1</n><n>2</n></r>", "<r/>", "<r><n>1</n></r>"],
        ["<r><n>1</n><m>2</m></r>", "<r><n>x</n></r>", "<r><n><n>1</n></n></r>"],
    ),
    (
        "xml",
        {"type": "array", "items": {"$ref": "#"}},
        ["<r/>", "<r><e/><e><e/></e></r>"],
        ["<r>x</r>"],
    ),
    ("xml", {"enum": ["a", 1]}, ["<r>a</r>", "<r>1</r>"], ["<r> a</r>", "<r>2</r>"]),
]


@pytest.mark.parametrize(("kind", "schema", "fits", "others"), GUIDED)
def test_schema_says_what_a_text_stands_for(kind, schema, fits, others):
    for answer in fits:
        score = _score(kind, answer, schema)
        assert score.reward == 1.0, (answer, score.reason)
    for answer in others:
        assert _score(kind, answer, schema).reward == 0.0, answer
