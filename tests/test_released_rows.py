"""Rows in the shapes of the released data, our own in content; and the published examples."""

import json
import os
import pathlib
import zipfile

import pytest
from written import write_all

from nemocascade_jax.config import SourceConfig
from nemocascade_jax.rewards import REWARDS, check_row, pool
from nemocascade_jax.rows.messages import response_text, write_calls
from nemocascade_jax.rows.records import Completion, Message, RowError, ToolCall
from nemocascade_jax.rows.released import AGENTS, parse_released
from nemocascade_jax.rows.schema import UnknownRow, parse_line
from nemocascade_jax.rows.sources import load_rows


def _asked(text, **more):
    return {"input": [{"role": "user", "content": text}], **more}


def _agent(name):
    return {"type": "responses_api_agents", "name": name}


TOOL = {
    "type": "function",
    "name": "email_delete_email",
    "description": "Deletes.",
    "parameters": {
        "type": "object",
        "properties": {"email_id": {"type": "string"}},
        "required": [],
    },
    "strict": False,
}
# One row a subset, with the nulls and the leftovers that the released files have.
SUBSETS = {
    "instruction_following_simple_agent": {
        "id": 12,
        "prompt": "Name two birds, without commas.",
        "instruction_id_list": ["punctuation:no_comma", "keywords:frequency"],
        "kwargs": [
            {"keyword": None, "relation": None},
            {"keyword": "owl", "frequency": 1, "relation": "at least"},
        ],
        "responses_create_params": _asked("Name two birds, without commas.", tools=[]),
        "dataset": "nano_v3_sft_profiled_instruction_following",
        "pass_rate": None,
        "pass_rate_total": 8,
    },
    "mcqa_simple_agent": {
        "responses_create_params": _asked("What barks?\nA: a cat\nB: a dog\nAnswer: X"),
        "options": [{"A": "a cat", "B": None}, {"A": None, "B": "a dog"}],
        "expected_answer": "B",
        "grading_mode": "strict_single_letter_boxed",
        "template_metadata": {
            "template_id": "t1",
            "output_regex": ["Answer:\\s*([A-Z])"],
            "weight": None,
        },
        "uuid": "5b1c",
        "dataset": "nano_v3_sft_profiled_stem_mcqa",
    },
    "workplace_assistant_simple_agent": {
        "id": 0,
        "category": "workplace_assistant_email",
        "environment_name": "workbench",
        "ground_truth": [{"name": "email_delete_email", "arguments": '{"email_id": "00000012"}'}],
        "responses_create_params": {
            "input": [
                {"role": "system", "content": "Today is Tuesday, 2031-02-04."},
                {"role": "user", "content": "Delete mail 00000012."},
            ],
            "tools": [TOOL],
            "parallel_tool_calls": False,
            "temperature": 1.0,
        },
    },
    "structured_outputs_simple_agent": {
        "responses_create_params": {
            "input": [
                {"role": "user", "content": "The owl weighs 2 kg."},
                {"role": "user", "content": "As JSON."},
            ]
        },
        "schema_str": '{"type": "object", "properties": {"kg": {"type": "integer"}}}',
        "schema_type": None,
        "schema_fields_count": "1",
    },
    "math_with_judge_simple_agent": {
        "responses_create_params": _asked("Compute 5*8. Put the answer in \\boxed{}."),
        "question": "Compute 5*8.",
        "expected_answer": "40",
        "dataset": "acereason",
    },
    "code_gen_simple_agent": {
        "responses_create_params": _asked("Read n, print 2n."),
        "verifier_metadata": {"unit_tests": {"inputs": ["1\n"], "outputs": ["2\n"]}},
        "hash_id": "0a1b",
        "dataset": "own",
        "source": "own",
    },
    "genrm_simple_agent": {
        "responses_create_params": {
            "input": [
                {"role": "user", "content": "Hi"},
                {"role": "assistant", "content": "Hello"},
                {"role": "user", "content": "How are you?"},
            ]
        },
        "dataset": "hs3",
    },
    "lc_judge_simple_agent": {
        "responses_create_params": _asked("A long text. Who came?"),
        "question": "Who came?",
        "expected_answer": "Ana",
    },
    "swerl_gen_simple_agent": {
        "responses_create_params": _asked("Mend the bug."),
        "instance": {"instance_id": "demo__demo-2", "FAIL_TO_PASS": '["t::a"]'},
        "metadata": {"relevant_file_contents": "{}", "image": None},
        "mode": "eval",
        "dataset_name": "own",
        "dataset_split": "train",
    },
    "swerl_llm_judge_simple_agent": {
        "responses_create_params": _asked("Which patch is right?"),
        "options": [{"A": "diff 1"}, {"B": "diff 2"}],
        "expected_answer": "A",
        "grading_mode": "strict",
        "instance_id": "demo__demo-3",
    },
}
SWE = {
    "responses_create_params": {
        "input": [],
        "metadata": {
            "instance_id": "demo__demo-1",
            "base_commit": "0" * 40,
            "dataset_name": "SWE-Gym/SWE-Gym",
            "split": "train",
            "problem_statement": "add() is off by one",
            "golden_patch": "diff --git a/m.py b/m.py\n",
            "instance_dict": '{"instance_id": "demo__demo-1", "repo": "demo/demo"}',
        },
        "model": "policy",
        "temperature": 0.8,
        "max_output_tokens": 4096,
    },
    "agent_ref": _agent("swe_agents_train"),
}


def _row(name, **changes):
    return {**SUBSETS[name], "agent_ref": _agent(name), **changes}


@pytest.mark.parametrize("name", SUBSETS)
def test_each_subset_is_read_and_goes_to_the_agent_it_names(name):
    row = parse_released(_row(name), "f:1", known=REWARDS)
    assert row.agent == name
    asked = SUBSETS[name]["responses_create_params"]["input"]
    assert [(one.role, one.content) for one in row.messages] == [
        (one["role"], one["content"]) for one in asked
    ]
    assert None not in row.fields.values()
    if name in REWARDS:
        check_row(row)
    else:
        with pytest.raises(
            UnknownRow, match=f"f:1: field agent_ref.name: row .* asks for '{name}'"
        ):
            check_row(row)


def test_every_agent_of_the_release_has_its_row_here():
    """The two of AGENTS that have none are read as their twins are."""
    twins = {"genrm_simple_agent_reasoning_off", "equivalence_llm_judge_simple_agent"}
    assert set(AGENTS) == set(SUBSETS) | twins


def test_verifier_fields_come_without_the_nulls_of_a_table():
    row = parse_released(_row("mcqa_simple_agent"), "f:1", known=REWARDS)
    assert row.fields["options"] == [{"A": "a cat"}, {"B": "a dog"}]
    assert "weight" not in row.fields["template_metadata"]
    assert row.id == "5b1c"
    row = parse_released(_row("instruction_following_simple_agent"), "f:1", known=REWARDS)
    assert row.fields["kwargs"][0] == {}
    assert "pass_rate" not in row.fields
    assert row.fields["pass_rate_total"] == 8
    row = parse_released(_row("workplace_assistant_simple_agent"), "f:1", known=REWARDS)
    assert (row.id, row.tools) == ("0", (TOOL,))
    row = parse_released(_row("code_gen_simple_agent"), "f:1", known=REWARDS)
    assert row.fields["unit_tests"] == {"inputs": ["1\n"], "outputs": ["2\n"]}


PAID = {
    "instruction_following_simple_agent": "An owl and a wren",
    "mcqa_simple_agent": "Answer: B",
    "structured_outputs_simple_agent": '{"kg": 2}',
    "math_with_judge_simple_agent": "\\boxed{40}",
}


@pytest.mark.parametrize("name", PAID)
@pytest.mark.parametrize("nested", [False, True])
def test_fields_are_graded_from_the_top_level_and_from_below(name, nested):
    fields = _row(name)
    if nested:
        outer = {"responses_create_params", "agent_ref", "uuid", "id"}
        inner = {key: fields.pop(key) for key in [*fields] if key not in outer}
        fields["verifier_metadata"] = inner
    row = parse_released(fields, "f:1", known=REWARDS)
    assert pool.grade_here(row, Completion(PAID[name])).reward == 1.0
    assert pool.grade_here(row, Completion("")).reward == 0.0


@pytest.mark.parametrize("name", ["equivalence_llm_judge_simple_agent", "lc_judge_simple_agent"])
def test_a_judges_row_is_not_graded_as_mathematics(name):
    row = parse_released(
        {**SUBSETS["math_with_judge_simple_agent"], "agent_ref": _agent(name)}, "f:1", known=REWARDS
    )
    with pytest.raises(UnknownRow, match=name):
        check_row(row)


def test_repository_task_has_its_metadata_and_its_lists():
    tests = {"FAIL_TO_PASS": '["t::a", "t::b"]', "PASS_TO_PASS": ["t::c"], "repo": "demo/demo"}
    for more in ({}, tests):
        row = parse_released({**SWE, **more}, "f:1", known=REWARDS)
        assert (row.id, row.agent, row.messages) == ("demo__demo-1", "swe_agents_train", ())
        assert row.fields["metadata"]["instance_dict"]["repo"] == "demo/demo"
        assert row.fields["metadata"]["problem_statement"] == "add() is off by one"
        with pytest.raises(UnknownRow, match="asks for 'swe_agents_train'"):
            check_row(row)
    assert row.fields["FAIL_TO_PASS"] == ["t::a", "t::b"]
    assert row.fields["PASS_TO_PASS"] == ["t::c"]
    unnamed = {**SWE, "agent_ref": None}
    assert parse_released(unnamed, "f:1", known=REWARDS).agent == "swe_agents_train"


def _swe(**metadata):
    params = SWE["responses_create_params"]
    return {**SWE, "responses_create_params": {**params, "metadata": metadata}}


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({**SWE, "FAIL_TO_PASS": "t::a"}, "field FAIL_TO_PASS: a text that is not JSON"),
        ({**SWE, "PASS_TO_PASS": '{"a": 1}'}, "PASS_TO_PASS: expected a list of test names"),
        ({**SWE, "PASS_TO_PASS": [1]}, "PASS_TO_PASS: expected a list of test names"),
        (_swe(instance_dict="{"), "metadata.instance_dict: field (line): broken JSON"),
        ({**SWE, "responses_create_params": {"metadata": "x"}}, "metadata: expected an object"),
        (
            _row("math_with_judge_simple_agent", _hf_placeholder={"row": 3}),
            "is a placeholder whose",
        ),
        (
            {"agent_ref": _agent("x"), "responses_create_params": {"_hf_placeholder": True}},
            "is a placeholder whose text must first be filled in",
        ),
        (_row("genrm_simple_agent", agent_ref=_agent("nobody")), "unknown agent 'nobody'"),
    ],
)
def test_row_that_cannot_be_read_says_why(row, problem):
    with pytest.raises(RowError, match="^f:3: field ") as caught:
        parse_released(row, "f:3", known=REWARDS)
    assert problem in str(caught.value)


def _source(path):
    return SourceConfig(
        kind="jsonl",
        path=str(path),
        generator=None,
        split="train",
        count=None,
        seed=0,
        on_bad_row="skip",
        weight=1.0,
    )


def test_mixed_file_is_loaded_and_what_has_no_verifier_is_counted(tmp_path):
    rows = [*map(_row, SUBSETS), SWE, _row("mcqa_simple_agent", _hf_placeholder=1)]
    path = tmp_path / "train.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    loaded = load_rows(_source(path), "row", check_row, known=REWARDS)
    assert [row.agent for row in loaded.rows] == [name for name in SUBSETS if name in REWARDS]
    said = "\n".join(loaded.skipped)
    for name in [*(name for name in SUBSETS if name not in REWARDS), "swe_agents_train"]:
        assert f"asks for '{name}'" in said
    assert "placeholder" in said
    assert len(loaded.rows) + len(loaded.skipped) == len(rows)


SFT_DOMAINS = {  # config: the assistant's turn in its style
    "math": "<think>\nadd\n</think>\n2",
    "science": "<think></think>Water boils.",
    "chat": "<think>\nhm\n</think>\nHello!",
    "instruction_following": "no commas here",
    "safety": "<think>\nno\n</think>\nI cannot help with that.",
    "conversational_agent": '<think>\n</think>\n<tool_call>{"name": "find"}</tool_call>',
    "swe": "<think>\nx\n</think>\n```python\n### m.py\n<<<<<<< SEARCH\na\n=======\nb\n>>>>>>> REPLACE\n```",
    "terminal_agent": "<think>\nls\n</think>\n```\nls\n```",
}


def test_conversations_of_all_configs_are_read(tmp_path):
    path = tmp_path / "sft.jsonl"
    rows = []
    for domain, answer in SFT_DOMAINS.items():
        turns = [("system", ""), ("user", "Please."), ("assistant", answer), ("user", "Again.")]
        messages = [{"role": role, "content": text} for role, text in [*turns, turns[2]]]
        rows.append(
            {
                "domain": domain,
                "source": "own",
                "generator": "own",
                "messages": messages,
                "tools": None,
            }
        )
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    loaded = load_rows(_source(path), "conversation")
    assert not loaded.skipped
    assert {row.domain: row.messages[2].content for row in loaded.rows} == SFT_DOMAINS
    assert all(row.messages[0] == Message("system", "") for row in loaded.rows)


# --- the published examples, read from the wheel or from a folder it was unpacked in ---------------

PUBLISHED = (
    "instruction_following/data/example.jsonl",
    "math_with_judge/data/example.jsonl",
    "mcqa/data/example.jsonl",
    "mcqa/data/example_with_template_metadata.jsonl",
    "structured_outputs/data/example.jsonl",
    "structured_outputs/data/structured_outputs_v3_example.jsonl",
    "structured_outputs/data/structured_outputs_v4_example.jsonl",
    "workplace_assistant/data/example.jsonl",
    "single_step_tool_use_with_argument_comparison/data/example.jsonl",
    "single_step_tool_use_with_argument_comparison/data/parallel_example.jsonl",
    "xlam_fc/data/example.jsonl",
)
# Recorded trials that we may grade in another way: a letter inside a box with a line end; a letter
# in two pairs of braces; two expressions with powers of 2016.
OTHERWISE = {("mcqa", 2), ("mcqa_with_template_metadata", 0), ("math_with_judge", 1)}


@pytest.fixture(scope="module")
def published():
    """Reads a file of the published environments as objects."""
    where = pathlib.Path(os.environ.get("NEMOCASCADE_ROWS") or "/nowhere")
    if not where.exists():
        pytest.skip("NEMOCASCADE_ROWS names neither the nemo-gym wheel nor its folder")

    def read(name):
        name = f"resources_servers/{name}"
        if where.is_dir():
            data = (where / name).read_bytes()
        else:
            with zipfile.ZipFile(where) as wheel:
                data = wheel.read(name)
        return [parse_line(line, name) for line in data.splitlines()]

    return read


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_examples_load(published, name):
    for index, obj in enumerate(published(name)):
        row = parse_released(obj, f"{name}:{index + 1}", known=REWARDS)
        assert row.messages
        check_row(row)


@pytest.mark.parametrize(
    ("kind", "more"),
    [("instruction_following", ""), ("mcqa", ""), ("mcqa", "_with_template_metadata")]
    + [("math_with_judge", "")],
)
def test_published_rewards_are_ours(published, kind, more):
    """Recorded answers to the examples, with the reward that the published server gave them."""
    rows = published(f"{kind}/data/example{more}.jsonl")
    by_prompt = {_texts(obj): parse_released(obj, "f:1", known=REWARDS) for obj in rows}
    trials = published(f"{kind}/data/example_rollouts{more}.jsonl")
    assert len(trials) == 5
    for index, trial in enumerate(trials):
        answer = Completion(response_text(trial["response"], "f:1"))
        score = pool.grade_here(by_prompt[_texts(trial)], answer)
        assert score.status == "ok"
        if (kind + more, index) not in OTHERWISE:
            assert score.reward == trial["reward"], score.reason


def _texts(obj):
    """Returns the prompt of a row, its content plain or in parts."""
    row = parse_released({**obj, "agent_ref": _agent("genrm_simple_agent")}, "f:1")
    return tuple(message.content for message in row.messages)


def test_published_schemas_pay_a_value_made_for_them(published):
    paid = []
    for obj in published("structured_outputs/data/structured_outputs_v3_example.jsonl"):
        row = parse_released(obj, "f:1", known=REWARDS)
        schema = json.loads(obj["schema_str"])
        for kind, text in write_all(_example(schema)):
            if kind == obj["schema_type"]:
                score = pool.grade_here(row, Completion(text))
                assert score.reward == 1.0, (kind, score.reason)
                assert pool.grade_here(row, Completion(text[: len(text) // 2])).reward == 0.0
                paid.append(kind)
    assert sorted(paid) == ["csv", "csv", "json", "toml", "yaml"]


def test_published_calls_pay_a_value_made_for_them(published):
    for obj in published("structured_outputs/data/structured_outputs_v4_example.jsonl"):
        row = parse_released(obj, "f:1", known=REWARDS)
        value = _example(json.loads(obj["schema_str"]))
        key = obj.get("tool_payload_key")
        call = ToolCall(obj["tool_name"], {key: value} if key else value)
        score = pool.grade_here(row, Completion(write_calls([call])))
        assert score.reward == 1.0, score.reason
        other = ToolCall("other", call.arguments)
        assert pool.grade_here(row, Completion(write_calls([other]))).reward == 0.0


def _example(schema):
    kind = schema["type"] if isinstance(schema["type"], str) else schema["type"][0]
    if kind == "object":
        return {name: _example(one) for name, one in schema["properties"].items()}
    if kind == "array":
        return [_example(schema["items"])]
    return {"string": "word", "integer": 3, "number": 2.5, "boolean": True, "null": None}[kind]
