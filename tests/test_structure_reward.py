import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemocascade_jax.rewards import REWARDS, check_row, pool, schemas, structure, structure_formats
from nemocascade_jax.rows.messages import parse_turn, write_calls
from nemocascade_jax.rows.records import Completion, RowError, ToolCall
from nemocascade_jax.rows.schema import parse_row

AGENT = "structured_outputs_simple_agent"
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name"],
}
GOOD = '{"name": "Bo", "age": 5}'


def _row(schema=PERSON, **fields):
    text = schema if isinstance(schema, str) or schema is None else json.dumps(schema)
    base = {"schema_str": text, "schema_type": "json", "agent_ref": {"name": AGENT}}
    return parse_row({**base, **fields}, "t:1", known=REWARDS, prompt_needed=False)


def _score(answer, schema=PERSON, **fields):
    return pool.grade_here(_row(schema, **fields), Completion(answer))


@pytest.mark.parametrize(
    ("answer", "reward"),
    [
        (GOOD, 1),
        (f"\n {GOOD}\n", 1),
        ('{"age": 5, "name": ""}', 1),
        (f"<think>{{}}</think>{GOOD}", 1),
        ('{\n  "name": "Bo",\n  "age": -5\n}', 1),
        ('{"name": "Bo"}', 0),
        ('{"name": "Bo", "age": 5, "more": 1}', 0),
        ('{"name": "Bo", "age": "5"}', 0),
        ('{"name": "Bo", "age": true}', 0),
        ('{"name": "Bo", "age": 5.5}', 0),
        ('{"name": null, "age": 5}', 0),
        (f"[{GOOD}]", 0),
        (json.dumps(GOOD), 0),
        ("{}", 0),
        ("null", 0),
    ],
)
def test_answer_fits_the_strict_schema(answer, reward):
    score = _score(answer)
    assert (score.reward, score.status) == (reward, "ok")
    assert score.parts == {"format": 1.0, "correct": float(reward)}
    assert bool(score.reason) == (reward == 0)


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("empty", ""),
        ("blank", " \n"),
        ("the prompt echoed", "Return JSON for: Bo is 5."),
        ("a fence", f"```json\n{GOOD}\n```"),
        ("a bare fence", f"```\n{GOOD}\n```"),
        ("words before", f"Here: {GOOD}"),
        ("words after", f"{GOOD} Done."),
        ("two values", GOOD + GOOD),
        ("two lines of values", f"{GOOD}\n{GOOD}"),
        ("a key twice", '{"name": "Bo", "age": "x", "age": 5}'),
        ("a trailing comma", '{"name": "Bo", "age": 5,}'),
        ("single quotes", "{'name': 'Bo', 'age': 5}"),
        ("a comment", '{"name": "Bo", "age": 5} // right'),
        ("NaN", '{"name": "Bo", "age": NaN}'),
        ("Infinity", '{"name": "Bo", "age": -Infinity}'),
        ("a leading zero", '{"name": "Bo", "age": 05}'),
        ("a plus sign", '{"name": "Bo", "age": +5}'),
        ("other scripts' digits", '{"name": "Bo", "age": ٥}'),
        ("wide quotes", "{“name”: “Bo”, “age”: 5}"),
        ("a byte-order mark", "\ufeff" + GOOD),
        ("a raw line break in a text", '{"name": "B\no", "age": 5}'),
        ("an open end", '{"name": "Bo", "age": 5'),
        ("only in an unclosed think", f"<think>{GOOD}"),
        ("only before the think ends", f"<think>{GOOD}</think>"),
        ("a nested think", f"<think>a</think>{GOOD}<think>"),
        ("a huge number", f'{{"name": "Bo", "age": {"9" * 100_000}}}'),
        ("a huge float", '{"name": "Bo", "age": 1e999}'),
        ("a deep list", "[" * 100_000 + "]" * 100_000),
        ("a deep object", '{"a":' * 30_000 + "1" + "}" * 30_000),
        ("a huge text", f'{{"name": "{"x" * 3_000_000}", "age": 5}}'),
        ("a lone bracket", "{"),
    ],
)
def test_attack_is_no_json(name, answer):
    score = _score(answer)
    assert (score.reward, score.status) == (0.0, "ok"), name
    assert score.parts["format"] == 0.0
    assert score.reason.isascii()
    assert len(score.reason) < 250
    assert score.seconds < 2.0


NODE = {"type": "object", "properties": {"child": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}}
A, B = ({"type": "object", "properties": {key: {"type": "integer"}}} for key in "ab")
STRICT = [  # schema, answers that fit, answers that do not
    ({"type": "array", "items": A}, ['[{"a": 1}]', "[]"], ["[{}]", '[{"a": 1, "x": 1}]']),
    ({"prefixItems": [A], "items": False}, ['[{"a": 1}]'], ["[{}]", '[{"a": 1}, 1]']),
    ({"anyOf": [A, B]}, ['{"a": 1}', '{"b": 1}'], ['{"a": 1, "b": 1}', "{}"]),
    ({"anyOf": [A, {"type": "null"}]}, ['{"a": 1}', "null"], ["{}", '{"a": 1, "x": 2}']),
    (
        {"type": "object", "properties": {"k": {"$ref": "#/$defs/A"}}, "$defs": {"A": A}},
        ['{"k": {"a": 1}}'],
        ['{"k": {}}', '{"k": {"a": 1, "x": 1}}', "{}"],
    ),
    (
        {
            "type": "object",
            "properties": {"k": {"$ref": "#/definitions/A"}},
            "definitions": {"A": A},
        },
        ['{"k": {"a": 1}}'],
        ['{"k": {}}', '{"k": {"a": 1, "x": 1}}'],
    ),
    (
        {"type": "object", "properties": {"k": A, "l": {"type": "array", "items": {"items": B}}}},
        ['{"k": {"a": 1}, "l": [[{"b": 2}]]}'],
        ['{"k": {"a": 1}, "l": [[{"b": 2, "x": 2}]]}', '{"k": {}, "l": []}', '{"k": {"a": 1}}'],
    ),
    ({"properties": {"properties": A}}, ['{"properties": {"a": 1}}'], ['{"properties": {}}']),
    (NODE, ['{"child": {"child": null}}'], ['{"child": {}}', '{"child": {"child": null, "x": 1}}']),
    (
        {"allOf": [A, B]},
        ['{"a": 1, "b": 2}'],
        ['{"a": 1}', '{"a": 1, "b": 2, "x": 3}', '{"a": "1", "b": 2}'],
    ),
    (
        {
            "allOf": [{"$ref": "#/$defs/A"}],
            "properties": {"c": {"type": "string"}},
            "$defs": {"A": A},
        },
        ['{"a": 1, "c": ""}'],
        ['{"a": 1}', '{"c": ""}', '{"a": 1, "c": "", "x": 1}'],
    ),
    (
        {"properties": {"k": {"type": "string"}}, "oneOf": [A, B]},
        ['{"k": "", "a": 1}', '{"k": "", "b": 1}'],
        ['{"k": ""}', '{"a": 1}', '{"k": "", "a": 1, "b": 1}', '{"k": "", "a": 1, "x": 1}'],
    ),
    (
        {
            "allOf": [{"$ref": "#/$defs/A", "maxProperties": 1}, B],
            "$defs": {"A": {**A, "maxProperties": 2}},
        },
        [],
        ['{"a": 1, "b": 2}'],
    ),
    (
        {"properties": {"k": {"enum": ["u", "v"]}}, "additionalProperties": True},
        ['{"k": "u"}'],
        ['{"k": "w"}', '{"k": "u", "x": 1}'],
    ),
    (
        {"type": "object", "additionalProperties": A},
        ['{"x": {"a": 1}}', "{}"],
        ['{"x": {}}', '{"x": 1}'],
    ),
    (
        {"properties": {"a": {"type": "integer", "minimum": 3}}, "required": ["zz"]},
        ['{"a": 3}'],
        ['{"a": 2}', '{"a": 3, "zz": 1}'],
    ),
    ({"$schema": "http://json-schema.org/draft-07/schema#", **A}, ['{"a": 1}'], ["{}"]),
]


@pytest.mark.parametrize(("schema", "fits", "others"), STRICT)
def test_schema_is_strict_at_every_level(schema, fits, others):
    check_row(_row(schema))
    for answer in fits:
        assert _score(answer, schema).reward == 1.0, answer
    for answer in others:
        assert _score(answer, schema).reward == 0.0, answer


def test_schema_of_the_row_is_not_changed():
    schema = json.loads(json.dumps(PERSON))
    schemas.validator(schema)
    assert schema == PERSON


@pytest.mark.parametrize(
    ("schema", "fields", "problem"),
    [
        (None, {}, "field schema_str: missing"),
        ("", {}, "field schema_str: empty"),
        ("{", {}, "field schema_str: not JSON"),
        ('{"type": "object", "type": "array"}', {}, "a key is there twice"),
        ([], {}, "expected a JSON object, got a list"),
        ("true", {}, "expected a JSON object, got a bool"),
        ({"type": "objekt"}, {}, "not a JSON schema: 'objekt'"),
        ({"properties": {"a": {"minimum": "3"}}}, {}, "not a JSON schema"),
        ({"pattern": "("}, {}, "'(' is not a 'regex'"),
        ({"patternProperties": {"(": {}}}, {}, "'(' is not a 'regex'"),
        ({"pattern": "(?<=a+)b"}, {}, "regex"),
        (
            {
                "properties": {"k": {"$ref": "#/allOf/0/properties/a"}},
                "allOf": [A],
            },
            {},
            "names nothing",
        ),
        ({"$ref": "https://example.org/x.json"}, {}, "leaves the schema"),
        ({"$ref": "other.json#/a"}, {}, "leaves the schema"),
        ({"$ref": "#/$defs/none"}, {}, "names nothing"),
        ({"$ref": "#"}, {}, "leads back to itself"),
        (
            {
                "properties": {"a": {"$ref": "#/$defs/p"}},
                "$defs": {"p": {"anyOf": [{"$ref": "#/$defs/p"}]}},
            },
            {},
            "leads back to itself",
        ),
        ({"properties": {"a": {"$id": "x"}}}, {}, "$id below the top"),
        ({"$dynamicRef": "#a"}, {}, "$dynamicRef is not supported"),
        (
            PERSON,
            {"schema_type": "yml"},
            "field schema_type: 'yml' is not graded here; known: json,",
        ),
        (PERSON, {"schema_type": ["csv"]}, "field schema_type: ['csv'] is not graded here"),
        ({"type": "string"}, {"schema_type": "csv"}, "asks for string, which no csv text is"),
        ({"type": "array"}, {"schema_type": "toml"}, "asks for array, which no toml text is"),
        ({"required": {"item": ["a"]}}, {}, "not a JSON schema"),
        (PERSON, {"response_mode": "speech"}, "'speech' is neither 'text' nor 'tool_call'"),
        (
            PERSON,
            {"response_mode": "tool_call", "tool_name": 1},
            "field tool_name: expected text, got int",
        ),
        ('{"items":' * 400 + "{}" + "}" * 400, {}, "nested too deep"),
    ],
)
def test_bad_schema_is_refused(schema, fields, problem):
    row = _row(schema, **fields)
    with pytest.raises(RowError, match="^t:1: field ") as caught:
        check_row(row)
    assert problem in str(caught.value)
    assert "\n" not in str(caught.value)
    score = pool.grade_here(row, Completion(GOOD))
    assert (score.status, score.reward) == ("failed", None)


def test_schema_that_doubles_at_every_step_is_refused():
    steps = {f"s{n}": {"allOf": [{"$ref": f"#/$defs/s{n + 1}"}] * 2} for n in range(40)}
    row = _row({"$ref": "#/$defs/s0", "$defs": {**steps, "s40": A}})
    with pytest.raises(RowError, match="more than 20000 schemas"):
        check_row(row)


@pytest.mark.parametrize("fields", [{"schema_type": None}, {}, {"schema_fields_count": "2"}])
def test_type_may_be_null(fields):
    assert _score(GOOD, **fields).reward == 1.0


def test_slow_pattern_and_deep_answer_are_zeros_within_the_limit():
    slow = _row({"properties": {"a": {"type": "string", "pattern": "^(a+)+$"}}})
    deep = '{"child":' * 900 + "null" + "}" * 900
    running = pool.start_pool(1, cpu_s=0.5, memory_mb=1024)
    scores = running.score(
        [
            (slow, Completion(json.dumps({"a": "a" * 60 + "b"}))),
            (_row(NODE), Completion(deep)),
            (_row(), Completion(GOOD)),
        ]
    )
    running.close()
    assert [(score.reward, score.status) for score in scores] == [
        (0.0, "ok"),
        (0.0, "ok"),
        (1.0, "ok"),
    ]
    assert scores[0].reason == "grader ran out of time on this answer"


def test_odd_numbers_and_texts_get_a_number():
    schema = {"properties": {"a": {"multipleOf": 1e-300}, "b": {"pattern": "x", "maxLength": 3}}}
    for number in ("1e308", "9" * 300, "-0.0", "1e-999"):
        score = _score(f'{{"a": {number}, "b": "\\ud800"}}', schema)
        assert (score.reward, score.status) == (0.0, "ok")


PIECES = [
    "{",
    "}",
    "[",
    "]",
    ":",
    ",",
    '"',
    '"a"',
    '"a": ',
    "1",
    "1.5",
    "-",
    "e9",
    "null",
    "true",
    "\\",
    "\\u0041",
]
PIECES += ["NaN", " ", "\n", "```", "<think>", "</think>", "\ud800", '"name"', '"age"', GOOD]


@settings(derandomize=True, deadline=None, max_examples=400)
@given(st.lists(st.sampled_from(PIECES), max_size=20).map("".join))
def test_any_answer_gets_a_number(text):
    score = _score(text)
    assert score.status == "ok"
    if score.reward:
        assert set(json.loads(text.rpartition("</think>")[2])) == {"name", "age"}


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abcd"), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(derandomize=True, deadline=None, max_examples=80)
@given(VALUES)
def test_paid_values_fit_a_checker_written_by_hand(value):
    schema = {"properties": {"a": {"type": "integer"}, "b": {"type": "array", "items": A}}}
    schema["type"] = "object"

    def whole(number):
        return isinstance(number, int) and not isinstance(number, bool)

    fits = (
        isinstance(value, dict)
        and set(value) == {"a", "b"}
        and whole(value["a"])
        and isinstance(value["b"], list)
        and all(
            isinstance(one, dict) and set(one) == {"a"} and whole(one["a"]) for one in value["b"]
        )
    )
    assert _score(json.dumps(value), schema).reward == float(fits)
    assert _score(json.dumps({"a": 1, "b": [{"a": value}]}), schema).reward == float(whole(value))


def test_reading_is_strict():
    assert structure_formats.read_json('{"a": [1, 2.5, null]}') == {"a": [1, 2.5, None]}
    with pytest.raises(structure_formats.Unreadable, match="a key is there twice"):
        structure_formats.read_json('{"a": {"b": 1, "b": 1}}')


def test_a_property_may_have_any_name_and_no_wrong_shape():
    def one(name, shape):
        return {"type": "object", "properties": {"first": {"type": "string"}, name: shape}}

    schemas.validator(one("name", {"type": "integer"}))
    schemas.validator(one("other", {"type": "integer"}))  # of a shape that was met before
    schemas.validator(one("type", {"type": "integer"}))
    schemas.validator(one("properties", {"properties": {"type": {"type": "integer"}}}))
    for name in ("name", "unseen"):
        with pytest.raises(schemas.BadSchema, match="integr"):
            schemas.validator(one(name, {"type": "integr"}))
    with pytest.raises(schemas.BadSchema):
        schemas.validator(one("properties", {"properties": {"type": "integer"}}))
    with pytest.raises(schemas.BadSchema):
        schemas.validator({"type": "object", "properties": ["name"]})


# --- the value handed over by a call ---------------------------------------------------------------

BY_CALL = {"response_mode": "tool_call", "tool_name": "save", "tool_payload_key": "person"}
SAVE = {"type": "function", "name": "save", "parameters": {"properties": {"person": PERSON}}}
LOAD = {**SAVE, "name": "load"}
ASKED = {"responses_create_params": {"input": "Save Bo, who is 5.", "tools": [SAVE, LOAD]}}


def _call(tool="save", /, **arguments):
    return write_calls([ToolCall(tool, arguments)])


BO = {"name": "Bo", "age": 5}


@pytest.mark.parametrize(
    ("answer", "reward"),
    [
        (_call(person=BO), 1),
        (f"<think>\nplan\n</think>\nI save it.\n{_call(person=BO)}", 1),
        (_call(person={"name": "Bo"}), 0),
        (_call(person={**BO, "more": 1}), 0),
        (_call(person=BO, more=1), 0),
        (_call(**BO), 0),
        (_call("load", person=BO), 0),
        (_call(person=BO) * 2, 0),
        (_call(person=BO) + "<tool_call>", 0),
        (f"<think>{_call(person=BO)}</think>", 0),
        (f"<think>{_call(person=BO)}", 0),
        (_call(person=BO).removesuffix("</tool_call>\n"), 0),
        (_call(person=BO).replace("5", "NaN"), 0),
        (json.dumps(BO), 0),
        ("", 0),
        ("Save Bo, who is 5.", 0),
    ],
)
def test_value_of_the_only_call_is_held_against_the_schema(answer, reward):
    score = _score(answer, **BY_CALL, **ASKED)
    assert (score.reward, score.status) == (reward, "ok")
    assert bool(score.reason) == (reward == 0)


def test_call_without_a_payload_key_is_the_value_itself():
    parameters = {"type": "function", "name": "save", "parameters": PERSON}
    asked = {"responses_create_params": {"input": "Save Bo.", "tools": [parameters]}}
    for answer, reward in (
        (_call(**BO), 1.0),
        (_call(**{"name": "Bo"}), 0.0),
        (_call(person=BO), 0.0),
    ):
        assert _score(answer, response_mode="tool_call", **asked).reward == reward


def test_turns_taken_apart_get_the_verdict_of_their_text():
    plain, called = _row(), _row(**BY_CALL, **ASKED)
    for text in (GOOD, f"<think>a</think>\n{GOOD}", _call(person=BO), GOOD + _call(person=BO), ""):
        turn = parse_turn(text, (SAVE,))
        for row in (plain, called):
            assert (
                structure.score_turns(row, [turn]).reward
                == structure.score(row, Completion(text)).reward
            )
    assert (
        structure.score_turns(called, [turn, parse_turn(_call(person=BO), (SAVE,))]).reward == 1.0
    )
    assert structure.score_turns(plain, []).reward == 0.0
