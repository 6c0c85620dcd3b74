import json
import random

import pytest

from nemocascade_jax.config import SourceConfig
from nemocascade_jax.rewards import check_row, reward_for
from nemocascade_jax.rows.generators import GENERATORS, drawing, instruction
from nemocascade_jax.rows.messages import response_text, split_reasoning
from nemocascade_jax.rows.records import Completion, Message, RowError
from nemocascade_jax.rows.schema import UnknownRow
from nemocascade_jax.rows.sources import load_rows, parse_conversation, parse_row, read_jsonl

CHAT = {
    "domain": "math",
    "messages": [{"role": "user", "content": "1+1?"}, {"role": "assistant", "content": "2"}],
}
IF_ROW = {
    "id": 7,
    "prompt": "Describe rain. Use no commas.",
    "instruction_id_list": ["punctuation:no_comma", "keywords:existence"],
    "kwargs": [None, {"keywords": ["cloud"], "relation": None}],
    "responses_create_params": {
        "input": [{"role": "user", "content": "Describe rain. Use no commas."}],
        "tools": [],
        "temperature": None,
    },
    "agent_ref": {"type": "responses_api_agents", "name": "instruction_following_simple_agent"},
    "dataset": "nano_v3_sft_profiled_instruction_following",
}
SIX_LINES = [
    json.dumps(CHAT),
    '{"messages": [{"role": "user", "content": "a"}',
    '{"messages": [{"role": "user", "content": null}, {"role": "assistant", "content": "b"}]}',
    '{"domain": "math"}',
    '{"messages": ["hello"]}',
    json.dumps(CHAT),
]


def _source(**changes) -> SourceConfig:
    plain = {
        "kind": "jsonl",
        "path": None,
        "generator": None,
        "split": "train",
        "count": None,
        "seed": 0,
        "on_bad_row": "refuse",
        "weight": 1.0,
    }
    return SourceConfig(**{**plain, **changes})


def _file(tmp_path, *lines: str | bytes, end: bytes = b"\n") -> str:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b"".join((x if isinstance(x, bytes) else x.encode()) + end for x in lines))
    return str(path)


def test_bad_line_stops_with_file_line_field_and_a_good_row(tmp_path):
    path = _file(tmp_path, *SIX_LINES)
    with pytest.raises(RowError) as caught:
        load_rows(_source(path=path), "conversation")
    assert str(caught.value).startswith(f"{path}:2: field (line): broken JSON")
    assert 'a good row: {"domain": "math"' in str(caught.value)
    assert "\n" not in str(caught.value)


def test_skipping_counts_the_bad_lines_with_reasons(tmp_path):
    path = _file(tmp_path, *SIX_LINES)
    loaded = load_rows(_source(path=path, on_bad_row="skip"), "conversation")
    assert [row.where for row in loaded.rows] == [f"{path}:1", f"{path}:6"]
    assert [text.split(";")[0] for text in loaded.skipped] == [
        f"{path}:2: field (line): broken JSON at column 47 (Expecting ',' delimiter)",
        f"{path}:3: field messages[0].content: null",
        f"{path}:4: field messages: missing",
        f"{path}:5: field messages[0]: expected {{role, content}}, got 'hello' (str)",
    ]


def test_byte_order_mark_line_ends_and_blank_last_line_are_fine(tmp_path):
    mark = b"\xef\xbb\xbf" + json.dumps(CHAT).encode()
    path = _file(tmp_path, mark, json.dumps({**CHAT, "domain": "a\u2028b"}), "", end=b"\r\n")
    assert [number for number, _ in read_jsonl(path)] == [1, 2]
    assert len(load_rows(_source(path=path), "conversation").rows) == 2


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('{"a": 1, "b": 2, "a": 3}', "field a: the key is there twice"),
        ("[1, 2]", "expected a JSON object, got a list"),
        ("   ", "blank"),
        ('{"a": NaN}', "NaN is not JSON"),
        (b'{"a": "\xff"}', "not UTF-8"),
        (r'{"a": "\ud800"}', "not UTF-8 (surrogates not allowed)"),
        ('{"a": ' + "1" * 5000 + "}", "Exceeds the limit"),
        ('{"a": ' + "[" * 100_000, "nested too deep"),
    ],
)
def test_ambiguous_json_is_refused(tmp_path, line, problem):
    path = _file(tmp_path, json.dumps(CHAT), line, json.dumps(CHAT))
    with pytest.raises(RowError) as caught:
        list(read_jsonl(path))
    assert str(caught.value).startswith(f"{path}:2: ")
    assert problem in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"\n\n", b"\xef\xbb\xbf\n"])
def test_empty_file_is_refused_by_name(tmp_path, content):
    path = _file(tmp_path, content, end=b"")
    with pytest.raises(RowError, match="rows.jsonl: the file holds no row"):
        load_rows(_source(path=path), "row")


def test_absent_file_is_refused_by_name():
    with pytest.raises(RowError, match="nowhere.jsonl: cannot be read: No such file"):
        load_rows(_source(path="nowhere.jsonl"), "row")


def test_row_keeps_its_fields_without_nulls():
    row = parse_row(IF_ROW, "f:1")
    assert (row.id, row.agent) == ("7", "instruction_following_simple_agent")
    assert row.messages == (Message("user", "Describe rain. Use no commas."),)
    assert row.fields["kwargs"] == [None, {"keywords": ["cloud"]}]
    assert "responses_create_params" not in row.fields
    check_row(row)


def test_row_takes_text_input_parts_and_nested_fields():
    params = {
        "input": [
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
        ]
    }
    nested = {key: IF_ROW[key] for key in ("instruction_id_list", "kwargs")}
    row = parse_row({"responses_create_params": params, "verifier_metadata": nested}, "f:1")
    assert row.messages == (Message("system", "Be brief."), Message("user", "Hi"))
    assert row.agent == "instruction_following_simple_agent"
    assert row.id == "f:1"
    assert parse_row({**IF_ROW, "responses_create_params": {"input": "Hi"}}, "f").messages == (
        Message("user", "Hi"),
    )


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"responses_create_params": None}, "responses_create_params: missing"),
        ({"responses_create_params": {"input": []}}, "responses_create_params.input: empty"),
        ({"responses_create_params": {"input": [{"role": "user"}]}}, "input[0].content: missing"),
        (
            {"responses_create_params": {"input": [{"role": "boss", "content": "x"}]}},
            "input[0].role: 'boss'",
        ),
        ({"responses_create_params": {"input": "x", "tools": "y"}}, "tools: expected a list"),
        ({"_hf_placeholder": True}, "_hf_placeholder: the row is a placeholder"),
        ({"verifier_metadata": {"kwargs": []}}, "kwargs: stands at the top level and under"),
        ({"agent_ref": "x"}, "agent_ref: expected an object"),
        ({"id": [1]}, "id: expected text or a whole number"),
    ],
)
def test_row_fault_names_the_field(change, problem):
    with pytest.raises(RowError) as caught:
        parse_row({**IF_ROW, **change}, "f:3")
    assert str(caught.value).startswith("f:3: field ")
    assert problem in str(caught.value)


PARAMS = {"responses_create_params": {"input": "Hi"}}


@pytest.mark.parametrize(
    ("keys", "agent"),
    [
        ({"options": [{"A": "x"}], "expected_answer": "A"}, "mcqa_simple_agent"),
        ({"question": "q", "expected_answer": "4"}, "math_with_judge_simple_agent"),
        ({"schema_str": "{}"}, "structured_outputs_simple_agent"),
        ({"verifier_metadata": {"unit_tests": {}}}, "code_gen_simple_agent"),
    ],
)
@pytest.mark.parametrize("ref", [{}, {"agent_ref": {"name": "some_other_agent"}}])
def test_row_without_a_known_agent_goes_by_its_keys(keys, agent, ref):
    assert parse_row({**PARAMS, **keys, **ref}, "f").agent == agent


@pytest.mark.parametrize(
    "keys", [{}, {"schema_str": "{}", "kwargs": [], "instruction_id_list": []}]
)
def test_row_that_fits_no_domain_or_two_is_refused(keys):
    with pytest.raises(UnknownRow, match=r"f:9: field agent_ref.name: unknown agent 'mystery'"):
        parse_row({**PARAMS, **keys, "agent_ref": {"name": "mystery"}}, "f:9")


def test_agent_decides_over_keys():
    row = parse_row({**IF_ROW, "schema_str": "{}"}, "f")
    assert row.agent == "instruction_following_simple_agent"


def test_fault_that_shows_without_an_answer_stops_the_load(tmp_path):
    broken = {**IF_ROW, "instruction_id_list": ["punctuation:no_coma", "keywords:existence"]}
    path = _file(tmp_path, json.dumps(IF_ROW), json.dumps(broken))
    with pytest.raises(RowError, match=r"rows.jsonl:2: field instruction_id_list\[0\]: unknown"):
        load_rows(_source(path=path), "row", check_row)
    loaded = load_rows(_source(path=path, on_bad_row="skip"), "row", check_row)
    assert (len(loaded.rows), len(loaded.skipped)) == (1, 1)


def test_count_takes_the_first_rows_and_refuses_too_few(tmp_path):
    path = _file(tmp_path, json.dumps(IF_ROW), json.dumps(IF_ROW), "broken")
    assert len(load_rows(_source(path=path, count=2), "row").rows) == 2
    with pytest.raises(RowError, match="gives 2 usable rows, 1 skipped, wanted 3"):
        load_rows(_source(path=path, count=3, on_bad_row="skip"), "row")


def test_conversation_needs_an_assistant_turn():
    with pytest.raises(RowError, match="no assistant turn"):
        parse_conversation({"messages": CHAT["messages"][:1]}, "f:1")


@pytest.mark.parametrize("name", GENERATORS)
def test_generated_rows_are_the_same_every_time_and_distinct(name):
    source = _source(kind="generated", generator=name, count=300, seed=4)
    first, again = load_rows(source, "row", check_row), load_rows(source, "row", check_row)
    assert first == again
    assert len({row.messages for row in first.rows}) == 300
    other = load_rows(_source(kind="generated", generator=name, count=300, seed=5), "row")
    assert first.rows != other.rows
    talks = load_rows(source, "conversation").rows
    assert [talk.messages[:1] for talk in talks] == [row.messages for row in first.rows]


@pytest.mark.parametrize("name", GENERATORS)
def test_generated_splits_never_meet(name):
    def texts(split, seed):
        return {row.messages[0].content for row in GENERATORS[name].rows(split, 700, seed)}

    held = texts("heldout", 0)
    assert not held & (texts("train", 0) | texts("train", 1))
    assert {drawing.split_of(text) for text in held} == {"heldout"}


@pytest.mark.parametrize("name", GENERATORS)
def test_a_demonstration_without_a_slip_satisfies_its_row(name):
    """What a careful demonstrator writes is worth 1; at the generator's own rate, clearly less."""
    generator = GENERATORS[name]
    rows = list(generator.rows("train", 200, 3))
    careful = _mean_reward(rows, generator.conversations.func, name, slip=0.0)
    assert careful == 1.0
    if generator.conversations.keywords["slip"]:
        slipping = _mean_reward(rows, generator.conversations.func, name)
        assert 0.2 < slipping < 0.9


def _mean_reward(rows, demonstrations, name, **changes):
    keywords = GENERATORS[name].conversations.keywords | changes
    talks = demonstrations("train", len(rows), 3, **keywords)
    pairs = zip(rows, talks, strict=True)
    scores = [
        reward_for(row).score(row, Completion(talk.messages[-1].content)) for row, talk in pairs
    ]
    return sum(score.reward for score in scores) / len(rows)


def test_a_generator_that_runs_dry_says_how_many_prompts_it_has():
    drawn = drawing.distinct("coin", lambda rng: (rng.choice(("a", "b", "c", "d")),), "train", 9, 0)
    with pytest.raises(RowError, match="coin prompts: only 4 distinct train prompts"):
        list(drawn)


@pytest.mark.slow
@pytest.mark.parametrize("split", drawing.SPLITS)
def test_generator_has_many_distinct_prompts(split):
    assert len({prompt for prompt, _, _ in instruction.prompts(split, 20_000, 0)}) == 20_000


def test_generated_rows_are_the_published_schema():
    prompt, _, tasks = next(instruction.prompts("train", 1, 0))
    row = next(instruction.generate("train", 1, 0))
    again = json.loads(json.dumps(instruction.file_object(prompt, tasks, 0)))
    assert parse_row(again, row.where) == row


def test_generated_draws_do_not_touch_the_global_generator():
    random.seed(1)
    before = random.getstate()
    list(instruction.demonstrations("train", 20, 0, 0.5))
    assert random.getstate() == before


@pytest.mark.parametrize(
    ("source", "problem"),
    [("nobody", "unknown generator 'nobody'; known: instruction")],
)
def test_unknown_generator_names_the_known(source, problem):
    assert source not in GENERATORS
    with pytest.raises(RowError, match=problem):
        load_rows(_source(kind="generated", generator=source, count=1), "row")


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("answer", ("", "answer")),
        ("<think>\nplan\n</think>\nanswer", ("\nplan\n", "\nanswer")),
        ("<think></think>answer", ("", "answer")),
        ("plan</think>answer", ("plan", "answer")),
        ("<think>a</think>b<think>c</think>d", ("a</think>b<think>c", "d")),
        ("<think>never ends", ("never ends", "")),
        ("a</think>b<think>c", ("c", "")),
        ("", ("", "")),
    ],
)
def test_reasoning_is_cut_at_its_last_end(text, parts):
    assert split_reasoning(text) == parts


def test_response_text_is_the_last_assistant_message():
    def message(*texts: str) -> dict:
        content = [{"type": "output_text", "text": text} for text in texts]
        return {"type": "message", "role": "assistant", "content": content}

    reasoning = {"type": "reasoning", "summary": []}
    assert response_text({"output": [message("a"), reasoning, message("b", "c")]}, "f") == "bc"
    assert response_text({"output": [reasoning]}, "f") == ""
    refusal = {"type": "message", "content": [{"type": "refusal", "refusal": "no"}]}
    assert response_text({"output": [refusal]}, "f") == ""
    with pytest.raises(RowError, match="f: field response.output: expected a list"):
        response_text({"text": "a"}, "f")
