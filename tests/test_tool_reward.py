"""One tool-using turn: what a call has to be like, what is a message, and what no answer gets paid for."""

import atexit
import dataclasses
import functools
import importlib.metadata
import itertools
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile

import attacks_tools
import pytest

from nemocascade_jax.rewards import REWARDS, check_row, tool_calls, workplace
from nemocascade_jax.rewards.call_matching import Comparison, match_calls, value_difference
from nemocascade_jax.rewards.pool import ROOT, grade_here
from nemocascade_jax.rows.generators import office
from nemocascade_jax.rows.messages import ParsedTurn, write_calls
from nemocascade_jax.rows.records import Completion, Message, Row, RowError, ToolCall
from nemocascade_jax.rows.schema import parse_row, read_jsonl

EXACT = Comparison(
    similarity=0.1,
    tolerance=1e-6,
    mode="binary",
    fewer=False,
    more=False,
    counted=True,
    extra_arguments=False,
)
CITY = {
    "type": "function",
    "name": "weather",
    "parameters": {"properties": {"city": {"type": "string"}}},
}
PARIS = {"type": "function_call", "name": "weather", "arguments": '{"city": "Paris"}'}
MESSAGE = {"type": "message", "content": "any"}


def row_of(action, agent=tool_calls.AGENT, **fields):
    fields = {"expected_action": action, **fields}
    return Row("r", agent, (Message("user", "How is it in Paris?"),), fields, "test:1", (CITY,))


def turn(*calls, content="", faults=()):
    made = tuple(ToolCall(name, arguments) for name, arguments in calls)
    return [ParsedTurn("", content, made, faults)]


def paid(row, turns):
    return tool_calls.score_turns(row, turns).reward


@pytest.mark.parametrize(
    ("want", "value", "same"),
    [
        ("Paris", "Paris", True),
        ("Paris", "paris", False),  # one word is compared as it stands
        ("Paris", "Paris France", False),
        ("the blue door", "The  BLUE door", True),
        # 1 common word of 2 + 8 is 0.1; of 2 + 9 less
        ("red door", "red a b c d e f g", True),
        ("red door", "red a b c d e f g h", False),
        ("red red", "red door", True),
        (3, 3, True),
        (3, 3.0, True),
        (3, 3.0000001, False),
        (3, "3", False),
        (2.5, 2.5000001, True),
        (2.5, 2.51, False),
        (2.0, 2, True),
        (2.5, 10**400, False),
        (10**16 + 1, 10**16, False),
        (1, True, False),
        (True, 1, False),
        (True, True, True),
        (None, None, True),
        (None, 0, False),
        ([1, 2], [2, 1], False),
        ([1, 2], [1, 2, 3], False),
        ([1], (1,), False),
        ({"a": {"b": 1}}, {"a": {"b": 1}}, True),
        ({"a": {"b": 1}}, {"a": {"b": 1, "c": 2}}, False),
        ({"a": None}, {}, False),
        ({"a": 1}, "{'a': 1}", False),
    ],
)
def test_values_are_compared_by_their_type(want, value, same):
    assert (value_difference(want, value, EXACT, "x") == "") == same


def test_exact_texts_have_no_likeness():
    assert value_difference("a b c", "a b C", EXACT._replace(similarity=None), "x")


def most_pairs(alike):
    """Returns the most pairs that any assignment of calls (columns) to expected ones (rows) has."""
    square = max(len(alike), len(alike[0]))
    table = [[*row, *[False] * (square - len(row))] for row in alike]
    table += [[False] * square] * (square - len(table))
    orders = itertools.permutations(range(square))
    return max(sum(row[at] for row, at in zip(table, order, strict=True)) for order in orders)


def test_pairs_are_as_many_as_there_can_be(rng):
    """Augmenting paths find what trying every assignment finds, order and greed notwithstanding."""
    how = EXACT._replace(mode="fraction", fewer=True, more=True)
    for _ in range(60):
        wanted, made = (
            [ToolCall("f", {"x": " ".join(rng.choice(list("abcdef"), 2))}) for _ in range(count)]
            for count in rng.integers(1, 5, 2)
        )
        alike = [
            [value_difference(want.arguments, call.arguments, how, "") == "" for call in made]
            for want in wanted
        ]
        found = match_calls(wanted, made, how).reward
        assert found == pytest.approx(most_pairs(alike) / min(len(wanted), len(made)))


ALPHA, BETA = ToolCall("f", {"x": "alpha"}), ToolCall("f", {"x": "beta"})
JUNK = [ToolCall("g", {"x": str(number)}) for number in range(3)]


@pytest.mark.parametrize(
    ("made", "strict", "fraction", "f1"),
    [
        # (calls made, reward with an exact count), then with every count admitted
        ([BETA, ALPHA], 1.0, 1.0, 1.0),
        ([ALPHA, JUNK[0]], 0.0, 0.5, 0.5),
        ([ALPHA], 0.0, 1.0, 2 / 3),
        ([ALPHA, BETA, *JUNK], 0.0, 1.0, 4 / 7),
        ([ALPHA, ALPHA], 0.0, 0.5, 0.5),
    ],
)
def test_several_calls_are_worth_what_their_mode_says(made, strict, fraction, f1):
    wanted, free = [ALPHA, BETA], EXACT._replace(fewer=True, more=True)
    assert match_calls(wanted, made, EXACT).reward == strict
    assert match_calls(wanted, made, free._replace(mode="fraction")).reward == fraction
    assert match_calls(wanted, made, free._replace(mode="f1")).reward == pytest.approx(f1)


def test_the_right_call_is_paid_and_another_is_not():
    row = row_of(PARIS)
    assert paid(row, turn(("weather", {"city": "Paris"}))) == 1
    for wrong in (
        turn(("weather", {"city": "Rome"})),
        turn(("Weather", {"city": "Paris"})),
        turn(("weather", {"city": "Paris", "unit": "C"})),
        turn(("weather", {})),
        turn(("weather", {"city": "Paris"}), ("weather", {"city": "Rome"})),
        turn(content="It is fine in Paris."),
        turn(("weather", {"city": "Paris"}), faults=("no end",)),
        turn(),
        [],
        turn(("weather", {"city": "Paris"})) * 2,
    ):
        assert paid(row, wrong) == 0, wrong


def test_a_batch_has_no_order():
    rome = {**PARIS, "arguments": '{"city": "Rome"}'}
    row = row_of({"type": "function_call_batch", "calls": [PARIS, rome]})
    cities = [("weather", {"city": city}) for city in ("Rome", "Paris")]
    assert paid(row, turn(*cities)) == paid(row, turn(*cities[::-1])) == 1
    assert paid(row, turn(cities[0])) == paid(row, turn(cities[0], cities[0])) == 0


def test_a_message_is_any_text_that_is_one():
    row = row_of(MESSAGE)
    assert paid(row, turn(content="Which Paris do you mean?")) == 1
    assert paid(row, turn(content=" \n")) == 0
    assert paid(row, turn(content="How is  it in Paris?\n")) == 0
    assert paid(row, turn(("weather", {"city": "Paris"}), content="Let me see.")) == 0
    assert paid(row, turn(content="x", faults=("a call without end",))) == 0


def test_named_arguments_alone_count_where_answers_are_listed():
    fields = {"expected_answers": [{"name": "weather", "arguments": {"city": "New York"}}]}
    row = dataclasses.replace(row_of(None), agent=tool_calls.XLAM, fields=fields)
    assert paid(row, turn(("weather", {"city": "New York", "unit": "C"}))) == 1
    assert paid(row, turn(("weather", {"city": "new york"}))) == 0
    assert paid(row, turn(("weather", {"unit": "C"}))) == 0
    assert paid(row, turn(*[("weather", {"city": "New York"})] * 2)) == 0
    nothing = dataclasses.replace(row, fields={"expected_answers": []})
    assert paid(nothing, turn(content="Nothing fits.")) == 1
    assert paid(nothing, turn(("weather", {"city": "New York"}))) == paid(nothing, turn()) == 0


def test_a_row_can_set_its_comparison():
    near, other = turn(("weather", {"city": "old Paris"})), turn(("weather", {"city": "Rome"}))
    action = {**PARIS, "arguments": '{"city": "old town"}'}
    config = {"word_count_similarity_threshold": 0.3}
    assert paid(row_of(action), near) == 1
    assert paid(row_of(action, tool_call_comparator_config=config), near) == 0
    both = [ParsedTurn("", "", near[0].calls + other[0].calls, ())]
    free = {"parallel_tool_call_rewarding": False}
    assert paid(row_of(action), both) == 0
    assert paid(row_of(action, tool_call_comparator_config=free), both) == 1
    assert paid(row_of(action, tool_call_comparator_config=free), other) == 0


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({}, "expected_action: the row needs it, or expected_answers"),
        ({"expected_action": MESSAGE, "expected_answers": []}, "and not both"),
        ({"expected_action": {"type": "dance"}}, "'dance' is none of"),
        ({"expected_action": {"type": "function_call", "arguments": "{}"}}, "a name and arguments"),
        ({"expected_action": {**PARIS, "arguments": "{"}}, "arguments: not JSON"),
        ({"expected_action": {**PARIS, "arguments": "[1]"}}, "arguments: expected an object"),
        ({"expected_action": {**PARIS, "arguments": '{"a": NaN}'}}, "NaN"),
        ({"expected_action": {"type": "function_call_batch", "calls": []}}, "a list of 1 to 64"),
        ({"expected_answers": {}}, "expected_answers: expected a list"),
        ({"expected_action": PARIS, "tool_call_comparator_config": {"x": 1}}, "x: unknown; known"),
        (
            {"expected_action": PARIS, "tool_call_comparator_config": {"allow_subset": 1}},
            "allow_subset: 1 is not a value",
        ),
    ],
)
def test_a_faulty_reference_is_refused_and_never_a_zero(fields, problem):
    row = dataclasses.replace(row_of(MESSAGE), fields=fields)
    with pytest.raises(RowError, match="test:1: field ") as caught:
        check_row(row)
    assert problem in str(caught.value)
    assert grade_here(row, Completion("x")).status == "failed"


@pytest.mark.parametrize("listed", [(), ("lines", "deep")])
def test_texts_are_typed_as_the_reference_is(listed):
    """Whether the row does not list the tool, or lists it with types that the reference has not."""
    action = {"type": "function_call", "name": "view", "arguments": '{"lines": [4, 8], "deep": 2}'}
    properties = {name: {"type": "string"} for name in listed}
    tool = {"type": "function", "name": "view", "parameters": {"properties": properties}}
    row = dataclasses.replace(row_of(action), tools=(tool,) if listed else ())
    text = write_calls([ToolCall("view", {"lines": [4, 8], "deep": 2})])
    assert tool_calls.score(row, Completion(text)).reward == 1
    assert tool_calls.score(row, Completion(text.replace("8", "9"))).reward == 0


def example_rows():
    """Rows of both kinds of tool use, some of which expect no call."""
    rows = [row for kind in office.AGENTS for row in office.generate("train", 24, 3, kind)]
    assert {bool(attacks_tools.reference(row)) for row in rows} == {True, False}
    return rows


def test_satisfying_answers_are_paid_and_empty_or_cut_ones_are_not():
    for row in example_rows():
        answer = attacks_tools.satisfying(row)
        assert grade_here(row, Completion(answer)).reward == 1, answer
        for bad in ("", "<think>\n", "<think>\nx</think>", answer[: len(answer) // 3]):
            verdict = grade_here(row, Completion(bad))
            assert (verdict.reward, verdict.status) == (0, "ok"), bad


@pytest.mark.parametrize("kind", attacks_tools.ATTACKS)
def test_attacks_are_worth_nothing(kind):
    for row in example_rows():
        verdict = grade_here(row, Completion(attacks_tools.ATTACKS[kind](row)))
        assert (verdict.reward, verdict.status) == (0, "ok"), (row.messages[-1].content, verdict)
        assert verdict.reason
        assert verdict.reason.isascii()


@functools.cache
def published():
    """Returns the folder of the published example rows: in the wheel, beside it unpacked, or installed."""
    named = os.environ.get("NEMOCASCADE_ROWS")
    where = pathlib.Path(named or "/nowhere")
    if where.is_file():
        place = tempfile.mkdtemp(prefix="rows-")
        atexit.register(shutil.rmtree, place, ignore_errors=True)
        with zipfile.ZipFile(where) as wheel:
            names = [name for name in wheel.namelist() if name.startswith("resources_servers/")]
            wheel.extractall(place, names)
        where = pathlib.Path(place)
    elif named is None:
        try:
            where = pathlib.Path(importlib.metadata.distribution("nemo-gym").locate_file(""))
        except importlib.metadata.PackageNotFoundError:
            pytest.skip("NEMOCASCADE_ROWS names neither the nemo-gym wheel nor its folder")
    return where / "resources_servers"


@pytest.mark.parametrize(
    ("file", "agent"),
    [
        ("workplace_assistant/data/example.jsonl", workplace.AGENT),
        ("single_step_tool_use_with_argument_comparison/data/example.jsonl", tool_calls.AGENT),
        (
            "single_step_tool_use_with_argument_comparison/data/parallel_example.jsonl",
            f"parallel_tool_calls_{tool_calls.AGENT}",
        ),
        ("xlam_fc/data/example.jsonl", tool_calls.XLAM),
    ],
)
def test_published_rows_load_and_grade(file, agent):
    tables = str(published() / "workplace_assistant/csv_data")
    for number, obj in read_jsonl(published() / file):
        obj["agent_ref"] = {"name": agent}
        row = parse_row(obj, f"{file}:{number}", known=REWARDS)
        if agent == workplace.AGENT:
            row = dataclasses.replace(row, fields={**row.fields, "office_data": tables})
        check_row(row)
        assert grade_here(row, Completion(attacks_tools.satisfying(row))).reward == 1
        assert grade_here(row, Completion("")).reward == 0
        if attacks_tools.reference(row):
            assert grade_here(row, Completion("I cannot do that.")).reward == 0


def test_hostile_turns_cost_little():
    """The bounds of the comparison hold: 64 calls of long texts against 64 expected ones."""
    words = " ".join(f"w{number}" for number in range(500))
    batch = {
        "type": "function_call_batch",
        "calls": [{**PARIS, "arguments": json.dumps({"city": words})}] * 64,
    }
    made = [("weather", {"city": words + f" {number}"}) for number in range(64)]
    row, began = row_of(batch), time.process_time()
    assert paid(row, turn(*made)) == 1
    assert time.process_time() - began < 2


def called(name, arguments):
    return {
        "type": "function_call",
        "call_id": "c",
        "name": name,
        "arguments": json.dumps(arguments),
    }


def said(text):
    return {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "output_text", "text": text}],
    }


RESULT = {"type": "function_call_output", "call_id": "c", "output": "Done."}


def test_score_grades_responses_that_hold_calls(tmp_path):
    """Calls as data, in one turn or several, and calls in the text of a message."""
    work, step = (list(office.generate("train", 40, 3, kind)) for kind in office.AGENTS)
    index = next(i for i, row in enumerate(work) if "email_id" in str(row.fields))
    other = next(i for i, row in enumerate(work) if "duration" in str(row.fields))
    (right,) = attacks_tools.reference(work[index])
    call = called(right.name, dict(right.arguments))
    search = called("email_search_emails", {"query": "audit"})
    broken = {**call, "arguments": "{"}
    text = attacks_tools.satisfying(work[index])
    cases = [
        (step, [{"type": "reasoning", "summary": []}, call], 1),
        (step, [said("Let me."), call], 1),
        (step, [said(text)], 1),
        (step, [call, call], 0),
        (step, [broken], 0),
        (step, [call, RESULT, said("Done.")], 1),
        (step, [call, RESULT, call, RESULT, said("Done.")], 0),
        (step, [], 0),
        (work, [search, RESULT, call, RESULT, said("Done.")], 1),
        (work, [broken, RESULT, call], 1),
        (work, [call, RESULT, broken], 0),
        (work, [call, RESULT, call, RESULT], 1),  # the second finds nothing to remove
        (work, [said("Done.")], 0),
        (work, [], 0),
    ]
    lines = []
    for rows, output, _ in cases:
        row = rows[index]
        line = {**row.fields, "id": row.id, "agent_ref": {"name": row.agent}}
        lines.append({**line, "response": {"output": output}})
    far = work[other]
    line = {**far.fields, "id": far.id, "agent_ref": {"name": far.agent}}
    lines.append({**line, "completion": attacks_tools.satisfying(far)})
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    flags = [f"--rows={tmp_path}/rows.jsonl", f"--out={tmp_path}/out.jsonl", "--workers=1"]
    command = [sys.executable, "launch/score.py", *flags]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [line["reward"] for line in found] == [*(reward for _, _, reward in cases), 1], found
    assert "workplace_assistant: 7 rows" in done.stdout
