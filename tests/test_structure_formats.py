import csv
import io
import json
import random

import pytest
import yaml

from nemocascade_jax.rewards import REWARDS, check_row, pool, structure_formats
from nemocascade_jax.rewards.structure_csv import split_cells
from nemocascade_jax.rewards.structure_formats import Unreadable, read_toml, read_yaml
from nemocascade_jax.rows.records import Completion, RowError
from nemocascade_jax.rows.schema import parse_row

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer"},
        "tags": {"type": "array", "items": {"type": "string"}},
    },
}
GOOD = {
    "json": '{"name": "Bo", "age": 5, "tags": ["a", "b"]}',
    "yaml": "name: Bo\nage: 5\ntags:\n- a\n- b\n",
    "toml": 'name = "Bo"\nage = 5\ntags = ["a", "b"]\n',
    "csv": 'name,age,tags\nBo,5,"[""a"", ""b""]"\n',
    "xml": "<person><name>Bo</name><age>5</age><tags>a</tags><tags>b</tags></person>",
}
OTHERS = ("yaml", "toml", "csv", "xml")


def _score(kind, answer, schema=PERSON):
    row = {"schema_str": json.dumps(schema), "schema_type": kind}
    row["agent_ref"] = {"name": "structured_outputs_simple_agent"}
    parsed = parse_row(row, "t:1", known=REWARDS, prompt_needed=False)
    check_row(parsed)
    return pool.grade_here(parsed, Completion(answer))


@pytest.mark.parametrize("kind", GOOD)
def test_each_format_pays_the_same_value(kind):
    for answer in (GOOD[kind], f"<think>\nplan\n</think>\n\n{GOOD[kind]}\n"):
        assert _score(kind, answer).reward == 1.0
    assert _score(kind, GOOD[kind].replace("5", "5.5")).parts == {"format": 1.0, "correct": 0.0}
    assert _score(kind, GOOD[kind].replace("age", "ago")).reward == 0.0


@pytest.mark.parametrize("kind", GOOD)
@pytest.mark.parametrize("other", GOOD)
def test_a_format_is_not_paid_for_another(kind, other):
    """JSON is YAML too, by the definition of YAML 1.2; no other text belongs to two formats."""
    paid = kind == other or (kind, other) == ("yaml", "json")
    assert _score(kind, GOOD[other]).reward == float(paid)


@pytest.mark.parametrize("kind", GOOD)
@pytest.mark.parametrize(
    "attack",
    [
        "",
        " \n",
        "Return the person in the format asked for.",
        "```{kind}\n{good}\n```",
        "```\n{good}```",
        "Here it is:\n{good}",
        "{good}\nDone.",
        "{good}\n{good}",
        "<think>{good}",
        "<think>{good}</think>",
        "<think>a</think>{good}<think>",
        "{good}\x00",
        "{good}\ud800",
    ],
)
def test_no_attack_is_paid_in_any_format(kind, attack):
    score = _score(kind, attack.format(kind=kind, good=GOOD[kind]))
    assert (score.reward, score.status) == (0.0, "ok")
    assert score.reason
    assert score.reason.isascii()


BOMB = "<!DOCTYPE p [<!ENTITY a '1'><!ENTITY b '&a;&a;'>]>"
HOSTILE = [  # format, name, answer
    ("yaml", "aliases that double", "a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]"),
    ("yaml", "an anchor alone", "name: &n Bo\nage: 5\ntags: [a]"),
    ("yaml", "a merge", "<<: {name: Bo}\nage: 5\ntags: [a]"),
    ("yaml", "a tag that builds objects", "!!python/object/apply:os.system ['true']"),
    ("yaml", "a tag on a text", "name: !!str Bo\nage: 5\ntags: [a]"),
    ("yaml", "a key twice", "name: Bo\nname: Bo\nage: 5\ntags: [a]"),
    ("yaml", "a key twice in two spellings", 'name: Bo\n"name": Bo\nage: 5\ntags: [a]'),
    ("yaml", "a key that is a number", "1: Bo\n"),
    ("yaml", "a key that is a list", "? [a]\n: Bo\n"),
    ("yaml", "two documents", "name: Bo\nage: 5\ntags: [a]\n---\nname: Bo"),
    ("yaml", "tabs", "name: Bo\nage: 5\ntags:\n\t- a"),
    ("yaml", "nan", "name: Bo\nage: .nan\ntags: [a]"),
    ("yaml", "deep lists", "[" * 199_000),
    ("yaml", "deep lines", "- " * 99_000),
    ("yaml", "deep keys", "? " * 99_000),
    ("yaml", "deep maps", "{a: " * 49_000),
    ("yaml", "a long list", "[a" + ",a" * 99_000 + "]"),
    ("yaml", "a long number", f"name: Bo\nage: {'9' * 100_000}\ntags: [a]"),
    ("yaml", "too long", "a" * 3_000_000),
    ("toml", "a key twice", 'name = "Bo"\nname = "Bo"\nage = 5\ntags = []'),
    ("toml", "a table twice", "[a]\n[a]"),
    ("toml", "a date", 'name = 2020-01-01\nage = 5\ntags = ["a"]'),
    ("toml", "infinity", 'name = "Bo"\nage = inf\ntags = []'),
    ("toml", "a number without end", f'name = "Bo"\nage = {"9" * 9000}\ntags = []'),
    ("toml", "a long number", f'name = "Bo"\nage = {"9" * 900}\ntags = []'),
    ("toml", "deep lists", "a = " + "[" * 199_000),
    ("toml", "deep names", "a." * 2_000 + "a = 1"),
    ("toml", "too long", "a" * 3_000_000),
    ("csv", "no row", "name,age,tags\n"),
    ("csv", "two rows for one object", "name,age,tags\nBo,5,[]\nBo,5,[]"),
    ("csv", "a column twice", "name,age,tags,name\nBo,5,[],Bo"),
    ("csv", "a short row", "name,age,tags\nBo,5"),
    ("csv", "a stray quote", 'name,age,tags\nB"o,5,[]'),
    ("csv", "text after a quote", 'name,age,tags\n"B"o,5,[]'),
    ("csv", "an open quote", 'name,age,tags\n"Bo,5,[]'),
    ("csv", "a blank line", "name,age,tags\n\nBo,5,[]"),
    ("csv", "semicolons", "name;age;tags\nBo;5;[]"),
    ("csv", "blanks around", "name, age, tags\nBo, 5, []"),
    ("csv", "a lone return", "name,age,tags\rBo,5,[]"),
    ("csv", "a number with a plus", "name,age,tags\nBo,+5,[]"),
    ("csv", "many columns", "a," * 99_000),
    ("csv", "too long", "a" * 3_000_000),
    ("xml", "entities that double", f"{BOMB}<p><name>&b;</name><age>5</age><tags/></p>"),
    ("xml", "a file", f"<!DOCTYPE p SYSTEM '/etc/passwd'>{GOOD['xml']}"),
    ("xml", "an instruction", f"<?php echo 1 ?>{GOOD['xml']}"),
    ("xml", "an attribute", GOOD["xml"].replace("<age>", "<age unit='y'>")),
    ("xml", "a name space", GOOD["xml"].replace("<person>", "<person xmlns='x'>")),
    ("xml", "text beside elements", GOOD["xml"].replace("<age>", "and <age>")),
    ("xml", "an element twice", GOOD["xml"].replace("<age>", "<age>5</age><age>")),
    ("xml", "an open element", GOOD["xml"].replace("</person>", "")),
    ("xml", "two roots", GOOD["xml"] * 2),
    ("xml", "an unknown entity", GOOD["xml"].replace("Bo", "&nbsp;")),
    ("xml", "deep elements", "<a>" * 66_000),
    ("xml", "many elements", f"<a>{'<b/>' * 49_000}</a>"),
    ("xml", "too long", "<a>" * 1_000_000),
]


@pytest.mark.parametrize(("kind", "name", "answer"), HOSTILE)
def test_hostile_text_is_a_quick_zero_with_a_reason(kind, name, answer):
    score = _score(kind, answer)
    assert (score.reward, score.status) == (0.0, "ok"), name
    assert score.reason.isascii()
    assert 0 < len(score.reason) < 250
    assert score.seconds < 2.0


@pytest.mark.parametrize(
    ("kind", "answer", "reason"),
    [
        ("yaml", "[" * 101 + "]" * 101, "nested deeper than 100 values"),
        ("toml", "a = " + "[" * 100 + "]" * 100, "nested deeper than 100 values"),
        ("toml", "a." * 101 + "a = 1", "nested deeper than 100 values"),
        ("xml", "<a>" * 101 + "</a>" * 101, "nested deeper than 100 values"),
        ("toml", "a = inf", "inf is no number that can be read"),
        ("toml", "a = -nan", "-nan is no number that can be read"),
        ("toml", "a = 1e999", "1e999 is no number that can be read"),
        ("toml", "a = [{b = 12:30:00}]", "a TOML date or time is no JSON value"),
        ("yaml", "a: .inf", "inf is no number that can be read"),
        (
            "xml",
            GOOD["xml"].replace("<age>", "<age>5</age><age>"),
            "age is there twice and is no list",
        ),
    ],
)
def test_refused_text_says_what_is_in_it(kind, answer, reason):
    score = _score(
        kind, answer, {"type": "object", "properties": {"a": True, "age": {"type": "integer"}}}
    )
    assert reason in score.reason
    assert score.parts == {"format": 0.0, "correct": 0.0}


@pytest.mark.parametrize(
    ("kind", "answer"),
    [
        ("yaml", "[" * 100 + "]" * 100),
        ("toml", "a = " + "[" * 99 + "]" * 99),
        ("xml", "<a>" * 100 + "</a>" * 100),
    ],
)
def test_depth_within_the_limit_is_read(kind, answer):
    assert _score(kind, answer, {}).reward == 1.0


def test_blanks_belong_to_the_text_where_a_format_says_so():
    indented = "".join(f"  {line}\n" for line in GOOD["yaml"].splitlines())
    assert _score("yaml", f"\n{indented}").reward == 1.0
    assert _score("csv", "a\nx \n", {"properties": {"a": {"const": "x "}}}).reward == 1.0
    assert _score("csv", "a\nx\n", {"properties": {"a": {"const": "x "}}}).reward == 0.0


YAML_TYPES = [  # plain scalar, value by the core schema of YAML 1.2
    ("NO", "NO"),
    ("yes", "yes"),
    ("off", "off"),
    ("y", "y"),
    ("12:30:45", "12:30:45"),
    ("2020-01-01", "2020-01-01"),
    ("1_000", "1_000"),
    ("0b11", "0b11"),
    ("0o14", 12),
    ("014", 14),
    ("0x1F", 31),
    ("+5", 5),
    ("-0", 0),
    ("1e3", 1000.0),
    (".5", 0.5),
    ("5.", 5.0),
    ("1.2.3", "1.2.3"),
    ("~", None),
    ("NULL", None),
    ("nULL", "nULL"),
    ("True", True),
    ("tRUE", "tRUE"),
    ("=", "="),
    ("'5'", "5"),
    ('"null"', "null"),
]


@pytest.mark.parametrize(("text", "value"), YAML_TYPES)
def test_plain_yaml_is_typed_by_the_core_schema(text, value):
    read = read_yaml(f"a: {text}\n")["a"]
    assert (read, type(read)) == (value, type(value))


def test_both_yaml_readers_agree(monkeypatch):
    """The reader in C and the one in Python read the same value out of each text without tabs."""
    texts = [answer for kind, _, answer in HOSTILE if kind == "yaml" and len(answer) < 1000]
    texts = [text for text in texts if "\t" not in text]
    texts += [
        GOOD["yaml"],
        GOOD["json"],
        "a: |\n  x\n  y\nb: >-\n  x\n  y\n",
        "# only\n",
        "a: b: c",
    ]
    both = []
    for reader in (yaml.SafeLoader, yaml.CSafeLoader):
        monkeypatch.setattr(structure_formats, "YAML_READER", reader)
        both.append([_read(read_yaml, text) for text in texts])
    assert both[0] == both[1]
    assert [*map(type, both[0])].count(dict) == 4


def test_yaml_without_its_reader_is_refused_by_name(monkeypatch):
    monkeypatch.setattr(structure_formats, "YAML_READER", None)
    with pytest.raises(RowError, match="t:1: field schema_type: 'yaml' needs PyYAML with libyaml"):
        _score("yaml", GOOD["yaml"])


def _read(reader, text):
    try:
        return reader(text)
    except Unreadable:
        return "unreadable"


def test_toml_is_a_table_of_json_values():
    text = 'a = [1, 2.5, true]\nb.c = "x"\n[d]\ne = 0x1f\n'
    assert read_toml(text) == {"a": [1, 2.5, True], "b": {"c": "x"}, "d": {"e": 31}}


CELLS = ["a", "", '"', '""', ",", "\n", "a b", " ", "'", '"a",b', "\r\n", "5"]


def test_csv_cells_agree_with_the_standard_writer_and_reader():
    rng = random.Random(0)
    for _ in range(300):
        width = rng.randint(2, 4)
        rows = [[rng.choice(CELLS) for _ in range(width)] for _ in range(rng.randint(1, 3))]
        text = io.StringIO(newline="")
        csv.writer(text, lineterminator=rng.choice(["\n", "\r\n"])).writerows(rows)
        assert [[cell.text for cell in line] for line in split_cells(text.getvalue())] == rows
        loose = "".join(rng.choices(['"', ",", "a", "\n"], k=8))
        mine = _read(split_cells, loose)
        if mine != "unreadable":
            read = list(csv.reader(io.StringIO(loose, newline=""), strict=True))
            assert [[cell.text for cell in line] for line in mine] == read


def test_schema_written_in_another_format_is_taken_where_strictness_replaces_its_faults():
    """Turned into JSON from XML, `required` and `additionalProperties` may be malformed."""
    schema = {**PERSON, "additionalProperties": "false", "required": {"item": ["name"]}}
    assert _score("csv", GOOD["csv"], schema).reward == 1.0
    odd = {"properties": {"properties": PERSON, "required": {"type": "string"}, "x": {"$ref": 1}}}
    with pytest.raises(RowError, match="not a JSON schema"):
        _score("json", "{}", odd)
